//! Preemption and cleanup: how an owner learns of a preemption, and how its cleanup ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lockkeeper::Loss;
use lockkeeper::error::ReleaseError;
use lockkeeper_helix::{AcquireLeaseError, HelixLock};
use lockkeeper_testkit::proxy::OpCode;

use super::{LONG, ask, info, lock, on_every_record_server, owned_by, requested_by, stored};
use crate::support::{PATIENCE, STEADY, Stalls, World, eventually};

on_every_record_server!(
    a_blocking_cleanup_stalls_no_other_lock,
    a_cleanup_ends_without_a_panic_when_its_runtime_shuts_down,
    an_owner_without_a_cleanup_is_preempted_immediately,
    a_release_during_a_preemption_reports_it,
    an_owners_unlock_grants_the_lock_to_the_requestor,
    the_end_of_the_owners_lease_grants_the_lock_to_the_requestor,
    a_dead_owners_cleanup_ends_at_its_timeout,
    a_dead_owners_cleanup_ends_with_its_lease,
    the_same_lock_can_be_preempted_repeatedly,
    a_released_lock_gets_no_callback_about_the_next_owners,
);

/// H-32: the cleanup is called once, at most 1 s after a plain client's watch reports the request.
/// H-33, B9: heartbeats and other locks continue while it blocks, on a thread that is not the library's.
/// H-34: when it returns, the requestor gets the lock.
async fn a_blocking_cleanup_stalls_no_other_lock(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(blocked);
    let (started, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (begun, counted) = (started.clone(), calls.clone());
    let called = Arc::new(OnceLock::new());
    let calling = called.clone();
    let a = lock(world, &one, "a").cleanup(LONG).on_cleanup(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        _ = calling.set(Instant::now());
        begun.store(true, Ordering::Relaxed);
        let name = std::thread::current().name().map(str::to_owned);
        assert_ne!(name.as_deref(), Some("lockkeeper-io"));
        // Blocks its thread, which async code should not do.
        _ = blocked.lock().unwrap().recv();
        async {}
    });
    let guard = a.acquire().await.unwrap();
    // The control has the same way from the server, on the same machine.
    let mut control = world.observer.watch(&world.lock()).await.unwrap();
    let control = crate::support::spawn(async move {
        control.changed().await;
        Instant::now()
    });
    let asking = ask(&lock(world, &other, "b").priority(1));
    eventually("the cleanup runs", async || started.load(Ordering::Relaxed)).await;
    let later = called.get().unwrap().saturating_duration_since(control.await.unwrap());
    assert!(later <= Duration::from_secs(1), "notified {later:?} after the control");
    // The same session and the same thread.
    for _ in 0..5 {
        one.mutex(world.path("other")).acquire().await.unwrap().release().await.unwrap();
    }
    assert!(guard.is_held() && asking.waits());
    assert_eq!(info(world).await.owner, "a");
    release.send(()).unwrap();
    let next = asking.granted().await;
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!((info(world).await.owner.as_str(), calls.load(Ordering::Relaxed)), ("b", 1));
    next.release().await.unwrap();
}

/// H-32: as at the end of a `main`, whose runtime is dropped while a cleanup sleeps.
async fn a_cleanup_ends_without_a_panic_when_its_runtime_shuts_down(world: &World) {
    struct Ended(tokio::sync::mpsc::UnboundedSender<bool>);
    impl Drop for Ended {
        fn drop(&mut self) {
            _ = self.0.send(std::thread::panicking());
        }
    }
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (end, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let started = Arc::new(AtomicBool::new(false));
    let begun = started.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let a = {
        let _within = runtime.enter();
        lock(world, &one, "a").cleanup(LONG).on_cleanup(move |_| {
            let (ended, begun) = (Ended(end.clone()), begun.clone());
            async move {
                let _ended = ended;
                begun.store(true, Ordering::Relaxed);
                tokio::time::sleep(LONG).await;
            }
        })
    };
    let _guard = a.acquire().await.unwrap();
    let asking = ask(&lock(world, &other, "b").priority(1));
    eventually("the cleanup runs", async || started.load(Ordering::Relaxed)).await;
    runtime.shutdown_background();
    assert_eq!(ended.recv().await, Some(false), "the cleanup panicked");
    asking.granted().await.release().await.unwrap();
}

/// H-36, B10: its cleanup timeout has no effect.
async fn an_owner_without_a_cleanup_is_preempted_immediately(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).acquire().await.unwrap();
    let next = lock(world, &other, "b").priority(1).acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(guard.preempted_by().unwrap().by, "b");
    let followed = guard.follow_preemption();
    drop(guard);
    assert_eq!(followed.borrow().as_ref().unwrap().by, "b");
    next.release().await.unwrap();
}

/// The record says which client has the lock, whether or not the owner has read it before its release.
async fn a_release_during_a_preemption_reports_it(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup_by_guard().acquire().await.unwrap();
    // From here on the holder watches the record.
    guard.verify().await.unwrap();
    let events = proxy.hold_watch_events();
    let next = lock(world, &other, "b").priority(1).acquire().await.unwrap();
    let reads = proxy.counts().requested.of(OpCode::GetData);
    let releasing = crate::support::spawn(guard.release());
    proxy.wait_until(|counts| counts.requested.of(OpCode::GetData) > reads).await;
    events.release();
    let released = releasing.await.unwrap();
    assert!(matches!(released, Err(ReleaseError::NotHeld { loss: Loss::Preempted })), "{released:?}");
    next.release().await.unwrap();
}

/// H-37, B7: the guard's release, its drop, and a release within the cleanup; the request stays in the record.
async fn an_owners_unlock_grants_the_lock_to_the_requestor(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    for drops in [false, true] {
        let a = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard();
        let guard = a.acquire().await.unwrap();
        let asking = ask(&lock(world, &other, "b").priority(1));
        requested_by(world, "b").await;
        let before = stored(world).await.request;
        guard.renew().await.unwrap();
        assert_eq!(stored(world).await.request, before, "a renewal forgets the requestor");
        match drops {
            true => drop(guard),
            false => guard.release().await.unwrap(),
        }
        asking.granted().await.release().await.unwrap();
    }
    let a = lock(world, &one, "a");
    let within = a.clone();
    let a = a.cleanup(LONG).on_cleanup(move |_| {
        let within = within.clone();
        async move {
            assert!(within.unlock().await.unwrap().is_unlocked());
            // Long after, another client has the lock.
            std::future::pending::<()>().await;
        }
    });
    let guard = a.acquire().await.unwrap();
    let next = lock(world, &other, "b").priority(1).acquire().await.unwrap();
    guard.lost().await;
    next.release().await.unwrap();
}

/// Returns how late the end of a wait may be. On an ensemble, each of its few round trips takes tens of milliseconds if the
/// followers lag.
fn lateness(world: &World) -> Duration {
    Duration::from_millis(if world.is_embedded() { 100 } else { 500 })
}

/// H-38, B8: the requestor gets it at the lease's end, not at that of another timeout. A control tells a busy machine apart.
async fn the_end_of_the_owners_lease_grants_the_lock_to_the_requestor(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    // Long enough for a request before its end on a busy machine.
    let lease = Duration::from_secs(2);
    let a = HelixLock::new(&one, world.lock(), lease).user_id("a").cleanup(LONG).cleanup_by_guard();
    let stalls = Stalls::watch();
    let guard = a.acquire().await.unwrap();
    let granted = Instant::now();
    let next = lock(world, &other, "b").priority(1).waiting(LONG).acquire().await.unwrap();
    let (took, most) = (granted.elapsed(), stalls.allow(lease + lateness(world)));
    assert!(took < most, "{took:?} after the grant, at most {most:?}");
    assert_eq!(guard.lost().await, Loss::LeaseEnded);
    next.release().await.unwrap();
}

/// H-39: at the timeout a forceful requestor gets the lock, and another gets an error. A control tells a busy machine apart.
async fn a_dead_owners_cleanup_ends_at_its_timeout(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let cleanup = Duration::from_millis(200);
    kill_owner(world, &lock(world, &one, "dead").cleanup(cleanup)).await;
    let b = lock(world, &other, "b").priority(1);
    let stalls = Stalls::watch();
    let on_time = |asked: Instant| {
        let (took, most) = (asked.elapsed(), stalls.allow(cleanup + lateness(world)));
        assert!(took >= cleanup && took < most, "{took:?}, at most {most:?}");
    };
    let asked = Instant::now();
    let refused = b.acquire().await;
    on_time(asked);
    assert!(matches!(refused, Err(AcquireLeaseError::CleanupUnfinished { .. })), "{refused:?}");
    owned_by(world, "dead").await;
    let forceful = b.forceful(true);
    let asked = Instant::now();
    let guard = forceful.acquire().await.unwrap();
    on_time(asked);
    guard.release().await.unwrap();
}

/// H-38, B8: also if nobody writes the record then.
async fn a_dead_owners_cleanup_ends_with_its_lease(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let lease = Duration::from_millis(500);
    let dead = HelixLock::new(&one, world.lock(), lease).user_id("dead").skew(Duration::ZERO).strict().cleanup(LONG);
    kill_owner(world, &dead).await;
    let (asked, stalls) = (Instant::now(), Stalls::watch());
    let guard = lock(world, &other, "b").priority(1).acquire().timeout(PATIENCE).await.unwrap();
    let (took, most) = (asked.elapsed(), stalls.allow(lease + lateness(world)));
    assert!(took < most, "{took:?}, at most {most:?}");
    guard.release().await.unwrap();
}

/// Leaves the record that a killed process leaves.
async fn kill_owner(world: &World, lock: &HelixLock) {
    let guard = lock.acquire().await.unwrap();
    let record = world.observer.get_data(&world.lock()).await.unwrap().0;
    guard.release().await.unwrap();
    world.make(&world.lock()).await;
    world.observer.set_data(&world.lock(), &record, None).await.unwrap();
}

/// B4, B5, B6: no state of an attempt stays in the lock object.
async fn the_same_lock_can_be_preempted_repeatedly(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (a, b) = (
        lock(world, &one, "a").cleanup(LONG).cleanup_by_guard(),
        lock(world, &other, "b").priority(1).waiting(Duration::from_millis(100)),
    );
    for _ in 0..3 {
        let guard = a.acquire().await.unwrap();
        assert!(matches!(b.acquire().await, Err(AcquireLeaseError::CleanupUnfinished { .. })));
        assert!(guard.is_held());
        let asking = ask(&b.clone().waiting(LONG));
        requested_by(world, "b").await;
        guard.release().await.unwrap();
        let next = asking.granted().await;
        assert!(matches!(a.acquire().await, Err(AcquireLeaseError::Outranked { .. })));
        next.release().await.unwrap();
        // The next attempt succeeds directly when no other client is in the way.
        b.acquire().await.unwrap().release().await.unwrap();
    }
}

/// B12: no watch and no callback is left.
async fn a_released_lock_gets_no_callback_about_the_next_owners(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let a = lock(world, &one, "a").cleanup(LONG).on_cleanup(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    a.acquire().await.unwrap().release().await.unwrap();
    let guard = lock(world, &other, "b").cleanup(LONG).acquire().await.unwrap();
    let next = lock(world, &other, "c").priority(1).acquire().await.unwrap();
    guard.lost().await;
    next.release().await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}
