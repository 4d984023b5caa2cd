//! Quotas: how many nodes and how much data a subtree may have.
//!
//! They are nodes themselves, as in ZooKeeper. Below `/zookeeper/quota`, `…/a/zookeeper_limits` has the limits of `/a`
//! and `…/a/zookeeper_stats` its current numbers, which the server keeps up to date. A node counts only for the
//! nearest quota above it.
//!
//! Invariant: the index contains exactly the paths that have a limits node.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::machine::path;

/// The parent of all limits and stats nodes.
pub(crate) const ROOT: &str = "/zookeeper/quota";
const LIMITS: &str = "/zookeeper_limits";
const STATS: &str = "/zookeeper_stats";

/// The limits of a subtree or its current numbers; −1 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) nodes: i64,
    pub(crate) bytes: i64,
    pub(crate) nodes_hard: i64,
    pub(crate) bytes_hard: i64,
}

impl Quota {
    /// Parses a limits or stats node. An unreadable value is no limit, as with Apache's server.
    pub(crate) fn parse(data: Option<&Bytes>) -> Self {
        let mut quota = Self { nodes: -1, bytes: -1, nodes_hard: -1, bytes_hard: -1 };
        let text = data.map(|data| String::from_utf8_lossy(data)).unwrap_or_default();
        for pair in text.split([',', ';']) {
            let mut parts = pair.split('=');
            let (name, value) = (parts.next().unwrap_or_default(), parts.next().and_then(|value| value.parse().ok()));
            let Some(value) = value else { continue };
            match name {
                "count" => quota.nodes = value,
                "bytes" => quota.bytes = value,
                "countHardLimit" => quota.nodes_hard = value,
                "byteHardLimit" => quota.bytes_hard = value,
                _ => {}
            }
        }
        quota
    }

    /// Returns the content of a stats node.
    pub(crate) fn stats(nodes: i64, bytes: i64) -> Bytes {
        Bytes::from(format!("count={nodes},bytes={bytes}"))
    }

    /// Returns the numbers with so much more. They may be any: a client may write into a stats node.
    pub(crate) fn plus(&self, nodes: i64, bytes: i64) -> Self {
        Self { nodes: self.nodes.saturating_add(nodes), bytes: self.bytes.saturating_add(bytes), ..*self }
    }

    /// Returns whether adding so much to `held` exceeds a hard limit.
    pub(crate) fn forbids(&self, held: &Self, nodes: i64, bytes: i64) -> bool {
        let beyond = |more: i64, held: i64, hard: i64| more > 0 && hard > -1 && held.saturating_add(more) > hard;
        beyond(nodes, held.nodes, self.nodes_hard) || beyond(bytes, held.bytes, self.bytes_hard)
    }

    /// Returns whether a soft limit is exceeded now and was not before.
    pub(crate) fn becomes_exceeded(&self, before: &Self, now: &Self) -> bool {
        self.is_exceeded(now) && !self.is_exceeded(before)
    }

    fn is_exceeded(&self, held: &Self) -> bool {
        let beyond = |held: i64, limit: i64| limit > -1 && held > limit;
        beyond(held.nodes, self.nodes) || beyond(held.bytes, self.bytes)
    }
}

/// The paths that have limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas(BTreeSet<Arc<str>>);

impl Quotas {
    /// Updates the index for a node that was created or deleted.
    pub(crate) fn node_changed(&mut self, node: &str, present: bool) {
        if let Some(path) = limited_path(node, LIMITS) {
            if present {
                self.0.insert(Arc::from(path));
            } else {
                self.0.remove(path);
            }
        }
    }

    /// Returns the nearest path with limits: the node itself or an ancestor.
    pub(crate) fn nearest<'a>(&self, node: &'a str) -> Option<&'a str> {
        if self.0.is_empty() || node.starts_with(ROOT) {
            return None;
        }
        std::iter::once(node).chain(path::ancestors(node)).find(|path| self.0.contains(*path))
    }
}

/// Returns the path that a stats node counts.
pub(crate) fn counted_path(node: &str) -> Option<&str> {
    limited_path(node, STATS)
}

fn limited_path<'a>(node: &'a str, name: &str) -> Option<&'a str> {
    node.strip_prefix(ROOT)?.strip_suffix(name).filter(|path| !path.is_empty())
}

/// Returns the path of the limits node of a path.
pub(crate) fn limits_node(path: &str) -> String {
    format!("{ROOT}{path}{LIMITS}")
}

/// Returns the path of the stats node of a path.
pub(crate) fn stats_node(path: &str) -> String {
    format!("{ROOT}{path}{STATS}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &'static str) -> Quota {
        Quota::parse(Some(&Bytes::from_static(text.as_bytes())))
    }

    #[test]
    fn limits_are_read_as_all_versions_write_them() {
        let none = Quota { nodes: -1, bytes: -1, nodes_hard: -1, bytes_hard: -1 };
        assert_eq!(parse("count=5,bytes=-1"), Quota { nodes: 5, ..none });
        let hard = "count=-1,bytes=7=;byteHardLimit=9;countHardLimit=3";
        assert_eq!(parse(hard), Quota { bytes: 7, bytes_hard: 9, nodes_hard: 3, ..none });
        for nonsense in ["", "count", "count=,x=1", "count=many", "\u{fffd}"] {
            assert_eq!(parse(nonsense), none, "{nonsense:?}");
        }
    }

    #[test]
    fn only_growth_beyond_a_hard_limit_is_forbidden() {
        let (limit, held) = (parse("count=1;countHardLimit=3;byteHardLimit=10"), parse("count=3,bytes=20"));
        assert!(limit.forbids(&held, 1, 0) && limit.forbids(&held, 0, 1));
        assert!(!limit.forbids(&held, 0, 0) && !limit.forbids(&held, -1, -1));
        assert!(limit.is_exceeded(&held) && !limit.is_exceeded(&parse("count=1,bytes=20")));
        // Up to the limit, also if that is none at all.
        assert!(!limit.forbids(&parse("count=2,bytes=9"), 1, 1));
        let (nothing, empty) = (parse("count=0;countHardLimit=0"), parse("count=0,bytes=0"));
        assert!(nothing.forbids(&empty, 1, 0) && !nothing.forbids(&held, 0, 9));
        assert!(nothing.is_exceeded(&parse("count=1,bytes=0")) && !nothing.is_exceeded(&empty));
    }

    /// The warning comes once, not with each change beyond the limit.
    #[test]
    fn a_soft_limit_becomes_exceeded_once() {
        let (limit, steps) = (parse("count=1"), ["count=0", "count=1", "count=2", "count=3", "count=1", "count=2"]);
        let becomes = |pair: &[&'static str]| limit.becomes_exceeded(&parse(pair[0]), &parse(pair[1]));
        assert_eq!(steps.windows(2).map(becomes).collect::<Vec<_>>(), [false, true, false, false, true]);
    }

    #[test]
    fn a_node_counts_for_the_nearest_quota() {
        let mut quotas = Quotas::default();
        quotas.node_changed("/zookeeper/quota/a/zookeeper_limits", true);
        quotas.node_changed("/zookeeper/quota/a/b/zookeeper_limits", true);
        quotas.node_changed("/zookeeper/quota/zookeeper_limits", true);
        for (node, expected) in
            [("/a", Some("/a")), ("/a/x", Some("/a")), ("/a/b/c/d", Some("/a/b")), ("/ab", None), ("/", None)]
        {
            assert_eq!(quotas.nearest(node), expected, "{node}");
        }
        // What the server itself writes counts for none.
        quotas.node_changed("/zookeeper/quota/zookeeper/zookeeper_limits", true);
        assert_eq!(quotas.nearest("/zookeeper/quota/a/zookeeper_stats"), None);
        assert_eq!(quotas.nearest("/zookeeper/config"), Some("/zookeeper"));
        quotas.node_changed("/zookeeper/quota/a/zookeeper_limits", false);
        assert_eq!(quotas.nearest("/a/x"), None);
    }
}
