//! Locks as objects: `DistributedLock` and Helix's.

pub(crate) mod distributed;
pub(crate) mod queue_lock;
