//! The metrics of every kind of lock: their names, units and labels. Without the feature `metrics`, nothing is reported.
//!
//! No label is a path: a program with a lock for each article would get a series for each. The program names a group instead.

use lockkeeper_core::Loss;
#[cfg(feature = "metrics")]
use metrics::{Label, SharedString};

pub(crate) use self::reports::{Waiting, describe};

/// The group that the program has chosen for some of its locks, if it has.
#[derive(Clone, Debug, Default)]
pub struct Group(#[cfg(feature = "metrics")] Option<SharedString>);

#[cfg(feature = "metrics")]
impl Group {
    /// Creates the group of this name.
    pub fn named(name: impl Into<String>) -> Self {
        // All requests and holds of the group share the text.
        Group(Some(SharedString::from_shared(std::sync::Arc::from(name.into()))))
    }

    /// These labels and, if there is one, the group.
    pub fn with<const N: usize>(&self, labels: [(&'static str, SharedString); N]) -> Vec<Label> {
        let group = self.0.clone().map(|name| ("group", name));
        group.into_iter().chain(labels).map(|(key, value)| Label::new(key, value)).collect()
    }
}

/// The name of a loss, as JSON has it.
pub(crate) fn label(loss: Loss) -> String {
    let label = serde_json::to_value(loss).ok().and_then(|label| label.as_str().map(str::to_owned));
    label.unwrap_or_default()
}

/// Reports a request for a lock, and its hold.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// What was requested, as [`ContenderInfo::mode`](crate::admin::ContenderInfo::mode) names it.
    pub(crate) mode: &'static str,
    #[cfg(feature = "metrics")]
    pub(crate) group: Group,
}

impl Meter {
    /// Reports requests of this mode, in this group.
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables, reason = "only metrics have groups"))]
    pub fn new(mode: &'static str, group: &Group) -> Self {
        Meter {
            mode,
            #[cfg(feature = "metrics")]
            group: group.clone(),
        }
    }
}

#[cfg(feature = "metrics")]
mod reports {
    use std::time::Duration;

    use lockkeeper_core::Loss;
    use metrics::{
        Gauge, SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
    };

    use super::{Meter, label, names};

    /// Tells the exporter what each metric means, and its unit.
    pub(crate) fn describe() {
        describe_counter!(names::ACQUIRES, Unit::Count, "Calls that acquire a lock, by their outcome");
        describe_histogram!(names::ACQUIRE_WAIT, Unit::Seconds, "How long calls waited for the lock, by their outcome");
        describe_gauge!(names::WAITERS, Unit::Count, "Calls of this process that wait for a lock now");
        describe_histogram!(names::HOLD, Unit::Seconds, "How long locks were held, until the release or the loss");
        describe_counter!(names::LOSSES, Unit::Count, "Holds that ended without a release, by the reason");
    }

    impl Meter {
        /// A call waits for the lock until the result is dropped.
        pub(crate) fn waits(&self) -> Waiting {
            let waiters = gauge!(names::WAITERS, self.group.with([("mode", self.mode.into())]));
            waiters.increment(1);
            Waiting(waiters)
        }

        /// A call has ended, this long after its begin.
        pub(crate) fn answered(&self, outcome: &'static str, waited: Duration) {
            let labels = self.group.with([("mode", self.mode.into()), ("outcome", outcome.into())]);
            counter!(names::ACQUIRES, labels.clone()).increment(1);
            histogram!(names::ACQUIRE_WAIT, labels).record(waited);
        }

        /// A hold has ended, this long after its begin.
        pub(crate) fn held(&self, held: Duration) {
            histogram!(names::HOLD, self.group.with([("mode", self.mode.into())])).record(held);
        }

        /// A hold was lost.
        pub(crate) fn lost(&self, loss: Loss) {
            let reason = SharedString::from(label(loss));
            counter!(names::LOSSES, self.group.with([("mode", self.mode.into()), ("reason", reason)])).increment(1);
        }
    }

    /// A call that waits.
    pub(crate) struct Waiting(Gauge);

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.0.decrement(1);
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod reports {
    use std::time::Duration;

    use lockkeeper_core::Loss;

    use super::Meter;

    pub(crate) fn describe() {}

    impl Meter {
        pub(crate) fn waits(&self) -> Waiting {
            Waiting
        }

        pub(crate) fn answered(&self, _outcome: &'static str, _waited: Duration) {}

        pub(crate) fn held(&self, _held: Duration) {}

        pub(crate) fn lost(&self, _loss: Loss) {}
    }

    pub(crate) struct Waiting;
}

/// The names of the metrics.
#[cfg(feature = "metrics")]
pub(crate) mod names {
    pub(crate) const ACQUIRES: &str = "lockkeeper_acquires_total";
    pub(crate) const ACQUIRE_WAIT: &str = "lockkeeper_acquire_wait_seconds";
    pub(crate) const WAITERS: &str = "lockkeeper_waiters";
    pub(crate) const HOLD: &str = "lockkeeper_hold_seconds";
    pub(crate) const LOSSES: &str = "lockkeeper_losses_total";
}
