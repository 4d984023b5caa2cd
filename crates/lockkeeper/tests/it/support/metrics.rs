//! Collects the names and labels of the metrics that this thread reports.

use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn add(&self, key: &Key) {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        self.0.lock().unwrap().push(format!("{} {}", key.name(), labels.join(" ")));
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.add(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.add(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.add(key);
        Histogram::noop()
    }
}

/// Collects on this thread until the test ends; the function returns what was seen so far.
pub(crate) fn collect() -> impl Fn() -> Vec<String> {
    let seen: &'static Seen = Box::leak(Box::default());
    std::mem::forget(metrics::set_default_local_recorder(seen));
    || seen.0.lock().unwrap().clone()
}
