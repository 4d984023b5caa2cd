//! One client of a world: its contender, its session, its connection, and its request to a server.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use lockkeeper_core::{Class, Command, Contender, End, Event, LocalKey, Mode, WatchKind};

use super::plain::Plain;
use super::tree::{Name, Node, hash};
use super::world::{Server, World};

/// A contender's command, in a small form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    /// Whether the listing is left out.
    Enter(Mode, bool),
    MakeParent(Option<u32>),
    StoreLimit(u32, i32),
    List {
        watch: bool,
    },
    Recover,
    Inspect(Name),
    Watch(Name, WatchKind),
    TakeHolderMarker(Name),
    /// The name, whether it was granted, whether a request to release stays in it, and the version.
    WriteRecord(Name, bool, bool, i32),
    /// The last one: whether a request to release stays in it.
    Downgrade(Name, Name, bool),
    Delete(Name, Option<i32>),
    DeleteBoth(Name, i32),
    /// The own node, and the version of the holder marker.
    GiveUpHolderMarker(Name, i32),
    Tombstone(Name, Name),
    DeleteWith(Name, Name),
    /// Deletes the node, if it has this version, and says in the parent's data that the node of this create was released, if that
    /// data has this version.
    Release(Name, Option<i32>, u8, i32),
    ReadRelease(Name),
    /// Deletes the node, if it has this version, and writes what the caller bound to its release.
    ReleaseWriting(Name, Option<i32>),
}

impl Request {
    /// Whether the leader decides on it.
    pub(crate) fn is_write(self) -> bool {
        use Request::*;
        !matches!(self, List { .. } | Recover | Inspect(_) | Watch(..) | ReadRelease(_))
    }
}

/// The progress of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flight {
    None,
    Sent(Request),
    /// The create is committed, but the listing behind it is not read yet. The reply waits until the session's server
    /// has applied `wait` more changes.
    Created {
        node: Node,
        wait: usize,
        unlisted: bool,
    },
    /// A write is decided; its reply waits as above. The request determines which event it becomes.
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
    /// This transaction created a node.
    Made(u8),
    /// The data has this version now.
    Version(u8),
    NoNode,
    NodeExists,
    BadVersion,
}

/// A write that takes effect only while the node of its holder exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FencedWrite {
    /// None was sent, or its outcome is known.
    None,
    /// Sent by the holder with this node. All that the client sends later takes effect later.
    Sent(Name),
    /// The connection was lost before the reply.
    Unknown,
    /// To be made in the transaction of the release.
    AtRelease,
}

/// A one-shot watch on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watching {
    /// The node that the contender asked to watch. `None` if a mistake made it watch the children.
    pub(crate) asked: Option<Name>,
    /// The node that is watched: the same one, unless a mistake is on.
    pub(crate) target: Name,
    /// The create of the node that was read when the watch was set.
    pub(crate) czxid: u8,
    /// The version of its data at that time.
    pub(crate) version: u8,
}

/// The way in which a grant came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GrantedBy {
    FirstListing,
    LaterListing,
    /// A read of a node after its create's reply was lost.
    Inspection,
    /// A watch alone, without a second listing.
    Handover,
    /// The release of a neighbour, before its delete.
    Neighbour,
    /// The record of a release, without a second listing.
    Record,
}

/// The stage of a client's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Life {
    Unborn,
    Live,
    Crashed { holding: bool },
    Ended(End),
}

/// The program of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Engine {
    Contender(Arc<Contender>),
    Plain(Arc<Plain>),
}

/// The real contender, with copies of its values that are read often: a step changes one machine of four.
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

    /// Passes an event to the contender; [`Machine::settle`] follows.
    pub(crate) fn handle(&mut self, event: Event) {
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

    /// The contender, if it is no foreign client.
    pub(crate) fn contender(&self) -> Option<&Contender> {
        match &self.engine {
            Engine::Contender(contender) => Some(contender),
            Engine::Plain(_) => None,
        }
    }

    /// The first of the queue, unless it waits for that one's end.
    fn first(&self) -> Option<&str> {
        match &self.engine {
            Engine::Contender(contender) => {
                let first = contender.place().map(|place| &*place.first);
                first.filter(|first| contender.waits_for() != Some(first))
            }
            Engine::Plain(_) => None,
        }
    }

    /// Whether a watch on this node is still of use; an empty name means the children.
    pub(crate) fn watches(&self, name: &str) -> bool {
        match &self.engine {
            Engine::Contender(contender) => contender.watches(name),
            Engine::Plain(_) => name.is_empty(),
        }
    }

    /// Copies the contender's new values.
    pub(crate) fn settle(&mut self, world: &World) {
        let (node, holds, alone) = match &self.engine {
            Engine::Contender(contender) => (contender.node(), contender.holds(), contender.is_alone()),
            Engine::Plain(plain) => (plain.node(), plain.holds(), plain.holds()),
        };
        (self.own, self.holds, self.alone) = (node.map(|node| world.read(node)), holds, alone);
        self.hash = hash(&self.engine);
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

/// The watches that a client may have at the same time: on the blocker, on the holder marker as a blocker, and on its
/// own nodes.
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
    /// How many changes the follower must still apply before it shows at least as much as this session saw.
    pub(crate) ahead: usize,
    pub(crate) flight: Flight,
    pub(crate) watches: [Option<Watching>; WATCHES],
    /// A watch on the children is set since the server showed this set of them.
    pub(crate) children: Option<u64>,
    /// The tombstones whose delays it counts.
    pub(crate) counting: Vec<Name>,
    pub(crate) left: bool,
    pub(crate) lingered: bool,
    /// It wants to become the only holder and is not yet.
    pub(crate) upgrading: bool,
    /// It was informed that it is the only holder.
    pub(crate) told_alone: bool,
    /// It wants to read on.
    pub(crate) downgrading: bool,
    /// It was informed of a revocation.
    pub(crate) told: bool,
    /// Its hold is so old that it makes way.
    pub(crate) yield_due: bool,
    /// It was informed that a contender of an earlier class waits.
    pub(crate) contended: bool,
    /// The sessions that it made way for last, a bit for each.
    pub(crate) made_way_for: u8,
    /// It was first in the queue while no holder marker existed, at some time since it entered.
    pub(crate) was_first: bool,
    /// The czxid of the last node that it knows to be its own.
    pub(crate) knows: u8,
    /// The czxid of its last create or of its blocker, remembered only for the mistakes that answer from memory.
    pub(crate) made: u8,
    /// Its key in the queue of its process.
    pub(crate) key: Option<LocalKey>,
    /// It is counted there as about to enter.
    pub(crate) enters: bool,
    /// The neighbours that its listing under way serves too have smaller keys.
    pub(crate) listing_before: Option<LocalKey>,
    /// The node of a neighbour whose release or end it will hear of.
    pub(crate) neighbour: Option<Name>,
    /// Its caller has released, and its neighbours may continue without waiting for its delete.
    pub(crate) passed_on: bool,
    pub(crate) write: FencedWrite,
    /// The check of its hold in flight: the node, and whether the holder marker is read behind it. All that the client sends later takes
    /// effect later.
    pub(crate) check: Option<(Name, bool)>,
    /// The look in flight: the first of the queue, and the node that is read behind it.
    pub(crate) look: Option<(Name, Option<Name>)>,

    // History; only the witnesses use it.
    pub(crate) granted_by: Option<GrantedBy>,
    pub(crate) past: Past,
}

/// Events in a client's past that a witness looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Past {
    pub(crate) adopted: bool,
    /// It knows its place by a number, and has listed nothing since.
    pub(crate) unlisted: bool,
    /// It waits behind a neighbour, a stranger may be between, and it has listed nothing itself.
    pub(crate) deferred: bool,
    /// A listing of a neighbour has shown its place.
    pub(crate) shared: bool,
    pub(crate) stray_deleted: bool,
    pub(crate) delete_repeated: bool,
    pub(crate) returned: bool,
    pub(crate) word_seen: bool,
    pub(crate) was_overdue: bool,
    pub(crate) stayed: bool,
    pub(crate) reads_on: bool,
    pub(crate) aged: bool,
    pub(crate) refused: bool,
    /// How often it made way.
    pub(crate) yielded: u8,
    /// It was asked to make way, and then no more.
    pub(crate) asked_in_vain: bool,
    /// The reply to its delete of a holder marker alone was lost.
    pub(crate) marker_delete_lost: bool,
    pub(crate) dated: bool,
    pub(crate) wrote_at_release: bool,
    /// It was told that it holds the lock, and that it does not.
    pub(crate) proved: bool,
    pub(crate) disproved: bool,
    /// It listed because the first of the queue was gone when its caller was about to stop waiting.
    pub(crate) looked: bool,
    pub(crate) announced: bool,
    pub(crate) stored: bool,
    pub(crate) holder_marker_doubted: bool,
    pub(crate) downgrade_doubted: bool,
}

impl Client {
    /// Returns the node that the contender takes for its own.
    pub(crate) fn own(&self) -> Option<Name> {
        self.machine.as_ref().and_then(|machine| machine.own)
    }

    /// Returns the class of its own node.
    pub(crate) fn own_class(&self) -> Option<Class> {
        self.own().and_then(|own| own.class())
    }

    pub(crate) fn is_live(&self) -> bool {
        self.life == Life::Live
    }

    /// Whether its contender says that it holds.
    pub(crate) fn says_it_holds(&self) -> bool {
        self.is_live() && self.machine.as_ref().is_some_and(|machine| machine.holds)
    }

    /// Whether its contender says that it holds beside no reader.
    pub(crate) fn says_it_is_alone(&self) -> bool {
        self.is_live() && self.machine.as_ref().is_some_and(|machine| machine.alone)
    }

    /// Returns the first of the queue, as it last saw it, if it waits for the end of another one.
    pub(crate) fn first(&self) -> Option<&str> {
        self.machine.as_ref()?.first().filter(|_| self.wants_in())
    }

    /// Whether it is in the queue or about to enter, and not about to leave.
    pub(crate) fn wants_in(&self) -> bool {
        self.is_live() && !self.left && !self.says_it_holds()
    }

    /// Whether it waits for the lock, or to become the only holder.
    pub(crate) fn waits(&self) -> bool {
        self.wants_in() || self.is_live() && !self.left && self.upgrading
    }

    /// Whether it has a watch on a blocker or on the children.
    pub(crate) fn has_blocker_watch(&self) -> bool {
        self.children.is_some() || self.neighbour.is_some() || self.watches[..2].iter().any(Option::is_some)
    }
}
