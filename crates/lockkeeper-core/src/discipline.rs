//! Who blocks whom: the one question in which the kinds of queue lock differ.
//!
//! A lock kind is a value of [`Discipline`], not a protocol of its own. [`Discipline::decide`] is pure, so what it says of
//! a listing can be compared with an oracle for every small queue there is (`tests/it/properties.rs`).

use crate::{Entry, HOLDER_MARKER, Mode, Queue};

/// The rule of a queue, for all its contenders. It is everything in which the kinds of queue lock differ, except the
/// names of nodes ([`NodeFormat`](crate::NodeFormat)) and what one contender asks for ([`Mode`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Discipline {
    /// Oldest first; neighbouring readers hold together. An exclusive lock is this one without readers.
    SharedExclusive,
    /// Oldest first; what the holders hold sums to at most `permits`.
    Permits {
        /// How many there are.
        permits: u32,
    },
    /// Lowest class first, then oldest; the holder owns the holder marker node, so a newcomer of a lower class waits for it.
    Classes,
}

/// What a listing says of one contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It holds the lock.
    Granted,
    /// It is first, and there is no holder: it takes the holder marker, and holds once it has it.
    TakeHolderMarker,
    /// It waits for this.
    Blocked(Watch<'a>),
    /// Its node is not in the listing.
    Missing,
}

/// What a blocked contender watches: exactly one node, chosen so that a release wakes only the contenders that it grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch<'a> {
    /// Until this node is deleted.
    Deleted {
        /// The node.
        name: &'a str,
        /// Whether its deletion alone grants the lock: no other contender is between, and newcomers are behind.
        grants: bool,
    },
    /// Until this node is deleted or says that it was granted.
    GrantedOrDeleted(&'a str),
    /// Until any child comes or goes.
    Children,
    /// Until the holder marker is deleted.
    HolderMarkerGone,
}

impl Discipline {
    /// The rule of a queue with a contender in this mode. `limit`: how many permits there are, if the rule counts them.
    pub const fn of(mode: Mode, limit: u32) -> Self {
        match mode {
            Mode::Exclusive | Mode::Write | Mode::Read => Discipline::SharedExclusive,
            Mode::Permits(_) => Discipline::Permits { permits: limit },
            Mode::Class(_) => Discipline::Classes,
        }
    }

    /// How many permits there are, if the rule counts them. The lock's path states the number too.
    pub const fn limit(&self) -> Option<u32> {
        match self {
            Discipline::Permits { permits } => Some(*permits),
            Discipline::SharedExclusive | Discipline::Classes => None,
        }
    }

    /// The name of the node that marks the holder, if the rule has one. Without one, a listing alone shows who holds.
    pub const fn holder_marker(&self) -> Option<&'static str> {
        match self {
            Discipline::Classes => Some(HOLDER_MARKER),
            Discipline::SharedExclusive | Discipline::Permits { .. } => None,
        }
    }

    /// Whether a contender holds as soon as every older one that conflicts with it has released, without a limit or a holder marker
    /// to decide too.
    pub const fn granted_by_listing(&self) -> bool {
        match self {
            Discipline::SharedExclusive => true,
            Discipline::Permits { .. } | Discipline::Classes => false,
        }
    }

    /// Whether a waiter may wait for the end of one other contender. Otherwise it waits for the sum of all holders to shrink.
    pub const fn waits_for_one(&self) -> bool {
        match self {
            Discipline::SharedExclusive | Discipline::Classes => true,
            Discipline::Permits { .. } => false,
        }
    }

    /// Whether a holder writes its grant into its node, because a contender behind it may wait for the grant.
    pub const fn announces_grants(&self) -> bool {
        match self {
            Discipline::Permits { .. } => true,
            Discipline::SharedExclusive | Discipline::Classes => false,
        }
    }

    /// Whether tokens grow from grant to grant, except among readers that hold together. Otherwise holders have no token.
    pub const fn has_tokens(&self) -> bool {
        match self {
            Discipline::SharedExclusive | Discipline::Classes => true,
            Discipline::Permits { .. } => false,
        }
    }

    /// Judges the contender whose node is called `me` by one listing.
    pub fn decide<'a>(&self, queue: &Queue<'a>, me: &str) -> Verdict<'a> {
        let Some(position) = queue.position(me) else {
            return Verdict::Missing;
        };
        let entries = queue.entries();
        let older = &entries[..position];
        match self {
            Discipline::SharedExclusive if entries[position].mode.reads() => behind_the_nearest_writer(older),
            Discipline::SharedExclusive => behind_the_next(older),
            Discipline::Permits { permits } => within_permits(*permits, entries, position),
            Discipline::Classes => match older.last() {
                Some(next) => Verdict::Blocked(Watch::Deleted { name: next.name, grants: false }),
                None if queue.has_holder_marker() => Verdict::Blocked(Watch::HolderMarkerGone),
                None => Verdict::TakeHolderMarker,
            },
        }
    }

    /// The first contender for which the holder `me` makes way, if its caller yields: one of an earlier class. It holds next, after
    /// the holder marker is deleted.
    pub fn makes_way_for<'a>(&self, queue: &Queue<'a>, me: &str) -> Option<&'a str> {
        match self {
            Discipline::Classes => {
                let own = queue.entries().get(queue.position(me)?)?;
                queue.entries().first().filter(|first| first.mode.class() < own.mode.class()).map(|first| first.name)
            }
            Discipline::SharedExclusive | Discipline::Permits { .. } => None,
        }
    }

    /// Judges the contender whose node is called `me` as one that only reads for now, whatever its node says.
    ///
    /// An upgradeable reader acquires in this way. Its node is a writer's, so all contenders behind it wait. It reads
    /// together with the readers ahead of it. To become a writer it only waits for those ([`Discipline::decide`]). No holder
    /// waits for it meanwhile, so there is no deadlock. (The asymmetric update lock of Gray and Reuter, "Transaction
    /// Processing", 7.8.) A rule without readers judges it like any other contender.
    pub fn decide_as_reader<'a>(&self, queue: &Queue<'a>, me: &str) -> Verdict<'a> {
        match (self, queue.position(me)) {
            (Discipline::SharedExclusive, Some(position)) => behind_the_nearest_writer(&queue.entries()[..position]),
            (Discipline::SharedExclusive, None) => Verdict::Missing,
            (Discipline::Permits { .. } | Discipline::Classes, _) => self.decide(queue, me),
        }
    }
}

/// Waits for the next older entry, whatever it is.
fn behind_the_next<'a>(older: &[Entry<'a>]) -> Verdict<'a> {
    match older.last() {
        None => Verdict::Granted,
        // A writer may have become a reader in the same place, and a holder with a delay may have left its
        // tombstone.
        Some(next) => {
            let grants = older.len() == 1 && !next.mode.can_downgrade() && next.delay.is_none();
            Verdict::Blocked(Watch::Deleted { name: next.name, grants })
        }
    }
}

/// A reader waits for the *nearest* older writer: when that one is gone so are all older ones, and it wakes once.
/// (Curator's readers watch the first writer of the queue and wake for each.)
fn behind_the_nearest_writer<'a>(older: &[Entry<'a>]) -> Verdict<'a> {
    behind_the_nearest(older, |entry| !entry.mode.reads())
}

/// Waits for the nearest older entry that conflicts.
fn behind_the_nearest<'a>(older: &[Entry<'a>], conflicts: impl Fn(&Entry<'a>) -> bool) -> Verdict<'a> {
    let mut ahead = older.iter().rev().filter(|entry| conflicts(entry));
    match ahead.next() {
        None => Verdict::Granted,
        Some(nearest) => {
            let grants = ahead.next().is_none() && nearest.delay.is_none();
            Verdict::Blocked(Watch::Deleted { name: nearest.name, grants })
        }
    }
}

/// First come, first served: an entry holds when all older ones and itself fit.
///
/// Only the first waiter watches the children; each later one watches the entry before it, which announces its own grant
/// on its node. So a release wakes one waiter. Watching `children[i - permits]` instead loses a wake-up when another
/// holder leaves first (Curator's `setMaxLeases` has it).
fn within_permits<'a>(permits: u32, entries: &[Entry<'a>], position: usize) -> Verdict<'a> {
    let mut taken = 0u64;
    for (i, entry) in entries[..=position].iter().enumerate() {
        // An exclusive lock's contender takes all permits.
        taken += u64::from(entry.mode.permits().unwrap_or(permits.max(1)));
        if taken > u64::from(permits) {
            return Verdict::Blocked(if i == position {
                Watch::Children
            } else {
                Watch::GrantedOrDeleted(entries[position - 1].name)
            });
        }
    }
    Verdict::Granted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_states_what_differs() {
        let names = |rule: Discipline| (rule.limit(), rule.holder_marker());
        assert_eq!(names(Discipline::SharedExclusive), (None, None));
        assert_eq!(names(Discipline::Permits { permits: 3 }), (Some(3), None));
        assert_eq!(names(Discipline::Classes), (None, Some(HOLDER_MARKER)));
        let facts = |rule: Discipline| {
            [rule.granted_by_listing(), rule.waits_for_one(), rule.announces_grants(), rule.has_tokens()]
        };
        assert_eq!(facts(Discipline::SharedExclusive), [true, true, false, true]);
        assert_eq!(facts(Discipline::Permits { permits: 3 }), [false, false, true, false]);
        assert_eq!(facts(Discipline::Classes), [false, true, false, true]);
    }
}
