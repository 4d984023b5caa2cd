//! `lockkeeper run`: acquires the locks, runs the command, releases the locks.
//!
//! It has three parts. The request is what was asked for, checked before anything is sent. The acquisition gets the locks. The
//! supervised command ([`crate::child`]) runs under them. Each knows the result of the one before it.
//!
//! A signal has another meaning in each of the three phases. During the wait it ends the wait, while the command runs
//! it goes to the command, and during the release it has no effect. At the end of each phase, the lock's node is
//! deleted, or a message says when it will be.

pub(crate) mod acquisition;
mod alert;
pub(crate) mod args;
mod job;
mod kind;
pub(crate) mod lease;
mod locked;
pub(crate) mod records;
pub(crate) mod release;
mod request;
mod retrying;
pub(crate) mod slots;
mod tail;
mod unsent;

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::time::Duration;

use lockkeeper::{Lockkeeper, Loss, MultiGuard};
use tokio::time::{Instant, sleep};

use self::acquisition::{Acquisition, LEAVING, leaving};
use self::args::JobSignal;
pub(crate) use self::args::RunArgs;
pub(crate) use self::locked::{LeaderCommands, LockedRun};
use self::records::{Records, WRITING};
use self::release::{RELEASING, release, session_timeout};
pub(crate) use self::request::{Request, lock_paths};
use crate::args::common::Common;
use crate::broken;
use crate::child::{CommandEnd, Extras, RunTerms, Supervised};
use crate::exit::{Code, Failure};
use crate::held::Held;
use crate::output::Printer;
use crate::signals::{self, ENDING, RUNNING, Signals};
use crate::verb::{Context, Verb};

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

/// Runs a command under a lock; returns the exit status.
async fn run(args: RunArgs, printer: &Printer) -> Result<u8, Failure> {
    let (request, mut locked) = (Request::read(args, printer).await?, LockedRun::default());
    let status = request.run(&mut locked, &mut Signals::default()).await?;
    Ok(locked.own.map_or(status, |code| request.printer.ended(args::STATUSES, code)))
}

impl Request {
    /// Runs the command, and what is run before and after it, under the locks; returns the exit status.
    pub(crate) async fn run(&self, locked: &mut LockedRun, signals: &mut Signals) -> Result<u8, Failure> {
        self.run_under_locks(locked, signals).await.map_err(|failure| failure.at(&self.settings.place))
    }

    async fn run_under_locks(&self, locked: &mut LockedRun, signals: &mut Signals) -> Result<u8, Failure> {
        signals.add(ENDING)?;
        if let Some(limit) = self.args.jitter {
            tokio::select! {
                biased;
                signal = signals.next() => return Ok(signals::status(signal.as_raw())),
                () = sleep(limit.mul_f64(fastrand::f64())) => {}
            }
        }
        let mut acquisition = Acquisition::new(self, locked.leader.is_some());
        if self.args.job.is_job() {
            return job::run(acquisition, signals).await;
        }
        let guard = match acquisition.acquire(locked, signals).await? {
            ControlFlow::Continue(guard) => guard,
            ControlFlow::Break(status) => return Ok(status),
        };
        let grace = match self.grace(session_timeout(&guard)) {
            Ok(grace) => grace,
            Err(failure) => {
                _ = release(guard, &self.locks()).await;
                acquisition.leave(LEAVING).await;
                return Err(failure);
            }
        };
        match under_locks(&mut acquisition, (guard, grace), locked, signals).await? {
            ControlFlow::Continue(held) => end(acquisition, held, locked).await,
            ControlFlow::Break(status) => Ok(status),
        }
    }

    /// Returns how the command is treated when something happens to its locks.
    fn terms(&self, grace: Duration) -> RunTerms {
        let RunArgs { on_revoke, on_suspect, max_run, yields, .. } = self.args;
        RunTerms { grace, on_revoke, on_suspect, on_yield: yields.map(JobSignal::signal), preemption: None, max_run }
    }
}

/// The locks after the command has ended, its records, and how it ended.
type Ran = (MultiGuard, Records, Result<CommandEnd, Failure>);

/// Runs the command under the locks, and again each time that it has made way. Breaks with the exit status if the locks are not held
/// again.
async fn under_locks(
    acquisition: &mut Acquisition<'_>,
    (mut guard, grace): (MultiGuard, Duration),
    locked: &mut LockedRun,
    signals: &mut Signals,
) -> Result<ControlFlow<u8, Ran>, Failure> {
    let Request { args, printer, .. } = acquisition.request;
    let terms = RunTerms { preemption: acquisition.preemption.take(), ..acquisition.request.terms(grace) };
    let mut extras = Extras { watchdog: acquisition.watchdog.take(), ..Extras::default() };
    let keeper = acquisition.keeper.clone().expect("it granted the lock");
    loop {
        let records =
            Records::begin(acquisition.request.record_terms(), &keeper, Held::All(&guard), &acquisition.report);
        let extras = std::mem::take(&mut extras);
        let ran = locked.run(&args.command, (&keeper, &guard), signals, (terms.clone(), extras), *printer).await;
        ran.iter().for_each(|ended| records.tell(ended));
        if !ran.as_ref().is_ok_and(|ended| ended.yielded) {
            return Ok(ControlFlow::Continue((guard, records, ran)));
        }
        let yielded = tokio::select! {
            biased;
            signal = locked.interrupted(signals) => Err(signal),
            (again, _) = async { tokio::join!(acquisition.make_way(guard), records.finish()) } => Ok(again),
        };
        guard = match yielded {
            Ok(Ok(again)) => again,
            Ok(Err(failure)) => {
                acquisition.leave(leaving(&failure)).await;
                return Err(failure);
            }
            Err(signal) => {
                acquisition.leave(LEAVING).await;
                return Ok(ControlFlow::Break(signals::status(signal.as_raw())));
            }
        };
        printer.note(&format!("{} is held again; starting the command again", acquisition.request.locks()));
    }
}

/// Releases the locks after the command; returns the exit status.
async fn end(
    mut acquisition: Acquisition<'_>,
    (guard, records, ran): Ran,
    locked: &mut LockedRun,
) -> Result<u8, Failure> {
    let (request, printer) = (acquisition.request, &acquisition.request.printer);
    if let Ok(CommandEnd { loss: Some(_), .. }) = ran {
        // The loss was reported when it happened. There is nothing to release; closing the session deletes a node that
        // is left.
        drop(guard);
        records.finish().await;
        acquisition.leave(LEAVING).await;
        return Ok(locked.end_with(Code::Lost));
    }
    let succeeded = ran.as_ref().is_ok_and(|outcome| outcome.status == 0 && !outcome.preempted);
    let deadline = Instant::now() + RELEASING;
    let held = broken::holds(Held::All(&guard));
    let released = match acquisition.handover_target().filter(|_| succeeded) {
        Some(target) => target.hand_over(guard, printer).await,
        None => release(guard, &request.locks()).await,
    };
    if let (Err(Loss::Removed), Some(keeper)) = (&released, &acquisition.keeper) {
        printer.note(&format!("the node of {} was removed before the release", request.locks()));
        if ran.as_ref().is_ok_and(|outcome| outcome.cause.is_none()) {
            broken::tell_author(keeper, held, *printer).await;
        }
    }
    acquisition.released = matches!(released, Ok(None));
    // Otherwise no server answers.
    if records.finish().await {
        acquisition.send_kept(Instant::now() + WRITING).await;
    }
    acquisition.leave(deadline.saturating_duration_since(Instant::now()).min(LEAVING)).await;
    Ok(status(request, ran?, released, locked))
}

/// Returns the exit status of a command that has ended, and says what became of its locks.
fn status(request: &Request, ended: CommandEnd, released: Result<Option<String>, Loss>, locked: &mut LockedRun) -> u8 {
    let printer = &request.printer;
    if let Ok(problem) = &released
        && !ended.preempted
    {
        problem.iter().for_each(|problem| printer.note(problem));
    }
    match released {
        // The lock was not lost after all, but the command got a signal.
        Ok(_) if ended.preempted || ended.stopped => locked.end_with(Code::Lost),
        Ok(_) if ended.too_long => locked.end_with(Code::TooLong),
        Ok(_) => ended.status,
        Err(loss) if locked.outlived && !ended.stopped => {
            printer.note(&format!("{} was lost while --on-demote ran: {loss}", request.locks()));
            ended.status
        }
        Err(Loss::Preempted | Loss::Removed) => locked.end_with(Code::Lost),
        Err(loss) => {
            let cause = ended.cause.unwrap_or_else(|| loss.to_string());
            printer.note(&format!("{} was lost before the command ended: {cause}", request.locks()));
            locked.end_with(Code::Lost)
        }
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
    let job = Supervised::start(command, guard, terms.grace, extras)?;
    signals.add(RUNNING)?;
    job.attend(keeper, guard, signals, terms, printer).await
}
