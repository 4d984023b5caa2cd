//! Questions about locks: which locks exist, and their holders and waiters.

use lockkeeper_session::ensemble::{OWN_TREE, is_below};

use super::OWN_LOCKS;
use super::handle::Admin;
use super::info::{LockInfo, LockListing};
use super::read::{has_bare_requests, lock, recall, tree};
use crate::error::{AdminError, refused};

/// Returns whether no lock is at this path because it is that of a record, or of their root, below `/lockkeeper`.
pub fn is_of_records(path: &str) -> bool {
    path != OWN_TREE && is_below(path, OWN_TREE) && !is_below(path, OWN_LOCKS)
}

impl Admin {
    /// Returns the holders and the waiters of the lock at `path`, in order.
    ///
    /// # Cost
    ///
    /// An ordered write and a listing in one round trip, then one read for each contender, also sent together. Without
    /// contenders below the path, one listing of the node above it and, if the path has data, one read of it, for its permits or its
    /// record.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`AdminError::NoSuchLock`] if the path has no node; a node without contenders is not an error.
    /// [`SessionError::ConnectionLost`](crate::error::SessionError::ConnectionLost) without a majority. Otherwise, the server refuses the read or cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let lock = keeper.admin().show("/locks/nightly").await?;
    /// for holder in &lock.holders {
    ///     println!("held by {holder}");
    /// }
    /// println!("{} wait", lock.waiters.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn show(&self, path: impl AsRef<str>) -> Result<LockInfo, AdminError> {
        let path = self.path(path.as_ref())?;
        let shown = self.on_session(move |ensemble| async move {
            lock(&*ensemble, &path).await.map_err(|fault| refused(&path, fault))
        });
        let info = shown.await?;
        Ok(info.in_epoch(self.known_epoch().await?))
    }

    /// Adds what requests to release have replaced in the nodes of foreign clients, as [`Admin::show`] does, to locks that were read
    /// elsewhere. One read of the journal if there is such a request, otherwise nothing. Dropping the future leaves nothing behind.
    #[doc(hidden)]
    pub async fn recall(&self, mut locks: Vec<LockInfo>) -> Result<Vec<LockInfo>, AdminError> {
        if !locks.iter().any(has_bare_requests) {
            return Ok(locks);
        }
        self.on_session(move |ensemble| async move {
            recall(&*ensemble, &mut locks).await;
            Ok(locks)
        })
        .await
    }

    /// Returns the locks at and below `root` that have holders, waiters or nodes without a session
    /// ([`LockInfo::sessionless`]), by path. `root` may be `/`.
    ///
    /// A root that does not exist has no locks. Nodes that cannot be read are left out, with everything below them;
    /// [`Admin::listing`] names them.
    ///
    /// # Cost
    ///
    /// Walks the tree behind one ordered write: one listing for each node and for the node above the root, and the reads
    /// of [`Admin::show`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the read or cannot be reached.
    pub async fn list(&self, root: impl AsRef<str>) -> Result<Vec<LockInfo>, AdminError> {
        let root = root.as_ref();
        Ok(self.listing(root).await?.locks)
    }

    /// Returns the locks as [`Admin::list`] does, and the nodes that this client has no right to read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As [`Admin::list`].
    pub async fn listing(&self, root: impl AsRef<str>) -> Result<LockListing, AdminError> {
        let root = root.as_ref();
        let root = if root == "/" { root.to_owned() } else { self.path(root)? };
        let listed = self.on_session(move |ensemble| async move {
            tree(&*ensemble, &root, |path| !is_of_records(path)).await.map_err(|fault| refused(&root, fault))
        });
        let (locks, unreadable) = listed.await?;
        let epoch = self.known_epoch().await?;
        Ok(LockListing { locks: locks.into_iter().map(|lock| lock.in_epoch(epoch)).collect(), unreadable })
    }
}
