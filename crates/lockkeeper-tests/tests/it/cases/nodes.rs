//! Nodes that others delete or create again, and counters that wrap.

use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::Loss;
use lockkeeper::error::AcquireError;
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::proxy::OpCode;
use tokio::time::Instant;

use crate::support::{Kind, STEADY, World, eventually, for_kinds, on_the_embedded_server_for};

for_kinds!(
    [native Native, #[cfg(deep)] recipe Recipe, numbered Numbered]
    case_19_a_parent_deleted_at_any_step_is_created_again,
    case_19_own_node_and_parent_deleted_is_an_eviction,
    case_20_a_stale_release_spares_a_node_of_the_same_number,
    case_23_a_predecessor_deleted_between_list_and_watch_grants_immediately,
);

on_the_embedded_server_for!(
    [native Native, #[cfg(deep)] recipe Recipe, numbered Numbered]
    case_18_grants_keep_their_order_when_the_counter_wraps,
    case_22_waits_that_timed_out_leave_no_watches,
);

/// Operators may delete empty lock parents; callers never see `NoNode`.
async fn case_19_a_parent_deleted_at_any_step_is_created_again(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let path = world.path("above/lock");
    let lock = world.kind.parent(&path);
    let above = lock.rsplit_once('/').unwrap().0;
    let mutex = world.kind.mutex(&keeper, &path);
    // Between two uses, the lock's node alone and with its parent.
    for _ in 0..3 {
        mutex.acquire().await.unwrap().release().await.unwrap();
        world.remove(lock).await;
        mutex.acquire().await.unwrap().release().await.unwrap();
        world.remove(lock).await;
        world.remove(above).await;
    }
    // Between the parent's creation, whose reply is lost, and the contender's create, several times. Only a container is created
    // by a request of its own kind; a directory beside the nodes is none.
    let rounds = if world.kind == Kind::Numbered { 0 } else { 3 };
    for times in 1..=rounds {
        let lost = || proxy.on(OpCode::CreateContainer).path(lock).nth(1).cut_after_reply();
        let held = |nth| proxy.on_any(&[OpCode::Create, OpCode::Create2]).path(lock).nth(nth).hold_request();
        // The first create finds no parent.
        let (mut made, mut create) = (lost(), held(2));
        let mut asked = Box::pin(mutex.acquire().into_future());
        for round in 1..=times {
            tokio::select! {
                () = async { made.fired().await; create.caught().await } => {}
                early = &mut asked => panic!("{early:?}"),
            }
            world.remove(lock).await;
            let before = std::mem::replace(&mut create, held(1));
            made = lost();
            if round == times {
                proxy.heal();
            }
            before.release();
        }
        asked.await.unwrap().release().await.unwrap();
        world.remove(lock).await;
    }
    // Just before the create arrives.
    mutex.acquire().await.unwrap().release().await.unwrap();
    let create = proxy.on_any(&[OpCode::Create, OpCode::Create2]).path(lock).hold_request();
    let asked = crate::support::spawn(mutex.acquire().into_future());
    create.caught().await;
    world.remove(lock).await;
    create.release();
    asked.await.unwrap().unwrap().release().await.unwrap();
}

/// An operator deletes the contender and its parent between the create and the listing: the attempt fails with `Evicted`.
async fn case_19_own_node_and_parent_deleted_is_an_eviction(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let mutex = world.mutex(&keeper);
    mutex.acquire().await.unwrap().release().await.unwrap();
    let list = proxy.on_any(OpCode::LISTS).path(world.parent()).hold_request();
    let asked = crate::support::spawn(mutex.acquire().into_future());
    list.caught().await;
    world.queued(1).await;
    let node = world.queue().await.remove(0);
    world.remove(&world.node(&node)).await;
    world.remove(&world.parent()).await;
    list.release();
    match asked.await.unwrap() {
        Err(AcquireError::Evicted { path, .. }) => assert_eq!(path, world.lock()),
        // A stale server may list the old state; then the hold is lost for the same reason.
        Ok(guard) if !world.is_embedded() => assert_eq!(guard.lost().await, Loss::Removed),
        other => panic!("{other:?}"),
    }
    mutex.acquire().await.unwrap().release().await.unwrap();
}

/// The lock is deleted under a holder that does not notice, and its parent is created again. The next holder's node has the
/// same number, and in the recipe's format the same name. The old holder's release does not delete it.
async fn case_20_a_stale_release_spares_a_node_of_the_same_number(world: &World) {
    let proxy = world.proxy().await;
    let (stale, fresh) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    // The watch on the old holder's own node arrives late: it watches the new holder's node, or none.
    let watch = proxy.on(OpCode::GetData).path(world.node("")).hold_request();
    let old = world.mutex(&stale).acquire().await.unwrap();
    watch.caught().await;
    world.remove(&old.node()).await;
    world.remove(&world.parent()).await;
    let new = world.mutex(&fresh).acquire().await.unwrap();
    let number = |node: &str| node[node.len() - 10..].to_owned();
    assert_eq!(number(&old.node()), number(&new.node()), "the numbers start again");
    assert!(old.token() < new.token());
    let before = proxy.counts();
    watch.release();
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) == 1).await;
    drop(old);
    // `close` waits until the old holder's driver has ended.
    stale.close().await;
    assert!(world.exists(&new.node()).await, "a foreign node was deleted");
    assert!(new.is_held());
    new.release().await.unwrap();
}

/// T-05, D-13: setting the watch is a read that finds the node missing, which proves the grant without another listing.
async fn case_23_a_predecessor_deleted_between_list_and_watch_grants_immediately(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&world.keeper().await).acquire().await.unwrap();
    let before = proxy.counts();
    let watch = proxy.on(OpCode::GetData).hold_request();
    let waiter = world.enqueue_mutex(&keeper).await;
    watch.caught().await;
    guard.release().await.unwrap();
    assert!(waiter.waits());
    watch.release();
    let guard = waiter.granted().await;
    let sent = proxy.counts().since(&before).requested;
    assert_eq!(sent.of_any(OpCode::LISTS), 1, "{sent:?}");
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// D-15: the server's counter is signed and wraps: twenty cycles with a queue across 2^31, granted in the order of creation.
async fn case_18_grants_keep_their_order_when_the_counter_wraps(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    world.mutex(&one).acquire().await.unwrap().release().await.unwrap();
    assert!(world.embedded().faults().set_child_counter(&world.parent(), 2_147_483_640).await.unwrap());
    let mut holder = world.mutex(&one).acquire().await.unwrap();
    assert!(holder.node().ends_with("2147483640"), "{}", holder.node());
    let mut waiters = std::collections::VecDeque::new();
    for place in 0..4 {
        waiters.push_back(world.enqueue_mutex(if place % 2 == 0 { &one } else { &other }).await);
    }
    for cycle in 0..20 {
        waiters.push_back(world.enqueue_mutex(if cycle % 2 == 0 { &one } else { &other }).await);
        assert!(matches!(world.mutex(&other).try_acquire().await, Err(AcquireError::Held { ahead: Some(6), .. })));
        world.queued(6).await;
        let token = holder.token();
        holder.release().await.unwrap();
        holder = waiters.pop_front().unwrap().granted().await;
        assert!(token < holder.token());
        if let Some(at) = waiters.iter().position(|waiter| !waiter.waits()) {
            let early = waiters.remove(at).unwrap().outcome().await;
            panic!("cycle {cycle}: {early:?} before {at} others in {:?}", world.queue().await);
        }
    }
    let wrapped = if world.kind == Kind::Numbered { world.node("-21474836") } else { "--21474836".to_owned() };
    assert!(holder.node().contains(&wrapped), "never wrapped: {}", holder.node());
    holder.release().await.unwrap();
    for waiter in waiters {
        waiter.granted().await.release().await.unwrap();
    }
}

/// Two sessions: one holds the locks, the other one waits. So each waiter watches the holder's node and its own. Waits count if the
/// server has all their watches before their end, and then none of these is left. Waits that a busy machine ends sooner do not
/// count, and the next ones are longer.
async fn case_22_waits_that_timed_out_leave_no_watches(world: &World) {
    const LOCKS: u64 = 100;
    let enough = if is_deep() { 10_000 } else { 300 };
    let (holder, keeper) = (world.keeper().await, world.keeper().await);
    let mutexes = |keeper| (0..LOCKS).map(move |lock| world.kind.mutex(keeper, &world.path(&format!("{lock}/lock"))));
    let mut guards = Vec::new();
    for mutex in mutexes(&holder) {
        guards.push(mutex.acquire().await.unwrap());
    }
    let watches = || world.embedded().stats().watches;
    // Of the holder on its own nodes, and of both sessions on the epoch.
    let before = LOCKS + 2;
    eventually("all watches of the holder", async || watches() == before).await;
    let reads = world.embedded().stats().requests(OpCode::GetData);
    let (mut waited, mut timeout) = (0, Duration::from_millis(300));
    while waited < enough {
        let started = Instant::now();
        let waits = mutexes(&keeper).map(|mutex| mutex.acquire().timeout(timeout).into_future());
        let waits = crate::support::spawn(join_all(waits.collect::<Vec<_>>()));
        let mut all = false;
        eventually("each waiter watches two nodes, or the waits are over", async || {
            all |= watches() == before + 2 * LOCKS;
            all || waits.is_finished()
        })
        .await;
        // The reply to this query comes after those that tell the waiters of their watches.
        keeper.admin().show(&world.path("0/lock")).await.unwrap();
        all &= started.elapsed() < timeout;
        for outcome in waits.await.unwrap() {
            assert!(!all || matches!(outcome, Err(AcquireError::Timeout { .. })), "{outcome:?}");
        }
        if all {
            waited += LOCKS;
            eventually("no watch of a wait that timed out", async || watches() == before).await;
        } else {
            timeout *= 2;
        }
    }
    let reads = world.embedded().stats().requests(OpCode::GetData) - reads;
    assert!(reads >= 2 * enough, "{reads} reads for {waited} waits");
    // The holder's own watch is still there.
    let guard = guards.pop().unwrap();
    assert!(guard.is_held());
    world.remove(&guard.node()).await;
    assert_eq!(guard.lost().await, Loss::Removed);
}
