//! Questions about what a fleet has counted of its leased locks.

use lockkeeper_core::LockPath;
use lockkeeper_core::helix::Statistics;

use super::Admin;
use crate::Error;
use crate::registers::statistics;

impl Admin {
    /// What the fleet has counted of the leased lock at `path`, by owner; `None` if nobody has counted it. One round trip, and its
    /// server's to the leader.
    ///
    /// Counted by lock objects with [`HelixLock::publish_statistics`](crate::lease::HelixLock::publish_statistics).
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// A refusal by the server, or no server.
    pub async fn statistics(&self, path: &str) -> Result<Option<Statistics>, Error> {
        let path = LockPath::parse_node(path)?;
        self.on_session(move |ensemble| async move { statistics::read(&*ensemble, path.as_str()).await }).await
    }

    /// Forgets what was counted of the leased lock at `path`; `false` if nobody had counted it. One round trip.
    ///
    /// Dropping the future may leave it undone, or done.
    ///
    /// # Errors
    /// As [`Admin::statistics`].
    pub async fn forget_statistics(&self, path: &str) -> Result<bool, Error> {
        let path = LockPath::parse_node(path)?;
        self.on_session(move |ensemble| async move { statistics::forget(&*ensemble, path.as_str()).await }).await
    }
}
