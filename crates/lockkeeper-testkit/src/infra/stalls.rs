//! The control for claims about time: a machine without a free core is told apart from late code.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A thread that reads the clock each millisecond, and records how long it got no turn.
#[derive(Debug)]
pub struct Stalls(Arc<AtomicU64>);

impl Stalls {
    /// Watches until this value is dropped.
    pub fn watch() -> Stalls {
        let longest = Arc::new(AtomicU64::new(0));
        let seen = Arc::downgrade(&longest);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(longest) = seen.upgrade() {
                let gap = u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX);
                longest.fetch_max(gap, Ordering::Relaxed);
                last = Instant::now();
                drop(longest);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Stalls(longest)
    }

    /// The longest time without a turn so far.
    pub fn longest(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Returns a limit that a busy machine may pass: each of the threads between two programs may have got no turn for the
    /// longest of the stalls so far.
    pub fn allow(&self, limit: Duration) -> Duration {
        const THREADS: u32 = 8;
        limit + self.longest() * THREADS
    }
}
