//! The queue protocol: a lock is a path, its contenders are nodes below it, and the server numbers them.

pub(crate) mod about;
pub(crate) mod acquire;
pub(crate) mod driver;
pub(crate) mod kept;
pub(crate) mod local;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod priority;
pub(crate) mod request;
pub(crate) mod requeue;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
