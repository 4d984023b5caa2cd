//! How long a hold may be trusted, and that it is known in time.

use std::time::Duration;

use futures_util::FutureExt;
use lockkeeper::{HoldState, Lockkeeper, Loss};
use lockkeeper_testkit::proxy::OpCode;
use tokio::time::Instant;

use crate::support::{World, eventually, on_the_embedded_server, turn_at};

on_the_embedded_server!(
    a_server_that_answers_pings_but_orders_nothing_is_not_believed,
    a_hold_is_renewed_by_one_small_write_a_fifth_of_the_timeout,
    case_50_a_session_that_holds_nothing_proves_nothing,
    a_grant_is_not_handed_over_before_the_session_is_known_to_live,
    each_heartbeat_that_extends_the_trust_is_told_and_no_other,
);

const TIMEOUT: Duration = Duration::from_secs(2);

/// A follower that is cut off from its peers goes on answering pings, reads and syncs, and takes connections; what needs a
/// majority it cannot do. The holder knows that it may have lost before its session can have expired.
async fn a_server_that_answers_pings_but_orders_nothing_is_not_believed(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let cut_off = proxy.on(OpCode::Delete).path("heartbeat").every().hold_request();
    let since = Instant::now();
    let due = since + guard.valid_for();
    let ((loss, known), turn) = tokio::join!(async { (guard.lost().await, Instant::now()) }, turn_at(due));
    assert_eq!(loss, Loss::Unreachable);
    // As soon as anybody had a turn then.
    let soon = turn.unwrap() + TIMEOUT / 8;
    assert!(due < since + TIMEOUT && known < soon.max(since + TIMEOUT), "known after {:?}", known - since);
    assert_eq!((guard.is_held(), guard.valid_for()), (false, Duration::ZERO));
    cut_off.release();
    assert!(!guard.is_held(), "lost is final");
    // Nobody believes in it any more, so it goes.
    eventually("the node is gone", async || world.queue().await.is_empty()).await;
}

/// Its cost, and what it is good for.
async fn a_hold_is_renewed_by_one_small_write_a_fifth_of_the_timeout(world: &World) {
    let proxy = world.proxy().await;
    let timeout = TIMEOUT * 2;
    let keeper = world.keeper_through(&proxy, timeout).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    assert!(guard.valid_for() > timeout / 4 && guard.valid_for() < timeout * 3 / 4, "{:?}", guard.valid_for());
    let since = Instant::now();
    proxy.wait_until(|counts| counts.delivered.of(OpCode::Delete) >= 4).await;
    assert!(since.elapsed() > timeout / 5 * 3, "4 proofs in {:?}", since.elapsed());
    assert_eq!(guard.state(), HoldState::Held);
    assert!(guard.valid_for() > timeout / 4);
    guard.release().await.unwrap();
}

async fn case_50_a_session_that_holds_nothing_proves_nothing(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
    let before = proxy.counts();
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::Ping) >= 4).await;
    assert_eq!(proxy.counts().since(&before).requested.of(OpCode::Delete), 0);
}

/// Told of its turn by a server that can order nothing, a waiter is not told that it holds.
async fn a_grant_is_not_handed_over_before_the_session_is_known_to_live(world: &World) {
    let holder = world.keeper().await;
    let guard = world.mutex(&holder).acquire().await.unwrap();
    let proxy = world.proxy().await;
    let keeper: Lockkeeper = world.keeper_through(&proxy, Duration::from_secs(4)).await;
    let waiter = world.enqueue_mutex(&keeper).await;
    // Until what its own create proved is no longer good.
    let cut_off = proxy.on(OpCode::Delete).path("heartbeat").every().hold_request();
    let before = proxy.counts();
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::Ping) >= 6).await;
    guard.release().await.unwrap();
    proxy.wait_until(|counts| counts.since(&before).watch_events >= 1).await;
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::Ping) >= 7).await;
    assert!(waiter.waits());
    cut_off.release();
    let guard = waiter.granted().await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

async fn each_heartbeat_that_extends_the_trust_is_told_and_no_other(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    for _ in 0..3 {
        let (renewed, before) = (guard.renewed(), Instant::now() + guard.valid_for());
        renewed.await;
        assert!(Instant::now() + guard.valid_for() > before);
    }
    let _cut_off = proxy.on(OpCode::Delete).path("heartbeat").every().hold_request();
    assert_eq!(guard.lost().await, Loss::Unreachable);
    assert_eq!(guard.renewed().now_or_never(), None, "a lost lock is not renewed");
}
