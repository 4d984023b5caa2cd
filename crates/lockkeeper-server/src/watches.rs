//! Who is to be told of which change.
//!
//! Watches belong to a connection, not to a session: a client that reconnects brings its list along, so there is nothing to
//! carry over, and nothing to keep for clients that are gone. They fire once.
//!
//! Invariant: a path is listed under a connection if and only if the connection is listed under the path.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::request::{EventKind, WatchKind};
use crate::sessions::ConnectionId;

/// The connections watching one path, each list in order of connection.
#[derive(Clone, Debug, Default)]
struct Watchers {
    data: Vec<ConnectionId>,
    child: Vec<ConnectionId>,
}

impl Watchers {
    fn holds(&self, connection: ConnectionId) -> bool {
        contains(&self.data, connection) || contains(&self.child, connection)
    }
}

/// All watches.
#[derive(Clone, Debug, Default)]
pub struct Watches {
    by_path: HashMap<Arc<str>, Watchers>,
    by_connection: HashMap<ConnectionId, HashSet<Arc<str>>>,
    count: usize,
}

impl Watches {
    /// Adds a watch; a second one of the same kind is the same watch.
    pub fn add(&mut self, connection: ConnectionId, path: &str, kind: WatchKind) {
        let path = match self.by_path.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None => Arc::from(path),
        };
        let watchers = self.by_path.entry(Arc::clone(&path)).or_default();
        if matches!(kind, WatchKind::Data | WatchKind::Any) {
            self.count += usize::from(insert(&mut watchers.data, connection));
        }
        if matches!(kind, WatchKind::Child | WatchKind::Any) {
            self.count += usize::from(insert(&mut watchers.child, connection));
        }
        self.by_connection.entry(connection).or_default().insert(path);
    }

    /// Whether there is such a watch.
    pub fn contains(&self, connection: ConnectionId, path: &str, kind: WatchKind) -> bool {
        self.by_path.get(path).is_some_and(|watchers| match kind {
            WatchKind::Data => contains(&watchers.data, connection),
            WatchKind::Child => contains(&watchers.child, connection),
            WatchKind::Any => watchers.holds(connection),
        })
    }

    /// Removes watches of one path; false if there was none.
    pub fn remove(&mut self, connection: ConnectionId, path: &str, kind: WatchKind) -> bool {
        let Some(watchers) = self.by_path.get_mut(path) else { return false };
        let mut removed = 0;
        if matches!(kind, WatchKind::Data | WatchKind::Any) {
            removed += usize::from(remove(&mut watchers.data, connection));
        }
        if matches!(kind, WatchKind::Child | WatchKind::Any) {
            removed += usize::from(remove(&mut watchers.child, connection));
        }
        self.count -= removed;
        if !watchers.holds(connection) {
            Self::unlist(&mut self.by_connection, connection, path);
        }
        self.drop_if_empty(path);
        removed > 0
    }

    /// Takes the watches that a change fires, each connection once, in order of connection.
    ///
    /// A deleted node fires its data and its child watches, but tells a connection that left both only once.
    pub fn fire(&mut self, path: &str, kind: EventKind) -> Vec<ConnectionId> {
        let Some(watchers) = self.by_path.get_mut(path) else { return Vec::new() };
        let mut fired = match kind {
            EventKind::Created | EventKind::DataChanged => std::mem::take(&mut watchers.data),
            EventKind::ChildrenChanged => std::mem::take(&mut watchers.child),
            EventKind::Deleted => {
                let mut both = std::mem::take(&mut watchers.data);
                both.append(&mut watchers.child);
                both
            }
        };
        self.count -= fired.len();
        fired.sort_unstable();
        fired.dedup();
        for &connection in &fired {
            if !self.by_path.get(path).is_some_and(|watchers| watchers.holds(connection)) {
                Self::unlist(&mut self.by_connection, connection, path);
            }
        }
        self.drop_if_empty(path);
        fired
    }

    /// Forgets a connection.
    pub fn remove_connection(&mut self, connection: ConnectionId) {
        for path in self.by_connection.remove(&connection).unwrap_or_default() {
            if let Some(watchers) = self.by_path.get_mut(&path) {
                self.count -= usize::from(remove(&mut watchers.data, connection));
                self.count -= usize::from(remove(&mut watchers.child, connection));
            }
            self.drop_if_empty(&path);
        }
    }

    /// How many watches there are, a data and a child watch of one path counted apart.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn drop_if_empty(&mut self, path: &str) {
        if self.by_path.get(path).is_some_and(|watchers| watchers.data.is_empty() && watchers.child.is_empty()) {
            self.by_path.remove(path);
        }
    }

    fn unlist(by_connection: &mut HashMap<ConnectionId, HashSet<Arc<str>>>, connection: ConnectionId, path: &str) {
        if let Some(paths) = by_connection.get_mut(&connection) {
            paths.remove(path);
            if paths.is_empty() {
                by_connection.remove(&connection);
            }
        }
    }
}

fn contains(list: &[ConnectionId], connection: ConnectionId) -> bool {
    list.binary_search(&connection).is_ok()
}

fn insert(list: &mut Vec<ConnectionId>, connection: ConnectionId) -> bool {
    match list.binary_search(&connection) {
        Ok(_) => false,
        Err(at) => {
            list.insert(at, connection);
            true
        }
    }
}

fn remove(list: &mut Vec<ConnectionId>, connection: ConnectionId) -> bool {
    match list.binary_search(&connection) {
        Ok(at) => {
            list.remove(at);
            true
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    #[test]
    fn a_watch_fires_once() {
        let mut watches = Watches::default();
        watches.add(B, "/x", WatchKind::Data);
        watches.add(A, "/x", WatchKind::Data);
        watches.add(A, "/x", WatchKind::Data);
        assert_eq!(watches.len(), 2);
        assert_eq!(watches.fire("/x", EventKind::ChildrenChanged), []);
        assert_eq!(watches.fire("/x", EventKind::DataChanged), [A, B]);
        assert_eq!(watches.fire("/x", EventKind::DataChanged), []);
        assert!(watches.by_connection.is_empty() && watches.by_path.is_empty());
    }

    #[test]
    fn a_deletion_tells_a_connection_once_and_takes_both_watches() {
        let mut watches = Watches::default();
        watches.add(A, "/x", WatchKind::Any);
        watches.add(B, "/x", WatchKind::Child);
        assert_eq!(watches.len(), 3);
        assert_eq!(watches.fire("/x", EventKind::Deleted), [A, B]);
        assert!(watches.is_empty() && watches.by_connection.is_empty());
    }

    #[test]
    fn one_kind_can_go_while_the_other_stays() {
        let mut watches = Watches::default();
        watches.add(A, "/x", WatchKind::Any);
        assert!(watches.remove(A, "/x", WatchKind::Child));
        assert!(!watches.remove(A, "/x", WatchKind::Child));
        assert!(watches.contains(A, "/x", WatchKind::Data) && !watches.contains(A, "/x", WatchKind::Child));
        watches.remove_connection(A);
        assert!(watches.is_empty() && watches.by_path.is_empty());
    }
}
