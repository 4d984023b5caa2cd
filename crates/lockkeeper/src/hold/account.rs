//! Reports each call that acquires a lock to the program: as a log event and, with the feature `metrics`, as counts and times.

use std::fmt::Display;

use tokio::time::Instant;

use crate::hold::holding::Holding;
use crate::meters::{Meter, Waiting};

/// One call, from its begin to its result. Keep it where the caller polls, so that the event is in the caller's span and the metrics
/// reach the caller's recorder. Dropped without a result, it counts as a call whose caller has stopped waiting.
pub struct Call {
    path: String,
    meter: Meter,
    started: Instant,
    /// `None` once there is a result.
    waiting: Option<Waiting>,
}

impl Call {
    /// The call begins now.
    pub fn begin(path: String, meter: &Meter) -> Self {
        Call { path, meter: meter.clone(), started: Instant::now(), waiting: Some(meter.waits()) }
    }

    /// Reports the result, and returns it.
    pub fn end<G, E: Display>(mut self, outcome: Result<G, E>, holding: impl FnOnce(&G) -> &Holding) -> Result<G, E> {
        let waited = self.started.elapsed();
        let (path, mode) = (&*self.path, self.meter.mode);
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        match &outcome {
            Ok(guard) => match holding(guard).fencing_token() {
                Some(token) => tracing::debug!(path, mode, waited_ms, token = token.get(), "acquired"),
                None => tracing::debug!(path, mode, waited_ms, "acquired"),
            },
            Err(error) => tracing::debug!(path, mode, waited_ms, %error, "not acquired"),
        }
        self.waiting = None;
        self.meter.answered(if outcome.is_ok() { "granted" } else { "failed" }, waited);
        outcome
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.waiting.take().is_some() {
            self.meter.answered("dropped", self.started.elapsed());
        }
    }
}
