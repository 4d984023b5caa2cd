//! Watches: which connections get an event for which change.
//!
//! Watches belong to a connection, not to a session. A client that reconnects sends its list again, so nothing is
//! carried over or kept for clients that have disconnected. The watches of reads fire once, persistent ones until they
//! are removed.
//!
//! A connection that has gone may have had a million watches. They are forgotten in slices, and fire for nobody meanwhile.
//!
//! Invariant: a path is listed under a connection, or among the paths of a connection that has gone, if the connection is
//! listed under the path. The reverse holds for connections that have not gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use lockkeeper_wire::{EventKind, WatchKind};

use crate::machine::budget;
use crate::machine::sessions::ConnectionId;
use crate::machine::work;

/// The watches of one connection on one path: a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Modes(u8);

impl Modes {
    const DATA: u8 = 1;
    const CHILD: u8 = 2;
    const PERSISTENT: u8 = 4;
    const RECURSIVE: u8 = 8;

    /// Returns the watches that a request for this kind means.
    fn of(kind: WatchKind) -> u8 {
        match kind {
            WatchKind::Data => Self::DATA,
            WatchKind::Child => Self::CHILD,
            WatchKind::Persistent => Self::PERSISTENT,
            WatchKind::PersistentRecursive => Self::RECURSIVE,
            WatchKind::Any => u8::MAX,
        }
    }

    /// Returns the one-shot watches of a node that this change of the node fires.
    fn once(kind: EventKind) -> u8 {
        match kind {
            EventKind::Created | EventKind::DataChanged => Self::DATA,
            EventKind::ChildrenChanged => Self::CHILD,
            EventKind::Deleted => Self::DATA | Self::CHILD,
        }
    }

    fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// The connections that watch one path, in order of connection, each with at least one watch.
type Watchers = Vec<(ConnectionId, Modes)>;

#[derive(Clone, Debug, Default)]
pub struct Watches {
    by_path: HashMap<Arc<str>, Watchers>,
    by_connection: BTreeMap<ConnectionId, BTreeSet<Arc<str>>>,
    count: usize,
    /// The bytes of all watched paths, each path once.
    path_bytes: u64,
    /// How many recursive watches paths with this hash have. An event looks up only those above its path that are in here.
    recursive: HashMap<u64, usize>,
    hashes: RandomState,
    /// The paths of connections that have gone, as far as they are not forgotten.
    gone: BTreeMap<ConnectionId, BTreeSet<Arc<str>>>,
}

/// The most units of work for which watches are forgotten at once.
const SLICE: usize = 10_000;

/// Returns each path above this one and then the path itself, with their hashes. All of them take one look at the bytes.
fn levels<'a>(hashes: &RandomState, path: &'a str) -> impl Iterator<Item = (&'a str, u64)> + use<'a> {
    let mut hasher = hashes.build_hasher();
    let ends = path.match_indices('/').skip(1).map(|(at, _)| at);
    let own = (path.len() > 1).then_some(path.len());
    let mut hashed = 0;
    std::iter::once(0).chain(ends).chain(own).map(move |end| {
        hasher.write(&path.as_bytes()[hashed..end]);
        hashed = end;
        (if end == 0 { "/" } else { &path[..end] }, hasher.finish())
    })
}

impl Watches {
    /// Adds a watch; a second one of the same kind has no effect. [`WatchKind::Any`] is a data watch and a child
    /// watch.
    pub fn add(&mut self, connection: ConnectionId, path: &str, kind: WatchKind) {
        let added = if kind == WatchKind::Any { Modes::DATA | Modes::CHILD } else { Modes::of(kind) };
        let path = match self.by_path.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None => {
                self.path_bytes += path.len() as u64;
                Arc::from(path)
            }
        };
        let watchers = self.by_path.entry(Arc::clone(&path)).or_default();
        let at = find(watchers, connection).unwrap_or_else(|at| {
            watchers.insert(at, (connection, Modes(0)));
            self.by_connection.entry(connection).or_default().insert(Arc::clone(&path));
            at
        });
        let modes = &mut watchers[at].1;
        let before = *modes;
        modes.0 |= added;
        self.count += modes.len() - before.len();
        if (modes.0 & !before.0) & Modes::RECURSIVE != 0 {
            let hash = self.hash(&path);
            *self.recursive.entry(hash).or_default() += 1;
        }
    }

    fn hash(&self, path: &str) -> u64 {
        levels(&self.hashes, path).last().map_or(0, |(_, hash)| hash)
    }

    /// Returns the paths above this one that have recursive watches.
    fn watched_above<'a>(&self, path: &'a str) -> impl Iterator<Item = &'a str> {
        let used = !self.recursive.is_empty();
        let levels = used.then(|| levels(&self.hashes, path)).into_iter().flatten();
        levels
            .filter(move |(above, hash)| above.len() < path.len() && self.recursive.contains_key(hash))
            .map(|(above, _)| above)
    }

    fn recursive_removed(&mut self, path: &str, count: usize) {
        if count == 0 {
            return;
        }
        let hash = self.hash(path);
        if let Some(left) = self.recursive.get_mut(&hash) {
            *left -= count;
            if *left == 0 {
                self.recursive.remove(&hash);
            }
        }
    }

    /// Returns whether there is such a watch.
    pub fn contains(&self, connection: ConnectionId, path: &str, kind: WatchKind) -> bool {
        let modes = self.by_path.get(path).and_then(|watchers| Some(watchers[find(watchers, connection).ok()?].1));
        modes.is_some_and(|modes| modes.0 & Modes::of(kind) != 0)
    }

    /// Removes watches of one path; returns false if there was none.
    pub fn remove(&mut self, connection: ConnectionId, path: &str, kind: WatchKind) -> bool {
        let removed = self.take(connection, path, Modes::of(kind));
        if self.by_path.get(path).is_none_or(|watchers| find(watchers, connection).is_err()) {
            Self::unlist(&mut self.by_connection, connection, path);
        }
        removed
    }

    /// Removes watches from a path, but not the path from the connection's list.
    fn take(&mut self, connection: ConnectionId, path: &str, modes: u8) -> bool {
        let Some(watchers) = self.by_path.get_mut(path) else { return false };
        let Ok(at) = find(watchers, connection) else { return false };
        let present = watchers[at].1;
        let removed = Modes(present.0 & modes);
        watchers[at].1 = Modes(present.0 & !modes);
        if watchers[at].1 == Modes(0) {
            watchers.remove(at);
        }
        if watchers.is_empty() {
            self.by_path.remove(path);
            self.path_bytes -= path.len() as u64;
        }
        self.count -= removed.len();
        self.recursive_removed(path, usize::from(removed.0 & Modes::RECURSIVE != 0));
        removed != Modes(0)
    }

    /// Returns whether the events of so many operations may be too much work, whatever the paths are.
    pub(crate) fn may_need_counting(&self, ops: usize) -> bool {
        // Each operation has at most two events.
        self.by_connection.len().saturating_mul(2 * ops).saturating_mul(work::LONGEST_EVENT) > work::MOST
    }

    /// Returns how many connections a change concerns, and how many of them the next change of this kind concerns too. A
    /// connection that watches a node and one above it counts twice.
    pub(crate) fn concerned(&self, path: &str, kind: EventKind) -> (usize, usize) {
        let recursive = if kind == EventKind::ChildrenChanged { 0 } else { Modes::RECURSIVE };
        let lasting = Modes::PERSISTENT | recursive;
        let count = |path: &str, modes: u8| {
            self.by_path.get(path).into_iter().flatten().filter(|(_, found)| found.0 & modes != 0).count()
        };
        let above = match recursive {
            0 => 0,
            _ => self.watched_above(path).map(|above| count(above, recursive)).sum(),
        };
        (count(path, Modes::once(kind) | lasting) + above, count(path, lasting) + above)
    }

    /// Returns the connections that a change concerns, each once, in order of connection. Removes the one-shot watches
    /// that fire.
    ///
    /// The deletion of a node fires its data and its child watches; a connection with both gets one event. Recursive
    /// watches fire for every node at or below theirs, but not for lists of children, which the client can derive.
    pub fn fire(&mut self, path: &str, kind: EventKind) -> Vec<ConnectionId> {
        let recursive = if kind == EventKind::ChildrenChanged { 0 } else { Modes::RECURSIVE };
        let once = Modes::once(kind);
        let mut fired = Vec::new();
        self.forget_gone(path);
        if let Some(watchers) = self.by_path.get_mut(path) {
            let (count, by_connection) = (&mut self.count, &mut self.by_connection);
            watchers.retain_mut(|(connection, modes)| {
                if modes.0 & (once | Modes::PERSISTENT | recursive) != 0 {
                    fired.push(*connection);
                }
                *count -= Modes(modes.0 & once).len();
                modes.0 &= !once;
                if modes.0 == 0 {
                    Self::unlist(by_connection, *connection, path);
                }
                modes.0 != 0
            });
            if watchers.is_empty() {
                self.by_path.remove(path);
                self.path_bytes -= path.len() as u64;
            }
        }
        if recursive != 0 {
            let above: Vec<_> = self.watched_above(path).collect();
            for above in &above {
                self.forget_gone(above);
                let watchers = self.by_path.get(*above).into_iter().flatten();
                fired.extend(watchers.filter(|(_, modes)| modes.0 & recursive != 0).map(|(connection, _)| connection));
            }
            if !above.is_empty() {
                fired.sort_unstable();
                fired.dedup();
            }
        }
        fired
    }

    /// Removes a connection. Its watches do not fire any more; a slice of them is forgotten, and the others by
    /// [`Watches::forget`].
    pub fn remove_connection(&mut self, connection: ConnectionId) {
        if let Some(paths) = self.by_connection.remove(&connection) {
            self.gone.insert(connection, paths);
            self.forget();
        }
    }

    /// Returns whether there are watches to forget.
    pub(crate) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Forgets a slice of the watches of connections that have gone.
    pub(crate) fn forget(&mut self) {
        let mut units = 0;
        while units < SLICE
            && let Some(mut entry) = self.gone.first_entry()
        {
            let connection = *entry.key();
            match entry.get_mut().pop_first() {
                None => drop(entry.remove()),
                Some(path) => {
                    // Those behind it move up.
                    units += work::WATCH + self.by_path.get(&path).map_or(0, Vec::len) / 64;
                    self.take(connection, &path, u8::MAX);
                }
            }
        }
    }

    /// Forgets the watches of one path whose connections have gone.
    fn forget_gone(&mut self, path: &str) {
        if self.gone.is_empty() {
            return;
        }
        let Some(watchers) = self.by_path.get_mut(path) else { return };
        let (mut recursive, count, gone) = (0, &mut self.count, &self.gone);
        watchers.retain(|(connection, modes)| {
            let stays = !gone.contains_key(connection);
            if !stays {
                *count -= modes.len();
                recursive += usize::from(modes.0 & Modes::RECURSIVE != 0);
            }
            stays
        });
        if watchers.is_empty() {
            self.by_path.remove(path);
            self.path_bytes -= path.len() as u64;
        }
        self.recursive_removed(path, recursive);
    }

    /// Returns the number of watches; different kinds on one path count separately.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the cost of all watches; see [`budget`].
    pub(crate) fn cost(&self) -> u64 {
        self.path_bytes + budget::WATCH * self.count as u64
    }

    /// Returns the cost of all watches, counted again.
    #[cfg(test)]
    pub(crate) fn recounted(&self) -> u64 {
        let watch = |(_, modes): &(ConnectionId, Modes)| budget::WATCH * modes.len() as u64;
        self.by_path.iter().map(|(path, of)| path.len() as u64 + of.iter().map(watch).sum::<u64>()).sum()
    }

    /// Returns the number of watched paths.
    pub fn paths(&self) -> usize {
        self.by_path.len()
    }

    /// Returns the connections that watch a path, in order.
    pub fn watchers(&self, path: &str) -> impl Iterator<Item = ConnectionId> {
        self.by_path.get(path).into_iter().flatten().map(|(connection, _)| *connection)
    }

    /// Returns each connection with each of its watched paths, in order, from behind this pair. So a long list can be
    /// read in slices while watches come and go.
    pub fn behind<'a>(
        &'a self,
        last: Option<(ConnectionId, &'a str)>,
    ) -> impl Iterator<Item = (ConnectionId, &'a Arc<str>)> {
        let rest = last.and_then(|(connection, path)| {
            let paths = self.by_connection.get(&connection)?;
            Some(paths.range::<str, _>((Excluded(path), Unbounded)).map(move |path| (connection, path)))
        });
        let from = last.map_or(Unbounded, |(connection, _)| Excluded(connection));
        let others = self.by_connection.range((from, Unbounded));
        rest.into_iter().flatten().chain(others.flat_map(|(of, paths)| paths.iter().map(|path| (*of, path))))
    }

    /// Returns the number of connections with watches.
    pub fn watching_connections(&self) -> usize {
        self.by_connection.len()
    }

    fn unlist(by_connection: &mut BTreeMap<ConnectionId, BTreeSet<Arc<str>>>, connection: ConnectionId, path: &str) {
        if let Some(paths) = by_connection.get_mut(&connection) {
            paths.remove(path);
            if paths.is_empty() {
                by_connection.remove(&connection);
            }
        }
    }
}

fn find(watchers: &Watchers, connection: ConnectionId) -> Result<usize, usize> {
    watchers.binary_search_by_key(&connection, |(connection, _)| *connection)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    fn a_deletion_notifies_a_connection_once_and_removes_both_watches() {
        let mut watches = Watches::default();
        watches.add(A, "/x", WatchKind::Any);
        watches.add(B, "/x", WatchKind::Child);
        assert_eq!(watches.len(), 3);
        assert_eq!(watches.fire("/x", EventKind::Deleted), [A, B]);
        assert!(watches.len() == 0 && watches.by_connection.is_empty());
    }

    #[test]
    fn one_kind_can_be_removed_while_the_other_stays() {
        let mut watches = Watches::default();
        watches.add(A, "/x", WatchKind::Any);
        assert!(watches.remove(A, "/x", WatchKind::Child));
        assert!(!watches.remove(A, "/x", WatchKind::Child));
        assert!(watches.contains(A, "/x", WatchKind::Data) && !watches.contains(A, "/x", WatchKind::Child));
        watches.remove_connection(A);
        assert!(watches.len() == 0 && watches.by_path.is_empty());
    }

    #[test]
    fn a_persistent_watch_fires_for_the_node_and_its_children_until_removed() {
        let mut watches = Watches::default();
        watches.add(A, "/x", WatchKind::Persistent);
        watches.add(A, "/x", WatchKind::Data);
        for kind in [EventKind::Created, EventKind::ChildrenChanged, EventKind::DataChanged, EventKind::Deleted] {
            assert_eq!(watches.fire("/x", kind), [A], "{kind:?}");
        }
        assert_eq!(watches.fire("/x/y", EventKind::Created), [], "not for the children themselves");
        assert_eq!(watches.len(), 1, "the data watch has fired");
        assert!(!watches.remove(A, "/x", WatchKind::Data) && watches.remove(A, "/x", WatchKind::Persistent));
        assert!(watches.len() == 0 && watches.by_path.is_empty() && watches.by_connection.is_empty());
    }

    #[test]
    fn a_recursive_watch_fires_for_every_node_below_but_not_for_lists() {
        let mut watches = Watches::default();
        watches.add(A, "/x", WatchKind::PersistentRecursive);
        watches.add(B, "/", WatchKind::PersistentRecursive);
        watches.add(A, "/x/y", WatchKind::Data);
        assert_eq!(watches.fire("/x", EventKind::DataChanged), [A, B]);
        assert_eq!(watches.fire("/x/y", EventKind::Deleted), [A, B], "once, for two reasons");
        assert_eq!(watches.fire("/x/y/z", EventKind::Created), [A, B]);
        assert_eq!(watches.fire("/xx", EventKind::Created), [B]);
        assert_eq!(watches.fire("/x", EventKind::ChildrenChanged), []);
        assert!(watches.remove(A, "/x", WatchKind::Any));
        watches.remove_connection(B);
        assert!(watches.recursive.is_empty());
        assert!(watches.len() == 0 && watches.by_path.is_empty() && watches.by_connection.is_empty());
    }

    /// Else every client would wait while the watches of one that has left are removed.
    #[test]
    fn the_watches_of_a_connection_that_has_gone_are_forgotten_in_slices_and_do_not_fire() {
        let mut watches = Watches::default();
        let paths: Vec<_> = (0..10_000).map(|n| format!("/x/{n:05}")).collect();
        paths.iter().for_each(|path| watches.add(A, path, WatchKind::Data));
        watches.add(A, "/x", WatchKind::PersistentRecursive);
        watches.add(B, &paths[9_999], WatchKind::Persistent);
        watches.remove_connection(A);
        let left = watches.len();
        assert!((5_000..9_900).contains(&left), "{left}");
        assert_eq!((watches.watching_connections(), watches.behind(None).count()), (1, 1));
        assert_eq!(watches.fire(&paths[9_999], EventKind::DataChanged), [B]);
        assert_eq!(watches.fire("/x", EventKind::DataChanged), []);
        while watches.has_gone() {
            let before = watches.len();
            watches.forget();
            assert!(before - watches.len() < 2_000);
        }
        assert_eq!((watches.len(), watches.paths(), watches.cost()), (1, 1, watches.recounted()));
        assert!(watches.recursive.is_empty());
    }

    /// A path of 16 000 names took 0.12 s for each event, because each path above it was hashed.
    #[test]
    fn an_event_looks_up_only_the_watched_paths_above_its_own() {
        let mut watches = Watches::default();
        let deep = "/n".repeat(2_000);
        assert_eq!(watches.watched_above(&deep).count(), 0);
        for path in ["/", "/n/n", "/other", &deep, &"/n".repeat(2_001)] {
            watches.add(A, path, WatchKind::PersistentRecursive);
        }
        assert_eq!(watches.watched_above(&deep).collect::<Vec<_>>(), ["/", "/n/n"]);
        assert_eq!(watches.watched_above("/n/n").collect::<Vec<_>>(), ["/"]);
        assert_eq!(watches.watched_above("/n/nn").collect::<Vec<_>>(), ["/"]);
        assert_eq!(watches.watched_above("/").count(), 0);
        watches.remove_connection(A);
        assert_eq!(watches.watched_above(&deep).count(), 0);
    }

    proptest! {
        /// After any steps, both lists and both counts agree.
        #[test]
        fn the_lists_agree(steps in proptest::collection::vec((0..4_u8, 1..4_u64, 0..4_usize, 0..5_usize), 0..60)) {
            use WatchKind::{Any, Child, Data, Persistent, PersistentRecursive};
            let kinds = [Child, Data, Any, Persistent, PersistentRecursive];
            let events = [EventKind::Created, EventKind::Deleted, EventKind::DataChanged, EventKind::ChildrenChanged];
            let mut watches = Watches::default();
            for (step, connection, path, kind) in steps {
                let (connection, path) = (ConnectionId(connection), ["/", "/x", "/x/y", "/x/z"][path]);
                match step {
                    0 => watches.add(connection, path, kinds[kind]),
                    1 => _ = watches.remove(connection, path, kinds[kind]),
                    2 => _ = watches.fire(path, events[kind % 4]),
                    _ => watches.remove_connection(connection),
                }
                let all = || watches.by_path.iter().flat_map(|(path, list)| list.iter().map(move |entry| (path, *entry)));
                prop_assert_eq!(all().map(|(_, (_, modes))| modes.len()).sum::<usize>(), watches.count);
                prop_assert_eq!(all().filter(|(_, (_, modes))| modes.0 & Modes::RECURSIVE != 0).count(), watches.recursive.values().sum::<usize>());
                prop_assert!(all().all(|(path, (id, modes))| modes.0 != 0 && watches.by_connection[&id].contains(path)));
                prop_assert_eq!(all().count(), watches.by_connection.values().map(BTreeSet::len).sum::<usize>());
                prop_assert!(watches.by_path.values().all(|list| !list.is_empty()));
                prop_assert_eq!(watches.cost(), watches.recounted());
                let (mut last, mut listed): (Option<(ConnectionId, Arc<str>)>, _) = (None, 0);
                loop {
                    let behind = last.as_ref().map(|(connection, path)| (*connection, &**path));
                    let next = watches.behind(behind).next().map(|(connection, path)| (connection, Arc::clone(path)));
                    let Some((connection, path)) = next else { break };
                    prop_assert!(watches.contains(connection, &path, Any));
                    last = Some((connection, path));
                    listed += 1;
                }
                prop_assert_eq!(listed, all().count(), "one by one, all are listed once");
            }
        }
    }
}
