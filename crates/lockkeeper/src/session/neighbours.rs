//! The contenders of one session in each queue. Each contender learns without a request when the one that it waits
//! for has released or has left. It also learns which of them came right before it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use lockkeeper_core::{Arrival, Event, Sequence};
use tokio::sync::oneshot;

/// The contenders of a session, by the path of the lock.
#[derive(Default)]
pub(crate) struct Neighbours {
    queues: Mutex<HashMap<String, NeighbourQueue>>,
}

/// The contenders of a session in the queue of one lock.
#[derive(Default)]
struct NeighbourQueue {
    /// How many wait for the reply to their creates.
    entering: usize,
    /// Those that have a node, in the order of the replies.
    members: VecDeque<Member>,
}

struct Member {
    node: String,
    sequence: i32,
    state: MemberState,
    /// It held alone and has released. Whether it watched its node until then.
    released: Option<bool>,
    waiters: Vec<oneshot::Sender<Heard>>,
}

/// What a contender reports of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberState {
    /// At most so many contenders are ahead of it.
    pub(crate) ahead: usize,
    pub(crate) holds: bool,
    pub(crate) watches_itself: bool,
}

/// What a waiter hears of the contender that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It held alone and has released. Whether it watched its node until then.
    Released { watched: bool },
    /// It has this node no more. Whether its delete took effect.
    Ended { deleted: bool },
}

impl Heard {
    /// The event for a contender that waits for this node.
    pub(crate) fn event(self, node: String) -> Event {
        match self {
            Heard::Released { watched } => Event::Released { name: node, watched },
            Heard::Ended { deleted } => Event::Ended { name: node, deleted },
        }
    }
}

impl Neighbours {
    fn queues(&self) -> MutexGuard<'_, HashMap<String, NeighbourQueue>> {
        self.queues.lock().expect("held for a change only")
    }

    /// Counts a contender that is about to enter, until the value is dropped.
    pub(crate) fn enter(self: &Arc<Self>, path: &str) -> Entering {
        let mut queues = self.queues();
        let queue = queues.entry(path.to_owned()).or_default();
        let company = queue.entering > 0 || queue.members.iter().any(|member| member.released.is_none());
        queue.entering += 1;
        Entering { neighbours: self.clone(), path: path.to_owned(), company }
    }

    /// Adds a contender that has this node, until the value is dropped. `None` for a node without a number.
    pub(crate) fn join(self: &Arc<Self>, path: &str, node: &str, state: MemberState) -> Option<Membership> {
        let sequence = Sequence::of_node(node)?;
        let (released, waiters) = (None, Vec::new());
        let member = Member { node: node.to_owned(), sequence: sequence.get(), state, released, waiters };
        self.queues().entry(path.to_owned()).or_default().members.push_back(member);
        Some(Membership { neighbours: self.clone(), path: path.to_owned(), node: node.to_owned(), state })
    }

    /// Listens to the contender of this session that has this node, if there is one. `afterwards`: its release is known.
    pub(crate) fn listen(&self, path: &str, node: &str, afterwards: bool) -> Option<NeighbourListener> {
        let mut queues = self.queues();
        let member = queues.get_mut(path)?.members.iter_mut().rev().find(|member| member.node == node)?;
        let (sender, receiver) = oneshot::channel();
        match member.released.filter(|_| !afterwards) {
            Some(watched) => _ = sender.send(Heard::Released { watched }),
            None => {
                member.waiters.retain(|waiter| !waiter.is_closed());
                member.waiters.push(sender);
            }
        }
        Some(NeighbourListener { node: node.to_owned(), receiver })
    }
}

/// A contender that waits for the reply to its create.
pub(crate) struct Entering {
    neighbours: Arc<Neighbours>,
    path: String,
    /// Whether others are in the queue that have not released, or are about to enter.
    pub(crate) company: bool,
}

impl Entering {
    /// Returns what the number of the new node shows: whether a neighbour's node has the number right before it.
    ///
    /// Not if that neighbour holds and does not watch its node. It would not know that the node was deleted.
    pub(crate) fn arrival(&self, node: &str) -> Arrival {
        let behind = || {
            let queues = self.neighbours.queues();
            let members = &queues.get(&self.path)?.members;
            let own = Sequence::of_node(node)?.get();
            let next = members.iter().rev().find(|member| member.sequence.wrapping_add(1) == own)?;
            let first = members.front()?;
            let MemberState { holds, watches_itself, .. } = next.state;
            let known = next.released.is_none() && (watches_itself || !holds);
            let between = own.wrapping_sub(first.sequence).cast_unsigned() as usize;
            let ahead = first.state.ahead.saturating_add(between);
            known.then(|| Arrival::Behind { name: next.node.clone(), ahead })
        };
        behind().unwrap_or(Arrival::Unknown)
    }
}

impl Drop for Entering {
    fn drop(&mut self) {
        let mut queues = self.neighbours.queues();
        let Some(queue) = queues.get_mut(&self.path) else { return };
        queue.entering -= 1;
        if queue.entering == 0 && queue.members.is_empty() {
            queues.remove(&self.path);
        }
    }
}

/// A contender that has a node.
pub(crate) struct Membership {
    neighbours: Arc<Neighbours>,
    path: String,
    node: String,
    state: MemberState,
}

impl Membership {
    /// Its node.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// What it last reported.
    pub(crate) fn state(&self) -> MemberState {
        self.state
    }

    fn change(&self, change: impl FnOnce(&mut Member)) {
        let mut queues = self.neighbours.queues();
        let mut members = queues.get_mut(&self.path).into_iter().flat_map(|queue| &mut queue.members);
        if let Some(member) = members.find(|member| member.node == self.node) {
            change(member);
        }
    }

    /// Reports its state.
    pub(crate) fn update(&mut self, state: MemberState) {
        if std::mem::replace(&mut self.state, state) != state {
            self.change(|member| member.state = state);
        }
    }

    /// It held alone and has released. The waiters for its node hear of that.
    pub(crate) fn released(&self) {
        let watched = self.state.watches_itself;
        self.change(|member| {
            member.released = Some(watched);
            for waiter in member.waiters.drain(..) {
                _ = waiter.send(Heard::Released { watched });
            }
        });
    }

    /// Its node is deleted.
    pub(crate) fn deleted(self) {
        self.change(|member| {
            for waiter in member.waiters.drain(..) {
                _ = waiter.send(Heard::Ended { deleted: true });
            }
        });
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut queues = self.neighbours.queues();
        let Some(queue) = queues.get_mut(&self.path) else { return };
        if let Some(at) = queue.members.iter().position(|member| member.node == self.node) {
            queue.members.remove(at);
        }
        if queue.entering == 0 && queue.members.is_empty() {
            queues.remove(&self.path);
        }
    }
}

/// The wait of one contender for another of its session.
pub(crate) struct NeighbourListener {
    node: String,
    receiver: oneshot::Receiver<Heard>,
}

impl NeighbourListener {
    /// The other's node.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Resolves when the other has released or ended. Dropping the future loses nothing.
    pub(crate) async fn heard(&mut self) -> Heard {
        (&mut self.receiver).await.unwrap_or(Heard::Ended { deleted: false })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const WAITS: MemberState = MemberState { ahead: 1, holds: false, watches_itself: false };
    const HOLDS: MemberState = MemberState { ahead: 0, holds: true, watches_itself: true };

    fn node(number: i32) -> String {
        format!("lock-{}", Sequence::new(number))
    }

    fn join(neighbours: &Arc<Neighbours>, number: i32, state: MemberState) -> Membership {
        neighbours.join("/lock", &node(number), state).unwrap()
    }

    #[test]
    fn each_listener_of_a_node_hears_of_its_release_and_nothing_is_left() {
        let neighbours = Arc::new(Neighbours::default());
        let (first, second) = (join(&neighbours, 1, HOLDS), join(&neighbours, 2, WAITS));
        let mut listeners: Vec<_> = (0..3).map(|_| neighbours.listen("/lock", &node(1), false).unwrap()).collect();
        let mut other = neighbours.listen("/lock", &node(2), false).unwrap();
        drop(listeners.remove(1));
        first.released();
        let released = Some(Heard::Released { watched: true });
        assert!(listeners.iter_mut().all(|listener| listener.heard().now_or_never() == released));
        assert_eq!(other.heard().now_or_never(), None, "another node");
        let late = |afterwards| neighbours.listen("/lock", &node(1), afterwards).unwrap();
        assert_eq!(late(false).heard().now_or_never(), released);
        let mut end = late(true);
        assert_eq!(end.heard().now_or_never(), None, "it has not ended");
        first.deleted();
        assert_eq!(end.heard().now_or_never(), Some(Heard::Ended { deleted: true }));
        drop(second);
        assert_eq!(other.heard().now_or_never(), Some(Heard::Ended { deleted: false }));
        assert!(neighbours.queues().is_empty());
    }

    #[test]
    fn a_place_is_known_only_right_behind_a_neighbour_that_would_know_of_its_nodes_deletion() {
        let behind = |number, ahead| Arrival::Behind { name: node(number), ahead };
        let blind = MemberState { watches_itself: false, ..HOLDS };
        let far = MemberState { ahead: 4, ..WAITS };
        for (state, expected) in [(HOLDS, behind(7, 1)), (far, behind(7, 5)), (blind, Arrival::Unknown)] {
            let neighbours = Arc::new(Neighbours::default());
            let member = join(&neighbours, 7, state);
            let entering = neighbours.enter("/lock");
            assert!(entering.company);
            assert_eq!(entering.arrival(&node(8)), expected);
            assert_eq!(entering.arrival(&node(9)), Arrival::Unknown, "another node is between");
            member.released();
            assert_eq!(entering.arrival(&node(8)), Arrival::Unknown, "it has released");
            drop(entering);
            assert!(!neighbours.enter("/lock").company, "the only other has released");
        }
    }

    #[test]
    fn numbers_begin_again_behind_the_largest() {
        let neighbours = Arc::new(Neighbours::default());
        let _last = join(&neighbours, i32::MAX, HOLDS);
        let arrival = neighbours.enter("/lock").arrival(&node(i32::MIN));
        assert_eq!(arrival, Arrival::Behind { name: node(i32::MAX), ahead: 1 });
    }
}
