//! What is left of holders that ended against their will, and what this one would leave: see [`StandIn`].

use super::queueing::Blocker;
use super::{Contender, Flight, Leaving};
use crate::protocol::{Command, Failure};
use crate::{LockDelay, Mode, Queue, StandIn};

/// The own stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Own {
    /// There is none.
    None,
    /// A create was sent: there may be one, for what was held then.
    Doubtful(Mode),
    /// It stands.
    Stands(Mode),
}

/// The stand-in of another that has vanished.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Vanished {
    name: String,
    delay: LockDelay,
    /// The delay is being counted.
    counted: bool,
    /// And is over.
    over: bool,
}

impl Contender {
    /// The name of the own stand-in for a hold of this kind, where it is to leave one.
    fn stand_in_name(&self, mode: Mode) -> Option<String> {
        let stand_in = StandIn { id: self.id, mode, delay: self.delay? };
        stand_in.name(self.dialect)
    }

    /// Before a hold begins, its stand-in stands.
    pub(super) fn leave_a_stand_in(&mut self, own: &str) -> Option<Command> {
        if let Own::Stands(_) = self.stand_in {
            return None;
        }
        let stand_in = self.stand_in_name(self.mode)?;
        (self.stand_in, self.flight) = (Own::Doubtful(self.mode), Some(Flight::StandIn));
        Some(Command::StandIn { own: own.to_owned(), stand_in })
    }

    pub(super) fn stand_in_made(&mut self, outcome: Result<(), Failure>) {
        let Some(Flight::StandIn) = self.flight.take() else {
            return;
        };
        match outcome {
            // Nobody else makes one of that name: an earlier create took effect.
            Ok(()) | Err(Failure::NodeExists) => self.stand_in = Own::Stands(self.mode),
            Err(Failure::NoNode) => self.evicted(),
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) => {
                self.stand_in = Own::None;
                self.leave_because(Leaving::Refused);
            }
        }
    }

    /// Whether the own stand-in is to stay when this one leaves: its caller has, or had, the lock and has not let go of it.
    fn is_to_be_followed_late(&self) -> bool {
        self.handed_over && !matches!(self.leaving, None | Some(Leaving::Asked))
    }

    /// On the way out: takes the own node and its stand-in away together, or what is left of them.
    ///
    /// In one transaction, so that no listing shows the one without the other. Where that fails because one of them is not there,
    /// the own node goes first: a wait too many, for a moment, is better than one too few.
    pub(super) fn delete_with_stand_in(&mut self, own: Option<&str>) -> Option<Command> {
        let (Own::Doubtful(mode) | Own::Stands(mode)) = self.stand_in else { return None };
        if self.is_to_be_followed_late() {
            return None;
        }
        let stand_in = self.stand_in_name(mode)?;
        match (own, self.stand_in) {
            (Some(own), Own::Stands(_)) => {
                let own = own.to_owned();
                self.flight = Some(Flight::DeleteWithStandIn(own.clone()));
                Some(Command::Delete { name: own, version: None, barrier: Some((stand_in, 0)) })
            }
            (Some(_), _) => None,
            (None, _) => {
                self.flight = Some(Flight::DeleteStandIn);
                Some(Command::Delete { name: stand_in, version: None, barrier: None })
            }
        }
    }

    pub(super) fn deleted_with_stand_in(&mut self, own: &str, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) => {
                self.stand_in = Own::None;
                self.forget(own);
            }
            // One of the two is gone: each by itself.
            Err(Failure::NoNode | Failure::BadVersion) => {
                if let Own::Stands(mode) = self.stand_in {
                    self.stand_in = Own::Doubtful(mode);
                }
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::NodeExists) => self.stuck = true,
        }
    }

    pub(super) fn deleted_stand_in(&mut self, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) | Err(Failure::NoNode) => self.stand_in = Own::None,
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::NodeExists | Failure::BadVersion) => self.stuck = true,
        }
    }

    /// Takes in which of the vanished a listing shows.
    pub(super) fn see_vanished(&mut self, queue: &Queue<'_>) {
        let seen = || queue.entries().iter().filter(|entry| entry.vanished);
        self.vanished.retain(|vanished| seen().any(|entry| entry.name == vanished.name));
        for entry in seen() {
            if let (Some(delay), false) = (entry.delay, self.vanished.iter().any(|known| known.name == entry.name)) {
                let name = entry.name.to_owned();
                self.vanished.push(Vanished { name, delay, counted: false, over: false });
            }
        }
    }

    /// Counts the delays, and removes the one that stands in the way when its delay is over.
    pub(super) fn wait_for_the_vanished(&mut self) -> Option<Command> {
        if !self.waits() {
            return None;
        }
        if let Some(new) = self.vanished.iter_mut().find(|vanished| !vanished.counted) {
            new.counted = true;
            return Some(Command::Delay { name: new.name.clone(), delay: new.delay });
        }
        let blocker = self.blocker.as_ref()?;
        // Who waits for any child to go is the first that does not fit: each of the vanished is in its way.
        let in_the_way = |vanished: &&Vanished| *blocker == Blocker::Children || blocker.watches(&vanished.name);
        let name = self.vanished.iter().filter(|vanished| vanished.over).find(in_the_way)?.name.clone();
        self.flight = Some(Flight::Bury(name.clone()));
        Some(Command::Delete { name, version: None, barrier: None })
    }

    pub(super) fn delay_over(&mut self, name: &str) {
        for vanished in self.vanished.iter_mut().filter(|vanished| vanished.name == name) {
            vanished.over = true;
        }
    }

    pub(super) fn buried(&mut self, name: &str, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) | Err(Failure::NoNode) => {
                self.vanished.retain(|vanished| vanished.name != name);
                // Its watch may have told so already.
                self.blocker.take_if(|blocker| *blocker != Blocker::Children && blocker.watches(name));
                self.listing_due |= self.blocker.is_none();
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::NodeExists | Failure::BadVersion) => self.leave_because(Leaving::Refused),
        }
    }
}
