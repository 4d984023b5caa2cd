//! The contenders of one session in the queue of one lock.
//!
//! A contender learns from the others of its session what it would otherwise have to ask the servers: which node comes right
//! before its own, how many contenders are ahead, and that the contender that it waits for has released. So a lock passes from
//! task to task of one process without a listing for each of them, and without waiting for a delete.
//!
//! If contenders of other sessions may be between, a newcomer still does not list at once. It waits behind the last waiter of its
//! session, and the next listing of any waiter of this session serves all of them.
//!
//! [`LocalQueue`] only keeps what the contenders report of themselves. Their driver reports each contender after it has carried
//! out its commands, and passes on the signals that the contender then has.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::protocol::{Arrival, Event, Listing, QueuePlace};
use crate::{Contender, Sequence};

/// Which contender of a [`LocalQueue`] is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalKey(u64);

/// What a contender shows to the others of its session: see [`Contender::local_state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalState<'c> {
    /// Its node. `None` while it has none, or if its discipline has no single contender to wait for.
    pub node: Option<&'c str>,
    /// Without a node: a node that it had certainly exists no more.
    pub deleted: bool,
    /// At most so many contenders are ahead of it, if it knows that.
    pub ahead: Option<usize>,
    /// It holds the lock.
    pub holds: bool,
    /// It has released, and the next one may hold before its node is deleted: see [`Event::Release`].
    pub released: bool,
    /// It watches its node, so it would know that the node was deleted.
    pub watches_itself: bool,
    /// The first node of the queue, if it knows that.
    pub first: Option<&'c str>,
    /// The node of another contender whose end it waits for.
    pub waits_for: Option<&'c str>,
    /// It has listed nothing yet, and contenders of other sessions may be between that node and its own.
    pub deferred: bool,
}

impl Contender {
    /// What the other contenders of its session may know of this one.
    pub fn local_state(&self) -> LocalState<'_> {
        let place = self.place();
        // A reader holds beside the readers ahead of it.
        let ahead = if self.is_alone() { Some(0) } else { place.map(|place| place.ahead) };
        LocalState {
            node: self.node().filter(|_| self.discipline().waits_for_one()),
            deleted: self.has_no_node(),
            ahead,
            holds: self.holds(),
            released: self.has_passed_on(),
            watches_itself: self.watches_itself(),
            first: place.map(|place| &*place.first),
            waits_for: self.waits_for(),
            deferred: self.is_deferred(),
        }
    }
}

/// The contenders of one session in the queue of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocalQueue {
    /// How many wait for the reply to their creates.
    entering: usize,
    /// Those that have a node, in the order of the replies. Most leave from the front, where a removal is cheap.
    entries: VecDeque<(LocalKey, LocalEntry)>,
    /// The last entry that has each number, by the number. Most come at the end and leave from the front.
    numbers: VecDeque<(i32, LocalKey)>,
    /// How many have joined.
    joined: u64,
    /// The number of the last one that joined.
    last: i32,
    /// Places are counted among the entries from this key on: their numbers are in the order of their keys, and the node of each
    /// contender that left is deleted.
    counted_from: u64,
    /// The first of the queue, as an entry last saw it.
    first: Option<String>,
    /// The entries that a listing of another one is to serve.
    deferred: BTreeSet<LocalKey>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LocalEntry {
    node: String,
    sequence: i32,
    ahead: Option<usize>,
    /// `ahead`, or a bound: that of the contender it waits for, plus the numbers between the two, even of contenders that left.
    most_ahead: Option<usize>,
    holds: bool,
    watches_itself: bool,
    /// Set once it has held alone and released: whether it watched its node until then.
    released: Option<bool>,
    /// The entries that wait for this one.
    waiters: Vec<LocalKey>,
    wait: Option<LocalWait>,
    /// A listing of another entry, sent when this one had its node.
    listing: Option<Arc<Listing>>,
}

impl LocalEntry {
    /// Returns how many can be ahead of a later node with this number, if that is known.
    fn most_ahead_of(&self, number: i32) -> Option<usize> {
        self.most_ahead?.checked_add(usize::try_from(number.wrapping_sub(self.sequence)).ok()?)
    }
}

/// The wait of an entry for another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LocalWait {
    on: LocalKey,
    /// The other one's node.
    node: String,
    /// Set once the other one has released: whether it watched its node until then.
    released: Option<bool>,
    /// Set once the other one no longer has this node: whether the node is certainly deleted.
    ended: Option<bool>,
}

impl LocalQueue {
    /// Whether no contender is in the queue or about to enter.
    pub fn is_empty(&self) -> bool {
        self.entering == 0 && self.entries.is_empty()
    }

    /// Counts a contender that sends its create, until [`LocalQueue::entered`]. Returns whether the contender leaves out its listing:
    /// `alone` of [`Command::Enter`](crate::Command::Enter) allows that, and another contender of this session is about to enter, or
    /// is in the queue and has not released.
    pub fn enter(&mut self, alone: bool) -> bool {
        let company = self.entering > 0 || self.foremost().is_some();
        self.entering += 1;
        alone && company
    }

    /// The create was answered, or never will be.
    pub fn entered(&mut self) {
        self.entering -= 1;
    }

    /// Returns what the number of a new node shows: a contender of this session has the number right before it, or an earlier number.
    pub fn arrival(&self, node: &str) -> Arrival {
        let Some(own) = Sequence::of_node(node).map(Sequence::get) else { return Arrival::Unknown };
        self.right_behind(own).or_else(|| self.further_behind(own)).unwrap_or(Arrival::Unknown)
    }

    /// `None` if the contender right ahead holds and does not watch its node: it would not notice that the node was deleted.
    fn right_behind(&self, own: i32) -> Option<Arrival> {
        let next = self.entry(self.numbered(own.wrapping_sub(1))?)?;
        let known = next.released.is_none() && (next.watches_itself || !next.holds);
        let name = known.then(|| next.node.clone())?;
        // Only the last number has no other behind it.
        let place = self.place_at(self.joined, own).filter(|_| own.wrapping_sub(self.last) > 0);
        Some(Arrival::AfterLocal { name, place })
    }

    /// `None` if the last contender holds: a newcomer that lists only at that release might set its watch too late.
    fn further_behind(&self, own: i32) -> Option<Arrival> {
        let (_, last) = self.entries.back()?;
        let waits = last.released.is_none() && !last.holds && own.wrapping_sub(last.sequence) > 0;
        waits.then(|| Arrival::BehindLocal { name: last.node.clone(), most_ahead: last.most_ahead_of(own) })
    }

    /// Returns the place of an entry, if the entries know it. At most so many are ahead.
    pub fn place(&self, key: LocalKey) -> Option<QueuePlace> {
        self.place_at(key.0, self.entry(key)?.sequence)
    }

    /// Takes in the state of a contender. `key` is what its last report returned. Returns its key, a new one if its node is new.
    ///
    /// `woken` gets the entries that have new signals.
    pub fn report(
        &mut self,
        key: Option<LocalKey>,
        state: &LocalState<'_>,
        woken: &mut Vec<LocalKey>,
    ) -> Option<LocalKey> {
        // While a contender leaves, its place is what it was.
        let before = key.and_then(|key| self.entry(key)).and_then(|entry| entry.ahead);
        let is_same = |key: &LocalKey| self.entry(*key).is_some_and(|entry| Some(&*entry.node) == state.node);
        let key = match key.filter(is_same) {
            Some(key) => key,
            None => {
                // One that goes on under another name leaves first.
                key.into_iter().for_each(|key| self.remove(key, state.deleted, woken));
                self.join(state.node?)?
            }
        };
        if state.first.is_some() && self.first.as_deref() != state.first {
            self.first = state.first.map(str::to_owned);
        }
        let entry = self.entry_mut(key)?;
        entry.ahead = state.ahead.or(before);
        (entry.holds, entry.watches_itself) = (state.holds, state.watches_itself);
        if state.released && entry.released.is_none() {
            self.release(key, woken);
        }
        let entry = self.entry_mut(key)?;
        if !state.deferred {
            entry.listing = None;
            self.deferred.remove(&key);
        } else if entry.listing.is_none() {
            self.deferred.insert(key);
        }
        let entry = self.entry_mut(key)?;
        if entry.wait.as_ref().map(|wait| &*wait.node) != state.waits_for {
            self.stop_waiting(key);
            self.wait(key, state.waits_for);
        }
        let entry = self.entry(key)?;
        let bound = || self.entry(entry.wait.as_ref()?.on)?.most_ahead_of(entry.sequence);
        let most_ahead = entry.ahead.or_else(bound);
        self.entry_mut(key)?.most_ahead = most_ahead;
        Some(key)
    }

    /// Returns the node that an entry waits for, if it is of this queue. Then the entry needs no watch on it.
    pub fn hears_of(&self, key: LocalKey) -> Option<&str> {
        self.entry(key)?.wait.as_ref().map(|wait| &*wait.node)
    }

    /// Those that wait for this entry may go on before its node is deleted.
    fn release(&mut self, key: LocalKey, woken: &mut Vec<LocalKey>) {
        let Some(entry) = self.entry_mut(key) else { return };
        let watched = entry.watches_itself;
        entry.released = Some(watched);
        for waiter in entry.waiters.clone() {
            if let Some(wait) = self.wait_of(waiter) {
                wait.released = Some(watched);
                woken.push(waiter);
            }
        }
    }

    /// The contender of this entry has ended, and its node may be there for a while.
    pub fn leave(&mut self, key: LocalKey, woken: &mut Vec<LocalKey>) {
        self.remove(key, false, woken);
        // Nothing wakes it any more.
        woken.push(key);
    }

    fn remove(&mut self, key: LocalKey, deleted: bool, woken: &mut Vec<LocalKey>) {
        self.stop_waiting(key);
        self.deferred.remove(&key);
        let Some((_, left)) = self.position(key).and_then(|at| self.entries.remove(at)) else { return };
        if let Ok(at) = self.number(left.sequence)
            && self.numbers[at].1 == key
        {
            self.numbers.remove(at);
        }
        if !deleted {
            self.counted_from = self.joined;
        }
        for waiter in left.waiters {
            if let Some(wait) = self.wait_of(waiter) {
                wait.ended = Some(deleted);
                woken.push(waiter);
            }
        }
    }

    /// The key of the next one that joins. A listing that is sent now shows the nodes of all that have smaller keys.
    pub fn next_key(&self) -> LocalKey {
        LocalKey(self.joined)
    }

    /// An entry has listed the queue, when [`LocalQueue::next_key`] was `before`. The listing also serves those that have listed nothing.
    pub fn listed(&mut self, before: LocalKey, listing: &Listing, woken: &mut Vec<LocalKey>) {
        let later = self.deferred.split_off(&before);
        let served = std::mem::replace(&mut self.deferred, later);
        if served.is_empty() {
            return;
        }
        let listing = Arc::new(listing.clone());
        for key in served {
            if let Some(entry) = self.entry_mut(key) {
                entry.listing = Some(listing.clone());
                woken.push(key);
            }
        }
    }

    /// Whether an entry has a signal.
    pub fn has_signal(&self, key: LocalKey) -> bool {
        let Some(entry) = self.entry(key) else { return false };
        let hears = |wait: &LocalWait| wait.released.is_some() || wait.ended.is_some();
        entry.listing.is_some() || entry.wait.as_ref().is_some_and(hears)
    }

    /// Takes what an entry hears of the others: [`Event::ListedByLocal`], and [`Event::Released`] or [`Event::Ended`] of the one that it
    /// waits for.
    ///
    /// A waiter that still waits after the release, for example because readers hold beside the other one, hears of its end too.
    pub fn take_signal(&mut self, key: LocalKey) -> Option<Event> {
        let entry = self.entry_mut(key)?;
        if let Some(listing) = entry.listing.take() {
            return Some(Event::ListedByLocal(listing));
        }
        let wait = entry.wait.as_mut()?;
        if let Some(watched) = wait.released.take() {
            return Some(Event::Released { name: wait.node.clone(), watched });
        }
        let deleted = wait.ended?;
        entry.wait.take().map(|wait| Event::Ended { name: wait.node, deleted })
    }

    fn join(&mut self, node: &str) -> Option<LocalKey> {
        let sequence = Sequence::of_node(node)?.get();
        let key = LocalKey(self.joined);
        if sequence.wrapping_sub(self.last) <= 0 {
            // The parent was created again, a writer reads on with the same number, or a task was faster than the one before.
            self.counted_from = key.0;
        }
        (self.joined, self.last) = (key.0 + 1, sequence);
        if self.entries.is_empty() {
            // Most locks have one contender of this process.
            self.entries.reserve_exact(1);
            self.numbers.reserve_exact(1);
        }
        match self.number(sequence) {
            Ok(at) => self.numbers[at].1 = key,
            Err(at) => self.numbers.insert(at, (sequence, key)),
        }
        let entry = LocalEntry {
            node: node.to_owned(),
            sequence,
            ahead: None,
            most_ahead: None,
            holds: false,
            watches_itself: false,
            released: None,
            waiters: Vec::new(),
            wait: None,
            listing: None,
        };
        self.entries.push_back((key, entry));
        Some(key)
    }

    /// The entry waits for the one that has this node, if there is one.
    fn wait(&mut self, key: LocalKey, node: Option<&str>) {
        let Some(on) = node.and_then(|node| self.named(node)) else { return };
        let Some(other) = self.entry_mut(on) else { return };
        other.waiters.push(key);
        let wait = LocalWait { on, node: other.node.clone(), released: other.released, ended: None };
        if let Some(entry) = self.entry_mut(key) {
            entry.wait = Some(wait);
        }
    }

    fn stop_waiting(&mut self, key: LocalKey) {
        let Some(wait) = self.entry_mut(key).and_then(|entry| entry.wait.take()) else { return };
        if let Some(other) = self.entry_mut(wait.on)
            && let Some(at) = other.waiters.iter().position(|waiter| *waiter == key)
        {
            other.waiters.swap_remove(at);
        }
    }

    fn position(&self, key: LocalKey) -> Option<usize> {
        self.entries.binary_search_by_key(&key, |(key, _)| *key).ok()
    }

    fn number(&self, number: i32) -> Result<usize, usize> {
        self.numbers.binary_search_by_key(&number, |(number, _)| *number)
    }

    /// Returns the last entry that has this number.
    fn numbered(&self, number: i32) -> Option<LocalKey> {
        Some(self.numbers[self.number(number).ok()?].1)
    }

    fn entry(&self, key: LocalKey) -> Option<&LocalEntry> {
        Some(&self.entries[self.position(key)?].1)
    }

    fn entry_mut(&mut self, key: LocalKey) -> Option<&mut LocalEntry> {
        let at = self.position(key)?;
        Some(&mut self.entries[at].1)
    }

    fn wait_of(&mut self, key: LocalKey) -> Option<&mut LocalWait> {
        self.entry_mut(key)?.wait.as_mut()
    }

    /// Returns the entry that has this node.
    fn named(&self, node: &str) -> Option<LocalKey> {
        let key = self.numbered(Sequence::of_node(node)?.get())?;
        Some(key).filter(|key| self.entry(*key).is_some_and(|entry| entry.node == node))
    }

    /// Returns the first entry that has not released.
    fn foremost(&self) -> Option<&LocalEntry> {
        self.entries.iter().map(|(_, entry)| entry).find(|entry| entry.released.is_none())
    }

    /// Returns the place of the contender with this key and number, counted from the place of an entry ahead of it: if node 5 has 3
    /// contenders ahead and node 6 has left, node 7 has 4. Each number between the two must be of this session, because only a listing
    /// shows whether a node of another session still exists.
    fn place_at(&self, key: u64, number: i32) -> Option<QueuePlace> {
        let is_apart = |(other, entry): &(LocalKey, LocalEntry)| {
            let numbers = u64::try_from(number.wrapping_sub(entry.sequence));
            other.0 < self.counted_from || numbers != Ok(key - other.0)
        };
        let before = self.entries.partition_point(|(other, _)| other.0 < key);
        let until = self.entries.partition_point(|(other, _)| other.0 <= key);
        // The later an entry came, the fewer numbers are between.
        let from = self.entries.partition_point(|other| other.0.0 < key && is_apart(other));
        let mut known = (from..until).zip(self.entries.range(from..until)).filter(|(_, (_, it))| it.released.is_none());
        let bases = known.next().into_iter().chain(known.rev().take(2));
        let ahead = bases.filter_map(|(at, (_, base))| Some(base.ahead? + (before - at))).min()?;
        let foremost = self.foremost()?;
        let first = if foremost.holds { Some(&foremost.node) } else { self.first.as_ref() };
        Some(QueuePlace { ahead, first: first?.clone(), front: None, blocks_first: None })
    }
}

#[cfg(test)]
mod tests;
