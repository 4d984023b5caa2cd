//! One listing of a lock's children, filtered and put in order.
//!
//! Order is always (class, sequence, name), never the text of the names: text order sorts by uuid (ZOOKEEPER-2931), and
//! ties occur (Curator's downgrade) and must fall the same way for everyone.

use crate::{AttemptId, Dialect, LockDelay, Mode, Sequence, StandIn};

/// A child that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry<'a> {
    /// Its name, as listed.
    pub name: &'a str,
    /// The attempt that made it, where the name tells.
    pub id: Option<AttemptId>,
    /// What it asks for.
    pub mode: Mode,
    /// Its place among all creates under the parent.
    pub sequence: Sequence,
    /// How long nobody is to follow it if it ends against its will.
    pub delay: Option<LockDelay>,
    /// It is no contender but stands in for a holder that has vanished: before all others, until its delay is over.
    pub vanished: bool,
}

/// A lock's queue at one moment, the first in line first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue<'a> {
    entries: Vec<Entry<'a>>,
    unknown: Vec<&'a str>,
    barrier: bool,
}

impl<'a> Queue<'a> {
    /// Reads a listing. Names of another shape are kept apart in [`Queue::unknown`] and counted nowhere.
    pub fn read<S: AsRef<str>>(dialect: Dialect, names: &'a [S]) -> Self {
        Self::read_with_barrier(dialect, None, names)
    }

    /// Reads a listing in which a node called `barrier` is not a contender but the holder's mark.
    pub fn read_with_barrier<S: AsRef<str>>(dialect: Dialect, barrier: Option<&str>, names: &'a [S]) -> Self {
        let mut queue = Queue { entries: Vec::with_capacity(names.len()), ..Queue::default() };
        let mut stand_ins = Vec::new();
        for name in names.iter().map(AsRef::as_ref) {
            if barrier == Some(name) {
                queue.barrier = true;
                continue;
            }
            match dialect.parse(name) {
                Some(node) => {
                    let crate::NodeName { id, mode, sequence, delay } = node;
                    queue.entries.push(Entry { name, id, mode, sequence, delay, vanished: false });
                }
                None => match StandIn::read(dialect, name) {
                    Some(stand_in) => stand_ins.push((name, stand_in)),
                    None => queue.unknown.push(name),
                },
            }
        }
        queue.sort();
        queue.put_vanished_first(stand_ins);
        queue
    }

    /// Puts those before all others that stand in for a holder whose own node is gone. While that is there, it counts itself.
    fn put_vanished_first(&mut self, mut stand_ins: Vec<(&'a str, StandIn)>) {
        stand_ins.retain(|(_, stand_in)| !self.entries.iter().any(|entry| entry.id == Some(stand_in.id)));
        stand_ins.sort_unstable_by_key(|(name, _)| *name);
        let vanished = stand_ins.into_iter().map(|(name, StandIn { id: _, mode, delay })| {
            // No id: whoever looks for its own nodes finds none here.
            Entry { name, id: None, mode, sequence: Sequence::new(0), delay: Some(delay), vanished: true }
        });
        self.entries.splice(0..0, vanished);
    }

    /// Puts the entries in order.
    ///
    /// Sequences live on a circle, so a first one must be chosen before "earlier" means anything: it is the one behind
    /// the widest gap, for the numbers in use lie together and the free ones are the gap. Any set of numbers, also one
    /// no server ever made, gets one order, the same for every reader.
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
        self.entries.sort_unstable_by_key(|e| {
            let class = if let Mode::Class(class) = e.mode { Some(class) } else { None };
            (class, e.sequence.get().wrapping_sub(origin).cast_unsigned(), e.name)
        });
    }

    /// The entries in order, the first in line first.
    pub fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// Children of another shape, as listed.
    pub fn unknown(&self) -> &[&'a str] {
        &self.unknown
    }

    /// Whether the holder's mark is there.
    pub fn has_barrier(&self) -> bool {
        self.barrier
    }

    /// Where `name` stands: 0 is first in line.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|e| e.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(names: &[&str]) -> Vec<String> {
        Queue::read(Dialect::Recipe, names).entries().iter().map(|e| e.name.to_owned()).collect()
    }

    #[test]
    fn case_26_listings_without_anything_of_ours_are_fine() {
        let queue = Queue::read(Dialect::Curator, &["", "privateLock", "x", "lock-", "日本-0000000001"]);
        assert!(queue.entries().is_empty());
        assert_eq!(queue.unknown().len(), 5);
        assert!(Queue::read::<&str>(Dialect::Curator, &[]).entries().is_empty());
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

    #[test]
    fn ties_are_broken_by_name() {
        assert_eq!(order(&["write-0000000001", "read-0000000001"]), ["read-0000000001", "write-0000000001"]);
    }
}
