//! Locks as objects with `lock` and `unlock`, for code that is built that way: the object keeps the guard.

use std::sync::{Mutex, PoisonError};

use lockkeeper_core::{FencingToken, LockPath, Loss, NodeFormat, PathError, Revocation};
use lockkeeper_session::latest;
use lockkeeper_session::wait::cancelled;

use crate::error::{AcquireError, ReleaseError};
use crate::hold::guard::Guard;
use crate::keeper::Lockkeeper;
use crate::queue::acquire::Acquire;
use crate::queue::mutex::Mutex as ExclusiveLock;

/// What a lock object with `lock` and `unlock` keeps: the guard, if locked, and the handle that acquired it.
#[derive(Debug)]
pub struct GuardSlot {
    keeper: Lockkeeper,
    kept: Mutex<SlotState>,
    /// Counts the guards that came back with another hold.
    renewed: latest::Sender<u64>,
}

#[derive(Debug, Default)]
struct SlotState {
    guard: Option<Guard>,
    /// Whether a call to lock is under way.
    reserved: bool,
}

/// The right of one call to fill the slot; it ends with the call.
struct Reservation<'a>(&'a GuardSlot);

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.0.look_at_all(|kept| kept.reserved = false);
    }
}

impl GuardSlot {
    /// Creates an empty slot for guards of this handle.
    pub fn new(keeper: &Lockkeeper) -> Self {
        GuardSlot { keeper: keeper.clone(), kept: Mutex::default(), renewed: latest::Sender::new(0) }
    }

    /// Acquires the lock and keeps its guard. Fails if the slot has a guard or another call is about to fill it: the
    /// object is not reentrant, and would wait for itself.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue, and the slot unchanged.
    ///
    /// # Errors
    ///
    /// [`AcquireError::AlreadyHeld`], or as the request's.
    pub async fn fill(&self, request: Acquire) -> Result<(), AcquireError> {
        let path = request.path()?;
        let _reservation = self.reserve().ok_or(AcquireError::AlreadyHeld { path })?;
        let guard = request.await?;
        // Drops a guard whose lock was lost.
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

    /// Empties the slot and releases its guard. `path` is for the error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release.
    ///
    /// # Errors
    ///
    /// [`ReleaseError::NotLocked`] if the slot is empty; otherwise as the release's.
    pub async fn clear(&self, path: &str) -> Result<(), ReleaseError> {
        match self.look(Option::take) {
            Some(guard) => guard.release().await,
            None => Err(ReleaseError::NotLocked { path: path.to_owned() }),
        }
    }

    /// Makes way with the slot's guard if it is asked to ([`Guard::yield_lock`]), and keeps the new guard. `path` is for the error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue, and the slot empty.
    ///
    /// # Errors
    ///
    /// [`AcquireError::AlreadyHeld`] if another call of the object is under way; otherwise as [`Guard::yield_lock`]. The slot is then
    /// empty. An empty slot stays empty.
    pub async fn yield_lock(&self, path: &str) -> Result<(), AcquireError> {
        let taken = self.look_at_all(|kept| {
            if kept.reserved {
                return Err(AcquireError::AlreadyHeld { path: path.to_owned() });
            }
            let guard = kept.guard.take_if(|guard| guard.should_yield());
            kept.reserved = guard.is_some();
            Ok(guard.map(|guard| (Reservation(self), guard)))
        });
        let Some((_reservation, guard)) = taken? else { return Ok(()) };
        let guard = guard.yield_lock().await?;
        self.look(|slot| *slot = Some(guard));
        self.renewed.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Waits until the slot's hold is lost, whichever hold it has then, and returns why. Never resolves while the slot is empty.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn lost(&self) -> Loss {
        let mut renewed = self.renewed.subscribe();
        loop {
            let lost = self.look(|slot| slot.as_ref().map(|guard| guard.cancelled_when_lost()));
            tokio::select! {
                biased;
                _ = renewed.changed() => {}
                () = cancelled(lost.as_ref()) => return self.loss().unwrap_or(Loss::Closed),
            }
        }
    }

    /// Accesses the guard; never across an await.
    pub fn look<T>(&self, look: impl FnOnce(&mut Option<Guard>) -> T) -> T {
        self.look_at_all(|kept| look(&mut kept.guard))
    }

    fn look_at_all<T>(&self, look: impl FnOnce(&mut SlotState) -> T) -> T {
        // A panic in `look` leaves the slot in the state before or after it; both are valid.
        look(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether the lock is held now, by this process's own clock.
    pub fn is_held(&self) -> bool {
        self.look(|slot| slot.as_ref().is_some_and(|guard| guard.is_held()))
    }

    /// Returns the token of the hold.
    pub fn token(&self) -> Option<FencingToken> {
        self.look(|slot| slot.as_ref().map(Guard::token))
    }

    /// Waits until another client asks the holder to release the lock. Waits for ever if the slot is empty now.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the request to the next call.
    pub async fn revocation(&self) -> Revocation {
        // Without the guard, which another task may take out of the slot meanwhile.
        match self.look(|slot| slot.as_ref().map(|guard| guard.hold().clone())) {
            Some(hold) => hold.revocation().await,
            None => std::future::pending().await,
        }
    }

    /// Blocks this thread until `outcome` is ready, for programs without async.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn block_on<T>(&self, outcome: impl Future<Output = T>) -> T {
        self.keeper.sessions().block_on(outcome)
    }

    /// Returns how the hold was lost, if it was.
    pub fn loss(&self) -> Option<Loss> {
        self.look(|slot| slot.as_ref().and_then(|guard| guard.loss()))
    }
}

/// An exclusive lock named by a base path and a name, with `lock` and `unlock` calls.
///
/// The same base path and name is the same lock in every process. Another name below the same base path is another lock. A
/// contender's node is base path, `/`, name and the number that the server appends. The class `DistributedLock` of other
/// clients names its nodes in the same way, so both queue together. The base path is created if it is missing, and stays.
/// The name must be valid in a node's name: it has no `/`. [`DistributedLock::node_format`] selects nodes below base path
/// and name.
///
/// Other clients of this layout may count every child of the base path as a contender, whatever its name. If you share a
/// base path with such clients, use it for one lock name only. Do not choose a name that ends in `-`, although none is refused:
/// after 2^31 creates the server appends negative numbers, and their sign reads as the end of such a name.
///
/// An object holds the lock at most once: to hold two locks, use two objects. A second call to lock fails with
/// [`AcquireError::AlreadyHeld`], also while the first one still waits. Any task or thread may unlock. Dropping the
/// object unlocks it in the background.
///
/// Prefer [`Lockkeeper::mutex`](crate::Lockkeeper::mutex) if you can choose: its guard cannot be forgotten.
#[derive(Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct DistributedLock {
    base: String,
    name: String,
    lock: ExclusiveLock,
    path: Result<LockPath, PathError>,
    slot: GuardSlot,
}

impl DistributedLock {
    /// Creates the object for the exclusive lock called `name` below `base`. Sends nothing; the call to lock reports an
    /// invalid base path or name.
    pub fn new(keeper: &Lockkeeper, base: impl AsRef<str>, name: impl AsRef<str>) -> Self {
        let (base, name) = (base.as_ref(), name.as_ref());
        let path = LockPath::plain(base, name);
        let lock = ExclusiveLock::new(keeper.clone(), path.clone()).node_format(NodeFormat::Numbered);
        DistributedLock { base: base.to_owned(), name: name.to_owned(), lock, path, slot: GuardSlot::new(keeper) }
    }

    /// Sets the node format; the default is [`NodeFormat::Numbered`]. All clients of the lock must use the same one.
    ///
    /// In every other format the nodes are below the path of base and name. The name is any text except the empty one:
    /// the path is the [`LockPath::join`] of the two. An attempt fails with [`Mismatch::Format`] if it finds contenders
    /// of the other layout, whichever came first.
    ///
    /// [`Mismatch::Format`]: crate::error::Mismatch::Format
    ///
    /// # Cost
    ///
    /// In every format, one listing more for each look at the queue, in the same round trip. Below the path, also one read
    /// of each node beside it that has the lock's name and a number.
    pub fn node_format(mut self, node_format: NodeFormat) -> Self {
        self.path = match self.base.trim_end_matches('/') {
            _ if node_format.is_beside() => LockPath::plain(&self.base, &self.name),
            "" => LockPath::at_root(&self.name),
            base => LockPath::parse(base).and_then(|base| base.join(&self.name)),
        };
        let lock = ExclusiveLock::new(self.slot.keeper.clone(), self.path.clone()).node_format(node_format);
        self.lock = if node_format.is_beside() { lock } else { lock.looks_beside() };
        self
    }

    /// Acquires the lock and waits until it is granted.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// [`AcquireError::AlreadyHeld`] if this object holds the lock or another call of it is under way; otherwise as an
    /// [`Acquire`].
    pub async fn lock(&self) -> Result<(), AcquireError> {
        self.lock_with(|request| request).await
    }

    /// Acquires the lock with the options of an [`Acquire`]: a timeout, a message, a cancellation, what happens on a
    /// loss.
    ///
    /// ```no_run
    /// # async fn example(lock: lockkeeper::DistributedLock) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// lock.lock_with(|request| request.timeout(Duration::from_secs(5)).message("nightly index")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`], and those of the options.
    pub async fn lock_with(&self, options: impl FnOnce(Acquire) -> Acquire) -> Result<(), AcquireError> {
        self.slot.fill(options(self.lock.acquire())).await
    }

    /// Acquires the lock if it is free and no contender is ahead.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Held`] if another contender holds the lock or is ahead; [`AcquireError::AlreadyHeld`] as for
    /// [`DistributedLock::lock`]; otherwise as an [`Acquire`].
    pub async fn try_lock(&self) -> Result<(), AcquireError> {
        self.slot.fill(self.lock.try_acquire()).await
    }

    /// Releases the lock and waits until the server confirms it.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// [`ReleaseError::NotLocked`] if this object does not hold the lock; otherwise as
    /// [`Holding::release`](crate::Holding::release).
    pub async fn unlock(&self) -> Result<(), ReleaseError> {
        let path = self.path.as_ref().map(|path| path.as_str()).unwrap_or_default();
        self.slot.clear(path).await
    }

    /// Calls [`DistributedLock::lock`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn lock_blocking(&self) -> Result<(), AcquireError> {
        self.slot.block_on(self.lock())
    }

    /// Calls [`DistributedLock::unlock`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::unlock`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn unlock_blocking(&self) -> Result<(), ReleaseError> {
        self.slot.block_on(self.unlock())
    }

    /// Returns whether this object holds the lock now, by this process's own clock. No round trip.
    pub fn is_held(&self) -> bool {
        self.slot.is_held()
    }

    /// Returns the token of this object's hold, to pass to the protected resource.
    pub fn token(&self) -> Option<FencingToken> {
        self.slot.token()
    }

    /// Returns the node of this object's hold: base path and name, with the number that the server appended.
    pub fn node(&self) -> Option<String> {
        self.slot.look(|slot| slot.as_ref().map(|guard| guard.node()))
    }
}
