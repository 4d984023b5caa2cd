//! The exclusive lock.

use lockkeeper_core::{LockPath, NodeFormat, PathError};

use crate::Error;
use crate::queue::acquire::{Acquire, Kind};
use crate::session::context::Context;

/// An exclusive lock: one holder, first come first served.
///
/// Made by [`Lockkeeper::mutex`](crate::Lockkeeper::mutex), which costs nothing. Not reentrant: a second acquire by the same process, task or handle
/// is a contender like any other.
#[derive(Clone, Debug)]
pub struct Mutex {
    context: Context,
    path: Result<LockPath, PathError>,
    node_format: NodeFormat,
}

impl Mutex {
    pub(crate) fn new(context: Context, path: Result<LockPath, PathError>) -> Self {
        Mutex { context, path, node_format: NodeFormat::Curator }
    }

    /// Names the nodes of this path in another node format. All who use a path must agree on it.
    pub fn node_format(mut self, node_format: NodeFormat) -> Self {
        self.node_format = node_format;
        self
    }

    /// Asks for the lock and waits for it as long as it takes, or as the options say.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.context.clone(), self.kind(), false)
    }

    /// Asks for the lock and gives up with [`Error::Held`](crate::Error::Held) if somebody else has it or is before.
    ///
    /// Waits for the servers only: at most 2 s unless a [timeout](Acquire::timeout) is set, then
    /// [`Error::Unreachable`](crate::Error::Unreachable). So does the `try_acquire` of every kind of lock.
    pub fn try_acquire(&self) -> Acquire {
        Acquire::new(self.context.clone(), self.kind(), true)
    }

    fn kind(&self) -> Result<Kind, Error> {
        Ok(Kind { node_format: self.node_format, ..Kind::exclusive(self.path.clone()?) })
    }
}
