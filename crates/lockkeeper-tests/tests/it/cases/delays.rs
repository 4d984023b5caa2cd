//! Lock delay: a contender waits after a loss, not after a release.

use std::time::Duration;

use lockkeeper::error::AcquireError;
use lockkeeper::{Guard, Lockkeeper, NodeFormat};
use tokio::time::Instant;

use crate::support::{PATIENCE, STEADY, World, eventually, misused, on_the_embedded_server_for};

on_the_embedded_server_for!([native Native]
    case_34_the_next_waiter_is_delayed_after_a_loss_and_not_after_a_release,
    case_34_a_contender_that_comes_after_the_loss_is_delayed_too,
    case_34_abandoned_readers_delay_writers_and_not_readers,
    a_lock_delay_costs_one_write,
    an_invalid_lock_delay_is_refused_before_anything_is_sent,
);

const DELAY: Duration = Duration::from_millis(1_500);

/// The server ends the session of this guard's holder; its node is deleted then.
async fn end_session_of(world: &World, keeper: &Lockkeeper, guard: &Guard) -> Instant {
    let seen = keeper.admin().show(guard.path()).await.unwrap();
    let holder = seen.holders.iter().find(|holder| guard.node().ends_with(&holder.node)).unwrap();
    let before = Instant::now();
    assert!(world.embedded().faults().expire(holder.session.0).await.unwrap());
    before
}

async fn case_34_the_next_waiter_is_delayed_after_a_loss_and_not_after_a_release(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    // A delay so long that a waiting contender gets no lock within the test.
    let long = Duration::from_secs(600);
    let guard = world.mutex(&one).acquire().lock_delay(long).await.unwrap();
    let next = crate::support::spawn(world.mutex(&other).acquire().into_future());
    eventually("the contender waits", async || world.children(&world.lock()).await.len() == 3).await;
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, next).await.expect("a release is no loss").unwrap().unwrap();
    guard.release().await.unwrap();
    drop(world.mutex(&one).acquire().lock_delay(long).await.unwrap());
    world.mutex(&other).acquire().timeout(PATIENCE).await.unwrap().release().await.unwrap();
    // By expiry, and by an operator's delete.
    for removed in [false, true] {
        let keeper = world.keeper().await;
        let guard = world.mutex(&keeper).acquire().lock_delay(DELAY).await.unwrap();
        let next = crate::support::spawn(world.mutex(&other).acquire().into_future());
        eventually("the contender waits", async || world.children(&world.lock()).await.len() == 3).await;
        let lost = match removed {
            true => {
                let before = Instant::now();
                world.remove(&guard.node()).await;
                before
            }
            false => end_session_of(world, &keeper, &guard).await,
        };
        let next = next.await.unwrap().unwrap();
        let waited = lost.elapsed();
        assert!(waited >= DELAY, "granted {waited:?} after the loss");
        next.release().await.unwrap();
        assert_eq!(world.children(&world.lock()).await, [""; 0], "a node is left");
    }
}

async fn case_34_a_contender_that_comes_after_the_loss_is_delayed_too(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.mutex(&one).acquire().message("nightly index").lock_delay(DELAY).await.unwrap();
    end_session_of(world, &other, &guard).await;
    eventually("only the tombstone is left", async || world.children(&world.lock()).await.len() == 1).await;
    // No contender waited when the holder was lost. A listing shows whose delay it is.
    let shown = other.admin().show(&world.lock()).await.unwrap();
    assert!(shown.holders[0].abandoned && shown.waiters.is_empty(), "{shown:?}");
    let came = Instant::now();
    match world.mutex(&other).try_acquire().await {
        Err(error @ AcquireError::Held { .. }) => assert!(error.to_string().contains("abandoned"), "{error}"),
        other => panic!("{other:?}"),
    }
    let next = world.mutex(&other).acquire().timeout(PATIENCE).await.unwrap();
    let waited = came.elapsed();
    assert!(waited >= DELAY, "granted {waited:?} after the call");
    next.release().await.unwrap();
    assert_eq!(world.children(&world.lock()).await, [""; 0]);
}

async fn case_34_abandoned_readers_delay_writers_and_not_readers(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let path = world.lock();
    let reader: Guard = one.rwlock(&path).read().acquire().lock_delay(DELAY).await.unwrap();
    let lost = end_session_of(world, &other, &reader).await;
    let beside = other.rwlock(&path).read().try_acquire().await.expect("readers hold together");
    let writer = crate::support::spawn(other.rwlock(&path).write().acquire().into_future());
    beside.release().await.unwrap();
    let writer = writer.await.unwrap().unwrap();
    assert!(lost.elapsed() >= DELAY);
    writer.release().await.unwrap();
}

/// A create and a list, the tombstone, and one delete of both nodes.
async fn a_lock_delay_costs_one_write(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
    let before = proxy.counts();
    world.mutex(&keeper).acquire().lock_delay(DELAY).await.unwrap().release().await.unwrap();
    let sent = proxy.counts().since(&before).requested;
    use lockkeeper_testkit::proxy::OpCode;
    assert_eq!((sent.of_any(OpCode::CREATES), sent.of(OpCode::Multi)), (1, 2), "{sent:?}");
}

async fn an_invalid_lock_delay_is_refused_before_anything_is_sent(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.counts();
    for given in [Duration::ZERO, Duration::from_secs(3601), Duration::MAX] {
        let refused = world.mutex(&keeper).acquire().lock_delay(given).await;
        assert_eq!(misused(&refused), Some("lock delay"), "{refused:?}");
    }
    let recipe = world.mutex(&keeper).node_format(NodeFormat::Recipe).acquire().lock_delay(DELAY).await;
    assert_eq!(misused(&recipe), Some("lock delay"), "{recipe:?}");
    assert_eq!(proxy.counts().since(&before).requested.total(), 0);
}
