//! A healthy hold stays healthy: while servers answer and clocks run, it starts with fresh trust and keeps it.

use std::time::Duration;

use lockkeeper::guard::HoldState;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{Stalls, World, eventually, for_every_kind, on_every_server};

for_every_kind!(a_waiter_granted_late_starts_with_fresh_trust);
// The simulated worlds show it for each kind.
on_every_server!(a_healthy_hold_stays_healthy);

/// Short, so that a test can wait for two of them; long enough that a tenth of it outlasts a pause of a busy machine.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The third contender gets the lock soon after the first releases it, when its last write was its own create. That create is
/// so old that its session has little trust left.
async fn a_waiter_granted_late_starts_with_fresh_trust(world: &World) {
    let (holder, other) = (world.keeper().await, world.keeper().await);
    let keeper = world.connect(&world.servers(), TIMEOUT).await;
    let guard = world.rival(&holder).acquire().await.unwrap();
    let second = world.enqueue(world.subject(&other).acquire()).await;
    let asked = Instant::now();
    let third = world.enqueue(world.subject(&keeper).acquire()).await;
    eventually("most of the trust from its create has expired", async || asked.elapsed() > TIMEOUT * 3 / 5).await;
    guard.release().await.unwrap();
    second.granted().await.release().await.unwrap();
    let guard = third.granted().await;
    // A tenth allows for a busy machine between the grant and this check.
    assert!(guard.valid_for() > TIMEOUT * 2 / 5, "starts with {:?} of {TIMEOUT:?}", guard.valid_for());
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await.unwrap();
}

/// Queues of 3, whose first holds for 0 to 2 T, and a queue of 10; each contender has a session of its own.
async fn a_healthy_hold_stays_healthy(world: &World) {
    const T: Duration = Duration::from_secs(3);
    let stalls = Stalls::watch();
    let mut queues: Vec<Vec<Duration>> = (0..=8).map(|quarters| vec![T * quarters / 4, T / 10, T / 10]).collect();
    queues.push(vec![T / 5; 10]);
    let mut holds = JoinSet::new();
    for (at, times) in queues.into_iter().enumerate() {
        let path = world.path(&format!("queue-{at}"));
        let mut first =
            Some(world.kind.rival().lock(&world.connect(&world.servers(), T).await, &path).acquire().await.unwrap());
        for (place, time) in times.into_iter().enumerate() {
            let (first, kind, path) = (first.take(), world.kind, path.clone());
            let keeper = world.connect(&world.servers(), T).await;
            holds.spawn(async move {
                let guard = match first {
                    Some(guard) => guard,
                    None => kind.lock(&keeper, &path).acquire().await.unwrap(),
                };
                let (start, state) = (guard.valid_for(), guard.state());
                let ill = tokio::select! {
                    state = guard.nearly_lost(T / 3) => Some(state),
                    state = guard.changed(HoldState::Held) => Some(state),
                    () = tokio::time::sleep(time) => None,
                };
                guard.release().await.unwrap();
                (place, time, start, state, ill)
            });
        }
    }
    let ended = holds.join_all().await;
    // Where the machine gave no thread a turn, the check and the heartbeats were late by that much.
    let stall = stalls.longest();
    for (place, time, start, state, ill) in ended {
        let facts = format!(
            "place {place}, held for {time:?}: starts with {start:?}, {state:?}; then {ill:?}; stall {stall:?}"
        );
        // The first of each queue was granted before the others had connected.
        assert!(place == 0 || start + stall >= T / 2, "{facts}");
        assert!(state == HoldState::Held && (ill.is_none() || stall > T / 10), "{facts}");
    }
}
