//! `lockkeeper run`: acquires the locks, runs the command, releases the locks.
//!
//! A signal has another meaning in each of the three phases. During the wait it ends the wait, while the command runs
//! it goes to the command, and during the release it has no effect. At the end of each phase, the lock's node is
//! deleted, or a message says when it will be.

pub(crate) mod args;
mod job;
mod kind;
pub(crate) mod lease;
mod line;
mod locked;
mod records;
mod retrying;
pub(crate) mod slots;
mod tail;
mod unsent;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

pub(crate) use self::args::RunArgs;
use self::line::Line;
pub(crate) use self::locked::{LeaderCommands, LockedRun};
use lockkeeper::admin::TraceParent;
use lockkeeper::error::{Misuse, ReleaseError, misuse};
use lockkeeper::{Holding, LockPath, Lockkeeper, Loss, MultiGuard, PriorityLock};
use lockkeeper_helix::{HelixLock, LeaseError};
use lockkeeper_jobs::check_slot;
use lockkeeper_session::text::{excerpt, spell};
use tokio::time::{Instant, sleep, timeout};

use self::args::{JobSignal, KindArgs};
use self::kind::Kind;
use self::lease::LeaseArgs;
use self::records::{Records, WRITING};
use self::retrying::RetryPolicy;
use crate::alert::Webhook;
#[cfg(feature = "webhook")]
use crate::args::common::Common;
use crate::args::values::Waiting;
use crate::broken;
use crate::child::{CommandEnd, Extras, Job, RunTerms};
use crate::exit::{Code, Failure};
use crate::grace::Term;
use crate::held::Held;
use crate::output::Printer;
use crate::settings::{Settings, path_to_lock, state_dir, variable};
use crate::signals::{self, ENDING, RUNNING, Signals};
use crate::verb::{Context, Verb};
use crate::waiting::Report;

impl Verb for RunArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    fn takes_a_while(&self) -> bool {
        true
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        run(self, context.printer).await
    }
}

/// Time limit for leaving the queue after a signal ended the wait.
const LEAVING: Duration = Duration::from_secs(2);

/// Time limit for leaving the queue after the wait is over.
const LEAVING_LATE: Duration = Duration::from_secs(1);

/// Time limit for the release, including the end of the session.
const RELEASING: Duration = Duration::from_secs(5);

/// Maximum characters of a command line that are published.
const PUBLISHED_CHARS: usize = 200;

/// Runs a command under a lock; returns the exit status.
async fn run(args: RunArgs, printer: &Printer) -> Result<u8, Failure> {
    let (run, mut locked) = (PlacedRun::read(args, printer).await?, LockedRun::default());
    let printer = run.printer;
    let status = run.run(&mut locked, &mut Signals::default()).await?;
    Ok(locked.own.map_or(status, |code| printer.ended(args::STATUSES, code)))
}

/// A command line of `run`, and the place of its locks.
#[derive(Clone, Debug)]
pub(crate) struct PlacedRun {
    args: RunArgs,
    paths: Vec<LockPath>,
    settings: Settings,
    /// Prints with the place.
    pub printer: Printer,
}

impl PlacedRun {
    /// Reads the settings, and the routing data if they name its servers, once for any number of runs.
    ///
    /// Dropping the future leaves nothing behind but, for its timeout, a session that has no nodes.
    pub(crate) async fn read(args: RunArgs, printer: &Printer) -> Result<Self, Failure> {
        let paths = lock_paths(&args.names)?;
        if args.leased.lease.is_some() && paths.len() > 1 {
            return Err(Failure::new(Code::Usage, "--lease takes one lock"));
        }
        let settings =
            Settings::read(args.common.connect.clone(), printer)?.at(paths.iter().map(LockPath::as_str)).await?;
        let printer = printer.at(&settings.place);
        Ok(PlacedRun { args, paths, settings, printer })
    }

    /// Runs the command, and what is run before and after it, under the locks; returns the exit status.
    pub(crate) async fn run(self, locked: &mut LockedRun, signals: &mut Signals) -> Result<u8, Failure> {
        let place = self.settings.place.clone();
        run_at(self, locked, signals).await.map_err(|failure| failure.at(&place))
    }
}

/// Returns the trace context that this process was started in. A bad one must not keep the command from running.
fn traceparent(printer: &Printer) -> Option<TraceParent> {
    const VARIABLE: &str = "TRACEPARENT";
    let text = variable(VARIABLE)?;
    let read = text.parse();
    if let Err(error) = &read {
        let text = excerpt(&text);
        printer.note(&format!("--trace has no effect: {VARIABLE} is {text:?}, {error}"));
    }
    read.ok()
}

async fn run_at(run: PlacedRun, locked: &mut LockedRun, signals: &mut Signals) -> Result<u8, Failure> {
    let PlacedRun { mut args, paths, settings, printer } = run;
    let printer = &printer;
    check_wait_for_ever(&args.leased)?;
    if job::is_job(&args.job) && paths.len() > 1 {
        return Err(Failure::new(Code::Usage, format!("a job has one lock, not {}", paths.len()))
            .hint("give one NAME, or leave out --once-per, --every or --slot"));
    }
    if let Some(id) = &args.leased.id {
        lockkeeper_helix::Terms::new(id, 1).check(false).map_err(Misuse::from)?;
    }
    if let (Some(hand_to), id) = (&args.leased.hand_to, args.leased.id.as_deref().unwrap_or_default()) {
        HandoverTarget::check(id, hand_to)?;
    }
    // Checked before anything is sent; the timeout that a server grants is checked again below.
    let lease = args.leased.lease.map(|lease| (lease, args.leased.is_strict()));
    grace(lease, Term::Session(settings.all.session_timeout.value), args.grace)?;
    for path in &paths {
        misuse::check_message(path.as_str(), args.message.as_deref())?;
        args.job.slot.as_deref().map_or(Ok(()), |slot| check_slot(path.as_str(), slot))?;
    }
    let kind = Kind::of(&args.kind, &settings.all)?;
    check_yield(&args, kind, paths.len())?;
    let retries = RetryPolicy::of(&args, &settings)?;
    signals.add(ENDING)?;
    if let Some(limit) = args.jitter {
        tokio::select! {
            biased;
            signal = signals.next() => return Ok(signals::status(signal.as_raw())),
            () = sleep(limit.mul_f64(fastrand::f64())) => {}
        }
    }
    // A wait of zero is a try: no server could answer in no time.
    let wait = args.wait.filter(|wait| !wait.is_zero()).or_else(|| match args.wait {
        // The settings may contain a wait for the class. A leased lock is waited for only if that is asked for.
        None if !args.once && args.leased.lease.is_none() => {
            task_timeout(&args.kind, &settings.all).or(retries.usual_wait())
        }
        _ => None,
    });
    args.job.settle(&settings.all.jobs);
    let mut line = Line {
        paths,
        kind,
        min_hold: args.yields.map(|_| args.min_hold.unwrap_or(PriorityLock::MIN_HOLD)),
        once: args.once || (args.wait.is_some() && wait.is_none()),
        message: args.message.clone(),
        traceparent: if args.trace { traceparent(printer) } else { None },
        lock_delay: args.lock_delay,
        leased: args.leased.clone(),
        #[cfg(feature = "webhook")]
        webhook: args.leased.alert_webhook.as_deref().map(Webhook::read).transpose()?,
        rules: settings.all.transfers.iter().map(|rule| rule.value.clone()).collect(),
        lock: None,
        history: settings.all.history.value && !args.no_history,
        state: state_dir(&settings.all).ok(),
        preemption: None,
        stands_by: locked.leader.is_some(),
        builder: settings.builder().program(command_line(&args.command, args.publish_command)),
        connect_timeout: settings.connect_timeout(),
        asked_timeout: settings.all.session_timeout.is_given().then_some(settings.all.session_timeout.value),
        on_deadlock: args.deadlock,
        tries_on: settings.all.reconnect().is_none(),
        place: settings.place,
        started: Instant::now(),
        wait,
        deadline: None,
        report: Report::new(args.quiet),
        keeper: None,
        released: false,
        watchdog: None,
        printer: *printer,
    };
    if job::is_job(&args.job) {
        return job::run(&args, line, signals, *printer).await;
    }
    let about = line.about();
    let is_quiet = line.report.is_quiet();
    let tell = |text: &str| {
        if !is_quiet {
            printer.note(text);
        }
    };
    let outcome = tokio::select! {
        biased;
        signal = locked.interrupted(signals) => Err(signal),
        stood = retries.run(about, tell, async || line.attempt().await) => Ok(stood),
    };
    let guard = match outcome {
        Ok(Ok(guard)) => {
            line.report.acquired(&line.paths, line.started, *printer);
            guard
        }
        Ok(Err(failure)) => {
            line.give_up(&failure, async |line, end| line.record_refusal(&failure, end).await).await;
            if failure.code == Code::NotAcquired {
                return Ok(not_acquired(&args, &failure, *printer));
            }
            return Err(failure);
        }
        Err(signal) => {
            line.leave(LEAVING).await;
            return Ok(signals::status(signal.as_raw()));
        }
    };
    let grace = match grace(lease, Term::Fixed(session_timeout(&guard)), args.grace) {
        Ok(grace) => grace,
        Err(failure) => {
            _ = release(guard, &line.locks()).await;
            line.leave(LEAVING).await;
            return Err(failure);
        }
    };
    let (on_revoke, on_suspect, max_run) = (args.on_revoke, args.on_suspect, args.max_run);
    let on_yield = args.yields.map(JobSignal::signal);
    let terms = RunTerms { grace, on_revoke, on_suspect, on_yield, preemption: line.preemption.take(), max_run };
    let (mut guard, mut extras) = (guard, Extras { watchdog: line.watchdog.take(), ..Extras::default() });
    let keeper = line.keeper.clone().expect("it granted the lock");
    let keeper = &keeper;
    let (records, ran) = loop {
        let records = Records::begin(line.record_terms(), keeper, Held::All(&guard), &line.report);
        let extras = std::mem::take(&mut extras);
        let ran = locked.run(&args.command, (keeper, &guard), signals, (terms.clone(), extras), *printer).await;
        ran.iter().for_each(|ended| records.tell(ended));
        if !ran.as_ref().is_ok_and(|ended| ended.yielded) {
            break (records, ran);
        }
        let yielded = tokio::select! {
            biased;
            signal = locked.interrupted(signals) => Err(signal),
            (again, _) = async { tokio::join!(line.make_way(guard), records.finish()) } => Ok(again),
        };
        guard = match yielded {
            Ok(Ok(again)) => again,
            Ok(Err(failure)) => {
                line.leave(leaving(&failure)).await;
                return Err(failure);
            }
            Err(signal) => {
                line.leave(LEAVING).await;
                return Ok(signals::status(signal.as_raw()));
            }
        };
        printer.note(&format!("{} is held again; starting the command again", line.locks()));
    };
    let preempted = ran.as_ref().is_ok_and(|outcome| outcome.preempted);
    if ran.as_ref().is_ok_and(|outcome| outcome.loss.is_some()) {
        // The loss was reported when it happened. There is nothing to release; closing the session deletes a node that
        // is left.
        drop(guard);
        records.finish().await;
        line.leave(LEAVING).await;
        return Ok(locked.end_with(if preempted { Code::Preempted } else { Code::Lost }));
    }
    let succeeded = ran.as_ref().is_ok_and(|outcome| outcome.status == 0 && !outcome.preempted);
    let deadline = Instant::now() + RELEASING;
    let held = broken::holds(Held::All(&guard));
    let released = match line.handover_target().filter(|_| succeeded) {
        Some(target) => target.hand_over(guard, printer).await,
        None => release(guard, &line.locks()).await,
    };
    if let Err(Loss::Removed) = released {
        printer.note(&format!("the node of {} was removed before the release", line.locks()));
        if ran.as_ref().is_ok_and(|outcome| outcome.cause.is_none()) {
            broken::tell_author(keeper, held, *printer).await;
        }
    }
    line.released = matches!(released, Ok(None));
    // Otherwise no server answers.
    if records.finish().await {
        line.send_kept(Instant::now() + WRITING).await;
    }
    line.leave(deadline.saturating_duration_since(Instant::now()).min(LEAVING)).await;
    let outcome = ran?;
    match released {
        Ok(_) if preempted => Ok(locked.end_with(Code::Preempted)),
        // The lock was not lost after all, but the command got SIGTERM.
        Ok(problem) if outcome.stopped => {
            problem.iter().for_each(|problem| printer.note(problem));
            Ok(locked.end_with(Code::Lost))
        }
        Ok(problem) => {
            problem.iter().for_each(|problem| printer.note(problem));
            Ok(if outcome.too_long { locked.end_with(Code::TooLong) } else { outcome.status })
        }
        Err(loss) if locked.outlived && !outcome.stopped => {
            printer.note(&format!("{} was lost while --on-demote ran: {loss}", line.locks()));
            Ok(outcome.status)
        }
        Err(Loss::Preempted) => Ok(locked.end_with(Code::Preempted)),
        Err(Loss::Removed) => Ok(locked.end_with(Code::NoNode)),
        Err(loss) => {
            let cause = outcome.cause.unwrap_or_else(|| loss.to_string());
            printer.note(&format!("{} was lost before the command ended: {cause}", line.locks()));
            Ok(locked.end_with(Code::Lost))
        }
    }
}

/// Checks that the command can make way, if it is to.
fn check_yield(args: &RunArgs, kind: Kind, locks: usize) -> Result<(), Failure> {
    let problem = match args.yields {
        None => return Ok(()),
        Some(_) if locks > 1 => "--yield takes one lock",
        Some(_) if !matches!(kind, Kind::Class { .. }) => "--yield needs a lock with classes",
        Some(_) => return Ok(()),
    };
    Err(Failure::new(Code::Usage, problem).hint("add --background, for one lock, or leave out --yield"))
}

/// Checks that an infinite wait for the cleanup is combined with nothing that begins when the wait ends.
fn check_wait_for_ever(leased: &LeaseArgs) -> Result<(), Failure> {
    let idle = match leased {
        LeaseArgs { waiting: Some(Waiting::Infinite), forceful: true, .. } => "--forceful",
        LeaseArgs { waiting: Some(Waiting::Infinite), ask: Some(_), .. } => "--ask",
        _ => return Ok(()),
    };
    let text = format!("--waiting infinite never ends, so {idle} has no effect");
    Err(Failure::new(Code::Usage, text).hint(format!("give --waiting a duration, or omit {idle}")))
}

/// Returns how long requests of a class wait, according to the settings.
fn task_timeout(args: &KindArgs, settings: &lockkeeper_config::settings::Settings) -> Option<Duration> {
    match (args.foreground, args.background) {
        (true, _) => settings.foreground.timeout.value,
        (_, true) => settings.background.timeout.value,
        _ => None,
    }
}

/// Returns the paths of these names, in the order in which the locks are taken.
pub(crate) fn lock_paths(names: &[String]) -> Result<Vec<LockPath>, Failure> {
    let mut paths = names.iter().map(|name| path_to_lock(name)).collect::<Result<Vec<_>, _>>()?;
    paths.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    match paths.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(misuse::twice(twice[0].as_str()).into()),
        None => Ok(paths),
    }
}

async fn hold(
    command: &[OsString],
    keeper: Option<&Lockkeeper>,
    guard: Held<'_>,
    signals: &mut Signals,
    (terms, extras): (RunTerms, Extras<'_>),
    printer: Printer,
) -> Result<CommandEnd, Failure> {
    let job = Job::start(command, guard, terms.grace, extras)?;
    signals.add(RUNNING)?;
    job.attend(keeper, guard, signals, terms, printer).await
}

/// Returns how long to try to record this failure and to leave the queue. It comes at the deadline if there is one.
fn leaving(failure: &Failure) -> Duration {
    match failure.code {
        // No server confirms anything: the node is deleted with the session.
        Code::Unreachable => Duration::ZERO,
        _ => LEAVING_LATE,
    }
}

/// Returns the grace period before the end of the hold, which is that of the lease if it is strict.
fn grace(lease: Option<(Duration, bool)>, session: Term, given: Option<Duration>) -> Result<Duration, Failure> {
    let Some((lease, is_strict)) = lease else { return session.grace(given) };
    let lease = Term::Lease(lease);
    if is_strict {
        return lease.grace(given);
    }
    let session = match session {
        Term::Session(timeout) if given.is_some_and(|given| given > lease.limit()) => Term::Fixed(timeout),
        session => session,
    };
    // Kept after its end, it ends with the session's trust. The remedy of the shorter term fits into both.
    let terms = if lease.limit() < session.limit() { [lease, session] } else { [session, lease] };
    Ok(terms[0].grace(given)?.min(terms[1].grace(given)?))
}

/// Returns the timeout of the session that holds the locks.
fn session_timeout(guard: &MultiGuard) -> Duration {
    guard.holdings().first().expect("the parser asks for a name").session_timeout()
}

/// Releases the lock; returns a message if there is something to report.
///
/// # Errors
/// The loss, if the lock was lost before: the command may have run beside another holder.
async fn release(guard: MultiGuard, locks: &str) -> Result<Option<String>, Loss> {
    let session_timeout = session_timeout(&guard);
    match timeout(RELEASING, guard.release()).await {
        Ok(Ok(())) => Ok(None),
        Ok(Err(ReleaseError::NotHeld { loss })) => Err(loss),
        Ok(Err(error)) if !matches!(error, ReleaseError::Timeout { .. }) => Ok(Some(format!("{locks}: {error}"))),
        Ok(Err(_)) | Err(_) => {
            let timeout = spell(session_timeout);
            Ok(Some(format!(
                "the release of {locks} was not confirmed; it is free when the session ends, about {timeout} after a server answers again"
            )))
        }
    }
}

/// Returns the part of the command that readers of the lock's node see: the program's name. Arguments may be secrets.
fn command_line(command: &[OsString], whole: bool) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let text = match words.first() {
        Some(program) if !whole => {
            let name = Path::new(program.as_ref()).file_name();
            name.map_or_else(|| program.to_string(), |name| name.to_string_lossy().into_owned())
        }
        _ => words.join(" "),
    };
    text.chars().take(PUBLISHED_CHARS).collect()
}

/// The owner of the lock after this command.
struct HandoverTarget {
    lock: HelixLock,
    id: String,
}

impl HandoverTarget {
    /// Checks that the lock can be handed from one id to another; an empty `from` means a new id.
    fn check(from: &str, to: &str) -> Result<(), Failure> {
        let from = if from.is_empty() { "a new one" } else { from };
        Ok(lockkeeper_helix::Terms::new(from, 1).check_transfer(to).map_err(Misuse::from)?)
    }

    /// Hands the lock over, within the time limits of [`release`].
    async fn hand_over(self, guard: MultiGuard, printer: &Printer) -> Result<Option<String>, Loss> {
        let session_timeout = session_timeout(&guard);
        match timeout(RELEASING.max(session_timeout), self.lock.transfer(&self.id)).await {
            Ok(Ok(())) => {
                printer.note(&format!(
                    "{} was handed to {}",
                    guard.holdings().first().map_or("", Holding::path),
                    self.id
                ));
                Ok(None)
            }
            Ok(Err(LeaseError::NotOwner { .. })) => {
                Err(guard.holdings().first().and_then(Holding::loss).unwrap_or(Loss::LeaseEnded))
            }
            Ok(Err(error)) => Ok(Some(format!("not handed to {}: {error}", self.id))),
            Err(_) => Ok(Some(format!("whether {} has the lock now is not known: no answer in time", self.id))),
        }
    }
}

/// Prints that the lock is not acquired, unless that is no problem; returns the exit status.
fn not_acquired(args: &RunArgs, failure: &Failure, printer: Printer) -> u8 {
    if args.reports_conflicts() {
        printer.failure(failure);
    }
    args.conflict_exit_code
}
