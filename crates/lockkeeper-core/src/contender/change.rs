//! A change under way: an upgrade, a downgrade, or another class.

use super::{Contender, Flight, Leaving};
use crate::protocol::{Ask, Command, Failure};
use crate::{Class, Mode, Zxid};

/// The stages of an upgrade: a reader becomes the only holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum UpgradeStage {
    None,
    Wanted,
    Reached,
    Reported,
}

/// The stages of a downgrade: a writer reads on in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DowngradeStage {
    None,
    Wanted,
    /// The reply was lost.
    Doubtful,
    /// It took effect, but the reader's node was not read yet.
    Adopt,
    /// The caller does not know yet.
    Done,
}

/// What changes in the course of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Change {
    pub(super) upgrade: UpgradeStage,
    pub(super) downgrade: DowngradeStage,
    /// The class to change to.
    class: Option<Class>,
}

impl Change {
    pub(super) const NONE: Change =
        Change { upgrade: UpgradeStage::None, downgrade: DowngradeStage::None, class: None };
}

impl Contender {
    /// Takes in a request of the caller.
    pub(super) fn asked_by_its_caller(&mut self, ask: Ask) {
        let holds = self.hold.is_handed_over();
        match ask {
            Ask::Downgrade if holds && self.terms.mode.can_downgrade() => {
                self.change.downgrade = DowngradeStage::Wanted;
                self.stop_upgrade();
            }
            Ask::Upgrade if holds && self.terms.reads_early => {
                self.terms.reads_early = false;
                self.change.upgrade = UpgradeStage::Wanted;
                self.view.listing_due = true;
            }
            // Its caller missed the first answer.
            Ask::Upgrade if self.change.upgrade == UpgradeStage::Reported => {
                self.change.upgrade = UpgradeStage::Reached
            }
            Ask::StayReader if self.change.upgrade == UpgradeStage::Wanted => {
                self.terms.reads_early = true;
                self.stop_upgrade();
            }
            Ask::Reclassify(class) => {
                if self.terms.mode.class().is_some_and(|now| now != class) && !self.hold.is_granted() {
                    self.change.class = Some(class);
                }
            }
            Ask::Verify => self.verify_hold(),
            Ask::Yield => self.yield_lock(),
            Ask::WriteAtRelease => self.releases.callers_write = holds,
            Ask::Downgrade | Ask::Upgrade | Ask::StayReader => {}
        }
    }

    fn stop_upgrade(&mut self) {
        if self.change.upgrade == UpgradeStage::Wanted {
            self.change.upgrade = UpgradeStage::None;
            self.view.blocker = None;
            self.view.listing_due = false;
        }
    }

    /// Replaces the writer's node by a reader's, if the caller wants that.
    pub(super) fn downgrade(&mut self, own: &str) -> Option<Command> {
        if self.change.downgrade != DowngradeStage::Wanted || !self.hold.is_handed_over() {
            return None;
        }
        self.flight = Some(Flight::Downgrade);
        let (from, into) = (own.to_owned(), self.terms.reader_name(own));
        Some(Command::Downgrade { from, into, revocation: self.revocation().cloned().map(Box::new) })
    }

    pub(super) fn downgraded(&mut self, outcome: Result<Zxid, Failure>) {
        let Some(Flight::Downgrade) = self.flight.take() else {
            return;
        };
        match outcome {
            Ok(czxid) => {
                if let Some(writer) = self.node() {
                    let reader = self.terms.reader_name(writer);
                    self.nodes.own_is(reader, czxid);
                }
                self.terms.mode = Mode::Read;
                self.change.downgrade = DowngradeStage::Done;
                self.nodes.watched = false;
                self.record.version = None;
            }
            Err(Failure::NoNode) => self.removed(),
            Err(Failure::ConnectionLoss | Failure::NodeExists) => self.change.downgrade = DowngradeStage::Doubtful,
            Err(Failure::Refused | Failure::BadVersion) => self.exit.leave(Leaving::Refused),
        }
    }

    /// A linearizable listing decides whether the downgrade took effect.
    pub(super) fn settle_downgrade(&mut self, exists: impl Fn(&str) -> bool) {
        if self.change.downgrade != DowngradeStage::Doubtful {
            return;
        }
        let Some(writer) = self.node() else { return };
        let reader = self.terms.reader_name(writer);
        if exists(writer) {
            self.change.downgrade = DowngradeStage::Wanted;
        } else if exists(&reader) {
            self.change.downgrade = DowngradeStage::Adopt;
            self.terms.mode = Mode::Read;
            self.nodes.replaced_by(reader);
        } else {
            self.removed();
        }
    }

    /// Changes to another class: the own node becomes a stray, and after its deletion the next command is to enter.
    pub(super) fn change_class(&mut self) {
        let may = !self.hold.is_granted() && !self.exit.is_leaving() && self.marker.is_none();
        if !may || self.node().is_none() {
            return;
        }
        if let Some(class) = self.change.class.take() {
            self.nodes.own_is_stray();
            self.terms.mode = Mode::Class(class);
            self.view.leave_place();
        }
    }
}
