//! Lines by the ten thousand.

use lockkeeper::Error;
use lockkeeper_testkit::proxy::OpCode;
use zookeeper_client as zk;

use crate::support::{STEADY, World, asked, eventually, on_the_embedded_server_for};

on_the_embedded_server_for!(
    [native Native]
    case_36_a_line_that_is_too_long_is_told_at_once_and_left,
);

/// Nodes of one kind, so many at a time.
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

/// 20 000 stand there already, more than a listing of 1 MiB has room for.
async fn case_36_a_line_that_is_too_long_is_told_at_once_and_left(world: &World) {
    const LINE: usize = 20_000;
    let lock = world.lock();
    world.make(&lock).await;
    let line = (0..LINE).map(|_| format!("{lock}/_c_{}-lock-", uuid::Uuid::new_v4()));
    make(world, line, zk::CreateMode::EphemeralSequential).await;
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.records().len();
    let refused = world.mutex(&keeper).acquire().await;
    match &refused {
        Err(error @ Error::TooManyWaiters { ahead: LINE, most: 10_000, .. }) => {
            assert!(error.hint().is_some() && error.is_retryable(), "{error}");
        }
        other => panic!("{other:?}"),
    }
    eventually("it leaves", async || world.queue().await.len() == LINE).await;
    let requests: Vec<OpCode> = asked(world, &proxy, before).into_iter().map(|(op, _)| op).collect();
    assert!(requests.len() <= 4, "a create, a listing, a delete and perhaps a proof: {requests:?}");
    // Who is ready to may.
    let waiting = tokio::spawn(world.mutex(&keeper).acquire().max_waiters(LINE).into_future());
    eventually("it stands", async || world.queue().await.len() == LINE + 1).await;
    waiting.abort();
    eventually("it leaves too", async || world.queue().await.len() == LINE).await;
    for some in world.queue().await.chunks(1_000) {
        let mut writer = world.observer.new_multi_writer();
        for name in some {
            writer.add_delete(&format!("{lock}/{name}"), None).unwrap();
        }
        writer.commit().await.unwrap();
    }
}
