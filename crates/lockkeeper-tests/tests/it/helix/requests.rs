//! The options of one request: a try, a deadline, a cancellation, what happens on a loss, and a thread that blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::error::SessionError;
use lockkeeper::guard::OnLost;
use lockkeeper::{CancellationToken, Lockkeeper, Loss};
use lockkeeper_helix::{AcquireLeaseError, HelixLock};
use lockkeeper_testkit::proxy::{Cut, OpCode};

use super::{LONG, ask, lock, on_every_record_server, requested_by, stored};
use crate::support::{STEADY, Waiter, World, eventually};

on_every_record_server!(
    a_try_takes_a_free_lock_and_asks_no_owner,
    a_try_does_not_end_a_lease_that_is_kept_after_its_end,
    a_request_ends_at_its_deadline_and_is_withdrawn,
    a_deadline_without_an_answer_is_unreachable,
    slow_servers_are_told_from_silent_ones,
    a_request_without_a_session_ends_at_its_deadline,
    a_cancelled_request_is_withdrawn,
    a_request_says_what_happens_on_a_loss,
    a_handle_says_what_happens_on_a_loss,
    a_blocked_thread_gets_the_guard,
);

async fn a_try_takes_a_free_lock_and_asks_no_owner(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (a, b) = (lock(world, &one, "a"), lock(world, &other, "b").priority(5).forceful(true));
    let guard = a.try_acquire().await.unwrap();
    let written = stored(world).await;
    for request in [b.try_acquire(), b.acquire().timeout(Duration::ZERO)] {
        match request.await {
            Err(AcquireLeaseError::Outranked { by, priority, .. }) => assert_eq!((by.as_str(), priority), ("a", 0)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stored(world).await, written, "a try writes nothing");
    assert!(guard.is_held() && guard.preempted_by().is_none());
    // Its own lock: the lease begins again.
    let again = a.try_acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Superseded);
    again.release().await.unwrap();
    b.try_acquire().await.unwrap().release().await.unwrap();
}

async fn a_try_does_not_end_a_lease_that_is_kept_after_its_end(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let short = Duration::from_millis(500);
    let a = HelixLock::new(&one, world.lock(), short).user_id("a").skew(Duration::ZERO);
    let guard = a.acquire().await.unwrap();
    let b = lock(world, &other, "b").priority(5);
    // As long as others need to know that the lease is over, and longer.
    let over = Instant::now() + short * 3;
    while Instant::now() < over {
        assert!(matches!(b.try_acquire().await, Err(AcquireLeaseError::Outranked { .. })));
    }
    assert!(guard.is_held());
    assert!(stored(world).await.request.is_none());
    guard.release().await.unwrap();
}

/// The timeout of the call is not the time that the owner is told.
async fn a_request_ends_at_its_deadline_and_is_withdrawn(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let (b, limit) = (lock(world, &other, "b").priority(1), Duration::from_millis(300));
    let started = Instant::now();
    let waiting = Waiter::spawn(b.acquire().timeout(limit));
    requested_by(world, "b").await;
    match waiting.outcome().await {
        Err(AcquireLeaseError::Timeout { waited, .. }) => assert_eq!(waited, limit),
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    eventually("the request is withdrawn", async || stored(world).await.request.is_none()).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

async fn a_deadline_without_an_answer_is_unreachable(world: &World) {
    let (proxy, one) = (world.proxy().await, world.keeper().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let b = lock(world, &keeper, "b").priority(1);
    b.acquire().await.unwrap().release().await.unwrap();
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let unreachable = |error: AcquireLeaseError, limit: Duration| match error {
        AcquireLeaseError::Session(SessionError::Unreachable { waited, .. }) => assert_eq!(waited, limit),
        other => panic!("{other:?}"),
    };
    let limit = Duration::from_millis(300);
    proxy.black_hole();
    unreachable(b.acquire().timeout(limit).await.unwrap_err(), limit);
    unreachable(b.try_acquire().timeout(limit).await.unwrap_err(), limit);
    proxy.heal();
    proxy.cut(Cut::Reset);
    // While it waits for the owner, only the lost connection shows it.
    let waiting = Waiter::spawn(b.acquire().timeout(limit * 4));
    requested_by(world, "b").await;
    proxy.refuse();
    proxy.cut(Cut::Reset);
    unreachable(waiting.outcome().await.unwrap_err(), limit * 4);
    proxy.heal();
    eventually("the request is withdrawn", async || stored(world).await.request.is_none()).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// They have answered before. A try waits for nothing but the servers; two seconds without an answer are silence.
async fn slow_servers_are_told_from_silent_ones(world: &World) {
    let proxy = world.proxy().await;
    let b = lock(world, &world.keeper_through(&proxy, STEADY).await, "b").keep_node();
    b.acquire().await.unwrap().release().await.unwrap();
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(3));
    for (request, limit, why) in [
        (b.try_acquire().timeout(short), short, "the servers answered too slowly"),
        (b.acquire().timeout(long), long, "a request was not answered"),
    ] {
        let held = proxy.on(OpCode::Multi).hold_reply();
        match request.await {
            Err(AcquireLeaseError::Session(SessionError::Unreachable { waited, detail, .. })) => {
                assert_eq!((waited, detail.as_str()), (limit, why));
            }
            other => panic!("{other:?}"),
        }
        assert!(held.has_caught());
        held.release();
        eventually("the grant is given back", async || stored(world).await.is_free()).await;
        proxy.heal();
    }
}

/// Also while the first session is opened.
async fn a_request_without_a_session_ends_at_its_deadline(world: &World) {
    let proxy = world.proxy().await;
    proxy.black_hole();
    let keeper = lockkeeper::Lockkeeper::builder().connect_lazy(&proxy.connect_string()).unwrap();
    let b = lock(world, &keeper, "b");
    let limit = Duration::from_millis(300);
    match b.acquire().timeout(limit).await {
        Err(AcquireLeaseError::Session(SessionError::Unreachable { waited, .. })) => assert_eq!(waited, limit),
        other => panic!("{other:?}"),
    }
    let (cancel, waiting) = (CancellationToken::new(), b.acquire());
    let waiting = Waiter::spawn(waiting.cancel_on(cancel.clone()));
    cancel.cancel();
    assert!(matches!(waiting.outcome().await, Err(AcquireLeaseError::Cancelled { .. })));
    proxy.heal();
}

async fn a_cancelled_request_is_withdrawn(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let b = lock(world, &other, "b").priority(1);
    let cancel = CancellationToken::new();
    let waiting = Waiter::spawn(b.acquire().cancel_on(cancel.clone()));
    requested_by(world, "b").await;
    cancel.cancel();
    assert!(matches!(waiting.outcome().await, Err(AcquireLeaseError::Cancelled { .. })));
    eventually("the request is withdrawn", async || stored(world).await.request.is_none()).await;
    assert!(guard.is_held());
    // A lock that this request just got is released.
    guard.release().await.unwrap();
    assert!(matches!(b.acquire().cancel_on(cancel).await, Err(AcquireLeaseError::Cancelled { .. })));
    eventually("the lock is free", async || stored(world).await.is_free()).await;
}

async fn a_request_says_what_happens_on_a_loss(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let called = Arc::new(AtomicBool::new(false));
    let call = called.clone();
    let on_lost = OnLost::call(move |_| call.store(true, Ordering::Release));
    let guard = lock(world, &one, "a").acquire().on_lost(on_lost).await.unwrap();
    let next = ask(&lock(world, &other, "b").priority(1)).granted().await;
    assert_eq!(guard.lost().await, Loss::Preempted);
    eventually("the callback was called", async || called.load(Ordering::Acquire)).await;
    next.release().await.unwrap();
}

/// For the requests that say nothing else.
async fn a_handle_says_what_happens_on_a_loss(world: &World) {
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let on_lost = OnLost::call(move |lost| _ = report.send(lost.clone()));
    let builder = Lockkeeper::builder().session_timeout(STEADY).on_lost(on_lost);
    let one = builder.connect(&world.servers()).await.unwrap();
    world.keep_open(&one);
    let guard = lock(world, &one, "a").acquire().await.unwrap();
    let next = lock(world, &world.keeper().await, "b").priority(1).acquire().await.unwrap();
    let lost = reports.recv().await.unwrap();
    assert_eq!((lost.path.as_str(), lost.loss), (guard.path(), Loss::Preempted));
    next.release().await.unwrap();
}

async fn a_blocked_thread_gets_the_guard(world: &World) {
    let keeper = world.keeper().await;
    let lock = lock(world, &keeper, "a");
    let held = tokio::task::spawn_blocking(move || {
        let guard = lock.acquire().timeout(LONG).wait().unwrap();
        let held = guard.is_held();
        guard.release_blocking().unwrap();
        held
    });
    assert!(held.await.unwrap());
    assert!(stored(world).await.is_free());
}
