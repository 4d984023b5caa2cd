//! What observers have seen: the state, the journal, the alerts and the metrics.

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
use super::rules::{Alert, Rule, Rules};
use super::tracker::{Limits, Totals, Tracker};
use super::view::View;
use crate::deadlock::{Certainty, Deadlock};

/// Maximum notices that nobody has taken. Later ones are dropped, and counted.
const NOTICES: usize = 10_000;

/// How many facts between two looks for state that is out of date.
const FACTS_PER_CLEANUP: u64 = 10_000;

/// What an observation does with what it sees.
#[derive(Default)]
pub struct Options {
    /// The rules of its alerts.
    pub rules: Vec<Rule>,
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
    /// A rule began or stopped to hold.
    Alert(Box<AlertNotice>),
    /// The journal cannot be written from now on.
    JournalFailed(JournalError),
    /// The journal can be written again.
    JournalWorks,
}

/// An alert, with the lock as it is.
#[derive(Clone, Debug, Serialize)]
pub struct AlertNotice {
    /// The alert.
    #[serde(flatten)]
    pub alert: Alert,
    /// The lock, if the alert is about one that has contenders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockInfo>,
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
    /// The rules that hold, with their subjects.
    pub alerts: Vec<(String, Arc<str>)>,
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
    /// A notice or another deadline.
    noticed: Notify,
    version: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct ObservationState {
    pub(super) trees: Vec<TreeSeen>,
    rules: Rules,
    journal: Option<Journal>,
    notices: VecDeque<Notice>,
    limits: Limits,
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
    /// The locks that have changed since the tree was last read as a whole, which the rules have not seen.
    unjudged: HashSet<Arc<str>>,
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
        let Options { rules, journal, limits } = options;
        let state = ObservationState { rules: Rules::new(rules), journal, limits, ..ObservationState::default() };
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
        Snapshot { at_ms: now.wall_ms, trees: trees.collect(), locks, alerts: state.alerts() }
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
        let (mut state, now) = (self.lock(), self.now());
        let ObservationState { trees, metrics, deadlocks, .. } = &mut *state;
        metrics.clear_state();
        metrics.deadlocks(deadlocks.iter().filter(|ring| ring.certainty != Certainty::Possible).count());
        for tree in trees {
            metrics.tree(&tree.root, tree.tracker.totals(), tree.is_connected());
            // Until it was read, its locks may have other holders.
            for (path, since) in tree.tracker.all_since().filter(|_| tree.has_started) {
                metrics.lock(path, since, now);
            }
        }
        metrics.text()
    }

    /// Notes the rings of contenders that wait for each other now. All are shown; the rule [`Rule::Deadlock`] holds for those that are
    /// certain or likely. Rings that are not among them any more are over.
    pub fn set_deadlocks(&self, deadlocks: Vec<Deadlock>) {
        let sure = deadlocks.iter().filter(|ring| ring.certainty != Certainty::Possible);
        let rings: Vec<Arc<str>> = sure.map(|ring| ring.to_string().into()).collect();
        let (mut state, now) = (self.lock(), self.now());
        let over: Vec<_> =
            state.rules.firing().filter(|(rule, _)| *rule == Rule::Deadlock).map(|(_, ring)| ring.clone()).collect();
        for ring in over.iter().filter(|ring| !rings.contains(ring)) {
            state.rules.see_deadlock(ring, false, now);
        }
        rings.iter().for_each(|ring| state.rules.see_deadlock(ring, true, now));
        let has_changed = *state.deadlocks != *deadlocks;
        state.deadlocks = deadlocks.into();
        drop(state);
        self.0.noticed.notify_one();
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
            let deadline = {
                let (mut state, now) = (self.lock(), self.now());
                state.raise(now);
                if let Some(notice) = state.notices.pop_front() {
                    return notice;
                }
                state.rules.deadline().map(|at| self.0.clock.instant(at))
            };
            let passed = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.noticed.notified() => {}
                () = passed => {}
            }
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
    /// The rules that hold, with their subjects.
    fn alerts(&self) -> Vec<(String, Arc<str>)> {
        self.rules.firing().map(|(rule, subject)| (rule.to_string(), subject.clone())).collect()
    }

    /// Hands on what a tracker has to tell. Returns whether anything has changed.
    fn hand_on(&mut self, index: usize, now: Moment) -> bool {
        let facts = self.trees[index].tracker.take_facts();
        let changed = self.trees[index].tracker.take_changed();
        for fact in &facts {
            if let What::Granted { contender, found: false, .. } = &fact.what {
                self.rules.granted(&contender.lock, fact.at);
            }
            #[cfg(feature = "http")]
            {
                self.metrics.fact(fact);
                self.recent.fact(fact);
            }
            self.write(fact);
            self.facts += 1;
            if self.facts.is_multiple_of(FACTS_PER_CLEANUP) {
                self.rules.forget_old(now);
                #[cfg(feature = "http")]
                self.recent.forget_old(now);
            }
        }
        let has_changed = !facts.is_empty() || !changed.is_empty();
        let tree = &mut self.trees[index];
        if let Some(unviewed) = &mut tree.unviewed {
            unviewed.extend(changed.iter().cloned());
        }
        tree.unjudged.extend(changed);
        if tree.is_read {
            for path in std::mem::take(&mut tree.unjudged) {
                self.rules.see(&path, tree.tracker.since(&path), now);
            }
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
        let is_blind = tree.blind_since.is_some();
        self.rules.see_gap(&root, is_blind, now);
        let has_noticed = !notices.is_empty();
        notices.into_iter().for_each(|notice| self.push(notice));
        has_noticed
    }

    /// A lock as it is at this moment, with so many holders and so many waiters at most.
    fn lock_head(&self, path: &str, now: Moment, most: usize) -> Option<LockInfo> {
        self.trees.iter().find_map(|tree| tree.tracker.lock_head(path, now, most))
    }

    /// Makes notices of the alerts until now.
    fn raise(&mut self, now: Moment) {
        for alert in self.rules.take(now) {
            let lock = self.lock_head(&alert.subject, now, usize::MAX);
            self.push(Notice::Alert(Box::new(AlertNotice { alert, lock })));
        }
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
        let (mut state, now) = (observation.lock(), observation.now());
        state.raise(now);
        state.notices.drain(..).collect()
    }

    /// An observation with one rule.
    fn observed(rule: &str, journal: Option<Journal>) -> (Observation, Tree) {
        let options = Options { rules: vec![rule.parse().unwrap()], journal, ..Options::default() };
        let observation = Observation::new(options);
        let tree = observation.add_tree("/locks", Vec::new(), "zk1:2181".to_owned());
        (observation, tree)
    }

    fn walk(tree: &Tree, listed: Vec<(String, Vec<String>)>) {
        let listed = listed.into_iter().map(|(path, names)| (path, children(names))).collect();
        tree.change(|tracker, now| {
            tracker.begin_walk();
            tracker.end_walk(&Walk { listed, ..Walk::default() }, now);
            tracker.take_wanted().iter().for_each(|wanted| tracker.refuse(wanted, now));
        });
    }

    #[test]
    fn a_hold_that_was_found_is_no_change_and_the_grant_to_a_waiter_that_was_found_is_one() {
        let (observation, tree) = observed("changes>0/h", None);
        let names = [0, 1].map(|number| format!("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__{number:010}"));
        let listed = [("/locks", vec!["a".to_owned()]), ("/locks/a", names.to_vec())];
        walk(&tree, listed.map(|(path, names)| (path.to_owned(), names)).to_vec());
        let Snapshot { locks, alerts, .. } = observation.snapshot();
        assert_eq!((locks[0].holders.len(), locks[0].waiters.len()), (1, 1));
        assert_eq!(alerts, []);
        let holder = format!("/locks/a/{}", names[0]);
        tree.change(|tracker, now| tracker.change(&holder, TreeChange::Deleted, now));
        assert_eq!(observation.snapshot().alerts, [("changes>0/1h".to_owned(), "/locks/a".into())]);
    }

    /// Before the holder is read, its lock seems to have none.
    #[test]
    fn no_alert_is_raised_before_the_tree_is_read() {
        let (observation, tree) = observed("waits>1s", None);
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
        let [Notice::Started { .. }, Notice::Alert(alert)] = &notices[..] else { panic!("{notices:?}") };
        let lock = alert.lock.as_ref().unwrap();
        assert_eq!((lock.holders.len(), lock.waiters.len()), (1, 1));
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
        let (observation, tree) = observed("gap", Some(Journal::open(dir.path()).unwrap()));
        tree.change(|_, _| {});
        assert!(notices(&observation).is_empty());
        tree.lose(GapCause::Disconnected);
        let notices = notices(&observation);
        let [Notice::Lost { cause: GapCause::Disconnected, .. }, Notice::Alert(alert)] = &notices[..] else {
            panic!("{notices:?}")
        };
        assert!(alert.alert.firing);
        walk(&tree, Vec::new());
        assert_eq!(observation.snapshot().alerts, []);
    }
}
