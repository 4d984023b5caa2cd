//! An exporter for this whole process: tests run side by side, so each one names a group of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// What was reported to one series, in this order: additions to a counter or a gauge, and a histogram's values.
#[derive(Default)]
struct Series(Mutex<Vec<f64>>);

impl Series {
    fn add(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _: u64) {
        panic!("the library only adds");
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        panic!("handles share the gauge, so each only adds and subtracts");
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

/// What the library has said of a metric: its kind, its unit, and what it is.
pub(crate) type Described = (&'static str, Option<Unit>, String);

#[derive(Clone, Default)]
pub(crate) struct Exporter {
    series: Arc<Mutex<BTreeMap<String, Arc<Series>>>>,
    described: Arc<Mutex<BTreeMap<String, Described>>>,
}

impl Exporter {
    fn of(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{} {}", key.name(), labels.join(" "));
        self.series.lock().unwrap().entry(name).or_default().clone()
    }

    fn say(&self, kind: &'static str, name: &KeyName, unit: Option<Unit>, what: &SharedString) {
        self.described.lock().unwrap().insert(name.as_str().to_owned(), (kind, unit, what.to_string()));
    }

    /// Returns the names of all series, each with its labels.
    pub(crate) fn names(&self) -> Vec<String> {
        self.series.lock().unwrap().keys().cloned().collect()
    }

    /// Returns what was reported to a series of this group; nothing if there is none.
    pub(crate) fn reported(&self, group: &str, metric: &str, labels: &str) -> Vec<f64> {
        let series = self.series.lock().unwrap().get(&format!("{metric} group={group} {labels}")).cloned();
        series.map(|series| series.0.lock().unwrap().clone()).unwrap_or_default()
    }

    pub(crate) fn described(&self) -> BTreeMap<String, Described> {
        self.described.lock().unwrap().clone()
    }
}

impl Recorder for Exporter {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, what: SharedString) {
        self.say("counter", &name, unit, &what);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, what: SharedString) {
        self.say("gauge", &name, unit, &what);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, what: SharedString) {
        self.say("histogram", &name, unit, &what);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.of(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.of(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.of(key))
    }
}

/// Returns this process's exporter. Ask for it before the handle is made.
pub(crate) fn exporter() -> Exporter {
    static EXPORTER: OnceLock<Exporter> = OnceLock::new();
    let install = || {
        let exporter = Exporter::default();
        metrics::set_global_recorder(exporter.clone()).expect("only this function sets it");
        exporter
    };
    EXPORTER.get_or_init(install).clone()
}

/// Returns the name of a group that no other test uses.
pub(crate) fn group() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("group-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
