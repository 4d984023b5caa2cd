//! The own holder marker: taken, read after a lost reply, and deleted.

use super::{Contender, Flight, Leaving};
use crate::protocol::{Command, Failure, Inspection, WatchKind};
use crate::{FencingToken, Zxid};

/// The state of the holder marker, if the discipline has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HolderMarker {
    None,
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

impl HolderMarker {
    pub(super) fn is_none(&self) -> bool {
        *self == HolderMarker::None
    }

    pub(super) fn is_ours(&self) -> bool {
        matches!(self, HolderMarker::Ours { .. })
    }

    /// The watch on our holder marker has fired, or does not exist.
    pub(super) fn is_unwatched(&mut self) {
        if let HolderMarker::Ours { watched, .. } = self {
            *watched = false;
        }
    }

    pub(super) fn is_watched(&mut self) {
        if let HolderMarker::Ours { watched, .. } = self {
            *watched = true;
        }
    }
}

impl Contender {
    /// Takes the holder marker, if that is due.
    pub(super) fn take_holder_marker(&mut self, own: &str) -> Option<Command> {
        if !self.waits() || self.marker != HolderMarker::Due {
            return None;
        }
        self.flight = Some(Flight::TakeHolderMarker);
        Some(Command::TakeHolderMarker { own: own.to_owned(), holder_marker: self.terms.holder_marker() })
    }

    pub(super) fn holder_marker_taken(&mut self, outcome: Result<Zxid, Failure>) {
        let Some(Flight::TakeHolderMarker) = self.flight.take() else {
            return;
        };
        self.marker = HolderMarker::None;
        match outcome {
            Ok(czxid) => self.hold_holder_marker(czxid),
            Err(Failure::NodeExists) => self.view.listing_due = true,
            Err(Failure::NoNode) => self.removed(),
            Err(Failure::ConnectionLoss) => self.marker = HolderMarker::Doubtful,
            Err(Failure::Refused | Failure::BadVersion) => self.exit.leave(Leaving::Refused),
        }
    }

    /// The holder marker is ours, created by this transaction: that is the grant.
    fn hold_holder_marker(&mut self, czxid: Zxid) {
        self.marker = HolderMarker::Ours { czxid, watched: false, verified: None };
        self.hold.token = Some(FencingToken::from_zxid(czxid));
        self.hold.grant(false);
    }

    /// Watches the own holder marker, once the attempt is old enough.
    pub(super) fn watch_holder_marker(&mut self) -> Option<Command> {
        match self.marker {
            HolderMarker::Ours { watched: false, .. } if self.nodes.lingered => {
                Some(self.watch(self.terms.holder_marker(), WatchKind::Own))
            }
            _ => None,
        }
    }

    /// The own holder marker was read, and its watch is set.
    pub(super) fn holder_marker_watched(&mut self, seen: &Inspection) {
        self.marker.is_watched();
        if let HolderMarker::Ours { czxid, .. } = self.marker
            && czxid != seen.czxid
        {
            self.holder_marker_gone();
        }
    }

    /// The holder marker was deleted while we have one.
    pub(super) fn holder_marker_gone(&mut self) {
        // If our marker is not watched, the event is of a watch on an earlier holder's marker.
        if self.deletes_marker() {
            return self.marker.is_unwatched();
        }
        if let HolderMarker::Ours { watched: true, .. } = self.marker {
            self.marker = HolderMarker::None;
            self.node_missing();
            self.exit.leave(Leaving::Removed);
        }
    }

    /// A linearizable listing decides whether the marker exists.
    pub(super) fn settle_holder_marker(&mut self, exists: bool) {
        match (self.marker, exists) {
            (HolderMarker::Ours { .. }, false) if self.gives_way() => self.marker_missing(),
            (HolderMarker::Ours { .. }, false) => self.marker = HolderMarker::None,
            (HolderMarker::Doubtful, true) => self.marker = HolderMarker::Suspect,
            (HolderMarker::Doubtful, false) => self.holder_marker_not_ours(),
            _ => {}
        }
    }

    /// The marker is not ours: a listing shows what to wait for.
    fn holder_marker_not_ours(&mut self) {
        self.marker = HolderMarker::None;
        self.view.listing_due = true;
    }

    /// Decides whose holder marker exists after the reply to our create was lost.
    pub(super) fn identify_holder_marker(&mut self, outcome: Result<Inspection, Failure>) {
        match outcome {
            Ok(seen) if seen.owner == self.terms.session && seen.id == Some(self.terms.id) => {
                self.hold_holder_marker(seen.czxid);
            }
            Ok(_) | Err(Failure::NoNode) => self.holder_marker_not_ours(),
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => {
                self.marker = HolderMarker::None;
                self.exit.leave(Leaving::Refused);
            }
        }
    }

    /// The holder marker was read before its delete.
    pub(super) fn verify_holder_marker(&mut self, outcome: Result<Inspection, Failure>) {
        let HolderMarker::Ours { czxid, verified, .. } = &mut self.marker else { return };
        match outcome {
            Ok(seen) if seen.owner == self.terms.session && seen.czxid == *czxid => *verified = Some(seen.version),
            // Another client deleted it.
            Ok(_) | Err(Failure::NoNode) => self.marker_missing(),
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.exit.stuck = true,
        }
    }

    /// Deletes the holder marker of an own node that is already deleted.
    pub(super) fn delete_holder_marker(&mut self) -> Command {
        if self.nodes.delete_doubted {
            return self.settle();
        }
        match self.verified_holder_marker() {
            Ok((name, version)) => {
                self.flight = Some(Flight::DeleteHolderMarker);
                Command::Delete { name, version: Some(version), holder_marker: None, write: None }
            }
            Err(look) => look,
        }
    }

    /// The holder marker and its version, if a read has shown that it is ours; otherwise the command for that read.
    pub(super) fn verified_holder_marker(&mut self) -> Result<(String, i32), Command> {
        let name = self.terms.holder_marker();
        let HolderMarker::Ours { verified, .. } = &mut self.marker else {
            unreachable!("only an own holder marker is deleted")
        };
        match verified.take() {
            Some(version) => Ok((name, version)),
            None => {
                self.flight = Some(Flight::VerifyHolderMarker);
                Err(Command::Inspect { name })
            }
        }
    }
}
