//! Deadlines that hold whatever the network does.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper::error::{AcquireError, AdminError, ConnectError, ReleaseError, SessionError, VerifyError};
use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_helix::{AcquireLeaseError, HelixLock};
use lockkeeper_testkit::proxy::{Cut, OpCode};
use tokio::time::Instant;

use crate::support::{PATIENCE, STEADY, Stalls, World, for_kinds, on_the_embedded_server};

for_kinds!(
    [native Native, #[cfg(deep)] recipe Recipe, numbered Numbered]
    case_27_a_silent_network_does_not_stretch_a_deadline,
    case_28_progress_in_the_queue_does_not_stretch_a_deadline,
    an_outage_is_reported_as_one_not_as_a_held_lock,
    a_wait_on_a_silent_server_fails_as_unreachable_at_its_deadline,
    a_try_is_bounded_without_a_timeout,
    a_call_without_a_deadline_ends_when_no_server_answers,
    a_release_and_a_close_in_an_outage_end_at_the_callers_deadline_and_go_on,
    a_timeout_whose_last_look_is_not_answered_names_the_holder_as_it_was_last_seen,
    the_release_of_a_removed_hold_waits_for_no_server,
    the_release_of_a_hold_whose_node_may_exist_waits_for_the_servers,
    a_release_of_a_held_lock_that_no_server_confirms_is_unconfirmed_and_not_lost,
    a_release_of_a_held_lock_is_confirmed_although_its_trust_ends_meanwhile,
    the_limit_of_a_release_counts_from_the_call_and_is_one_for_several_locks,
    a_release_of_several_locks_reports_a_known_loss_at_its_deadline,
);

for_kinds!([native Native] every_deadline_is_one_of_real_time_while_tokios_clock_is_paused);

on_the_embedded_server!(the_release_of_a_hold_whose_session_has_expired_waits_for_no_server,);

/// How much later than its deadline a call may return on a busy machine. The failures that these tests look for are later: a
/// client gives up a silent connection after two fifths of the session timeout, or never.
const SLACK: Duration = Duration::from_secs(5);

/// A session timeout that a test can wait for.
const SHORT: Duration = Duration::from_secs(1);

/// Packets vanish without an error: waits, tries and connects return at their deadlines all the same, at most 100 ms late. A
/// control tells a busy machine apart.
async fn case_27_a_silent_network_does_not_stretch_a_deadline(world: &World) {
    let two = Duration::from_secs(2);
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let aside = world.kind.mutex(&keeper, &world.path("aside"));
    proxy.black_hole();
    let stalls = Stalls::watch();
    let on_time = async |call: &str, error: lockkeeper::Error, started: Instant| {
        let (took, most) = (started.elapsed(), stalls.allow(two + Duration::from_millis(100)));
        assert!(took >= two && took < most, "{call} returned after {took:?}, at most {most:?}: {error}");
        assert!(error.kind().is_retryable(), "{call}: {error:?}");
    };
    let started = Instant::now();
    let servers = proxy.connect_string();
    let (waited, tried, connected) = tokio::join!(
        async { on_time("acquire", aside.acquire().timeout(two).await.unwrap_err().into(), started).await },
        async {
            on_time("try", world.mutex(&keeper).try_acquire().timeout(two).await.unwrap_err().into(), started).await
        },
        async {
            let error = Lockkeeper::builder().connect_timeout(two).connect(&servers).await.unwrap_err();
            assert!(matches!(error, ConnectError::Session(SessionError::Unreachable { .. })), "{error:?}");
            on_time("connect", error.into(), started).await;
        },
    );
    ((), (), ()) = (waited, tried, connected);
    proxy.heal();
    guard.release().await.unwrap();
    world.queued(0).await;
}

/// Calls that take no timeout: the lease and the queries end after the session timeout and the connect timeout.
async fn a_call_without_a_deadline_ends_when_no_server_answers(world: &World) {
    let (session, connect) = (Duration::from_secs(2), Duration::from_secs(1));
    for silent in [true, false] {
        let proxy = world.proxy().await;
        let builder = Lockkeeper::builder().session_timeout(session).connect_timeout(connect);
        let keeper = builder.connect(&proxy.connect_string()).await.unwrap();
        let (path, admin) = (world.path("silent"), keeper.admin());
        let lease = HelixLock::new(&keeper, path.as_str(), Duration::from_secs(60));
        if silent {
            proxy.black_hole();
        } else {
            proxy.refuse();
            proxy.cut(Cut::Reset);
        }
        let started = Instant::now();
        let ends = async |call: &str, looks_again: bool, error: lockkeeper::Error| {
            let took = started.elapsed();
            assert!(took < session + connect + SLACK, "silent: {silent}: {call} returned after {took:?}: {error}");
            // A query is not sent again after a lost connection.
            let lost = matches!(error, lockkeeper::Error::Session(SessionError::ConnectionLost { .. }));
            assert!(
                lost && !looks_again || matches!(error, lockkeeper::Error::Session(SessionError::Unreachable { .. })),
                "silent: {silent}: {call}: {error:?}"
            );
        };
        tokio::join!(
            async { ends("acquire of a lease", true, lease.acquire().await.unwrap_err().into()).await },
            async { ends("unlock", true, lease.unlock().await.unwrap_err().into()).await },
            async { ends("info", true, lease.info().await.unwrap_err().into()).await },
            async { ends("show", false, admin.show(&path).await.unwrap_err().into()).await },
            async { ends("list", false, admin.list("/").await.unwrap_err().into()).await },
            async { ends("revoke", false, admin.revoke(&path, None).await.unwrap_err().into()).await },
            async { ends("broken", false, admin.broken(&path).await.unwrap_err().into()).await },
            async { ends("token_epoch", false, admin.token_epoch().await.unwrap_err().into()).await },
        );
        proxy.heal();
    }
}

/// The deadline covers the whole wait. Five contenders are ahead and leave one by one, the nearest one first, each after four fifths
/// of the timeout. Each time the waiter looks at the queue again, and the wait ends at most 100 ms late all the same. A control
/// tells a busy machine apart.
async fn case_28_progress_in_the_queue_does_not_stretch_a_deadline(world: &World) {
    let whole = Duration::from_secs(3);
    let step = whole * 4 / 5;
    let (others, proxy) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&others).acquire().await.unwrap();
    let mut ahead = Vec::new();
    for _ in 0..5 {
        ahead.push(world.enqueue_mutex(&others).await);
    }
    let (before, stalls, started) = (proxy.counts(), Stalls::watch(), Instant::now());
    let waiting = world.mutex(&keeper).acquire().timeout(whole);
    let mut waiting = crate::support::spawn(async move { (waiting.await, started.elapsed()) });
    let (outcome, took) = loop {
        tokio::select! {
            biased;
            ended = &mut waiting => break ended.unwrap(),
            () = tokio::time::sleep(step) => ahead.pop().expect("the wait ends before the contenders ahead").abort(),
        }
    };
    let most = stalls.allow(whole + Duration::from_millis(100));
    assert!(matches!(outcome, Err(AcquireError::Timeout { .. })), "{outcome:?}");
    assert!(took >= whole && took < most, "{took:?}, at most {most:?}, with {} of 5 ahead left", ahead.len());
    // One look at the beginning, and one when the nearest has left.
    let looks = proxy.counts().since(&before).requested.of_any(OpCode::LISTS);
    assert!(looks >= 2 || stalls.allow(step) >= whole, "{looks} looks at the queue");
    guard.release().await.unwrap();
    for waiter in ahead {
        waiter.granted().await.release().await.unwrap();
    }
}

/// From the first call until long after the session's end, the holder is unknown, so no error names one.
async fn an_outage_is_reported_as_one_not_as_a_held_lock(world: &World) {
    let timeout = Duration::from_millis(250);
    for silent in [true, false] {
        let proxy = world.proxy().await;
        let keeper = world.keeper_through(&proxy, SHORT).await;
        let lock = world.kind.mutex(&keeper, &world.path("free"));
        if silent {
            proxy.black_hole();
        } else {
            proxy.refuse();
            proxy.cut(Cut::Reset);
        }
        let started = Instant::now();
        while started.elapsed() < SHORT * 3 {
            match lock.acquire().timeout(timeout).await {
                Err(AcquireError::Session(SessionError::Unreachable { waited, .. })) => assert_eq!(waited, timeout),
                Err(AcquireError::SessionLost { loss: Loss::Unreachable, .. }) => {}
                other => panic!("silent: {silent}, after {:?}: {other:?}", started.elapsed()),
            }
        }
        proxy.heal();
    }
}

/// The holder that was seen last is no answer when the present state is unknown.
async fn a_wait_on_a_silent_server_fails_as_unreachable_at_its_deadline(world: &World) {
    let timeout = Duration::from_secs(4);
    let proxy = world.proxy().await;
    let (keeper, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let guard = world.mutex(&other).acquire().await.unwrap();
    let started = Instant::now();
    let waiter = world.enqueue(world.mutex(&keeper).acquire().timeout(timeout)).await;
    proxy.black_hole();
    let outcome = waiter.outcome().await;
    let took = started.elapsed();
    assert!(matches!(outcome, Err(AcquireError::Session(SessionError::Unreachable { .. }))), "{outcome:?}");
    assert!(took >= timeout && took < timeout + SLACK, "{took:?}");
    proxy.heal();
    guard.release().await.unwrap();
}

/// `try_acquire` ends after two seconds, whatever the session timeout is.
async fn a_try_is_bounded_without_a_timeout(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let lock = world.mutex(&keeper);
    proxy.black_hole();
    let zero = Duration::ZERO;
    let started = Instant::now();
    let (tried, zero) = tokio::join!(lock.try_acquire().into_future(), lock.acquire().timeout(zero).into_future());
    let took = started.elapsed();
    for outcome in [tried, zero] {
        assert!(matches!(outcome, Err(AcquireError::Session(SessionError::Unreachable { .. }))), "{outcome:?}");
    }
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(2) + SLACK, "{took:?}");
    proxy.heal();
}

/// After its deadline, a release goes on and a close goes on: both are done when the connection is back.
async fn a_release_and_a_close_in_an_outage_end_at_the_callers_deadline_and_go_on(world: &World) {
    let limit = Duration::from_secs(1);
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let on_time = |started: Instant| {
        let took = started.elapsed();
        assert!(took >= limit && took < limit + SLACK, "{took:?}");
    };
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    proxy.black_hole();
    let started = Instant::now();
    let released = guard.release_within(limit).await;
    on_time(started);
    assert_eq!(released, Err(ReleaseError::Timeout { path: world.lock(), waited: limit }));
    world.queued(1).await;
    proxy.heal();
    world.queued(0).await;

    let several = keeper.multi_lock([world.mutex(&keeper).acquire()]).await.unwrap();
    proxy.black_hole();
    let started = Instant::now();
    let released = several.release_within(limit).await;
    on_time(started);
    assert_eq!(released, Err(ReleaseError::Timeout { path: world.lock(), waited: limit }));
    proxy.heal();
    world.queued(0).await;

    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let leased = HelixLock::new(&keeper, world.path("leased"), PATIENCE);
    proxy.black_hole();
    let (admin, checked, lock) = (keeper.admin(), keeper.clone(), world.lock());
    let shown = crate::support::spawn(async move { admin.show(&lock).await });
    let checked = crate::support::spawn(async move { checked.check().await });
    let leased = crate::support::spawn(leased.acquire().into_future());
    // A caller that stops waiting leaves the session to the next call.
    assert!(tokio::time::timeout(limit, keeper.close()).await.is_err(), "closed without a server");
    let started = Instant::now();
    assert!(!keeper.close_within(limit).await, "closed without a server");
    on_time(started);
    assert_eq!(guard.loss(), Some(Loss::Closed));
    // Calls that wait for a server end with the handle.
    assert!(matches!(shown.await.unwrap(), Err(AdminError::Session(SessionError::Closed))));
    assert!(matches!(checked.await.unwrap(), Err(SessionError::Closed)));
    assert!(matches!(leased.await.unwrap(), Err(AcquireLeaseError::Session(SessionError::Closed))));
    assert!(started.elapsed() < limit + SLACK);
    world.queued(1).await;
    proxy.heal();
    assert!(keeper.close_within(PATIENCE).await, "the close that goes on is another call's too");
    world.queued(0).await;
}

/// The servers do not answer in the last moments: the error says what the waiter knew before.
async fn a_timeout_whose_last_look_is_not_answered_names_the_holder_as_it_was_last_seen(world: &World) {
    let proxy = world.proxy().await;
    let (keeper, one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await, world.keeper().await);
    let guard = world.mutex(&one).acquire().message("the first").await.unwrap();
    let second = world.enqueue_mutex(&other).await;
    let before = proxy.counts();
    let waiter = crate::support::spawn(world.mutex(&keeper).acquire().timeout(Duration::from_secs(4)).into_future());
    // The watches on the node ahead and on its own, and the holder.
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) == 3).await;
    let looks = proxy.on(OpCode::GetData).every().hold_reply();
    guard.release().await.unwrap();
    let second = second.granted().await;
    looks.caught().await;
    let error = waiter.await.unwrap().unwrap_err();
    assert!(error.to_string().contains(": last seen held by "), "{error}");
    let AcquireError::Timeout { holder: Some(holder), ahead: Some(2), .. } = error else { panic!("{error:?}") };
    assert_eq!(holder.message.as_deref(), Some("the first"));
    looks.release();
    second.release().await.unwrap();
    world.queued(0).await;
}

/// Only a check has said that the node is deleted: the contender has not asked for its node until no server answers any more.
async fn the_release_of_a_removed_hold_waits_for_no_server(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, PATIENCE).await;
    let guard = loop {
        let before = proxy.counts();
        let guard = world.mutex(&keeper).acquire().await.unwrap();
        world.remove(&guard.node()).await;
        assert_eq!(guard.verify().await, Err(VerifyError::Lost(Loss::Removed)));
        proxy.black_hole();
        // On a busy machine, a hold may be old enough to watch its node.
        if proxy.counts().since(&before).requested.of(OpCode::GetData) == 0 {
            break guard;
        }
        proxy.heal();
    };
    let started = Instant::now();
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Removed }));
    assert!(started.elapsed() < SLACK, "{:?}", started.elapsed());
    proxy.heal();
}

async fn the_release_of_a_hold_whose_session_has_expired_waits_for_no_server(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, PATIENCE).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let holder = keeper.admin().show(guard.path()).await.unwrap().holders.remove(0);
    assert!(world.embedded().faults().expire(holder.session.0).await.unwrap());
    assert_eq!(guard.lost().await, Loss::SessionExpired);
    proxy.black_hole();
    let started = Instant::now();
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::SessionExpired }));
    assert!(started.elapsed() < SLACK, "{:?}", started.elapsed());
    proxy.heal();
}

/// The holder's clock says that it is lost, and the servers may still have its node. At the caller's deadline, the loss is reported.
async fn the_release_of_a_hold_whose_node_may_exist_waits_for_the_servers(world: &World) {
    let limit = SHORT / 2;
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, SHORT).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    proxy.black_hole();
    assert_eq!(guard.lost().await, Loss::Unreachable);
    let started = Instant::now();
    assert_eq!(guard.release_within(limit).await, Err(ReleaseError::NotHeld { loss: Loss::Unreachable }));
    let took = started.elapsed();
    assert!(took >= limit && took < limit + SLACK, "{took:?}");
    proxy.heal();
    world.queued(0).await;
}

/// The lock was held when it was released, and its trust ends in the outage. With and without a limit, the caller learns that the
/// release goes on.
async fn a_release_of_a_held_lock_that_no_server_confirms_is_unconfirmed_and_not_lost(world: &World) {
    let timeout = 2 * SHORT;
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, timeout).await;
    for limit in [Some(timeout), None] {
        let guard = world.mutex(&keeper).acquire().await.unwrap();
        let lost = guard.cancelled_when_lost();
        proxy.black_hole();
        let released = match limit {
            Some(limit) => guard.release_within(limit).await,
            None => guard.release().await,
        };
        assert!(lost.is_cancelled(), "the trust has not ended");
        assert_eq!(released, Err(ReleaseError::Timeout { path: world.lock(), waited: timeout }));
        proxy.heal();
        world.queued(0).await;
    }
}

/// The client needs two fifths of the session timeout to notice that the servers are silent, and the releases end side by side.
async fn the_limit_of_a_release_counts_from_the_call_and_is_one_for_several_locks(world: &World) {
    let timeout = 4 * SHORT;
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, timeout).await;
    let parts = ["a", "b", "c"].map(|name| world.kind.mutex(&keeper, &world.path(name)).acquire());
    let guard = keeper.multi_lock(parts).await.unwrap();
    proxy.black_hole();
    let stalls = Stalls::watch();
    let started = Instant::now();
    let released = guard.release().await;
    let (took, most) = (started.elapsed(), stalls.allow(timeout + timeout / 5));
    assert_eq!(released, Err(ReleaseError::Timeout { path: world.path("a"), waited: timeout }));
    assert!(took >= timeout && took < most, "{took:?}, at most {most:?}");
    proxy.heal();
}

async fn a_release_of_several_locks_reports_a_known_loss_at_its_deadline(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, PATIENCE).await;
    let parts = ["a", "b"].map(|name| world.kind.mutex(&keeper, &world.path(name)).acquire());
    let guard = keeper.multi_lock(parts).await.unwrap();
    world.remove(&guard.holdings()[0].node()).await;
    assert_eq!(guard.lost().await, Loss::Removed);
    proxy.black_hole();
    assert_eq!(guard.release_within(SHORT).await, Err(ReleaseError::NotHeld { loss: Loss::Removed }));
    proxy.heal();
}

/// The session lives on, and a server confirms the delete of the hold's node.
async fn a_release_of_a_held_lock_is_confirmed_although_its_trust_ends_meanwhile(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&keeper).acquire().with_liveness(2 * SHORT).await.unwrap();
    let lost = guard.cancelled_when_lost();
    let held = proxy.on(OpCode::Delete).hold_request();
    let releasing = crate::support::spawn(guard.release());
    held.caught().await;
    assert!(!lost.is_cancelled(), "not held when it was released");
    lost.cancelled().await;
    held.release();
    assert_eq!(releasing.await.unwrap(), Ok(()));
    world.queued(0).await;
}

/// tokio's clock stands still in the caller's runtime, behind that of the library's thread.
async fn every_deadline_is_one_of_real_time_while_tokios_clock_is_paused(world: &World) {
    let limit = Duration::from_millis(500);
    let (keeper, rival) = (world.keeper().await, world.keeper().await);
    let (mutex, shared) = (world.mutex(&keeper), keeper.rwlock(world.path("shared")).read().share());
    let writer = rival.rwlock(world.path("shared")).write().acquire().await.unwrap();
    let guard = world.mutex(&rival).acquire().await.unwrap();
    let program = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            std::thread::sleep(2 * limit);
            let kept = mutex.keep();
            let calls: [BoxFuture<'_, Result<(), AcquireError>>; 4] = [
                async { mutex.acquire().timeout(limit).await.map(drop) }.boxed(),
                async { keeper.multi_lock([mutex.acquire()]).timeout(limit).await.map(drop) }.boxed(),
                async { kept.acquire().timeout(limit).await.map(drop) }.boxed(),
                async { shared.acquire().timeout(limit).await.map(drop) }.boxed(),
            ];
            for (at, call) in calls.into_iter().enumerate() {
                let started = std::time::Instant::now();
                let outcome = call.await;
                assert!(matches!(outcome, Err(AcquireError::Timeout { .. })), "call {at}: {outcome:?}");
                assert!(started.elapsed() >= limit, "call {at} ended after {:?}", started.elapsed());
            }
        });
    });
    program.await.unwrap();
    guard.release().await.unwrap();
    writer.release().await.unwrap();
}
