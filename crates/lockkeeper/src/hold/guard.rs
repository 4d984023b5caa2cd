//! Guards: a [`Holding`] plus what its kind of lock adds: a token, an upgrade or a downgrade.

use std::ops::Deref;
use std::time::Duration;

use lockkeeper_core::FencingToken;

use crate::error::{AcquireError, ChangeError, ReleaseError};
use crate::hold::HoldRequest;
use crate::hold::holding::Holding;

/// A held lock with its fencing token. [`Holding`] has its other methods and describes what dropping it does.
///
/// # Examples
///
/// ```
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let guard = keeper.mutex("/locks/nightly").acquire().await?;
/// let token = guard.token();
/// guard.run(async { println!("writing with token {token}") }).await?; // stops at the next await after a loss
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct Guard(Holding);

impl Guard {
    /// Returns the number to pass to the protected resource. It is greater than that of every earlier grant of this
    /// lock.
    ///
    /// A reader's token is greater than those of the writers before it. Readers that hold together have no order.
    ///
    /// # Examples
    ///
    /// ```
    /// use lockkeeper::FencingToken;
    ///
    /// /// The protected resource: it refuses a holder that is older than the newest one.
    /// fn write(newest: &mut FencingToken, token: FencingToken) -> bool {
    ///     let fresh = token >= *newest;
    ///     if fresh {
    ///         *newest = token;
    ///     }
    ///     fresh
    /// }
    /// ```
    pub fn token(&self) -> FencingToken {
        self.0.hold().token
    }

    /// Makes way for the requests of earlier classes, if one waits ([`Holding::should_yield`]); otherwise returns the guard
    /// unchanged, so that it may be called after each step of the work.
    ///
    /// It gives up the lock and keeps its place: it is granted the lock again as soon as no request of an earlier class is in the
    /// queue, ahead of all others of its class. The new guard is a new hold, with a greater [token](Guard::token): pass that on
    /// from then on, and read again what the other holder may have changed. The timeout of the request does not count for this
    /// wait; its cancellation does.
    ///
    /// # Cost
    ///
    /// To make way, one read of the holder marker and one transaction. To come back, as for a request that waits: a listing,
    /// a read to watch the node ahead, and a listing and a transaction for the holder marker at the end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue: it releases the lock.
    ///
    /// # Errors
    ///
    /// [`AcquireError::SessionLost`] if the session ends, while it waits too, and the place is lost with it;
    /// [`AcquireError::Evicted`] if another client broke the hold or the wait; [`AcquireError::Revoked`] if another client has asked
    /// for the lock with a revocation, which has no answer yet. Otherwise as for a request that waits.
    pub async fn yield_lock(self) -> Result<Self, AcquireError> {
        Ok(Guard(self.0.yield_lock().await?))
    }

    /// Calls [`Guard::yield_lock`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`Guard::yield_lock`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn yield_lock_blocking(self) -> Result<Self, AcquireError> {
        let session = self.hold().session();
        session.block_on(self.yield_lock())
    }
}

/// A writer's hold of a shared lock.
#[derive(Debug)]
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct WriteGuard(Guard);

impl WriteGuard {
    /// Becomes a reader in the same position, so no other writer holds the lock in between. The token stays the same.
    ///
    /// # Cost
    ///
    /// One transaction.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Lost`] if the lock is lost before the change is done, as soon as it is.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let writer = keeper.rwlock("/locks/catalogue").write().acquire().await?;
    /// let reader = writer.downgrade().await?;
    /// reader.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn downgrade(self) -> Result<Guard, ChangeError> {
        self.0.0.change(HoldRequest::Downgrade, None, None).await?;
        Ok(self.0)
    }

    /// Calls [`WriteGuard::downgrade`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`WriteGuard::downgrade`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn downgrade_blocking(self) -> Result<Guard, ChangeError> {
        let session = self.hold().session();
        session.block_on(self.downgrade())
    }
}

/// A reader's hold that can become a writer's. A lock has at most one at a time.
///
/// It reads beside the readers ahead of it. Later contenders wait behind it, including readers.
///
/// # Examples
///
/// ```
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let reader = keeper.rwlock("/locks/catalogue").upgradeable().acquire().await?;
/// let writer = reader.upgrade().await?; // waits for the readers ahead, and keeps new ones out
/// writer.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct UpgradeableGuard(Guard);

impl UpgradeableGuard {
    /// Gives up the right to become the writer and becomes a plain reader in the same position.
    ///
    /// # Cost
    ///
    /// One transaction.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Lost`] if the lock is lost before the change is done, as soon as it is.
    pub async fn downgrade(self) -> Result<Guard, ChangeError> {
        WriteGuard(self.0).downgrade().await
    }

    /// Calls [`UpgradeableGuard::downgrade`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`UpgradeableGuard::downgrade`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn downgrade_blocking(self) -> Result<Guard, ChangeError> {
        WriteGuard(self.0).downgrade_blocking()
    }
}

/// Permits of a semaphore. They have no token: other permits are held at the same time, so none of them is the newest.
///
/// # Examples
///
/// ```
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let permits = keeper.semaphore("/locks/downloads", 8).acquire_many(2).await?;
/// permits.run(async { println!("downloading two files") }).await?;
/// permits.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the permits are given back at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct Permit(Holding);

/// Implements the guard types. Each wraps a hold, directly or in a more general guard, and releases it.
macro_rules! guards {
    ($($kind:ty: $wrap:expr, $unwrap:expr, $target:ty;)*) => {$(
        impl Deref for $kind {
            type Target = $target;

            fn deref(&self) -> &$target {
                &self.0
            }
        }

        impl $kind {
            /// Wraps a hold. Only for this crate: elsewhere it could make a writer of a reader.
            pub(crate) fn of(holding: Holding) -> Self {
                $wrap(holding)
            }

            /// Releases the lock and waits until the server confirms it, as [`Holding::release`] does.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future does not cancel the release; it only stops waiting for the confirmation.
            ///
            /// # Errors
            ///
            /// As [`Holding::release`].
            pub async fn release(self) -> Result<(), ReleaseError> {
                Holding::from(self).release().await
            }

            /// Releases the lock and waits for the confirmation for no longer than `timeout`, as
            /// [`Holding::release_within`] does.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future does not cancel the release; it only stops waiting for the confirmation.
            ///
            /// # Errors
            ///
            /// As [`Holding::release_within`].
            pub async fn release_within(self, timeout: Duration) -> Result<(), ReleaseError> {
                Holding::from(self).release_within(timeout).await
            }

            /// Releases the lock and blocks this thread until the server confirms it, as [`Holding::release_blocking`]
            /// does.
            ///
            /// # Errors
            ///
            /// As [`Holding::release`].
            ///
            /// # Panics
            ///
            /// Panics if called on a thread of an async runtime.
            #[track_caller]
            pub fn release_blocking(self) -> Result<(), ReleaseError> {
                Holding::from(self).release_blocking()
            }
        }

        /// Forgets the kind of the lock. The hold stays as it is.
        impl From<$kind> for Holding {
            fn from(guard: $kind) -> Holding {
                $unwrap(guard)
            }
        }
    )*};
}

guards! {
    Guard: Guard, |guard: Guard| guard.0, Holding;
    WriteGuard: |holding| WriteGuard(Guard(holding)), |guard: WriteGuard| guard.0.0, Guard;
    UpgradeableGuard: |holding| UpgradeableGuard(Guard(holding)), |guard: UpgradeableGuard| guard.0.0, Guard;
    Permit: Permit, |permit: Permit| permit.0, Holding;
}

/// Forgets that the hold is a writer's. The hold stays as it is: use [`WriteGuard::downgrade`] to let readers in.
impl From<WriteGuard> for Guard {
    fn from(guard: WriteGuard) -> Guard {
        guard.0
    }
}

/// Forgets that the hold can become a writer's. The hold stays as it is: use [`UpgradeableGuard::downgrade`] to let
/// readers in.
impl From<UpgradeableGuard> for Guard {
    fn from(guard: UpgradeableGuard) -> Guard {
        guard.0
    }
}
