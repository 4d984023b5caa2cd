//! The exclusive lock.

use lockkeeper_core::{Dialect, Discipline, LockPath, Mode, PathError};

use crate::acquire::{Acquire, Kind};
use crate::keeper::Lockkeeper;

/// An exclusive lock: one holder, first come first served.
///
/// Made by [`Lockkeeper::mutex`], which costs nothing. Not reentrant: a second acquire by the same process, task or handle
/// is a contender like any other.
#[derive(Clone, Debug)]
pub struct Mutex {
    keeper: Lockkeeper,
    kind: Kind,
}

impl Mutex {
    pub(crate) fn new(keeper: Lockkeeper, path: Result<LockPath, PathError>) -> Self {
        let kind = Kind { path, dialect: Dialect::Curator, discipline: Discipline::Exclusive, mode: Mode::Exclusive };
        Mutex { keeper, kind }
    }

    /// Names the nodes of this path in another dialect. All who use a path must agree on it.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.kind.dialect = dialect;
        self
    }

    /// Asks for the lock and waits for it as long as it takes, or as the options say.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.keeper.clone(), self.kind.clone(), false)
    }

    /// Asks for the lock and gives up with [`Error::Held`](crate::Error::Held) if somebody else has it or is before.
    pub fn try_acquire(&self) -> Acquire {
        Acquire::new(self.keeper.clone(), self.kind.clone(), true)
    }
}
