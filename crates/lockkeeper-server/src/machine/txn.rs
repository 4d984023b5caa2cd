//! Transactions: checked write requests.
//!
//! A transaction contains results (the sequential name, the new version), so applying it to any copy of the tree gives
//! the same tree. A follower in the simulator is a copy that is behind.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_wire::ErrorCode;

use crate::machine::identity::AccessList;

/// One change of the server's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// Its number, one more than that of the transaction before.
    pub zxid: i64,
    /// Wall-clock milliseconds since 1970, for `ctime` and `mtime`.
    pub time_ms: i64,
    /// The session of the request, 0 for the server itself.
    pub session: i64,
    pub op: TxnOp,
}

/// The change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOp {
    CreateSession {
        timeout: Duration,
        /// The password that resumes it.
        password: [u8; 16],
    },
    /// The session ends, and these ephemeral nodes are deleted.
    CloseSession {
        /// Paths in byte order.
        ephemerals: Vec<Arc<str>>,
    },
    Create {
        path: Arc<str>,
        data: Option<Bytes>,
        acl: AccessList,
        owner: Owner,
        /// The parent's number of creates after this one.
        parent_creates: i32,
        /// Whether the answer contains the stat.
        with_stat: bool,
    },
    Delete {
        path: Arc<str>,
    },
    /// A node's data is replaced.
    SetData {
        path: Arc<str>,
        data: Option<Bytes>,
        version: i32,
    },
    /// A node's access list is replaced.
    SetAcl {
        path: Arc<str>,
        acl: AccessList,
        /// The new version of the list.
        version: i32,
    },
    /// Nothing changes; an operation of a multi found the expected version.
    Check,
    /// Several changes under one number.
    Multi(Vec<TxnOp>),
    /// An operator or a test sets a parent's number of creates.
    SetChildCounter {
        path: Arc<str>,
        /// The sequence number of the next child.
        creates: i32,
    },
    /// Nothing changes, but the failed request uses a zxid, as in ZooKeeper.
    Failed(ErrorCode),
}

/// The owner of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No owner: persistent.
    None,
    Session(i64),
    /// No owner; the server removes it after its last child.
    Container,
    /// No owner; the server removes it when it has no children and is this many milliseconds old.
    Ttl(i64),
}
