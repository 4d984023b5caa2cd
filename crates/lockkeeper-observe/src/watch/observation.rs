//! What observers have seen: the state, the journal and the metrics.

#[cfg(feature = "http")]
pub(super) mod glance;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use lockkeeper::admin::LockInfo;
use lockkeeper_session::ensemble::TreeChange;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::fact::{Fact, GapCause, Moment, ObserverClock, What};
use super::journal::{Journal, JournalError};
use super::tracker::{Limits, Totals, Tracker};
use super::view::View;
use crate::deadlock::Deadlock;

/// Maximum notices that nobody has taken. Later ones are dropped, and counted.
const NOTICES: usize = 10_000;

/// How many facts between two looks for state that is out of date.
#[cfg(feature = "http")]
const FACTS_PER_CLEANUP: u64 = 10_000;

/// What an observation does with what it sees.
#[derive(Default)]
pub struct Options {
    /// Where the facts are written.
    pub journal: Option<Journal>,
    /// How much it keeps, for each tree.
    pub limits: Limits,
}

/// Something for a person or a program to know. See [`Observation::next_notice`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice {
    /// The whole tree and all its contenders were read for the first time.
    Started {
        /// The tree.
        root: Arc<str>,
        /// Its servers.
        servers: Arc<str>,
        /// What is there.
        totals: Totals,
    },
    /// Changes are not seen from now on.
    Lost {
        /// The tree.
        root: Arc<str>,
        /// Its servers.
        servers: Arc<str>,
        /// The cause.
        cause: GapCause,
    },
    /// Changes are seen again, and the tree was read again.
    Back {
        /// The tree.
        root: Arc<str>,
        /// Its servers.
        servers: Arc<str>,
        /// How long they were not seen.
        gap: std::time::Duration,
    },
    /// Locks or contenders are left out from now on, because there are too many.
    LeftOut {
        /// The tree.
        root: Arc<str>,
    },
    /// The journal cannot be written from now on.
    JournalFailed(JournalError),
    /// The journal can be written again.
    JournalWorks,
}

/// All locks as they are now.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// When, by the observer's clock, in milliseconds since 1970.
    pub at_ms: i64,
    /// The trees.
    pub trees: Vec<TreeState>,
    /// The locks that are in use, by path, with what was seen of each contender
    /// ([`ContenderInfo::observed`](lockkeeper::admin::ContenderInfo::observed)).
    pub locks: Vec<LockInfo>,
}

/// One tree of locks.
#[derive(Clone, Debug, Serialize)]
pub struct TreeState {
    /// Its root.
    pub root: Arc<str>,
    /// Its servers.
    pub servers: Arc<str>,
    /// Whether changes are seen now.
    pub connected: bool,
    /// Numbers about its locks.
    pub totals: Totals,
}

/// What observers have seen. Cheap to clone: all clones are one.
///
/// An observer changes it. Programs read it ([`Observation::snapshot`]) and wait for changes ([`Observation::changes`]).
#[derive(Clone)]
pub struct Observation(Arc<Shared>);

struct Shared {
    clock: ObserverClock,
    state: Mutex<ObservationState>,
    /// A notice.
    noticed: Notify,
    version: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct ObservationState {
    pub(super) trees: Vec<TreeSeen>,
    journal: Option<Journal>,
    notices: VecDeque<Notice>,
    limits: Limits,
    #[cfg(feature = "http")]
    facts: u64,
    #[cfg(feature = "http")]
    metrics: super::metrics::Metrics,
    #[cfg(feature = "http")]
    recent: super::recent::Recent,
    deadlocks: Arc<[Deadlock]>,
    /// The jobs, by the root of their tree.
    #[cfg(feature = "http")]
    jobs: std::collections::BTreeMap<Arc<str>, Arc<super::jobs::Jobs>>,
}

#[derive(Default)]
pub(super) struct TreeSeen {
    root: Arc<str>,
    servers: Arc<str>,
    pub(super) tracker: Tracker,
    /// Whether all contenders that the last walk has found were read. Until then, a lock may seem to have no holder.
    pub(super) is_read: bool,
    /// The locks that have changed since a [`View`] has looked at them; `None` if there is no view.
    pub(super) unviewed: Option<HashSet<Arc<str>>>,
    has_started: bool,
    has_left_out: bool,
    blind_since: Option<Moment>,
    /// The first cause since the observer's start for which its changes are not seen, until they are.
    lost: Option<GapCause>,
}

impl TreeSeen {
    fn is_connected(&self) -> bool {
        self.tracker.has_walked() && self.tracker.gap().is_none()
    }

    fn state(&self) -> TreeState {
        TreeState {
            root: self.root.clone(),
            servers: self.servers.clone(),
            connected: self.is_connected(),
            totals: self.tracker.totals(),
        }
    }
}

/// The tree of one observer.
pub(super) struct Tree {
    observation: Observation,
    index: usize,
    root: Arc<str>,
}

impl Observation {
    /// Creates one that has seen nothing.
    pub fn new(options: Options) -> Self {
        let Options { journal, limits } = options;
        let state = ObservationState { journal, limits, ..ObservationState::default() };
        Observation(Arc::new(Shared {
            clock: ObserverClock::new(),
            state: Mutex::new(state),
            noticed: Notify::new(),
            version: watch::Sender::new(0),
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ObservationState> {
        self.0.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Tells those who wait for changes.
    fn has_changed(&self) {
        self.0.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    /// The time now, by its clock.
    pub fn now(&self) -> Moment {
        self.0.clock.now()
    }

    pub(super) fn add_tree(&self, root: &str, excluded: Vec<String>, servers: String) -> Tree {
        let mut state = self.lock();
        let mut tracker = Tracker::new(root, state.limits).excluding(excluded);
        // What happened since the last run was not seen.
        if let Some(last) = state.journal.as_ref().and_then(Journal::last_ms) {
            tracker.lose(self.now().of_wall_ms(last), GapCause::NotRunning);
        }
        let (root, servers): (Arc<str>, Arc<str>) = (root.into(), servers.into());
        state.trees.push(TreeSeen { root: root.clone(), servers, tracker, ..TreeSeen::default() });
        Tree { observation: self.clone(), index: state.trees.len() - 1, root }
    }

    /// Returns all locks as they are now.
    ///
    /// # Cost
    ///
    /// Goes through all locks that are known, and copies those with contenders. No request.
    pub fn snapshot(&self) -> Snapshot {
        let (state, now) = (self.lock(), self.now());
        let trees = state.trees.iter().map(TreeSeen::state);
        let mut locks: Vec<_> = state.trees.iter().flat_map(|tree| tree.tracker.locks(now)).collect();
        locks.sort_by(|one, other| one.path.cmp(&other.path));
        Snapshot { at_ms: now.wall_ms, trees: trees.collect(), locks }
    }

    /// Returns a [`View`] of the locks of the trees that it has. An observation has one view: with another one, the first
    /// misses changes.
    pub fn view(&self) -> View {
        for tree in &mut self.lock().trees {
            tree.unviewed = Some(tree.tracker.paths().cloned().collect());
        }
        View::new(self.clone())
    }

    /// Returns the roots of its trees, and whether their changes are seen now.
    pub fn trees(&self) -> Vec<(Arc<str>, bool)> {
        self.lock().trees.iter().map(|tree| (tree.root.clone(), tree.is_connected())).collect()
    }

    /// Returns a receiver that notices each change of a lock.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// The directory of its journal, if it has one.
    pub fn journal_dir(&self) -> Option<std::path::PathBuf> {
        self.lock().journal.as_ref().map(|journal| journal.dir().to_owned())
    }

    /// Returns the metrics as text in the OpenMetrics format.
    ///
    /// # Cost
    ///
    /// Goes through all locks that are known. No request.
    #[cfg(feature = "http")]
    pub fn metrics(&self) -> String {
        use crate::deadlock::Certainty;

        let (mut state, now) = (self.lock(), self.now());
        let ObservationState { trees, metrics, deadlocks, .. } = &mut *state;
        metrics.clear_state();
        let counted = deadlocks.iter().filter(|ring| ring.certainty != Certainty::Possible);
        metrics.deadlocks(counted.count());
        for tree in trees {
            metrics.tree(&tree.root, tree.tracker.totals(), tree.is_connected());
            // Until it was read, its locks may have other holders.
            for (path, since) in tree.tracker.all_since().filter(|_| tree.has_started) {
                metrics.lock(path, since, now);
            }
        }
        metrics.text()
    }

    /// Notes the rings of contenders that wait for each other now, for the page and the metrics.
    pub fn set_deadlocks(&self, deadlocks: Vec<Deadlock>) {
        let mut state = self.lock();
        let has_changed = *state.deadlocks != *deadlocks;
        state.deadlocks = deadlocks.into();
        drop(state);
        if has_changed {
            self.has_changed();
        }
    }

    /// Returns the locks that are waited for, by path. For a search for rings: somebody waits for each lock of a ring.
    ///
    /// # Cost
    ///
    /// Goes through all locks that are known, and copies those with a waiter. No request.
    pub fn waited_for(&self) -> Vec<LockInfo> {
        let state = self.lock();
        // Until a tree was read, it may have other holders.
        let read = state.trees.iter().filter(|tree| tree.has_started);
        let locks = read.flat_map(|tree| tree.tracker.waited_for());
        let mut locks: Vec<_> = locks.collect();
        locks.sort_by(|one, other| one.path.cmp(&other.path));
        locks
    }

    /// Waits for the next notice. One task calls it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no notice.
    pub async fn next_notice(&self) -> Notice {
        loop {
            if let Some(notice) = self.lock().notices.pop_front() {
                return notice;
            }
            self.0.noticed.notified().await;
        }
    }

    /// Notes in the journal that the observation ends.
    pub fn stop(&self) {
        let (mut state, at) = (self.lock(), self.now());
        state.write(&Fact { at, what: What::Stopped {}, about: false });
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").finish_non_exhaustive()
    }
}

impl Tree {
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// Changes the tracker, and hands on what it tells.
    pub(super) fn change(&self, change: impl FnOnce(&mut Tracker, Moment)) {
        let (mut state, now) = (self.observation.lock(), self.observation.now());
        change(&mut state.trees[self.index].tracker, now);
        let has_changed = state.hand_on(self.index, now);
        drop(state);
        if has_changed {
            self.observation.has_changed();
            self.observation.0.noticed.notify_one();
        }
    }

    /// Hands the tracker what a watch has reported.
    pub(super) fn apply(&self, changes: &[(Arc<str>, TreeChange, Instant)]) {
        let clock = self.observation.0.clock;
        self.change(|tracker, now| {
            for (path, change, at) in changes {
                tracker.change(path, *change, clock.moment(*at, now));
            }
        });
    }

    /// What is known of the tree. What the tracker tells is handed on by the next [`Tree::change`].
    pub(super) fn seen<T>(&self, look: impl FnOnce(&mut TreeSeen) -> T) -> T {
        look(&mut self.observation.lock().trees[self.index])
    }

    pub(super) fn now(&self) -> Moment {
        self.observation.now()
    }

    /// Notes that a walk over the tree begins.
    pub(super) fn begin_walk(&self) {
        self.seen(|seen| seen.is_read = false);
        self.change(|tracker, _| tracker.begin_walk());
    }

    /// Notes that all contenders that the walk has found were read.
    pub(super) fn catch_up(&self) {
        self.seen(|seen| seen.is_read = true);
        self.change(|_, _| {});
    }

    pub(super) fn lose(&self, cause: GapCause) {
        self.seen(|seen| _ = seen.lost.get_or_insert_with(|| cause.clone()));
        self.change(|tracker, now| tracker.lose(now, cause));
    }

    pub(super) fn settles_at(&self) -> Option<Instant> {
        let at = self.seen(|seen| seen.tracker.settles_at())?;
        Some(self.observation.0.clock.instant(at))
    }
}

impl ObservationState {
    /// Hands on what a tracker has to tell. Returns whether anything has changed.
    fn hand_on(&mut self, index: usize, now: Moment) -> bool {
        let facts = self.trees[index].tracker.take_facts();
        let changed = self.trees[index].tracker.take_changed();
        for fact in &facts {
            #[cfg(feature = "http")]
            {
                self.metrics.fact(fact);
                self.recent.fact(fact);
                self.facts += 1;
                if self.facts.is_multiple_of(FACTS_PER_CLEANUP) {
                    self.recent.forget_old(now);
                }
            }
            self.write(fact);
        }
        let has_changed = !facts.is_empty() || !changed.is_empty();
        let tree = &mut self.trees[index];
        if let Some(unviewed) = &mut tree.unviewed {
            unviewed.extend(changed);
        }
        self.notice(index, now) || has_changed
    }

    /// Says what has changed about a tree as a whole.
    fn notice(&mut self, index: usize, now: Moment) -> bool {
        let tree = &mut self.trees[index];
        let (root, servers) = (tree.root.clone(), tree.servers.clone());
        // A gap since the last run needs no notice unless it has another cause since.
        let blind = tree.tracker.gap().and_then(|(since, _)| Some((since, tree.lost.clone()?)));
        let mut notices = Vec::new();
        match (tree.blind_since, blind) {
            (None, Some((since, cause))) => {
                tree.blind_since = Some(since);
                notices.push(Notice::Lost { root: root.clone(), servers: servers.clone(), cause });
            }
            (Some(since), None) => {
                tree.blind_since = None;
                let cause = tree.lost.take();
                // A tree that was said not to be seen is said to be seen.
                if tree.has_started || cause == Some(GapCause::NotReached) {
                    let gap = now.since(since);
                    notices.push(Notice::Back { root: root.clone(), servers: servers.clone(), gap });
                }
            }
            _ => {}
        }
        if tree.is_read && tree.tracker.has_walked() && !tree.has_started {
            tree.has_started = true;
            let totals = tree.tracker.totals();
            notices.push(Notice::Started { root: root.clone(), servers, totals });
        }
        if tree.tracker.left_out() > 0 && !tree.has_left_out {
            tree.has_left_out = true;
            notices.push(Notice::LeftOut { root: root.clone() });
        }
        let has_noticed = !notices.is_empty();
        notices.into_iter().for_each(|notice| self.push(notice));
        has_noticed
    }

    fn push(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES {
            self.notices.push_back(notice);
        } else {
            tracing::warn!(?notice, "nobody takes the notices; this one is dropped");
        }
    }

    fn write(&mut self, fact: &Fact) {
        let Some(journal) = &mut self.journal else { return };
        let had_failed = journal.has_failed();
        match journal.write(fact) {
            Err(error) => self.push(Notice::JournalFailed(error)),
            Ok(()) if had_failed && !journal.has_failed() => self.push(Notice::JournalWorks),
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::admin::SessionId;
    use lockkeeper_session::Zxid;
    use lockkeeper_session::ensemble::{Children, Node};

    use super::*;
    use lockkeeper::admin::Walk;

    fn children(names: Vec<String>) -> Children {
        Children { names, data_len: 0, created: 0, ctime_ms: 0, changed: Zxid(0) }
    }

    fn notices(observation: &Observation) -> Vec<Notice> {
        observation.lock().notices.drain(..).collect()
    }

    fn observed(journal: Option<Journal>) -> (Observation, Tree) {
        let observation = Observation::new(Options { journal, ..Options::default() });
        let tree = observation.add_tree("/locks", Vec::new(), "zk1:2181".to_owned());
        (observation, tree)
    }

    /// Before the holder is read, its lock seems to have none.
    #[test]
    fn a_tree_is_announced_and_its_locks_are_in_the_metrics_when_all_of_it_is_read() {
        let (observation, tree) = observed(None);
        let names = [0, 1].map(|number| format!("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__{number:010}"));
        let listed = [("/locks", vec!["a".to_owned()]), ("/locks/a", names.to_vec())];
        let mut wanted = Vec::new();
        tree.begin_walk();
        tree.change(|tracker, now| {
            let listed = listed.map(|(path, names)| (path.to_owned(), children(names))).to_vec();
            tracker.end_walk(&Walk { listed, ..Walk::default() }, now);
            wanted = tracker.take_wanted();
        });
        // Its contender has waited since 1970.
        let node = Node {
            data: Vec::new(),
            czxid: Zxid(1),
            mzxid: Zxid(1),
            pzxid: Zxid(1),
            ctime_ms: 0,
            mtime_ms: 0,
            version: 0,
            owner: SessionId(7),
            children: 0,
        };
        let of = |number: usize| wanted.iter().find(|wanted| wanted.path.ends_with(&names[number])).unwrap();
        tree.change(|tracker, now| tracker.answer(of(1), Some(&node), now));
        assert!(notices(&observation).is_empty(), "the waiter is read, and the holder is not");
        #[cfg(feature = "http")]
        assert!(!observation.metrics().contains("lock=\"/locks/a\""), "{}", observation.metrics());
        tree.change(|tracker, now| tracker.answer(of(0), Some(&node), now));
        tree.catch_up();
        let notices = notices(&observation);
        let [Notice::Started { totals, .. }] = &notices[..] else { panic!("{notices:?}") };
        assert_eq!((totals.holders, totals.waiters), (1, 1));
        #[cfg(feature = "http")]
        assert!(
            observation.metrics().contains("lockkeeper_waiters{lock=\"/locks/a\"} 1\n"),
            "{}",
            observation.metrics()
        );
    }

    #[test]
    fn a_connection_that_is_lost_before_the_first_walk_is_noticed_although_the_journal_has_a_gap() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        journal.write(&serde_json::json!({"at_ms": 1, "fact": "stopped"})).unwrap();
        drop(journal);
        let (observation, tree) = observed(Some(Journal::open(dir.path()).unwrap()));
        tree.change(|_, _| {});
        assert!(notices(&observation).is_empty());
        tree.lose(GapCause::Disconnected);
        let notices = notices(&observation);
        let [Notice::Lost { cause: GapCause::Disconnected, .. }] = &notices[..] else { panic!("{notices:?}") };
    }
}
