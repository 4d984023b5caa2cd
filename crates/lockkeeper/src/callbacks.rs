//! The threads that run the program's callbacks: for lost holds, and for requests that join their queues again.
//!
//! A callback may block, so none runs on a thread that the library needs. A session that expires with 10 000 waiters calls 10 000
//! callbacks at once, so their threads are limited. A callback that blocks keeps one of them. The first thread is started with the
//! first request that has a callback and stays, so a loss does not depend on a new thread.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard};

use once_cell::race::OnceBox;

use lockkeeper_session::process::Process;

/// The maximum number of callbacks that run at once.
pub(crate) const MAX_THREADS: usize = 16;

type Callback = Box<dyn FnOnce() + Send>;

/// Starts a thread that runs this.
type Start = fn(Box<dyn FnOnce() + Send>) -> std::io::Result<()>;

/// The callbacks of the first process that has some.
static CALLBACKS: OnceBox<OfProcess> = OnceBox::new();

/// The callbacks of one process. A forked child has a copy, but neither the threads nor, if it was locked at the fork, the mutex. So
/// it leaves the copy alone and adds its own.
struct OfProcess {
    process: Process,
    callbacks: Callbacks,
    /// Those of a forked child.
    child: OnceBox<OfProcess>,
}

/// Callbacks that wait for a thread, and their threads.
struct Callbacks {
    start: Start,
    pool: Mutex<Pool>,
    work: Condvar,
}

/// The callbacks that wait, and the threads that run them.
struct Pool {
    waiting: VecDeque<Callback>,
    threads: usize,
    /// The thread that stays has nothing to do.
    is_idle: bool,
}

/// Makes sure that a thread for callbacks exists.
pub(crate) fn prepare() {
    of_this_process().prepare();
}

/// Runs a callback soon, on a thread of its own or behind [`MAX_THREADS`] others. Never blocks.
pub(crate) fn run(callback: impl FnOnce() + Send + 'static) {
    of_this_process().run(Box::new(callback));
}

/// Never blocks: it takes no lock.
fn of_this_process() -> &'static Callbacks {
    let process = Process::current();
    let start: Start = |run| std::thread::Builder::new().name("lockkeeper-callback".to_owned()).spawn(run).map(drop);
    let mut place = &CALLBACKS;
    loop {
        let found = place
            .get_or_init(|| Box::new(OfProcess { process, callbacks: Callbacks::new(start), child: OnceBox::new() }));
        if found.process == process {
            return &found.callbacks;
        }
        place = &found.child;
    }
}

impl Callbacks {
    fn new(start: Start) -> Self {
        let pool = Pool { waiting: VecDeque::new(), threads: 0, is_idle: false };
        Callbacks { start, pool: Mutex::new(pool), work: Condvar::new() }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().expect("held for a change only")
    }

    fn prepare(&'static self) {
        let mut pool = self.pool();
        let failed = if pool.threads == 0 { self.add_thread(&mut pool).err() } else { None };
        drop(pool);
        if let Some(error) = failed {
            tracing::error!(%error, "cannot create a thread for callbacks; the next callback tries again");
        }
    }

    fn run(&'static self, callback: Callback) {
        let mut pool = self.pool();
        pool.waiting.push_back(callback);
        if std::mem::take(&mut pool.is_idle) {
            self.work.notify_one();
        } else if pool.threads < MAX_THREADS {
            // If that fails, the callback waits for another thread, or for the next attempt if there is none. No log: this may be
            // the watchdog's thread.
            _ = self.add_thread(&mut pool);
        }
    }

    fn add_thread(&'static self, pool: &mut Pool) -> std::io::Result<()> {
        let stays = pool.threads == 0;
        (self.start)(Box::new(move || self.work(stays)))?;
        pool.threads += 1;
        Ok(())
    }

    /// Runs what waits, until nothing waits; then a thread that `stays` waits for more.
    fn work(&self, stays: bool) {
        let mut pool = self.pool();
        loop {
            if let Some(callback) = pool.waiting.pop_front() {
                drop(pool);
                // The panic hook has reported it; the other callbacks are not concerned.
                _ = catch_unwind(AssertUnwindSafe(callback));
                pool = self.pool();
            } else if stays {
                // Each turn of the wait: another thread may have taken the callback that woke this one.
                pool.is_idle = true;
                pool = self.work.wait(pool).expect("held for a change only");
                pool.is_idle = false;
            } else {
                pool.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread::ThreadId;
    use std::time::{Duration, Instant};

    use super::*;

    fn spawned(run: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        std::thread::Builder::new().spawn(run).map(drop)
    }

    #[test]
    fn ten_thousand_callbacks_run_on_a_few_threads_although_some_block_and_one_panics() {
        const ALL: usize = 10_000;
        let callbacks: &'static Callbacks = Box::leak(Box::new(Callbacks::new(spawned)));
        let (report, reports) = mpsc::channel::<ThreadId>();
        let (unblock, blocked) = mpsc::channel::<()>();
        let blocked = std::sync::Arc::new(Mutex::new(blocked));
        for _ in 0..MAX_THREADS - 1 {
            let blocked = blocked.clone();
            callbacks.run(Box::new(move || _ = blocked.lock().map(|blocked| blocked.recv())));
        }
        callbacks.run(Box::new(|| std::panic::resume_unwind(Box::new("a callback panics"))));
        for _ in 0..ALL {
            let report = report.clone();
            callbacks.run(Box::new(move || _ = report.send(std::thread::current().id())));
            assert!(callbacks.pool().threads <= MAX_THREADS);
        }
        let threads: HashSet<_> = reports.iter().take(ALL).collect();
        // One of them at a time: the others are blocked.
        assert!(!threads.is_empty());
        drop(unblock);
        callbacks.run(Box::new(move || _ = report.send(std::thread::current().id())));
        reports.recv().expect("the threads go on");
    }

    #[cfg(unix)]
    #[test]
    fn a_forked_child_runs_its_callbacks_although_its_parents_were_locked_at_the_fork() {
        let locked = of_this_process().pool();
        let child = match fork::fork().unwrap() {
            fork::Fork::Child => {
                let (report, reports) = mpsc::channel();
                prepare();
                run(move || _ = report.send(()));
                std::process::exit(i32::from(reports.recv_timeout(Duration::from_secs(30)).is_err()));
            }
            fork::Fork::Parent(child) => child,
        };
        drop(locked);
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            match fork::waitpid_nohang(child).unwrap() {
                Some(status) => break status,
                None if Instant::now() < deadline => std::thread::yield_now(),
                None => {
                    let child = rustix::process::Pid::from_raw(child).unwrap();
                    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
                    panic!("the child hangs");
                }
            }
        };
        assert_eq!(status, 0);
    }

    #[test]
    fn the_thread_that_stays_can_be_woken_again_after_another_one_took_its_callback() {
        static STARTS: AtomicUsize = AtomicUsize::new(0);
        let once: Start = |run| match STARTS.fetch_add(1, Ordering::Relaxed) {
            0 => spawned(run),
            _ => Err(std::io::Error::other("no more threads")),
        };
        let callbacks: &'static Callbacks = Box::leak(Box::new(Callbacks::new(once)));
        let (report, reports) = mpsc::channel::<()>();
        let idle = || {
            while !callbacks.pool().is_idle {
                std::thread::yield_now();
            }
        };
        callbacks.prepare();
        idle();
        // As `run` wakes it, when another thread is quicker.
        callbacks.pool().is_idle = false;
        callbacks.work.notify_one();
        idle();
        callbacks.run(Box::new(move || _ = report.send(())));
        reports.recv().unwrap();
    }

    #[test]
    fn a_callback_whose_thread_cannot_be_created_runs_on_another_one() {
        static STARTS: AtomicUsize = AtomicUsize::new(0);
        let once: Start = |run| match STARTS.fetch_add(1, Ordering::Relaxed) {
            0 | 2.. => Err(std::io::Error::other("no more threads")),
            _ => spawned(run),
        };
        let callbacks: &'static Callbacks = Box::leak(Box::new(Callbacks::new(once)));
        let (report, reports) = mpsc::channel::<usize>();
        for number in 0..100 {
            let report = report.clone();
            callbacks.run(Box::new(move || _ = report.send(number)));
        }
        let mut ran: Vec<_> = reports.iter().take(100).collect();
        ran.sort_unstable();
        assert!(ran.into_iter().eq(0..100));
    }
}
