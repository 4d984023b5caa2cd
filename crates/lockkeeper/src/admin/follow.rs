//! Follows the changes of one lock.

use std::collections::{HashMap, HashSet};
use std::fmt;

use futures_util::future::select_all;
use lockkeeper_session::ensemble::{Node, OpError, Watcher};

use super::handle::Admin;
use super::info::LockInfo;
use super::read::{Walk, describe, list};
use crate::contest::node_of;
use crate::error::{AdminError, refused};

/// The changes of one lock. Created by [`Admin::follow`].
///
/// It watches the lock's children. So every contender that enters or leaves wakes it and costs a write. A holder that was seen
/// waiting costs a read, with a watch, until its record says when it was granted the lock. Use it for a person, not for a fleet.
///
/// # Examples
///
/// ```
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let mut changes = keeper.admin().follow("/locks/nightly");
/// loop {
///     let lock = changes.next().await?; // the first one at once
///     if lock.holders.is_empty() {
///         break;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is followed until it is asked for the next change"]
pub struct Follow {
    admin: Admin,
    path: Result<String, AdminError>,
    /// The watches of the last look: on the children, and on the record of each holder that is about to say when it was granted
    /// the lock.
    watchers: Vec<Watcher>,
    /// The nodes of contenders that were read before.
    nodes: HashMap<String, Node>,
    /// The contenders that were seen waiting.
    waited: HashSet<String>,
    /// A lock without a node is a free one.
    or_absent: bool,
}

impl Admin {
    /// Returns a [`Follow`] of the lock at `path`: each call of [`Follow::next`] returns the lock after its next
    /// change.
    pub fn follow(&self, path: impl AsRef<str>) -> Follow {
        let path = path.as_ref();
        let (nodes, waited) = (HashMap::new(), HashSet::new());
        Follow { admin: self.clone(), path: self.path(path), watchers: Vec::new(), nodes, waited, or_absent: false }
    }
}

impl Follow {
    /// Also follows a lock before its node is created, and after the node is deleted: [`Follow::next`] then returns it without
    /// contenders, instead of [`AdminError::NoSuchLock`], and waits for the next creation. A mistyped path is not noticed. A lock in the
    /// node format [`Numbered`](crate::NodeFormat::Numbered) has no node while it has no contender, so a contender that comes then may not be
    /// noticed.
    pub fn or_absent(mut self) -> Self {
        self.or_absent = true;
        self
    }

    /// Returns the lock: the first call its present state, later calls the state after the next change.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind; the next call reports a change that happens meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Admin::show`]; also [`AdminError::NoSuchLock`] if the lock has no node, without [`Follow::or_absent`].
    pub async fn next(&mut self) -> Result<LockInfo, AdminError> {
        let path = self.path.clone()?;
        if !self.watchers.is_empty() {
            select_all(&mut self.watchers).await;
            self.watchers.clear();
        }
        let (mut nodes, mut waited) = (std::mem::take(&mut self.nodes), std::mem::take(&mut self.waited));
        let or_absent = self.or_absent;
        let looked = self.admin.on_session(move |ensemble| async move {
            let ensemble = &*ensemble;
            let looked = async {
                // Always, because the session may be a new one since the last read.
                let (mut walk, watcher) = loop {
                    let watched = match list(ensemble, &path, std::mem::take(&mut nodes)).await {
                        Ok(mut walk) => walk.watch(ensemble, &path).await.map(|watcher| (walk, watcher)),
                        Err(fault) => Err(fault),
                    };
                    match watched {
                        Err(OpError::NoNode) if or_absent => {}
                        watched => break watched?,
                    }
                    // Otherwise it was created between the two requests.
                    if let Some(created) = ensemble.watch_creation(&path).await? {
                        break (Walk::default(), created);
                    }
                };
                let mut watchers = vec![watcher];
                let mut lock = describe(ensemble, &path, &mut walk).await?;
                let undated = lock.holders.iter().filter(|holder| waited.contains(&holder.node) && holder.is_undated());
                for node in undated.map(|holder| holder.node_path(&path)).collect::<Vec<_>>() {
                    let Ok((read, watcher)) = ensemble.read_and_watch(&node).await else { continue };
                    watchers.push(watcher);
                    walk.nodes.insert(node, read);
                }
                // Beside the watch on the queue, each was set with a read that may say more.
                if watchers.len() > 1 {
                    lock = describe(ensemble, &path, &mut walk).await?;
                }
                waited = lock.waiters.iter().map(|waiter| waiter.node.clone()).chain(waited).collect();
                waited.retain(|name| walk.nodes.contains_key(&node_of(&path, name)));
                Ok((lock, watchers, walk.nodes, waited))
            };
            looked.await.map_err(|fault| refused(&path, fault))
        });
        let (lock, watchers, nodes, waited) = looked.await?;
        // The watches are kept only with the answer: without it, the next call looks again.
        let epoch = self.admin.known_epoch().await?;
        (self.watchers, self.nodes, self.waited) = (watchers, nodes, waited);
        Ok(lock.in_epoch(epoch))
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("path", &self.path).finish_non_exhaustive()
    }
}
