//! Listings: entering the queue, and the own position that a listing shows.

use super::standing::HolderMarker;
use super::{Contender, Flight, Leaving, MAX_PARENTS_MADE, Own};
use crate::protocol::{Failure, Inspection, Limit, Listing, Place};
use crate::{Class, IncompatibleFormat, Mode, Queue, Verdict, Watch, Zxid};

/// What blocks this contender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Blocker {
    /// A node.
    Node {
        name: String,
        /// Its deletion proves the grant without another listing.
        grants: bool,
        /// Its grant, too, lets this contender continue.
        or_granted: bool,
        watched: bool,
    },
    /// Any child may be the next one deleted. The watch is set.
    Children,
}

impl Blocker {
    /// The node to watch, if no watch is set.
    pub(super) fn to_watch(&self) -> Option<&str> {
        match self {
            Blocker::Node { name, watched: false, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether it is this node, or the children if the name is empty.
    pub(super) fn watches(&self, node: &str) -> bool {
        match self {
            Blocker::Node { name, .. } => name == node,
            Blocker::Children => node.is_empty(),
        }
    }

    /// The deletion of the blocker proves nothing any more.
    pub(super) fn distrust(&mut self) {
        if let Blocker::Node { grants, .. } = self {
            *grants = false;
        }
    }
}

impl Contender {
    pub(super) fn entered(&mut self, created: Result<(&str, Zxid), Failure>, listed: Result<Listing<'_>, Failure>) {
        self.flight = None;
        match created {
            Ok((name, czxid)) => {
                self.own = Own::Node { name: name.to_owned(), czxid };
                self.listing_due = true;
                if let Ok(listing) = listed {
                    self.judge(listing, false);
                } else if listed == Err(Failure::SessionOver) {
                    self.session_over = true;
                }
            }
            Err(Failure::NoNode) if self.parents_made < MAX_PARENTS_MADE => self.parent_missing = true,
            Err(Failure::NoNode) => self.leave_because(Leaving::ParentVanishes),
            Err(Failure::ConnectionLoss) => self.doubt(),
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.leave_because(Leaving::Refused),
        }
    }

    pub(super) fn parent_made(&mut self, outcome: Result<(), Failure>) {
        self.flight = None;
        match outcome {
            // The parent was created, or one of its ancestors was deleted meanwhile: the next create shows which.
            Ok(()) | Err(Failure::NoNode) => {
                self.parent_missing = false;
                self.parents_made += 1;
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::SessionOver) => self.session_over = true,
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.leave_because(Leaving::Refused),
        }
    }

    /// Stored or not, the next listing reads the limit again: another contender may have been faster.
    pub(super) fn limit_stored(&mut self, outcome: Result<(), Failure>) {
        self.flight = None;
        self.listing_due = true;
        if let Err(failure) = outcome
            && !self.failed_for_good(failure)
            && failure == Failure::NoNode
        {
            self.evicted();
        }
    }

    pub(super) fn listed(&mut self, outcome: Result<Listing<'_>, Failure>) {
        let Some(flight) = self.flight.take() else { return };
        let names = outcome.map(|listing| listing.names);
        match (flight, names) {
            (_, Err(Failure::SessionOver)) => self.session_over = true,
            (Flight::Recover, Ok(names)) => self.search(names),
            // No parent, no children: none of our nodes can be left.
            (Flight::Recover, Err(Failure::NoNode)) => self.search(&[]),
            (Flight::Recover, Err(Failure::ConnectionLoss)) => self.doubted = true,
            (Flight::Settle, Ok(names)) => self.settled(Some(names)),
            (Flight::Settle, Err(Failure::NoNode)) => self.settled(None),
            (Flight::Settle, Err(Failure::ConnectionLoss)) => {}
            (Flight::Recover | Flight::Settle, Err(_)) => self.stuck = true,
            (Flight::List { watch }, Ok(_)) => {
                if let Ok(listing) = outcome {
                    self.judge(listing, watch);
                }
            }
            (_, Err(Failure::NoNode)) => self.evicted(),
            (Flight::List { watch }, Err(Failure::ConnectionLoss)) => self.watch_children = watch,
            (_, Err(_)) => self.leave_because(Leaving::Refused),
            (_, Ok(_)) => {}
        }
    }

    /// Evaluates a listing that shows the own node, or its absence. `watching`: a watch on the children has been set
    /// since the listing.
    fn judge(&mut self, listing: Listing<'_>, watching: bool) {
        let Own::Node { name: own, .. } = &self.own else {
            return;
        };
        // Requested for an upgrade that is no longer wanted.
        if !self.waits() {
            return;
        }
        let queue = Queue::read(self.node_format, listing.names);
        let leased = listing.leased.then_some(IncompatibleFormat::Leased);
        if let Some(theirs) =
            queue.incompatible_format_before(self.node_format, own).map(IncompatibleFormat::Named).or(leased)
        {
            return self.leave_because(Leaving::IncompatibleFormat(theirs));
        }
        if let Some(ours) = self.discipline.limit() {
            match listing.limit {
                Some(Limit::Permits(limit)) if limit == ours => {}
                Some(Limit::Permits(limit)) => return self.leave_because(Leaving::LimitDiffers(Some(limit))),
                Some(Limit::Foreign) => return self.leave_because(Leaving::LimitDiffers(None)),
                Some(Limit::Unset { version }) => return self.limit_unset = Some(version),
                None => return,
            }
        }
        if self.doubted {
            // A second node of this attempt, from a create whose reply was lost, would block us from the front for
            // ever.
            let second = |e: &&crate::Entry<'_>| e.id == Some(self.id) && e.name != own;
            self.suspects = queue.entries().iter().rev().filter(second).map(|e| e.name.to_owned()).collect();
        }
        self.sessionless.retain(|name| listing.names.contains(name));
        let queue = queue.without(&self.sessionless);
        self.listing_due = false;
        let before = self.blocker.take();
        self.place = None;
        let verdict = match self.reads_early {
            true => self.discipline.decide_as_reader(&queue, own),
            false => self.discipline.decide(&queue, own),
        };
        match verdict {
            Verdict::Granted => {
                self.followed =
                    self.discipline.announces_grants() && queue.entries().last().is_some_and(|last| last.name != own);
                self.let_in(false);
            }
            Verdict::TakeHolderMarker => self.holder_marker = HolderMarker::Due,
            Verdict::Missing => self.evicted(),
            Verdict::Blocked(watch) => {
                let first = match self.discipline.holder_marker().filter(|_| queue.has_holder_marker()) {
                    Some(holder_marker) => holder_marker,
                    None => queue.entries()[0].name,
                };
                // A contender that waits only for the holder marker has the marker's owner ahead of it.
                let position = queue.position(own).unwrap_or(0);
                let ahead = position.max(1);
                // The owner of the holder marker was the first of its class, and it may be a higher class than ours.
                let higher = || queue.entries()[position..].iter().any(|later| later.mode != self.mode);
                let front = (queue.has_holder_marker() && position > 0 && higher()).then(|| queue.entries()[0].name);
                self.place = Some(Place { ahead, first: first.to_owned(), front: front.map(str::to_owned) });
                if ahead > self.max_ahead && !self.granted && !self.once {
                    self.leave_because(Leaving::TooManyAhead { ahead });
                }
                self.waited = true;
                let block = |name: &str, grants, or_granted| Blocker::Node {
                    name: name.to_owned(),
                    grants,
                    or_granted,
                    // One existing watch is enough: a second would only read the node again.
                    watched: matches!(&before, Some(Blocker::Node { name: n, watched: true, .. }) if n == name),
                };
                self.blocker = match watch {
                    Watch::Deleted { name, grants } => Some(block(name, grants, false)),
                    Watch::GrantedOrDeleted(name) => Some(block(name, false, true)),
                    Watch::HolderMarkerGone => {
                        self.discipline.holder_marker().map(|holder_marker| block(holder_marker, false, false))
                    }
                    Watch::Children if watching => Some(Blocker::Children),
                    Watch::Children => {
                        // List again with a watch, so that no change can come between.
                        (self.listing_due, self.watch_children) = (true, true);
                        None
                    }
                };
            }
        }
        self.see_abandoned(&queue);
    }

    /// The blocker was read, and its watch is set.
    pub(super) fn blocker_watched(&mut self, name: &str, seen: &Inspection) {
        if seen.owner.is_none() && self.no_contender(name) {
            return;
        }
        let Some(Blocker::Node { watched, or_granted, .. }) = &mut self.blocker else { return };
        *watched = true;
        // A bare word of another client may have overwritten the announcement of its grant. Only untouched data proves
        // that it was not granted before the watch was set. Otherwise a listing after the watch must show it.
        if *or_granted && seen.version != 0 {
            self.listing_due = true;
        }
    }

    /// A node without a session is no contender: nothing would ever end its wait or its hold. All node formats name
    /// only ephemeral nodes, so a foreign program created it, or a person did by hand. Tombstones and a holder marker
    /// still block. Returns `true` if the node blocked this contender until now.
    pub(super) fn no_contender(&mut self, name: &str) -> bool {
        let counts = self.discipline.holder_marker() == Some(name)
            || self.node_format.tombstone(name).is_some()
            || self.sessionless.iter().any(|known| known == name);
        if counts || !self.waits() {
            return false;
        }
        self.sessionless.push(name.to_owned());
        (self.blocker, self.place, self.listing_due) = (None, None, true);
        true
    }

    /// A contender that does not wait has read the first node of the queue.
    pub(super) fn first_inspected(&mut self, name: &str, outcome: Result<Inspection, Failure>) {
        let seen = match outcome {
            Err(Failure::SessionOver) => return self.session_over = true,
            seen => seen,
        };
        if seen.is_ok_and(|seen| seen.owner.is_none()) && self.no_contender(name) {
            return;
        }
        let Some(place) = &mut self.place else { return };
        match (seen, place.front.take(), self.marker_seen) {
            (Ok(marker), Some(front), _) => {
                (place.first, self.marker_seen) = (front, Some(marker));
                return;
            }
            (Ok(front), None, Some(marker)) if !front.is_same_attempt(&marker) => place.ahead += 1,
            _ => {}
        }
        let ahead = place.ahead;
        self.leave_because(Leaving::Held { ahead });
    }

    /// A watched node that is not our own was deleted.
    pub(super) fn blocker_gone(&mut self, name: &str) {
        match self.blocker.take_if(|blocker| blocker.watches(name)) {
            Some(Blocker::Node { grants: true, .. }) => self.let_in(true),
            Some(_) => self.listing_due = true,
            None => {}
        }
    }

    /// The blocker has new data: it was granted, or it was asked to release.
    pub(super) fn blocker_changed(&mut self, name: &str) {
        if let Some(Blocker::Node { name: blocker, watched, or_granted, .. }) = &mut self.blocker
            && blocker == name
        {
            *watched = false;
            self.listing_due |= *or_granted;
        }
    }

    pub(super) fn children_changed(&mut self) {
        if self.blocker.take_if(|blocker| *blocker == Blocker::Children).is_some() {
            self.listing_due = true;
        }
    }

    /// Changes to another class: the own node becomes a stray, and after its deletion the next command is to enter.
    pub(super) fn change_class(&mut self) {
        let may = !self.granted && self.leaving.is_none() && self.holder_marker == HolderMarker::None;
        if let (true, Own::Node { name, czxid }) = (may, &self.own)
            && let Some(class) = self.reclassify.take()
        {
            self.strays.push((name.clone(), *czxid));
            (self.own, self.mode) = (Own::None, Mode::Class(class));
            (self.blocker, self.place, self.own_watched, self.listing_due) = (None, None, false, false);
        }
    }

    /// Changes to another class, if it still waits.
    pub(super) fn wants_class(&mut self, class: Class) {
        if self.mode.class().is_some_and(|now| now != class) && !self.granted {
            self.reclassify = Some(class);
        }
    }
}
