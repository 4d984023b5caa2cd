//! The tombstones of abandoned holds, and the own one: see [`Tombstone`].

use super::queueing::Blocker;
use super::{Contender, Flight, Leaving};
use crate::protocol::{Command, Failure};
use crate::{LockDelay, Mode, Queue, Tombstone};

/// The state of the own tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Own {
    /// There is none.
    None,
    /// A create was sent: a tombstone of this mode may exist.
    Doubtful(Mode),
    /// It exists.
    Stands(Mode),
}

/// The tombstone of another contender, which has abandoned its hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Abandoned {
    name: String,
    delay: LockDelay,
    /// The delay is being counted.
    counted: bool,
    /// The delay is over.
    over: bool,
}

impl Contender {
    /// The name of the own tombstone for a hold of this kind, if the hold has a lock delay.
    fn tombstone_name(&self, mode: Mode) -> Option<String> {
        let tombstone = Tombstone { id: self.id, mode, delay: self.delay? };
        tombstone.name()
    }

    /// Creates the tombstone before a hold begins.
    pub(super) fn leave_a_tombstone(&mut self, own: &str) -> Option<Command> {
        if let Own::Stands(_) = self.tombstone {
            return None;
        }
        let tombstone = self.tombstone_name(self.mode)?;
        (self.tombstone, self.flight) = (Own::Doubtful(self.mode), Some(Flight::Tombstone));
        Some(Command::Tombstone { own: own.to_owned(), tombstone })
    }

    pub(super) fn tombstone_made(&mut self, outcome: Result<(), Failure>) {
        let Some(Flight::Tombstone) = self.flight.take() else {
            return;
        };
        match outcome {
            // No other contender creates a node of that name: an earlier create took effect.
            Ok(()) | Err(Failure::NodeExists) => self.tombstone = Own::Stands(self.mode),
            Err(Failure::NoNode) => self.evicted(),
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) => {
                self.tombstone = Own::None;
                self.leave_because(Leaving::Refused);
            }
        }
    }

    /// Whether the own tombstone stays when this contender leaves: its caller got the lock and has not released it.
    fn is_to_be_followed_late(&self) -> bool {
        self.handed_over && !matches!(self.leaving, None | Some(Leaving::Asked))
    }

    /// While leaving: deletes the own node and its tombstone together, or those of them that are left.
    ///
    /// One transaction deletes both, so that no listing shows one without the other. If that fails because one of them
    /// does not exist, the own node is deleted first: an unnecessary short wait is better than a missing one.
    pub(super) fn delete_with_tombstone(&mut self, own: Option<&str>) -> Option<Command> {
        let (Own::Doubtful(mode) | Own::Stands(mode)) = self.tombstone else { return None };
        if self.is_to_be_followed_late() {
            return None;
        }
        let tombstone = self.tombstone_name(mode)?;
        match (own, self.tombstone) {
            (Some(own), Own::Stands(_)) => {
                let own = own.to_owned();
                self.flight = Some(Flight::DeleteWithTombstone(own.clone()));
                Some(Command::Delete { name: own, version: None, holder_marker: Some((tombstone, 0)) })
            }
            (Some(_), _) => None,
            (None, _) => {
                self.flight = Some(Flight::DeleteOwnTombstone);
                Some(Command::Delete { name: tombstone, version: None, holder_marker: None })
            }
        }
    }

    pub(super) fn deleted_with_tombstone(&mut self, own: &str, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) => {
                self.tombstone = Own::None;
                self.forget(own);
            }
            // One of the two does not exist: delete each by itself.
            Err(Failure::NoNode | Failure::BadVersion) => {
                if let Own::Stands(mode) = self.tombstone {
                    self.tombstone = Own::Doubtful(mode);
                }
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::NodeExists) => self.stuck = true,
        }
    }

    pub(super) fn deleted_tombstone(&mut self, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) | Err(Failure::NoNode) => self.tombstone = Own::None,
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::NodeExists | Failure::BadVersion) => self.stuck = true,
        }
    }

    /// Takes in the abandoned holds that a listing shows.
    pub(super) fn see_abandoned(&mut self, queue: &Queue<'_>) {
        let seen = || queue.entries().iter().filter(|entry| entry.abandoned);
        self.abandoned.retain(|abandoned| seen().any(|entry| entry.name == abandoned.name));
        for entry in seen() {
            if let (Some(delay), false) = (entry.delay, self.abandoned.iter().any(|known| known.name == entry.name)) {
                let name = entry.name.to_owned();
                self.abandoned.push(Abandoned { name, delay, counted: false, over: false });
            }
        }
    }

    /// Counts the delays, and deletes the tombstone that blocks this contender when its delay is over.
    pub(super) fn wait_for_the_abandoned(&mut self) -> Option<Command> {
        if !self.waits() {
            return None;
        }
        if let Some(new) = self.abandoned.iter_mut().find(|abandoned| !abandoned.counted) {
            new.counted = true;
            return Some(Command::Delay { name: new.name.clone(), delay: new.delay });
        }
        let blocker = self.blocker.as_ref()?;
        // A contender that watches the children is the first without room, so each tombstone blocks it.
        let in_the_way = |abandoned: &&Abandoned| *blocker == Blocker::Children || blocker.watches(&abandoned.name);
        let name = self.abandoned.iter().filter(|abandoned| abandoned.over).find(in_the_way)?.name.clone();
        self.flight = Some(Flight::DeleteTombstone(name.clone()));
        Some(Command::Delete { name, version: None, holder_marker: None })
    }

    pub(super) fn delay_over(&mut self, name: &str) {
        for abandoned in self.abandoned.iter_mut().filter(|abandoned| abandoned.name == name) {
            abandoned.over = true;
        }
    }

    pub(super) fn tombstone_deleted(&mut self, name: &str, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) | Err(Failure::NoNode) => {
                self.abandoned.retain(|abandoned| abandoned.name != name);
                // Its watch may have reported that already.
                self.blocker.take_if(|blocker| *blocker != Blocker::Children && blocker.watches(name));
                self.listing_due |= self.blocker.is_none();
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::NodeExists | Failure::BadVersion) => self.leave_because(Leaving::Refused),
        }
    }
}
