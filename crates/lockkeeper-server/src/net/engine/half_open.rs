//! Connections that have not presented the server's secret.
//!
//! A stranger gets little: one of a few places, a short time, short frames, one scheme, and no session. When all places
//! are taken, the oldest connection of the address with the most places gives its place up. A client that has the secret
//! needs its place for a moment only, so a crowd of strangers from one address cannot keep it out. A crowd from as many
//! addresses as there are places still can, if it connects faster than the client presents the secret.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::net::outbox::Outbox;
use crate::net::peer::Origin;

/// Maximum number of half-open connections.
pub(crate) const PLACES: usize = 64;
/// Time to present the secret.
pub(crate) const TIME: Duration = Duration::from_secs(2);
/// Maximum length of a frame before the secret.
pub(crate) const MAX_FRAME: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct HalfOpen {
    pub(crate) deadline: Instant,
    from: Origin,
    evicted: Notify,
    /// None before the first frame.
    outbox: RefCell<Option<Rc<Outbox>>>,
}

impl HalfOpen {
    fn new(from: Origin) -> Self {
        Self { deadline: Instant::now() + TIME, from, evicted: Notify::new(), outbox: RefCell::default() }
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
    pub(super) fn take(&mut self, from: Origin) -> Rc<HalfOpen> {
        let place = Rc::new(HalfOpen::new(from));
        self.0.push_back(Rc::clone(&place));
        if self.0.len() > PLACES {
            let places = |from: Origin| self.0.iter().filter(|place| place.from == from).count();
            let most = self.0.iter().map(|place| places(place.from)).max();
            let oldest = self.0.iter().position(|place| Some(places(place.from)) == most);
            if let Some(oldest) = oldest.and_then(|at| self.0.remove(at)) {
                oldest.evict();
            }
        }
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
    use std::net::Ipv4Addr;

    use super::*;

    fn from(host: u8) -> Origin {
        Origin::Net(Ipv4Addr::new(10, 0, 0, host).into())
    }

    fn has(places: &Places, place: &Rc<HalfOpen>) -> bool {
        places.0.iter().any(|taken| Rc::ptr_eq(taken, place))
    }

    #[test]
    fn a_crowd_from_one_address_takes_no_place_from_another_one() {
        let mut places = Places::default();
        let early = places.take(from(1));
        let crowd: Vec<_> = (0..PLACES).map(|_| places.take(from(2))).collect();
        let late = places.take(from(3));
        (0..1_000).for_each(|_| drop(places.take(from(2))));
        assert!(has(&places, &early) && has(&places, &late) && places.0.len() == PLACES);
        assert!(!crowd.iter().any(|place| has(&places, place)), "the oldest ones of the crowd have gone");
    }

    #[test]
    fn the_oldest_of_many_addresses_goes() {
        let mut places = Places::default();
        let first = places.take(from(0));
        let second = places.take(from(1));
        (2..=64).for_each(|host| drop(places.take(from(host))));
        assert!(!has(&places, &first) && has(&places, &second));
    }

    /// Whether it has been told to end. Not whether its time is over.
    async fn is_evicted(place: &HalfOpen) -> bool {
        tokio::time::timeout(Duration::ZERO, place.evicted.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn the_oldest_stranger_makes_room_for_a_new_one() {
        let mut places = Places::default();
        let oldest: Vec<_> = (0..3).map(|_| places.take(from(1))).collect();
        let outbox = Rc::new(Outbox::default());
        oldest[1].accepted(&outbox);
        let others: Vec<_> = (3..PLACES).map(|_| places.take(from(1))).collect();
        for place in oldest.iter().chain(&others) {
            assert!(!is_evicted(place).await);
        }
        let newer = [places.take(from(1)), places.take(from(1))];
        assert!(is_evicted(&oldest[0]).await, "before its first frame");
        assert!(outbox.is_aborted(), "after its first frame");
        for place in oldest[2..].iter().chain(&others).chain(&newer) {
            assert!(!is_evicted(place).await);
        }
        // One that leaves makes room as well.
        places.leave(&others[0]);
        let _last = places.take(from(1));
        assert!(!is_evicted(&oldest[2]).await);
        assert_eq!(places.0.len(), PLACES);
    }
}
