//! Readers of one process that share one node.
//!
//! To the protocol, they are one reader, whose hold ends with the last of them. So nothing here decides who holds: this only
//! chooses who uses the hold of a reader.

use std::collections::BTreeMap;
use std::fmt;
use std::future::IntoFuture;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use lockkeeper_core::{Loss, Mode, Queue};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::ensemble::Watcher;
use crate::error::{AcquireError, ReleaseError, SessionError};
use crate::hold::account::Call;
use crate::hold::guard::Guard;
use crate::queue::acquire::Acquire;
use crate::wait::{cancelled, passed};

/// A lock for reading whose readers in this process share one node. Created by
/// [`Access::share`](crate::Access::share); clones share the node too.
///
/// The first reader enters the queue, for all who come until it is granted. A later reader joins them while at least one of them
/// reads, and while no other contender than readers is in the queue. Otherwise it enters the queue behind that contender.
/// When the last of them releases, the node is deleted. So a writer waits for the readers that came before it, as with
/// [`RwLock::read`](crate::RwLock::read), and for those that waited together with one of them.
///
/// # What changes
///
/// - All who share a node have the same token. It is greater than those of the writers before them.
/// - `show` and `why` name one reader for all of them.
/// - A request to release the lock ([`Admin::revoke`](crate::admin::Admin::revoke)), a break and a loss concern all of them.
///   [`Acquire::on_lost`] is called once for all.
/// - With [`Acquire::with_liveness`], a call of `alive` by any reader counts for all. So a reader that hangs is not noticed while
///   another one calls it.
/// - The options of the hold are the same for all: set them with [`SharedReads::with`].
///
/// # Cost
///
/// For the first reader, what [`Acquire`] costs. The next one costs a listing with a watch, and those after it nothing, until
/// a contender comes or leaves.
#[derive(Clone)]
pub struct SharedReads {
    seat: Arc<Seat>,
}

/// The one hold of all readers.
struct Seat {
    /// The request that each entry repeats.
    template: Acquire,
    state: Arc<Mutex<SeatState>>,
}

#[derive(Default)]
struct SeatState {
    /// The hold that readers use now.
    shared: Weak<Guard>,
    /// Resolves when the queue has changed since a listing showed nothing but readers. `None` if it may have changed.
    only_readers: Option<Watcher>,
    waiting: BTreeMap<u64, oneshot::Sender<Outcome>>,
    /// How many have waited.
    came: u64,
    /// Set while somebody waits. Cancelled when nobody does any more.
    abandoned: Option<CancellationToken>,
}

/// A use of the shared hold.
type Outcome = Result<Arc<Guard>, AcquireError>;

impl SeatState {
    /// The hold, if another reader may use it. One that can be trusted for less than a third of the session timeout is not used.
    fn usable(&self) -> Option<Arc<Guard>> {
        self.shared.upgrade().filter(|guard| guard.can_be_used_again())
    }

    /// The hold, if a reader may use it without another look at the queue.
    fn open(&mut self) -> Option<Arc<Guard>> {
        if self.only_readers.as_mut()?.now_or_never().is_some() {
            self.only_readers = None;
            return None;
        }
        self.usable()
    }

    /// Keeps a hold for the readers to come, for as long as somebody uses it.
    fn settle(&mut self, Found { guard, only_readers }: Found) -> Arc<Guard> {
        (self.shared, self.only_readers) = (Arc::downgrade(&guard), only_readers);
        guard
    }
}

impl SharedReads {
    pub(crate) fn new(template: Acquire) -> Self {
        SharedReads { seat: Arc::new(Seat { template, state: Arc::default() }) }
    }

    /// Sets options. Those of the hold count for all readers that share it. A timeout or a cancellation counts for each reader.
    ///
    /// The result shares nothing with `self`.
    pub fn with(&self, options: impl FnOnce(Acquire) -> Acquire) -> Self {
        SharedReads::new(options(self.seat.template.again(false)))
    }

    /// Acquires the lock and waits until it is granted.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the others where they are. If nobody else waits, it leaves the queue.
    ///
    /// # Errors
    ///
    /// As an [`Acquire`], but [`AcquireError::Timeout`] names neither the holder nor a position.
    pub async fn acquire(&self) -> Result<SharedReadGuard, AcquireError> {
        let started = self.seat.template.context().clock().instant();
        let path = self.seat.template.path()?;
        let (timeout, cancel) = self.seat.template.limits();
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return self.try_acquire().await;
        }
        let call = self.call(&path);
        let mut place = match self.seat.come() {
            Ok(guard) => return self.ended(call, Ok(guard)),
            Err(place) => place,
        };
        let context = self.seat.template.context().clone();
        let waits = async move {
            let deadline = timeout.and_then(|timeout| started.checked_add(timeout));
            tokio::select! {
                biased;
                () = cancelled(cancel.as_ref()) => Err(AcquireError::Cancelled { path }),
                outcome = &mut place.outcome => outcome.unwrap_or_else(|_| Err(SessionError::Closed.into())),
                () = passed(deadline) => {
                    Err(place.seat.timed_out(path, timeout.unwrap_or_default()))
                }
            }
        };
        // The timers need the library's runtime; the caller may have any.
        let outcome = context.run(waits).await;
        self.ended(call, outcome)
    }

    /// Acquires the lock if others of this process read, or if no contender ahead blocks it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Held`] if readers of this process wait, or if a contender ahead blocks it; otherwise as an [`Acquire`].
    pub async fn try_acquire(&self) -> Result<SharedReadGuard, AcquireError> {
        let seat = &self.seat;
        let path = seat.template.path()?;
        let call = self.call(&path);
        let (open, waited_for) = {
            let mut state = seat.state();
            (state.open(), !state.waiting.is_empty())
        };
        if let Some(guard) = open {
            return self.ended(call, Ok(guard));
        }
        if waited_for {
            return self.ended(call, Err(AcquireError::Held { path, holder: None, ahead: None }));
        }
        let found = seat.attempt(Handle::try_current().ok(), true).await;
        // The report may call the program's own code, so the mutex must be free.
        let outcome = found.map(|found| seat.state().settle(found));
        self.ended(call, outcome)
    }

    /// Calls [`SharedReads::acquire`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`SharedReads::acquire`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn acquire_blocking(&self) -> Result<SharedReadGuard, AcquireError> {
        self.seat.template.context().io().block_on(self.acquire())
    }

    fn call(&self, path: &str) -> Call {
        Call::begin(path.to_owned(), self.seat.template.meter())
    }

    fn ended(&self, call: Call, outcome: Outcome) -> Result<SharedReadGuard, AcquireError> {
        let guard = call.end(outcome, |guard| guard)?;
        Ok(SharedReadGuard { guard, state: self.seat.state.clone() })
    }
}

/// A hold that was found or acquired for readers.
struct Found {
    guard: Arc<Guard>,
    /// Resolves when the queue changes, if it is known to have nothing but readers.
    only_readers: Option<Watcher>,
}

impl Seat {
    fn state(&self) -> MutexGuard<'_, SeatState> {
        self.state.lock().expect("held for a change only")
    }

    /// Takes the hold if that is possible now; otherwise the caller waits.
    fn come(self: &Arc<Self>) -> Result<Arc<Guard>, Place> {
        let mut state = self.state();
        if let Some(guard) = state.open() {
            return Ok(guard);
        }
        let (sender, outcome) = oneshot::channel();
        let key = state.came;
        state.came += 1;
        state.waiting.insert(key, sender);
        if state.abandoned.is_none() {
            let abandoned = CancellationToken::new();
            state.abandoned = Some(abandoned.clone());
            let (seat, runtime) = (self.clone(), Handle::try_current().ok());
            self.template.context().spawn(async move {
                tokio::select! {
                    biased;
                    () = abandoned.cancelled() => {}
                    outcome = seat.attempt(runtime, false) => seat.serve(outcome, &abandoned),
                }
            });
        }
        Err(Place { seat: self.clone(), key, outcome })
    }

    /// Finds a hold for a reader: the present one if only readers are in the queue, otherwise another one.
    async fn attempt(&self, runtime: Option<Handle>, once: bool) -> Result<Found, AcquireError> {
        if let Some(only_readers) = self.look().await
            && let Some(guard) = self.state().usable()
        {
            return Ok(Found { guard, only_readers: Some(only_readers) });
        }
        let acquiring = {
            let _runtime = runtime.as_ref().map(Handle::enter);
            self.template.again(false).for_others(once).into_future()
        };
        Ok(Found { guard: Arc::new(acquiring.await?), only_readers: None })
    }

    /// Lists the queue if there is a hold. Returns the watch on the queue if it has nothing but readers.
    async fn look(&self) -> Option<Watcher> {
        let (ensemble, path, node) = {
            // The hold must be able to end meanwhile. Under the mutex, so that a reader that ends knows whether it is the last.
            let state = self.state();
            let guard = state.usable()?;
            (guard.session().ensemble()?, guard.path().to_owned(), guard.node())
        };
        let listing = ensemble.list_and_watch(&path);
        drop(ensemble);
        let (names, changed) = listing.await.ok()?;
        let queue = Queue::read(self.template.node_format()?, &names);
        let own = node.rsplit('/').next()?;
        let only_readers = queue.entries().iter().all(|entry| entry.mode == Mode::Read);
        (only_readers && queue.position(own).is_some()).then_some(changed)
    }

    /// Gives all that wait what was found for them. Nobody waits any more if it is `abandoned`.
    fn serve(&self, outcome: Result<Found, AcquireError>, abandoned: &CancellationToken) {
        let (outcome, waiting) = {
            let mut state = self.state();
            if abandoned.is_cancelled() {
                return;
            }
            state.abandoned = None;
            (outcome.map(|found| state.settle(found)), std::mem::take(&mut state.waiting))
        };
        // When the first reader is notified, only the readers have the hold.
        let outcomes: Vec<_> = waiting.into_values().map(|waiting| (waiting, outcome.clone())).collect();
        drop(outcome);
        for (waiting, outcome) in outcomes {
            _ = waiting.send(outcome);
        }
    }

    /// The error of a reader whose time is over.
    fn timed_out(&self, path: String, waited: Duration) -> AcquireError {
        let context = self.template.context();
        let connected = context.ready_session().is_some_and(|(session, _)| session.link().borrow().connected);
        if connected {
            return AcquireError::Timeout { path, waited, holder: None, ahead: None };
        }
        let (servers, detail) = (context.servers().to_string(), "there is no connection".to_owned());
        SessionError::Unreachable { servers, waited, detail }.into()
    }
}

/// A reader that waits.
struct Place {
    seat: Arc<Seat>,
    key: u64,
    outcome: oneshot::Receiver<Outcome>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.seat.state();
        state.waiting.remove(&self.key);
        if state.waiting.is_empty()
            && let Some(abandoned) = state.abandoned.take()
        {
            abandoned.cancel();
        }
    }
}

impl fmt::Debug for SharedReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.seat.state().waiting.len();
        f.debug_struct("SharedReads").field("template", &self.seat.template).field("waiting", &waiting).finish()
    }
}

/// One reader of [`SharedReads`]. Dropping it ends its use. The last one that ends releases the lock in the background.
#[must_use = "the use ends at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct SharedReadGuard {
    guard: Arc<Guard>,
    /// Locked by those who look at the hold without reading.
    state: Arc<Mutex<SeatState>>,
}

impl fmt::Debug for SharedReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedReadGuard").field(&self.guard).finish()
    }
}

impl SharedReadGuard {
    /// Ends the use. The last one that ends releases the lock and waits until the server confirms it.
    ///
    /// # Cost
    ///
    /// No request while others of this process read, otherwise one round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// As [`Holding::release`](crate::Holding::release).
    pub async fn release(self) -> Result<(), ReleaseError> {
        let SharedReadGuard { guard, state } = self;
        let hold = guard.hold().clone();
        let last = {
            let _nobody_looks = state.lock().expect("held for a change only");
            Arc::into_inner(guard)
        };
        match last {
            Some(guard) => guard.release().await,
            None if hold.judge() => Err(ReleaseError::NotHeld { loss: hold.loss().unwrap_or(Loss::Closed) }),
            None => Ok(()),
        }
    }

    /// Calls [`SharedReadGuard::release`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`SharedReadGuard::release`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn release_blocking(self) -> Result<(), ReleaseError> {
        let session = self.session();
        session.block_on(self.release())
    }
}

impl Deref for SharedReadGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}
