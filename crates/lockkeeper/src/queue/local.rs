//! The contenders of one session in each queue: what [`LocalQueue`] decides, for tasks that wait.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use lockkeeper_core::{Arrival, Contender, Event, Listing, LocalKey, LocalQueue, LocalState, NodeFormat, QueuePlace};

/// The contenders of a session.
#[derive(Default)]
pub(crate) struct SessionQueues(Mutex<HashMap<NodeFormat, Arc<LocalQueues>>>);

impl SessionQueues {
    /// The contenders whose nodes have this format.
    ///
    /// A contender never stands behind one of another format: the two count their numbers below different nodes, or it
    /// must find the other one in a listing and be refused.
    pub(crate) fn of(&self, node_format: NodeFormat) -> Arc<LocalQueues> {
        self.0.lock().expect("held for a lookup only").entry(node_format).or_default().clone()
    }
}

/// The contenders of a session whose nodes have one format, by the path of the lock.
#[derive(Default)]
pub(crate) struct LocalQueues {
    queues: Mutex<HashMap<String, WokenQueue>>,
}

/// The queue of one lock, and the tasks that wait for signals in it.
#[derive(Default)]
struct WokenQueue {
    queue: LocalQueue,
    wakers: HashMap<LocalKey, Waker>,
    woken: Vec<LocalKey>,
}

impl LocalQueues {
    fn queues(&self) -> MutexGuard<'_, HashMap<String, WokenQueue>> {
        self.queues.lock().expect("held for a change only")
    }

    /// Registers a contender of this lock until the value is dropped.
    pub(crate) fn register(self: &Arc<Self>, path: &str) -> LocalRegistration {
        let (queues, path) = (self.clone(), path.to_owned());
        LocalRegistration { queues, path, is_entering: false, key: None, reported: Reported::default() }
    }
}

/// A contender among those of its session.
pub(crate) struct LocalRegistration {
    queues: Arc<LocalQueues>,
    path: String,
    is_entering: bool,
    key: Option<LocalKey>,
    reported: Reported,
}

/// What was last reported, so that a report without news takes no lock.
#[derive(Default, PartialEq, Eq)]
struct Reported {
    node: Option<String>,
    waits_for: Option<String>,
    ahead: Option<usize>,
    flags: [bool; 5],
}

impl Reported {
    fn is(&self, state: &LocalState<'_>) -> bool {
        let same_nodes = self.node.as_deref() == state.node && self.waits_for.as_deref() == state.waits_for;
        same_nodes && self.ahead == state.ahead && self.flags == Self::flags(state)
    }

    fn flags(state: &LocalState<'_>) -> [bool; 5] {
        [state.holds, state.released, state.watches_itself, state.first.is_some(), state.deferred]
    }

    fn update(&mut self, state: &LocalState<'_>) {
        let replace = |old: &mut Option<String>, new: Option<&str>| {
            if old.as_deref() != new {
                *old = new.map(str::to_owned);
            }
        };
        replace(&mut self.node, state.node);
        replace(&mut self.waits_for, state.waits_for);
        (self.ahead, self.flags) = (state.ahead, Self::flags(state));
    }
}

impl LocalRegistration {
    /// Passes the queue to `change`, then wakes those that have new signals. An empty queue is forgotten.
    fn change<T>(&self, change: impl FnOnce(&mut LocalQueue, &mut Vec<LocalKey>) -> T) -> T {
        let mut queues = self.queues.queues();
        if !queues.contains_key(&self.path) {
            queues.insert(self.path.clone(), WokenQueue::default());
        }
        let WokenQueue { queue, wakers, woken } = queues.get_mut(&self.path).expect("inserted if it was missing");
        let changed = change(queue, woken);
        woken.drain(..).filter_map(|key| wakers.remove(&key)).for_each(Waker::wake);
        if queue.is_empty() {
            queues.remove(&self.path);
        }
        changed
    }

    /// Counts it as about to enter. Returns whether it leaves out its listing: see [`LocalQueue::enter`].
    pub(crate) fn enter(&mut self, alone: bool) -> bool {
        let before = std::mem::replace(&mut self.is_entering, true);
        self.change(|queue, _| {
            if before {
                queue.entered();
            }
            queue.enter(alone)
        })
    }

    /// The create was answered. Returns what the number of the new node shows, if there is one.
    pub(crate) fn entered(&mut self, node: Option<&str>) -> Arrival {
        if !std::mem::take(&mut self.is_entering) {
            return Arrival::Unknown;
        }
        self.change(|queue, _| {
            let arrival = node.map(|node| queue.arrival(node));
            queue.entered();
            arrival.unwrap_or(Arrival::Unknown)
        })
    }

    /// Reports what the contender shows to the others of its session.
    pub(crate) fn report(&mut self, contender: &Contender) {
        let state = contender.local_state();
        if !self.reported.is(&state) {
            self.reported.update(&state);
            let before = self.key;
            self.key = self.change(|queue, woken| {
                let key = queue.report(before, &state, woken);
                // Nothing wakes the entry that it had any more.
                woken.extend(before.filter(|_| key != before));
                key
            });
        }
    }

    /// Whether the contender hears of the end of this node without a watch: it waits for it, and the node is of its session.
    pub(crate) fn hears_of(&mut self, contender: &Contender, node: &str) -> bool {
        self.report(contender);
        self.key.is_some_and(|key| self.change(|queue, _| queue.hears_of(key) == Some(node)))
    }

    /// Returns the place of the contender, if those of its session know it. At most so many are ahead.
    pub(crate) fn place(&self) -> Option<QueuePlace> {
        let key = self.key?;
        self.change(|queue, _| queue.place(key))
    }

    /// Returns what [`LocalRegistration::listed`] needs of the moment when a listing is sent.
    pub(crate) fn next_key(&self) -> LocalKey {
        self.change(|queue, _| queue.next_key())
    }

    /// The contender has listed the queue. The listing also serves those of its session that have listed nothing.
    pub(crate) fn listed(&self, before: LocalKey, listing: &Listing) {
        self.change(|queue, woken| queue.listed(before, listing, woken));
    }

    /// Resolves with what the contender hears of the others. Dropping the future loses nothing.
    pub(crate) async fn signal(&mut self) -> Event {
        let Some(key) = self.key.filter(|_| self.reported.waits_for.is_some()) else {
            return std::future::pending().await;
        };
        let signal = poll_fn(|cx| {
            let mut queues = self.queues.queues();
            let Some(WokenQueue { queue, wakers, .. }) = queues.get_mut(&self.path) else { return Poll::Pending };
            match queue.take_signal(key) {
                Some(signal) => Poll::Ready(signal),
                None => {
                    wakers.insert(key, cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        if let Event::Ended { .. } = signal {
            self.reported.waits_for = None;
        }
        signal
    }
}

impl Drop for LocalRegistration {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.change(|queue, woken| queue.leave(key, woken));
        }
        self.entered(None);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use lockkeeper_core::{AttemptId, Command, Discipline, Listing, Mode, NodeFormat, SessionId, Zxid};

    use super::*;

    /// Returns a contender that came behind these nodes, and its node.
    fn contender(id: u128, names: &[String]) -> (Contender, String) {
        let format = NodeFormat::Curator;
        let id = AttemptId::new(id);
        let mut contender = Contender::new(Discipline::SharedExclusive, format, Mode::Exclusive, id, SessionId(1));
        let Some(Command::Enter { prefix, .. }) = contender.next_command() else { panic!("it enters first") };
        let node = format!("{prefix}{:010}", names.len());
        let arrival = Arrival::Listed(Listing::of(names.iter().cloned().chain([node.clone()]).collect()));
        contender.handle(Event::Entered { created: Ok((node.clone(), Zxid(7))), arrival });
        _ = contender.next_command();
        (contender, node)
    }

    /// A lock whose queue is never empty would otherwise keep the tasks of all attempts that gave up.
    #[test]
    fn a_waiter_that_gave_up_leaves_no_waker() {
        let queues = Arc::new(LocalQueues::default());
        let (first, node) = contender(1, &[]);
        let mut holder = queues.register("/lock");
        holder.report(&first);
        let (mut second, _) = contender(2, &[node]);
        let mut waiter = queues.register("/lock");
        waiter.report(&second);
        assert_eq!(waiter.signal().now_or_never(), None);
        assert_eq!(queues.queues()["/lock"].wakers.len(), 1);
        second.handle(Event::BlockerIsLocal);
        second.handle(Event::Leave);
        while !matches!(second.next_command(), Some(Command::Delete { .. })) {
            second.handle(Event::Watched(Err(lockkeeper_core::Failure::ConnectionLoss)));
        }
        second.handle(Event::Deleted(Ok(())));
        waiter.report(&second);
        assert!(queues.queues()["/lock"].wakers.is_empty());
    }
}
