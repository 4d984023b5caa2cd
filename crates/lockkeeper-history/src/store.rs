//! Where the records are, and how they are written.

use futures_util::future::join_all;
use lockkeeper_session::ensemble::{Ensemble, Node, NodeKind, OpError, TxnStep, Watcher, linearizable};
use lockkeeper_session::records;

use crate::ROOT;

/// The records of a lock: each with its name and when it was written.
pub(super) type Stored = Vec<(String, Vec<u8>, i64)>;

/// How many records of holds a lock has.
pub(super) const SLOTS: u32 = 16;

/// How many records of refusals a lock has.
pub(super) const REFUSALS: u32 = 8;

/// How many locks have records, and how many are deleted at once when there are more.
const LOCKS: usize = 1024;
const SPARE: usize = 128;

/// How often a write is tried again if another client was first.
const MAX_ATTEMPTS: usize = 8;

/// The node of a lock. The version of its data is the number of holds that were recorded, and tells which record is the oldest.
pub(super) fn node(path: &str) -> String {
    records::of_lock(ROOT, path)
}

/// The record of a hold with this number.
pub(super) fn slot(lock: &str, number: u32) -> String {
    format!("{lock}/{:02}", number % SLOTS)
}

/// A record of refusals.
pub(super) fn refusal(lock: &str, number: u32) -> String {
    format!("{lock}/x{number}")
}

/// The number of a node's version. It may be negative after 2^31 writes.
#[allow(clippy::cast_sign_loss, reason = "only the position on the circle counts")]
pub(super) fn count(node: &Node) -> u32 {
    node.version as u32
}

/// Creates the node of a lock, and deletes those of other locks if there are too many.
pub(super) async fn make(ensemble: &dyn Ensemble, lock: &str) -> Result<(), OpError> {
    loop {
        match ensemble.create(lock, Vec::new(), NodeKind::Persistent).await {
            Ok(_) => {
                prune(ensemble).await;
                return Ok(());
            }
            Err(OpError::NodeExists) => return Ok(()),
            Err(OpError::NoNode) => records::make(ensemble, ROOT, NodeKind::Shared).await?,
            Err(fault) => return Err(fault),
        }
    }
}

/// The node of the next record of a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    path: String,
    /// The version of its data. A record that another client has written there meanwhile stays.
    version: i32,
}

/// Returns the node for the next record of a hold, which exists. `beside`: what tells this hold from others at the same time.
///
/// Two reads, one after the other; for each of the first records of a lock one create more.
pub(super) async fn next_slot(ensemble: &dyn Ensemble, lock: &str, beside: Option<u32>) -> Result<Slot, OpError> {
    // Each time that another client was first, it has made one of the nodes: at most so many times.
    for _ in 0..=SLOTS {
        let written = match ensemble.read(lock).await {
            Ok(seen) => count(&seen),
            Err(OpError::NoNode) => {
                make(ensemble, lock).await?;
                0
            }
            Err(fault) => return Err(fault),
        };
        let path = slot(lock, written.wrapping_add(beside.unwrap_or(0)));
        match ensemble.read(&path).await {
            Ok(seen) => return Ok(Slot { path, version: seen.version }),
            Err(OpError::NoNode) => {}
            Err(fault) => return Err(fault),
        }
        match ensemble.create(&path, Vec::new(), NodeKind::Persistent).await {
            Ok(_) => return Ok(Slot { path, version: 0 }),
            Err(OpError::NodeExists | OpError::NoNode) => {}
            Err(fault) => return Err(fault),
        }
    }
    Err(OpError::NodeExists)
}

/// The steps that write a record, and count it.
pub(super) fn steps(lock: &str, slot: &Slot, data: Vec<u8>) -> Vec<TxnStep> {
    let count = TxnStep::Write { path: lock.to_owned(), data: Vec::new(), version: None };
    vec![count, TxnStep::Write { path: slot.path.clone(), data, version: Some(slot.version) }]
}

/// Writes the record of a hold in a transaction of its own. Three round trips. `data` is made when it is written.
///
/// Writers that meet at the oldest record spread over all of them: at one record, only one of them would get through in each round.
pub(super) async fn write(ensemble: &dyn Ensemble, lock: &str, data: impl Fn() -> Vec<u8>) -> Result<(), OpError> {
    for attempt in 0..MAX_ATTEMPTS {
        let beside = (attempt > 0).then(|| fastrand::u32(..SLOTS));
        let slot = next_slot(ensemble, lock, beside).await?;
        match ensemble.transact(steps(lock, &slot, data())).await {
            Ok(_) => return Ok(()),
            // Another client writes or deletes records of the lock.
            Err(undone) if matches!(undone.fault, OpError::NoNode | OpError::BadVersion) => {}
            Err(undone) => return Err(undone.fault),
        }
    }
    Err(OpError::BadVersion)
}

/// A node as read; `None` if it does not exist.
fn existing(read: Result<Node, OpError>) -> Result<Option<Node>, OpError> {
    match read {
        Ok(node) => Ok(Some(node)),
        Err(OpError::NoNode) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Returns the names of all locks with records.
pub(super) async fn locks(ensemble: &dyn Ensemble) -> Result<Vec<String>, OpError> {
    records::names(ensemble, ROOT).await
}

/// Reads all records of a lock; none if it has none.
pub(super) async fn read(ensemble: &dyn Ensemble, path: &str) -> Result<Vec<(String, Node)>, OpError> {
    let lock = node(path);
    let names = records::names(ensemble, &lock).await?;
    // Only names of records: other programs may have created any number of nodes here.
    let names = names.into_iter().filter(|name| is_record(name)).collect();
    Ok(records::read(ensemble, &lock, names).await)
}

/// Whether this is the name of a record.
fn is_record(name: &str) -> bool {
    is_slot(name) || (0..REFUSALS).any(|number| name == format!("x{number}"))
}

/// Whether this is the name of a record of a hold.
pub(super) fn is_slot(name: &str) -> bool {
    name.len() == 2
        && name.bytes().all(|byte| byte.is_ascii_digit())
        && name.parse().is_ok_and(|number: u32| number < SLOTS)
}

/// Watches the records of a lock for changes. Watches first: a read after it misses nothing.
///
/// One round trip, two if the lock has no records yet.
pub(super) async fn watch(ensemble: &dyn Ensemble, lock: &str) -> Result<Vec<Watcher>, OpError> {
    // A new hold changes the lock's node, and a refusal only its own.
    let nodes = std::iter::once(lock.to_owned()).chain((0..REFUSALS).map(|number| refusal(lock, number)));
    join_all(nodes.map(|node| watch_node(ensemble, node))).await.into_iter().collect()
}

/// Watches a node, or its creation.
async fn watch_node(ensemble: &dyn Ensemble, node: String) -> Result<Watcher, OpError> {
    loop {
        match ensemble.read_and_watch(&node).await {
            Ok((_, watcher)) => return Ok(watcher),
            Err(OpError::NoNode) => {}
            Err(fault) => return Err(fault),
        }
        // Otherwise it was created between the two requests.
        if let Some(watcher) = ensemble.watch_creation(&node).await? {
            return Ok(watcher);
        }
    }
}

/// Reads the nodes of the refusals of a lock; `None` for those that do not exist.
pub(super) async fn read_refusals(ensemble: &dyn Ensemble, lock: &str) -> Result<Vec<Option<Node>>, OpError> {
    let reads: Vec<_> = (0..REFUSALS).map(|number| ensemble.read(&refusal(lock, number))).collect();
    join_all(reads).await.into_iter().map(existing).collect()
}

/// Deletes the records of the locks that were not held for the longest time, if there are too many. What fails is left to the next
/// new lock.
async fn prune(ensemble: &dyn Ensemble) {
    let Ok(names) = linearizable(ensemble, ensemble.list(ROOT)).await else { return };
    if names.names.len() <= LOCKS {
        return;
    }
    let seen = records::read(ensemble, ROOT, names.names).await;
    let mut seen: Vec<_> = seen.into_iter().map(|(name, seen)| (seen.mzxid, name)).collect();
    seen.sort_unstable();
    let surplus = seen.len().saturating_sub(LOCKS - SPARE);
    for (_, name) in seen.into_iter().take(surplus) {
        let lock = format!("{ROOT}/{name}");
        let Ok(records) = ensemble.list(&lock).await else { continue };
        let deletes: Vec<_> =
            records.names.iter().map(|record| ensemble.delete(&format!("{lock}/{record}"), None)).collect();
        // Another client may prune at the same time, or write a record at this moment. Then the node stays.
        _ = join_all(deletes).await;
        _ = ensemble.delete(&lock, None).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_sixteen_records_of_holds_in_turn_and_eight_of_refusals() {
        let lock = node("/locks/team/nightly");
        assert_eq!(lock, "/lockkeeper/history/locks%2Fteam%2Fnightly");
        assert_eq!(slot(&lock, 3), format!("{lock}/03"));
        assert_eq!((slot(&lock, 16), slot(&lock, u32::MAX)), (slot(&lock, 0), slot(&lock, 15)));
        for name in ["00", "15", "x0", "x7"] {
            assert!(is_record(name), "{name}");
        }
        for name in ["16", "1", "+1", "x8", "x", "", "readme", "0a"] {
            assert!(!is_record(name), "{name}");
        }
    }
}
