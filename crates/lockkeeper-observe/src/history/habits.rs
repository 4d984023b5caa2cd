//! What the records of a lock show together.

use std::time::{Duration, SystemTime};

use super::entry::{Entry, PastHold};
use super::flapping::Flapping;

/// How the holds of a lock usually are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Habits {
    /// How long the holds took that were released, in increasing order.
    pub durations: Vec<Duration>,
    /// Whether it changes hands because its holders lose it.
    pub flapping: Option<Flapping>,
}

impl Habits {
    /// Judges the entries of one lock. Without the servers' time `now`, it is not said whether the lock flaps.
    pub fn of(entries: &[Entry], now: Option<SystemTime>) -> Self {
        let holds = entries.iter().filter_map(Entry::hold);
        let mut durations: Vec<_> = holds.filter(|hold| hold.is_release()).map(PastHold::held).collect();
        durations.sort_unstable();
        Habits { durations, flapping: now.and_then(|now| Flapping::of(entries, now)) }
    }

    /// How long half of the holds take at most.
    pub fn usual(&self) -> Option<Duration> {
        self.durations.get(self.durations.len().checked_sub(1)? / 2).copied()
    }
}
