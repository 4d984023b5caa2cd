//! What the records of a lock show together.

use std::time::{Duration, SystemTime};

use lockkeeper::FencingToken;
use lockkeeper::admin::LockInfo;

use super::entry::{Entry, PastHold};
use super::flapping::Flapping;
use super::merge::is_before;
use super::record::HoldEnd;

/// How the holds of a lock usually are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Habits {
    /// How long the holds took that were released, in increasing order.
    pub durations: Vec<Duration>,
    /// Whether it changes hands because its holders lose it.
    pub flapping: Option<Flapping>,
    /// The tokens and the ends of the holds that are recorded, of those that held the lock alone.
    ends: Vec<(FencingToken, SystemTime)>,
}

/// So many holds show how long the holds of a lock usually take.
const ENOUGH: usize = 3;

impl Habits {
    /// Judges the entries of one lock. Without the servers' time `now`, it is not said whether the lock flaps.
    pub fn of(entries: &[Entry], now: Option<SystemTime>) -> Self {
        let holds = || entries.iter().filter_map(Entry::hold);
        let mut durations: Vec<_> = holds().filter(|hold| hold.is_release()).map(PastHold::held).collect();
        durations.sort_unstable();
        // Nobody recorded when a hold without a record of its own ended.
        let alone = holds().filter(|hold| !hold.shared && hold.end != HoldEnd::Unrecorded);
        let ends = alone.filter_map(|hold| Some((hold.token?, hold.ended))).collect();
        Habits { durations, flapping: now.and_then(|now| Flapping::of(entries, now)), ends }
    }

    /// Notes at each holder of the lock when the last recorded hold before it ended: its own began then or later.
    pub fn date(&self, lock: &mut LockInfo) {
        for holder in &mut lock.holders {
            let Some(own) = holder.token else { continue };
            let before = self.ends.iter().filter(|(token, _)| is_before(*token, own));
            if let Some(ended) = before.map(|(_, ended)| *ended).max() {
                holder.held_after(ended);
            }
        }
    }

    /// How long half of the holds take at most, if enough of them are recorded to compare another hold with them.
    pub fn usual_of_enough(&self) -> Option<Duration> {
        self.usual().filter(|_| self.durations.len() >= ENOUGH)
    }

    /// How long half of the holds take at most.
    pub fn usual(&self) -> Option<Duration> {
        self.durations.get(self.durations.len().checked_sub(1)? / 2).copied()
    }
}
