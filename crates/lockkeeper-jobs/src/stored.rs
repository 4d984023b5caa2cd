//! The logs of jobs: one persistent node for each job, below a common parent.
//!
//! The lock's own node has none of it, so foreign clients of the lock see only contenders. A host writes the log under its hold and
//! under compare-and-set.

use lockkeeper_session::ensemble::{Ensemble, Node, NodeKind, OpError, Watcher, linearizable};
use lockkeeper_session::records;

use super::records::{JobLog, LogError};

/// The parent of the logs of all jobs. A job writes this node to learn the servers' time, so whoever may not write it need not add
/// jobs.
pub(crate) const ROOT: &str = "/lockkeeper/jobs";

/// Returns the servers' time, in milliseconds since 1970: the stamp of a small write. The first call in an ensemble creates the node
/// that it writes to, and its parent.
pub(crate) async fn server_now_ms(ensemble: &dyn Ensemble) -> Result<i64, OpError> {
    loop {
        match records::server_now_ms(ensemble, ROOT).await? {
            Some(now_ms) => return Ok(now_ms),
            None => records::make(ensemble, ROOT, NodeKind::SharedByWriters).await?,
        }
    }
}

/// The node of a job.
pub(super) fn node(path: &str) -> String {
    records::of_lock(ROOT, path)
}

/// A log as read.
pub(super) struct StoredLog {
    /// The log, if a run was ever claimed.
    pub(super) log: Result<Option<JobLog>, LogError>,
    /// The version of the node's data.
    pub(super) version: i32,
}

impl StoredLog {
    pub(super) fn of(seen: &Node) -> StoredLog {
        StoredLog { log: JobLog::read(&seen.data, seen.mtime_ms), version: seen.version }
    }
}

/// Creates the node of a job without a log.
pub(super) async fn make(ensemble: &dyn Ensemble, path: &str) -> Result<(), OpError> {
    loop {
        match ensemble.create(&node(path), Vec::new(), NodeKind::Persistent).await {
            Ok(_) | Err(OpError::NodeExists) => return Ok(()),
            Err(OpError::NoNode) => records::make(ensemble, ROOT, NodeKind::SharedByWriters).await?,
            Err(fault) => return Err(fault),
        }
    }
}

/// Reads the log of a job, no older than anything that was confirmed before; `None` if it has none.
pub(super) async fn find(ensemble: &dyn Ensemble, path: &str) -> Result<Option<StoredLog>, OpError> {
    match linearizable(ensemble, ensemble.read(&node(path))).await {
        Ok(seen) => Ok(Some(StoredLog::of(&seen))),
        Err(OpError::NoNode) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// The paths of the locks of all jobs with records.
pub(super) async fn paths(ensemble: &dyn Ensemble) -> Result<Vec<String>, OpError> {
    let names = records::names(ensemble, ROOT).await?;
    Ok(names.iter().map(|name| records::lock_of(name)).collect())
}

/// As [`paths`], and watches for new jobs and forgotten ones, or for the first one.
pub(super) async fn watch(ensemble: &dyn Ensemble) -> Result<(Vec<String>, Watcher), OpError> {
    loop {
        match linearizable(ensemble, ensemble.list_and_watch(ROOT)).await {
            Ok((names, changed)) => return Ok((names.iter().map(|name| records::lock_of(name)).collect(), changed)),
            // A node that does not exist has no children to watch.
            Err(OpError::NoNode) => {
                if let Some(created) = ensemble.watch_creation(ROOT).await? {
                    return Ok((Vec::new(), created));
                }
            }
            Err(fault) => return Err(fault),
        }
    }
}
