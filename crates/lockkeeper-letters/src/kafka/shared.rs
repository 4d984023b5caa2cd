//! What the sink and its thread share.

use std::time::Duration;

use super::address::Address;
use super::spool::Spool;
use super::topic::Topic;

/// What the sink and its thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: Address,
    pub(super) spool: Spool,
    pub(super) topic: Topic,
    pub(super) patience: Duration,
}
