//! The words between a contender and its driver: what happened, what to do, and how it ended.
//!
//! Each command has exactly one event that reports its outcome. All are data, so that a model checker, a simulator and the
//! network can stand on the other side.

use crate::{AttemptId, Class, FencingToken, IncompatibleFormat, LockDelay, SessionId, Zxid};

/// Something that happened: the outcome of the command in flight, a watch, or a wish of the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<'a> {
    /// The outcome of [`Command::Enter`].
    Entered {
        /// The create's: the node's full name and the transaction that made it.
        created: Result<(&'a str, Zxid), Failure>,
        /// The listing's, which travelled behind it.
        listed: Result<Listing<'a>, Failure>,
    },
    /// The outcome of [`Command::MakeParent`]; a parent that was there already is as good.
    ParentMade(Result<(), Failure>),
    /// The outcome of [`Command::StoreLimit`].
    LimitStored(Result<(), Failure>),
    /// The outcome of [`Command::List`] or [`Command::Recover`].
    Listed(Result<Listing<'a>, Failure>),
    /// The outcome of [`Command::Inspect`].
    Inspected(Result<Inspection, Failure>),
    /// The outcome of [`Command::Watch`]: the watch stands and this was read, or the node is gone ([`Failure::NoNode`]) and no
    /// watch stands.
    Watched(Result<Inspection, Failure>),
    /// The outcome of [`Command::TakeHolderMarker`]: the transaction that made it. [`Failure::NoNode`]: the own node does not exist;
    /// [`Failure::NodeExists`]: somebody else has the holder marker.
    HolderMarkerTaken(Result<Zxid, Failure>),
    /// The outcome of [`Command::Tombstone`]. [`Failure::NoNode`]: the own node does not exist.
    TombstoneMade(Result<(), Failure>),
    /// The delay of [`Command::Delay`] has passed for this node.
    DelayOver(&'a str),
    /// The outcome of [`Command::WriteRecord`]: the version of the own node's data now.
    RecordWritten(Result<i32, Failure>),
    /// The outcome of [`Command::Downgrade`]: the transaction that made the reader's node.
    Downgraded(Result<Zxid, Failure>),
    /// The outcome of [`Command::Delete`].
    Deleted(Result<(), Failure>),
    /// A look showed that this child is no contender: its node has no session ([`SessionId::is_none`]).
    NoContender(&'a str),
    /// A watched node was deleted.
    Gone(&'a str),
    /// A watched node has new data; the watch is spent.
    Changed(&'a str),
    /// The parent has other children; the watch is spent.
    ChildrenChanged,
    /// The node is old enough to be worth a watch of its own also if it never waited.
    Lingered,
    /// The connection was lost; the session may live.
    ///
    /// Events of the meantime come in no particular order once it is back (the server answers `setWatches` watch by watch). So the
    /// deletion of the blocker proves nothing without a listing.
    Disconnected,
    /// The caller wants something of the contender.
    Ask(Ask),
    /// The caller no longer wants to wait or to hold.
    Leave,
    /// The caller's hold is lost, by a clock, and the caller has not released it: it may not know yet.
    Lost,
    /// The session is over.
    SessionOver,
}

/// What a caller may want of a contender beside leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// The holder of a writer's place wants to go on as a reader, in the same place.
    Downgrade,
    /// A reader with a writer's node wants to be alone.
    Upgrade,
    /// It no longer wants that, and goes on reading.
    StayReader,
    /// The waiter changes to another class. It loses its place and is the last of that class.
    Reclassify(Class),
    /// The holder refuses to release. Its node must say so, and the next request is reported again.
    Refuse,
}

/// What one look at the parent showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listing<'a> {
    /// Its children's names.
    pub names: &'a [String],
    /// The limit that its data states, if asked for; read after the names.
    pub limit: Option<Limit>,
    /// The parent's data is a leased lock's record.
    pub leased: bool,
}

impl<'a> Listing<'a> {
    /// A listing of names alone.
    pub fn of(names: &'a [String]) -> Self {
        Listing { names, limit: None, leased: false }
    }
}

/// What the parent's data says of how many permits there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// This many.
    Permits(u32),
    /// Nothing yet; the data has this version.
    Unset {
        /// The version.
        version: i32,
    },
    /// Something of another maker, which is not ours to replace.
    Foreign,
}

/// Why an operation did not succeed, as far as the protocol cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The node, or for a create and a listing its parent, is not there.
    NoNode,
    /// The node to create exists; without effect.
    NodeExists,
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
    /// Its data says that it was granted.
    pub granted: bool,
    /// Its data asks its owner to release.
    pub asked: bool,
}

impl Inspection {
    /// Whether both nodes are of one attempt, as far as they tell.
    pub fn is_same_attempt(&self, other: &Inspection) -> bool {
        (self.owner, self.id) == (other.owner, other.id)
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Create an ephemeral sequential child with this prefix and list the parent, in one flight.
    Enter {
        /// The name to ask for.
        prefix: String,
        /// Read the parent's data too, behind the listing and in the same flight.
        limit: bool,
    },
    /// Make the parent and what is missing above it.
    MakeParent {
        /// It is to stay when its last child goes.
        stays: bool,
        /// The limit it is to state.
        limit: Option<u32>,
    },
    /// Write the limit into the parent, if its data has this version.
    StoreLimit {
        /// The limit.
        permits: u32,
        /// The version.
        version: i32,
    },
    /// List the parent.
    List {
        /// Read the parent's data too, behind the listing and in the same flight.
        limit: bool,
        /// Watch for other children from this listing on.
        watch: bool,
    },
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
    /// Create the holder marker, as an ephemeral node, if the own node still stands: in one transaction.
    TakeHolderMarker {
        /// The own node.
        own: String,
        /// The holder marker.
        holder_marker: String,
    },
    /// Create the tombstone of the hold to come, as a node that stays, if the own node still stands: in one transaction.
    Tombstone {
        /// The own node.
        own: String,
        /// The tombstone.
        tombstone: String,
    },
    /// Say [`Event::DelayOver`] when this time has passed from now on. Beside whatever else is asked for.
    Delay {
        /// The node that is to go then.
        name: String,
        /// How long.
        delay: LockDelay,
    },
    /// Write the owner's record into the own node again, if its data has this version: what the record said, that it was granted,
    /// and the request to release.
    WriteRecord {
        /// The own node.
        name: String,
        /// Whether it was granted.
        granted: bool,
        /// The version.
        version: i32,
    },
    /// Replace the own writer's node by a reader's with the same number: in one transaction.
    Downgrade {
        /// The writer's.
        from: String,
        /// The reader's.
        into: String,
    },
    /// Delete a child.
    Delete {
        /// The child.
        name: String,
        /// Only if its data has this version.
        version: Option<i32>,
        /// And the holder marker, or the tombstone, with it, in one transaction, if its data has this version.
        holder_marker: Option<(String, i32)>,
    },
    /// Hand the lock to the caller.
    Grant(Grant),
    /// Tell the caller that somebody asks for the lock. Once.
    Revoke,
    /// Tell the caller that it is alone now.
    Upgraded,
    /// Tell the caller that it reads now, with this node.
    Reads {
        /// The node.
        name: String,
    },
    /// The attempt is over.
    End(End),
}

/// Which node a watch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchKind {
    /// The node whose going lets me on.
    Blocker,
    /// My own node, or my holder marker: someone may delete it, or write to it.
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
    /// The server refused an operation; no node is left.
    Refused,
    /// The server refuses to delete its node; the node stays until the session ends.
    Stuck,
    /// The parent abandoned each time it was made.
    ParentVanishes,
    /// A client asked it to withdraw before it was granted.
    Revoked,
    /// The path states another limit than this attempt's, or, with `None`, something else.
    LimitDiffers(Option<u32>),
    /// It was to get the lock at once or not at all, and so many contenders are ahead.
    Held {
        /// How many, those that hold the lock included.
        ahead: usize,
    },
    /// More contenders are ahead than it accepts.
    TooManyAhead {
        /// How many, those that hold the lock included.
        ahead: usize,
    },
    /// An earlier contender uses another node format on the path, so neither sees the other.
    IncompatibleFormat(IncompatibleFormat),
}

/// Where a waiting contender stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// How many were ahead of it in the last listing.
    pub ahead: usize,
    /// The first of that listing, or the holder marker if there is one: its data names the holder.
    pub first: String,
    /// The first of the queue, where the owner of the holder marker may be behind this one and is not in `ahead` then. It is in
    /// `ahead` if both nodes are of one session and attempt ([`Inspection::is_same_attempt`]).
    pub front: Option<String>,
}
