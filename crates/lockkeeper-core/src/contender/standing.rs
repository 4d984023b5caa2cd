//! The own nodes while they exist: what we and other clients write in them, and what happens to the hold.

use super::{Contender, Flight, Leaving, Own};
use crate::protocol::{Ask, Command, Failure, Inspection};
use crate::{Mode, Zxid};

/// The state of the holder marker, if the discipline has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HolderMarker {
    /// We have none.
    None,
    /// To be created.
    Due,
    /// The reply to its create was lost.
    Doubtful,
    /// The reply was lost, and a holder marker exists: whose?
    Suspect,
    /// Ours, created by this transaction.
    Ours {
        czxid: Zxid,
        watched: bool,
        /// It was just seen to be ours, with this version of its data.
        verified: Option<i32>,
    },
}

/// The stages of an upgrade: a reader becomes the only holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Upgrade {
    Unasked,
    Wanted,
    Reached,
    Told,
}

/// The stages of a downgrade: a writer reads on in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Downgrade {
    None,
    Wanted,
    /// The reply was lost.
    Doubtful,
    /// It took effect, but the reader's node was not read yet.
    Adopt,
    /// The caller does not know yet.
    Done,
}

/// The content of the own node's data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Record {
    /// Its version, as last seen or written.
    pub(super) version: Option<i32>,
    /// It says that we were granted.
    announced: bool,
    /// It must be written again so that it names the owner.
    pub(super) due: bool,
    /// It asks us to release.
    asked: bool,
    /// The caller knows of the revocation.
    asked_told: bool,
}

impl Contender {
    pub(super) fn asked_by_its_caller(&mut self, ask: Ask) {
        match ask {
            Ask::Downgrade if self.handed_over && self.mode.may_read_on() => {
                self.downgrade = Downgrade::Wanted;
                self.stop_upgrade();
            }
            Ask::Upgrade if self.handed_over && self.reads_early => {
                (self.reads_early, self.upgrade, self.listing_due) = (false, Upgrade::Wanted, true);
            }
            // Its caller missed the first answer.
            Ask::Upgrade if self.upgrade == Upgrade::Told => self.upgrade = Upgrade::Reached,
            Ask::StayReader if self.upgrade == Upgrade::Wanted => {
                self.reads_early = true;
                self.stop_upgrade();
            }
            Ask::Reclassify(class) => self.wants_class(class),
            // A request that is read from now on is a new one, and is reported again.
            Ask::Refuse => {
                (self.record.due, self.record.asked, self.record.asked_told) = (true, false, false);
            }
            Ask::Downgrade | Ask::Upgrade | Ask::StayReader => {}
        }
    }

    fn stop_upgrade(&mut self) {
        if self.upgrade == Upgrade::Wanted {
            (self.upgrade, self.blocker, self.listing_due) = (Upgrade::Unasked, None, false);
        }
    }

    /// The next report to the holder's caller.
    pub(super) fn tell_caller(&mut self) -> Option<Command> {
        if self.record.asked && !self.record.asked_told {
            self.record.asked_told = true;
            return Some(Command::Revoke);
        }
        if let (Downgrade::Done, Some(name)) = (self.downgrade, self.node()) {
            let name = name.to_owned();
            self.downgrade = Downgrade::None;
            return Some(Command::Reads { name });
        }
        None
    }

    /// Whether something must be written into the own node.
    ///
    /// A contender that was granted a permit announces that to the contenders that its granting listing showed behind
    /// it. They may have listed earlier, seen more contenders ahead, and wait for the announcement. Later contenders
    /// see no more ahead than it did.
    pub(super) fn must_announce(&self) -> bool {
        let announces = self.discipline.announces_grants() && self.granted && self.followed;
        self.record.due || announces && !self.record.announced
    }

    pub(super) fn watched(&mut self, outcome: Result<Inspection, Failure>) {
        let Some(Flight::Watch(name)) = self.flight.take() else {
            return;
        };
        match outcome {
            Ok(seen) if self.node() == Some(&name) => self.own_read(&seen),
            Ok(seen) => match &mut self.holder_marker {
                HolderMarker::Ours { czxid, watched, .. } if self.discipline.holder_marker() == Some(&name) => {
                    *watched = true;
                    if *czxid != seen.czxid {
                        self.gone(&name);
                    }
                }
                _ => self.blocker_watched(&name, &seen),
            },
            Err(Failure::NoNode) => {
                if let HolderMarker::Ours { watched, .. } = &mut self.holder_marker {
                    *watched = true;
                }
                self.gone(&name);
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.leave_because(Leaving::Refused),
        }
    }

    /// The own node was read, and its watch is set.
    fn own_read(&mut self, seen: &Inspection) {
        self.own_watched = true;
        self.record.version = Some(seen.version);
        self.record.announced = seen.granted;
        if !seen.asked {
            // Answered, or withdrawn: the next revocation is a new one.
            (self.record.asked, self.record.asked_told) = (false, false);
            return;
        }
        self.record.asked = true;
        if self.granted {
            // A bare word replaced the record that names the owner.
            self.record.due |= seen.id != Some(self.id);
        } else {
            self.leave_because(Leaving::Revoked);
        }
    }

    /// A watched node was deleted.
    pub(super) fn gone(&mut self, name: &str) {
        if self.node() == Some(name) {
            // Perhaps we deleted it ourselves: the reply shows that, or, if the reply is lost, the following read.
            let ours = self.flight == Some(Flight::Downgrade) || self.downgrade == Downgrade::Doubtful;
            if !ours {
                self.evicted();
            }
            return;
        }
        match self.holder_marker {
            HolderMarker::Ours { watched: true, .. } if self.discipline.holder_marker() == Some(name) => {
                self.holder_marker = HolderMarker::None;
                self.leave_because(Leaving::Evicted);
            }
            // Not our marker: this watch was set while we waited for another holder's.
            HolderMarker::Ours { .. } if self.discipline.holder_marker() == Some(name) => {}
            _ => self.blocker_gone(name),
        }
    }

    /// A watched node has new data; its watch has fired.
    pub(super) fn changed(&mut self, name: &str) {
        if self.node() == Some(name) {
            self.own_watched = false;
        } else if let HolderMarker::Ours { watched, .. } = &mut self.holder_marker
            && self.discipline.holder_marker() == Some(name)
        {
            *watched = false;
        } else {
            self.blocker_changed(name);
        }
    }

    pub(super) fn told(&mut self, outcome: Result<i32, Failure>) {
        let Some(Flight::WriteRecord { granted, due }) = self.flight.take() else {
            return;
        };
        match outcome {
            Ok(version) => (self.record.version, self.record.announced) = (Some(version), granted),
            Err(Failure::NoNode) => self.evicted(),
            // Another client wrote meanwhile, or perhaps we did: read again.
            Err(Failure::BadVersion | Failure::ConnectionLoss) => {
                self.record.due |= due;
                (self.record.version, self.own_watched) = (None, false);
            }
            Err(Failure::SessionOver) => self.session_over = true,
            // The contenders behind us hear of us when we leave.
            Err(Failure::Refused | Failure::NodeExists) => self.record.announced = granted,
        }
    }

    pub(super) fn holder_marker_taken(&mut self, outcome: Result<Zxid, Failure>) {
        let Some(Flight::TakeHolderMarker) = self.flight.take() else {
            return;
        };
        self.holder_marker = HolderMarker::None;
        match outcome {
            Ok(czxid) => self.hold_holder_marker(czxid),
            Err(Failure::NodeExists) => self.listing_due = true,
            Err(Failure::NoNode) => self.evicted(),
            Err(Failure::ConnectionLoss) => self.holder_marker = HolderMarker::Doubtful,
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) => self.leave_because(Leaving::Refused),
        }
    }

    pub(super) fn downgraded(&mut self, outcome: Result<Zxid, Failure>) {
        let Some(Flight::Downgrade) = self.flight.take() else {
            return;
        };
        match outcome {
            Ok(czxid) => {
                if let Own::Node { name, .. } = &self.own {
                    self.own = Own::Node { name: self.reader_name(name), czxid };
                }
                (self.mode, self.downgrade) = (Mode::Read, Downgrade::Done);
                (self.own_watched, self.record.version) = (false, None);
            }
            Err(Failure::NoNode) => self.evicted(),
            Err(Failure::ConnectionLoss | Failure::NodeExists) => self.downgrade = Downgrade::Doubtful,
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion) => self.leave_because(Leaving::Refused),
        }
    }
}
