//! The claim of a slot: one transaction under the job's lock.

use lockkeeper::error::{AcquireError, SessionError, WriteError};
use lockkeeper::{Acquire, Guard};
use lockkeeper_session::ensemble::{OpError, linearizable};
use std::fmt;
use tracing::debug;

use super::calendar::Calendar;
use super::error::JobError;
use super::job::Job;
use super::records::{Begin, ClaimTerms, JobLog, MAX_SLOTS_BACK, Pause, RunRecord, RunSlot, Schedule, SlotDecision};
use super::run::{Before, Run};
use super::stored::{self as jobs, StoredLog};

/// How often a claim is tried if the records change. A lost connection does not count: the hold limits how long it is tried.
const MAX_CHANGES: usize = 16;

/// The result of [`Job::claim`].
#[derive(Debug)]
#[must_use = "a claimed run that is dropped counts as crashed"]
// Exhaustive on purpose: a host runs the slot or it does not. Every reason not to is in `Skipped`, which may grow.
pub enum Claim {
    /// This host runs the slot.
    Run(Run),
    /// This host runs nothing.
    Skipped(Skipped),
}

/// Why a host runs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Skipped {
    /// The slot is done: by this run, whether it succeeded or not.
    Done {
        /// The run.
        run: Box<RunRecord>,
        /// When the next run is due, in milliseconds since 1970 by the servers' clock, if that is known.
        due_ms: Option<i64>,
        /// A run of which this host has found and recorded that it crashed: this one, or that of another slot. Nobody else
        /// reports that crash.
        crash_found: Option<Box<RunRecord>>,
    },
    /// A later slot ran already, under a servers' clock that was ahead by less than a period. So this one stays missed.
    Passed {
        /// The run of the later slot.
        run: Box<RunRecord>,
    },
    /// Another host runs now, and the request for the lock does not wait longer. The run may be that of another slot.
    Running {
        /// The run.
        run: Box<RunRecord>,
    },
    /// A run failed or crashed, and a person must decide with [`JobsAdmin::resolve`](super::JobsAdmin::resolve).
    Kept {
        /// The run.
        run: Box<RunRecord>,
    },
    /// The job is paused with [`JobsAdmin::pause`](super::JobsAdmin::pause). The records name the slot in
    /// [`JobStatus::left_out`](super::JobStatus::left_out).
    Paused {
        /// The slot that this host asked for.
        slot: RunSlot,
        /// The pause.
        pause: Box<Pause>,
        /// A run of which this host has found and recorded that it crashed. Nobody else reports that crash.
        crash_found: Option<Box<RunRecord>>,
    },
}

impl Skipped {
    /// Returns the run that is the reason; `None` if it is a pause.
    pub fn run(&self) -> Option<&RunRecord> {
        match self {
            Skipped::Done { run, .. } | Skipped::Passed { run } | Skipped::Running { run } | Skipped::Kept { run } => {
                Some(run)
            }
            Skipped::Paused { .. } => None,
        }
    }
}

/// `slot 2026-11-22 is done by db7 (pid 4711): succeeded`
impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |run: &RunRecord| run.end.as_ref().map_or("no end recorded".to_owned(), |end| end.kind.to_string());
        match self {
            Skipped::Done { run, .. } => write!(f, "slot {} is done by {}: {}", run.slot.name, run.by, end(run)),
            Skipped::Passed { run } => {
                write!(f, "a later slot, {}, ran already on {}: {}", run.slot.name, run.by, end(run))
            }
            Skipped::Running { run } => write!(f, "slot {} is running on {}", run.slot.name, run.by),
            Skipped::Kept { run } => {
                write!(f, "slot {} on {}: {}; the job waits for a person to decide", run.slot.name, run.by, end(run))
            }
            Skipped::Paused { slot, pause, .. } => {
                write!(f, "slot {} is left out: the job is paused by {}: {}", slot.name, pause.by, pause.reason)
            }
        }
    }
}

/// What a host does, and the last run if it is dated in the future.
struct Decided {
    decision: SlotDecision,
    ahead: Option<RunRecord>,
}

/// What a claim needs to know.
struct ClaimRequest {
    path: String,
    schedule: Schedule,
    calendar: Option<Calendar>,
    job: Job,
}

impl Job {
    /// Claims the slot of now, and waits for the lock as long as another host holds it.
    ///
    /// # Cost
    ///
    /// The acquire, one read, and one write in one round trip each. The first claim of a job has up to four more writes. A slot that
    /// is done costs the acquire, one read and the release. A slot that is left out because the job is paused costs one write more, if no
    /// host has asked for it before, and another one if the pause has an end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue or releases the lock. If the claim was already sent, the slot counts as claimed by a
    /// host that crashed.
    ///
    /// # Errors
    ///
    /// [`JobError`]. [`JobError::Unknown`] if it is unknown whether the slot was claimed: the lock is released, and the
    /// slot counts as crashed if it was.
    pub async fn claim(&self) -> Result<Claim, JobError> {
        self.claim_with(|acquire| acquire).await
    }

    /// Claims the slot of now, with options for the acquire: a timeout, a message, a token that cancels it.
    ///
    /// If the lock is not granted in time because another host runs, the result is [`Skipped::Running`].
    ///
    /// ```no_run
    /// # async fn example(job: lockkeeper_jobs::Job) -> Result<(), Box<dyn std::error::Error>> {
    /// // Does not wait for a host that runs now.
    /// let claim = job.claim_with(|acquire| acquire.timeout(std::time::Duration::ZERO)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cost
    ///
    /// As [`Job::claim`].
    ///
    /// # Cancel safety
    ///
    /// As [`Job::claim`].
    ///
    /// # Errors
    ///
    /// As [`Job::claim`].
    pub async fn claim_with(&self, options: impl FnOnce(Acquire) -> Acquire) -> Result<Claim, JobError> {
        let (path, schedule, calendar) = self.checked()?;
        let request = ClaimRequest { path, schedule, calendar, job: self.clone() };
        let acquire = self.keeper.mutex(&request.path).acquire();
        match options(acquire).await {
            Ok(guard) => self.keeper.sessions().run(request.claim(guard)).await,
            Err(error @ (AcquireError::Held { .. } | AcquireError::Timeout { .. })) => match self.open_run().await {
                Some(run) => Ok(Claim::Skipped(Skipped::Running { run: Box::new(run) })),
                None => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// The run that has no end, as far as the servers say.
    async fn open_run(&self) -> Option<RunRecord> {
        let (keeper, path) = (self.keeper.clone(), self.path.clone().ok()?.to_string());
        let read = self.keeper.sessions().run(async move {
            let ensemble = keeper.sessions().ensemble().await?;
            Ok::<_, SessionError>(jobs::find(&*ensemble, &path).await.ok().flatten())
        });
        let log = read.await.ok()??.log.ok()??;
        log.open().cloned()
    }
}

impl ClaimRequest {
    /// Claims the slot, with the lock.
    async fn claim(self, guard: Guard) -> Result<Claim, JobError> {
        let id = uuid::Uuid::new_v4().to_string();
        let (mut unsure, mut is_sent, mut changes) = (false, false, 0);
        let mut told = Before::default();
        while changes < MAX_CHANGES {
            let Some(ensemble) = lockkeeper::hold::ensemble_of(&guard) else { return Err(self.lost(&guard, is_sent)) };
            let (own, read) = (guard.node(), jobs::node(&self.path));
            // Behind the grant, this session sees everything that the holder before wrote.
            let both = async { tokio::join!(biased; ensemble.read(&own), ensemble.read(&read)) };
            let both = async { Ok(both.await) };
            let seen = match unsure {
                true => while_held(&guard, linearizable(&*ensemble, both)).await,
                false => while_held(&guard, both).await,
            };
            let (own, seen) = match seen.and_then(|(own, seen)| Ok((own?, seen))) {
                Ok(seen) => seen,
                Err(OpError::NoNode) => return Err(self.lost(&guard, is_sent)),
                Err(fault) => {
                    self.passing(&guard, fault, is_sent)?;
                    unsure = true;
                    continue;
                }
            };
            let stored = match seen {
                Ok(seen) => StoredLog::of(&seen),
                Err(OpError::NoNode) => {
                    if let Err(fault) = while_held(&guard, jobs::make(&*ensemble, &self.path)).await {
                        self.passing(&guard, fault, is_sent)?;
                    }
                    continue;
                }
                Err(fault) => {
                    self.passing(&guard, fault, is_sent)?;
                    continue;
                }
            };
            let version = stored.version;
            let log = match stored.log {
                Ok(log) => log,
                Err(problem) => {
                    release(guard).await;
                    return Err(JobError::Unreadable { path: self.path, problem });
                }
            };
            if let Some(log) = &log
                && log.open().is_some_and(|run| run.id == id)
            {
                // The claim whose reply was lost.
                return Ok(Claim::Run(Run::new(guard, self.job, log.clone(), version, told)));
            }
            let before = log.as_ref().map(|log| log.schedule.clone()).filter(|before| differs(before, &self.schedule));
            let mut log = log.unwrap_or_else(|| JobLog::new(&self.path, self.schedule.clone()));
            let crashed = log.close_crashed().then(|| log.runs.last().cloned()).flatten();
            let mut decided = self.decide(&log, own.ctime_ms, own.ctime_ms);
            let may_be_over =
                matches!(&decided.decision, SlotDecision::Paused { pause, .. } if pause.until_ms.is_some());
            if decided.ahead.is_some() || may_be_over {
                // If the host has waited for long, the runs after it asked may count, and the pause of that time may be over.
                match while_held(&guard, super::stored::server_now_ms(&*ensemble)).await {
                    Ok(now_ms) => decided = self.decide(&log, own.ctime_ms, now_ms.max(own.ctime_ms)),
                    Err(fault) => {
                        self.passing(&guard, fault, is_sent)?;
                        continue;
                    }
                }
            }
            let Decided { decision, ahead } = decided;
            if let Some(mut skipped) = skipped(&decision) {
                let is_left_out = match &skipped {
                    Skipped::Paused { slot, pause, .. } => {
                        log.leave_out(&self.schedule, slot, pause, own.ctime_ms, self.job.keep_runs)
                    }
                    _ => false,
                };
                if crashed.is_some() || is_left_out {
                    // So that the records show the crash and the slot. What fails is left to the next host.
                    let recorded = guard.fenced_write().set_if(&read, log.to_bytes(), version).await;
                    if let (
                        Skipped::Done { crash_found, .. } | Skipped::Paused { crash_found, .. },
                        Ok(_) | Err(WriteError::Unknown { .. }),
                    ) = (&mut skipped, recorded)
                    {
                        *crash_found = crashed.map(Box::new);
                    }
                }
                release(guard).await;
                return Ok(Claim::Skipped(skipped));
            }
            told = Before { schedule: before, ahead, crashed };
            self.begin(&mut log, decision, &id, &guard);
            match guard.fenced_write().set_if(&read, log.to_bytes(), version).await {
                Ok(written) => {
                    log.stamp(written.stamp_ms().unwrap_or(own.ctime_ms));
                    return Ok(Claim::Run(Run::new(guard, self.job, log, version + 1, told)));
                }
                // Someone changed or deleted the records meanwhile.
                Err(WriteError::BadVersion { .. } | WriteError::NoNode { .. }) => changes += 1,
                Err(WriteError::Unknown { .. }) if guard.is_held() => (unsure, is_sent) = (true, true),
                Err(WriteError::Unknown { path }) => return Err(JobError::Unknown { path }),
                Err(WriteError::Lost { .. }) => return Err(self.lost(&guard, is_sent)),
                Err(other) => {
                    let reason = other.to_string();
                    return Err(JobError::Refused { path: self.path, reason });
                }
            }
        }
        Err(JobError::Refused { path: self.path, reason: "they change all the time".to_owned() })
    }

    /// Decides for a host that asked at `now_ms`.
    fn decide(&self, log: &JobLog, now_ms: i64, latest_ms: i64) -> Decided {
        let slots = self.calendar.as_ref().map(|calendar| calendar.slots(now_ms, MAX_SLOTS_BACK)).unwrap_or_default();
        let Job { on_failure, on_crash, catch_up, .. } = self.job;
        let terms =
            ClaimTerms { schedule: &self.schedule, slots: &slots, now_ms, latest_ms, on_failure, on_crash, catch_up };
        Decided { decision: terms.decide(log), ahead: terms.ahead(log).cloned() }
    }

    fn begin(&self, log: &mut JobLog, decision: SlotDecision, id: &str, guard: &Guard) {
        let SlotDecision::Run { slot, attempt, catch_up, missed_before } = decision else { return };
        let Job { on_failure, on_crash, keep_runs, .. } = self.job;
        (log.schedule, log.on_failure, log.on_crash) = (self.schedule.clone(), on_failure, on_crash);
        let begin = Begin {
            id: id.to_owned(),
            slot,
            attempt,
            catch_up,
            missed_before,
            by: self.job.keeper.owner().clone(),
            command: self.job.command.clone(),
            token: guard.token().to_string(),
            node: guard.node().rsplit('/').next().unwrap_or_default().to_owned(),
        };
        log.begin(begin, keep_runs);
    }

    /// The error of a fault that a repetition does not mend. `is_sent` says that a claim was sent whose result is unknown.
    fn passing(&self, guard: &Guard, fault: OpError, is_sent: bool) -> Result<(), JobError> {
        match fault {
            OpError::ConnectionLoss if guard.is_held() => Ok(()),
            OpError::ConnectionLoss | OpError::SessionOver => Err(self.lost(guard, is_sent)),
            fault => Err(JobError::Refused { path: self.path.clone(), reason: fault.to_string() }),
        }
    }

    fn lost(&self, guard: &Guard, is_sent: bool) -> JobError {
        let path = self.path.clone();
        match is_sent {
            true => JobError::Unknown { path },
            false => JobError::Lost { path, loss: guard.loss().unwrap_or(lockkeeper::Loss::Removed) },
        }
    }
}

/// Waits for the servers as long as the lock is held. An operation on a lost connection would wait for the next one, however long that takes.
async fn while_held<T>(guard: &Guard, operation: impl Future<Output = Result<T, OpError>>) -> Result<T, OpError> {
    tokio::select! {
        biased;
        done = operation => done,
        _ = guard.lost() => Err(OpError::SessionOver),
    }
}

/// Whether two schedules differ in more than the text of a slot.
fn differs(one: &Schedule, other: &Schedule) -> bool {
    !matches!((one, other), (Schedule::Text { .. }, Schedule::Text { .. })) && one != other
}

/// Why this host runs nothing; `None` if it runs.
fn skipped(decision: &SlotDecision) -> Option<Skipped> {
    Some(match decision {
        SlotDecision::Run { .. } => return None,
        SlotDecision::Done { run, due_ms } => {
            Skipped::Done { run: Box::new(run.clone()), due_ms: *due_ms, crash_found: None }
        }
        SlotDecision::Passed { run } => Skipped::Passed { run: Box::new(run.clone()) },
        SlotDecision::Kept { run } => Skipped::Kept { run: Box::new(run.clone()) },
        SlotDecision::Paused { slot, pause } => {
            Skipped::Paused { slot: slot.clone(), pause: Box::new(pause.clone()), crash_found: None }
        }
    })
}

/// Releases the lock of a host that runs nothing. A release that is not confirmed goes on in the background.
async fn release(guard: Guard) {
    if let Err(error) = guard.release().await {
        debug!(%error, "the lock of a job was lost before its release");
    }
}
