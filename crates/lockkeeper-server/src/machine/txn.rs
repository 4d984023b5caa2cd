//! Transactions: what a request comes to once it has been checked.
//!
//! A transaction carries results, not intentions (the sequential name is chosen, the new version computed), so applying
//! it to any copy of the tree gives the same tree. A follower in the simulator is a copy that lags.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_wire::{Acl, ErrorCode};

/// One step of the server's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// Its number, one more than that of the step before.
    pub zxid: i64,
    /// Wall-clock milliseconds since 1970, for `ctime` and `mtime`.
    pub time_ms: i64,
    /// The session that asked, 0 for the server itself.
    pub session: i64,
    /// What changes.
    pub op: TxnOp,
}

/// What a transaction changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOp {
    /// A session begins.
    CreateSession {
        /// Its negotiated timeout.
        timeout: Duration,
        /// What it takes to resume it.
        password: [u8; 16],
    },
    /// The session ends and these nodes of its go with it.
    CloseSession {
        /// Paths in byte order.
        ephemerals: Vec<Arc<str>>,
    },
    /// A node appears.
    Create {
        /// Its full path.
        path: Arc<str>,
        /// Its data.
        data: Option<Bytes>,
        /// Its access list.
        acl: Arc<[Acl]>,
        /// Whose it is.
        owner: Owner,
        /// The parent's count of creates after this one.
        parent_creates: i32,
        /// Whether the answer carries the stat.
        with_stat: bool,
    },
    /// A node disappears.
    Delete {
        /// Its path.
        path: Arc<str>,
    },
    /// A node's data is replaced.
    SetData {
        /// Its path.
        path: Arc<str>,
        /// The new data.
        data: Option<Bytes>,
        /// The new version.
        version: i32,
    },
    /// A node's access list is replaced.
    SetAcl {
        /// Its path.
        path: Arc<str>,
        /// The new list.
        acl: Arc<[Acl]>,
        /// The new version of the list.
        version: i32,
    },
    /// Nothing changes; a multi found the version it expected.
    Check,
    /// Several changes under one number.
    Multi(Vec<TxnOp>),
    /// A parent's count of creates is set by an operator or a test.
    SetChildCounter {
        /// The parent.
        path: Arc<str>,
        /// The number the next child gets.
        creates: i32,
    },
    /// Nothing changes, but the request used up a number, as it does in ZooKeeper.
    Failed(ErrorCode),
}

/// To whom a node belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody: persistent.
    None,
    /// A session: ephemeral.
    Session(i64),
    /// Nobody, and it goes after its last child.
    Container,
    /// Nobody, and it goes when it is childless and this many milliseconds old.
    Ttl(i64),
}
