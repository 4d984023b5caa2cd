//! The operations of a session on an ensemble, independent of how they travel.
//!
//! This is the one boundary between what stands on a session and the network. It is implemented with the crate `lockkeeper-client`, over
//! TCP or over the simulator's links.
//!
//! A recipe, and Lockkeeper's locks, can rely on the following:
//!
//! - Operations of one session take effect in the order in which their futures were *first polled*. Only sequential creates, deletes and
//!   lists may pass each other, because they leave together. A list shows each create and delete that was polled before it.
//! - Two creates below one node have different transactions.
//! - Reads of one session never go back in time. They may be stale: [`linearizable`] reads are not.
//! - A watch event is delivered before the reply to any read that shows the change.
//! - While the connection is lost, an operation waits until it is back or the session is over.
//! - An operation that fails with [`OpError::ConnectionLoss`] may have happened; one that fails with any other error has not.

pub(crate) mod each;
pub(crate) mod paths;
pub(crate) mod servers;
pub(crate) mod shared;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod zookeeper;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use lockkeeper_core::{Loss, SessionId, Ticks, Zxid};
use tokio::sync::mpsc;

pub use self::each::{Answered, EachServer, Unanswered};
pub use self::paths::{above, is_below, make_path};
pub use self::servers::check_servers;
pub use self::shared::{LOCKS, OWN_TREE};
use crate::acl::{LockAcl, SharedNode};
use crate::error::SessionError;

/// An operation under way. Nothing is sent before the first poll; dropping it later does not cancel it. Poll it on the thread of the
/// sessions ([`Sessions::ask`](crate::Sessions::ask)), or in a tokio runtime with time.
pub type Reply<T, F = OpError> = BoxFuture<'static, Result<T, F>>;

/// Resolves once, with what happened to the watched node. Survives lost connections: it reports what was changed meanwhile. Dropping it
/// removes the watch.
pub type Watcher = BoxFuture<'static, Fired>;

/// The changes of a tree, as [`Ensemble::watch_tree`] reports them. It ends with the session. Dropping it removes the watch.
pub type TreeWatch = BoxStream<'static, TreeEvent>;

/// What a watch of a tree reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeEvent {
    /// A node was created, deleted or written.
    Changed {
        /// Its path.
        path: Arc<str>,
        /// What happened to it.
        change: TreeChange,
        /// When this client received the event. Events that arrive together have one time.
        at: Instant,
    },
    /// The connection ended. Changes from now on are not reported.
    Disconnected,
    /// The connection is back, and the tree is watched again. A read from now on shows what was not reported.
    Reconnected,
    /// This many changes were dropped, because nobody took them in time. A read from now on shows them.
    Missed(u64),
}

/// What happened to a node of a watched tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeChange {
    /// It was created.
    Created,
    /// It was deleted.
    Deleted,
    /// Its data was written.
    Written,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The node, or the parent of the node to create, does not exist.
    #[error("no such node")]
    NoNode,
    /// The node to create exists.
    #[error("the node exists")]
    NodeExists,
    /// The node's data has another version.
    #[error("the node's data has another version")]
    BadVersion,
    /// The connection was lost before the reply. The operation may have happened. [`until_answered`] repeats it.
    #[error("the connection was lost before the reply")]
    ConnectionLoss,
    /// The session is over. Its ephemeral nodes are deleted, and every later operation fails in the same way.
    #[error("the session is over")]
    SessionOver,
    /// The server does not know the operation.
    #[error("the server does not support this operation")]
    Unsupported,
    /// The server refused the operation, with its reason.
    #[error("{0}")]
    Refused(String),
}

/// What happened to a watched node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fired {
    /// It was deleted.
    Gone,
    /// Its data changed or, in a watch of children, the list of its children.
    Changed,
    /// The session ended first.
    SessionOver,
}

impl Fired {
    /// Returns what happened, or [`OpError::SessionOver`] if the session ended first.
    pub fn in_session(self) -> Result<Fired, OpError> {
        match self {
            Fired::SessionOver => Err(OpError::SessionOver),
            Fired::Gone | Fired::Changed => Ok(self),
        }
    }
}

/// The kind of node to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Ephemeral, with a number that the server appends.
    EphemeralSequential,
    /// Ephemeral: deleted with its session.
    Ephemeral,
    /// Deleted by the server some time after its last child. Servers before ZooKeeper 3.5 do not know it.
    Container,
    /// Persistent.
    Persistent,
    /// Persistent, and nobody can change it where the server knows who created it: see [`Ensemble::proof`].
    Record,
    /// As a container, and shared by all clients, whatever the access list of its creator's session is.
    SharedContainer,
    /// Persistent, and shared as [`NodeKind::SharedContainer`] is.
    Shared,
    /// As [`NodeKind::Shared`]. An entry of the access list without the right to write only lets its clients read the node.
    SharedByWriters,
}

/// A node as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its data.
    pub data: Vec<u8>,
    /// The transaction that created it.
    pub czxid: Zxid,
    /// The transaction that last wrote its data.
    pub mzxid: Zxid,
    /// The transaction that last created or deleted a child of it; the one that created it if it never had a child.
    pub pzxid: Zxid,
    /// When it was created, in milliseconds since 1970 by the leader's clock.
    pub ctime_ms: i64,
    /// When its data was last written, in milliseconds since 1970 by the leader's clock.
    pub mtime_ms: i64,
    /// The version of its data.
    pub version: i32,
    /// The session that owns an ephemeral node; 0 for other nodes.
    pub owner: SessionId,
    /// The number of its children.
    pub children: usize,
}

/// The children of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Children {
    /// Their names.
    pub names: Vec<String>,
    /// The size of the node's own data, in bytes.
    pub data_len: usize,
    /// How many children were created since the node was, including those that are deleted.
    pub created: u32,
    /// When the node was created, in milliseconds since 1970 by the leader's clock.
    pub ctime_ms: i64,
    /// The transaction that last created or deleted a child.
    pub changed: Zxid,
}

/// A node with everything that a copy of it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWithAcl {
    /// Its data.
    pub data: Vec<u8>,
    /// Its access list.
    pub acl: Vec<AclGrant>,
    /// Whether it is ephemeral. Servers do not say whether a node is a container or has a time to live.
    pub ephemeral: bool,
    /// The transaction that created it.
    pub czxid: Zxid,
    /// The transaction that last changed it or its children.
    pub latest: Zxid,
}

impl NodeWithAcl {
    /// Returns whether password digests were hidden. Servers show an `x` instead to clients that have no right to
    /// change the list. (ZooKeeper's PrepRequestProcessor and FinalRequestProcessor do so since 3.5.6.)
    pub fn is_masked(&self) -> bool {
        self.acl.iter().any(|grant| grant.scheme == "digest" && grant.id.ends_with(":x"))
    }

    /// Returns whether the other node has the same content, whenever it was created.
    pub fn same_content(&self, other: &NodeWithAcl) -> bool {
        let sorted = |acl: &[AclGrant]| {
            let mut acl = acl.to_vec();
            acl.sort();
            acl
        };
        self.data == other.data && self.ephemeral == other.ephemeral && sorted(&self.acl) == sorted(&other.acl)
    }
}

/// An entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AclGrant {
    /// The authentication scheme: `world`, `digest`, `ip`, `x509`, `sasl`.
    pub scheme: String,
    /// Whom the entry admits, in the words of the scheme.
    pub id: String,
    /// The permissions, as ZooKeeper's bits.
    pub permissions: u8,
}

/// What the server knows about the user who created a [`NodeKind::Record`]. Shown behind the name that the client claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Proof {
    /// It does not know its clients' users: the name is a claim. This is so on every server behind TCP.
    #[default]
    Unknown,
    /// A process of the user with this number wrote the record, and nobody has changed it.
    User(u32),
    /// It knows its clients' users, but the record does not say who wrote it: it was forged or copied.
    Missing,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Proof::Unknown => Ok(()),
            Proof::User(uid) => write!(f, " (uid {uid})"),
            Proof::Missing => f.write_str(" (not proved)"),
        }
    }
}

/// A node as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The new version of its data.
    pub version: i32,
    /// The transaction that wrote it.
    pub mzxid: Zxid,
    /// When, in milliseconds since 1970 by the leader's clock.
    pub mtime_ms: i64,
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnStep {
    /// The node must exist and, if a version is given, its data must have it.
    Check {
        /// The node.
        path: String,
        /// Its version.
        version: Option<i32>,
    },
    /// Create a node. Not a sequential one: its name would be unknown if the reply were lost.
    Create {
        /// The node.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// The kind of node.
        kind: NodeKind,
    },
    /// Replace a node's data.
    Write {
        /// The node.
        path: String,
        /// The new data.
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

impl TxnStep {
    /// Returns the path of its node.
    pub fn path(&self) -> &str {
        match self {
            TxnStep::Check { path, .. }
            | TxnStep::Create { path, .. }
            | TxnStep::Write { path, .. }
            | TxnStep::Delete { path, .. } => path,
        }
    }
}

/// What a step of a transaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The node was as expected.
    Checked,
    /// A node was created by this transaction; some servers do not name it (ZOOKEEPER-4026, ZOOKEEPER-4667).
    Created(Option<Zxid>),
    /// A node's data was replaced.
    Written(Written),
    /// A node was deleted.
    Deleted,
}

/// Why a transaction was not done, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnError {
    /// The step that failed; `None` if the transaction failed as a whole.
    pub step: Option<usize>,
    /// The cause.
    pub fault: OpError,
}

impl OpError {
    /// Returns the error of a call for a failed operation on this path: [`SessionError::ConnectionLost`] after a lost connection or
    /// session, otherwise [`SessionError::Refused`] with this error's text.
    pub fn on(self, path: &str) -> SessionError {
        let path = path.to_owned();
        match self {
            OpError::ConnectionLoss | OpError::SessionOver => SessionError::ConnectionLost { path },
            fault => SessionError::Refused { path, reason: fault.to_string() },
        }
    }
}

impl From<OpError> for TxnError {
    fn from(fault: OpError) -> Self {
        TxnError { step: None, fault }
    }
}

impl From<TxnError> for OpError {
    fn from(undone: TxnError) -> Self {
        undone.fault
    }
}

/// Returns the transaction that did it, if a step names it.
pub fn zxid_of(done: &[Done]) -> Option<Zxid> {
    done.iter().rev().find_map(|done| match done {
        Done::Created(zxid) => *zxid,
        Done::Written(written) => Some(written.mzxid),
        Done::Checked | Done::Deleted => None,
    })
}

/// The path of the node that states the epoch of fencing tokens as a decimal number, without a chroot. Without the node, the epoch is 0.
pub const EPOCH_NODE: &str = "/lockkeeper/epoch";

/// How many reads a call that reads many nodes has in flight at once.
pub const READS_IN_FLIGHT: usize = 64;

/// The operations of one session. [`Sessions::ask`](crate::Sessions::ask) and [`Session::ensemble`](crate::Session::ensemble) return them.
/// The [module](self) says in which order they take effect.
///
/// # Cost
///
/// One request and one round trip for each, if it says nothing else. [`create`](Self::create), [`delete`](Self::delete),
/// [`write`](Self::write), [`transact`](Self::transact) and [`heartbeat`](Self::heartbeat) are also writes, which a majority of the servers
/// stores.
///
/// # Cancel safety
///
/// Nothing is sent before the first poll. Dropping the reply later does not cancel the operation: a write may happen. A watch that a
/// dropped read has set is removed.
///
/// # Errors
///
/// Each can fail with [`OpError::ConnectionLoss`], [`OpError::SessionOver`] and [`OpError::Refused`], for example because of an access list.
pub trait Ensemble: Send + Sync + 'static {
    /// Returns the session's id. Sends nothing.
    fn session(&self) -> SessionId;
    /// Returns the age of the oldest request that was sent and not answered; zero without one, and without a connection. Sends nothing.
    fn unanswered_for(&self) -> Duration {
        Duration::ZERO
    }
    /// Creates a node with the access list of the session; the reply has its name, including the number of a sequential one, and the
    /// transaction.
    ///
    /// [`OpError::NodeExists`]; [`OpError::NoNode`] if the parent does not exist; [`OpError::Unsupported`] for a container on a server that
    /// does not know it. The name of a sequential node is unknown after a lost reply.
    fn create(&self, path: &str, data: Vec<u8>, kind: NodeKind) -> Reply<(String, Zxid)>;
    /// Deletes a node; if a version is given, only if its data has it.
    ///
    /// [`OpError::NoNode`]; [`OpError::BadVersion`]; [`OpError::Refused`] if it has children.
    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()>;
    /// Replaces a node's data; if a version is given, only if the data has it.
    ///
    /// [`OpError::NoNode`]; [`OpError::BadVersion`].
    fn write(&self, path: &str, data: Vec<u8>, version: Option<i32>) -> Reply<Written>;
    /// Does all of these steps or none, in one transaction, and returns what each did.
    ///
    /// [`TxnError`] names the first step that failed, with its error. Without a step, the transaction failed as a whole; after
    /// [`OpError::ConnectionLoss`], it may have happened.
    fn transact(&self, steps: Vec<TxnStep>) -> Reply<Vec<Done>, TxnError>;
    /// Lists a node's children, in no order. [`OpError::NoNode`].
    fn list(&self, path: &str) -> Reply<Children>;
    /// Lists the names of a node's children, in no order, and watches for changes of the list and for the node's end. [`OpError::NoNode`];
    /// no watch is left then.
    fn list_and_watch(&self, path: &str) -> Reply<(Vec<String>, Watcher)>;
    /// Watches for the creation of a node; `None`, and no watch, if it exists. Its parents need not exist.
    fn watch_creation(&self, path: &str) -> Reply<Option<Watcher>>;
    /// Reads a node. [`OpError::NoNode`].
    fn read(&self, path: &str) -> Reply<Node>;
    /// Counts the children of a node; 0 if it does not exist. Needs no right.
    fn count(&self, path: &str) -> Reply<usize>;
    /// Reads a node, and a child of it behind it; `None` for a child that does not exist. One request, or two to servers before
    /// ZooKeeper 3.6.
    fn read_with_child(&self, path: &str, child: &str) -> Reply<(Node, Option<Node>)>;
    /// Returns who created this [`NodeKind::Record`]. No request is sent to a server that does not know its clients' users.
    fn proof(&self, _path: &str) -> Reply<Proof> {
        std::future::ready(Ok(Proof::Unknown)).boxed()
    }
    /// Reads a node and watches it: its data and its end, not its children. [`OpError::NoNode`]; no watch is left then.
    fn read_and_watch(&self, path: &str) -> Reply<(Node, Watcher)>;
    /// Returns whether the server may have followers or be one: unless it says that it is alone. `/zookeeper/config` lists the members of an
    /// ensemble; of a server that is alone, it exists and is empty.
    fn may_have_followers(&self) -> Reply<bool>;
    /// Reads the node that states the epoch of tokens, `/lockkeeper/epoch` outside any chroot, and watches it, also for
    /// its creation. Two requests if it exists.
    fn epoch(&self) -> Reply<(Option<Node>, Watcher)>;
    /// Writes the epoch if its node has this version; creates the node if no version is given.
    fn set_epoch(&self, data: Vec<u8>, version: Option<i32>) -> Reply<()>;
    /// Creates a node that all clients share, or gives an existing one this list; without a list, a new one admits every client, and an
    /// existing one keeps its list. `None` for the epoch, if this client has a chroot: it belongs to the servers.
    fn set_up(&self, _path: &str, _kind: NodeKind, _acl: Option<&LockAcl>) -> Reply<Option<SharedNode>> {
        std::future::ready(Err(OpError::Unsupported)).boxed()
    }
    /// Watches a node and all nodes below it, also if it does not exist yet. At most `capacity` changes that nobody has taken are
    /// kept. Fails with [`OpError::Unsupported`] on servers before ZooKeeper 3.6.
    ///
    /// One request, whatever the tree's size. Nothing is written.
    fn watch_tree(&self, _path: &str, _capacity: usize) -> Reply<TreeWatch> {
        std::future::ready(Err(OpError::Unsupported)).boxed()
    }
    /// Returns the operations of a copy; `None` where nodes cannot be copied, as in a simulator.
    fn copies(&self) -> Option<&dyn Copies> {
        None
    }
    /// Sends a write that changes nothing and that a majority orders with all other writes. Its reply shows that the
    /// session is alive, and every later read of this session sees what was confirmed before it was sent. A server that
    /// is cut off from the others cannot answer it, however it is configured.
    ///
    /// ZooKeeper's `sync` gives less. The leader answers it for its own clients before it has applied what its
    /// followers have (`CommitProcessor`). A former leader answers it too.
    fn heartbeat(&self) -> Reply<()>;
}

/// The operations of a session that copy nodes with their access lists. They cost as those of [`Ensemble`] do, with two requests for
/// each read and for each replacement.
pub trait Copies: Send + Sync {
    /// Reads a node with its access list; `None` if it changed between the two reads.
    fn read_whole(&self, path: &str) -> Reply<Option<NodeWithAcl>>;
    /// Creates a persistent node with this access list.
    fn create_whole(&self, path: &str, whole: NodeWithAcl) -> Reply<()>;
    /// Replaces a node's data, and then its access list.
    fn replace_whole(&self, path: &str, whole: NodeWithAcl) -> Reply<()>;
}

/// Awaits a read, or several that are sent together, that shows every write that was confirmed before it, whichever client wrote.
/// Without it, this session's server may be stale.
///
/// # Cost
///
/// A write for the ensemble, and no round trip more: the write is sent before the read without waiting for its reply.
///
/// # Cancel safety
///
/// Dropping the future leaves what dropping the read leaves.
///
/// # Errors
///
/// Those of the read, and those of a heartbeat.
pub async fn linearizable<T>(
    ensemble: &dyn Ensemble,
    read: impl Future<Output = Result<T, OpError>>,
) -> Result<T, OpError> {
    let (ordered, seen) = tokio::join!(biased; ensemble.heartbeat(), read);
    ordered.and(seen)
}

/// Repeats an operation until its reply arrives: after a lost connection, the next one waits until the connection is back.
///
/// For operations that may happen twice. A create that is repeated fails with [`OpError::NodeExists`] if the first one happened, so its
/// path must be one that no other client chooses. A delete that is repeated fails with [`OpError::NoNode`].
///
/// # Cost
///
/// That of the operation, if the connection is not lost.
///
/// # Cancel safety
///
/// Dropping the future leaves what dropping the operation leaves: it may happen.
///
/// # Errors
///
/// Those of the operation except [`OpError::ConnectionLoss`]. [`OpError::SessionOver`] when the session has ended.
pub async fn until_answered<T, R>(mut operation: impl FnMut() -> R) -> Result<T, OpError>
where
    R: Future<Output = Result<T, OpError>>,
{
    loop {
        match operation().await {
            Err(OpError::ConnectionLoss) => {}
            answered => return answered,
        }
    }
}

/// A change of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// Lost; the session may live.
    Lost,
    /// No server accepted the session in a round over all servers since it was lost. Reported only to callers that count
    /// the retries.
    TryFailed,
    /// Connected again, in the same session.
    Back,
    /// The request to close the session is sent.
    Closing,
    /// The session is over. No more changes follow.
    Over(Loss),
}

/// A session that was just opened.
pub(crate) struct Opened {
    /// Its operations. Dropping the last handle closes the session.
    pub ensemble: Arc<dyn Ensemble>,
    /// The timeout that the server granted.
    pub timeout: Duration,
    /// How many ticks of the servers that is at least.
    pub ticks: Ticks,
    /// The changes of its connection from now on. The end of the channel means that it is closed.
    pub connection: mpsc::UnboundedReceiver<Connection>,
    /// A value that must outlive the session: a server in this process.
    pub anchor: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

/// How often a lost or missing connection is retried, and the pause before each retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// How often.
    pub retries: u32,
    /// The pause before each.
    pub delay: Duration,
}

/// The source of sessions.
pub(crate) trait Network: Send + Sync + 'static {
    /// Opens a session, trying for at most `patience`.
    ///
    /// # Errors
    ///
    /// An error for the user: the servers that were tried, for how long, and their results.
    fn open(&self, patience: Duration) -> BoxFuture<'_, Result<Opened, SessionError>>;

    /// The servers, for messages.
    fn servers(&self) -> String;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(scheme: &str, id: &str, permissions: u8) -> AclGrant {
        AclGrant { scheme: scheme.to_owned(), id: id.to_owned(), permissions }
    }

    fn whole() -> NodeWithAcl {
        let acl = vec![grant("world", "anyone", 1), grant("ip", "127.0.0.1", 31)];
        NodeWithAcl { data: vec![1], acl, ephemeral: false, czxid: Zxid(1), latest: Zxid(2) }
    }

    /// When it was created and changed does not count, nor the order of its access list.
    #[test]
    fn a_node_is_as_another_with_the_same_data_access_list_and_life() {
        let mut later = NodeWithAcl { czxid: Zxid(8), latest: Zxid(9), ..whole() };
        later.acl.reverse();
        assert!(whole().same_content(&later));
        let others = [
            NodeWithAcl { data: vec![2], ..whole() },
            NodeWithAcl { ephemeral: true, ..whole() },
            NodeWithAcl { acl: whole().acl[..1].to_vec(), ..whole() },
            NodeWithAcl { acl: vec![grant("world", "anyone", 3), grant("ip", "127.0.0.1", 31)], ..whole() },
        ];
        for other in others {
            assert!(!whole().same_content(&other), "{other:?}");
        }
    }

    #[test]
    fn only_a_digest_that_is_an_x_is_masked() {
        let with =
            |scheme, id| NodeWithAcl { acl: vec![grant("world", "anyone", 1), grant(scheme, id, 31)], ..whole() };
        assert!(with("digest", "app:x").is_masked());
        assert!(!with("digest", "app:F6Y+U5gIoCbNNoLQExmvxRFeatA=").is_masked());
        assert!(!with("sasl", "app:x").is_masked());
    }

    #[test]
    fn the_transaction_is_that_of_the_last_step_that_names_one() {
        let written = Done::Written(Written { version: 1, mzxid: Zxid(7), mtime_ms: 0 });
        assert_eq!(zxid_of(&[Done::Created(Some(Zxid(6))), written, Done::Deleted]), Some(Zxid(7)));
        assert_eq!(zxid_of(&[written, Done::Created(Some(Zxid(8))), Done::Created(None)]), Some(Zxid(8)));
        assert_eq!(zxid_of(&[Done::Checked, Done::Deleted]), None);
    }
}
