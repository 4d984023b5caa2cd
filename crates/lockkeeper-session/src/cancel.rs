//! A token that ends calls, or that says that a hold is lost.

/// Ends the calls that were given it, or says that something has ended: a session ([`Session::closing`](crate::Session::closing)), a
/// hold. All clones are one token.
///
/// It has the calls of the token of the crate `tokio-util`, and is another type, so that this crate does not depend on the version of
/// that one. A program that stops by such a token, or by a signal, drops the call itself:
///
/// ```
/// # async fn example(sessions: lockkeeper_session::Sessions, stop: tokio_util::sync::CancellationToken) {
/// match stop.run_until_cancelled(sessions.open()).await {
///     Some(Ok((session, _))) => println!("session {}", session.id()),
///     Some(Err(error)) => println!("{error}"),
///     None => println!("asked to stop"),
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(tokio_util::sync::CancellationToken);

impl CancellationToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the token and its children. This is final.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Returns whether it is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Resolves when it is cancelled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + '_ {
        self.0.cancelled()
    }

    /// Returns a token that is cancelled together with this one, and that can be cancelled alone.
    pub fn child_token(&self) -> Self {
        CancellationToken(self.0.child_token())
    }

    /// Runs `work`, and drops it at its next await when the token is cancelled. Returns `None` if it was dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work.
    pub async fn run_until_cancelled<F: Future>(&self, work: F) -> Option<F::Output> {
        self.0.run_until_cancelled(work).await
    }
}
