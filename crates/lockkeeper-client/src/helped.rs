//! A task that another thread can continue for a moment.
//!
//! The runtime's thread runs the task. A thread that wants the task's next step without a switch of threads runs it
//! itself. The mutex lets one thread run the task at a time. The runtime's thread never waits for it: a helper wakes the
//! task when it has finished.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::coop::unconstrained;

/// How long a helper waits for the thread that runs the task at the moment.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often a helper looks again without a pause.
const SPINS: u32 = 100;
/// The pause after that.
const PAUSE: Duration = Duration::from_micros(50);
/// How often a helper polls the task. A task that yields is polled again.
const ROUNDS: usize = 3;

thread_local! {
    /// The task that this thread runs.
    static CURRENT: RefCell<Option<HelpedTask>> = const { RefCell::new(None) };
}

/// A task that another thread can continue for a moment. Clones are the same task.
#[derive(Clone)]
pub struct HelpedTask {
    shared: Arc<Shared>,
}

/// The future of a task; `None` when it has ended.
type Slot = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

struct Shared {
    runtime: Handle,
    future: Mutex<Slot>,
    /// Wakes the task on the runtime.
    waker: Mutex<Option<Waker>>,
    /// Whether the runtime's thread has found the future locked.
    missed: AtomicBool,
}

impl HelpedTask {
    /// Creates a task that is to run on this runtime. It does nothing until the future of [`HelpedTask::run`] is spawned
    /// there.
    pub fn new(runtime: Handle, future: impl Future<Output = ()> + Send + 'static) -> HelpedTask {
        HelpedTask {
            shared: Arc::new(Shared {
                runtime,
                future: Mutex::new(Some(Box::pin(future))),
                waker: Mutex::new(None),
                missed: AtomicBool::new(false),
            }),
        }
    }

    /// Returns the task that runs on this thread at the moment, if it is a helped one.
    pub fn current() -> Option<HelpedTask> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    /// Returns the future that runs the task. Dropping it ends the task. One call for each task.
    pub fn run(&self) -> impl Future<Output = ()> + Send + use<> {
        let running = Running(self.clone());
        poll_fn(move |context| running.0.poll_as_its_runtime(context))
    }

    /// Runs the task on this thread until it waits, and at most until `is_done`.
    ///
    /// Waits for another thread that runs the task at this moment, but no longer than 100 ms. Does nothing on a thread that
    /// runs a helped task, on a thread whose local values are being destroyed, and before the runtime has begun the task.
    /// Returns whether `is_done` said so.
    pub fn help(&self, mut is_done: impl FnMut() -> bool) -> bool {
        let is_alone = CURRENT.try_with(|current| current.borrow().is_none()).unwrap_or(false);
        let has_context = Handle::try_current().map_or_else(|error| error.is_missing_context(), |_| true);
        let waker = unpoisoned(self.shared.waker.lock()).clone().filter(|_| is_alone && has_context);
        let Some(waker) = waker else { return false };
        let mut done = false;
        {
            let Some(mut future) = self.lock_in_time() else { return false };
            let _entered = self.shared.runtime.enter();
            let mut context = Context::from_waker(&waker);
            for _ in 0..ROUNDS {
                // The budget of this thread's own task is not for this one.
                let round = pin!(unconstrained(poll_fn(|context| self.poll(&mut future, context))));
                let ended = round.poll(&mut context).is_ready();
                done = !ended && is_done();
                if ended || done {
                    break;
                }
            }
        }
        // A task that is not done may have yielded, and the wake for that may be in the queue of this thread's own task.
        if self.shared.missed.swap(false, Ordering::SeqCst) || !done {
            waker.wake();
        }
        done
    }

    fn poll_as_its_runtime(&self, context: &mut Context<'_>) -> Poll<()> {
        {
            let mut waker = unpoisoned(self.shared.waker.lock());
            if waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
        }
        let future = self.try_lock().or_else(|| {
            // The helper looks at this after it has unlocked the mutex, and wakes the task.
            self.shared.missed.store(true, Ordering::SeqCst);
            self.try_lock()
        });
        match future {
            Some(mut future) => self.poll(&mut future, context),
            None => Poll::Pending,
        }
    }

    /// Polls the future, which is dropped when it has ended or panics.
    fn poll(&self, slot: &mut Slot, context: &mut Context<'_>) -> Poll<()> {
        // Dropped last: what the task drops may want to help it.
        let _current = Current::set(self.clone());
        let Some(mut future) = slot.take() else { return Poll::Ready(()) };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            *slot = Some(future);
        }
        polled
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Slot>> {
        match self.shared.future.try_lock() {
            Ok(future) => Some(future),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock_in_time(&self) -> Option<MutexGuard<'_, Slot>> {
        let mut began = None;
        for look in 0.. {
            if let Some(future) = self.try_lock() {
                return Some(future);
            }
            if began.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                break;
            }
            if look < SPINS { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
        }
        None
    }
}

/// The runtime's side of a task. If it is dropped, for example with its runtime, the task ends.
struct Running(HelpedTask);

impl Drop for Running {
    fn drop(&mut self) {
        let future = unpoisoned(self.0.shared.future.lock()).take();
        // The mutex is free here, because what the task drops may call back.
        drop(future);
    }
}

/// Names the task that this thread runs, until it is dropped.
struct Current(Option<HelpedTask>);

impl Current {
    fn set(task: HelpedTask) -> Current {
        Current(CURRENT.try_with(|current| current.replace(Some(task))).ok().flatten())
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let before = self.0.take();
        _ = CURRENT.try_with(|current| current.replace(before));
    }
}

fn unpoisoned<T>(locked: Result<T, PoisonError<T>>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::mpsc;

    use super::*;

    /// A task that counts what it receives, on a runtime that has begun it and that no thread drives.
    fn counting() -> (tokio::runtime::Runtime, HelpedTask, mpsc::UnboundedSender<()>, Arc<AtomicUsize>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let count = Arc::<AtomicUsize>::default();
        let counted = count.clone();
        let task = HelpedTask::new(runtime.handle().clone(), async move {
            while let Some(()) = receiver.recv().await {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                tokio::time::sleep(Duration::ZERO).await;
            }
        });
        runtime.spawn(task.run());
        runtime.block_on(tokio::task::yield_now());
        (runtime, task, sender, count)
    }

    #[test]
    fn a_helper_runs_the_task_while_its_runtime_stands_still() {
        let (runtime, task, sender, count) = counting();
        sender.send(()).unwrap();
        task.help(|| true);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop(sender);
        task.help(|| false);
        // It has ended, and its runtime learns of it.
        runtime.block_on(async {
            while task.shared.future.lock().unwrap().is_some() {
                tokio::task::yield_now().await;
            }
        });
        task.help(|| unreachable!("the task has ended"));
    }

    #[test]
    fn a_helper_that_comes_while_the_task_runs_does_its_own_part_later() {
        let (_runtime, task, sender, count) = counting();
        let held = task.shared.future.lock().unwrap();
        let helper = std::thread::spawn({
            let task = task.clone();
            move || task.help(|| true)
        });
        sender.send(()).unwrap();
        drop(held);
        helper.join().unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    /// A guard that its task drops wants to help the same task.
    #[test]
    fn a_task_does_not_help_itself() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let task = HelpedTask::new(runtime.handle().clone(), async {
            let (task, began) = (HelpedTask::current().unwrap(), Instant::now());
            task.help(|| unreachable!("it runs already"));
            assert!(began.elapsed() < PATIENCE, "it has waited for itself");
        });
        runtime.block_on(task.run());
        assert!(HelpedTask::current().is_none());
    }

    #[test]
    fn a_task_ends_with_its_runtime_while_handles_of_it_exist() {
        let (runtime, task, sender, _) = counting();
        drop(runtime);
        assert!(sender.is_closed());
        task.help(|| unreachable!("the task has ended"));
    }
}
