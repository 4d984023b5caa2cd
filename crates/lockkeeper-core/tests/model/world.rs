//! The world around the contenders: two servers, sessions and connections, and everything that can go wrong with them.
//!
//! A *leader* orders all changes and has each immediately; a *follower* has them later, one by one. A change that is
//! outstanding in the whole ensemble looks to a session like one that its server has not applied yet, so one lagging
//! server is enough. The model keeps what ZooKeeper promises, and nothing else. A session's operations take effect in
//! order. The reply to a write comes when the session's server has applied it. No reply shows less than an earlier one.
//! A watch's event comes before any reply that shows the change. (The model does *not* assume that after an event alone
//! the session can meet no older server: an event has no zxid.)
//!
//! Each fault has a budget, so the worlds are finite and explored to the end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lockkeeper_core::{Class, Contender, Discipline, End, Limit, LocalQueue, LockDelay, Mode, NodeFormat, SessionId};

use super::client::{Client, Engine, FencedWrite, Flight, Life, Machine, Past, WATCHES};
use super::mistake::Mistake;
use super::plain::Plain;
use super::tree::{Data, NOBODY, Name, Node, SOMEBODY, Tree, Txn, attempt};
use super::witness::Witness;

/// A world to explore.
pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) node_format: NodeFormat,
    pub(crate) discipline: Discipline,
    /// The clients, one for each role.
    pub(crate) roles: Vec<Role>,
    /// The number that the parent's next child gets at first.
    pub(crate) first: i32,
    /// Whether the parent exists at first.
    pub(crate) parent: bool,
    /// The limit that it states at first.
    pub(crate) limit: Limit,
    /// A persistent node that is named like a contender in this mode, and has the first number.
    pub(crate) sessionless: Option<Mode>,
    /// How many of the clients, the first ones, share a session and its connection, and report their releases to each other.
    pub(crate) neighbours: u8,
    /// How far the follower may be behind; with 0 there is no follower.
    pub(crate) lag: usize,
    pub(crate) budget: Budget,
    /// The lock delay: how long the lock stays unavailable after a loss.
    pub(crate) delay: Option<LockDelay>,
    /// How many must be ahead of a contender that uses the records of releases.
    pub(crate) records_behind: usize,
    /// Whether time passes, so that each contender comes to watch its own node.
    pub(crate) linger: bool,
    /// A mistake in how commands are carried out, to show that it is found.
    pub(crate) mistake: Option<Mistake>,
    /// The events that must occur in this world.
    pub(crate) witnesses: Vec<Witness>,
    /// The witnesses that were seen.
    pub(crate) seen: [AtomicBool; Witness::COUNT],
}

/// The role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A contender in this mode.
    Enters(Mode),
    /// A contender in this mode that gets the lock immediately or leaves.
    Tries(Mode),
    /// A contender that reads first and may upgrade later.
    Upgradeable,
    /// A contender whose process is configured with this number of permits, and requests one.
    Dissents(u32),
    /// A contender of this class that makes way for earlier classes.
    Yields(Class),
    Plain(Class),
}

/// How many of each fault, and of each wish, a world has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) cuts: u8,
    /// Clients stopped for good; their sessions are left to expire.
    pub(crate) crashes: u8,
    /// Disconnects that outlast what the client's own clock allows: its hold is lost, its session may expire or come
    /// back.
    pub(crate) missed_deadlines: u8,
    /// Sessions that their client gives up; the server learns of it only when the session expires.
    pub(crate) closes: u8,
    /// Clients whose session is over and that come back with a new session and, on purpose, the same attempt.
    pub(crate) returns: u8,
    /// Waits that the caller ends: timeout, cancel, a dropped future.
    pub(crate) cancels: u8,
    /// Parents deleted by the reaper of empty containers.
    pub(crate) reaps: u8,
    /// Nodes deleted by an operator.
    pub(crate) removals: u8,
    /// Revocations as bare words, which overwrite a node's data.
    pub(crate) words: u8,
    /// Revocations written into the owner's record.
    pub(crate) asks: u8,
    /// Refusals of the latter.
    pub(crate) refusals: u8,
    /// Waiters whose caller soon stops waiting.
    pub(crate) looks: u8,
    /// Holders whose records must say when they were granted the lock.
    pub(crate) dates: u8,
    /// Readers that ask to upgrade.
    pub(crate) upgrades: u8,
    /// Upgrades that the reader cancels.
    pub(crate) stays: u8,
    /// Writers that want to read on.
    pub(crate) downgrades: u8,
    /// Waiters that change to the first class.
    pub(crate) ages: u8,
    /// Fenced writes that a holder sends, and whose outcome its caller does not wait for. Only in worlds without readers.
    pub(crate) writes: u8,
    /// Releases with a write of their caller in the same transaction. Only in worlds where one contender holds.
    pub(crate) release_writes: u8,
    /// Holders that want a proof of their holds.
    pub(crate) proofs: u8,
    /// Holds that make way.
    pub(crate) yields: u8,
}

impl Budget {
    pub(crate) const NONE: Budget = Budget {
        cuts: 0,
        crashes: 0,
        missed_deadlines: 0,
        closes: 0,
        returns: 0,
        cancels: 0,
        reaps: 0,
        removals: 0,
        words: 0,
        asks: 0,
        refusals: 0,
        looks: 0,
        dates: 0,
        upgrades: 0,
        stays: 0,
        downgrades: 0,
        ages: 0,
        writes: 0,
        release_writes: 0,
        proofs: 0,
        yields: 0,
    };
}

/// One of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Server {
    Leader,
    Follower,
}

/// The world at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) leader: Tree,
    pub(crate) follower: Tree,
    /// The changes that the follower has not applied yet, the next one first.
    pub(crate) pending: Vec<Txn>,
    pub(crate) clients: Vec<Client>,
    /// The queue of the process whose clients share a session.
    pub(crate) local: Arc<LocalQueue>,
    /// A bit for each session that the leader has ended.
    pub(crate) expired: u8,
    /// How many nodes were ever created.
    pub(crate) created: u8,
    pub(crate) budget: Budget,
    /// A client that has sent its create and done nothing else: it moves first, see [`World::actions`].
    pub(crate) newborn: Option<u8>,
    /// The largest token granted to any contender, and to a writer.
    pub(crate) tokens: (u8, u8),
    /// A contender was granted the lock although its server no longer shows its node.
    pub(crate) granted_to_none: bool,
    /// A token was smaller than an earlier one.
    pub(crate) token_went_back: bool,
    /// A fenced write took effect after a later holder was granted the lock.
    pub(crate) wrote_late: bool,
    /// A holder was told that it holds the lock while the leader had no node of the hold, or that it does not while the leader had.
    pub(crate) misjudged: bool,
    /// A client deleted the node of another session.
    pub(crate) deleted_foreign: bool,
    /// The holder marker was taken while an older node of the same class existed.
    pub(crate) overtook: bool,
    /// A holder that had made way was granted the lock while a contender that it had made way for was in the queue.
    pub(crate) pushed_in: bool,
    /// The lost holds whose lock delay is not over: what each client held.
    pub(crate) cooling: [Option<Held>; 4],
}

/// A hold of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Held {
    Alone,
    Reading,
    Permits(u32),
}

impl State {
    pub(crate) fn tree(&self, server: Server) -> &Tree {
        match server {
            Server::Leader => &self.leader,
            Server::Follower => &self.follower,
        }
    }

    pub(crate) fn is_expired(&self, session: u8) -> bool {
        self.expired & (1 << session) != 0
    }
}

/// The two ways to lose a connection around a write, and the third around a create and its listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// A request that was not decided yet never will be.
    Before,
    /// The write in flight takes effect, but its reply is lost.
    After,
    /// The create's reply came, but the listing's is lost.
    Between,
}

/// An event of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start(u8, Server),
    /// The request in flight takes effect, or its listing is read.
    Effect(u8),
    FollowerApplies,
    Reconnect(u8, Server),
    Lingered(u8),
    /// The lock delay has passed since a client first saw that tombstone without its holder's node.
    DelayOver(u8, Name),
    Expire(u8),
    Leave(u8),
    /// A holder releases, and its caller writes in the same transaction.
    LeaveWriting(u8),
    /// A client hears that the neighbour that it waits for has released, or has no such node any more.
    Hears(u8),
    Cut(u8, Cut),
    Crash(u8),
    /// A disconnected client's clock says that its session may be over: the client no longer holds what it held.
    ClockRunsOut(u8),
    Close(u8),
    Return(u8, Server),
    Reap,
    Remove(Name),
    /// A client asks the node's owner to release the lock, by a bare word.
    Word(Name),
    /// The same, in the owner's record.
    AskFor(Name),
    Refuse(u8),
    /// A waiter's caller soon stops waiting.
    Look(u8),
    /// The look at the first of the queue is answered.
    LookEffect(u8),
    /// A holder's record must say when it was granted the lock.
    Date(u8),
    Upgrade(u8),
    StayReader(u8),
    Downgrade(u8),
    Age(u8),
    /// A holder wants a proof that it holds the lock.
    Verify(u8),
    /// A hold is so old that it makes way.
    YieldDue(u8),
    /// A holder makes way.
    Yield(u8),
    /// The check in flight is answered.
    CheckEffect(u8),
    /// A holder sends a fenced write.
    Write(u8),
    /// The fenced write in flight takes effect if the node of its holder exists.
    WriteEffect(u8),
}

pub(crate) fn session(number: u8) -> SessionId {
    if number == NOBODY { SessionId::NONE } else { SessionId(0x100 + i64::from(number)) }
}

impl World {
    pub(crate) fn new(name: &'static str, contenders: usize) -> World {
        World {
            name,
            node_format: NodeFormat::Curator,
            discipline: Discipline::SharedExclusive,
            roles: vec![Role::Enters(Mode::Exclusive); contenders],
            first: 0,
            parent: true,
            limit: Limit::Unset { version: 0 },
            sessionless: None,
            neighbours: 0,
            lag: 2,
            budget: Budget::NONE,
            delay: None,
            records_behind: usize::MAX,
            linger: false,
            mistake: None,
            witnesses: Vec::new(),
            seen: [const { AtomicBool::new(false) }; Witness::COUNT],
        }
    }

    pub(crate) fn servers(&self) -> &'static [Server] {
        if self.lag == 0 { &[Server::Leader] } else { &[Server::Leader, Server::Follower] }
    }

    pub(crate) fn initial(&self) -> State {
        let client = |i: usize| Client {
            life: Life::Unborn,
            machine: None,
            session: i as u8,
            server: None,
            overdue: false,
            ahead: 0,
            flight: Flight::None,
            watches: [None; WATCHES],
            children: None,
            counting: Vec::new(),
            left: false,
            lingered: false,
            upgrading: false,
            told_alone: false,
            downgrading: false,
            told: false,
            yield_due: false,
            contended: false,
            made_way_for: 0,
            was_first: false,
            knows: 0,
            made: 0,
            key: None,
            enters: false,
            neighbour: None,
            listing_before: None,
            passed_on: false,
            write: FencedWrite::None,
            check: None,
            look: None,
            granted_by: None,
            past: Past::default(),
        };
        let mut tree = if self.parent { Tree { limit: self.limit, ..Tree::new(self.first) } } else { Tree::empty() };
        if let Some(mode) = self.sessionless {
            let name =
                Name { id: Some(SOMEBODY).filter(|_| self.node_format.protects()), ..Name::of(mode, self.first) };
            let data = Data { id: None, granted: false, asked: false };
            tree.apply(Txn::Create(Node { name, czxid: 0, owner: NOBODY, data, version: 0 }));
        }
        State {
            leader: tree.clone(),
            follower: tree,
            pending: Vec::new(),
            clients: (0..self.roles.len()).map(client).collect(),
            local: Arc::default(),
            expired: 0,
            created: 0,
            budget: self.budget,
            newborn: None,
            tokens: (0, 0),
            granted_to_none: false,
            token_went_back: false,
            wrote_late: false,
            misjudged: false,
            deleted_foreign: false,
            overtook: false,
            pushed_in: false,
            cooling: [None; 4],
        }
    }

    /// Returns what client `i` runs in this session.
    pub(crate) fn machine(&self, i: u8, number: u8) -> Machine {
        let (id, session, node_format) = (attempt(i), session(number), self.node_format);
        let contender = |discipline: Discipline, mode| Contender::new(discipline, node_format, mode, id, session);
        let contender = match self.roles[usize::from(i)] {
            Role::Enters(mode) => contender(self.discipline, mode),
            Role::Tries(mode) => contender(self.discipline, mode).once(),
            Role::Yields(class) => contender(self.discipline, Mode::Class(class)),
            Role::Dissents(permits) => contender(Discipline::Permits { permits }, Mode::Permits(1)),
            Role::Upgradeable => Contender::upgradeable(node_format, id, session),
            Role::Plain(class) => return Machine::new(Engine::Plain(Arc::new(Plain::new(class)))),
        };
        let contender = match self.delay {
            Some(delay) => contender.with_delay(delay),
            None => contender,
        };
        let contender = contender.with_records_behind(self.records_behind);
        Machine::new(Engine::Contender(Arc::new(contender)))
    }

    /// Parses a name that a client used.
    pub(crate) fn read(&self, text: &str) -> Name {
        let name = Name::read(self.node_format, text);
        match name.mode {
            Some(Mode::Exclusive) if self.mistake == Some(Mistake::WritersLookExclusive) => {
                Name { mode: Some(Mode::Write), ..name }
            }
            _ => name,
        }
    }

    /// Returns the name as the server lists it.
    pub(crate) fn print(&self, name: Name) -> String {
        let mode = match name.mode {
            Some(Mode::Write) if self.mistake == Some(Mistake::WritersLookExclusive) => Some(Mode::Exclusive),
            mode => mode,
        };
        // Under the mistake, names do not contain the delay; a tombstone's name must contain one.
        let tells = name.tombstone || self.mistake != Some(Mistake::DelayNotInNames);
        Name { mode, ..name }.print(self.node_format, self.delay.filter(|_| tells))
    }

    /// Lists everything that can happen now.
    ///
    /// Starting has no visible effect until the create is decided or something goes wrong, so it is postponed until
    /// right before that. Clients that request the same thing start in the order of their numbers. Neither rule removes
    /// a behaviour; both remove only its duplicates.
    pub(crate) fn list_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if let Some(i) = state.newborn {
            self.steps_of(state, i, actions);
            self.faults_of(state, i, actions);
            return;
        }
        self.progress(state, actions);
        for i in 0..state.clients.len() as u8 {
            let client = &state.clients[usize::from(i)];
            if client.life == Life::Unborn {
                let role = self.roles[usize::from(i)];
                let twin_first = (0..i).any(|j| {
                    let (twin, beside) = (usize::from(j), (j < self.neighbours) == (i < self.neighbours));
                    state.clients[twin].life == Life::Unborn && self.roles[twin] == role && beside
                });
                // A session has one connection.
                let mut session = self.process(i).map(|j| &state.clients[usize::from(j)]).filter(|c| c.is_live());
                let connected = session.next().map(|c| c.server);
                let may = |server: &Server| connected.is_none_or(|connected| connected == Some(*server));
                if !twin_first {
                    let servers = self.servers().iter().filter(|server| may(server));
                    actions.extend(servers.map(|server| Action::Start(i, *server)));
                }
            }
            self.faults_of(state, i, actions);
        }
        if state.budget.reaps > 0 && state.leader.counter.is_some() && state.leader.nodes.is_empty() {
            actions.push(Action::Reap);
        }
        if state.budget.removals > 0 {
            let nodes = state.leader.nodes.iter().filter(|n| !n.name.tombstone);
            actions.extend(nodes.map(|n| Action::Remove(n.name)));
        }
        if state.budget.words > 0 {
            // An unprotected node's contender knows it only by its data: a word written before the contender knows its
            // name would hide the node for good.
            let known =
                |n: &&Node| self.node_format.protects() || n.czxid <= state.clients[usize::from(n.owner % 4)].knows;
            let nodes = state.leader.nodes.iter().filter(known).map(|n| n.name).filter(|name| !name.is_holder_marker());
            actions.extend(nodes.map(Action::Word));
        }
        if state.budget.asks > 0 {
            let nodes = state.leader.nodes.iter().map(|n| n.name).filter(|name| !name.is_holder_marker());
            actions.extend(nodes.map(Action::AskFor));
        }
    }

    /// Lists what happens by itself, sooner or later: no fault, no wish, no newcomer.
    pub(crate) fn progress(&self, state: &State, actions: &mut Vec<Action>) {
        for i in 0..state.clients.len() as u8 {
            self.steps_of(state, i, actions);
        }
        if !state.pending.is_empty() {
            actions.push(Action::FollowerApplies);
        }
    }

    /// The clients that share the session and the connection of client `i`, and itself.
    pub(crate) fn process(&self, i: u8) -> std::ops::Range<u8> {
        if i < self.neighbours { 0..self.neighbours } else { i..i + 1 }
    }

    fn steps_of(&self, state: &State, i: u8, actions: &mut Vec<Action>) {
        let client = &state.clients[usize::from(i)];
        let dead = matches!(client.life, Life::Crashed { .. } | Life::Ended(End::SessionOver));
        if client.past.returned && !state.is_expired(i) {
            actions.push(Action::Expire(i));
        }
        if (dead || client.overdue) && !state.is_expired(client.session) {
            actions.push(Action::Expire(client.session));
        }
        if let FencedWrite::Sent(_) = client.write {
            actions.push(Action::WriteEffect(i));
        }
        if !client.is_live() {
            return;
        }
        if self.linger && !client.lingered && client.own().is_some() {
            actions.push(Action::Lingered(i));
        }
        let yields = matches!(self.roles[usize::from(i)], Role::Yields(_)) && client.granted_by.is_some();
        if yields && client.says_it_holds() && !client.yield_due {
            actions.push(Action::YieldDue(i));
        }
        actions.extend(client.counting.iter().map(|name| Action::DelayOver(i, *name)));
        if client.server.is_some() || self.mistake == Some(Mistake::HearsWithoutConnection) {
            actions.extend(client.key.filter(|key| state.local.has_signal(*key)).map(|_| Action::Hears(i)));
        }
        if client.server.is_none() {
            for server in self.servers() {
                if *server == Server::Leader || client.ahead == 0 {
                    actions.push(Action::Reconnect(i, *server));
                }
            }
            return;
        }
        if client.check.is_some() {
            actions.push(Action::CheckEffect(i));
        }
        if client.look.is_some() {
            actions.push(Action::LookEffect(i));
        }
        let waits = match client.flight {
            Flight::None => true,
            Flight::Created { wait, .. } | Flight::Decided { wait, .. } => wait > 0,
            // It was sent after the fenced write, or after the check.
            Flight::Sent(_) => matches!(client.write, FencedWrite::Sent(_)) || client.check.is_some(),
            Flight::ListedFirst(..) => false,
        };
        if !waits {
            actions.push(Action::Effect(i));
        }
    }

    fn faults_of(&self, state: &State, i: u8, actions: &mut Vec<Action>) {
        let client = &state.clients[usize::from(i)];
        let budget = &state.budget;
        if client.life == Life::Ended(End::SessionOver) && budget.returns > 0 && !client.past.returned {
            actions.extend(self.servers().iter().map(|server| Action::Return(i, *server)));
        }
        if !client.is_live() {
            return;
        }
        if !client.left && (client.says_it_holds() || budget.cancels > 0) {
            actions.push(Action::Leave(i));
            if budget.release_writes > 0 && client.granted_by.is_some() && client.write == FencedWrite::None {
                actions.push(Action::LeaveWriting(i));
            }
        }
        self.wishes_of(state, i, actions);
        if budget.crashes > 0 {
            actions.push(Action::Crash(i));
        }
        if budget.closes > 0 {
            actions.push(Action::Close(i));
        }
        if client.server.is_none() {
            if budget.missed_deadlines > 0 && !client.overdue {
                actions.push(Action::ClockRunsOut(i));
            }
        } else if budget.cuts > 0 && !matches!(self.roles[usize::from(i)], Role::Plain(_)) {
            match client.flight {
                Flight::Sent(request) if request.is_write() => {
                    actions.extend([Cut::Before, Cut::After].map(|cut| Action::Cut(i, cut)));
                }
                Flight::Created { wait: 0, .. } => {
                    actions.extend([Cut::Before, Cut::Between].map(|cut| Action::Cut(i, cut)));
                }
                _ => actions.push(Action::Cut(i, Cut::Before)),
            }
        }
    }

    /// Lists what a client's caller may request of it, apart from leaving.
    fn wishes_of(&self, state: &State, i: u8, actions: &mut Vec<Action>) {
        let client = &state.clients[usize::from(i)];
        let (budget, role) = (&state.budget, self.roles[usize::from(i)]);
        if client.left {
            return;
        }
        if client.says_it_holds() && client.granted_by.is_some() && !client.downgrading {
            if budget.upgrades > 0 && role == Role::Upgradeable && !client.upgrading && !client.says_it_is_alone() {
                actions.push(Action::Upgrade(i));
            }
            if budget.stays > 0 && client.upgrading {
                actions.push(Action::StayReader(i));
            }
            let sends = client.server.is_some() && !matches!(client.flight, Flight::Sent(_));
            if budget.writes > 0 && sends && client.write == FencedWrite::None {
                actions.push(Action::Write(i));
            }
            if budget.proofs > 0 && sends {
                actions.push(Action::Verify(i));
            }
            if budget.yields > 0 && client.contended {
                actions.push(Action::Yield(i));
            }
            if budget.dates > 0 {
                actions.push(Action::Date(i));
            }
            if budget.downgrades > 0 && matches!(role, Role::Upgradeable | Role::Enters(Mode::Write)) {
                actions.push(Action::Downgrade(i));
            }
        }
        if budget.looks > 0 && client.server.is_some() && client.first().is_some() {
            actions.push(Action::Look(i));
        }
        if budget.refusals > 0 && client.told {
            actions.push(Action::Refuse(i));
        }
        if budget.ages > 0 && role == Role::Enters(Mode::Class(Class::BACKGROUND)) && client.wants_in() {
            actions.push(Action::Age(i));
        }
    }
}
