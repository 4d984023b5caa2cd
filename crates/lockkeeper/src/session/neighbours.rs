//! The contenders of one session and one node format in each queue. Each contender learns without a request when the
//! one that it waits for has released or has left. It also learns which of them came right before it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use lockkeeper_core::{Arrival, Event, QueuePlace, Sequence};
use tokio::sync::oneshot;

/// The contenders of a session whose nodes have one format, by the path of the lock.
#[derive(Default)]
pub(crate) struct Neighbours {
    queues: Mutex<HashMap<String, NeighbourQueue>>,
}

/// The contenders of a session in the queue of one lock.
#[derive(Default)]
struct NeighbourQueue {
    /// How many wait for the reply to their creates.
    entering: usize,
    /// Those that have a node, in the order of the replies. Most leave from the front, where a removal is cheap.
    members: VecDeque<(u64, Member)>,
    /// The last member that has each number.
    numbers: HashMap<i32, u64>,
    /// How many have joined.
    joined: u64,
    /// The first of the queue, as a member last saw it.
    first: Option<String>,
}

impl NeighbourQueue {
    fn position(&self, key: u64) -> Option<usize> {
        self.members.binary_search_by_key(&key, |(key, _)| *key).ok()
    }

    fn member(&mut self, key: u64) -> Option<&mut Member> {
        let at = self.position(key)?;
        Some(&mut self.members[at].1)
    }

    /// Returns the last member that has this number.
    fn numbered(&mut self, number: i32) -> Option<&mut Member> {
        self.member(*self.numbers.get(&number)?)
    }

    /// Returns the first member that has not released.
    fn foremost(&self) -> Option<&Member> {
        self.members.iter().map(|(_, member)| member).find(|member| member.released.is_none())
    }

    /// Returns the place of a contender with this number, if a member knows it.
    fn place(&self, number: i32) -> Option<QueuePlace> {
        let foremost = self.foremost()?;
        let between = number.wrapping_sub(foremost.sequence).cast_unsigned() as usize;
        let ahead = foremost.state.ahead.checked_add(between)?;
        let first = if foremost.state.holds { Some(&foremost.node) } else { self.first.as_ref() };
        Some(QueuePlace { ahead, first: first?.clone(), front: None, blocks_first: None })
    }

    /// Takes in what a member knows of itself and the queue.
    fn saw(&mut self, first: Option<&str>) {
        if first.is_some() && self.first.as_deref() != first {
            self.first = first.map(str::to_owned);
        }
    }
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
    /// It knows the first of the queue.
    pub(crate) knows_first: bool,
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
        let company = queue.entering > 0 || queue.foremost().is_some();
        queue.entering += 1;
        Entering { neighbours: self.clone(), path: path.to_owned(), company }
    }

    /// Adds a contender that has this node, until the value is dropped. `first`: the first of the queue, if it knows that. `None`
    /// for a node without a number.
    pub(crate) fn join(
        self: &Arc<Self>,
        path: &str,
        node: &str,
        state: MemberState,
        first: Option<&str>,
    ) -> Option<Membership> {
        let sequence = Sequence::of_node(node)?.get();
        let mut queues = self.queues();
        let queue = queues.entry(path.to_owned()).or_default();
        let key = queue.joined;
        queue.joined += 1;
        queue.saw(first);
        queue.numbers.insert(sequence, key);
        let member = Member { node: node.to_owned(), sequence, state, released: None, waiters: Vec::new() };
        if queue.members.is_empty() {
            // Most locks have one contender of this process.
            queue.members.reserve_exact(1);
        }
        queue.members.push_back((key, member));
        Some(Membership { neighbours: self.clone(), path: path.to_owned(), node: node.to_owned(), key, state })
    }

    /// Returns the place of the contender that has this node, if a contender of this session knows it. At most so many are ahead.
    pub(crate) fn place(&self, path: &str, node: &str) -> Option<QueuePlace> {
        self.queues().get(path)?.place(Sequence::of_node(node)?.get())
    }

    /// Listens to the contender of this session that has this node, if there is one. `afterwards`: its release is known.
    pub(crate) fn listen(&self, path: &str, node: &str, afterwards: bool) -> Option<NeighbourListener> {
        let mut queues = self.queues();
        let member = queues.get_mut(path)?.numbered(Sequence::of_node(node)?.get())?;
        if member.node != node {
            return None;
        }
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
            let mut queues = self.neighbours.queues();
            let queue = queues.get_mut(&self.path)?;
            let own = Sequence::of_node(node)?.get();
            let next = queue.numbered(own.wrapping_sub(1))?;
            let MemberState { holds, watches_itself, .. } = next.state;
            let known = next.released.is_none() && (watches_itself || !holds);
            let name = known.then(|| next.node.clone())?;
            Some(Arrival::Behind { name, place: queue.place(own) })
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
    key: u64,
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
        if let Some(member) = queues.get_mut(&self.path).and_then(|queue| queue.member(self.key)) {
            change(member);
        }
    }

    /// Reports its state, and the first of the queue if it knows that.
    pub(crate) fn update(&mut self, state: MemberState, first: Option<&str>) {
        if std::mem::replace(&mut self.state, state) != state {
            let mut queues = self.neighbours.queues();
            let Some(queue) = queues.get_mut(&self.path) else { return };
            queue.saw(first);
            if let Some(member) = queue.member(self.key) {
                member.state = state;
            }
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
        if let Some((_, member)) = queue.position(self.key).and_then(|at| queue.members.remove(at))
            && queue.numbers.get(&member.sequence) == Some(&self.key)
        {
            queue.numbers.remove(&member.sequence);
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

    const WAITS: MemberState = MemberState { ahead: 1, holds: false, watches_itself: false, knows_first: false };
    const HOLDS: MemberState = MemberState { ahead: 0, holds: true, watches_itself: true, knows_first: false };

    fn node(number: i32) -> String {
        format!("lock-{}", Sequence::new(number))
    }

    fn join(neighbours: &Arc<Neighbours>, number: i32, state: MemberState) -> Membership {
        neighbours.join("/lock", &node(number), state, None).unwrap()
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
        let place = |ahead| Some(QueuePlace { ahead, first: node(7), front: None, blocks_first: None });
        let behind = |number, place| Arrival::Behind { name: node(number), place };
        let blind = MemberState { watches_itself: false, ..HOLDS };
        let far = MemberState { ahead: 4, ..WAITS };
        for (state, expected) in [(HOLDS, behind(7, place(1))), (far, behind(7, None)), (blind, Arrival::Unknown)] {
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
        let place = Some(QueuePlace { ahead: 1, first: node(i32::MAX), front: None, blocks_first: None });
        assert_eq!(arrival, Arrival::Behind { name: node(i32::MAX), place });
    }

    #[test]
    fn a_place_follows_from_the_foremost_neighbours() {
        let neighbours = Arc::new(Neighbours::default());
        let unknown = MemberState { ahead: usize::MAX, ..WAITS };
        let mut front = neighbours.join("/lock", &node(7), unknown, None).unwrap();
        let place = |number| match neighbours.enter("/lock").arrival(&node(number)) {
            Arrival::Behind { place, .. } => place.map(|place| (place.ahead, place.first)),
            other => panic!("{other:?}"),
        };
        assert_eq!(place(8), None);
        front.update(MemberState { ahead: 4, knows_first: true, ..WAITS }, Some("theirs"));
        assert_eq!(place(8), Some((5, "theirs".to_owned())));
        let _behind = join(&neighbours, 8, MemberState { ahead: 5, ..WAITS });
        front.update(HOLDS, None);
        assert_eq!(place(9), Some((2, node(7))));
        front.released();
        assert_eq!(place(9), Some((6, "theirs".to_owned())), "it holds no more");
    }

    #[test]
    fn a_number_that_is_used_again_belongs_to_the_last_member() {
        let neighbours = Arc::new(Neighbours::default());
        let old = neighbours.join("/lock", "old-0000000007", WAITS, None).unwrap();
        let new = join(&neighbours, 7, WAITS);
        assert!(neighbours.listen("/lock", "old-0000000007", false).is_none());
        drop(old);
        assert!(neighbours.listen("/lock", &node(7), false).is_some());
        drop(new);
        assert!(neighbours.queues().is_empty());
    }
}
