//! The own node's data: what we and other clients write into it.

use super::change::Downgrade;
use super::{Contender, Flight};
use crate::protocol::{Command, Failure, Inspection};

/// The content of the own node's data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Record {
    /// Its version, as last seen or written.
    pub(super) version: Option<i32>,
    /// It says that we were granted.
    announced: bool,
    /// It must be written again so that it names the owner.
    due: bool,
    /// It asks us to release.
    asked: bool,
    /// The caller knows of the revocation.
    reported: bool,
}

impl Record {
    /// The caller refuses to release. A request that is read from now on is a new one, and is reported again.
    pub(super) fn refuse(&mut self) {
        self.due = true;
        self.asked = false;
        self.reported = false;
    }

    /// Whether the caller must learn of a revocation; it learns of each once.
    fn report_revocation(&mut self) -> bool {
        self.asked && !std::mem::replace(&mut self.reported, true)
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
        if let (Downgrade::Done, Some(name)) = (self.change.downgrade, self.node()) {
            let name = name.to_owned();
            self.change.downgrade = Downgrade::None;
            return Some(Command::Reads { name });
        }
        None
    }

    /// Whether something must be written into the own node.
    ///
    /// A contender that was granted a permit announces that to the contenders that its granting listing showed behind
    /// it. They may have listed earlier, seen more contenders ahead, and wait for the announcement. Later contenders
    /// see no more ahead than it did.
    pub(super) fn must_write_record(&self) -> bool {
        let announces = self.terms.discipline.announces_grants() && self.hold.is_granted() && self.hold.followed;
        self.record.due || announces && !self.record.announced
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
        self.flight = Some(Flight::WriteRecord { granted, due });
        Some(Command::WriteRecord { name: own.to_owned(), granted, version })
    }

    pub(super) fn record_written(&mut self, outcome: Result<i32, Failure>) {
        let Some(Flight::WriteRecord { granted, due }) = self.flight.take() else {
            return;
        };
        match outcome {
            Ok(version) => {
                self.record.version = Some(version);
                self.record.announced = granted;
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
    pub(super) fn own_read(&mut self, seen: &Inspection) {
        self.nodes.watched = true;
        let record = &mut self.record;
        record.version = Some(seen.version);
        record.announced = seen.granted;
        record.asked = seen.asked;
        if !seen.asked {
            // Answered, or withdrawn: the next revocation is a new one.
            record.reported = false;
        } else if self.hold.is_granted() {
            // A bare word replaced the record that names the owner.
            record.due |= seen.id != Some(self.terms.id);
        } else {
            self.exit.leave(super::Leaving::Revoked);
        }
    }
}
