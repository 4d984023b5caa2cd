//! Rules that raise alerts about locks. Without I/O and without a clock.
//!
//! Each rule holds for some locks, trees or rings. The state says when a rule begins or stops to hold without another event. So one
//! deadline is enough for all rules.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::fact::Moment;
use super::tracker::Since;

/// Maximum changes that a rule counts.
const MAX_CHANGES: u32 = 10_000;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A hold is older than this.
    Held(Duration),
    /// A waiter has waited for longer than this.
    Waits(Duration),
    /// A lock was granted more often than this in this time.
    Changes {
        /// How often.
        count: u32,
        /// In which time.
        per: Duration,
    },
    /// Contenders wait for each other in a ring. The program searches for rings, and tells
    /// [`Observation::set_deadlocks`](crate::watch::Observation::set_deadlocks).
    Deadlock,
    /// Changes are not seen.
    Gap,
}

/// A text that is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no rule: write held>1h, waits>10m, changes>10/h, deadlock or gap")]
pub struct InvalidRule {
    /// The text.
    pub text: String,
}

impl FromStr for Rule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let time = |text: &str| humantime::parse_duration(text).ok().filter(|time| !time.is_zero());
        let rule = match text.split_once('>').map(|(what, limit)| (what.trim(), limit.trim())) {
            None if text == "deadlock" => Some(Rule::Deadlock),
            None if text == "gap" => Some(Rule::Gap),
            Some(("held", limit)) => time(limit).map(Rule::Held),
            Some(("waits", limit)) => time(limit).map(Rule::Waits),
            Some(("changes", limit)) => limit.split_once('/').and_then(|(count, per)| {
                let count = count.parse().ok().filter(|count| *count <= MAX_CHANGES)?;
                // `10/h` is in one hour.
                let per =
                    if per.starts_with(|c: char| c.is_ascii_digit()) { time(per) } else { time(&format!("1{per}")) };
                Some(Rule::Changes { count, per: per? })
            }),
            _ => None,
        };
        rule.ok_or_else(|| InvalidRule { text: text.to_owned() })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Held(limit) => write!(f, "held>{}", humantime::format_duration(*limit)),
            Rule::Waits(limit) => write!(f, "waits>{}", humantime::format_duration(*limit)),
            Rule::Changes { count, per } => write!(f, "changes>{count}/{}", humantime::format_duration(*per)),
            Rule::Deadlock => f.write_str("deadlock"),
            Rule::Gap => f.write_str("gap"),
        }
    }
}

/// A rule begins or stops to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alert {
    /// The rule.
    #[serde(serialize_with = "as_text")]
    pub rule: Rule,
    /// The lock, the tree or the ring for which it holds.
    pub subject: Arc<str>,
    /// Whether it begins to hold.
    pub firing: bool,
    /// How often the lock was granted in the time of the rule, if the rule counts that and begins to hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grants: Option<usize>,
    /// When.
    #[serde(rename = "at_ms", serialize_with = "wall")]
    pub at: Moment,
}

fn as_text<S: serde::Serializer>(rule: &Rule, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(rule)
}

fn wall<S: serde::Serializer>(moment: &Moment, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(moment.wall_ms)
}

/// Whether a rule holds for a subject, and when that changes without another event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Level {
    holds: bool,
    flips_at: Option<i64>,
}

type Key = (usize, Arc<str>);

/// The rules, and for what they hold.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    levels: BTreeMap<Key, Level>,
    flips: BTreeSet<(i64, Key)>,
    /// The times of the newest grants, for rules that count them.
    grants: HashMap<Key, VecDeque<i64>>,
    alerts: Vec<Alert>,
}

impl Rules {
    /// Creates them. None of them holds yet.
    pub(super) fn new(rules: Vec<Rule>) -> Self {
        Rules { rules, ..Rules::default() }
    }

    /// Notes the oldest holder and the oldest waiter of a lock.
    pub(super) fn see(&mut self, lock: &Arc<str>, since: Since, now: Moment) {
        for at in 0..self.rules.len() {
            let (oldest, limit) = match self.rules[at] {
                Rule::Held(limit) => (since.held, limit),
                Rule::Waits(limit) => (since.waiting, limit),
                Rule::Changes { .. } | Rule::Deadlock | Rule::Gap => continue,
            };
            let flips_at = oldest.map(|oldest| oldest.ms.saturating_add(millis(limit)).saturating_add(1));
            self.set((at, lock.clone()), Level { holds: false, flips_at }, now);
        }
    }

    /// Notes that a lock was granted.
    pub(super) fn granted(&mut self, lock: &Arc<str>, at: Moment) {
        for rule in 0..self.rules.len() {
            let Rule::Changes { count, per } = self.rules[rule] else { continue };
            let key = (rule, lock.clone());
            let grants = self.grants.entry(key.clone()).or_default();
            grants.push_back(at.ms);
            while grants.len() > count as usize + 1 {
                grants.pop_front();
            }
            let oldest = grants.front().copied().filter(|_| grants.len() > count as usize);
            // It holds from now until the oldest of these grants is too old.
            let level = match oldest.map(|oldest| oldest.saturating_add(millis(per))).filter(|until| *until > at.ms) {
                Some(until) => Level { holds: true, flips_at: Some(until) },
                None => Level::default(),
            };
            self.set(key, level, at);
        }
    }

    /// Notes whether changes of a tree are seen.
    pub(super) fn see_gap(&mut self, root: &Arc<str>, is_blind: bool, now: Moment) {
        self.set_all(Rule::Gap, root, is_blind, now);
    }

    /// Notes whether there is a ring of contenders, by a text that names it.
    pub(super) fn see_deadlock(&mut self, ring: &Arc<str>, exists: bool, now: Moment) {
        self.set_all(Rule::Deadlock, ring, exists, now);
    }

    fn set_all(&mut self, rule: Rule, subject: &Arc<str>, holds: bool, now: Moment) {
        for at in 0..self.rules.len() {
            if self.rules[at] == rule {
                self.set((at, subject.clone()), Level { holds, flips_at: None }, now);
            }
        }
    }

    fn set(&mut self, key: Key, mut level: Level, now: Moment) {
        if level.flips_at.is_some_and(|at| at <= now.ms) {
            level = Level { holds: !level.holds, flips_at: None };
        }
        let before = self.levels.get(&key).copied().unwrap_or_default();
        if before.flips_at != level.flips_at {
            if let Some(at) = before.flips_at {
                self.flips.remove(&(at, key.clone()));
            }
            if let Some(at) = level.flips_at {
                self.flips.insert((at, key.clone()));
            }
        }
        if before.holds != level.holds {
            let (rule, subject) = (self.rules[key.0], key.1.clone());
            let grants = self.grants.get(&key).filter(|_| level.holds).map(VecDeque::len);
            self.alerts.push(Alert { rule, subject, firing: level.holds, grants, at: now });
        }
        if level == Level::default() {
            self.levels.remove(&key);
        } else {
            self.levels.insert(key, level);
        }
    }

    /// When a rule begins or stops to hold without another event, in milliseconds since the observer's start.
    pub(super) fn deadline(&self) -> Option<i64> {
        self.flips.first().map(|(at, _)| *at)
    }

    /// Takes the alerts until now.
    pub(super) fn take(&mut self, now: Moment) -> Vec<Alert> {
        while let Some((at, key)) = self.flips.first().filter(|(at, _)| *at <= now.ms).cloned() {
            let holds = self.levels.get(&key).is_some_and(|level| level.holds);
            self.set(key, Level { holds, flips_at: Some(at) }, now);
        }
        std::mem::take(&mut self.alerts)
    }

    /// The rules that hold now, with their subjects.
    pub(super) fn firing(&self) -> impl Iterator<Item = (Rule, &Arc<str>)> {
        self.levels.iter().filter(|(_, level)| level.holds).map(|((rule, subject), _)| (self.rules[*rule], subject))
    }

    /// Forgets the grants of locks that were not granted for long. Call it now and then: the memory is bounded by the grants since.
    pub(super) fn forget_old(&mut self, now: Moment) {
        let rules = &self.rules;
        self.grants.retain(|(rule, _), grants| match (rules[*rule], grants.back()) {
            (Rule::Changes { per, .. }, Some(last)) => now.ms - last <= millis(per),
            _ => false,
        });
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Moment {
        Moment { ms, wall_ms: ms }
    }

    fn told(alerts: &[Alert]) -> Vec<(String, &str, bool, i64)> {
        alerts.iter().map(|alert| (alert.rule.to_string(), &*alert.subject, alert.firing, alert.at.ms)).collect()
    }

    #[test]
    fn rules_are_read_as_they_are_printed() {
        for text in ["held>1h", "waits>10m", "changes>10/1h", "changes>3/5m", "deadlock", "gap"] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        assert_eq!("changes>10/h".parse(), Ok(Rule::Changes { count: 10, per: Duration::from_secs(3600) }));
        for bad in [
            "",
            "held",
            "held>",
            "held>0s",
            "held>x",
            "changes>10",
            "changes>x/h",
            "changes>10/",
            "gap>1s",
            "changes>99999/h",
        ] {
            assert!(bad.parse::<Rule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_long_hold_raises_one_alert_which_ends_with_the_hold() {
        let (mut rules, lock) = (Rules::new(vec!["held>1s".parse().unwrap()]), Arc::from("/a"));
        let held = |from| Since { held: Some(at(from)), ..Since::default() };
        rules.see(&lock, held(100), at(100));
        assert_eq!(rules.deadline(), Some(1_101));
        assert!(rules.take(at(1_100)).is_empty());
        assert_eq!(told(&rules.take(at(1_101))), [("held>1s".to_owned(), "/a", true, 1_101)]);
        rules.see(&lock, held(100), at(1_200));
        assert!(rules.take(at(9_000)).is_empty(), "it was told");
        assert_eq!(rules.deadline(), None);
        rules.see(&lock, held(9_000), at(9_000));
        assert_eq!(told(&rules.take(at(9_000))), [("held>1s".to_owned(), "/a", false, 9_000)]);
        assert_eq!(told(&rules.take(at(10_001))), [("held>1s".to_owned(), "/a", true, 10_001)]);
        rules.see(&lock, Since::default(), at(10_002));
        assert_eq!(told(&rules.take(at(10_002))), [("held>1s".to_owned(), "/a", false, 10_002)]);
        assert!(rules.levels.is_empty() && rules.flips.is_empty());
    }

    #[test]
    fn many_grants_in_a_short_time_raise_an_alert_until_they_are_old() {
        let (mut rules, lock) = (Rules::new(vec!["changes>2/1s".parse().unwrap()]), Arc::from("/a"));
        [0, 100].into_iter().for_each(|ms| rules.granted(&lock, at(ms)));
        assert!(rules.take(at(100)).is_empty());
        rules.granted(&lock, at(900));
        let alerts = rules.take(at(900));
        assert_eq!(told(&alerts), [("changes>2/1s".to_owned(), "/a", true, 900)]);
        assert_eq!(alerts[0].grants, Some(3));
        // The three newest are now from 100 on.
        rules.granted(&lock, at(950));
        assert_eq!(rules.deadline(), Some(1_100));
        assert_eq!(told(&rules.take(at(1_100))), [("changes>2/1s".to_owned(), "/a", false, 1_100)]);
        // Two of them count on.
        rules.granted(&lock, at(1_150));
        assert_eq!(told(&rules.take(at(1_150))), [("changes>2/1s".to_owned(), "/a", true, 1_150)]);
    }

    #[test]
    fn a_gap_raises_an_alert_at_once() {
        let (mut rules, root) = (Rules::new(vec![Rule::Gap]), Arc::from("/locks"));
        rules.see_gap(&root, true, at(5));
        rules.see_gap(&root, true, at(6));
        assert_eq!(told(&rules.take(at(6))), [("gap".to_owned(), "/locks", true, 5)]);
        rules.see_gap(&root, false, at(7));
        assert_eq!(told(&rules.take(at(7))), [("gap".to_owned(), "/locks", false, 7)]);
    }

    #[test]
    fn old_grants_are_forgotten() {
        let mut rules = Rules::new(vec!["changes>5/1s".parse().unwrap()]);
        rules.granted(&Arc::from("/a"), at(0));
        rules.granted(&Arc::from("/b"), at(900));
        rules.forget_old(at(1_500));
        assert_eq!(rules.grants.len(), 1);
    }
}
