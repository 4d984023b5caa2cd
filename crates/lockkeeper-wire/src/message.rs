//! Requests and responses as types.
//!
//! Every request on the wire has a value here; one that cannot be carried out is a [`Request::Refused`].

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

/// A decoded request of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `create`, `create2`, `createContainer`, `createTTL`.
    Create(Create),
    /// Deletes a node without children; version −1 matches any.
    Delete(VersionedPath),
    /// Returns the node's stat. It leaves a watch even if the node does not exist.
    Exists(WatchedPath),
    /// Returns the node's data and stat.
    GetData(WatchedPath),
    /// Replaces the node's data.
    SetData(SetData),
    /// Returns the node's access list and stat.
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
        /// The expected version of the access list, −1 for any.
        version: i32,
    },
    /// Returns the names of the children (`getChildren`).
    GetChildren(WatchedPath),
    /// Returns the names of the children and the parent's stat (`getChildren2`).
    GetChildren2(WatchedPath),
    /// Adds a watch that stays after it fires (`addWatch`).
    AddWatch {
        /// The path to watch; the node need not exist.
        path: String,
        /// Whether to watch the descendants as well.
        recursive: bool,
    },
    /// Returns the identities of this connection.
    WhoAmI,
    /// Counts the descendants of a node.
    GetAllChildrenNumber {
        /// The node; it is not counted.
        path: String,
    },
    /// Returns the session's ephemeral nodes below a prefix.
    GetEphemerals {
        /// The prefix of the paths; empty or `/` for all.
        prefix: String,
    },
    /// Is answered when everything before it is visible to this session.
    Sync {
        /// The answer repeats it; it has no other effect.
        path: String,
    },
    /// Keeps the session alive.
    Ping,
    /// Carries out all operations or none.
    Multi(Vec<WriteOp>),
    /// Answers several reads from one state of the tree; each may fail alone.
    MultiRead(Vec<ReadOp>),
    /// Sets the watches of an earlier connection again, and fires those whose change was missed.
    SetWatches(SetWatches),
    /// Returns whether this connection has such a watch.
    CheckWatches {
        /// The watched path.
        path: String,
        /// The kind of watch.
        kind: WatchKind,
    },
    /// Removes a watch of this connection.
    RemoveWatches {
        /// The watched path.
        path: String,
        /// The kind of watch.
        kind: WatchKind,
    },
    /// Ends the session and deletes its ephemeral nodes.
    CloseSession,
    /// A request that can be answered, but not carried out.
    Refused {
        /// The received operation code.
        opcode: i32,
        /// The answer.
        error: ErrorCode,
    },
}

impl Request {
    /// Returns the operation code on the wire. A [`SetWatches`] with persistent watches is a `setWatches2`.
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

/// The arguments of a create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// The node's path; the server appends ten digits to the name of a sequential node.
    pub path: String,
    /// The node's data; the protocol distinguishes absent data from empty data.
    pub data: Option<Bytes>,
    /// The node's access list.
    pub acl: Vec<Acl>,
    /// The kind of node.
    pub mode: CreateMode,
    /// The time to live in milliseconds if the mode has one, else −1.
    pub ttl_ms: i64,
    /// The operation of the request: it decides whether the answer contains a stat.
    pub opcode: OpCode,
}

impl Create {
    /// Returns the arguments for a node that everyone may use, answered with its stat.
    pub fn new(path: impl Into<String>, data: impl Into<Bytes>, mode: CreateMode) -> Self {
        let opcode = if mode == CreateMode::Container { OpCode::CreateContainer } else { OpCode::Create2 };
        Self { path: path.into(), data: Some(data.into()), acl: vec![Acl::OPEN], mode, ttl_ms: -1, opcode }
    }
}

/// A path and the expected version of its node, −1 for any.
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
    /// Whether to leave a one-shot watch.
    pub watch: bool,
}

/// New data for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetData {
    /// The node.
    pub path: String,
    pub data: Option<Bytes>,
    /// The expected version, −1 for any.
    pub version: i32,
}

/// The watches that a client sets again when it reconnects.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SetWatches {
    /// The client has seen the changes up to and including this zxid.
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
    /// Returns the paths of all watches.
    pub fn paths(&self) -> impl Iterator<Item = &str> + Clone {
        let lists = [&self.data, &self.exist, &self.child, &self.persistent, &self.recursive];
        lists.into_iter().flatten().map(String::as_str)
    }

    /// Returns the number of watches.
    pub fn len(&self) -> usize {
        [&self.data, &self.exist, &self.child, &self.persistent, &self.recursive].map(Vec::len).iter().sum()
    }

    /// Returns whether it has persistent watches, which need `setWatches2` (since 3.6).
    pub fn has_persistent(&self) -> bool {
        !self.persistent.is_empty() || !self.recursive.is_empty()
    }

    /// Returns whether it has no watches.
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
    /// Fails the whole multi unless the node exists with this version.
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

/// The answer to a successful request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// A node was created.
    Created {
        /// Its full path, with the sequence digits.
        path: Arc<str>,
        /// Its stat; absent in the answer to a plain `create`.
        stat: Option<Stat>,
    },
    /// Success, without a body.
    Done,
    /// Success of an `addWatch`, whose answer has a body: an error code of 0.
    WatchAdded,
    /// The schemes and names of a client's identities; the superuser has no name.
    Identities(Vec<(String, Option<String>)>),
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
        /// The parent's stat, in the answer to `getChildren2`.
        stat: Option<Stat>,
    },
    /// Access list and stat.
    Acl {
        /// The node's list.
        acl: Arc<[Acl]>,
        /// The node's stat.
        stat: Stat,
    },
    /// The path of a `sync`.
    Path(String),
    /// Paths of ephemeral nodes.
    Ephemerals(Vec<Arc<str>>),
    Count(i32),
    /// One result for each operation of a multi.
    Multi(Vec<OpResult>),
}

/// The result of one operation of a multi.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResult {
    /// Created; the stat is absent for a plain `create`.
    Created {
        /// The full path.
        path: Arc<str>,
        /// Its stat right after this operation.
        stat: Option<Stat>,
    },
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
    /// Rolled back because a later operation failed.
    RolledBack,
    /// Failed with this error, or was not tried ([`ErrorCode::RuntimeInconsistency`]).
    Failed(ErrorCode),
}

/// Opens a session or resumes one.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ConnectRequest {
    /// The newest zxid that the client has seen; a server that is behind it refuses the client.
    pub last_zxid_seen: i64,
    /// The requested session timeout.
    pub timeout_ms: i32,
    /// The session to resume, or 0.
    pub session: i64,
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

/// The answer to a [`ConnectRequest`]; session 0 means that the session has expired.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The granted timeout.
    pub timeout_ms: i32,
    pub session: i64,
    /// The password that resumes it.
    pub password: [u8; 16],
}

impl ConnectResponse {
    /// The answer that a session has expired.
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
