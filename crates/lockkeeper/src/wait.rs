//! Waits for what may be absent, and how long calls wait for the servers.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a `try_acquire` without a timeout waits for the servers. Several times what an answer takes from a slow
/// disk or from another continent, and short enough for a caller that does not want to wait.
pub(crate) const TRY: Duration = Duration::from_secs(2);

/// How old a request without an answer must be at the deadline before the error calls the servers unreachable. A
/// younger one may only have met a busy server.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);

/// How old a call without any answer must be for the same: in that case it is also unknown whether the lock is held.
pub(crate) const FIRST_SILENCE: Duration = Duration::from_millis(250);

/// Awaits a future that may be absent: without one it never resolves.
pub(crate) async fn or_never<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Resolves when the deadline has passed; without one, never.
pub(crate) async fn passed(deadline: Option<Instant>) {
    or_never(deadline.map(tokio::time::sleep_until)).await;
}

/// Resolves when the token is cancelled; without one, never.
pub(crate) async fn cancelled(token: Option<&CancellationToken>) {
    or_never(token.map(CancellationToken::cancelled)).await;
}
