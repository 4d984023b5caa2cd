//! A token that ends calls, or that says that a hold is lost.

/// Ends calls that were given it, such as [`Acquire::cancel_on`](crate::Acquire::cancel_on), or says that a lock is lost
/// ([`Holding::cancelled_when_lost`](crate::Holding::cancelled_when_lost)). All clones are one token.
///
/// It has the calls of the token of the crate `tokio-util`. A program that stops by such a token, or by a signal, cancels this one then:
///
/// ```no_run
/// # async fn example(keeper: lockkeeper::Lockkeeper, asked_to_stop: impl Future<Output = ()>) {
/// let stop = lockkeeper::CancellationToken::new();
/// let guard = keeper.mutex("/locks/nightly").acquire().cancel_on(stop.clone());
/// tokio::join!(async { asked_to_stop.await; stop.cancel() }, guard);
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
