use std::time::{Duration, UNIX_EPOCH};

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

fn node(lock: usize, number: u64) -> String {
    format!("/locks/{lock}/{number:010}")
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
        let keeps = held.iter().filter(|_| self.declares).map(|(lock, number)| node(*lock, *number)).collect();
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

    /// What a read of one lock shows.
    fn read(&self, lock: usize) -> Queue {
        let (permits, queue) = &self.locks[lock];
        let holders = Self::holders(&self.locks[lock]);
        let member = |(at, it): (usize, &Contender)| Member {
            at: (lock, at),
            node: node(lock, it.number),
            session: SessionId(i64::try_from(it.process).unwrap() + 1),
            since: UNIX_EPOCH + Duration::from_millis(it.number),
            waits: at >= holders,
            reads: permits.is_none() && it.reads,
            permits: it.permits,
            keeps: it.keeps.clone(),
        };
        Queue { permits: *permits, members: queue.iter().enumerate().map(member).collect() }
    }

    /// Reads all locks, one after the other, while the processes go on.
    fn survey(&mut self, steps: usize) -> Vec<Queue> {
        let locks = self.locks.len();
        let read = |lock| {
            (0..steps).for_each(|_| self.step());
            self.read(lock)
        };
        (0..locks).map(read).collect()
    }

    /// The processes in the rings of two surveys.
    fn found(&mut self, steps: usize) -> Vec<(Certainty, HashSet<usize>)> {
        let (first, second) = (self.survey(steps), self.survey(steps));
        let kept = unchanged(&first, second);
        let process = |at: Position| {
            let mut members = kept.iter().flat_map(|queue| &queue.members);
            let session = members.find(|it| it.at == at).expect("a ring names what was read").session;
            (0..self.processes).find(|it| SessionId(i64::try_from(*it).unwrap() + 1) == session).unwrap()
        };
        let processes = |ring: Ring| (ring.certainty, ring.parties.into_iter().map(|party| process(party.1)).collect());
        find(&kept).into_iter().map(processes).collect()
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

fn member(lock: usize, at: usize, session: i64, waits: bool, keeps: &[&str]) -> Member {
    Member {
        at: (lock, at),
        node: format!("/{lock}/{at}"),
        session: SessionId(session),
        since: UNIX_EPOCH + Duration::from_secs(u64::try_from(lock * 10 + at).unwrap()),
        waits,
        reads: false,
        permits: None,
        keeps: keeps.iter().map(|&node| node.to_owned()).collect(),
    }
}

fn queue(members: Vec<Member>) -> Queue {
    Queue { permits: None, members }
}

#[test]
fn a_ring_begins_with_the_last_waiter_and_leaves_out_those_behind_it() {
    let queues = [
        queue(vec![member(0, 0, 1, false, &[]), member(0, 1, 2, true, &["/1/0"]), member(0, 2, 9, true, &[])]),
        queue(vec![member(1, 0, 2, false, &[]), member(1, 1, 1, true, &["/0/0"])]),
    ];
    let parties = vec![(Some((0, 0)), (1, 1)), (Some((1, 0)), (0, 1))];
    assert_eq!(find(&queues), [Ring { certainty: Certainty::Certain, parties }]);
}

#[test]
fn tasks_of_one_process_at_one_lock_are_no_ring() {
    let queues = [queue(vec![member(0, 0, 1, false, &[]), member(0, 1, 1, true, &[]), member(0, 2, 1, true, &[])])];
    assert_eq!(find(&queues), []);
}

#[test]
fn a_process_with_several_waits_is_at_most_a_possible_party() {
    let ring = |more: Option<Member>| {
        let first = queue(vec![member(0, 0, 1, false, &[]), member(0, 1, 2, true, &[])]);
        let mut second = queue(vec![member(1, 0, 2, false, &[]), member(1, 1, 1, true, &[])]);
        second.members.extend(more);
        find(&[first, second]).iter().map(|ring| ring.certainty).collect::<Vec<_>>()
    };
    assert_eq!(ring(None), [Certainty::Likely]);
    assert_eq!(ring(Some(member(1, 2, 1, true, &[]))), [Certainty::Possible]);
}

#[test]
fn a_thousand_waiters_behind_a_ring_are_searched_once() {
    let behind = (2..2000).map(|at| member(0, at, 100 + i64::try_from(at).unwrap(), true, &[]));
    let first = [member(0, 0, 1, false, &[]), member(0, 1, 2, true, &["/1/0"])].into_iter().chain(behind);
    let second = vec![member(1, 0, 2, false, &[]), member(1, 1, 1, true, &["/0/0"])];
    assert_eq!(find(&[queue(first.collect()), queue(second)]).len(), 1);
}
