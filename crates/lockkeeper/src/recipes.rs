//! Locks as objects.

pub(crate) mod distributed;
