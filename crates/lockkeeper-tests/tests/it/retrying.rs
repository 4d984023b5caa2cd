//! Background work that is retried, and becomes a dead letter when all attempts fail.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::error::{AcquireError, Error, Mismatch, SessionError};
use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_contentserv::{MonitorError, MonitorLock};
use lockkeeper_helix::AcquireLeaseError;
use lockkeeper_letters::retry::{Cause, GivenUp, Kept, NotGranted, Operation, Retrying, RunError};
use lockkeeper_letters::{FileSink, Filed, Letter, Sink, fold};
use serde_json::json;
use tempfile::TempDir;
use zookeeper_client as zk;

use crate::interfaces::on_every_server;
use crate::support::{PATIENCE, STEADY, World, eventually, on_the_embedded_server};

on_every_server!(
    an_operation_that_is_never_granted_is_retried_as_configured_and_kept_once,
    between_attempts_there_is_no_node,
    an_operation_that_succeeds_on_a_retry_leaves_no_dead_letter,
    a_lock_call_is_one_attempt,
    an_invalid_operation_is_neither_retried_nor_kept,
    a_dead_letter_that_cannot_be_kept_is_reported,
    work_that_makes_way_is_no_failed_attempt_and_leaves_no_dead_letter,
    work_that_made_way_is_dropped_when_its_later_hold_is_lost,
);

on_the_embedded_server!(an_ended_session_is_retried, work_that_started_is_never_retried);

const SHORT: Duration = Duration::from_millis(100);

/// An object of one claim, its node, and a directory for its dead letters.
struct Scene {
    object: String,
    path: String,
    dir: TempDir,
}

impl Scene {
    fn new(world: &World) -> Self {
        let object = world.object("P1");
        Scene { path: format!("/{object}"), object, dir: tempfile::tempdir().unwrap() }
    }

    fn sink(&self) -> Arc<FileSink> {
        Arc::new(FileSink::new(self.dir.path().join("letters.jsonl")))
    }

    /// Removes the node when the last attempt has left it, which can be after the caller's error.
    async fn end(self, world: &World) {
        eventually("all contenders have left", async || world.children(&self.path).await.is_empty()).await;
        world.remove(&self.path).await;
    }

    async fn letters(&self) -> Vec<Filed> {
        let read = self.sink().records().await.unwrap();
        assert_eq!(read.unreadable, Vec::<String>::new());
        fold(read.records)
    }
}

/// C-45, C-47: 1 + 2 attempts, then one dead letter with everything that a replay needs; the work did not start.
async fn an_operation_that_is_never_granted_is_retried_as_configured_and_kept_once(world: &World) {
    let scene = Scene::new(world);
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let holder = MonitorLock::new("Save Content", &other, &scene.object);
    holder.lock().await.unwrap();
    let lock = MonitorLock::new("Bulk Propagation", &keeper, &scene.object).background().task_timeout(SHORT * 8);
    let retrying = Retrying::new(&keeper, 2).delay(Duration::from_millis(10)).dead_letters(scene.sink());
    let operation = Operation::new("op-1").payload(json!({ "price": 7 }));
    let work = lock.run_locked(async { panic!("the protected code runs") });
    let outcome = retrying.run(&operation, lock.about(), || lock.lock_with_timeout(), work).await;
    let Err(RunError::GivenUp(GivenUp { error: MonitorError::InstanceLock { .. }, attempts: 3, letter, .. })) = outcome
    else {
        panic!("{outcome:?}");
    };
    assert!(matches!(letter, Kept::In(ref name) if *name == scene.sink().name()), "{letter:?}");
    let letters = scene.letters().await;
    assert_eq!(letters.len(), 1);
    let Letter { operation, monitor_object, path, lock_info, class, payload, attempts, error, behind, .. } =
        &letters[0].letter;
    assert_eq!((operation.as_str(), monitor_object, path, attempts), ("op-1", &scene.object, &scene.path, &3));
    assert_eq!(
        (lock_info.as_deref(), class.as_deref(), payload),
        (Some("Bulk Propagation"), Some("B"), &json!({ "price": 7 }))
    );
    assert_eq!(error, "InstanceLock");
    assert!(behind.as_ref().is_some_and(|behind| behind.contains("Save Content")), "{behind:?}");
    let Letter { first_ms, last_ms, waited_ms, .. } = letters[0].letter;
    assert!((2400..=last_ms - first_ms).contains(&waited_ms), "{waited_ms} of {}", last_ms - first_ms);
    holder.unlock().await.unwrap();
    scene.end(world).await;
}

/// C-46: each attempt has its own node, and there are never two.
async fn between_attempts_there_is_no_node(world: &World) {
    let scene = Scene::new(world);
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let holder = MonitorLock::new("holder", &other, &scene.object);
    holder.lock().await.unwrap();
    let lock = MonitorLock::new("bulk", &keeper, &scene.object).background().task_timeout(SHORT * 4);
    let retrying = Retrying::new(&keeper, 2).delay(SHORT * 3);
    // Receives each create and delete of a node in order.
    let mut watcher = world.observer.watch(&scene.path).await.unwrap();
    let operation = Operation::unique();
    let seen = async {
        let mut seen = Vec::new();
        while seen.len() < 6 {
            let zk::WatchedEvent { event_type, path, .. } = watcher.changed().await;
            if path.rsplit_once('/').is_some_and(|(_, name)| name.starts_with("B-"))
                && matches!(event_type, zk::EventType::NodeCreated | zk::EventType::NodeDeleted)
            {
                seen.push((event_type, path));
            }
        }
        seen
    };
    let (outcome, seen) = tokio::join!(
        retrying.lock(&operation, lock.about(), || lock.lock_with_timeout()),
        tokio::time::timeout(PATIENCE, seen)
    );
    assert!(outcome.is_err());
    let seen = seen.expect("three attempts");
    for attempt in seen.chunks(2) {
        let [(zk::EventType::NodeCreated, came), (zk::EventType::NodeDeleted, went)] = attempt else {
            panic!("two attempts at a time: {seen:?}");
        };
        assert_eq!(came, went);
    }
    let nodes: HashSet<_> = seen.iter().map(|(_, path)| path).collect();
    assert_eq!(nodes.len(), 3, "{seen:?}");
    drop(watcher);
    eventually("no other node was created", async || world.children(&scene.path).await.len() == 2).await;
    holder.unlock().await.unwrap();
    scene.end(world).await;
}

/// C-48: granted in the second attempt, it leaves no dead letter.
async fn an_operation_that_succeeds_on_a_retry_leaves_no_dead_letter(world: &World) {
    let scene = Scene::new(world);
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let mut holder = Some(other.priority_lock(&scene.path).acquire().await.unwrap());
    let retrying = Retrying::new(&keeper, 5).delay(Duration::from_millis(1)).dead_letters(scene.sink());
    let asked = AtomicU32::new(0);
    let lock = keeper.priority_lock(&scene.path).background();
    let operation = Operation::unique();
    let guard = retrying.acquire(&operation, || match asked.fetch_add(1, Ordering::Relaxed) {
        // The first attempt fails.
        0 => lock.acquire().timeout(SHORT),
        _ => {
            drop(holder.take());
            lock.acquire().timeout(STEADY)
        }
    });
    let guard = guard.await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert_eq!((asked.into_inner(), scene.letters().await), (2, vec![]));
    scene.end(world).await;
}

/// C-49: one create and one delete; a caller that wants another attempt calls again.
async fn a_lock_call_is_one_attempt(world: &World) {
    let scene = Scene::new(world);
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let holder = MonitorLock::new("holder", &other, &scene.object);
    holder.lock().await.unwrap();
    let changes = async || world.observer.check_stat(&scene.path).await.unwrap().unwrap().cversion;
    let before = changes().await;
    let lock = MonitorLock::new("bulk", &keeper, &scene.object).background().task_timeout(SHORT);
    assert!(matches!(lock.lock_with_timeout().await, Err(MonitorError::InstanceLock { .. })));
    // The timeout may pass before the node is created.
    let left = async || changes().await - before >= 2 && world.children(&scene.path).await.len() == 2;
    eventually("its request is deleted", left).await;
    assert_eq!(changes().await - before, 2);
    holder.unlock().await.unwrap();
    scene.end(world).await;
}

async fn an_invalid_operation_is_neither_retried_nor_kept(world: &World) {
    let scene = Scene::new(world);
    let keeper = world.keeper().await;
    let retrying = Retrying::new(&keeper, 5).dead_letters(scene.sink());
    let lock = MonitorLock::new("x", &keeper, "");
    let outcome = retrying.lock(&Operation::unique(), lock.about(), || lock.lock_with_timeout()).await;
    assert!(matches!(outcome, Err(GivenUp { attempts: 1, letter: Kept::Nowhere, .. })), "{outcome:?}");
    let outcome = retrying.acquire(&Operation::unique(), || keeper.mutex("no path").acquire()).await;
    assert!(matches!(outcome, Err(GivenUp { error: AcquireError::Misuse(_), attempts: 1, .. })), "{outcome:?}");
    assert_eq!(scene.letters().await, []);
}

async fn a_dead_letter_that_cannot_be_kept_is_reported(world: &World) {
    let scene = Scene::new(world);
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let holder = other.mutex(&scene.path).acquire().await.unwrap();
    // A directory cannot be appended to.
    let sink = Arc::new(FileSink::new(scene.dir.path()));
    let retrying = Retrying::new(&keeper, 0).dead_letters(sink);
    let refused = retrying.acquire(&Operation::unique(), || keeper.mutex(&scene.path).try_acquire()).await.unwrap_err();
    assert!(matches!(refused.letter, Kept::Failed(_)), "{refused:?}");
    assert!(refused.to_string().contains("not even kept: dead letters cannot be kept in file:"), "{refused}");
    holder.release().await.unwrap();
    scene.end(world).await;
}

/// C-45: an attempt that needs another session is retried in one.
async fn an_ended_session_is_retried(world: &World) {
    let scene = Scene::new(world);
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let holder = MonitorLock::new("holder", &other, &scene.object);
    holder.lock().await.unwrap();
    let lock = MonitorLock::new("bulk", &keeper, &scene.object).background().task_timeout(STEADY);
    let retrying = Retrying::new(&keeper, 1).delay(Duration::from_millis(1)).dead_letters(scene.sink());
    let waits = async |count: usize| {
        eventually("the attempt waits", async || {
            let names = world.children(&scene.path).await;
            names.len() == 3 && names.iter().any(|name| name.starts_with("B-") && *name >= format!("B-{count:010}"))
        })
        .await;
        world.keeper().await.admin().show(&scene.path).await.unwrap().waiters.remove(0)
    };
    let operation = Operation::unique();
    let (outcome, ()) = tokio::join!(retrying.lock(&operation, lock.about(), || lock.lock_with_timeout()), async {
        let first = waits(0).await;
        assert!(world.embedded().faults().expire(first.session.0).await.unwrap());
        let number: usize = first.node["B-".len()..].parse().unwrap();
        waits(number + 1).await;
        holder.unlock().await.unwrap();
    });
    outcome.unwrap();
    lock.unlock().await.unwrap();
    assert_eq!(scene.letters().await, []);
    scene.end(world).await;
}

/// C-34, C-45: a loss during the work stops the work; it is neither run again nor recorded as never started.
async fn work_that_started_is_never_retried(world: &World) {
    let scene = Scene::new(world);
    let keeper = world.keeper().await;
    let lock = MonitorLock::new("bulk", &keeper, &scene.object).background();
    let retrying = Retrying::new(&keeper, 5).delay(Duration::from_millis(1)).dead_letters(scene.sink());
    let begun = AtomicU32::new(0);
    let work = async {
        begun.fetch_add(1, Ordering::Relaxed);
        let shown = world.keeper().await.admin().show(&scene.path).await.unwrap();
        assert!(world.embedded().faults().expire(shown.holders[0].session.0).await.unwrap());
        std::future::pending::<()>().await;
    };
    let outcome =
        retrying.run(&Operation::unique(), lock.about(), || lock.lock_with_timeout(), lock.run_locked(work)).await;
    assert!(matches!(outcome, Err(RunError::Lost(MonitorError::SessionExpired { .. }))), "{outcome:?}");
    assert_eq!((begun.into_inner(), scene.letters().await), (1, vec![]));
    scene.end(world).await;
}

/// Locks in the foreground as soon as `bulk` holds, for a moment, and returns when `bulk` has made way and holds again.
async fn make_way(bulk: &MonitorLock, save: MonitorLock) {
    let saved = crate::support::spawn(async move { save.run(async {}).await });
    eventually("the background is asked", async || bulk.should_yield()).await;
    bulk.yield_lock().await.unwrap();
    saved.await.unwrap().expect("the foreground did not get the lock within its timeout");
}

/// The one attempt was granted, however often it makes way.
async fn work_that_makes_way_is_no_failed_attempt_and_leaves_no_dead_letter(world: &World) {
    let scene = Scene::new(world);
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let lock = MonitorLock::new("bulk", &keeper, &scene.object).background().min_hold(Duration::ZERO);
    let retrying = Retrying::new(&keeper, 0).dead_letters(scene.sink());
    let work = async {
        let first = lock.token();
        for _ in 0..2 {
            make_way(&lock, MonitorLock::new("save", &other, &scene.object)).await;
        }
        assert!(lock.is_held() && lock.token() > first);
        42
    };
    let outcome =
        retrying.run(&Operation::unique(), lock.about(), || lock.lock_with_timeout(), lock.run_locked(work)).await;
    assert!(matches!(outcome, Ok(42)), "{outcome:?}");
    assert!(scene.letters().await.is_empty());
    scene.end(world).await;
}

async fn work_that_made_way_is_dropped_when_its_later_hold_is_lost(world: &World) {
    let scene = Scene::new(world);
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let lock = MonitorLock::new("bulk", &keeper, &scene.object).background().min_hold(Duration::ZERO);
    let retrying = Retrying::new(&keeper, 2).dead_letters(scene.sink());
    let work = async {
        make_way(&lock, MonitorLock::new("save", &other, &scene.object)).await;
        for node in world.children(&scene.path).await {
            world.remove(&format!("{}/{node}", scene.path)).await;
        }
        std::future::pending::<()>().await;
    };
    let operation = Operation::unique();
    let outcome = retrying.run(&operation, lock.about(), || lock.lock_with_timeout(), lock.run_locked(work));
    let outcome = tokio::time::timeout(PATIENCE, outcome).await.expect("the work goes on without the lock");
    assert!(matches!(outcome, Err(RunError::Lost(MonitorError::NoNode { .. }))), "{outcome:?}");
    assert!(scene.letters().await.is_empty());
    scene.end(world).await;
}

/// A service spawns its background work.
#[test]
fn retried_work_under_a_monitor_lock_can_be_spawned() {
    fn spawned<T: Send>(_: impl FnOnce() -> T) {}
    async fn work(keeper: Lockkeeper) {
        let lock = MonitorLock::new("Bulk Propagation", &keeper, "P1");
        let (retrying, operation) = (Retrying::new(&keeper, 5), Operation::new("propagation"));
        let work = lock.run_locked(async {});
        _ = retrying.run(&operation, lock.about(), || lock.lock_with_timeout(), work).await;
    }
    let keeper: Option<Lockkeeper> = None;
    spawned(|| keeper.map(work));
}

/// C-45, C-47: a letter names the reason by the specification, whether the caller has the lock's own error or one of the library.
#[test]
fn a_products_error_has_the_cause_of_the_error_that_it_comes_from() {
    let (text, path) = (|| "Bulk Propagation".to_owned(), || "/P1".to_owned());
    let lost = |loss| Box::new(AcquireError::SessionLost { path: path(), loss }.into());
    let (monitor_object, lock_info) = (path, text);
    let of_monitor_lock = [
        (
            MonitorError::InstanceLock {
                monitor_object: monitor_object(),
                lock_info: lock_info(),
                source: Box::new(AcquireError::Held { path: path(), holder: None, ahead: None }),
            },
            Cause::InstanceLock,
        ),
        (
            MonitorError::SessionExpired {
                monitor_object: monitor_object(),
                lock_info: lock_info(),
                source: lost(Loss::SessionExpired),
            },
            Cause::SessionExpired,
        ),
        (
            MonitorError::ConnectionLoss {
                monitor_object: monitor_object(),
                lock_info: lock_info(),
                source: Box::new(SessionError::ConnectionLost { path: path() }.into()),
            },
            Cause::ConnectionLoss,
        ),
        (
            MonitorError::Other {
                monitor_object: monitor_object(),
                lock_info: lock_info(),
                source: Box::new(AcquireError::from(Mismatch::NotARecord { path: path(), problem: text() }).into()),
            },
            Cause::Mistake,
        ),
    ];
    for (error, cause) in of_monitor_lock {
        assert_eq!(error.cause(), cause, "{error:?}");
        assert_eq!(Error::from(error).cause(), cause);
    }
    let of_leased_lock = [
        (
            AcquireLeaseError::Outranked { path: path(), by: text(), priority: 1, message: None, lease_left: None },
            Some(text()),
        ),
        (AcquireLeaseError::Preempted { path: path(), by: text(), priority: 1 }, Some(text())),
        (AcquireLeaseError::Timeout { path: path(), waited: SHORT }, None),
    ];
    for (error, behind) in of_leased_lock {
        assert!(error.cause().is_passing(), "{error:?}");
        assert_eq!((error.behind(), Error::from(error).behind()), (behind.clone(), behind));
    }
}
