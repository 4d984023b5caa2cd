//! One attempt to enter a queue, hold, and leave again, as a state machine.
//!
//! The driver feeds what happened with [`Contender::handle`] and carries out what [`Contender::next_command`] asks for, until that
//! says `None`. At most one command is in flight, except that it may be told to leave, or of a watch, at any moment.
//!
//! The machine keeps *facts* (is there a node of mine, whom do I wait for, am I leaving) and derives the next command from
//! them, instead of having a state for every path through the protocol. So a lost reply, a cancel and an expiry at the
//! worst moment need no cases of their own: they change a fact, and the same few rules go on from there.
//!
//! What it rests on, and where that is said: one session's operations take effect in order and its reads never go back in
//! time; a watch event comes before any read that shows the change; a create whose reply was lost may have happened
//! (ZooKeeper, "Consistency Guarantees"); after `sync` on the same session nothing sent before it can still take effect.

use crate::protocol::{Command, End, Event, Failure, Grant, Inspection, Place, WatchKind};
use crate::{AttemptId, Dialect, Discipline, FencingToken, Mode, Queue, SessionId, Verdict, Watch, Zxid, decide};

/// How often a vanished parent is made again before the attempt gives up.
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

/// Why it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Leaving {
    /// The caller wants to.
    Asked,
    /// Somebody else deleted its node.
    Evicted,
    /// The server refuses what it needs.
    Refused,
    /// The parent cannot be kept.
    ParentVanishes,
}

/// The node that keeps it from going on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Blocker {
    name: String,
    /// Its deletion proves the grant without another listing.
    grants: bool,
    watched: bool,
}

/// The command in flight, as far as its outcome is not in the event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Flight {
    Enter,
    MakeParent,
    List,
    Recover,
    /// Is this node mine?
    Inspect(String),
    /// Is the node I am about to delete still mine? (unprotected names only)
    Verify(String),
    /// The same after a delete whose reply was lost: does the name stand, behind a sync?
    Settle(String),
    Watch(String),
    Delete(String),
}

/// The state machine of one attempt.
///
/// A waiter watches its own node beside the one before it. An operator may delete it, and then the going of the node before
/// proves nothing any more; as the server tells of the two in order, a waiter that is told of its blocker's going and not
/// of its own still stands. Whoever never waited watches its node only once [`Event::Lingered`] says that it is worth a
/// request: an uncontended hold of a few milliseconds pays nothing for that chance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    discipline: Discipline,
    dialect: Dialect,
    mode: Mode,
    id: AttemptId,
    session: SessionId,

    own: Own,
    /// Nodes that may be of this attempt and must be looked at, the oldest last.
    suspects: Vec<String>,
    /// Nodes of this attempt beside the own one, to be deleted.
    strays: Vec<String>,
    /// A create's fate was unknown once: a second node may turn up, so the leaver looks again.
    doubted: bool,
    parent_missing: bool,
    parents_made: u8,

    listing_due: bool,
    blocker: Option<Blocker>,
    place: Option<Place>,
    granted: bool,
    /// The grant follows from the blocker's going alone; no listing has shown the own node first.
    inferred: bool,
    handed_over: bool,

    /// It stood behind someone once.
    waited: bool,
    lingered: bool,
    own_watched: bool,
    /// The unprotected own node was just seen to be ours, with this version of its data.
    verified: Option<i32>,
    /// The reply to a delete of an unprotected node was lost: what this server shows may be older than that delete.
    delete_doubted: bool,

    leaving: Option<Leaving>,
    session_over: bool,
    stuck: bool,
    flight: Option<Flight>,
    ended: bool,
}

impl Contender {
    /// An attempt of `session` to enter a queue.
    ///
    /// # Panics
    /// If the dialect has no name for `mode`: which modes a lock's face offers is fixed where the face is written.
    pub fn new(discipline: Discipline, dialect: Dialect, mode: Mode, id: AttemptId, session: SessionId) -> Self {
        assert!(dialect.prefix(mode, id).is_some(), "{dialect:?} has no name for {mode:?}");
        Contender {
            discipline,
            dialect,
            mode,
            id,
            session,
            own: Own::None,
            suspects: Vec::new(),
            strays: Vec::new(),
            doubted: false,
            parent_missing: false,
            parents_made: 0,
            listing_due: false,
            blocker: None,
            place: None,
            granted: false,
            inferred: false,
            handed_over: false,
            waited: false,
            lingered: false,
            own_watched: false,
            verified: None,
            delete_doubted: false,
            leaving: None,
            session_over: false,
            stuck: false,
            flight: None,
            ended: false,
        }
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
        self.granted && self.leaving.is_none() && !self.session_over && self.node().is_some()
    }

    /// Where it stood in the last listing, while it waits.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref().filter(|_| !self.granted)
    }

    /// Takes in what happened.
    pub fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Leave => _ = self.leaving.get_or_insert(Leaving::Asked),
            Event::SessionOver => self.session_over = true,
            Event::Lingered => self.lingered = true,
            Event::Disconnected => self.disconnected(),
            Event::Gone(name) => self.gone(name),
            Event::Changed(name) => self.changed(name),
            Event::Entered { created, listed } => self.entered(created, listed),
            Event::ParentMade(outcome) => self.parent_made(outcome),
            Event::Listed(outcome) => self.listed(outcome),
            Event::Inspected(outcome) => self.inspected(outcome),
            Event::Watched(outcome) => self.watched(outcome),
            Event::Deleted(outcome) => self.deleted(outcome),
        }
    }

    /// What to do now; `None` until something happens.
    pub fn next_command(&mut self) -> Option<Command> {
        if self.ended || (self.flight.is_some() && !self.session_over) {
            return None;
        }
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

    /// First of all: which nodes are ours, and are there too many?
    fn settle_doubt(&mut self) -> Option<Command> {
        if let Some(name) = self.suspects.pop() {
            self.flight = Some(Flight::Inspect(name.clone()));
            return Some(Command::Inspect { name });
        }
        if let Some(name) = self.strays.last().cloned() {
            return Some(self.delete(name));
        }
        if self.own == Own::Doubtful {
            self.flight = Some(Flight::Recover);
            return Some(Command::Recover);
        }
        None
    }

    /// Leaving: no node, or one to delete, or perhaps a second one to look for.
    fn leave(&mut self, why: Leaving) -> Command {
        match &self.own {
            Own::Node { name, .. } => {
                let name = name.clone();
                self.delete(name)
            }
            _ if self.doubted => {
                // The last look, behind a sync: whatever carries our id goes too.
                self.doubted = false;
                self.flight = Some(Flight::Recover);
                Command::Recover
            }
            _ => Command::End(match why {
                Leaving::Asked => End::Left,
                Leaving::Evicted => End::Evicted,
                Leaving::Refused => End::Refused,
                Leaving::ParentVanishes => End::ParentVanishes,
            }),
        }
    }

    /// Deletes a node of ours. A name without an id may belong to someone else by now (the parent was removed, made again,
    /// and counts from zero): look before each delete, and bind the delete to what was seen.
    fn delete(&mut self, name: String) -> Command {
        if self.dialect.protects() {
            self.flight = Some(Flight::Delete(name.clone()));
            return Command::Delete { name, version: None };
        }
        if self.delete_doubted {
            // The node may be gone, the parent removed and made again, and the name someone else's, with the same version;
            // and a server that lags would still show the node as ours. So no look before a sync.
            self.flight = Some(Flight::Settle(name));
            return Command::Recover;
        }
        match self.verified.take() {
            Some(version) => {
                self.flight = Some(Flight::Delete(name.clone()));
                Command::Delete { name, version: Some(version) }
            }
            None => {
                self.flight = Some(Flight::Verify(name.clone()));
                Command::Inspect { name }
            }
        }
    }

    /// On the way in, waiting, or holding.
    fn advance(&mut self) -> Option<Command> {
        let own = match &self.own {
            Own::None if self.parent_missing => {
                self.flight = Some(Flight::MakeParent);
                return Some(Command::MakeParent);
            }
            Own::None => {
                self.flight = Some(Flight::Enter);
                let prefix = self.dialect.prefix(self.mode, self.id).expect("checked when the contender was made");
                return Some(Command::Enter { prefix });
            }
            Own::Doubtful => unreachable!("settled before"),
            Own::Node { name, czxid } => (name, *czxid),
        };
        if self.granted && !self.handed_over && (self.own_watched || !self.inferred) {
            self.handed_over = true;
            let token = FencingToken::from_zxid(own.1);
            return Some(Command::Grant(Grant { name: own.0.clone(), token }));
        }
        if !self.granted && self.listing_due {
            self.flight = Some(Flight::List);
            return Some(Command::List);
        }
        if let Some(Blocker { name, watched: false, .. }) = &self.blocker {
            self.flight = Some(Flight::Watch(name.clone()));
            return Some(Command::Watch { name: name.clone(), kind: WatchKind::Blocker });
        }
        if (self.lingered || self.waited) && !self.own_watched {
            let name = own.0.clone();
            self.flight = Some(Flight::Watch(name.clone()));
            return Some(Command::Watch { name, kind: WatchKind::Own });
        }
        None
    }

    fn entered(&mut self, created: Result<(&str, Zxid), Failure>, listed: Result<&[String], Failure>) {
        self.flight = None;
        match created {
            Ok((name, czxid)) => {
                self.own = Own::Node { name: name.to_owned(), czxid };
                self.listing_due = true;
                if let Ok(names) = listed {
                    self.judge(names);
                } else if listed == Err(Failure::SessionOver) {
                    self.session_over = true;
                }
            }
            Err(Failure::NoNode) if self.parents_made < MAX_PARENTS_MADE => self.parent_missing = true,
            Err(Failure::NoNode) => self.leave_because(Leaving::ParentVanishes),
            Err(Failure::ConnectionLoss) => self.doubt(),
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) => self.leave_because(Leaving::Refused),
        }
    }

    fn parent_made(&mut self, outcome: Result<(), Failure>) {
        self.flight = None;
        match outcome {
            // Made, or something above it vanished meanwhile: the next create tells.
            Ok(()) | Err(Failure::NoNode) => {
                self.parent_missing = false;
                self.parents_made += 1;
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) => self.leave_because(Leaving::Refused),
        }
    }

    fn listed(&mut self, outcome: Result<&[String], Failure>) {
        let flight = self.flight.take();
        if let Some(Flight::Settle(name)) = flight {
            return self.settled(&name, outcome);
        }
        let recovering = flight == Some(Flight::Recover);
        match outcome {
            Ok(names) if recovering => self.search(names),
            Ok(names) => self.judge(names),
            // No parent, no children: nothing of ours can be left.
            Err(Failure::NoNode) if recovering => self.search(&[]),
            Err(Failure::NoNode) => self.evicted(),
            Err(Failure::ConnectionLoss) if recovering => self.doubted = true,
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) if recovering => self.stuck = true,
            Err(Failure::Refused | Failure::BadVersion) => self.leave_because(Leaving::Refused),
        }
    }

    /// A synced listing after a delete whose reply was lost.
    fn settled(&mut self, name: &str, outcome: Result<&[String], Failure>) {
        match outcome {
            Ok(names) => {
                self.delete_doubted = false;
                if !names.iter().any(|listed| listed == name) {
                    self.forget(name);
                }
            }
            Err(Failure::NoNode) => {
                self.delete_doubted = false;
                self.forget(name);
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) => self.stuck = true,
        }
    }

    /// Judges a listing that shows the own node, or its absence.
    fn judge(&mut self, names: &[String]) {
        let Own::Node { name: own, .. } = &self.own else {
            return;
        };
        let queue = Queue::read_with_barrier(self.dialect, self.discipline.barrier(), names);
        if self.doubted {
            // A second node of this attempt, from a create thought lost, would block us from the front for ever.
            let second = |e: &&crate::Entry<'_>| e.id == Some(self.id) && e.name != own;
            self.suspects = queue.entries().iter().rev().filter(second).map(|e| e.name.to_owned()).collect();
        }
        self.listing_due = false;
        self.blocker = None;
        self.place = queue
            .position(own)
            .filter(|ahead| *ahead > 0)
            .map(|ahead| Place { ahead, first: queue.entries()[0].name.to_owned() });
        match decide(&self.discipline, &queue, own) {
            Verdict::Granted => (self.granted, self.inferred) = (true, false),
            Verdict::Blocked(Watch::Deleted { name, grants }) => {
                self.waited = true;
                self.blocker = Some(Blocker { name: name.to_owned(), grants, watched: false });
            }
            Verdict::Missing => self.evicted(),
            // The kinds that need these are decided (see `decide`) but have no contender yet; their faces do not exist.
            Verdict::TakeBarrier
            | Verdict::Blocked(Watch::GrantedOrDeleted(_) | Watch::Children | Watch::BarrierGone) => {
                self.leave_because(Leaving::Refused);
            }
        }
    }

    /// Looks in a synced listing for nodes of this attempt.
    fn search(&mut self, names: &[String]) {
        let queue = Queue::read_with_barrier(self.dialect, self.discipline.barrier(), names);
        let mine = |e: &&crate::Entry<'_>| match e.id {
            Some(id) => id == self.id,
            // Only the data tells whose an unprotected node is.
            None => !self.dialect.protects() && e.mode == self.mode,
        };
        self.suspects = queue.entries().iter().rev().filter(mine).map(|e| e.name.to_owned()).collect();
        if self.own == Own::Doubtful {
            // Decided unless an inspection finds it: nothing sent before the sync can still take effect.
            self.own = Own::None;
        }
    }

    fn inspected(&mut self, outcome: Result<Inspection, Failure>) {
        let (name, verifying) = match self.flight.take() {
            Some(Flight::Inspect(name)) => (name, false),
            Some(Flight::Verify(name)) => (name, true),
            _ => return,
        };
        match outcome {
            Ok(seen) if verifying && self.is_ours(&name, &seen) => self.verified = Some(seen.version),
            Ok(_) | Err(Failure::NoNode) if verifying => self.forget(&name),
            Ok(seen) => self.identify(name, seen),
            Err(Failure::ConnectionLoss) if verifying => {}
            Err(Failure::ConnectionLoss) => self.suspects.push(name),
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) if verifying => self.stuck = true,
            // Not there any more, or not for us to read: nobody makes a node that its own maker may not read.
            Err(Failure::NoNode | Failure::Refused | Failure::BadVersion) => {}
        }
    }

    /// A suspect was looked at: the first that is ours is adopted, any other of ours is a stray.
    ///
    /// Ours means: this attempt *and this session*. A node that another session made dies with that session, however much
    /// it looks like ours (CURATOR-498, CURATOR-604).
    fn identify(&mut self, name: String, seen: Inspection) {
        if seen.owner != self.session || !(self.dialect.protects() || seen.id == Some(self.id)) {
            return;
        }
        match &self.own {
            Own::Node { name: own, .. } if *own == name => {}
            Own::Node { .. } => self.strays.push(name),
            Own::None | Own::Doubtful => {
                self.own = Own::Node { name, czxid: seen.czxid };
                self.listing_due = true;
            }
        }
    }

    /// Whether the node just seen under the name of one of ours is still that one.
    fn is_ours(&self, name: &str, seen: &Inspection) -> bool {
        let same = match &self.own {
            Own::Node { name: own, czxid } if own == name => *czxid == seen.czxid,
            _ => seen.id == Some(self.id),
        };
        same && seen.owner == self.session
    }

    fn watched(&mut self, outcome: Result<(), Failure>) {
        let Some(Flight::Watch(name)) = self.flight.take() else {
            return;
        };
        match outcome {
            Ok(()) => {
                if let Some(blocker) = self.blocker.as_mut().filter(|b| b.name == name) {
                    blocker.watched = true;
                } else {
                    self.own_watched = true;
                }
            }
            Err(Failure::NoNode) => self.gone(&name),
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) => self.leave_because(Leaving::Refused),
        }
    }

    fn deleted(&mut self, outcome: Result<(), Failure>) {
        let Some(Flight::Delete(name)) = self.flight.take() else {
            return;
        };
        match outcome {
            Ok(()) | Err(Failure::NoNode) => self.forget(&name),
            Err(Failure::ConnectionLoss) => self.delete_doubted = !self.dialect.protects(),
            Err(Failure::SessionOver) => self.session_over = true,
            // Its data changed between the look and the delete (an asker's word): look again.
            Err(Failure::BadVersion) => {}
            Err(Failure::Refused) => self.stuck = true,
        }
    }

    /// A watched node is gone.
    fn gone(&mut self, name: &str) {
        if self.node() == Some(name) {
            self.evicted();
        } else if let Some(blocker) = self.blocker.take_if(|b| b.name == name) {
            if blocker.grants {
                (self.granted, self.inferred) = (true, true);
            } else {
                self.listing_due = true;
            }
        }
    }

    /// Watches no longer tell in order: a listing must say who is first.
    fn disconnected(&mut self) {
        if let Some(blocker) = &mut self.blocker {
            blocker.grants = false;
        }
        if self.inferred && !self.handed_over {
            (self.granted, self.inferred, self.listing_due) = (false, false, true);
        }
    }

    /// A watched node has new data, which no exclusive contender cares for: only the watch must stand again.
    fn changed(&mut self, name: &str) {
        if self.node() == Some(name) {
            self.own_watched = false;
        } else if let Some(blocker) = self.blocker.as_mut().filter(|b| b.name == name) {
            blocker.watched = false;
        }
    }

    /// A node of ours is gone for good.
    fn forget(&mut self, name: &str) {
        self.strays.retain(|stray| stray != name);
        if self.node() == Some(name) {
            self.own = Own::None;
        }
    }

    /// The fate of a create is unknown.
    fn doubt(&mut self) {
        self.own = Own::Doubtful;
        self.doubted = true;
    }

    /// Somebody else deleted the own node.
    fn evicted(&mut self) {
        self.own = Own::None;
        self.leave_because(Leaving::Evicted);
    }

    /// Leave; the first reason is the one to tell.
    fn leave_because(&mut self, why: Leaving) {
        _ = self.leaving.get_or_insert(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: AttemptId = AttemptId::new(1);

    /// A contender whose node is the second in line.
    fn second() -> (Contender, String) {
        let mut contender = Contender::new(Discipline::Exclusive, Dialect::Curator, Mode::Exclusive, ID, SessionId(1));
        let Some(Command::Enter { prefix }) = contender.next_command() else {
            panic!("it enters first");
        };
        let own = format!("{prefix}0000000001");
        let listing = ["lock-0000000000".to_owned(), own.clone()];
        contender.handle(Event::Entered { created: Ok((&own, Zxid(7))), listed: Ok(&listing) });
        (contender, own)
    }

    fn watch(name: &str, kind: WatchKind) -> Option<Command> {
        Some(Command::Watch { name: name.to_owned(), kind })
    }

    /// An operator deletes a waiter's node, then the holder leaves: the waiter must not take that for its turn.
    #[test]
    fn case_42_a_deleted_waiter_is_not_granted_by_its_blockers_going() {
        let (mut waiter, own) = second();
        assert_eq!(waiter.next_command(), watch("lock-0000000000", WatchKind::Blocker));
        waiter.handle(Event::Watched(Err(Failure::NoNode)));
        assert_eq!(waiter.next_command(), watch(&own, WatchKind::Own), "does my node still stand?");
        waiter.handle(Event::Watched(Err(Failure::NoNode)));
        assert_eq!(waiter.next_command(), Some(Command::End(End::Evicted)));
    }

    #[test]
    fn a_waiter_is_granted_by_its_blockers_going_without_another_listing() {
        let (mut waiter, own) = second();
        assert_eq!(waiter.next_command(), watch("lock-0000000000", WatchKind::Blocker));
        waiter.handle(Event::Watched(Ok(())));
        assert_eq!(waiter.next_command(), watch(&own, WatchKind::Own));
        waiter.handle(Event::Watched(Ok(())));
        assert_eq!(waiter.next_command(), None, "it waits");
        waiter.handle(Event::Gone("lock-0000000000"));
        let token = FencingToken::from_zxid(Zxid(7));
        assert_eq!(waiter.next_command(), Some(Command::Grant(Grant { name: own, token })));
        assert!(waiter.holds());
    }
}
