//! Nodes without a session that are named like a contender's, and which foreign clients wait behind them.
//!
//! A foreign program or a person creates such a node. No session's end deletes it. Our contenders skip it
//! once a read has shown that. The clients of some node formats count it: they wait until somebody deletes it.

use crate::{Discipline, NodeFormat, Queue, Verdict, Zxid};

/// A node without a session and with the name of a contender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sessionless {
    /// Its name.
    pub name: String,
    /// The transaction that created it.
    pub czxid: Zxid,
}

impl NodeFormat {
    /// Whether foreign clients of this node format wait behind nodes without a session: Curator's, Kazoo's and those of the
    /// recipe look at names alone. In the other node formats, anything whose name ends in a number is named like a contender.
    pub const fn foreign_clients_wait_for_any_node(self) -> bool {
        match self {
            NodeFormat::Curator | NodeFormat::Recipe | NodeFormat::Kazoo | NodeFormat::LeaderLatch => true,
            NodeFormat::Contentserv | NodeFormat::Numbered => false,
        }
    }
}

impl Sessionless {
    /// The one of these `nodes` that the contender `name` waits for if its client counts all nodes, and if no contender
    /// blocks it. `all`: the queue with these nodes.
    pub fn ahead_of<'s>(
        nodes: &'s [Sessionless],
        all: &Queue<'_>,
        (node_format, discipline): (NodeFormat, Discipline),
        name: &str,
    ) -> Option<&'s Sessionless> {
        let blocked = |queue: &Queue<'_>| matches!(discipline.decide(queue, name), Verdict::Blocked(_));
        let without = |kept: Option<&str>| {
            let left_out: Vec<_> =
                nodes.iter().map(|node| node.name.as_str()).filter(|name| Some(*name) != kept).collect();
            all.clone().without(&left_out)
        };
        if !node_format.foreign_clients_wait_for_any_node() || !blocked(all) || blocked(&without(None)) {
            return None;
        }
        // The nearest one first: that is the one that the client watches.
        let ahead = all.entries()[..all.position(name)?].iter().rev();
        ahead
            .filter_map(|entry| nodes.iter().find(|node| node.name == entry.name))
            .find(|node| blocked(&without(Some(&node.name))))
    }

    /// Whether a contender waits for this node, by the `czxid` of the contender's node. Our own contenders skip it. A contender that is
    /// older than this node may have been granted before.
    pub fn blocks(&self, is_ours: bool, czxid: Zxid) -> bool {
        !is_ours && self.czxid < czxid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Discipline = Discipline::SharedExclusive;

    fn ahead<'s>(nodes: &'s [Sessionless], node_format: NodeFormat, names: &[&str], name: &str) -> Option<&'s str> {
        let all = Queue::read(node_format, names);
        Sessionless::ahead_of(nodes, &all, (node_format, SHARED), name).map(|node| node.name.as_str())
    }

    fn nodes(names: &[&str]) -> Vec<Sessionless> {
        names.iter().map(|name| Sessionless { name: (*name).to_owned(), czxid: Zxid(5) }).collect()
    }

    #[test]
    fn a_node_without_a_session_blocks_the_first_contender_behind_it() {
        let names = ["lock-0000000000", "lock-0000000001", "lock-0000000002", "lock-0000000003"];
        let one = nodes(&names[..1]);
        assert_eq!(ahead(&one, NodeFormat::Recipe, &names, names[1]), Some(names[0]));
        assert_eq!(ahead(&one, NodeFormat::Recipe, &names, names[2]), None, "it waits for a contender");
        let two = nodes(&names[..2]);
        assert_eq!(ahead(&two, NodeFormat::Recipe, &names, names[2]), Some(names[1]), "the nearest one");
        assert_eq!(ahead(&nodes(&names[1..2]), NodeFormat::Recipe, &names, names[0]), None, "it is behind");
        assert_eq!(ahead(&[], NodeFormat::Recipe, &names, names[0]), None);
    }

    #[test]
    fn a_reader_waits_only_for_a_writers_node_without_a_session() {
        let names = ["write-0000000000", "read-0000000001", "read-0000000002"];
        let all = nodes(&names[..2]);
        assert_eq!(ahead(&all, NodeFormat::Recipe, &names, names[2]), Some(names[0]));
        assert_eq!(ahead(&nodes(&names[1..2]), NodeFormat::Recipe, &names[1..], names[2]), None);
    }

    #[test]
    fn any_name_with_a_number_blocks_no_contender_with_a_class() {
        let names = ["queue-0000000000", "queue-0000000001"];
        assert_eq!(ahead(&nodes(&names[..1]), NodeFormat::Contentserv, &names, names[1]), None);
    }

    #[test]
    fn only_foreign_contenders_that_came_later_are_blocked() {
        let node = &nodes(&["lock-0000000000"])[0];
        assert!(node.blocks(false, Zxid(6)));
        assert!(!node.blocks(false, Zxid(4)), "it may hold since before");
        assert!(!node.blocks(true, Zxid(6)), "it skipped the node");
    }
}
