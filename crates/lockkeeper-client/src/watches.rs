//! The watches of a session, and which of them an event fires.
//!
//! A server keeps one watch for each path and kind of a connection, no matter how often it is set. This table keeps
//! the waiters behind it. A server's watches end with their connection, so the session sets them again from this table
//! after a reconnect.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use lockkeeper_wire::{EventKind, Request, SetWatches, WatchKind};

use crate::types::RequestId;

/// Maximum bytes of paths in one `setWatches` packet. Apache's clients use the same number
/// (`ClientCnxn.SET_WATCHES_MAX_LENGTH`); a server's default limit for a packet is 1 MiB.
const PACKET: usize = 128 << 10;

/// The kind of a watch, as the client must set it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Left by `getData`, and by `exists` of an existing node.
    Data,
    /// Left by `exists` of a missing node.
    Exist,
    Child,
    /// Left by `addWatch`: a node and its list of children.
    Persistent,
    /// Left by `addWatch`: a node and its descendants.
    Recursive,
}

impl Class {
    const ALL: [Class; 5] = [Class::Data, Class::Exist, Class::Child, Class::Persistent, Class::Recursive];

    pub(crate) fn is_one_shot(self) -> bool {
        matches!(self, Class::Data | Class::Exist | Class::Child)
    }

    /// Returns the kind that `removeWatches` uses.
    pub(crate) fn kind(self) -> WatchKind {
        match self {
            Class::Data | Class::Exist => WatchKind::Data,
            Class::Child => WatchKind::Child,
            Class::Persistent => WatchKind::Persistent,
            Class::Recursive => WatchKind::PersistentRecursive,
        }
    }

    /// Returns whether an event of this kind at the watched path fires it.
    fn fires(self, kind: EventKind) -> bool {
        match self {
            Class::Data | Class::Exist | Class::Recursive => kind != EventKind::ChildrenChanged,
            Class::Child => matches!(kind, EventKind::ChildrenChanged | EventKind::Deleted),
            Class::Persistent => true,
        }
    }
}

/// What the session needs from a request.
pub(crate) trait Watched {
    /// Makes it a request without a watch.
    fn forget_watch(&mut self);
    /// Returns the path and the class of the watch that it asks for.
    fn watch(&self) -> Option<(&str, Class)>;
    /// Returns whether only the session may make it.
    fn is_the_sessions_own(&self) -> bool;
}

impl Watched for Request {
    fn forget_watch(&mut self) {
        match self {
            Request::GetData(watched)
            | Request::Exists(watched)
            | Request::GetChildren(watched)
            | Request::GetChildren2(watched) => watched.watch = false,
            // It is answered like every other request and leaves no watch.
            Request::AddWatch { path, .. } => *self = Request::Sync { path: std::mem::take(path) },
            _ => {}
        }
    }

    fn watch(&self) -> Option<(&str, Class)> {
        match self {
            Request::GetData(watched) if watched.watch => Some((&watched.path, Class::Data)),
            Request::Exists(watched) if watched.watch => Some((&watched.path, Class::Exist)),
            Request::GetChildren(watched) | Request::GetChildren2(watched) if watched.watch => {
                Some((&watched.path, Class::Child))
            }
            Request::AddWatch { path, recursive } => {
                Some((path, if *recursive { Class::Recursive } else { Class::Persistent }))
            }
            _ => None,
        }
    }

    fn is_the_sessions_own(&self) -> bool {
        // A server answers a ping with another xid, and the others would change the session behind its back.
        matches!(self, Request::Ping | Request::CloseSession | Request::SetWatches(_) | Request::RemoveWatches { .. })
    }
}

/// The watches of one session.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_path: HashMap<Arc<str>, Vec<(Class, RequestId)>>,
    by_id: HashMap<RequestId, Arc<str>>,
    recursive: usize,
}

impl Watches {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn add(&mut self, path: &Arc<str>, class: Class, id: RequestId) {
        // Both tables and all watches of a path share one copy of it.
        let path = match self.by_path.entry(path.clone()) {
            Entry::Occupied(mut known) => {
                known.get_mut().push((class, id));
                known.key().clone()
            }
            Entry::Vacant(new) => {
                let path = new.key().clone();
                // Most paths have one watch; a `Vec` that grows by itself would reserve four.
                new.insert(Vec::with_capacity(1)).push((class, id));
                path
            }
        };
        self.recursive += usize::from(class == Class::Recursive);
        self.by_id.insert(id, path);
    }

    /// Returns whether there is a watch of this kind at the path.
    pub(crate) fn has(&self, path: &str, class: Class) -> bool {
        self.by_path.get(path).is_some_and(|here| here.iter().any(|(other, _)| other.kind() == class.kind()))
    }

    /// Removes a watch. Returns its path and class if no other watch of its kind is left at the path.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<(Arc<str>, Class)> {
        let path = self.by_id.remove(&id)?;
        let here = self.by_path.get_mut(&path)?;
        let at = here.iter().position(|(_, watch)| *watch == id)?;
        let (class, _) = here.swap_remove(at);
        self.recursive -= usize::from(class == Class::Recursive);
        let last = here.iter().all(|(other, _)| other.kind() != class.kind());
        if here.is_empty() {
            self.by_path.remove(&path);
        }
        last.then_some((path, class))
    }

    /// Removes the persistent watches. Returns them in the order in which they were set.
    pub(crate) fn remove_persistent(&mut self) -> Vec<RequestId> {
        let mut removed = Vec::new();
        self.by_path.retain(|_, here| {
            here.retain(|(class, id)| {
                if !class.is_one_shot() {
                    removed.push(*id);
                }
                class.is_one_shot()
            });
            !here.is_empty()
        });
        for id in &removed {
            self.by_id.remove(id);
        }
        self.recursive = 0;
        removed.sort_unstable();
        removed
    }

    /// Handles an event. Returns the watches that it fires, and removes the one-shot ones of them.
    pub(crate) fn fire(&mut self, kind: EventKind, path: &str) -> Vec<RequestId> {
        let mut fired = Vec::new();
        if let Some(here) = self.by_path.get_mut(path) {
            here.retain(|(class, id)| {
                let fires = class.fires(kind);
                if fires {
                    fired.push(*id);
                }
                let stays = !(fires && class.is_one_shot());
                if !stays {
                    self.by_id.remove(id);
                }
                stays
            });
            if here.is_empty() {
                self.by_path.remove(path);
            }
        }
        if self.recursive > 0 && kind != EventKind::ChildrenChanged {
            for above in ancestors(path) {
                let here = self.by_path.get(above).into_iter().flatten();
                fired.extend(here.filter(|(class, _)| *class == Class::Recursive).map(|(_, id)| *id));
            }
        }
        fired.sort_unstable();
        fired
    }

    /// Returns the packets that set all watches again over a new connection. The server sends events for changes after
    /// `zxid`.
    ///
    /// Persistent watches have packets of their own, because a server older than 3.6 refuses those.
    pub(crate) fn set_again(&self, zxid: i64) -> Vec<SetWatches> {
        let mut packets = Vec::new();
        // In the order in which they were set: the same history sends the same bytes.
        let mut paths: Vec<_> = self.by_path.iter().collect();
        paths.sort_unstable_by_key(|(_, here)| here.first().map(|(_, id)| *id));
        for persistent in [false, true] {
            let (mut packet, mut bytes) = (SetWatches { relative_zxid: zxid, ..SetWatches::default() }, 0);
            for (path, here) in &paths {
                for class in Class::ALL.into_iter().filter(|class| class.is_one_shot() != persistent) {
                    if here.iter().all(|(other, _)| *other != class) {
                        continue;
                    }
                    if bytes > 0 && bytes + path.len() > PACKET {
                        packets.push(std::mem::replace(
                            &mut packet,
                            SetWatches { relative_zxid: zxid, ..SetWatches::default() },
                        ));
                        bytes = 0;
                    }
                    bytes += path.len();
                    let list = match class {
                        Class::Data => &mut packet.data,
                        Class::Exist => &mut packet.exist,
                        Class::Child => &mut packet.child,
                        Class::Persistent => &mut packet.persistent,
                        Class::Recursive => &mut packet.recursive,
                    };
                    list.push(path.to_string());
                }
            }
            if !packet.is_empty() {
                packets.push(packet);
            }
        }
        packets
    }
}

/// Returns the paths above this one, the nearest first.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |below| match below.rfind('/') {
        Some(0) if below.len() > 1 => Some("/"),
        Some(0) | None => None,
        Some(at) => Some(&below[..at]),
    })
    .skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(watches: &[(&str, Class)]) -> Watches {
        let mut table = Watches::default();
        for (at, (path, class)) in watches.iter().enumerate() {
            table.add(&Arc::from(*path), *class, RequestId(at as u64));
        }
        table
    }

    fn ids(fired: &[RequestId]) -> Vec<u64> {
        fired.iter().map(|id| id.0).collect()
    }

    #[test]
    fn a_one_shot_watch_fires_once_and_a_persistent_one_again() {
        let mut table =
            table(&[("/a", Class::Data), ("/a", Class::Persistent), ("/a", Class::Child), ("/b", Class::Data)]);
        assert_eq!(ids(&table.fire(EventKind::DataChanged, "/a")), [0, 1]);
        assert_eq!(ids(&table.fire(EventKind::DataChanged, "/a")), [1]);
        assert_eq!(ids(&table.fire(EventKind::Deleted, "/a")), [1, 2]);
        assert_eq!(ids(&table.fire(EventKind::Created, "/a")), [1]);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_recursive_watch_fires_for_everything_below_but_not_for_lists_of_children() {
        let mut table = table(&[("/a", Class::Recursive), ("/", Class::Recursive), ("/ab", Class::Recursive)]);
        assert_eq!(ids(&table.fire(EventKind::Created, "/a/b/c")), [0, 1]);
        assert_eq!(ids(&table.fire(EventKind::DataChanged, "/a")), [0, 1]);
        assert_eq!(ids(&table.fire(EventKind::ChildrenChanged, "/a")), [0; 0]);
    }

    #[test]
    fn removing_the_last_watch_of_a_kind_removes_it_at_the_server() {
        let mut table = table(&[("/a", Class::Data), ("/a", Class::Exist), ("/a", Class::Child)]);
        assert_eq!(table.remove(RequestId(0)), None, "another data watch is left");
        assert_eq!(table.remove(RequestId(1)), Some((Arc::from("/a"), Class::Exist)));
        assert_eq!(table.remove(RequestId(2)), Some((Arc::from("/a"), Class::Child)));
        assert_eq!(table.remove(RequestId(2)), None);
        assert_eq!((table.len(), table.by_path.len()), (0, 0));
    }

    #[test]
    fn watches_are_set_again_in_packets_below_the_limit_each_path_once() {
        let mut table = Watches::default();
        for at in 0..10_000_u64 {
            let path = Arc::from(format!("/locks/some-lock-with-a-long-name/{at:010}").as_str());
            table.add(&path, Class::Data, RequestId(2 * at));
            table.add(&path, Class::Data, RequestId(2 * at + 1));
        }
        table.add(&Arc::from("/p"), Class::Persistent, RequestId(1 << 40));
        let packets = table.set_again(7);
        let bytes = |packet: &SetWatches| packet.data.iter().map(String::len).sum::<usize>();
        assert!(packets.iter().all(|packet| packet.relative_zxid == 7 && bytes(packet) <= PACKET));
        assert_eq!(packets.iter().map(|packet| packet.data.len()).sum::<usize>(), 10_000);
        let persistent: Vec<_> = packets.iter().filter(|packet| packet.has_persistent()).collect();
        assert_eq!((persistent.len(), persistent[0].len()), (1, 1));
    }
}
