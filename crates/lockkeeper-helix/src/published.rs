//! The fleet's counters of its leased locks.
//!
//! Each lock has one node below a common parent: a lock's record belongs to Helix, and a free lock leaves nothing
//! behind. Each write adds the counts of one process under compare-and-set, so no addition is lost to another. The node
//! names the last writes, so that a write whose reply was lost is not repeated. Owners per lock and locks are bounded;
//! beyond that, those that were not written for the longest time are deleted.

use lockkeeper::Lockkeeper;
use lockkeeper::error::{AdminError, SessionError, refused};
use lockkeeper_session::ensemble::{Ensemble, NodeKind, OpError, linearizable};
use lockkeeper_session::records;
use serde::{Deserialize, Serialize};

use crate::protocol::Statistics;

/// The parent of the statistics of leased locks.
pub(crate) const ROOT: &str = "/lockkeeper/stats";

/// How many owners are counted separately. At most 20 KiB each.
const OWNERS: usize = 16;

/// How many locks have statistics, and how many are deleted at once when there are more.
const LOCKS: usize = 1024;
const SPARE: usize = 128;

/// How many writes a node names. A write whose reply was lost is recognized if at most this many came after it;
/// otherwise its counts are added twice.
const WRITES: usize = 32;

/// How often a write is retried if another client wrote first or the connection was lost.
const MAX_ATTEMPTS: usize = 32;

/// The data of a node.
#[derive(Default, Serialize, Deserialize)]
struct StoredStatistics {
    /// The version of this format, now 1.
    lockkeeper: u32,
    statistics: Statistics,
    /// The last writes, the oldest first.
    #[serde(default)]
    writes: Vec<String>,
}

impl StoredStatistics {
    fn read(path: &str, data: &[u8]) -> Result<StoredStatistics, AdminError> {
        let unreadable =
            |problem: String| AdminError::from(SessionError::Refused { path: path.to_owned(), reason: problem });
        let stored: StoredStatistics = serde_json::from_slice(data)
            .map_err(|error| unreadable(format!("{} is no record of statistics: {error}", node(path))))?;
        match stored.lockkeeper {
            1 => Ok(stored),
            other => Err(unreadable(format!("{} is of a later kind ({other}) than this version reads", node(path)))),
        }
    }
}

/// The node of a lock.
fn node(path: &str) -> String {
    records::of_lock(ROOT, path)
}

/// Reads the fleet's counters of the lock at `path`; `None` if there are none.
pub(crate) async fn read(ensemble: &dyn Ensemble, path: &str) -> Result<Option<Statistics>, AdminError> {
    let at = node(path);
    match linearizable(ensemble, ensemble.read(&at)).await {
        Ok(seen) => Ok(Some(StoredStatistics::read(path, &seen.data)?.statistics)),
        Err(OpError::NoNode) => Ok(None),
        Err(fault) => Err(refused(path, fault)),
    }
}

/// Deletes the fleet's counters of the lock at `path`; `false` if there were none.
pub(crate) async fn forget(ensemble: &dyn Ensemble, path: &str) -> Result<bool, AdminError> {
    match ensemble.delete(&node(path), None).await {
        Ok(()) => Ok(true),
        Err(OpError::NoNode) => Ok(false),
        Err(fault) => Err(refused(path, fault)),
    }
}

/// Adds the counts of one process. Two round trips, more if others write at the same time.
pub(crate) async fn add(keeper: &Lockkeeper, path: &str, counted: &Statistics) -> Result<(), AdminError> {
    let (at, id) = (node(path), uuid::Uuid::new_v4().to_string());
    let mut unsure = false;
    for _ in 0..MAX_ATTEMPTS {
        let (_session, ensemble) = keeper.sessions().session(None).await?;
        let ensemble = &*ensemble;
        let read = ensemble.read(&at);
        let read = if unsure { linearizable(ensemble, read).await } else { read.await };
        let (mut stored, version) = match read {
            Ok(seen) => (StoredStatistics::read(path, &seen.data)?, Some(seen.version)),
            Err(OpError::NoNode) => (StoredStatistics { lockkeeper: 1, ..StoredStatistics::default() }, None),
            Err(OpError::ConnectionLoss | OpError::SessionOver) => {
                unsure = true;
                continue;
            }
            Err(fault) => return Err(refused(path, fault)),
        };
        if stored.writes.contains(&id) {
            return Ok(());
        }
        stored.statistics.merge(counted);
        stored.statistics.fold_to(OWNERS);
        stored.writes.push(id.clone());
        let surplus = stored.writes.len().saturating_sub(WRITES);
        stored.writes.drain(..surplus);
        let data = serde_json::to_vec(&stored).expect("maps of strings and numbers always serialise");
        let written = match version {
            Some(version) => ensemble.write(&at, data, Some(version)).await.map(drop),
            None => match ensemble.create(&at, data, NodeKind::Persistent).await {
                Ok(_) => {
                    prune(ensemble).await;
                    Ok(())
                }
                Err(fault) => Err(fault),
            },
        };
        match written {
            Ok(()) => return Ok(()),
            Err(OpError::NoNode) if version.is_none() => match records::make(ensemble, ROOT, NodeKind::Shared).await {
                Ok(()) | Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
                Err(fault) => return Err(refused(path, fault)),
            },
            Err(OpError::BadVersion | OpError::NodeExists | OpError::NoNode) => unsure = true,
            Err(OpError::ConnectionLoss | OpError::SessionOver) => unsure = true,
            Err(fault) => return Err(refused(path, fault)),
        }
    }
    Err(SessionError::ConnectionLost { path: path.to_owned() }.into())
}

/// Deletes those that were not written for the longest time, if there are too many. What fails is left to the next new
/// lock.
async fn prune(ensemble: &dyn Ensemble) {
    let Ok(names) = records::names(ensemble, ROOT).await else { return };
    if names.len() <= LOCKS {
        return;
    }
    let seen = records::read(ensemble, ROOT, names).await;
    let mut seen: Vec<_> = seen.into_iter().map(|(name, seen)| (seen.mzxid, name, seen.version)).collect();
    seen.sort_unstable();
    let surplus = seen.len().saturating_sub(LOCKS - SPARE);
    for (_, name, version) in seen.into_iter().take(surplus) {
        // Another client may prune at the same time, or write it at this moment.
        _ = ensemble.delete(&format!("{ROOT}/{name}"), Some(version)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lock_has_a_node_of_its_own_directly_below_the_root() {
        assert_eq!(node("/locks/nightly"), "/lockkeeper/stats/locks%2Fnightly");
        assert_ne!(node("/a%2Fb"), node("/a/b"));
    }

    #[test]
    fn data_of_a_later_version_is_not_overwritten() {
        assert!(StoredStatistics::read("/a", br#"{"lockkeeper":1,"statistics":{"others":{"held":{"7":1}}}}"#).is_ok());
        assert!(StoredStatistics::read("/a", br#"{"lockkeeper":2,"statistics":{}}"#).is_err());
        assert!(StoredStatistics::read("/a", b"x").is_err());
    }
}
