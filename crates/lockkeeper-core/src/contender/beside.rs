//! The look beside a new path: whether a client holds the same path with a numbered node ([`NodeFormat::Numbered`]).
//!
//! For the lock `/locks/a`, such a node is `/locks/a0000000007`, so no listing of the path shows it. A numbered contender lists the
//! path after its own create. If this attempt lists the node above after its own create, the later of the two finds the other's node.
//! An attempt does so only if it has created the path. It reads how many children the node above has in the round trip that creates
//! the path, and lists them in the one that creates its node. So a new path costs two more requests and no more round trips, and a
//! path that exists costs nothing.
//!
//! An attempt that finds the path does not look, so it misses a numbered contender that came while the path was empty.

use super::{Contender, Flight};
use crate::naming::NodeFormat;
use crate::protocol::{Command, Failure, PathMade};

/// What the attempt knows of contenders beside a path that it made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Beside {
    /// The next listing is to look beside the path.
    pub(super) due: bool,
    /// The attempt created the path, and no look has shown that nobody is beside it.
    is_maker: bool,
}

impl Beside {
    /// A listing behind the own create has looked.
    pub(super) fn looked(&mut self) {
        self.due = false;
    }

    /// A listing shows no contender beside the path.
    pub(super) fn nobody_seen(&mut self) {
        self.is_maker &= self.due;
    }

    /// A contender of this session has held, with its node ahead of the own one: no numbered contender has come since the path was
    /// made.
    pub(super) fn local_held(&mut self) {
        *self = Self::default();
    }
}

impl Contender {
    /// The path was missing, and exists now.
    pub(super) fn path_made(&mut self, made: PathMade) {
        if made.children_above.is_some_and(NodeFormat::lists_beside) {
            self.beside.due = true;
            self.beside.is_maker |= made.is_new;
        }
    }

    /// Whether this grant waits for a look beside. A contender of this session that has left without the lock, or whose end another
    /// listing shows, proves nothing about numbered contenders.
    pub(super) fn must_look_beside(&mut self) -> bool {
        self.view.listing_due |= self.beside.due;
        self.beside.due
    }

    /// Removes the path again that it made, perhaps beside a numbered contender. Otherwise the next attempt finds the path, and does
    /// not look.
    pub(super) fn remove_path(&mut self) -> Option<Command> {
        self.beside.is_maker.then(|| {
            self.flight = Some(Flight::RemovePath);
            Command::RemovePath
        })
    }

    pub(super) fn path_removed(&mut self, outcome: Result<(), Failure>) {
        if self.flight.take() == Some(Flight::RemovePath) && outcome != Err(Failure::ConnectionLoss) {
            self.beside.is_maker = false;
        }
    }
}
