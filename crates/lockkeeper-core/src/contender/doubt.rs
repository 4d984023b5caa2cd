//! Resolves what a lost reply leaves unknown: an ordered write, then a read of what exists.

use super::change::DowngradeStage;
use super::marker::HolderMarker;
use super::{Contender, Flight};
use crate::protocol::{Command, Failure, Inspection};

impl Contender {
    /// Before anything else: which nodes are ours, and are there too many?
    pub(super) fn settle_doubt(&mut self) -> Option<Command> {
        if let Some(command) = self.settle_nodes() {
            return Some(command);
        }
        if self.marker == HolderMarker::Suspect {
            self.flight = Some(Flight::InspectHolderMarker);
            return Some(Command::Inspect { name: self.terms.holder_marker() });
        }
        let doubtful = self.marker == HolderMarker::Doubtful || self.change.downgrade == DowngradeStage::Doubtful;
        doubtful.then(|| self.settle())
    }

    /// Asks which of the nodes and holder markers in doubt exist.
    ///
    /// The node may be deleted, the parent removed and recreated, and the name another contender's. A stale server
    /// would still show a deleted node. So every such read comes after an ordered write.
    pub(super) fn settle(&mut self) -> Command {
        self.flight = Some(Flight::Settle);
        Command::Recover
    }

    /// A linearizable listing, empty without a parent, decides everything that was unknown.
    pub(super) fn settled(&mut self, names: &[String]) {
        let exists = |name: &str| names.iter().any(|listed| listed == name);
        self.settle_place(exists);
        self.nodes.settle_deletes(exists);
        self.settle_holder_marker(self.terms.discipline.holder_marker().is_some_and(exists));
        self.settle_downgrade(exists);
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
        let adopting = self.change.downgrade == DowngradeStage::Adopt;
        let seen = match outcome {
            Ok(seen) => seen,
            Err(Failure::ConnectionLoss) => return self.suspect_again(name),
            // It no longer exists, or we may not read it: no client creates a node that it may not read itself.
            Err(_) if adopting => return self.removed(),
            Err(_) => return,
        };
        // The name that a downgrade gives is known in advance, so a bare word over the data does not hide the node.
        let protects = self.terms.node_format.protects();
        let names_us = protects || seen.id == Some(self.terms.id) || adopting && seen.id.is_none();
        if seen.owner == self.terms.session && names_us {
            if self.nodes.adopt(name, seen.czxid) {
                self.view.listing_due = true;
                if adopting {
                    self.change.downgrade = DowngradeStage::Done;
                }
            }
        } else if adopting {
            self.removed();
        }
    }
}
