//! Which client preempts which, and how several requestors of one lock affect each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::Loss;
use lockkeeper::error::ReleaseError;
use lockkeeper::guard::HoldState;
use lockkeeper_helix::{AcquireLeaseError, HelixAdmin, LockOperations, LockStatus};

use super::{LONG, ask, info, lock, on_every_record_server, owned_by, requested_by, stored};
use crate::support::{World, eventually, misused};

on_every_record_server!(
    only_a_strictly_higher_priority_preempts,
    the_emergency_priority_is_above_all_others,
    a_request_leaves_the_owner_unchanged,
    a_higher_requestor_replaces_a_lower_one,
    an_equal_requestor_does_not_disturb_a_pending_one,
    a_status_follows_the_request,
    case_39_a_lower_priority_cannot_unlock_a_lock_without_a_priority,
);

/// H-26: 0 is the default, and larger is higher.
/// H-30: the owner sees nothing of requestors whose priority is not higher.
/// H-58: force alone grants nothing.
async fn only_a_strictly_higher_priority_preempts(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let owner = lock(world, &one, "a").priority(5).cleanup(LONG).on_cleanup(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    let guard = owner.acquire().await.unwrap();
    for priority in [0, 4, 5] {
        let rival = lock(world, &other, "b").priority(priority).forceful(true).waiting(Duration::ZERO);
        assert!(!rival.try_lock().await.unwrap(), "{priority}");
        assert!(!LockOperations::unlock(&rival).await.unwrap());
    }
    assert_eq!((calls.load(Ordering::Relaxed), stored(world).await.request), (0, None));
    assert!(guard.is_held());
    let higher = lock(world, &other, "b").priority(6).acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert!(higher.token() > guard.token());
    higher.release().await.unwrap();
}

/// H-28: it preempts the highest ordinary priority, and the journal has each request with its reason, granted or not.
/// H-29: two emergencies do not preempt each other.
async fn the_emergency_priority_is_above_all_others(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let ordinary = lock(world, &one, "a").priority(i32::MAX - 1).acquire().await.unwrap();
    let first = lock(world, &other, "b").emergency("the index is corrupt").acquire().await.unwrap();
    assert_eq!(ordinary.lost().await, Loss::Preempted);
    assert_eq!(info(world).await.priority, i32::MAX);
    let second = lock(world, &one, "c").emergency("me too").message("urgent").forceful(true).waiting(Duration::ZERO);
    assert!(!second.try_lock().await.unwrap());
    let recorded = HelixAdmin::new(&one).emergencies(world.lock()).await.unwrap();
    let said: Vec<_> = recorded.iter().map(|use_| (use_.requestor.as_str(), use_.reason.as_str())).collect();
    assert_eq!(said, [("b", "the index is corrupt"), ("c", "me too")]);
    assert_eq!((recorded[1].message.as_deref(), recorded[1].by.pid), (Some("urgent"), std::process::id()));
    assert_eq!(HelixAdmin::new(&one).emergencies(world.path("elsewhere")).await.unwrap(), []);
    let without_reason = lock(world, &one, "d").emergency(" ");
    assert_eq!(misused(&without_reason.acquire().await), Some("reason"));
    assert_eq!(HelixAdmin::new(&one).emergencies(world.lock()).await.unwrap().len(), 2, "nothing was sent");
    first.release().await.unwrap();
}

/// H-31: the record has the requestor's id, priority, waiting timeout and time beside the owner's fields.
/// H-40: afterwards the old owner does not own the lock and cannot unlock it, and its guard names the preemptor.
async fn a_request_leaves_the_owner_unchanged(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = lock(world, &one, "a").priority(1).message("index").cleanup(LONG).cleanup_by_guard();
    let guard = a.acquire().await.unwrap();
    let before = info(world).await;
    let b = lock(world, &other, "b").priority(3).waiting(LONG);
    let asking = ask(&b);
    requested_by(world, "b").await;
    let now = info(world).await;
    assert_eq!((now.requestor_priority, now.requestor_waiting_timeout), (3, 600_000));
    assert!(now.requesting_timestamp > 0 && now.requesting_timestamp < now.timeout);
    let owner_part = |info: lockkeeper_helix::LockAttributes| {
        (info.owner, info.message, info.timeout, info.priority, info.waiting_timeout, info.cleanup_timeout)
    };
    assert_eq!(owner_part(now), owner_part(before));
    assert!(a.is_current_owner().await.unwrap() && guard.is_held() && asking.waits());
    let preemption = guard.preemption().await;
    assert_eq!((preemption.by.as_str(), preemption.priority), ("b", 3));
    guard.release().await.unwrap();
    let next = asking.granted().await;
    assert!(!a.is_current_owner().await.unwrap() && !LockOperations::unlock(&a).await.unwrap());
    next.release().await.unwrap();
    let preempted = lock(world, &one, "a").acquire().await.unwrap();
    let next = lock(world, &other, "b").priority(3).acquire().await.unwrap();
    assert_eq!(preempted.lost().await, Loss::Preempted);
    assert_eq!(preempted.state(), HoldState::Lost(Loss::Preempted));
    let by = preempted.preempted_by().unwrap();
    assert_eq!((by.by.as_str(), by.priority), ("b", 3));
    assert!(matches!(preempted.release().await, Err(ReleaseError::NotHeld { loss: Loss::Preempted })));
    next.release().await.unwrap();
}

/// H-59: the lower one fails immediately.
/// H-61, B11: the cleanup timeout counts from the first request.
/// H-62: the owner cleans up once.
async fn a_higher_requestor_replaces_a_lower_one(world: &World) {
    let (one, other, third) = (world.keeper().await, world.keeper().await, world.keeper().await);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (done, finish) = tokio::sync::watch::channel(false);
    let seen = calls.clone();
    let a = lock(world, &one, "a").cleanup(LONG).on_cleanup(move |preemption| {
        seen.lock().unwrap().push(preemption.by);
        let mut finish = finish.clone();
        async move { _ = finish.wait_for(|done| *done).await.map(drop) }
    });
    let guard = a.acquire().await.unwrap();
    let (b, c) = (lock(world, &other, "b").priority(1), lock(world, &third, "c").priority(2));
    let first = ask(&b);
    requested_by(world, "b").await;
    eventually("the owner cleans up for it", async || *calls.lock().unwrap() == ["b"]).await;
    let asked = info(world).await.requesting_timestamp;
    let second = ask(&c);
    match first.outcome().await {
        Err(AcquireLeaseError::Preempted { by, priority, .. }) => assert_eq!((by.as_str(), priority), ("c", 2)),
        other => panic!("{other:?}"),
    }
    assert_eq!(b.status(), LockStatus::Preempted);
    assert_eq!((info(world).await.requesting_timestamp, info(world).await.requestor_id), (asked, "c".to_owned()));
    assert!(second.waits() && guard.is_held());
    done.send(true).unwrap();
    let next = second.granted().await;
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(*calls.lock().unwrap(), ["b"]);
    next.release().await.unwrap();
}

/// H-60, B3: it is refused immediately, although it outranks the owner.
async fn an_equal_requestor_does_not_disturb_a_pending_one(world: &World) {
    let (one, other, third) = (world.keeper().await, world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let first = ask(&lock(world, &other, "b").priority(2));
    requested_by(world, "b").await;
    let before = stored(world).await;
    for priority in [1, 2] {
        let late = lock(world, &third, "c").priority(priority).forceful(true).waiting(Duration::ZERO);
        match late.acquire().await {
            Err(AcquireLeaseError::Outranked { by, priority, .. }) => assert_eq!((by.as_str(), priority), ("b", 2)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stored(world).await, before);
    guard.release().await.unwrap();
    first.granted().await.release().await.unwrap();
}

/// H-63: pending while the owner cleans up, locked after the grant, preempted after the loss.
async fn a_status_follows_the_request(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard();
    assert_eq!(a.status(), LockStatus::Unlocked);
    let guard = a.acquire().await.unwrap();
    assert_eq!(a.status(), LockStatus::Locked);
    let b = lock(world, &other, "b").priority(1);
    let mut follow = b.follow_status();
    let asking = ask(&b);
    follow.wait_for(|status| *status == LockStatus::Pending).await.unwrap();
    guard.release().await.unwrap();
    let held = asking.granted().await;
    assert_eq!(b.status(), LockStatus::Locked);
    let c = lock(world, &one, "c").priority(2).acquire().await.unwrap();
    held.lost().await;
    eventually("preempted", async || b.status() == LockStatus::Preempted).await;
    c.release().await.unwrap();
}

/// H-27: the basic lock of an old client, against a lower priority's unlock.
async fn case_39_a_lower_priority_cannot_unlock_a_lock_without_a_priority(world: &World) {
    let keeper = world.keeper().await;
    let never = i64::MAX;
    let basic = format!(
        r#"{{"id":"LOCK","simpleFields":{{"OWNER":"old","TIMEOUT":"{never}"}},"mapFields":{{}},"listFields":{{}}}}"#
    );
    world.make(&world.lock()).await;
    world.observer.set_data(&world.lock(), basic.as_bytes(), None).await.unwrap();
    let lowest = lock(world, &keeper, "b");
    assert!(!lowest.try_lock().await.unwrap() && !LockOperations::unlock(&lowest).await.unwrap());
    let higher = lock(world, &keeper, "c").priority(1);
    assert!(!LockOperations::unlock(&higher).await.unwrap(), "unlocking is no preemption");
    owned_by(world, "old").await;
    // The old client's lock has no cleanup to wait for.
    higher.acquire().await.unwrap().release().await.unwrap();
}
