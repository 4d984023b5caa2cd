//! Follows the changes of one lock.

use std::collections::HashMap;
use std::fmt;

use futures_util::future::select_all;
use lockkeeper_core::LockPath;

use super::describe::{describe, list_and_watch};
use super::handle::Admin;
use super::info::LockInfo;
use crate::contender::ContenderInfo;
use crate::ensemble::{Watcher, refused};
use crate::error::AdminError;

/// The changes of one lock. Created by [`Admin::follow`].
///
/// It watches the lock's children. So every contender that enters or leaves wakes it and costs a write. A holder that was seen
/// waiting costs a read, with a watch, until its record says when it was granted the lock. Use it for a person, not for a fleet.
pub struct Follow {
    admin: Admin,
    path: Result<LockPath, lockkeeper_core::PathError>,
    /// The watches of the last look: on the children, and on the record of each holder that is about to say when it was granted
    /// the lock.
    watchers: Vec<Watcher>,
    /// Contenders that were read before; a node's owner does not change.
    known: HashMap<String, ContenderInfo>,
}

impl Admin {
    /// Returns a [`Follow`] of the lock at `path`: each call of [`Follow::next`] returns the lock after its next
    /// change.
    pub fn follow(&self, path: impl AsRef<str>) -> Follow {
        let path = path.as_ref();
        Follow { admin: self.clone(), path: LockPath::parse_node(path), watchers: Vec::new(), known: HashMap::new() }
    }
}

impl Follow {
    /// Returns the lock: the first call its present state, later calls the state after the next change.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind; the next call reports a change that happens meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Admin::show`]; also [`AdminError::NoSuchLock`] if the lock has no node.
    pub async fn next(&mut self) -> Result<LockInfo, AdminError> {
        let path = self.path.clone()?.to_string();
        if !self.watchers.is_empty() {
            select_all(&mut self.watchers).await;
            self.watchers.clear();
        }
        let mut known = std::mem::take(&mut self.known);
        let (info, watchers, known) = self
            .admin
            .on_session(move |ensemble| async move {
                // Always, because the session may be a new one since the last read.
                let (listed, watcher) =
                    list_and_watch(&*ensemble, &path).await.map_err(|fault| refused(&path, fault))?;
                known.retain(|name, _| listed.names().contains(name));
                let mut info = describe(&*ensemble, &path, listed, &mut known).await;
                let mut watchers = vec![watcher];
                for holder in info.holders.iter_mut().filter(|holder| holder.is_undated()) {
                    let read = ensemble.read_and_watch(&holder.node_path(&path)).await;
                    let Ok((node, watcher)) = read else { continue };
                    holder.granted = ContenderInfo::read(holder.node.clone(), &node).granted;
                    if holder.is_undated() {
                        watchers.push(watcher);
                    } else if let Some(known) = known.get_mut(&holder.node) {
                        known.granted = holder.granted;
                    }
                }
                Ok((info, watchers, known))
            })
            .await?;
        self.watchers = watchers;
        self.known = known;
        Ok(info.in_epoch(self.admin.known_epoch().await?))
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("path", &self.path).finish_non_exhaustive()
    }
}
