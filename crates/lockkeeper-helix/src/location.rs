//! Where a leased lock is, and the result of an unlock.

use lockkeeper::LockPath;

use crate::protocol::Scope;

/// The location of a leased lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockLocation {
    /// At a path.
    Path(String),
    /// At the path that Helix uses for this scope.
    Scope(Scope),
}

impl From<&str> for LockLocation {
    fn from(path: &str) -> Self {
        LockLocation::Path(path.to_owned())
    }
}

impl From<String> for LockLocation {
    fn from(path: String) -> Self {
        LockLocation::Path(path)
    }
}

impl From<&String> for LockLocation {
    fn from(path: &String) -> Self {
        LockLocation::Path(path.clone())
    }
}

impl From<LockPath> for LockLocation {
    fn from(path: LockPath) -> Self {
        LockLocation::Path(path.to_string())
    }
}

impl From<&LockPath> for LockLocation {
    fn from(path: &LockPath) -> Self {
        LockLocation::Path(path.to_string())
    }
}

impl From<Scope> for LockLocation {
    fn from(scope: Scope) -> Self {
        LockLocation::Scope(scope)
    }
}

/// The result of an unlock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unlocked {
    /// This user id owned the lock; it is free now.
    Released,
    /// The lock was free.
    WasFree,
    /// Another user id owned the lock, and its lease had expired; the lock is free now.
    Expired {
        /// The previous owner.
        owner: String,
    },
    /// Another user id owns the lock.
    NotOwner {
        /// The owner.
        owner: Option<String>,
    },
}

impl Unlocked {
    /// Returns whether the lock is free now.
    pub fn is_unlocked(&self) -> bool {
        !matches!(self, Unlocked::NotOwner { .. })
    }
}
