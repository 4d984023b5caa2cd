//! The release: who may hold before the delete is answered, and how a contender far back in a queue learns that the one before it
//! has held.
//!
//! If the node before the own one is deleted, its contender has released, or has left without the lock; then older ones are
//! still ahead. Only a listing can tell, and the listing of a long queue is long. So a holder says in the transaction of its
//! release that it held alone ([`ReleaseRecord`](crate::ReleaseRecord)). Every older contender had ended by then, and nobody
//! else can be between. If the record does not name the node before the own one, a listing follows, as without a record.
//! The read shows the own node too, behind the record: an operator may have deleted it, and then the record grants nothing. So a
//! waiter that looks for a record needs no watch on its own node.
//!
//! A contender that had few ahead reads and writes no record: its listing is as short.

use super::exit::Leaving;
use super::view::Blocker;
use super::{Contender, Flight};
use crate::protocol::{Command, Failure, ReleaseSeen, ReleaseWrite};
use crate::{ReleaseRecord, Zxid};

/// What the attempt knows of the records of releases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Releases {
    /// The blocker, which this transaction created, is deleted: the record may say how it ended.
    due: Option<Zxid>,
    /// The version of the path's data, if the own release may replace it.
    version: Option<i32>,
    /// The caller has released, and the hold was alone until then.
    released_alone: bool,
    /// The next contender of this session may hold already.
    passed_on: bool,
    /// The caller writes in the transaction of its release.
    pub(super) callers_write: bool,
    /// It had many ahead when it came, and has found its place only later.
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

    /// The lock was taken from a neighbour whose node may outlive the own one: the own end proves nothing about it.
    pub(super) fn follow_a_local(&mut self) {
        self.version = None;
    }
}

impl Contender {
    /// The caller leaves. If it had a hold, and that is alone, every older contender has ended, and a contender behind it in this
    /// process may hold before the node is deleted.
    ///
    /// This keeps the order of arrival. The contender behind was blocked by this node in a listing, and numbers only
    /// grow. So no contender of another process is or comes between the two. All others still wait behind both nodes. A
    /// lock delay takes longer: the tombstone must be deleted first.
    ///
    /// While a write that is bound to the hold may still take effect, the contender behind waits for the delete, which is ordered
    /// behind that write. Otherwise the write could take effect while the next one holds. The same if the caller writes in the
    /// transaction of the release.
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

    /// Whether the end of this blocker may be in a record. Its node must be one whose holder writes records: it holds alone and
    /// without a delay.
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
