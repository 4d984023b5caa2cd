//! The cost of a lock, counted at the server.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::error::AcquireError;
use lockkeeper::{Guard, Lockkeeper};
use lockkeeper_server::{OpCode as Op, Stats};
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::proxy::{OpCode, Proxy};
use lockkeeper_testkit::sim::{Settings, Sim};

use crate::support::{Kind, STEADY, Waiter, World, on_the_embedded_server, simulated, simulated_keeper, watches_set};

on_the_embedded_server!(
    an_uncontended_cycle_costs_a_create_a_list_and_a_delete,
    create_and_list_are_sent_in_one_round_trip,
    the_holders_release_grants_without_another_listing,
    a_release_grants_the_next_of_its_process_without_a_round_trip,
    a_contender_of_another_process_keeps_its_turn,
    a_removed_waiter_learns_it_from_its_watch_without_a_query,
    following_a_lock_reads_only_new_contenders,
);

/// Returns the requests between two moments, without pings.
fn asked(before: &Stats, after: &Stats) -> BTreeMap<Op, u64> {
    let grown = after.requests.iter().map(|(op, count)| (*op, count - before.requests(*op)));
    grown.filter(|(op, count)| *count > 0 && *op != Op::Ping).collect()
}

/// T-03, D-22: exact over many cycles. A cycle that a busy machine stretches beyond 100 ms may add one read, the watch on its
/// own node.
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
    // A node without protection is read before it is deleted.
    let least = if world.kind == Kind::Recipe { CYCLES } else { 0 };
    assert!((least..least + CYCLES / 4).contains(&reads), "{reads} reads");
}

/// The same in simulated time, which passes only when nothing else can happen: the counts are exact, and a hold below 100 ms
/// adds nothing.
#[test]
fn a_short_cycle_costs_exactly_that_in_simulated_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let sim = Sim::new(1, Settings::default());
        let keeper = simulated_keeper(&sim);
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

/// N-31, T-24: a hold that did not wait is 100 ms old when it reads and watches its own node, once. Simulated time is exact to
/// a millisecond.
#[test]
fn a_hold_watches_its_own_node_after_100_ms_in_simulated_time() {
    simulated(async |sim| {
        let keeper = simulated_keeper(&sim);
        let mutex = Kind::Native.mutex(&keeper, "/locks/aged");
        mutex.acquire().await.unwrap().release().await.unwrap();
        let reads = || sim.requests().get("getData").copied().unwrap_or(0);
        let (before, asked) = (reads(), tokio::time::Instant::now());
        let guard = mutex.acquire().await.unwrap();
        tokio::time::sleep_until(asked + Duration::from_millis(99)).await;
        assert_eq!(reads() - before, 0, "a read of a hold of 99 ms");
        tokio::time::sleep_until(asked + Duration::from_millis(110)).await;
        assert_eq!(reads() - before, 1, "no read of a hold of 110 ms");
        tokio::time::sleep_until(asked + Duration::from_secs(1)).await;
        assert_eq!(reads() - before, 1, "a second read");
        guard.release().await.unwrap();
    });
}

/// The listing does not wait for the create's reply: one round trip for both.
async fn create_and_list_are_sent_in_one_round_trip(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
    let before = proxy.counts();
    let reply = proxy.on_any(OpCode::CREATES).hold_reply();
    let asked = crate::support::spawn(world.mutex(&keeper).acquire().into_future());
    reply.caught().await;
    proxy.wait_until(|counts| counts.since(&before).forwarded.of_any(OpCode::LISTS) == 1).await;
    let sent = proxy.counts().since(&before);
    assert_eq!((sent.forwarded.total(), sent.delivered.total()), (2, 0), "{sent:?}");
    reply.release();
    asked.await.unwrap().unwrap().release().await.unwrap();
}

/// A holder, and a waiter of this session that has set its watches.
async fn holder_and_waiter(world: &World, proxy: &Proxy, keeper: &Lockkeeper) -> (Guard, Waiter) {
    let guard = world.mutex(&world.keeper().await).acquire().await.unwrap();
    let before = proxy.counts();
    let waiter = world.enqueue_mutex(keeper).await;
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) == 2).await;
    (guard, waiter)
}

/// The listing showed that the predecessor is the holder, so its deletion grants the lock without a request.
async fn the_holders_release_grants_without_another_listing(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let (guard, waiter) = holder_and_waiter(world, &proxy, &keeper).await;
    let before = proxy.counts();
    guard.release().await.unwrap();
    let guard = waiter.granted().await;
    let since = proxy.counts().since(&before);
    assert_eq!((since.requested.total(), since.watch_events), (0, 1), "{since:?}");
    guard.release().await.unwrap();
}

/// The contenders of a process pass the lock on among themselves, in order, before the deletes are sent.
async fn a_release_grants_the_next_of_its_process_without_a_round_trip(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let mut guard = world.mutex(&keeper).acquire().await.unwrap();
    watches_set(&proxy, 1).await;
    let before = proxy.counts();
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(world.enqueue_mutex(&keeper).await);
    }
    // Each watches its own node.
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) == 3).await;
    let before = proxy.counts();
    let nothing_passes = proxy.on_any(&[OpCode::Delete, OpCode::Multi]).hold_request();
    let reads = proxy.on(OpCode::GetData).hold_request();
    let mut releases = Vec::new();
    for waiter in waiters {
        let earlier = guard.token();
        releases.push(crate::support::spawn(guard.release()));
        guard = waiter.granted().await;
        assert!(guard.token() > earlier, "{} after {earlier}", guard.token());
    }
    let since = proxy.counts().since(&before);
    assert_eq!((since.delivered.total(), since.watch_events), (0, 0), "{since:?}");
    releases.push(crate::support::spawn(guard.release()));
    nothing_passes.release();
    reads.release();
    for release in releases {
        release.await.unwrap().unwrap();
    }
}

/// Contenders of one session that queue for one lock know from their numbers and from each other when it is their turn. Only
/// the first lists. Each other one watches its own node, so the deletion of that node would not be taken for a grant. The
/// delete of a cycle and the create of the next one leave together.
#[test]
fn a_contended_cycle_in_one_process_costs_a_transaction_and_a_watch() {
    const TASKS: u64 = 8;
    const CYCLES: u64 = 50;
    simulated(async |sim| {
        let keeper = simulated_keeper(&sim);
        let mutex = Kind::Native.mutex(&keeper, "/locks/crowded");
        mutex.acquire().await.unwrap().release().await.unwrap();
        let before = sim.requests();
        let tasks = (0..TASKS).map(|_| {
            let mutex = mutex.clone();
            crate::support::spawn(async move {
                for _ in 0..CYCLES {
                    let guard = mutex.acquire().await.unwrap();
                    // The others come back meanwhile.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    drop(guard);
                }
            })
        });
        futures_util::future::join_all(tasks).await.into_iter().for_each(Result::unwrap);
        keeper.close().await;
        let asked = |op| sim.requests().get(op).unwrap_or(&0) - before.get(op).unwrap_or(&0);
        let all = TASKS * CYCLES;
        let together = all - TASKS;
        assert_eq!(["create", "multi", "delete", "getData"].map(asked), [TASKS, together, TASKS, all - 1]);
        // The first, and the second: the first did not watch its node when the second came.
        assert_eq!(asked("getChildren"), 2);
    });
}

/// Lets contenders of as many processes queue for one lock, and returns how often each request was made, with the number of cycles.
async fn contended(sim: &Sim, processes: u64, hold: Duration) -> (u64, impl Fn(&str) -> u64) {
    const CYCLES: u64 = 20;
    let keepers: Vec<_> = (0..processes).map(|_| simulated_keeper(sim)).collect();
    for keeper in &keepers {
        Kind::Native.mutex(keeper, "/locks/crowded").acquire().await.unwrap().release().await.unwrap();
    }
    let before = sim.requests();
    let tasks = keepers.into_iter().map(|keeper| {
        crate::support::spawn(async move {
            let mutex = Kind::Native.mutex(&keeper, "/locks/crowded");
            for _ in 0..CYCLES {
                let guard = mutex.acquire().await.unwrap();
                // The others come back meanwhile, and no wait is as long as 100 ms.
                tokio::time::sleep(hold).await;
                drop(guard);
            }
            keeper.close().await;
        })
    });
    futures_util::future::join_all(tasks).await.into_iter().for_each(Result::unwrap);
    let after = sim.requests();
    (processes * CYCLES, move |op| after.get(op).unwrap_or(&0) - before.get(op).unwrap_or(&0))
}

/// Contenders of several processes that queue for one lock. Each lists when it comes and once more when the one ahead has gone, and
/// watches only that one.
#[test]
fn a_contended_cycle_between_processes_costs_five_requests() {
    const PROCESSES: u64 = 4;
    simulated(async |sim| {
        // No wait is as long as 100 ms.
        let (all, asked) = contended(&sim, PROCESSES, Duration::from_millis(5)).await;
        // The delete of a cycle and the create of the next one leave together.
        let cycles = asked("create") + asked("multi");
        let (lists, reads) = (asked("getChildren"), asked("getData"));
        // Those who come first wait for less.
        let few = 2 * PROCESSES;
        assert_eq!(cycles, all);
        assert!((2 * all - few..=2 * all + few).contains(&lists), "{lists} listings in {all} cycles");
        assert!((all - few..=all + few).contains(&reads), "{reads} reads in {all} cycles");
    });
}

/// In a longer queue, one read of the record and of the own node takes the place of the second listing. The waits are longer than
/// 100 ms here, so each contender also watches its own node.
#[test]
fn a_contended_cycle_in_a_long_queue_of_processes_reads_a_record_in_place_of_a_listing() {
    const PROCESSES: u64 = 20;
    simulated(async |sim| {
        let (all, asked) = contended(&sim, PROCESSES, Duration::ZERO).await;
        let few = 2 * PROCESSES;
        for (op, expected) in [("getChildren", all), ("multiRead", all), ("getData", 2 * all)] {
            let asked = asked(op);
            assert!((expected - few..=expected + few).contains(&asked), "{asked} of {op} in {all} cycles");
        }
        let writes = asked("create") + asked("multi") + asked("delete");
        assert!((2 * all - few..=2 * all).contains(&writes), "{writes} writes in {all} cycles");
    });
}

/// A crowd of one process that waits behind another process lists the queue once. Each error of the crowd names the holder all the
/// same.
#[test]
fn a_crowd_of_one_process_lists_the_queue_once() {
    const TASKS: usize = 200;
    simulated(async |sim| {
        let keeper = || simulated_keeper(&sim);
        let (crowd, stranger) = (keeper(), keeper());
        let guard = Kind::Native.mutex(&stranger, "/locks/crowded").acquire().await.unwrap();
        let mutex = Kind::Native.mutex(&crowd, "/locks/crowded");
        let before = sim.requests();
        let waits = (0..TASKS).map(|_| mutex.acquire().timeout(Duration::from_secs(5)).into_future());
        for outcome in futures_util::future::join_all(waits).await {
            let Err(AcquireError::Timeout { holder: Some(holder), ahead: Some(ahead), .. }) = outcome else {
                panic!("{outcome:?}");
            };
            assert!(guard.node().ends_with(&holder.node) && ahead <= TASKS, "{holder:?}");
        }
        let asked = |op| sim.requests().get(op).unwrap_or(&0) - before.get(op).unwrap_or(&0);
        assert_eq!(["getChildren", "multiRead"].map(asked), [1, 0]);
        drop(guard);
    });
}

/// Tasks of two processes take turns. Each needs a listing when the node ahead is deleted, and that listing also shows a newcomer of
/// its process which node is ahead of the newcomer's own.
#[test]
fn a_listing_of_one_waiter_serves_the_newcomers_of_its_process() {
    const TASKS: usize = 4;
    const ROUNDS: usize = 25;
    simulated(async |sim| {
        let keepers = [simulated_keeper(&sim), simulated_keeper(&sim)];
        let before = sim.requests();
        // The clock is the simulation's: they enter one after the other, in turns.
        let tasks = (0..TASKS).flat_map(|_| keepers.iter()).zip(1..).map(async |(keeper, turn)| {
            let mutex = Kind::Native.mutex(keeper, "/locks/turns");
            tokio::time::sleep(Duration::from_millis(turn)).await;
            for _ in 0..ROUNDS {
                mutex.acquire().await.unwrap().release().await.unwrap();
            }
        });
        futures_util::future::join_all(tasks).await;
        let asked = |op| sim.requests().get(op).unwrap_or(&0) - before.get(op).unwrap_or(&0);
        let [lists, turns] = [asked("getChildren") + asked("multiRead"), (2 * TASKS * ROUNDS) as u64];
        assert!(lists * 5 < turns * 6, "{lists} listings in {turns} turns");
    });
}

/// Attempts of this process that gave up are not ahead of a contender, and even a short wait learns the holder.
#[test]
fn an_error_counts_the_contenders_that_are_there_and_names_the_holder() {
    simulated(async |sim| {
        let keeper = simulated_keeper(&sim);
        let mutex = Kind::Native.mutex(&keeper, "/locks/counted");
        let guard = mutex.acquire().message("the holder").await.unwrap();
        for _ in 0..if is_deep() { 1_000 } else { 100 } {
            mutex.acquire().timeout(Duration::from_millis(20)).await.unwrap_err();
        }
        let waiters: Vec<_> = (0..4).map(|_| mutex.acquire().into_future()).collect();
        for timeout in [40, 90, 500].map(Duration::from_millis) {
            let outcome = mutex.acquire().timeout(timeout).await;
            let Err(AcquireError::Timeout { holder: Some(holder), ahead: Some(5), .. }) = outcome else {
                panic!("{outcome:?}");
            };
            assert!(guard.node().ends_with(&holder.node), "{holder:?}");
        }
        // Four that have come later leave together with it. Of those ahead, two leave before it does.
        let leaving: Vec<_> = waiters.into_iter().skip(2).collect();
        let late = mutex.acquire().timeout(Duration::from_millis(500)).into_future();
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(leaving);
        let outcome = late.await;
        assert!(matches!(outcome, Err(AcquireError::Timeout { ahead: Some(1), .. })), "{outcome:?}");
        drop(guard);
    });
}

/// First come, first served across processes: a release passes the lock on only to the contender right behind.
async fn a_contender_of_another_process_keeps_its_turn(world: &World) {
    let (keeper, stranger) = (world.keeper().await, world.keeper().await);
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let second = world.enqueue_mutex(&stranger).await;
    let third = world.enqueue_mutex(&keeper).await;
    guard.release().await.unwrap();
    let guard = second.granted().await;
    assert!(third.waits());
    guard.release().await.unwrap();
    third.granted().await.release().await.unwrap();
}

/// Case 42: the watch on its own node reports the deletion, without a query.
async fn a_removed_waiter_learns_it_from_its_watch_without_a_query(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let (guard, waiter) = holder_and_waiter(world, &proxy, &keeper).await;
    let before = proxy.counts();
    let node = world.queue().await.pop().unwrap();
    world.remove(&world.node(&node)).await;
    assert!(waiter.outcome().await.is_err());
    keeper.admin().show(&world.lock()).await.unwrap();
    let since = proxy.counts().since(&before);
    // The admin's query above is a write that changes nothing (a check), a listing and a read of the holder. The waiter
    // removes its watch on the holder. Another such write shows that the session's end did not delete the node, and a write
    // and a listing look for the record of a break.
    let asked = [OpCode::GetChildren2, OpCode::GetData, OpCode::RemoveWatches, OpCode::Check];
    let asked = asked.map(|op| since.requested.of(op));
    assert_eq!((asked, since.requested.total(), since.watch_events), ([2, 1, 1, 3], 7, 1), "{since:?}");
    guard.release().await.unwrap();
}

/// A change is a listing and a read of each new node, however many contenders there are.
async fn following_a_lock_reads_only_new_contenders(world: &World) {
    let (proxy, keeper) = (world.proxy().await, world.keeper().await);
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let waiter = world.enqueue_mutex(&keeper).await;
    let mut follow = world.keeper_through(&proxy, STEADY).await.admin().follow(world.lock());
    assert_eq!(follow.next().await.unwrap().waiters.len(), 1);
    let before = proxy.counts();
    let last = world.enqueue_mutex(&keeper).await;
    while follow.next().await.unwrap().waiters.len() < 2 {}
    assert_eq!(proxy.counts().since(&before).requested.of(OpCode::GetData), 1);
    guard.release().await.unwrap();
    waiter.granted().await.release().await.unwrap();
    last.granted().await.release().await.unwrap();
}
