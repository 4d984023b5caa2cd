//! Jobs that are expected to run, before any host has claimed a run.
use lockkeeper_session::ensemble::{Ensemble, NodeKind, OpError};
use lockkeeper_session::records;

use super::calendar::Calendar;
use super::error::{JobError, refused};
use super::job::Job;
use super::records::{Expected, JobLog, Schedule};
use super::stored as jobs;
use super::stored::server_now_ms;

/// How often a write is tried if the records change meanwhile.
const MAX_ATTEMPTS: usize = 10;

impl Job {
    /// Says that hosts are expected to run this job: it has records from now on, and is late after a whole slot without a run,
    /// even if no host ever claims one. Returns `false` if it has records already; they stay.
    ///
    /// # Cost
    ///
    /// Two writes in two round trips; up to four more in an ensemble without any job.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the records either written or not written.
    ///
    /// # Errors
    ///
    /// The job is not valid, the server refuses, or it cannot be reached.
    pub async fn expect(&self) -> Result<bool, JobError> {
        let (path, schedule, calendar) = self.checked()?;
        let (on_failure, on_crash) = (self.on_failure, self.on_crash);
        self.keeper
            .sessions()
            .ask(move |ensemble| async move {
                let now_ms = server_now_ms(&*ensemble).await.map_err(|fault| refused(&path, fault))?;
                let mut log = JobLog::new(&path, schedule);
                (log.on_failure, log.on_crash) = (on_failure, on_crash);
                log.expected = Some(Expected::new(now_ms, due_ms(&log.schedule, calendar.as_ref(), now_ms)));
                write(&*ensemble, &path, &log.to_bytes()).await.map_err(|fault| refused(&path, fault))
            })
            .await
    }
}

/// When the slot of this time ends.
fn due_ms(schedule: &Schedule, calendar: Option<&Calendar>, now_ms: i64) -> Option<i64> {
    match schedule {
        Schedule::Every { every_ms } => now_ms.checked_add_unsigned(*every_ms),
        _ => calendar?.slot(now_ms).end_ms,
    }
}

/// Writes the first log of a job. Returns `false` if it has one.
async fn write(ensemble: &dyn Ensemble, path: &str, log: &[u8]) -> Result<bool, OpError> {
    let node = jobs::node(path);
    for _ in 0..MAX_ATTEMPTS {
        match ensemble.create(&node, log.to_vec(), NodeKind::Persistent).await {
            Ok(_) => return Ok(true),
            Err(OpError::NodeExists) => {}
            Err(OpError::NoNode) => {
                records::make(ensemble, super::stored::ROOT, NodeKind::SharedByWriters).await?;
                continue;
            }
            Err(fault) => return Err(fault),
        }
        match ensemble.read(&node).await {
            Ok(seen) if !seen.data.is_empty() => return Ok(false),
            // A host is about to claim its first run, or has left before it did.
            Ok(seen) => match ensemble.write(&node, log.to_vec(), Some(seen.version)).await {
                Ok(_) => return Ok(true),
                Err(OpError::BadVersion | OpError::NoNode) => {}
                Err(fault) => return Err(fault),
            },
            Err(OpError::NoNode) => {}
            Err(fault) => return Err(fault),
        }
    }
    Err(OpError::BadVersion)
}
