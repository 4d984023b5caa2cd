//! Work under a lock: retries, and dead letters for work that was never granted its lock.

pub mod deadletter;
pub mod retry;
