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
    /// The number of the last one that joined.
    last: i32,
    /// From this key on, the numbers are in the order of the keys, and the nodes of those that left are deleted. Only these members
    /// are counted.
    counted_from: u64,
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

    /// Returns the place of the contender with this key and number, if it follows from what the foremost or the nearest members
    /// know of theirs. Between them, each number must be one of this session: only a listing shows whether a contender of another
    /// session is still there.
    fn place(&self, key: u64, number: i32) -> Option<QueuePlace> {
        let is_apart = |(other, member): &(u64, Member)| {
            let numbers = u64::try_from(number.wrapping_sub(member.sequence));
            *other < self.counted_from || numbers != Ok(key - other)
        };
        let before = self.members.partition_point(|(other, _)| *other < key);
        let until = self.members.partition_point(|(other, _)| *other <= key);
        // The later a member came, the fewer numbers are between.
        let from = self.members.partition_point(|other| other.0 < key && is_apart(other));
        let mut known = (from..until).zip(self.members.range(from..until)).filter(|(_, (_, it))| it.released.is_none());
        let bases = known.next().into_iter().chain(known.rev().take(2));
        let ahead = bases.filter_map(|(at, (_, base))| Some(base.state.ahead? + (before - at))).min()?;
        let foremost = self.foremost()?;
        let first = if foremost.state.holds { Some(&foremost.node) } else { self.first.as_ref() };
        Some(QueuePlace { ahead, first: first?.clone(), front: None, blocks_first: None })
    }

    /// Returns the place of a contender that has this number and has not joined.
    fn next_place(&self, number: i32) -> Option<QueuePlace> {
        self.place(self.joined, number).filter(|_| number.wrapping_sub(self.last) > 0)
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
    /// At most so many contenders are ahead of it, if it knows that.
    pub(crate) ahead: Option<usize>,
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
        if sequence.wrapping_sub(queue.last) <= 0 {
            // The parent was created again, a writer reads on with the same number, or a task was faster than the one before.
            queue.counted_from = key;
        }
        (queue.joined, queue.last) = (key + 1, sequence);
        queue.saw(first);
        queue.numbers.insert(sequence, key);
        let member = Member { node: node.to_owned(), sequence, state, released: None, waiters: Vec::new() };
        if queue.members.is_empty() {
            // Most locks have one contender of this process.
            queue.members.reserve_exact(1);
        }
        queue.members.push_back((key, member));
        let (node, is_deleted) = (node.to_owned(), false);
        Some(Membership { neighbours: self.clone(), path: path.to_owned(), node, key, state, is_deleted })
    }

    /// Returns the place of the contender that has this node and has joined, if the contenders of this session know it. At most so
    /// many are ahead.
    pub(crate) fn place(&self, path: &str, node: &str) -> Option<QueuePlace> {
        let (queues, number) = (self.queues(), Sequence::of_node(node)?.get());
        let queue = queues.get(path)?;
        queue.place(*queue.numbers.get(&number)?, number)
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
            Some(Arrival::Behind { name, place: queue.next_place(own) })
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
    is_deleted: bool,
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
    pub(crate) fn deleted(mut self) {
        self.is_deleted = true;
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
        if !self.is_deleted {
            // Its node may be there for a while.
            queue.counted_from = queue.joined;
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

    const WAITS: MemberState = MemberState { ahead: Some(1), holds: false, watches_itself: false, knows_first: false };
    const HOLDS: MemberState = MemberState { ahead: Some(0), holds: true, watches_itself: true, knows_first: false };

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
        let far = MemberState { ahead: Some(4), ..WAITS };
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
        let unknown = MemberState { ahead: None, ..WAITS };
        let mut front = neighbours.join("/lock", &node(7), unknown, None).unwrap();
        let place = |number| match neighbours.enter("/lock").arrival(&node(number)) {
            Arrival::Behind { place, .. } => place.map(|place| (place.ahead, place.first)),
            other => panic!("{other:?}"),
        };
        assert_eq!(place(8), None);
        front.update(MemberState { ahead: Some(4), knows_first: true, ..WAITS }, Some("theirs"));
        assert_eq!(place(8), Some((5, "theirs".to_owned())));
        let _behind = join(&neighbours, 8, MemberState { ahead: Some(5), ..WAITS });
        front.update(HOLDS, None);
        assert_eq!(place(9), Some((2, node(7))));
        front.released();
        assert_eq!(place(9), Some((6, "theirs".to_owned())), "it holds no more");
    }

    /// The numbers of contenders that have left say nothing about how many are ahead.
    #[test]
    fn contenders_are_counted_and_not_their_numbers() {
        let neighbours = Arc::new(Neighbours::default());
        let ahead_of = |number| neighbours.place("/lock", &node(number)).map(|place| place.ahead);
        let unknown = MemberState { ahead: None, ..WAITS };
        let _holder = join(&neighbours, 7, HOLDS);
        (8..1_008).for_each(|number| join(&neighbours, number, unknown).deleted());
        let mut waiters: Vec<_> = (1_008..1_012).map(|number| join(&neighbours, number, unknown)).collect();
        assert_eq!(ahead_of(1_011), Some(4));
        waiters.remove(1).deleted();
        assert_eq!((ahead_of(1_008), ahead_of(1_011)), (Some(1), Some(3)));
        // Another session had this number.
        let mut listed = join(&neighbours, 1_013, unknown);
        let behind = join(&neighbours, 1_014, unknown);
        assert_eq!((ahead_of(1_011), ahead_of(1_013), ahead_of(1_014)), (Some(3), None, None));
        listed.update(MemberState { ahead: Some(5), ..WAITS }, None);
        assert_eq!((ahead_of(1_013), ahead_of(1_014)), (Some(5), Some(6)));
        drop(listed);
        assert_eq!((ahead_of(1_011), ahead_of(1_014)), (None, None), "its node may be there");
        drop(behind);
    }

    #[test]
    fn numbers_that_are_out_of_order_are_not_counted() {
        let neighbours = Arc::new(Neighbours::default());
        let ahead_of = |number| neighbours.place("/lock", &node(number)).map(|place| place.ahead);
        let unknown = MemberState { ahead: None, ..WAITS };
        let _holder = join(&neighbours, 7, HOLDS);
        let (_faster, mut slower) = (join(&neighbours, 9, unknown), join(&neighbours, 8, unknown));
        let _next = join(&neighbours, 10, unknown);
        assert_eq!((ahead_of(8), ahead_of(10)), (None, None));
        slower.update(MemberState { ahead: Some(1), ..WAITS }, None);
        assert_eq!((ahead_of(8), ahead_of(10)), (Some(1), None), "the number between the two may be anybody's");
        let _last = join(&neighbours, 11, MemberState { ahead: Some(4), ..WAITS });
        assert_eq!(ahead_of(11), Some(4));
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
