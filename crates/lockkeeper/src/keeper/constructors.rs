//! Constructors of objects that a program makes from a [`Lockkeeper`].

use crate::contentserv::MonitorLock;
use crate::helix::QueueLock;
use crate::keeper::Lockkeeper;
use crate::retry::Retrying;

impl MonitorLock {
    /// The lock of `monitor_object`, asked for in the words of `lock_info`, which others can read while the request stands.
    /// Costs nothing.
    ///
    /// The monitor object is any text but the empty one. Its node has the name that [`LockPath::at_root`](crate::LockPath::at_root) gives it, where a `/`
    /// becomes `%2F` and a `%` `%25`, so that equal objects are equal nodes and no others are.
    pub fn new(lock_info: &str, keeper: &Lockkeeper, monitor_object: &str) -> Self {
        MonitorLock::on(keeper.context(), lock_info, monitor_object)
    }
}

impl QueueLock {
    /// The exclusive lock at `path`. A bad path is reported by the first call.
    pub fn new(keeper: &Lockkeeper, path: &str) -> Self {
        QueueLock::on(keeper.context().clone(), path)
    }
}

impl Retrying {
    /// Tries up to `1 + retries` times, as `elastic.request.retry.count` counts.
    pub fn new(keeper: &Lockkeeper, retries: u32) -> Self {
        Retrying::on(keeper.context(), retries)
    }
}
