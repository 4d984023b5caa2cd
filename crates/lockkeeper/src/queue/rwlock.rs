//! The shared lock: several readers together, or one writer alone.

use lockkeeper_core::{Discipline, LockPath, Mode, NodeFormat, PathError};

use crate::error::AcquireError;
use crate::hold::guard::{Guard, UpgradeableGuard, WriteGuard};
use crate::hold::holding::Holding;
use crate::queue::acquire::{Acquire, Kind};
use crate::queue::shared_reads::SharedReads;
use crate::session::context::Context;

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
#[derive(Clone, Debug)]
pub struct RwLock {
    context: Context,
    path: Result<LockPath, PathError>,
    node_format: NodeFormat,
}

impl RwLock {
    pub(crate) fn new(context: Context, path: Result<LockPath, PathError>) -> Self {
        RwLock { context, path, node_format: NodeFormat::Curator }
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
    pub fn upgradeable(&self) -> Access<UpgradeableGuard> {
        self.access(Mode::Write, true, UpgradeableGuard::of)
    }

    fn access<G>(&self, mode: Mode, upgradeable: bool, guard: fn(Holding) -> G) -> Access<G> {
        let (context, path, node_format) = (self.context.clone(), self.path.clone(), self.node_format);
        let discipline = Discipline::SharedExclusive;
        let (ageing, looks_beside) = (None, false);
        let kind = path.map(|path| Kind { path, node_format, discipline, mode, upgradeable, ageing, looks_beside });
        Access { context, kind, guard }
    }
}

/// An [`RwLock`] in one of its modes.
#[derive(Clone, Debug)]
pub struct Access<G> {
    context: Context,
    kind: Result<Kind, PathError>,
    guard: fn(Holding) -> G,
}

impl Access<Guard> {
    /// Returns the lock for readers of this process that share one node. [`SharedReads`] says what that changes.
    pub fn share(&self) -> SharedReads {
        SharedReads::new(self.acquire())
    }
}

impl<G> Access<G> {
    /// Returns a request that waits until the lock is granted, or as its options say.
    pub fn acquire(&self) -> Acquire<G> {
        Acquire::new(self.context.clone(), self.kind.clone().map_err(AcquireError::from), false, self.guard)
    }

    /// Returns a request that fails with [`AcquireError::Held`] if a contender ahead blocks it.
    pub fn try_acquire(&self) -> Acquire<G> {
        Acquire::new(self.context.clone(), self.kind.clone().map_err(AcquireError::from), true, self.guard)
    }
}
