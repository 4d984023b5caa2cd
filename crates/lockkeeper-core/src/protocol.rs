//! The messages between a contender and its driver: events, commands, and the end.
//!
//! Each command has exactly one event that reports its outcome. All are data, so the other side can be a model checker,
//! a simulator or the network.

use std::sync::Arc;

use crate::{
    AttemptId, Class, FencingToken, IncompatibleFormat, LastRelease, Limit, LockDelay, ReleaseRecord, Revocation,
    SessionId, Sessionless, Zxid,
};

/// An event: the outcome of the command in flight, a watch, or a request of the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The outcome of [`Command::Enter`].
    Entered {
        /// The create's outcome: the node's full name and the transaction that created it.
        created: Result<(String, Zxid), Failure>,
        /// What is known of the queue.
        arrival: Arrival,
    },
    /// The outcome of [`Command::MakeParent`]; a parent that existed already counts as success.
    ParentMade(Result<PathMade, Failure>),
    /// The outcome of [`Command::RemovePath`].
    PathRemoved(Result<(), Failure>),
    /// The outcome of [`Command::StoreLimit`].
    LimitStored(Result<(), Failure>),
    /// The outcome of [`Command::List`] or [`Command::Recover`].
    Listed(Result<Listing, Failure>),
    /// The outcome of [`Command::ReadRelease`].
    ReleaseRead(Result<ReleaseSeen, Failure>),
    /// The outcome of [`Command::Inspect`].
    Inspected(Result<Inspection, Failure>),
    /// The outcome of [`Command::Watch`]: the watch is set and this was read, or the node is deleted
    /// ([`Failure::NoNode`]) and no watch is set.
    Watched(Result<Inspection, Failure>),
    /// The outcome of [`Command::Watch`] for a blocker that is the node of a contender of this session. It needs no
    /// request, and [`Event::Released`] or [`Event::Ended`] follows.
    BlockerIsLocal,
    /// The outcome of [`Command::TakeHolderMarker`]: the transaction that created it. [`Failure::NoNode`]: the own node
    /// does not exist; [`Failure::NodeExists`]: another contender has the holder marker.
    HolderMarkerTaken(Result<Zxid, Failure>),
    /// The outcome of [`Command::Tombstone`]. [`Failure::NoNode`]: the own node does not exist.
    TombstoneMade(Result<(), Failure>),
    /// The delay of [`Command::Delay`] has passed for this node.
    DelayOver(String),
    /// The outcome of [`Command::WriteRecord`]: the version of the own node's data now.
    RecordWritten(Result<i32, Failure>),
    /// The outcome of [`Command::Downgrade`]: the transaction that made the reader's node.
    Downgraded(Result<Zxid, Failure>),
    /// The outcome of [`Command::Delete`] or [`Command::GiveUpHolderMarker`].
    Deleted(Result<(), Failure>),
    /// The outcome of [`Command::Check`]: the transaction that created the holder marker, if that was to be read.
    Checked(Result<Option<Zxid>, Failure>),
    /// The outcome of [`Command::Look`].
    Looked {
        /// The first of the queue.
        first: Result<Inspection, Failure>,
        /// The other node, if it was read.
        front: Option<Box<Inspection>>,
    },
    /// A watched node was deleted.
    Gone(String),
    /// A watched node has new data; its watch has fired.
    Changed(String),
    /// Another contender of this session held alone with this node, and its caller has released. The node may still exist; its delete
    /// follows.
    Released {
        /// The node.
        name: String,
        /// The contender watched its node, so the node existed until then
        /// ([`Contender::watches_itself`](crate::Contender::watches_itself)).
        watched: bool,
    },
    /// Another contender of this session has ended, or goes on under another name: it no longer has this node.
    Ended {
        /// The node.
        name: String,
        /// The node is certainly deleted. Otherwise it may still exist.
        deleted: bool,
    },
    /// The parent has other children; the watch has fired.
    ChildrenChanged,
    /// The own node is 100 ms old. From now on a watch on it is worth its request, even if the contender never waited.
    OwnWatchDue,
    /// The hold is so old that it makes way for contenders of earlier classes. From now on, the holder looks for them, and
    /// [`Command::Contended`] reports them.
    YieldDue,
    /// The grant, or the upgrade, came so long after the create of the own node that the record must say when.
    GrantedLate,
    /// The attempt is so old that the error of a caller that stops waiting is to name the holder. From now on, the contender reads each
    /// node that becomes the first of the queue.
    LooksDue,
    /// The caller soon stops waiting, and its error is to name the holder of that moment.
    DeadlineNear,
    /// A contender of this session has listed the queue since the create was answered: see [`Arrival::BehindLocal`].
    ListedByLocal(Arc<Listing>),
    /// The place of this waiter, which has listed nothing, as a contender of its session knows it. At most so many are ahead.
    PositionKnown(QueuePlace),
    /// The connection was lost; the session may live.
    ///
    /// Once the connection is back, the events of the meantime come in no particular order (the server answers
    /// `setWatches` watch by watch). So the deletion of the blocker proves nothing without a listing.
    Disconnected,
    /// The caller requests something of the contender.
    Ask(Ask),
    /// The holder refuses to release, for this reason. Its node must say so, and the next request is reported again.
    Refuse(String),
    /// The caller no longer waits. It has no hold, and never learns of a grant.
    Leave,
    /// The owner of the hold releases it.
    Release {
        /// A clock has ended the hold before: others may hold already.
        lost: bool,
        /// A write that the owner bound to the hold may still take effect.
        writes: bool,
    },
    /// The caller's hold is lost, by a clock, and the caller has not released it: it may not know yet.
    Lost,
    /// The session is over.
    SessionOver,
}

impl Event {
    /// The failure of the operation whose outcome it is. [`Event::Entered`] has only the failure of the create.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Event::Entered { created, .. } => created.as_ref().err(),
            Event::HolderMarkerTaken(made) | Event::Downgraded(made) => made.as_ref().err(),
            Event::ParentMade(made) => made.as_ref().err(),
            Event::PathRemoved(done) | Event::LimitStored(done) | Event::TombstoneMade(done) | Event::Deleted(done) => {
                done.as_ref().err()
            }
            Event::Listed(listed) => listed.as_ref().err(),
            Event::ReleaseRead(read) => read.as_ref().err(),
            Event::Inspected(read) | Event::Watched(read) => read.as_ref().err(),
            Event::RecordWritten(written) => written.as_ref().err(),
            Event::Checked(checked) => checked.as_ref().err(),
            Event::Looked { first, .. } => first.as_ref().err(),
            _ => None,
        }
        .copied()
    }

    /// Whether it shows that the session was alive when the operation was sent: a write of one request took effect, or a check.
    pub fn shows_session_alive(&self) -> bool {
        let writes = matches!(
            self,
            Event::Entered { .. }
                | Event::LimitStored(_)
                | Event::HolderMarkerTaken(_)
                | Event::TombstoneMade(_)
                | Event::RecordWritten(_)
                | Event::Downgraded(_)
                | Event::Deleted(_)
                | Event::Checked(_)
        );
        writes && self.failure().is_none()
    }
}

/// What a caller may request of a contender, apart from leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// The holder of a writer's node wants to continue as a reader, in the same position.
    Downgrade,
    /// A reader with a writer's node wants to become the only holder.
    Upgrade,
    /// It no longer wants that, and continues to read.
    StayReader,
    /// The waiter changes to another class. It loses its position and is the last of that class.
    Reclassify(Class),
    /// The holder wants the servers' proof that the lock is held ([`Command::Verified`]).
    Verify,
    /// The holder makes way for the contenders of earlier classes, if it holds a lock with classes: it gives up its holder marker,
    /// keeps its place, and waits. The next grant is a new one.
    Yield,
    /// The holder releases next, and writes a node of its choice in the transaction of the release ([`ReleaseWrite::Callers`]).
    WriteAtRelease,
}

/// The outcome of [`Command::MakeParent`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathMade {
    /// This command created the parent.
    pub is_new: bool,
    /// How many children the node above has, read behind that; 0 if it did not exist then. `None`: nobody asked.
    pub children_above: Option<usize>,
}

/// What a contender knows of the queue when its create is answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// This was listed behind the create.
    Listed(Listing),
    /// Nothing was listed. A contender of this session, which has not released, has this node, and its number is right before the own
    /// one.
    AfterLocal {
        /// The node.
        name: String,
        /// The place behind it, if a contender of this session knows that. At most so many are ahead.
        place: Option<QueuePlace>,
    },
    /// Nothing was listed. A waiter of this session has this node ahead of the own one, and contenders of other sessions may be
    /// between. The own contender need not list before that waiter has released or left, or another of this session lists.
    BehindLocal {
        /// The node.
        name: String,
        /// At most so many are ahead, if a contender of this session knows a bound.
        most_ahead: Option<usize>,
    },
    /// Nothing: the listing failed, or it was not sent.
    Unknown,
}

/// The result of one read of the parent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listing {
    /// Its children's names.
    pub names: Vec<String>,
    /// The limit that its data states, if requested; read after the names.
    pub limit: Option<Limit>,
    /// Another way of locking this path that these names do not show.
    pub other: Option<IncompatibleFormat>,
}

impl Listing {
    /// A listing of names alone.
    pub fn of(names: Vec<String>) -> Self {
        Listing { names, limit: None, other: None }
    }
}

/// Why an operation failed, as far as the protocol distinguishes. If the session is over, [`Event::SessionOver`] says so instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The node does not exist, or for a create and a listing its parent.
    NoNode,
    /// The node to create exists; without effect.
    NodeExists,
    /// The connection was lost before the reply: it may have taken effect.
    ConnectionLoss,
    /// The node's data has another version than the one asked for; without effect.
    BadVersion,
    /// The server refused it, certainly without effect, and would refuse it again.
    Refused,
}

/// The outcome of [`Command::ReadRelease`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReleaseSeen {
    /// What the parent's data says.
    pub last: LastRelease,
    /// The transaction that created the node of the own name, if there is one. It was read behind the record.
    pub own: Option<Zxid>,
}

/// The result of reading one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inspection {
    /// The session that the node belongs to.
    pub owner: SessionId,
    /// The transaction that created it.
    pub czxid: Zxid,
    /// The attempt that its data names.
    pub id: Option<AttemptId>,
    /// The version of its data.
    pub version: i32,
    /// Its data says that it was granted.
    pub granted: bool,
    /// The request to release in its data that has no answer yet.
    pub asked: Option<Box<Revocation>>,
}

impl Inspection {
    /// Whether both nodes are of one attempt, as far as their data shows.
    pub fn is_same_attempt(&self, other: &Inspection) -> bool {
        (self.owner, self.id) == (other.owner, other.id)
    }
}

/// A command to the driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Create an ephemeral sequential child with this prefix and list the parent, in one round trip.
    Enter {
        /// The prefix of the name.
        prefix: String,
        /// Read the parent's data too, behind the listing and in the same round trip.
        limit: bool,
        /// The listing may be left out if contenders of this session are in the queue: see [`Arrival::AfterLocal`] and
        /// [`Arrival::BehindLocal`].
        alone: bool,
        /// List the node above the path too, in the same round trip, and report a contender beside the path
        /// ([`NodeFormat::Numbered`](crate::NodeFormat::Numbered)) in [`Listing::other`].
        beside: bool,
    },
    /// Create the parent and its missing ancestors.
    MakeParent {
        /// Keep it when its last child is deleted.
        stays: bool,
        /// The limit to write into it.
        limit: Option<u32>,
        /// Read the number of children of the node above, behind the create and in the same round trip.
        count: bool,
    },
    /// Delete the parent, if it is empty and its data was never written again.
    RemovePath,
    /// Write the limit into the parent, if its data has this version.
    StoreLimit {
        /// The limit.
        permits: u32,
        /// The version.
        version: i32,
    },
    /// List the parent.
    List {
        /// Read the parent's data too, behind the listing and in the same round trip.
        limit: bool,
        /// Watch for other children from this listing on.
        watch: bool,
        /// As for [`Command::Enter`].
        beside: bool,
    },
    /// List the parent behind an ordered write, in one round trip.
    ///
    /// The write comes first: the create may be committed but not yet visible on the server that this session moved to. Without
    /// the write, both Curator and Kazoo leave ghost nodes when fsync is slow.
    Recover,
    /// Read the record of the last release in the parent's data, and the own node behind it, in one round trip.
    ReadRelease {
        /// The own node.
        own: String,
    },
    /// Read a child, to find out who created it.
    Inspect {
        /// The child.
        name: String,
    },
    /// Watch a child by reading it, not by `exists`: that would leave a watch behind on a node that is already deleted.
    Watch {
        /// The child.
        name: String,
        /// The purpose of the watch.
        kind: WatchKind,
    },
    /// Create the holder marker, as an ephemeral node, if the own node still exists: in one transaction.
    TakeHolderMarker {
        /// The own node.
        own: String,
        /// The holder marker.
        holder_marker: String,
    },
    /// Delete the holder marker, if its data has this version and the own node exists: in one transaction. The outcome is
    /// [`Event::Deleted`].
    GiveUpHolderMarker {
        /// The own node.
        own: String,
        /// The holder marker.
        holder_marker: String,
        /// The version.
        version: i32,
    },
    /// Create the tombstone of the next hold, as a persistent node, if the own node still exists: in one transaction.
    Tombstone {
        /// The own node.
        own: String,
        /// The tombstone.
        tombstone: String,
    },
    /// Report [`Event::DelayOver`] when this time has passed from now on. Runs beside any other command.
    Delay {
        /// The node to delete then.
        name: String,
        /// The delay.
        delay: LockDelay,
    },
    /// Write the owner's record into the own node again, if its data has this version: the record's content, the grant and its
    /// time, and the request to release.
    WriteRecord {
        /// The own node.
        name: String,
        /// Whether it was granted.
        granted: bool,
        /// The version.
        version: i32,
        /// The request to release that the record keeps, with the answer to it.
        revocation: Option<Box<Revocation>>,
    },
    /// Replace the own writer's node with a reader's of the same number: in one transaction.
    Downgrade {
        /// The writer's node.
        from: String,
        /// The reader's node.
        into: String,
        /// As for [`Command::WriteRecord`].
        revocation: Option<Box<Revocation>>,
    },
    /// Delete a child.
    Delete {
        /// The child.
        name: String,
        /// Only if its data has this version.
        version: Option<i32>,
        /// Delete also the holder marker, or the tombstone, in the same transaction, if its data has this version.
        holder_marker: Option<(String, i32)>,
        /// Write this in the same transaction. If that fails, delete without it.
        write: Option<ReleaseWrite>,
    },
    /// Read the first of the queue, or the holder marker, whose data names the holder. Runs beside any other command. The last look
    /// counts; the answer to an earlier one is not reported.
    Look {
        /// The node.
        first: String,
        /// Read this node too ([`QueuePlace::front`]), in the same round trip.
        front: Option<String>,
    },
    /// Check in a transaction that the own node exists, and read the holder marker behind it, in one round trip. Runs beside any
    /// other command.
    Check {
        /// The own node.
        own: String,
        /// The holder marker, if there is one.
        holder_marker: Option<String>,
    },
    /// Answer [`Ask::Verify`]: the lock is held, or it is lost ([`Failure::NoNode`]), or the servers refuse to say.
    Verified(Result<(), Failure>),
    /// Hand the lock to the caller.
    Grant(Grant),
    /// Tell the caller that another client asks for the release ([`Contender::revocation`](crate::Contender::revocation)). Once.
    Revoke,
    /// Tell the holder's caller whether a contender of an earlier class waits ([`Event::YieldDue`]).
    Contended(bool),
    /// Tell the caller that it is now the only holder.
    Upgraded,
    /// Tell the caller that it is now a reader, with this node.
    Reads {
        /// The node.
        name: String,
    },
    /// The attempt is over.
    End(End),
}

/// A write in the transaction of a release. There is at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseWrite {
    /// That of the caller ([`Ask::WriteAtRelease`]).
    Callers,
    /// Of this record into the parent, if the parent's data has this version.
    Record(ReleaseRecord, i32),
}

/// The purpose of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchKind {
    /// On the node whose deletion lets this contender continue.
    Blocker,
    /// On the own node, or the own holder marker: another client may delete it, or write to it.
    Own,
}

/// The lock is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The own node's name.
    pub name: String,
    /// The token to pass to the protected resource.
    pub token: FencingToken,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Nothing of it is left in the queue.
    Left,
    /// Its session is over; the server removes what is left of it.
    SessionOver,
    /// Another client deleted its node.
    Removed,
    /// The server refused an operation; no node is left.
    Refused,
    /// The server refuses to delete its node; the node stays until the session ends.
    Stuck,
    /// The parent was deleted each time it was created.
    ParentVanishes,
    /// There is no parent, and the attempt makes none.
    NoParent,
    /// A client asked it to withdraw before it was granted.
    Revoked,
    /// The path states another limit than this attempt's, or, with `None`, something else.
    LimitDiffers(Option<u32>),
    /// It had to get the lock immediately or not at all, and this many contenders are ahead.
    Held {
        /// How many, including the holders.
        ahead: usize,
    },
    /// More contenders are ahead than it accepts.
    TooManyAhead {
        /// How many, including the holders.
        ahead: usize,
    },
    /// An earlier contender uses another node format on the path, so neither sees the other.
    IncompatibleFormat(IncompatibleFormat),
}

/// The position of a waiting contender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueuePlace {
    /// How many were ahead of it in the last listing, or at most so many if none has shown its place.
    pub ahead: usize,
    /// The first node of that listing, or the holder marker if there is one: its data names the holder.
    pub first: String,
    /// The first node of the queue, if the owner of the holder marker may be behind this contender and so not in
    /// `ahead`. The owner is in `ahead` if both nodes are of one session and attempt ([`Inspection::is_same_attempt`]).
    pub front: Option<String>,
    /// The node without a session that blocks the contender of the first node, if that is a foreign client's
    /// ([`Sessionless::blocks`]).
    pub blocks_first: Option<Sessionless>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_of_each_operation_is_found() {
        let failed = Failure::BadVersion;
        for event in [
            Event::Entered { created: Err(failed), arrival: Arrival::Unknown },
            Event::HolderMarkerTaken(Err(failed)),
            Event::Downgraded(Err(failed)),
            Event::ParentMade(Err(failed)),
            Event::PathRemoved(Err(failed)),
            Event::LimitStored(Err(failed)),
            Event::TombstoneMade(Err(failed)),
            Event::Deleted(Err(failed)),
            Event::Listed(Err(failed)),
            Event::ReleaseRead(Err(failed)),
            Event::Inspected(Err(failed)),
            Event::Watched(Err(failed)),
            Event::RecordWritten(Err(failed)),
            Event::Checked(Err(failed)),
            Event::Looked { first: Err(failed), front: None },
        ] {
            assert_eq!((event.failure(), event.shows_session_alive()), (Some(failed), false), "{event:?}");
        }
        // A write of one request that took effect, or a check, shows that the session was alive.
        for (event, shows) in [
            (Event::RecordWritten(Ok(1)), true),
            (Event::Deleted(Ok(())), true),
            (Event::Checked(Ok(None)), true),
            (Event::ParentMade(Ok(PathMade::default())), false),
            (Event::PathRemoved(Ok(())), false),
            (Event::OwnWatchDue, false),
            (Event::SessionOver, false),
        ] {
            assert_eq!((event.failure(), event.shows_session_alive()), (None, shows), "{event:?}");
        }
    }
}
