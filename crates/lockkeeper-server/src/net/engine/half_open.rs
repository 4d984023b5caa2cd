//! Connections that have not presented the server's secret.
//!
//! A stranger gets little: one of a few places, a short time, short frames, one scheme, and no session. When all places
//! are taken, the oldest connection gives its place up. A client that has the secret needs its place for a moment only, so
//! a crowd of strangers cannot keep it out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::net::outbox::Outbox;

/// Maximum number of half-open connections.
pub(crate) const PLACES: usize = 64;
/// Time to present the secret.
pub(crate) const TIME: Duration = Duration::from_secs(2);
/// Maximum length of a frame before the secret.
pub(crate) const MAX_FRAME: usize = 4 << 10;

/// A half-open connection.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    pub(crate) deadline: Instant,
    evicted: Notify,
    /// None before the first frame.
    outbox: RefCell<Option<Rc<Outbox>>>,
}

impl HalfOpen {
    fn new() -> Self {
        Self { deadline: Instant::now() + TIME, evicted: Notify::new(), outbox: RefCell::default() }
    }

    /// Sets the outbox by which the connection is closed from now on.
    pub(super) fn accepted(&self, outbox: &Rc<Outbox>) {
        *self.outbox.borrow_mut() = Some(Rc::clone(outbox));
    }

    /// Resolves when the connection must end before its first frame. Dropping the future changes nothing.
    pub(crate) async fn over(&self) {
        tokio::select! {
            () = self.evicted.notified() => {}
            () = sleep_until(self.deadline) => {}
        }
    }

    fn evict(&self) {
        match &*self.outbox.borrow() {
            Some(outbox) => outbox.abort(),
            None => self.evicted.notify_one(),
        }
    }
}

/// All half-open connections, oldest first.
#[derive(Debug, Default)]
pub(super) struct Places(VecDeque<Rc<HalfOpen>>);

impl Places {
    pub(super) fn take(&mut self) -> Rc<HalfOpen> {
        while self.0.len() >= PLACES
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.evict();
        }
        let place = Rc::new(HalfOpen::new());
        self.0.push_back(Rc::clone(&place));
        place
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.0.len()
    }

    pub(super) fn leave(&mut self, place: &Rc<HalfOpen>) {
        self.0.retain(|other| !Rc::ptr_eq(other, place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it has been told to end. Not whether its time is over.
    async fn is_evicted(place: &HalfOpen) -> bool {
        tokio::time::timeout(Duration::ZERO, place.evicted.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn the_oldest_stranger_makes_room_for_a_new_one() {
        let mut places = Places::default();
        let oldest: Vec<_> = (0..3).map(|_| places.take()).collect();
        let outbox = Rc::new(Outbox::default());
        oldest[1].accepted(&outbox);
        let others: Vec<_> = (3..PLACES).map(|_| places.take()).collect();
        for place in oldest.iter().chain(&others) {
            assert!(!is_evicted(place).await);
        }
        let newer = [places.take(), places.take()];
        assert!(is_evicted(&oldest[0]).await, "before its first frame");
        assert!(outbox.is_aborted(), "after its first frame");
        for place in oldest[2..].iter().chain(&others).chain(&newer) {
            assert!(!is_evicted(place).await);
        }
        // One that leaves makes room as well.
        places.leave(&others[0]);
        let _last = places.take();
        assert!(!is_evicted(&oldest[2]).await);
        assert_eq!(places.0.len(), PLACES);
    }
}
