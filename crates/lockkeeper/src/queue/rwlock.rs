//! The shared lock: readers together, a writer alone.

use lockkeeper_core::{Discipline, LockPath, Mode, NodeFormat, PathError};

use crate::Error;
use crate::hold::guard::{Guard, UpgradeableGuard, WriteGuard};
use crate::queue::acquire::{Acquire, Kind};
use crate::session::context::Context;

/// A lock that many may read under together, and one write under alone; first come, first served.
///
/// Readers before a waiting writer share, readers behind it wait: no stream of readers keeps a writer out. A reader that
/// stays keeps the writers behind it waiting, and with them everyone behind those: hold it shortly, or listen to
/// [`Holding::revocation`](crate::Holding::revocation).
///
/// There is no plain upgrade from reading to writing: two readers who both want it would wait for each other for ever. Who
/// may want to write later asks for [`RwLock::upgradeable`], of which there is one at a time.
///
/// Made by [`Lockkeeper::rwlock`](crate::Lockkeeper::rwlock), which costs nothing.
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

    /// Names the nodes of this path in another node format. All who use a path must agree on it.
    pub fn node_format(mut self, node_format: NodeFormat) -> Self {
        self.node_format = node_format;
        self
    }

    /// To read, beside other readers. A waiting reader watches the nearest writer before it and nothing else.
    pub fn read(&self) -> Access<Guard> {
        self.access(Mode::Read, false)
    }

    /// To write, alone.
    pub fn write(&self) -> Access<WriteGuard> {
        self.access(Mode::Write, false)
    }

    /// To read beside the readers that came before, and perhaps to write later, without a deadlock. Others who come later
    /// wait behind it, readers too.
    pub fn upgradeable(&self) -> Access<UpgradeableGuard> {
        self.access(Mode::Write, true)
    }

    fn access<G>(&self, mode: Mode, upgradeable: bool) -> Access<G> {
        let (context, path, node_format) = (self.context.clone(), self.path.clone(), self.node_format);
        let discipline = Discipline::SharedExclusive;
        let kind = path.map(|path| Kind { path, node_format, discipline, mode, upgradeable, ageing: None });
        Access { context, kind, guard: std::marker::PhantomData }
    }
}

/// One way into an [`RwLock`].
#[derive(Clone, Debug)]
pub struct Access<G> {
    context: Context,
    kind: Result<Kind, PathError>,
    guard: std::marker::PhantomData<fn() -> G>,
}

impl<G> Access<G> {
    /// Asks for the lock and waits for it as long as it takes, or as the options say.
    pub fn acquire(&self) -> Acquire<G> {
        Acquire::new(self.context.clone(), self.kind.clone().map_err(Error::from), false)
    }

    /// Asks for the lock and gives up with [`Error::Held`] if somebody is before who keeps it out.
    pub fn try_acquire(&self) -> Acquire<G> {
        Acquire::new(self.context.clone(), self.kind.clone().map_err(Error::from), true)
    }
}
