//! Real work: many tasks of several sessions read, think and write one plain file under one lock, through everything that
//! befalls them. No update may be lost, no node left.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{Error, FencingToken, Guard, Lockkeeper};
use lockkeeper_testkit::apache::{Apache, Options};
use lockkeeper_testkit::proxy::{OpCode, Proxy};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, STEADY, World, asked_for, block_on, eventually, on_the_embedded_server};

const TASKS: usize = 64;

on_the_embedded_server!(
    sixty_four_tasks_and_a_partition_lose_no_update,
    with_fencing_even_sessions_ended_by_force_lose_no_update,
);

/// A file with a number in it, and how often the number was raised.
struct File {
    path: PathBuf,
    /// Whether it refuses those who come with an older token than another before.
    fenced: bool,
    newest: Mutex<Option<FencingToken>>,
    updates: AtomicU64,
}

impl File {
    fn new(dir: &tempfile::TempDir, fenced: bool) -> Arc<File> {
        let path = dir.path().join("number");
        std::fs::write(&path, "0").unwrap();
        Arc::new(File { path, fenced, newest: Mutex::default(), updates: AtomicU64::new(0) })
    }

    fn number(&self) -> u64 {
        std::fs::read_to_string(&self.path).unwrap().parse().unwrap()
    }

    fn updates(&self) -> u64 {
        self.updates.load(SeqCst)
    }

    /// Does `step` unless somebody with a newer token was here before.
    fn admit<T>(&self, token: FencingToken, step: impl FnOnce() -> T) -> Option<T> {
        if !self.fenced {
            return Some(step());
        }
        let mut newest = self.newest.lock().unwrap();
        if newest.is_some_and(|newest| token < newest) {
            return None;
        }
        *newest = Some(token);
        Some(step())
    }

    /// One round. Another holder at the same time would lose an update: everyone yields between the read and the write.
    async fn update(&self, guard: &Guard) {
        let Some(seen) = self.admit(guard.token(), || self.number()) else { return };
        tokio::task::yield_now().await;
        if guard.is_held() && self.admit(guard.token(), || std::fs::write(&self.path, (seen + 1).to_string())).is_some()
        {
            self.updates.fetch_add(1, SeqCst);
        }
    }
}

/// Asks in all ways there are, lets go in all ways there are, until it is enough.
async fn labour(task: usize, mutex: lockkeeper::Mutex, file: Arc<File>, enough: CancellationToken) {
    for round in task.. {
        if enough.is_cancelled() {
            return;
        }
        let asked = match round % 5 {
            // Aborted at some moment on the way.
            0 => match tokio::time::timeout(Duration::from_millis(round as u64 % 7), mutex.acquire()).await {
                Ok(asked) => asked,
                Err(_) => continue,
            },
            1 => mutex.try_acquire().await,
            2 => mutex.acquire().timeout(Duration::from_millis(50)).await,
            _ => mutex.acquire().await,
        };
        let guard = match asked {
            Ok(guard) => guard,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                continue;
            }
        };
        file.update(&guard).await;
        match round % 3 {
            0 => drop(guard),
            1 => drop(guard.release()),
            _ => _ = guard.release().await,
        }
    }
}

/// All at work, an equal share of them for each handle.
struct Workforce {
    tasks: JoinSet<()>,
    enough: CancellationToken,
    file: Arc<File>,
    /// Asked when the work does not go on.
    looker: Lockkeeper,
    lock: String,
}

impl Workforce {
    fn at(mutexes: &[lockkeeper::Mutex], file: &Arc<File>, looker: Lockkeeper, lock: &str) -> Workforce {
        let (enough, file) = (CancellationToken::new(), file.clone());
        let mutex = |task: usize| mutexes[task % mutexes.len()].clone();
        let tasks = (0..TASKS).map(|task| labour(task, mutex(task), file.clone(), enough.clone())).collect();
        Workforce { tasks, enough, file, looker, lock: lock.to_owned() }
    }

    /// Waits until so many more updates are made.
    async fn goes_on(&self, updates: u64) {
        let enough = self.file.updates() + updates;
        let goes_on = eventually("work goes on", async || self.file.updates() >= enough);
        tokio::pin!(goes_on);
        let stuck = tokio::time::timeout(PATIENCE * 2 / 3, &mut goes_on).await.is_err();
        if stuck {
            // Whoever is to find out why wants to know who stands there.
            let seen = self.looker.admin().show(&self.lock).await;
            eprintln!("{} of {enough} updates; at the lock: {seen:#?}", self.file.updates());
            goes_on.await;
        }
    }

    /// Ends the work; what was counted is what the file says.
    async fn done(mut self) {
        self.enough.cancel();
        while let Some(task) = self.tasks.join_next().await {
            task.unwrap();
        }
        println!("{} updates", self.file.updates());
        assert_eq!(self.file.number(), self.file.updates(), "updates were lost");
    }
}

/// One of the sessions is cut off until the server gives it up, twice; its tasks stop in time by their own clock.
async fn sixty_four_tasks_and_a_partition_lose_no_update(world: &World) {
    let dir = tempfile::tempdir().unwrap();
    let file = File::new(&dir, false);
    let proxy = world.proxy().await;
    let mut mutexes = vec![world.mutex(&world.keeper_through(&proxy, Duration::from_secs(2)).await)];
    for _ in 0..3 {
        mutexes.push(world.mutex(&world.keeper().await));
    }
    let looker = world.keeper().await;
    let sessions = world.embedded().stats().sessions;
    let work = Workforce::at(&mutexes, &file, looker, &world.lock());
    for _ in 0..2 {
        work.goes_on(150).await;
        proxy.black_hole();
        eventually("given up", async || world.embedded().stats().sessions < sessions).await;
        proxy.heal();
        eventually("back in a new session", async || world.embedded().stats().sessions == sessions).await;
    }
    work.goes_on(150).await;
    work.done().await;
    world.queued(0).await;
}

/// Sessions end without notice while their holders are in touch: that breaks the timing which exclusion of *work* rests on.
/// So some work is done twice, and a file that looks at the tokens takes none of it.
async fn with_fencing_even_sessions_ended_by_force_lose_no_update(world: &World) {
    let dir = tempfile::tempdir().unwrap();
    let file = File::new(&dir, true);
    let mut mutexes = Vec::new();
    for _ in 0..4 {
        mutexes.push(world.mutex(&world.keeper().await));
    }
    let work = Workforce::at(&mutexes, &file, world.keeper().await, &world.lock());
    let observer = world.observer.session_id().0;
    for ended in 0..10 {
        work.goes_on(30).await;
        let sessions = world.embedded().sessions().await.unwrap();
        let others: Vec<_> = sessions.into_iter().filter(|id| *id != observer).collect();
        assert!(world.embedded().expire_session(others[ended % others.len()]).await);
    }
    work.goes_on(30).await;
    work.done().await;
    world.queued(0).await;
}

/// On three servers of Apache whose leader is killed and comes back, twice.
#[test]
fn sixty_four_tasks_lose_no_update_while_leaders_are_killed() {
    if !asked_for("LOCKKEEPER_TEST_ENSEMBLE") {
        return eprintln!("not run: needs an ensemble of Apache ZooKeeper, see docs/development.md");
    }
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
        let work = Workforce::at(&mutexes, &file, keepers[0].clone(), "/locks/work");
        for _ in 0..2 {
            work.goes_on(100).await;
            let leader = blocking(&apache, |apache| {
                let leader = apache.leader().unwrap();
                apache.kill(leader);
                leader
            })
            .await;
            work.goes_on(100).await;
            blocking(&apache, move |apache| apache.restart(leader).unwrap()).await;
        }
        work.goes_on(100).await;
        work.done().await;
        eventually("nobody is left", async || empty(&keepers[0], "/locks/work").await).await;
        for keeper in keepers {
            keeper.close().await;
        }
    });
}

/// Cases 8 and 33, DESIGN's slow disk: each fsync takes 0.8 s and the connection is cut 20 ms after the create, so that the
/// session goes to another server while its node is on its way. Every attempt finds its node, none makes a second.
#[test]
fn case_08_a_cut_during_a_slow_fsync_leaves_no_ghost_in_20_runs_on_a_real_ensemble() {
    const RUNS: usize = 20;
    if !asked_for("LOCKKEEPER_TEST_ENSEMBLE") {
        return eprintln!("not run: needs an ensemble of Apache ZooKeeper, see docs/development.md");
    }
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
                assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0), "{path}: a ghost: {seen:?}");
                assert_eq!(seen.holders[0].token, guard.token());
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
        assert_eq!(broken, RUNS, "the connection was cut in each");
        for (keeper, _proxies) in ended {
            keeper.close().await;
        }
    });
}

async fn empty(keeper: &Lockkeeper, path: &str) -> bool {
    match keeper.admin().show(path).await {
        Ok(seen) => seen.holders.is_empty() && seen.waiters.is_empty(),
        Err(error) => matches!(error, Error::NoSuchLock { .. }),
    }
}

async fn ensemble() -> Apache {
    tokio::task::spawn_blocking(|| Apache::ensemble(3, Options::default()).unwrap()).await.unwrap()
}

/// Does something with the servers that takes a while.
async fn blocking<T: Send + 'static>(apache: &Arc<Apache>, job: impl FnOnce(&Apache) -> T + Send + 'static) -> T {
    let apache = apache.clone();
    tokio::task::spawn_blocking(move || job(&apache)).await.unwrap()
}
