//! The hold: the grant, and the token that it has.

use super::Contender;
use super::change::UpgradeStage;
use crate::FencingToken;

/// How far the hold has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Waiting,
    /// The lock is granted; the caller does not know yet.
    Granted,
    /// The caller has the lock.
    HandedOver,
}

/// The hold of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HoldFacts {
    pub(super) stage: Stage,
    /// The grant follows from the blocker's deletion alone; no listing has shown the own node first.
    pub(super) inferred: bool,
    /// The listing that granted showed contenders behind this one. They may have seen more contenders ahead than this one did.
    pub(super) followed: bool,
    pub(super) token: Option<FencingToken>,
}

impl HoldFacts {
    pub(super) const NONE: HoldFacts =
        HoldFacts { stage: Stage::Waiting, inferred: false, followed: false, token: None };

    pub(super) fn is_granted(&self) -> bool {
        self.stage != Stage::Waiting
    }

    pub(super) fn is_handed_over(&self) -> bool {
        self.stage == Stage::HandedOver
    }

    pub(super) fn grant(&mut self, inferred: bool) {
        self.inferred = inferred;
        if self.stage == Stage::Waiting {
            self.stage = Stage::Granted;
        }
    }
}

impl Contender {
    /// The lock, or the upgrade, is granted.
    pub(super) fn grant(&mut self, inferred: bool) {
        if self.hold.is_granted() {
            self.change.upgrade = UpgradeStage::Reached;
        }
        self.hold.grant(inferred);
    }

    /// The connection is lost. Watches no longer report in order: a listing must show which contender is first.
    pub(super) fn disconnected(&mut self) {
        self.stop_deferring();
        if let Some(blocker) = &mut self.view.blocker {
            blocker.distrust();
        }
        if !self.hold.inferred {
            return;
        }
        if self.hold.stage == Stage::Granted {
            self.hold.stage = Stage::Waiting;
        } else if self.change.upgrade == UpgradeStage::Reached {
            self.change.upgrade = UpgradeStage::Wanted;
        } else {
            return;
        }
        self.hold.inferred = false;
        self.view.listing_due = true;
    }
}
