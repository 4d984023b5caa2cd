//! Questions about locks: which locks exist, and their holders and waiters.

use std::collections::HashMap;

use futures_util::stream::{self, StreamExt};
use lockkeeper_core::{CURATOR_LEASES, ForeignSemaphore, KAZOO_LOCK, node_path};
use lockkeeper_session::ensemble::{OWN_TREE, OpError, READS_IN_FLIGHT, above, is_below, linearizable};

use super::describe::{Listed, describe, has_bare_requests, list_beside, look, permits_in, recall};
use super::handle::Admin;
use super::info::{LockInfo, LockListing, Unreadable};
use super::{OWN_LOCKS, lease};
use crate::error::{AdminError, refused};

/// How many locks a survey reads at once. Each has up to [`READS_IN_FLIGHT`] reads of its own.
const LOCKS_IN_FLIGHT: usize = 16;

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
    /// contenders below the path, one listing of the node above it, and one read of the path, for its permits or its
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
            let mut info = look(&*ensemble, &path).await.map_err(|fault| refused(&path, fault))?;
            if info.is_quiet()
                && let Ok(seen) = ensemble.read(&path).await
            {
                info.permits = permits_in(&seen);
                if let Some(record) = lease::read(&seen) {
                    lease::describe(&mut info, &seen, &record);
                }
            }
            Ok(info)
        });
        let info = shown.await?;
        Ok(info.in_epoch(self.known_epoch().await?))
    }

    /// Adds what requests to release have replaced in the nodes of foreign clients, as [`Admin::show`] does, to a lock that was read
    /// elsewhere. One read of the journal if there is such a request, otherwise nothing. Dropping the future leaves nothing behind.
    #[doc(hidden)]
    pub async fn recall(&self, mut lock: LockInfo) -> Result<LockInfo, AdminError> {
        if !has_bare_requests(&lock) {
            return Ok(lock);
        }
        self.on_session(move |ensemble| async move {
            recall(&*ensemble, &mut lock).await;
            Ok(lock)
        })
        .await
    }

    /// Returns the locks at and below `root` that have holders, waiters or nodes without a session
    /// ([`LockInfo::sessionless`]), by path. `root` may be `/`.
    ///
    /// A root that does not exist has no locks. Nodes that cannot be read are left out, with everything below them;
    /// [`Admin::survey`] names them.
    ///
    /// # Cost
    ///
    /// Walks the tree behind one ordered write: one listing for each node and for the node above the root, and the reads
    /// of [`Admin::show`]. A node that is not a queue costs one read more.
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
        Ok(self.survey(root).await?.locks)
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
    pub async fn survey(&self, root: impl AsRef<str>) -> Result<LockListing, AdminError> {
        let root = root.as_ref();
        let root = if root == "/" { root.to_owned() } else { self.path(root)? };
        let listed = self.on_session(move |ensemble| async move {
            let (mut found, mut quiet, mut unreadable) = (Vec::<LockInfo>::new(), Vec::new(), Vec::new());
            let mut semaphores = Vec::new();
            // Later reads of a session are never older than earlier ones.
            let mut listings = vec![(root.clone(), linearizable(&*ensemble, ensemble.list(&root)).await)];
            // The contenders of the root's own lock may be beside it.
            if root != "/" {
                let beside = list_beside(&*ensemble, &root).await;
                let info = describe(&*ensemble, &root, beside, &mut HashMap::new()).await;
                if !info.is_quiet() {
                    found.push(info);
                }
            }
            // Each round reads one level of the tree.
            while !listings.is_empty() {
                let (mut level, mut asked) = (Vec::new(), Vec::new());
                for (path, listed) in std::mem::take(&mut listings) {
                    match listed {
                        // Deleted since its parent was listed, or a root that does not exist yet.
                        Err(OpError::NoNode) => {}
                        // One unreadable node does not hide the others.
                        Err(OpError::Refused(reason)) if path != root => unreadable.push(Unreadable { path, reason }),
                        Err(fault) => return Err(refused(&path, fault)),
                        Ok(children) => {
                            let (listed, beside) = Listed::of(children).split_off_beside(&path);
                            asked.extend(beside.into_iter().map(|(path, listed)| (path, listed, true)));
                            asked.push((path, listed, false));
                        }
                    }
                }
                let ensemble = &*ensemble;
                let described = stream::iter(asked).map(|(path, listed, is_beside)| async move {
                    (describe(ensemble, &path, listed, &mut HashMap::new()).await, is_beside)
                });
                let described: Vec<_> = described.buffered(LOCKS_IN_FLIGHT).collect().await;
                for (info, is_beside) in described {
                    if is_beside {
                        level.extend(info.unknown.iter().map(|name| node_path(&info.path, name)));
                        if !info.is_quiet() {
                            found.push(info);
                        }
                        continue;
                    }
                    let parent = info.path.trim_end_matches('/');
                    // The lock of those that ask for a lease of Kazoo's semaphore.
                    if let Some(path) = info.path.strip_suffix(KAZOO_LOCK).filter(|_| !info.is_quiet()) {
                        semaphores.push((path.to_owned(), Vec::new()));
                        continue;
                    }
                    let may_be_semaphore =
                        |name: &String| name == CURATOR_LEASES || ForeignSemaphore::kazoo_lease(name).is_some();
                    if info.is_quiet() && info.unknown.iter().any(may_be_semaphore) {
                        semaphores.push((info.path.clone(), info.unknown.clone()));
                    }
                    let names = info.unknown.iter().chain(info.sessionless.iter().map(|info| &info.node));
                    let below = names.map(|name| format!("{parent}/{name}"));
                    level.extend(below.filter(|path| !is_of_records(path)));
                    if info.is_quiet() && info.sessionless.is_empty() { quiet.push(info) } else { found.push(info) }
                }
                // Of a semaphore, the nodes below its path are no locks.
                for (path, mut names) in std::mem::take(&mut semaphores) {
                    if names.is_empty() {
                        names = ensemble.list(&path).await.map(|children| children.names).unwrap_or_default();
                    }
                    let Some(listed) = Listed::of_semaphore(ensemble, &path, &names).await else { continue };
                    let own = listed.nodes(&path);
                    let is_own = |node: &str| own.iter().any(|own| own == node || above(own) == node);
                    level.retain(|node| !is_own(node));
                    quiet.retain(|info| info.path != path);
                    let info = describe(ensemble, &path, listed, &mut HashMap::new()).await;
                    if !info.is_quiet() && !found.iter().any(|it| it.path == path) {
                        found.push(info);
                    }
                }
                let records = std::mem::take(&mut quiet).into_iter().map(|mut info| async {
                    let (seen, record) = lease::record(ensemble, &info.path).await?;
                    lease::describe(&mut info, &seen, &record);
                    Some(info)
                });
                let records = stream::iter(records).buffered(READS_IN_FLIGHT).collect::<Vec<_>>().await;
                found.extend(records.into_iter().flatten());
                listings = stream::iter(level)
                    .map(|path| {
                        let listing = ensemble.list(&path);
                        async move { (path, listing.await) }
                    })
                    .buffered(READS_IN_FLIGHT)
                    .collect()
                    .await;
            }
            found.sort_by(|a, b| a.path.cmp(&b.path));
            unreadable.sort_by(|a: &Unreadable, b| a.path.cmp(&b.path));
            Ok((found, unreadable))
        });
        let (found, unreadable) = listed.await?;
        let epoch = self.known_epoch().await?;
        Ok(LockListing { locks: found.into_iter().map(|info| info.in_epoch(epoch)).collect(), unreadable })
    }
}
