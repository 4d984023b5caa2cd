//! Real work: many tasks of several sessions read, yield and write one plain file under one lock, through many kinds of
//! failures. No update may be lost, and no node may be left.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{CancellationToken, FencingToken, Guard, Lockkeeper};
use tokio::task::JoinSet;

#[cfg(deep)]
mod real_servers;

use crate::support::{PATIENCE, World, eventually, on_the_embedded_server};

const TASKS: usize = 64;

on_the_embedded_server!(sixty_four_tasks_and_a_partition_lose_no_update, with_fencing_expired_sessions_lose_no_update,);

/// A file with a number in it, and a count of its updates.
struct File {
    path: PathBuf,
    /// Whether it refuses a token below the newest one.
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

    /// Runs `step` unless a newer token came before.
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

    /// One round. A second holder would lose an update, because every task yields between the read and the write.
    async fn update(&self, guard: &Guard) {
        let Some(seen) = self.admit(guard.token(), || self.number()) else { return };
        tokio::task::yield_now().await;
        if guard.is_held() && self.admit(guard.token(), || std::fs::write(&self.path, (seen + 1).to_string())).is_some()
        {
            self.updates.fetch_add(1, SeqCst);
        }
    }
}

/// Acquires and releases in every way until `enough` is cancelled.
async fn work_until_enough(task: usize, mutex: lockkeeper::Mutex, file: Arc<File>, enough: CancellationToken) {
    for round in task.. {
        if enough.is_cancelled() {
            return;
        }
        let asked = match round % 5 {
            // Dropped at some moment of the call.
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
                assert!(error.kind().is_retryable(), "{error:?}");
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

/// All tasks, shared equally by the handles.
struct Workers {
    tasks: JoinSet<()>,
    enough: CancellationToken,
    file: Arc<File>,
    /// Reports the lock's state when the work stops.
    looker: Lockkeeper,
    lock: String,
}

impl Workers {
    fn at(mutexes: &[lockkeeper::Mutex], file: &Arc<File>, looker: Lockkeeper, lock: &str) -> Workers {
        let (enough, file) = (CancellationToken::new(), file.clone());
        let mutex = |task: usize| mutexes[task % mutexes.len()].clone();
        let tasks = (0..TASKS).map(|task| work_until_enough(task, mutex(task), file.clone(), enough.clone())).collect();
        Workers { tasks, enough, file, looker, lock: lock.to_owned() }
    }

    /// Waits for that many more updates.
    async fn wait_for_updates(&self, updates: u64) {
        let enough = self.file.updates() + updates;
        let enough_updates = eventually("the work continues", async || self.file.updates() >= enough);
        tokio::pin!(enough_updates);
        let stuck = tokio::time::timeout(PATIENCE * 2 / 3, &mut enough_updates).await.is_err();
        if stuck {
            // The lock's contenders help to find the reason.
            let seen = self.looker.admin().show(&self.lock).await;
            eprintln!("{} of {enough} updates; at the lock: {seen:#?}", self.file.updates());
            enough_updates.await;
        }
    }

    /// Ends the work and checks that the file has every counted update.
    async fn done(mut self) {
        self.enough.cancel();
        while let Some(task) = self.tasks.join_next().await {
            task.unwrap();
        }
        println!("{} updates", self.file.updates());
        assert_eq!(self.file.number(), self.file.updates(), "updates were lost");
    }
}

/// One session is cut off until it expires, twice; its tasks stop in time by their own clock.
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
    let work = Workers::at(&mutexes, &file, looker, &world.lock());
    for _ in 0..2 {
        work.wait_for_updates(150).await;
        proxy.black_hole();
        eventually("the session expired", async || world.embedded().stats().sessions < sessions).await;
        proxy.heal();
        eventually("back in a new session", async || world.embedded().stats().sessions == sessions).await;
    }
    work.wait_for_updates(150).await;
    work.done().await;
    world.queued(0).await;
}

/// Sessions end without notice while their holders are connected, which breaks the timing that exclusion of *work* depends on.
/// So some work runs twice, and a file that checks tokens refuses the late writes.
async fn with_fencing_expired_sessions_lose_no_update(world: &World) {
    let dir = tempfile::tempdir().unwrap();
    let file = File::new(&dir, true);
    let mut mutexes = Vec::new();
    for _ in 0..4 {
        mutexes.push(world.mutex(&world.keeper().await));
    }
    let work = Workers::at(&mutexes, &file, world.keeper().await, &world.lock());
    let observer = world.observer.session_id();
    for ended in 0..10 {
        work.wait_for_updates(30).await;
        let sessions = world.embedded().sessions().await.unwrap();
        let others: Vec<_> = sessions.into_iter().filter(|id| *id != observer).collect();
        assert!(world.embedded().faults().expire(others[ended % others.len()]).await.unwrap());
    }
    work.wait_for_updates(30).await;
    work.done().await;
    world.queued(0).await;
}
