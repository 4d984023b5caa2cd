//! What a page shows of an observation: the state and the last hour of the locks that are waited for most.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use lockkeeper::admin::LockInfo;

use super::{Observation, TreeSeen, TreeState};
use crate::deadlock::Deadlock;
use crate::watch::jobs::Jobs;
use crate::watch::recent::{Blind, Past};
use crate::watch::{Moment, Since};

/// What is going on.
pub(crate) struct Glance {
    pub(crate) now: Moment,
    pub(crate) trees: Vec<TreeState>,
    pub(crate) deadlocks: Arc<[Deadlock]>,
    /// The jobs of each tree.
    pub(crate) jobs: Vec<Arc<Jobs>>,
    pub(crate) gaps: Vec<Blind>,
    /// How many locks have a waiter.
    pub(crate) waited_for: usize,
    /// The locks that are waited for most, the first one most.
    pub(crate) locks: Vec<LockGlance>,
    /// How many locks are in use or were waited for in the last hour, and are not among them.
    pub(crate) others: usize,
}

/// A lock, and what is known of its last hour.
pub(crate) struct LockGlance {
    /// The lock as it is now, with its first holders and waiters.
    pub(crate) lock: LockInfo,
    pub(crate) since: Since,
    pub(crate) past: Past,
}

impl Observation {
    /// Notes the jobs that there are now at and below the root of a tree, for the page. They replace earlier ones of the same root.
    pub fn show_jobs(&self, root: &str, jobs: Jobs) {
        let mut state = self.lock();
        let has_changed = state.jobs.get(root).is_none_or(|before| **before != jobs);
        state.jobs.insert(root.into(), Arc::new(jobs));
        drop(state);
        if has_changed {
            self.has_changed();
        }
    }

    /// Returns whether a lock has a contender now, as far as its tree is seen.
    pub fn is_in_use(&self, path: &str) -> bool {
        self.lock().trees.iter().any(|tree| !tree.tracker.since(path).is_unused())
    }

    /// Returns what is going on, with so many locks at most, and so many waiters and holds of each.
    ///
    /// # Cost
    ///
    /// Goes through all locks that have contenders, or that were waited for in the last hour. No request.
    pub(crate) fn glance(&self, locks: usize, each: usize) -> Glance {
        let mut state = self.lock();
        let now = self.now();
        state.recent.forget_old(now);
        let mut ranked: HashMap<&Arc<str>, (u64, Since)> =
            state.recent.waited().map(|(lock, waited)| (lock, (waited, Since::default()))).collect();
        let mut waited_for = 0;
        for (path, since) in state.trees.iter().flat_map(|tree| tree.tracker.all_since()) {
            let (waited, known) = ranked.entry(path).or_default();
            *known = since;
            waited_for += usize::from(since.waiters > 0);
            *waited += since.waiting.map_or(0, |oldest| u64::try_from(now.since(oldest).as_millis()).unwrap_or(0));
        }
        // The lock that was waited for most is first, then the one that is held longest.
        let order = |(path, (waited, since)): &(&Arc<str>, (u64, Since))| {
            let held = since.held.map_or(i64::MAX, |held| held.ms);
            (Reverse((*waited, since.waiters)), held, Arc::clone(path))
        };
        let mut ranked: Vec<_> = ranked.into_iter().collect();
        let all = ranked.len();
        if all > locks {
            // The rest need no order.
            ranked.select_nth_unstable_by_key(locks, order);
            ranked.truncate(locks);
        }
        ranked.sort_unstable_by_key(order);
        let shown = ranked.into_iter().map(|(path, (_, since))| state.glance_of(path, since, now, each));
        let shown: Vec<_> = shown.collect();
        let others = all - shown.len();
        let blind = state.gaps();
        let trees = state.trees.iter().map(TreeSeen::state).collect();
        let deadlocks = state.deadlocks.clone();
        let jobs = state.jobs.values().cloned().collect();
        Glance { now, trees, deadlocks, jobs, gaps: blind, waited_for, locks: shown, others }
    }

    /// Returns the same with only this lock, with so many waiters and holds.
    pub(crate) fn glance_at(&self, path: &str, each: usize) -> Glance {
        let mut glance = self.glance(0, 0);
        let (state, now) = (self.lock(), self.now());
        let mut since = state.trees.iter().map(|tree| tree.tracker.since(path));
        let since = since.find(|since| !since.is_unused()).unwrap_or_default();
        glance.locks = vec![state.glance_of(path, since, now, each)];
        glance
    }
}

impl super::ObservationState {
    /// A lock, and what is known of its last hour, with so many holders, waiters and past holds at most.
    fn glance_of(&self, path: &str, since: Since, now: Moment, each: usize) -> LockGlance {
        let lock = self.trees.iter().find_map(|tree| tree.tracker.lock_head(path, now, each));
        let lock = lock.unwrap_or_else(|| LockInfo::unused(path));
        LockGlance { lock, since, past: self.recent.past(path, each) }
    }

    /// The times during which changes were not seen, with those that last.
    fn gaps(&self) -> Vec<Blind> {
        let now = self.trees.iter().filter_map(|tree| {
            let (since, _) = tree.tracker.gap()?;
            Some(Blind { root: tree.root.clone(), since, until: None })
        });
        now.chain(self.recent.gaps().cloned()).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Instant;

    use lockkeeper::admin::{SessionId, Walk};
    use lockkeeper_session::Zxid;
    use lockkeeper_session::ensemble::{Node, TreeChange};

    use super::*;
    use crate::deadlock::Certainty;
    use crate::watch::observation::{Options, Tree};

    use crate::watch::Tracker;

    fn name(sequence: u32) -> String {
        format!("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__{sequence:010}")
    }

    /// Answers what a tracker wants to know: the nodes of foreign clients.
    fn answer(tracker: &mut Tracker, now: Moment) {
        for wanted in tracker.take_wanted() {
            let number = wanted.path.bytes().fold(0_i64, |sum, byte| (sum * 31 + i64::from(byte)) % 1_000);
            let node = Node {
                data: format!("10.0.{}.{}", number / 250, number % 250).into_bytes(),
                czxid: Zxid(1),
                mzxid: Zxid(1),
                pzxid: Zxid(1),
                ctime_ms: now.wall_ms,
                mtime_ms: now.wall_ms,
                version: 0,
                owner: SessionId(number + 1),
                children: 0,
            };
            tracker.answer(&wanted, Some(&node), now);
        }
    }

    fn change(tree: &Tree, path: &str, change: TreeChange) {
        tree.change(|tracker, now| {
            tracker.change(path, change, now);
            answer(tracker, now);
        });
    }

    /// An observation of so many locks, each with a holder and a waiter, and then of so many grants. Returns how long the grants took.
    pub(crate) fn busy(locks: usize, grants: usize) -> (Observation, std::time::Duration) {
        let observation = Observation::new(Options::default());
        let tree = observation.add_tree("/locks", Vec::new(), "zk1:2181".to_owned());
        tree.change(|tracker, now| {
            tracker.begin_walk();
            tracker.end_walk(&Walk::default(), now);
        });
        for lock in 0..locks {
            for sequence in 0..2 {
                change(&tree, &format!("/locks/app/{lock}/{}", name(sequence)), TreeChange::Created);
            }
        }
        let begun = Instant::now();
        for grant in 0..grants {
            let (lock, round) = (grant * 7_919 % locks, u32::try_from(grant / locks).unwrap());
            change(&tree, &format!("/locks/app/{lock}/{}", name(round + 2)), TreeChange::Created);
            change(&tree, &format!("/locks/app/{lock}/{}", name(round)), TreeChange::Deleted);
            if grant % 100 == 99 {
                // As after the pause that the tracker waits for evidence.
                tree.change(|tracker, now| tracker.settle(Moment { ms: now.ms + 1_000, wall_ms: now.wall_ms + 1_000 }));
            }
        }
        (observation, begun.elapsed())
    }

    #[test]
    fn a_glance_has_the_locks_that_are_waited_for_most_and_counts_the_rest() {
        let (observation, _) = busy(30, 0);
        let tree = Tree { observation: observation.clone(), index: 0, root: "/locks".into() };
        for sequence in 2..6 {
            change(&tree, &format!("/locks/app/17/{}", name(sequence)), TreeChange::Created);
        }
        // Not waited for: it is behind the others.
        change(&tree, &format!("/locks/app/3/{}", name(1)), TreeChange::Deleted);
        let glance = observation.glance(10, 2);
        assert_eq!((glance.locks.len(), glance.others, glance.waited_for), (10, 20, 29));
        assert!(glance.locks.iter().all(|it| it.lock.path != "/locks/app/3"));
        let glance = observation.glance_at("/locks/app/17", 2);
        let LockGlance { lock, since, .. } = &glance.locks[0];
        assert_eq!((since.waiters, lock.holders.len(), lock.waiters.len()), (5, 1, 2));
        assert_eq!(observation.glance_at("/locks/none", 2).locks[0].lock, LockInfo::unused("/locks/none"));
    }

    #[test]
    fn a_search_for_rings_gets_the_contenders_of_locks_with_a_waiter_only() {
        let (observation, _) = busy(3, 0);
        let tree = Tree { observation: observation.clone(), index: 0, root: "/locks".into() };
        tree.catch_up();
        let paths = || {
            let count = |lock: LockInfo| format!("{} {}", lock.path, lock.holders.len() + lock.waiters.len());
            observation.waited_for().into_iter().map(count).collect::<Vec<_>>()
        };
        assert_eq!(paths(), ["/locks/app/0 2", "/locks/app/1 2", "/locks/app/2 2"]);
        for lock in 0..2 {
            change(&tree, &format!("/locks/app/{lock}/{}", name(1)), TreeChange::Deleted);
        }
        assert_eq!(paths(), ["/locks/app/2 2"]);
        assert!(observation.is_in_use("/locks/app/0") && !observation.is_in_use("/locks/app/3"));
    }

    #[test]
    fn jobs_are_shown_for_each_tree_and_a_new_state_is_a_change() {
        let observation = Observation::new(Options::default());
        let mut changes = observation.changes();
        let failed = Jobs { lines: Vec::new(), problem: Some("no server answers".to_owned()) };
        for (root, jobs, changed) in
            [("/a", &failed, true), ("/a", &failed, false), ("/b", &failed, true), ("/a", &Jobs::default(), true)]
        {
            observation.show_jobs(root, jobs.clone());
            assert_eq!(changes.has_changed().unwrap(), changed, "{root} {jobs:?}");
            changes.mark_unchanged();
        }
        assert!(observation.glance(1, 1).jobs.iter().map(|jobs| &**jobs).eq([&Jobs::default(), &failed]));
    }

    #[test]
    fn deadlocks_are_shown_and_a_new_one_is_a_change() {
        let observation = Observation::new(Options::default());
        let mut changes = observation.changes();
        observation.set_deadlocks(Vec::new());
        assert!(!changes.has_changed().unwrap());
        let ring = crate::page::tests::ring(2, "x");
        observation.set_deadlocks(ring.clone());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        observation.set_deadlocks(ring);
        assert!(!changes.has_changed().unwrap());
        assert_eq!(observation.glance(1, 1).deadlocks.len(), 1);
    }

    /// The rule for Prometheus raises an alert for each one that is counted.
    #[test]
    fn a_deadlock_that_is_only_possible_is_shown_and_not_counted() {
        let observation = Observation::new(Options::default());
        for (certainty, count) in [(Certainty::Certain, 1), (Certainty::Likely, 1), (Certainty::Possible, 0)] {
            let ring = crate::page::tests::ring(2, "x").into_iter().map(|it| Deadlock { certainty, ..it });
            observation.set_deadlocks(ring.collect());
            assert_eq!(observation.glance(1, 1).deadlocks.len(), 1);
            let metrics = observation.metrics();
            assert!(metrics.contains(&format!("lockkeeper_deadlocks {count}\n")), "{certainty:?}: {metrics}");
        }
    }
}
