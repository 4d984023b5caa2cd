//! Servers that stop and come back.

use std::future::IntoFuture;
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::error::AcquireError;
#[cfg(deep)]
use lockkeeper::error::{AdminError, SessionError};
use lockkeeper::guard::HoldState;
use lockkeeper_server::{OpCode, Server};

use crate::support::{Kind, PATIENCE, STEADY, block_on, config, eventually};

/// Connects two handles and creates the lock's path.
async fn contention(servers: &str, kind: Kind) -> [Lockkeeper; 2] {
    let connect = || Lockkeeper::builder().session_timeout(STEADY).connect_timeout(PATIENCE).connect(servers);
    let keepers = [connect().await.unwrap(), connect().await.unwrap()];
    kind.mutex(&keepers[0], "/locks/nightly").acquire().await.unwrap().release().await.unwrap();
    keepers
}

/// When the server is back, the waiter's watch is set again; the waiter does not poll, and it is granted the lock when the
/// holder releases it. The holder held it all the time.
fn check_that_a_waiter_survives_a_restart(kind: Kind) {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let durable = || config().with_directory(dir.path());
        let server = Server::start(durable()).await.unwrap();
        let address = server.addr();
        let keepers = contention(&server.connect_string(), kind).await;
        let [one, other] = &keepers;
        let guard = kind.mutex(one, "/locks/nightly").acquire().await.unwrap();
        let waiter = crate::support::spawn(kind.mutex(other, "/locks/nightly").acquire().into_future());
        // The waiter watches the holder's node and its own, the holder its own, and each session the epoch.
        eventually("five watches", async || server.stats().watches == 5).await;
        server.shutdown().await.unwrap();
        eventually("suspected", async || guard.state() == HoldState::Suspected).await;

        let server = Server::start(durable().with_listen(address)).await.unwrap();
        eventually("held again", async || guard.state() == HoldState::Held).await;
        eventually("five watches again", async || server.stats().watches == 5).await;
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        let guard = tokio::time::timeout(PATIENCE, waiter).await.expect("the waiter waits for ever").unwrap().unwrap();
        let asked: Vec<_> = server.stats().requests.into_iter().filter(|(op, _)| *op != OpCode::Ping).collect();
        let reads = u64::from(kind == Kind::Recipe);
        let asked_for = |op| asked.iter().find(|(asked, _)| *asked == op).map_or(0, |(_, count)| *count);
        // One listing, because a server reports missed events in no order.
        assert!(asked_for(OpCode::GetChildren) + asked_for(OpCode::GetChildren2) <= 1, "{asked:?}");
        assert_eq!((asked_for(OpCode::Delete), asked_for(OpCode::GetData)), (1, reads), "{asked:?}");
        guard.release().await.unwrap();
        for keeper in keepers {
            keeper.close().await;
        }
    });
}

#[test]
fn case_15_a_waiter_survives_a_server_restart_native() {
    check_that_a_waiter_survives_a_restart(Kind::Native);
}

#[test]
fn case_15_a_waiter_survives_a_server_restart_recipe() {
    check_that_a_waiter_survives_a_restart(Kind::Recipe);
}

/// The same with Apache's server, which is killed.
#[cfg(deep)]
#[test]
fn case_15_a_waiter_survives_an_apache_server_restart() {
    use lockkeeper_testkit::apache::{Apache, Options};
    block_on(async {
        let apache = tokio::task::spawn_blocking(|| Apache::single(Options::default()).unwrap()).await.unwrap();
        let apache = std::sync::Arc::new(apache);
        let keepers = contention(&apache.connect_string(), Kind::Native).await;
        let [one, other] = &keepers;
        let guard = one.mutex("/locks/nightly").acquire().await.unwrap();
        let waiter = crate::support::spawn(other.mutex("/locks/nightly").acquire().into_future());
        let watcher = one.admin();
        eventually("a waiter", async || watcher.show("/locks/nightly").await.is_ok_and(|l| l.waiters.len() == 1)).await;
        let restarted = apache.clone();
        tokio::task::spawn_blocking(move || restarted.restart(0).unwrap()).await.unwrap();
        eventually("held again", async || guard.state() == HoldState::Held).await;
        guard.release().await.unwrap();
        let guard = tokio::time::timeout(PATIENCE, waiter).await.expect("the waiter waits for ever").unwrap().unwrap();
        guard.release().await.unwrap();
        for keeper in keepers {
            keeper.close().await;
        }
    });
}

/// Each write takes 4.5 s, and the server answers nothing else of the session before it. That is less than a quarter of the
/// default session timeout.
#[cfg(deep)]
#[test]
fn an_apache_server_with_a_slow_disk_keeps_every_hold() {
    use lockkeeper_testkit::apache::{Apache, Options};
    block_on(async {
        let apache = tokio::task::spawn_blocking(|| Apache::single(Options::default()).unwrap()).await.unwrap();
        let apache = std::sync::Arc::new(apache);
        let keeper = Lockkeeper::builder().connect(&apache.connect_string()).await.unwrap();
        assert_eq!(keeper.session_timeout(), Some(Duration::from_secs(30)));
        let guard = keeper.mutex("/locks/nightly").acquire().await.unwrap();
        let slowed = apache.clone();
        let slow = tokio::task::spawn_blocking(move || slowed.slow_fsync(Duration::from_millis(4_500)).unwrap());
        let slow = slow.await.unwrap();
        let renewed = async {
            guard.renewed().await;
            guard.renewed().await;
        };
        tokio::select! {
            state = guard.changed(HoldState::Held) => panic!("{state:?}"),
            () = renewed => {}
        }
        drop(slow);
        guard.release().await.unwrap();
        keeper.close().await;
    });
}

/// A follower without its leader answers reads for a while from its old state. A query about a lock is not answered from it.
#[cfg(deep)]
#[test]
fn an_apache_server_without_a_majority_answers_no_query_about_a_lock() {
    use lockkeeper_testkit::apache::{Apache, Options};
    block_on(async {
        let started = tokio::task::spawn_blocking(|| {
            let apache = Apache::ensemble(3, Options::default()).unwrap();
            (apache.leader().unwrap(), std::sync::Arc::new(apache))
        });
        let (leader, apache) = started.await.unwrap();
        let (alone, other) = ((leader + 1) % 3, (leader + 2) % 3);
        let [holder, asker] = contention(&apache.addr(alone).to_string(), Kind::Native).await;
        let guard = holder.mutex("/locks/nightly").acquire().await.unwrap();
        assert_eq!(asker.admin().show("/locks/nightly").await.unwrap().holders.len(), 1);
        let stopped = apache.clone();
        tokio::task::spawn_blocking(move || [leader, other].map(|server| stopped.pause(server))).await.unwrap();
        let answer =
            tokio::time::timeout(PATIENCE, asker.admin().show("/locks/nightly")).await.expect("the query hangs");
        assert!(matches!(answer, Err(AdminError::Session(SessionError::ConnectionLost { .. }))), "{answer:?}");
        [leader, other].into_iter().for_each(|server| apache.resume(server));
        eventually("held again or lost", async || guard.state() == HoldState::Held || guard.loss().is_some()).await;
        let asked = async || asker.admin().show("/locks/nightly").await;
        match guard.loss() {
            None => {
                guard.release().await.unwrap();
                assert_eq!(asked().await.unwrap().holders, []);
            }
            // The election took longer than a hold is trusted. Its node is deleted when the connection is back.
            Some(loss) => {
                assert_eq!(loss, lockkeeper::Loss::Unreachable);
                eventually("no holder", async || asked().await.is_ok_and(|lock| lock.holders.is_empty())).await;
            }
        }
        for keeper in [holder, asker] {
            keeper.close().await;
        }
    });
}

/// Case 14: a restarted server gives every session its full timeout again. So a disconnected holder keeps its lock or its permits
/// if it comes back within that time, and otherwise loses them one timeout and at most one tick after the restart.
#[test]
fn case_14_a_restart_gives_each_session_its_full_timeout() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let durable = || config().with_directory(dir.path());
        let server = Server::start(durable()).await.unwrap();
        let (address, timeout) = (server.addr(), Duration::from_secs(3));
        let proxy = lockkeeper_testkit::proxy::Proxy::start(address).await;
        let silent = Lockkeeper::builder().session_timeout(timeout).connect(&proxy.connect_string()).await.unwrap();
        let guard = silent.mutex("/locks/nightly").acquire().await.unwrap();
        let permits = [(), ()].map(|()| silent.semaphore("/locks/pool", 2).acquire());
        let [first, second] = permits.map(IntoFuture::into_future);
        let permits = tokio::try_join!(first, second).unwrap();
        proxy.black_hole();
        server.shutdown().await.unwrap();
        tokio::join!(guard.lost(), permits.0.lost(), permits.1.lost());
        let back = std::time::Instant::now();
        let server = Server::start(durable().with_listen(address)).await.unwrap();
        let listening = std::time::Instant::now();
        assert_eq!(server.stats().sessions, 1, "its session still exists");
        let next = Lockkeeper::builder().session_timeout(STEADY).connect(&server.connect_string()).await.unwrap();
        let pool = next.semaphore("/locks/pool", 2);
        assert!(matches!(pool.try_acquire().await, Err(AcquireError::Held { .. })), "its permits are not free yet");
        let guard = next.mutex("/locks/nightly").acquire().await.unwrap();
        let permits = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
        let (took, since) = (back.elapsed(), listening.elapsed());
        assert!(took >= timeout, "granted after {took:?}");
        // Once: with a second one, it would be later than on any busy machine.
        assert!(since < timeout * 2, "granted after {since:?}");
        guard.release().await.unwrap();
        permits.0.release().await.unwrap();
        permits.1.release().await.unwrap();
        next.close().await;
    });
}
