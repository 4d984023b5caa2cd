//! Follows the changes of one lock.

use std::collections::HashMap;
use std::fmt;

use lockkeeper_core::LockPath;

use super::describe::{describe, list_and_watch};
use super::handle::Admin;
use super::info::LockInfo;
use crate::contender::ContenderInfo;
use crate::ensemble::{Watcher, refused};
use crate::error::AdminError;

/// The changes of one lock. Created by [`Admin::follow`].
///
/// It watches the lock's children. So every contender that enters or leaves wakes it and costs a write. Use it for a
/// person, not for a fleet.
pub struct Follow {
    admin: Admin,
    path: Result<LockPath, lockkeeper_core::PathError>,
    watcher: Option<Watcher>,
    /// Contenders that were read before; a node's owner does not change.
    known: HashMap<String, ContenderInfo>,
}

impl Admin {
    /// Returns a [`Follow`] of the lock at `path`: each call of [`Follow::next`] returns the lock after its next
    /// change.
    pub fn follow(&self, path: impl AsRef<str>) -> Follow {
        let path = path.as_ref();
        Follow { admin: self.clone(), path: LockPath::parse_node(path), watcher: None, known: HashMap::new() }
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
        if let Some(watcher) = &mut self.watcher {
            watcher.await;
            self.watcher = None;
        }
        let mut known = std::mem::take(&mut self.known);
        let (info, watcher, known) = self
            .admin
            .on_session(move |ensemble| async move {
                // Always, because the session may be a new one since the last read.
                let (listed, watcher) =
                    list_and_watch(&*ensemble, &path).await.map_err(|fault| refused(&path, fault))?;
                known.retain(|name, _| listed.names().contains(name));
                let info = describe(&*ensemble, &path, listed, &mut known).await;
                Ok((info, Some(watcher), known))
            })
            .await?;
        self.watcher = watcher;
        self.known = known;
        Ok(info.in_epoch(self.admin.known_epoch().await?))
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("path", &self.path).finish_non_exhaustive()
    }
}
