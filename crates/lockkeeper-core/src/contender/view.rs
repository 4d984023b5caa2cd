//! What a contender knows of its queue: the last listing, and what blocks it.

use super::marker::HolderMarker;
use super::{AttemptTerms, Contender, Flight, Leaving};
use crate::protocol::{Command, Failure, Inspection, Listing, QueuePlace};
use crate::{IncompatibleFormat, Limit, Queue, Sessionless, Verdict, Watch, Zxid};

/// What blocks this contender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Blocker {
    Node {
        name: String,
        /// Its deletion proves the grant without another listing.
        grants: bool,
        /// The grant to its contender lets this contender continue too.
        or_granted: bool,
        /// A watch is set, or the node is of a contender of this session, which reports its end.
        watched: bool,
        /// It is of a contender of this session, whose release lets this contender hold.
        local: bool,
        /// The transaction that created it, if a record may say that its contender has held.
        recorded: Option<Zxid>,
    },
    /// Any child may be the next one deleted. The watch is set.
    Children,
}

impl Blocker {
    /// This node, which is watched. Only a listing can show whether it blocks.
    pub(super) fn watched(name: String) -> Self {
        let (grants, or_granted, local) = (false, false, false);
        Blocker::Node { name, grants, or_granted, watched: true, local, recorded: None }
    }

    /// The node to watch, if no watch is set.
    pub(super) fn to_watch(&self) -> Option<&str> {
        match self {
            Blocker::Node { name, watched: false, .. } => Some(name),
            Blocker::Node { watched: true, .. } | Blocker::Children => None,
        }
    }

    /// The node, if only its end lets this contender continue.
    pub(super) fn ends(&self) -> Option<&str> {
        match self {
            Blocker::Node { name, or_granted: false, .. } => Some(name),
            Blocker::Node { or_granted: true, .. } | Blocker::Children => None,
        }
    }

    /// Whether it is this node, or the children if the name is empty.
    pub(super) fn watches(&self, node: &str) -> bool {
        match self {
            Blocker::Node { name, .. } => name == node,
            Blocker::Children => node.is_empty(),
        }
    }

    /// Whether its end may grant the lock without a read. Then only a watch on the own node shows that the own node exists.
    pub(super) fn may_grant(&self) -> bool {
        match self {
            Blocker::Node { grants, local, .. } => *grants || *local,
            Blocker::Children => false,
        }
    }

    /// The deletion of the blocker proves nothing any more.
    pub(super) fn distrust(&mut self) {
        if let Blocker::Node { grants, .. } = self {
            *grants = false;
        }
    }
}

/// What is known of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct View {
    pub(super) listing_due: bool,
    /// The next listing is to watch the children.
    watch_children: bool,
    pub(super) blocker: Option<Blocker>,
    pub(super) place: Option<Box<QueuePlace>>,
    /// Children with the name of a contender and without a session: they do not count.
    sessionless: Vec<Sessionless>,
    /// The holder marker as [`Flight::InspectFirst`] saw it.
    marker_seen: Option<Box<Inspection>>,
    /// The version of the parent's data, if the data states no limit yet.
    limit_unset: Option<i32>,
    /// No listing has shown the own place: it follows from the number of the blocker, a node of this session.
    unlisted: bool,
}

impl View {
    pub(super) const NONE: View = View {
        listing_due: false,
        watch_children: false,
        blocker: None,
        place: None,
        sessionless: Vec::new(),
        marker_seen: None,
        limit_unset: None,
        unlisted: false,
    };

    /// The own place is given up.
    pub(super) fn leave_place(&mut self) {
        self.blocker = None;
        self.place = None;
        self.listing_due = false;
    }

    /// Takes the position of a waiter from a listing. `names`: all names of the listing.
    fn stand(&mut self, terms: &AttemptTerms, queue: &Queue<'_>, names: &[String], own: &str) {
        let holder_marker = terms.discipline.holder_marker().filter(|_| queue.has_holder_marker());
        let first = holder_marker.unwrap_or(queue.entries()[0].name);
        // A contender that waits only for the holder marker has the marker's owner ahead of it.
        let position = queue.position(own).unwrap_or(0);
        let ahead = position.max(1);
        // The owner of the holder marker was the first of its class, and it may be a higher class than ours.
        let higher = || queue.entries()[position..].iter().any(|later| later.mode != terms.mode);
        let front = (queue.has_holder_marker() && position > 0 && higher()).then(|| queue.entries()[0].name);
        let blocks_first = (!self.sessionless.is_empty()).then(|| {
            let all = Queue::read(terms.node_format, names);
            Sessionless::ahead_of(&self.sessionless, &all, (terms.node_format, terms.discipline), first).cloned()
        });
        let blocks_first = blocks_first.flatten();
        let (first, front) = (first.to_owned(), front.map(str::to_owned));
        self.place = Some(Box::new(QueuePlace { ahead, first, front, blocks_first }));
    }

    /// Waits for this. `before`: what blocked until now. `watching`: a watch on the children has been set since the listing.
    fn wait_for(&mut self, watch: Watch<'_>, terms: &AttemptTerms, before: Option<&Blocker>, watching: bool) {
        let block = |name: &str, grants, or_granted| {
            // One existing watch is enough: a second would only read the node again.
            let (watched, local, recorded) = match before {
                Some(Blocker::Node { name: before, watched: true, local, recorded, .. }) if before == name => {
                    (true, *local, *recorded)
                }
                _ => (false, false, None),
            };
            Some(Blocker::Node { name: name.to_owned(), grants, or_granted, watched, local, recorded })
        };
        self.blocker = match watch {
            Watch::Deleted { name, grants } => block(name, grants, false),
            Watch::GrantedOrDeleted(name) => block(name, false, true),
            Watch::HolderMarkerGone => block(&terms.holder_marker(), false, false),
            Watch::Children if watching => Some(Blocker::Children),
            Watch::Children => {
                // List again with a watch, so that no change can come between.
                self.listing_due = true;
                self.watch_children = true;
                None
            }
        };
    }

    /// The tombstone of another contender was deleted. Its watch may have reported that already.
    pub(super) fn tombstone_gone(&mut self, name: &str) {
        self.blocker.take_if(|blocker| *blocker != Blocker::Children && blocker.watches(name));
        self.listing_due |= self.blocker.is_none();
    }

    /// Waits for this node, of a contender of this session, without a listing. `next`: no other node is between.
    fn wait_unlisted(&mut self, name: String, next: bool) {
        self.blocker =
            Some(Blocker::Node { name, grants: false, or_granted: false, watched: true, local: next, recorded: None });
        (self.listing_due, self.unlisted) = (false, true);
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

    /// Whether it waits behind a contender of its session without a listing, so that contenders of other sessions may be between.
    pub(super) fn is_deferred(&self) -> bool {
        self.unlisted && matches!(self.blocker, Some(Blocker::Node { local: false, .. }))
    }

    pub(super) fn children_changed(&mut self) {
        if self.blocker.take_if(|blocker| *blocker == Blocker::Children).is_some() {
            self.listing_due = true;
        }
    }
}

impl Contender {
    /// Lists the parent or writes its limit, if either is due.
    pub(super) fn look(&mut self) -> Option<Command> {
        let limit = self.terms.discipline.limit();
        if let (Some(version), Some(permits)) = (self.view.limit_unset.take(), limit) {
            self.flight = Some(Flight::StoreLimit);
            return Some(Command::StoreLimit { permits, version });
        }
        if self.waits()
            && let Some(command) = self.read_release()
        {
            return Some(command);
        }
        if self.waits() && self.view.listing_due {
            let watch = std::mem::take(&mut self.view.watch_children);
            self.flight = Some(Flight::List { watch });
            return Some(Command::List { limit: limit.is_some(), watch, beside: self.beside.due });
        }
        match &self.view.place {
            Some(place) if self.terms.once && !self.hold.is_granted() => {
                let name = place.first.clone();
                self.flight = Some(Flight::InspectFirst(name.clone()));
                Some(Command::Inspect { name })
            }
            _ => None,
        }
    }

    /// Stored or not, the next listing reads the limit again: another contender may have been faster.
    pub(super) fn limit_stored(&mut self, outcome: Result<(), Failure>) {
        self.flight = None;
        self.view.listing_due = true;
        match outcome {
            Err(Failure::Refused) => self.exit.leave(Leaving::Refused),
            Err(Failure::NoNode) => self.removed(),
            Ok(()) | Err(Failure::ConnectionLoss | Failure::BadVersion | Failure::NodeExists) => {}
        }
    }

    /// The outcome of [`Flight::List`].
    pub(super) fn listed_queue(&mut self, listed: Result<Listing, Failure>, watching: bool) {
        match listed {
            Ok(listing) => {
                self.beside.looked();
                self.judge(&listing, watching);
            }
            Err(Failure::NoNode) => self.removed(),
            Err(Failure::ConnectionLoss) => self.view.watch_children = watching,
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.exit.leave(Leaving::Refused),
        }
    }

    /// Evaluates a listing that shows the own node, or its absence. `watching`: a watch on the children has been set
    /// since the listing.
    pub(super) fn judge(&mut self, listing: &Listing, watching: bool) {
        // A listing may have been requested for an upgrade that is no longer wanted.
        let Some(own) = self.node().filter(|_| self.waits()).map(str::to_owned) else { return };
        let queue = Queue::read(self.terms.node_format, &listing.names);
        let theirs = queue.incompatible_format_before(self.terms.node_format, &own).map(IncompatibleFormat::Named);
        if let Some(theirs) = theirs.or(listing.other) {
            return self.exit.leave(Leaving::IncompatibleFormat(theirs));
        }
        self.beside.nobody_seen();
        if let Some(ours) = self.terms.discipline.limit() {
            match listing.limit {
                Some(Limit::Permits(limit)) if limit == ours => {}
                Some(Limit::Permits(limit)) => return self.exit.leave(Leaving::LimitDiffers(Some(limit))),
                Some(Limit::Foreign) => return self.exit.leave(Leaving::LimitDiffers(None)),
                Some(Limit::Unset { version }) => return self.view.limit_unset = Some(version),
                None => return,
            }
        }
        self.nodes.suspect_second(&self.terms, &queue);
        let skipped = self.sessionless_of(listing);
        let queue = queue.without(&skipped);
        let was_deferred = self.view.is_deferred();
        // The bound that was known at the create also counts contenders that had left by then.
        self.releases.came_far_back &= queue.entries().len() > self.terms.many_ahead;
        (self.view.listing_due, self.view.unlisted) = (false, false);
        self.releases.forget();
        let mut before = self.view.blocker.take();
        if let (true, Some(Blocker::Node { local, .. })) = (was_deferred, &mut before) {
            *local = true;
        }
        self.view.place = None;
        match self.terms.decide(&queue, &own) {
            Verdict::Granted if self.must_look_beside() => {}
            Verdict::Granted => {
                let last = queue.entries().last();
                self.hold.followed =
                    self.terms.discipline.announces_grants() && last.is_some_and(|last| last.name != own);
                self.grant(false);
            }
            Verdict::TakeHolderMarker => self.marker = HolderMarker::Due,
            Verdict::Missing => self.removed(),
            Verdict::Blocked(watch) => {
                self.view.stand(&self.terms, &queue, &listing.names, &own);
                let ahead = self.view.place.as_ref().map_or(0, |place| place.ahead);
                if ahead > self.terms.max_ahead && !self.hold.is_granted() && !self.terms.once {
                    self.exit.leave(Leaving::TooManyAhead { ahead });
                }
                self.view.wait_for(watch, &self.terms, before.as_ref(), watching);
            }
        }
        self.abandoned.see(&queue);
    }

    /// The names in a listing of the nodes that are known to have no session. The others are forgotten.
    pub(super) fn sessionless_of(&mut self, listing: &Listing) -> Vec<String> {
        self.view.sessionless.retain(|node| listing.names.contains(&node.name));
        self.view.sessionless.iter().map(|node| node.name.clone()).collect()
    }

    /// This node has no session, so it counts in no listing.
    pub(super) fn skip_sessionless(&mut self, node: Sessionless) {
        self.view.sessionless.push(node);
    }

    /// The blocker was read, and its watch is set.
    pub(super) fn blocker_watched(&mut self, name: &str, seen: &Inspection) {
        if seen.owner.is_none() && self.no_contender(&Sessionless { name: name.to_owned(), czxid: seen.czxid }) {
            return;
        }
        let may_be_recorded = self.view.blocker.as_ref().is_some_and(|blocker| self.may_be_recorded(blocker));
        let Some(Blocker::Node { watched, or_granted, recorded, .. }) = &mut self.view.blocker else { return };
        (*watched, *recorded) = (true, may_be_recorded.then_some(seen.czxid));
        // A bare word of another client may have overwritten the announcement of its grant. Only untouched data proves
        // that it was not granted before the watch was set. Otherwise a listing after the watch must show it.
        if *or_granted && seen.version != 0 {
            self.view.listing_due = true;
        }
    }

    /// A node without a session is no contender: nothing would ever end its wait or its hold. All node formats name
    /// only ephemeral nodes, so a foreign program created it, or a person did by hand. Foreign clients may wait behind it
    /// ([`Sessionless`]), and this contender behind them. Tombstones and a holder marker still block. Returns `true` if the node
    /// blocked this contender until now.
    pub(super) fn no_contender(&mut self, node: &Sessionless) -> bool {
        let name = node.name.as_str();
        let counts = self.terms.is_holder_marker(name)
            || self.terms.node_format.tombstone(name).is_some()
            || self.view.sessionless.iter().any(|known| known.name == name);
        if counts || !self.waits() {
            return false;
        }
        self.view.leave_place();
        self.view.sessionless.push(node.clone());
        self.view.listing_due = true;
        true
    }

    /// A contender that does not wait has read the first node of the queue.
    pub(super) fn first_inspected(&mut self, name: &str, seen: Result<Inspection, Failure>) {
        if let Ok(Inspection { owner, czxid, .. }) = &seen
            && owner.is_none()
            && self.no_contender(&Sessionless { name: name.to_owned(), czxid: *czxid })
        {
            return;
        }
        let Some(place) = &mut self.view.place else { return };
        match (seen, place.front.take(), &self.view.marker_seen) {
            (Ok(marker), Some(front), _) => {
                place.first = front;
                self.view.marker_seen = Some(Box::new(marker));
                return;
            }
            (Ok(front), None, Some(marker)) if !front.is_same_attempt(marker) => place.ahead += 1,
            _ => {}
        }
        let ahead = place.ahead;
        self.exit.leave(Leaving::Held { ahead });
    }

    /// A watched node that is not our own was deleted.
    pub(super) fn blocker_gone(&mut self, name: &str) {
        match self.view.blocker.take_if(|blocker| blocker.watches(name)) {
            Some(_) if self.must_look_beside() => {}
            Some(Blocker::Node { grants: true, .. }) => self.grant(true),
            Some(Blocker::Node { recorded: Some(czxid), .. }) => self.releases.look_for(czxid),
            Some(_) => self.view.listing_due = true,
            None if self.view.place.as_ref().is_some_and(|place| place.first == name) => {
                self.first_gone();
            }
            None => {}
        }
    }

    /// The create was answered, and another contender of this session has the number right before. This one waits for it, unless
    /// both read. While the parent is the same node, no number is between the two; see [`Contender::local_released`].
    pub(super) fn stand_behind(&mut self, name: String, place: Option<QueuePlace>) {
        let read_both = || self.terms.node_format.parse(&name).is_none_or(|next| next.mode.reads());
        let reads = self.terms.mode.reads() || self.terms.reads_early;
        // A young attempt lists only once it is old enough (`Event::OwnWatchDue`), and most end before that.
        let lists = self.nodes.lingered && place.is_none()
            || place.as_ref().is_some_and(|place| place.ahead > self.terms.max_ahead);
        if !self.may_leave_out_listing() || lists || reads && read_both() {
            return;
        }
        self.view.place = place.map(Box::new);
        self.view.wait_unlisted(name, true);
    }

    /// The create was answered, and a waiter of this session has a node further ahead. This contender cannot hold before that waiter
    /// ends, so its listing can wait. Behind a reader it lists at once: the release of a reader is known only when its node is
    /// deleted, and a listing after that would be late.
    pub(super) fn defer_behind(&mut self, name: String, most_ahead: Option<usize>) {
        let waits_for_writer = self.terms.node_format.parse(&name).is_some_and(|ahead| !ahead.mode.reads());
        let accepts = most_ahead.unwrap_or(usize::MAX) <= self.terms.max_ahead;
        if self.may_leave_out_listing() && waits_for_writer && accepts && !self.nodes.lingered {
            self.releases.came_far_back = most_ahead.is_some_and(|ahead| ahead >= self.terms.many_ahead);
            self.view.wait_unlisted(name, false);
        }
    }

    fn may_leave_out_listing(&self) -> bool {
        self.terms.discipline.granted_by_listing() && !self.terms.once && !self.nodes.doubted
    }

    /// Whether it waits behind a contender of its session that is not known to be the next one.
    pub(crate) fn is_deferred(&self) -> bool {
        self.waits() && self.view.is_deferred()
    }

    /// A contender of this session has listed the queue since the own create was answered.
    pub(super) fn listed_by_local(&mut self, listing: &Listing) {
        if self.is_deferred() {
            self.judge(listing, false);
        }
    }

    /// The connection is lost. A listing of another contender from before says nothing about what follows.
    pub(super) fn stop_deferring(&mut self) {
        if self.is_deferred() {
            self.view.blocker = None;
            self.view.listing_due = true;
        }
    }

    /// A contender of this session knows the place. A listing decides whether too many are ahead.
    pub(super) fn placed(&mut self, place: QueuePlace) {
        if self.view.unlisted && self.view.place.is_none() && self.waits() && place.ahead <= self.terms.max_ahead {
            self.view.place = Some(Box::new(place));
        }
    }

    /// The attempt is old enough for the reads that a short one does without: the watch on the own node, and a listing if no
    /// contender of this session knows the place.
    pub(super) fn lingered(&mut self) {
        self.nodes.lingered = true;
        if self.view.place.is_none() {
            self.list_if_unlisted();
        }
    }

    /// Lists if no listing has shown the own place.
    pub(super) fn list_if_unlisted(&mut self) {
        if self.view.unlisted && self.waits() {
            self.view.place = None;
            self.view.listing_due = true;
        }
    }

    /// The blocker is the node of a contender of this session.
    pub(super) fn blocker_is_local(&mut self) {
        let Some(Flight::Watch(_)) = self.flight.take() else { return };
        if let Some(Blocker::Node { watched, local, .. }) = &mut self.view.blocker {
            (*watched, *local) = (true, true);
        }
    }

    /// A contender of this session held alone and has released; this one is granted if that node was its blocker.
    ///
    /// The grant waits for the watch on the own node, as each grant does that no listing shows. If an operator deletes the
    /// own node at this moment, that is the same as right after the grant.
    ///
    /// Without a listing, only the numbers show that no node is between the two. Without an id in the name, only the name shows whose
    /// node it is. Both start again if the parent is deleted and created again, and that deletes the other contender's node first. So
    /// the other contender must have watched its node.
    pub(super) fn local_released(&mut self, name: &str, watched: bool) {
        if self.is_deferred() {
            return self.local_ended(name, false);
        }
        let protects = self.terms.node_format.protects();
        let sure = watched || protects && !self.view.unlisted;
        if !self.terms.discipline.granted_by_listing() || !sure || self.hold.is_granted() || self.exit.is_leaving() {
            return;
        }
        if self.view.blocker.take_if(|blocker| blocker.ends() == Some(name)).is_some() {
            self.releases.follow_a_local();
            self.beside.local_held();
            self.grant(true);
        }
    }

    /// A contender of this session no longer has this node. If a node of this name may exist, a listing shows what to wait for: a
    /// name without an id may have been used again before the other contender knew of its deletion.
    pub(super) fn local_ended(&mut self, name: &str, deleted: bool) {
        if deleted && self.terms.node_format.protects() {
            self.blocker_gone(name);
        } else if self.view.blocker.take_if(|blocker| blocker.ends() == Some(name)).is_some() {
            self.view.listing_due = true;
        }
    }
}
