use lockkeeper::contest::{Contest, OwnNode};
use lockkeeper_session::Zxid;
use lockkeeper_session::ensemble::Node;

use super::*;

/// One contender of the simulated locks.
#[derive(Clone)]
struct Contender {
    number: u64,
    process: usize,
    reads: bool,
    permits: Option<u32>,
    keeps: Vec<String>,
}

/// Processes with one thread each, and their locks.
struct World {
    random: fastrand::Rng,
    /// The permits of each lock, if it has some, and its queue.
    locks: Vec<(Option<u32>, Vec<Contender>)>,
    processes: usize,
    created: u64,
    /// Whether the waiters say what they keep.
    declares: bool,
}

/// A contender in Curator's format: its mode is `__WRIT__`, `__READ__` or its permits.
fn name(mode: &str, number: u64) -> String {
    format!("_c_0a1b2c3d-4e5f-4a6b-8c7d-{number:012x}-{mode}{number:010}")
}

/// A lock with these contenders: the name of each, its session, and the nodes of the holds that it keeps.
fn lock(path: &str, permits: Option<u32>, contenders: Vec<(String, i64, Vec<String>)>) -> LockInfo {
    let read = |(name, session, keeps): &(String, i64, Vec<String>)| {
        let number: i64 = name[name.len() - 10..].parse().unwrap();
        let (zxid, owner) = (Zxid(number), SessionId(*session));
        let (data, ctime_ms) = (b"10.0.0.7".to_vec(), number);
        let (czxid, mzxid, pzxid, mtime_ms) = (zxid, zxid, zxid, ctime_ms);
        let node = Node { data, czxid, mzxid, pzxid, ctime_ms, mtime_ms, version: 0, owner, children: 0 };
        let mut info = ContenderInfo::read(name.to_string(), &node);
        info.holds.clone_from(keeps);
        (name.clone(), info)
    };
    let known: HashMap<_, _> = contenders.iter().map(read).collect();
    let names: Vec<_> = contenders.into_iter().map(|(name, ..)| name).collect();
    let own = OwnNode { permits, ..OwnNode::default() };
    Contest::new(path, &names, &known).described(&own, |_| None)
}

impl World {
    fn new(seed: u64, declares: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let locks = (0..random.usize(2..5)).map(|_| (random.bool().then(|| random.u32(1..3)), Vec::new())).collect();
        let processes = random.usize(2..5);
        World { random, locks, processes, created: 0, declares }
    }

    /// How many contenders of a queue hold: those that no earlier one keeps out.
    fn holders((permits, queue): &(Option<u32>, Vec<Contender>)) -> usize {
        let mut taken = 0;
        let fits = |at: usize| match permits {
            Some(limit) => queue[..=at].iter().map(|it| it.permits.unwrap_or(1)).sum::<u32>() <= *limit,
            None if queue[at].reads => queue[..at].iter().all(|it| it.reads),
            None => at == 0,
        };
        while taken < queue.len() && fits(taken) {
            taken += 1;
        }
        taken
    }

    fn holds(&self, process: usize) -> Vec<(usize, u64)> {
        let held = |(lock, queue): (usize, &(Option<u32>, Vec<Contender>))| {
            let holders = queue.1[..Self::holders(queue)].iter().filter(|it| it.process == process);
            holders.map(|it| (lock, it.number)).collect::<Vec<_>>()
        };
        self.locks.iter().enumerate().flat_map(held).collect()
    }

    fn waits(&self, process: usize) -> bool {
        self.locks.iter().any(|queue| queue.1[Self::holders(queue)..].iter().any(|it| it.process == process))
    }

    /// A process that does not wait acquires or releases a lock.
    fn step(&mut self) {
        let process = self.random.usize(0..self.processes);
        if self.waits(process) {
            return;
        }
        let held = self.holds(process);
        if !held.is_empty() && self.random.usize(0..3) == 0 {
            let (lock, number) = held[self.random.usize(0..held.len())];
            self.locks[lock].1.retain(|it| it.number != number);
            return;
        }
        let lock = self.random.usize(0..self.locks.len());
        // Two contenders of one session at one lock may be two tasks.
        if !self.declares && held.iter().any(|(at, _)| *at == lock) {
            return;
        }
        self.created += 1;
        let permits = self.locks[lock].0.map(|limit| self.random.u32(1..=limit));
        let keeps = held.iter().filter(|_| self.declares).map(|(lock, number)| self.node(*lock, *number)).collect();
        let contender = Contender { number: self.created, process, reads: self.random.bool(), permits, keeps };
        self.locks[lock].1.push(contender);
    }

    /// The processes that never go on, whatever the others do.
    fn deadlocked(&self) -> HashSet<usize> {
        let mut left: Vec<_> = self.locks.clone();
        let mut stuck: HashSet<_> = (0..self.processes).collect();
        loop {
            let waits =
                |process: usize| left.iter().any(|it| it.1[Self::holders(it)..].iter().any(|it| it.process == process));
            let Some(ends) = stuck.iter().copied().find(|process| !waits(*process)) else { return stuck };
            stuck.remove(&ends);
            left.iter_mut().for_each(|queue| queue.1.retain(|it| it.process != ends));
        }
    }

    fn name(it: &Contender) -> String {
        match it.permits {
            Some(permits) => name(&format!("permits-{permits}-"), it.number),
            None => name(if it.reads { "__READ__" } else { "__WRIT__" }, it.number),
        }
    }

    fn node(&self, lock: usize, number: u64) -> String {
        let contender = self.locks[lock].1.iter().find(|it| it.number == number).unwrap();
        format!("/locks/{lock}/{}", Self::name(contender))
    }

    /// What a read of one lock shows.
    fn read(&self, at: usize) -> LockInfo {
        let (permits, queue) = &self.locks[at];
        let session = |it: &Contender| i64::try_from(it.process).unwrap() + 1;
        let contenders = queue.iter().map(|it| (Self::name(it), session(it), it.keeps.clone()));
        lock(&format!("/locks/{at}"), *permits, contenders.collect())
    }

    /// Reads all locks, one after the other, while the processes go on.
    fn listing(&mut self, steps: usize) -> Vec<LockInfo> {
        let locks = self.locks.len();
        let read = |lock| {
            (0..steps).for_each(|_| self.step());
            self.read(lock)
        };
        (0..locks).map(read).collect()
    }

    /// The processes in the rings of two listings.
    fn found(&mut self, steps: usize) -> Vec<(Certainty, HashSet<usize>)> {
        let (first, second) = (self.listing(steps), self.listing(steps));
        let process = |party: &Party| usize::try_from(party.waits.contender.session.0 - 1).unwrap();
        let processes = |found: Deadlock| (found.certainty, found.ring.iter().map(process).collect());
        among(&unchanged(&first, second)).into_iter().map(processes).collect()
    }
}

#[test]
fn no_simulated_history_gives_a_false_alarm() {
    let (mut alarms, mut deadlocks) = (0, 0);
    // As many as `docs/guarantees.md` says.
    let (histories, enough) = if lockkeeper_testkit::is_deep() { (100_000, 1_000) } else { (8_000, 80) };
    for seed in 0..histories {
        let mut world = World::new(seed, seed % 2 == 0);
        let before = world.random.usize(0..30);
        (0..before).for_each(|_| world.step());
        let steps = world.random.usize(0..4);
        for (certainty, processes) in world.found(steps) {
            // These processes have one thread, so each ring is a deadlock, also one that nobody declares.
            assert!(processes.is_subset(&world.deadlocked()), "seed {seed}: {certainty:?} {processes:?}");
            assert!(world.declares || certainty != Certainty::Certain, "seed {seed}");
            alarms += 1;
        }
        // Nothing changes between reads of a world that stands still, so every deadlock is found.
        let found = world.found(0);
        assert_eq!(found.is_empty(), world.deadlocked().is_empty(), "seed {seed}");
        assert!(found.iter().all(|(certainty, _)| (*certainty == Certainty::Certain) == world.declares), "seed {seed}");
        deadlocks += usize::from(!found.is_empty());
    }
    assert!(alarms > enough && deadlocks > enough, "{alarms} {deadlocks}");
}

/// A lock that the first of these sessions holds alone, with the nodes of the holds that each keeps.
fn queue(at: usize, sessions: impl IntoIterator<Item = (i64, Vec<String>)>) -> LockInfo {
    let contender = |(place, (session, keeps))| (node_name(at, place), session, keeps);
    lock(&format!("/{at}"), None, sessions.into_iter().enumerate().map(contender).collect())
}

fn node_name(lock: usize, place: usize) -> String {
    name("__WRIT__", u64::try_from(lock * 10_000 + place).unwrap())
}

/// The node of the holder of a lock.
fn hold(lock: usize) -> Vec<String> {
    vec![format!("/{lock}/{}", node_name(lock, 0))]
}

#[test]
fn a_ring_begins_with_the_last_waiter_and_leaves_out_those_behind_it() {
    let locks = [queue(0, [(1, vec![]), (2, hold(1)), (9, vec![])]), queue(1, [(2, vec![]), (1, hold(0))])];
    let [Deadlock { certainty: Certainty::Certain, ring }] = &among(&locks)[..] else { panic!("no certain ring") };
    let node = |it: &Contention| it.contender.node.clone();
    let parties: Vec<_> = ring.iter().map(|party| (party.holds.as_ref().map(node), node(&party.waits))).collect();
    let expected = [((0, 0), (1, 1)), ((1, 0), (0, 1))];
    assert_eq!(
        parties,
        expected.map(|(holds, waits)| (Some(node_name(holds.0, holds.1)), node_name(waits.0, waits.1)))
    );
}

#[test]
fn tasks_of_one_process_at_one_lock_are_no_ring() {
    assert_eq!(among(&[queue(0, [1, 1, 1].map(|session| (session, vec![])))]), []);
}

#[test]
fn a_process_with_several_waits_is_at_most_a_possible_party() {
    let ring = |second: &[i64]| {
        let locks = [&[1, 2][..], second].map(|sessions| sessions.iter().map(|session| (*session, Vec::new())));
        let locks: Vec<_> = locks.into_iter().enumerate().map(|(at, sessions)| queue(at, sessions)).collect();
        among(&locks).iter().map(|ring| ring.certainty).collect::<Vec<_>>()
    };
    assert_eq!(ring(&[2, 1]), [Certainty::Likely]);
    assert_eq!(ring(&[2, 1, 1]), [Certainty::Possible]);
}

#[test]
fn a_thousand_waiters_behind_a_ring_are_searched_once() {
    let behind = (100..2_100).map(|session| (session, Vec::new()));
    let first = queue(0, [(1, Vec::new()), (2, hold(1))].into_iter().chain(behind));
    assert_eq!(among(&[first, queue(1, [(2, Vec::new()), (1, hold(0))])]).len(), 1);
}
