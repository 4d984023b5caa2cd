//! Reads of the fleet's counters of its leased locks.

use lockkeeper_core::LockPath;
use lockkeeper_core::helix::Statistics;

use super::Admin;
use crate::error::AdminError;
use crate::registers::statistics;

impl Admin {
    /// Returns the fleet's counters of the leased lock at `path`, by owner; `None` if there are none.
    ///
    /// Lock objects with [`HelixLock::publish_statistics`](crate::lease::HelixLock::publish_statistics) count.
    ///
    /// # Cost
    ///
    /// One round trip, and one from its server to the leader.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the read or cannot be reached.
    pub async fn statistics(&self, path: impl AsRef<str>) -> Result<Option<Statistics>, AdminError> {
        let path = path.as_ref();
        let path = LockPath::parse_node(path)?;
        self.on_session(move |ensemble| async move { statistics::read(&*ensemble, path.as_str()).await }).await
    }

    /// Deletes the fleet's counters of the leased lock at `path`; `false` if there were none.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the deletion either done or not done.
    ///
    /// # Errors
    ///
    /// As [`Admin::statistics`].
    pub async fn forget_statistics(&self, path: impl AsRef<str>) -> Result<bool, AdminError> {
        let path = path.as_ref();
        let path = LockPath::parse_node(path)?;
        self.on_session(move |ensemble| async move { statistics::forget(&*ensemble, path.as_str()).await }).await
    }
}
