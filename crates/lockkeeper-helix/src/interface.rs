//! The five operations that Helix defines for a distributed lock, for code that works with any implementation.
//!
//! The trait is object-safe, so others can implement it too. New code should use the guards: a boolean does not say how
//! long it stays true.

use futures_util::future::BoxFuture;
use lockkeeper::Error;

use crate::LockAttributes;

/// A lock that is tried, held and released through an object.
///
/// Unless an implementation says otherwise, dropping one of the futures leaves the operation either done or not done.
pub trait LockOperations: Send + Sync {
    /// Acquires the lock; `false` if another client holds it and keeps it.
    fn try_lock(&self) -> BoxFuture<'_, Result<bool, Error>>;

    /// Releases the lock; `true` also if no client holds it, `false` if another client does.
    fn unlock(&self) -> BoxFuture<'_, Result<bool, Error>>;

    /// Returns the owner, its message and its expiry; the defaults if the lock is free.
    fn current_lock_info(&self) -> BoxFuture<'_, Result<LockAttributes, Error>>;

    /// Returns whether this object holds the lock.
    fn is_current_owner(&self) -> BoxFuture<'_, Result<bool, Error>>;

    /// Ends the use of this object, which must not hold the lock; every later call fails.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>>;
}
