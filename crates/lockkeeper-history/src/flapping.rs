//! Whether a lock changes hands because its holders lose it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use lockkeeper::Loss;
use serde::Serialize;

use super::entry::{Entry, PastHold};
use super::record::HoldEnd;
use crate::millis::whole_ms;

/// The time that is looked at.
const WINDOW: Duration = Duration::from_secs(3600);

/// The fewest losses within that time.
const LOSSES: usize = 3;

/// Why a lock is lost again and again, as most of the losses say. It is a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LikelyCause {
    /// The holders were stopped, or their machines too busy.
    Paused,
    /// No server heard of the holders in time, or they of no server.
    Silent,
    /// The holders were removed.
    Removed,
    /// Something else, such as a lease that is over.
    Other,
}

/// A lock that changes hands because its holders lose it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Flapping {
    /// How many holds ended within the last hour, of those that are recorded.
    pub changes: usize,
    /// How many of them were lost.
    pub losses: usize,
    /// The holders with the number of their holds, most first.
    pub holders: Vec<(String, usize)>,
    /// The median of the holds.
    #[serde(rename = "median_ms", serialize_with = "whole_ms")]
    pub median: Duration,
    /// How many of the losses have each cause, most first.
    pub causes: Vec<(LikelyCause, usize)>,
}

impl Flapping {
    /// Judges the entries of one lock: at least three holds of the hour before `now` were lost, and they are at least half of all. A
    /// hold that ended without a record ([`HoldEnd::Unrecorded`]) is none of the losses.
    pub fn of(entries: &[Entry], now: SystemTime) -> Option<Flapping> {
        let since = now.checked_sub(WINDOW).unwrap_or(SystemTime::UNIX_EPOCH);
        let holds: Vec<_> = entries.iter().filter_map(Entry::hold).filter(|hold| hold.ended >= since).collect();
        let losses: Vec<_> = holds.iter().filter(|hold| hold.is_loss()).collect();
        if losses.len() < LOSSES || losses.len() * 2 < holds.len() {
            return None;
        }
        let mut lengths: Vec<_> = holds.iter().map(|hold| hold.held()).collect();
        lengths.sort_unstable();
        let holder = |hold: &PastHold| match &hold.owner {
            Some(owner) => owner.host.clone(),
            None => hold.described.clone(),
        };
        Some(Flapping {
            changes: holds.len(),
            losses: losses.len(),
            holders: counted(holds.iter().map(|hold| holder(hold))),
            median: lengths[lengths.len() / 2],
            causes: counted(losses.iter().map(|hold| cause(hold))),
        })
    }
}

/// Counts equal values, the most frequent first.
fn counted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<(T, usize)> {
    let mut counts = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_insert(0) += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

fn cause(hold: &PastHold) -> LikelyCause {
    match (hold.end, hold.loss) {
        _ if hold.paused => LikelyCause::Paused,
        (HoldEnd::Broken, _) | (_, Some(Loss::Removed)) => LikelyCause::Removed,
        (_, Some(Loss::Unreachable | Loss::SessionExpired)) => LikelyCause::Silent,
        _ => LikelyCause::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(end: HoldEnd) -> Entry {
        Entry::Hold(PastHold {
            path: "/locks/a".to_owned(),
            owner: None,
            described: "10.0.0.1".to_owned(),
            message: None,
            token: None,
            shared: false,
            used_as: None,
            queued: None,
            granted: SystemTime::UNIX_EPOCH,
            ended: SystemTime::UNIX_EPOCH,
            end,
            loss: None,
            paused: false,
            reason: None,
            status: None,
        })
    }

    #[test]
    fn a_hold_of_a_client_that_keeps_no_history_is_no_loss() {
        use HoldEnd::{Lost, Released, Unrecorded};
        let judge = |ends: &[HoldEnd]| {
            Flapping::of(&ends.iter().copied().map(hold).collect::<Vec<_>>(), SystemTime::UNIX_EPOCH)
        };
        assert_eq!(judge(&[Unrecorded, Released, Unrecorded, Released, Unrecorded, Released]), None);
        let flapping = judge(&[Unrecorded, Lost, Unrecorded, Lost, Unrecorded, Lost]).unwrap();
        assert_eq!((flapping.changes, flapping.losses), (6, 3));
        assert_eq!(flapping.causes, [(LikelyCause::Other, 3)]);
    }
}
