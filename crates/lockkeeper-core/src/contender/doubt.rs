//! Resolves what a lost reply leaves unknown: an ordered write, then a read of what exists.

use super::standing::{Downgrade, HolderMarker};
use super::{Contender, Flight, Own};
use crate::protocol::{Command, Failure, Inspection};
use crate::{Mode, Queue, Zxid};

impl Contender {
    /// Before anything else: which nodes are ours, and are there too many?
    pub(super) fn settle_doubt(&mut self) -> Option<Command> {
        if let Some(name) = self.suspects.pop() {
            self.flight = Some(Flight::Inspect(name.clone()));
            return Some(Command::Inspect { name });
        }
        if let Some((name, _)) = self.strays.last().cloned() {
            return Some(self.delete(name));
        }
        if self.own == Own::Doubtful {
            self.flight = Some(Flight::Recover);
            return Some(Command::Recover);
        }
        if self.holder_marker == HolderMarker::Suspect {
            self.flight = Some(Flight::InspectHolderMarker);
            return Some(Command::Inspect { name: self.discipline.holder_marker().expect("it took one").to_owned() });
        }
        if self.holder_marker == HolderMarker::Doubtful || self.downgrade == Downgrade::Doubtful {
            return Some(self.settle());
        }
        None
    }

    /// Asks which of the nodes and holder markers in doubt exist.
    ///
    /// The node may be deleted, the parent removed and recreated, and the name another contender's. A stale server
    /// would still show a deleted node. So every such read comes after a sync.
    pub(super) fn settle(&mut self) -> Command {
        self.flight = Some(Flight::Settle);
        Command::Recover
    }

    /// It is unknown whether a create took effect.
    pub(super) fn doubt(&mut self) {
        self.own = Own::Doubtful;
        self.doubted = true;
    }

    /// Looks in a synced listing for nodes of this attempt.
    pub(super) fn search(&mut self, names: &[String]) {
        let queue = Queue::read(self.node_format, names);
        let mine = |e: &&crate::Entry<'_>| match e.id {
            Some(id) => id == self.id,
            // Only the data of an unprotected node identifies its owner.
            None => !self.node_format.protects() && e.mode == self.mode,
        };
        self.suspects = queue.entries().iter().rev().filter(mine).map(|e| e.name.to_owned()).collect();
        if self.own == Own::Doubtful {
            // Decided, unless an inspection finds the node: nothing sent before the sync can still take effect.
            self.own = Own::None;
        }
    }

    /// A synced listing, `None` without a parent, decides everything that was unknown.
    pub(super) fn settled(&mut self, names: Option<&[String]>) {
        let stands = |name: &str| names.is_some_and(|names| names.iter().any(|listed| listed == name));
        if std::mem::take(&mut self.delete_doubted) {
            self.strays.retain(|(stray, _)| stands(stray));
            if self.node().is_some_and(|own| !stands(own)) {
                self.own = Own::None;
            }
        }
        match &self.holder_marker {
            HolderMarker::Ours { .. } if !self.discipline.holder_marker().is_some_and(stands) => {
                self.holder_marker = HolderMarker::None
            }
            HolderMarker::Doubtful if self.discipline.holder_marker().is_some_and(stands) => {
                self.holder_marker = HolderMarker::Suspect
            }
            HolderMarker::Doubtful => (self.holder_marker, self.listing_due) = (HolderMarker::None, true),
            _ => {}
        }
        if self.downgrade == Downgrade::Doubtful
            && let Own::Node { name: writer, .. } = &self.own
        {
            let reader = self.reader_name(writer);
            if stands(writer) {
                self.downgrade = Downgrade::Wanted;
            } else if stands(&reader) {
                (self.own, self.downgrade, self.mode) = (Own::None, Downgrade::Adopt, Mode::Read);
                self.suspects.push(reader);
            } else {
                self.evicted();
            }
        }
    }

    pub(super) fn inspected(&mut self, outcome: Result<Inspection, Failure>) {
        match self.flight.take() {
            Some(Flight::Inspect(name)) => self.identify(name, outcome),
            Some(Flight::Verify(name)) => self.verify(&name, outcome),
            Some(Flight::InspectFirst(name)) => self.first_inspected(&name, outcome),
            Some(Flight::InspectHolderMarker) => self.identify_holder_marker(outcome),
            Some(Flight::VerifyHolderMarker) => self.verify_holder_marker(outcome),
            _ => {}
        }
    }

    /// A suspect was read: our first node is adopted, every other one is a stray.
    ///
    /// A node is ours if it is of this attempt *and this session*. A node that another session created is deleted with
    /// that session, however much it looks like ours (CURATOR-498, CURATOR-604).
    fn identify(&mut self, name: String, outcome: Result<Inspection, Failure>) {
        let seen = match outcome {
            Ok(seen) => seen,
            Err(Failure::ConnectionLoss) => return self.suspects.push(name),
            Err(Failure::SessionOver) => return self.session_over = true,
            // It no longer exists, or we may not read it: no client creates a node that it may not read itself.
            Err(_) if self.downgrade == Downgrade::Adopt => return self.evicted(),
            Err(_) => return,
        };
        // The name that a downgrade gives is known in advance, so a bare word over the data does not hide the node.
        let adopting = self.downgrade == Downgrade::Adopt;
        let names_us = self.node_format.protects() || seen.id == Some(self.id) || adopting && seen.id.is_none();
        if seen.owner != self.session || !names_us {
            if adopting {
                self.evicted();
            }
            return;
        }
        match &self.own {
            Own::Node { name: own, .. } if *own == name => {}
            Own::Node { .. } => self.strays.push((name, seen.czxid)),
            Own::None | Own::Doubtful => {
                self.own = Own::Node { name, czxid: seen.czxid };
                self.listing_due = true;
                self.own_watched = false;
                if self.downgrade == Downgrade::Adopt {
                    self.downgrade = Downgrade::Done;
                }
            }
        }
    }

    /// The own node was read before its delete.
    fn verify(&mut self, name: &str, outcome: Result<Inspection, Failure>) {
        match outcome {
            Ok(seen) if self.is_ours(name, &seen) => self.verified = Some(seen.version),
            Ok(_) | Err(Failure::NoNode) => self.forget(name),
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.stuck = true,
        }
    }

    /// Whether the node that was just read under an own name is still the own node.
    fn is_ours(&self, name: &str, seen: &Inspection) -> bool {
        let own = match &self.own {
            Own::Node { name: own, czxid } if own == name => Some(czxid),
            _ => self.strays.iter().find(|(stray, _)| stray == name).map(|(_, czxid)| czxid),
        };
        own == Some(&seen.czxid) && seen.owner == self.session
    }

    /// Decides whose holder marker exists after the reply to our create was lost.
    fn identify_holder_marker(&mut self, outcome: Result<Inspection, Failure>) {
        match outcome {
            Ok(seen) if seen.owner == self.session && seen.id == Some(self.id) => self.hold_holder_marker(seen.czxid),
            Ok(_) | Err(Failure::NoNode) => (self.holder_marker, self.listing_due) = (HolderMarker::None, true),
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => {
                self.holder_marker = HolderMarker::None;
                self.leave_because(super::Leaving::Refused);
            }
        }
    }

    /// The holder marker was read before its delete.
    fn verify_holder_marker(&mut self, outcome: Result<Inspection, Failure>) {
        let HolderMarker::Ours { czxid, verified, .. } = &mut self.holder_marker else { return };
        match outcome {
            Ok(seen) if seen.owner == self.session && seen.czxid == *czxid => *verified = Some(seen.version),
            // Another client deleted it.
            Ok(_) | Err(Failure::NoNode) => self.holder_marker = HolderMarker::None,
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.stuck = true,
        }
    }

    /// The holder marker is ours, created by this transaction: that is the grant.
    pub(super) fn hold_holder_marker(&mut self, czxid: Zxid) {
        self.holder_marker = HolderMarker::Ours { czxid, watched: false, verified: None };
        self.token = Some(crate::FencingToken::from_zxid(czxid));
        (self.granted, self.inferred) = (true, false);
    }
}
