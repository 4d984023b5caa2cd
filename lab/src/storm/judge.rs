//! Judges a round by its jobs' own logs. Pure.
//!
//! A job works from its first line to its last one. Each rule reports only certain violations.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::plan::{Job, Kind, LOCKS, OnTerm, PERMITS, Plant, Share, Stderr, Trouble, Wait, Whom};

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
        tokens: Vec<i64>,
    },
    Tick,
    Told,
    /// The number of the lock at this position among its locks.
    Read(usize, u64),
    Wrote(usize, u64),
    Refused,
    End,
}

/// Reads a log, with a line of JSON for each word. Ignores a last line that was cut off.
pub(super) fn lines(text: &str) -> Vec<(Duration, Word)> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
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
pub(super) struct Attempt {
    pub job: Job,
    pub pid: u32,
    pub started: Duration,
    /// When it reported that it waits, and for which lock.
    pub waiting: Option<(Duration, usize)>,
    pub lines: Vec<(Duration, Word)>,
    /// The lines of the second process.
    pub second: Vec<(Duration, Word)>,
    pub ended: Option<(Duration, Status)>,
    pub done: Vec<Done>,
    /// Its standard error.
    pub said: String,
}

impl Attempt {
    fn begin(&self) -> Option<(Duration, &[i64])> {
        match self.lines.first()? {
            (at, Word::Begin { tokens, .. }) => Some((*at, tokens)),
            _ => None,
        }
    }

    fn begun(&self) -> Option<Duration> {
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

    /// Whether it certainly kept its position since it was seen waiting.
    fn kept_its_place(&self, until: Duration) -> bool {
        let one_attempt = !matches!(self.job.wait, Wait::Retries(_)) && !self.job.kind.is_lease();
        let again = self.said.contains("again");
        let disturbed = |done: &Done| match done.what {
            Trouble::Signal(_, whom) | Trouble::Stop(whom, _) => whom.has_keeper() && done.from < until,
            Trouble::Revoke | Trouble::Break => done.from < until,
        };
        one_attempt && !again && !self.done.iter().any(disturbed)
    }

    /// Returns from when until when it may work beside others, according to the documentation.
    fn excuse(&self) -> Option<(Duration, Duration)> {
        self.done
            .iter()
            .filter_map(|done| match done.what {
                // Only the token can reject its writes when it continues; it is killed then.
                Trouble::Stop(Whom::Both | Whom::All, _) => Some((done.from, done.until + HEARD)),
                Trouble::Break => Some((done.from, done.until + self.job.grace() + HEARD)),
                _ => None,
            })
            .min()
    }

    /// Returns from when `other` may take its leased lock by force, or without waiting for a cleanup.
    fn outranked_by(&self, other: &Attempt) -> Option<Duration> {
        match (self.job.kind, other.job.kind) {
            (Kind::Lease { priority: own, cleanup, .. }, Kind::Lease { priority, forceful, .. }) if priority > own => {
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
    pub attempts: Vec<Attempt>,
    /// The times when a server was away, including its recovery.
    pub disturbed: Vec<(Duration, Duration)>,
    /// When a thread without Lockkeeper was late, and by how much.
    pub control: Vec<(Duration, Duration)>,
    /// What was left at the end.
    pub left: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    /// Jobs that exclude each other do not work at the same time.
    Exclusion,
    /// A job that lost its lock ends in time.
    EndsInTime,
    /// Tokens grow from grant to grant.
    Tokens,
    /// No update of the protected resource is lost.
    NoLostUpdate,
    /// First come, first served within a class.
    Order,
    /// A job without a fault is not stopped.
    HealthyStaysHealthy,
    /// The exit status fits the events.
    Status,
    /// A wait ends at its deadline, neither earlier nor later.
    Deadline,
    /// Every call ends.
    End,
    /// Nothing is left behind.
    NothingLeft,
}

impl Promise {
    /// Returns the promise that a planted mistake breaks.
    pub(super) fn broken_by(plant: Plant) -> Promise {
        match plant {
            Plant::Skip => Promise::Exclusion,
            Plant::Flee => Promise::EndsInTime,
            Plant::Overtake => Promise::Order,
            Plant::Kill => Promise::HealthyStaysHealthy,
            Plant::Late => Promise::Deadline,
            Plant::Token => Promise::Tokens,
            Plant::Stray => Promise::NothingLeft,
        }
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub promise: Promise,
    pub detail: String,
    /// The numbers of the jobs.
    pub jobs: Vec<usize>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.detail)
    }
}

/// Judges a round.
pub(super) fn judge(storm: &Storm) -> Vec<Broken> {
    let mut found = Vec::new();
    for lock in 0..LOCKS.len() {
        let all: Vec<&Attempt> = storm.attempts.iter().filter(|attempt| attempt.job.locks.contains(&lock)).collect();
        let court = Court { storm, lock, all };
        court.exclusion(&mut found);
        court.permits(&mut found);
        court.tokens(&mut found);
        court.updates(&mut found);
        court.order(&mut found);
    }
    for attempt in &storm.attempts {
        found.extend(storm.one(attempt));
    }
    found.extend(storm.left.iter().map(|what| Broken {
        promise: Promise::NothingLeft,
        detail: what.clone(),
        jobs: vec![],
    }));
    found
}

/// One lock with its jobs.
struct Court<'a> {
    storm: &'a Storm,
    lock: usize,
    all: Vec<&'a Attempt>,
}

impl Court<'_> {
    fn broken(&self, promise: Promise, detail: String, jobs: &[&Attempt]) -> Broken {
        let detail = format!("{}: {detail}", LOCKS[self.lock].0);
        Broken { promise, detail, jobs: jobs.iter().map(|attempt| attempt.job.number).collect() }
    }

    fn exclusion(&self, found: &mut Vec<Broken>) {
        for (place, a) in self.all.iter().enumerate() {
            for b in &self.all[place + 1..] {
                let (Some(from), Some(until)) = (a.begun().zip(b.begun()), a.last().zip(b.last())) else { continue };
                let (from, until) = (from.0.max(from.1), until.0.min(until.1));
                if from >= until || !a.job.kind.share().excludes(b.job.kind.share()) {
                    continue;
                }
                let names = format!("jobs {} and {} worked at the same time", a.job.number, b.job.number);
                let together = until - from;
                // An excuse counts if it began before the other job did.
                let excuses = [(a, b), (b, a)].into_iter().filter_map(|(own, other)| {
                    let forced = own.outranked_by(other).zip(other.begun()).map(|(by, at)| (Duration::ZERO, at + by));
                    let forced_before = self.forced_between(own, other);
                    let excuses = own.excuse().into_iter().chain(forced).chain(forced_before);
                    let (since, bound) = excuses.max_by_key(|(_, bound)| *bound)?;
                    (since <= from.max(other.begun()?)).then_some((own, bound))
                });
                let Some((who, bound)) =
                    excuses.max_by_key(|(own, bound)| bound.saturating_sub(own.last().unwrap_or_default()))
                else {
                    found.push(self.broken(Promise::Exclusion, format!("{names} for {together:?}"), &[a, b]));
                    continue;
                };
                let bound = bound + self.storm.lateness(from, bound);
                if who.last() > Some(bound) {
                    let late = who.last().unwrap_or_default() - bound;
                    let detail = format!("{names}; job {} had to stop {late:?} before it did", who.job.number);
                    found.push(self.broken(Promise::EndsInTime, detail, &[a, b]));
                }
            }
        }
    }

    /// Returns since when and until when `own` may work beside `other`, because a third job took the lease from `own` and left it
    /// to `other`. The tokens show the order of the grants.
    fn forced_between(&self, own: &Attempt, other: &Attempt) -> Option<(Duration, Duration)> {
        let between = |third: &Attempt| {
            let (own, third, other) = (own.token(self.lock)?, third.token(self.lock)?, other.token(self.lock)?);
            Some(own < third && third < other)
        };
        let forced = self.all.iter().filter(|third| between(third) == Some(true));
        let forced = forced.filter_map(|third| own.outranked_by(third).zip(third.begun()));
        forced.map(|(by, at)| (at, at + by)).min()
    }

    /// Checks more than pairs: three jobs that each take one of three permits, and a fourth.
    fn permits(&self, found: &mut Vec<Broken>) {
        for attempt in &self.all {
            let Some(at) = attempt.begun().filter(|_| matches!(attempt.job.kind, Kind::Permits(_))) else { continue };
            let working = self.all.iter().filter(|other| {
                let excused = other.excuse().is_some_and(|(since, _)| since <= at);
                other.begun().is_some_and(|begun| begun <= at) && other.last() > Some(at) && !excused
            });
            let working: Vec<&Attempt> = working.copied().collect();
            let taken: u32 = working
                .iter()
                .map(|other| match other.job.kind {
                    Kind::Permits(take) => take,
                    _ => 0,
                })
                .sum();
            if taken > PERMITS {
                let detail = format!("{taken} of {PERMITS} permits were taken when job {} began", attempt.job.number);
                found.push(self.broken(Promise::Exclusion, detail, &working));
            }
        }
    }

    fn tokens(&self, found: &mut Vec<Broken>) {
        for (a, b) in self.pairs() {
            let (Some(before), Some(after)) = (a.token(self.lock), b.token(self.lock)) else { continue };
            let both_read = !a.job.kind.share().excludes(b.job.kind.share());
            // A job that is preempted before its command begins may begin it after the other's end.
            let preempted = b.outranked_by(a).is_some();
            if a.last() < b.begun() && before >= after && !both_read && !preempted {
                let detail =
                    format!("job {} had token {before}, and job {} after it {after}", a.job.number, b.job.number);
                found.push(self.broken(Promise::Tokens, detail, &[a, b]));
            }
        }
    }

    fn updates(&self, found: &mut Vec<Broken>) {
        let mut written: BTreeMap<u64, &Attempt> = BTreeMap::new();
        let mut all = Vec::new();
        for attempt in &self.all {
            for (at, word) in &attempt.lines {
                if let Word::Wrote(place, number) = word
                    && attempt.job.locks[*place] == self.lock
                {
                    all.push((*at, *number, *attempt));
                    if let Some(other) = written.insert(*number, attempt) {
                        let detail =
                            format!("jobs {} and {} both wrote {number}", other.job.number, attempt.job.number);
                        found.push(self.broken(Promise::NoLostUpdate, detail, &[other, attempt]));
                    }
                }
            }
        }
        for attempt in &self.all {
            let read = attempt.lines.iter().find_map(|(_, word)| match word {
                Word::Read(place, number) if attempt.job.locks[*place] == self.lock => Some(*number),
                _ => None,
            });
            let (Some(read), Some(begun)) = (read, attempt.begun()) else { continue };
            if let Some((_, number, other)) = all.iter().find(|(at, number, _)| *at < begun && *number > read) {
                let detail = format!(
                    "job {} read {read} after job {} had written {number}",
                    attempt.job.number, other.job.number
                );
                found.push(self.broken(Promise::NoLostUpdate, detail, &[attempt, other]));
            }
        }
    }

    fn order(&self, found: &mut Vec<Broken>) {
        for (a, b) in self.pairs() {
            let Some((seen, at_lock)) = a.waiting else { continue };
            let Some(began) = b.begun() else { continue };
            let comes_after = at_lock == self.lock && b.started > seen && !b.job.kind.is_lease();
            if !comes_after || a.job.kind.class() > b.job.kind.class() || !a.kept_its_place(began) {
                continue;
            }
            let alone = a.job.kind.share() == Share::Alone && b.job.kind.share() == Share::Alone;
            let slack = UNSURE + self.storm.lateness(seen, began);
            let overtaken = match a.begun() {
                Some(own) if alone => began < own,
                Some(own) => began + slack < own,
                // It left without the lock, at some time before its end.
                None => began + slack < a.end(),
            };
            if overtaken {
                let detail = format!(
                    "job {} waited before job {} was started, which was served first",
                    a.job.number, b.job.number
                );
                found.push(self.broken(Promise::Order, detail, &[a, b]));
            }
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (&Attempt, &Attempt)> {
        let all = &self.all;
        all.iter().flat_map(move |a| all.iter().filter(move |b| a.job.number != b.job.number).map(move |b| (*a, *b)))
    }
}

impl Storm {
    /// Returns how late the machine was in this time.
    pub(super) fn lateness(&self, from: Duration, until: Duration) -> Duration {
        let within = self.control.iter().filter(|(at, late)| *at >= from && at.saturating_sub(*late) <= until);
        within.map(|(_, late)| *late).max().unwrap_or_default()
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
        let Kind::Lease { priority: own, .. } = attempt.job.kind else { return false };
        let higher = |kind| matches!(kind, Kind::Lease { priority, .. } if priority > own);
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
        let Kind::Lease { lease, .. } = attempt.job.kind else { return false };
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

    /// Checks one job by itself.
    fn one(&self, a: &Attempt) -> Option<Broken> {
        let number = a.job.number;
        let broken = |promise, detail| Some(Broken { promise, detail, jobs: vec![number] });
        let Some((ended, status)) = a.ended else {
            return broken(Promise::End, format!("lockkeeper of job {number} did not end"));
        };
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
                return broken(Promise::HealthyStaysHealthy, detail);
            }
            if not_granted && self.was_alone(a) {
                return broken(Promise::Status, format!("job {number} was refused a lock that no other job used"));
            }
        } else if !self.may_end(a, busy).contains(&status) || status == own && !a.finished() {
            let detail = format!(
                "job {number} ended with {status:?}, begun: {}, finished: {}, done to it: {:?}, server disturbed: {}",
                a.begun().is_some(),
                a.finished(),
                a.done,
                self.is_disturbed(a)
            );
            return broken(Promise::Status, detail);
        }
        let stopped = a.done.iter().any(|done| match done.what {
            Trouble::Stop(whom, _) | Trouble::Signal(_, whom) => whom.has_keeper(),
            Trouble::Revoke | Trouble::Break => true,
        });
        // At its end lockkeeper waits for a reader of its standard error.
        let unread = if a.job.stderr == Stderr::Full { Duration::from_secs(1) } else { Duration::ZERO };
        let late = LATE + unread + self.lateness(a.started, ended) * 4;
        match a.job.wait {
            Wait::Within(wait) if !stopped => {
                let refused = a.begun().is_none() && matches!(status, Status::Code(75 | 69));
                let waited = if refused { took } else { a.begun().unwrap_or(a.started).saturating_sub(a.started) };
                // A server that does not answer may delay leaving the queue for a second, as is documented; and a
                // process needs a moment to start and to end.
                let late = if refused && self.is_disturbed(a) { late + LATE * 3 / 2 } else { late };
                let early = refused && took + Duration::from_millis(20) < wait;
                if early || waited > wait + late {
                    let detail = format!(
                        "job {number} waited for {waited:?} of {wait:?} (machine late by {:?}, server disturbed: {})",
                        self.lateness(a.started, ended),
                        self.is_disturbed(a)
                    );
                    return broken(Promise::Deadline, detail);
                }
            }
            Wait::Try if undisturbed && not_granted && !a.job.kind.is_lease() && took > late + LATE => {
                return broken(Promise::Deadline, format!("job {number} tried for {took:?}"));
            }
            _ => {}
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
            may.extend([Status::Code(79), Status::Code(75)]);
        }
        if self.was_passed(a) {
            // The record has no owner any more, so a lease taken by force looks like a removed node.
            may.extend([Status::Code(76), Status::Code(81)]);
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
                Trouble::Break => may.extend([76, 81, 75].map(Status::Code)),
            }
        }
        // It may die of SIGTERM before lockkeeper reports its own status.
        if a.job.on_term == OnTerm::Dies && a.done.iter().any(|done| matches!(done.what, Trouble::Stop(..))) {
            may.push(by(Signal::TERM));
        }
        may
    }
}
