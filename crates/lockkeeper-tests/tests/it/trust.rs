//! How long a hold may be trusted, and that its end is known in time.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::FutureExt;
use lockkeeper::guard::HoldState;
use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_client::wire::ErrorCode;
use lockkeeper_testkit::proxy::{OpCode, Proxy};
use tokio::time::Instant;

use crate::support::{
    REQUESTS, World, eventually, on_the_embedded_server, on_the_embedded_server_for, turn_at, watches_set,
};

on_the_embedded_server_for!(
    [native Native, #[cfg(deep)] recipe Recipe, numbered Numbered]
    a_server_that_answers_pings_but_orders_nothing_is_not_trusted,
    a_refusal_by_the_connected_server_is_no_heartbeat,
    a_hold_is_renewed_by_one_small_write_per_fifth_of_the_timeout,
    case_50_a_session_without_holds_sends_no_heartbeat_writes,
    case_50_a_call_dropped_at_any_request_renews_nothing,
    case_50_a_waiter_dropped_at_any_request_renews_nothing,
    case_43_a_dropped_guard_renews_nothing,
    a_grant_waits_for_a_proof_that_the_session_is_alive,
);

on_the_embedded_server!(
    an_upgrade_waits_for_a_proof_that_the_session_is_alive,
    a_downgrade_waits_for_a_proof_that_the_session_is_alive,
    only_heartbeats_that_extend_the_trust_are_reported,
);

const TIMEOUT: Duration = Duration::from_secs(2);

/// A follower without its peers still answers pings, reads and syncs, and accepts connections, but cannot do anything that
/// needs a majority. The holder loses its guard before its session can have expired.
async fn a_server_that_answers_pings_but_orders_nothing_is_not_trusted(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let cut_off = proxy.on(OpCode::Check).every().hold_request();
    let since = Instant::now();
    let due = since + guard.valid_for();
    let ((loss, known), turn) = tokio::join!(async { (guard.lost().await, Instant::now()) }, turn_at(due));
    assert_eq!(loss, Loss::Unreachable);
    // As soon as any thread got a turn after the deadline.
    let soon = turn.unwrap() + TIMEOUT / 8;
    assert!(due < since + TIMEOUT && known < soon.max(since + TIMEOUT), "known after {:?}", known - since);
    assert_eq!((guard.is_held(), guard.valid_for()), (false, Duration::ZERO));
    cut_off.release();
    assert!(!guard.is_held(), "lost is final");
    // The lost hold's node is deleted.
    eventually("the node is deleted", async || world.queue().await.is_empty()).await;
}

/// With `zookeeper.enableEagerACLCheck`, a follower without its peers refuses a write by itself, if the client has no right for it.
async fn a_refusal_by_the_connected_server_is_no_heartbeat(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let since = Instant::now();
    let refused = proxy.on(OpCode::Check).every().refuse_reply(ErrorCode::NoAuth);
    let before = proxy.counts();
    assert_eq!(guard.lost().await, Loss::Unreachable);
    // A refused heartbeat is repeated, but not at once.
    let (asked, took) = (proxy.counts().since(&before).requested.of(OpCode::Check), since.elapsed());
    assert!(refused.has_fired() && u128::from(asked) <= took.as_millis() / 50 + 1, "{asked} heartbeats in {took:?}");
    drop(refused);
    eventually("the node is deleted", async || world.queue().await.is_empty()).await;
}

/// The cost of trust, and how long each write extends it.
async fn a_hold_is_renewed_by_one_small_write_per_fifth_of_the_timeout(world: &World) {
    let proxy = world.proxy().await;
    let timeout = TIMEOUT * 2;
    let keeper = world.keeper_through(&proxy, timeout).await;
    let since = Instant::now();
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    assert!(guard.valid_for() > timeout / 4 && guard.valid_for() < timeout * 3 / 4, "{:?}", guard.valid_for());
    proxy.wait_until(|counts| counts.delivered.of(OpCode::Check) >= 4).await;
    assert!(since.elapsed() > timeout / 5 * 3, "4 heartbeats in {:?}", since.elapsed());
    assert_eq!(guard.state(), HoldState::Held);
    assert!(guard.valid_for() > timeout / 4);
    guard.release().await.unwrap();
}

async fn case_50_a_session_without_holds_sends_no_heartbeat_writes(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
    renews_nothing(&proxy).await;
}

/// Four pings, each of which is a chance for a heartbeat.
async fn renews_nothing(proxy: &Proxy) {
    let before = proxy.counts();
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::Ping) >= 4).await;
    assert_eq!(proxy.counts().since(&before).requested.of(OpCode::Check), 0);
}

/// The caller drops its call while a request or a reply is on its way, for every request of a call.
async fn case_50_a_call_dropped_at_any_request_renews_nothing(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    for replied in [false, true] {
        for nth in 1.. {
            let path = world.path(&format!("{replied}-{nth}"));
            let rule = proxy.on_any(REQUESTS).path(world.kind.parent(&path)).nth(nth);
            let hold = if replied { rule.hold_reply() } else { rule.hold_request() };
            let mut call = Box::pin(world.kind.mutex(&keeper, &path).acquire().into_future());
            let granted = tokio::select! {
                () = hold.caught() => false,
                granted = &mut call => { granted.unwrap().release().await.unwrap(); true }
            };
            drop(call);
            hold.release();
            eventually("no node of the call is left", async || world.children(&path).await.is_empty()).await;
            if granted {
                assert!(nth > 2, "no request was met");
                break;
            }
        }
    }
    renews_nothing(&proxy).await;
}

/// The same for the next waiter of a held lock. It renews its session before it has a guard, so the last requests are heartbeats:
/// one while it waits, and one that a grant waits for. The waiter behind it gets the lock.
async fn case_50_a_waiter_dropped_at_any_request_renews_nothing(world: &World) {
    let (proxy, holder) = (world.proxy().await, world.keeper().await);
    let keeper = world.keeper_through(&proxy, TIMEOUT * 2).await;
    let before = proxy.counts();
    let guard = world.mutex(&holder).acquire().await.unwrap();
    let waiter = world.enqueue_mutex(&keeper).await;
    watches_set(&proxy, before.delivered.of(OpCode::GetData) + world.kind.reads_to_wait()).await;
    let requests = proxy.counts().since(&before).requested;
    let steps = REQUESTS.iter().map(|op| requests.of(*op)).sum::<u64>();
    assert!(steps >= 4, "a create, a list and two reads: {requests:?}");
    waiter.abort();
    world.queued(1).await;
    guard.release().await.unwrap();
    for (replied, granted) in [(false, false), (true, false), (false, true), (true, true)] {
        let heartbeats = if granted { steps + 1..=steps + 1 } else { 1..=steps + 1 };
        for nth in heartbeats {
            let step = format!("replied {replied}, granted {granted}, request {nth} of {steps}");
            let guard = world.mutex(&holder).acquire().await.unwrap();
            let rule = match nth > steps {
                true => proxy.on(OpCode::Check).every(),
                false => proxy.on_any(REQUESTS).path(world.parent()).nth(nth),
            };
            let hold = if replied { rule.hold_reply() } else { rule.hold_request() };
            let before = proxy.counts();
            let mut call = Box::pin(world.mutex(&keeper).acquire().into_future());
            tokio::select! {
                () = hold.caught() => {}
                early = &mut call => panic!("{step}: {early:?}"),
            }
            // Its node exists, unless its create has not arrived.
            world.queued(if nth == 1 && !replied { 1 } else { 2 }).await;
            let next = world.enqueue_mutex(&holder).await;
            let guard = match granted {
                true => {
                    guard.release().await.unwrap();
                    world.queued(2).await;
                    None
                }
                false => Some(guard),
            };
            drop(call);
            hold.release();
            proxy.wait_until(|counts| counts.since(&before).delivered.of_any(OpCode::CREATES) == 1).await;
            let left = usize::from(!granted) + 1;
            eventually(&format!("{step}: the waiter leaves"), async || world.queue().await.len() == left).await;
            if let Some(guard) = guard {
                guard.release().await.unwrap();
            }
            next.granted().await.release().await.unwrap();
            world.queued(0).await;
            if nth > steps {
                renews_nothing(&proxy).await;
            }
        }
    }
}

/// The guard is what renews: there is no call that acquires without it.
async fn case_43_a_dropped_guard_renews_nothing(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    proxy.wait_until(|counts| counts.requested.of(OpCode::Check) >= 1).await;
    drop(guard);
    world.queued(0).await;
    renews_nothing(&proxy).await;
}

/// A waiter whose predecessor's deletion is reported by a server that cannot order writes gets no guard.
async fn a_grant_waits_for_a_proof_that_the_session_is_alive(world: &World) {
    let holder = world.keeper().await;
    let guard = world.mutex(&holder).acquire().await.unwrap();
    let proxy = world.proxy().await;
    let session_timeout = Duration::from_secs(4);
    let keeper: Lockkeeper = world.keeper_through(&proxy, session_timeout).await;
    let waiter = world.enqueue_mutex(&keeper).await;
    let cut_off = proxy.on(OpCode::Check).every().hold_request();
    let before = proxy.counts();
    // The trust from its own create expires.
    tokio::time::sleep(session_timeout * 9 / 10).await;
    guard.release().await.unwrap();
    proxy.wait_until(|counts| counts.since(&before).watch_events >= 1).await;
    tokio::time::sleep(session_timeout / 10).await;
    assert!(waiter.waits());
    cut_off.release();
    let guard = waiter.granted().await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// The reader ahead of it releases while the session's last heartbeat leaves less than half of the timeout.
async fn an_upgrade_waits_for_a_proof_that_the_session_is_alive(world: &World) {
    let (proxy, timeout) = (world.proxy().await, TIMEOUT * 6);
    let keeper = world.keeper_through(&proxy, timeout).await;
    let reader = world.keeper().await.rwlock(world.lock()).read().acquire().await.unwrap();
    let guard = keeper.rwlock(world.lock()).upgradeable().acquire().await.unwrap();
    let mut upgrade = guard.upgrade().into_future();
    assert!((&mut upgrade).now_or_never().is_none());
    // It reads the reader's node and its own to watch them.
    proxy.wait_until(|counts| counts.delivered.of(OpCode::GetData) >= 2).await;
    let before = proxy.counts();
    let cut_off = proxy.on(OpCode::Check).every().hold_request();
    cut_off.caught().await;
    // Less than half of the timeout is left of the heartbeat before then.
    tokio::time::sleep(timeout * 3 / 10).await;
    reader.release().await.unwrap();
    proxy.wait_until(|counts| counts.since(&before).watch_events >= 1).await;
    let early = tokio::time::timeout(timeout / 20, &mut upgrade).await;
    assert!(early.is_err(), "{early:?}");
    cut_off.release();
    let guard = upgrade.await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// The reply to the transaction that makes it a reader is late. It proves the session only from when the request was sent.
async fn a_downgrade_waits_for_a_proof_that_the_session_is_alive(world: &World) {
    let (proxy, timeout) = (world.proxy().await, TIMEOUT * 6);
    let keeper = world.keeper_through(&proxy, timeout).await;
    let guard = keeper.rwlock(world.lock()).write().acquire().await.unwrap();
    let cut_off = proxy.on(OpCode::Check).every().hold_request();
    let late = proxy.on(OpCode::Multi).hold_reply();
    let mut downgrade = Box::pin(guard.downgrade());
    assert!((&mut downgrade).now_or_never().is_none());
    late.caught().await;
    // Less than half of the timeout is left of that proof then.
    tokio::time::sleep(timeout * 3 / 10).await;
    late.release();
    let early = tokio::time::timeout(timeout / 20, &mut downgrade).await;
    assert!(early.is_err(), "{early:?}");
    cut_off.release();
    let guard = downgrade.await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

async fn only_heartbeats_that_extend_the_trust_are_reported(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    for _ in 0..3 {
        let (renewed, before) = (guard.renewed(), Instant::now() + guard.valid_for());
        renewed.await;
        assert!(Instant::now() + guard.valid_for() > before);
    }
    let _cut_off = proxy.on(OpCode::Check).every().hold_request();
    assert_eq!(guard.lost().await, Loss::Unreachable);
    assert_eq!(guard.renewed().now_or_never(), None, "a lost lock is not renewed");
}
