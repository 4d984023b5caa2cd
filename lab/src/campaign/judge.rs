//! Judges a round by its jobs' own logs. Pure.
//!
//! The logs are a history of holds: a job works, and so believes in its locks, from its first line to its last one. Beside
//! that history, each command is judged by its exit status.

#[cfg(test)]
mod tests;

use std::time::Duration;

use lockkeeper_testkit::history::{
    self, Claim, Event, Grant, HoldId, Outcome, Promises, QueuePosition, Share, Verdict, Violation, What,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::plan::{Job, JobKind, OnTerm, PERMITS, Stderr, Trouble, Wait, Whom};

/// How long a command may continue, beyond its grace period, after its lock was taken away: it learns of that late.
const HEARD: Duration = Duration::from_secs(2);

/// How much later than its deadline a wait may end, on a machine that is not busy.
const LATE: Duration = Duration::from_millis(500);

/// Within this time the logs do not show which of two shared jobs was granted first, nor when a waiter left the queue.
const UNSURE: Duration = Duration::from_millis(2_500);

/// How long a session or a lease may block a lock after its last job ended.
const FORMER: Duration = Duration::from_secs(12);

/// A line of a job's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Word {
    Begin {
        pid: i32,
        node: String,
        tokens: Vec<i64>,
    },
    Tick,
    Told,
    /// The number of the lock at this position among its locks.
    Read(usize, u64),
    Wrote(usize, u64),
    Refused,
    End,
    /// A contender with the library is about to request a lock.
    Asking {
        lock: u32,
        limit: Option<Duration>,
    },
    /// What such a contender did; it ends an open request.
    Did(Event),
    /// The library gave an unexpected result.
    Unexpected(String),
}

/// How a `lockkeeper` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Code(i32),
    Signal(i32),
}

/// A fault of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub what: Trouble,
    pub from: Duration,
    pub until: Duration,
}

/// A job with its observations.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(super) job: Job,
    pub pid: u32,
    pub started: Duration,
    /// When it reported that it waits, and for which lock.
    pub(super) waiting: Option<(Duration, usize)>,
    pub(super) lines: Vec<(Duration, Word)>,
    /// The lines of the second process.
    pub(super) second: Vec<(Duration, Word)>,
    pub(super) ended: Option<(Duration, Status)>,
    pub(super) done: Vec<Done>,
    pub said: String,
}

impl Attempt {
    /// Whether it ended with its command's own status, and never doubted its lock.
    pub(super) fn ended_well(&self) -> bool {
        let status = Status::Code(i32::from(self.job.status));
        self.finished() && self.ended.is_some_and(|(_, how)| how == status) && !self.said.contains("relied on")
    }

    /// Returns the node of its lock.
    pub(super) fn node(&self) -> &str {
        match self.lines.first() {
            Some((_, Word::Begin { node, .. })) => node,
            _ => "",
        }
    }

    fn begin(&self) -> Option<(Duration, &[i64])> {
        match self.lines.first()? {
            (at, Word::Begin { tokens, .. }) => Some((*at, tokens)),
            _ => None,
        }
    }

    pub(super) fn begun(&self) -> Option<Duration> {
        self.begin().map(|(at, _)| at)
    }

    /// Returns until when its command certainly worked. Processes that a command leaves behind work without the lock,
    /// as is documented.
    fn last(&self) -> Option<Duration> {
        let alone = |done: &Done| matches!(done.what, Trouble::Signal(_, Whom::Command));
        let own = self.lines.last().map(|(at, _)| *at);
        let second = self.second.last().filter(|_| !self.done.iter().any(alone)).map(|(at, _)| *at);
        own.max(second)
    }

    fn end(&self) -> Duration {
        self.ended.map_or(Duration::MAX, |(at, _)| at)
    }

    fn finished(&self) -> bool {
        matches!(self.lines.last(), Some((_, Word::End)))
    }

    fn token(&self, lock: usize) -> Option<i64> {
        let place = self.job.locks.iter().position(|own| *own == lock)?;
        self.begin()?.1.get(place).copied()
    }

    /// Returns when it was seen waiting, for which lock, and until when it certainly kept its position.
    fn seen_waiting(&self) -> Option<(Duration, usize, Duration)> {
        let (seen, lock) = self.waiting?;
        let one_attempt = !matches!(self.job.wait, Wait::Retries(_)) && !self.job.kind.is_lease();
        let disturbed = self.done.iter().filter(|done| done.what.meets_keeper());
        let kept = disturbed.map(|done| done.from).min().unwrap_or(Duration::MAX);
        (one_attempt && !self.said.contains("again")).then_some((seen, lock, kept))
    }

    /// Its last four digits are the lock.
    fn hold(&self, lock: usize) -> HoldId {
        HoldId((self.job.number * 10_000 + lock) as u64)
    }

    /// Returns from when `other` may take its leased lock by force, or without waiting for a cleanup.
    fn outranked_by(&self, other: &Attempt) -> Option<Duration> {
        match (self.job.kind, other.job.kind) {
            (JobKind::Lease { priority: own, cleanup, .. }, JobKind::Lease { priority, forceful, .. })
                if priority > own =>
            {
                let before = other.begun().zip(self.begun()).is_some_and(|(other, own)| other + HEARD < own);
                ((forceful || cleanup.is_zero()) && !before).then_some(cleanup + HEARD)
            }
            _ => None,
        }
    }
}

/// A round with its observations.
#[derive(Clone, Debug, Default)]
pub(super) struct Storm {
    pub start: Duration,
    pub attempts: Vec<Attempt>,
    /// The times when a server was away, including its recovery.
    pub disturbed: Vec<(Duration, Duration)>,
    /// When a thread without Lockkeeper was late, and by how much.
    pub control: Vec<(Duration, Duration)>,
    /// When a server answered a plain client late, and by how much.
    pub probes: Vec<(Duration, Duration)>,
    /// What was left at the end.
    pub left: Vec<String>,
}

/// The promises to commands. Each wait has its own allowance; the faults of a round excuse a lock that stays free.
pub(super) const PROMISES: Promises = Promises {
    permits: PERMITS,
    lateness: Duration::ZERO,
    abandoned: Duration::ZERO,
    idle: Duration::MAX,
    healthy: None,
    every: None,
};

/// Returns the longest delay of these in a time.
fn late<'a>(seen: impl IntoIterator<Item = &'a (Duration, Duration)>, from: Duration, until: Duration) -> Duration {
    let within = seen.into_iter().filter(|(at, late)| *at >= from && at.saturating_sub(*late) <= until);
    within.map(|(_, late)| *late).max().unwrap_or_default()
}

pub(super) fn judge(storm: &Storm, promises: &Promises) -> Verdict {
    let events: Vec<Event> = storm.attempts.iter().flat_map(|attempt| storm.history(attempt)).collect();
    let mut verdict = history::judge(&events, promises);
    let found = &mut verdict.violations;
    found.extend(storm.attempts.iter().filter_map(|attempt| storm.one(attempt)));
    let left =
        |detail: &String| Violation { claim: Claim::NoOrphan, lock: 0, detail: detail.clone(), contenders: vec![] };
    found.extend(storm.left.iter().map(left));
    verdict
}

impl Storm {
    /// Returns what a job did and believed, as events of its holds.
    fn history(&self, a: &Attempt) -> Vec<Event> {
        let mut events = Vec::new();
        let mut add = |lock: usize, from: Duration, until: Duration, what| {
            let (from, until) = (from.saturating_sub(self.start), until.saturating_sub(self.start));
            events.push(Event { contender: a.job.number as u32, lock: lock as u32, from, until, what });
        };
        let first = a.job.locks[0];
        if a.job.library.is_some() {
            self.library(a, add);
            return events;
        }
        if a.ended.is_none() {
            add(first, a.started, a.started, What::Asked { limit: None, outcome: Outcome::Pending });
        }
        let limit = self.limit(a);
        let class = u32::from(a.job.kind.class());
        let Some(begun) = a.begun() else {
            if a.ended.is_some() {
                add(first, a.started, a.end(), What::Asked { limit, outcome: Outcome::TimedOut });
            }
            self.waited(a, add);
            return events;
        };
        for lock in &a.job.locks {
            let (lock, hold) = (*lock, a.hold(*lock));
            let place = Some(QueuePosition { class, number: None });
            let grant = Grant { hold, share: a.job.kind.share(), token: a.token(lock), place };
            let limit = limit.filter(|_| lock == first);
            add(lock, a.started, begun, What::Asked { limit, outcome: Outcome::Granted(grant) });
            for at in [Some(begun), a.last()].into_iter().flatten() {
                add(lock, at, at, What::Looked { hold, held: true });
            }
            let excuses = self.excuses(a).map(|(from, until)| (from, until, None));
            for (from, until, beside) in excuses.chain(self.forced(a, lock)) {
                let until = until + self.lateness(from, until);
                add(lock, from, until, What::Excused { hold, beside });
            }
        }
        for (at, word) in &a.lines {
            match *word {
                Word::Read(place, order) => {
                    let lock = a.job.locks[place];
                    add(lock, *at, *at, What::Read { hold: a.hold(lock), order });
                }
                Word::Wrote(place, order) => {
                    let lock = a.job.locks[place];
                    let token = a.token(lock).unwrap_or_default();
                    add(lock, *at, *at, What::Wrote { hold: a.hold(lock), token, order, accepted: true });
                }
                _ => {}
            }
        }
        self.waited(a, add);
        events
    }

    /// Adds what a contender with the library did, and what was done to it. A request without an answer is pending.
    fn library(&self, a: &Attempt, mut add: impl FnMut(usize, Duration, Duration, What)) {
        let mut asking = None;
        for (at, word) in &a.lines {
            match word {
                Word::Asking { lock, limit } => asking = Some((*at, *lock, *limit)),
                Word::Did(Event { lock, from, until, what, .. }) => {
                    let mut what = what.clone();
                    if let What::Asked { limit, .. } = &mut what {
                        asking = None;
                        *limit = limit.map(|limit| limit + late(&self.control, *from, *until));
                    }
                    add(*lock as usize, *from, *until, what);
                }
                _ => {}
            }
        }
        if let Some((from, lock, limit)) = asking {
            add(lock as usize, from, a.end(), What::Asked { limit, outcome: Outcome::Pending });
        }
        for done in &a.done {
            let what = if let Trouble::Stop(..) = done.what { What::Stopped } else { What::Died };
            add(a.job.locks[0], done.from, done.until, what);
        }
    }

    fn waited(&self, a: &Attempt, mut add: impl FnMut(usize, Duration, Duration, What)) {
        let Some((seen, lock, kept)) = a.seen_waiting() else { return };
        let until = a.begun().unwrap_or(a.end());
        let exact = a.begun().is_some() && a.job.kind.share() == Share::Alone;
        let (class, slack) = (u32::from(a.job.kind.class()), UNSURE + self.lateness(seen, until));
        let kept = kept.saturating_sub(self.start);
        add(lock, seen, until, What::Waited { class, kept, exact, slack });
    }

    /// Returns from when until when a job may work beside any other, according to the documentation.
    fn excuses(&self, a: &Attempt) -> impl Iterator<Item = (Duration, Duration)> {
        // A session that servers answer outlives a stop of half of its time. A lease ends whenever it ends.
        let outlives = |done: &Done| {
            let stopped = done.until.saturating_sub(done.from) + self.lateness(done.from, done.until);
            stopped < a.job.session_timeout / 2 && !a.job.kind.is_lease() && !self.is_disturbed(a)
        };
        a.done.iter().filter_map(move |done| match done.what {
            // Only the token can reject its writes when it continues; it is killed then.
            Trouble::Stop(Whom::Both | Whom::All, _) if !outlives(done) => Some((done.from, done.until + HEARD)),
            Trouble::Break => Some((done.from, done.until + a.job.grace() + HEARD)),
            _ => None,
        })
    }

    /// Returns beside whom, and from when until when, a job may work because it lost its leased lock by force: to the other one,
    /// or to a third that left it to the other one. The tokens show the order of the grants.
    fn forced(&self, own: &Attempt, lock: usize) -> Vec<(Duration, Duration, Option<HoldId>)> {
        let by = |other: &Attempt| {
            let (at, after) = (other.begun()?, own.outranked_by(other)?);
            (other.job.locks == own.job.locks).then_some((at, at + after))
        };
        let to = |other: &Attempt| {
            let between = self.attempts.iter().filter(|third| {
                own.token(lock) < third.token(lock)
                    && third.token(lock) < other.token(lock)
                    && own.token(lock).is_some()
            });
            by(other).into_iter().chain(between.filter_map(by)).max_by_key(|(_, until)| *until)
        };
        let others = self.attempts.iter().filter(|_| own.job.kind.is_lease());
        others.filter_map(|other| to(other).map(|(from, until)| (from, until, Some(other.hold(lock))))).collect()
    }

    /// Returns how long a job's wait may take, with the lateness of the machine; `None`: as long as it likes.
    fn limit(&self, a: &Attempt) -> Option<Duration> {
        let (ended, status) = a.ended?;
        let stopped = a.done.iter().any(|done| done.what.meets_keeper());
        // At its end lockkeeper waits for a reader of its standard error.
        let unread = if a.job.stderr == Stderr::Full { Duration::from_secs(1) } else { Duration::ZERO };
        let late = LATE + unread + self.lateness(a.started, ended) * 4;
        let refused = a.begun().is_none() && matches!(status, Status::Code(75 | 69));
        match a.job.wait {
            // A server that does not answer may delay leaving the queue for a second, as is documented; and a process needs a
            // moment to start and to end.
            Wait::Within(wait) if !stopped && refused && self.is_disturbed(a) => Some(wait + late + LATE * 3 / 2),
            Wait::Within(wait) if !stopped && (refused || a.begun().is_some()) => Some(wait + late),
            Wait::Try if a.done.is_empty() && !self.is_disturbed(a) && !a.job.kind.is_lease() => {
                (a.begun().is_none() && status == Status::Code(75)).then_some(late + LATE)
            }
            _ => None,
        }
    }

    /// Returns how late the machine, or an undisturbed server, was in this time.
    pub(super) fn lateness(&self, from: Duration, until: Duration) -> Duration {
        late(self.control.iter().chain(&self.probes), from, until)
    }

    fn is_disturbed(&self, attempt: &Attempt) -> bool {
        self.disturbed.iter().any(|(from, until)| *from <= attempt.end() && *until >= attempt.started)
    }

    /// Whether the machine was too busy for a late job to count as a mistake of Lockkeeper.
    fn is_busy(&self, attempt: &Attempt) -> bool {
        let patience = attempt.job.session_timeout / 8;
        let patience = match attempt.job.wait {
            Wait::Within(wait) | Wait::Retries(wait) => patience.min(wait / 4),
            Wait::Forever | Wait::Try => patience,
        };
        self.lateness(attempt.started, attempt.end()) >= patience
    }

    fn outranked(&self, attempt: &Attempt) -> bool {
        let JobKind::Lease { priority: own, .. } = attempt.job.kind else { return false };
        let higher = |kind| matches!(kind, JobKind::Lease { priority, .. } if priority > own);
        self.attempts.iter().any(|other| {
            other.job.locks == attempt.job.locks
                && higher(other.job.kind)
                && other.started <= attempt.end()
                && other.end() >= attempt.started
        })
    }

    /// Whether a job of a higher priority acquired and released its leased lock before this one ended.
    fn was_passed(&self, attempt: &Attempt) -> bool {
        self.attempts.iter().any(|other| {
            other.job.locks == attempt.job.locks
                && attempt.outranked_by(other).is_some()
                && other.begun().is_some_and(|begun| begun >= attempt.started)
                && other.end() <= attempt.end()
        })
    }

    /// Whether its lease may have ended before its work.
    fn outlasts_its_lease(attempt: &Attempt) -> bool {
        let JobKind::Lease { lease, .. } = attempt.job.kind else { return false };
        attempt
            .begun()
            .is_some_and(|begun| attempt.end().saturating_sub(begun) + Duration::from_millis(500) > lease * 3 / 4)
    }

    /// Whether certainly no other job blocked its locks.
    fn was_alone(&self, attempt: &Attempt) -> bool {
        !self.attempts.iter().any(|other| {
            other.job.number != attempt.job.number
                && other.job.locks.iter().any(|lock| attempt.job.locks.contains(lock))
                && other.started <= attempt.end()
                && other.end().saturating_add(FORMER) >= attempt.started
        })
    }

    /// Checks how a command ended.
    fn one(&self, a: &Attempt) -> Option<Violation> {
        let number = a.job.number;
        let (lock, contenders) = (a.job.locks[0] as u32, vec![number as u32]);
        let broken = |claim, detail| Some(Violation { claim, lock, detail, contenders });
        if a.job.library.is_some() {
            let said = a.lines.iter().find_map(|(_, word)| match word {
                Word::Unexpected(what) => Some(what.clone()),
                _ => None,
            });
            let killed = a.done.iter().any(|done| matches!(done.what, Trouble::Signal(..)));
            let may = if killed { Status::Signal(Signal::KILL.as_raw()) } else { Status::Code(0) };
            let well = a.ended.is_some_and(|(_, status)| status == may);
            let ended = || (!well).then(|| format!("contender {number} ended with {:?}: {}", a.ended, a.said));
            return said.or_else(ended).and_then(|detail| broken(Claim::Status, detail));
        }
        let (ended, status) = a.ended?;
        let (undisturbed, busy) = (a.done.is_empty() && !self.is_disturbed(a), self.is_busy(a));
        let took = ended.saturating_sub(a.started);
        let own = Status::Code(i32::from(a.job.status));
        let gives_up = a.job.wait != Wait::Forever;
        let not_granted = status == Status::Code(75) && a.begun().is_none();
        if undisturbed && !busy && !self.outranked(a) && !Storm::outlasts_its_lease(a) {
            let well = status == own && a.finished() || not_granted && gives_up;
            if !well {
                let detail = format!(
                    "nothing was done to job {number}, yet {} with {status:?}",
                    if a.begun().is_some() { "it was stopped: it ended" } else { "it did not begin: it ended" }
                );
                return broken(Claim::Healthy, detail);
            }
            if not_granted && self.was_alone(a) {
                return broken(Claim::Status, format!("job {number} was refused a lock that no other job used"));
            }
        } else if !self.may_end(a, busy).contains(&status) || status == own && !a.finished() {
            let detail = format!(
                "job {number} ended with {status:?}, begun: {}, finished: {}, done to it: {:?}, server disturbed: {}",
                a.begun().is_some(),
                a.finished(),
                a.done,
                self.is_disturbed(a)
            );
            return broken(Claim::Status, detail);
        }
        if let (Wait::Within(wait), Some(_)) = (a.job.wait, self.limit(a))
            && a.begun().is_none()
            && took + Duration::from_millis(20) < wait
        {
            return broken(Claim::Deadline, format!("job {number} waited for {took:?} of {wait:?} only"));
        }
        None
    }

    /// Returns how a job with a fault may end.
    fn may_end(&self, a: &Attempt, busy: bool) -> Vec<Status> {
        let begun = a.begun().is_some();
        let by = |signal: Signal| Status::Code(128 + signal.as_raw());
        let mut may = vec![Status::Code(i32::from(a.job.status))];
        if a.job.wait != Wait::Forever {
            may.push(Status::Code(75));
        }
        if self.is_disturbed(a) || busy {
            may.push(Status::Code(if begun { 76 } else { 69 }));
            // Granted, and lost before the command began.
            may.push(Status::Code(76));
        }
        if self.outranked(a) {
            may.extend([Status::Code(76), Status::Code(75)]);
        }
        if self.was_passed(a) {
            // The record has no owner any more, so a lease taken by force looks like a removed node.
            may.push(Status::Code(76));
        }
        if Storm::outlasts_its_lease(a) {
            may.push(Status::Code(76));
        }
        for done in &a.done {
            match done.what {
                Trouble::Signal(Signal::KILL, whom) if whom.has_keeper() => {
                    may.extend([Status::Signal(9), by(Signal::KILL)]);
                }
                Trouble::Signal(signal, whom) => {
                    may.push(by(signal));
                    // Before it handles signals.
                    may.extend((whom.has_keeper() && !begun).then(|| Status::Signal(signal.as_raw())));
                }
                Trouble::Stop(..) => may.extend([76, 69, 75].map(Status::Code)),
                Trouble::Revoke => may.extend([by(Signal::TERM), Status::Code(75)]),
                Trouble::Break => may.extend([76, 75].map(Status::Code)),
            }
        }
        // It may die of SIGTERM before lockkeeper reports its own status.
        if a.job.on_term == OnTerm::Dies && a.done.iter().any(|done| matches!(done.what, Trouble::Stop(..))) {
            may.push(by(Signal::TERM));
        }
        may
    }
}
