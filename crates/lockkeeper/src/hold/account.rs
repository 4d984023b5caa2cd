//! Reports each acquire of a lock to the program: as a log event and, with the feature `metrics`, as a count and a
//! waiting time.

use std::fmt::Display;

use tokio::time::Instant;

use crate::hold::holding::Holding;

/// Reports the result of an acquire that began at `started`; `mode` is what it asked for, as `show` prints it. Call it where the caller polls, so that the event is in
/// the caller's span and the metrics reach the caller's recorder.
pub(crate) fn report<E: Display>(path: &str, mode: &'static str, started: Instant, outcome: Result<&Holding, &E>) {
    let waited = started.elapsed();
    let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
    match outcome {
        Ok(holding) => match holding.fencing_token() {
            Some(token) => tracing::info!(path, mode, waited_ms, token = token.get(), "acquired"),
            None => tracing::info!(path, mode, waited_ms, "acquired"),
        },
        Err(error) => tracing::debug!(path, mode, waited_ms, %error, "not acquired"),
    }
    #[cfg(feature = "metrics")]
    {
        let outcome = if outcome.is_ok() { "granted" } else { "failed" };
        let labels = [("lock", path.to_owned()), ("mode", mode.to_owned()), ("outcome", outcome.to_owned())];
        metrics::counter!("lockkeeper_acquires_total", &labels).increment(1);
        metrics::histogram!("lockkeeper_acquire_wait_seconds", &labels).record(waited.as_secs_f64());
    }
}
