//! The status of a lock object.

/// The state of a lock object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockStatus {
    /// It neither holds nor requests the lock.
    #[default]
    Unlocked,
    /// It asked the owner to clean up.
    Pending,
    /// It holds the lock.
    Locked,
    /// A request of a higher priority took the lock or replaced its request.
    Preempted,
}
