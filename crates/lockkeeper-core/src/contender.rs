//! One attempt to enter a queue, hold, and leave again, as a state machine.
//!
//! The driver feeds what happened with [`Contender::handle`] and carries out what [`Contender::next_command`] asks for, until that
//! says `None`. At most one command is in flight. A watch event and a request to leave may come at any moment.
//!
//! The machine keeps *facts* (do I have a node, which node do I wait for, am I leaving) and derives the next command
//! from them, instead of having a state for every path through the protocol. So a lost reply, a cancel and an expiry at
//! the worst moment need no cases of their own: they change a fact, and the same few rules continue from there.
//!
//! What it rests on, and where that is said: one session's operations take effect in order and its reads never go back in
//! time; a watch event comes before any read that shows the change; a create whose reply was lost may have happened
//! (ZooKeeper, "Consistency Guarantees"); after `sync` on the same session nothing sent before it can still take effect.
//!
//! This file has the facts and what follows from them. The modules below learn them: [`queueing`] from listings, [`standing`] from
//! the own nodes, [`abandoned`] from tombstones, [`doubt`] after a lost reply, and [`leaving`] deletes the nodes.

mod abandoned;
mod doubt;
mod leaving;
mod queueing;
mod standing;
#[cfg(test)]
mod tests;

use self::abandoned::{Abandoned, Own as OwnTombstone};
use self::leaving::Leaving;
use self::queueing::Blocker;
use self::standing::{Downgrade, HolderMarker, Record, Upgrade};
use crate::protocol::{Command, End, Event, Failure, Grant, Inspection, Place, WatchKind};
use crate::{AttemptId, Class, Discipline, FencingToken, LockDelay, Mode, NodeFormat, Sequence, SessionId, Zxid};

/// How often a parent that was removed is created again before the attempt gives up.
///
/// The reaper of container nodes takes a parent at most once a check (a minute by default); a second miss in a row already
/// means that someone deletes it on purpose.
const MAX_PARENTS_MADE: u8 = 10;

/// What is known of the own node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Own {
    /// No create was sent, or none took effect.
    None,
    /// A create was sent and its reply lost: there may be a node.
    Doubtful,
    /// This node.
    Node { name: String, czxid: Zxid },
}

/// The command in flight, as far as its outcome is not in the event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Flight {
    Enter,
    MakeParent,
    StoreLimit,
    List {
        watch: bool,
    },
    /// A synced listing: which nodes are of this attempt?
    Recover,
    /// A synced listing: which of the nodes and holder markers in doubt exist?
    Settle,
    /// Is this node mine?
    Inspect(String),
    /// Is the holder marker mine, whose create's reply was lost?
    InspectHolderMarker,
    /// Is the node I am about to delete still mine? (unprotected names only)
    Verify(String),
    /// Is the holder marker I am about to delete still mine?
    VerifyHolderMarker,
    Watch(String),
    /// Does the first of the queue contend? Where it does, this one leaves.
    InspectFirst(String),
    TakeHolderMarker,
    WriteRecord {
        granted: bool,
        /// For the owner's sake, not only to announce the grant.
        due: bool,
    },
    Downgrade,
    Tombstone,
    Delete {
        name: String,
        holder_marker: bool,
    },
    DeleteHolderMarker,
    /// The own node and its tombstone.
    DeleteWithTombstone(String),
    DeleteOwnTombstone,
    /// The tombstone of another abandoned hold.
    DeleteTombstone(String),
}

/// The state machine of one attempt.
///
/// A waiter watches its own node as well as its blocker. An operator may delete the own node, and then the deletion of the blocker
/// proves nothing. The server reports the two in order, so if only the blocker's deletion is reported, the own node still exists. An
/// attempt that did not wait watches its own node only after [`Event::Lingered`]: an uncontended hold of a few milliseconds costs no
/// extra request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    discipline: Discipline,
    node_format: NodeFormat,
    mode: Mode,
    /// Its node is a writer's, and it wants to read beside the readers ahead of it.
    reads_early: bool,
    id: AttemptId,
    session: SessionId,

    own: Own,
    /// Nodes that may be of this attempt and must be looked at, the oldest last.
    suspects: Vec<String>,
    /// Nodes of this attempt besides the own one, with the transactions that created them, to be deleted.
    strays: Vec<(String, Zxid)>,
    /// It was once unknown whether a create took effect: a second node may turn up, so the contender looks again when
    /// it leaves.
    doubted: bool,
    parent_missing: bool,
    parents_made: u8,
    /// The parent states no limit yet, in data of this version.
    limit_unset: Option<i32>,

    /// It gets the lock immediately or leaves.
    once: bool,
    /// The holder marker as [`Flight::InspectFirst`] saw it.
    marker_seen: Option<Inspection>,
    /// It leaves if more than so many are ahead.
    max_ahead: usize,
    /// Children with the name of a contender and without a session: they do not count.
    sessionless: Vec<String>,

    listing_due: bool,
    /// The next listing is to watch the children.
    watch_children: bool,
    blocker: Option<Blocker>,
    place: Option<Place>,
    /// The class to change to.
    reclassify: Option<Class>,
    holder_marker: HolderMarker,
    granted: bool,
    /// The grant follows from the blocker's deletion alone; no listing has shown the own node first.
    inferred: bool,
    /// The listing that granted showed contenders behind this one. They may have seen more contenders ahead than this one did.
    followed: bool,
    handed_over: bool,
    token: Option<FencingToken>,
    /// An upgradeable reader's change to a writer.
    upgrade: Upgrade,
    /// A writer's change to a reader in its place.
    downgrade: Downgrade,

    /// It waited behind another contender.
    waited: bool,
    lingered: bool,
    own_watched: bool,
    record: Record,
    /// The unprotected own node was just seen to be ours, with this version of its data.
    verified: Option<i32>,
    /// The reply to a delete was lost: what this server shows may be older than that delete.
    delete_doubted: bool,

    /// How long the lock stays unavailable after a loss.
    delay: Option<LockDelay>,
    tombstone: OwnTombstone,
    /// The abandoned holds ahead of it whose delay is counted.
    abandoned: Vec<Abandoned>,

    leaving: Option<Leaving>,
    session_over: bool,
    stuck: bool,
    flight: Option<Flight>,
    ended: bool,
}

impl Contender {
    /// Creates an attempt of `session` to acquire a lock.
    ///
    /// # Panics
    /// If the node format has no name for `mode`: which modes a lock's face offers is fixed where the face is written.
    pub fn new(discipline: Discipline, node_format: NodeFormat, mode: Mode, id: AttemptId, session: SessionId) -> Self {
        assert!(node_format.prefix(mode, id).is_some(), "{node_format:?} has no name for {mode:?}");
        Contender {
            discipline,
            node_format,
            mode,
            reads_early: false,
            id,
            session,
            own: Own::None,
            suspects: Vec::new(),
            strays: Vec::new(),
            doubted: false,
            parent_missing: false,
            parents_made: 0,
            limit_unset: None,
            once: false,
            marker_seen: None,
            max_ahead: usize::MAX,
            sessionless: Vec::new(),
            listing_due: false,
            watch_children: false,
            blocker: None,
            place: None,
            reclassify: None,
            holder_marker: HolderMarker::None,
            granted: false,
            inferred: false,
            followed: false,
            handed_over: false,
            token: None,
            upgrade: Upgrade::Unasked,
            downgrade: Downgrade::None,
            waited: false,
            lingered: false,
            own_watched: false,
            record: Record::default(),
            verified: None,
            delete_doubted: false,
            delay: None,
            tombstone: OwnTombstone::None,
            abandoned: Vec::new(),
            leaving: None,
            session_over: false,
            stuck: false,
            flight: None,
            ended: false,
        }
    }

    /// An attempt to read with the right to become a writer later ([`Ask::Upgrade`](crate::Ask::Upgrade)): see
    /// [`Discipline::decide_as_reader`]. Panics as [`Contender::new`].
    pub fn upgradeable(node_format: NodeFormat, id: AttemptId, session: SessionId) -> Self {
        Contender { reads_early: true, ..Self::new(Discipline::SharedExclusive, node_format, Mode::Write, id, session) }
    }

    /// Keeps the lock unavailable for this long after a loss.
    ///
    /// # Panics
    /// If the node format has no room for that in its names.
    pub fn with_delay(mut self, delay: LockDelay) -> Self {
        let prefix = self.node_format.prefix_with(self.mode, self.id, Some(delay));
        assert!(prefix.is_some(), "{:?} has no room for a delay", self.node_format);
        self.delay = Some(delay);
        self
    }

    /// It leaves instead of waiting, once a look at the first of the queue has shown that this one contends.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// It leaves instead of waiting behind more than `most`.
    pub fn with_max_ahead(mut self, most: usize) -> Self {
        self.max_ahead = most;
        self
    }

    /// The attempt's id.
    pub fn id(&self) -> AttemptId {
        self.id
    }

    /// The own node's name, while there is one.
    pub fn node(&self) -> Option<&str> {
        match &self.own {
            Own::Node { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether the lock is held, or about to be handed over, as far as this machine knows; the session's clock may know
    /// better.
    pub fn holds(&self) -> bool {
        let stands = self.node().is_some() || self.downgrade == Downgrade::Adopt;
        self.granted && self.leaving.is_none() && !self.session_over && stands
    }

    /// Whether it leaves, for any reason. Its caller must know that immediately, before the deletes grant the lock to the next
    /// contender.
    pub fn leaves(&self) -> bool {
        self.leaving.is_some()
    }

    /// How it is about to end, while it leaves.
    pub fn leaves_for(&self) -> Option<End> {
        self.leaving.map(Leaving::end)
    }

    /// Whether it holds exclusively. Not any more once it has asked for a downgrade.
    pub fn is_alone(&self) -> bool {
        let reads = self.mode.reads() || self.reads_early || self.downgrade != Downgrade::None;
        self.holds() && !reads && self.upgrade != Upgrade::Wanted
    }

    /// Its place in the last listing, while it waits.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref().filter(|_| self.waits())
    }

    /// Whether the watch on this node is still of use; the driver may remove others. An empty name means the watch on
    /// the children.
    pub fn watches(&self, name: &str) -> bool {
        let own = self.node() == Some(name) || self.discipline.holder_marker() == Some(name);
        own || self.blocker.as_ref().is_some_and(|blocker| blocker.watches(name))
    }

    /// Whether it waits for the lock, or for the readers ahead of it to release.
    fn waits(&self) -> bool {
        !self.granted || self.upgrade == Upgrade::Wanted
    }

    /// Takes in an event.
    pub fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Leave => self.leave_because(Leaving::Asked),
            Event::Lost => self.leave_because(Leaving::Lost),
            Event::SessionOver => self.session_over = true,
            Event::Lingered => self.lingered = true,
            Event::Disconnected => self.disconnected(),
            Event::NoContender(name) => _ = self.no_contender(name),
            Event::Gone(name) => self.gone(name),
            Event::Changed(name) => self.changed(name),
            Event::ChildrenChanged => self.children_changed(),
            Event::Ask(ask) => self.asked_by_its_caller(ask),
            Event::Entered { created, listed } => self.entered(created, listed),
            Event::ParentMade(outcome) => self.parent_made(outcome),
            Event::LimitStored(outcome) => self.limit_stored(outcome),
            Event::Listed(outcome) => self.listed(outcome),
            Event::Inspected(outcome) => self.inspected(outcome),
            Event::Watched(outcome) => self.watched(outcome),
            Event::HolderMarkerTaken(outcome) => self.holder_marker_taken(outcome),
            Event::RecordWritten(outcome) => self.told(outcome),
            Event::TombstoneMade(outcome) => self.tombstone_made(outcome),
            Event::DelayOver(name) => self.delay_over(name),
            Event::Downgraded(outcome) => self.downgraded(outcome),
            Event::Deleted(outcome) => self.deleted(outcome),
        }
    }

    /// What to do now; `None` until something happens.
    pub fn next_command(&mut self) -> Option<Command> {
        if self.ended || (self.flight.is_some() && !self.session_over) {
            return None;
        }
        self.change_class();
        let command = if self.session_over {
            Some(Command::End(End::SessionOver))
        } else if self.stuck {
            Some(Command::End(End::Stuck))
        } else if let Some(command) = self.settle_doubt() {
            Some(command)
        } else if let Some(why) = self.leaving {
            Some(self.leave(why))
        } else {
            self.advance()
        };
        self.ended = matches!(command, Some(Command::End(_)));
        command
    }

    /// Whether it is entering, waiting, or holding.
    fn advance(&mut self) -> Option<Command> {
        let (name, czxid) = match &self.own {
            Own::None if self.parent_missing => {
                self.flight = Some(Flight::MakeParent);
                let (stays, limit) = (self.discipline.keeps_path(), self.discipline.limit());
                return Some(Command::MakeParent { stays, limit });
            }
            Own::None => {
                self.flight = Some(Flight::Enter);
                let prefix = self.prefix(self.mode);
                return Some(Command::Enter { prefix, limit: self.discipline.limit().is_some() });
            }
            Own::Doubtful => unreachable!("settled before"),
            Own::Node { name, czxid } => (name.clone(), *czxid),
        };
        if self.granted
            && !self.handed_over
            && let Some(command) = self.leave_a_tombstone(&name)
        {
            return Some(command);
        }
        if self.own_watched || !self.inferred {
            if self.granted && !self.handed_over {
                self.handed_over = true;
                // The token of a holder marker is known since the marker was taken. All other holds get the token of
                // their own node.
                let token = *self.token.get_or_insert(FencingToken::from_zxid(czxid));
                return Some(Command::Grant(Grant { name, token }));
            }
            if self.upgrade == Upgrade::Reached {
                self.upgrade = Upgrade::Told;
                return Some(Command::Upgraded);
            }
        }
        if self.handed_over
            && let Some(command) = self.tell_caller()
        {
            return Some(command);
        }
        if let (Some(version), Some(permits)) = (self.limit_unset.take(), self.discipline.limit()) {
            self.flight = Some(Flight::StoreLimit);
            return Some(Command::StoreLimit { permits, version });
        }
        if self.waits() && self.listing_due {
            let watch = std::mem::take(&mut self.watch_children);
            self.flight = Some(Flight::List { watch });
            return Some(Command::List { limit: self.discipline.limit().is_some(), watch });
        }
        if let (true, false, Some(place)) = (self.once, self.granted, &self.place) {
            let name = place.first.clone();
            self.flight = Some(Flight::InspectFirst(name.clone()));
            return Some(Command::Inspect { name });
        }
        if self.waits() && self.holder_marker == HolderMarker::Due {
            self.flight = Some(Flight::TakeHolderMarker);
            let holder_marker =
                self.discipline.holder_marker().expect("only its discipline says to take it").to_owned();
            return Some(Command::TakeHolderMarker { own: name, holder_marker });
        }
        if let Some(command) = self.wait_for_the_abandoned() {
            return Some(command);
        }
        if let Some(blocker) = self.blocker.as_ref().and_then(Blocker::to_watch) {
            return Some(self.watch(blocker.to_owned(), WatchKind::Blocker));
        }
        let announces = self.must_announce();
        if (self.lingered || self.waited || announces) && !self.own_watched {
            return Some(self.watch(name, WatchKind::Own));
        }
        if let (HolderMarker::Ours { watched: false, .. }, true, Some(holder_marker)) =
            (&self.holder_marker, self.lingered, self.discipline.holder_marker())
        {
            return Some(self.watch(holder_marker.to_owned(), WatchKind::Own));
        }
        if let (true, Some(version)) = (announces, self.record.version) {
            // Changes that become due while this write is in progress are not in it.
            let due = std::mem::take(&mut self.record.due);
            self.flight = Some(Flight::WriteRecord { granted: self.granted, due });
            return Some(Command::WriteRecord { name, granted: self.granted, version });
        }
        if self.downgrade == Downgrade::Wanted && self.handed_over {
            self.flight = Some(Flight::Downgrade);
            return Some(Command::Downgrade { into: self.reader_name(&name), from: name });
        }
        None
    }

    fn watch(&mut self, name: String, kind: WatchKind) -> Command {
        self.flight = Some(Flight::Watch(name.clone()));
        Command::Watch { name, kind }
    }

    /// The name to create for a node of this mode.
    fn prefix(&self, mode: Mode) -> String {
        let prefix = self.node_format.prefix_with(mode, self.id, self.delay);
        prefix.expect("checked when the contender was made, and a node format that names writers names readers")
    }

    /// The name of the reader's node in the place of the writer's node `writer`.
    fn reader_name(&self, writer: &str) -> String {
        let prefix = self.prefix(Mode::Read);
        let (_, sequence) = Sequence::split(writer).expect("the server numbered it");
        format!("{prefix}{sequence}")
    }

    /// The lock, or the upgrade, is granted.
    fn let_in(&mut self, inferred: bool) {
        self.inferred = inferred;
        if self.granted {
            self.upgrade = Upgrade::Reached;
        } else {
            self.granted = true;
        }
    }

    /// Watches no longer report in order: a listing must show which contender is first.
    fn disconnected(&mut self) {
        if let Some(blocker) = &mut self.blocker {
            blocker.distrust();
        }
        if !self.inferred {
            return;
        }
        if self.granted && !self.handed_over {
            (self.granted, self.inferred, self.listing_due) = (false, false, true);
        } else if self.upgrade == Upgrade::Reached {
            (self.upgrade, self.inferred, self.listing_due) = (Upgrade::Wanted, false, true);
        }
    }

    /// Handles a failure that means the same for every command. Returns `true` if it was one.
    fn failed_for_good(&mut self, failure: Failure) -> bool {
        match failure {
            Failure::SessionOver => self.session_over = true,
            Failure::Refused => self.leave_because(Leaving::Refused),
            _ => return false,
        }
        true
    }

    /// An own node does not exist any more.
    fn forget(&mut self, name: &str) {
        self.strays.retain(|(stray, _)| stray != name);
        if self.node() == Some(name) {
            self.own = Own::None;
        }
    }

    /// Another client deleted the own node.
    fn evicted(&mut self) {
        self.own = Own::None;
        self.leave_because(Leaving::Evicted);
    }

    /// Leaves. The first reason stays.
    fn leave_because(&mut self, why: Leaving) {
        _ = self.leaving.get_or_insert(why);
    }
}
