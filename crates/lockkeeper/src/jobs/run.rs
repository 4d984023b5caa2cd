//! A claimed run, and its end.

use lockkeeper_core::Loss;
use lockkeeper_core::jobs::{EndKind, JobLog, RunEnd, RunRecord, RunSlot, Schedule};
use tracing::warn;

use super::job::Job;
use crate::ensemble::{OpError, TxnStep};
use crate::error::{ReleaseError, SessionError};
use crate::hold::guard::Guard;
use crate::hold::holding::Holding;
use crate::registers::jobs;

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
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FinishedRun {
    /// The record of the run. Its end time is known if it was written.
    pub record: RunRecord,
    /// Whether the end is in the records. Otherwise the next host finds a run that crashed.
    pub recorded: bool,
    /// The loss of the lock, if it was lost before its release.
    pub loss: Option<Loss>,
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

    /// Records the end and releases the lock, in one transaction.
    ///
    /// If the lock is lost, the end is recorded unless another host has written the records since.
    ///
    /// # Cost
    ///
    /// One round trip. If its reply is lost, or if the lock is lost, one read and at most one write more.
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
        let (released, written) = Holding::from(guard).release_and_write(write).await;
        let loss = match released {
            Ok(()) => None,
            Err(ReleaseError::NotHeld { loss }) => Some(loss),
            Err(error) => {
                warn!(%path, %error, "the lock of a job was not released");
                None
            }
        };
        let stamp = match written {
            Some(written) => Some(written.mtime_ms),
            None => {
                let (context, id) = (job.context.clone(), record.id.clone());
                let log = log.clone();
                let written = job.context.run_while_answered(async move {
                    Ok::<_, SessionError>(record_later(&context, &path, &id, log, version).await)
                });
                written.await.ok().flatten()
            }
        };
        if let Some(stamp) = stamp {
            log.stamp(stamp);
        }
        if let Some(last) = log.runs.pop() {
            record = last;
        }
        FinishedRun { record, recorded: stamp.is_some(), loss }
    }
}

/// Records the end of a run if no later write has changed the records. Returns when it was recorded.
async fn record_later(
    context: &crate::session::context::Context,
    path: &str,
    id: &str,
    mut log: JobLog,
    version: i32,
) -> Option<i64> {
    for _ in 0..MAX_ATTEMPTS {
        let (_session, ensemble) = context.session(None).await.ok()?;
        let stored = match jobs::find(&*ensemble, path).await {
            Ok(stored) => stored?,
            Err(OpError::ConnectionLoss | OpError::SessionOver) => continue,
            Err(_) => return None,
        };
        let seen = stored.log.ok()??;
        let ours = seen.runs.iter().find(|run| run.id == id)?;
        if let Some(end) = &ours.end {
            return ours.end_ms.filter(|_| end.kind != EndKind::Crashed);
        }
        if stored.version != version {
            return None;
        }
        match ensemble.write(&jobs::node(path), log.to_bytes(), Some(version)).await {
            Ok(written) => return Some(written.mtime_ms),
            // The next read shows whether it was written, or who was first.
            Err(OpError::ConnectionLoss | OpError::SessionOver | OpError::BadVersion) => {}
            Err(_) => return None,
        }
    }
    None
}
