//! The own node's data: what we and other clients write into it.

use super::change::DowngradeStage;
use super::{Contender, Flight};
use crate::Revocation;
use crate::protocol::{Command, Failure, Inspection};

/// The content of the own node's data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnRecord {
    /// Its version, as last seen or written.
    pub(super) version: Option<i32>,
    /// It says that we were granted.
    announced: bool,
    /// It must be written again so that it names the owner, or says when the lock was granted.
    due: bool,
    /// The revocation that was last seen in it, with our answer.
    revocation: Option<Box<Revocation>>,
    /// Our answer is a refusal that is not yet written.
    refusing: bool,
    /// The caller knows of the revocation.
    reported: bool,
}

impl OwnRecord {
    pub(super) fn revocation(&self) -> Option<&Revocation> {
        self.revocation.as_deref()
    }

    /// The caller refuses to release. A request that is read from now on is a new one, and is reported again.
    pub(super) fn refuse(&mut self, why: &str) {
        if let Some(asked) = &mut self.revocation {
            asked.refuse(why);
            self.refusing = true;
            self.due = true;
            self.reported = false;
        }
    }

    /// Whether another client asks for the release, without an answer so far.
    pub(super) fn is_asked(&self) -> bool {
        self.revocation.is_some() && !self.is_refused()
    }

    fn is_refused(&self) -> bool {
        self.revocation.as_ref().is_some_and(|asked| asked.refused.is_some())
    }

    /// Whether the caller must learn of a revocation; it learns of each once.
    fn report_revocation(&mut self) -> bool {
        self.is_asked() && !std::mem::replace(&mut self.reported, true)
    }

    /// Takes in the request that a read of the node shows. Returns whether the caller has to answer one.
    fn see_revocation(&mut self, seen: Option<Box<Revocation>>) -> bool {
        let Some(asked) = seen else {
            // Answered, or withdrawn: the next revocation is a new one.
            self.revocation.take_if(|before| before.refused.is_none());
            self.reported = false;
            return false;
        };
        let is_same = self.revocation.as_ref().is_some_and(|before| before.id == asked.id);
        if self.refusing && is_same {
            return false;
        }
        self.reported &= is_same;
        self.refusing = false;
        self.revocation = Some(asked);
        true
    }
}

impl Contender {
    /// The next report to the holder's caller.
    pub(super) fn report(&mut self) -> Option<Command> {
        if !self.hold.is_handed_over() {
            return None;
        }
        if self.record.report_revocation() {
            return Some(Command::Revoke);
        }
        if let Some(contended) = self.with_classes(Self::report_contended) {
            return Some(contended);
        }
        if let (DowngradeStage::Done, Some(name)) = (self.change.downgrade, self.node()) {
            let name = name.to_owned();
            self.change.downgrade = DowngradeStage::None;
            return Some(Command::Reads { name });
        }
        None
    }

    /// Whether something must be written into the own node.
    ///
    /// A contender that was granted a permit announces that, if the listing that granted it showed contenders behind it. Such a
    /// contender may have listed earlier, seen more contenders ahead, and wait for the announcement. A contender that comes later
    /// sees no more ahead than this one did.
    pub(super) fn must_write_record(&self) -> bool {
        let announces = self.terms.discipline.announces_grants() && self.hold.is_granted() && self.hold.followed;
        self.terms.node_format.allows_new_data() && (self.record.due || announces && !self.record.announced)
    }

    /// The create of the own node does not tell when the hold began, so the record must.
    pub(super) fn granted_late(&mut self) {
        self.record.due |= self.hold.is_handed_over();
    }

    /// Writes the record, if that is due and the version of the data is known.
    pub(super) fn write_record(&mut self, own: &str) -> Option<Command> {
        if !self.must_write_record() {
            return None;
        }
        let version = self.record.version?;
        // Changes that become due while this write is in progress are not in it.
        let due = std::mem::take(&mut self.record.due);
        let granted = self.hold.is_granted();
        let revocation = self.record.revocation.clone();
        self.flight = Some(Flight::WriteRecord { granted, due, refuses: self.record.is_refused() });
        Some(Command::WriteRecord { name: own.to_owned(), granted, version, revocation })
    }

    pub(super) fn record_written(&mut self, outcome: Result<i32, Failure>) {
        let Some(Flight::WriteRecord { granted, due, refuses }) = self.flight.take() else {
            return;
        };
        match outcome {
            Ok(version) => {
                self.record.version = Some(version);
                self.record.announced = granted;
                self.record.refusing &= !refuses;
            }
            Err(Failure::NoNode) => self.removed(),
            // Another client wrote meanwhile, or perhaps we did: read again.
            Err(Failure::BadVersion | Failure::ConnectionLoss) => {
                self.record.due |= due;
                self.record.version = None;
                self.nodes.watched = false;
            }
            // The contenders behind us hear of us when we leave.
            Err(Failure::Refused | Failure::NodeExists) => self.record.announced = granted,
        }
    }

    /// The own node was read, and its watch is set.
    pub(super) fn own_read(&mut self, seen: Inspection) {
        if !self.nodes.is_own(&seen) {
            return self.removed();
        }
        self.nodes.watched = true;
        self.record.version = Some(seen.version);
        self.record.announced = seen.granted;
        if !self.record.see_revocation(seen.asked) {
            return;
        }
        if self.hold.is_granted() {
            // A bare word replaced the record that names the owner.
            self.record.due |= seen.id != Some(self.terms.id);
        } else {
            self.exit.leave(super::Leaving::Revoked);
        }
    }
}
