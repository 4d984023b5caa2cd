//! A healthy hold stays healthy: while servers answer and clocks run, it starts with fresh trust and keeps it.

use std::time::Duration;

use lockkeeper::HoldState;
use tokio::time::Instant;

use crate::support::{World, eventually, for_every_kind};

for_every_kind!(a_waiter_granted_late_starts_with_fresh_trust,);

/// Short, so that a test can wait for two of them; long enough that a tenth of it outlasts a busy machine's hiccups.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The third in the queue, when both before it go at once: its last write was its own create, so its session has not been proved
/// for most of what a proof is good for.
async fn a_waiter_granted_late_starts_with_fresh_trust(world: &World) {
    let (holder, other) = (world.keeper().await, world.keeper().await);
    let keeper = world.connect(&world.servers(), TIMEOUT).await;
    let guard = world.rival(&holder).acquire().await.unwrap();
    let second = world.await_in_line(world.subject(&other).acquire()).await;
    let asked = Instant::now();
    let third = world.await_in_line(world.subject(&keeper).acquire()).await;
    eventually("what its create proved is nearly over", async || asked.elapsed() > TIMEOUT * 3 / 5).await;
    guard.release().await.unwrap();
    second.granted().await.release().await.unwrap();
    let guard = third.granted().await;
    // A tenth is for a machine that is busy between the grant and this look.
    assert!(guard.valid_for() > TIMEOUT * 2 / 5, "starts with {:?} of {TIMEOUT:?}", guard.valid_for());
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await.unwrap();
}
