//! Locks as objects: Contentserv's monitor lock, and the `DistributedLock` of the documents.

pub mod contentserv;
pub(crate) mod distributed;
pub(crate) mod queue_lock;
