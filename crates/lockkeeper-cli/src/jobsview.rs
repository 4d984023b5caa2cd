//! What people, monitoring and Prometheus see of jobs and their runs.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use lockkeeper_history::Refusal;
use lockkeeper_jobs::{EndKind, JobState, JobStatus, LeftOut, Pause, Resolution, RunEnd, RunRecord};
use lockkeeper_observe::watch::{JobHealth, JobLine};
use lockkeeper_session::text::spell;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::colour::Severity;
use crate::liveline::whole;
use crate::pastview;
use crate::presence::GONE;
use crate::screen::{Size, cut, wrapped};
use crate::servertime::ServerTime;
use crate::text::{moment, plain, when_ms};

/// The number of runs in a sparkline.
const SPARKS: usize = 12;

/// Said of a run that does not count.
const AHEAD: &str = "dated in the future: the clock of a server was ahead";

/// A job with what follows from the servers' time.
#[derive(Debug, Serialize)]
pub(crate) struct JobView<'a> {
    #[serde(flatten)]
    pub job: &'a JobStatus,
    /// Whether it is late.
    pub late: bool,
    /// Whether its last run is dated in the future, so that nothing shows when it ran. Such a job is late.
    pub ahead: bool,
    /// Whether it is paused. Such a job is neither late nor failed.
    pub paused: bool,
    /// What is known of the requests since its last run, if it did not run for one: `refused`, or `silent` if it is late and no machine
    /// is recorded to have asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// The last refused requests since its last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<&'a Refusal>,
    /// How many requests were refused since its last run, on how many machines.
    #[serde(skip)]
    refusals: (u32, usize),
    #[serde(skip)]
    late_at: Option<i64>,
    #[serde(skip)]
    now_ms: i64,
}

/// What is known of the requests for a job that did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Asked {
    /// Machines asked, and did not get the lock.
    Refused,
    /// No machine is recorded to have asked.
    Silent,
}

/// The requests for a job that runs on no machine.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    /// Those that were refused.
    pub refused: Vec<Refusal>,
    /// Whether its lock has a holder or a waiter.
    pub is_in_use: bool,
}

/// Whether a job is in order, as `--check` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    InOrder,
    Late,
    Failed,
}

impl<'a> JobView<'a> {
    /// Returns the view at this time of the servers. With a limit, a job is late if its last success, or the last failure that a
    /// person accepted, is older.
    pub(crate) fn of(job: &'a JobStatus, now_ms: i64, limit: Option<Duration>) -> Self {
        let late_at = late_at(job, now_ms, limit);
        let ahead = job.state != JobState::Running && job.last().is_some_and(|run| is_ahead(job, run, now_ms));
        let paused = is_paused(job, now_ms);
        let late = !paused && (ahead || late_at.is_some_and(|at| now_ms > at));
        JobView { job, late, ahead, paused, asked: None, refused: None, refusals: (0, 0), late_at, now_ms }
    }

    /// Returns the view at the servers' time, or at this machine's if that is not known.
    pub(crate) fn at(job: &'a JobStatus, time: &ServerTime) -> Self {
        JobView::of(job, ms(time.now.unwrap_or_else(SystemTime::now)), None)
    }

    /// Adds what is known of the requests for it.
    pub(crate) fn with_requests(mut self, requests: Option<&'a Requests>) -> Self {
        let Some(requests) = requests.filter(|_| !self.paused) else { return self };
        let last = self.job.last().and_then(|run| run.end_ms.or(run.start_ms)).unwrap_or(i64::MIN);
        let since: Vec<_> = requests.refused.iter().filter(|refusal| ms(refusal.last) > last).collect();
        let hosts: HashSet<_> = since.iter().map(|refusal| &refusal.owner.host).collect();
        self.refusals = (since.iter().map(|refusal| refusal.count).sum(), hosts.len());
        self.refused = since.into_iter().max_by_key(|refusal| refusal.last);
        // Before that, a machine that asks is told that the slot is done, which leaves no record.
        let is_due = self.job.due_ms.is_some_and(|due| self.now_ms > due);
        self.asked = match self.refused {
            Some(_) => Some(Asked::Refused),
            None => (is_due && self.late && !self.ahead && !requests.is_in_use).then_some(Asked::Silent),
        };
        self
    }

    /// Returns when the passing time changes its line, if nothing else does: it becomes late or silent, its pause ends, or a run takes a
    /// second longer.
    pub(crate) fn changes_in(&self) -> Option<Duration> {
        let late = self.late_at.filter(|_| !self.late);
        let due = self.job.due_ms.filter(|due| self.job.state != JobState::Running && self.now_ms <= *due);
        let after = |at: i64| at.saturating_sub(self.now_ms).saturating_add(1);
        let start = self.job.last().filter(|_| self.job.state == JobState::Running).and_then(|run| run.start_ms);
        let second = start.map(|start| 1000 - self.now_ms.saturating_sub(start).rem_euclid(1000));
        let resumes = self.pause().and_then(|pause| pause.until_ms);
        let ms = late.into_iter().chain(due).chain(resumes).map(after).chain(second).min()?;
        Some(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
    }

    /// Returns its pause, if it is paused.
    pub(crate) fn pause(&self) -> Option<&'a Pause> {
        self.job.pause.as_ref().filter(|_| self.paused)
    }

    /// Returns whether it is paused until a person thinks of it.
    pub(crate) fn is_paused_without_end(&self) -> bool {
        self.pause().is_some_and(|pause| pause.until_ms.is_none())
    }

    /// Returns whether the job is in order.
    pub(crate) fn health(&self) -> Health {
        let has_failed = |run: &RunRecord| run.has_failed() && !run.is_accepted();
        match self.job.state {
            _ if self.paused => Health::InOrder,
            // A failed job that runs again is not in order before it succeeds.
            JobState::Running if !self.late && ended(self.job).is_some_and(has_failed) => Health::Failed,
            // The record of a crash that nobody has found has no end.
            JobState::Failed | JobState::Crashed if self.job.last().is_none_or(|run| !run.is_accepted()) => {
                Health::Failed
            }
            JobState::Kept | JobState::Unreadable => Health::Failed,
            _ if self.late => Health::Late,
            _ => Health::InOrder,
        }
    }

    /// Returns the colour of its state.
    fn colour(&self) -> Severity {
        match self.health() {
            Health::Failed => Severity::Serious,
            Health::Late => Severity::Notice,
            Health::InOrder if self.asked.is_some() || self.is_paused_without_end() => Severity::Notice,
            Health::InOrder => Severity::None,
        }
    }

    /// `ok`, `running`, `failed`, `crashed`, `needs a person`, `never ran`, with `late`, `silent` or `paused` after it; `refused`, `paused`.
    fn state(&self) -> String {
        let state = state_name(self.job.state);
        match (self.job.state, self.asked) {
            (JobState::NeverRan | JobState::Ok, _) if self.paused => "paused".to_owned(),
            _ if self.paused => format!("{state}, paused"),
            (JobState::NeverRan | JobState::Ok, Some(Asked::Refused)) if self.late => "refused, late".to_owned(),
            (JobState::NeverRan | JobState::Ok, Some(Asked::Refused)) => "refused".to_owned(),
            (JobState::NeverRan | JobState::Ok, Some(Asked::Silent)) => "silent".to_owned(),
            (_, Some(Asked::Silent)) => format!("{state}, silent"),
            (JobState::NeverRan | JobState::Ok, None) if self.late => "late".to_owned(),
            _ if self.late => format!("{state}, late"),
            _ => state.to_owned(),
        }
    }

    /// Returns the cells of its line in the table.
    fn cells(&self, sparks: bool) -> Vec<String> {
        let name = name_of(&self.job.path);
        if let Some(problem) = &self.job.unreadable {
            return vec![name.to_owned(), "unreadable".to_owned(), problem.clone()];
        }
        let Some(run) = self.job.last() else {
            let cells = [name, &self.state(), "-", "-", "-", "-", "", &self.why_idle().join("; ")];
            return cells.map(str::to_owned).to_vec();
        };
        let start = run.start_ms.map_or_else(|| "?".to_owned(), when_ms);
        let took = match took(run) {
            Some(took) => took,
            None if self.job.state == JobState::Running => {
                let ms = run.start_ms.map_or(0, |start| self.now_ms.saturating_sub(start));
                format!("{} so far", whole(Duration::from_millis(u64::try_from(ms).unwrap_or(0))))
            }
            None => "-".to_owned(),
        };
        let how = match &run.end {
            // The next machine that asks records the crash.
            None => (self.job.state == JobState::Kept).then(|| "no end was recorded".to_owned()),
            Some(end) => (end.kind != EndKind::Succeeded).then(|| how(run)),
        };
        let cells = [name.to_owned(), self.state(), run.slot.name.clone(), start, took, run.by.host.clone()];
        let mut cells = cells.to_vec();
        cells.push(if sparks { sparkline(&self.job.runs) } else { String::new() });
        let notes = [
            how,
            self.before_this_run(),
            self.job.process_gone.then(|| GONE.to_owned()),
            self.ahead.then(|| AHEAD.to_owned()),
        ]
        .into_iter()
        .flatten();
        let accepted = run.resolved.as_ref().filter(|_| run.is_accepted()).map(decision);
        let notes = notes.chain(accepted).chain(waiting_reruns(self.job)).chain(self.why_idle());
        cells.push(notes.collect::<Vec<_>>().join("; "));
        cells
    }

    /// Its pause, and what is known of a job that did not run for the requests since its last run.
    fn why_idle(&self) -> Vec<String> {
        let mut notes: Vec<_> = self.pause().map(paused).into_iter().collect();
        if let (Some(expected), None) = (&self.job.expected, self.job.last()) {
            let schedule = self.job.schedule.as_ref().map_or_else(String::new, |schedule| format!(", {schedule}"));
            notes.push(format!("expected since {}{schedule}", when_ms(expected.since_ms)));
        }
        match (self.asked, self.refused) {
            (_, Some(refusal)) => {
                let (count, hosts) = self.refusals;
                let times = if count > 1 { format!(" {count} x") } else { String::new() };
                let (host, why) = (&refusal.owner.host, pastview::why_refused(refusal));
                let at = moment(refusal.last);
                notes.push(match hosts {
                    0 | 1 => format!("refused{times} on {host}, last at {at}: {why}"),
                    hosts => format!("refused{times} on {hosts} machines, last on {host} at {at}: {why}"),
                });
            }
            (Some(Asked::Silent), None) => notes.push("no machine is recorded to have asked".to_owned()),
            _ => {}
        }
        notes
    }

    /// What the run before a running one left to be said: it failed or crashed, so that the job is not in order before this one succeeds.
    fn before_this_run(&self) -> Option<String> {
        let before = ended(self.job).filter(|_| self.job.state == JobState::Running)?;
        let is_bad = before.has_failed() && !before.is_accepted();
        is_bad.then(|| format!("the run before, slot {}, {}", before.slot.name, outcome(before)))
    }

    /// Returns the line of `--check`: `nightly: failed: slot 2026-11-22 failed on db7 at 02:13 with exit status 3`.
    pub(crate) fn line(&self) -> String {
        plain(&format!("{}: {}", name_of(&self.job.path), self.status()))
    }

    /// Returns its state and its last run, without its name.
    pub(crate) fn status(&self) -> String {
        let idle = || self.why_idle().iter().map(|note| format!("; {note}")).collect::<String>();
        let text = match (&self.job.unreadable, self.job.last()) {
            (Some(problem), _) => format!("unreadable: {problem}"),
            (None, None) => format!("{}{}", self.state(), idle()),
            (None, Some(run)) => {
                let gone = if self.job.process_gone { format!("; {GONE}") } else { String::new() };
                let ahead = if self.ahead { format!("; {AHEAD}") } else { String::new() };
                let before = self.before_this_run().map_or_else(String::new, |before| format!("; {before}"));
                format!("{}: slot {} {}{before}{gone}{ahead}{}", self.state(), run.slot.name, outcome(run), idle())
            }
        };
        plain(&text)
    }
}

const fn state_name(state: JobState) -> &'static str {
    match state {
        JobState::NeverRan => "never ran",
        JobState::Running => "running",
        JobState::Ok => "ok",
        JobState::Failed => "failed",
        JobState::Crashed => "crashed",
        JobState::Kept => "needs a person",
        _ => "unreadable",
    }
}

/// Returns the last run that has ended.
pub(crate) fn ended(job: &JobStatus) -> Option<&RunRecord> {
    job.runs.iter().rev().find(|run| run.end.is_some())
}

/// Whether a run is dated so far in the future that it does not count.
fn is_ahead(job: &JobStatus, run: &RunRecord, now_ms: i64) -> bool {
    job.schedule.as_ref().is_some_and(|schedule| schedule.is_ahead(run, now_ms))
}

/// Whether a job is paused at this time of the servers.
fn is_paused(job: &JobStatus, now_ms: i64) -> bool {
    job.pause.as_ref().is_some_and(|pause| pause.is_in_effect(now_ms))
}

/// When a job becomes late, if ever: its last success, or the last failure that a person accepted, is older than the limit, or,
/// without a limit, a whole slot has passed. Its last run may be in the future; then it is late now. A pause that is over counts as a
/// success at its end.
fn late_at(job: &JobStatus, now_ms: i64, limit: Option<Duration>) -> Option<i64> {
    if job.unreadable.is_some() || is_paused(job, now_ms) {
        return None;
    }
    let resumed = job.pause.as_ref().and_then(|pause| pause.until_ms).unwrap_or(i64::MIN);
    let Some(limit) = limit else {
        let due = job.due_ms.filter(|_| job.state != JobState::Running)?;
        return Some(due.max(resumed).saturating_add(job.schedule.as_ref()?.longest_ms()?));
    };
    let counts = |run: &&RunRecord| (run.has_succeeded() || run.is_accepted()) && !is_ahead(job, run, now_ms);
    // Nobody knows when a crash was.
    let success = job.runs.iter().rev().find(counts).and_then(|run| run.end_ms.or(run.start_ms));
    let since = success.or_else(|| job.runs.first().and_then(|run| run.start_ms));
    let since = since.or(job.expected.as_ref().map(|expected| expected.since_ms));
    let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    Some(since.unwrap_or(i64::MIN).max(resumed).saturating_add(limit))
}

/// A time in milliseconds since 1970.
fn ms(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the name that people type.
fn name_of(path: &str) -> &str {
    path.strip_prefix("/locks/").unwrap_or(path)
}

/// `done by db7 at 02:13:05`, `failed with exit status 3 on db7 at 02:13:05`, `crashed on db7, started at 02:13:05: …`
pub(crate) fn outcome(run: &RunRecord) -> String {
    let host = &run.by.host;
    let at = run.end_ms.or(run.start_ms).map_or_else(|| "?".to_owned(), when_ms);
    plain(&match &run.end {
        None => format!("started on {host} at {at}"),
        Some(end) if end.kind == EndKind::Succeeded => format!("done by {host} at {at}"),
        Some(end) => {
            let when = match (run.end_ms, end.kind) {
                // Nobody knows when a crash was.
                (None, _) => ", started at",
                // A lockkeeper that was paused records it late.
                (_, EndKind::Lost) => ", recorded at",
                _ => " at",
            };
            let why = end.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            format!("{} on {host}{when} {at}{why}", kind_of(end))
        }
    })
}

/// `failed with exit status 3`, `timed out with signal 15: ran longer than 1 h`
fn how(run: &RunRecord) -> String {
    let Some(end) = &run.end else { return "running".to_owned() };
    let why = end.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    format!("{}{why}", kind_of(end))
}

/// `failed with exit status 3`, `timed out with signal 15`
fn kind_of(end: &RunEnd) -> String {
    let with = if end.kind == EndKind::Lost { "; the command ended with" } else { " with" };
    match (end.signal, end.status) {
        (Some(signal), _) => format!("{}{with} signal {signal}", end.kind),
        (None, Some(status)) if status != 0 => format!("{}{with} exit status {status}", end.kind),
        _ => end.kind.to_string(),
    }
}

/// Returns how long a run took, if that is known. The end of a lost run is recorded late if its lockkeeper was paused.
fn took(run: &RunRecord) -> Option<String> {
    let time = spell(run.duration()?);
    let is_lost = run.end.as_ref().is_some_and(|end| end.kind == EndKind::Lost);
    Some(if is_lost { format!("at most {time}") } else { time })
}

/// Draws the durations of the last runs, relative to the longest. A run without an end in the records is a space.
fn sparkline(runs: &[RunRecord]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let last = &runs[runs.len().saturating_sub(SPARKS)..];
    let longest = last.iter().filter_map(RunRecord::duration).max().unwrap_or_default().as_millis().max(1);
    let bar = |run: &RunRecord| {
        run.duration().map_or(' ', |took| {
            let at = usize::try_from(took.as_millis() * (BARS.len() as u128 - 1) / longest).unwrap_or(0);
            BARS[at.min(BARS.len() - 1)]
        })
    };
    last.iter().map(bar).collect()
}

/// Returns the table of jobs. On a terminal of this many columns, what does not fit behind a job is below it.
pub(crate) fn table(jobs: &[JobView<'_>], terminal: Option<usize>) -> String {
    rows(&jobs.iter().collect::<Vec<_>>(), terminal).iter().map(|row| row.painted(row.text(terminal))).collect()
}

/// Whether the job runs on no machine now, so that requests for it say why.
pub(crate) fn is_idle(job: &JobStatus) -> bool {
    job.state != JobState::Running && job.state != JobState::Unreadable
}

/// Returns the lines for the page of `observe`: those of jobs that are not in order first, and then those of running ones.
pub(crate) fn lines(jobs: &mut [JobView<'_>]) -> Vec<JobLine> {
    jobs.sort_by_key(|view| (Reverse(view.health()), view.asked.is_none(), view.job.state != JobState::Running));
    let line = |view: &JobView<'_>| {
        let health = match view.health() {
            Health::Failed => JobHealth::Failed,
            Health::InOrder if view.asked.is_none() => JobHealth::InOrder,
            Health::Late | Health::InOrder => JobHealth::Doubtful,
        };
        let mut cells = view.cells(false).into_iter().skip(1);
        let mut cell = || cells.next().unwrap_or_default();
        let path = view.job.path.clone();
        match view.job.unreadable {
            Some(_) => {
                let (state, notes, none) = (cell(), cell(), String::new);
                JobLine { path, state, health, slot: none(), started: none(), took: none(), host: none(), notes }
            }
            None => {
                let [state, slot, started, took, host, _, notes] = std::array::from_fn(|_| cell());
                JobLine { path, state, health, slot, started, took, host, notes }
            }
        }
    };
    jobs.iter().map(line).collect()
}

/// Returns what fits on a terminal of this size: a line for each job, those that are not in order first, and how many more there are.
pub(crate) fn screen(jobs: &[JobView<'_>], size: Size) -> String {
    let mut jobs: Vec<_> = jobs.iter().collect();
    jobs.sort_by_key(|job| Reverse(job.health()));
    let mut lines: Vec<_> =
        rows(&jobs, Some(size.columns)).iter().map(|row| row.painted(cut(&row.line(), size.columns))).collect();
    if lines.len() > size.rows {
        // The heading and the last line are no jobs.
        let shown = size.rows.saturating_sub(2);
        lines.truncate(1 + shown);
        let left_out = &jobs[shown.min(jobs.len())..];
        let bad = left_out.iter().filter(|job| job.health() != Health::InOrder).count();
        let order = if bad == 0 { "all in order".to_owned() } else { format!("{bad} of them not in order") };
        lines.push(format!("… {} more, {order}", left_out.len()));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Returns the lines of the table. The sparklines are for a terminal that has room for them.
fn rows(jobs: &[&JobView<'_>], terminal: Option<usize>) -> Vec<Row> {
    let rows = |sparks: bool| {
        let mut head = ["JOB", "STATE", "SLOT", "STARTED", "TOOK", "HOST", "RUNS", ""].map(str::to_owned).to_vec();
        if !sparks {
            head[6] = String::new();
        }
        let mut rows = columns(std::iter::once(head).chain(jobs.iter().map(|job| job.cells(sparks))));
        rows.iter_mut().skip(1).zip(jobs).for_each(|(row, job)| row.colour = job.colour());
        rows
    };
    let with_sparks = terminal.map(|width| (width, rows(true)));
    let fits = |(width, rows): &(usize, Vec<Row>)| rows.iter().all(|row| row.line().width() <= *width);
    with_sparks.filter(fits).map_or_else(|| rows(false), |(_, rows)| rows)
}

/// `paused by alice@db7 (pid 4711) since 02:13:05 until 06:00:00: the database moves`
pub(crate) fn paused(pause: &Pause) -> String {
    let until = pause.until_ms.map_or(", without an end".to_owned(), |until| format!(" until {}", when_ms(until)));
    plain(&format!("paused by {} since {}{until}: {}", pause.by, when_ms(pause.since_ms), pause.reason))
}

/// `left out at 02:13:05: paused by alice@db7 (pid 4711): the database moves`
pub(crate) fn left_out(left: &LeftOut) -> String {
    plain(&format!("left out at {}: paused by {}: {}", when_ms(left.at_ms), left.by, left.reason))
}

/// Returns the table of a job's runs and of the slots that a pause left out, with the kept output below each run.
pub(crate) fn history(job: &JobStatus, terminal: Option<usize>) -> String {
    let head = ["SLOT", "STARTED", "TOOK", "HOST", "TOKEN", "END"].map(str::to_owned).to_vec();
    let of_run = |run: &RunRecord| {
        let start = run.start_ms.map_or_else(|| "?".to_owned(), when_ms);
        let took = took(run).unwrap_or_else(|| "-".to_owned());
        let mut end = match &run.end {
            None if job.state == JobState::Running => "running".to_owned(),
            None => "crashed".to_owned(),
            Some(end) if end.kind == EndKind::Succeeded => "ok".to_owned(),
            Some(_) => how(run),
        };
        if run.attempt > 1 {
            _ = write!(end, ", attempt {}", run.attempt);
        }
        if run.catch_up {
            end.push_str(", caught up");
        }
        if run.missed_before > 0 {
            _ = write!(end, ", {} missed before", run.missed_before);
        }
        if let Some(resolved) = &run.resolved {
            _ = write!(end, ", {}", decision(resolved));
        }
        vec![run.slot.name.clone(), start, took, run.by.host.clone(), run.token.clone(), end]
    };
    let of_left_out = |left: &LeftOut| {
        let why = plain(&format!("left out: paused by {}: {}", left.by, left.reason));
        let none = || "-".to_owned();
        vec![left.slot.name.clone(), when_ms(left.at_ms), none(), none(), none(), why]
    };
    let (mut lines, mut ends, mut left_out) = (vec![head], Vec::new(), job.left_out.iter().peekable());
    for run in &job.runs {
        let is_before = |left: &&LeftOut| run.start_ms.is_some_and(|start| left.at_ms <= start);
        while let Some(left) = left_out.next_if(is_before) {
            lines.push(of_left_out(left));
            ends.push(None);
        }
        lines.push(of_run(run));
        ends.push(run.end.as_ref());
    }
    lines.extend(left_out.map(of_left_out));
    ends.resize(lines.len() - 1, None);
    let mut rows = columns(lines.into_iter()).into_iter();
    let mut text = rows.next().map_or_else(String::new, |head| head.text(terminal));
    for (row, end) in rows.zip(ends) {
        text.push_str(&row.text(terminal));
        if end.is_some_and(|end| end.output_cut) {
            text.push_str("    […]\n");
        }
        let output = end.and_then(|end| end.output.as_deref()).unwrap_or_default();
        for line in output.lines() {
            _ = writeln!(text, "    {}", plain(line));
        }
    }
    text
}

/// `to run again by alice@db7 (pid 4711) at 02:13:05`
fn decision(resolved: &Resolution) -> String {
    let what = if resolved.run_again { "to run again" } else { "accepted" };
    let at = resolved.at_ms.map_or_else(String::new, |at| format!(" at {}", when_ms(at)));
    format!("{what} by {}{at}", resolved.by)
}

/// The decisions that the next host obeys: `slot 2026-11-22 to run again by alice@db7 (pid 4711) at 02:13:05`
fn waiting_reruns(job: &JobStatus) -> impl Iterator<Item = String> {
    let is_newest = |at: usize| job.runs[at + 1..].iter().all(|later| later.slot != job.runs[at].slot);
    job.runs.iter().enumerate().filter(move |(at, run)| run.is_to_run_again() && is_newest(*at)).filter_map(
        |(_, run)| run.resolved.as_ref().map(|resolved| format!("slot {} {}", run.slot.name, decision(resolved))),
    )
}

/// A line of a table.
struct Row {
    /// The cells before the last one, each with the width of its column.
    cells: String,
    last: String,
    /// Where the second cell is.
    state: Range<usize>,
    /// Its colour.
    colour: Severity,
}

impl Row {
    fn line(&self) -> String {
        format!("{}{}", self.cells, self.last).trim_end().to_owned()
    }

    /// Colours the state in a text that begins with the cells of this line, as far as it was not cut.
    fn painted(&self, text: String) -> String {
        match (text.get(self.state.clone()), self.cells.get(self.state.clone())) {
            (Some(state), Some(whole)) if state == whole => {
                format!("{}{}{}", &text[..self.state.start], self.colour.paint(state), &text[self.state.end..])
            }
            _ => text,
        }
    }

    /// The line, or on a terminal of this many columns the lines: the last cell is below the others if it does not fit.
    fn text(&self, terminal: Option<usize>) -> String {
        let line = self.line();
        match terminal {
            Some(width) if line.width() > width => {
                let last = wrapped(&format!("    {}", self.last), width, 4);
                format!(
                    "{}\n{}",
                    wrapped(self.cells.trim_end(), width, 4),
                    if self.last.is_empty() { String::new() } else { last + "\n" }
                )
            }
            _ => line + "\n",
        }
    }
}

/// Puts cells into columns. The last cell of a line may be longer than its column.
fn columns(lines: impl Iterator<Item = Vec<String>>) -> Vec<Row> {
    let lines: Vec<Vec<_>> = lines.map(|cells| cells.iter().map(|cell| plain(cell)).collect()).collect();
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        let short = lines.iter().filter(|cells| at + 1 < cells.len() || cells.len() == count);
        short.filter_map(|cells: &Vec<String>| cells.get(at)).map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..count).map(width).collect();
    let row = |cells: &Vec<String>| {
        let (mut line, mut state) = (String::new(), 0..0);
        let Some((last, others)) = cells.split_last() else {
            return Row { cells: line, last: String::new(), state, colour: Severity::None };
        };
        for (at, cell) in others.iter().enumerate().filter(|(at, _)| widths[*at] > 0) {
            if at == 1 {
                state = line.len()..line.len() + cell.len();
            }
            line.push_str(cell);
            let pad = widths[at].saturating_sub(cell.width()) + 2;
            line.extend(std::iter::repeat_n(' ', pad));
        }
        Row { cells: line, last: last.clone(), state, colour: Severity::None }
    };
    lines.iter().map(row).collect()
}

/// Returns the metrics of the jobs in Prometheus' text format.
pub(crate) fn prometheus(jobs: &[JobView<'_>]) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, help: &str, value: &dyn Fn(&JobView<'_>) -> Option<f64>| {
        _ = writeln!(text, "# HELP lockkeeper_job_{name} {help}\n# TYPE lockkeeper_job_{name} gauge");
        for job in jobs {
            if let Some(value) = value(job) {
                _ = writeln!(text, "lockkeeper_job_{name}{{job=\"{}\"}} {value}", label(&job.job.path));
            }
        }
    };
    let seconds = |ms: i64| ms as f64 / 1000.0;
    let flag = |is: bool| Some(f64::from(u8::from(is)));
    metric("running", "Whether a host runs the job now.", &|job| flag(job.job.state == JobState::Running));
    metric(
        "failed",
        "Whether the last run failed or crashed and nobody accepted that, or the records cannot be read.",
        &|job| flag(job.health() == Health::Failed),
    );
    metric("late", "Whether the job is late.", &|job| flag(job.late));
    metric("paused", "Whether the job is paused, so neither late nor failed.", &|job| flag(job.paused));
    metric("needs_person", "Whether a person must decide.", &|job| {
        flag(job.job.state == JobState::Kept && !job.paused)
    });
    metric("last_start_timestamp_seconds", "When the last run began, by the servers' clock.", &|job| {
        job.job.last()?.start_ms.map(seconds)
    });
    metric("last_success_timestamp_seconds", "When the last success ended, by the servers' clock.", &|job| {
        job.job.last_success()?.end_ms.map(seconds)
    });
    metric("last_duration_seconds", "How long the last run with an end took.", &|job| {
        job.job.runs.iter().rev().find_map(RunRecord::duration).map(|took| took.as_secs_f64())
    });
    metric("last_exit_status", "Exit status of the last run with one.", &|job| {
        job.job.runs.iter().rev().find_map(|run| run.end.as_ref()?.status).map(f64::from)
    });
    text
}

/// Escapes the value of a label.
fn label(value: &str) -> String {
    plain(value).replace('\\', "\\\\").replace('"', "\\\"")
}
