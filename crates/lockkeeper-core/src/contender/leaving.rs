//! The way out: every node of the attempt is deleted, and none but its own.

use super::standing::Barrier;
use super::{Contender, Flight};
use crate::OtherLine;
use crate::protocol::{Command, End, Failure};

/// Why it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Leaving {
    /// The caller wants to.
    Asked,
    /// The hold is lost by a clock.
    Lost,
    /// Somebody else deleted its node, or its barrier.
    Evicted,
    /// The server refuses what it needs.
    Refused,
    /// The parent cannot be kept.
    ParentVanishes,
    /// It was asked to let go before it was granted.
    Revoked,
    /// The path states another limit, or something else.
    LimitDiffers(Option<u32>),
    /// Somebody locks the path in another way.
    OtherLine(OtherLine),
}

impl Contender {
    /// Leaving: a node to delete, a barrier, or perhaps a second node to look for.
    pub(super) fn leave(&mut self, why: Leaving) -> Command {
        let own = self.node().map(str::to_owned);
        if let Some(command) = self.delete_with_stand_in(own.as_deref()) {
            return command;
        }
        if let Some(name) = own {
            return self.delete(name);
        }
        if let Barrier::Ours { .. } = self.barrier {
            return self.delete_barrier();
        }
        if self.doubted {
            // The last look, behind a sync: whatever carries our id goes too.
            self.doubted = false;
            self.flight = Some(Flight::Recover);
            return Command::Recover;
        }
        Command::End(match why {
            Leaving::Asked | Leaving::Lost => End::Left,
            Leaving::Evicted => End::Evicted,
            Leaving::Refused => End::Refused,
            Leaving::ParentVanishes => End::ParentVanishes,
            Leaving::Revoked => End::Revoked,
            Leaving::LimitDiffers(stated) => End::LimitDiffers(stated),
            Leaving::OtherLine(theirs) => End::OtherLine(theirs),
        })
    }

    /// Deletes a node of ours, the barrier with it if it is the own one and there is a barrier.
    ///
    /// A name without an id may belong to someone else by now (the parent was removed, made again, and counts from zero): look
    /// before each delete, and bind the delete to what was seen. The barrier is such a name. While it is the very node
    /// that we made, the parent was not made again either, so that one look is enough for both. (Whoever takes the barrier from
    /// us by force must take our node with it, in one transaction: else the next one's may stand by the time of our delete,
    /// and look the same.)
    pub(super) fn delete(&mut self, name: String) -> Command {
        let with_barrier = self.node() == Some(&name) && matches!(self.barrier, Barrier::Ours { .. });
        if self.dialect.protects() && !with_barrier {
            self.flight = Some(Flight::Delete { name: name.clone(), barrier: false });
            return Command::Delete { name, version: None, barrier: None };
        }
        if self.delete_doubted {
            return self.settle();
        }
        if with_barrier {
            return match self.verified_barrier() {
                Ok(barrier) => {
                    self.flight = Some(Flight::Delete { name: name.clone(), barrier: true });
                    Command::Delete { name, version: None, barrier: Some(barrier) }
                }
                Err(look) => look,
            };
        }
        match self.verified.take() {
            Some(version) => {
                self.flight = Some(Flight::Delete { name: name.clone(), barrier: false });
                Command::Delete { name, version: Some(version), barrier: None }
            }
            None => {
                self.flight = Some(Flight::Verify(name.clone()));
                Command::Inspect { name }
            }
        }
    }

    /// Deletes the barrier of an own node that is gone already.
    fn delete_barrier(&mut self) -> Command {
        if self.delete_doubted {
            return self.settle();
        }
        match self.verified_barrier() {
            Ok((name, version)) => {
                self.flight = Some(Flight::DeleteBarrier);
                Command::Delete { name, version: Some(version), barrier: None }
            }
            Err(look) => look,
        }
    }

    /// The barrier and its version, once a look has shown it to be ours; else that look.
    fn verified_barrier(&mut self) -> Result<(String, i32), Command> {
        let name = self.discipline.barrier().expect("it has one").to_owned();
        let Barrier::Ours { verified, .. } = &mut self.barrier else { unreachable!("only an own barrier is deleted") };
        match verified.take() {
            Some(version) => Ok((name, version)),
            None => {
                self.flight = Some(Flight::VerifyBarrier);
                Err(Command::Inspect { name })
            }
        }
    }

    pub(super) fn deleted(&mut self, outcome: Result<(), Failure>) {
        let (name, barrier) = match self.flight.take() {
            Some(Flight::Delete { name, barrier }) => (Some(name), barrier),
            Some(Flight::DeleteBarrier) => (None, true),
            Some(Flight::DeleteWithStandIn(own)) => return self.deleted_with_stand_in(&own, outcome),
            Some(Flight::DeleteStandIn) => return self.deleted_stand_in(outcome),
            Some(Flight::Bury(name)) => return self.buried(&name, outcome),
            _ => return,
        };
        match outcome {
            // One of the two is gone already: a listing says which.
            Err(Failure::NoNode) if barrier && name.is_some() => self.delete_doubted = true,
            Ok(()) | Err(Failure::NoNode) => {
                if barrier {
                    self.barrier = Barrier::None;
                }
                if let Some(name) = name {
                    self.forget(&name);
                }
            }
            Err(Failure::ConnectionLoss) => self.delete_doubted = barrier || !self.dialect.protects(),
            Err(Failure::SessionOver) => self.session_over = true,
            // Its data changed between the look and the delete (an asker's word): look again.
            Err(Failure::BadVersion) => {}
            Err(Failure::Refused | Failure::NodeExists) => self.stuck = true,
        }
    }
}
