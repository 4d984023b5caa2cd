//! Judges a round by its jobs' own logs. Pure.
//!
//! A job works from its first line to its last one. Each rule reports only certain violations.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::plan::{Job, Kind, LOCKS, OnTerm, PERMITS, Stderr, Trouble, Wait, Whom};

/// How long a command may continue, beyond its grace period, after its lock was taken away: it learns of that late.
const HEARD: Duration = Duration::from_secs(2);

/// How much later than its deadline a wait may end, on a machine that is not busy.
const LATE: Duration = Duration::from_millis(500);

/// Within this time the logs do not show which of two shared jobs was granted first, nor when a waiter left the queue.
const UNSURE: Duration = Duration::from_millis(2_500);

/// How long a session or a lease may block a lock after its last job ended.
const FORMER: Duration = Duration::from_secs(12);

/// Which other jobs may work beside a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    Alone,
    Reads,
    Permits(u32),
}

impl Share {
    fn excludes(self, other: Share) -> bool {
        match (self, other) {
            (Share::Reads, Share::Reads) => false,
            (Share::Permits(a), Share::Permits(b)) => a + b > PERMITS,
            _ => true,
        }
    }
}

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

/// A promise.
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
                    let (since, bound) = own.excuse().into_iter().chain(forced).max_by_key(|(_, bound)| *bound)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Returns a job that works from `begin` until `end` under the first lock, with this token.
    fn worked(number: usize, begin: f64, end: f64, token: i64) -> Attempt {
        let job = Job {
            number,
            at: s(begin),
            locks: vec![0],
            kind: Kind::Plain,
            wait: Wait::Forever,
            work: s(end - begin),
            status: 3,
            on_term: OnTerm::Dies,
            second: false,
            session_timeout: s(4.0),
            stop_on_suspect: false,
            json: false,
            debug: false,
            stderr: Stderr::File,
            trouble: None,
        };
        Attempt {
            job,
            pid: 100,
            started: s(begin - 0.1),
            waiting: None,
            lines: vec![(s(begin), Word::Begin { pid: 200, tokens: vec![token] }), (s(end), Word::End)],
            second: vec![],
            ended: Some((s(end + 0.1), Status::Code(3))),
            done: vec![],
            said: String::new(),
        }
    }

    fn found(attempts: Vec<Attempt>) -> Vec<Promise> {
        judged(Storm { attempts, ..Storm::default() })
    }

    fn judged(storm: Storm) -> Vec<Promise> {
        judge(&storm).into_iter().map(|broken| broken.promise).collect()
    }

    fn done(mut attempt: Attempt, what: Trouble, from: f64, until: f64) -> Attempt {
        attempt.done.push(Done { what, from: s(from), until: s(until) });
        attempt
    }

    #[test]
    fn a_lock_that_works_is_not_accused() {
        assert_eq!(found(vec![worked(0, 1.0, 2.0, 5), worked(1, 2.0, 3.0, 6)]), []);
    }

    #[test]
    fn two_at_once_are_found_unless_both_share() {
        assert_eq!(found(vec![worked(0, 1.0, 2.0, 5), worked(1, 1.9, 3.0, 6)]), [Promise::Exclusion]);
        let mut both = vec![worked(0, 1.0, 2.0, 5), worked(1, 1.9, 3.0, 6)];
        both.iter_mut().for_each(|attempt| attempt.job.kind = Kind::Shared);
        assert_eq!(found(both), []);
    }

    #[test]
    fn a_fourth_permit_of_three_is_found() {
        let take = |number, begin| {
            let mut attempt = worked(number, begin, 5.0, 0);
            (attempt.job.kind, attempt.job.locks) = (Kind::Permits(1), vec![3]);
            attempt
        };
        assert_eq!(found(vec![take(0, 1.0), take(1, 1.1), take(2, 1.2)]), []);
        assert_eq!(found(vec![take(0, 1.0), take(1, 1.1), take(2, 1.2), take(3, 1.3)]), [Promise::Exclusion]);
    }

    #[test]
    fn a_second_process_that_works_on_is_found() {
        let mut first = worked(0, 1.0, 2.0, 5);
        first.second = vec![(s(2.5), Word::Tick)];
        let orphaned = done(first.clone(), Trouble::Signal(Signal::KILL, Whom::Command), 1.9, 1.9);
        assert_eq!(found(vec![first, worked(1, 2.2, 3.0, 6)]), [Promise::Exclusion]);
        assert_eq!(found(vec![orphaned, worked(1, 2.2, 3.0, 6)]), [], "what a command leaves has no lock");
    }

    #[test]
    fn a_job_that_was_broken_may_overlap_until_its_grace_is_over() {
        let broken = |end| {
            let mut attempt = done(worked(0, 1.0, end, 5), Trouble::Break, 1.5, 1.6);
            attempt.ended = Some((s(end + 0.1), Status::Code(76)));
            attempt
        };
        assert_eq!(found(vec![broken(2.0), worked(1, 1.8, 8.0, 6)]), []);
        assert_eq!(found(vec![broken(5.0), worked(1, 1.8, 8.0, 6)]), [Promise::EndsInTime]);
        assert_eq!(found(vec![broken(2.0), worked(1, 1.2, 8.0, 6)]), [Promise::Exclusion], "it was not broken yet");
    }

    #[test]
    fn a_stopped_job_is_excused_only_together_with_its_lockkeeper() {
        let stopped = |whom| {
            let mut attempt = done(worked(0, 1.0, 9.1, 5), Trouble::Stop(whom, s(8.0)), 1.0, 9.0);
            attempt.ended = Some((s(9.2), Status::Code(76)));
            attempt
        };
        let found = |whom| found(vec![stopped(whom), worked(1, 7.0, 10.0, 6)]);
        assert_eq!(found(Whom::All), []);
        assert_eq!(found(Whom::Keeper), [Promise::Exclusion]);
        assert_eq!(found(Whom::Group), [Promise::Exclusion]);
    }

    #[test]
    fn a_token_that_does_not_grow_is_found() {
        assert_eq!(found(vec![worked(0, 1.0, 2.0, 5), worked(1, 2.1, 3.0, 5)]), [Promise::Tokens]);
    }

    #[test]
    fn a_lost_update_is_found() {
        let counts = |number, begin: f64, read, token| {
            let mut attempt = worked(number, begin, begin + 1.0, token);
            attempt.lines.insert(1, (s(begin + 0.1), Word::Read(0, read)));
            attempt.lines.insert(2, (s(begin + 0.9), Word::Wrote(0, read + 1)));
            attempt
        };
        assert_eq!(found(vec![counts(0, 1.0, 7, 5), counts(1, 2.0, 8, 6)]), []);
        let lost = found(vec![counts(0, 1.0, 7, 5), counts(1, 2.0, 7, 6)]);
        assert!(!lost.is_empty() && lost.iter().all(|promise| *promise == Promise::NoLostUpdate), "{lost:?}");
    }

    #[test]
    fn whoever_was_seen_waiting_is_served_before_those_who_came_later() {
        let pair = |waiting: f64| {
            let mut first = worked(0, 5.0, 6.0, 6);
            (first.started, first.waiting) = (s(1.0), Some((s(waiting), 0)));
            vec![first, worked(1, 3.0, 4.0, 5)]
        };
        assert_eq!(found(pair(2.0)), [Promise::Order]);
        assert_eq!(found(pair(2.95)), [], "not seen before the other was started");
        let mut again = pair(2.0);
        again[0].said = "the session is lost; joining the queue again".into();
        assert_eq!(found(again), []);
    }

    #[test]
    fn a_healthy_job_that_is_stopped_is_found_and_one_of_a_disturbed_server_is_not() {
        let mut attempt = worked(0, 1.0, 2.0, 5);
        attempt.lines.pop();
        attempt.ended = Some((s(2.0), Status::Code(76)));
        assert_eq!(found(vec![attempt.clone()]), [Promise::HealthyStaysHealthy]);
        let disturbed = vec![(s(0.0), s(3.0))];
        assert_eq!(judged(Storm { attempts: vec![attempt.clone()], disturbed, ..Storm::default() }), []);
        let control = vec![(s(1.5), s(1.0))];
        assert_eq!(judged(Storm { attempts: vec![attempt], control, ..Storm::default() }), [], "a busy machine");
    }

    #[test]
    fn an_exit_status_that_does_not_fit_is_found() {
        let killed = |code| {
            let mut attempt = done(worked(0, 1.0, 2.0, 5), Trouble::Signal(Signal::TERM, Whom::Group), 1.5, 1.5);
            attempt.lines.pop();
            attempt.ended = Some((s(2.0), Status::Code(code)));
            found(vec![attempt])
        };
        assert_eq!(killed(143), []);
        assert_eq!(killed(76), [Promise::Status]);
        assert_eq!(killed(3), [Promise::Status], "its own status, though it has not finished");
    }

    #[test]
    fn a_lease_taken_by_force_may_look_removed_only_if_its_taker_is_done() {
        let leased = |number: usize, begin, end, priority| {
            let mut attempt = worked(number, begin, end, number as i64 + 5);
            let lease = s(60.0);
            attempt.job.kind = Kind::Lease { priority, lease, cleanup: Duration::ZERO, forceful: true, waiting: None };
            attempt
        };
        let ends = |code, other: Attempt| {
            let mut first = leased(0, 1.0, 4.0, 1);
            first.ended = Some((s(4.1), Status::Code(code)));
            found(vec![first, other])
        };
        for code in [76, 81] {
            assert_eq!(ends(code, leased(1, 3.8, 3.9, 2)), []);
            assert_eq!(ends(code, leased(1, 3.8, 9.0, 2)), [Promise::Status], "its taker still has it");
            assert_eq!(ends(code, leased(1, 0.1, 0.5, 2)), [Promise::HealthyStaysHealthy], "before it");
        }
        assert_eq!(ends(79, leased(1, 3.8, 9.0, 2)), []);
    }

    #[test]
    fn a_wait_that_ends_early_or_late_is_found() {
        let waits = |took: f64| {
            let mut attempt = worked(0, 1.0, 2.0, 5);
            attempt.job.wait = Wait::Within(s(2.0));
            attempt.lines.clear();
            (attempt.started, attempt.ended) = (s(1.0), Some((s(1.0 + took), Status::Code(75))));
            // Another job has it.
            found(vec![attempt, worked(1, 0.5, 4.0, 4)])
        };
        assert_eq!(waits(2.1), []);
        assert_eq!(waits(1.5), [Promise::Deadline]);
        assert_eq!(waits(3.0), [Promise::Deadline]);
    }

    #[test]
    fn a_command_that_does_not_end_and_what_is_left_are_found() {
        let mut attempt = worked(0, 1.0, 2.0, 5);
        attempt.ended = None;
        assert_eq!(found(vec![attempt]), [Promise::End]);
        assert_eq!(judged(Storm { left: vec!["a node".into()], ..Storm::default() }), [Promise::NothingLeft]);
    }

    #[test]
    fn a_line_that_was_cut_off_is_none() {
        let said = [Word::Begin { pid: 7, tokens: vec![5, 6] }, Word::Tick, Word::Wrote(0, 12), Word::End];
        let text: String = said.iter().map(|word| serde_json::to_string(&(s(1.0), word)).unwrap() + "\n").collect();
        let words: Vec<_> = lines(&text[..text.len() - 3]).into_iter().map(|(_, word)| word).collect();
        assert_eq!(words, said[..3]);
    }
}
