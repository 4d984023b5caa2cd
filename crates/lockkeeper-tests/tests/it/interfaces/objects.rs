//! The lock as an object: base path and name, `lock` and `unlock`.

use std::time::Duration;

use lockkeeper::error::{AcquireError, ReleaseError};
use lockkeeper::{CancellationToken, DistributedLock, Loss, NodeFormat};

use super::on_every_server;
use crate::support::{World, eventually, misused};

on_every_server!(
    base_path_and_name_identify_the_lock,
    different_names_are_different_object_locks,
    a_second_call_to_lock_an_object_is_refused_immediately,
    an_object_locks_and_unlocks_and_locks_again,
    an_object_takes_the_options_of_a_request,
    the_object_works_without_async,
    case_48_a_lost_hold_does_not_poison_the_object,
    case_51_any_task_may_unlock,
);

/// N-05, N-06, N-07, N-08, D-02, D-03, D-04: three parameters. The same base path and name are the same lock; another name is
/// another lock, even with the same prefix; and two objects can hold two locks.
async fn base_path_and_name_identify_the_lock(world: &World) {
    let (mine, yours) = (world.keeper().await, world.keeper().await);
    let base = world.path("base");
    let a = DistributedLock::new(&mine, &base, "A");
    let b = DistributedLock::new(&mine, &base, "B");
    a.lock().await.unwrap();
    b.lock().await.unwrap();
    assert!(a.is_held() && b.is_held(), "different names under one base are independent");
    match DistributedLock::new(&yours, &base, "A").try_lock().await {
        Err(AcquireError::Held { path, .. }) => assert_eq!(path, format!("{base}/A")),
        outcome => panic!("two holders: {outcome:?}"),
    }
    DistributedLock::new(&yours, &base, "AB").try_lock().await.unwrap();
    a.unlock().await.unwrap();
    DistributedLock::new(&yours, format!("{base}/"), "A").try_lock().await.unwrap();
    b.unlock().await.unwrap();
    for (base, name) in
        [(base.as_str(), ""), ("relative", "a"), (&format!("{base}/a//b"), "a"), (&base, "x/y"), (&base, "..")]
    {
        let refused = DistributedLock::new(&mine, base, name).lock().await;
        assert_eq!(misused(&refused), Some("path"), "{base:?} {name:?}");
    }
}

/// N-06, N-07: with nodes below the path, any text is a name, and no two pairs of base path and name give the same lock.
async fn different_names_are_different_object_locks(world: &World) {
    let keeper = world.keeper().await;
    let base = world.path("base");
    let inner = format!("{base}/x");
    let pairs = [
        (base.as_str(), "x/y"),
        (&inner, "y"),
        (&base, "x%2Fy"),
        (&base, "."),
        (&base, ".."),
        (&base, "lock-0000000000"),
        (&base, "privateLock"),
    ];
    let locks = pairs.map(|(base, name)| DistributedLock::new(&keeper, base, name).node_format(NodeFormat::Curator));
    for (lock, pair) in locks.iter().zip(pairs) {
        lock.try_lock().await.unwrap_or_else(|error| panic!("{pair:?}: {error}"));
    }
    // No such name is a contender in the queue of the lock above.
    for above in [&base, &inner] {
        keeper.mutex(above).try_acquire().await.unwrap().release().await.unwrap();
    }
    for lock in &locks {
        lock.unlock().await.unwrap();
    }
    // The world takes this path for a contender that has its node beside its path. The server keeps the empty path for a minute.
    world.remove(&format!("{base}/%6Cock-0000000000")).await;
}

/// A second call on an object is refused while the first call runs; when the first call ends in any way, the object can be
/// locked again.
async fn a_second_call_to_lock_an_object_is_refused_immediately(world: &World) {
    let base = world.path("base");
    let holder = DistributedLock::new(&world.keeper().await, &base, "A");
    let lock = DistributedLock::new(&world.keeper().await, &base, "A");
    let (first, second) = tokio::join!(holder.lock(), holder.lock());
    assert!(first.is_ok() && matches!(second, Err(AcquireError::AlreadyHeld { .. })), "{second:?}");

    let mut waiting = Box::pin(lock.lock());
    let queued = async || world.children(&base).await.len() == 2;
    tokio::select! {
        outcome = &mut waiting => panic!("the lock is held: {outcome:?}"),
        () = eventually("the object waits in the queue", queued) => {}
    }
    assert!(matches!(lock.lock().await, Err(AcquireError::AlreadyHeld { .. })));
    assert!(matches!(lock.try_lock().await, Err(AcquireError::AlreadyHeld { .. })));
    assert!(matches!(lock.unlock().await, Err(ReleaseError::NotLocked { .. })));
    drop(waiting);
    assert!(
        matches!(lock.try_lock().await, Err(AcquireError::Held { .. })),
        "the object can be locked after the dropped call"
    );
    assert!(
        matches!(lock.try_lock().await, Err(AcquireError::Held { .. })),
        "the object can be locked after the refused call"
    );
    holder.unlock().await.unwrap();
    eventually("the lock is free", async || lock.try_lock().await.is_ok()).await;
}

/// N-09, N-10, N-16, N-17, D-06, D-16, D-22, D-23: `lock` waits; the node is base and name with a number appended; a second
/// `lock` is an error and leaves no node; `unlock` deletes the node and the next waiter gets the lock; a second `unlock` is an
/// error.
async fn an_object_locks_and_unlocks_and_locks_again(world: &World) {
    let base = world.path("base");
    let first = DistributedLock::new(&world.keeper().await, &base, "A");
    let second = std::sync::Arc::new(DistributedLock::new(&world.keeper().await, &base, "A"));
    assert_eq!((first.node(), first.token()), (None, None));
    first.lock().await.unwrap();
    let node = first.node().unwrap();
    assert_eq!(node, format!("{base}/A0000000000"));
    assert!(world.exists(&node).await);
    assert!(
        matches!(first.lock().await, Err(AcquireError::AlreadyHeld { .. })),
        "the second call would wait for itself"
    );
    assert!(matches!(first.try_lock().await, Err(AcquireError::AlreadyHeld { .. })));
    assert_eq!(first.node().as_ref(), Some(&node), "the first node stays known");
    assert_eq!(world.children(&base).await, ["A0000000000"]);

    let waiting = crate::support::spawn({
        let second = second.clone();
        async move { second.lock().await }
    });
    eventually("the second waits in the queue", async || world.children(&base).await.len() == 2).await;
    assert!(!waiting.is_finished());
    let token = first.token();
    first.unlock().await.unwrap();
    assert!(!world.exists(&node).await);
    assert_eq!(first.node(), None);
    waiting.await.unwrap().unwrap();
    assert!(second.token() > token);
    assert!(matches!(first.unlock().await, Err(ReleaseError::NotLocked { .. })));
    second.unlock().await.unwrap();
    first.lock().await.unwrap();
    first.unlock().await.unwrap();
}

/// N-09: the blocking calls.
async fn the_object_works_without_async(world: &World) {
    let lock = DistributedLock::new(&world.keeper().await, world.path("base"), "A");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lock.lock_blocking().unwrap();
            assert!(lock.is_held());
            lock.unlock_blocking().unwrap();
            assert!(matches!(lock.unlock_blocking(), Err(ReleaseError::NotLocked { .. })));
        });
    });
}

/// Case 48.
async fn case_48_a_lost_hold_does_not_poison_the_object(world: &World) {
    let lock = DistributedLock::new(&world.keeper().await, world.path("base"), "A");
    lock.lock().await.unwrap();
    world.remove(&lock.node().unwrap()).await;
    eventually("the object has noticed the loss", async || !lock.is_held()).await;
    lock.lock().await.unwrap();
    assert!(lock.is_held());
    // Unlocking a lost hold fails, too, and clears it.
    world.remove(&lock.node().unwrap()).await;
    eventually("the object has noticed the loss", async || !lock.is_held()).await;
    assert!(matches!(lock.unlock().await, Err(ReleaseError::NotHeld { loss: Loss::Removed })));
    lock.lock().await.unwrap();
    // Dropping a locked object releases the lock.
    drop(lock);
    eventually("no contender is left", async || world.children(&world.path("base")).await.is_empty()).await;
}

/// Case 51: the object owns the lock, not a thread.
async fn case_51_any_task_may_unlock(world: &World) {
    let lock = std::sync::Arc::new(DistributedLock::new(&world.keeper().await, world.path("base"), "A"));
    let here = lock.clone();
    crate::support::spawn(async move { here.lock().await.unwrap() }).await.unwrap();
    let there = lock.clone();
    crate::support::spawn(async move { there.unlock().await.unwrap() }).await.unwrap();
    assert!(!lock.is_held());
}

/// A timeout, a message and a cancellation, as for a guard.
async fn an_object_takes_the_options_of_a_request(world: &World) {
    let base = world.path("base");
    let holder = DistributedLock::new(&world.keeper().await, &base, "A");
    let (keeper, waited) = (world.keeper().await, Duration::from_millis(300));
    let lock = DistributedLock::new(&keeper, &base, "A");
    holder.lock_with(|request| request.message("nightly index")).await.unwrap();
    match lock.lock_with(|request| request.timeout(waited)).await {
        Err(AcquireError::Timeout { waited: limit, holder: Some(holder), .. }) => {
            assert_eq!((limit, holder.message.as_deref()), (waited, Some("nightly index")));
        }
        other => panic!("two holders: {other:?}"),
    }
    let cancel = CancellationToken::new();
    cancel.cancel();
    let cancelled = lock.lock_with(|request| request.cancel_on(cancel)).await;
    assert!(matches!(cancelled, Err(AcquireError::Cancelled { .. })), "{cancelled:?}");
    holder.unlock().await.unwrap();
    lock.lock().await.unwrap();
}
