//! Locks as objects, with `lock` and `unlock`: a base path, a name, and at most one hold each.

use std::sync::Arc;

use lockkeeper::{DistributedLock, Error, Loss, ReleaseError};

use crate::support::{World, eventually, on_every_server};

on_every_server!(
    an_object_is_a_handle_a_base_path_and_a_name,
    an_object_locks_once_at_a_time_and_again_after_unlock,
    an_object_that_lost_its_hold_says_so_and_locks_again,
    objects_serve_programs_without_async_and_any_thread,
);

/// N-05, N-06, N-07, N-08, N-10, D-02, D-03, D-04: the same two name the same lock for everybody, another name another lock, and
/// both can be held.
async fn an_object_is_a_handle_a_base_path_and_a_name(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let base = world.path("stores");
    let a = one.distributed_lock(&base, "A");
    a.lock().await.unwrap();
    let node = a.node().unwrap();
    let (path, number) = node.split_at(node.len() - 10);
    assert!(path.starts_with(&format!("{base}/A/")) && number.bytes().all(|byte| byte.is_ascii_digit()), "{node}");
    assert!(world.exists(&node).await);
    for same in [base.clone(), format!("{base}/")] {
        assert!(matches!(other.distributed_lock(&same, "A").try_lock().await, Err(Error::Held { .. })), "{same}");
    }
    let b = other.distributed_lock(&base, "B");
    b.try_lock().await.unwrap();
    let both = one.distributed_lock(&base, "AB");
    both.try_lock().await.unwrap();
    assert!(a.is_held() && b.is_held() && both.is_held());
    let elsewhere = other.distributed_lock(&world.path("other"), "A");
    elsewhere.try_lock().await.unwrap();
    for lock in [a, b, both, elsewhere] {
        lock.unlock().await.unwrap();
    }
    for bad in ["", "a//b", ".."] {
        assert!(matches!(one.distributed_lock(&base, bad).lock().await, Err(Error::InvalidPath(_))), "{bad:?}");
    }
}

/// N-16, N-17, D-16, D-22, D-23: a second lock is an error that names the lock and leaves no second node; so is a second unlock.
async fn an_object_locks_once_at_a_time_and_again_after_unlock(world: &World) {
    let keeper = world.keeper().await;
    let (base, path) = (world.path("objects"), world.path("objects/nightly"));
    let lock = keeper.distributed_lock(&base, "nightly");
    match lock.unlock().await {
        Err(ReleaseError::NotLocked { path: named }) => assert_eq!(named, path),
        other => panic!("{other:?}"),
    }
    let mut last = None;
    for _ in 0..3 {
        lock.lock().await.unwrap();
        assert!(lock.is_held() && lock.token() > last);
        last = lock.token();
        for again in [lock.lock().await, lock.try_lock().await] {
            match again {
                Err(Error::AlreadyHeld { path: named }) => assert_eq!(named, path),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(world.children(&path).await.len(), 1);
        lock.unlock().await.unwrap();
        assert_eq!((lock.is_held(), lock.token(), lock.node()), (false, None, None));
        assert_eq!(world.children(&path).await, [""; 0]);
        assert!(matches!(lock.unlock().await, Err(ReleaseError::NotLocked { .. })));
    }
    // Dropped while it is locked, it lets go.
    lock.lock().await.unwrap();
    drop(lock);
    eventually("nobody", async || world.children(&path).await.is_empty()).await;
}

/// N-17: what was lost cannot be unlocked, and is no obstacle to locking again.
async fn an_object_that_lost_its_hold_says_so_and_locks_again(world: &World) {
    let keeper = world.keeper().await;
    let lock = keeper.distributed_lock(&world.path("objects"), "nightly");
    for unlocked in [true, false] {
        lock.lock().await.unwrap();
        world.remove(&lock.node().unwrap()).await;
        eventually("lost", async || !lock.is_held()).await;
        if unlocked {
            match lock.unlock().await {
                Err(ReleaseError::NotHeld { loss: Loss::Removed }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    lock.lock().await.unwrap();
    lock.unlock().await.unwrap();
}

/// N-09, D-06: a thread without a runtime waits until the lock is had; whoever has the object may unlock it.
async fn objects_serve_programs_without_async_and_any_thread(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (base, path) = (world.path("objects"), world.path("objects/nightly"));
    let first: Arc<DistributedLock> = Arc::new(one.distributed_lock(&base, "nightly"));
    let locker = first.clone();
    tokio::task::spawn_blocking(move || locker.lock_blocking().unwrap()).await.unwrap();
    let second = Arc::new(other.distributed_lock(&base, "nightly"));
    let waiter = second.clone();
    let waiting = std::thread::spawn(move || waiter.lock_blocking().unwrap());
    eventually("two", async || world.children(&path).await.len() == 2).await;
    assert!(!waiting.is_finished() && !second.is_held());
    std::thread::spawn(move || first.unlock_blocking().unwrap());
    tokio::task::spawn_blocking(move || waiting.join().unwrap()).await.unwrap();
    assert!(second.is_held());
    second.unlock().await.unwrap();
}
