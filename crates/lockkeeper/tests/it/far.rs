//! Clients far from their servers: what each call costs in round trips, and that the defaults hold. Simulated links have exact times.

use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper_testkit::sim::{Settings, Sim};
use lockkeeper_testkit::worlds::simulate;
use tokio::time::{Instant, sleep};

const LOCK: &str = "/locks/far";

/// Servers whose disks need no time, this far from their clients. Each message may be later by `jitter`.
fn servers(seed: u64, round_trip: Duration, jitter: Duration) -> Sim {
    let none = Duration::ZERO..Duration::from_nanos(1);
    let one_way = round_trip / 2;
    let network = one_way..one_way + jitter.max(Duration::from_nanos(1));
    // The node of an unused lock stays.
    let container_check = Duration::from_secs(86_400);
    Sim::new(seed, Settings { network, fsync: none.clone(), lag: none, container_check, ..Settings::default() })
}

/// Waits until the lock has this many contenders, and nothing is on its way.
async fn settled(sim: &Sim, contenders: usize) {
    while sim.children(LOCK).len() != contenders {
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_secs(2)).await;
}

/// [001]: "different machines, or different networks, or even different data centers".
#[test]
fn each_call_costs_the_round_trips_that_the_manual_names() {
    let page = include_str!("../../../../docs/guide/far.md");
    for millis in [20, 80, 150] {
        simulate(async move {
            let round_trip = Duration::from_millis(millis);
            let sim = servers(1, round_trip, Duration::ZERO);
            let keeper = |sim: &Sim| Lockkeeper::builder().simulated(sim.network());
            let check = |what: &str, since: Instant| {
                let trips = since.elapsed().div_duration_f64(round_trip);
                let row = format!("| {what} | {} |", (trips * 2.0).round() / 2.0);
                assert!(page.contains(&row), "at {millis} ms, this is not in the manual: {row} ({trips:.2})");
            };
            // Somebody has used the servers before.
            drop(keeper(&sim).mutex("/locks/other").acquire().await.unwrap());

            let (one, other) = (keeper(&sim), keeper(&sim));
            let now = Instant::now();
            let guard = one.mutex(LOCK).acquire().await.unwrap();
            check("the first call of a process: it connects, and acquires a lock that was never used", now);
            settled(&sim, 1).await;
            let now = Instant::now();
            guard.release().await.unwrap();
            check("`release`", now);
            let now = Instant::now();
            let guard = one.mutex(LOCK).acquire().await.unwrap();
            check("`acquire` of a free lock", now);
            drop(other.mutex("/locks/other").acquire().await.unwrap());
            settled(&sim, 1).await;
            let now = Instant::now();
            drop(other.mutex("/locks/new").acquire().await.unwrap());
            check(
                "`acquire` of a lock whose node the servers have removed, as they do after a minute without use",
                now,
            );
            let now = Instant::now();
            other.mutex(LOCK).try_acquire().await.unwrap_err();
            check("`try_acquire` of a held lock, which says who holds it", now);
            let now = Instant::now();
            one.admin().show(LOCK).await.unwrap();
            check("`show`", now);
            let now = Instant::now();
            guard.verify().await.unwrap();
            check("`verify`", now);
            let waiting = tokio::spawn(other.mutex(LOCK).acquire().into_future());
            settled(&sim, 2).await;
            let now = Instant::now();
            drop(guard);
            let guard = waiting.await.unwrap().unwrap();
            check("from a release to the grant of a waiter in another process", now);
            let waiting = tokio::spawn(other.mutex(LOCK).acquire().into_future());
            settled(&sim, 2).await;
            let now = Instant::now();
            drop(guard);
            drop(waiting.await.unwrap().unwrap());
            check("the same in one process", now);
        });
    }
}

/// TCP sends a lost message again after 200 ms or more. Here every message is late by up to 300 ms.
#[test]
fn with_the_defaults_no_hold_is_lost_on_a_link_of_150_ms_that_loses_messages() {
    for seed in 0..20 {
        simulate(async move {
            let sim = servers(seed, Duration::from_millis(150), Duration::from_millis(300));
            let keeper = Lockkeeper::builder().simulated(sim.network());
            let guard = keeper.mutex(LOCK).acquire().await.unwrap();
            let (held, mut least) = (Instant::now(), guard.valid_for());
            while held.elapsed() < Duration::from_secs(600) {
                sleep(Duration::from_millis(50)).await;
                assert!(guard.is_held());
                least = least.min(guard.valid_for());
            }
            // A third of the session timeout is left when the link is at its worst.
            assert!(least > Duration::from_secs(10), "{least:?}");
        });
    }
}
