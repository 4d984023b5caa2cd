//! One listing of a lock's children, filtered and put in order.
//!
//! The order is always (class, sequence, name), never the text of the names. Text order sorts by uuid (ZOOKEEPER-2931).
//! Ties occur (Curator's downgrade), and every reader must resolve them alike.

use crate::{AttemptId, LockDelay, Mode, NodeFormat, Sequence, Tombstone};

/// A child that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry<'a> {
    /// Its name, as listed.
    pub name: &'a str,
    /// The attempt that created it, if the name contains its id.
    pub id: Option<AttemptId>,
    /// The mode that it requests.
    pub mode: Mode,
    /// Its place among all creates under the parent.
    pub sequence: Sequence,
    /// How long the lock stays unavailable after a loss.
    pub delay: Option<LockDelay>,
    /// It is not a contender but the tombstone of an abandoned hold: ahead of all contenders, until its delay is over.
    pub abandoned: bool,
}

/// A lock's queue at one moment, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue<'a> {
    entries: Vec<Entry<'a>>,
    unknown: Vec<&'a str>,
    holder_marker: bool,
}

impl<'a> Queue<'a> {
    /// Parses a listing. Names of another shape are kept apart in [`Queue::unknown`] and counted nowhere; the holder
    /// marker of the node format is [`Queue::has_holder_marker`].
    pub fn read<S: AsRef<str>>(node_format: NodeFormat, names: &'a [S]) -> Self {
        let mut queue = Queue { entries: Vec::with_capacity(names.len()), ..Queue::default() };
        let mut tombstones = Vec::new();
        for name in names.iter().map(AsRef::as_ref) {
            if node_format.holder_marker() == Some(name) {
                queue.holder_marker = true;
                continue;
            }
            match node_format.parse(name) {
                Some(node) => {
                    let crate::NodeName { id, mode, sequence, delay } = node;
                    queue.entries.push(Entry { name, id, mode, sequence, delay, abandoned: false });
                }
                None => match node_format.tombstone(name) {
                    Some(tombstone) => tombstones.push((name, tombstone)),
                    None => queue.unknown.push(name),
                },
            }
        }
        queue.sort();
        queue.put_abandoned_first(tombstones);
        queue
    }

    /// Puts the tombstones of abandoned holds first. While the holder's own node exists, its tombstone does not count.
    fn put_abandoned_first(&mut self, mut tombstones: Vec<(&'a str, Tombstone)>) {
        tombstones.retain(|(_, tombstone)| !self.entries.iter().any(|entry| entry.id == Some(tombstone.id)));
        tombstones.sort_unstable_by_key(|(name, _)| *name);
        let abandoned = tombstones.into_iter().map(|(name, Tombstone { id: _, mode, delay })| {
            // No id: a contender that searches for its own nodes must not find a tombstone.
            Entry { name, id: None, mode, sequence: Sequence::new(0), delay: Some(delay), abandoned: true }
        });
        self.entries.splice(0..0, abandoned);
    }

    /// Puts the entries in order.
    ///
    /// Sequences are on a circle, so a first one must be chosen before "earlier" means anything. It is the one behind the widest
    /// gap, because the numbers in use are together and the free ones are the gap. Every set of numbers gets one order, the same
    /// for every reader.
    fn sort(&mut self) {
        self.entries.sort_unstable_by_key(|e| e.sequence.get());
        let numbers = |i: usize| self.entries[i].sequence.get();
        let len = self.entries.len();
        // The gap before the first, across the end of the number range, is the one to beat.
        let mut first = 0;
        let mut widest = 0;
        for i in 0..len {
            let gap = numbers(i).wrapping_sub(numbers((i + len - 1) % len)).cast_unsigned();
            if gap > widest {
                (first, widest) = (i, gap);
            }
        }
        let origin = if len == 0 { 0 } else { numbers(first) };
        self.entries
            .sort_unstable_by_key(|e| (e.mode.class(), e.sequence.get().wrapping_sub(origin).cast_unsigned(), e.name));
    }

    /// The entries in order, the first one first.
    pub fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// Children of another shape, as listed.
    pub fn unknown(&self) -> &[&'a str] {
        &self.unknown
    }

    /// The node format of a contender earlier than `me`, if it is not `ours`.
    ///
    /// Contenders of two node formats on one path do not see each other, so each format would have a holder. Both number their nodes
    /// by one counter, and the later contender sees the earlier one in its first listing. It is enough that the later one leaves.
    pub fn incompatible_format_before(&self, ours: NodeFormat, me: &str) -> Option<NodeFormat> {
        let own = ours.parse(me)?.sequence.get();
        let before = |name: &str, theirs: NodeFormat| match theirs.parse(name) {
            Some(node) => own.wrapping_sub(node.sequence.get()) > 0,
            // The name does not show when it came.
            None => theirs.tells_of_holder(name),
        };
        let mut others = NodeFormat::ALL.into_iter().filter(|theirs| *theirs != ours);
        others.find(|theirs| self.unknown.iter().any(|name| before(name, *theirs)))
    }

    /// The queue without the contenders of these names, which are [`Queue::unknown`] instead. Tombstones stay.
    pub fn without<S: AsRef<str>>(mut self, names: &[S]) -> Self {
        let unknown = &mut self.unknown;
        self.entries.retain(|entry| {
            let goes = !entry.abandoned && names.iter().any(|name| name.as_ref() == entry.name);
            if goes {
                unknown.push(entry.name);
            }
            !goes
        });
        self
    }

    /// Whether the holder marker exists.
    pub fn has_holder_marker(&self) -> bool {
        self.holder_marker
    }

    /// The position of `name`; the first one has 0.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|e| e.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(names: &[&str]) -> Vec<String> {
        Queue::read(NodeFormat::Recipe, names).entries().iter().map(|e| e.name.to_owned()).collect()
    }

    #[test]
    fn case_26_listings_without_anything_of_ours_are_fine() {
        let queue = Queue::read(NodeFormat::Curator, &["", "privateLock", "x", "lock-", "日本-0000000001"]);
        assert!(queue.entries().is_empty());
        assert_eq!(queue.unknown().len(), 5);
        assert!(Queue::read::<&str>(NodeFormat::Curator, &[]).entries().is_empty());
    }

    #[test]
    fn case_29_order_is_by_number_whatever_stands_before_it() {
        assert_eq!(
            order(&["write-0000000003", "read-0000000002", "lock-0000000001"]),
            ["lock-0000000001", "read-0000000002", "write-0000000003"]
        );
    }

    #[test]
    fn case_18_order_holds_across_the_wrap() {
        assert_eq!(
            order(&["lock--2147483647", "lock-2147483647", "lock--2147483648", "lock-2147483646"]),
            ["lock-2147483646", "lock-2147483647", "lock--2147483648", "lock--2147483647"]
        );
        assert_eq!(order(&["lock-0000000000", "lock--000000001"]), ["lock--000000001", "lock-0000000000"]);
    }

    fn incompatible_format(ours: NodeFormat, names: &[&str], me: &str) -> Option<NodeFormat> {
        Queue::read(ours, names).incompatible_format_before(ours, me)
    }

    const KAZOO: &str = "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__";
    const CURATOR: &str = "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock-";

    /// Each node format except those that count each other's nodes: the later contender sees the earlier one, not vice
    /// versa.
    #[test]
    fn a_later_contender_sees_the_queue_of_another_node_format() {
        let makers = [
            (NodeFormat::Curator, CURATOR),
            (NodeFormat::Recipe, "read-"),
            (NodeFormat::Kazoo, KAZOO),
            (NodeFormat::LeaderLatch, "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-latch-"),
            (NodeFormat::Contentserv, "A-"),
        ];
        for (ours, mine) in makers {
            for (theirs, other) in makers.into_iter().filter(|(theirs, _)| *theirs != ours) {
                for first in [0, i32::MAX, i32::MIN, -2] {
                    let [first, second] = [first, first.wrapping_add(1)].map(crate::Sequence::new);
                    let (older, newer) = (format!("{mine}{first}"), format!("{other}{second}"));
                    let names = [older.as_str(), newer.as_str()];
                    assert_eq!(incompatible_format(ours, &names, &older), None, "{names:?}");
                    assert_eq!(incompatible_format(theirs, &names, &newer), Some(ours), "{names:?}");
                }
            }
        }
        assert_eq!(
            incompatible_format(NodeFormat::Recipe, &["__READ__0000000000", "lock-0000000001"], "lock-0000000001"),
            Some(NodeFormat::Curator)
        );
    }

    #[test]
    fn a_mark_or_a_tombstone_is_of_a_line_that_has_a_holder() {
        let me = format!("{CURATOR}0000000000");
        assert_eq!(incompatible_format(NodeFormat::Curator, &["privateLock", &me], &me), Some(NodeFormat::Contentserv));
        let classes = ["privateLock", "A-0000000003", "B-0000000001"];
        assert_eq!(incompatible_format(NodeFormat::Contentserv, &classes, "A-0000000003"), None, "its own line's");
        let tombstone = "_s_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-x-d30000";
        assert_eq!(
            incompatible_format(NodeFormat::Kazoo, &[tombstone], &format!("{KAZOO}0000000001")),
            Some(NodeFormat::Curator)
        );
        assert_eq!(incompatible_format(NodeFormat::Curator, &[tombstone, &me], &me), None, "its own line's");
    }

    #[test]
    fn ties_are_broken_by_name() {
        assert_eq!(order(&["write-0000000001", "read-0000000001"]), ["read-0000000001", "write-0000000001"]);
    }
}
