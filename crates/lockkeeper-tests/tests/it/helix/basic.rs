//! The basic lock: tried, leased, shown, freed.

use std::time::Duration;

use lockkeeper::error::{AcquireError, IncompatibleFormat, Mismatch};
use lockkeeper::guard::HoldState;
use lockkeeper::{Error, Loss, NodeFormat};
use lockkeeper_core::leased::Record;
use lockkeeper_helix::{
    AcquireLeaseError, HelixLock, LeaseError, LockAttributes, LockOperations, QueueLock, Scope, Unlocked,
};
use lockkeeper_testkit::proxy::OpCode;

use super::{LONG, ask, info, lock, on_every_record_server, server_time, stored};

use crate::support::{PATIENCE, STEADY, World, eventually, misused};

/// A lease that ends soon, and long enough for a heartbeat on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

on_every_record_server!(
    a_try_says_immediately_whether_it_has_the_lock,
    any_lock_is_a_distributed_lock,
    a_lock_is_one_persistent_node,
    an_ended_lease_is_kept_until_the_next_request,
    an_ended_lease_is_taken_when_the_skew_has_passed,
    a_kept_lease_can_be_renewed_and_handed_over,
    the_owner_of_an_ended_lease_cleans_up_within_its_notice,
    the_notice_of_a_dead_owner_passes,
    a_strict_hold_ends_with_its_lease,
    after_the_lease_the_client_is_no_owner_and_may_close,
    the_owner_renews_its_lease,
    the_previous_guard_is_superseded_when_acquire_returns,
    of_two_concurrent_tries_one_gets_the_lock,
    the_same_id_is_the_same_owner_in_every_process,
    any_client_may_free_an_ended_lease,
    a_freed_lock_is_free_immediately_and_leaves_no_node,
    invalid_terms_are_refused_before_anything_is_sent,
    other_data_in_the_node_is_left_unchanged,
    a_queue_and_a_record_at_one_path_refuse_each_other,
    a_semaphores_path_can_be_leased_once_it_is_unused,
    an_uncontended_acquire_takes_two_round_trips,
);

/// H-01: `try_lock` returns true or false immediately, also for an owner that asks again.
/// H-19: a refused client can read why.
async fn a_try_says_immediately_whether_it_has_the_lock(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = lock(world, &one, "a").message("nightly index");
    let b = lock(world, &other, "b");
    assert!(a.try_lock().await.unwrap());
    assert!(!b.try_lock().await.unwrap());
    match b.acquire().await {
        Err(error @ AcquireLeaseError::Outranked { .. }) => {
            let text = error.to_string();
            let AcquireLeaseError::Outranked { by, message, lease_left, .. } = error else { unreachable!() };
            assert_eq!((by.as_str(), message.as_deref()), ("a", Some("nightly index")));
            assert!(
                lease_left.is_some_and(|left| left <= LONG + PATIENCE) && text.contains("; its lease is over in "),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(b.current_lock_info().await.unwrap().message, "nightly index");
    assert!(LockOperations::unlock(&a).await.unwrap());
}

async fn exercise_distributed_lock(path: &str, lock: &dyn LockOperations, rival: &dyn LockOperations) {
    assert_eq!(lock.current_lock_info().await.unwrap(), LockAttributes::default());
    assert!(lock.unlock().await.unwrap(), "unlocking a free lock succeeds");
    assert!(lock.try_lock().await.unwrap() && lock.is_current_owner().await.unwrap());
    assert!(!rival.try_lock().await.unwrap() && !rival.is_current_owner().await.unwrap());
    assert!(!rival.unlock().await.unwrap(), "a stranger unlocked it");
    assert!(lock.is_current_owner().await.unwrap());
    assert_ne!(rival.current_lock_info().await.unwrap().owner, "NONE");
    let refused = lock.close().await.unwrap_err();
    assert_eq!(refused.to_string(), format!("{path} is still held; unlock the lock before closing it"));
    assert!(lock.is_current_owner().await.unwrap(), "a refused close changed something");
    assert!(lock.unlock().await.unwrap() && !lock.is_current_owner().await.unwrap());
    lock.close().await.unwrap();
    assert_eq!(misused(&lock.try_lock().await), Some("state"));
    assert_eq!(misused(&lock.unlock().await), Some("state"));
    assert_eq!(misused(&lock.current_lock_info().await), Some("state"));
    assert!(rival.try_lock().await.unwrap() && rival.unlock().await.unwrap());
}

/// H-02, H-03, H-04, H-05, H-06, H-07: the same five operations behind a trait object.
/// H-08: implemented by this lock and by the queue's.
async fn any_lock_is_a_distributed_lock(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let queue = world.path("queue");
    exercise_distributed_lock(&world.lock(), &lock(world, &one, "a"), &lock(world, &other, "b")).await;
    exercise_distributed_lock(&queue, &QueueLock::new(&one, &queue), &QueueLock::new(&other, &queue)).await;
    // A hold without a lease has no end.
    let held = one.mutex(&queue).acquire().message("nightly index").await.unwrap();
    let shown = QueueLock::new(&other, &queue).current_lock_info().await.unwrap();
    assert_eq!(
        (shown.owner, shown.message.as_str(), shown.timeout),
        (one.owner().to_string(), "nightly index", i64::MAX)
    );
    held.release().await.unwrap();
}

/// H-09: parents are created.
/// H-10: the node does not belong to the session.
/// H-11, H-13: the path is that of a scope, or any path.
async fn a_lock_is_one_persistent_node(world: &World) {
    let keeper = world.keeper().await;
    let path = world.path("a/b/lock");
    let guard = HelixLock::new(&keeper, path.clone(), LONG).user_id("a").acquire().await.unwrap();
    let (data, stat) = world.observer.get_data(&path).await.unwrap();
    assert_eq!(Record::from_bytes(&data).unwrap().owner.unwrap().id, "a");
    assert_eq!(stat.ephemeral_owner, 0);
    assert_eq!((guard.path(), guard.node()), (path.as_str(), path.clone()));
    assert_eq!(guard.token().get(), stat.mzxid, "the token is the zxid of the winning write");
    guard.release().await.unwrap();
    let cluster = format!("c-{}", uuid::Uuid::new_v4());
    let scoped = HelixLock::new(&keeper, Scope::participant(&cluster, "p"), LONG).acquire().await.unwrap();
    assert_eq!(scoped.path(), format!("/{cluster}/LOCK/PARTICIPANT/p"));
    scoped.release().await.unwrap();
    for below in ["/LOCK/PARTICIPANT", "/LOCK", ""] {
        world.remove(&format!("/{cluster}{below}")).await;
    }
}

/// H-15: while no other client requests the lock, the record names the owner and the owner keeps its hold.
/// H-16: the next client to try gets it, whatever the priorities; the owner has lost its hold before.
async fn an_ended_lease_is_kept_until_the_next_request(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = HelixLock::new(&one, world.lock(), SHORT).user_id("a").priority(9).skew(Duration::ZERO);
    let guard = a.acquire().await.unwrap();
    let end = info(world).await.timeout;
    eventually("the lease is over", async || server_time(world).await > end + 500).await;
    assert_eq!((guard.state(), guard.loss()), (HoldState::Held, None));
    assert_eq!(info(world).await.owner, "a");
    assert!(!a.is_current_owner().await.unwrap(), "the record's lease is over");
    let b = lock(world, &other, "b");
    assert_eq!(b.unlock().await.unwrap(), Unlocked::NotOwner { owner: Some("a".to_owned()) }, "a was not asked");
    assert!(guard.is_held());
    assert!(b.try_lock().await.unwrap());
    assert_eq!(guard.state(), HoldState::Lost(Loss::LeaseEnded));
    // The token of a hold is the zxid of the write that granted it.
    let (_, stat) = world.observer.get_data(&world.lock()).await.unwrap();
    assert!(stat.mzxid > guard.token().get(), "{} after {}", stat.mzxid, guard.token());
    assert!(guard.preempted_by().is_some_and(|request| request.by == "b" && request.lease_over));
    drop(guard);
    assert!(b.is_current_owner().await.unwrap(), "a lost guard freed another client's lock");
    assert!(LockOperations::unlock(&b).await.unwrap());
}

/// H-16: the priority of an owner whose lease is over delays the next client by no more than the skew.
async fn an_ended_lease_is_taken_when_the_skew_has_passed(world: &World) {
    const SKEW: Duration = Duration::from_secs(3);
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = HelixLock::new(&one, world.lock(), SHORT).user_id("a").priority(9).strict().acquire().await.unwrap();
    let end = info(world).await.timeout;
    eventually("the lease is over", async || server_time(world).await > end + 500).await;
    let b = lock(world, &other, "b").skew(SKEW);
    let next = b.acquire().await.unwrap();
    assert!(server_time(world).await >= end + i64::try_from(SKEW.as_millis()).unwrap(), "the skew has not passed");
    assert_eq!(guard.loss(), Some(Loss::LeaseEnded));
    next.release().await.unwrap();
}

/// H-15: an owner that keeps its ended lease can renew it, and hand the lock over.
async fn a_kept_lease_can_be_renewed_and_handed_over(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = HelixLock::new(&one, world.lock(), SHORT).user_id("a").skew(Duration::ZERO);
    let guard = a.acquire().await.unwrap();
    for _ in 0..2 {
        let end = info(world).await.timeout;
        eventually("the lease is over", async || server_time(world).await > end).await;
        guard.renew().await.unwrap();
        assert!(info(world).await.timeout > end && guard.is_held());
    }
    let end = info(world).await.timeout;
    eventually("the lease is over", async || server_time(world).await > end).await;
    guard.transfer("b").await.unwrap();
    assert_eq!(info(world).await.owner, "b");
    assert_eq!(guard.lost().await, Loss::Transferred);
    lock(world, &other, "b").acquire().await.unwrap().release().await.unwrap();
    assert!(stored(world).await.is_free());
}

/// H-16: an owner that cleans up by its guard keeps the lock until it releases it, and then the requestor has it.
async fn the_owner_of_an_ended_lease_cleans_up_within_its_notice(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = HelixLock::new(&one, world.lock(), SHORT).user_id("a").skew(Duration::ZERO).cleanup_by_guard();
    let guard = a.acquire().await.unwrap();
    let end = info(world).await.timeout;
    eventually("the lease is over", async || server_time(world).await > end).await;
    let asking = ask(&lock(world, &other, "b").waiting(Duration::ZERO).forceful(true));
    let request = guard.preemption().await;
    assert!(request.lease_over && request.by == "b");
    let notice = request.remaining();
    assert!(notice <= guard.session_timeout() && notice > Duration::ZERO, "{notice:?}");
    assert!(guard.is_held() && asking.waits(), "neither force nor a short wait ends the notice");
    guard.release().await.unwrap();
    asking.granted().await.release().await.unwrap();
}

/// H-16: a dead owner's notice passes, and then the requestor has the lock.
async fn the_notice_of_a_dead_owner_passes(world: &World) {
    // The notice takes the session timeout.
    let (one, other) = (world.connect(&world.servers(), Duration::from_secs(6)).await, world.keeper().await);
    let a = HelixLock::new(&one, world.lock(), SHORT).user_id("a").skew(Duration::ZERO).cleanup_by_guard();
    let guard = a.acquire().await.unwrap();
    let end = info(world).await.timeout;
    eventually("the lease is over", async || server_time(world).await > end).await;
    assert!(guard.is_held());
    let asking = ask(&lock(world, &other, "b"));
    guard.preemption().await;
    // It does not react, and is lost before the requestor has the lock.
    let next = asking.granted().await;
    assert_eq!(guard.loss(), Some(Loss::LeaseEnded));
    next.release().await.unwrap();
}

/// H-15: with a strict lease, only the record names the owner after its end.
async fn a_strict_hold_ends_with_its_lease(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let short = Duration::from_millis(150);
    let strict: [fn(HelixLock) -> HelixLock; 2] = [HelixLock::strict, HelixLock::keep_node];
    for strict in strict {
        let a = strict(HelixLock::new(&one, world.lock(), short).user_id("a").priority(9).skew(Duration::ZERO));
        let guard = a.acquire().await.unwrap();
        assert_eq!(guard.lost().await, Loss::LeaseEnded);
        assert_eq!((guard.is_held(), guard.state()), (false, HoldState::Lost(Loss::LeaseEnded)));
        assert_eq!(info(world).await.owner, "a", "the record changed without a request");
        let b = lock(world, &other, "b");
        eventually("b has the lock", async || b.try_lock().await.unwrap()).await;
        assert_eq!(info(world).await.owner, "b");
        assert!(!a.is_current_owner().await.unwrap());
        assert_eq!(guard.state(), HoldState::Lost(Loss::LeaseEnded), "the first reason stays");
        drop(guard);
        assert!(b.is_current_owner().await.unwrap(), "a lost guard freed another client's lock");
        assert!(LockOperations::unlock(&b).await.unwrap());
    }
}

/// H-05: the record still names the user, and the lease has ended.
/// H-07: so the object closes, and every later call fails as closed.
async fn after_the_lease_the_client_is_no_owner_and_may_close(world: &World) {
    let keeper = world.keeper().await;
    let short = Duration::from_millis(300);
    for strict in [false, true] {
        let a = HelixLock::new(&keeper, world.lock(), short).user_id("a").skew(Duration::ZERO);
        let a = if strict { a.strict() } else { a };
        assert!(a.try_lock().await.unwrap());
        if a.is_current_owner().await.unwrap() {
            // Not on a machine so busy that the lease has ended already.
            assert!(matches!(a.close().await, Err(LeaseError::StillOwner { .. })) || !a.is_owner().await.unwrap());
        }
        eventually("the lease has ended", async || !a.is_current_owner().await.unwrap()).await;
        assert_eq!(info(world).await.owner, "a", "strict {strict}: the record names another owner");
        a.close().await.unwrap();
        assert_eq!(misused(&a.try_lock().await), Some("state"));
        assert_eq!(misused(&a.current_lock_info().await), Some("state"));
        assert_eq!(misused(&a.is_current_owner().await), Some("state"));
        assert_eq!(misused(&LockOperations::unlock(&a).await), Some("state"));
        assert_eq!(misused(&a.close().await), Some("state"));
        let next = lock(world, &keeper, "b");
        eventually("the lock is free for others", async || next.try_lock().await.unwrap()).await;
        assert!(LockOperations::unlock(&next).await.unwrap());
    }
}

/// H-17: the guard renews it, and so does a second try.
async fn the_owner_renews_its_lease(world: &World) {
    let keeper = world.keeper().await;
    let a = lock(world, &keeper, "a");
    let guard = a.acquire().await.unwrap();
    let first = info(world).await.timeout;
    eventually("a later lease", async || {
        guard.renew().await.unwrap();
        info(world).await.timeout > first
    })
    .await;
    assert!(guard.is_held());
    let renewed = info(world).await.timeout;
    let mut again = a.acquire().await.unwrap();
    while info(world).await.timeout == renewed {
        again = a.acquire().await.unwrap();
    }
    assert_eq!(guard.lost().await, Loss::Superseded);
    drop(guard);
    assert!(again.is_held() && a.is_current_owner().await.unwrap());
    again.release().await.unwrap();
    assert!(stored(world).await.is_free());
}

/// An owner never has two guards held at one time, by the same object or by another object of the same handle.
async fn the_previous_guard_is_superseded_when_acquire_returns(world: &World) {
    let keeper = world.keeper().await;
    let mut before = lock(world, &keeper, "a").acquire().await.unwrap();
    for round in 0..20 {
        let guard = lock(world, &keeper, "a").acquire().await.unwrap();
        assert_eq!(before.state(), HoldState::Lost(Loss::Superseded), "round {round}");
        assert!(guard.is_held() && guard.token() > before.token());
        before = guard;
    }
    before.release().await.unwrap();
    assert!(stored(world).await.is_free());
}

/// H-20: in every interleaving.
async fn of_two_concurrent_tries_one_gets_the_lock(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    for round in 0..20 {
        let (a, b) = (lock(world, &one, "a"), lock(world, &other, "b"));
        let (first, second) = tokio::join!(a.try_lock(), b.try_lock());
        let (first, second) = (first.unwrap(), second.unwrap());
        assert!(first != second, "round {round}: {first} {second}");
        let winner = if first { &a } else { &b };
        assert!(winner.is_current_owner().await.unwrap());
        assert!(LockOperations::unlock(winner).await.unwrap());
    }
}

/// H-21: the same id is the same owner; generated ids differ.
async fn the_same_id_is_the_same_owner_in_every_process(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (here, there) = (lock(world, &one, "a"), lock(world, &other, "a"));
    assert!(here.try_lock().await.unwrap() && there.try_lock().await.unwrap());
    assert!(LockOperations::unlock(&there).await.unwrap());
    assert!(here.try_lock().await.unwrap());
    // An object that never acquired it.
    let elsewhere = lock(world, &other, "a");
    assert_eq!(elsewhere.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(elsewhere.unlock().await.unwrap(), Unlocked::WasFree);
    let plain = |keeper: &lockkeeper::Lockkeeper| HelixLock::new(keeper, world.lock(), LONG);
    let (first, second) = (plain(&one), plain(&one));
    assert_ne!(first.id(), second.id());
    assert!(first.id().contains(&std::process::id().to_string()), "{}", first.id());
    assert!(first.try_lock().await.unwrap() && !second.try_lock().await.unwrap());
    assert!(LockOperations::unlock(&first).await.unwrap());
}

/// H-22: the result names the old owner.
async fn any_client_may_free_an_ended_lease(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let short = Duration::from_secs(1);
    let guard =
        HelixLock::new(&one, world.lock(), short).user_id("a").skew(Duration::ZERO).strict().acquire().await.unwrap();
    let b: HelixLock = lock(world, &other, "b");
    let mut unlocked = b.unlock().await.unwrap();
    eventually("an ended lease", async || {
        if let Unlocked::NotOwner { owner } = &unlocked {
            assert_eq!(owner.as_deref(), Some("a"));
            unlocked = b.unlock().await.unwrap();
        }
        unlocked.is_unlocked()
    })
    .await;
    assert_eq!(unlocked, Unlocked::Expired { owner: "a".to_owned() });
    assert!(stored(world).await.is_free());
    drop(guard);
}

/// H-02, H-23, H-24: the node is deleted, or kept in Helix's mode.
/// B16: unlocking a lock that was never locked creates no node.
async fn a_freed_lock_is_free_immediately_and_leaves_no_node(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (a, b) = (lock(world, &one, "a"), lock(world, &other, "b").keep_node());
    assert_eq!(a.unlock().await.unwrap(), Unlocked::WasFree);
    assert!(!world.exists(&world.lock()).await);
    for _ in 0..5 {
        a.acquire().await.unwrap().release().await.unwrap();
        assert!(!world.exists(&world.lock()).await, "a freed lock leaves its node");
        b.acquire().await.unwrap().release().await.unwrap();
        assert_eq!(info(world).await, LockAttributes::default());
        assert_eq!(b.unlock().await.unwrap(), Unlocked::WasFree);
    }
    assert!(world.exists(&world.lock()).await);
}

/// H-12, H-14, H-25, H-28, H-68, H-71: the error has a type or names the value.
async fn invalid_terms_are_refused_before_anything_is_sent(world: &World) {
    let keeper = world.keeper().await;
    let plain = || lock(world, &keeper, "a");
    let wrong = [
        HelixLock::new(&keeper, world.lock(), Duration::ZERO),
        plain().priority(-1),
        plain().priority(i32::MAX),
        plain().user_id("NONE"),
        plain().user_id(""),
        plain().message("NONE"),
    ];
    for lock in wrong {
        assert_eq!(misused(&lock.acquire().await), Some("terms"));
    }
    assert_eq!(misused(&HelixLock::new(&keeper, "lock", LONG).acquire().await), Some("path"));
    assert!(matches!(Scope::parse("CLUSTER", &["c"]), Err(error) if error.to_string().contains("[\"c\"]")));
    assert!(!world.exists(&world.lock()).await);
}

/// A node with other data is not treated as a free lock, and not overwritten.
async fn other_data_in_the_node_is_left_unchanged(world: &World) {
    let keeper = world.keeper().await;
    world.make(&world.lock()).await;
    world.observer.set_data(&world.lock(), b"10.1.2.3", None).await.unwrap();
    let a = lock(world, &keeper, "a");
    assert!(matches!(a.acquire().await, Err(AcquireLeaseError::Mismatch(Mismatch::NotARecord { .. }))));
    assert!(matches!(a.unlock().await, Err(LeaseError::Mismatch(Mismatch::NotARecord { .. }))));
    assert_eq!(world.observer.get_data(&world.lock()).await.unwrap().0, b"10.1.2.3");
}

/// Neither protocol counts the other's nodes, so both would hold: the later client gets an error.
async fn a_queue_and_a_record_at_one_path_refuse_each_other(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (leased, queued) = (lock(world, &one, "a"), other.mutex(world.lock()));
    let guard = queued.acquire().await.unwrap();
    let theirs = IncompatibleFormat::Named(NodeFormat::Curator);
    let Err(Error::Product(refused)) = leased.try_lock().await else { panic!("both hold") };
    let Some(AcquireLeaseError::Mismatch(Mismatch::Format { theirs: named, .. })) = refused.get() else {
        panic!("{refused}")
    };
    assert_eq!(*named, theirs);
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(leased.try_lock().await.unwrap());
    for refused in [queued.try_acquire().await, queued.acquire().await] {
        assert!(
            matches!(refused, Err(AcquireError::Mismatch(Mismatch::Format { theirs: IncompatibleFormat::Leased, .. }))),
            "{refused:?}"
        );
    }
    assert!(leased.is_current_owner().await.unwrap());
    LockOperations::unlock(&leased).await.unwrap();
    queued.try_acquire().await.unwrap().release().await.unwrap();
}

/// The data that a semaphore leaves in its node is its permit count, not a hold.
async fn a_semaphores_path_can_be_leased_once_it_is_unused(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (leased, permits) = (lock(world, &one, "a"), other.semaphore(world.lock(), 3));
    let permit = permits.acquire().await.unwrap();
    let refused = leased.acquire().await;
    assert!(
        matches!(
            refused,
            Err(AcquireLeaseError::Mismatch(Mismatch::Format {
                theirs: IncompatibleFormat::Named(NodeFormat::Curator),
                ..
            }))
        ),
        "{refused:?}"
    );
    assert!(permit.is_held());
    permit.release().await.unwrap();
    assert!(matches!(leased.unlock().await, Ok(Unlocked::WasFree)));
    assert_eq!(leased.current_lock_info().await.unwrap(), LockAttributes::default());
    let guard = leased.acquire().await.unwrap();
    let refused = permits.try_acquire().await;
    assert!(
        matches!(refused, Err(AcquireError::Mismatch(Mismatch::Format { theirs: IncompatibleFormat::Leased, .. }))),
        "{refused:?}"
    );
    assert!(guard.is_held());
    guard.release().await.unwrap();
    // Another semaphore can use the path afterwards.
    other.semaphore(world.lock(), 5).try_acquire().await.unwrap().release().await.unwrap();
}

/// What the documentation says that a leased lock costs, after the first use in a session: the record and its parent are read
/// behind an ordered write in one round trip, and the lock is written in a second one.
async fn an_uncontended_acquire_takes_two_round_trips(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let lock = lock(world, &keeper, "a");
    lock.acquire().await.unwrap().release().await.unwrap();
    let before = proxy.counts();
    let look = proxy.on(OpCode::Check).hold_reply();
    let asked = ask(&lock);
    look.caught().await;
    proxy.wait_until(|counts| counts.since(&before).forwarded.of(OpCode::GetData) == 2).await;
    let sent = proxy.counts().since(&before);
    assert_eq!((sent.forwarded.total(), sent.delivered.total()), (3, 0), "{sent:?}");
    let write = proxy.on_any(OpCode::CREATES).hold_reply();
    look.release();
    write.caught().await;
    let sent = proxy.counts().since(&before);
    assert_eq!((sent.forwarded.total(), sent.delivered.total()), (4, 3), "{sent:?}");
    write.release();
    asked.granted().await.release().await.unwrap();
}
