//! A foreign client: Contentserv's algorithm as its document describes it, with nothing added.
//!
//! It watches the parent and sorts the names. It takes the holder marker if it was first in a listing without one,
//! however old that listing is by then. It deletes its request and its holder marker one by one. It uses the driver's
//! commands, so that the harness carries them out as it does for a contender.

use lockkeeper_core::{Class, Command, Event, Failure, HOLDER_MARKER};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Start,
    Look,
    Wait,
    Take,
    Hold,
    DropHolderMarker,
    DropRequest,
    End,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Plain {
    class: Class,
    own: Option<String>,
    at: At,
    asked: bool,
}

impl Plain {
    pub(crate) fn new(class: Class) -> Plain {
        Plain { class, own: None, at: At::Start, asked: false }
    }

    pub(crate) fn node(&self) -> Option<&str> {
        self.own.as_deref()
    }

    pub(crate) fn holds(&self) -> bool {
        self.at == At::Hold
    }

    fn go(&mut self, at: At) {
        (self.at, self.asked) = (at, false);
    }

    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Entered { created, .. } => {
                self.own = created.ok().map(|(name, _)| name);
                self.go(if self.own.is_some() { At::Look } else { At::End });
            }
            Event::Listed(Ok(listing)) => {
                let mut names: Vec<_> = listing.names.iter().filter(|name| *name != HOLDER_MARKER).collect();
                names.sort();
                let first = names.first().copied() == self.own.as_ref();
                let free = names.len() == listing.names.len();
                self.go(if first && free { At::Take } else { At::Wait });
            }
            Event::ChildrenChanged if self.at == At::Wait => self.go(At::Look),
            Event::HolderMarkerTaken(Ok(_)) => self.go(At::Hold),
            Event::HolderMarkerTaken(Err(Failure::NodeExists)) => self.go(At::Look),
            Event::Leave | Event::Release { .. } => self.go(At::DropHolderMarker),
            Event::Deleted(_) if self.at == At::DropHolderMarker => self.go(At::DropRequest),
            Event::Deleted(_) => self.go(At::End),
            Event::SessionOver => self.go(At::End),
            _ => {}
        }
    }

    /// Returns its next command; one at a time.
    pub(crate) fn next_command(&mut self) -> Option<Command> {
        if std::mem::replace(&mut self.asked, true) {
            return None;
        }
        let own = || self.own.clone().expect("it has entered");
        let delete = |name| Command::Delete { name, version: None, holder_marker: None, write: None };
        match self.at {
            At::Start => {
                Some(Command::Enter { prefix: format!("{}-", self.class), limit: false, alone: false, beside: false })
            }
            At::Look => Some(Command::List { limit: false, watch: true, beside: false }),
            At::Take => Some(Command::TakeHolderMarker { own: own(), holder_marker: HOLDER_MARKER.to_owned() }),
            At::DropHolderMarker => Some(delete(HOLDER_MARKER.to_owned())),
            At::DropRequest => Some(delete(own())),
            At::End => Some(Command::End(lockkeeper_core::End::Left)),
            At::Wait | At::Hold => None,
        }
    }
}
