//! Contentserv's words: the monitor lock and its four errors.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::contentserv::{MonitorError, MonitorLock, TASK_TIMEOUT};
use lockkeeper::{Error, Loss};
use lockkeeper_testkit::proxy::OpCode;
use tokio::time::Instant;

use super::on_every_server;
use crate::support::{STEADY, World, eventually, on_the_embedded_server};

on_every_server!(
    a_monitor_lock_is_foreground_unless_told_otherwise,
    the_task_timeout_ends_the_wait_and_the_request,
    the_errors_are_told_apart_and_name_object_and_asker,
    work_is_not_begun_after_an_error,
    objects_with_slashes_are_objects_like_others,
    a_second_call_to_lock_a_monitor_is_refused_at_once,
);

on_the_embedded_server!(
    an_ended_session_is_an_error_of_its_own,
    a_lost_connection_is_an_error_of_its_own,
    a_holder_whose_request_is_taken_knows_before_its_mark_goes,
);

/// An object of this claim's own: monitor objects stand right below the root.
fn object(world: &World, name: &str) -> String {
    world.path(name).replace('/', "-")
}

async fn children(world: &World, object: &str) -> Vec<String> {
    world.children(&format!("/{object}")).await
}

/// C-01, C-02, C-03, C-08: the class is in the node's name, the asker's text in its data.
async fn a_monitor_lock_is_foreground_unless_told_otherwise(world: &World) {
    let keeper = world.keeper().await;
    let object = object(world, "P1");
    let plain = MonitorLock::new("save P1", &keeper, &object);
    for (lock, letter) in [
        (plain, "A-"),
        (MonitorLock::new("save P1", &keeper, &object).foreground(), "A-"),
        (MonitorLock::new("save P1", &keeper, &object).background(), "B-"),
    ] {
        lock.lock().await.unwrap();
        let names = children(world, &object).await;
        assert_eq!(names.iter().filter(|name| name.starts_with(letter)).count(), 1, "{names:?}");
        let shown = world.keeper().await.admin().show(&format!("/{object}")).await.unwrap();
        assert_eq!(shown.holders[0].message.as_deref(), Some("save P1"));
        lock.unlock().await.unwrap();
    }
    assert!(world.exists(&format!("/{object}")).await);
    world.remove(&format!("/{object}")).await;
}

/// C-27, C-28, C-29: 2 s in either class, each its own; then the request's node is gone.
async fn the_task_timeout_ends_the_wait_and_the_request(world: &World) {
    let keeper = world.keeper().await;
    let object = object(world, "P1");
    let holder = MonitorLock::new("holder", &keeper, &object);
    holder.lock().await.unwrap();
    assert_eq!(TASK_TIMEOUT, Duration::from_millis(2000));
    let since = Instant::now();
    let usual = MonitorLock::new("save", &keeper, &object);
    let short = MonitorLock::new("bulk", &keeper, &object).background().task_timeout(Duration::from_millis(200));
    let (usual, short) = tokio::join!(async { (usual.lock_with_timeout().await, since.elapsed()) }, async {
        (short.lock_with_timeout().await, since.elapsed())
    });
    for ((outcome, took), timeout) in [(usual, 2000), (short, 200)] {
        assert!(matches!(outcome, Err(MonitorError::InstanceLock { .. })), "{outcome:?}");
        assert!(
            took >= Duration::from_millis(timeout) && took < Duration::from_millis(timeout) + STEADY / 4,
            "{took:?}"
        );
    }
    eventually("only the holder's nodes are left", async || children(world, &object).await.len() == 2).await;
    holder.unlock().await.unwrap();
    let next = MonitorLock::new("next", &keeper, &object);
    next.lock_with_timeout().await.unwrap();
    next.unlock().await.unwrap();
    world.remove(&format!("/{object}")).await;
}

/// C-32, C-33: by type, each with the monitor object and the asker's text. NoNode on a second unlock, and on one whose node was
/// taken away.
async fn the_errors_are_told_apart_and_name_object_and_asker(world: &World) {
    let keeper = world.keeper().await;
    let object = object(world, "P1");
    let lock = MonitorLock::new("save P1", &keeper, &object).task_timeout(Duration::from_millis(50));
    let told = |error: MonitorError| {
        let text = error.to_string();
        assert!(text.contains(&object) && text.contains("save P1"), "{text}");
        assert!(error.source().is_some(), "{text}");
        error
    };
    assert!(matches!(told(lock.unlock().await.unwrap_err()), MonitorError::NoNode { .. }));
    lock.lock().await.unwrap();
    assert!(matches!(told(lock.lock().await.unwrap_err()), MonitorError::Other { .. }), "it would wait for itself");
    let other = MonitorLock::new("save P1", &keeper, &object).task_timeout(Duration::from_millis(50));
    assert!(matches!(told(other.lock_with_timeout().await.unwrap_err()), MonitorError::InstanceLock { .. }));

    let node = children(world, &object).await.into_iter().find(|name| name.starts_with("A-")).unwrap();
    world.remove(&format!("/{object}/{node}")).await;
    eventually("it knows", async || !lock.is_held()).await;
    assert!(matches!(told(lock.unlock().await.unwrap_err()), MonitorError::NoNode { .. }));
    assert!(matches!(told(lock.unlock().await.unwrap_err()), MonitorError::NoNode { .. }));
    eventually("nothing is left", async || children(world, &object).await.is_empty()).await;
    world.remove(&format!("/{object}")).await;
}

/// C-34: none of it runs.
async fn work_is_not_begun_after_an_error(world: &World) {
    let keeper = world.keeper().await;
    let object = object(world, "P1");
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
    world.remove(&format!("/{object}")).await;
}

/// C-04: equal objects are the same node, different ones never, whatever characters they have.
async fn objects_with_slashes_are_objects_like_others(world: &World) {
    let keeper = world.keeper().await;
    let base = object(world, "P");
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
    // An object whose name reads as a request's node.
    world.remove(&format!("/{}", numbered.replacen('A', "%41", 1))).await;
    let empty = MonitorLock::new("x", &keeper, "").lock().await;
    assert!(matches!(empty, Err(MonitorError::Other { .. })), "{empty:?}");
}

/// An object that waits for its lock is taken, and is free again when the call ends.
async fn a_second_call_to_lock_a_monitor_is_refused_at_once(world: &World) {
    let keeper = world.keeper().await;
    let object = object(world, "P1");
    let holder = MonitorLock::new("holds", &keeper, &object);
    let lock = MonitorLock::new("waits", &keeper, &object);
    let refused = |outcome: Result<(), MonitorError>| match outcome {
        Err(MonitorError::Other { source, .. }) => {
            assert!(matches!(source.downcast_ref(), Some(Error::AlreadyHeld { .. })), "{source}");
        }
        other => panic!("{other:?}"),
    };
    let (first, second) = tokio::join!(holder.lock(), holder.lock_with_timeout());
    first.unwrap();
    refused(second);
    let mut waiting = Box::pin(lock.lock());
    tokio::select! {
        outcome = &mut waiting => panic!("the lock is held: {outcome:?}"),
        () = eventually("it waits", async || children(world, &object).await.len() == 3) => {}
    }
    refused(lock.lock_with_timeout().await);
    drop(waiting);
    holder.unlock().await.unwrap();
    lock.lock().await.unwrap();
    lock.unlock().await.unwrap();
    world.remove(&format!("/{object}")).await;
}

/// C-30: while waiting, and on unlock after the hold was lost with the session.
async fn an_ended_session_is_an_error_of_its_own(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let other = world.keeper().await;
    let object = object(world, "P1");
    let held = MonitorLock::new("held", &keeper, &object);
    held.lock().await.unwrap();
    let session = world.embedded();
    let waiting = Arc::new(MonitorLock::new("waits", &other, &object));
    let wait = tokio::spawn({
        let waiting = waiting.clone();
        async move { waiting.lock().await }
    });
    eventually("it waits", async || children(world, &object).await.len() == 3).await;
    let shown = world.keeper().await.admin().show(&format!("/{object}")).await.unwrap();
    assert!(session.expire_session(shown.waiters[0].session.0).await);
    let outcome = wait.await.unwrap();
    assert!(matches!(outcome, Err(MonitorError::SessionExpired { .. })), "{outcome:?}");
    // Where its connection is, too: it is told once it is back.
    proxy.black_hole();
    assert!(session.expire_session(shown.holders[0].session.0).await);
    proxy.heal();
    eventually("it knows", async || !held.is_held()).await;
    let outcome = held.unlock().await;
    assert!(matches!(outcome, Err(MonitorError::SessionExpired { .. })), "{outcome:?}");
    world.remove(&format!("/{object}")).await;
}

/// C-31: on unlock after the hold was lost for want of a server, and on a lock that no server answers for as long as the
/// handle tries.
async fn a_lost_connection_is_an_error_of_its_own(world: &World) {
    let proxy = world.proxy().await;
    let builder = lockkeeper::Lockkeeper::builder().connect_timeout(Duration::from_secs(2));
    let keeper = builder.session_timeout(Duration::from_secs(1)).connect(&proxy.connect_string()).await.unwrap();
    world.keep_open(&keeper);
    let object = object(world, "P1");
    let lock = MonitorLock::new("held", &keeper, &object).task_timeout(STEADY);
    lock.lock().await.unwrap();
    proxy.black_hole();
    eventually("it no longer trusts its hold", async || !lock.is_held()).await;
    let outcome = lock.unlock().await;
    assert!(matches!(outcome, Err(MonitorError::ConnectionLoss { .. })), "{outcome:?}");
    // The first of these may still stand in line of the session that is ending.
    let mut outcome = lock.lock().await;
    while let Err(MonitorError::SessionExpired { .. }) = outcome {
        outcome = lock.lock().await;
    }
    assert!(matches!(outcome, Err(MonitorError::ConnectionLoss { .. })), "{outcome:?}");
    proxy.heal();
    lock.lock_with_timeout().await.unwrap();
    lock.unlock().await.unwrap();
    world.remove(&format!("/{object}")).await;
}

/// As long as the mark stands nobody gets in; when it goes, the old holder must not believe in its hold any more.
async fn a_holder_whose_request_is_taken_knows_before_its_mark_goes(world: &World) {
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
    eventually("the mark goes too", async || world.children(&path).await.is_empty()).await;
}
