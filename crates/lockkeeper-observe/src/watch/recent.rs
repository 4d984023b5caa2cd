//! What happened to the locks lately, as far as memory is set apart for it. Without I/O and without a clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::fact::{Contender, End, Fact, Moment, What};

/// How long everything is kept at most.
pub(crate) const WINDOW: Duration = Duration::from_secs(3_600);

/// Maximum holds of one lock, and of all locks: about 20 MB.
const HOLDS: Bounds = Bounds { each: 1_000, all: 50_000 };

/// Maximum waits of one lock, and of all locks: about 20 MB.
const WAITS: Bounds = Bounds { each: 2_000, all: 250_000 };

const GAPS: usize = 100;

/// A hold that is over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PastHold {
    pub(crate) contender: Arc<Contender>,
    /// How long it held the lock.
    pub(crate) held: Duration,
    /// When the hold ended.
    pub(crate) ended: Moment,
    pub(crate) how: End,
    /// Whether its times are not exact.
    pub(crate) about: bool,
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// How long it took, in milliseconds; `None` if that is not exact.
    ms: Option<u32>,
    /// Whether it ended with a grant.
    is_granted: bool,
}

/// A time during which changes were not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blind {
    pub(crate) root: Arc<str>,
    pub(crate) since: Moment,
    /// When it ended; `None` if it lasts.
    pub(crate) until: Option<Moment>,
}

/// What is known of the last hour of one lock.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Past {
    /// Its holds that are over, the oldest first.
    pub(crate) holds: Vec<PastHold>,
    /// Since when all holds are kept, in milliseconds since the observer's start.
    pub(crate) holds_since_ms: i64,
    /// How many grants there were.
    pub(crate) grants: usize,
    /// The median of the waits, in milliseconds, and the 99th percentile. Contenders that left the queue count.
    pub(crate) waits: Option<(u32, u32)>,
    /// Since when all waits are kept, in milliseconds since the observer's start.
    pub(crate) waits_since_ms: i64,
}

/// The holds and waits of the last hour: the newest of each lock, within bounds.
pub(crate) struct Recent {
    holds: Newest<PastHold>,
    waits: Newest<Wait>,
    gaps: VecDeque<Blind>,
}

impl Default for Recent {
    fn default() -> Self {
        Recent { holds: Newest::new(HOLDS), waits: Newest::new(WAITS), gaps: VecDeque::new() }
    }
}

impl Recent {
    /// Keeps what a fact says.
    pub(crate) fn fact(&mut self, fact: &Fact) {
        let exact = |waited: Duration| (!fact.about).then(|| u32::try_from(waited.as_millis()).unwrap_or(u32::MAX));
        match &fact.what {
            // Granted before the observer's start, or during a gap.
            What::Granted { found: true, .. } => {}
            What::Granted { contender, waited, .. } => {
                let wait = Wait { ms: exact(*waited), is_granted: true };
                self.waits.push(&contender.lock, fact.at.ms, wait);
            }
            What::LeftWaiting { contender, waited, .. } => {
                let wait = Wait { ms: exact(*waited), is_granted: false };
                self.waits.push(&contender.lock, fact.at.ms, wait);
            }
            What::Ended { contender, held, how } => {
                let (contender, held, how) = (contender.clone(), *held, how.clone());
                let hold = PastHold { contender, held, ended: fact.at, how, about: fact.about };
                let lock = hold.contender.lock.clone();
                self.holds.push(&lock, fact.at.ms, hold);
            }
            What::Explained { contender, how } => {
                let kept =
                    self.holds.of.get_mut(&contender.lock).into_iter().flat_map(|(kept, _)| kept.iter_mut().rev());
                let hold = kept.map(|kept| &mut kept.value).find(|hold| hold.contender.node == contender.node);
                hold.into_iter().for_each(|hold| hold.how = how.clone());
            }
            What::Gap { root, since, .. } => {
                self.gaps.truncate(GAPS - 1);
                self.gaps.push_front(Blind { root: root.clone(), since: *since, until: Some(fact.at) });
            }
            What::Entered { .. } | What::Stopped {} => {}
        }
    }

    /// Forgets what is older than [`WINDOW`].
    pub(crate) fn forget_old(&mut self, now: Moment) {
        let since = now.ms - WINDOW.as_millis() as i64;
        self.holds.forget_before(since);
        self.waits.forget_before(since);
        self.gaps.retain(|gap| gap.until.is_none_or(|until| until.ms > since));
    }

    /// The times of the last hour during which changes were not seen, the newest first.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = &Blind> {
        self.gaps.iter()
    }

    /// The locks that contenders waited for, with the time that they waited, all together, in milliseconds.
    pub(crate) fn waited(&self) -> impl Iterator<Item = (&Arc<str>, u64)> {
        let sum = |waits: &VecDeque<Kept<Wait>>| waits.iter().filter_map(|wait| wait.value.ms).map(u64::from).sum();
        self.waits.of.iter().map(move |(lock, (waits, _))| (lock, sum(waits)))
    }

    /// What is known of the last hour of a lock, with its last holds, so many at most.
    pub(crate) fn past(&self, lock: &str, holds: usize) -> Past {
        let kept = self.holds.of.get(lock).map(|(kept, _)| kept);
        let skipped = kept.map_or(0, |kept| kept.len().saturating_sub(holds));
        let mut past = Past {
            holds: kept.into_iter().flatten().skip(skipped).map(|hold| hold.value.clone()).collect(),
            holds_since_ms: self.holds.since(lock),
            waits_since_ms: self.waits.since(lock),
            ..Past::default()
        };
        if let Some(cut) = skipped.checked_sub(1).and_then(|last| kept?.get(last)) {
            past.holds_since_ms = cut.at_ms;
        }
        if let Some((waits, _)) = self.waits.of.get(lock) {
            past.grants = waits.iter().filter(|wait| wait.value.is_granted).count();
            let mut exact: Vec<_> = waits.iter().filter_map(|wait| wait.value.ms).collect();
            exact.sort_unstable();
            let at = |percent: usize| exact.get((exact.len() * percent).div_ceil(100).saturating_sub(1)).copied();
            past.waits = at(50).zip(at(99));
        }
        past
    }
}

/// How many values are kept.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    each: usize,
    all: usize,
}

/// A value with its time, in milliseconds since the observer's start.
struct Kept<T> {
    id: u64,
    at_ms: i64,
    value: T,
}

/// The newest values of each lock. A lock with many values does not take the place of the others.
struct Newest<T> {
    bounds: Bounds,
    /// The values of each lock, the oldest first, and the time of the last one that was dropped because the lock had too many.
    of: HashMap<Arc<str>, (VecDeque<Kept<T>>, i64)>,
    /// All values in their order. Some of them are dropped already.
    order: VecDeque<(Arc<str>, u64)>,
    kept: usize,
    next: u64,
    /// The time of the last value that was dropped because there were too many in all.
    dropped_ms: i64,
}

impl<T> Newest<T> {
    fn new(bounds: Bounds) -> Self {
        Newest { bounds, of: HashMap::new(), order: VecDeque::new(), kept: 0, next: 0, dropped_ms: i64::MIN }
    }

    fn push(&mut self, lock: &Arc<str>, at_ms: i64, value: T) {
        let (values, dropped_ms) = self.of.entry(lock.clone()).or_insert_with(|| (VecDeque::new(), i64::MIN));
        if values.len() >= self.bounds.each
            && let Some(dropped) = values.pop_front()
        {
            *dropped_ms = dropped.at_ms;
            self.kept -= 1;
        }
        values.push_back(Kept { id: self.next, at_ms, value });
        self.order.push_back((lock.clone(), self.next));
        self.next += 1;
        self.kept += 1;
        while self.kept > self.bounds.all {
            if let Some(at_ms) = self.drop_oldest(i64::MAX) {
                self.dropped_ms = at_ms;
            }
        }
        if self.order.len() > 2 * self.bounds.all {
            let of = &self.of;
            let is_kept = |lock: &Arc<str>, id| of.get(lock)?.0.front().map(|oldest| oldest.id <= id);
            self.order.retain(|(lock, id)| is_kept(lock, *id).unwrap_or(false));
        }
    }

    fn forget_before(&mut self, ms: i64) {
        while self.drop_oldest(ms).is_some() {}
    }

    /// Drops the oldest value if it is older than this, and returns its time.
    fn drop_oldest(&mut self, before_ms: i64) -> Option<i64> {
        while let Some((lock, id)) = self.order.front() {
            let values = self.of.get_mut(lock).map(|(values, _)| values);
            let oldest = values.as_ref().and_then(|values| values.front()).filter(|oldest| oldest.id == *id);
            let Some(at_ms) = oldest.map(|oldest| oldest.at_ms) else {
                self.order.pop_front();
                continue;
            };
            if at_ms >= before_ms {
                return None;
            }
            if let Some(values) = values {
                values.pop_front();
                if values.is_empty() {
                    self.of.remove(lock);
                }
            }
            self.kept -= 1;
            self.order.pop_front();
            return Some(at_ms);
        }
        None
    }

    /// The time since which all values of a lock are kept, if they are not too old.
    fn since(&self, lock: &str) -> i64 {
        self.of.get(lock).map_or(i64::MIN, |(_, dropped_ms)| *dropped_ms).max(self.dropped_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Moment {
        Moment { ms, wall_ms: ms }
    }

    fn contender(lock: &str) -> Arc<Contender> {
        let (who, message, session, node) = (None, None, None, "/n".into());
        Arc::new(Contender { lock: lock.into(), node, who, message, mode: "exclusive", session })
    }

    fn granted(lock: &str, ms: i64, waited: u64) -> Fact {
        let what = What::Granted { contender: contender(lock), waited: Duration::from_millis(waited), found: false };
        Fact { at: at(ms), what, about: false }
    }

    fn ended(lock: &str, ms: i64) -> Fact {
        let (held, how) = (Duration::from_millis(5), End::Released);
        Fact { at: at(ms), what: What::Ended { contender: contender(lock), held, how }, about: false }
    }

    #[test]
    fn waits_of_the_last_hour_have_percentiles_and_a_sum() {
        let mut recent = Recent::default();
        for number in 1..=100 {
            recent.fact(&granted("/a", number, number as u64 * 10));
        }
        let left = What::LeftWaiting { contender: contender("/a"), waited: Duration::from_secs(7), how: End::Unknown };
        recent.fact(&Fact { at: at(200), what: left, about: false });
        recent.fact(&Fact { about: true, ..granted("/a", 300, 9_999) });
        let what = What::Granted { contender: contender("/a"), waited: Duration::from_secs(9), found: true };
        recent.fact(&Fact { at: at(300), what, about: true });
        let past = recent.past("/a", 10);
        assert_eq!((past.grants, past.waits), (101, Some((510, 1_000))));
        assert_eq!(recent.waited().collect::<Vec<_>>(), [(&"/a".into(), 50_500 + 7_000)]);
        assert_eq!(recent.past("/b", 10).waits, None);
        recent.forget_old(at(3_600_000 + 250));
        let past = recent.past("/a", 10);
        assert_eq!((past.grants, past.waits), (1, None), "one grant is left, and its wait is not known");
    }

    #[test]
    fn a_busy_lock_does_not_take_the_place_of_a_quiet_one() {
        let mut recent = Recent::default();
        recent.fact(&ended("/quiet", 1));
        for number in 0..60_000 {
            recent.fact(&ended("/busy", 10 + number));
        }
        assert_eq!(recent.past("/quiet", 10).holds.len(), 1);
        assert_eq!(recent.past("/quiet", 10).holds_since_ms, i64::MIN);
        let past = recent.past("/busy", usize::MAX);
        assert_eq!((past.holds.len(), past.holds_since_ms), (HOLDS.each, 10 + 60_000 - HOLDS.each as i64 - 1));
        // A part of them is known for a shorter time.
        let past = recent.past("/busy", 2);
        assert_eq!((past.holds.len(), past.holds_since_ms), (2, 10 + 60_000 - 3));
        assert!(recent.holds.order.len() <= 2 * HOLDS.all);
    }

    #[test]
    fn all_locks_together_are_bounded_and_the_oldest_go_first() {
        let mut recent = Recent::default();
        for number in 0..HOLDS.all as i64 + 10 {
            recent.fact(&ended(&format!("/{number}"), number));
        }
        assert_eq!((recent.holds.kept, recent.holds.of.len()), (HOLDS.all, HOLDS.all));
        assert_eq!(recent.past("/9", 1).holds, []);
        // Nobody knows what the locks did before.
        assert_eq!(recent.past("/10", 1).holds_since_ms, 9);
        recent.forget_old(at(i64::from(u32::MAX)));
        assert_eq!((recent.holds.kept, recent.holds.of.len(), recent.holds.order.len()), (0, 0, 0));
    }

    #[test]
    fn gaps_are_kept_as_long_as_they_reach_into_the_last_hour() {
        let mut recent = Recent::default();
        let what = What::Gap { root: "/locks".into(), since: at(5), cause: super::super::fact::GapCause::Disconnected };
        recent.fact(&Fact { at: at(60), what, about: false });
        recent.forget_old(at(3_600_059));
        assert_eq!(recent.gaps().count(), 1);
        recent.forget_old(at(3_600_060));
        assert_eq!(recent.gaps().count(), 0);
    }
}
