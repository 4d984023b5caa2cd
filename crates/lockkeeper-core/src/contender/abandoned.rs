//! The tombstones of other contenders' abandoned holds: see [`Tombstone`](crate::Tombstone).

use super::view::Blocker;
use super::{Contender, Flight, Leaving};
use crate::protocol::{Command, Failure};
use crate::{LockDelay, Queue};

/// The tombstone of another contender, which has abandoned its hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Tomb {
    name: String,
    delay: LockDelay,
    /// The delay is being counted.
    counted: bool,
    /// The delay is over.
    over: bool,
}

/// The abandoned holds whose delay is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Abandoned(Vec<Tomb>);

impl Abandoned {
    pub(super) const NONE: Abandoned = Abandoned(Vec::new());

    /// Takes in the abandoned holds that a listing shows.
    pub(super) fn see(&mut self, queue: &Queue<'_>) {
        let seen = || queue.entries().iter().filter(|entry| entry.abandoned);
        self.0.retain(|tomb| seen().any(|entry| entry.name == tomb.name));
        for entry in seen() {
            if let (Some(delay), false) = (entry.delay, self.0.iter().any(|known| known.name == entry.name)) {
                self.0.push(Tomb { name: entry.name.to_owned(), delay, counted: false, over: false });
            }
        }
    }

    pub(super) fn delay_over(&mut self, name: &str) {
        for tomb in self.0.iter_mut().filter(|tomb| tomb.name == name) {
            tomb.over = true;
        }
    }

    fn forget(&mut self, name: &str) {
        self.0.retain(|tomb| tomb.name != name);
    }

    /// The next one whose delay is not counted yet; it is from now on.
    fn count_next(&mut self) -> Option<Command> {
        let tomb = self.0.iter_mut().find(|tomb| !tomb.counted)?;
        tomb.counted = true;
        Some(Command::Delay { name: tomb.name.clone(), delay: tomb.delay })
    }

    /// The first one whose delay is over and that is the blocker.
    fn in_the_way(&self, blocker: &Blocker) -> Option<&str> {
        // A contender that watches the children is the first without room, so each tombstone blocks it.
        let in_the_way = |tomb: &&Tomb| *blocker == Blocker::Children || blocker.watches(&tomb.name);
        self.0.iter().filter(|tomb| tomb.over).find(in_the_way).map(|tomb| tomb.name.as_str())
    }
}

impl Contender {
    /// Counts the delays, and deletes the tombstone that blocks this contender when its delay is over.
    pub(super) fn wait_for_the_abandoned(&mut self) -> Option<Command> {
        if self.abandoned.0.is_empty() || !self.waits() {
            return None;
        }
        if let Some(count) = self.abandoned.count_next() {
            return Some(count);
        }
        let name = self.abandoned.in_the_way(self.view.blocker.as_ref()?)?.to_owned();
        self.flight = Some(Flight::DeleteTombstone(name.clone()));
        Some(Command::Delete { name, version: None, holder_marker: None, write: None })
    }

    pub(super) fn deleted_tombstone(&mut self, name: &str, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) | Err(Failure::NoNode) => {
                self.abandoned.forget(name);
                self.view.tombstone_gone(name);
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::Refused | Failure::NodeExists | Failure::BadVersion) => self.exit.leave(Leaving::Refused),
        }
    }
}
