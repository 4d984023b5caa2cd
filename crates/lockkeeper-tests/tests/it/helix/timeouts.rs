//! The three timeouts, and force: when a wait ends, and how.

use std::time::{Duration, Instant};

use lockkeeper::Loss;
use lockkeeper_helix::{AcquireLeaseError, HelixLock, LockOperations};

use super::{LONG, ask, info, lock, on_every_record_server, requested_by, server_time, stored};
use crate::support::{World, eventually};

on_every_record_server!(
    each_client_sets_its_own_timeouts,
    an_owner_without_a_cleanup_timeout_loses_the_lock_immediately,
    a_zero_wait_preempts_or_fails_immediately,
    a_finished_cleanup_grants_the_lock_to_the_requestor_immediately,
    an_unfinished_cleanup_is_an_error_without_force,
    force_preempts_an_unfinished_cleanup,
    a_cleanup_timeout_ends_an_endless_wait,
    a_wait_past_the_cleanup_timeout_gets_the_lock_later,
);

const SHORT: Duration = Duration::from_millis(200);

/// H-41, H-42, H-43, H-44: the stored values.
/// H-64, H-65: with Helix's names.
/// H-67, H-69: every value can be set.
async fn each_client_sets_its_own_timeouts(world: &World) {
    let keeper = world.keeper().await;
    let lease = Duration::from_secs(30);
    let lock = HelixLock::new(&keeper, world.lock(), lease).user_id("a").message("why").priority(7);
    let full = lock.clone().waiting(Duration::from_secs(4)).cleanup(Duration::from_secs(5)).cleanup_by_guard();
    let guard = full.acquire().await.unwrap();
    let stored = info(world).await;
    assert_eq!((stored.waiting_timeout, stored.cleanup_timeout), (4_000, 5_000));
    assert_eq!((stored.owner.as_str(), stored.message.as_str(), stored.priority), ("a", "why", 7));
    let (_, stat) = world.observer.get_data(&world.lock()).await.unwrap();
    let lease_ms = stored.timeout - stat.mtime;
    assert!((29_000..31_000).contains(&lease_ms), "a lease of {lease_ms} ms by the server's time");
    guard.release().await.unwrap();
    let guard = lock.acquire().await.unwrap();
    let stored = info(world).await;
    assert_eq!((stored.waiting_timeout, stored.cleanup_timeout), (i64::from(i32::MAX), 0));
    guard.release().await.unwrap();
}

/// H-35: also to a requestor without force; the owner is notified.
async fn an_owner_without_a_cleanup_timeout_loses_the_lock_immediately(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let a = lock(world, &one, "a").on_cleanup(move |preemption| {
        report.send(preemption.by).unwrap();
        async {}
    });
    let guard = a.acquire().await.unwrap();
    let next = lock(world, &other, "b").priority(1).acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(reports.recv().await.as_deref(), Some("b"));
    assert!(next.is_held());
    next.release().await.unwrap();
}

/// H-46: immediately in both cases; an attempt with a zero wait does not make the owner clean up.
async fn a_zero_wait_preempts_or_fails_immediately(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let b = lock(world, &other, "b").priority(1).waiting(Duration::ZERO);
    assert!(matches!(b.acquire().await, Err(AcquireLeaseError::CleanupUnfinished { .. })));
    assert_eq!((stored(world).await.request, guard.preempted_by()), (None, None));
    let next = b.forceful(true).acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    next.release().await.unwrap();
}

/// H-47, H-48: the wait is shorter than the cleanup timeout.
/// H-50: the wait is longer.
async fn a_finished_cleanup_grants_the_lock_to_the_requestor_immediately(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    for (cleanup, waiting) in [(LONG * 2, LONG), (LONG, LONG * 2)] {
        let guard = lock(world, &one, "a").cleanup(cleanup).cleanup_by_guard().acquire().await.unwrap();
        let b = lock(world, &other, "b").priority(1).waiting(waiting);
        let asking = ask(&b);
        let preemption = guard.preemption().await;
        assert!(preemption.remaining() <= LONG && preemption.remaining() > LONG / 2, "{:?}", preemption.remaining());
        assert!(asking.waits());
        guard.release().await.unwrap();
        // Long before any of the timeouts.
        asking.granted().await.release().await.unwrap();
    }
}

/// H-49, H-53: the error has the facts.
/// H-54, H-55: the owner keeps the lock and may finish its cleanup or not; the next requestor can ask.
/// H-78: nothing else happens.
async fn an_unfinished_cleanup_is_an_error_without_force(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = lock(world, &one, "a").priority(2).message("index").cleanup(LONG).cleanup_by_guard();
    let guard = a.acquire().await.unwrap();
    for id in ["b", "c"] {
        let asked = Instant::now();
        match lock(world, &other, id).priority(3).waiting(SHORT).acquire().await {
            Err(error @ AcquireLeaseError::CleanupUnfinished { .. }) => {
                let text = error.to_string();
                let facts = format!("owner a with priority 2 has not finished the cleanup of {} after ", world.lock());
                assert!(text.starts_with(&facts) && text.contains("index"), "{text}");
                assert!(error.kind().is_retryable(), "{error}");
                let AcquireLeaseError::CleanupUnfinished { owner, message, priority, elapsed, allotted, .. } = error
                else {
                    unreachable!()
                };
                assert_eq!((owner.as_str(), message.as_deref(), priority), ("a", Some("index"), 2));
                assert_eq!(allotted, LONG);
                assert!(elapsed >= SHORT / 2 && asked.elapsed() >= SHORT, "{elapsed:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(stored(world).await.request, None);
        assert!(guard.is_held() && a.is_current_owner().await.unwrap());
    }
    guard.release().await.unwrap();
}

/// H-49, H-56: in one step, and the old owner's guard reports it.
/// H-47: the shorter of the two timeouts ends the wait.
async fn force_preempts_an_unfinished_cleanup(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    for (cleanup, waiting) in [(LONG, SHORT), (SHORT, LONG)] {
        let guard = lock(world, &one, "a").cleanup(cleanup).cleanup_by_guard().acquire().await.unwrap();
        let asked = Instant::now();
        let next = lock(world, &other, "b").priority(1).waiting(waiting).forceful(true).acquire().await.unwrap();
        assert!(asked.elapsed() >= SHORT, "the owner had {:?}", asked.elapsed());
        assert_eq!(guard.lost().await, Loss::Preempted);
        assert!(next.token() > guard.token());
        assert_eq!(stored(world).await.request, None);
        next.release().await.unwrap();
    }
}

/// H-51: however long the requestor would wait.
async fn a_cleanup_timeout_ends_an_endless_wait(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(SHORT).cleanup_by_guard().acquire().await.unwrap();
    let refused = lock(world, &other, "b").priority(1).acquire().await;
    assert!(
        matches!(refused, Err(AcquireLeaseError::CleanupUnfinished { allotted, .. }) if allotted == SHORT),
        "{refused:?}"
    );
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// H-52: a requestor that waits past the cleanup timeout gets the lock when a late cleanup ends.
async fn a_wait_past_the_cleanup_timeout_gets_the_lock_later(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(SHORT).cleanup_by_guard().acquire().await.unwrap();
    let asking = ask(&lock(world, &other, "b").priority(1).wait_past_cleanup());
    requested_by(world, "b").await;
    // Without `wait_past_cleanup` the request would have ended by now.
    let over = info(world).await.requesting_timestamp + 2 * i64::try_from(SHORT.as_millis()).unwrap();
    eventually("the cleanup timeout is over", async || server_time(world).await > over).await;
    let third = lock(world, &other, "c").priority(1).waiting(SHORT);
    assert!(!third.try_lock().await.unwrap(), "the waiting requestor's request was removed");
    assert!(asking.waits() && guard.is_held());
    guard.release().await.unwrap();
    asking.granted().await.release().await.unwrap();
}
