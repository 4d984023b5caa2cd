//! The znodes of one lock path, as few as the protocol can distinguish: the parent, its counter and data, its children.
//!
//! Every server applies a transaction in the same order and with the same effect; only the leader decides whether it
//! happens. Names are stored as their parts (so a state stays small). The real [`NodeFormat`] prints and parses them,
//! so the contender sees the names that it would see in production.

use std::hash::{BuildHasher, Hash, Hasher};

use lockkeeper_core::{AttemptId, Class, HOLDER_MARKER, Limit, LockDelay, Mode, NodeFormat, Sequence, Tombstone};

/// The attempt of client `i`.
pub(crate) fn attempt(client: u8) -> AttemptId {
    AttemptId::new(u128::from(client) + 1)
}

/// Hashers with fixed keys, many times faster than those of std: a world hashes each of its states.
fn hashers() -> impl BuildHasher {
    ahash::RandomState::with_seeds(1, 2, 3, 4)
}

/// Returns the hash of `value`, the same in every run on a machine.
pub(crate) fn hash(value: &impl Hash) -> u64 {
    hashers().hash_one(value)
}

/// No session.
pub(crate) const NOBODY: u8 = u8::MAX;

/// The id in the name of a node that no client made.
pub(crate) const SOMEBODY: u8 = 7;

/// The parts of a child's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    /// The client whose attempt's id the name contains; `None` in a node format without ids.
    pub(crate) id: Option<u8>,
    /// The mode that it requests; `None` for the holder marker.
    pub(crate) mode: Option<Mode>,
    /// Its number; the holder marker has none.
    pub(crate) seq: i32,
    /// It is no contender's node, but the tombstone of the holder with this id.
    pub(crate) tombstone: bool,
}

impl Name {
    pub(crate) const HOLDER_MARKER: Name = Name { id: None, mode: None, seq: 0, tombstone: false };

    /// Returns the name of a contender's node without an id.
    pub(crate) fn of(mode: Mode, seq: i32) -> Name {
        Name { id: None, mode: Some(mode), seq, tombstone: false }
    }

    pub(crate) fn is_holder_marker(self) -> bool {
        self.mode.is_none()
    }

    pub(crate) fn class(self) -> Option<Class> {
        if let Some(Mode::Class(class)) = self.mode { Some(class) } else { None }
    }

    /// Parses a name that a contender used.
    pub(crate) fn read(node_format: NodeFormat, text: &str) -> Name {
        if text == HOLDER_MARKER {
            return Name::HOLDER_MARKER;
        }
        let client = |id| (0..8).find(|i| attempt(*i) == id).expect("only clients of this world make nodes");
        if let Some(Tombstone { id, mode, delay: _ }) = node_format.tombstone(text) {
            return Name::tombstone(client(id), mode);
        }
        let name = node_format.parse(text).expect("a contender only says names that its node format knows");
        Name { id: name.id.map(client), mode: Some(name.mode), seq: name.sequence.get(), tombstone: false }
    }

    /// Returns the tombstone of client `i`, which holds in this mode.
    pub(crate) fn tombstone(i: u8, mode: Mode) -> Name {
        Name { id: Some(i), mode: Some(mode), seq: 0, tombstone: true }
    }

    /// Returns the name as the server lists it.
    pub(crate) fn print(self, node_format: NodeFormat, delay: Option<LockDelay>) -> String {
        let Some(mode) = self.mode else { return HOLDER_MARKER.to_owned() };
        let prefix = match self.id {
            Some(client) if self.tombstone => {
                let delay = delay.expect("a world with delays");
                return Tombstone { id: attempt(client), mode, delay }.name().expect("has such names");
            }
            Some(client) => node_format.prefix_with(mode, attempt(client), delay),
            // Without its protection, a Curator mutex is named like the recipe's lock.
            None if node_format.protects() => NodeFormat::Recipe.prefix(mode, attempt(0)),
            None => node_format.prefix(mode, attempt(0)),
        };
        format!("{}{}", prefix.expect("its node format names what it asks for"), Sequence::new(self.seq))
    }
}

/// The content of a node's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Data {
    /// The client whose attempt it names.
    pub(crate) id: Option<u8>,
    /// The contender was granted the lock.
    pub(crate) granted: bool,
    /// A client asks the node's owner to release the lock.
    pub(crate) asked: bool,
}

impl Data {
    /// The data after another client writes a bare word over it.
    pub(crate) const WORD: Data = Data { id: None, granted: false, asked: true };

    /// Returns the record of client `i` at its creation.
    pub(crate) fn of(i: u8) -> Data {
        Data { id: Some(i), granted: false, asked: false }
    }
}

/// A child of the lock's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) name: Name,
    /// The create that made it, counted over the life of the world.
    pub(crate) czxid: u8,
    /// The session that it belongs to; a node of [`NOBODY`] is persistent.
    pub(crate) owner: u8,
    pub(crate) data: Data,
    /// How often its data was written.
    pub(crate) version: u8,
}

/// The nodes of the lock's path on one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tree {
    /// The number that the next create gets; `None` while there is no parent.
    pub(crate) counter: Option<i32>,
    /// The limit that the parent's data states.
    pub(crate) limit: Limit,
    /// The create of the node whose release it records, and the version of the data with that record.
    pub(crate) freed: Option<u8>,
    pub(crate) version: u8,
    /// The children in the order of their numbers. The holder marker, which has no number, is where it was created.
    pub(crate) nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Txn {
    Create(Node),
    Delete(Name),
    /// Deletes a contender's node and records its release.
    Release(Name, u8),
    /// Deletes a contender's node and the holder marker.
    DeleteBoth(Name),
    /// Deletes a contender's node and its tombstone.
    DeleteWith(Name, Name),
    /// Replaces the node of this name with the other node.
    Replace(Name, Node),
    Write(Name, Data),
    MakeParent(Option<u32>),
    StoreLimit(u32),
    /// The reaper of empty containers deleted the parent.
    Reap,
    /// A session ended, with all its nodes.
    Expire(u8),
}

/// The part of a change that a watch may report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fired {
    Gone(Name),
    Changed(Name),
    Children,
}

impl Tree {
    pub(crate) fn new(first: i32) -> Tree {
        Tree { counter: Some(first), ..Tree::empty() }
    }

    /// A tree without the parent.
    pub(crate) fn empty() -> Tree {
        Tree { counter: None, limit: Limit::Unset { version: 0 }, freed: None, version: 0, nodes: Vec::new() }
    }

    pub(crate) fn get(&self, name: Name) -> Option<&Node> {
        self.nodes.iter().find(|n| n.name == name)
    }

    /// Returns the holder marker.
    pub(crate) fn holder_marker(&self) -> Option<&Node> {
        self.get(Name::HOLDER_MARKER)
    }

    /// Returns the contenders' nodes, the first in the queue first: by class, then in the order of their numbers.
    pub(crate) fn queue(&self) -> Vec<&Node> {
        let contends = |n: &&Node| !n.name.is_holder_marker() && !n.name.tombstone && n.owner != NOBODY;
        let mut queue: Vec<_> = self.nodes.iter().filter(contends).collect();
        queue.sort_by_key(|n| n.name.class());
        queue
    }

    /// Returns the tombstones whose holders' nodes are deleted.
    pub(crate) fn abandoned(&self) -> impl Iterator<Item = &Node> {
        let stands = |id| self.nodes.iter().any(|n| !n.name.tombstone && n.name.id == id);
        self.nodes.iter().filter(move |n| n.name.tombstone && !stands(n.name.id))
    }

    /// Returns a number for the set of children, to detect whether it has changed.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = hashers().build_hasher();
        self.nodes.iter().for_each(|n| n.czxid.hash(&mut hasher));
        hasher.finish()
    }

    /// Applies a change and returns the watches that may fire, in order.
    pub(crate) fn apply(&mut self, txn: Txn) -> Vec<Fired> {
        match txn {
            Txn::Create(node) => {
                self.counter = self.counter.map(|n| n.wrapping_add(1));
                self.nodes.push(node);
                vec![Fired::Children]
            }
            Txn::Delete(name) => {
                self.nodes.retain(|n| n.name != name);
                vec![Fired::Gone(name), Fired::Children]
            }
            Txn::Release(name, freed) => {
                (self.freed, self.version) = (Some(freed), self.version + 1);
                self.apply(Txn::Delete(name))
            }
            Txn::DeleteBoth(name) => {
                self.nodes.retain(|n| n.name != name && !n.name.is_holder_marker());
                vec![Fired::Gone(name), Fired::Children, Fired::Gone(Name::HOLDER_MARKER)]
            }
            Txn::DeleteWith(name, tombstone) => {
                self.nodes.retain(|n| n.name != name && n.name != tombstone);
                vec![Fired::Gone(name), Fired::Children, Fired::Gone(tombstone)]
            }
            Txn::Replace(name, node) => {
                self.counter = self.counter.map(|n| n.wrapping_add(1));
                self.nodes.iter_mut().filter(|n| n.name == name).for_each(|n| *n = node);
                vec![Fired::Children, Fired::Gone(name)]
            }
            Txn::Write(name, data) => {
                for node in self.nodes.iter_mut().filter(|n| n.name == name) {
                    node.version += 1;
                    node.data = data;
                }
                vec![Fired::Changed(name)]
            }
            Txn::MakeParent(limit) => {
                self.counter = Some(0);
                (self.freed, self.version) = (None, 0);
                self.limit = limit.map_or(Limit::Unset { version: 0 }, Limit::Permits);
                Vec::new()
            }
            Txn::StoreLimit(permits) => {
                self.limit = Limit::Permits(permits);
                Vec::new()
            }
            Txn::Reap => {
                *self = Tree::empty();
                Vec::new()
            }
            Txn::Expire(session) => {
                let ends = |n: &&Node| n.owner == session;
                let gone = self.nodes.iter().filter(ends).flat_map(|n| [Fired::Gone(n.name), Fired::Children]);
                let gone = gone.collect();
                self.nodes.retain(|n| n.owner != session);
                gone
            }
        }
    }
}
