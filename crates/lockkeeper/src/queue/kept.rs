//! An exclusive lock that a process keeps between two uses, until another contender comes.
//!
//! To the protocol, it is one hold. So nothing here decides who holds: this only chooses when the hold is released. (Chubby's
//! clients keep locks in the same way: Burrows, "The Chubby lock service", section 3.)

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use lockkeeper_core::{FencingToken, Loss, NodeFormat};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::ensemble::{Ensemble, Fired};
use crate::error::{AcquireError, Misuse, ReleaseError};
use crate::hold::account::Call;
use crate::hold::guard::Guard;
use crate::queue::acquire::{Acquire, Kind};
use crate::session::context::Context;
use crate::wait::{cancelled, or_never};

/// An exclusive lock that this process keeps after a use, until another contender comes. Created by [`Mutex::keep`](crate::Mutex::keep); clones
/// share the lock.
///
/// The first use acquires the lock as [`Mutex::acquire`](crate::Mutex::acquire) does. The following ones take it again without a
/// request. When another contender enters the queue, the lock is released: immediately if it is not in use, otherwise at the end
/// of that use. The next use here then enters the queue behind that contender. So no contender waits for longer than one use,
/// plus one round trip.
///
/// The uses of one `KeptLock` come in the order of their calls. Only one of them at a time enters the queue, for all of them. If
/// several processes want the lock, they take turns, whatever the number of their tasks.
///
/// # What changes
///
/// - The token is that of the whole time for which the lock is kept. A resource cannot distinguish two uses by it. It
///   still refuses what a former holder sends after the next one.
/// - `show` and `why` name this process as the holder, also between two uses.
/// - A request to release the lock ([`Admin::revoke`](crate::admin::Admin::revoke)) ends the keeping, as another contender does.
///   Breaking the lock ends the keeping immediately; the next use acquires the lock again.
/// - [`Acquire::with_liveness`] counts during a use, from its begin. Between two uses, no work runs that could call `alive`.
/// - The hold lasts as long as its session. After a loss, the next use acquires the lock again.
/// - A contender that only tries is refused while the lock is kept, and its try ends the keeping.
/// - A use that drops the future of a [fenced write](crate::fenced::FencedWrite) which is under way, or does not learn its result,
///   ends the keeping. So the write takes effect before the next use or not at all.
///
/// # Cost
///
/// The first use costs one listing more than [`Mutex::acquire`](crate::Mutex::acquire), with a watch. The following ones cost no request. While the lock
/// is kept, the session sends heartbeats, as for every hold.
#[derive(Clone)]
pub struct KeptLock {
    context: Context,
    kind: Result<Kind, AcquireError>,
    turn: Arc<Turn<Option<KeptHold>>>,
}

/// The time for which the lock is kept.
struct KeptHold {
    guard: Guard,
    /// Another contender, or a request to release the lock, has come.
    wanted: CancellationToken,
    /// Ends the task that looks for those.
    _watch: DropGuard,
}

impl KeptHold {
    /// Whether the hold can be used again. Not if a fenced write of a use may still take effect: the release is ordered
    /// behind it.
    fn is_kept(&self) -> bool {
        let hold = self.guard.hold();
        !self.wanted.is_cancelled() && self.guard.can_be_used_again() && !hold.may_still_write()
    }
}

impl KeptLock {
    pub(crate) fn new(context: Context, kind: Result<Kind, AcquireError>) -> Self {
        KeptLock { context, kind, turn: Arc::default() }
    }

    fn request(&self, once: bool) -> Acquire {
        Acquire::new(self.context.clone(), self.kind.clone(), once, Guard::of)
    }

    /// Acquires the lock and waits until it is granted. Without a round trip if the lock is kept and not in use.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue; a kept lock stays kept.
    ///
    /// # Errors
    ///
    /// As an [`Acquire`]; [`AcquireError::Misuse`] in the node format [`NodeFormat::Numbered`], whose nodes are beside those of
    /// other locks.
    pub async fn acquire(&self) -> Result<KeptGuard, AcquireError> {
        self.acquire_with(|request| request).await
    }

    /// Acquires the lock with the options of an [`Acquire`]. They count for the attempt, and those for the hold, such as
    /// [`on_lost`](Acquire::on_lost), for as long as the lock is kept. A timeout includes the wait for other uses of this lock.
    ///
    /// # Cancel safety
    ///
    /// As [`KeptLock::acquire`].
    ///
    /// # Errors
    ///
    /// As [`KeptLock::acquire`], and those of the options.
    pub async fn acquire_with(&self, options: impl FnOnce(Acquire) -> Acquire) -> Result<KeptGuard, AcquireError> {
        let started = self.context.clock().instant();
        // In a forked child, the turn may be one of the parent's uses, which never ends here.
        self.context.check_process()?;
        if let Some(guard) = self.kept() {
            return Ok(guard);
        }
        let request = options(self.request(false));
        let path = self.path(&request)?;
        let call = Call::begin(path.clone(), request.meter());
        let outcome = self.acquire_in_turn(request.reported_by_the_caller(), path, started).await;
        call.end(outcome, |kept| kept)
    }

    /// Waits for other uses of this object, then acquires.
    async fn acquire_in_turn(
        &self,
        mut request: Acquire,
        path: String,
        started: Instant,
    ) -> Result<KeptGuard, AcquireError> {
        let (timeout, cancel) = request.limits();
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return self.acquire_now(request, path).await;
        }
        let deadline = timeout.and_then(|timeout| started.checked_add(timeout));
        let turn = tokio::select! {
            biased;
            () = cancelled(cancel.as_ref()) => return Err(AcquireError::Cancelled { path }),
            turn = self.turn.clone().lock_owned() => turn,
            // On the library's thread: the caller's runtime may have no timers.
            () = or_never(timeout.map(|timeout| self.context.io().after(timeout))) => {
                let waited = timeout.unwrap_or_default();
                return Err(AcquireError::Timeout { path, waited, holder: None, ahead: None });
            }
        };
        if let Some((timeout, deadline)) = timeout.zip(deadline) {
            request = request.until(timeout, deadline);
        }
        self.fill(turn, request).await
    }

    /// Acquires the lock if it is kept and not in use, or if no contender holds it or is ahead.
    ///
    /// # Cancel safety
    ///
    /// As [`KeptLock::acquire`].
    ///
    /// # Errors
    ///
    /// [`AcquireError::Held`] if the lock is in use here, or if another contender holds it or is ahead; otherwise as
    /// [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    pub async fn try_acquire(&self) -> Result<KeptGuard, AcquireError> {
        self.context.check_process()?;
        let request = self.request(true);
        let path = self.path(&request)?;
        let call = Call::begin(path.clone(), request.meter());
        let outcome = self.acquire_now(request.reported_by_the_caller(), path).await;
        call.end(outcome, |kept| kept)
    }

    /// Calls [`KeptLock::acquire`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`KeptLock::acquire`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn acquire_blocking(&self) -> Result<KeptGuard, AcquireError> {
        self.context.io().block_on(self.acquire())
    }

    /// Releases the lock if it is kept, after the uses that were requested before, and waits until the server confirms it.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel a release that has begun.
    ///
    /// # Errors
    ///
    /// As [`Holding::release`](crate::Holding::release).
    pub async fn give_up(&self) -> Result<(), ReleaseError> {
        if self.context.check_process().is_err() {
            return Err(ReleaseError::NotHeld { loss: Loss::Forked });
        }
        match self.turn.lock().await.take() {
            Some(kept) => kept.guard.release().await,
            None => Ok(()),
        }
    }

    /// Returns whether the lock is kept and not in use: the next use takes it without a round trip. No round trip.
    pub fn is_kept(&self) -> bool {
        self.turn.try_lock().is_ok_and(|kept| kept.as_ref().is_some_and(KeptHold::is_kept))
    }

    /// The path, if the request is valid and the node format allows it.
    fn path(&self, request: &Acquire) -> Result<String, AcquireError> {
        let path = request.path()?;
        if let Ok(Kind { node_format, .. }) = &self.kind
            && node_format.is_beside()
        {
            let problem = format!("a lock in the node format {node_format:?} cannot be kept: {path}");
            let remedy = "use another node format, or acquire the lock for each use";
            return Err(Misuse::new("node format", problem).remedy(remedy).into());
        }
        Ok(path)
    }

    /// The kept lock, if it is not in use and no task waits for it.
    fn kept(&self) -> Option<KeptGuard> {
        let turn = self.turn.clone().try_lock_owned().ok()?;
        let kept = self.take_kept(turn).ok()?;
        let call = Call::begin(kept.path().to_owned(), kept.hold().meter());
        call.end::<_, AcquireError>(Ok(kept), |kept| kept).ok()
    }

    /// Uses the kept hold; returns the turn if there is none.
    fn take_kept(
        &self,
        turn: OwnedMutexGuard<Option<KeptHold>>,
    ) -> Result<KeptGuard, OwnedMutexGuard<Option<KeptHold>>> {
        let Some(kept) = turn.as_ref().filter(|kept| kept.is_kept()) else { return Err(turn) };
        kept.guard.hold().attend_again();
        Ok(KeptGuard { turn })
    }

    /// Acquires without waiting for other uses.
    async fn acquire_now(&self, request: Acquire, path: String) -> Result<KeptGuard, AcquireError> {
        match self.turn.clone().try_lock_owned() {
            Ok(turn) => self.fill(turn, request).await,
            Err(_) => Err(AcquireError::Held { path, holder: None, ahead: None }),
        }
    }

    /// Takes the kept hold, or acquires the lock.
    async fn fill(&self, turn: OwnedMutexGuard<Option<KeptHold>>, request: Acquire) -> Result<KeptGuard, AcquireError> {
        let mut turn = match self.take_kept(turn) {
            Ok(guard) => return Ok(guard),
            Err(turn) => turn,
        };
        // The release is sent before the next create, so that this process queues behind those that came meanwhile.
        drop(turn.take());
        let guard = request.await?;
        *turn = Some(self.keep(guard));
        Ok(KeptGuard { turn })
    }

    /// Begins to keep a hold.
    fn keep(&self, guard: Guard) -> KeptHold {
        let (wanted, watch) = (CancellationToken::new(), CancellationToken::new());
        let node_format = self.kind.as_ref().map_or(NodeFormat::Curator, |kind| kind.node_format);
        let come = others_come(guard.session().ensemble(), guard.path().to_owned(), guard.node(), node_format);
        let (hold, turn) = (guard.hold().clone(), Arc::downgrade(&self.turn));
        let (over, found, lost) = (watch.clone(), wanted.clone(), guard.cancelled_when_lost());
        self.context.spawn(async move {
            let mut asked = hold.asked.subscribe();
            tokio::select! {
                biased;
                () = over.cancelled() => return,
                () = lost.cancelled() => {}
                _ = asked.wait_for(Option::is_some) => {}
                () = come => {}
            }
            found.cancel();
            drop(hold);
            release_when_unused(&turn).await;
        });
        KeptHold { guard, wanted, _watch: watch.drop_guard() }
    }
}

/// Resolves when another contender enters the queue or leaves it. If that cannot be watched, immediately.
async fn others_come(ensemble: Option<Arc<dyn Ensemble>>, path: String, node: String, node_format: NodeFormat) {
    let Some(ensemble) = ensemble else { return };
    let listed = ensemble.list_and_watch(&path).await;
    // The session must be able to end.
    drop(ensemble);
    let own = node.rsplit('/').next();
    let others = |name: &String| Some(name.as_str()) != own && node_format.parse(name).is_some();
    if let Ok((names, changed)) = listed
        && !names.iter().any(others)
    {
        let _: Fired = changed.await;
    }
}

/// Releases the lock at the end of the current use, if it is not to be kept then.
async fn release_when_unused(turn: &Weak<Turn<Option<KeptHold>>>) {
    let Some(turn) = turn.upgrade() else { return };
    drop(turn.lock().await.take_if(|kept| !kept.is_kept()));
}

impl fmt::Debug for KeptLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptLock").field("kind", &self.kind).field("is_kept", &self.is_kept()).finish_non_exhaustive()
    }
}

/// One use of a [`KeptLock`]. Dropping it ends the use: the lock stays with this process, or is released in the background if
/// another contender has come.
#[must_use = "the use ends at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct KeptGuard {
    /// Has a kept hold until the guard is released or dropped.
    turn: OwnedMutexGuard<Option<KeptHold>>,
}

impl KeptGuard {
    fn kept_hold(&self) -> &KeptHold {
        self.turn.as_ref().expect("a use has a kept hold until it ends")
    }

    /// Returns the number to pass to the protected resource. It is the same for all uses between which the lock was kept.
    pub fn token(&self) -> FencingToken {
        self.kept_hold().guard.token()
    }

    /// Ends the use. If another contender has come, this releases the lock and waits until the server confirms it.
    ///
    /// # Cost
    ///
    /// No request if the lock is kept, otherwise one round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// As [`Holding::release`](crate::Holding::release).
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        self.kept_hold().guard.hold().attend_later();
        match self.turn.take_if(|kept| !kept.is_kept()) {
            Some(kept) => kept.guard.release().await,
            None => Ok(()),
        }
    }

    /// Calls [`KeptGuard::release`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`KeptGuard::release`].
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

impl Deref for KeptGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.kept_hold().guard
    }
}

impl Drop for KeptGuard {
    fn drop(&mut self) {
        if let Some(kept) = self.turn.as_ref() {
            kept.guard.hold().attend_later();
        }
        drop(self.turn.take_if(|kept| !kept.is_kept()));
    }
}

impl fmt::Debug for KeptGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptGuard").field(&self.turn.as_ref().map(|kept| &kept.guard)).finish()
    }
}
