//! Clients far from their servers: what each call costs in round trips, and that the defaults hold.
//!
//! Simulated links have exact times. Real servers are behind relays that pass on every piece late.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::sim::{Settings, Sim};
use lockkeeper_testkit::worlds::simulate;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::support::{World, for_kinds};

for_kinds!([native Native] a_lock_is_passed_on_over_links_of_20_to_150_ms_that_lose_every_eighth_piece);

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
            let waiting = crate::support::spawn(other.mutex(LOCK).acquire().into_future());
            settled(&sim, 2).await;
            let now = Instant::now();
            drop(guard);
            let guard = waiting.await.unwrap().unwrap();
            check("from a release to the grant of a waiter in another process", now);
            let waiting = crate::support::spawn(other.mutex(LOCK).acquire().into_future());
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
    for seed in 0..if is_deep() { 20 } else { 3 } {
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

/// How long TCP waits at least before it sends a lost piece again.
const SENT_AGAIN: Duration = Duration::from_millis(200);

/// Passes on what one side sends, in order: each piece `one_way` later, and every eighth as if it had been lost once.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin + Send + 'static, one_way: Duration) {
    let (sender, mut pieces) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    crate::support::spawn(async move {
        while let Some((due, piece)) = pieces.recv().await {
            sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 64 * 1024];
    for number in 1_u64.. {
        let Ok(size @ 1..) = from.read(&mut buffer).await else { return };
        let again = if number % 8 == 0 { SENT_AGAIN } else { Duration::ZERO };
        if sender.send((Instant::now() + one_way + again, buffer[..size].to_vec())).is_err() {
            return;
        }
    }
}

/// Returns the address of a relay that is `round_trip` away from its server. It runs until the runtime ends.
async fn relay(server: SocketAddr, round_trip: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    crate::support::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(server).await else { continue };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            crate::support::spawn(carry(from_client, to_server, round_trip / 2));
            crate::support::spawn(carry(from_server, to_client, round_trip / 2));
        }
    });
    address
}

/// [001]: "different machines, or different networks, or even different data centers".
async fn a_lock_is_passed_on_over_links_of_20_to_150_ms_that_lose_every_eighth_piece(world: &World) {
    const T: Duration = Duration::from_secs(30);
    let servers = world.servers();
    for millis in [20, 80, 150] {
        let round_trip = Duration::from_millis(millis);
        let mut keepers = Vec::new();
        // The servers of an ensemble, in turns.
        for server in servers.split(',').cycle().take(3) {
            let far = relay(server.parse().unwrap(), round_trip).await;
            keepers.push(world.connect(&far, T).await);
        }
        let mut guard = world.mutex(&keepers[0]).acquire().await.unwrap();
        let mut least = guard.valid_for();
        for turn in 1..=12 {
            let waiter = world.enqueue_mutex(&keepers[turn % 3]).await;
            least = least.min(guard.valid_for());
            let (token, since) = (guard.token(), Instant::now());
            guard.release().await.unwrap();
            guard = waiter.granted().await;
            println!("{millis} ms: granted {:?} after the release was sent", since.elapsed());
            assert!(guard.is_held() && guard.token() > token);
        }
        least = least.min(guard.valid_for());
        assert!(least > T / 3, "at {millis} ms, a hold was to be trusted for {least:?} only");
        guard.release().await.unwrap();
    }
}
