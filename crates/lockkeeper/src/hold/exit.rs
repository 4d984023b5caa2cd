//! What a process waits for when it exits: the releases that were left to the library's thread.
//!
//! The drop of a guard wakes the task of its hold and returns. A process may end right after, by a return from `main` or by `exit`. The
//! C library then calls [`wait`] while all threads still run, and it blocks until these tasks have ended. A task ends when a server has
//! confirmed the delete: a delete that was only sent may be part of a transaction that the server does not carry out.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long a process that exits waits. A lock that is not released by then is free at the end of the session.
const PATIENCE: Duration = Duration::from_millis(100);

/// How many tasks have yet to release a hold whose guard was dropped, in the lower half, and the id of the process that has them, in the
/// upper half: a forked child has none of them.
static LEAVING: AtomicU64 = AtomicU64::new(0);

/// Whether the process exits. Until then, the end of a task takes no lock.
static EXITS: AtomicBool = AtomicBool::new(false);
static EXIT: Mutex<()> = Mutex::new(());
static NONE_LEFT: Condvar = Condvar::new();

/// Makes the process wait when it exits.
pub(crate) fn prepare() {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if !PREPARED.swap(true, Ordering::SeqCst) && !shutdown_hooks::add_shutdown_hook(wait) {
        tracing::warn!("the process will not wait at its exit for the locks whose guards were dropped");
    }
}

/// Uses nothing that is local to the thread, because that may be destroyed, and does not panic. If a waker of the user calls `exit` on
/// the library's own thread, nothing ends these tasks: it waits for the whole time.
extern "C" fn wait() {
    let is_leaving = |_: &mut ()| count_of(std::process::id(), LEAVING.load(Ordering::SeqCst)) > 0;
    if is_leaving(&mut ()) {
        EXITS.store(true, Ordering::SeqCst);
        let exit = EXIT.lock().unwrap_or_else(PoisonError::into_inner);
        _ = NONE_LEFT.wait_timeout_while(exit, PATIENCE, is_leaving);
    }
}

fn count_of(process: u32, leaving: u64) -> u64 {
    if leaving >> 32 == u64::from(process) { leaving & u64::from(u32::MAX) } else { 0 }
}

fn one_more() {
    let process = std::process::id();
    let add = |leaving| Some(u64::from(process) << 32 | (count_of(process, leaving) + 1));
    _ = LEAVING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
}

/// In the process that has counted it: a forked child runs no task of its parent.
fn one_less() {
    let before = LEAVING.fetch_sub(1, Ordering::SeqCst);
    if before & u64::from(u32::MAX) == 1 && EXITS.load(Ordering::SeqCst) {
        drop(EXIT.lock().unwrap_or_else(PoisonError::into_inner));
        NONE_LEFT.notify_all();
    }
}

/// The stages of a [`Departure`]: no task releases the hold, a task does while it lives, and it does for a guard that was dropped.
const NOBODY: u8 = 0;
const TASK: u8 = 1;
const LEAVES: u8 = 2;

/// Whether the task of a hold has yet to release it for a guard that was dropped.
#[derive(Debug, Default)]
pub(crate) struct Departure(Arc<AtomicU8>);

impl Departure {
    /// Returns what the task of the hold keeps until it ends.
    pub(crate) fn task(&self) -> Leaving {
        self.0.store(TASK, Ordering::SeqCst);
        Leaving(self.0.clone())
    }

    /// The guard is dropped: if the process exits before the task has ended, it waits for that. Neither waits nor allocates.
    pub(crate) fn begin(&self) {
        // Before the task can end, which subtracts it.
        one_more();
        if self.0.compare_exchange(TASK, LEAVES, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            one_less();
        }
    }
}

/// Dropped at the end of the task that releases a hold.
#[derive(Debug)]
pub struct Leaving(Arc<AtomicU8>);

impl Drop for Leaving {
    fn drop(&mut self) {
        if self.0.swap(NOBODY, Ordering::SeqCst) == LEAVES {
            one_less();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use futures_util::FutureExt;
    use lockkeeper_server::{Config, Server};

    use super::*;
    use crate::Lockkeeper;

    /// Set only for the child process.
    const SERVER: &str = "LOCKKEEPER_TEST_LEAVING";

    #[test]
    fn a_forked_child_has_none_of_its_parents_releases() {
        let leaving = 7 << 32 | 3;
        assert_eq!((count_of(7, leaving), count_of(8, leaving)), (3, 0));
    }

    /// Otherwise each exit of such a process would wait for the whole time.
    fn is_over(way: &str) {
        let began = Instant::now();
        while count_of(std::process::id(), LEAVING.load(Ordering::SeqCst)) > 0 {
            assert!(began.elapsed() < Duration::from_secs(30), "{way}: counted although it has ended");
            std::thread::yield_now();
        }
    }

    /// Not a test: a process of its own, in which no other test drops guards.
    #[tokio::test]
    async fn child() {
        let Ok(server) = std::env::var(SERVER) else { return };
        let keeper = Lockkeeper::connect(&server).await.unwrap();
        let lock = keeper.mutex("/locks/leaving");
        let acquire = async || lock.acquire().await.unwrap();
        drop(acquire().await);
        is_over("a drop");
        acquire().await.release().await.unwrap();
        is_over("a release");
        _ = acquire().await.release().now_or_never();
        is_over("a release whose future is dropped");

        let guard = acquire().await;
        keeper.admin().break_lock("/locks/leaving", "a test").await.unwrap();
        guard.lost().await;
        drop(guard);
        is_over("a loss");

        let kept = lock.keep();
        drop(kept.acquire().await.unwrap());
        is_over("a use of a kept lock");
        drop(kept);
        is_over("a kept lock");

        let lock = keeper.priority_lock("/locks/yielded");
        let guard = lock.background().acquire().min_hold(Duration::ZERO).await.unwrap();
        let makes_way = tokio::spawn(async {
            guard.yield_requested().await;
            guard.yield_lock().await
        });
        let earlier = lock.foreground().acquire().await;
        is_over("a hold that waits for its next grant");
        drop(earlier.unwrap());
        drop(makes_way.await.unwrap().unwrap());
        is_over("a hold that has made way");

        let guard = acquire().await;
        keeper.close().await;
        drop(guard);
        is_over("a closed session");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_process_whose_holds_have_ended_does_not_wait_when_it_exits() {
        let server = Server::start(Config::default()).await.unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["hold::exit::tests::child", "--exact", "--nocapture"]).env(SERVER, server.connect_string());
        let output = tokio::task::spawn_blocking(move || child.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
