//! How a hold or a waiter is lost, and what its owner sees.

use std::time::Duration;

use lockkeeper::error::{AcquireError, ReleaseError, SessionError};
use lockkeeper::guard::HoldState;
use lockkeeper::{CancellationToken, Lockkeeper, Loss};
use lockkeeper_testkit::proxy::{Cut, OpCode};
use tokio::time::{Instant, timeout};

use crate::support::{
    Held, PATIENCE, STEADY, World, eventually, for_every_kind, for_every_kind_embedded, grew, turn_at, watched,
};

for_every_kind!(
    case_01_a_cut_off_holder_loses_its_guard_before_the_next_grant,
    case_01_a_disconnected_holder_is_suspected_immediately,
    case_41_case_44_a_waiter_whose_session_ends_never_gets_the_lock,
    a_deleted_node_ends_the_hold,
    case_42_a_waiter_whose_node_is_deleted_fails_immediately,
    guarded_work_stops_when_the_lock_is_lost,
);

for_every_kind_embedded!(
    an_expired_session_is_reported_as_expired,
    case_48_a_lost_hold_does_not_poison_the_lock,
    a_waiter_whose_session_expires_joins_the_queue_again_within_its_deadline,
    a_waiter_that_joins_again_waits_for_the_servers_until_its_deadline,
    a_waiter_outlasts_a_lost_connection_that_ends_a_call_without_a_position,
    a_waiter_whose_node_goes_with_its_session_joins_the_queue_again,
    a_waiter_that_cannot_ask_who_removed_its_node_still_ends_as_its_caller_wants,
);

/// Short enough to wait for, long enough that a quarter of it outlasts a pause of a busy machine.
const SHORT: Duration = Duration::from_secs(2);

/// The holder's own clock tells it, because nothing else can: the guard is lost before the server can grant the lock to the
/// next waiter. The loss is final, and the same handle works again when the network does.
async fn case_01_a_cut_off_holder_loses_its_guard_before_the_next_grant(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, SHORT).await;
    let lock = world.subject(&keeper);
    let guard = lock.acquire().await.unwrap();
    let next = world.enqueue(world.rival(&world.keeper().await).acquire()).await;
    proxy.black_hole();
    let due = Instant::now() + guard.valid_for();
    let lost = async { (guard.lost().await, Instant::now()) };
    let granted = async { (next.granted().await, Instant::now()) };
    let ((loss, lost_at), (next, granted_at), turn) = tokio::join!(lost, granted, turn_at(due));
    assert_eq!(loss, Loss::Unreachable);
    assert!(due < granted_at, "trusted for {:?} after the next grant", due - granted_at);
    // Or as soon as any thread got a turn after the deadline: where no thread ran, no work was done either.
    let soon = turn.unwrap() + SHORT / 8;
    assert!(lost_at < granted_at.max(soon), "lost only {:?} after the next grant", lost_at - granted_at);
    assert!(!guard.is_held() && grew(guard.token(), next.token()));
    proxy.heal();
    next.release().await.unwrap();
    let again = lock.acquire_in_new_session().await;
    assert_eq!(guard.state(), HoldState::Lost(Loss::Unreachable), "lost is final");
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Unreachable })));
    assert!(again.is_held() && world.exists(&again.node()).await, "the old guard released the new hold");
    again.release().await.unwrap();
}

/// The disconnect changes the state, not the time without a server: the hold can still be trusted for a quarter of the timeout.
async fn case_01_a_disconnected_holder_is_suspected_immediately(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    proxy.refuse();
    proxy.cut(Cut::Reset);
    assert_eq!(guard.changed(HoldState::Held).await, HoldState::Suspected);
    assert!(guard.is_held() && guard.valid_for() > STEADY / 4, "suspected {:?} before its loss", guard.valid_for());
    proxy.heal();
    assert_eq!(guard.changed(HoldState::Suspected).await, HoldState::Held);
    guard.release().await.unwrap();
}

/// A waiter's node belongs to its session and is deleted with it. A waiter that does not join the queue again gets an error,
/// not a late grant.
async fn case_41_case_44_a_waiter_whose_session_ends_never_gets_the_lock(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, SHORT).await;
    let holder = world.keeper().await;
    let guard = world.rival(&holder).acquire().await.unwrap();
    let waiter = world.enqueue(world.subject(&keeper).acquire().requeue(false)).await;
    proxy.black_hole();
    world.queued(1).await;
    proxy.heal();
    match waiter.outcome().await {
        Err(error @ AcquireError::SessionLost { .. }) => assert!(error.kind().is_retryable(), "{error}"),
        other => panic!("{other:?}"),
    }
    guard.release().await.unwrap();
    world.subject(&keeper).acquire_in_new_session().await.release().await.unwrap();
}

/// N-17: an operator breaks a lock by deleting its node: the holder loses its guard, and the next waiter gets the lock.
async fn a_deleted_node_ends_the_hold(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let lock = world.subject(&one);
    let guard = lock.acquire().await.unwrap();
    let next = world.enqueue(world.rival(&other).acquire()).await;
    world.remove(&guard.node()).await;
    assert_eq!(guard.lost().await, Loss::Removed);
    assert_eq!((guard.is_held(), guard.state()), (false, HoldState::Lost(Loss::Removed)));
    assert!(guard.cancelled_when_lost().is_cancelled());
    let next = next.granted().await;
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Removed })));
    assert!(world.exists(&next.node()).await, "a lost guard deleted another's node");
    next.release().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// The error does not wait for the contenders ahead.
async fn case_42_a_waiter_whose_node_is_deleted_fails_immediately(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.rival(&one).acquire().await.unwrap();
    let waiter = world.enqueue(world.subject(&other).acquire()).await;
    let node = world.queue().await.pop().unwrap();
    world.remove(&world.node(&node)).await;
    match waiter.outcome().await {
        Err(AcquireError::Evicted { path, node: evicted, by: None }) => {
            assert_eq!((path, evicted), (world.lock(), node))
        }
        other => panic!("{other:?}"),
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// `Guard::run` drops the work at its next await after the loss, and returns the work's output if the lock lasts.
async fn guarded_work_stops_when_the_lock_is_lost(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await, Ok(7));
    let (started, has_started) = tokio::sync::oneshot::channel();
    let work = guard.run(async {
        _ = started.send(());
        std::future::pending::<()>().await;
    });
    let (done, ()) = tokio::join!(work, async {
        has_started.await.unwrap();
        world.remove(&guard.node()).await;
    });
    assert_eq!(done, Err(Loss::Removed));
    assert_eq!(guard.run(async { 7 }).await, Err(Loss::Removed));
}

/// Returns the id of a handle's session, read from the node of its guard.
async fn session(keeper: &Lockkeeper, guard: &Held) -> i64 {
    let seen = keeper.admin().show(guard.path()).await.unwrap();
    seen.holders.iter().find(|holder| holder.node == guard.name()).unwrap().session.0
}

/// The server ends the session of a connected holder: the loss is `SessionExpired`, not a guess, and the next waiter gets the
/// lock.
async fn an_expired_session_is_reported_as_expired(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let elsewhere = world.kind.lock(&keeper, &world.path("elsewhere")).acquire().await.unwrap();
    let next = world.enqueue(world.rival(&world.keeper().await).acquire()).await;
    assert!(world.embedded().faults().expire(session(&keeper, &guard).await).await.unwrap());
    assert_eq!(guard.lost().await, Loss::SessionExpired);
    assert_eq!(elsewhere.lost().await, Loss::SessionExpired, "all holds of a session end with it");
    next.granted().await.release().await.unwrap();
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::SessionExpired })));
    world.subject(&keeper).acquire_in_new_session().await.release().await.unwrap();
}

/// The waiter has a new session and a new node behind all others, its caller is informed, and its deadline stays the same.
async fn a_waiter_whose_session_expires_joins_the_queue_again_within_its_deadline(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let holder = world.rival(&one).acquire().await.unwrap();
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let granted = world.subject(&other).acquire().on_requeued(move |requeued| _ = report.send(requeued.clone()));
    let granted = world.enqueue(granted).await;
    let limit = Duration::from_secs(3);
    let late = world.enqueue(world.subject(&other).acquire().timeout(limit)).await;
    let admin = world.keeper().await.admin();
    let waiters = async || admin.show(holder.path()).await.unwrap().waiters;
    let before = waiters().await;
    assert!(world.embedded().faults().expire(before[0].session.0).await.unwrap());
    eventually("both wait again", async || {
        let after = waiters().await;
        after.len() == 2 && after.iter().all(|waiter| waiter.session != before[0].session)
    })
    .await;
    match late.outcome().await {
        Err(AcquireError::Timeout { waited, .. }) => assert_eq!(waited, limit),
        other => panic!("{other:?}"),
    }
    holder.release().await.unwrap();
    let guard = granted.granted().await;
    let requeued = reports.recv().await.unwrap();
    assert_eq!((requeued.path.as_str(), requeued.loss), (guard.path(), Loss::SessionExpired));
    assert!(reports.try_recv().is_err(), "it was reported once");
    // A hold does not join again.
    assert!(world.embedded().faults().expire(session(&other, &guard).await).await.unwrap());
    assert_eq!(guard.lost().await, Loss::SessionExpired);
    world.queued(0).await;
}

/// It had a position, so the connect timeout does not end its wait while no new session can be opened.
async fn a_waiter_that_joins_again_waits_for_the_servers_until_its_deadline(world: &World) {
    let proxy = world.proxy().await;
    let builder = Lockkeeper::builder().session_timeout(SHORT).connect_timeout(Duration::from_millis(200));
    let keeper = builder.connect(&proxy.connect_string()).await.unwrap();
    let holder = world.rival(&world.keeper().await).acquire().await.unwrap();
    let waiter = world.enqueue(world.subject(&keeper).acquire().timeout(PATIENCE)).await;
    let waiting = world.keeper().await.admin().show(holder.path()).await.unwrap().waiters;
    let before = proxy.counts();
    // The first reply says that the session is over; the others would open a new one.
    proxy.on(OpCode::CreateSession).nth(2).every().cut_before_reply();
    assert!(world.embedded().faults().expire(waiting[0].session.0).await.unwrap());
    // More tries than any one call to connect makes.
    proxy.wait_until(|counts| counts.since(&before).requested.of(OpCode::CreateSession) > 40).await;
    proxy.heal();
    world.queued(2).await;
    holder.release().await.unwrap();
    waiter.granted().await.release().await.unwrap();
}

/// Each loss concerns one guard only; the lock's handle keeps working, time after time.
async fn case_48_a_lost_hold_does_not_poison_the_lock(world: &World) {
    let keeper = world.keeper().await;
    let lock = world.subject(&keeper);
    for _ in 0..5 {
        let guard = lock.acquire_in_new_session().await;
        assert!(world.embedded().faults().expire(session(&keeper, &guard).await).await.unwrap());
        assert_eq!(guard.lost().await, Loss::SessionExpired);
        // The lost guard still exists.
        let again = lock.acquire_in_new_session().await;
        assert!(again.is_held() && !guard.is_held());
        again.release().await.unwrap();
    }
}

/// The connect timeout limits how long a call without a position waits for the servers.
async fn a_waiter_outlasts_a_lost_connection_that_ends_a_call_without_a_position(world: &World) {
    let proxy = world.proxy().await;
    let builder = Lockkeeper::builder().session_timeout(STEADY).connect_timeout(Duration::from_millis(300));
    let keeper = builder.connect(&proxy.connect_string()).await.unwrap();
    let holder = world.rival(&world.keeper().await).acquire().await.unwrap();
    let waiter = world.enqueue(world.subject(&keeper).acquire()).await;
    let waiting = world.keeper().await.admin().show(holder.path()).await.unwrap().waiters.remove(0);
    watched(&proxy, &waiting.node_path(holder.path())).await;
    proxy.refuse();
    proxy.cut(Cut::Reset);
    // The control: it lost the same connection, and the same time has passed.
    for _ in 0..2 {
        match keeper.mutex(world.path("other")).acquire().await {
            Err(AcquireError::Session(SessionError::Unreachable { servers, .. })) => {
                assert_eq!(servers, proxy.connect_string());
            }
            outcome => panic!("{outcome:?}"),
        }
    }
    assert!(waiter.waits());
    proxy.heal();
    holder.release().await.unwrap();
    waiter.granted().await.release().await.unwrap();
    keeper.close().await;
}

/// The event about the node comes before the news that the session is over.
async fn a_waiter_whose_node_goes_with_its_session_joins_the_queue_again(world: &World) {
    let (one, proxy) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let holder = world.rival(&one).acquire().await.unwrap();
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let request = world.subject(&keeper).acquire().on_requeued(move |requeued| _ = report.send(requeued.clone()));
    let waiter = world.enqueue(request).await;
    let waiting = one.admin().show(holder.path()).await.unwrap().waiters.remove(0);
    let node = waiting.node_path(holder.path());
    watched(&proxy, &node).await;
    // The waiter sees the delete first, and asks whether its session lives.
    let asked = proxy.on(OpCode::Check).hold_request();
    world.remove(&node).await;
    asked.caught().await;
    assert!(world.embedded().faults().expire(waiting.session.0).await.unwrap());
    proxy.cut(Cut::Reset);
    asked.release();
    let requeued = tokio::time::timeout(STEADY, reports.recv()).await.expect("the call has ended").unwrap();
    assert_eq!(requeued.loss, Loss::SessionExpired);
    world.queued(2).await;
    holder.release().await.unwrap();
    waiter.granted().await.release().await.unwrap();
}

/// The node of a waiter is gone, and so is the connection by which it would ask whether its session lives on.
async fn a_waiter_that_cannot_ask_who_removed_its_node_still_ends_as_its_caller_wants(world: &World) {
    let other = world.keeper().await;
    let guard = world.rival(&other).acquire().await.unwrap();
    for how in ["cancelled", "out of retries", "closed", "dropped"] {
        let proxy = world.proxy().await;
        let retries = if how == "out of retries" { 1 } else { 1_000_000 };
        let builder = Lockkeeper::builder().session_timeout(STEADY).reconnect(retries, Duration::from_millis(100));
        let keeper = builder.create_chroot(true).connect(&proxy.connect_string()).await.unwrap();
        let token = CancellationToken::new();
        let waiter = world.enqueue(world.subject(&keeper).acquire().cancel_on(token.clone())).await;
        let node = world.node(world.queue().await.last().unwrap());
        watched(&proxy, &node).await;
        proxy.refuse();
        let gone = proxy.on_watch_event().cut_after_reply();
        world.remove(&node).await;
        gone.fired().await;
        proxy.wait_until(|counts| counts.refused > 0).await;
        match how {
            "cancelled" => {
                token.cancel();
                assert!(matches!(waiter.outcome().await, Err(AcquireError::Cancelled { .. })));
            }
            "out of retries" => {
                let outcome = waiter.outcome().await;
                let lost = matches!(outcome, Err(AcquireError::Session(SessionError::ConnectionLost { .. })));
                assert!(lost, "{outcome:?}");
            }
            "closed" => {
                timeout(PATIENCE, keeper.close_within(Duration::from_millis(100))).await.unwrap();
                let outcome = waiter.outcome().await;
                assert!(matches!(outcome, Err(AcquireError::Session(SessionError::Closed))), "{outcome:?}");
            }
            _ => {
                waiter.abort();
                timeout(PATIENCE, keeper.close_within(Duration::from_millis(100))).await.unwrap();
            }
        }
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
}
