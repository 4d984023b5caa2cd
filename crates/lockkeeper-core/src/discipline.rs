//! Who blocks whom: the one question in which the kinds of queue lock differ.
//!
//! A lock kind is a value of [`Discipline`], not a protocol of its own. [`decide`] is pure, so what it says of a listing
//! can be compared with an oracle for every small queue there is (`tests/properties.rs`).

use crate::{Entry, Mode, Queue};

/// The rule of a queue: which contenders may hold together, and in which order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Discipline {
    /// Oldest first; one holder.
    Exclusive,
    /// Oldest first; neighbouring readers hold together.
    SharedExclusive,
    /// Oldest first; what the holders hold sums to at most `permits`.
    Permits {
        /// How many there are.
        permits: u32,
    },
    /// Lowest class first, then oldest; the holder owns the holder marker node, so a newcomer of a lower class waits for it.
    Classes {
        /// The name of the holder marker node.
        holder_marker: String,
    },
}

/// What a listing says of one contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It holds the lock.
    Granted,
    /// It is first and nobody holds: it takes the holder marker, and holds once it has it.
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
    /// The name of the node that marks the holder, where the rule has one.
    pub fn holder_marker(&self) -> Option<&str> {
        match self {
            Discipline::Classes { holder_marker } => Some(holder_marker),
            _ => None,
        }
    }

    /// How many permits there are, where they are counted.
    pub fn permits(&self) -> Option<u32> {
        match self {
            Discipline::Permits { permits } => Some(*permits),
            _ => None,
        }
    }
}

/// Judges the contender whose node is called `me` by one listing.
pub fn decide<'a>(discipline: &Discipline, queue: &Queue<'a>, me: &str) -> Verdict<'a> {
    let Some(position) = queue.position(me) else {
        return Verdict::Missing;
    };
    let entries = queue.entries();
    let older = &entries[..position];
    match discipline {
        Discipline::Exclusive => behind_the_next(older),
        Discipline::SharedExclusive if entries[position].mode == Mode::Read => behind_the_nearest_writer(older),
        Discipline::SharedExclusive => behind_the_next(older),
        Discipline::Permits { permits } => within_permits(*permits, entries, position),
        Discipline::Classes { .. } => match older.last() {
            Some(next) => Verdict::Blocked(Watch::Deleted { name: next.name, grants: false }),
            None if queue.has_holder_marker() => Verdict::Blocked(Watch::HolderMarkerGone),
            None => Verdict::TakeHolderMarker,
        },
    }
}

/// Judges the contender whose node is called `me` as one that only reads for now, whatever its node says.
///
/// An upgradeable reader acquires in this way: its node is a writer's, so all contenders behind it wait, and it reads together with
/// the readers ahead of it. To become a writer it only waits for those ([`decide`]). No holder waits for it meanwhile, so there is
/// no deadlock. (The asymmetric update lock of Gray and Reuter, "Transaction Processing", 7.8.)
pub fn decide_as_reader<'a>(queue: &Queue<'a>, me: &str) -> Verdict<'a> {
    match queue.position(me) {
        Some(position) => behind_the_nearest_writer(&queue.entries()[..position]),
        None => Verdict::Missing,
    }
}

/// Waits for the next older entry, whatever it is.
fn behind_the_next<'a>(older: &[Entry<'a>]) -> Verdict<'a> {
    match older.last() {
        None => Verdict::Granted,
        // A writer may have become a reader in the same place, and a holder with a delay may have left its
        // tombstone.
        Some(next) => {
            let grants = older.len() == 1 && next.mode != Mode::Write && next.delay.is_none();
            Verdict::Blocked(Watch::Deleted { name: next.name, grants })
        }
    }
}

/// A reader waits for the *nearest* older writer: when that one is gone so are all older ones, and it wakes once.
/// (Curator's readers watch the first writer of the queue and wake for each.)
fn behind_the_nearest_writer<'a>(older: &[Entry<'a>]) -> Verdict<'a> {
    let is_writer = |e: &&Entry<'a>| e.mode != Mode::Read;
    match older.iter().rev().find(is_writer) {
        None => Verdict::Granted,
        Some(writer) => {
            let grants = older.iter().filter(is_writer).count() == 1 && writer.delay.is_none();
            Verdict::Blocked(Watch::Deleted { name: writer.name, grants })
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
        taken += u64::from(if let Mode::Permits(n) = entry.mode { n } else { permits.max(1) });
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
