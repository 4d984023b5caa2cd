//! Follows the changes of one lock.

use std::collections::HashMap;
use std::fmt;

use futures_util::future::select_all;
use lockkeeper_session::ensemble::{OpError, Watcher};

use super::describe::{Listed, describe, list_and_watch};
use super::handle::Admin;
use super::info::LockInfo;
use crate::contender::ContenderInfo;
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
    /// Contenders that were read before; a node's owner does not change.
    known: HashMap<String, ContenderInfo>,
    /// A lock without a node is a free one.
    or_absent: bool,
}

impl Admin {
    /// Returns a [`Follow`] of the lock at `path`: each call of [`Follow::next`] returns the lock after its next
    /// change.
    pub fn follow(&self, path: impl AsRef<str>) -> Follow {
        let path = path.as_ref();
        let (path, watchers, known) = (self.path(path), Vec::new(), HashMap::new());
        Follow { admin: self.clone(), path, watchers, known, or_absent: false }
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
        let (mut known, or_absent) = (std::mem::take(&mut self.known), self.or_absent);
        let (info, watchers, known) = self
            .admin
            .on_session(move |ensemble| async move {
                // Always, because the session may be a new one since the last read.
                let (listed, watcher) = loop {
                    match list_and_watch(&*ensemble, &path).await {
                        Ok(listed) => break listed,
                        Err(OpError::NoNode) if or_absent => {}
                        Err(fault) => return Err(refused(&path, fault)),
                    }
                    let absent = ensemble.watch_creation(&path).await.map_err(|fault| refused(&path, fault))?;
                    // Otherwise it was created between the two requests.
                    if let Some(created) = absent {
                        break (Listed::names_of(Vec::new()), created);
                    }
                };
                known.retain(|name, _| listed.names().contains(name));
                let mut info = describe(&*ensemble, &path, listed, &mut known).await;
                let mut watchers = vec![watcher];
                for holder in info.holders.iter_mut().filter(|holder| holder.is_undated()) {
                    let read = ensemble.read_and_watch(&holder.node_path(&path)).await;
                    let Ok((node, watcher)) = read else { continue };
                    match ContenderInfo::read(holder.node.clone(), &node).granted {
                        None => watchers.push(watcher),
                        said => {
                            holder.granted = said;
                            holder.holds(None);
                            if let Some(known) = known.get_mut(&holder.node) {
                                known.granted = said;
                            }
                        }
                    }
                }
                Ok((info, watchers, known))
            })
            .await?;
        // The watches are kept only with the answer: without it, the next call looks again.
        let epoch = self.admin.known_epoch().await?;
        (self.watchers, self.known) = (watchers, known);
        Ok(info.in_epoch(epoch))
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("path", &self.path).finish_non_exhaustive()
    }
}
