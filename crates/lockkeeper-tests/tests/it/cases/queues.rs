//! Queues of ten thousands, and more watches than one packet can hold.

use lockkeeper::error::AcquireError;
use lockkeeper::guard::HoldState;
use lockkeeper_testkit::proxy::{Cut, OpCode};
use zookeeper_client as zk;

use crate::support::{STEADY, World, asked, eventually, for_kinds, on_the_embedded_server_for};

for_kinds!([native Native, #[cfg(deep)] recipe Recipe, numbered Numbered] case_37_hundreds_of_waiters_survive_a_disconnect);

on_the_embedded_server_for!(
    [native Native]
    case_36_a_queue_that_is_too_long_is_refused_and_left_immediately,
);

/// Creates nodes, many in one transaction.
async fn make(world: &World, names: impl Iterator<Item = String>, mode: zk::CreateMode) {
    let options = mode.with_acls(zk::Acls::anyone_all());
    let names: Vec<String> = names.collect();
    for some in names.chunks(1_000) {
        let mut writer = world.observer.new_multi_writer();
        for name in some {
            writer.add_create(name, b"", &options).unwrap();
        }
        writer.commit().await.unwrap();
    }
}

/// 20 000 contenders are in the queue already, more than a listing of 1 MiB can hold.
async fn case_36_a_queue_that_is_too_long_is_refused_and_left_immediately(world: &World) {
    const QUEUED: usize = 20_000;
    let lock = world.lock();
    world.make(&lock).await;
    let names = (0..QUEUED).map(|_| format!("{lock}/_c_{}-lock-", uuid::Uuid::new_v4()));
    make(world, names, zk::CreateMode::EphemeralSequential).await;
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.records().len();
    let refused = world.mutex(&keeper).acquire().await;
    match &refused {
        Err(error @ AcquireError::TooManyWaiters { ahead: QUEUED, most: 10_000, .. }) => {
            assert!(error.hint().is_some() && error.kind().is_retryable(), "{error}");
        }
        other => panic!("{other:?}"),
    }
    eventually("the refused contender leaves", async || world.queue().await.len() == QUEUED).await;
    let requests: Vec<OpCode> = asked(world, &proxy, before).into_iter().map(|(op, _)| op).collect();
    assert!(requests.len() <= 4, "a create, a listing, a delete and perhaps a heartbeat: {requests:?}");
    // `max_waiters` allows a longer queue.
    let waiting = crate::support::spawn(world.mutex(&keeper).acquire().max_waiters(QUEUED).into_future());
    eventually("the contender is in the queue", async || world.queue().await.len() == QUEUED + 1).await;
    waiting.abort();
    eventually("the aborted contender leaves", async || world.queue().await.len() == QUEUED).await;
    for some in world.queue().await.chunks(1_000) {
        let mut writer = world.observer.new_multi_writer();
        for name in some {
            writer.add_delete(&format!("{lock}/{name}"), None).unwrap();
        }
        writer.commit().await.unwrap();
    }
}

/// 300 waiters watch a node each, with paths of some 1 000 bytes: more than twice what the client crate can set again in one
/// packet; a second packet makes it lose the session. The waiters notice changes of the queue during the disconnect and after
/// it, a hold stays held, and the session is the same. (100 000 watches: `zookeeper/tests.rs`.)
async fn case_37_hundreds_of_waiters_survive_a_disconnect(world: &World) {
    const CROWD: u64 = 300;
    let lock = world.path(&"long".repeat(240));
    let proxy = world.proxy().await;
    let (keeper, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let own = world.mutex(&keeper).acquire().await.unwrap();
    let guard = world.kind.mutex(&other, &lock).acquire().await.unwrap();
    let before = proxy.counts();
    let (sender, mut granted) = tokio::sync::mpsc::unbounded_channel();
    let waiters: Vec<_> = (0..CROWD)
        .map(|_| {
            let (asked, sender) = (world.kind.mutex(&keeper, &lock).acquire().into_future(), sender.clone());
            crate::support::spawn(async move { sender.send(asked.await.unwrap()).unwrap() })
        })
        .collect();
    // Each watches its own node, and the first one the other client's.
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) > CROWD).await;
    let mut holder = Some(guard);
    for turn in 0..4 {
        proxy.refuse();
        proxy.cut(Cut::Reset);
        // First another client's hold, which ends during the disconnect; then their own.
        if let Some(guard) = holder.take() {
            guard.release().await.unwrap();
        }
        proxy.heal();
        let next = granted.recv().await.unwrap();
        assert!(next.is_held() && own.is_held(), "turn {turn}");
        next.release().await.unwrap();
    }
    assert_eq!(own.state(), HoldState::Held);
    assert_eq!(
        proxy.counts().since(&before).requested.of_any(OpCode::CREATES),
        CROWD,
        "no waiter had to create its node again"
    );
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    drop(granted);
    eventually("the waiters leave", async || world.children(&lock).await.is_empty()).await;
    own.release().await.unwrap();
}
