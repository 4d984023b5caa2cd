//! Node formats: how the nodes of one lock path are named, and which of its children count.
//!
//! A path has one node format, shared by all its clients, so that a Rust, a Java and a Python client are in one queue.
//! Children of another shape are never counted: a foreign node must not block a lock for ever, nor be deleted by it.

use std::fmt;

use crate::semaphore::{KAZOO_LOCK, is_protected};
use crate::{AttemptId, Class, LockDelay, Mode, Sequence, Tombstone};

/// How the nodes of one path are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeFormat {
    /// `_c_<uuid>-lock-0000000001`, `_c_<uuid>-__READ__…`, `_c_<uuid>-__WRIT__…`: Apache Curator's, and ours.
    ///
    /// Protected: the attempt's id is in the name, so a node whose create reply was lost is found by one listing.
    #[default]
    Curator,
    /// `lock-0000000001`, `read-…`, `write-…`: ZooKeeper's recipe document, as plain clients write it.
    ///
    /// Not protected: an attempt recognises its own node by the data only, and a name may be used again after the parent
    /// was recreated. So looking for an own node costs one read a candidate, and a release one read more.
    Recipe,
    /// `<32 hex>__lock__0000000001`, `<32 hex>__rlock__…`: Kazoo's, where a writer's node is named like a lock's. Protected.
    Kazoo,
    /// `_c_<uuid>-latch-0000000001`: the names of Apache Curator's `LeaderLatch`. Exclusive locks only. Protected.
    ///
    /// A `LeaderLatch` watches the node ahead once, and stops listening if its data changes. So a contender's record is never written
    /// again: it says neither when it was granted the lock nor that somebody asks its owner to release it.
    LeaderLatch,
    /// `A-0000000001`, `B-…`: Contentserv's, any class before its number. Not protected.
    Contentserv,
    /// `<path>0000000001`: the number follows the lock's own name, so the nodes are beside the lock's path and not below
    /// it. So name the nodes the clients with a base path and a lock name. Exclusive locks only. Not protected.
    ///
    /// A name in this node format is the number alone: what a sequential create appended to the lock's path.
    Numbered,
}

/// How another client locks the path, so that neither sees the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IncompatibleFormat {
    /// With children named in this node format.
    Named(NodeFormat),
    /// With a leased lock's record in the node itself.
    Leased,
}

impl fmt::Display for IncompatibleFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IncompatibleFormat::Named(node_format) => write!(f, "nodes in {node_format:?}'s names"),
            IncompatibleFormat::Leased => f.write_str("a leased lock's record"),
        }
    }
}

/// A child's name, read in a node format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeName {
    /// The attempt that created the node, if the name contains its id.
    pub id: Option<AttemptId>,
    /// What it asks for.
    pub mode: Mode,
    /// Its place among all creates under the parent.
    pub sequence: Sequence,
    /// How long the lock stays unavailable after a loss.
    pub delay: Option<LockDelay>,
}

/// The name of the node that marks the holder of a lock with classes.
pub const HOLDER_MARKER: &str = "privateLock";

const PROTECTION: &str = "_c_";

/// The name prefix of a semaphore's nodes, before their number of permits. No foreign client has such names: to Curator
/// and Kazoo they are unknown children.
const PERMITS: &str = "permits-";

impl NodeFormat {
    /// Every node format with nodes below the lock's path. A listing of the path shows them.
    pub const ALL: [NodeFormat; 5] =
        [NodeFormat::Curator, NodeFormat::Recipe, NodeFormat::Kazoo, NodeFormat::LeaderLatch, NodeFormat::Contentserv];

    /// The node format that a listing's names are in: the one that counts most of them, of several the first.
    pub fn of<S: AsRef<str>>(names: &[S]) -> NodeFormat {
        let counts =
            |node_format: &NodeFormat| names.iter().filter(|name| node_format.parse(name.as_ref()).is_some()).count();
        // `max` returns the last of equal values, so the first must come last.
        Self::ALL.into_iter().rev().max_by_key(counts).unwrap_or_default()
    }

    /// The node format of a queue, if any of these names is a contender's, or shows that the lock has a holder.
    pub fn of_line<S: AsRef<str>>(names: &[S]) -> Option<NodeFormat> {
        let is_of = |node_format: &NodeFormat, name: &str| {
            node_format.parse(name).is_some() || node_format.tells_of_holder(name)
        };
        Self::ALL.into_iter().find(|node_format| names.iter().any(|name| is_of(node_format, name.as_ref())))
    }

    /// Whether a name carries its attempt's id and is therefore never used twice.
    pub const fn protects(self) -> bool {
        matches!(self, NodeFormat::Curator | NodeFormat::Kazoo | NodeFormat::LeaderLatch)
    }

    /// Whether the data of a contender's node may change. A foreign client that waits behind it may miss its deletion otherwise.
    pub const fn allows_new_data(self) -> bool {
        !matches!(self, NodeFormat::LeaderLatch)
    }

    /// The name of the node that marks the holder, in node formats that have one.
    pub const fn holder_marker(self) -> Option<&'static str> {
        match self {
            NodeFormat::Contentserv => Some(HOLDER_MARKER),
            NodeFormat::Curator
            | NodeFormat::Recipe
            | NodeFormat::Kazoo
            | NodeFormat::LeaderLatch
            | NodeFormat::Numbered => None,
        }
    }

    /// The node format of one contender's node, by its name in a queue.
    pub fn of_node(name: &str) -> NodeFormat {
        match Sequence::read(name) {
            Some(_) => NodeFormat::Numbered,
            None => NodeFormat::of(&[name]),
        }
    }

    /// Whether the nodes are beside the lock's path. Then the node above the path is a directory that clients share, and stays.
    pub const fn is_beside(self) -> bool {
        matches!(self, NodeFormat::Numbered)
    }

    /// Whether the children of the node above a path are listed to look for contenders beside the path. A name takes about 40 bytes of a
    /// listing.
    pub const fn lists_beside(children_above: usize) -> bool {
        children_above <= 1_000
    }

    /// The node whose children are listed for the queue of the lock at `path`.
    pub fn listed(self, path: &str) -> &str {
        match (self, path.rfind('/')) {
            (NodeFormat::Numbered, Some(at)) if at > 0 => &path[..at],
            (NodeFormat::Numbered, _) => "/",
            _ => path,
        }
    }

    /// The name of the lock, if this child of a directory is a contender's node of that lock. Then its name is the lock's
    /// and a number ([`NodeFormat::Numbered`]).
    pub fn beside(child: &str) -> Option<&str> {
        let lock = Sequence::split(child).map(|(lock, _)| lock).filter(|lock| !lock.is_empty());
        // A protected name is that of a contender or of another node of a foreign client, never a lock's.
        lock.filter(|lock| !is_protected(lock))
    }

    /// The names in the queue of the lock at `path`, from those that a listing of [`NodeFormat::listed`] shows.
    pub fn names(self, path: &str, listed: Vec<String>) -> Vec<String> {
        if self != NodeFormat::Numbered {
            return listed;
        }
        let own = last_component(path);
        let number =
            |name: &String| name.strip_prefix(own).filter(|rest| Sequence::read(rest).is_some()).map(str::to_owned);
        listed.iter().filter_map(number).collect()
    }

    /// Parses the name of a tombstone. `None`: not one that counts beside nodes of this format.
    pub fn tombstone(self, name: &str) -> Option<Tombstone> {
        match self {
            NodeFormat::Curator => Tombstone::read(name),
            NodeFormat::Recipe
            | NodeFormat::Kazoo
            | NodeFormat::LeaderLatch
            | NodeFormat::Contentserv
            | NodeFormat::Numbered => None,
        }
    }

    /// Whether a name that is no contender's shows that the lock has a holder: the holder marker, or a tombstone.
    pub(crate) fn tells_of_holder(self, name: &str) -> bool {
        self.holder_marker() == Some(name) || self.tombstone(name).is_some()
    }

    /// The word that asks the holder of such a node to release, if its clients know one.
    pub const fn revocation_word(self) -> Option<&'static str> {
        match self {
            NodeFormat::Curator => Some("__REVOKE__"),
            NodeFormat::Recipe => Some("unlock"),
            NodeFormat::Kazoo | NodeFormat::LeaderLatch | NodeFormat::Contentserv | NodeFormat::Numbered => None,
        }
    }

    /// The markers of this node format, each with what it asks for. Where two share a marker, names are read as the first.
    const fn markers(self) -> &'static [(&'static str, Mode)] {
        match self {
            NodeFormat::Curator => &[("lock-", Mode::Exclusive), ("__WRIT__", Mode::Write), ("__READ__", Mode::Read)],
            NodeFormat::Recipe => &[("lock-", Mode::Exclusive), ("write-", Mode::Write), ("read-", Mode::Read)],
            NodeFormat::Kazoo => &[("__lock__", Mode::Write), ("__rlock__", Mode::Read), ("__lock__", Mode::Exclusive)],
            NodeFormat::LeaderLatch => &[("latch-", Mode::Exclusive)],
            NodeFormat::Contentserv => &[],
            NodeFormat::Numbered => &[("", Mode::Exclusive)],
        }
    }

    /// The name to ask a sequential create for; the server appends the number.
    ///
    /// `None` if this node format has no name for `mode`.
    #[doc(hidden)]
    pub fn prefix(self, mode: Mode, id: AttemptId) -> Option<String> {
        self.prefix_with(mode, id, None)
    }

    /// The same for a contender with a lock delay. Its name carries the delay, because a waiter
    /// behind it must not take its deletion for a grant. Only Curator's node format has room for that.
    #[doc(hidden)]
    pub fn prefix_with(self, mode: Mode, id: AttemptId, delay: Option<LockDelay>) -> Option<String> {
        if let Some(delay) = delay {
            let plain = self.prefix_with(mode, id, None).filter(|_| self == NodeFormat::Curator)?;
            let rest = plain.strip_prefix(&format!("{PROTECTION}{id}-"))?;
            return Some(format!("{PROTECTION}{id}-{delay}-{rest}"));
        }
        match (self, mode) {
            (NodeFormat::Contentserv, Mode::Class(class)) => return Some(format!("{class}-")),
            (NodeFormat::Curator, Mode::Permits(permits)) => {
                return Some(format!("{PROTECTION}{id}-{PERMITS}{permits}-"));
            }
            _ => {}
        }
        let (marker, _) = self.markers().iter().find(|(_, m)| *m == mode)?;
        Some(match self {
            NodeFormat::Curator | NodeFormat::LeaderLatch => format!("{PROTECTION}{id}-{marker}"),
            NodeFormat::Kazoo => format!("{:032x}{marker}", id.bits()),
            NodeFormat::Recipe | NodeFormat::Contentserv | NodeFormat::Numbered => (*marker).to_owned(),
        })
    }

    /// Reads a child's name. `None`: not of this node format, never to be counted.
    ///
    /// Curator nodes count with and without protection: its own recipes sort by what follows the marker. Every node of a
    /// `LeaderLatch` is protected; without protection, its name would be that of a class.
    #[doc(hidden)]
    pub fn parse(self, name: &str) -> Option<NodeName> {
        if self == NodeFormat::Numbered {
            let sequence = Sequence::read(name)?;
            return Some(NodeName { id: None, mode: Mode::Exclusive, sequence, delay: None });
        }
        let (prefix, sequence) = Sequence::split(name)?;
        let mut delay = None;
        let (id, marker) = match (self, prefix.strip_prefix(PROTECTION)) {
            (NodeFormat::LeaderLatch, None) => return None,
            (NodeFormat::Curator | NodeFormat::LeaderLatch, Some(rest)) => {
                let (id, rest) = rest.split_at_checked(AttemptId::LEN)?;
                let (id, mut rest) = (AttemptId::read(id.as_bytes())?, rest.strip_prefix('-')?);
                if let Some((read, after)) = LockDelay::split(rest).filter(|_| self == NodeFormat::Curator) {
                    (delay, rest) = (Some(read), after);
                }
                (Some(id), rest)
            }
            (NodeFormat::Kazoo, _) => {
                let (id, rest) = prefix.split_at_checked(32)?;
                // Kazoo prints lower case; a sign, which `from_str_radix` would take, it never does.
                let hex = id.bytes().all(|byte| byte.is_ascii_hexdigit());
                (Some(AttemptId::new(u128::from_str_radix(id, 16).ok().filter(|_| hex)?)), rest)
            }
            _ => (None, prefix),
        };
        let mode = match self {
            NodeFormat::Contentserv => Mode::Class(Class::new(marker.strip_suffix('-')?).ok()?),
            _ => match self.markers().iter().find(|(m, _)| *m == marker) {
                Some((_, mode)) => *mode,
                None if self == NodeFormat::Curator => Self::permits(marker)?,
                None => return None,
            },
        };
        Some(NodeName { id, mode, sequence, delay })
    }

    /// `permits-3-`, as ours are named; exactly as printed, so that one name is read one way.
    fn permits(marker: &str) -> Option<Mode> {
        let digits = marker.strip_prefix(PERMITS)?.strip_suffix('-')?;
        // Not `0` either: no contender asks for no permit.
        let permits = digits.parse().ok().filter(|_| !digits.starts_with(['0', '+']))?;
        Some(Mode::Permits(permits))
    }
}

/// The path of a contender's node in the lock at `path`; the node of a leased lock has no name of its own.
///
/// A name that is a number alone is the rest of a node's name beside the path ([`NodeFormat::Numbered`]); so is that of the lock of
/// Kazoo's semaphore. A lease of Kazoo's semaphore has a name that begins with `./`.
pub fn node_path(path: &str, name: &str) -> String {
    match name {
        "" => path.to_owned(),
        beside if beside.strip_prefix(KAZOO_LOCK).is_some_and(|rest| rest.starts_with('/')) => {
            format!("{path}{beside}")
        }
        number if Sequence::read(number).is_some() => format!("{path}{number}"),
        name => format!("{path}/{}", name.strip_prefix("./").unwrap_or(name)),
    }
}

fn last_component(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: AttemptId = AttemptId::new(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

    const MODES: [Mode; 7] = [
        Mode::Exclusive,
        Mode::Write,
        Mode::Read,
        Mode::Permits(1),
        Mode::Permits(u32::MAX),
        Mode::Class(Class::FOREGROUND),
        Mode::Class(Class::BACKGROUND),
    ];

    #[test]
    fn printed_names_read_back() {
        let formats = NodeFormat::ALL.into_iter().chain([NodeFormat::Numbered]);
        for (node_format, mode) in formats.flat_map(|node_format| MODES.map(|mode| (node_format, mode))) {
            let Some(prefix) = node_format.prefix(mode, ID) else { continue };
            for count in [0, i32::MAX, i32::MIN, -5] {
                let sequence = Sequence::new(count);
                let name = format!("{prefix}{sequence}");
                let id = node_format.protects().then_some(ID);
                // Kazoo names both alike.
                let mode = if (node_format, mode) == (NodeFormat::Kazoo, Mode::Exclusive) { Mode::Write } else { mode };
                assert_eq!(node_format.parse(&name), Some(NodeName { id, mode, sequence, delay: None }), "{name}");
            }
        }
    }

    #[test]
    fn only_numbered_nodes_are_beside_the_path() {
        assert!(NodeFormat::Numbered.is_beside() && NodeFormat::ALL.iter().all(|node_format| !node_format.is_beside()));
        assert_eq!(NodeFormat::beside("report0000000007"), Some("report"));
        assert_eq!((NodeFormat::beside("0000000007"), NodeFormat::beside("report")), (None, None));
        assert_eq!(NodeFormat::beside(&format!("_c_{ID}-lease-0000000007")), None, "a lease of Curator's semaphore");
    }

    #[test]
    fn an_incompatible_format_is_described() {
        let described =
            [IncompatibleFormat::Named(NodeFormat::Kazoo), IncompatibleFormat::Leased].map(|it| it.to_string());
        assert_eq!(described, ["nodes in Kazoo's names", "a leased lock's record"]);
    }

    #[test]
    fn each_node_format_names_what_its_makers_have() {
        let named = |node_format: NodeFormat| MODES.map(|mode| node_format.prefix(mode, ID).is_some());
        assert_eq!(named(NodeFormat::Curator), [true, true, true, true, true, false, false]);
        assert_eq!(named(NodeFormat::Recipe), [true, true, true, false, false, false, false]);
        assert_eq!(named(NodeFormat::Kazoo), [true, true, true, false, false, false, false]);
        assert_eq!(named(NodeFormat::LeaderLatch), [true, false, false, false, false, false, false]);
        assert_eq!(named(NodeFormat::Contentserv), [false, false, false, false, false, true, true]);
        assert_eq!(named(NodeFormat::Numbered), [true, false, false, false, false, false, false]);
    }

    #[test]
    fn each_node_format_has_the_revocation_word_that_its_clients_know() {
        let words = NodeFormat::ALL.map(NodeFormat::revocation_word);
        let named: Vec<_> =
            NodeFormat::ALL.into_iter().zip(words).filter_map(|(format, word)| Some((format, word?))).collect();
        assert_eq!(named, [(NodeFormat::Curator, "__REVOKE__"), (NodeFormat::Recipe, "unlock")]);
    }

    /// `latch` is a valid class.
    #[test]
    fn an_unprotected_latch_is_a_class() {
        assert_eq!(NodeFormat::LeaderLatch.parse("latch-0000000001"), None);
        assert_eq!(NodeFormat::of_node("latch-0000000001"), NodeFormat::Contentserv);
        assert_eq!(NodeFormat::of_node(&format!("_c_{ID}-latch-0000000001")), NodeFormat::LeaderLatch);
    }

    /// N-07, D-04: of the nodes beside a path, only those of its own name count, whatever number they have.
    #[test]
    fn nodes_beside_a_path_are_those_of_its_name_and_a_number() {
        let listed = ["A0000000001", "A-2147483648", "A-000000005", "A", "AB0000000002", "A10000000003", "B0000000004"];
        let listed = listed.map(str::to_owned).to_vec();
        let names = |path| NodeFormat::Numbered.names(path, listed.clone());
        assert_eq!(names("/base/A"), ["0000000001", "-2147483648", "-000000005"]);
        assert_eq!(names("/base/A1"), ["0000000003"]);
        assert_eq!(names("/base/C"), [""; 0]);
        assert_eq!(NodeFormat::Curator.names("/base/A", listed.clone()), listed);
        for (path, listed) in [("/base/A", "/base"), ("/A", "/")] {
            assert_eq!(NodeFormat::Numbered.listed(path), listed);
            assert_eq!(NodeFormat::Recipe.listed(path), path);
        }
        assert_eq!(node_path("/base/A", "0000000001"), "/base/A0000000001");
        assert_eq!(node_path("/base/A", "-000000005"), "/base/A-000000005");
        assert_eq!(node_path("/base/A", "lock-0000000001"), "/base/A/lock-0000000001");
        assert_eq!(node_path("/base/A", ""), "/base/A");
        assert_eq!(NodeFormat::of_node("0000000001"), NodeFormat::Numbered);
        assert_eq!(NodeFormat::of_node("read-0000000001"), NodeFormat::Recipe);
    }

    #[test]
    fn permits_are_read_only_as_they_are_printed() {
        for bad in ["permits-0-", "permits-03-", "permits-+3-", "permits--", "permits-3", "permits-4294967296-"] {
            assert_eq!(NodeFormat::Curator.parse(&format!("_c_{ID}-{bad}0000000001")), None, "{bad}");
        }
    }
}
