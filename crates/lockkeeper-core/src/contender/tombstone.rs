//! The own tombstone: see [`Tombstone`](crate::Tombstone).

use super::{Contender, Flight, Leaving};
use crate::Mode;
use crate::protocol::{Command, Failure};

/// The state of the own tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OwnTombstone {
    None,
    /// A create was sent: a tombstone of this mode may exist.
    Doubtful(Mode),
    Stands(Mode),
}

impl OwnTombstone {
    /// The delete of both nodes failed because one of them does not exist.
    fn doubt(&mut self) {
        if let OwnTombstone::Stands(mode) = *self {
            *self = OwnTombstone::Doubtful(mode);
        }
    }
}

impl Contender {
    /// Creates the tombstone before a hold begins.
    pub(super) fn make_tombstone(&mut self, own: &str) -> Option<Command> {
        self.terms.delay?;
        if let OwnTombstone::Stands(_) = self.tombstone {
            return None;
        }
        let mode = self.terms.mode;
        let tombstone = self.terms.tombstone(mode)?;
        self.tombstone = OwnTombstone::Doubtful(mode);
        self.flight = Some(Flight::Tombstone);
        Some(Command::Tombstone { own: own.to_owned(), tombstone })
    }

    pub(super) fn tombstone_made(&mut self, outcome: Result<(), Failure>) {
        let Some(Flight::Tombstone) = self.flight.take() else {
            return;
        };
        match outcome {
            // No other contender creates a node of that name: an earlier create took effect.
            Ok(()) | Err(Failure::NodeExists) => self.tombstone = OwnTombstone::Stands(self.terms.mode),
            Err(Failure::NoNode) => self.removed(),
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::Refused | Failure::BadVersion) => {
                self.tombstone = OwnTombstone::None;
                self.exit.leave(Leaving::Refused);
            }
        }
    }

    /// While leaving: deletes the own node and its tombstone together, or those of them that are left. The tombstone stays
    /// if the caller got the lock and has not released it.
    ///
    /// One transaction deletes both, so that no listing shows one without the other. If that fails because one of them
    /// does not exist, the own node is deleted first. An unnecessary short wait is better than a missing one.
    pub(super) fn delete_with_tombstone(&mut self, own: Option<&str>) -> Option<Command> {
        let (OwnTombstone::Doubtful(mode) | OwnTombstone::Stands(mode)) = self.tombstone else { return None };
        if self.hold.is_handed_over() && self.exit.is_loss() {
            return None;
        }
        let tombstone = self.terms.tombstone(mode)?;
        match (own, self.tombstone) {
            (Some(own), OwnTombstone::Stands(_)) => {
                let (name, write) = (own.to_owned(), self.release_write());
                self.flight = Some(Flight::DeleteWithTombstone(name.clone()));
                Some(Command::Delete { name, version: None, holder_marker: Some((tombstone, 0)), write })
            }
            (Some(_), _) => None,
            (None, _) => {
                self.flight = Some(Flight::DeleteOwnTombstone);
                Some(Command::Delete { name: tombstone, version: None, holder_marker: None, write: None })
            }
        }
    }

    pub(super) fn deleted_with_tombstone(&mut self, own: &str, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) => {
                self.tombstone = OwnTombstone::None;
                self.nodes.forget(own);
            }
            // One of the two does not exist: delete each by itself.
            Err(Failure::NoNode | Failure::BadVersion) => self.tombstone.doubt(),
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::Refused | Failure::NodeExists) => self.exit.stuck = true,
        }
    }

    pub(super) fn deleted_own_tombstone(&mut self, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) | Err(Failure::NoNode) => self.tombstone = OwnTombstone::None,
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::Refused | Failure::NodeExists | Failure::BadVersion) => self.exit.stuck = true,
        }
    }
}
