//! Contentserv's interface: the monitor lock and its four errors.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Loss;
use lockkeeper::error::{AcquireError, Error};
use lockkeeper_contentserv::{MonitorError, MonitorLock, TASK_TIMEOUT, TaskClasses};
use lockkeeper_testkit::proxy::OpCode;
use tokio::time::Instant;

use super::on_every_server;
use crate::support::{DELETES, STEADY, Stalls, World, eventually, on_the_embedded_server};

on_every_server!(
    a_monitor_lock_is_foreground_by_default,
    the_task_timeout_ends_the_wait_and_the_request,
    the_errors_have_types_and_name_the_object_and_the_owner,
    work_does_not_start_after_an_error,
    objects_with_slashes_are_locked_like_others,
    a_second_call_to_lock_a_monitor_is_refused_immediately,
    a_monitor_lock_of_the_background_makes_way_between_two_steps,
);

on_the_embedded_server!(
    an_ended_session_is_an_error_of_its_own,
    a_session_that_ends_during_the_unlock_is_an_error_of_its_own,
    a_lost_connection_is_an_error_of_its_own,
    a_holder_whose_request_is_deleted_sees_the_loss_before_its_marker_is_deleted,
);

/// Checks that an error of a monitor lock names the object and the lock info, and returns it.
#[track_caller]
fn named<T: std::fmt::Debug>(outcome: Result<T, MonitorError>, object: &str, lock_info: &str) -> MonitorError {
    let error = outcome.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("{object:?}")) && text.contains(&format!("{lock_info:?}")), "{text}");
    assert!(error.source().is_some(), "{text}");
    let (MonitorError::InstanceLock { monitor_object, lock_info: info, .. }
    | MonitorError::SessionExpired { monitor_object, lock_info: info, .. }
    | MonitorError::ConnectionLoss { monitor_object, lock_info: info, .. }
    | MonitorError::NoNode { monitor_object, lock_info: info, .. }
    | MonitorError::Other { monitor_object, lock_info: info, .. }) = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!((monitor_object.as_str(), info.as_str()), (object, lock_info));
    error
}

async fn children(world: &World, object: &str) -> Vec<String> {
    world.children(&format!("/{object}")).await
}

/// C-01, C-02, C-03, C-08: the class is in the node's name, and the owner's text in its data.
async fn a_monitor_lock_is_foreground_by_default(world: &World) {
    let keeper = world.keeper().await;
    let object = world.object("P1");
    let plain = MonitorLock::new("save P1", &keeper, &object);
    for (lock, letter) in [
        (plain, "A-"),
        (MonitorLock::new("save P1", &keeper, &object).foreground(), "A-"),
        (MonitorLock::new("save P1", &keeper, &object).background(), "B-"),
    ] {
        assert_eq!(lock.token(), None);
        lock.lock().await.unwrap();
        let names = children(world, &object).await;
        assert_eq!(names.iter().filter(|name| name.starts_with(letter)).count(), 1, "{names:?}");
        let shown = world.keeper().await.admin().show(&format!("/{object}")).await.unwrap();
        assert_eq!(shown.holders[0].message.as_deref(), Some("save P1"));
        assert!(lock.token().is_some() && lock.token() == shown.holders[0].token);
        lock.unlock().await.unwrap();
    }
    assert!(world.exists(&format!("/{object}")).await);
}

/// C-27, C-28, C-29: the timeout is 2 s by default in either class, and each lock can set its own; after the timeout the
/// request's node is deleted.
async fn the_task_timeout_ends_the_wait_and_the_request(world: &World) {
    let keeper = world.keeper().await;
    let object = world.object("P1");
    let holder = MonitorLock::new("holder", &keeper, &object);
    holder.lock().await.unwrap();
    let TaskClasses { foreground, background, .. } = TaskClasses::default();
    assert_eq!([TASK_TIMEOUT, foreground.timeout, background.timeout], [Duration::from_millis(2000); 3]);
    let (stalls, since) = (Stalls::watch(), Instant::now());
    let save = MonitorLock::new("save", &keeper, &object);
    let bulk = MonitorLock::new("bulk", &keeper, &object).background();
    let short = MonitorLock::new("short", &keeper, &object).background().task_timeout(Duration::from_millis(200));
    let ended = async |lock: MonitorLock| (lock.lock_with_timeout().await, since.elapsed());
    let (save, bulk, short) = tokio::join!(ended(save), ended(bulk), ended(short));
    for ((outcome, took), timeout) in [(save, 2000), (bulk, 2000), (short, 200)] {
        assert!(matches!(outcome, Err(MonitorError::InstanceLock { .. })), "{outcome:?}");
        let (timeout, late) = (Duration::from_millis(timeout), Duration::from_millis(100));
        assert!(took >= timeout && took < stalls.allow(timeout + late), "{took:?}, stalls of {:?}", stalls.longest());
    }
    eventually("only the holder's nodes are left", async || children(world, &object).await.len() == 2).await;
    holder.unlock().await.unwrap();
    let next = MonitorLock::new("next", &keeper, &object);
    let blocked = tokio::task::spawn_blocking(move || {
        next.lock_with_timeout_blocking().unwrap();
        assert!(next.is_held());
        next.unlock_blocking().unwrap();
        assert!(!next.is_held());
    });
    blocked.await.unwrap();
}

/// C-32, C-33: the errors differ by type, and each names the monitor object and the owner's text. A second unlock fails with
/// `NoNode`, and so does an unlock whose node was deleted.
async fn the_errors_have_types_and_name_the_object_and_the_owner(world: &World) {
    let keeper = world.keeper().await;
    let object = world.object("P1");
    let lock = MonitorLock::new("save P1", &keeper, &object).task_timeout(Duration::from_millis(50));
    let named = |outcome: Result<(), MonitorError>| named(outcome, &object, "save P1");
    assert!(matches!(named(lock.unlock().await), MonitorError::NoNode { .. }));
    lock.lock().await.unwrap();
    assert!(matches!(named(lock.lock().await), MonitorError::Other { .. }), "it would wait for itself");
    let other = MonitorLock::new("save P1", &keeper, &object).task_timeout(Duration::from_millis(50));
    assert!(matches!(named(other.lock_with_timeout().await), MonitorError::InstanceLock { .. }));
    // No time at all is a try.
    let tried = other.lock_with(|request| request.timeout(Duration::ZERO)).await;
    assert!(matches!(named(tried), MonitorError::InstanceLock { .. }));

    let node = children(world, &object).await.into_iter().find(|name| name.starts_with("A-")).unwrap();
    world.remove(&format!("/{object}/{node}")).await;
    eventually("the lock has noticed the loss", async || !lock.is_held()).await;
    assert!(matches!(named(lock.unlock().await), MonitorError::NoNode { .. }));
    assert!(matches!(named(lock.unlock().await), MonitorError::NoNode { .. }));
    eventually("no child is left", async || children(world, &object).await.is_empty()).await;
}

/// C-34: the work does not run.
async fn work_does_not_start_after_an_error(world: &World) {
    let keeper = world.keeper().await;
    let object = world.object("P1");
    let lock = MonitorLock::new("a", &keeper, &object);
    let other = MonitorLock::new("b", &keeper, &object).task_timeout(Duration::from_millis(100));
    let outcome = lock
        .run(async {
            let refused = other.run(async { panic!("two in the protected code") }).await;
            assert!(matches!(refused, Err(MonitorError::InstanceLock { .. })), "{refused:?}");
            7
        })
        .await;
    assert_eq!(outcome.unwrap(), 7);
    let patient = other.task_timeout(STEADY);
    assert_eq!(patient.run(async { 8 }).await.unwrap(), 8);
}

/// C-04: equal objects share a node, different objects never do, whatever characters their names contain.
async fn objects_with_slashes_are_locked_like_others(world: &World) {
    let keeper = world.keeper().await;
    let base = world.object("P");
    let numbered =
        format!("A-{:010}", base.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31) + u32::from(byte)) >> 2);
    let names = [format!("{base}/1"), format!("{base}%2F1"), format!("{base}-1"), base.clone(), numbered.clone()];
    let locks: Vec<_> = names.iter().map(|name| Arc::new(MonitorLock::new("x", &keeper, name))).collect();
    for lock in &locks {
        lock.lock_with_timeout().await.unwrap();
    }
    for name in &names {
        let again = MonitorLock::new("y", &keeper, name).task_timeout(Duration::from_millis(50));
        assert!(matches!(again.lock_with_timeout().await, Err(MonitorError::InstanceLock { .. })), "{name}");
    }
    for lock in &locks {
        lock.unlock().await.unwrap();
    }
    for name in ["%2F1", "%252F1", "-1", ""] {
        world.remove(&format!("/{base}{name}")).await;
    }
    // An object whose name looks like a request's node.
    world.remove(&format!("/{}", numbered.replacen('A', "%41", 1))).await;
    let empty = MonitorLock::new("x", &keeper, "").lock().await;
    assert!(matches!(empty, Err(MonitorError::Other { .. })), "{empty:?}");
}

/// A second `lock` on an object that waits for its lock is refused; when the first call ends, the object can be locked again.
async fn a_second_call_to_lock_a_monitor_is_refused_immediately(world: &World) {
    let keeper = world.keeper().await;
    let object = world.object("P1");
    let holder = MonitorLock::new("holds", &keeper, &object);
    let lock = MonitorLock::new("waits", &keeper, &object);
    let refused = |outcome: Result<(), MonitorError>| match outcome {
        Err(MonitorError::Other { source, .. }) => {
            assert!(matches!(*source, Error::Acquire(AcquireError::AlreadyHeld { .. })), "{source}");
        }
        other => panic!("{other:?}"),
    };
    let (first, second) = tokio::join!(holder.lock(), holder.lock_with_timeout());
    first.unwrap();
    refused(second);
    let mut waiting = Box::pin(lock.lock());
    tokio::select! {
        outcome = &mut waiting => panic!("the lock is held: {outcome:?}"),
        () = eventually("the lock is in the queue", async || children(world, &object).await.len() == 3) => {}
    }
    refused(lock.lock_with_timeout().await);
    drop(waiting);
    holder.unlock().await.unwrap();
    lock.lock().await.unwrap();
    lock.unlock().await.unwrap();
}

/// C-30, C-33: while waiting, and on unlock after the hold was lost with its session.
async fn an_ended_session_is_an_error_of_its_own(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let other = world.keeper().await;
    let object = world.object("P1");
    let held = MonitorLock::new("held", &keeper, &object);
    held.lock().await.unwrap();
    let session = world.embedded();
    let waiting = Arc::new(MonitorLock::new("waits", &other, &object));
    let wait = crate::support::spawn({
        let waiting = waiting.clone();
        async move { waiting.lock().await }
    });
    eventually("the lock is in the queue", async || children(world, &object).await.len() == 3).await;
    let shown = world.keeper().await.admin().show(&format!("/{object}")).await.unwrap();
    assert!(session.faults().expire(shown.waiters[0].session.0).await.unwrap());
    let error = named(wait.await.unwrap(), &object, "waits");
    assert!(matches!(error, MonitorError::SessionExpired { .. }), "{error:?}");
    // The same while the connection is broken: the server reports the end when the client reconnects.
    proxy.black_hole();
    assert!(session.faults().expire(shown.holders[0].session.0).await.unwrap());
    proxy.heal();
    eventually("the lock has noticed the loss", async || !held.is_held()).await;
    let error = named(held.unlock().await, &object, "held");
    assert!(matches!(error, MonitorError::SessionExpired { .. }), "{error:?}");
}

/// C-30, C-33: the unlock is sent, and the session ends before the unlock reaches the server.
async fn a_session_that_ends_during_the_unlock_is_an_error_of_its_own(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let object = world.object("P1");
    let lock = MonitorLock::new("save P1", &keeper, &object);
    lock.lock().await.unwrap();
    let shown = world.keeper().await.admin().show(&format!("/{object}")).await.unwrap();
    let unlock = proxy.on_any(DELETES).path(&object).hold_request();
    let (outcome, ()) = tokio::join!(lock.unlock(), async {
        unlock.caught().await;
        assert!(world.embedded().faults().expire(shown.holders[0].session.0).await.unwrap());
        unlock.release();
    });
    let error = named(outcome, &object, "save P1");
    assert!(matches!(error, MonitorError::SessionExpired { .. }), "{error:?}");
    assert_eq!(children(world, &object).await, [""; 0]);
}

/// C-31, C-33: on unlock after the hold was lost because no server was reachable, and on lock if no server answers within the connect
/// timeout.
async fn a_lost_connection_is_an_error_of_its_own(world: &World) {
    let proxy = world.proxy().await;
    let builder = lockkeeper::Lockkeeper::builder().connect_timeout(Duration::from_secs(2));
    let keeper = builder.session_timeout(Duration::from_secs(1)).connect(&proxy.connect_string()).await.unwrap();
    world.keep_open(&keeper);
    let object = world.object("P1");
    let lock = MonitorLock::new("held", &keeper, &object).task_timeout(STEADY);
    lock.lock().await.unwrap();
    proxy.black_hole();
    eventually("the hold is no longer trusted", async || !lock.is_held()).await;
    let error = named(lock.unlock().await, &object, "held");
    assert!(matches!(error, MonitorError::ConnectionLoss { .. }), "{error:?}");
    // The first of these calls may still belong to the session that is ending.
    let mut outcome = lock.lock().await;
    while let Err(MonitorError::SessionExpired { .. }) = outcome {
        outcome = lock.lock().await;
    }
    let error = named(outcome, &object, "held");
    assert!(matches!(error, MonitorError::ConnectionLoss { .. }), "{error:?}");
    proxy.heal();
    // Only now a server says that the session has expired.
    let mut outcome = lock.lock_with_timeout().await;
    while let Err(MonitorError::SessionExpired { .. }) = outcome {
        outcome = lock.lock_with_timeout().await;
    }
    outcome.unwrap();
    lock.unlock().await.unwrap();
}

/// While the marker exists, no other contender gets the lock; before it is deleted, the old holder must see the loss.
async fn a_holder_whose_request_is_deleted_sees_the_loss_before_its_marker_is_deleted(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let path = world.path("P1");
    let guard = keeper.priority_lock(&path).acquire().await.unwrap();
    let held_back = proxy.on(OpCode::Delete).path("privateLock").hold_request();
    world.remove(&guard.node()).await;
    assert_eq!(guard.lost().await, Loss::Removed);
    assert!(!guard.is_held());
    assert_eq!(world.children(&path).await, ["privateLock"]);
    held_back.release();
    eventually("the marker is deleted too", async || world.children(&path).await.is_empty()).await;
}

/// Scenario 3 with objects: the background makes way between two steps, and the object then holds the lock again.
async fn a_monitor_lock_of_the_background_makes_way_between_two_steps(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let object = world.object("P1");
    let bulk = MonitorLock::new("Bulk Propagation", &one, &object).background().min_hold(Duration::ZERO);
    bulk.yield_lock().await.unwrap();
    assert!(!bulk.is_held() && !bulk.should_yield(), "there is nothing to make way with");
    bulk.lock().await.unwrap();
    let token = bulk.token();
    bulk.yield_lock().await.unwrap();
    assert_eq!(bulk.token(), token, "no one waits");
    let save = MonitorLock::new("Save Content", &other, &object);
    let save = crate::support::spawn(async move { save.lock_with_timeout().await.map(|()| save) });
    eventually("the background is asked", async || bulk.should_yield()).await;
    let yields = async {
        bulk.yield_lock().await.unwrap();
        assert!(bulk.is_held() && bulk.token() > token);
        let again = bulk.lock().await;
        assert!(matches!(again, Err(MonitorError::Other { .. })), "{again:?}");
    };
    let saves = async {
        let save = save.await.unwrap().expect("the background held the lock for more than 2 s");
        let twice = named(bulk.lock().await, &object, "Bulk Propagation");
        assert!(matches!(twice, MonitorError::Other { .. }), "{twice:?}");
        assert!(!bulk.is_held());
        save.unlock().await.unwrap();
    };
    tokio::join!(yields, saves);
    bulk.unlock().await.unwrap();
}
