//! Follows a tree of locks from events and reads, and says what happened. Without I/O and without a clock.
//!
//! Events of a watch are complete and in order. A listing is older or newer than some of them. Of a node that was created or
//! deleted since the request for the listing, the events count; of all other nodes, the listing counts.

mod ends;
mod lock;
mod state;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ends::{Ending, Unexplained};
use lock::{Entry, LastChange, Lock, ReadState};
use lockkeeper::admin::{Broken, ContenderInfo, SessionId, TokenEpoch, Walk, is_of_records};
use lockkeeper::contest::{OwnNode, child, node_of, own_place_of};
use lockkeeper_core::{ForeignSemaphore, HOLDER_MARKER, LastRelease, ReleaseRecord, Sequence, Tombstone};
use lockkeeper_session::ensemble::{Children, Node, OWN_TREE, TreeChange, above, is_below};
use lockkeeper_session::text::moment;
pub use state::{Since, Totals};

use super::fact::{End, Fact, GapCause, Moment, What};
use super::records::RecordedEnd;

/// How long the end of a hold waits for evidence of how it ended: the other events of the same transaction, and reads.
const SETTLE: Duration = Duration::from_millis(100);

/// How many ends wait for a record of their owner, and how many records for an end.
const MAX_UNEXPLAINED: usize = 1_024;

/// How much a tracker keeps.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum paths of locks. Further ones are left out.
    pub locks: usize,
    /// Maximum contenders. Further ones are left out.
    pub contenders: usize,
}

impl Default for Limits {
    /// 100 000 of each: at most some hundred megabytes.
    fn default() -> Self {
        Limits { locks: 100_000, contenders: 100_000 }
    }
}

/// A node that the tracker needs to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The path of the node.
    pub path: String,
    what: WantedNode,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum WantedNode {
    Contender { lock: Arc<str>, name: String, id: u64 },
    Lock(Arc<str>),
    Marker { lock: Arc<str>, id: u64 },
}

impl From<WantedNode> for Wanted {
    fn from(what: WantedNode) -> Self {
        let path = match &what {
            WantedNode::Contender { lock, name, .. } => node_of(lock, name),
            WantedNode::Lock(lock) => lock.to_string(),
            WantedNode::Marker { lock, .. } => node_of(lock, HOLDER_MARKER),
        };
        Wanted { path, what }
    }
}

/// The locks of a tree, and what happened to them.
#[derive(Default)]
#[must_use = "a tracker does nothing until it is fed"]
pub struct Tracker {
    root: Arc<str>,
    /// Paths below the root that are left out, with all below them.
    excluded: Vec<String>,
    limits: Limits,
    locks: BTreeMap<Arc<str>, Lock>,
    contenders: usize,
    /// How many contenders each session has.
    sessions: HashMap<SessionId, usize>,
    ending: Vec<Ending>,
    /// Entries of the journal about contenders that were removed, by the path of the node, for as long as their ends may wait for them.
    broken: Vec<(String, End, Moment)>,
    /// What owners have recorded about the ends of their holds, and ends that nothing has explained yet. The newest of each.
    recorded: VecDeque<RecordedEnd>,
    unexplained: VecDeque<Unexplained>,
    wanted: Vec<Wanted>,
    facts: Vec<Fact>,
    /// The nodes that were created or deleted since a walk began.
    touched: Option<HashSet<String>>,
    /// Since when changes are not seen, and why.
    gap: Option<(Moment, GapCause)>,
    /// All changes until then were seen.
    proved: Option<Moment>,
    has_walked: bool,
    left_out: u64,
    unreadable: usize,
    /// The epoch of the tokens; 0 where it cannot be read.
    pub(super) epoch: TokenEpoch,
    next_id: u64,
    dirty: HashSet<Arc<str>>,
    /// The locks whose holders must be decided again.
    unjudged: Vec<Arc<str>>,
}

impl Tracker {
    /// Creates a tracker of the tree below `root`, which may be `/`. It knows nothing until its first [`Tracker::end_walk`].
    pub fn new(root: &str, limits: Limits) -> Self {
        Tracker { root: root.into(), limits, ..Tracker::default() }
    }

    /// Leaves out what is at and below these paths.
    pub fn excluding(self, excluded: Vec<String>) -> Self {
        Tracker { excluded, ..self }
    }

    /// Takes the facts since the last call.
    pub fn take_facts(&mut self) -> Vec<Fact> {
        self.judge_all();
        std::mem::take(&mut self.facts)
    }

    /// Takes the reads that are needed. Each must be answered ([`Tracker::answer`]), or all become invalid with a gap.
    pub fn take_wanted(&mut self) -> Vec<Wanted> {
        std::mem::take(&mut self.wanted)
    }

    /// Takes the paths of the locks that have changed since the last call.
    pub fn take_changed(&mut self) -> HashSet<Arc<str>> {
        std::mem::take(&mut self.dirty)
    }

    /// Notes a change that the watch reports.
    pub fn change(&mut self, path: &str, change: TreeChange, at: Moment) {
        if !self.is_inside(path) {
            return;
        }
        // A node that was written may not be known: that it exists is what the listing says.
        if let Some(touched) = self.touched.as_mut().filter(|_| change != TreeChange::Written) {
            touched.insert(path.to_owned());
        }
        self.count(path, change);
        match (self.place(path), change) {
            (Some((lock, name)), TreeChange::Created) => self.enter(&lock, name, at, false),
            (Some((lock, name)), TreeChange::Deleted) => self.leave(&lock, &name, at, false),
            (Some((lock, name)), TreeChange::Written) => self.written(&lock, &name),
            (None, TreeChange::Created) => self.appear(path, true),
            (None, TreeChange::Deleted) => self.disappear(path, at),
            (None, TreeChange::Written) => self.want_lock(path),
        }
    }

    /// Notes at the node above that a node was created or deleted below it.
    fn count(&mut self, path: &str, change: TreeChange) {
        let above = above(path);
        if change != TreeChange::Written
            && let Some((above, _)) = self.locks.get_key_value(above)
        {
            self.dirty.insert(above.clone());
        }
        let Some(found) = self.locks.get_mut(above) else { return };
        match change {
            TreeChange::Created => {
                found.created = found.created.map(|created| created.saturating_add(1));
                found.changed = LastChange::Created(path.into());
            }
            TreeChange::Deleted => found.changed = LastChange::Other,
            TreeChange::Written => {}
        }
    }

    /// Notes what a listing says of the node at a path beside the names. Of nodes with events since the request for it, the events count.
    fn count_listed(&mut self, path: &str, children: &Children, touched: &[&str]) {
        let name = |node: &str| node.rsplit('/').next().unwrap_or_default().to_owned();
        let is_late = |node: &&&str| self.exists(node) && !children.names.contains(&name(node));
        let count = |nodes: usize| children.created.saturating_add(u32::try_from(nodes).unwrap_or(u32::MAX));
        let late = count(touched.iter().filter(is_late).count());
        // The number in a name is the count before the node's creation. It also counts those that were deleted meanwhile.
        let numbers = touched.iter().filter_map(|node| u32::try_from(Sequence::split(&name(node))?.1.get()).ok());
        let counted = numbers.filter_map(|number| number.checked_add(1)).filter(|sum| *sum <= count(touched.len()));
        let created = counted.max().unwrap_or(0).max(late);
        let Some(found) = self.locks.get_mut(path) else { return };
        found.created = Some(created);
        found.since = moment(children.ctime_ms);
        if touched.is_empty() {
            found.changed = LastChange::By(children.changed);
        }
    }

    /// Whether a node is known to exist.
    fn exists(&self, path: &str) -> bool {
        let has = |(lock, name): (Arc<str>, String)| {
            self.locks.get(&lock).is_some_and(|lock| lock.entries.contains_key(&name))
        };
        self.locks.get(path).is_some_and(|lock| lock.exists) || self.place(path).is_some_and(has)
    }

    /// Notes that all changes until this moment were seen.
    pub fn prove(&mut self, until: Moment) {
        self.proved = Some(until);
    }

    /// Notes that changes are not seen from now on. A server that was stopped, or cut off from the others, has sent nothing for some time
    /// before its connection ended, so the gap begins at the last moment that was proved.
    pub fn lose(&mut self, at: Moment, cause: GapCause) {
        let since = self.proved.map_or(at, |proved| proved.min(at));
        self.gap.get_or_insert((since, cause));
        self.touched = None;
        self.forget_reads();
    }

    /// Answers may be missing from now on. The next walk asks for everything that is not known.
    fn forget_reads(&mut self) {
        self.wanted.clear();
        for lock in self.locks.values_mut() {
            lock.forget_reads();
        }
        self.ending.iter_mut().for_each(|ending| ending.awaits = false);
    }

    /// Whether the tree may have nodes that are not known.
    fn is_blind(&self) -> bool {
        !self.has_walked || self.gap.is_some() || self.touched.is_some()
    }

    /// Since when changes are not seen, and why, if they are not.
    pub fn gap(&self) -> Option<(Moment, GapCause)> {
        self.gap.clone()
    }

    /// How often a lock or a contender was left out, because there were too many.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether it has seen the whole tree once.
    pub fn has_walked(&self) -> bool {
        self.has_walked
    }

    /// Notes that a walk over the tree begins. The watch must be set before it. Earlier wanted reads need no answer.
    pub fn begin_walk(&mut self) {
        self.forget_reads();
        self.touched = Some(HashSet::new());
    }

    /// Notes what a walk has found. This ends a gap.
    pub fn end_walk(&mut self, walk: &Walk, at: Moment) {
        // While only a part of it is applied, nothing is decided.
        let touched = self.touched.replace(HashSet::new()).unwrap_or_default();
        let has_walked = self.has_walked;
        if let Some((since, cause)) =
            self.gap.take().filter(|(_, cause)| has_walked || cause.is_before_the_first_walk())
        {
            let what = What::Gap { root: self.root.clone(), since, cause };
            self.facts.push(Fact { at, what, about: false });
        }
        self.gap = None;
        self.has_walked = true;
        self.unreadable = walk.unreadable.len();
        let mut present = HashSet::new();
        for (parent, children) in &walk.listed {
            present.extend(children.names.iter().map(|name| child(parent, name)));
        }
        let is_hidden = |path: &str| walk.unreadable.iter().any(|node| is_below(path, &node.path));
        let gone = |path: &str| !present.contains(path) && !touched.contains(path) && !is_hidden(path);
        let (mut left, mut disappeared) = (Vec::new(), Vec::new());
        for (path, lock) in &self.locks {
            let names = lock.names().filter(|name| gone(&node_of(path, name)));
            left.extend(names.map(|name| (path.clone(), name.to_owned())));
            if lock.exists && **path != *self.root && gone(path) {
                disappeared.push(path.clone());
            }
        }
        for (lock, name) in left {
            self.leave(&lock, &name, at, true);
        }
        for path in disappeared.into_iter().rev() {
            self.disappear(&path, at);
        }
        if !walk.listed.is_empty() {
            self.appear(&self.root.clone(), false);
        }
        let mut found: Vec<_> = present.into_iter().filter(|path| !touched.contains(path)).collect();
        found.sort_unstable();
        for path in found {
            if !self.is_inside(&path) {
                continue;
            }
            match self.place(&path) {
                Some((lock, name)) => self.enter(&lock, name, at, true),
                None => self.appear(&path, false),
            }
        }
        // Only the touched nodes below this one are of interest.
        let mut touched_below: HashMap<&str, Vec<&str>> = HashMap::new();
        touched.iter().for_each(|node| touched_below.entry(above(node)).or_default().push(node));
        for (path, children) in &walk.listed {
            self.count_listed(path, children, touched_below.get(path.as_str()).map_or(&[], Vec::as_slice));
        }
        self.touched = None;
        for path in self.locks.keys().cloned().collect::<Vec<_>>() {
            self.judge(&path, at);
        }
        self.want_what_is_unknown();
    }

    /// Notes an entry of the journal of breaks.
    pub fn broke(&mut self, broken: &Broken, at: Moment) {
        let end = End::Broken { by: broken.by.to_string(), reason: broken.reason.clone() };
        self.broken.push((node_of(&broken.path, &broken.node), end, at));
    }

    /// Notes what an owner has recorded about the end of its hold. If the hold has ended before, that is a fact.
    pub fn recorded(&mut self, end: RecordedEnd, at: Moment) {
        let known = self.unexplained.iter().position(|hold| end.is_of(&hold.contender.lock, &hold.info));
        // Its records have changed too.
        if let Some((path, _)) = self.locks.get_key_value(end.path.as_str()) {
            self.dirty.insert(path.clone());
        }
        if let Some(hold) = known.and_then(|known| self.unexplained.remove(known)) {
            let what = What::Explained { contender: hold.contender, how: end.how };
            self.facts.push(Fact { at, what, about: false });
            return;
        }
        self.recorded.push_back(end);
        if self.recorded.len() > MAX_UNEXPLAINED {
            self.recorded.pop_front();
        }
    }

    /// Notes what a read of a wanted node returned; `None` if the node does not exist.
    pub fn answer(&mut self, wanted: &Wanted, node: Option<&Node>, at: Moment) {
        match &wanted.what {
            WantedNode::Contender { lock, name, id } => self.answer_contender(lock, name, *id, node, at),
            WantedNode::Marker { lock, id } => {
                if let Some(found) = self.locks.get_mut(lock)
                    && found.marker == Some(ReadState::Asked)
                    && found.marker_id == *id
                {
                    match node.map(|node| ContenderInfo::read(HOLDER_MARKER.to_owned(), node)) {
                        Some(info) => {
                            found.marker = Some(ReadState::Done);
                            found.known.insert(HOLDER_MARKER.to_owned(), info);
                        }
                        None => found.marker_has_gone(),
                    }
                    self.judge_again(lock, at);
                }
            }
            WantedNode::Lock(lock) => self.answer_lock(lock, node, at),
        }
    }

    /// Notes that a wanted node could not be read, although it may exist. Its contender stays unnamed.
    pub fn refuse(&mut self, wanted: &Wanted, at: Moment) {
        self.answer(wanted, None, at);
    }

    fn answer_contender(&mut self, lock: &Arc<str>, name: &str, id: u64, node: Option<&Node>, at: Moment) {
        let info = node.map(|node| ContenderInfo::read(name.to_owned(), node));
        if let Some(ending) = self.ending.iter_mut().find(|ending| ending.entry.id == id) {
            ending.awaits = false;
            ending.info = info.or_else(|| ending.info.take());
            return;
        }
        let Some(found) = self.locks.get_mut(lock) else { return };
        let Some(entry) = found.entries.get_mut(name).filter(|entry| entry.id == id) else { return };
        let is_first = entry.read != ReadState::Again && !entry.is_announced;
        // A contender has a session.
        let may_be_lock = |node: &&Node| is_first && node.owner.is_none();
        if let Some(node) = node.filter(may_be_lock).filter(|node| OwnNode::of(node).leased.is_some()) {
            return self.become_leased(lock, name, node, at);
        }
        let again = entry.read == ReadState::Again;
        entry.read = if again { ReadState::Asked } else { ReadState::Done };
        if let Some(mut info) = info {
            if entry.is_about && is_first {
                entry.entered = at.of_wall(info.since);
            }
            if !found.known.contains_key(name) && !info.session.is_none() {
                *self.sessions.entry(info.session).or_default() += 1;
            }
            // A request to release has replaced what the node of a foreign client said.
            if let Some(before) = found.known.remove(name).filter(|_| info.is_bare_request()) {
                info.described = before.described;
            }
            found.known.insert(name.to_owned(), info);
        }
        if again {
            self.wanted.push(WantedNode::Contender { lock: lock.clone(), name: name.to_owned(), id }.into());
        }
        self.announce(lock, name, at);
        self.judge_later(lock, at);
    }

    /// A node that is named like a contender, and is not announced yet, is a leased lock: its record says who holds it.
    fn become_leased(&mut self, lock: &Arc<str>, name: &str, node: &Node, at: Moment) {
        if let Some(found) = self.locks.get_mut(lock)
            && let Some(entry) = found.entries.remove(name)
        {
            found.tombstones -= usize::from(entry.is_tombstone);
            self.contenders -= 1;
            self.judge_later(lock, at);
            self.forget_if_unused(lock);
        }
        // Nothing was created below it.
        let is_new = node.pzxid == node.czxid;
        self.appear(&node_of(lock, name), is_new);
    }

    fn answer_lock(&mut self, lock: &Arc<str>, node: Option<&Node>, at: Moment) {
        let Some(found) = self.locks.get_mut(lock) else { return };
        let again = found.data == ReadState::Again;
        found.data = if again { ReadState::Asked } else { ReadState::Done };
        if again {
            self.wanted.push(WantedNode::Lock(lock.clone()).into());
        }
        found.own = node.map(OwnNode::of).unwrap_or_default();
        found.since = node.and_then(|node| moment(node.ctime_ms)).or(found.since);
        let record = node.filter(|node| !node.data.is_empty() && node.owner.is_none());
        let LastRelease { freed, .. } =
            record.map_or_else(LastRelease::default, |node| ReleaseRecord::last(&node.data, node.version));
        found.freed = freed.or(found.freed);
        let owner = found.own.leased.as_ref().and_then(|leased| leased.owner.clone());
        self.lease(lock, owner.as_ref(), at);
        self.judge_later(lock, at);
    }

    /// A node of this path is in the tree, and no side tree of the library.
    fn is_inside(&self, path: &str) -> bool {
        let is_root = *self.root == *path;
        let inside = &*self.root == "/" || is_root || is_below(path, &self.root);
        let mut ours = ["/zookeeper"].into_iter().chain(self.excluded.iter().map(String::as_str));
        inside && path != OWN_TREE && !is_of_records(path) && !ours.any(|ours| is_below(path, ours))
    }

    /// The lock and the name in its queue of a node that is named like a contender.
    fn place(&self, path: &str) -> Option<(Arc<str>, String)> {
        let exists = |path: &str| self.locks.get(path).is_some_and(|lock| lock.exists);
        if exists(path) {
            return None;
        }
        let has = |lock: &str, name: &str| self.locks.get(lock).is_some_and(|lock| lock.entries.contains_key(name));
        let own = own_place_of(path).filter(|_| *path != *self.root);
        // A semaphore may have been found to be one after its first contender came.
        let is_known = own.as_ref().is_some_and(|(lock, name)| has(lock, name));
        let of_semaphore = if is_known { None } else { ForeignSemaphore::place_of(path, exists) };
        let (lock, name) = of_semaphore.or(own)?;
        let lock = self.locks.get_key_value(lock.as_str()).map_or_else(|| lock.into(), |(known, _)| known.clone());
        Some((lock, name))
    }

    /// Returns the lock at a path, unless there are too many.
    fn lock(&mut self, path: &str) -> Option<&mut Lock> {
        if !self.locks.contains_key(path) {
            if self.locks.len() >= self.limits.locks {
                self.left_out += 1;
                return None;
            }
            self.locks.insert(path.into(), Lock::default());
        }
        self.locks.get_mut(path)
    }

    /// A contender's node was created, or was found if `is_about`.
    fn enter(&mut self, path: &Arc<str>, name: String, at: Moment, is_about: bool) {
        if self.contenders >= self.limits.contenders {
            self.left_out += 1;
            return;
        }
        let (id, is_blind) = (self.next_id, self.is_blind());
        let Some(lock) = self.lock(path) else { return };
        if name == HOLDER_MARKER {
            if lock.marker.is_none() {
                (lock.marker, lock.marker_id) = (Some(ReadState::Asked), id);
                lock.is_undecided = true;
                self.next_id += 1;
                self.wanted.push(WantedNode::Marker { lock: path.clone(), id }.into());
            }
            return;
        }
        if lock.entries.contains_key(&name) {
            return;
        }
        let is_tombstone = Tombstone::read(&name).is_some();
        let mut entry = Entry::new(id, at, is_about, is_tombstone);
        entry.is_placed = !is_blind;
        lock.entries.insert(name.clone(), entry);
        lock.tombstones += usize::from(is_tombstone);
        self.next_id += 1;
        self.contenders += 1;
        self.wanted.push(WantedNode::Contender { lock: path.clone(), name, id }.into());
        self.judge_later(path, at);
    }

    /// The data of a contender's node changed.
    fn written(&mut self, path: &Arc<str>, name: &str) {
        let Some(entry) = self.locks.get_mut(path).and_then(|lock| lock.entries.get_mut(name)) else { return };
        if entry.read == ReadState::Done {
            entry.read = ReadState::Asked;
            self.wanted.push(WantedNode::Contender { lock: path.clone(), name: name.to_owned(), id: entry.id }.into());
        } else {
            entry.read = ReadState::Again;
        }
    }

    /// A contender's node was deleted, or was not found any more if `is_about`.
    fn leave(&mut self, path: &Arc<str>, name: &str, at: Moment, is_about: bool) {
        let Some(lock) = self.locks.get_mut(path) else { return };
        if name == HOLDER_MARKER {
            lock.marker_has_gone();
            lock.known.remove(name);
            self.judge_again(path, at);
            self.forget_if_unused(path);
            return;
        }
        // It may have held the lock for a moment. While not all contenders are known, nobody knows that.
        self.judge_now(path);
        let is_about = is_about || self.is_blind();
        let Some(lock) = self.locks.get_mut(path) else { return };
        let Some(entry) = lock.entries.remove(name) else { return };
        let is_about = is_about || lock.is_undecided;
        lock.tombstones -= usize::from(entry.is_tombstone);
        if lock.alone.as_deref() == Some(name) {
            lock.alone = None;
        }
        let info = lock.known.remove(name);
        self.contenders -= 1;
        if let Some(info) = &info
            && let Some(count) = self.sessions.get_mut(&info.session)
        {
            *count -= 1;
            if *count == 0 {
                self.sessions.remove(&info.session);
            }
        }
        if !entry.is_tombstone {
            let awaits = entry.read == ReadState::Asked || entry.read == ReadState::Again;
            let (lock, name) = (path.clone(), name.to_owned());
            self.ending.push(Ending { lock, name, entry, info, awaits, at, is_about });
        }
        self.judge_later(path, at);
        self.forget_if_unused(path);
    }

    /// A node that is no contender exists. `is_new`: its creation was seen.
    fn appear(&mut self, path: &str, is_new: bool) {
        let Some(lock) = self.lock(path) else { return };
        if lock.exists {
            return;
        }
        lock.exists = true;
        lock.created = is_new.then_some(0);
        self.want_lock(path);
        if *path != *self.root
            && let Some(parent) = self.locks.get_mut(above(path))
        {
            parent.directories += 1;
        }
    }

    /// A node that is no contender was deleted.
    fn disappear(&mut self, path: &str, at: Moment) {
        let Some((path, lock)) = self.locks.get_key_value(path) else { return };
        if !lock.exists {
            return;
        }
        let path = path.clone();
        // Also a record without an owner was shown.
        self.dirty.insert(path.clone());
        self.lease(&path, None, at);
        if let Some(lock) = self.locks.get_mut(&path) {
            lock.exists = false;
            lock.data = ReadState::Done;
            lock.own = OwnNode::default();
            (lock.created, lock.since, lock.changed) = (None, None, LastChange::Other);
        }
        if *path != *self.root
            && let Some(parent) = self.locks.get_mut(above(&path))
        {
            parent.directories = parent.directories.saturating_sub(1);
        }
        self.forget_if_unused(&path);
    }

    fn forget_if_unused(&mut self, path: &str) {
        if self.locks.get(path).is_some_and(Lock::is_unused) {
            self.locks.remove(path);
        }
    }

    /// The data of a lock's node is not known, or has changed.
    fn want_lock(&mut self, path: &str) {
        let Some(lock) = self.locks.get_mut(path).filter(|lock| lock.exists) else { return };
        match lock.data {
            ReadState::Done => {
                lock.data = ReadState::Asked;
                self.wanted.push(WantedNode::Lock(path.into()).into());
            }
            ReadState::Asked => lock.data = ReadState::Again,
            ReadState::Again | ReadState::Lost => {}
        }
    }

    /// Asks again for what was not answered before a gap, and for what may have changed meanwhile.
    fn want_what_is_unknown(&mut self) {
        for (path, lock) in &mut self.locks {
            if lock.exists && lock.data == ReadState::Lost {
                lock.data = ReadState::Asked;
                self.wanted.push(WantedNode::Lock(path.clone()).into());
            }
            if lock.marker == Some(ReadState::Lost) {
                lock.marker = Some(ReadState::Asked);
                self.wanted.push(WantedNode::Marker { lock: path.clone(), id: lock.marker_id }.into());
            }
            for (name, entry) in lock.entries.iter_mut().filter(|(_, entry)| entry.read == ReadState::Lost) {
                entry.read = ReadState::Asked;
                let (name, id) = (name.clone(), entry.id);
                self.wanted.push(WantedNode::Contender { lock: path.clone(), name, id }.into());
            }
        }
    }
}
