//! When a holder was granted its lock, as far as the servers' nodes and the records show it. Without I/O.

use std::time::{Duration, SystemTime};

/// When a holder was granted its lock: a moment, or the earliest and the latest one that are possible. Times are the servers'.
///
/// A client writes when its node is created, not when it is granted the lock. So only three things date a grant: a record of the holder,
/// the end of the hold before it, and the last change of the queue. After the last change nobody was granted the lock, so whoever
/// holds it was granted it at that time or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// It was granted the lock then or later.
    pub earliest: SystemTime,
    /// It was granted the lock then or before; `None` if only the present bounds it.
    pub latest: Option<SystemTime>,
}

/// How long a lock has been held: the shortest and the longest time that are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Held {
    /// It has been held no longer than this.
    pub at_most: Duration,
    /// It has been held for this long at least.
    pub at_least: Duration,
}

impl Held {
    /// How long it has been held, if that is known.
    pub fn known(self) -> Option<Duration> {
        (self.at_least == self.at_most).then_some(self.at_most)
    }
}

impl Grant {
    /// A grant at a known moment.
    pub const fn at(moment: SystemTime) -> Self {
        Grant { earliest: moment, latest: Some(moment) }
    }

    /// A grant between two moments.
    pub const fn between(earliest: SystemTime, latest: Option<SystemTime>) -> Self {
        Grant { earliest, latest }
    }

    /// The grant of a holder whose node was created at `created`. `said`: when it was granted the lock, if a record says so.
    /// `settled`: when its queue has changed last, if that is known.
    pub(crate) fn of(created: SystemTime, said: Option<SystemTime>, settled: Option<SystemTime>) -> Self {
        match said {
            Some(said) => Grant::at(said),
            None => Grant { earliest: created, latest: settled.map(|settled| settled.max(created)) },
        }
    }

    /// The same grant, if the lock was held by another contender until `ended`.
    #[must_use]
    pub fn after(self, ended: SystemTime) -> Self {
        let ended = self.latest.map_or(ended, |latest| latest.min(ended));
        Grant { earliest: self.earliest.max(ended), ..self }
    }

    /// The moment, if it is known.
    pub fn known(self) -> Option<SystemTime> {
        self.latest.filter(|latest| *latest == self.earliest)
    }

    /// How long the lock has been held at `now`.
    pub fn held(self, now: SystemTime) -> Held {
        let since = |then: SystemTime| now.duration_since(then).unwrap_or_default();
        Held { at_least: self.latest.map_or(Duration::ZERO, since), at_most: since(self.earliest) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at(secs: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(secs)
    }

    /// The least and the most seconds of a hold at the time 100.
    fn held(grant: Grant) -> (u64, u64) {
        let held = grant.held(at(100));
        (held.at_least.as_secs(), held.at_most.as_secs())
    }

    #[test]
    fn a_grant_is_known_from_a_record_or_from_a_queue_that_has_not_changed_since_the_holder_came() {
        assert_eq!(Grant::of(at(10), Some(at(40)), None).known(), Some(at(40)));
        assert_eq!(Grant::of(at(10), None, Some(at(10))).known(), Some(at(10)));
        // The last change was the end of another contender, or its creation.
        assert_eq!(Grant::of(at(10), None, None).known(), None);
        assert_eq!(Grant::of(at(10), None, Some(at(40))).known(), None);
    }

    #[test]
    fn a_grant_that_is_not_known_is_after_the_creation_and_the_hold_before_and_no_later_than_the_last_change() {
        assert_eq!(held(Grant::of(at(10), None, None)), (0, 90));
        assert_eq!(held(Grant::of(at(10), None, Some(at(40)))), (60, 90));
        assert_eq!(held(Grant::of(at(10), None, None).after(at(97))), (0, 3));
        assert_eq!(held(Grant::of(at(10), None, Some(at(40))).after(at(30))), (60, 70));
        // Servers' clocks may differ a little.
        assert_eq!(held(Grant::of(at(10), None, Some(at(40))).after(at(41))), (60, 60));
        assert_eq!(held(Grant::at(at(40)).after(at(60))), (60, 60));
        assert_eq!(held(Grant::at(at(101))), (0, 0));
    }
}
