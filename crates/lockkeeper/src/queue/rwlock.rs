//! The shared lock: several readers together, or one writer alone.

use std::sync::Arc;

use lockkeeper_core::{Discipline, LockPath, Mode, NodeFormat, PathError};

use crate::error::AcquireError;
use crate::hold::guard::{Guard, UpgradeableGuard, WriteGuard};
use crate::hold::holding::Holding;
use crate::keeper::Lockkeeper;
use crate::queue::acquire::{Acquire, LockKind};
use crate::queue::kept::KeptHold;

/// A lock that several readers can hold together, or one writer alone; first come, first served.
///
/// Readers ahead of a waiting writer share the lock; readers behind it wait. So a stream of readers cannot starve a
/// writer. A reader that keeps the lock delays the writers behind it, and with them all contenders behind those: hold
/// it shortly, or listen to [`Holding::revocation`](crate::Holding::revocation).
///
/// A reader cannot become a writer: two readers that both want this would wait for each other forever. A reader that
/// may want to write later uses [`RwLock::upgradeable`]; only one contender at a time holds the lock that way.
///
/// Created by [`Lockkeeper::rwlock`](crate::Lockkeeper::rwlock), which sends nothing.
///
/// # Examples
///
/// ```
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let catalogue = keeper.rwlock("/locks/catalogue");
/// let (one, other) = (catalogue.read().acquire().await?, catalogue.read().acquire().await?);
/// drop((one, other));
/// let writer = catalogue.write().acquire().await?;
/// let reader = writer.downgrade().await?; // no other writer in between
/// reader.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct RwLock {
    keeper: Lockkeeper,
    path: Result<LockPath, PathError>,
    node_format: NodeFormat,
}

impl RwLock {
    pub(crate) fn new(keeper: Lockkeeper, path: Result<LockPath, PathError>) -> Self {
        RwLock { keeper, path, node_format: NodeFormat::Curator }
    }

    /// Sets the node format of this path. All clients of a path must use the same one.
    pub fn node_format(mut self, node_format: NodeFormat) -> Self {
        self.node_format = node_format;
        self
    }

    /// Returns the lock for reading, beside other readers. A waiting reader watches only the nearest writer ahead.
    pub fn read(&self) -> Access<Guard> {
        self.access(Mode::Read, false, Guard::of)
    }

    /// Returns the lock for writing, alone.
    pub fn write(&self) -> Access<WriteGuard> {
        self.access(Mode::Write, false, WriteGuard::of)
    }

    /// Returns the lock for reading beside the readers ahead, with the right to become the writer later without a
    /// deadlock. Later contenders wait behind it, including readers.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let reader = keeper.rwlock("/locks/catalogue").upgradeable().acquire().await?;
    /// if reader.is_held() {
    ///     let writer = reader.upgrade().await?; // nobody else has written since the read
    ///     writer.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn upgradeable(&self) -> Access<UpgradeableGuard> {
        self.access(Mode::Write, true, UpgradeableGuard::of)
    }

    fn access<G>(&self, mode: Mode, upgradeable: bool, guard: fn(Holding) -> G) -> Access<G> {
        let (keeper, path, node_format) = (self.keeper.clone(), self.path.clone(), self.node_format);
        let discipline = Discipline::SharedExclusive;
        let kind =
            path.map(|path| LockKind { node_format, discipline, mode, upgradeable, ..LockKind::exclusive(path) });
        Access { keeper, kind, guard, shared: None }
    }
}

/// An [`RwLock`] in one of its modes.
#[derive(Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Access<G> {
    keeper: Lockkeeper,
    kind: Result<LockKind, PathError>,
    guard: fn(Holding) -> G,
    /// The hold that readers of this process share, if they do.
    shared: Option<Arc<KeptHold>>,
}

// A derived one would be for guards that can be cloned.
impl<G> Clone for Access<G> {
    fn clone(&self) -> Self {
        let (keeper, kind, shared) = (self.keeper.clone(), self.kind.clone(), self.shared.clone());
        Access { keeper, kind, guard: self.guard, shared }
    }
}

impl Access<Guard> {
    /// Returns the same lock for reading, whose readers in this process share one node. Clones of the result share the node too.
    ///
    /// The first reader enters the queue, for all who come until it is granted. A later reader joins them while at least one of
    /// them reads and only readers are in the queue, unless a release was asked for or less than a third of the session timeout is left
    /// without an answer of the servers. Otherwise it enters the queue, behind the contenders that are there.
    /// When the last of them releases, the node is deleted. So a writer waits for the readers that came before it, as without
    /// sharing, and for those that waited together with one of them. A reader that leaves does not change the place of the others.
    ///
    /// # What changes
    ///
    /// - All who share a node have the same token. It is greater than those of the writers before them.
    /// - `show` and `why` name one reader for all of them.
    /// - A request to release the lock ([`Admin::revoke`](crate::admin::Admin::revoke)), a break and a loss concern all of them.
    /// - The options of a request that are for the hold or for the place in the queue count if it enters the queue: so give all
    ///   readers the same. [`Acquire::on_lost`] is called once for all. A timeout or a cancellation counts for each reader.
    ///   [`AcquireError::Timeout`] names neither the holder nor a position.
    /// - With [`Acquire::with_liveness`], a call of `alive` by any reader counts for all. So a reader that hangs is not noticed
    ///   while another one calls it.
    /// - A reader that only tries is refused while a reader of this process is known to wait for a writer. While such a reader enters
    ///   the queue, it waits until that one is granted the lock, or is known to wait: one round trip.
    /// - Releasing or dropping a guard ends the use. The last one releases the lock.
    ///
    /// # Cost
    ///
    /// For the first reader, what [`Acquire`] costs. The next one costs a listing with a watch, and those after it nothing, until
    /// a contender comes or leaves.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let catalogue = keeper.rwlock("/locks/catalogue").read().share();
    /// let readers = (0..100).map(|_| catalogue.acquire().into_future());
    /// for reader in futures_util::future::join_all(readers).await {
    ///     reader?.release().await?; // a hundred tasks, one node on the servers
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn share(&self) -> Access<Guard> {
        Access { shared: Some(KeptHold::share(&self.keeper)), ..self.clone() }
    }
}

impl<G> Access<G> {
    /// Returns a request that waits until the lock is granted, or as its options say.
    pub fn acquire(&self) -> Acquire<G> {
        self.request(false)
    }

    /// Returns a request that fails with [`AcquireError::Held`] if a contender ahead blocks it.
    pub fn try_acquire(&self) -> Acquire<G> {
        self.request(true)
    }

    fn request(&self, once: bool) -> Acquire<G> {
        let kind = self.kind.clone().map_err(AcquireError::from);
        Acquire::new(self.keeper.clone(), kind, once, self.guard).among(self.shared.clone())
    }
}
