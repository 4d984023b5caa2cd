//! The handle itself: how it is asked, and what may be passed to it.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::error::{AcquireError, SessionError};
use lockkeeper::guard::UpgradeableGuard;
use lockkeeper::{DistributedLock, Guard, Holding, LockPath, Lockkeeper, WriteGuard};
use lockkeeper_helix::HelixLock;

use super::on_every_server;
use crate::support::{PATIENCE, STEADY, World, misused};

on_every_server!(
    a_path_may_be_given_in_every_form,
    a_check_proves_the_session_and_names_it,
    a_check_says_why_no_server_answers,
    a_guard_converts_to_a_weaker_one_and_still_holds,
    a_lazy_handle_waits_for_the_servers_within_each_calls_deadline,
    every_call_can_block_a_thread,
    an_acquire_of_every_kind_is_reported_in_the_callers_span,
);

/// Every kind of lock, and every question, takes a path as text or as a checked path. A bad one is an error of the call.
async fn a_path_may_be_given_in_every_form(world: &World) {
    let keeper = world.keeper().await;
    let text = world.lock();
    let path = LockPath::parse(&text).unwrap();
    keeper.mutex(text.as_str()).acquire().await.unwrap().release().await.unwrap();
    keeper.mutex(&text).acquire().await.unwrap().release().await.unwrap();
    keeper.mutex(text.clone()).acquire().await.unwrap().release().await.unwrap();
    keeper.mutex(&path).acquire().await.unwrap().release().await.unwrap();
    keeper.mutex(path.clone()).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(keeper.admin().show(&path).await.unwrap().path, text);
    let lease = Duration::from_secs(5);
    let leased = LockPath::parse(&world.path("leased")).unwrap();
    HelixLock::new(&keeper, &leased, lease).acquire().await.unwrap().release().await.unwrap();
    HelixLock::new(&keeper, leased, lease).acquire().await.unwrap().release().await.unwrap();

    let bad = String::from("no/slash");
    let refused = |result: Result<(), AcquireError>| assert_eq!(misused(&result), Some("path"), "{result:?}");
    refused(keeper.mutex(&bad).acquire().await.map(drop));
    refused(keeper.rwlock(bad.clone()).read().acquire().await.map(drop));
    refused(keeper.semaphore(&bad, 2).acquire().await.map(drop));
    refused(keeper.priority_lock(&bad).background().acquire().await.map(drop));
    refused(DistributedLock::new(&keeper, &bad, "a").lock().await);
    let leased = HelixLock::new(&keeper, &bad, lease).acquire().await;
    assert_eq!(misused(&leased), Some("path"), "{leased:?}");
    refused(keeper.multi_lock([keeper.mutex(&bad).acquire()]).await.map(drop));
}

/// The id is that of the session which holds the locks.
async fn a_check_proves_the_session_and_names_it(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let shown = keeper.admin().show(world.lock()).await.unwrap();
    let session = keeper.check().await.unwrap();
    assert_eq!((session, Some(session)), (shown.holders[0].session, keeper.session_id()));
    guard.release().await.unwrap();
    keeper.close().await;
    assert!(matches!(keeper.check().await, Err(SessionError::Closed)));
    assert_eq!(keeper.session_id(), None);
}

async fn a_check_says_why_no_server_answers(world: &World) {
    let proxy = world.proxy().await;
    let patience = Duration::from_millis(500);
    let builder = Lockkeeper::builder().connect_timeout(patience).session_timeout(STEADY);
    let keeper = builder.connect(&proxy.connect_string()).await.unwrap();
    world.keep_open(&keeper);
    proxy.black_hole();
    match keeper.check().await {
        Err(SessionError::Unreachable { waited, .. }) => assert!(waited >= patience, "{waited:?}"),
        other => panic!("a silent server answered: {other:?}"),
    }
    proxy.heal();
    keeper.check().await.unwrap();
}

async fn a_guard_converts_to_a_weaker_one_and_still_holds(world: &World) {
    let keeper = world.keeper().await;
    let lock = keeper.rwlock(world.lock());
    let writer: WriteGuard = lock.write().acquire().await.unwrap();
    let token = writer.token();
    let guard = Guard::from(writer);
    assert!(guard.token() == token && i64::from(token) == token.get());
    assert!(matches!(lock.read().try_acquire().await, Err(AcquireError::Held { .. })), "it still writes alone");
    Holding::from(guard).release().await.unwrap();
    let reader: UpgradeableGuard = lock.upgradeable().acquire().await.unwrap();
    let guard = Guard::from(reader);
    assert!(guard.is_held());
    guard.release().await.unwrap();
    let permit = keeper.semaphore(world.path("permits"), 1).acquire().await.unwrap();
    assert_eq!(Holding::from(permit).fencing_token(), None);
    let leased = HelixLock::new(&keeper, world.path("leased"), Duration::from_secs(5)).acquire().await.unwrap();
    let token = leased.token();
    assert_eq!(Holding::from(Guard::from(leased)).fencing_token(), Some(token));
}

/// The servers come up long after the connect timeout.
async fn a_lazy_handle_waits_for_the_servers_within_each_calls_deadline(world: &World) {
    let proxy = world.proxy().await;
    proxy.refuse();
    let patience = Duration::from_millis(200);
    let builder = Lockkeeper::builder().connect_timeout(patience).session_timeout(STEADY);
    let keeper = builder.connect_lazy(&proxy.connect_string()).unwrap();
    world.keep_open(&keeper);
    assert_eq!(keeper.session_id(), None);
    let waiting = crate::support::spawn(world.mutex(&keeper).acquire().timeout(PATIENCE).into_future());
    let (short, none) = (world.mutex(&keeper).acquire().timeout(patience * 2), world.mutex(&keeper).acquire());
    let (short, none) = tokio::join!(short.into_future(), none.into_future());
    for (outcome, limit) in [(short, patience * 2), (none, patience)] {
        match outcome {
            Err(AcquireError::Session(SessionError::Unreachable { waited, .. })) => {
                assert!(waited >= limit && waited < PATIENCE, "{waited:?}")
            }
            other => panic!("no server listens: {other:?}"),
        }
    }
    assert!(!waiting.is_finished());
    proxy.heal();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(keeper.session_id().is_some());
}

async fn every_call_can_block_a_thread(world: &World) {
    let keeper = world.keeper().await;
    let (path, leased) = (world.lock(), world.path("leased"));
    let blocking = move || {
        let guard = keeper.block_on(keeper.mutex(&path).acquire()).unwrap();
        keeper.block_on(guard.verify()).unwrap();
        assert_eq!(keeper.block_on(keeper.admin().show(&path)).unwrap().holders.len(), 1);
        guard.release_blocking().unwrap();
        let leased = HelixLock::new(&keeper, leased, Duration::from_secs(5));
        keeper.block_on(leased.acquire()).unwrap().release_blocking().unwrap();
        let writer = keeper.rwlock(&path).upgradeable().acquire().wait().unwrap().upgrade().wait().unwrap();
        writer.downgrade_blocking().unwrap().release_blocking().unwrap();
    };
    tokio::task::spawn_blocking(blocking).await.unwrap();
}

/// Collects the events of the library, each with its level and the name of the span that it is in.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Collected>>);

#[derive(Default)]
struct Collected {
    spans: Vec<&'static str>,
    entered: Vec<u64>,
    events: Vec<String>,
}

impl tracing::Subscriber for Events {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let mut collected = self.0.lock().unwrap();
        collected.spans.push(span.metadata().name());
        tracing::span::Id::from_u64(collected.spans.len() as u64)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() != "waited_ms" {
                    self.0.push_str(&format!(" {field}={value:?}"));
                }
            }
        }
        let mut collected = self.0.lock().unwrap();
        let span = collected.entered.last().map_or("", |id| collected.spans[*id as usize - 1]);
        let mut text = Text(format!("{span} {}:", event.metadata().level()));
        event.record(&mut text);
        collected.events.push(text.0);
    }

    fn enter(&self, span: &tracing::span::Id) {
        self.0.lock().unwrap().entered.push(span.into_u64());
    }

    fn exit(&self, _: &tracing::span::Id) {
        self.0.lock().unwrap().entered.pop();
    }
}

async fn an_acquire_of_every_kind_is_reported_in_the_callers_span(world: &World) {
    use tracing::Instrument as _;

    let (keeper, events) = (world.keeper().await, Events::default());
    // While there is only one subscriber, tracing asks that of the thread that comes first to an event: another test's
    // thread, which has none, would turn the event off for all. A second subscriber prevents that.
    let _second = tracing::Dispatch::new(Events::default());
    let _collecting = tracing::subscriber::set_default(events.clone());
    let path = world.lock();
    let calls = async {
        let guard = keeper.mutex(&path).acquire().await.unwrap();
        keeper.mutex(&path).try_acquire().await.unwrap_err();
        let permit = keeper.semaphore(world.path("permits"), 1).acquire().await.unwrap();
        let leased = HelixLock::new(&keeper, world.path("leased"), PATIENCE).acquire().await.unwrap();
        (guard, permit, leased)
    };
    let (guard, _permit, leased) = calls.instrument(tracing::info_span!("nightly")).await;
    let seen = events.0.lock().unwrap().events.clone();
    let acquired: Vec<_> = seen.into_iter().filter(|event| event.contains("message=acquired")).collect();
    let event = |path: &str, mode: &str, token: &str| {
        format!("nightly DEBUG: message=acquired path={path:?} mode={mode:?}{token}")
    };
    assert_eq!(
        acquired,
        [
            event(&path, "exclusive", &format!(" token={}", guard.token())),
            event(&world.path("permits"), "permits", ""),
            event(&world.path("leased"), "lease", &format!(" token={}", leased.token())),
        ]
    );
}
