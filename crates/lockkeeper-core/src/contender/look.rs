//! The look at the first of the queue, which tells a caller that stops waiting who holds the lock.
//!
//! It is a read beside any other command. What it shows of the queue counts as what a watch shows.

use super::Contender;
use crate::Sessionless;
use crate::protocol::{Command, Failure, Inspection};

/// A waiter with more contenders ahead does not list only to know who holds the lock at its deadline.
const MOST_AHEAD_TO_LIST: usize = 100;

/// What the attempt has looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Looks {
    /// Each first of the queue is to be looked at.
    due: bool,
    /// The caller soon stops waiting: the first of the queue is to be looked at again.
    again: bool,
    /// The caller soon stops waiting: if the first of the queue is deleted, the contender lists once, to find the next one.
    deadline_near: bool,
    /// The node of the last look.
    at: Option<String>,
    /// The last look has no answer yet.
    sent: bool,
    /// The holder is behind this contender in the queue, so the place of this contender does not count the holder.
    holder_behind: bool,
}

impl Contender {
    /// From now on, each first of the queue is worth a look.
    pub(super) fn looks_due(&mut self) {
        self.looks.due = true;
    }

    /// The caller soon stops waiting.
    pub(super) fn deadline_near(&mut self) {
        (self.looks.deadline_near, self.looks.again) = (self.waits(), true);
    }

    /// How many contenders are ahead of this waiter, including the holder, by its last listing and its last look.
    pub fn ahead(&self) -> Option<usize> {
        self.place().map(|place| place.ahead + usize::from(self.looks.holder_behind))
    }

    /// Reads the first node of the queue: each one once, and again before the deadline. If this contender waits for the end of that
    /// node, the node is still the first, and is not read again. A try uses [`Flight::InspectFirst`](super::Flight::InspectFirst).
    pub(super) fn look_at_first(&mut self) -> Option<Command> {
        if !self.looks.due && !self.looks.again {
            return None;
        }
        let again = std::mem::take(&mut self.looks.again) && !self.looks.sent;
        if self.hold.is_granted() || self.exit.is_leaving() || self.exit.session_over || self.terms.once {
            return None;
        }
        let place = self.view.place.as_ref()?;
        let is_new = self.looks.at.as_ref() != Some(&place.first);
        if !(is_new && self.looks.due || again && self.waits_for() != Some(&*place.first)) {
            return None;
        }
        let (first, front) = (place.first.clone(), place.front.clone());
        self.looks.holder_behind &= !is_new;
        (self.looks.at, self.looks.sent) = (Some(first.clone()), true);
        Some(Command::Look { first, front })
    }

    pub(super) fn looked(&mut self, first: Result<Inspection, Failure>, front: Option<Box<Inspection>>) {
        if !std::mem::take(&mut self.looks.sent) {
            return;
        }
        let Some(name) = self.looks.at.clone() else { return };
        match first {
            Ok(first) => {
                self.looks.holder_behind = front.is_some_and(|front| !front.is_same_attempt(&first));
                if first.owner.is_none() {
                    self.no_contender(&Sessionless { name, czxid: first.czxid });
                }
            }
            Err(Failure::NoNode) => {
                self.looks.holder_behind = false;
                self.gone(&name);
            }
            Err(_) => {}
        }
    }

    /// The first of the queue has left, and was not the blocker. A waiter whose caller soon stops waiting lists, to know the next
    /// one. In a long queue it does not: if many waiters stopped together, each would list the whole queue.
    pub(super) fn first_gone(&mut self) {
        let is_short = self.view.place.as_ref().is_some_and(|place| place.ahead <= MOST_AHEAD_TO_LIST);
        match std::mem::take(&mut self.looks.deadline_near) {
            true => self.view.listing_due |= is_short && self.waits(),
            false => self.list_if_unlisted(),
        }
    }
}
