//! How late the user's async runtime runs what is ready: a saturated one looks at its guards too late.
//!
//! Measured from outside: with each proof of the session, the library's thread hands the runtime a task that does nothing, and
//! counts until it runs. So it costs one empty task a fifth of the session's timeout while something is held, and a runtime
//! that does not run at all is noticed too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::{trace, warn};

use crate::clock::Clock;

/// A task that has not run yet says so.
const NONE: u64 = u64::MAX;

/// The measurement of one session.
#[derive(Default)]
pub(crate) struct Lag {
    /// The runtime that acquired last.
    runtime: Mutex<Option<Handle>>,
    last: Mutex<Option<Probe>>,
}

/// A task on its way through the runtime.
#[derive(Clone)]
struct Probe {
    sent: Duration,
    /// How late it ran, in nanoseconds.
    took: Arc<AtomicU64>,
    warned: bool,
}

impl Probe {
    /// How late it ran, or will have run at least.
    fn lag(&self, now: Duration) -> Duration {
        match self.took.load(Ordering::Relaxed) {
            NONE => now.saturating_sub(self.sent),
            took => Duration::from_nanos(took),
        }
    }
}

impl Lag {
    /// Somebody on this runtime acquires a lock.
    pub(crate) fn of(&self, runtime: Handle) {
        *self.runtime.lock().expect("held for a copy only") = Some(runtime);
    }

    /// Looks how the last task went, and sends another once that has run. Not above `limit`, or it is said.
    pub(crate) fn measure(&self, clock: Clock, limit: Duration) {
        let Some(runtime) = self.runtime.lock().expect("held for a copy only").clone() else { return };
        let now = clock.now();
        let mut last = self.last.lock().expect("held for a change only");
        let mut late = None;
        let mut under_way = false;
        if let Some(probe) = last.as_mut() {
            let lag = probe.lag(now);
            under_way = probe.took.load(Ordering::Relaxed) == NONE;
            if lag > limit && !probe.warned {
                probe.warned = true;
                late = Some(lag);
            }
            trace!(lag_us = lag.as_micros() as u64, under_way, "the caller's runtime");
        }
        if !under_way {
            let took = Arc::new(AtomicU64::new(NONE));
            *last = Some(Probe { sent: now, took: took.clone(), warned: false });
            runtime.spawn(async move {
                let lag = clock.now().saturating_sub(now).as_nanos();
                took.store(u64::try_from(lag).unwrap_or(NONE - 1), Ordering::Relaxed);
            });
        }
        drop(last);
        if let Some(lag) = late {
            let (lag_ms, limit_ms) = (lag.as_millis() as u64, limit.as_millis() as u64);
            warn!(
                lag_ms,
                limit_ms, "the runtime that holds a lock runs its tasks late; a loss would be noticed late too"
            );
        }
    }

    /// How late the last task ran.
    pub(crate) fn last(&self, clock: Clock) -> Option<Duration> {
        Some(self.last.lock().expect("held for a change only").as_ref()?.lag(clock.now()))
    }
}
