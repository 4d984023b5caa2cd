//! The same work on Apache's servers, and tests that only they can run.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::error::AdminError;
use lockkeeper_testkit::apache::{Apache, Options};
use lockkeeper_testkit::proxy::{OpCode, Proxy};
use tokio::task::JoinSet;

use super::{File, Workers};
use crate::support::{PATIENCE, STEADY, block_on, eventually};

/// On three Apache servers; their leader is killed and restarted, twice.
#[test]
fn sixty_four_tasks_lose_no_update_while_leaders_are_killed() {
    block_on(async {
        let apache = Arc::new(ensemble().await);
        let dir = tempfile::tempdir().unwrap();
        let file = File::new(&dir, false);
        let mut keepers = Vec::new();
        for _ in 0..4 {
            let builder = Lockkeeper::builder().session_timeout(Duration::from_secs(4)).connect_timeout(PATIENCE);
            keepers.push(builder.connect(&apache.connect_string()).await.unwrap());
        }
        let mutexes: Vec<_> = keepers.iter().map(|keeper| keeper.mutex("/locks/work")).collect();
        let work = Workers::at(&mutexes, &file, keepers[0].clone(), "/locks/work");
        for _ in 0..2 {
            work.wait_for_updates(100).await;
            let leader = blocking(&apache, |apache| {
                let leader = apache.leader().unwrap();
                apache.kill(leader);
                leader
            })
            .await;
            work.wait_for_updates(100).await;
            blocking(&apache, move |apache| apache.restart(leader).unwrap()).await;
        }
        work.wait_for_updates(100).await;
        work.done().await;
        eventually("no contender is left", async || empty(&keepers[0], "/locks/work").await).await;
        for keeper in keepers {
            keeper.close().await;
        }
    });
}

/// Cases 8 and 33 on a slow disk: each fsync takes 0.8 s and the connection is cut 20 ms after the create, so the session moves
/// to another server before its node is applied there. Every attempt finds its node; none creates a second one.
#[test]
fn case_08_a_cut_during_a_slow_fsync_leaves_one_node_in_20_runs_on_a_real_ensemble() {
    const RUNS: usize = 20;
    block_on(async {
        let apache = Arc::new(ensemble().await);
        let mut runs = Vec::new();
        for run in 0..RUNS {
            let mut proxies = Vec::new();
            for server in 0..apache.size() {
                proxies.push(Proxy::start(apache.addr(server)).await);
            }
            let servers: Vec<_> = proxies.iter().map(Proxy::connect_string).collect();
            let builder = Lockkeeper::builder().session_timeout(STEADY).connect_timeout(PATIENCE);
            let keeper = builder.connect(&servers.join(",")).await.unwrap();
            let path = format!("/locks/slow-{run}");
            keeper.mutex(&path).acquire().await.unwrap().release().await.unwrap();
            runs.push((keeper, path, proxies));
        }
        let slow = blocking(&apache, |apache| apache.slow_fsync(Duration::from_millis(800)).unwrap()).await;
        let mut attempts = JoinSet::new();
        for (keeper, path, proxies) in runs {
            attempts.spawn(async move {
                let cut = |proxy: &Proxy| {
                    proxy.on_any(OpCode::CREATES).path(&*path).cut_after_request(Duration::from_millis(20))
                };
                let _cuts: Vec<_> = proxies.iter().map(cut).collect();
                let guard = keeper.mutex(&path).acquire().timeout(PATIENCE).await.unwrap();
                let connections: u64 = proxies.iter().map(|proxy| proxy.counts().accepted).sum();
                let seen = keeper.admin().show(&path).await.unwrap();
                assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0), "{path}: a second node: {seen:?}");
                assert_eq!(seen.holders[0].token, Some(guard.token()));
                proxies.iter().for_each(Proxy::heal);
                guard.release().await.unwrap();
                assert!(empty(&keeper, &path).await, "{path}");
                (keeper, connections, proxies)
            });
        }
        let mut broken = 0;
        let mut ended = Vec::new();
        while let Some(attempt) = attempts.join_next().await {
            let (keeper, connections, proxies) = attempt.unwrap();
            broken += usize::from(connections > 1);
            ended.push((keeper, proxies));
        }
        drop(slow);
        assert_eq!(broken, RUNS, "the connection was cut in each run");
        for (keeper, _proxies) in ended {
            keeper.close().await;
        }
    });
}

async fn empty(keeper: &Lockkeeper, path: &str) -> bool {
    match keeper.admin().show(path).await {
        Ok(seen) => seen.holders.is_empty() && seen.waiters.is_empty(),
        Err(error) => matches!(error, AdminError::NoSuchLock { .. }),
    }
}

async fn ensemble() -> Apache {
    tokio::task::spawn_blocking(|| Apache::ensemble(3, Options::default()).unwrap()).await.unwrap()
}

/// Runs a blocking job on the servers.
async fn blocking<T: Send + 'static>(apache: &Arc<Apache>, job: impl FnOnce(&Apache) -> T + Send + 'static) -> T {
    let apache = apache.clone();
    tokio::task::spawn_blocking(move || job(&apache)).await.unwrap()
}
