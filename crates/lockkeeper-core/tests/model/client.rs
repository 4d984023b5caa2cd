//! One client of a world: its contender, its session, its connection, and what it has asked of a server.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use lockkeeper_core::{Command, Contender, End, Event, Mode, WatchKind};

use super::plain::Plain;
use super::tree::{Name, Node};
use super::world::{Server, World};

/// What a contender asked for, small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Enter(Mode),
    MakeParent(Option<u32>),
    StoreLimit(u32, i32),
    List { watch: bool },
    Recover,
    Inspect(Name),
    Watch(Name, WatchKind),
    TakeHolderMarker(Name),
    WriteRecord(Name, bool, i32),
    Downgrade(Name, Name),
    Delete(Name, Option<i32>),
    DeleteBoth(Name, i32),
    Tombstone(Name, Name),
    DeleteWith(Name, Name),
}

impl Request {
    /// Whether the leader decides on it.
    pub(crate) fn is_write(self) -> bool {
        use Request::*;
        !matches!(self, List { .. } | Recover | Inspect(_) | Watch(..))
    }
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
    ListedFirst(Mode, Vec<Name>),
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Done,
    /// By this transaction a node was made.
    Made(u8),
    /// The data has this version now.
    Version(u8),
    NoNode,
    NodeExists,
    BadVersion,
}

/// A one-shot watch on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watching {
    /// The node that the contender asked to watch; none where it asked for the children, by a mistake.
    pub(crate) asked: Option<Name>,
    /// The node that is watched: the same, but for a mistake.
    pub(crate) target: Name,
    /// The create of the node that was read when the watch was set.
    pub(crate) czxid: u8,
    /// And the version of its data.
    pub(crate) version: u8,
}

/// How a grant came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GrantedBy {
    FirstListing,
    LaterListing,
    /// A look at a node whose create's reply was lost.
    Inspection,
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

/// What a client runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Engine {
    Contender(Arc<Contender>),
    Plain(Arc<Plain>),
}

/// The real contender, with what is often asked of it at hand: a step changes one of four.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    hash: u64,
    own: Option<Name>,
    holds: bool,
    alone: bool,
    engine: Engine,
}

impl Machine {
    pub(crate) fn new(engine: Engine) -> Self {
        Machine { hash: 0, own: None, holds: false, alone: false, engine }
    }

    /// Tells it what happened; [`Machine::settle`] follows.
    pub(crate) fn handle(&mut self, event: Event<'_>) {
        match &mut self.engine {
            Engine::Contender(contender) => Arc::make_mut(contender).handle(event),
            Engine::Plain(plain) => Arc::make_mut(plain).handle(event),
        }
    }

    pub(crate) fn next_command(&mut self) -> Option<Command> {
        match &mut self.engine {
            Engine::Contender(contender) => Arc::make_mut(contender).next_command(),
            Engine::Plain(plain) => Arc::make_mut(plain).next_command(),
        }
    }

    /// Whether a watch on this node, with an empty name the children, is still of use.
    pub(crate) fn watches(&self, name: &str) -> bool {
        match &self.engine {
            Engine::Contender(contender) => contender.watches(name),
            Engine::Plain(_) => name.is_empty(),
        }
    }

    /// Takes note of what it has become.
    pub(crate) fn settle(&mut self, world: &World) {
        let (node, holds, alone) = match &self.engine {
            Engine::Contender(contender) => (contender.node(), contender.holds(), contender.is_alone()),
            Engine::Plain(plain) => (plain.node(), plain.holds(), plain.holds()),
        };
        (self.own, self.holds, self.alone) = (node.map(|node| world.read(node)), holds, alone);
        let mut hasher = DefaultHasher::new();
        self.engine.hash(&mut hasher);
        self.hash = hasher.finish();
    }
}

impl PartialEq for Machine {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.engine == other.engine
    }
}

impl Eq for Machine {}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// The watches that a client may have at once: the blocker's, the holder marker's as the blocker's, and those of its own nodes.
pub(crate) const WATCHES: usize = 4;

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
    pub(crate) watches: [Option<Watching>; WATCHES],
    /// A watch on the children stands since the server showed these.
    pub(crate) children: Option<u64>,
    /// Those whose delays it counts.
    pub(crate) counting: Vec<Name>,
    pub(crate) left: bool,
    pub(crate) lingered: bool,
    /// It wants to be alone and is not yet.
    pub(crate) upgrading: bool,
    /// It was told that it is alone.
    pub(crate) told_alone: bool,
    /// It wants to read on.
    pub(crate) downgrading: bool,
    /// It was told that somebody asks for the lock.
    pub(crate) told: bool,
    /// The driver keeps the request that it read in the own node.
    pub(crate) keeps_request: bool,
    /// It was first in line while no holder marker stood, since it entered.
    pub(crate) was_first: bool,
    /// The czxid of the last node that it knows to be its own.
    pub(crate) knows: u8,
    /// The czxid of its last create, remembered only for the mistakes that answer from memory.
    pub(crate) made: u8,

    // History, for the witnesses only.
    pub(crate) granted_by: Option<GrantedBy>,
    pub(crate) past: Past,
}

/// What has happened to a client that some witness asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Past {
    pub(crate) adopted: bool,
    pub(crate) stray_deleted: bool,
    pub(crate) delete_repeated: bool,
    pub(crate) returned: bool,
    pub(crate) word_seen: bool,
    pub(crate) was_overdue: bool,
    pub(crate) stayed: bool,
    pub(crate) reads_on: bool,
    pub(crate) aged: bool,
    pub(crate) refused: bool,
    pub(crate) announced: bool,
    pub(crate) stored: bool,
    pub(crate) holder_marker_doubted: bool,
    pub(crate) downgrade_doubted: bool,
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
        self.is_live() && self.machine.as_ref().is_some_and(|machine| machine.holds)
    }

    /// Its contender says that it holds beside no reader.
    pub(crate) fn says_it_is_alone(&self) -> bool {
        self.is_live() && self.machine.as_ref().is_some_and(|machine| machine.alone)
    }

    /// In the queue or on the way there, and not on the way out.
    pub(crate) fn wants_in(&self) -> bool {
        self.is_live() && !self.left && !self.says_it_holds()
    }

    /// Waits for the lock, or for being alone in it.
    pub(crate) fn waits(&self) -> bool {
        self.wants_in() || self.is_live() && !self.left && self.upgrading
    }

    /// A watch of it stands that is for a node or node it waits for.
    pub(crate) fn has_blocker_watch(&self) -> bool {
        self.children.is_some() || self.watches[..2].iter().any(Option::is_some)
    }
}
