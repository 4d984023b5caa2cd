//! The metrics of an observation.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::fact::{Fact, GapCause, Moment, What};
use super::tracker::{Since, Totals};

/// Maximum locks that have series of their own.
const LOCKS: usize = 500;

/// The label of all other locks.
const OTHER: &str = "other";

/// The upper ends of the buckets, in seconds.
const BUCKETS: [f64; 14] =
    [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLock {
    lock: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfEnd {
    lock: String,
    end: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLoss {
    lock: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTree {
    root: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfGap {
    root: String,
    why: &'static str,
}

#[derive(Clone)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

type Durations = Family<OfLock, Histogram, Seconds>;
type SecondsNow = Gauge<f64, AtomicU64>;

/// Counts facts, and shows the state at each request.
pub(super) struct Metrics {
    registry: Registry,
    holds: Family<OfEnd, Counter>,
    losses: Family<OfLoss, Counter>,
    waits: Durations,
    held: Durations,
    gave_up: Family<OfLock, Counter>,
    gaps: Family<OfGap, Counter>,
    waiters: Family<OfLock, Gauge>,
    holders: Family<OfLock, Gauge>,
    oldest_wait: Family<OfLock, SecondsNow>,
    oldest_hold: Family<OfLock, SecondsNow>,
    garbage: Family<OfTree, Gauge>,
    empty: Family<OfTree, Gauge>,
    connected: Family<OfTree, Gauge>,
    left_out: Family<OfTree, Gauge>,
    deadlocks: Gauge,
    /// The locks that have series of their own.
    named: HashSet<Arc<str>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let durations = || Durations::new_with_constructor(Seconds);
        let metrics = Metrics {
            registry: Registry::with_prefix("lockkeeper"),
            holds: Family::default(),
            losses: Family::default(),
            waits: durations(),
            held: durations(),
            gave_up: Family::default(),
            gaps: Family::default(),
            waiters: Family::default(),
            holders: Family::default(),
            oldest_wait: Family::default(),
            oldest_hold: Family::default(),
            garbage: Family::default(),
            empty: Family::default(),
            connected: Family::default(),
            left_out: Family::default(),
            deadlocks: Gauge::default(),
            named: HashSet::new(),
        };
        metrics.registered()
    }
}

impl Metrics {
    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register("holds", "Holds that ended, by how they ended", self.holds.clone());
        registry.register("losses", "Holds that are known to have ended without a release", self.losses.clone());
        registry.register("wait_seconds", "How long contenders waited until the grant", self.waits.clone());
        registry.register("hold_seconds", "How long locks were held", self.held.clone());
        registry.register("gave_up", "Contenders that left the queue without the lock", self.gave_up.clone());
        registry.register("gaps", "Times during which changes were not seen", self.gaps.clone());
        registry.register("waiters", "Contenders that wait now", self.waiters.clone());
        registry.register("holders", "Contenders that hold the lock now", self.holders.clone());
        registry.register("oldest_wait_seconds", "How long the oldest waiter has waited", self.oldest_wait.clone());
        registry.register("held_seconds", "How long the oldest holder has held the lock", self.oldest_hold.clone());
        registry.register(
            "garbage",
            "Nodes without a session for which foreign clients may wait, until somebody deletes them",
            self.garbage.clone(),
        );
        registry.register(
            "deadlocks",
            "Rings of contenders that certainly or likely wait for each other",
            self.deadlocks.clone(),
        );
        registry.register("empty", "Nodes of locks without contenders", self.empty.clone());
        registry.register("observe_connected", "Whether changes of the tree are seen now", self.connected.clone());
        registry.register(
            "observe_left_out",
            "How often a lock or a contender was left out, because there were too many",
            self.left_out.clone(),
        );
        self
    }

    /// The value of the label: the path, or `other` if enough locks have series.
    fn label(&mut self, lock: &Arc<str>) -> String {
        if self.named.contains(lock) {
            return lock.to_string();
        }
        if self.named.len() < LOCKS {
            self.named.insert(lock.clone());
            return lock.to_string();
        }
        OTHER.to_owned()
    }

    /// Counts a fact. Times that are not exact are counted and not measured.
    pub(super) fn fact(&mut self, fact: &Fact) {
        match &fact.what {
            What::Entered { .. } | What::Stopped {} => {}
            What::Granted { contender, waited, .. } => {
                let lock = self.label(&contender.lock);
                if !fact.about {
                    self.waits.get_or_create(&OfLock { lock }).observe(waited.as_secs_f64());
                }
            }
            What::Ended { contender, held, how } => {
                let (lock, end) = (self.label(&contender.lock), how.word());
                self.holds.get_or_create(&OfEnd { lock: lock.clone(), end }).inc();
                if how.is_loss() {
                    self.losses.get_or_create(&OfLoss { lock: lock.clone(), reason: end }).inc();
                }
                if !fact.about {
                    self.held.get_or_create(&OfLock { lock }).observe(held.as_secs_f64());
                }
            }
            // It was counted when it ended.
            What::Explained { contender, how } => {
                let (lock, reason) = (self.label(&contender.lock), how.word());
                if how.is_loss() {
                    self.losses.get_or_create(&OfLoss { lock, reason }).inc();
                }
            }
            What::LeftWaiting { contender, .. } => {
                let lock = self.label(&contender.lock);
                self.gave_up.get_or_create(&OfLock { lock }).inc();
            }
            What::Gap { root, cause, .. } => {
                let why = match cause {
                    GapCause::Disconnected => "disconnected",
                    GapCause::Missed { .. } => "missed",
                    GapCause::NotRunning => "not_running",
                    GapCause::NotReached => "not_reached",
                };
                self.gaps.get_or_create(&OfGap { root: root.to_string(), why }).inc();
            }
        }
    }

    /// Forgets the state of the last request: it is shown again.
    pub(super) fn clear_state(&mut self) {
        self.waiters.clear();
        self.holders.clear();
        self.oldest_wait.clear();
        self.oldest_hold.clear();
    }

    /// Shows how many deadlocks there are now.
    pub(super) fn deadlocks(&self, count: usize) {
        self.deadlocks.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Shows a tree as it is now.
    pub(super) fn tree(&mut self, root: &Arc<str>, totals: Totals, is_connected: bool) {
        let of = OfTree { root: root.to_string() };
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.garbage.get_or_create(&of).set(number(totals.garbage));
        self.empty.get_or_create(&of).set(number(totals.empty));
        self.connected.get_or_create(&of).set(i64::from(is_connected));
        self.left_out.get_or_create(&of).set(i64::try_from(totals.left_out).unwrap_or(i64::MAX));
    }

    /// Shows a lock as it is now.
    pub(super) fn lock(&mut self, lock: &Arc<str>, since: Since, now: Moment) {
        let of = OfLock { lock: self.label(lock) };
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.waiters.get_or_create(&of).inc_by(number(since.waiters));
        self.holders.get_or_create(&of).inc_by(number(since.holders));
        for (family, oldest) in [(&self.oldest_wait, since.waiting), (&self.oldest_hold, since.held)] {
            let gauge = family.get_or_create(&of);
            let seconds = oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64());
            gauge.set(gauge.get().max(seconds));
        }
    }

    /// All of them as text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        _ = text::encode(&mut text, &self.registry);
        text
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("named", &self.named.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod monitoring;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::watch::{Contender, End};

    fn at(ms: i64) -> Moment {
        Moment { ms, wall_ms: ms }
    }

    fn ended(lock: &str, how: End, about: bool) -> Fact {
        let (who, message, session) = (None, None, None);
        let (node, mode) = (format!("{lock}/n").into(), "exclusive");
        let contender = Arc::new(Contender { lock: lock.into(), node, who, message, mode, session });
        Fact { at: at(0), what: What::Ended { contender, held: Duration::from_secs(2), how }, about }
    }

    #[test]
    fn only_the_first_locks_have_series_of_their_own() {
        let mut metrics = Metrics::default();
        for number in 0..LOCKS + 20 {
            metrics.fact(&ended(&format!("/locks/{number}"), End::Unknown, false));
        }
        let text = metrics.text();
        assert_eq!(text.lines().filter(|line| line.starts_with("lockkeeper_holds_total{")).count(), LOCKS + 1);
        assert!(text.contains("lockkeeper_holds_total{lock=\"other\",end=\"unknown\"} 20\n"), "{text}");
        // The state of the other locks is one series too.
        for waiters in [2, 3] {
            let since = Since { waiters, waiting: Some(at(-1_000 * waiters as i64)), ..Since::default() };
            metrics.lock(&format!("/more/{waiters}").into(), since, at(0));
        }
        let text = metrics.text();
        assert!(text.contains("lockkeeper_waiters{lock=\"other\"} 5\n"), "{text}");
        assert!(text.contains("lockkeeper_oldest_wait_seconds{lock=\"other\"} 3.0\n"), "{text}");
    }

    #[test]
    fn a_hold_of_which_the_begin_was_not_seen_is_counted_and_not_measured() {
        let mut metrics = Metrics::default();
        metrics.fact(&ended("/locks/a", End::SessionOver, true));
        let text = metrics.text();
        assert!(text.contains("lockkeeper_holds_total{lock=\"/locks/a\",end=\"session_over\"} 1\n"), "{text}");
        assert!(text.contains("lockkeeper_losses_total{lock=\"/locks/a\",reason=\"session_over\"} 1\n"), "{text}");
        assert!(!text.contains("hold_seconds_count"), "{text}");
        metrics.fact(&ended("/locks/a", End::Released, false));
        assert!(metrics.text().contains("lockkeeper_hold_seconds_bucket{le=\"3.0\",lock=\"/locks/a\"} 1\n"));
    }
}
