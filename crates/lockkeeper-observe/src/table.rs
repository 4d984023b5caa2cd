//! One row for each lock: who holds it for how long, who waits, and what is wrong with it.

use std::time::{Duration, SystemTime};

use lockkeeper::admin::{ContenderInfo, Held, LockInfo};
use serde::{Serialize, Serializer};

use crate::deadlock::{Certainty, Deadlock};
use crate::millis::millis;

/// A hold that is this many times as long as usual is worth a look.
const UNUSUAL: u32 = 10;

/// A shorter hold is never called long.
const SHORT: Duration = Duration::from_secs(60);

/// What records of the holds of a lock show. The default: nothing is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// How long half of the holds have taken at most.
    pub usual: Option<Duration>,
    /// Whether enough of them are recorded to compare another hold with them.
    pub is_enough: bool,
    /// How many holds ended within the last hour and how many of them were lost, if its holders lose it again and again.
    pub flapping: Option<(usize, usize)>,
}

/// What is known about one lock. As JSON it has the fields that `lockkeeper list --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LockRow<'a> {
    /// The lock.
    #[serde(flatten)]
    pub lock: &'a LockInfo,
    /// How long its first holder has held it; `None` if nobody holds it, and for a lease.
    #[serde(flatten, serialize_with = "held_ms")]
    pub held: Option<Held>,
    /// How long half of its last holds have taken at most, if they were recorded.
    #[serde(rename = "usual_ms", serialize_with = "ms")]
    pub usual: Option<Duration>,
    /// How long its first waiter in time has waited.
    #[serde(rename = "oldest_wait_ms", serialize_with = "ms")]
    pub oldest: Option<Duration>,
    /// How many contenders have entered it in an hour, on the average since the servers have its node, or so far if they have not had it for an hour.
    pub per_hour: Option<f64>,
    /// What is to be said about it, the most serious first. Empty in a row of [`LockRow::measured`].
    pub states: Vec<RowState>,
    #[serde(skip)]
    recorded: Recorded,
}

/// What is to be said about a lock, the most serious first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
#[non_exhaustive]
pub enum RowState {
    /// Its holder or a waiter is in a ring of waits.
    Deadlock {
        /// How sure that is.
        certainty: Certainty,
        /// The number of the ring among those that were found, from 1.
        number: usize,
    },
    /// Nobody holds it, and its first waiter is behind a node without a session.
    Blocked,
    /// The process of its holder has ended on this machine, and its session has not.
    Gone,
    /// Its hold was lost, and it stays unavailable for a time that the holder has set.
    Abandoned,
    /// Its holder has refused to release it.
    Refused,
    /// Its holder was asked to release it.
    Asked,
    /// Its last holders have lost it again and again.
    Flapping {
        /// How many holds ended within the last hour, of those that are recorded.
        changes: usize,
        /// How many of them were lost.
        losses: usize,
    },
    /// The hold takes many times as long as usual.
    Long {
        /// How many times, at least.
        times: u32,
    },
    /// Nodes without a session are in its queue.
    Garbage {
        /// How many.
        nodes: usize,
    },
    /// It is held for a lease.
    Leased,
}

/// How long a lock has been held, if that is known, and the bounds.
#[derive(Serialize)]
struct HeldMs {
    held_ms: Option<u64>,
    held_at_least_ms: Option<u64>,
    held_at_most_ms: Option<u64>,
}

fn held_ms<S: Serializer>(held: &Option<Held>, serializer: S) -> Result<S::Ok, S::Error> {
    let ms = HeldMs {
        held_ms: held.and_then(Held::known).map(millis),
        held_at_least_ms: held.map(|held| millis(held.at_least)),
        held_at_most_ms: held.map(|held| millis(held.at_most)),
    };
    ms.serialize(serializer)
}

fn ms<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => serializer.serialize_some(&millis(*duration)),
        None => serializer.serialize_none(),
    }
}

impl<'a> LockRow<'a> {
    /// Returns the row of a lock. `now` is the servers' time, if it is known. `deadlocks` are those among all locks.
    pub fn of(lock: &'a LockInfo, now: Option<SystemTime>, recorded: Recorded, deadlocks: &[Deadlock]) -> Self {
        LockRow::measured(lock, now, recorded).judged(deadlocks)
    }

    /// Returns the row without what is to be said about the lock: [`LockRow::judged`] adds it. For a table of which only a part is shown, because
    /// [`RowState::Gone`] costs a few reads of `/proc` for each holder of this machine.
    pub fn measured(lock: &'a LockInfo, now: Option<SystemTime>, recorded: Recorded) -> Self {
        let ago = |then: SystemTime| now?.duration_since(then).ok();
        let held = lock.holders.first().and_then(|holder| Some(holder.grant()?.held(now?)));
        let oldest = lock.waiters.iter().map(|waiter| waiter.since).min().and_then(ago);
        let per_hour = now.and_then(|now| per_hour(lock, now));
        LockRow { lock, held, usual: recorded.usual, oldest, per_hour, states: Vec::new(), recorded }
    }

    /// Adds what is to be said about the lock. `deadlocks` are those among all locks.
    #[must_use]
    pub fn judged(mut self, deadlocks: &[Deadlock]) -> Self {
        let Recorded { usual, is_enough, flapping } = self.recorded;
        let compared = self.held.map(|held| held.at_least).zip(usual.filter(|_| is_enough));
        self.states = states(self.lock, compared, flapping, deadlocks);
        self
    }
}

impl LockRow<'_> {
    /// Returns the same row in a table that has so many deadlocks of other servers before.
    #[must_use]
    pub fn after(mut self, deadlocks: usize) -> Self {
        for state in &mut self.states {
            if let RowState::Deadlock { number, .. } = state {
                *number += deadlocks;
            }
        }
        self
    }
}

/// How many contenders have entered a lock in an hour.
fn per_hour(lock: &LockInfo, now: SystemTime) -> Option<f64> {
    let entries = lock.entries?;
    let hours = now.duration_since(entries.since).ok()?.as_secs_f64() / 3600.0;
    Some(f64::from(entries.count) / hours.max(1.0))
}

fn states(
    lock: &LockInfo,
    held: Option<(Duration, Duration)>,
    flapping: Option<(usize, usize)>,
    deadlocks: &[Deadlock],
) -> Vec<RowState> {
    let mut states = Vec::new();
    let rings = deadlocks.iter().enumerate().filter(|(_, deadlock)| deadlock.involves(&lock.path));
    states.extend(rings.map(|(at, deadlock)| RowState::Deadlock { certainty: deadlock.certainty, number: at + 1 }));
    if lock.blocked_by().is_some() {
        states.push(RowState::Blocked);
    }
    let holders = |is: fn(&ContenderInfo) -> bool| lock.holders.iter().any(is);
    let asked = |refused: bool| {
        let requests = lock.holders.iter().filter_map(|holder| holder.revocation.as_ref());
        requests.into_iter().any(|request| request.refused.is_some() == refused)
    };
    for (is, state) in [
        (holders(ContenderInfo::process_has_ended), RowState::Gone),
        (holders(|holder| holder.abandoned), RowState::Abandoned),
        (asked(true), RowState::Refused),
        (asked(false), RowState::Asked),
    ] {
        states.extend(is.then_some(state));
    }
    if let Some((held, usual)) = held
        && held >= SHORT.max(usual.saturating_mul(UNUSUAL))
    {
        let times = held.as_secs_f64() / usual.as_secs_f64().max(0.001);
        states.push(RowState::Long { times: times as u32 });
    }
    if !lock.sessionless.is_empty() {
        states.push(RowState::Garbage { nodes: lock.sessionless.len() });
    }
    states.extend(flapping.map(|(changes, losses)| RowState::Flapping { changes, losses }));
    states.extend(lock.lease.is_some().then_some(RowState::Leased));
    states.sort();
    states
}
