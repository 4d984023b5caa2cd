//! Waits and holds as spans of `tracing`, and their links to the traces of other processes. In simulated time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::Class;
use lockkeeper::error::AcquireError;
use lockkeeper_testkit::sim::Sim;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Instrument as _, Subscriber, info_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::support::{Kind, misused, simulated, simulated_keeper as keeper};

const LOCK: &str = "/locks/traced";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn traceparent() -> String {
    format!("00-{TRACE}-{SPAN}-01")
}

/// A span as a subscriber sees it.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    parent: Option<&'static str>,
    fields: BTreeMap<&'static str, String>,
    closed: bool,
}

impl Seen {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    fn end(&self) -> (Option<&str>, bool) {
        (self.field("end"), self.closed)
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

#[derive(Default)]
struct Collected {
    spans: Vec<Seen>,
    open: HashMap<u64, usize>,
}

/// Collects the spans of this thread.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Collected>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let parent = context.span(id).and_then(|span| span.parent()).map(|parent| parent.name());
        let mut seen = Seen { name: attributes.metadata().name(), parent, ..Seen::default() };
        attributes.record(&mut seen);
        let mut collected = self.0.lock().unwrap();
        let at = collected.spans.len();
        collected.open.insert(id.into_u64(), at);
        collected.spans.push(seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut collected = self.0.lock().unwrap();
        let at = collected.open[&id.into_u64()];
        values.record(&mut collected.spans[at]);
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut collected = self.0.lock().unwrap();
        let at = collected.open.remove(&id.into_u64()).unwrap();
        collected.spans[at].closed = true;
    }
}

impl Spans {
    /// The spans of this name, in the order of their begin.
    fn named(&self, name: &str) -> Vec<Seen> {
        self.0.lock().unwrap().spans.iter().filter(|seen| seen.name == name).cloned().collect()
    }

    fn last(&self, name: &str) -> Seen {
        self.named(name).pop().unwrap()
    }
}

/// Runs a claim with a subscriber for all spans of the simulation, which runs on this thread.
fn traced(claim: impl AsyncFnOnce(Sim, Spans)) {
    // With one subscriber, tracing would ask that of the thread that comes first to a span: see `interfaces::handle`.
    let _second = tracing::Dispatch::new(Registry::default());
    let spans = Spans::default();
    let _collecting = tracing::subscriber::set_default(Registry::default().with(spans.clone()));
    simulated(async |sim| claim(sim, spans).await);
}

#[test]
fn a_wait_and_its_hold_are_spans_in_that_of_the_caller() {
    traced(async |sim, spans| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let first = far.mutex(LOCK).acquire().await.unwrap();
        let waiting = async move { near.mutex(LOCK).acquire().await.unwrap() };
        let waiter = crate::support::spawn(waiting.instrument(info_span!("nightly")));
        sleep(Duration::from_secs(3)).await;
        let wait = spans.last("lock.wait");
        assert_eq!((wait.parent, wait.end()), (Some("nightly"), (None, false)));
        assert_eq!((wait.field("lock"), wait.field("mode")), (Some(LOCK), Some("exclusive")));
        first.release().await.unwrap();
        let guard = waiter.await.unwrap();
        let wait = spans.last("lock.wait");
        assert_eq!((wait.end(), wait.field("error")), ((Some("granted"), true), None));
        assert!(wait.field("waited_ms").unwrap().parse::<u64>().unwrap() >= 2_900, "{wait:?}");
        let hold = spans.last("lock.hold");
        assert_eq!(hold.parent, Some("nightly"));
        assert_eq!((hold.field("lock"), hold.field("mode")), (Some(LOCK), Some("exclusive")));
        assert_eq!((hold.field("node"), hold.end()), (Some(&*guard.node()), (None, false)));
        assert_eq!(hold.field("token"), Some(&*guard.token().to_string()));
        guard.release().await.unwrap();
        assert_eq!(spans.last("lock.hold").end(), (Some("released"), true));
        assert!(spans.0.lock().unwrap().open.is_empty(), "a span is left");
    });
}

#[test]
fn every_kind_of_queue_has_both_spans() {
    traced(async |sim, spans| {
        let keeper = keeper(&sim);
        let class = Class::new("B").unwrap();
        let requests = [
            keeper.mutex("/locks/a").acquire().any(),
            keeper.rwlock("/locks/b").read().acquire().any(),
            keeper.rwlock("/locks/c").write().acquire().any(),
            keeper.semaphore("/locks/d", 2).acquire().any(),
            keeper.priority_lock("/locks/e").class(class).acquire().any(),
        ];
        for request in requests {
            drop(request.await.unwrap());
        }
        for name in ["lock.wait", "lock.hold"] {
            let modes: Vec<_> = spans.named(name).iter().map(|seen| seen.fields["mode"].clone()).collect();
            assert_eq!(modes, ["exclusive", "read", "write", "permits", "class"], "{name}");
        }
        assert!(spans.named("lock.hold").iter().all(|hold| hold.end() == (Some("released"), true)));
    });
}

#[test]
fn each_use_of_a_kept_hold_is_a_span() {
    traced(async |sim, spans| {
        let mutex = keeper(&sim).mutex(LOCK).keep();
        for uses in 1..=3 {
            let guard = mutex.acquire().await.unwrap();
            assert_eq!(spans.last("lock.hold").end(), (None, false));
            guard.release().await.unwrap();
            let ends: Vec<_> = spans.named("lock.hold").iter().map(|hold| hold.end().1).collect();
            assert_eq!(ends, vec![true; uses]);
        }
        mutex.release_kept().await.unwrap();
    });
}

/// The attempt goes on until its node is deleted, but its caller waits no longer.
#[test]
fn a_dropped_future_closes_its_span() {
    traced(async |sim, spans| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let guard = far.mutex(LOCK).acquire().await.unwrap();
        let waiter = near.mutex(LOCK).acquire().into_future();
        assert!(tokio::time::timeout(Duration::from_secs(2), waiter).await.is_err());
        let wait = spans.last("lock.wait");
        assert_eq!((wait.end(), wait.field("waited_ms")), ((Some("dropped"), true), Some("2000")));
        assert_eq!(spans.named("lock.hold").len(), 1, "a hold without a guard");
        guard.release().await.unwrap();
    });
}

#[test]
fn a_wait_that_fails_says_why() {
    traced(async |sim, spans| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let guard = far.mutex(LOCK).acquire().await.unwrap();
        let error = near.mutex(LOCK).acquire().timeout(Duration::from_secs(1)).await.unwrap_err();
        let wait = spans.last("lock.wait");
        assert_eq!((wait.end(), wait.field("error")), ((Some("failed"), true), Some(&*error.to_string())));
        guard.release().await.unwrap();
    });
}

/// Also while the guard is still there.
#[test]
fn a_lost_hold_closes_its_span_with_the_loss() {
    traced(async |sim, spans| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let guard = near.mutex(LOCK).acquire().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        far.admin().break_lock(LOCK, "for a test").await.unwrap();
        guard.lost().await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(spans.last("lock.hold").end(), (Some("removed"), true));
        guard.release().await.unwrap_err();
        assert_eq!(spans.last("lock.hold").end(), (Some("removed"), true));
    });
}

#[test]
fn a_waiter_names_the_span_of_the_contender_ahead() {
    traced(async |sim, spans| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let guard = far.mutex(LOCK).acquire().traceparent(traceparent()).await.unwrap();
        let holder = far.admin().show(LOCK).await.unwrap().holders.remove(0);
        assert_eq!(holder.traceparent.map(|traceparent| traceparent.to_string()), Some(traceparent()));
        let link = |wait: &Seen| {
            [wait.field("holder.trace_id").map(str::to_owned), wait.field("holder.span_id").map(str::to_owned)]
        };
        let linked = [Some(TRACE.to_owned()), Some(SPAN.to_owned())];

        near.mutex(LOCK).try_acquire().await.unwrap_err();
        assert_eq!(link(&spans.last("lock.wait")), linked, "a try");
        let waiter = crate::support::spawn(near.mutex(LOCK).acquire().into_future());
        sleep(Duration::from_secs(1)).await;
        let wait = spans.last("lock.wait");
        assert_eq!((link(&wait), wait.end()), (linked, (None, false)), "while it waits");

        guard.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        // Its own caller has no trace.
        near.mutex("/locks/free").acquire().await.unwrap().release().await.unwrap();
        far.mutex(LOCK).try_acquire().await.unwrap_err();
        assert_eq!(link(&spans.last("lock.wait")), [None, None]);
        guard.release().await.unwrap();
    });
}

/// Counts the requests of a hold, and of a wait for it in another process.
async fn cycle(sim: &Sim, traces: bool) -> BTreeMap<&'static str, u64> {
    let (near, far) = (keeper(sim), keeper(sim));
    let request = |keeper: &lockkeeper::Lockkeeper| {
        let request = Kind::Native.mutex(keeper, LOCK).acquire();
        if traces { request.traceparent(traceparent()) } else { request }
    };
    for keeper in [&near, &far] {
        keeper.mutex("/locks/first").acquire().await.unwrap().release().await.unwrap();
    }
    let before = sim.requests();
    let guard = request(&far).await.unwrap();
    let waiter = crate::support::spawn(request(&near).into_future());
    sleep(Duration::from_millis(400)).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    let grown = sim.requests().into_iter().map(|(op, count)| (op, count - before.get(op).unwrap_or(&0)));
    grown.filter(|(op, count)| *count > 0 && *op != "ping").collect()
}

#[test]
fn neither_a_subscriber_nor_a_traceparent_costs_a_request() {
    let counts = Mutex::new(Vec::new());
    simulated(async |sim| {
        let count = cycle(&sim, false).await;
        counts.lock().unwrap().push(count);
    });
    for traces in [false, true] {
        traced(async |sim, spans| {
            let count = cycle(&sim, traces).await;
            assert_eq!(spans.named("lock.wait").iter().any(|wait| wait.field("holder.span_id").is_some()), traces);
            counts.lock().unwrap().push(count);
        });
    }
    let counts = counts.into_inner().unwrap();
    assert!(counts[0]["create"] >= 2, "{counts:?}");
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
}

#[test]
fn a_bad_traceparent_is_refused_before_anything_is_sent() {
    simulated(async |sim| {
        let keeper = keeper(&sim);
        let before = sim.requests();
        let outcome = keeper.mutex(LOCK).acquire().traceparent("00-7-1-01\x1b[2J").await;
        assert_eq!(misused(&outcome), Some("traceparent"));
        let Err(AcquireError::Misuse(misuse)) = outcome else { panic!("no misuse") };
        assert_eq!(
            misuse.to_string(),
            r#""00-7-1-01\u{1b}[2J" is not a traceparent of W3C Trace Context, for /locks/traced"#
        );
        assert!(misuse.hint().unwrap().contains("32, 16 and 2"), "{misuse:?}");
        assert_eq!(sim.requests(), before);
    });
}
