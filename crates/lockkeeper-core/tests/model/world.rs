//! The world around the contenders: two servers, sessions and connections, and everything that can go wrong with them.
//!
//! A *leader* orders all changes and has each at once; a *follower* has them later, one by one. A change outstanding at the
//! whole ensemble looks to a session like one that its server has not applied yet, so one lagging server is enough. What
//! ZooKeeper promises is kept, and nothing else: a session's operations take effect in order, a reply to a write comes when
//! the session's server has applied it, no reply shows less than one before it, a watch's event comes before any reply
//! that shows the change. (That an event alone forbids an older server afterwards is *not* relied on: it carries no zxid.)
//!
//! Each fault has a budget, so that the worlds are finite and explored to the end.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lockkeeper_core::{Contender, Dialect, Discipline, End, Mode, SessionId, WatchKind};

use super::claims::Witness;
use super::tree::{Name, Node, Tree, Txn};

/// A world to explore.
pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) dialect: Dialect,
    pub(crate) discipline: Discipline,
    /// One contender each.
    pub(crate) modes: Vec<Mode>,
    /// The number that the parent's next child gets at first.
    pub(crate) first: i32,
    /// Whether the parent is there at first.
    pub(crate) parent: bool,
    /// How far the follower may be behind; with 0 there is none.
    pub(crate) lag: usize,
    pub(crate) budget: Budget,
    /// Whether time passes, so that each contender comes to watch its own node.
    pub(crate) linger: bool,
    /// A mistake in the carrying out of commands, to show that it is found.
    pub(crate) mistake: Option<Mistake>,
    /// What must be seen to happen in this world.
    pub(crate) witnesses: Vec<Witness>,
    /// Which of them were seen.
    pub(crate) seen: [AtomicBool; Witness::COUNT],
}

/// How many of each fault a world has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Connections lost.
    pub(crate) cuts: u8,
    /// Clients stopped for good, their sessions left to expire.
    pub(crate) crashes: u8,
    /// Breaks that outlast what the client's own clock allows: its hold is lost, its session may expire or come back.
    pub(crate) breaches: u8,
    /// Sessions that their client gives up, of which the server learns only by expiry.
    pub(crate) closes: u8,
    /// Clients with a session over that come back with a new one and, on purpose, the same attempt.
    pub(crate) returns: u8,
    /// Waits ended by their caller: timeout, cancel, a dropped future.
    pub(crate) cancels: u8,
    /// Parents taken by the reaper of empty containers.
    pub(crate) reaps: u8,
    /// Nodes deleted by an operator.
    pub(crate) evictions: u8,
    /// Nodes written to by somebody else.
    pub(crate) words: u8,
}

/// A mistake that a driver could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// `Recover` lists without the sync.
    NoSync,
    /// The create asks for a name without the attempt's id.
    Unprotected,
    /// The listing is taken before the create.
    ListBeforeCreate,
    /// The first in line is watched in place of the blocker.
    WatchTheFirst,
    /// The next younger node is watched in place of the blocker.
    WatchTheNextYounger,
    /// A look at the own node is answered from memory and the delete goes by name alone.
    DeleteByName,
    /// A look at a node names the asker's session as its owner.
    AdoptForeign,
}

/// One of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Server {
    Leader,
    Follower,
}

/// What a contender asked for, small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Enter,
    MakeParent,
    List,
    Recover,
    Inspect(Name),
    Watch(Name, WatchKind),
    Delete(Name, Option<i32>),
}

/// How far a request has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flight {
    None,
    Sent(Request),
    /// The create is committed, the listing behind it is not read yet. The reply waits until the session's server has
    /// applied `wait` more changes.
    Created {
        node: Node,
        wait: usize,
    },
    /// A write is decided, its reply waits as above. The request tells which event it becomes.
    Decided {
        request: Request,
        outcome: Outcome,
        wait: usize,
    },
    /// Only under [`Mistake::ListBeforeCreate`].
    ListedFirst(Vec<Name>),
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Done,
    NoNode,
    BadVersion,
}

/// A one-shot watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watching {
    /// The node that the contender asked to watch.
    pub(crate) asked: Name,
    /// The node that is watched: the same, but for a mistake.
    pub(crate) target: Name,
    /// The create of the node that was read when the watch was set.
    pub(crate) czxid: u8,
}

/// How a grant came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GrantedBy {
    FirstListing,
    LaterListing,
    /// A watch alone, with no second listing.
    Handover,
}

/// Where a client is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Life {
    Unborn,
    Live,
    Crashed { holding: bool },
    Ended(End),
}

/// The real contender, with its hash and its node's name at hand: a step changes one of four.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    hash: u64,
    own: Option<Name>,
    contender: Arc<Contender>,
}

impl Machine {
    pub(crate) fn new(contender: Contender) -> Self {
        Machine { hash: 0, own: None, contender: Arc::new(contender) }
    }

    /// The contender, to tell or ask it something; [`Machine::settle`] follows.
    pub(crate) fn contender(&mut self) -> &mut Contender {
        Arc::make_mut(&mut self.contender)
    }

    /// Takes note of what it has become.
    pub(crate) fn settle(&mut self, dialect: Dialect) {
        self.own = self.contender.node().map(|node| Name::read(dialect, node));
        let mut hasher = DefaultHasher::new();
        self.contender.hash(&mut hasher);
        self.hash = hasher.finish();
    }
}

impl PartialEq for Machine {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.contender == other.contender
    }
}

impl Eq for Machine {}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A client: one contender, its session and its connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) life: Life,
    pub(crate) machine: Option<Machine>,
    pub(crate) session: u8,
    pub(crate) server: Option<Server>,
    /// No server was reached for so long that the session may expire.
    pub(crate) overdue: bool,
    /// How many changes the follower must still apply before it shows no less than this session saw.
    pub(crate) ahead: usize,
    pub(crate) flight: Flight,
    /// The blocker's and the own node's.
    pub(crate) watches: [Option<Watching>; 2],
    pub(crate) left: bool,
    pub(crate) lingered: bool,
    /// The czxid of its last create, remembered only for [`Mistake::DeleteByName`].
    pub(crate) made: u8,

    // History, for the witnesses only.
    pub(crate) granted_by: Option<GrantedBy>,
    pub(crate) adopted: bool,
    pub(crate) stray_deleted: bool,
    pub(crate) delete_repeated: bool,
    pub(crate) returned: bool,
    pub(crate) word_seen: bool,
    pub(crate) was_overdue: bool,
}

impl Client {
    /// The node that the contender takes for its own.
    pub(crate) fn own(&self) -> Option<Name> {
        self.machine.as_ref().and_then(|machine| machine.own)
    }

    pub(crate) fn is_live(&self) -> bool {
        self.life == Life::Live
    }

    /// Its contender says that it holds.
    pub(crate) fn says_it_holds(&self) -> bool {
        self.is_live() && self.machine.as_ref().is_some_and(|machine| machine.contender.holds())
    }

    /// In the queue or on the way there, and not on the way out.
    pub(crate) fn wants_in(&self) -> bool {
        self.is_live() && !self.left && !self.says_it_holds()
    }
}

/// The world at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) leader: Tree,
    pub(crate) follower: Tree,
    /// What the follower has not applied yet, the next first.
    pub(crate) pending: Vec<Txn>,
    pub(crate) clients: Vec<Client>,
    /// A bit for each session that the leader has ended.
    pub(crate) expired: u8,
    /// How many nodes were ever created.
    pub(crate) created: u8,
    pub(crate) budget: Budget,
    /// A client that has sent its create and done nothing else: it moves first, see [`World::actions`].
    pub(crate) newborn: Option<u8>,
    /// The largest token granted to anyone, and to a writer.
    pub(crate) tokens: (u8, u8),
    /// The lock was granted to one whose server no longer shows its node.
    pub(crate) granted_to_none: bool,
    /// Tokens went back.
    pub(crate) token_went_back: bool,
    /// Somebody deleted the node of another session.
    pub(crate) deleted_foreign: bool,
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

/// The two ways to lose a connection around a write, and the third around create and listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// What was not decided yet never will be.
    Before,
    /// The write in flight takes effect, its reply is lost.
    After,
    /// The create's reply came, the listing's is lost.
    Between,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start(u8, Server),
    /// The request in flight takes effect, or its listing is read.
    Effect(u8),
    FollowerApplies,
    Reconnect(u8, Server),
    Lingered(u8),
    Expire(u8),
    Leave(u8),
    Cut(u8, Cut),
    Crash(u8),
    /// A disconnected client's clock says that its session may be over: what it holds, it holds no more.
    ClockRunsOut(u8),
    Close(u8),
    Return(u8, Server),
    Reap,
    Evict(Name),
    Word(Name),
}

pub(crate) fn session(number: u8) -> SessionId {
    SessionId(0x100 + i64::from(number))
}

impl World {
    pub(crate) fn new(name: &'static str, contenders: usize) -> World {
        World {
            name,
            dialect: Dialect::Curator,
            discipline: Discipline::Exclusive,
            modes: vec![Mode::Exclusive; contenders],
            first: 0,
            parent: true,
            lag: 2,
            budget: Budget::default(),
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
            watches: [None; 2],
            left: false,
            lingered: false,
            made: 0,
            granted_by: None,
            adopted: false,
            stray_deleted: false,
            delete_repeated: false,
            returned: false,
            word_seen: false,
            was_overdue: false,
        };
        let tree = if self.parent { Tree::new(self.first) } else { Tree { counter: None, nodes: Vec::new() } };
        State {
            leader: tree.clone(),
            follower: tree,
            pending: Vec::new(),
            clients: (0..self.modes.len()).map(client).collect(),
            expired: 0,
            created: 0,
            budget: self.budget,
            newborn: None,
            tokens: (0, 0),
            granted_to_none: false,
            token_went_back: false,
            deleted_foreign: false,
        }
    }

    /// Everything that can happen now.
    ///
    /// Starting has no effect that anyone sees until the create is decided or something goes wrong, so it is put off until
    /// right before that; and clients that ask for the same thing start in the order of their numbers. Neither takes a
    /// behaviour away, it only takes away its twins.
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
                let mode = self.modes[usize::from(i)];
                let twin_first =
                    (0..usize::from(i)).any(|j| state.clients[j].life == Life::Unborn && self.modes[j] == mode);
                if !twin_first {
                    actions.extend(self.servers().iter().map(|server| Action::Start(i, *server)));
                }
            }
            self.faults_of(state, i, actions);
        }
        if state.budget.reaps > 0 && state.leader.counter.is_some() && state.leader.nodes.is_empty() {
            actions.push(Action::Reap);
        }
        if state.budget.evictions > 0 {
            actions.extend(state.leader.nodes.iter().map(|n| Action::Evict(n.name)));
        }
        if state.budget.words > 0 {
            actions.extend(state.leader.nodes.iter().map(|n| Action::Word(n.name)));
        }
    }

    /// What happens by itself, sooner or later: no fault, no wish, no newcomer.
    pub(crate) fn progress(&self, state: &State, actions: &mut Vec<Action>) {
        for i in 0..state.clients.len() as u8 {
            self.steps_of(state, i, actions);
        }
        if !state.pending.is_empty() {
            actions.push(Action::FollowerApplies);
        }
    }

    fn steps_of(&self, state: &State, i: u8, actions: &mut Vec<Action>) {
        let client = &state.clients[usize::from(i)];
        let dead = matches!(client.life, Life::Crashed { .. } | Life::Ended(End::SessionOver));
        if client.returned && !state.is_expired(i) {
            actions.push(Action::Expire(i));
        }
        if (dead || client.overdue) && !state.is_expired(client.session) {
            actions.push(Action::Expire(client.session));
        }
        if !client.is_live() {
            return;
        }
        if self.linger && !client.lingered && client.own().is_some() {
            actions.push(Action::Lingered(i));
        }
        if client.server.is_none() {
            for server in self.servers() {
                if *server == Server::Leader || client.ahead == 0 {
                    actions.push(Action::Reconnect(i, *server));
                }
            }
            return;
        }
        let waits = match client.flight {
            Flight::None => true,
            Flight::Created { wait, .. } | Flight::Decided { wait, .. } => wait > 0,
            Flight::Sent(_) | Flight::ListedFirst(_) => false,
        };
        if !waits {
            actions.push(Action::Effect(i));
        }
    }

    fn faults_of(&self, state: &State, i: u8, actions: &mut Vec<Action>) {
        let client = &state.clients[usize::from(i)];
        let budget = &state.budget;
        if client.life == Life::Ended(End::SessionOver) && budget.returns > 0 && !client.returned {
            actions.extend(self.servers().iter().map(|server| Action::Return(i, *server)));
        }
        if !client.is_live() {
            return;
        }
        if !client.left && (client.says_it_holds() || budget.cancels > 0) {
            actions.push(Action::Leave(i));
        }
        if budget.crashes > 0 {
            actions.push(Action::Crash(i));
        }
        if budget.closes > 0 {
            actions.push(Action::Close(i));
        }
        if client.server.is_none() {
            if budget.breaches > 0 && !client.overdue {
                actions.push(Action::ClockRunsOut(i));
            }
        } else if budget.cuts > 0 {
            match client.flight {
                Flight::Sent(Request::Enter | Request::MakeParent | Request::Delete(..)) => {
                    actions.extend([Cut::Before, Cut::After].map(|cut| Action::Cut(i, cut)));
                }
                Flight::Created { wait: 0, .. } => {
                    actions.extend([Cut::Before, Cut::Between].map(|cut| Action::Cut(i, cut)));
                }
                _ => actions.push(Action::Cut(i, Cut::Before)),
            }
        }
    }
}
