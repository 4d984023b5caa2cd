//! What all requests for locks have in common.

use std::future::IntoFuture;
use std::time::Duration;

use lockkeeper_session::CancellationToken;

use crate::error::{AcquireError, Error};
use crate::hold::on_lost::OnLost;
use crate::queue::acquire::Acquire;
use crate::queue::multi::{MultiAcquire, MultiGuard};

/// A request for a lock of any kind, for code that works with whichever lock its caller chooses.
///
/// Every request is one: [`Acquire`], [`MultiAcquire`], and the requests of other crates, such as those for leased locks. Each has the same
/// methods of its own, with their documentation, so only code that is generic needs this trait. Every guard converts to a
/// [`MultiGuard`], so a struct that keeps any lock has a field of that type.
///
/// ```
/// use std::time::Duration;
/// use lockkeeper::{Error, Lockkeeper, MultiGuard, Request};
///
/// /// An import that one process at a time may run, whatever lock says so.
/// struct Import {
///     lock: MultiGuard,
/// }
///
/// impl Import {
///     async fn begin(lock: impl Request) -> Result<Import, Error> {
///         let guard = lock.timeout(Duration::from_secs(5)).await.map_err(Into::into)?;
///         Ok(Import { lock: guard.into() })
///     }
/// }
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let dir = tempfile::tempdir()?;
/// let keeper = Lockkeeper::embedded(dir.path()).await?;
/// let (mutex, shared) = (keeper.mutex("/locks/import"), keeper.rwlock("/locks/catalogue"));
/// let import = Import::begin(mutex.acquire()).await?;
/// import.lock.release().await?;
/// let import = Import::begin(keeper.multi_lock([mutex.acquire().any(), shared.read().acquire().any()])).await?;
/// assert_eq!(import.lock.holdings().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Request:
    IntoFuture<Output = Result<Self::Guard, Self::Error>, IntoFuture: Send> + Send + Sized + 'static
{
    /// The guard of the lock.
    type Guard: Into<MultiGuard> + Send + 'static;
    /// Why the lock was not acquired.
    type Error: Into<Error> + Send;

    /// See [`Acquire::timeout`].
    fn timeout(self, timeout: Duration) -> Self;

    /// See [`Acquire::cancel_on`].
    fn cancel_on(self, token: CancellationToken) -> Self;

    /// See [`Acquire::on_lost`].
    fn on_lost(self, on_lost: OnLost) -> Self;

    /// Blocks this thread. See [`Acquire::wait`].
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    fn wait(self) -> Result<Self::Guard, Self::Error>;
}

/// The methods of the trait, by those of the same names that the request has itself.
macro_rules! own_methods {
    () => {
        fn timeout(self, timeout: Duration) -> Self {
            self.timeout(timeout)
        }

        fn cancel_on(self, token: CancellationToken) -> Self {
            self.cancel_on(token)
        }

        fn on_lost(self, on_lost: OnLost) -> Self {
            self.on_lost(on_lost)
        }

        #[track_caller]
        fn wait(self) -> Result<Self::Guard, Self::Error> {
            self.wait()
        }
    };
}

impl<G: Into<MultiGuard> + Send + 'static> Request for Acquire<G> {
    type Guard = G;
    type Error = AcquireError;

    own_methods!();
}

impl Request for MultiAcquire {
    type Guard = MultiGuard;
    type Error = AcquireError;

    own_methods!();
}
