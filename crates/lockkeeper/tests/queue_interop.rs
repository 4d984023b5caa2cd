//! Curator's and Kazoo's own locks and ours on one path: they share one queue.
//!
//! `cargo xtask interop curator` and `cargo xtask interop kazoo` install the foreign client and say where it is; each claim
//! runs on the embedded server and on Apache's.

#![cfg(deep)]
#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

#[path = "interop/other.rs"]
mod other;

use std::time::Duration;

use lockkeeper::admin::RevokeAnswer;
use lockkeeper::error::AcquireError;
use lockkeeper::{Lockkeeper, NodeFormat};
use lockkeeper_server::{Config, Server};
use tokio::task::JoinSet;
use zookeeper_client as zk;

use self::other::{Other, PATIENCE};

/// How often each contender counts up.
const ROUNDS: u64 = 150;

/// A session timeout long enough that no busy machine loses the session by accident.
const STEADY: Duration = Duration::from_secs(20);

/// A path on a server, with a counter beside it.
struct World {
    servers: String,
    path: String,
    counter: String,
    client: zk::Client,
}

impl World {
    async fn new(servers: &str) -> World {
        let client = zk::Client::connector().with_session_timeout(STEADY).connect(servers).await.unwrap();
        let root = format!("/interop-{}", uuid::Uuid::new_v4());
        let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        let (path, counter) = (format!("{root}/lock"), format!("{root}/counter"));
        for (node, data) in [(&root, &b""[..]), (&path, b""), (&counter, b"0")] {
            client.create(node, data, &options).await.unwrap();
        }
        World { servers: servers.to_owned(), path, counter, client }
    }

    async fn keeper(&self) -> Lockkeeper {
        Lockkeeper::builder().session_timeout(STEADY).connect(&self.servers).await.unwrap()
    }

    async fn number(client: &zk::Client, counter: &str) -> u64 {
        String::from_utf8(client.get_data(counter).await.unwrap().0).unwrap().parse().unwrap()
    }

    /// Two of our contenders count up, as the foreign ones do.
    async fn count(&self, shared: bool, node_format: NodeFormat) {
        let mut ours = JoinSet::new();
        for _ in 0..2 {
            let (keeper, client) = (self.keeper().await, self.client.clone());
            let (path, counter) = (self.path.clone(), self.counter.clone());
            ours.spawn(async move {
                let lock = keeper.rwlock(&path).node_format(node_format);
                for _ in 0..ROUNDS {
                    let write = if shared {
                        let reads = lock.read().acquire().await.unwrap();
                        let first = Self::number(&client, &counter).await;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        assert_eq!(
                            Self::number(&client, &counter).await,
                            first,
                            "a writer changed the number under a reader"
                        );
                        reads.release().await.unwrap();
                        lock.write().acquire().any().await.unwrap()
                    } else {
                        keeper.mutex(&path).node_format(node_format).acquire().any().await.unwrap()
                    };
                    let next = Self::number(&client, &counter).await + 1;
                    client.set_data(&counter, next.to_string().as_bytes(), None).await.unwrap();
                    write.release().await.unwrap();
                }
                keeper.close().await;
            });
        }
        while let Some(done) = ours.join_next().await {
            done.unwrap();
        }
    }
}

/// Runs a claim on both servers.
fn on_both_servers(claim: impl AsyncFn(&World)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start(Config::default()).await.unwrap();
        claim(&World::new(&server.connect_string()).await).await;
        let apache = std::env::var("LOCKKEEPER_TEST_ZOOKEEPER").expect("run `cargo xtask interop`");
        claim(&World::new(&apache).await).await;
    });
}

async fn no_update_is_lost(world: &World, shared: bool, node_format: NodeFormat, start: fn(&[&str]) -> Other) {
    let kind = match (shared, node_format) {
        (true, _) => "rw",
        (false, NodeFormat::Kazoo) => "lock",
        (false, _) => "mutex",
    };
    let rounds = ROUNDS.to_string();
    let mut others: Vec<Other> = Vec::new();
    for _ in 0..2 {
        let arguments: &[&str] = match node_format {
            NodeFormat::Kazoo => &[&world.servers, kind, &world.path, &world.counter, &rounds],
            _ => &[&world.servers, "count", kind, &world.path, &world.counter, &rounds],
        };
        others.push(start(arguments));
    }
    world.count(shared, node_format).await;
    for other in &mut others {
        other.says("done").await;
    }
    assert_eq!(World::number(&world.client, &world.counter).await, 4 * ROUNDS);
    assert!(world.client.list_children(&world.path).await.unwrap().is_empty(), "a node is left");
}

#[test]
fn kazoo_lock_and_lockkeeper_lose_no_update() {
    on_both_servers(async |world| no_update_is_lost(world, false, NodeFormat::Kazoo, Other::kazoo).await);
}

#[test]
fn kazoo_readers_and_writers_and_lockkeeper_lose_no_update() {
    on_both_servers(async |world| no_update_is_lost(world, true, NodeFormat::Kazoo, Other::kazoo).await);
}

#[test]
fn curator_mutex_and_lockkeeper_lose_no_update() {
    on_both_servers(async |world| no_update_is_lost(world, false, NodeFormat::Curator, Other::curator).await);
}

#[test]
fn curator_readers_and_writers_and_lockkeeper_lose_no_update() {
    on_both_servers(async |world| no_update_is_lost(world, true, NodeFormat::Curator, Other::curator).await);
}

/// Case 57: each client sees the other's revocation request.
#[test]
fn curator_and_lockkeeper_see_each_others_revocation_requests() {
    on_both_servers(async |world| {
        let keeper = world.keeper().await;
        let guard = keeper.mutex(&world.path).acquire().await.unwrap();
        Other::curator(&[&world.servers, "revoke", &guard.node()]).says("asked").await;
        tokio::time::timeout(PATIENCE, guard.revocation()).await.unwrap();
        guard.release().await.unwrap();

        let mut curator = Other::curator(&[&world.servers, "hold", &world.path]);
        curator.says("held").await;
        let asked = keeper.admin().revoke(&world.path, Some("please")).await.unwrap();
        curator.says("asked").await;
        curator.says("released").await;
        assert_eq!(asked[0].answer(PATIENCE).await.unwrap(), RevokeAnswer::Released);
        keeper.close().await;
    });
}

/// Curator creates a reader's node with the writer's number, then deletes the writer's node: a waiter behind must not take that
/// deletion for its grant.
#[test]
fn a_writer_behind_a_curator_downgrade_waits_for_the_reader() {
    on_both_servers(async |world| {
        let keeper = world.keeper().await;
        let lock = keeper.rwlock(&world.path);
        let mut curator = Other::curator(&[&world.servers, "downgrade", &world.path]);
        curator.says("writes").await;
        let writer = tokio::spawn(lock.write().acquire().into_future());
        while world.client.list_children(&world.path).await.unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        curator.hears("").await;
        curator.says("reads").await;
        // A new reader queues behind the writer, and the result of its try says whether the writer holds.
        let refused = lock.read().try_acquire().await;
        assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
        assert!(!writer.is_finished());
        curator.hears("").await;
        curator.says("released").await;
        let guard = tokio::time::timeout(PATIENCE, writer).await.unwrap().unwrap().unwrap();
        guard.release().await.unwrap();
        keeper.close().await;
    });
}
