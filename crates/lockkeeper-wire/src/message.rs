//! Requests and responses as types, free of bytes.
//!
//! Everything that can be said on the wire has a value here or is a [`Request::Refused`].

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::error_code::ErrorCode;
use crate::opcode::OpCode;
use crate::values::{Acl, CreateMode, Stat, WatchKind};

/// The xid of a watch event.
pub const EVENT_XID: i32 = -1;
/// The xid of a ping and of its reply.
pub const PING_XID: i32 = -2;
/// The xid of an auth packet and of its reply.
pub const AUTH_XID: i32 = -4;

/// One request of a session, after decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `create`, `create2`, `createContainer`, `createTTL`.
    Create(Create),
    /// Removes a childless node; version −1 matches any.
    Delete(VersionedPath),
    /// The node's stat; a watch is left also when the node does not exist.
    Exists(WatchedPath),
    /// The node's data and stat.
    GetData(WatchedPath),
    /// Replaces the node's data.
    SetData(SetData),
    /// The node's access list and stat.
    GetAcl {
        /// The node.
        path: String,
    },
    /// Replaces the node's access list.
    SetAcl {
        /// The node.
        path: String,
        /// The new list.
        acl: Vec<Acl>,
        /// The access list's version to expect, −1 for any.
        version: i32,
    },
    /// Child names (`getChildren`).
    GetChildren(WatchedPath),
    /// Child names and the parent's stat (`getChildren2`).
    GetChildren2(WatchedPath),
    /// Leaves a watch that does not go when it fires (`addWatch`).
    AddWatch {
        /// The path to watch; nothing needs to be there.
        path: String,
        /// Also what is below it.
        recursive: bool,
    },
    /// Whom the server takes this connection for.
    WhoAmI,
    /// Child names of a whole subtree, counted.
    GetAllChildrenNumber {
        /// The subtree's root, not counted itself.
        path: String,
    },
    /// The session's own ephemeral nodes below a prefix.
    GetEphemerals {
        /// Text that a path must start with; empty or `/` for all.
        prefix: String,
    },
    /// Answers once everything before it is visible to this session.
    Sync {
        /// Echoed back; it selects nothing.
        path: String,
    },
    /// Keeps the session alive.
    Ping,
    /// All or none of these.
    Multi(Vec<WriteOp>),
    /// Several reads answered from one state of the tree; each may fail alone.
    MultiRead(Vec<ReadOp>),
    /// Re-registers the watches of an earlier connection and fires those whose change was missed.
    SetWatches(SetWatches),
    /// Asks whether this connection has such a watch.
    CheckWatches {
        /// The watched path.
        path: String,
        /// Which of its watches.
        kind: WatchKind,
    },
    /// Removes a watch of this connection.
    RemoveWatches {
        /// The watched path.
        path: String,
        /// Which of its watches.
        kind: WatchKind,
    },
    /// Ends the session and with it its ephemeral nodes.
    CloseSession,
    /// Understood well enough to be answered, but not to be carried out.
    Refused {
        /// The operation code as received.
        opcode: i32,
        /// The answer.
        error: ErrorCode,
    },
}

impl Request {
    /// The operation code on the wire. A [`SetWatches`] with persistent watches is a `setWatches2`.
    pub fn opcode(&self) -> i32 {
        let opcode = match self {
            Request::Create(create) => create.opcode,
            Request::Delete(_) => OpCode::Delete,
            Request::Exists(_) => OpCode::Exists,
            Request::GetData(_) => OpCode::GetData,
            Request::SetData(_) => OpCode::SetData,
            Request::GetAcl { .. } => OpCode::GetAcl,
            Request::SetAcl { .. } => OpCode::SetAcl,
            Request::GetChildren(_) => OpCode::GetChildren,
            Request::GetChildren2(_) => OpCode::GetChildren2,
            Request::AddWatch { .. } => OpCode::AddWatch,
            Request::WhoAmI => OpCode::WhoAmI,
            Request::GetAllChildrenNumber { .. } => OpCode::GetAllChildrenNumber,
            Request::GetEphemerals { .. } => OpCode::GetEphemerals,
            Request::Sync { .. } => OpCode::Sync,
            Request::Ping => OpCode::Ping,
            Request::Multi(_) => OpCode::Multi,
            Request::MultiRead(_) => OpCode::MultiRead,
            Request::SetWatches(watches) if watches.has_persistent() => OpCode::SetWatches2,
            Request::SetWatches(_) => OpCode::SetWatches,
            Request::CheckWatches { .. } => OpCode::CheckWatches,
            Request::RemoveWatches { .. } => OpCode::RemoveWatches,
            Request::CloseSession => OpCode::CloseSession,
            Request::Refused { opcode, .. } => return *opcode,
        };
        opcode.as_i32()
    }
}

/// What to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// The node's path; a sequential node's name continues with ten digits.
    pub path: String,
    /// Its data; the protocol tells no data from empty data.
    pub data: Option<Bytes>,
    /// Who may do what with it.
    pub acl: Vec<Acl>,
    /// Kind of node.
    pub mode: CreateMode,
    /// Time to live in milliseconds, for the TTL modes; −1 otherwise.
    pub ttl_ms: i64,
    /// Which of the four operations asked: it decides whether the answer carries a stat.
    pub opcode: OpCode,
}

impl Create {
    /// A node that everyone may use, answered with its stat.
    pub fn new(path: impl Into<String>, data: impl Into<Bytes>, mode: CreateMode) -> Self {
        let opcode = if mode == CreateMode::Container { OpCode::CreateContainer } else { OpCode::Create2 };
        Self { path: path.into(), data: Some(data.into()), acl: vec![Acl::OPEN], mode, ttl_ms: -1, opcode }
    }
}

/// A path and the version it must have, −1 for any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedPath {
    /// The node.
    pub path: String,
    /// Its expected version.
    pub version: i32,
}

/// A path to read, and whether to leave a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedPath {
    /// The node.
    pub path: String,
    /// Leave a one-shot watch.
    pub watch: bool,
}

/// New data for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetData {
    /// The node.
    pub path: String,
    /// The data.
    pub data: Option<Bytes>,
    /// The expected version, −1 for any.
    pub version: i32,
}

/// The watches a client still waits for when it reconnects.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SetWatches {
    /// Changes up to and including this zxid have been seen.
    pub relative_zxid: i64,
    /// Paths with a data watch.
    pub data: Vec<String>,
    /// Paths watched for their creation.
    pub exist: Vec<String>,
    /// Paths with a child watch.
    pub child: Vec<String>,
    /// Paths with a persistent watch (`setWatches2`).
    pub persistent: Vec<String>,
    /// Paths with a persistent recursive watch (`setWatches2`).
    pub recursive: Vec<String>,
}

impl SetWatches {
    /// How many watches it asks for.
    pub fn len(&self) -> usize {
        [&self.data, &self.exist, &self.child, &self.persistent, &self.recursive].map(Vec::len).iter().sum()
    }

    /// Whether it has persistent watches, which `setWatches` cannot carry and `setWatches2` (since 3.6) can.
    pub fn has_persistent(&self) -> bool {
        !self.persistent.is_empty() || !self.recursive.is_empty()
    }

    /// Whether it asks for none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One operation of a [`Request::Multi`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOp {
    /// As [`Request::Create`].
    Create(Create),
    /// As [`Request::Delete`].
    Delete(VersionedPath),
    /// As [`Request::SetData`].
    SetData(SetData),
    /// Fails the whole unless the node exists with this version.
    Check(VersionedPath),
}

/// One operation of a [`Request::MultiRead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOp {
    /// Data and stat.
    GetData {
        /// The node.
        path: String,
    },
    /// Child names.
    GetChildren {
        /// The parent.
        path: String,
    },
}

/// The answer to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// A node was created.
    Created {
        /// Its full path, with the sequence digits.
        path: Arc<str>,
        /// Its stat, unless plain `create` asked.
        stat: Option<Stat>,
    },
    /// Nothing to tell but success.
    Done,
    /// The same for `addWatch`, whose answer has a body that says so once more.
    WatchAdded,
    /// Schemes and names of a client; the superuser has no name.
    Identities(Vec<(String, Option<String>)>),
    /// A stat.
    Stat(Stat),
    /// Data and stat.
    Data {
        /// The node's data.
        data: Option<Bytes>,
        /// The node's stat.
        stat: Stat,
    },
    /// Child names in byte order.
    Children {
        /// The names, without the parent's path.
        names: Vec<Arc<str>>,
        /// The parent's stat, if `getChildren2` asked.
        stat: Option<Stat>,
    },
    /// Access list and stat.
    Acl {
        /// The node's list.
        acl: Arc<[Acl]>,
        /// The node's stat.
        stat: Stat,
    },
    /// The path of a `sync`, echoed.
    Path(String),
    /// Paths of ephemeral nodes.
    Ephemerals(Vec<Arc<str>>),
    /// A count.
    Count(i32),
    /// One result for each operation of a multi, successful or not.
    Multi(Vec<OpResult>),
}

/// The outcome of one operation of a multi.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResult {
    /// Created; the stat is missing for plain `create`.
    Created {
        /// The full path.
        path: Arc<str>,
        /// Its stat right after this operation.
        stat: Option<Stat>,
    },
    /// Deleted.
    Deleted,
    /// Data replaced.
    DataSet(Stat),
    /// The version matched.
    Checked,
    /// Data read.
    Data {
        /// The node's data.
        data: Option<Bytes>,
        /// The node's stat.
        stat: Stat,
    },
    /// Children read.
    Children(Vec<Arc<str>>),
    /// Would have succeeded, but a later operation failed.
    RolledBack,
    /// Failed with this error, or was not tried ([`ErrorCode::RuntimeInconsistency`]).
    Failed(ErrorCode),
}

/// Opens a session or resumes one.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ConnectRequest {
    /// The newest zxid the client has seen; a server behind it refuses.
    pub last_zxid_seen: i64,
    /// The wished session timeout.
    pub timeout_ms: i32,
    /// The session to resume, or 0.
    pub session: i64,
    /// Its password.
    pub password: Vec<u8>,
    /// Whether the client sent the read-only byte (3.4 and later do); the response carries one then.
    pub has_read_only: bool,
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("last_zxid_seen", &self.last_zxid_seen)
            .field("timeout_ms", &self.timeout_ms)
            .field("session", &format_args!("{:#x}", self.session))
            .finish_non_exhaustive()
    }
}

/// The answer to a [`ConnectRequest`]; session 0 means that the session is gone.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The negotiated timeout.
    pub timeout_ms: i32,
    /// The session.
    pub session: i64,
    /// What it takes to resume it.
    pub password: [u8; 16],
}

impl ConnectResponse {
    /// Tells a client that its session has ended.
    pub const EXPIRED: Self = Self { timeout_ms: 0, session: 0, password: [0; 16] };
}

impl fmt::Debug for ConnectResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectResponse")
            .field("timeout_ms", &self.timeout_ms)
            .field("session", &format_args!("{:#x}", self.session))
            .finish_non_exhaustive()
    }
}
