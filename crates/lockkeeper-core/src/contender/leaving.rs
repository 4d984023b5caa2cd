//! Leaving: every node of the attempt is deleted, and no other node.

use super::standing::HolderMarker;
use super::{Contender, Flight};
use crate::IncompatibleFormat;
use crate::protocol::{Command, End, Failure};

/// The reason for leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Leaving {
    /// The caller wants to leave.
    Asked,
    /// A clock has ended the hold as lost.
    Lost,
    /// Another client deleted its node, or its holder marker.
    Evicted,
    /// The server refuses a request that the contender needs.
    Refused,
    /// The parent cannot be kept.
    ParentVanishes,
    /// It was asked to withdraw before it was granted.
    Revoked,
    /// The path states another limit, or something else.
    LimitDiffers(Option<u32>),
    /// It had to get the lock immediately or not at all.
    Held { ahead: usize },
    /// The queue is longer than it accepts.
    TooManyAhead { ahead: usize },
    /// An earlier contender uses another node format.
    IncompatibleFormat(IncompatibleFormat),
}

impl Leaving {
    /// The end that the reason leads to, unless the session ends first or the server refuses to delete a node.
    pub(super) fn end(self) -> End {
        match self {
            Leaving::Asked | Leaving::Lost => End::Left,
            Leaving::Evicted => End::Evicted,
            Leaving::Refused => End::Refused,
            Leaving::ParentVanishes => End::ParentVanishes,
            Leaving::Revoked => End::Revoked,
            Leaving::LimitDiffers(stated) => End::LimitDiffers(stated),
            Leaving::Held { ahead } => End::Held { ahead },
            Leaving::TooManyAhead { ahead } => End::TooManyAhead { ahead },
            Leaving::IncompatibleFormat(theirs) => End::IncompatibleFormat(theirs),
        }
    }
}

impl Contender {
    /// The next command while leaving: delete a node or a holder marker, or look for a possible second node.
    pub(super) fn leave(&mut self, why: Leaving) -> Command {
        let own = self.node().map(str::to_owned);
        if let Some(command) = self.delete_with_tombstone(own.as_deref()) {
            return command;
        }
        if let Some(name) = own {
            return self.delete(name);
        }
        if let HolderMarker::Ours { .. } = self.holder_marker {
            return self.delete_holder_marker();
        }
        if self.doubted {
            // The last read, after an ordered write: every node with our id is deleted too.
            self.doubted = false;
            self.flight = Some(Flight::Recover);
            return Command::Recover;
        }
        Command::End(why.end())
    }

    /// Deletes one of our nodes; with the own node also the own holder marker, if there is one.
    ///
    /// A name without an id may belong to another contender by now: the parent was removed, recreated, and counts from
    /// zero. So read the node before each delete, and bind the delete to what was read. The holder marker is such a
    /// name. While the marker is the very node that we created, the parent was not recreated either, so one read is
    /// enough for both. (A client that breaks our hold must delete the holder marker and our node in one transaction.
    /// Otherwise the next holder's marker may exist by the time of our delete, and look the same.)
    pub(super) fn delete(&mut self, name: String) -> Command {
        let with_holder_marker = self.node() == Some(&name) && matches!(self.holder_marker, HolderMarker::Ours { .. });
        if self.node_format.protects() && !with_holder_marker {
            self.flight = Some(Flight::Delete { name: name.clone(), holder_marker: false });
            return Command::Delete { name, version: None, holder_marker: None };
        }
        if self.delete_doubted {
            return self.settle();
        }
        if with_holder_marker {
            return match self.verified_holder_marker() {
                Ok(holder_marker) => {
                    self.flight = Some(Flight::Delete { name: name.clone(), holder_marker: true });
                    Command::Delete { name, version: None, holder_marker: Some(holder_marker) }
                }
                Err(look) => look,
            };
        }
        match self.verified.take() {
            Some(version) => {
                self.flight = Some(Flight::Delete { name: name.clone(), holder_marker: false });
                Command::Delete { name, version: Some(version), holder_marker: None }
            }
            None => {
                self.flight = Some(Flight::Verify(name.clone()));
                Command::Inspect { name }
            }
        }
    }

    /// Deletes the holder marker of an own node that is already deleted.
    fn delete_holder_marker(&mut self) -> Command {
        if self.delete_doubted {
            return self.settle();
        }
        match self.verified_holder_marker() {
            Ok((name, version)) => {
                self.flight = Some(Flight::DeleteHolderMarker);
                Command::Delete { name, version: Some(version), holder_marker: None }
            }
            Err(look) => look,
        }
    }

    /// The holder marker and its version, if a read has shown that it is ours; otherwise the command for that read.
    fn verified_holder_marker(&mut self) -> Result<(String, i32), Command> {
        let name = self.discipline.holder_marker().expect("it has one").to_owned();
        let HolderMarker::Ours { verified, .. } = &mut self.holder_marker else {
            unreachable!("only an own holder marker is deleted")
        };
        match verified.take() {
            Some(version) => Ok((name, version)),
            None => {
                self.flight = Some(Flight::VerifyHolderMarker);
                Err(Command::Inspect { name })
            }
        }
    }

    pub(super) fn deleted(&mut self, outcome: Result<(), Failure>) {
        let (name, holder_marker) = match self.flight.take() {
            Some(Flight::Delete { name, holder_marker }) => (Some(name), holder_marker),
            Some(Flight::DeleteHolderMarker) => (None, true),
            Some(Flight::DeleteWithTombstone(own)) => return self.deleted_with_tombstone(&own, outcome),
            Some(Flight::DeleteOwnTombstone) => return self.deleted_tombstone(outcome),
            Some(Flight::DeleteTombstone(name)) => return self.tombstone_deleted(&name, outcome),
            _ => return,
        };
        match outcome {
            // One of the two is already deleted: a listing shows which.
            Err(Failure::NoNode) if holder_marker && name.is_some() => self.delete_doubted = true,
            Ok(()) | Err(Failure::NoNode) => {
                if holder_marker {
                    self.holder_marker = HolderMarker::None;
                }
                if let Some(name) = name {
                    self.forget(&name);
                }
            }
            Err(Failure::ConnectionLoss) => self.delete_doubted = holder_marker || !self.node_format.protects(),
            Err(Failure::SessionOver) => self.session_over = true,
            // Its data changed between the read and the delete (a bare word of another client): read again.
            Err(Failure::BadVersion) => {}
            Err(Failure::Refused | Failure::NodeExists) => self.stuck = true,
        }
    }
}
