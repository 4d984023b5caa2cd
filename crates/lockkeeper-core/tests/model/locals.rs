//! The clients of one process: what they tell the queue of their process, and hear from it.

use std::sync::Arc;

use lockkeeper_core::{Event, Failure, Listing, LocalQueue};

use super::client::{FencedWrite, Machine};
use super::mistake::Mistake;
use super::step::Step;

impl Step<'_> {
    pub(crate) fn local(&mut self) -> &mut LocalQueue {
        Arc::make_mut(&mut self.state.local)
    }

    /// The caller of client `i` leaves, as the driver tells it.
    pub(crate) fn release(&mut self, i: u8) {
        let (world, client) = (self.world, self.client(i));
        let holds = client.says_it_holds();
        client.passed_on |= world.mistake == Some(Mistake::AllPassOn) && holds && client.key.is_some();
        let writes = matches!(client.write, FencedWrite::Sent(_) | FencedWrite::Unknown);
        let lost = client.overdue;
        self.tell(i, if holds { Event::Release { lost, writes } } else { Event::Leave });
    }

    /// Counts client `i` as about to enter. Returns whether it leaves out its listing: it may, if it is `alone`.
    pub(crate) fn enter_local(&mut self, i: u8, alone: bool) -> bool {
        if i >= self.world.neighbours {
            return false;
        }
        self.entered_local(i);
        self.client(i).enters = true;
        self.local().enter(alone)
    }

    pub(crate) fn entered_local(&mut self, i: u8) {
        if std::mem::take(&mut self.client(i).enters) {
            self.local().entered();
        }
    }

    /// Shows its neighbours what client `i` knows of itself, as the driver does.
    pub(crate) fn report_local(&mut self, i: u8) {
        let world = self.world;
        if i >= world.neighbours {
            return;
        }
        let client = self.client(i);
        let (key, machine, passed_on) = (client.key, client.machine.clone(), client.passed_on);
        let Some(contender) = machine.as_ref().and_then(Machine::contender) else { return };
        let mut shown = contender.local_state();
        shown.released |= passed_on;
        shown.watches_itself |= world.mistake == Some(Mistake::SaysItWatched);
        let released = shown.released;
        let key = self.local().report(key, &shown, &mut Vec::new());
        let hears_of = key.and_then(|key| self.state.local.hears_of(key)).map(|name| world.read(name));
        let client = self.client(i);
        (client.key, client.neighbour) = (key, hears_of);
        client.passed_on |= released && key.is_some();
    }

    pub(crate) fn leave_local(&mut self, i: u8) {
        if let Some(key) = self.client(i).key.take() {
            self.client(i).neighbour = None;
            self.local().leave(key, &mut Vec::new());
        }
    }

    /// Passes a listing to the neighbours that have listed nothing.
    pub(crate) fn share_listing(&mut self, i: u8, listed: &Result<Listing, Failure>) {
        let Some(before) = self.client(i).listing_before.take() else { return };
        if let Ok(listing) = listed {
            self.local().listed(before, listing, &mut Vec::new());
        }
    }
}
