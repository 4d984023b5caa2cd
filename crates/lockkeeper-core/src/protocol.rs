//! The words between a contender and its driver: what happened, what to do, and how it ended.
//!
//! Each command has exactly one event that reports its outcome. All are data, so that a model checker, a simulator and the
//! network can stand on the other side.

use crate::{AttemptId, FencingToken, SessionId, Zxid};

/// Something that happened: the outcome of the command in flight, a watch, or a wish of the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<'a> {
    /// The outcome of [`Command::Enter`].
    Entered {
        /// The create's: the node's full name and the transaction that made it.
        created: Result<(&'a str, Zxid), Failure>,
        /// The listing's, which travelled behind it.
        listed: Result<&'a [String], Failure>,
    },
    /// The outcome of [`Command::MakeParent`]; a parent that was there already is as good.
    ParentMade(Result<(), Failure>),
    /// The outcome of [`Command::List`] or [`Command::Recover`].
    Listed(Result<&'a [String], Failure>),
    /// The outcome of [`Command::Inspect`].
    Inspected(Result<Inspection, Failure>),
    /// The outcome of [`Command::Watch`]: the watch stands, or the node is gone ([`Failure::NoNode`]) and none does.
    Watched(Result<(), Failure>),
    /// The outcome of [`Command::Delete`].
    Deleted(Result<(), Failure>),
    /// A watched node was deleted.
    Gone(&'a str),
    /// A watched node has new data; the watch is spent.
    Changed(&'a str),
    /// The node is old enough to be worth a watch of its own also if it never waited.
    Lingered,
    /// The connection was lost; the session may live.
    ///
    /// What happened meanwhile is told in no particular order once it is back (the server answers `setWatches` watch by
    /// watch), so nothing may be concluded from the going of the blocker without a listing.
    Disconnected,
    /// The caller no longer wants to wait or to hold.
    Leave,
    /// The session is over.
    SessionOver,
}

/// Why an operation did not succeed, as far as the protocol cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The node, or for a create and a listing its parent, is not there.
    NoNode,
    /// The connection was lost before the reply: it may have taken effect.
    ConnectionLoss,
    /// The session is over.
    SessionOver,
    /// The node's data has another version than the one asked for; without effect.
    BadVersion,
    /// The server refused it, certainly without effect, and would refuse it again.
    Refused,
}

/// What a look at one node showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inspection {
    /// The session that the node lives and dies with.
    pub owner: SessionId,
    /// The transaction that made it.
    pub czxid: Zxid,
    /// The attempt that its data names.
    pub id: Option<AttemptId>,
    /// The version of its data.
    pub version: i32,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Create an ephemeral sequential child with this prefix and list the parent, in one flight.
    Enter {
        /// The name to ask for.
        prefix: String,
    },
    /// Make the parent and what is missing above it.
    MakeParent,
    /// List the parent.
    List,
    /// Sync the parent, then list it, in one flight.
    ///
    /// Sync first: the create may be committed but not yet visible on the server this session moved to. Without it both
    /// Curator and Kazoo leave ghosts when fsync is slow.
    Recover,
    /// Read a child: who made it.
    Inspect {
        /// The child.
        name: String,
    },
    /// Watch a child by reading it. Reading, not `exists`, which would leave a watch behind on a node already gone.
    Watch {
        /// The child.
        name: String,
        /// What for.
        kind: WatchKind,
    },
    /// Delete a child.
    Delete {
        /// The child.
        name: String,
        /// Only if its data has this version.
        version: Option<i32>,
    },
    /// Hand the lock to the caller.
    Grant(Grant),
    /// The attempt is over.
    End(End),
}

/// Which node a watch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchKind {
    /// The node whose going lets me on.
    Blocker,
    /// My own node: someone may delete it.
    Own,
}

/// The lock is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The own node's name.
    pub name: String,
    /// What to give to the protected resource.
    pub token: FencingToken,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Nothing of it is left in the queue.
    Left,
    /// Its session is over; the server removes what is left of it.
    SessionOver,
    /// Somebody deleted its node.
    Evicted,
    /// The server refused to let it in; nothing is left.
    Refused,
    /// The server refuses to delete its node; the node stays until the session ends.
    Stuck,
    /// The parent vanished each time it was made.
    ParentVanishes,
}

/// Where a waiting contender stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// How many stood before it in the last listing.
    pub ahead: usize,
    /// Who was first in that listing: the holder.
    pub first: String,
}
