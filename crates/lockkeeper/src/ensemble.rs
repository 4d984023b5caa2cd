//! What the library needs of an ensemble: the dozen operations, and nothing of how they travel.
//!
//! The one wall between the locks and the network. `zookeeper.rs` implements it over TCP; a simulator implements it over
//! the server's data tree in one process, with a seed for every delay and fault. Hidden from the docs: it may change in
//! any release.
//!
//! What an implementation must keep, because the protocol rests on it: operations of one session take effect in the order
//! in which their futures were *first polled*; reads of one session never go back in time; a watch event is delivered before
//! the reply to any read that shows the change; an operation that fails with [`OpError::ConnectionLoss`] may have happened,
//! one that fails with any other fault has not.

mod contender;
pub(crate) mod paths;
pub(crate) mod servers;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod zookeeper;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkeeper_core::{Loss, SessionId, Zxid};
use tokio::sync::mpsc;

use crate::Error;

/// An operation under way. Nothing is sent before the first poll; dropping it later does not call it back.
pub type Reply<T, F = OpError> = BoxFuture<'static, Result<T, F>>;

/// Resolves once, with what happened to the watched node. Dropping it takes the watch off.
pub type Watcher = BoxFuture<'static, Fired>;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The node, or the parent of the node to create, is not there.
    #[error("no such node")]
    NoNode,
    /// The node to create is there.
    #[error("the node exists")]
    NodeExists,
    /// Its data has another version.
    #[error("the node's data has another version")]
    BadVersion,
    /// The connection was lost before the reply.
    #[error("the connection was lost before the reply")]
    ConnectionLoss,
    /// The session is over.
    #[error("the session is over")]
    SessionOver,
    /// The server does not know the operation.
    #[error("the server does not support this operation")]
    Unsupported,
    /// The server refused, in its words.
    #[error("{0}")]
    Refused(String),
}

/// What a watched node saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fired {
    /// It was deleted.
    Gone,
    /// It has new data, or, for a watch of children, other children.
    Changed,
    /// The session ended first.
    SessionOver,
}

/// What to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Gone with the session, and numbered by the server.
    EphemeralSequential,
    /// Gone with the session.
    Ephemeral,
    /// Removed by the server some time after its last child.
    Container,
    /// Stays.
    Persistent,
}

/// A node that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its bytes.
    pub data: Vec<u8>,
    /// The transaction that made it.
    pub czxid: Zxid,
    /// The transaction that last wrote its data.
    pub mzxid: Zxid,
    /// When it was made, in milliseconds since 1970 by the leader's clock.
    pub ctime_ms: i64,
    /// When its data was last written, likewise.
    pub mtime_ms: i64,
    /// The version of its data.
    pub version: i32,
    /// The session it dies with; 0 if it stays.
    pub owner: SessionId,
    /// How many children it has.
    pub children: usize,
}

/// What a node has below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Children {
    /// Their names.
    pub names: Vec<String>,
    /// How many bytes of data the node itself has.
    pub data_len: usize,
}

/// A node with everything that a copy of it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Its bytes.
    pub data: Vec<u8>,
    /// Who may do what with it.
    pub acl: Vec<Grant>,
    /// It ends with a session. Whether it is a container, or has a time to live, servers tell nobody.
    pub ephemeral: bool,
    /// The transaction that made it.
    pub czxid: Zxid,
    /// The transaction that last changed it or its children.
    pub latest: Zxid,
}

impl Whole {
    /// Whether digests of passwords were kept back: servers show an `x` in their place to who may not change the list
    /// (ZooKeeper's PrepRequestProcessor and FinalRequestProcessor, since 3.5.6).
    pub fn is_masked(&self) -> bool {
        self.acl.iter().any(|grant| grant.scheme == "digest" && grant.id.ends_with(":x"))
    }

    /// Whether the other one says the same, whenever it was made.
    pub fn is_as(&self, other: &Whole) -> bool {
        let sorted = |acl: &[Grant]| {
            let mut acl = acl.to_vec();
            acl.sort();
            acl
        };
        self.data == other.data && self.ephemeral == other.ephemeral && sorted(&self.acl) == sorted(&other.acl)
    }
}

/// An entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// How users are told apart: `world`, `digest`, `ip`, `x509`, `sasl`.
    pub scheme: String,
    /// Who.
    pub id: String,
    /// What they may do, as ZooKeeper's bits.
    pub permissions: u8,
}

/// A node that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The version of its data now.
    pub version: i32,
    /// The transaction that wrote it.
    pub mzxid: Zxid,
    /// When, in milliseconds since 1970 by the leader's clock.
    pub mtime_ms: i64,
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The node must be there, and its data have this version where one is given.
    Check {
        /// The node.
        path: String,
        /// Its version.
        version: Option<i32>,
    },
    /// Create a node. Not a numbered one: its name would be known to nobody if the reply were lost.
    Create {
        /// The node.
        path: String,
        /// Its bytes.
        data: Vec<u8>,
        /// What to create.
        kind: Kind,
    },
    /// Replace a node's data.
    Write {
        /// The node.
        path: String,
        /// The new bytes.
        data: Vec<u8>,
        /// The version it must have.
        version: Option<i32>,
    },
    /// Delete a node.
    Delete {
        /// The node.
        path: String,
        /// The version it must have.
        version: Option<i32>,
    },
}

impl Step {
    /// The node it is about.
    pub fn path(&self) -> &str {
        match self {
            Step::Check { path, .. }
            | Step::Create { path, .. }
            | Step::Write { path, .. }
            | Step::Delete { path, .. } => path,
        }
    }
}

/// What a step of a transaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The node was as it had to be.
    Checked,
    /// A node was made, by this transaction; some servers do not say by which (ZOOKEEPER-4026, ZOOKEEPER-4667).
    Created(Option<Zxid>),
    /// A node's data was replaced.
    Written(Written),
    /// A node was deleted.
    Deleted,
}

/// Why a transaction was not done, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undone {
    /// The step that could not be done; `None` where the transaction failed as a whole.
    pub step: Option<usize>,
    /// Why.
    pub fault: OpError,
}

impl From<OpError> for Undone {
    fn from(fault: OpError) -> Self {
        Undone { step: None, fault }
    }
}

impl From<Undone> for OpError {
    fn from(undone: Undone) -> Self {
        undone.fault
    }
}

/// The transaction that did it, where a step tells.
pub fn zxid_of(done: &[Done]) -> Option<Zxid> {
    done.iter().rev().find_map(|done| match done {
        Done::Created(zxid) => *zxid,
        Done::Written(written) => Some(written.mzxid),
        Done::Checked | Done::Deleted => None,
    })
}

/// The node that states the epoch, as the servers know it: a decimal number. Without it the epoch is 0.
pub(crate) const EPOCH_NODE: &str = "/lockkeeper/epoch";

/// How many reads travel together.
pub(crate) const READS_IN_FLIGHT: usize = 64;

/// One session's operations.
pub trait Ensemble: Send + Sync + 'static {
    /// The session's id.
    fn session(&self) -> SessionId;
    /// Creates a node; for a numbered one the reply's name carries the number.
    fn create(&self, path: &str, data: Vec<u8>, kind: Kind) -> Reply<(String, Zxid)>;
    /// Deletes a node, if its data has this version where one is given.
    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()>;
    /// Replaces a node's data, if it has this version where one is given.
    fn write(&self, path: &str, data: Vec<u8>, version: Option<i32>) -> Reply<Written>;
    /// All of these steps or none, in one transaction: what each did.
    fn transact(&self, steps: Vec<Step>) -> Reply<Vec<Done>, Undone>;
    /// Lists a node's children.
    fn list(&self, path: &str) -> Reply<Children>;
    /// Lists their names and watches for other ones.
    fn list_and_watch(&self, path: &str) -> Reply<(Vec<String>, Watcher)>;
    /// Reads a node.
    fn read(&self, path: &str) -> Reply<Node>;
    /// Reads a node and watches it. No watch is left where there is no node.
    fn read_and_watch(&self, path: &str) -> Reply<(Node, Watcher)>;
    /// Reads the node that states the epoch of tokens, `/lockkeeper/epoch` whatever stands before other paths, and watches it: for
    /// its making too, where it is not there.
    fn epoch(&self) -> Reply<(Option<Node>, Watcher)>;
    /// Writes it, if it has this version; makes it, where none is given.
    fn set_epoch(&self, data: Vec<u8>, version: Option<i32>) -> Reply<()>;
    /// Reads a node with its access list; nothing where it changed in between.
    fn read_whole(&self, path: &str) -> Reply<Option<Whole>> {
        unsupported(path)
    }
    /// Makes a node that stays, with this access list.
    fn create_whole(&self, path: &str, whole: Whole) -> Reply<()> {
        _ = whole;
        unsupported(path)
    }
    /// Replaces a node's data, and after it its access list.
    fn replace_whole(&self, path: &str, whole: Whole) -> Reply<()> {
        _ = whole;
        unsupported(path)
    }
    /// A request that changes nothing and is put in order with all writes, by a majority: that the session lives. What a server
    /// that is cut off from its peers cannot answer.
    fn prove(&self) -> Reply<()>;
    /// Brings the server this session is connected to up to the leader.
    fn sync(&self, path: &str) -> Reply<()>;
}

/// A read of what is so by now, whoever wrote it: this session's server may lag behind the leader, and would tell what was so.
///
/// The sync leaves before the read, in the same flight, so it costs the server's way to the leader and none of the client's more.
pub(crate) async fn synced<T>(ensemble: &dyn Ensemble, path: &str, read: Reply<T>) -> Result<T, OpError> {
    let (synced, seen) = tokio::join!(biased; ensemble.sync(path), read);
    synced.and(seen)
}

/// What a fault of an operation about this path means to the caller.
pub(crate) fn refused(path: &str, fault: OpError) -> Error {
    let path = path.to_owned();
    match fault {
        OpError::NoNode => Error::NoSuchLock { path },
        OpError::ConnectionLoss | OpError::SessionOver => Error::ConnectionLost { path },
        fault => Error::Refused { path, reason: fault.to_string() },
    }
}

fn unsupported<T: Send + 'static>(path: &str) -> Reply<T> {
    tracing::debug!(path, "nodes cannot be copied here");
    Box::pin(std::future::ready(Err(OpError::Unsupported)))
}

/// What a connection goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Lost; the session may live.
    Lost,
    /// Back, in the same session.
    Back,
    /// The session is over. Nothing follows.
    Over(Loss),
}

/// A session just opened.
pub struct Opened {
    /// Its operations. Dropping the last handle closes the session.
    pub ensemble: Arc<dyn Ensemble>,
    /// The timeout that the server granted.
    pub timeout: Duration,
    /// What its connection goes through from now on. The channel's end means closed.
    pub connection: mpsc::UnboundedReceiver<Connection>,
    /// What must outlive the session: a server in this process.
    pub anchor: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

/// How often a lost or missing connection is retried, and the pause before each retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reconnect {
    pub(crate) retries: u32,
    pub(crate) delay: Duration,
}

impl Reconnect {
    /// How long a connection may stay lost before these retries are used up. The client retries at its own pace.
    pub(crate) fn patience(self) -> Duration {
        self.delay.saturating_mul(self.retries)
    }
}

/// Where sessions come from.
pub trait Network: Send + Sync + 'static {
    /// Opens a session, trying for at most `patience`.
    ///
    /// # Errors
    /// An error for the user: who was asked, for how long, and what came back.
    fn open(&self, patience: Duration) -> BoxFuture<'_, Result<Opened, Error>>;

    /// Which servers these are, for messages.
    fn servers(&self) -> String {
        "the servers".to_owned()
    }
}
