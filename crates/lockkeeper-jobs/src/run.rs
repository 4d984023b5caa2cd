//! A claimed run, and its end.
use lockkeeper::error::{ReleaseError, SessionError};
use lockkeeper::{Guard, Holding, Lockkeeper, Loss};
use lockkeeper_session::ensemble::{Node, OpError, TxnStep};
use tracing::warn;

use super::job::Job;
use super::records::{EndKind, JobLog, LogError, RunEnd, RunRecord, RunSlot, Schedule};
use super::stored as jobs;

/// How often the end of a run is recorded after its release, if a reply is lost.
const MAX_ATTEMPTS: usize = 8;

/// A run of a slot that this host has claimed. It holds the job's lock.
///
/// Dropping it releases the lock and records no end: the next host finds a run that crashed. Call [`Run::finish`].
#[derive(Debug)]
#[must_use = "a claimed run that is dropped counts as crashed"]
pub struct Run {
    guard: Guard,
    claimed: Box<Claimed>,
}

/// What a claim has written.
#[derive(Debug)]
struct Claimed {
    job: Job,
    log: JobLog,
    version: i32,
    record: RunRecord,
    before: Before,
}

/// What is remarkable about the run before.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// Its schedule, if it was another one.
    pub(super) schedule: Option<Schedule>,
    /// The run, if it is dated in the future.
    pub(super) ahead: Option<RunRecord>,
    /// The run, if this claim has found that it crashed.
    pub(super) crashed: Option<RunRecord>,
}

/// The end of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "`recorded` says whether the end of the run is recorded"]
pub struct FinishedRun {
    /// The record of the run. Its end time is known if it was written.
    pub record: RunRecord,
    /// Whether the end is in the records, and why not. If it is not, [`Job::on_crash`] decides whether the slot runs again.
    pub recorded: Result<(), NotRecorded>,
    /// The loss of the lock, if it was lost before its release.
    pub loss: Option<Loss>,
}

/// Why the end of a run is not in the records, or may not be.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecorded {
    /// Another host or a person has changed the records after the lock was lost. The run counts as crashed.
    #[error("the records were changed meanwhile, and the run counts as crashed")]
    Crashed,
    /// The records of the job, or of this run, are deleted.
    #[error("the records of the run are deleted")]
    Deleted,
    /// The records cannot be read any more.
    #[error(transparent)]
    Unreadable(#[from] LogError),
    /// A server refuses to read or write the records. The run counts as crashed.
    #[error("the server refused: {reason}")]
    Refused {
        /// The server's reason.
        reason: String,
    },
    /// No server has confirmed that the end is recorded. Either it is, or the run counts as crashed.
    #[error("no server has confirmed it: {0}")]
    Unknown(SessionError),
}

impl Run {
    pub(super) fn new(guard: Guard, job: Job, log: JobLog, version: i32, before: Before) -> Self {
        let record = log.open().expect("a claim leaves an open run").clone();
        Run { guard, claimed: Box::new(Claimed { job, log, version, record, before }) }
    }

    /// Returns the record of this run, without its end.
    pub fn record(&self) -> &RunRecord {
        &self.claimed.record
    }

    /// Returns the slot.
    pub fn slot(&self) -> &RunSlot {
        &self.claimed.record.slot
    }

    /// Returns the guard of the job's lock: whether it is held, its token, requests to release it, fenced writes.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Returns the schedule of the run before, if it was another one. Hosts of one job should state the same schedule.
    pub fn schedule_before(&self) -> Option<&Schedule> {
        self.claimed.before.schedule.as_ref()
    }

    /// Returns the run before, if it is dated so far in the future that it did not count: the clock of a server was ahead when
    /// it was claimed, or is behind now. Its slot does not run again when its time comes.
    pub fn ahead_before(&self) -> Option<&RunRecord> {
        self.claimed.before.ahead.as_ref()
    }

    /// Returns the run before, if this claim has found that it crashed. Nobody else reports that crash.
    pub fn crashed_before(&self) -> Option<&RunRecord> {
        self.claimed.before.crashed.as_ref()
    }

    /// Records the end and releases the lock, in one transaction.
    ///
    /// If the lock is lost, the end is recorded unless another host has written the records since.
    ///
    /// While no server answers, the call waits for the release for the session timeout, as [`Holding::release`] does, and then tries
    /// to record the end for the session timeout and the connect timeout together, or up to half as long again.
    ///
    /// # Cost
    ///
    /// One round trip. One read and one more transaction if the job was paused or resumed meanwhile. If a reply is lost, or if the lock
    /// is lost, one read and at most one write more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release. The end is recorded with it, or not at all.
    pub async fn finish(self, end: RunEnd) -> FinishedRun {
        let Run { guard, claimed } = self;
        let Claimed { job, mut log, version, mut record, .. } = *claimed;
        let path = guard.path().to_owned();
        log.finish(&record.id, end);
        let write = TxnStep::Write { path: jobs::node(&path), data: log.to_bytes(), version: Some(version) };
        let (released, written) = lockkeeper::hold::release_and_write(Holding::from(guard), write, rebased).await;
        let loss = match released {
            Ok(()) => None,
            Err(ReleaseError::NotHeld { loss }) => Some(loss),
            Err(error) => {
                warn!(%path, %error, "the lock of a job was not released");
                None
            }
        };
        let recorded = match written {
            Some(written) => Ok(written.mtime_ms),
            None => {
                let (keeper, ended) = (job.keeper.clone(), log.runs.last().cloned().unwrap_or_else(|| record.clone()));
                let later = async move |_| Ok(record_later(&keeper, &path, &ended).await);
                job.keeper.sessions().ask(later).await.unwrap_or_else(|error| Err(NotRecorded::Unknown(error)))
            }
        };
        if let Ok(stamp) = recorded {
            log.stamp(stamp);
        }
        if let Some(last) = log.runs.pop() {
            record = last;
        }
        FinishedRun { record, recorded: recorded.map(drop), loss }
    }
}

/// Returns the write of the end of a run into records that a person has changed since its claim; `None` if the run is not open there.
fn rebased(seen: &Node, write: &TxnStep) -> Option<TxnStep> {
    let TxnStep::Write { path, data, .. } = write else { return None };
    let ended = JobLog::read(data, seen.mtime_ms).ok()??.runs.pop()?;
    let mut log = JobLog::read(&seen.data, seen.mtime_ms).ok()??;
    let is_open = log.finish(&ended.id, ended.end?);
    is_open.then(|| TxnStep::Write { path: path.clone(), data: log.to_bytes(), version: Some(seen.version) })
}

/// Records the end of a run if no other host has closed it. Returns when it was recorded.
async fn record_later(keeper: &Lockkeeper, path: &str, ended: &RunRecord) -> Result<i64, NotRecorded> {
    let refused = |fault: OpError| NotRecorded::Refused { reason: fault.to_string() };
    // A lost read does not count: the caller bounds how long servers may be silent.
    let mut writes = 0;
    while writes < MAX_ATTEMPTS {
        let ensemble = keeper.sessions().ensemble().await.map_err(NotRecorded::Unknown)?;
        let stored = match jobs::find(&*ensemble, path).await {
            Ok(stored) => stored.ok_or(NotRecorded::Deleted)?,
            Err(OpError::ConnectionLoss | OpError::SessionOver) => continue,
            Err(fault) => return Err(refused(fault)),
        };
        let mut log = stored.log?.ok_or(NotRecorded::Deleted)?;
        let ours = log.runs.iter().find(|run| run.id == ended.id).ok_or(NotRecorded::Deleted)?;
        match &ours.end {
            Some(end) if end.kind == EndKind::Crashed => return Err(NotRecorded::Crashed),
            Some(_) => return ours.end_ms.ok_or(NotRecorded::Crashed),
            None => {}
        }
        // A host that begins a run closes the one before. Whoever pauses the job leaves it open.
        let Some(end) = ended.end.clone() else { return Err(NotRecorded::Crashed) };
        if !log.finish(&ended.id, end) {
            return Err(NotRecorded::Crashed);
        }
        writes += 1;
        match ensemble.write(&jobs::node(path), log.to_bytes(), Some(stored.version)).await {
            Ok(written) => return Ok(written.mtime_ms),
            // The next read shows whether it was written, or who was first.
            Err(OpError::ConnectionLoss | OpError::SessionOver | OpError::BadVersion | OpError::NoNode) => {}
            Err(fault) => return Err(refused(fault)),
        }
    }
    Err(NotRecorded::Unknown(SessionError::ConnectionLost { path: path.to_owned() }))
}
