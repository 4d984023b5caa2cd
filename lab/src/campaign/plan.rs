//! Chooses a round of the storm by a seed: its jobs, and the faults of the jobs and the servers. Pure.

use std::time::Duration;

use fastrand::Rng;
use lockkeeper_testkit::apache::Host;
use lockkeeper_testkit::history::{Claim, Share};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::site::{ServerFault, ServerTrouble};

/// The locks of a round. All jobs of a lock are of one family, because the command requires that.
pub(super) const LOCKS: [(&str, Family); 6] = [
    ("a-line", Family::Queue { shared: 0 }),
    ("b-half-shared", Family::Queue { shared: 50 }),
    ("c-mostly-shared", Family::Queue { shared: 80 }),
    ("d-permits", Family::Permits),
    ("e-classes", Family::Classes),
    ("f-leased", Family::Leases),
];

/// The number of the semaphore's permits.
pub(super) const PERMITS: u32 = 3;

/// The time during which jobs are started.
const ARRIVALS: Duration = Duration::from_secs(20);

/// The kinds of jobs that share a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Exclusive jobs, and this percentage of shared ones.
    Queue {
        shared: u32,
    },
    Permits,
    Classes,
    Leases,
}

/// How a job holds its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    Plain,
    Exclusive,
    Shared,
    Permits(u32),
    Foreground,
    Background,
    Class(char),
    Lease { lease: Duration, priority: i32, cleanup: Duration, forceful: bool, waiting: Option<Duration> },
}

impl JobKind {
    pub(super) fn share(self) -> Share {
        match self {
            JobKind::Shared => Share::Reads,
            JobKind::Permits(take) => Share::Permits(take),
            _ => Share::Alone,
        }
    }

    /// Returns the class; the smaller one is served first.
    pub(super) fn class(self) -> char {
        match self {
            JobKind::Background => 'B',
            JobKind::Class(class) => class,
            _ => 'A',
        }
    }

    pub(super) fn is_lease(self) -> bool {
        matches!(self, JobKind::Lease { .. })
    }

    fn options(self) -> Vec<String> {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        match self {
            JobKind::Plain => vec![],
            JobKind::Exclusive => vec!["--exclusive".to_owned()],
            JobKind::Shared => vec!["--shared".into()],
            JobKind::Permits(take) => {
                vec!["--permits".into(), PERMITS.to_string(), "--take".into(), take.to_string()]
            }
            JobKind::Foreground => vec!["--foreground".into()],
            JobKind::Background => vec!["--background".into()],
            JobKind::Class(class) => vec!["--class".into(), class.to_string()],
            JobKind::Lease { lease, priority, cleanup, forceful, waiting } => {
                let mut words = vec!["--lease".into(), millis(lease), "--priority".into(), priority.to_string()];
                words.extend(["--cleanup".into(), millis(cleanup)]);
                words.extend(forceful.then(|| "--forceful".into()));
                words.extend(waiting.iter().flat_map(|waiting| ["--waiting".into(), millis(*waiting)]));
                words
            }
        }
    }
}

/// How long a job waits for its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Forever,
    Try,
    Within(Duration),
    /// This long in each of two attempts.
    Retries(Duration),
}

/// The reaction of a job to SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum OnTerm {
    Dies,
    /// Works for this long, then ends in order.
    Finishes(Duration),
    Ignores,
}

/// The destination of the command's standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stderr {
    File,
    /// A pipe without a reader.
    Closed,
    /// A pipe that is full.
    Full,
    /// A disk that is full.
    NoSpace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// A wrapper that sometimes skips the lock.
    Skip,
    /// A command that cannot be stopped when its lock is lost.
    Flee,
    /// A wrapper that reports that it waits before it does.
    Overtake,
    /// A process that kills a healthy job.
    Kill,
    /// A wrapper that waits twice as long as `--wait` says.
    Late,
    /// Every hold has the same token.
    Token,
    /// A command that is never ended, so that its lock stays held.
    Stray,
}

impl Plant {
    pub(super) const ALL: [Plant; 7] =
        [Plant::Skip, Plant::Flee, Plant::Overtake, Plant::Kill, Plant::Late, Plant::Token, Plant::Stray];

    /// Returns the promise that it breaks.
    pub(super) fn breaks(self) -> Claim {
        match self {
            Plant::Skip => Claim::Exclusion,
            Plant::Flee => Claim::EndsInTime,
            Plant::Overtake => Claim::Order,
            Plant::Kill => Claim::Healthy,
            Plant::Late => Claim::Deadline,
            Plant::Token => Claim::Tokens,
            Plant::Stray => Claim::NoOrphan,
        }
    }
}

/// The processes that a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    Keeper,
    /// The first process of the command under the lock.
    Command,
    /// The command's whole process group.
    Group,
    /// `lockkeeper` and the group.
    Both,
    /// These, and every other child of `lockkeeper`.
    All,
}

impl Whom {
    pub(super) fn has_keeper(self) -> bool {
        matches!(self, Whom::Keeper | Whom::Both | Whom::All)
    }
}

/// A fault of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Signal(Signal, Whom),
    /// SIGSTOP, and SIGCONT this much later.
    Stop(Whom, Duration),
    Revoke,
    Break,
}

impl Trouble {
    /// Whether it may disturb `lockkeeper` itself, and not only what it started.
    pub(super) fn meets_keeper(self) -> bool {
        match self {
            Trouble::Signal(_, whom) | Trouble::Stop(whom, _) => whom.has_keeper(),
            Trouble::Revoke | Trouble::Break => true,
        }
    }

    /// Whether it may end a hold while its command still works.
    fn ends_the_hold(self) -> bool {
        match self {
            Trouble::Signal(signal, whom) => signal == Signal::KILL && whom == Whom::Keeper,
            Trouble::Stop(whom, _) => whom.has_keeper(),
            Trouble::Break => true,
            Trouble::Revoke => false,
        }
    }
}

/// The time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    AfterStart(Duration),
    /// After its command has begun to work.
    AfterBegin(Duration),
    /// When a contender holds a lock, this long after its start or later.
    Holding(Duration),
}

/// A contender that uses the library itself, at a place of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Library {
    pub host: Host,
    pub servers: String,
    /// The seed of its actions.
    pub seed: u64,
}

/// A job: one call of `lockkeeper run`, or one process that uses the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub number: usize,
    /// The time of its start, from the beginning of the round.
    pub at: Duration,
    /// Its locks, in order: positions in [`LOCKS`], or numbers of other queues.
    pub locks: Vec<usize>,
    pub kind: JobKind,
    pub wait: Wait,
    /// How long its command works, or a process with the library lives.
    pub work: Duration,
    /// The exit status of its command.
    pub status: u8,
    pub on_term: OnTerm,
    /// Whether a second process of the group works too.
    pub second: bool,
    pub session_timeout: Duration,
    pub stop_on_suspect: bool,
    pub json: bool,
    pub debug: bool,
    pub stderr: Stderr,
    pub trouble: Option<(Moment, Trouble)>,
    pub library: Option<Library>,
}

/// Returns the name of a lock: one of [`LOCKS`], or a queue of its own.
pub(super) fn name(lock: usize) -> String {
    LOCKS.get(lock).map_or_else(|| format!("queue-{lock}"), |(name, _)| (*name).to_owned())
}

impl Job {
    /// Returns a job that waits as long as it must, works for this long, and has no fault.
    pub(super) fn new(locks: Vec<usize>, kind: JobKind, work: Duration, session_timeout: Duration) -> Job {
        Job {
            number: 0,
            at: Duration::ZERO,
            locks,
            kind,
            wait: Wait::Forever,
            work,
            status: 0,
            on_term: OnTerm::Dies,
            second: false,
            session_timeout,
            stop_on_suspect: false,
            json: false,
            debug: false,
            stderr: Stderr::File,
            trouble: None,
            library: None,
        }
    }

    /// Returns the words between `lockkeeper run` and `--`.
    pub(super) fn words(&self) -> Vec<String> {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let mut words: Vec<String> = self.locks.iter().map(|lock| name(*lock)).collect();
        words.extend(["--session-timeout".into(), millis(self.session_timeout)]);
        words.extend(["-m".into(), format!("job {}", self.number)]);
        words.extend(self.kind.options());
        match self.wait {
            Wait::Forever => {}
            // A leased lock is granted immediately, taken from a lower owner, or refused.
            Wait::Try if self.kind.is_lease() => {}
            Wait::Try => words.push("--try".into()),
            Wait::Within(wait) => words.extend(["--wait".into(), millis(wait)]),
            Wait::Retries(wait) => {
                words.extend(["--wait", &millis(wait), "--retries", "1", "--retry-delay", "200ms"].map(str::to_owned));
            }
        }
        words.extend(self.stop_on_suspect.then(|| ["--on-suspect".to_owned(), "stop".into()]).into_iter().flatten());
        words.extend(self.json.then(|| "--json".into()));
        words
    }

    /// Returns how long its command may take to end when the lock is lost.
    pub(super) fn grace(&self) -> Duration {
        match self.kind {
            JobKind::Lease { lease, .. } => lease / 4,
            _ => self.session_timeout / 4,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub jobs: Vec<Job>,
    pub faults: Vec<ServerFault>,
}

impl Plan {
    /// Returns the round of a seed. Every third seed is calm: there are no faults, and every job must stay healthy.
    pub(super) fn of(seed: u64) -> Plan {
        let rng = &mut Rng::with_seed(seed);
        let calm = seed.is_multiple_of(3);
        let mut jobs = Vec::new();
        for lock in 0..LOCKS.len() {
            for _ in 0..rng.u32(8..14) {
                let at = upto(rng, ARRIVALS);
                jobs.push(job(rng, at, vec![lock], calm));
            }
        }
        // Jobs with several locks. A lease is one lock; the others are kept apart by family.
        for _ in 0..rng.u32(3..8) {
            let locks = match rng.u8(..4) {
                0 => vec![0, 1],
                1 => vec![1, 2],
                2 => vec![0, 2],
                _ => vec![0, 1, 2],
            };
            let at = upto(rng, ARRIVALS);
            jobs.push(job(rng, at, locks, calm));
        }
        // Queues of equal jobs that start together: the third and later ones are granted long after they joined.
        for _ in 0..2 {
            let (at, lock) = (upto(rng, ARRIVALS), rng.usize(..5));
            let work = upto(rng, Duration::from_millis(2_500));
            for place in 0..rng.u32(3..9) {
                let mut job = job(rng, at + Duration::from_millis(30) * place, vec![lock], calm);
                (job.wait, job.work, job.session_timeout) = (Wait::Forever, work, Duration::from_secs(4));
                jobs.push(job);
            }
        }
        jobs.sort_by_key(|job| job.at);
        jobs.iter_mut().enumerate().for_each(|(number, job)| job.number = number);
        let mut faults: Vec<_> = (0..if calm { 0 } else { rng.u32(..4) }).map(|_| fault(rng)).collect();
        faults.sort_by_key(|fault| fault.at);
        Plan { jobs, faults }
    }
}

fn upto(rng: &mut Rng, most: Duration) -> Duration {
    Duration::from_millis(rng.u64(..=most.as_millis() as u64))
}

pub(super) fn between(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..to))
}

fn one<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

fn job(rng: &mut Rng, at: Duration, locks: Vec<usize>, calm: bool) -> Job {
    let kind = match LOCKS[locks[0]].1 {
        Family::Queue { shared } if rng.u32(..100) < shared => JobKind::Shared,
        Family::Queue { .. } => one(rng, &[JobKind::Plain, JobKind::Exclusive]),
        Family::Permits => JobKind::Permits(rng.u32(1..=PERMITS)),
        Family::Classes => {
            one(rng, &[JobKind::Foreground, JobKind::Background, JobKind::Class('A'), JobKind::Class('C')])
        }
        Family::Leases => JobKind::Lease {
            lease: between(rng, 2_000, 6_000),
            priority: rng.i32(0..4),
            cleanup: Duration::from_millis(one(rng, &[0, 300, 1_000])),
            forceful: rng.u8(..4) == 0,
            waiting: (rng.u8(..2) == 0).then(|| between(rng, 100, 2_000)),
        },
    };
    let wait = match rng.u8(..10) {
        _ if kind.is_lease() => Wait::Try,
        0 => Wait::Try,
        1 | 2 => Wait::Within(between(rng, 300, 5_000)),
        3 => Wait::Retries(between(rng, 300, 1_500)),
        _ => Wait::Forever,
    };
    let trouble = (!calm && rng.u8(..4) == 0).then(|| trouble(rng));
    let work = match rng.u8(..10) {
        // Longer than a session lives: a command that should have been ended meets the next holder.
        _ if trouble.is_some_and(|(_, what)| what.ends_the_hold()) && rng.bool() => between(rng, 6_000, 10_000),
        0 => between(rng, 1_500, 4_000),
        1..=3 => between(rng, 300, 1_500),
        _ => between(rng, 20, 300),
    };
    Job {
        number: 0,
        at,
        locks,
        kind,
        wait,
        work,
        status: one(rng, &[0, 0, 0, 3, 7]),
        on_term: match rng.u8(..4) {
            0 => OnTerm::Finishes(between(rng, 50, 500)),
            1 => OnTerm::Ignores,
            _ => OnTerm::Dies,
        },
        second: rng.u8(..3) == 0,
        session_timeout: Duration::from_secs(one(rng, &[3, 4, 4, 6])),
        stop_on_suspect: rng.u8(..10) == 0,
        json: rng.u8(..8) == 0,
        debug: rng.u8(..8) == 0,
        stderr: match rng.u8(..16) {
            0 => Stderr::Closed,
            1 => Stderr::Full,
            2 => Stderr::NoSpace,
            _ => Stderr::File,
        },
        trouble,
        library: None,
    }
}

fn trouble(rng: &mut Rng) -> (Moment, Trouble) {
    let moment = match rng.u8(..3) {
        0 => Moment::AfterStart(between(rng, 0, 1_500)),
        _ => Moment::AfterBegin(between(rng, 0, 600)),
    };
    let whom = one(rng, &[Whom::Keeper, Whom::Keeper, Whom::Command, Whom::Group, Whom::Both, Whom::All]);
    let trouble = match rng.u8(..10) {
        0..=2 => Trouble::Signal(Signal::KILL, whom),
        3 | 4 => Trouble::Signal(one(rng, &[Signal::TERM, Signal::INT]), whom),
        5 | 6 => Trouble::Stop(whom, between(rng, 50, 8_000)),
        7 | 8 => Trouble::Revoke,
        _ => Trouble::Break,
    };
    match trouble {
        // They concern a holder.
        Trouble::Revoke | Trouble::Break => (Moment::AfterBegin(between(rng, 0, 600)), trouble),
        _ => (moment, trouble),
    }
}

fn fault(rng: &mut Rng) -> ServerFault {
    ServerFault {
        at: upto(rng, ARRIVALS),
        what: one(rng, &[ServerTrouble::Kill, ServerTrouble::End, ServerTrouble::Stop]),
        behind: one(rng, &[0, 0, 1, 2]),
        down: between(rng, 50, 4_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_jobs_and_faults_again() {
        for seed in 0..50 {
            assert_eq!(Plan::of(seed), Plan::of(seed));
            assert_ne!(Plan::of(seed), Plan::of(seed + 1));
        }
    }

    #[test]
    fn every_kind_of_job_and_fault_comes() {
        let plans: Vec<_> = (0..60).map(Plan::of).collect();
        let jobs = || plans.iter().flat_map(|plan| &plan.jobs);
        let troubles = || jobs().filter_map(|job| job.trouble).map(|(_, trouble)| trouble);
        assert!(jobs().any(|job| job.locks.len() > 1) && jobs().any(|job| job.kind.is_lease()));
        for whom in [Whom::Keeper, Whom::Command, Whom::Group, Whom::Both, Whom::All] {
            assert!(troubles().any(|trouble| trouble == Trouble::Signal(Signal::KILL, whom)));
            assert!(troubles().any(|trouble| matches!(trouble, Trouble::Stop(who, _) if who == whom)));
        }
        assert!(troubles().any(|trouble| trouble == Trouble::Break));
        assert!(troubles().any(|trouble| trouble == Trouble::Revoke));
        for what in [ServerTrouble::Kill, ServerTrouble::End, ServerTrouble::Stop] {
            assert!(plans.iter().flat_map(|plan| &plan.faults).any(|fault| fault.what == what));
        }
        for stderr in [Stderr::Closed, Stderr::Full, Stderr::NoSpace] {
            assert!(jobs().any(|job| job.stderr == stderr));
        }
    }

    #[test]
    fn nothing_is_done_to_anybody_in_a_calm_round() {
        let plan = Plan::of(3);
        assert!(plan.faults.is_empty() && plan.jobs.iter().all(|job| job.trouble.is_none()));
    }
}
