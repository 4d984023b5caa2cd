//! The release: which contender may hold before the delete is answered, and how a waiter far back in a queue learns that the
//! contender before it has held.
//!
//! When the node before the waiter's is deleted, its contender has released, or it has given up while older ones are ahead. A
//! listing tells which, but the listing of a long queue is long. So a holder records in the transaction of its release that it held
//! alone ([`ReleaseRecord`](crate::ReleaseRecord)): all older contenders had ended by then. If the record names the node before the
//! waiter's, the waiter is granted the lock; otherwise it lists. The read of the record also shows the waiter's own node, without
//! which the record grants nothing: an operator may have deleted it. So this waiter needs no watch on its own node.
//!
//! A contender with few ahead reads and writes no record, because its listing is short.

use super::exit::Leaving;
use super::view::Blocker;
use super::{Contender, Flight};
use crate::protocol::{Command, Failure, ReleaseSeen, ReleaseWrite};
use crate::{ReleaseRecord, Zxid};

/// What the attempt knows of the records of releases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Releases {
    /// The transaction that created the blocker, if that is deleted and a record may say how its contender ended.
    due: Option<Zxid>,
    /// The version of the path's data, if the own release may replace it.
    version: Option<i32>,
    /// The caller has released, and the hold was alone until then.
    released_alone: bool,
    /// The next contender of this session may hold already.
    passed_on: bool,
    /// The caller writes in the transaction of its release.
    pub(super) callers_write: bool,
    /// It had many contenders ahead when it was created, and no listing showed its place then.
    pub(super) came_far_back: bool,
}

impl Releases {
    /// The blocker is deleted, and its contender may have written a record.
    pub(super) fn look_for(&mut self, blocker: Zxid) {
        self.due = Some(blocker);
    }

    /// A listing has shown more than a record can.
    pub(super) fn forget(&mut self) {
        self.due = None;
    }

    /// A contender of this session has released, and its node may outlive the own one. So the own release leaves no record.
    pub(super) fn follow_a_local(&mut self) {
        self.version = None;
    }
}

impl Contender {
    /// The caller releases, or stops waiting. If this contender held alone, every older contender has ended, and the next contender of
    /// this session may hold before the node is deleted.
    ///
    /// This keeps the order of arrival. The next contender waits for this node alone, and later nodes get higher numbers. So no
    /// contender of another session is or comes between the two, and all others wait behind both nodes. With a lock delay, the next
    /// contender waits until the tombstone is deleted.
    ///
    /// If a write that is bound to the hold may still take effect, the next contender waits for the delete, which is ordered behind
    /// that write. Otherwise the write could take effect during the next hold. It also waits if the caller writes in the transaction
    /// of the release.
    pub(super) fn release(&mut self, lost: bool, writes: bool) {
        let at_once = self.terms.discipline.granted_by_listing() && self.terms.delay.is_none();
        let alone = at_once && self.node().is_some() && self.hold.is_handed_over() && self.is_alone();
        self.releases.released_alone |= alone;
        self.releases.passed_on |= alone && !lost && !writes && !self.releases.callers_write;
        self.exit.leave(Leaving::Asked);
    }

    /// Whether it has released, and the next contender of this session may hold before the node is deleted.
    pub(crate) fn has_passed_on(&self) -> bool {
        self.releases.passed_on
    }

    /// Reads the last record, if it may show that the blocker has held.
    pub(super) fn read_release(&mut self) -> Option<Command> {
        let blocker = self.releases.due.take()?;
        let own = self.node()?.to_owned();
        self.flight = Some(Flight::ReadRelease(blocker));
        Some(Command::ReadRelease { own })
    }

    pub(super) fn release_read(&mut self, outcome: Result<ReleaseSeen, Failure>) {
        let Some(Flight::ReadRelease(blocker)) = self.flight.take() else { return };
        let last = outcome.map(|seen| seen.last).unwrap_or_default();
        self.releases.version = last.version;
        if !self.waits() || self.exit.is_leaving() {
            return;
        }
        match outcome {
            // A name without an id may be used again, for a node of another contender.
            Ok(seen) if seen.own != self.nodes.own_czxid() => self.removed(),
            Ok(_) if last.freed == Some(blocker) => self.grant(false),
            _ => self.view.listing_due = true,
        }
    }

    /// What to write in the transaction that deletes the own node. A release with a write of the caller leaves no record: the
    /// contender behind it lists.
    pub(super) fn release_write(&self) -> Option<ReleaseWrite> {
        if self.releases.callers_write {
            return Some(ReleaseWrite::Callers);
        }
        let czxid = self.nodes.own_czxid().filter(|_| self.releases.released_alone)?;
        Some(ReleaseWrite::Record(ReleaseRecord::new(czxid), self.releases.version?))
    }

    /// Whether a record may say how the contender of this blocker ended. Only a contender that holds alone, without a lock delay,
    /// writes records.
    pub(super) fn may_be_recorded(&self, blocker: &Blocker) -> bool {
        let many_ahead = self.view.place.as_ref().is_some_and(|place| place.ahead >= self.terms.many_ahead);
        let far_back = many_ahead || self.releases.came_far_back;
        let name = blocker.ends().and_then(|name| self.terms.node_format.parse(name));
        let alone = name.is_some_and(|name| !name.mode.reads() && name.delay.is_none());
        let shares_its_parent = self.terms.node_format.is_beside();
        let waits_to_hold = !self.hold.is_granted() && !self.terms.once && !self.nodes.doubted;
        far_back && alone && waits_to_hold && self.terms.discipline.granted_by_listing() && !shares_its_parent
    }
}
