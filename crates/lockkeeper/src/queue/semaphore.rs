//! The semaphore: a number of permits.

use lockkeeper_core::{Discipline, LockPath, Mode, NodeFormat, PathError};

use crate::Error;
use crate::hold::guard::Permit;
use crate::queue::acquire::{Acquire, Kind};
use crate::session::context::Context;

/// A number of permits, of which each contender takes some: all it asked for, or it waits. First come, first served.
///
/// The number belongs to the path, whose node states it. Whoever comes first states it, and who thinks otherwise is refused
/// with [`Error::PermitsMismatch`]; nobody has to trust that all programs of a fleet were configured alike. A crash gives its
/// permits back with the session.
///
/// Made by [`Lockkeeper::semaphore`](crate::Lockkeeper::semaphore), which costs nothing.
#[derive(Clone, Debug)]
pub struct Semaphore {
    context: Context,
    path: Result<LockPath, PathError>,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(context: Context, path: Result<LockPath, PathError>, permits: u32) -> Self {
        Semaphore { context, path, permits }
    }

    /// Asks for one permit and waits for it as long as it takes, or as the options say.
    pub fn acquire(&self) -> Acquire<Permit> {
        self.acquire_many(1)
    }

    /// Asks for `take` permits, all of them or none.
    ///
    /// Whoever comes later waits behind, also if fewer would do for it: a large request is not starved by small ones.
    pub fn acquire_many(&self, take: u32) -> Acquire<Permit> {
        Acquire::new(self.context.clone(), self.kind(take), false)
    }

    /// Asks for one permit and gives up with [`Error::Held`] if none is free or somebody waits before.
    pub fn try_acquire(&self) -> Acquire<Permit> {
        self.try_acquire_many(1)
    }

    /// Asks for `take` permits and gives up with [`Error::Held`] if they are not all free or somebody waits before.
    pub fn try_acquire_many(&self, take: u32) -> Acquire<Permit> {
        Acquire::new(self.context.clone(), self.kind(take), true)
    }

    fn kind(&self, take: u32) -> Result<Kind, Error> {
        let (path, permits) = (self.path.clone()?, self.permits);
        let problem = match take {
            _ if permits == 0 => Some("a semaphore has at least one"),
            0 => Some("a request is for at least one"),
            _ if take > permits => Some("there are not that many"),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(Error::InvalidPermits { path: path.to_string(), permits, take, problem });
        }
        let (discipline, mode) = (Discipline::Permits { permits }, Mode::Permits(take));
        Ok(Kind { path, node_format: NodeFormat::Curator, discipline, mode, upgradeable: false, ageing: None })
    }
}
