//! The znodes of one lock path, as small as the protocol can tell: the parent, its counter, its children.
//!
//! A transaction is applied by every server in the same order and means the same on each; only the leader decides whether
//! it happens. Names are kept apart into what they tell (so a state stays small) and printed and read by the real
//! [`Dialect`], so that what the contender sees are the names it would see in production.

use lockkeeper_core::{AttemptId, Dialect, Mode, Sequence};

/// The attempt of client `i`.
pub(crate) fn attempt(client: u8) -> AttemptId {
    AttemptId::new(u128::from(client) + 1)
}

/// What a child's name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    /// The client whose attempt's id it carries; none in a dialect without.
    pub(crate) id: Option<u8>,
    /// What it asks for.
    pub(crate) mode: Mode,
    /// Its number.
    pub(crate) seq: i32,
}

impl Name {
    /// Reads a name that a contender said.
    pub(crate) fn read(dialect: Dialect, text: &str) -> Name {
        let name = dialect.parse(text).expect("a contender only says names that its dialect knows");
        let id = name.id.map(|id| (0..8).find(|i| attempt(*i) == id).expect("only clients of this world make nodes"));
        Name { id, mode: name.mode, seq: name.sequence.get() }
    }

    /// As the server lists it.
    pub(crate) fn print(self, dialect: Dialect) -> String {
        let mode = self.mode;
        let prefix = match self.id {
            Some(client) => dialect.prefix(mode, attempt(client)),
            // Without its protection a Curator mutex is named as the recipe's lock is.
            None => Dialect::Recipe.prefix(mode, attempt(0)),
        };
        format!("{}{}", prefix.expect("both dialects name both modes"), Sequence::new(self.seq))
    }
}

/// A child of the lock's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) name: Name,
    /// The create that made it, counted over the life of the world.
    pub(crate) czxid: u8,
    /// The session it lives and dies with.
    pub(crate) owner: u8,
    /// The client whose attempt its data names.
    pub(crate) data: Option<u8>,
    /// How often its data was written.
    pub(crate) version: u8,
}

/// What one server has of the lock's path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tree {
    /// The number the next create gets; none while there is no parent.
    pub(crate) counter: Option<i32>,
    pub(crate) nodes: Vec<Node>,
}

/// A committed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Txn {
    Create(Node),
    Delete(Name),
    /// Somebody wrote a node's data: a word to its owner.
    Write(Name),
    MakeParent,
    /// The reaper of empty containers took the parent.
    Reap,
    /// A session and all its nodes ended.
    Expire(u8),
}

/// What a watch may have to say of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fired {
    Gone(Name),
    Changed(Name),
}

impl Tree {
    pub(crate) fn new(first: i32) -> Tree {
        Tree { counter: Some(first), nodes: Vec::new() }
    }

    pub(crate) fn get(&self, name: Name) -> Option<&Node> {
        self.nodes.iter().find(|n| n.name == name)
    }

    /// What a listing shows; `None` without a parent.
    pub(crate) fn list(&self, dialect: Dialect) -> Option<Vec<String>> {
        self.counter.map(|_| self.nodes.iter().map(|n| n.name.print(dialect)).collect())
    }

    /// Applies a change and tells what watches may fire, in order.
    pub(crate) fn apply(&mut self, txn: Txn) -> Vec<Fired> {
        match txn {
            Txn::Create(node) => {
                self.counter = self.counter.map(|n| n.wrapping_add(1));
                self.nodes.push(node);
                Vec::new()
            }
            Txn::Delete(name) => {
                self.nodes.retain(|n| n.name != name);
                vec![Fired::Gone(name)]
            }
            Txn::Write(name) => {
                for node in self.nodes.iter_mut().filter(|n| n.name == name) {
                    node.version += 1;
                }
                vec![Fired::Changed(name)]
            }
            Txn::MakeParent => {
                self.counter = Some(0);
                Vec::new()
            }
            Txn::Reap => {
                self.counter = None;
                Vec::new()
            }
            Txn::Expire(session) => {
                let gone = self.nodes.iter().filter(|n| n.owner == session).map(|n| Fired::Gone(n.name)).collect();
                self.nodes.retain(|n| n.owner != session);
                gone
            }
        }
    }
}
