//! Waits for what may be absent.

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

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
