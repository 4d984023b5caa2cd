use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::error::{Error, SessionError, WriteError};
use lockkeeper_testkit::proxy::{OpCode, Proxy};

use crate::examples::recipes::work_queue::{Item, WorkQueue};
use crate::interfaces::on_every_server;
use crate::support::{STEADY, Waiter, World, asked, eventually, spawn};

on_every_server!(
    three_workers_do_each_item_once,
    an_item_whose_worker_dies_is_done_by_another_one,
    a_worker_without_its_lock_cannot_delete_the_item,
    a_worker_that_waits_sends_nothing_and_uses_one_session,
    a_session_that_ends_is_an_error_of_the_wait,
    a_dropped_call_leaves_no_lock,
    a_reply_that_is_lost_does_an_item_no_second_time,
);

/// So short that a test can wait for its end.
const SHORT: Duration = Duration::from_secs(2);

fn queue(world: &World, keeper: &Lockkeeper) -> WorkQueue {
    WorkQueue::new(keeper, &world.path("queue"))
}

fn take(queue: &WorkQueue) -> Waiter<Item, Error> {
    let queue = queue.clone();
    Waiter::spawn(async move { queue.take().await })
}

/// The items that are left.
async fn items(world: &World) -> Vec<String> {
    world.observer.list_children(&world.path("queue/items")).await.unwrap_or_default()
}

/// Waits until a call that waits has watched this many lists since a moment.
async fn watching(proxy: &Proxy, since: u64, lists: u64) {
    proxy.wait_until(|counts| lists_of(counts) - since >= lists).await;
}

fn lists_of(counts: &lockkeeper_testkit::proxy::Counts) -> u64 {
    counts.delivered.of_any(&[OpCode::GetChildren, OpCode::GetChildren2])
}

async fn three_workers_do_each_item_once(world: &World) {
    const ITEMS: usize = 24;
    // Two workers share a session.
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (under_way, done) = (Arc::<Mutex<Vec<Vec<u8>>>>::default(), Arc::<Mutex<BTreeMap<Vec<u8>, usize>>>::default());
    let workers: Vec<_> = [&one, &one, &other]
        .into_iter()
        .map(|keeper| {
            let (queue, under_way, done) = (queue(world, keeper), under_way.clone(), done.clone());
            spawn(async move {
                loop {
                    let item = queue.take().await.unwrap();
                    let data = item.data.clone();
                    {
                        let mut under_way = under_way.lock().unwrap();
                        assert!(!under_way.contains(&data), "two workers at one item");
                        under_way.push(data.clone());
                    }
                    tokio::task::yield_now().await;
                    under_way.lock().unwrap().retain(|other| *other != data);
                    *done.lock().unwrap().entry(data).or_default() += 1;
                    item.done().await.unwrap();
                }
            })
        })
        .collect();
    let queue = queue(world, &other);
    for item in 0..ITEMS {
        queue.put(item.to_string().into()).await.unwrap();
    }
    eventually("all is done", async || {
        assert!(workers.iter().all(|worker| !worker.is_finished()), "a worker failed");
        done.lock().unwrap().len() == ITEMS && items(world).await.is_empty()
    })
    .await;
    assert!(done.lock().unwrap().values().all(|times| *times == 1), "{:?}", done.lock().unwrap());
    workers.iter().for_each(|worker| worker.abort());
}

async fn an_item_whose_worker_dies_is_done_by_another_one(world: &World) {
    let (dying, proxy) = (world.proxy().await, world.proxy().await);
    let (first, second) = (world.keeper_through(&dying, SHORT).await, world.keeper_through(&proxy, STEADY).await);
    queue(world, &second).put("only".into()).await.unwrap();
    let lost = take(&queue(world, &first)).outcome().await.unwrap();
    let since = lists_of(&proxy.counts());
    let waiting = take(&queue(world, &second));
    watching(&proxy, since, 2).await;
    assert!(waiting.waits(), "an item was taken twice");
    dying.black_hole();
    let item = waiting.outcome().await.unwrap();
    assert_eq!(item.data, b"only");
    dying.heal();
    assert!(matches!(lost.done().await, Err(WriteError::Lost { .. })));
    assert_eq!(items(world).await.len(), 1);
    item.done().await.unwrap();
    assert!(items(world).await.is_empty());
}

/// An operator deletes the lock's node, and the worker does not know it yet.
async fn a_worker_without_its_lock_cannot_delete_the_item(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let queue = queue(world, &keeper);
    queue.put("only".into()).await.unwrap();
    let item = take(&queue).outcome().await.unwrap();
    let node = item.guard.node();
    proxy.on_watch_event().path(node.as_str()).replace_reply("");
    world.remove(&node).await;
    assert!(item.guard.is_held());
    assert!(matches!(item.done().await, Err(WriteError::Lost { .. })));
    assert_eq!(items(world).await.len(), 1);
    take(&queue).outcome().await.unwrap().done().await.unwrap();
}

async fn a_worker_that_waits_sends_nothing_and_uses_one_session(world: &World) {
    let (proxy, busy) = (world.proxy().await, world.keeper().await);
    // A short timeout makes pings frequent.
    let keeper = world.keeper_through(&proxy, SHORT).await;
    queue(world, &busy).put("busy".into()).await.unwrap();
    let taken = take(&queue(world, &busy)).outcome().await.unwrap();
    // Behind this write, the server of this session has the item and its lock.
    keeper.check().await.unwrap();
    let since = lists_of(&proxy.counts());
    let waiting = take(&queue(world, &keeper));
    watching(&proxy, since, 2).await;
    let (pings, before) = (proxy.counts().delivered.of(OpCode::Ping), proxy.records().len());
    let has_pinged = || proxy.counts().delivered.of(OpCode::Ping) >= pings + 3;
    eventually("pings", async || has_pinged() || !asked(world, &proxy, before).is_empty()).await;
    assert_eq!(asked(world, &proxy, before), [], "a worker that waits has sent something");
    assert!(waiting.waits());
    drop(taken);
    waiting.outcome().await.unwrap().done().await.unwrap();
    assert!(items(world).await.is_empty());
    assert_eq!(proxy.counts().accepted, 1, "another session for the locks");
}

async fn a_session_that_ends_is_an_error_of_the_wait(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, SHORT).await;
    let session = keeper.check().await.unwrap();
    let since = lists_of(&proxy.counts());
    let waiting = take(&queue(world, &keeper));
    // The second one is behind the create of the parent, and the call waits.
    watching(&proxy, since, 2).await;
    let node = world.path("of-the-session");
    keeper
        .sessions()
        .ensemble()
        .await
        .unwrap()
        .create(&node, Vec::new(), lockkeeper_session::ensemble::NodeKind::Ephemeral)
        .await
        .unwrap();
    proxy.black_hole();
    eventually("the session ends", async || !world.exists(&node).await).await;
    proxy.heal();
    let ended = waiting.outcome().await.err();
    // Sooner than the silence of servers would end it.
    assert!(matches!(ended, Some(Error::Session(SessionError::ConnectionLost { .. }))), "{ended:?}");
    // The next call has the next session.
    queue(world, &keeper).put("next".into()).await.unwrap();
    take(&queue(world, &keeper)).outcome().await.unwrap().done().await.unwrap();
    assert_ne!(keeper.check().await.unwrap(), session);
}

/// The lock is granted, and the item is being read.
async fn a_dropped_call_leaves_no_lock(world: &World) {
    let proxy = world.proxy().await;
    let (keeper, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    queue(world, &other).put("only".into()).await.unwrap();
    let read = proxy.on(OpCode::GetData).path("-item").hold_reply();
    let dropped = take(&queue(world, &keeper));
    read.caught().await;
    dropped.abort();
    read.release();
    take(&queue(world, &other)).outcome().await.unwrap().done().await.unwrap();
}

async fn a_reply_that_is_lost_does_an_item_no_second_time(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let queue = queue(world, &keeper);
    queue.put("the parent is there".into()).await.unwrap();
    take(&queue).outcome().await.unwrap().done().await.unwrap();
    let put = proxy.on_any(&[OpCode::Create, OpCode::Create2]).path("-item").cut_before_reply();
    queue.put("only".into()).await.unwrap();
    assert!(put.has_fired());
    assert_eq!(items(world).await.len(), 1, "the create was repeated under another name");
    let item = take(&queue).outcome().await.unwrap();
    let delete = proxy.on(OpCode::Multi).cut_before_reply();
    item.done().await.unwrap();
    assert!(delete.has_fired());
    assert!(items(world).await.is_empty());
}
