//! The clients of one process: what they tell the queue of their process, and hear from it.

use std::sync::Arc;

use lockkeeper_core::{Failure, Listing, LocalQueue};

use super::client::{FencedWrite, Machine};
use super::mistake::Mistake;
use super::step::Step;

impl Step<'_> {
    pub(crate) fn local(&mut self) -> &mut LocalQueue {
        Arc::make_mut(&mut self.state.local)
    }

    /// Reports a release to the neighbours that it lets continue.
    pub(crate) fn pass_on(&mut self, i: u8) {
        let (world, client) = (self.world, self.client(i));
        let any = world.mistake == Some(Mistake::AllPassOn) && client.says_it_holds();
        let writes = matches!(client.write, FencedWrite::Sent(_) | FencedWrite::Unknown);
        let contender = client.machine.as_ref().and_then(Machine::contender);
        let passes_on = any || contender.is_some_and(|contender| contender.passes_on(writes).is_some());
        if let (true, Some(key)) = (passes_on, client.key) {
            client.passed_on = true;
            self.local().released(key, &mut Vec::new());
        }
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
        let (key, machine) = (client.key, client.machine.clone());
        let Some(contender) = machine.as_ref().and_then(Machine::contender) else { return };
        let mut shown = contender.local_state();
        shown.watches_itself |= world.mistake == Some(Mistake::SaysItWatched);
        let key = self.local().report(key, &shown, &mut Vec::new());
        let hears_of = key.and_then(|key| self.state.local.hears_of(key)).map(|name| world.read(name));
        let client = self.client(i);
        (client.key, client.neighbour) = (key, hears_of);
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
