//! The change of an upgradeable reader to a writer: its options, and the future that waits for it.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_session::CancellationToken;

use crate::error::{ChangeError, Error, ErrorKind};
use crate::hold::HoldRequest;
use crate::hold::guard::{UpgradeableGuard, WriteGuard};
use crate::hold::holding::Holding;

impl UpgradeableGuard {
    /// Returns a request that waits until the readers ahead have released the lock, and then becomes the writer.
    ///
    /// The wait cannot deadlock: no contender that waits for this hold holds the lock.
    ///
    /// ```no_run
    /// # async fn example(keeper: lockkeeper::Lockkeeper) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let reader = keeper.rwlock("/locks/prices").upgradeable().acquire().await?;
    /// match reader.upgrade().timeout(Duration::from_secs(5)).await {
    ///     Ok(writer) => writer.release().await?,
    ///     // It still reads.
    ///     Err(error) => error.guard.release().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn upgrade(self) -> Upgrade {
        Upgrade { guard: self, timeout: None, cancel: None }
    }
}

/// A request to become the writer that is not sent yet: await it, or set options first. Created by
/// [`UpgradeableGuard::upgrade`].
///
/// # Cost
///
/// One listing, and one more for each reader that releases.
///
/// # Cancel safety
///
/// Dropping the future releases the lock.
///
/// # Errors
///
/// [`UpgradeError`] contains the guard, still a reader's, and the reason: [`ChangeError::Lost`] as soon as the lock is lost, also
/// while no server answers.
#[derive(Debug)]
#[must_use = "a request does nothing until it is awaited; dropping it releases the lock"]
pub struct Upgrade {
    guard: UpgradeableGuard,
    timeout: Option<Duration>,
    cancel: Option<CancellationToken>,
}

impl Upgrade {
    /// Fails with [`ChangeError::Timeout`] after `timeout`, counted from when the request is awaited; with
    /// [`ChangeError::NoAnswer`] if no server has answered by then. The default is no limit. Zero is no try, unlike for an acquire: it leaves no time for a round trip, so the request may fail although no other
    /// reader holds the lock.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Fails with [`ChangeError::Cancelled`] when `token` is cancelled.
    pub fn cancel_on(mut self, token: CancellationToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// Becomes the writer and blocks this thread until it is, for programs without async.
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn wait(self) -> Result<WriteGuard, UpgradeError> {
        let session = self.guard.session();
        session.block_on(self.into_future())
    }

    async fn change(self) -> Result<WriteGuard, UpgradeError> {
        let Upgrade { guard, timeout, cancel } = self;
        match guard.change(HoldRequest::Upgrade, timeout, cancel.as_ref()).await {
            Ok(()) => Ok(WriteGuard::of(Holding::from(guard))),
            Err(reason) => Err(UpgradeError { guard, reason }),
        }
    }
}

impl IntoFuture for Upgrade {
    type Output = Result<WriteGuard, UpgradeError>;
    type IntoFuture = BoxFuture<'static, Result<WriteGuard, UpgradeError>>;

    fn into_future(self) -> Self::IntoFuture {
        self.change().boxed()
    }
}

/// Why a reader did not become the writer. Dropping the error drops the guard, which releases the lock.
#[derive(Debug)]
#[must_use = "the error contains the guard; dropping it releases the lock"]
#[non_exhaustive]
pub struct UpgradeError {
    /// The guard, still a reader's.
    pub guard: UpgradeableGuard,
    /// The reason: [`ChangeError::Timeout`], [`ChangeError::NoAnswer`], [`ChangeError::Cancelled`] or [`ChangeError::Lost`].
    pub reason: ChangeError,
}

impl UpgradeError {
    /// Returns what to do about the error.
    pub fn kind(&self) -> ErrorKind {
        self.reason.kind()
    }
}

/// For `?`. Drops the guard, which releases the lock.
impl From<UpgradeError> for Error {
    fn from(error: UpgradeError) -> Self {
        error.reason.into()
    }
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for UpgradeError {}
