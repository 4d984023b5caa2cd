//! The proof that the lock is held, if the holder's caller wants one from the servers.
//!
//! A check in a transaction is ordered with all writes, so a majority gives the answer, and the answer shows that the session is
//! alive. It proves that the own node exists. A holder marker has a name that others use too, so it is read behind the check: the
//! transaction that created it shows whose it is.

use super::change::DowngradeStage;
use super::marker::HolderMarker;
use super::{Contender, Flight};
use crate::Zxid;
use crate::protocol::{Command, Failure};

/// How far the proof has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Proof {
    #[default]
    None,
    /// The check is to be sent.
    Due,
    Sent,
    /// This is the answer; the caller does not know yet.
    Known(Result<(), Failure>),
}

impl Contender {
    /// The caller wants a proof. One that is under way is enough.
    pub(super) fn verify_hold(&mut self) {
        if self.proof == Proof::None && self.hold.is_handed_over() {
            self.proof = Proof::Due;
        }
    }

    /// The check, or its answer. It runs beside any other command. Once the contender leaves, nothing is checked: behind the
    /// delete, the check would find no node. While a downgrade is under way, it is unknown which node it would find.
    pub(super) fn prove_hold(&mut self) -> Option<Command> {
        if self.proof == Proof::None {
            return None;
        }
        let moves = matches!(self.change.downgrade, DowngradeStage::Doubtful | DowngradeStage::Adopt);
        match self.proof {
            _ if !self.holds() => None,
            Proof::Due if !moves && self.flight != Some(Flight::Downgrade) => {
                let own = self.node()?.to_owned();
                self.proof = Proof::Sent;
                let holder_marker = self.terms.discipline.holder_marker().map(str::to_owned);
                Some(Command::Check { own, holder_marker })
            }
            Proof::Known(shown) => {
                self.proof = Proof::None;
                Some(Command::Verified(shown))
            }
            Proof::None | Proof::Due | Proof::Sent => None,
        }
    }

    pub(super) fn checked(&mut self, outcome: Result<Option<Zxid>, Failure>) {
        if self.proof != Proof::Sent {
            return;
        }
        let ours = match self.marker {
            HolderMarker::Ours { czxid, .. } => Some(czxid),
            _ => None,
        };
        self.proof = match outcome {
            Ok(seen) if seen == ours => Proof::Known(Ok(())),
            Ok(_) => Proof::Known(Err(Failure::NoNode)),
            Err(Failure::ConnectionLoss) => Proof::Due,
            Err(failure) => Proof::Known(Err(failure)),
        };
    }
}
