//! Reports each call that acquires a lock to the program: as a log event, as spans and, with the feature `metrics`, as counts and times.

use std::fmt::Display;

use tokio::time::Instant;

use crate::hold::holding::Holding;
use crate::hold::spans::{WaitRef, WaitSpan, millis};
use crate::meters::{Meter, Waiting};

/// One call, from its begin to its result. Keep it where the caller polls, so that the event is in the caller's span and the metrics
/// reach the caller's recorder. Dropped without a result, it counts as a call whose caller has stopped waiting.
pub struct Call {
    path: String,
    meter: Meter,
    started: Instant,
    /// `None` once there is a result.
    waiting: Option<Waiting>,
    span: WaitSpan,
}

impl Call {
    /// The call begins now.
    pub fn begin(path: String, meter: &Meter) -> Self {
        let span = WaitSpan::begin(&path, meter.mode);
        Call { path, meter: meter.clone(), started: Instant::now(), waiting: Some(meter.waits()), span }
    }

    /// The span of the wait.
    pub(crate) fn span(&self) -> WaitRef {
        self.span.reference()
    }

    /// Reports the result, and returns it.
    pub fn end<G, E: Display>(mut self, outcome: Result<G, E>, holding: impl FnOnce(&G) -> &Holding) -> Result<G, E> {
        let waited = self.started.elapsed();
        let (path, mode) = (&*self.path, self.meter.mode);
        let waited_ms = millis(waited);
        match &outcome {
            Ok(guard) => {
                let holding = holding(guard);
                match holding.fencing_token() {
                    Some(token) => tracing::debug!(path, mode, waited_ms, token = token.get(), "acquired"),
                    None => tracing::debug!(path, mode, waited_ms, "acquired"),
                }
                let span = self.span.hold(path, mode, || holding.node(), holding.fencing_token());
                span.into_iter().for_each(|span| holding.has_span(span));
                self.span.end("granted", waited, None);
            }
            Err(error) => {
                tracing::debug!(path, mode, waited_ms, %error, "not acquired");
                self.span.end("failed", waited, Some(error));
            }
        }
        // It is counted before it stops to wait, so that at no moment it is neither.
        self.meter.answered(if outcome.is_ok() { "granted" } else { "failed" }, waited);
        self.waiting = None;
        outcome
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.waiting.is_some() {
            let waited = self.started.elapsed();
            self.meter.answered("dropped", waited);
            self.waiting = None;
            self.span.end("dropped", waited, None);
        }
    }
}
