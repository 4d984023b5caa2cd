//! Numbers that the server hands out: transaction ids, session ids, and the fencing token made of the former.
//!
//! A fencing token is the zxid of the transaction that made the hold effective, never a sequence number: the sequence
//! restarts when a parent is removed and made again, and the session id is not ordered (Junqueira, "Note on fencing and
//! distributed locks", 2016). The zxid grows for the life of the ensemble, across leader changes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The id of a transaction: unique and growing over all transactions of one ensemble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Zxid(pub i64);

/// The id of a session. Not ordered: a larger one is not a later one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub i64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A number that grows with every grant of a lock path: hand it to the resource, and let the resource refuse smaller ones.
///
/// Strictly greater than the token of every earlier grant of the same path, for the life of one ensemble. It goes *back*
/// if the ensemble is rebuilt empty or restored from an older backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(Zxid);

impl FencingToken {
    /// The token of a hold that the transaction `zxid` made effective.
    pub const fn from_zxid(zxid: Zxid) -> Self {
        FencingToken(zxid)
    }

    /// The transaction that made the hold effective.
    pub const fn zxid(self) -> Zxid {
        self.0
    }

    /// The token as the number to send to a resource; it fits a signed 64-bit column.
    pub const fn get(self) -> i64 {
        self.0.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}
