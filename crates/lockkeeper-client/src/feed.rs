//! The events of a persistent watch between the driver and a reader: a bounded number, with the gaps.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::Notify;

use crate::types::WatchEvent;

/// An event of a [`WatchFeed`](crate::WatchFeed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedEvent {
    /// The watch fired.
    Fired {
        /// What happened.
        event: WatchEvent,
        /// When the event was received. Events that arrive together have one time.
        at: Instant,
    },
    /// The connection ended. Changes from now on are not reported.
    Disconnected,
    /// A server has accepted the session, and the watch is set again with it. A read that is sent from now on shows all changes
    /// that were not reported.
    Connected,
    /// This many events were dropped, because nobody took them in time. A read that is sent from now on shows the changes.
    Missed(u64),
}

/// The events that nobody has taken yet.
#[derive(Debug)]
struct Queue {
    events: VecDeque<FeedEvent>,
    capacity: usize,
    missed: u64,
    is_connected: bool,
    has_ended: bool,
}

impl Queue {
    fn push(&mut self, event: FeedEvent) {
        match event {
            FeedEvent::Connected => self.is_connected = true,
            FeedEvent::Disconnected => self.is_connected = false,
            FeedEvent::Fired { .. } | FeedEvent::Missed(_) => {}
        }
        if self.events.len() < self.capacity {
            self.events.push_back(event);
            return;
        }
        // The reader must read everything again in any case. What is left would only describe an older state.
        let fired = self.events.iter().chain([&event]).filter(|event| matches!(event, FeedEvent::Fired { .. })).count();
        self.missed += fired as u64;
        let changed = self.events.iter().chain([&event]).any(|event| !matches!(event, FeedEvent::Fired { .. }));
        self.events.clear();
        if changed {
            // The reader may wait for a connection, or must read again because there is a new one.
            self.events.push_back(FeedEvent::Disconnected);
            if self.is_connected {
                self.events.push_back(FeedEvent::Connected);
            }
        }
    }

    fn pop(&mut self) -> Option<FeedEvent> {
        match std::mem::take(&mut self.missed) {
            0 => self.events.pop_front(),
            missed => Some(FeedEvent::Missed(missed)),
        }
    }
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The driver's end of a feed. Dropping it ends the feed.
pub(crate) struct FeedSender(Arc<Shared>);

impl FeedSender {
    pub(crate) fn push(&self, event: FeedEvent) {
        self.0.lock().push(event);
        self.0.changed.notify_one();
    }
}

impl Drop for FeedSender {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_one();
    }
}

/// The reader's end of a feed.
pub(crate) struct FeedReceiver(Arc<Shared>);

/// Creates a feed that keeps at most this many events, and two if it is less.
pub(crate) fn feed(capacity: usize) -> (FeedSender, FeedReceiver) {
    let (events, capacity) = (VecDeque::new(), capacity.max(2));
    let queue = Queue { events, capacity, missed: 0, is_connected: true, has_ended: false };
    let shared = Arc::new(Shared { queue: Mutex::new(queue), changed: Notify::new() });
    (FeedSender(shared.clone()), FeedReceiver(shared))
}

impl FeedReceiver {
    pub(crate) async fn next(&mut self) -> Option<FeedEvent> {
        loop {
            {
                let mut queue = self.0.lock();
                if let Some(event) = queue.pop() {
                    return Some(event);
                }
                if queue.has_ended {
                    return None;
                }
            }
            // A change since the look has left a permit.
            self.0.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_wire::EventKind;

    use super::*;

    fn fired(path: &str, at: Instant) -> FeedEvent {
        FeedEvent::Fired { event: WatchEvent { kind: EventKind::Created, path: path.into() }, at }
    }

    #[tokio::test]
    async fn a_feed_that_nobody_reads_keeps_few_events_and_tells_how_many_it_dropped() {
        let ((sender, mut receiver), now) = (feed(3), Instant::now());
        ["/a", "/b", "/c", "/d", "/e"].into_iter().for_each(|path| sender.push(fired(path, now)));
        assert_eq!(receiver.0.lock().events.len(), 1);
        assert_eq!(receiver.next().await, Some(FeedEvent::Missed(4)));
        assert_eq!(receiver.next().await, Some(fired("/e", now)));
        drop(sender);
        assert_eq!(receiver.next().await, None);
    }

    #[tokio::test]
    async fn a_lost_connection_is_told_although_its_event_was_dropped() {
        let (sender, mut receiver) = feed(2);
        sender.push(fired("/a", Instant::now()));
        let changes = [FeedEvent::Disconnected, FeedEvent::Connected, FeedEvent::Disconnected];
        changes.into_iter().for_each(|event| sender.push(event));
        assert_eq!(receiver.next().await, Some(FeedEvent::Missed(1)));
        assert_eq!(receiver.next().await, Some(FeedEvent::Disconnected));
        sender.push(FeedEvent::Connected);
        assert_eq!(receiver.next().await, Some(FeedEvent::Connected));
    }

    /// Whatever a reader has taken before: after the last overflow it hears of a reconnect or of missed events, and so it reads
    /// again.
    #[tokio::test]
    async fn a_reconnect_is_told_although_its_events_were_dropped() {
        use FeedEvent::{Connected, Disconnected};
        for capacity in 1..6 {
            for taken in [0, 1] {
                for reconnects in 1..8 {
                    let (sender, mut receiver) = feed(capacity);
                    sender.push(Disconnected);
                    let mut told = Vec::new();
                    if taken == 1 {
                        told.extend(receiver.next().await);
                    }
                    for _ in 1..reconnects {
                        sender.push(Connected);
                        sender.push(Disconnected);
                    }
                    sender.push(Connected);
                    drop(sender);
                    while let Some(event) = receiver.next().await {
                        told.push(event);
                    }
                    assert_eq!(told.first(), Some(&Disconnected), "{capacity} {reconnects}: {told:?}");
                    assert_eq!(told.last(), Some(&Connected), "{capacity} {reconnects}: {told:?}");
                }
            }
        }
    }
}
