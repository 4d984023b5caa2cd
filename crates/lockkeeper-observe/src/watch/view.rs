//! The locks of an observation, one by one as they change.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use lockkeeper::admin::LockInfo;

use super::Observation;

/// The locks that are in use, as [`Admin::listing`](lockkeeper::admin::Admin::listing) describes them, for a screen that shows them as they change.
/// Created by [`Observation::view`].
#[derive(Debug)]
#[must_use = "a view has no locks until it is refreshed"]
pub struct View {
    observation: Observation,
    /// Locks whose contenders were read when they were looked at last.
    late: HashSet<Arc<str>>,
}

impl View {
    pub(super) fn new(observation: Observation) -> Self {
        View { observation, late: HashSet::new() }
    }

    /// Returns the locks that have changed since the last call, by path; `None` of those that are not in use any more. The first call returns
    /// all locks. Without a tree that was read as a whole, at the start and in a gap, there is no answer.
    ///
    /// A lock of which a contender is being read comes with a later call, once: until then it would seem to have no holder. So who calls this
    /// again and again leaves time for a read between two calls.
    ///
    /// # Cost
    ///
    /// Goes through the locks that have changed. No request.
    pub fn refresh(&mut self) -> Option<BTreeMap<Arc<str>, Option<LockInfo>>> {
        let late = std::mem::take(&mut self.late);
        let mut changed = None;
        for tree in &mut self.observation.lock().trees {
            let Some(paths) = tree.unviewed.as_mut().filter(|_| tree.is_read && tree.tracker.gap().is_none()) else {
                continue;
            };
            let changed = changed.get_or_insert_with(BTreeMap::new);
            for path in std::mem::take(paths) {
                if tree.tracker.is_being_read(&path) && !late.contains(&path) {
                    self.late.insert(path.clone());
                    paths.insert(path);
                } else {
                    let lock = tree.tracker.described(&path);
                    changed.insert(path, lock);
                }
            }
        }
        changed
    }

    /// Whether a lock that has changed comes with the next call of [`View::refresh`], although nothing changes until then.
    pub fn is_late(&self) -> bool {
        !self.late.is_empty()
    }
}
