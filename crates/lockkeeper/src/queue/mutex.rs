//! The exclusive lock.

use lockkeeper_core::{LockPath, NodeFormat, PathError};

use crate::error::AcquireError;
use crate::hold::guard::Guard;
use crate::queue::acquire::{Acquire, Kind};
use crate::queue::kept::KeptLock;
use crate::session::context::Context;

/// An exclusive lock: one holder at a time, first come, first served.
///
/// Created by [`Lockkeeper::mutex`](crate::Lockkeeper::mutex), which sends nothing. It is not reentrant: a second
/// acquire by the same process, task or handle is another contender.
#[derive(Clone, Debug)]
pub struct Mutex {
    context: Context,
    path: Result<LockPath, PathError>,
    node_format: NodeFormat,
    /// Refuse to queue where contenders are beside the path.
    looks_beside: bool,
}

impl Mutex {
    pub(crate) fn new(context: Context, path: Result<LockPath, PathError>) -> Self {
        Mutex { context, path, node_format: NodeFormat::Curator, looks_beside: false }
    }

    /// Sets the node format of this path. All clients of a path must use the same one.
    ///
    /// [`NodeFormat::Numbered`] puts the nodes beside the path instead of below it. An attempt in that format also looks
    /// below the path, and fails if there are contenders. An attempt in another format does not look beside it.
    pub fn node_format(mut self, node_format: NodeFormat) -> Self {
        self.node_format = node_format;
        self
    }

    /// Fails if earlier or later contenders are beside the path. One more listing for each attempt.
    pub(crate) fn looks_beside(mut self) -> Self {
        self.looks_beside = true;
        self
    }

    /// Returns a request that waits until the lock is granted, or as its options say.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.context.clone(), self.kind(), false, Guard::of)
    }

    /// Returns a request that fails with [`AcquireError::Held`] if another contender holds the lock or is
    /// ahead.
    ///
    /// It waits only for the servers: for at most 2 s unless a [timeout](Acquire::timeout) is set, then it fails with
    /// [`SessionError::Unreachable`](crate::error::SessionError::Unreachable). This holds for the `try_acquire` of
    /// every kind of lock.
    pub fn try_acquire(&self) -> Acquire {
        Acquire::new(self.context.clone(), self.kind(), true, Guard::of)
    }

    /// Returns a lock that this process keeps between two uses, until another contender comes. It takes the lock again
    /// without a round trip. [`KeptLock`] says what that changes.
    pub fn keep(&self) -> KeptLock {
        KeptLock::new(self.context.clone(), self.kind())
    }

    fn kind(&self) -> Result<Kind, AcquireError> {
        let (node_format, looks_beside) = (self.node_format, self.looks_beside);
        Ok(Kind { node_format, looks_beside, ..Kind::exclusive(self.path.clone()?) })
    }
}
