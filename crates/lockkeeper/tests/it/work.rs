//! Real work: many tasks of several sessions read, think and write one plain file under one lock, through everything that
//! befalls them. No update may be lost, no node left.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{FencingToken, Guard, Lockkeeper};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "real-servers")]
mod real_servers;

use crate::support::{PATIENCE, World, eventually, on_the_embedded_server};

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
    let observer = world.observer.session_id();
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
