//! Races, lost replies, lost sessions, dropped calls, and wrong clocks.

use std::time::{Duration, Instant};

use lockkeeper::error::{ReleaseError, SessionError};
use lockkeeper::guard::HoldState;
use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_helix::{AcquireLeaseError, HelixLock, LeaseError, LockOperations, LockStatus};
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::proxy::{Counts, OpCode};
use lockkeeper_testkit::sim::{Settings, Sim};

use super::{LONG, ask, info, lock, on_every_record_server, owned_by, requested_by, server_time, stored};
use crate::support::{STEADY, World, asked, eventually};

on_every_record_server!(
    case_40_force_that_comes_too_late_is_refused,
    after_a_cleanup_the_lock_is_reserved_for_the_requestor,
    a_dropped_request_leaves_no_entry,
    a_second_request_that_is_dropped_leaves_the_hold,
    a_second_request_that_no_server_answers_leaves_the_hold,
    a_grant_whose_caller_has_gone_is_given_back,
    a_grant_that_is_given_back_ends_the_hold_of_before_first,
    a_heartbeat_does_not_prolong_a_kept_lease_whose_record_is_being_read,
    a_lost_reply_is_neither_an_error_nor_a_second_hold,
    a_renewal_whose_reply_is_lost_keeps_its_hold,
    a_record_is_read_behind_an_ordered_write_after_a_lost_reply,
    a_hold_that_ends_while_it_renews_gives_the_new_lease_back,
    a_hold_outlives_its_session,
    closing_the_handle_releases_the_lock,
    a_release_without_servers_ends_after_the_session_timeout_and_goes_on,
    a_call_about_a_hold_ends_with_its_lease_although_no_server_answers,
    a_transfer_that_no_server_answers_ends_and_goes_on,
    a_record_in_a_recreated_node_is_not_mistaken_for_the_old_one,
);

/// H-57, B1: another requestor replaced this one, so its force takes nothing.
async fn case_40_force_that_comes_too_late_is_refused(world: &World) {
    let (one, other, third) = (world.keeper().await, world.keeper().await, world.keeper().await);
    for tries in [false, true] {
        let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
        let b = lock(world, &other, "b").priority(1).forceful(true).waiting(LONG);
        let (asking, trying) = match tries {
            false => (Some(ask(&b)), None),
            true => (None, Some(crate::support::spawn(async move { b.try_lock().await }))),
        };
        requested_by(world, "b").await;
        let c = lock(world, &third, "c").priority(2).forceful(true).waiting(Duration::ZERO).acquire().await.unwrap();
        if let Some(asking) = asking {
            assert!(
                matches!(asking.outcome().await, Err(AcquireLeaseError::Preempted { by, priority: 2, .. }) if by == "c")
            );
        }
        if let Some(trying) = trying {
            assert!(!trying.await.unwrap().unwrap(), "told true");
        }
        assert_eq!(info(world).await.owner, "c");
        guard.lost().await;
        assert!(c.is_held());
        c.release().await.unwrap();
    }
}

/// B2: between the owner's release and the requestor's grant no other client gets the lock; a dead requestor blocks others only
/// for a moment.
async fn after_a_cleanup_the_lock_is_reserved_for_the_requestor(world: &World) {
    let keeper = world.keeper().await;
    let (now, never) = (i64::MAX / 2, i64::MAX);
    // The record at that moment; its requestor never acquires the lock.
    let cleared = format!(
        r#"{{"id":"LOCK","simpleFields":{{"OWNER":"NONE","REQUESTOR_ID":"next","REQUESTOR_PRIORITY":"2",
            "REQUESTOR_WAITING_TIMEOUT":"{never}","REQUESTING_TIMESTAMP":"{now}"}},"mapFields":{{}},"listFields":{{}}}}"#
    );
    world.make(&world.lock()).await;
    world.observer.set_data(&world.lock(), cleared.as_bytes(), None).await.unwrap();
    let equal = lock(world, &keeper, "b").priority(2);
    match equal.acquire().await {
        Err(AcquireLeaseError::Outranked { by, .. }) => assert_eq!(by, "next"),
        other => panic!("{other:?}"),
    }
    let next = lock(world, &keeper, "next").priority(2);
    next.acquire().await.unwrap().release().await.unwrap();
    world.make(&world.lock()).await;
    world.observer.set_data(&world.lock(), cleared.as_bytes(), None).await.unwrap();
    let higher = lock(world, &keeper, "c").priority(3).acquire().await.unwrap();
    higher.release().await.unwrap();
    world.make(&world.lock()).await;
    world.observer.set_data(&world.lock(), cleared.as_bytes(), None).await.unwrap();
    eventually("a dead requestor's turn passes", async || equal.try_lock().await.unwrap()).await;
    assert!(LockOperations::unlock(&equal).await.unwrap());
}

/// B15: nor does a request that is dropped after the grant leave a hold.
async fn a_dropped_request_leaves_no_entry(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let b = lock(world, &other, "b").priority(1);
    let asking = ask(&b);
    requested_by(world, "b").await;
    asking.abort();
    eventually("the request is withdrawn", async || stored(world).await.request.is_none()).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    for _ in 0..20 {
        let mut attempt = b.acquire().into_future();
        _ = futures_util::poll!(&mut attempt);
    }
    eventually("the lock is free", async || stored(world).await.is_free()).await;
}

/// The record names the same user id, but only the guard may free the lock.
async fn a_second_request_that_is_dropped_leaves_the_hold(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let a = lock(world, &keeper, "a");
    let guard = a.acquire().await.unwrap();
    for _ in 0..3 {
        let held = proxy.on(OpCode::GetData).path(world.lock()).hold_reply();
        let mut second = a.acquire().into_future();
        assert!(futures_util::poll!(&mut second).is_pending());
        held.caught().await;
        drop(second);
        held.release();
        // Its reads and writes come after the second request's, and again after whatever those have changed.
        guard.renew().await.unwrap();
        guard.renew().await.unwrap();
    }
    assert!(guard.is_held() && a.is_current_owner().await.unwrap());
    assert_eq!(a.status(), LockStatus::Locked);
    guard.release().await.unwrap();
    assert!(stored(world).await.is_free());
}

/// The same, when the request is withdrawn after its caller got the error.
async fn a_second_request_that_no_server_answers_leaves_the_hold(world: &World) {
    let proxy = world.proxy().await;
    let builder = Lockkeeper::builder().session_timeout(Duration::from_secs(2)).connect_timeout(Duration::from_secs(4));
    let keeper = builder.create_chroot(true).connect(&proxy.connect_string()).await.unwrap();
    world.keep_open(&keeper);
    let a = lock(world, &keeper, "a");
    let guard = a.acquire().await.unwrap();
    proxy.black_hole();
    let second = a.acquire().await;
    assert!(matches!(second, Err(AcquireLeaseError::Session(SessionError::Unreachable { .. }))), "{second:?}");
    proxy.heal();
    for _ in 0..3 {
        guard.renew().await.unwrap();
    }
    assert!(guard.is_held() && a.is_current_owner().await.unwrap());
    assert_eq!(a.status(), LockStatus::Locked);
    guard.release().await.unwrap();
}

/// The reply comes too late for its caller, or never: then a new session gives the grant back. The hold of before is no more.
async fn a_grant_whose_caller_has_gone_is_given_back(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(2)).await;
    let a = lock(world, &keeper, "a");
    for session_ends in [false, true] {
        let guard = a.acquire().await.unwrap();
        let witness = keeper.mutex(world.path("witness")).acquire().await.unwrap();
        let before = stored(world).await;
        let reply = proxy.on(OpCode::Multi).hold_reply();
        let second = a.acquire().timeout(Duration::from_millis(300)).await;
        assert!(second.is_err() && reply.has_caught(), "{second:?}");
        assert_ne!(stored(world).await, before, "the request was carried out");
        if session_ends {
            proxy.black_hole();
            eventually("the session has expired", async || world.children(&world.path("witness")).await.is_empty())
                .await;
            proxy.heal();
        }
        drop(reply);
        eventually("the lock is free", async || stored(world).await.is_free()).await;
        assert_eq!(guard.lost().await, Loss::Superseded);
        drop(witness);
        proxy.heal();
    }
}

/// The hold of before has not read yet that the record shows it no more, and others can get the lock.
async fn a_grant_that_is_given_back_ends_the_hold_of_before_first(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let a = lock(world, &keeper, "a");
    let guard = a.acquire().await.unwrap();
    guard.verify().await.unwrap();
    let (events, before) = (proxy.hold_watch_events(), proxy.counts());
    // The event tells of its own write, whose reply comes after it.
    let second = a.acquire().timeout(Duration::from_millis(300)).await;
    assert!(second.is_err() && events.has_caught(), "{second:?}");
    // Each of the two reads, before the write and for the withdrawal, reads the record and its parent.
    proxy.wait_until(|counts| counts.since(&before).requested.of(OpCode::GetData) == 4).await;
    let read = proxy.on(OpCode::GetData).path(world.lock()).hold_reply();
    events.release();
    eventually("the lock is free", async || stored(world).await.is_free()).await;
    assert_eq!(guard.loss(), Some(Loss::Superseded));
    read.release();
}

/// H-16: it was sent after the request of another client, whose notice began with that.
async fn a_heartbeat_does_not_prolong_a_kept_lease_whose_record_is_being_read(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, Duration::from_secs(6)).await, world.keeper().await);
    let brief = HelixLock::new(&one, world.lock(), Duration::from_secs(1)).user_id("a").skew(Duration::ZERO);
    let guard = brief.acquire().await.unwrap();
    let end = info(world).await.timeout;
    eventually("the lease is over", async || server_time(world).await > end).await;
    assert!(guard.is_held());
    let events = proxy.hold_watch_events();
    let asking = ask(&lock(world, &other, "b"));
    events.caught().await;
    // A heartbeat is sent when the one before is confirmed. So no other one is confirmed before the event arrives.
    let sent = |counts: &Counts| counts.requested.of(OpCode::Check);
    let counts = proxy.wait_until(|counts| sent(counts) > counts.delivered.of(OpCode::Check)).await;
    let due = guard.valid_for();
    let due = Instant::now() + due;
    let read = proxy.on(OpCode::GetData).path(world.lock()).hold_reply();
    events.release();
    read.caught().await;
    proxy.wait_until(|now| sent(now) > sent(&counts)).await;
    let left = due.saturating_duration_since(Instant::now());
    assert!(guard.valid_for() <= left, "{:?} instead of {left:?}", guard.valid_for());
    read.release();
    asking.granted().await.release().await.unwrap();
}

/// B14: for each of the requests.
async fn a_lost_reply_is_neither_an_error_nor_a_second_hold(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    for op in [OpCode::Create2, OpCode::Create, OpCode::Multi, OpCode::GetData, OpCode::Check, OpCode::Delete] {
        let a = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard();
        let rule = proxy.on(op).cut_before_reply();
        let guard = a.acquire().await.unwrap();
        assert!(guard.is_held() && info(world).await.owner == "a", "{op:?}");
        let asking = ask(&lock(world, &other, "b").priority(1));
        guard.preemption().await;
        guard.release().await.unwrap_or_else(|error| panic!("{op:?}: {error}"));
        asking.granted().await.release().await.unwrap();
        drop(rule);
        proxy.heal();
    }
    assert!(stored(world).await.is_free());
}

/// Also more than once in a row, and the hold keeps its token.
async fn a_renewal_whose_reply_is_lost_keeps_its_hold(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let guard = lock(world, &one, "a").acquire().await.unwrap();
    let mut ends_ms = info(world).await.timeout;
    for lost in 1..=3 {
        let rules: Vec<_> = (1..=lost).map(|nth| proxy.on(OpCode::Multi).nth(nth).cut_before_reply()).collect();
        guard.renew().await.unwrap();
        assert!(rules.iter().all(|rule| rule.has_fired()), "{lost} replies were to be lost");
        let renewed_ms = info(world).await.timeout;
        assert!(renewed_ms > ends_ms, "{renewed_ms} is not after {ends_ms}");
        ends_ms = renewed_ms;
        guard.verify().await.unwrap();
    }
    guard.release().await.unwrap();
    lock(world, &other, "b").try_acquire().await.unwrap().release().await.unwrap();
}

/// The next server of the session may not have applied the write whose reply was lost.
async fn a_record_is_read_behind_an_ordered_write_after_a_lost_reply(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = lock(world, &keeper, "a").acquire().await.unwrap();
    let (parent, since) = (world.lock().trim_end_matches("/lock").to_owned(), proxy.records().len());
    let lost = proxy.on(OpCode::Multi).path(&parent).cut_before_reply();
    guard.renew().await.unwrap();
    assert!(lost.has_fired());
    let requests = asked(world, &proxy, since);
    let behind = requests.iter().skip_while(|(op, path)| (*op, path) != (OpCode::Multi, &parent)).skip(1);
    let paths: Vec<_> = behind.map(|(_, path)| path.as_str()).take(3).collect();
    // A heartbeat checks the root. The record is read together with its parent.
    assert_eq!(paths, ["/", &parent, ""], "{requests:?}");
    guard.release().await.unwrap();
}

/// The record shows an end that the owner wrote without knowing it; the requestor does not wait for it.
async fn a_hold_that_ends_while_it_renews_gives_the_new_lease_back(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, Duration::from_secs(2)).await, world.keeper().await);
    let brief = HelixLock::new(&one, world.lock(), Duration::from_secs(6)).user_id("a").skew(Duration::ZERO);
    let guard = brief.cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let ends_ms = info(world).await.timeout;
    let asking = ask(&lock(world, &other, "b").priority(1));
    guard.preemption().await;
    eventually("the lease ends soon", async || server_time(world).await > ends_ms - 1_500).await;
    let reply = proxy.on(OpCode::Multi).hold_reply();
    let (renewed, ()) = tokio::join!(guard.renew(), async {
        reply.caught().await;
        proxy.black_hole();
    });
    assert!(matches!(renewed, Err(LeaseError::Lost { loss: Loss::LeaseEnded, .. })), "{renewed:?}");
    let renewed_ms = info(world).await.timeout;
    assert!(renewed_ms > ends_ms, "the renewal was carried out");
    drop(reply);
    proxy.heal();
    let granted = asking.granted().await;
    assert!(server_time(world).await < renewed_ms, "the lock was kept until its new end");
    granted.release().await.unwrap();
}

/// Also as one of several locks.
async fn a_release_without_servers_ends_after_the_session_timeout_and_goes_on(world: &World) {
    let timeout = Duration::from_secs(2);
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, timeout).await;
    for several in [false, true] {
        let guard = lock(world, &keeper, "a").acquire().await.unwrap();
        proxy.black_hole();
        let released = match several {
            false => guard.release().await,
            true => lockkeeper::MultiGuard::from(guard).release().await,
        };
        assert_eq!(released, Err(ReleaseError::Timeout { path: world.lock(), waited: timeout }));
        proxy.heal();
        eventually("the release went on", async || stored(world).await.is_free()).await;
    }
}

/// Whether the call begins before the end of the lease or after it.
async fn a_call_about_a_hold_ends_with_its_lease_although_no_server_answers(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(2)).await;
    let brief = HelixLock::new(&keeper, world.lock(), Duration::from_secs(4)).user_id("a").skew(Duration::ZERO);
    let guard = brief.acquire().await.unwrap();
    proxy.black_hole();
    for outcome in [guard.renew().await, guard.renew().await, guard.transfer("b").await] {
        assert!(matches!(outcome, Err(LeaseError::Lost { loss: Loss::LeaseEnded, .. })), "{outcome:?}");
    }
    proxy.heal();
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::LeaseEnded }));
    eventually("the lock is free", async || stored(world).await.is_free()).await;
}

async fn a_transfer_that_no_server_answers_ends_and_goes_on(world: &World) {
    let proxy = world.proxy().await;
    let builder = Lockkeeper::builder().session_timeout(Duration::from_secs(2)).connect_timeout(Duration::from_secs(1));
    let keeper = builder.create_chroot(true).connect(&proxy.connect_string()).await.unwrap();
    world.keep_open(&keeper);
    let guard = lock(world, &keeper, "a").acquire().await.unwrap();
    proxy.black_hole();
    let outcome = guard.transfer("b").await;
    assert!(matches!(outcome, Err(LeaseError::Session(SessionError::Unreachable { .. }))), "{outcome:?}");
    proxy.heal();
    owned_by(world, "b").await;
    assert_eq!(guard.loss(), Some(Loss::Transferred));
    lock(world, &keeper, "b").acquire().await.unwrap().release().await.unwrap();
}

/// H-10: the hold ends with its lease, not with the session; without a connection it is suspected.
async fn a_hold_outlives_its_session(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(2)).await;
    let a = lock(world, &keeper, "a").priority(1);
    let guard = a.acquire().await.unwrap();
    let witness = keeper.mutex(world.path("witness")).acquire().await.unwrap();
    proxy.black_hole();
    eventually("suspected", async || guard.state() == HoldState::Suspected).await;
    // The session's ephemeral nodes are deleted.
    eventually("the session has expired", async || world.children(&world.path("witness")).await.is_empty()).await;
    assert!(guard.is_held() && !witness.is_held());
    assert_eq!(info(world).await.owner, "a");
    assert!(!lock(world, &world.keeper().await, "b").priority(1).try_lock().await.unwrap());
    proxy.heal();
    eventually("held again", async || guard.state() == HoldState::Held).await;
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    assert!(stored(world).await.is_free());
}

/// All its guards are lost.
async fn closing_the_handle_releases_the_lock(world: &World) {
    let keeper = world.keeper().await;
    let guard = lock(world, &keeper, "a").acquire().await.unwrap();
    keeper.close().await;
    assert_eq!(guard.lost().await, Loss::Closed);
    assert!(stored(world).await.is_free());
    assert!(matches!(lock(world, &keeper, "a").acquire().await, Err(AcquireLeaseError::Session(SessionError::Closed))));
}

/// The version alone would match the old record, because both start at 0.
async fn a_record_in_a_recreated_node_is_not_mistaken_for_the_old_one(world: &World) {
    let proxy = world.proxy().await;
    let (one, other, third) = (world.keeper().await, world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    // Its session already knows the server's time, so the next multi is its request.
    HelixLock::new(&other, world.path("warm"), LONG).acquire().await.unwrap().release().await.unwrap();
    let held = proxy.on(OpCode::Multi).hold_request();
    let late = ask(&lock(world, &other, "late").priority(1).waiting(LONG));
    held.caught().await;
    guard.release().await.unwrap();
    let high = lock(world, &third, "high").priority(5).acquire().await.unwrap();
    held.release();
    match late.outcome().await {
        Err(AcquireLeaseError::Outranked { by, .. }) => assert_eq!(by, "high"),
        other => panic!("{other:?}"),
    }
    assert!(high.is_held());
    owned_by(world, "high").await;
    high.release().await.unwrap();
}

/// H-38, B13: the server's clock is years behind the client's, and its followers lag.
#[test]
fn case_54_leases_follow_the_servers_clock_not_the_clients() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    for seed in 0..if is_deep() { 20 } else { 3 } {
        runtime.block_on(async {
            let sim = Sim::new(seed, Settings::default());
            let keeper = || Lockkeeper::builder().session_timeout(Duration::from_secs(10)).simulated(sim.network());
            let (one, other) = (keeper(), keeper());
            let lease = Duration::from_secs(60);
            let place = "/locks/leased";
            let a = HelixLock::new(&one, place, lease).user_id("a");
            let guard = a.acquire().await.unwrap();
            let started = tokio::time::Instant::now();
            let record = a.info().await.unwrap();
            let server_years = record.timeout / (365 * 24 * 3_600_000);
            assert!((53..55).contains(&server_years), "the lease is not in the server's time: {record:?}");
            let b = HelixLock::new(&other, place, lease).user_id("b");
            let lost = async {
                let loss = guard.lost().await;
                (loss, started.elapsed())
            };
            let taken = async {
                while !b.try_lock().await.unwrap() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                started.elapsed()
            };
            let ((loss, lost), taken) = tokio::join!(lost, taken);
            assert_eq!(loss, Loss::LeaseEnded, "seed {seed}");
            assert!(lost < taken, "seed {seed}: lost after {lost:?}, taken after {taken:?}");
            assert!(taken < lease + Duration::from_secs(3), "seed {seed}: taken after {taken:?} only");
            assert!(b.is_current_owner().await.unwrap() && !a.is_current_owner().await.unwrap());
            one.close().await;
            other.close().await;
        });
    }
}
