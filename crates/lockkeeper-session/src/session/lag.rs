//! Measures how late the user's async runtime runs ready tasks: a saturated runtime notices the end of a hold too late.
//!
//! The measurement works from outside. With each confirmed heartbeat, the library's thread gives the runtime an empty
//! task and counts the time until it runs. It costs one empty task every fifth of the session's timeout while something
//! is held. It also notices a runtime that does not run at all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::{trace, warn};

use crate::clock::Clock;

/// The value of a task that has not run yet.
const NONE: u64 = u64::MAX;

/// The measurement of one session.
#[derive(Default)]
pub(crate) struct Lag {
    /// The runtime whose tasks hold something.
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
    /// How late it ran, or at least how late it is now.
    fn lag(&self, now: Duration) -> Duration {
        match self.took.load(Ordering::Relaxed) {
            NONE => now.saturating_sub(self.sent),
            took => Duration::from_nanos(took),
        }
    }
}

impl Lag {
    /// Registers the runtime whose tasks hold something.
    pub(crate) fn of(&self, runtime: Handle) {
        *self.runtime.lock().expect("held for a copy only") = Some(runtime);
    }

    /// Reads the result of the last task, and sends another once that one has run. Logs a warning above `limit`.
    pub(crate) fn measure(&self, clock: Clock, limit: Duration) {
        if let Some(lag) = self.probe(clock, limit) {
            let (lag_ms, limit_ms) = (lag.as_millis() as u64, limit.as_millis() as u64);
            warn!(
                lag_ms,
                limit_ms, "the runtime that holds a lock runs its tasks late; it would notice a loss late too"
            );
        }
    }

    /// Returns how late the last task ran, or is now, if that is above `limit` and was not returned before.
    fn probe(&self, clock: Clock, limit: Duration) -> Option<Duration> {
        let runtime = self.runtime.lock().expect("held for a copy only").clone()?;
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
                // Less than 500 years.
                took.store(u64::try_from(lag).unwrap_or_default(), Ordering::Relaxed);
            });
        }
        late
    }

    /// How late the last task ran.
    pub(crate) fn last(&self, clock: Clock) -> Option<Duration> {
        Some(self.last.lock().expect("held for a change only").as_ref()?.lag(clock.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_runtime_is_reported_once_and_gets_one_task_at_a_time() {
        let (lag, clock, never) = (Lag::default(), Clock::System, Duration::MAX);
        assert_eq!((lag.probe(clock, never), lag.last(clock)), (None, None), "nobody acquires");
        // It runs only when the test drives it.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tasks = || runtime.metrics().num_alive_tasks();
        lag.of(runtime.handle().clone());
        for _ in 0..2 {
            assert_eq!(lag.probe(clock, never), None);
            assert_eq!(tasks(), 1);
        }
        while lag.last(clock) == Some(Duration::ZERO) {}
        let late = lag.probe(clock, Duration::ZERO).expect("it has not run");
        assert_eq!(lag.probe(clock, Duration::ZERO), None, "reported before");
        runtime.block_on(tokio::task::yield_now());
        let took = lag.last(clock);
        assert_eq!((tasks(), lag.last(clock)), (0, took), "it has run");
        assert!(took >= Some(late));
        assert_eq!((lag.probe(clock, never), tasks()), (None, 1));
    }
}
