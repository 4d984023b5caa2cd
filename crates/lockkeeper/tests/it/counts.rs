//! What a lock costs, counted where it is paid: at the server.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper_server::{OpCode as Op, Stats};
use lockkeeper_testkit::proxy::OpCode;
use lockkeeper_testkit::sim::{Settings, Sim};

use crate::support::{Kind, STEADY, World, eventually, on_the_embedded_server};

on_the_embedded_server!(
    an_uncontended_cycle_costs_a_create_a_list_and_a_delete,
    create_and_list_travel_in_one_flight,
    the_holders_going_grants_without_another_listing,
    a_removed_waiter_asks_for_nothing_more,
    of_a_hundred_waiters_one_is_woken,
    of_a_thousand_waiters_one_is_woken,
);

/// What was asked between two moments, heartbeats left out.
fn asked(before: &Stats, after: &Stats) -> BTreeMap<Op, u64> {
    let grown = after.requests.iter().map(|(op, count)| (*op, count - before.requests(*op)));
    grown.filter(|(op, count)| *count > 0 && *op != Op::Ping).collect()
}

/// T-03, D-22: over many cycles exactly; a cycle that the machine stretches beyond 100 ms may add one read, the
/// watch on the own node.
async fn an_uncontended_cycle_costs_a_create_a_list_and_a_delete(world: &World) {
    const CYCLES: u64 = 200;
    let keeper = world.keeper().await;
    let mutex = world.mutex(&keeper);
    mutex.acquire().await.unwrap().release().await.unwrap();
    let before = world.embedded().stats();
    for _ in 0..CYCLES {
        mutex.acquire().await.unwrap().release().await.unwrap();
    }
    let mut asked = asked(&before, &world.embedded().stats());
    let reads = asked.remove(&Op::GetData).unwrap_or(0);
    assert_eq!(asked, BTreeMap::from([(Op::Create2, CYCLES), (Op::GetChildren2, CYCLES), (Op::Delete, CYCLES)]));
    // An unprotected name is looked at before it is deleted.
    let least = if world.kind == Kind::Recipe { CYCLES } else { 0 };
    assert!((least..least + CYCLES / 4).contains(&reads), "{reads} reads");
}

/// The same in a world whose time passes only when nothing else can happen: exactly, and nothing for a hold below 100 ms.
#[test]
fn a_short_cycle_costs_exactly_that_in_simulated_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let sim = Sim::new(1, Settings::default());
        let keeper = Lockkeeper::builder().simulated(sim.network(Duration::from_secs(10)));
        for (kind, reads) in [(Kind::Native, 0), (Kind::Recipe, 1)] {
            let mutex = kind.mutex(&keeper, "/locks/counted");
            mutex.acquire().await.unwrap().release().await.unwrap();
            let before = sim.requests();
            let since = || {
                let grown = sim.requests().into_iter().map(|(op, count)| (op, count - before.get(op).unwrap_or(&0)));
                grown.filter(|(_, count)| *count > 0).collect::<BTreeMap<_, _>>()
            };
            let guard = mutex.acquire().await.unwrap();
            assert_eq!(since(), BTreeMap::from([("create", 1), ("getChildren", 1)]), "{kind:?}");
            guard.release().await.unwrap();
            let mut cycle = BTreeMap::from([("create", 1), ("delete", 1), ("getChildren", 1), ("getData", reads)]);
            cycle.retain(|_, count| *count > 0);
            assert_eq!(since(), cycle, "{kind:?}");
        }
    });
}

/// The listing does not wait for the create's answer: one round trip for both.
async fn create_and_list_travel_in_one_flight(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
    let before = proxy.counts();
    let answer = proxy.on_any(OpCode::CREATES).hold_reply();
    let asked = tokio::spawn(world.mutex(&keeper).acquire().into_future());
    answer.caught().await;
    proxy.wait_until(|counts| counts.since(&before).forwarded.of_any(OpCode::LISTS) == 1).await;
    let sent = proxy.counts().since(&before);
    assert_eq!((sent.forwarded.total(), sent.delivered.total()), (2, 0), "{sent:?}");
    answer.release();
    asked.await.unwrap().unwrap().release().await.unwrap();
}

/// The listing showed that the predecessor is the first: when it goes, nothing needs to be asked.
async fn the_holders_going_grants_without_another_listing(world: &World) {
    let (holder, waiting) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&waiting, STEADY).await;
    let guard = world.mutex(&holder).acquire().await.unwrap();
    let before = waiting.counts();
    let waiter = world.wait_in_queue(&keeper).await;
    waiting.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) == 2).await;
    let before = waiting.counts();
    guard.release().await.unwrap();
    let guard = waiter.granted().await;
    let since = waiting.counts().since(&before);
    assert_eq!((since.requested.total(), since.watch_events), (0, 1), "{since:?}");
    guard.release().await.unwrap();
}

/// Case 42: told by the watch on its own node, without a question.
async fn a_removed_waiter_asks_for_nothing_more(world: &World) {
    let (holder, waiting) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&waiting, STEADY).await;
    let guard = world.mutex(&holder).acquire().await.unwrap();
    let before = waiting.counts();
    let waiter = world.wait_in_queue(&keeper).await;
    waiting.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) == 2).await;
    let before = waiting.counts();
    let node = world.queue().await.pop().unwrap();
    world.remove(&format!("{}/{node}", world.lock())).await;
    assert!(waiter.outcome().await.is_err());
    keeper.admin().show(&world.lock()).await.unwrap();
    let since = waiting.counts().since(&before);
    // The question just asked is a sync, a listing and a read of the holder; the watch on the holder is taken back; another
    // sync shows that it was not the session's end that took the node; and a sync and a listing look for who broke the wait.
    let asked = [OpCode::GetChildren2, OpCode::GetData, OpCode::RemoveWatches, OpCode::Sync];
    let asked = asked.map(|op| since.requested.of(op));
    assert_eq!((asked, since.requested.total(), since.watch_events), ([2, 1, 1, 3], 7, 1), "{since:?}");
    guard.release().await.unwrap();
}

/// T-08, N-20: one is woken, the other 99 hear nothing.
async fn of_a_hundred_waiters_one_is_woken(world: &World) {
    one_release_wakes_one(world, 100).await;
}

async fn of_a_thousand_waiters_one_is_woken(world: &World) {
    one_release_wakes_one(world, 1_000).await;
}

/// No herd: of all who wait, over several sessions, exactly one hears of a release, and asks for nothing to be let in.
async fn one_release_wakes_one(world: &World, count: usize) {
    let (holder, proxy) = (world.keeper().await, world.proxy().await);
    let guard = world.mutex(&holder).acquire().await.unwrap();
    let mut waiters = Vec::new();
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..4 {
        let keeper = world.keeper_through(&proxy, STEADY).await;
        for _ in 0..count / 4 {
            let (mutex, granted) = (world.mutex(&keeper), granted.clone());
            waiters.push(tokio::spawn(async move { granted.send(mutex.acquire().await.unwrap()) }));
        }
    }
    // Each watches the one before it and, after a moment, itself; then nothing happens any more.
    let settled = 2 * count as u64;
    proxy.wait_until(|counts| counts.delivered.of(OpCode::GetData) == settled).await;
    world.queued(count + 1).await;

    let (before, seen) = (proxy.counts(), world.embedded().stats());
    guard.release().await.unwrap();
    let mut guard = grants.recv().await.unwrap();
    let since = proxy.counts().since(&before);
    assert_eq!((since.watch_events, since.requested.total()), (1, 0), "{since:?}");
    // One event beside it, to the one who let go: he watched his own node too.
    let events = world.embedded().stats().events_sent - seen.events_sent;
    assert!(events <= 2, "{events} events");

    // The next ones too. They did not see their predecessor hold, it may have given up: so the one who is woken lists.
    for _ in 0..5 {
        let before = proxy.counts();
        guard.release().await.unwrap();
        guard = grants.recv().await.unwrap();
        let since = proxy.counts().since(&before);
        assert!((1..=2).contains(&since.watch_events), "{since:?}");
        assert_eq!(since.requested.of(OpCode::Delete), 1, "{since:?}");
        assert_eq!(since.requested.of_any(OpCode::LISTS), 1, "{since:?}");
        let looks = u64::from(world.kind == Kind::Recipe);
        assert_eq!(since.requested.total(), 2 + looks, "{since:?}");
    }
    assert!(grants.try_recv().is_err(), "two were let in");
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    drop(guard);
    drop(grants);
    eventually("nobody waits", async || world.queue().await.is_empty()).await;
}
