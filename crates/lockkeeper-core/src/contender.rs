//! One attempt to enter a queue, hold, and leave again, as a state machine.
//!
//! The driver feeds what happened with [`Contender::handle`] and carries out what [`Contender::next_command`] asks for, until that
//! says `None`. At most one command is in flight, apart from those that run beside any other. A watch event and a request to leave
//! may come at any moment.
//!
//! The machine keeps *facts* (do I have a node, which node do I wait for, am I leaving) and derives the next command
//! from them. It has no state for every path through the protocol. So a lost reply, a cancel and an expiry at the worst
//! moment need no cases of their own. They change a fact, and the same few rules continue from there.
//!
//! It rests on four facts. One session's operations take effect in order, and its reads never go back in time. A watch
//! event comes before any read that shows the change. A create whose reply was lost may have happened (ZooKeeper,
//! "Consistency Guarantees"). After an ordered write of the same session, nothing sent before it can still take effect.
//!
//! This file has the order of the rules. Each module has one group of facts with its rules: what the attempt asks for ([`terms`]), its
//! [`nodes`], its [`view`] of the queue, the [`look`] at the first, the look [`beside`] a new path, others' tombstones ([`abandoned`]),
//! the [`hold`] and its [`proof`], the holder [`marker`], a [`change`] under way, the own node's [`record`], the records of each
//! [`release`], [`yielding`], the own [`tombstone`], the [`exit`], and [`doubt`], which resolves what a lost reply leaves unknown.

mod abandoned;
mod beside;
mod change;
mod doubt;
mod exit;
mod hold;
mod look;
mod marker;
mod nodes;
mod proof;
mod record;
mod release;
mod terms;
#[cfg(test)]
mod tests;
mod tombstone;
mod view;
mod yielding;

use self::abandoned::Abandoned;
use self::beside::Beside;
use self::change::{Change, DowngradeStage, UpgradeStage};
use self::exit::{Exit, Leaving};
use self::hold::{HoldFacts, Stage};
use self::look::Looks;
use self::marker::HolderMarker;
use self::nodes::{Nodes, Own};
use self::proof::Proof;
use self::record::OwnRecord;
use self::release::Releases;
use self::terms::AttemptTerms;
use self::tombstone::OwnTombstone;
use self::view::{Blocker, View};
use self::yielding::Yielding;
use crate::protocol::{Arrival, Command, End, Event, Failure, Grant, Inspection, Listing, QueuePlace, WatchKind};
use crate::{AttemptId, Discipline, FencingToken, LockDelay, Mode, NodeFormat, Revocation, SessionId, Zxid};

/// The command in flight, as far as its outcome is not in the event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Flight {
    Enter,
    MakeParent,
    RemovePath,
    StoreLimit,
    List {
        watch: bool,
    },
    /// A linearizable listing: which nodes are of this attempt?
    Recover,
    /// A linearizable listing: which of the nodes and holder markers in doubt exist?
    Settle,
    /// Does a contender of an earlier class wait for this holder?
    LookOut,
    /// Is this node mine?
    Inspect(String),
    /// Is the holder marker mine, whose create's reply was lost?
    InspectHolderMarker,
    /// Is the node I am about to delete still mine? (unprotected names only)
    Verify(String),
    /// Is the holder marker I am about to delete still mine?
    VerifyHolderMarker,
    Watch(String),
    /// Did the contender hold whose node this transaction created?
    ReadRelease(Zxid),
    /// Does the first of the queue contend? If it does, this one leaves.
    InspectFirst(String),
    TakeHolderMarker,
    WriteRecord {
        granted: bool,
        /// For the owner's sake, not only to announce the grant.
        due: bool,
        /// It has the refusal of a revocation.
        refuses: bool,
    },
    Downgrade,
    Tombstone,
    Delete {
        name: String,
        holder_marker: bool,
    },
    DeleteHolderMarker,
    /// The holder marker, while the own node stays.
    GiveUpHolderMarker,
    /// The own node and its tombstone.
    DeleteWithTombstone(String),
    DeleteOwnTombstone,
    /// The tombstone of another abandoned hold.
    DeleteTombstone(String),
}

/// The state machine of one attempt.
///
/// A waiter that is to be granted the lock without another read watches its own node as well as its blocker. An operator may delete
/// the own node, and then the deletion of the blocker proves nothing. The server reports the two in order, so if only the blocker's
/// deletion is reported, the own node still exists. All others watch their own nodes only after [`Event::OwnWatchDue`]: a wait or a hold of
/// a few milliseconds costs no extra request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    terms: AttemptTerms,
    nodes: Nodes,
    view: View,
    looks: Looks,
    beside: Beside,
    abandoned: Abandoned,
    hold: HoldFacts,
    proof: Proof,
    marker: HolderMarker,
    change: Change,
    record: OwnRecord,
    releases: Releases,
    tombstone: OwnTombstone,
    yielding: Yielding,
    exit: Exit,
    flight: Option<Flight>,
}

impl Contender {
    /// Creates an attempt of `session` to acquire a lock.
    ///
    /// # Panics
    /// If the node format has no name for `mode`: which modes a lock's face offers is fixed where the face is written.
    pub fn new(discipline: Discipline, node_format: NodeFormat, mode: Mode, id: AttemptId, session: SessionId) -> Self {
        Contender {
            terms: AttemptTerms::new(discipline, node_format, mode, id, session),
            nodes: Nodes::NONE,
            view: View::NONE,
            looks: Looks::default(),
            beside: Beside::default(),
            abandoned: Abandoned::NONE,
            hold: HoldFacts::NONE,
            proof: Proof::None,
            marker: HolderMarker::None,
            change: Change::NONE,
            record: OwnRecord::default(),
            releases: Releases::default(),
            tombstone: OwnTombstone::None,
            yielding: Yielding::default(),
            exit: Exit::default(),
            flight: None,
        }
    }

    /// An attempt to read with the right to become a writer later ([`Ask::Upgrade`](crate::Ask::Upgrade)): see
    /// [`Discipline::decide_as_reader`]. Panics as [`Contender::new`].
    pub fn upgradeable(node_format: NodeFormat, id: AttemptId, session: SessionId) -> Self {
        let mut contender = Self::new(Discipline::SharedExclusive, node_format, Mode::Write, id, session);
        contender.terms.reads_early = true;
        contender
    }

    /// Keeps the lock unavailable for this long after a loss.
    ///
    /// # Panics
    /// If the node format has no room for that in its names.
    pub fn with_delay(mut self, delay: LockDelay) -> Self {
        let prefix = self.terms.node_format.prefix_with(self.terms.mode, self.terms.id, Some(delay));
        assert!(prefix.is_some(), "{:?} has no room for a delay", self.terms.node_format);
        self.terms.delay = Some(delay);
        self
    }

    /// Makes it a try: if the first node of the queue turns out to be a contender's, this contender leaves instead of waiting.
    pub fn once(mut self) -> Self {
        self.terms.once = true;
        self
    }

    /// Makes it leave if more than `most` contenders are ahead, instead of waiting behind them.
    pub fn with_max_ahead(mut self, most: usize) -> Self {
        self.terms.max_ahead = most;
        self
    }

    /// Makes it leave if the lock's node does not exist, instead of creating it.
    pub fn without_parents(mut self) -> Self {
        self.terms.makes_parents = false;
        self
    }

    /// Makes it create a missing lock's node as a persistent node, not as a container.
    pub fn with_persistent_parent(mut self) -> Self {
        self.terms.parent_stays = true;
        self
    }

    /// Makes it use records of releases if at least `ahead` contenders are ahead when it enters. Such a record costs a read and a
    /// write, and saves a listing, which grows with the queue.
    pub fn with_records_behind(mut self, ahead: usize) -> Self {
        self.terms.many_ahead = ahead;
        self
    }

    /// The revocation that was last seen in the own node, with the answer to it.
    pub fn revocation(&self) -> Option<&Revocation> {
        self.record.revocation()
    }

    /// Whether it leaves instead of waiting.
    pub fn is_once(&self) -> bool {
        self.terms.once
    }

    /// The number of contenders ahead above which it leaves.
    pub fn max_ahead(&self) -> usize {
        self.terms.max_ahead
    }

    /// The rule of its queue.
    pub fn discipline(&self) -> Discipline {
        self.terms.discipline
    }

    /// The attempt's id.
    pub fn id(&self) -> AttemptId {
        self.terms.id
    }

    /// The own node's name, while there is one.
    pub fn node(&self) -> Option<&str> {
        self.nodes.name()
    }

    /// Whether the lock is held, or about to be handed over, as far as this machine knows; the session's clock may know
    /// better.
    pub fn holds(&self) -> bool {
        let has_node = self.node().is_some() || self.change.downgrade == DowngradeStage::Adopt;
        self.hold.is_granted() && !self.exit.is_leaving() && !self.exit.session_over && has_node
    }

    /// How it is about to end, while it leaves. Its caller must know immediately that it leaves, before the deletes grant the
    /// lock to the next contender.
    pub fn leaves_for(&self) -> Option<End> {
        self.exit.end()
    }

    /// Whether it leaves and has given out the delete of a node. A later attempt of its caller never meets that node.
    pub fn has_begun_to_delete(&self) -> bool {
        !self.exit.is_before_deletes()
    }

    /// Whether the contender holds exclusively. `false` as soon as its caller has asked for a downgrade.
    pub fn is_alone(&self) -> bool {
        let reads = self.terms.mode.reads() || self.terms.reads_early || self.change.downgrade != DowngradeStage::None;
        self.holds() && !reads && self.change.upgrade != UpgradeStage::Wanted
    }

    /// Whether the contender watches its node. If it does, the node has existed from its create until the last event.
    pub fn watches_itself(&self) -> bool {
        self.nodes.watched
    }

    /// The node of another contender whose end it waits for.
    pub fn waits_for(&self) -> Option<&str> {
        self.view.blocker.as_ref().filter(|_| self.waits()).and_then(Blocker::ends)
    }

    /// Its place in the last listing, while it waits.
    pub fn place(&self) -> Option<&QueuePlace> {
        self.view.place.as_deref().filter(|_| self.waits())
    }

    /// Whether the watch on this node is still of use; the driver may remove others. An empty name means the watch on
    /// the children.
    pub fn watches(&self, name: &str) -> bool {
        let own = self.node() == Some(name) || self.terms.is_holder_marker(name);
        let blocks = self.view.blocker.as_ref().is_some_and(|blocker| blocker.watches(name));
        own || blocks || self.yielding.watches(name)
    }

    /// Whether it waits for the lock, or for the readers ahead of it to release.
    fn waits(&self) -> bool {
        !self.hold.is_granted() || self.change.upgrade == UpgradeStage::Wanted
    }

    /// Takes in an event.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Leave => self.release(false, false),
            Event::Release { lost, writes } => self.release(lost, writes),
            Event::Lost => self.exit.leave(Leaving::Lost),
            Event::SessionOver => self.exit.session_over = true,
            Event::OwnWatchDue => self.lingered(),
            Event::GrantedLate => self.granted_late(),
            Event::LooksDue => self.looks_due(),
            Event::DeadlineNear => self.deadline_near(),
            Event::ListedByLocal(listing) => self.listed_by_local(&listing),
            Event::PositionKnown(place) => self.placed(place),
            Event::Disconnected => self.disconnected(),
            Event::Looked { first, front } => self.looked(first, front),
            Event::Gone(name) => self.gone(&name),
            Event::Changed(name) => self.changed(&name),
            Event::Released { name, watched } => self.local_released(&name, watched),
            Event::Ended { name, deleted } => self.local_ended(&name, deleted),
            Event::ChildrenChanged => {
                self.view.children_changed();
                self.yielding.children_changed();
            }
            Event::YieldDue => self.yield_due(),
            Event::Ask(ask) => self.asked_by_its_caller(ask),
            Event::Refuse(why) => self.record.refuse(&why),
            Event::Entered { created, arrival } => self.entered(created, arrival),
            Event::ParentMade(outcome) => self.parent_made(outcome),
            Event::PathRemoved(outcome) => self.path_removed(outcome),
            Event::LimitStored(outcome) => self.limit_stored(outcome),
            Event::Listed(outcome) => self.listed(outcome),
            Event::ReleaseRead(outcome) => self.release_read(outcome),
            Event::Inspected(outcome) => self.inspected(outcome),
            Event::Watched(outcome) => self.watched(outcome),
            Event::BlockerIsLocal => self.blocker_is_local(),
            Event::HolderMarkerTaken(outcome) => self.holder_marker_taken(outcome),
            Event::RecordWritten(outcome) => self.record_written(outcome),
            Event::TombstoneMade(outcome) => self.tombstone_made(outcome),
            Event::DelayOver(name) => self.abandoned.delay_over(&name),
            Event::Downgraded(outcome) => self.downgraded(outcome),
            Event::Deleted(outcome) => self.deleted(outcome),
            Event::Checked(outcome) => self.checked(outcome),
        }
    }

    /// What to do now; `None` until something happens.
    pub fn next_command(&mut self) -> Option<Command> {
        if self.exit.ended {
            return None;
        }
        if let Some(command) = self.prove_hold().or_else(|| self.look_at_first()) {
            return Some(command);
        }
        if self.flight.is_some() && !self.exit.session_over {
            return None;
        }
        if self.terms.has_classes() {
            self.change_class();
        }
        let command = if self.exit.session_over {
            Some(Command::End(End::SessionOver))
        } else if self.exit.stuck {
            Some(Command::End(End::Stuck))
        } else if let Some(command) = self.settle_doubt() {
            Some(command)
        } else if let Some(end) = self.exit.end() {
            Some(self.leave(end))
        } else {
            match &self.nodes.own {
                Own::None => Some(self.enter()),
                Own::Doubtful => unreachable!("settled before"),
                Own::Node { name, czxid } => {
                    let (name, czxid) = (name.clone(), *czxid);
                    self.advance(&name, czxid)
                }
            }
        };
        match command {
            Some(Command::End(_)) => self.exit.ended = true,
            Some(Command::Delete { .. }) => self.exit.count_delete(),
            _ => {}
        }
        command
    }

    /// The next command without an own node.
    fn enter(&mut self) -> Command {
        let discipline = self.terms.discipline;
        if self.nodes.parent_missing {
            self.flight = Some(Flight::MakeParent);
            let count = !self.terms.node_format.is_beside();
            return Command::MakeParent { stays: self.terms.parent_stays, limit: discipline.limit(), count };
        }
        self.flight = Some(Flight::Enter);
        let alone = discipline.granted_by_listing() && !self.terms.once && !self.nodes.doubted;
        let (prefix, limit) = (self.terms.prefix(self.terms.mode), discipline.limit().is_some());
        Command::Enter { prefix, limit, alone, beside: self.beside.due }
    }

    /// The next command with an own node: the first rule that has one. The rules of classes are asked only where there are classes.
    fn advance(&mut self, own: &str, czxid: Zxid) -> Option<Command> {
        self.hand_over(own, czxid)
            .or_else(|| self.report())
            .or_else(|| self.with_classes(|this| this.give_up_marker(own)))
            .or_else(|| self.look())
            .or_else(|| self.with_classes(|this| this.take_holder_marker(own)))
            .or_else(|| self.wait_for_the_abandoned())
            .or_else(|| self.watch_blocker())
            .or_else(|| self.watch_own(own))
            .or_else(|| self.with_classes(|this| this.watch_holder_marker().or_else(|| this.look_out())))
            .or_else(|| self.write_record(own))
            .or_else(|| self.downgrade(own))
    }

    /// The command of a rule about the holder marker, or about making way.
    fn with_classes(&mut self, rule: impl FnOnce(&mut Self) -> Option<Command>) -> Option<Command> {
        if self.terms.has_classes() { rule(self) } else { None }
    }

    /// Hands the lock or the upgrade to the caller. A grant that no listing shows first waits for the watch on the own node.
    fn hand_over(&mut self, own: &str, czxid: Zxid) -> Option<Command> {
        if self.hold.stage == Stage::Granted
            && let Some(command) = self.make_tombstone(own)
        {
            return Some(command);
        }
        if self.hold.inferred && !self.nodes.watched {
            return None;
        }
        if self.hold.stage == Stage::Granted {
            self.hold.stage = Stage::HandedOver;
            // The token of a holder marker is known since the marker was taken. All other holds get the token of
            // their own node.
            let token = *self.hold.token.get_or_insert(FencingToken::from_zxid(czxid));
            return Some(Command::Grant(Grant { name: own.to_owned(), token }));
        }
        if self.change.upgrade == UpgradeStage::Reached {
            self.change.upgrade = UpgradeStage::Reported;
            return Some(Command::Upgraded);
        }
        None
    }

    fn watch_blocker(&mut self) -> Option<Command> {
        let blocker = self.view.blocker.as_ref().and_then(Blocker::to_watch)?.to_owned();
        Some(self.watch(blocker, WatchKind::Blocker))
    }

    fn watch_own(&mut self, own: &str) -> Option<Command> {
        let no_listing_follows = self.hold.inferred || self.view.blocker.as_ref().is_some_and(Blocker::may_grant);
        let worth_it = self.nodes.lingered || no_listing_follows || self.must_write_record();
        (worth_it && !self.nodes.watched).then(|| self.watch(own.to_owned(), WatchKind::Own))
    }

    fn watch(&mut self, name: String, kind: WatchKind) -> Command {
        self.flight = Some(Flight::Watch(name.clone()));
        Command::Watch { name, kind }
    }

    /// The next command while leaving: delete a node or a holder marker, or look for a possible second node.
    fn leave(&mut self, end: End) -> Command {
        let own = self.node().map(str::to_owned);
        if let Some(command) = self.delete_with_tombstone(own.as_deref()) {
            return command;
        }
        if let Some(name) = own {
            return self.delete(name);
        }
        if self.marker.is_ours() {
            return self.delete_holder_marker();
        }
        if std::mem::take(&mut self.nodes.doubted) {
            // The last read, after an ordered write: every node with our id is deleted too.
            self.flight = Some(Flight::Recover);
            return Command::Recover;
        }
        self.remove_path().unwrap_or(Command::End(end))
    }

    fn entered(&mut self, created: Result<(String, Zxid), Failure>, arrival: Arrival) {
        self.flight = None;
        let exists = created.is_ok();
        self.created(created);
        if exists {
            self.view.listing_due = true;
            match arrival {
                Arrival::Listed(listing) => {
                    self.beside.looked();
                    self.judge(&listing, false);
                }
                Arrival::AfterLocal { name, place } => self.stand_behind(name, place),
                Arrival::BehindLocal { name, most_ahead } => self.defer_behind(name, most_ahead),
                Arrival::Unknown => {}
            }
        }
    }

    fn listed(&mut self, outcome: Result<Listing, Failure>) {
        match (self.flight.take(), outcome.as_ref().map(|listing| &*listing.names)) {
            (Some(Flight::List { watch }), _) => self.listed_queue(outcome, watch),
            (Some(Flight::LookOut), _) => self.looked_out(outcome),
            (Some(Flight::Recover), Ok(names)) => self.nodes.search(&self.terms, names),
            // No parent, no children: none of our nodes can be left.
            (Some(Flight::Recover), Err(Failure::NoNode)) => self.nodes.search(&self.terms, &[]),
            (Some(Flight::Recover), Err(Failure::ConnectionLoss)) => self.nodes.doubted = true,
            (Some(Flight::Settle), Ok(names)) => self.settled(names),
            (Some(Flight::Settle), Err(Failure::NoNode)) => self.settled(&[]),
            (Some(Flight::Settle), Err(Failure::ConnectionLoss)) => {}
            (Some(Flight::Recover | Flight::Settle), Err(_)) => self.exit.stuck = true,
            // No command of this attempt has this outcome.
            _ => {}
        }
    }

    /// Whether the operation under way only watches the own node, or the own holder marker. A contender that leaves does not need its
    /// outcome: the driver may report it as lost, and then the delete follows at once.
    pub fn only_watches_itself(&self) -> bool {
        let Some(Flight::Watch(name)) = &self.flight else { return false };
        self.node() == Some(name) || self.marker.is_ours() && self.terms.is_holder_marker(name)
    }

    fn watched(&mut self, outcome: Result<Inspection, Failure>) {
        let Some(Flight::Watch(name)) = self.flight.take() else {
            return;
        };
        if self.lookout_watched(&name, &outcome) {
            return;
        }
        match outcome {
            Ok(seen) if self.node() == Some(&name) => self.own_read(seen),
            Ok(seen) if self.marker.is_ours() && self.terms.is_holder_marker(&name) => {
                self.holder_marker_watched(&seen);
            }
            Ok(seen) => self.blocker_watched(&name, &seen),
            Err(Failure::NoNode) => {
                self.marker.is_watched();
                self.gone(&name);
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.exit.leave(Leaving::Refused),
        }
    }

    /// A watched node was deleted.
    fn gone(&mut self, name: &str) {
        if self.node() == Some(name) {
            // Perhaps we deleted it ourselves: the reply shows that, or, if the reply is lost, the following read.
            let ours = self.flight == Some(Flight::Downgrade) || self.change.downgrade == DowngradeStage::Doubtful;
            if !ours {
                self.removed();
            }
        } else if self.marker.is_ours() && self.terms.is_holder_marker(name) {
            self.holder_marker_gone();
        } else {
            self.yielding.node_gone(name);
            self.blocker_gone(name);
        }
    }

    /// A watched node has new data; its watch has fired.
    fn changed(&mut self, name: &str) {
        if self.node() == Some(name) {
            self.nodes.watched = false;
        } else if self.marker.is_ours() && self.terms.is_holder_marker(name) {
            self.marker.is_unwatched();
        } else {
            self.yielding.node_changed(name);
            self.view.blocker_changed(name);
        }
    }

    fn deleted(&mut self, outcome: Result<(), Failure>) {
        if outcome == Err(Failure::NoNode) && self.exit.is_at_first_delete() {
            self.release_is_late();
        }
        let (name, holder_marker) = match self.flight.take() {
            Some(Flight::Delete { name, holder_marker }) => (Some(name), holder_marker),
            Some(Flight::DeleteHolderMarker) => (None, true),
            Some(Flight::GiveUpHolderMarker) => return self.marker_given_up(outcome),
            Some(Flight::DeleteWithTombstone(own)) => return self.deleted_with_tombstone(&own, outcome),
            Some(Flight::DeleteOwnTombstone) => return self.deleted_own_tombstone(outcome),
            Some(Flight::DeleteTombstone(name)) => return self.deleted_tombstone(&name, outcome),
            _ => return,
        };
        match outcome {
            // One of the two is already deleted: a listing shows which.
            Err(Failure::NoNode) if holder_marker && name.is_some() => self.nodes.delete_doubted = true,
            Ok(()) | Err(Failure::NoNode) => {
                if holder_marker {
                    self.marker = HolderMarker::None;
                }
                if let Some(name) = name {
                    self.nodes.forget(&name);
                }
            }
            Err(Failure::ConnectionLoss) => {
                self.nodes.delete_doubted = holder_marker || !self.terms.node_format.protects();
            }
            // Its data changed between the read and the delete (a bare word of another client): read again.
            Err(Failure::BadVersion) => {}
            Err(Failure::Refused | Failure::NodeExists) => self.exit.stuck = true,
        }
    }

    /// Another client deleted the own node.
    fn removed(&mut self) {
        self.nodes.own = Own::None;
        self.node_missing();
        self.exit.leave(Leaving::Removed);
    }

    /// A node of the attempt does not exist. Before our deletes, another client has deleted it.
    fn node_missing(&mut self) {
        if self.exit.is_before_deletes() {
            self.release_is_late();
        }
    }

    /// Another client deleted a node of the hold before the release did. The caller must learn of it.
    fn release_is_late(&mut self) {
        if self.hold.is_handed_over() && self.exit.is_leaving() {
            self.exit.is_too_late();
        }
    }
}
