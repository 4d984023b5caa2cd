//! Counts the holds and preemptions of one lock object and, if requested, adds them to the fleet's counters.
//!
//! Counting takes a mutex and an addition; publishing is a separate task after the event. Neither delays an acquire or
//! a release. Counts that arrive while a write is under way go with the next one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::error::SessionError;
use lockkeeper::hold::Group;
use tokio::sync::watch;

use crate::protocol::{Measurement, Statistics};
use crate::published;

/// The counters of one lock object and its clones.
#[derive(Clone)]
pub(super) struct Recorder {
    /// The lock's group in metrics.
    pub(super) group: Group,
    counts: Arc<Counts>,
    /// If the counters are published: the handle and the lock's path.
    publish: Option<(Lockkeeper, String)>,
}

#[derive(Default)]
struct Counts {
    all: Mutex<Counted>,
    /// Whether a write is under way.
    writing: watch::Sender<bool>,
}

#[derive(Default)]
struct Counted {
    seen: Statistics,
    /// The counts that are not published yet.
    unsent: Statistics,
}

impl Recorder {
    pub(super) fn new(group: Group) -> Self {
        #[cfg(feature = "metrics")]
        crate::meters::describe();
        Recorder { group, counts: Arc::default(), publish: None }
    }

    pub(super) fn publish(&mut self, keeper: Lockkeeper, path: String) {
        self.publish = Some((keeper, path));
    }

    pub(super) fn seen(&self) -> Statistics {
        self.counts.all.lock().expect("held for a copy only").seen.clone()
    }

    /// Counts an event of this owner.
    pub(super) fn record(&self, owner: &str, event: Measurement) {
        tell(&self.group, owner, event);
        {
            let mut all = self.counts.all.lock().expect("held for an addition only");
            all.seen.record(owner, event);
            if self.publish.is_some() {
                all.unsent.record(owner, event);
            }
        }
        self.send();
    }

    /// Starts to write the unpublished counts, unless a write is under way.
    fn send(&self) {
        let Some((keeper, path)) = self.publish.clone() else { return };
        if self.counts.writing.send_replace(true) {
            return;
        }
        let counts = self.counts.clone();
        let sessions = keeper.sessions().clone();
        sessions.spawn(async move {
            loop {
                let unsent = std::mem::take(&mut counts.all.lock().expect("held for a swap only").unsent);
                if !unsent.is_empty()
                    && let Err(error) = published::add(&keeper, &path, &unsent).await
                {
                    tracing::warn!(%path, %error, "counters could not be published; they go with the next event");
                    counts.all.lock().expect("held for an addition only").unsent.merge(&unsent);
                    counts.writing.send_replace(false);
                    return;
                }
                // Under the mutex: an event that is counted now is either seen here, or finds that no write is under
                // way.
                let all = counts.all.lock().expect("held for a look only");
                if all.unsent.is_empty() {
                    counts.writing.send_replace(false);
                    return;
                }
            }
        });
    }

    /// Waits until all counts are written; `false` if some cannot be written, or not within `timeout`.
    pub(super) async fn flush(&self, keeper: &Lockkeeper, timeout: Duration) -> bool {
        if self.counts.all.lock().expect("held for a look only").unsent.is_empty() && !*self.counts.writing.borrow() {
            return true;
        }
        self.send();
        let mut writing = self.counts.writing.subscribe();
        let counts = self.counts.clone();
        let waited = keeper.sessions().run(async move {
            // An error means that no task will write any more.
            let written = tokio::time::timeout(timeout, writing.wait_for(|writing| !writing)).await;
            Ok::<_, SessionError>(
                matches!(written, Ok(Ok(_))) && counts.all.lock().expect("held for a look only").unsent.is_empty(),
            )
        });
        waited.await.unwrap_or(false)
    }
}

/// Passes an event to this process's metrics recorder.
#[cfg(feature = "metrics")]
fn tell(group: &Group, owner: &str, event: Measurement) {
    use crate::meters as names;
    use crate::protocol::{PreemptionOutcome, owner_class};
    use metrics::{SharedString, histogram};
    let owner = SharedString::from(owner_class(owner));
    match event {
        Measurement::Hold { held_ms, lease_ms, overran } => {
            let overran = if overran { "true" } else { "false" };
            let labels = group.with([("owner", owner.clone()), ("overran", overran.into())]);
            histogram!(names::LEASE_HELD, labels).record(Duration::from_millis(held_ms));
            histogram!(names::LEASE, group.with([("owner", owner)])).record(Duration::from_millis(lease_ms));
        }
        Measurement::Cleanup { real_ms, allotted_ms, finished } => {
            let in_time = match finished {
                true if real_ms <= allotted_ms => "true",
                true => "false",
                false => "cut_off",
            };
            let labels = group.with([("owner", owner), ("in_time", in_time.into())]);
            histogram!(names::CLEANUP, labels).record(Duration::from_millis(real_ms));
        }
        Measurement::Preemption { waited_ms, outcome } => {
            let outcome = match outcome {
                PreemptionOutcome::InTime => "in_time",
                PreemptionOutcome::Late => "late",
                PreemptionOutcome::Forced => "forced",
                PreemptionOutcome::Refused => "refused",
            };
            let labels = group.with([("owner", owner), ("outcome", outcome.into())]);
            histogram!(names::PREEMPTION_WAIT, labels).record(Duration::from_millis(waited_ms));
        }
    }
}

#[cfg(not(feature = "metrics"))]
fn tell(_group: &Group, _owner: &str, _event: Measurement) {}

/// One hold, counted when it ends.
pub(super) struct HoldAccount {
    recorder: Recorder,
    owner: String,
    begun: Duration,
    lease_ms: u64,
}

impl HoldAccount {
    pub(super) fn open(recorder: Recorder, owner: &str, now: Duration, lease_ms: i64) -> Self {
        let lease_ms = u64::try_from(lease_ms).unwrap_or(0);
        HoldAccount { recorder, owner: owner.to_owned(), begun: now, lease_ms }
    }

    /// A new lease has begun.
    pub(super) fn renewed(&mut self, now: Duration, lease_ms: i64) {
        self.lease_ms = self.since(now).saturating_add(u64::try_from(lease_ms).unwrap_or(0));
    }

    pub(super) fn close(self, now: Duration, overran: bool) {
        let (held_ms, lease_ms) = (self.since(now), self.lease_ms);
        self.recorder.record(&self.owner, Measurement::Hold { held_ms, lease_ms, overran });
    }

    fn since(&self, now: Duration) -> u64 {
        millis(now.saturating_sub(self.begun))
    }
}

/// One cleanup, counted when it ends.
pub(super) struct CleanupAccount {
    recorder: Recorder,
    owner: String,
    /// When the owner was first asked to make room, by the session's clock.
    asked: Duration,
    allotted_ms: u64,
}

impl CleanupAccount {
    pub(super) fn open(recorder: Recorder, owner: &str, asked: Duration, allotted_ms: i64) -> Self {
        let allotted_ms = u64::try_from(allotted_ms).unwrap_or(0);
        CleanupAccount { recorder, owner: owner.to_owned(), asked, allotted_ms }
    }

    /// `finished` is whether the cleanup is done, and not cut off by the loss of the lock.
    pub(super) fn close(self, now: Duration, finished: bool) {
        let (real_ms, allotted_ms) = (millis(now.saturating_sub(self.asked)), self.allotted_ms);
        self.recorder.record(&self.owner, Measurement::Cleanup { real_ms, allotted_ms, finished });
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use crate::protocol::PreemptionOutcome;
    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder as Exporter, SharedString, Unit};

    use super::*;

    /// What an exporter receives: each histogram's name and labels.
    #[derive(Default)]
    struct Seen(Mutex<Vec<String>>);

    impl Exporter for Seen {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            self.0.lock().expect("nobody panics while it is held").push(format!("{} {}", key.name(), labels.join(" ")));
            Histogram::noop()
        }
    }

    /// H-72, H-74: counts also appear as metrics, labelled by group and owner.
    #[test]
    fn counts_appear_as_metrics() {
        let seen = Seen::default();
        metrics::with_local_recorder(&seen, || {
            let recorder = Recorder::new(Group::named("batches"));
            recorder.record("x", Measurement::Hold { held_ms: 1, lease_ms: 2, overran: false });
            recorder.record("x", Measurement::Cleanup { real_ms: 3, allotted_ms: 2, finished: true });
            recorder.record("x", Measurement::Cleanup { real_ms: 2, allotted_ms: 2, finished: true });
            recorder.record("x", Measurement::Cleanup { real_ms: 1, allotted_ms: 2, finished: false });
            recorder.record("x", Measurement::Preemption { waited_ms: 4, outcome: PreemptionOutcome::Forced });
        });
        let told = seen.0.into_inner().unwrap();
        assert_eq!(
            told,
            [
                "lockkeeper_lease_held_seconds group=batches owner=x overran=false",
                "lockkeeper_lease_seconds group=batches owner=x",
                "lockkeeper_cleanup_seconds group=batches owner=x in_time=false",
                "lockkeeper_cleanup_seconds group=batches owner=x in_time=true",
                "lockkeeper_cleanup_seconds group=batches owner=x in_time=cut_off",
                "lockkeeper_preemption_wait_seconds group=batches owner=x outcome=forced",
            ]
        );
    }
}
