//! Locks as objects: Contentserv's monitor lock, and `DistributedLock`.

#[cfg(feature = "contentserv")]
pub mod contentserv;
pub(crate) mod distributed;
pub(crate) mod queue_lock;
