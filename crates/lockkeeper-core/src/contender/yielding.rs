//! A hold that makes way for contenders of earlier classes, and then continues at its place.
//!
//! The holder looks for such contenders: it lists the queue, and watches the children until a contender of an earlier class comes.
//! Then it watches the node of that contender, so that it can tell its caller when the contender has left. This works with foreign
//! clients too, because the contender writes nothing.
//!
//! To yield, the holder deletes its holder marker and keeps its node, which is still the first of its class. It waits for the
//! contenders of earlier classes, and the later contenders of its class wait behind it. The next holder marker is a new grant, with
//! a new token.

use super::hold::HoldFacts;
use super::marker::HolderMarker;
use super::proof::Proof;
use super::view::Blocker;
use super::{Contender, Flight, Leaving};
use crate::protocol::{Command, Failure, Inspection, Listing, WatchKind};
use crate::{Queue, Sessionless};

/// How a holder looks for contenders of earlier classes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Lookout {
    /// Its caller does not yield, or not yet.
    #[default]
    Off,
    /// A listing is due.
    Due,
    /// There is none. A watch on the children is set.
    Children,
    /// This is the first one's node. Its watch is set once `watched`.
    Node { name: String, watched: bool },
}

/// How far the deletion of the holder marker has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum MarkerDelete {
    /// The holder marker is kept.
    #[default]
    None,
    /// It is to be deleted. No delete was sent, so only another client can have deleted it.
    Due,
    /// The first delete is sent.
    Sent,
    /// The reply to a delete was lost.
    Doubtful,
}

/// What the attempt knows of making way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Yielding {
    lookout: Lookout,
    /// A contender of an earlier class waits.
    contended: bool,
    /// What the caller knows of that.
    told: bool,
    delete: MarkerDelete,
}

impl Yielding {
    /// The watch on the children has fired.
    pub(super) fn children_changed(&mut self) {
        if self.lookout == Lookout::Children {
            self.lookout = Lookout::Due;
        }
    }

    /// Whether a watch on this node is of use to the lookout; an empty name means the children.
    pub(super) fn watches(&self, name: &str) -> bool {
        match &self.lookout {
            Lookout::Off | Lookout::Due => false,
            Lookout::Children => name.is_empty(),
            Lookout::Node { name: first, .. } => first == name,
        }
    }

    /// The node of the lookout has new data; its watch has fired.
    pub(super) fn node_changed(&mut self, name: &str) {
        if let Lookout::Node { name: first, watched } = &mut self.lookout
            && first == name
        {
            *watched = false;
        }
    }

    /// The node of the lookout is deleted: a listing shows the next one.
    pub(super) fn node_gone(&mut self, name: &str) {
        if self.watches(name) {
            self.lookout = Lookout::Due;
        }
    }

    /// The server refuses to show the queue: the caller is asked no more.
    fn stop(&mut self) {
        (self.lookout, self.contended) = (Lookout::Off, false);
    }

    /// The deletion of the holder marker is under way, so that its end is no loss.
    fn deletes(&self) -> bool {
        matches!(self.delete, MarkerDelete::Sent | MarkerDelete::Doubtful)
    }
}

impl Contender {
    /// From now on, the hold makes way for contenders of earlier classes.
    pub(super) fn yield_due(&mut self) {
        if self.is_looking_out() && self.yielding.lookout == Lookout::Off {
            self.yielding.lookout = Lookout::Due;
        }
    }

    fn is_looking_out(&self) -> bool {
        self.holds() && self.hold.is_handed_over() && self.marker.is_ours()
    }

    /// Whether its caller is to know of a contender of an earlier class, or that there is none any more.
    pub(super) fn report_contended(&mut self) -> Option<Command> {
        let Yielding { contended, told, .. } = &mut self.yielding;
        if contended == told {
            return None;
        }
        *told = *contended;
        Some(Command::Contended(*contended))
    }

    /// Lists the queue, or watches the first contender of an earlier class.
    pub(super) fn look_out(&mut self) -> Option<Command> {
        if !self.is_looking_out() {
            return None;
        }
        match &self.yielding.lookout {
            Lookout::Due => {
                self.flight = Some(Flight::LookOut);
                Some(Command::List { limit: false, watch: true, beside: false })
            }
            Lookout::Node { name, watched: false } => {
                let name = name.clone();
                Some(self.watch(name, WatchKind::Blocker))
            }
            Lookout::Off | Lookout::Children | Lookout::Node { watched: true, .. } => None,
        }
    }

    /// The outcome of [`Flight::LookOut`].
    pub(super) fn looked_out(&mut self, listed: Result<Listing, Failure>) {
        let Some(own) = self.node().map(str::to_owned) else { return };
        match listed {
            Ok(_) if self.yielding.lookout != Lookout::Due => {}
            Ok(listing) => {
                let queue = Queue::read(self.terms.node_format, &listing.names);
                let skipped = self.sessionless_of(&listing);
                let queue = queue.without(&skipped);
                let earlier = self.terms.discipline.makes_way_for(&queue, &own).map(str::to_owned);
                self.yielding.contended &= earlier.is_some();
                self.yielding.lookout = match earlier {
                    Some(name) => Lookout::Node { name, watched: false },
                    None => Lookout::Children,
                };
            }
            Err(Failure::NoNode) => self.removed(),
            Err(Failure::ConnectionLoss) => {}
            // The hold does not need the listing.
            Err(_) => self.yielding.stop(),
        }
    }

    /// A node was read, and its watch is set. Returns whether it is the node of the lookout.
    pub(super) fn lookout_watched(&mut self, name: &str, outcome: &Result<Inspection, Failure>) -> bool {
        let Lookout::Node { name: first, watched } = &mut self.yielding.lookout else { return false };
        if first != name {
            return false;
        }
        match outcome {
            Ok(seen) if seen.owner.is_none() => {
                let node = Sessionless { name: name.to_owned(), czxid: seen.czxid };
                self.skip_sessionless(node);
                self.yielding.lookout = Lookout::Due;
            }
            Ok(_) => (*watched, self.yielding.contended) = (true, true),
            Err(Failure::NoNode) => self.yielding.lookout = Lookout::Due,
            Err(Failure::ConnectionLoss) => {}
            Err(_) => self.yielding.stop(),
        }
        true
    }

    /// The caller makes way. If another client asks for the release, the contender leaves instead: that is the larger request.
    pub(super) fn yield_lock(&mut self) {
        if !self.is_looking_out() {
            return;
        }
        if self.record.is_asked() {
            return self.exit.leave(Leaving::Revoked);
        }
        self.hold = HoldFacts::NONE;
        // It keeps its place until the next grant, even if it would not have waited for the first.
        (self.terms.once, self.terms.max_ahead) = (false, usize::MAX);
        self.proof = Proof::None;
        self.releases.callers_write = false;
        // Its watch serves as that on the blocker, if a listing shows that it is the blocker.
        self.view.blocker = match std::mem::take(&mut self.yielding.lookout) {
            Lookout::Node { name, watched: true } => Some(Blocker::watched(name)),
            _ => None,
        };
        self.yielding = Yielding { delete: MarkerDelete::Due, ..Yielding::default() };
    }

    /// Whether the contender gives up the lock for now and keeps its node.
    pub fn gives_way(&self) -> bool {
        self.yielding.delete != MarkerDelete::None
    }

    /// Deletes the own holder marker, if the caller makes way. The transaction also needs the own node: without that, an operator may
    /// have broken the hold, and the marker may be the next holder's.
    pub(super) fn give_up_marker(&mut self, own: &str) -> Option<Command> {
        if !self.gives_way() {
            return None;
        }
        if self.nodes.delete_doubted {
            return Some(self.settle());
        }
        Some(match self.verified_holder_marker() {
            Ok((holder_marker, version)) => {
                if self.yielding.delete == MarkerDelete::Due {
                    self.yielding.delete = MarkerDelete::Sent;
                }
                self.flight = Some(Flight::GiveUpHolderMarker);
                Command::GiveUpHolderMarker { own: own.to_owned(), holder_marker, version }
            }
            Err(look) => look,
        })
    }

    /// The outcome of [`Flight::GiveUpHolderMarker`].
    pub(super) fn marker_given_up(&mut self, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) => {
                self.marker = HolderMarker::None;
                self.gave_up_marker();
            }
            // After a lost reply, the marker may be gone by the own delete. A listing shows which node is left.
            Err(Failure::NoNode) if self.yielding.delete == MarkerDelete::Doubtful => self.nodes.delete_doubted = true,
            Err(Failure::NoNode) => {
                self.yielding.delete = MarkerDelete::None;
                self.exit.leave(Leaving::Removed);
            }
            Err(Failure::ConnectionLoss) => {
                self.yielding.delete = MarkerDelete::Doubtful;
                self.nodes.delete_doubted = true;
            }
            // Another client wrote into the holder marker: read it again.
            Err(Failure::BadVersion) => {}
            Err(Failure::Refused | Failure::NodeExists) => self.exit.stuck = true,
        }
    }

    /// A linearizable listing decides whether the own node of a contender that makes way still exists.
    pub(super) fn settle_place(&mut self, exists: impl Fn(&str) -> bool) {
        if self.gives_way() && !self.exit.is_leaving() && self.node().is_some_and(|own| !exists(own)) {
            self.yielding.delete = MarkerDelete::None;
            self.removed();
        }
    }

    /// The holder marker does not exist any more. If the contender makes way and has not deleted it, another client has.
    pub(super) fn marker_missing(&mut self) {
        self.marker = HolderMarker::None;
        match self.yielding.delete {
            MarkerDelete::None => self.node_missing(),
            MarkerDelete::Due | MarkerDelete::Sent => {
                self.yielding.delete = MarkerDelete::None;
                self.exit.leave(Leaving::Removed);
            }
            MarkerDelete::Doubtful => self.gave_up_marker(),
        }
    }

    fn gave_up_marker(&mut self) {
        self.yielding.delete = MarkerDelete::None;
        self.view.listing_due = true;
    }

    /// Whether the deletion of the holder marker may be the own one.
    pub(super) fn deletes_marker(&self) -> bool {
        self.yielding.deletes()
    }
}
