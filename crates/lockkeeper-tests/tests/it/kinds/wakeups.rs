//! The cost of a release for the waiters, for queues of 10, 100 and 1 000, counted in simulated time.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper_core::ReleaseRecord;
use lockkeeper_helix::HelixLock;
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::proxy::OpCode;
use lockkeeper_testkit::sim::Sim;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

use crate::support::{
    Held, Kind, STEADY, Waiter, World, on_the_embedded_server_for, simulated, simulated_keeper, spawn, watches_set,
};

on_the_embedded_server_for!(
    [native Native, #[cfg(deep)] kazoo Kazoo, #[cfg(deep)] recipe Recipe, write Write]
    a_record_of_a_release_hinders_no_other_kind_of_lock,
);

on_the_embedded_server_for!(
    [shared Write]
    a_writers_release_grants_the_readers_of_its_process_without_a_round_trip,
);

/// By then, all who wait have set their watches.
const SETTLED: Duration = Duration::from_secs(1);

/// Long enough for all that follows from a release; a hold of 100 ms does more.
const SOON: Duration = Duration::from_millis(50);

/// The lengths of queues; a thousand takes minutes.
fn queues() -> &'static [usize] {
    if is_deep() { &[10, 100, 1_000] } else { &[10, 100] }
}

/// Waiters of four sessions on a simulated server, where what is counted is exact.
struct Waiters<'s> {
    sim: &'s Sim,
    keepers: Vec<Lockkeeper>,
}

impl Waiters<'_> {
    fn new(sim: &Sim) -> Waiters<'_> {
        Waiters { sim, keepers: (0..4).map(|_| simulated_keeper(sim)).collect() }
    }

    /// Adds that many waiters, and returns when they send nothing more.
    async fn add(&self, path: &str, kind: Kind, count: usize) -> UnboundedReceiver<Held> {
        let (granted, grants) = unbounded_channel();
        for keeper in self.keepers.iter().cycle().take(count) {
            let (lock, granted) = (kind.lock(keeper, path), granted.clone());
            // A guard that cannot be sent is dropped, which releases the lock.
            spawn(async move { drop(granted.send(lock.acquire().await.unwrap())) });
        }
        sleep(SETTLED).await;
        grants
    }

    /// The requests and events of all clients so far, without deletes, heartbeats and pings.
    fn counts(&self) -> (u64, u64) {
        let mut counts = self.sim.requests();
        let events = counts.remove("event").unwrap_or_default();
        counts.retain(|kind, _| !["check", "delete", "ping"].contains(kind));
        (counts.values().sum(), events)
    }

    /// Returns what follows from a call, once it is quiet again: requests, and events.
    async fn since(&self, (requests, events): (u64, u64)) -> (u64, u64) {
        sleep(SOON).await;
        let now = self.counts();
        (now.0 - requests, now.1 - events)
    }
}

/// N-20, T-08, C-14: for a thousand waiters the same small number of events and requests as for ten.
#[test]
fn a_release_costs_the_same_for_every_queue_length() {
    let mut kinds = vec![Kind::Native, Kind::Write, Kind::Upgradeable, Kind::Permits, Kind::Background];
    kinds.extend(if is_deep() { &[Kind::Kazoo, Kind::Numbered, Kind::RecipeWrite, Kind::Foreground][..] } else { &[] });
    for kind in kinds {
        simulated(async move |sim| {
            let mut seen = BTreeSet::new();
            for count in queues() {
                let path = format!("/locks/queue-of-{count}");
                let (holder, waiters) = (simulated_keeper(&sim), Waiters::new(&sim));
                let mut guard = kind.lock(&holder, &path).acquire().await.unwrap();
                let mut grants = waiters.add(&path, kind, *count).await;
                for turn in 0..4 {
                    let before = waiters.counts();
                    guard.release().await.unwrap();
                    guard = grants.recv().await.unwrap();
                    let since = waiters.since(before).await;
                    // The first waiter saw its predecessor hold. The others list: theirs might have given up.
                    assert!(turn > 0 || kind != Kind::Native || since.0 == 0, "{since:?}");
                    seen.insert(since);
                    assert!(grants.try_recv().is_err(), "two were granted");
                    sleep(SETTLED).await;
                }
            }
            println!("{kind:?}: {seen:?}");
            // The next waiter gets the event and lists. A semaphore's next holder also announces the grant in its node, which it and
            // the waiter behind it see. That waiter lists, because it is the first waiter now.
            let most = match kind {
                Kind::Permits => (12, 5),
                Kind::Foreground | Kind::Background => (6, 3),
                // It lists below the path, too.
                Kind::Numbered => (5, 2),
                kind if kind.is_unprotected() => (4, 2),
                _ => (3, 2),
            };
            assert!(seen.iter().all(|seen| seen.0 <= most.0 && (1..=most.1).contains(&seen.1)), "{kind:?}: {seen:?}");
        });
    }
}

/// T-08: a contender with 16 or more ahead learns from a short record that the one before it has held. It lists nothing, and a
/// handoff takes about a kilobyte for any length of the queue.
#[test]
fn a_release_far_back_in_a_queue_of_processes_costs_a_transaction_and_a_read() {
    /// The first contender that many are ahead of lists, and the one behind it finds its record.
    const LISTS: usize = 16;
    const LAST: usize = LISTS + 8;
    for kind in [Kind::Native, Kind::Kazoo, Kind::Recipe, Kind::Write] {
        simulated(async move |sim| {
            let mut waiters = Vec::new();
            for _ in 0..=LAST {
                let keeper = simulated_keeper(&sim);
                waiters.push((Waiter::spawn(kind.lock(&keeper, "/locks/far-back").acquire()), keeper));
                sleep(SOON).await;
            }
            // Each has waited long enough to watch its own node, and each waiter watches the one before it.
            sleep(SETTLED).await;
            let mut held: Option<Held> = None;
            for (ahead, (waiter, _keeper)) in waiters.into_iter().enumerate() {
                let (before, bytes) = (sim.requests(), sim.bytes());
                if let Some(held) = held.take() {
                    held.release().await.unwrap();
                }
                held = Some(waiter.granted().await);
                sleep(Duration::from_millis(5)).await;
                let (now, bytes) = (sim.requests(), sim.bytes() - bytes);
                let of = |kind| now.get(kind).unwrap_or(&0) - before.get(kind).unwrap_or(&0);
                // A node without an id in its name is read before it is deleted.
                let reads = of("getData") - u64::from(ahead > 0 && kind.is_unprotected());
                let expected = match ahead {
                    0 => (0, 0, 0, 0),
                    // A writer may have become a reader in its place.
                    1 => (0, 0, 0, u64::from(matches!(kind, Kind::Write | Kind::Kazoo))),
                    2..LISTS => (0, 0, 0, 1),
                    LISTS => (0, 1, 0, 1),
                    _ => (1, 1, 0, 0),
                };
                let seen = (of("multi"), of("multiRead"), reads, of("getChildren"));
                assert_eq!(seen, expected, "{kind:?}, {ahead} were ahead");
                assert!(ahead <= LISTS || bytes < 1_250, "{kind:?}, {ahead} were ahead: {bytes} bytes");
            }
            held.unwrap().release().await.unwrap();
        });
    }
}

/// The path of a lock that had a long queue is as good as new for a lock of any other kind.
async fn a_record_of_a_release_hinders_no_other_kind_of_lock(world: &World) {
    let path = world.lock();
    let mut waiters = Vec::new();
    for _ in 0..20 {
        let keeper = world.keeper().await;
        waiters.push(world.enqueue(world.kind.lock(&keeper, &path).acquire()).await);
    }
    for waiter in waiters {
        waiter.granted().await.release().await.unwrap();
    }
    let (data, _) = world.observer.get_data(&path).await.unwrap();
    assert!(ReleaseRecord::from_bytes(&data).is_some(), "{}", data.escape_ascii());
    let keeper = world.keeper().await;
    keeper.semaphore(&path, 3).try_acquire().await.unwrap().release().await.unwrap();
    world.observer.set_data(&path, &data, None).await.unwrap();
    HelixLock::new(&keeper, &*path, STEADY).try_acquire().await.unwrap().release().await.unwrap();
}

/// T-23, N-26: all these readers are granted together, without another request; one event per session, because the server sends
/// each session one event for a node. The writer behind them and the readers behind that writer get no event.
#[test]
fn a_writers_release_wakes_only_the_readers_directly_behind_it() {
    simulated(async |sim| {
        for count in queues() {
            let path = format!("/locks/batch-of-{count}");
            let holder = simulated_keeper(&sim);
            let guard = Kind::Write.lock(&holder, &path).acquire().await.unwrap();
            let waiters = Waiters::new(&sim);
            let mut batch = waiters.add(&path, Kind::Read, *count).await;
            let mut writer = waiters.add(&path, Kind::Write, 1).await;
            let mut later = waiters.add(&path, Kind::Read, *count).await;
            let before = waiters.counts();
            guard.release().await.unwrap();
            let mut inside = Vec::new();
            for _ in 0..*count {
                inside.push(batch.recv().await.unwrap());
            }
            // One event for each session of theirs, and one for the releaser, which watched its own node too.
            assert_eq!(waiters.since(before).await, (0, 5), "{count}");
            assert!(writer.try_recv().is_err() && later.try_recv().is_err());
            drop(inside);
            drop(writer.recv().await.unwrap());
            for _ in 0..*count {
                drop(later.recv().await.unwrap());
            }
        }
    });
}

/// The readers directly behind a writer of their process read before its delete is sent; a writer behind them waits for all.
async fn a_writers_release_grants_the_readers_of_its_process_without_a_round_trip(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let lock = |kind: Kind| kind.lock(&keeper, &world.lock());
    let guard = lock(Kind::Write).acquire().await.unwrap();
    watches_set(&proxy, 1).await;
    let before = proxy.counts();
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(world.enqueue(lock(Kind::Read).acquire()).await);
    }
    let writer = world.enqueue(lock(Kind::Write).acquire()).await;
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) == 4).await;
    let before = proxy.counts();
    let nothing_passes = proxy.on(OpCode::Delete).hold_request();
    let released = crate::support::spawn(guard.release());
    let mut reading = Vec::new();
    for reader in readers {
        reading.push(reader.granted().await);
    }
    let since = proxy.counts().since(&before);
    assert_eq!((since.delivered.total(), since.watch_events), (0, 0), "{since:?}");
    assert!(writer.waits());
    nothing_passes.release();
    released.await.unwrap().unwrap();
    let last = reading.pop().unwrap();
    for guard in reading {
        guard.release().await.unwrap();
    }
    assert!(writer.waits(), "a reader holds");
    last.release().await.unwrap();
    writer.granted().await.release().await.unwrap();
}

/// The marker's deletion wakes the first foreground waiter, and the deletion of the holder's node the waiter behind it.
#[test]
fn a_release_between_two_classes_wakes_the_first_of_each_at_most() {
    simulated(async |sim| {
        for count in [10, 100] {
            let path = format!("/locks/classes-of-{count}");
            let holder = simulated_keeper(&sim);
            let mut held = Kind::Background.lock(&holder, &path).acquire().await.unwrap();
            let waiters = Waiters::new(&sim);
            let mut background = waiters.add(&path, Kind::Background, count).await;
            let mut foreground = waiters.add(&path, Kind::Foreground, count).await;
            for _ in 0..3 {
                let before = waiters.counts();
                held.release().await.unwrap();
                held = foreground.recv().await.unwrap();
                let (requests, events) = waiters.since(before).await;
                // One more event goes to the releaser, which watched its own nodes too.
                assert!(events <= 4 && requests <= 8, "{count}: {requests} requests, {events} events");
                assert!(background.try_recv().is_err(), "the background was granted first");
                sleep(SETTLED).await;
            }
        }
    });
}
