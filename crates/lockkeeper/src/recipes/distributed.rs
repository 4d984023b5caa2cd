//! Locks as objects with `lock` and `unlock`, for code that is built that way: the guard is kept inside.

use std::sync::{Mutex, PoisonError};

use lockkeeper_core::{FencingToken, LockPath, Loss, PathError};

use crate::error::ReleaseError;
use crate::hold::guard::Guard;
use crate::queue::acquire::Acquire;
use crate::session::context::Context;
use crate::{Error, Mutex as ExclusiveLock};

/// The half that all such objects share: the guard of one that is locked, or none, and the handle it came by.
#[derive(Debug)]
pub(crate) struct Slot {
    context: Context,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    guard: Option<Guard>,
    /// A call to lock is under way.
    reserved: bool,
}

/// The right of one call to fill the slot, given back when that call ends in any way.
struct Reservation<'a>(&'a Slot);

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.0.look_at_all(|kept| kept.reserved = false);
    }
}

impl Slot {
    pub(crate) fn empty(context: Context) -> Self {
        Slot { context, kept: Mutex::default() }
    }

    /// Fills the slot, if nothing is held in it and no other call is about to fill it: the object is not reentrant, and would
    /// wait for itself.
    ///
    /// Dropping the future leaves the queue, and the slot as it was.
    pub(crate) async fn fill(&self, mut request: Acquire) -> Result<(), Error> {
        let path = request.path()?;
        let _reservation = self.reserve().ok_or(Error::AlreadyHeld { path })?;
        let guard = request.await?;
        // A lost one is no obstacle: it is dropped here.
        self.look(|slot| *slot = Some(guard));
        Ok(())
    }

    fn reserve(&self) -> Option<Reservation<'_>> {
        self.look_at_all(|kept| {
            if kept.reserved || kept.guard.as_ref().is_some_and(|guard| guard.is_held()) {
                return None;
            }
            kept.reserved = true;
            Some(Reservation(self))
        })
    }

    /// Empties the slot and releases what was in it.
    pub(crate) async fn clear(&self, path: &str) -> Result<(), ReleaseError> {
        match self.look(Option::take) {
            Some(guard) => guard.release().await,
            None => Err(ReleaseError::NotLocked { path: path.to_owned() }),
        }
    }

    /// Looks at what is held; never across an await.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut Option<Guard>) -> T) -> T {
        self.look_at_all(|kept| look(&mut kept.guard))
    }

    fn look_at_all<T>(&self, look: impl FnOnce(&mut Kept) -> T) -> T {
        // A panic in a look leaves the slot as it was before or after: both are whole.
        look(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether something is held right now, by this process's own clock.
    pub(crate) fn is_held(&self) -> bool {
        self.look(|slot| slot.as_ref().is_some_and(|guard| guard.is_held()))
    }

    /// The token of what is held.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.look(|slot| slot.as_ref().map(Guard::token))
    }

    /// Waits on this thread, for programs without async.
    #[track_caller]
    pub(crate) fn block_on<T>(&self, outcome: impl Future<Output = T>) -> T {
        self.context.io().block_on(outcome)
    }

    /// How what is held was lost, if it was.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.look(|slot| slot.as_ref().and_then(|guard| guard.loss()))
    }
}

/// An exclusive lock by base path and name, locked and unlocked by calls. Made by [`Lockkeeper::distributed_lock`](crate::Lockkeeper::distributed_lock).
///
/// The same base path and name is the same lock in every process; another name under the same base path is another lock. The
/// name may be any text but the empty one: the lock's path is [`LockPath::join`] of the two.
/// One object holds it at most once at a time: to hold two locks takes two objects. A second call to lock is
/// [`Error::AlreadyHeld`], also while the first still waits. Any task or thread may unlock. Dropping the object unlocks it in the
/// background.
///
/// Prefer [`Lockkeeper::mutex`](crate::Lockkeeper::mutex), whose guard cannot be forgotten, where the code is yours to shape.
#[derive(Debug)]
pub struct DistributedLock {
    lock: ExclusiveLock,
    path: Result<LockPath, PathError>,
    slot: Slot,
}

impl DistributedLock {
    pub(crate) fn new(context: Context, base: &str, name: &str) -> Self {
        let path = match base.trim_end_matches('/') {
            "" => LockPath::at_root(name),
            base => LockPath::parse(base).and_then(|base| base.join(name)),
        };
        DistributedLock { lock: ExclusiveLock::new(context.clone(), path.clone()), path, slot: Slot::empty(context) }
    }

    /// Locks it, waiting as long as it takes. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`Error::AlreadyHeld`] if this object holds it, or another call of it is under way; else as an [`Acquire`].
    pub async fn lock(&self) -> Result<(), Error> {
        self.slot.fill(self.lock.acquire()).await
    }

    /// Locks it if nobody has it and nobody waits.
    ///
    /// # Errors
    /// [`Error::Held`] if somebody has it, [`Error::AlreadyHeld`] as [`DistributedLock::lock`]; else as an [`Acquire`].
    pub async fn try_lock(&self) -> Result<(), Error> {
        self.slot.fill(self.lock.try_acquire()).await
    }

    /// Unlocks it and waits for the server to confirm that. One round trip. Dropping the future does not call it back.
    ///
    /// # Errors
    /// [`ReleaseError::NotLocked`] if this object does not hold it; else as [`Holding::release`](crate::Holding::release).
    pub async fn unlock(&self) -> Result<(), ReleaseError> {
        let path = self.path.as_ref().map(|path| path.as_str()).unwrap_or_default();
        self.slot.clear(path).await
    }

    /// [`DistributedLock::lock`] on this thread, for programs without async.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn lock_blocking(&self) -> Result<(), Error> {
        self.slot.block_on(self.lock())
    }

    /// [`DistributedLock::unlock`] on this thread, for programs without async.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn unlock_blocking(&self) -> Result<(), ReleaseError> {
        self.slot.block_on(self.unlock())
    }

    /// Whether this object holds it right now, by this process's own clock. No round trip.
    pub fn is_held(&self) -> bool {
        self.slot.is_held()
    }

    /// The token of this object's hold, for the protected resource.
    pub fn token(&self) -> Option<FencingToken> {
        self.slot.token()
    }

    /// The node of this object's hold: below base path and name, with the number that the server appended.
    pub fn node(&self) -> Option<String> {
        self.slot.look(|slot| slot.as_ref().map(|guard| guard.node()))
    }
}
