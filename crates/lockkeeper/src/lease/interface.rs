//! The five operations that Helix asks of a distributed lock, for code that is to work with any of them.
//!
//! An object-safe trait, so that others can implement it too. The guard-based locks stay the way to write new code: a boolean
//! says nothing of how long it stays true.

use futures_util::future::BoxFuture;

use crate::error::Error;
use crate::lease::LockInfo;

/// A lock that is tried, held by the object, and released by it.
///
/// Unless an implementation says otherwise, dropping one of the futures leaves the lock as it was, or as it was asked for.
pub trait DistributedLock: Send + Sync {
    /// Takes the lock; `false` if somebody else has it and keeps it.
    fn try_lock(&self) -> BoxFuture<'_, Result<bool, Error>>;

    /// Releases it; `true` also if nobody holds it, `false` if somebody else does.
    fn unlock(&self) -> BoxFuture<'_, Result<bool, Error>>;

    /// Who has it, why and until when; the defaults if nobody has.
    fn current_lock_info(&self) -> BoxFuture<'_, Result<LockInfo, Error>>;

    /// Whether this object holds it.
    fn is_current_owner(&self) -> BoxFuture<'_, Result<bool, Error>>;

    /// Ends the use of this object, which must not hold the lock; every later call fails.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>>;
}
