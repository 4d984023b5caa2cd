//! Constructors of objects that a program makes from a [`Lockkeeper`].

use crate::keeper::Lockkeeper;
use crate::lease::HelixGuard;
use crate::queue::multi::MultiGuard;
#[cfg(feature = "contentserv")]
use crate::recipes::contentserv::MonitorLock;
use crate::recipes::queue_lock::QueueLock;
#[cfg(feature = "deadletter")]
use crate::work::retry::Retrying;

#[cfg(feature = "contentserv")]
impl MonitorLock {
    /// Creates the lock of `monitor_object`. `lock_info` names the requestor; other clients can read it while the
    /// request exists. Sends nothing.
    ///
    /// The monitor object is any text except the empty one. Its node has the name that
    /// [`LockPath::at_root`](crate::LockPath::at_root) returns. In this name, a `/` becomes `%2F` and a `%` becomes
    /// `%25`, so that different objects have different nodes.
    pub fn new(lock_info: &str, keeper: &Lockkeeper, monitor_object: &str) -> Self {
        MonitorLock::on(keeper.context(), lock_info, monitor_object)
    }
}

impl QueueLock {
    /// Creates the object for the exclusive lock at `path`. The first call reports an invalid path.
    pub fn new(keeper: &Lockkeeper, path: impl AsRef<str>) -> Self {
        let path = path.as_ref();
        QueueLock::on(keeper.context().clone(), path)
    }
}

#[cfg(feature = "deadletter")]
impl Retrying {
    /// Creates a policy of up to `1 + retries` attempts, as `elastic.request.retry.count` counts.
    pub fn new(keeper: &Lockkeeper, retries: u32) -> Self {
        Retrying::on(keeper.context(), retries)
    }
}

/// Wraps a single leased lock, for code that takes any lock.
impl From<HelixGuard> for MultiGuard {
    fn from(guard: HelixGuard) -> Self {
        MultiGuard::of(vec![guard.into()])
    }
}
