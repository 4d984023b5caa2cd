//! Deadlines that hold whatever the network does.

use std::time::Duration;

use lockkeeper::{Error, Lockkeeper};
use tokio::time::Instant;

use crate::support::{STEADY, World, on_every_server};

on_every_server!(
    case_27_a_silent_network_does_not_stretch_a_deadline,
    case_28_progress_in_the_queue_does_not_stretch_a_deadline,
);

/// How much later than its deadline a call may return on a busy machine. Failures of the kind meant here are as late as a client
/// gives up a silent connection, two fifths of the session timeout, or for ever.
const SLACK: Duration = Duration::from_secs(5);

/// Packets vanish and nobody is told: calls return at their deadline all the same, waiting, asking and connecting.
async fn case_27_a_silent_network_does_not_stretch_a_deadline(world: &World) {
    let two = Duration::from_secs(2);
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let aside = world.kind.mutex(&keeper, &world.path("aside"));
    proxy.black_hole();
    let on_time = async |call: &str, error: Error, started: Instant| {
        let took = started.elapsed();
        assert!(took >= two && took < two + SLACK, "{call} returned after {took:?}: {error}");
        assert!(error.is_retryable(), "{call}: {error:?}");
    };
    let started = Instant::now();
    let servers = proxy.connect_string();
    let (waited, tried, connected) = tokio::join!(
        async { on_time("acquire", aside.acquire().timeout(two).await.unwrap_err(), started).await },
        async { on_time("try", world.mutex(&keeper).try_acquire().timeout(two).await.unwrap_err(), started).await },
        async {
            let error = Lockkeeper::builder().connect_timeout(two).connect(&servers).await.unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
            on_time("connect", error, started).await;
        },
    );
    ((), (), ()) = (waited, tried, connected);
    proxy.heal();
    guard.release().await.unwrap();
    world.queued(0).await;
}

/// One deadline for the whole wait: those before it leave one by one, each within the time, and it ends on time.
async fn case_28_progress_in_the_queue_does_not_stretch_a_deadline(world: &World) {
    let (whole, step) = (Duration::from_secs(3), Duration::from_millis(600));
    let (one, other) = (world.keeper().await, world.keeper().await);
    let mut holder = world.mutex(&one).acquire().await.unwrap();
    let mut before = Vec::new();
    for _ in 0..5 {
        before.push(world.stand_in_line(&one).await);
    }
    let started = Instant::now();
    let mut waiting = tokio::spawn(world.mutex(&other).acquire().timeout(whole).into_future());
    world.queued(7).await;
    let mut before = before.into_iter();
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut waiting => break outcome.unwrap(),
            () = tokio::time::sleep(step) => {
                holder.release().await.unwrap();
                holder = before.next().expect("it ends before they do").granted().await;
            }
        }
    };
    let took = started.elapsed();
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
    let progress = 5 - u32::try_from(before.len()).unwrap();
    assert!(took >= whole && took < whole + step * 4, "{took:?}, stretched by {progress} who left");
    assert!(progress > 0, "there was none");
    holder.release().await.unwrap();
    for waiter in before {
        waiter.granted().await.release().await.unwrap();
    }
}
