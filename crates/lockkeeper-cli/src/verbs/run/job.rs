//! `lockkeeper run --once-per`, `--every` and `--slot`: claims the slot of a job, runs the command, records its end.
//!
//! Under cron, every line of output becomes mail. So a slot that another machine has done is no message without a terminal,
//! unless `--verbose` or `--json` asks for it.

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use lockkeeper::{Acquire, Guard, Lockkeeper, Loss};
use lockkeeper_config::settings::IfUnreachable;
use lockkeeper_jobs::{
    Claim, EndKind, Job, JobError, JobState, JobStatus, JobsAdmin, NotRecorded, Rule, Run, RunEnd, RunRecord, Skipped,
    server_now_ms,
};
use lockkeeper_session::text::spell;
use tokio::time::{Instant, timeout, timeout_at};

use super::acquisition::{Acquisition, LEAVING};
use super::args::OnDeadlock;
use super::hold;
use super::records::{Records, WRITING};
use super::release::RELEASING;
use super::request::Request;
use super::slots::JobArgs;
use super::tail::Tail;
use crate::advice::Suggested;
use crate::broken::{self, LostPositions};
use crate::child::{CommandEnd, Extras};
use crate::exit::{Code, Failure};
use crate::grace::Term;
use crate::held::Held;
use crate::output::Printer;
use crate::presence::GONE;
use crate::servertime::ServerTime;
use crate::signals::{self, Signals};
use crate::text::when_ms;
use crate::waiting::Wait;
use crate::{jobsview, nested};

/// What a machine does about the slot.
enum Claimed {
    Run(Box<Run>),
    Skipped(Box<Skipped>),
    /// No server was reachable, and the command runs all the same.
    WithoutLock,
}

/// Runs the slot, and those to catch up; returns the exit status.
pub(super) async fn run(mut acquisition: Acquisition<'_>, signals: &mut Signals) -> Result<u8, Failure> {
    let ended = slots(&mut acquisition, signals).await;
    if let Err(failure) = &ended {
        let records = async |acquisition: &Acquisition<'_>, end| {
            acquisition.record_refusal(failure, end).await;
            if failure.code == Code::NotAcquired {
                _ = timeout_at(end, expect(acquisition)).await;
            }
        };
        acquisition.give_up(failure, records).await;
    } else {
        acquisition.send_kept(Instant::now() + WRITING).await;
        acquisition.leave(LEAVING).await;
    }
    match ended {
        Err(failure) if failure.code == Code::NotAcquired => Ok(acquisition.request.not_acquired(&failure)),
        ended => ended,
    }
}

async fn slots(acquisition: &mut Acquisition<'_>, signals: &mut Signals) -> Result<u8, Failure> {
    let (args, printer) = (&acquisition.request.args, acquisition.request.printer);
    acquisition.deadline = acquisition.request.wait.and_then(|wait| Instant::now().checked_add(wait));
    loop {
        let claimed = tokio::select! {
            biased;
            signal = signals.next() => return Ok(signals::status(signal.as_raw())),
            claimed = claim(acquisition) => claimed.map_err(|failure| acquisition.named(failure))?,
        };
        let run = match claimed {
            Claimed::Run(run) => run,
            Claimed::Skipped(skipped) => return skip(acquisition, &skipped).await,
            Claimed::WithoutLock => {
                printer.note("no server is reachable: the command runs without the lock and without a record (--if-unreachable run)");
                let extras = Extras { slot: args.job.slot.clone(), ..Extras::default() };
                let terms = acquisition.request.terms(args.grace.unwrap_or(GRACE));
                let ended = hold(&args.command, None, Held::Nothing, signals, (terms, extras), printer).await?;
                return Ok(own_status(&ended).map_or(ended.status, |code| printer.ended(super::args::STATUSES, code)));
            }
        };
        let more = run.record().catch_up;
        let status = run_slot(acquisition, *run, signals).await?;
        if !more || status != 0 || signals.are_to_end() {
            return Ok(status);
        }
    }
}

/// The grace period of a command without a lock.
const GRACE: Duration = Duration::from_secs(5);

/// Returns the job that the options describe.
fn job(keeper: &Lockkeeper, request: &Request) -> Job {
    let JobArgs { once_per, every, slot, time_zone, on_failure, on_crash, catch_up, keep_runs, .. } = &request.args.job;
    let mut job = Job::new(keeper, request.path().as_str()).command(request.program());
    job = match (once_per, every, slot) {
        (Some(per), ..) => job.once_per(*per).time_zone(time_zone.as_deref().unwrap_or("UTC")),
        (_, Some(every), _) => job.every(*every),
        (.., Some(slot)) => job.slot(slot),
        _ => job,
    };
    if let Some(runs) = keep_runs {
        job = job.keep_runs(*runs);
    }
    let (on_failure, on_crash) = (on_failure.unwrap_or_default(), on_crash.unwrap_or_default());
    job.on_failure(on_failure).on_crash(on_crash).catch_up(catch_up.unwrap_or_default())
}

/// Lets `jobs` show a job that was asked for and has never run, unless the history is switched off.
async fn expect(acquisition: &Acquisition<'_>) {
    let request = acquisition.request;
    let Some(keeper) = acquisition.keeper.as_ref().filter(|_| request.has_history) else { return };
    if let Err(error) = job(keeper, request).expect().await {
        tracing::info!(%error, "the job has no records");
    }
}

/// Connects, waits for the lock, and claims the slot.
async fn claim(acquisition: &mut Acquisition<'_>) -> Result<Claimed, Failure> {
    let (args, printer) = (&acquisition.request.args, acquisition.request.printer);
    loop {
        let connected = match acquisition.keeper.clone() {
            Some(keeper) => Ok(keeper),
            None => acquisition.connect().await,
        };
        let keeper = match connected {
            Ok(keeper) => keeper,
            Err(failure) if failure.code == Code::Unreachable => match args.job.if_unreachable.unwrap_or_default() {
                IfUnreachable::Run => return Ok(Claimed::WithoutLock),
                IfUnreachable::Wait if acquisition.remaining().is_none_or(|left| !left.is_zero()) => {
                    printer.note(&format!("{}; trying again", failure.message));
                    continue;
                }
                _ => return Err(failure),
            },
            Err(failure) => return Err(failure),
        };
        acquisition.keeper = Some(keeper.clone());
        acquisition.tell_granted_timeout(&keeper);
        let path = acquisition.request.path().clone();
        let job = job(&keeper, acquisition.request);
        let limit = if acquisition.request.once { Some(Duration::ZERO) } else { acquisition.remaining() };
        let (session, mut lost) = (keeper.session_id(), LostPositions::new(printer));
        let report = lost.report();
        let options = |acquire: Acquire<Guard>| {
            let mut acquire =
                acquire.requeue(acquisition.request.tries_on()).on_requeued(report).while_holding(nested::held());
            if let Some(limit) = limit {
                acquire = acquire.timeout(limit);
            }
            if let Some(delay) = acquisition.request.args.lock.lock_delay {
                acquire = acquire.lock_delay(delay);
            }
            if let Some(traceparent) = acquisition.request.traceparent {
                acquire = acquire.traceparent(traceparent.to_string());
            }
            match &acquisition.request.args.lock.message {
                Some(message) => acquire.message(message),
                None => acquire,
            }
        };
        let wait = Wait { started: acquisition.started, limit: acquisition.request.wait };
        let asked = SystemTime::now();
        let claimed = tokio::select! {
            biased;
            claimed = job.claim_with(options) => claimed,
            failure = nested::waits_for_itself(&keeper, &acquisition.request.paths), if !acquisition.request.once => return Err(failure),
            failure = nested::closes_a_ring(&keeper, &acquisition.request.paths), if args.lock.deadlock == OnDeadlock::Fail => return Err(failure),
            // A line about the wait would be mail for each machine that has nothing to do.
            never = acquisition.report.run(&keeper, &acquisition.request.paths, wait, printer), if is_asked_for(acquisition.request) => match never {},
            never = lost.tell_authors(&keeper) => match never {},
        };
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(JobError::Acquire(error)) => {
                return Err(nested::failed_wait(error, &keeper, session, acquisition.remaining()).await);
            }
            Err(error) => return Err(error.into()),
        };
        return Ok(match claimed {
            Claim::Run(run) => {
                let start = run.record().start_ms;
                let far = start.and_then(|at| ServerTime::far_off(&run.slot().name, at, asked, SystemTime::now()));
                far.iter().for_each(|note| printer.note(&format!("{path}: {note}")));
                acquisition.report.acquired(&acquisition.request.paths, acquisition.started, printer);
                Claimed::Run(Box::new(run))
            }
            Claim::Skipped(skipped) => Claimed::Skipped(Box::new(skipped)),
        });
    }
}

/// Whether someone wants to read why nothing is run.
fn is_asked_for(request: &Request) -> bool {
    let Request { args, printer, .. } = request;
    !args.quiet && (args.job.verbose || printer.is_json() || std::io::stderr().is_terminal())
}

/// Ends without a run; returns the exit status.
async fn skip(acquisition: &Acquisition<'_>, skipped: &Skipped) -> Result<u8, Failure> {
    let printer = acquisition.request.printer;
    let path = acquisition.request.path().as_str();
    let tell = |text: String| {
        if is_asked_for(acquisition.request) {
            printer.note(&text);
        }
        Ok(0)
    };
    let run = match skipped {
        Skipped::Paused { slot, pause, crash_found } => {
            if let Some(crashed) = crash_found {
                tell_crash(path, crashed, printer);
            }
            return tell(format!("{path}, slot {}: left out: {}", slot.name, jobsview::paused(pause)));
        }
        _ => skipped.run().expect("every other reason is a run"),
    };
    let slot = format!("{path}, slot {}", run.slot.name);
    match skipped {
        Skipped::Done { due_ms, crash_found, .. } => {
            if let Some(crashed) = crash_found {
                tell_crash(path, crashed, printer);
            }
            let due = due_ms.map_or_else(String::new, |due| format!("; the next one begins at {}", when_ms(due)));
            tell(format!("{slot}: {}{due}", jobsview::outcome(run)))
        }
        Skipped::Passed { .. } => {
            // Not the usual end of a host that comes second: the job misses a run.
            printer.note(&format!(
                "{path}: a later slot, {}, has run already, so this one stays missed: a server's clock was ahead then or is behind now",
                run.slot.name
            ));
            Ok(0)
        }
        Skipped::Running { .. } if is_own(acquisition, run).await? => {
            // Two more requests, and most machines that come second say nothing.
            if is_asked_for(acquisition.request) && is_gone(acquisition).await {
                return tell(format!("{slot}, started on {}: {GONE}", run.by));
            }
            tell(format!("{slot}: running on {} since {}", run.by, run.start_ms.map_or_else(String::new, when_ms)))
        }
        Skipped::Running { .. } => {
            let since = run.start_ms.map_or_else(String::new, |at| format!(" since {}", when_ms(at)));
            let message = match is_gone(acquisition).await {
                true => format!("{slot}, started on {}{since}: {GONE}, and until then no slot is run", run.by),
                false => format!("{slot} is still running on {}{since}, so the slot after it is not run", run.by),
            };
            let failure = Failure::new(Code::NotAcquired, message);
            let failure = failure.advise("see its runs", Suggested::new(["jobs", path, "--history"]));
            acquisition.record_refusal(&failure, Instant::now() + WRITING).await;
            Ok(acquisition.request.not_acquired(&failure))
        }
        _ => Err(Failure::new(
            Code::Kept,
            format!("{slot}: {}; {}", jobsview::outcome(run), who_keeps(acquisition, run).await),
        )
        .advise("see what happened", Suggested::new(["jobs", path, "--history"]))
        .advise("run the slot again", Suggested::new(["jobs", "resolve", path, "--again"]))
        .advise("or count it as done", Suggested::new(["jobs", "resolve", path, "--accept"]))),
    }
}

/// Reads the job; `None` if it has no records, or nobody answers.
async fn read(acquisition: &Acquisition<'_>) -> Option<JobStatus> {
    let path = acquisition.request.path().as_str();
    JobsAdmin::new(acquisition.keeper.as_ref()?).job(path).await.ok()?
}

/// Whether the process of the open run has ended on this machine. No answer means that this is not known.
async fn is_gone(acquisition: &Acquisition<'_>) -> bool {
    read(acquisition).await.is_some_and(|job| job.process_gone)
}

/// Says who keeps a run for a person: the records of the job, or only the rule of this machine.
async fn who_keeps(acquisition: &Acquisition<'_>, run: &RunRecord) -> String {
    let args = &acquisition.request.args;
    let is_crash = run.end.as_ref().is_some_and(|end| end.kind.is_crash());
    let (option, rule) = match is_crash {
        true => ("--on-crash", args.job.on_crash),
        false => ("--on-failure", args.job.on_failure),
    };
    let waits = "the job waits for a person".to_owned();
    if rule != Some(Rule::Keep) || acquisition.keeper.is_none() {
        return waits;
    }
    match read(acquisition).await {
        Some(job) if job.state == JobState::Kept => waits,
        _ => format!("the rule {option} keep of this run lets no slot run before a person decides"),
    }
}

/// Prints that this machine has found a crash, also without a terminal: nobody else says so.
fn tell_crash(path: &str, crashed: &RunRecord, printer: Printer) {
    printer.note(&format!("{path}, slot {}: {}", crashed.slot.name, jobsview::outcome(crashed)));
}

/// Whether the run of another machine is that of the slot of this moment, by the servers' clock.
async fn is_own(acquisition: &Acquisition<'_>, run: &RunRecord) -> Result<bool, Failure> {
    let args = &acquisition.request.args.job;
    if let Some(slot) = &args.slot {
        return Ok(run.slot.name == *slot);
    }
    let Some(keeper) = &acquisition.keeper else { return Ok(false) };
    let end_ms = match args.every {
        Some(every) => run.start_ms.and_then(|start| start.checked_add(i64::try_from(every.as_millis()).ok()?)),
        None => run.slot.end_ms,
    };
    let now_ms = server_now_ms(keeper).await?;
    Ok(end_ms.is_none_or(|end| now_ms < end))
}

/// Runs the command for the claimed slot, and records its end with the release.
async fn run_slot(acquisition: &Acquisition<'_>, run: Run, signals: &mut Signals) -> Result<u8, Failure> {
    let (args, printer) = (&acquisition.request.args, acquisition.request.printer);
    let path = run.guard().path().to_owned();
    if let Some(before) = run.schedule_before() {
        printer.note(&format!(
            "{path} ran {before} before, and now has another schedule; all machines should use the same"
        ));
    }
    if let Some(crashed) = run.crashed_before() {
        tell_crash(&path, crashed, printer);
    }
    if let Some(ahead) = run.ahead_before() {
        let at = ahead.start_ms.map_or_else(String::new, |at| format!(", of {}", when_ms(at)));
        printer.note(&format!(
            "{path}: the run before, slot {}{at}, is in the future and does not count: a server's clock was ahead then or is behind now; check the clocks of the servers",
            ahead.slot.name
        ));
    }
    let records = acquisition.keeper.as_ref().map_or_else(Records::default, |keeper| {
        Records::begin(acquisition.request.record_terms(), keeper, Held::One(run.guard()), &acquisition.report)
    });
    let (ended, output) = match command(acquisition, &run, signals).await {
        Ok(ran) => ran,
        Err(failure) => {
            _ = finish(run, RunEnd::failed(failure.message.as_str()), &path, printer).await;
            records.finish().await;
            return Err(failure);
        }
    };
    records.tell(&ended);
    let held = broken::holds(Held::One(run.guard()));
    let released = finish(run, record(&ended, output.as_deref(), args.max_run), &path, printer).await;
    records.finish().await;
    Ok(match released {
        // Reported when it happened.
        _ if ended.loss.is_some() => printer.ended(super::args::STATUSES, Code::Lost),
        Err(Loss::Removed) => {
            printer.note(&format!("the node of {path} was removed before the release"));
            if let (None, Some(keeper)) = (&ended.cause, &acquisition.keeper) {
                broken::tell_author(keeper, held, printer).await;
            }
            printer.ended(super::args::STATUSES, Code::Lost)
        }
        Err(loss) => {
            let cause = ended.cause.unwrap_or_else(|| loss.to_string());
            printer.note(&format!("{path} was lost before the command ended: {cause}"));
            printer.ended(super::args::STATUSES, Code::Lost)
        }
        Ok(recorded) => match own_status(&ended) {
            Some(code) => printer.ended(super::args::STATUSES, code),
            // The other machines find a crash, or may find one.
            None if !recorded && ended.status == 0 => printer.ended(super::args::STATUSES, Code::Lost),
            None => ended.status,
        },
    })
}

/// Runs the command; returns how it ended and the last bytes of its standard error.
async fn command(
    acquisition: &Acquisition<'_>,
    run: &Run,
    signals: &mut Signals,
) -> Result<(CommandEnd, Option<String>), Failure> {
    let (args, printer) = (&acquisition.request.args, acquisition.request.printer);
    let grace = Term::Fixed(run.guard().session_timeout()).grace(args.grace)?;
    let tail = args.job.keep_output.filter(|size| *size > 0).map(Tail::start).transpose();
    let tail = tail.map_err(|error| Failure::system("cannot keep the command's output", error))?;
    let (tail, stderr) = tail.unzip();
    let extras = Extras { stderr, slot: Some(run.slot().name.clone()), ..Extras::default() };
    let held = Held::One(run.guard());
    let ended = hold(
        &args.command,
        acquisition.keeper.as_ref(),
        held,
        signals,
        (acquisition.request.terms(grace), extras),
        printer,
    )
    .await;
    let output = tail.map(Tail::end);
    Ok((ended?, output))
}

/// Returns the status of `run` if it is not that of the command.
const fn own_status(ended: &CommandEnd) -> Option<Code> {
    match ended {
        // The lock was not lost after all, but the command got SIGTERM.
        CommandEnd { stopped: true, .. } => Some(Code::Lost),
        CommandEnd { too_long: true, .. } => Some(Code::TooLong),
        _ => None,
    }
}

/// Returns the record of the end of a command.
fn record(ended: &CommandEnd, output: Option<&str>, max_run: Option<Duration>) -> RunEnd {
    let kind = match ended {
        _ if ended.stopped || ended.loss.is_some() => EndKind::Lost,
        _ if ended.too_long => EndKind::TimedOut,
        _ if ended.status == 0 => EndKind::Succeeded,
        _ if ended.asked_to_end => EndKind::Stopped,
        _ => EndKind::Failed,
    };
    let mut end = RunEnd::of(kind);
    end = match ended.killed_by {
        Some(signal) => end.with_signal(signal),
        None => end.with_status(ended.status.into()),
    };
    if let (true, Some(limit)) = (ended.too_long, max_run) {
        end = end.with_reason(format!("ran longer than {}", spell(limit)));
    }
    match (&ended.why, ended.loss) {
        (Some(why), _) if ended.asked_to_end || kind == EndKind::Lost => end = end.with_reason(why),
        (None, Some(loss)) => end = end.with_reason(loss.to_string()),
        _ => {}
    }
    match output {
        Some(output) if !output.is_empty() => end.with_output(output),
        _ => end,
    }
}

/// Records the end and releases the lock; prints a message if the end may not be recorded. Returns whether it is.
///
/// # Errors
/// The loss, if the lock was lost before.
async fn finish(run: Run, end: RunEnd, path: &str, printer: Printer) -> Result<bool, Loss> {
    let slot = run.slot().name.clone();
    let Ok(finished) = timeout(RELEASING, run.finish(end)).await else {
        let limit = spell(RELEASING);
        printer.note(&format!(
            "{path}, slot {slot}: no server has confirmed within {limit} that the end of the run is recorded; the records may show a crash"
        ));
        return Ok(false);
    };
    match &finished.recorded {
        Ok(()) => {}
        Err(NotRecorded::Unknown(error)) => printer.note(&format!(
            "{path}, slot {slot}: no server has confirmed that the end of the run is recorded; the records may show a crash: {error}"
        )),
        Err(why) => printer.note(&format!("{path}, slot {slot}: the end of the run is not recorded: {why}")),
    }
    finished.loss.map_or(Ok(finished.recorded.is_ok()), Err)
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        let failure = Failure::from(lockkeeper::Error::from(error.clone()));
        match error {
            // The library's hint names a call of the library.
            JobError::Unreadable { path, .. } | JobError::Unknown { path } => {
                Failure { hint: None, ..failure }.advise("see its runs", Suggested::new(["jobs", path.as_str()]))
            }
            // Whichever slot runs or waits, this one has no run to repeat.
            JobError::NoRerun { .. } => Failure { code: Code::NoSuchLock, ..failure },
            _ => failure,
        }
    }
}
