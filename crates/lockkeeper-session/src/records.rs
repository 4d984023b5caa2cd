//! Records as nodes below one parent: what the side trees below `/lockkeeper` have in common.

use futures_util::stream::{self, StreamExt};

use crate::ensemble::{Ensemble, Node, NodeKind, OpError, READS_IN_FLIGHT, linearizable};

/// Creates the parent of all records, which is of this kind, and its parent. Existing nodes stay as they are.
///
/// Two round trips. Dropping the future may leave one of them or both. Errors: the servers' refusal, or no answer.
pub async fn make(ensemble: &dyn Ensemble, root: &str, kind: NodeKind) -> Result<(), OpError> {
    let above = root.rfind('/').map_or(root, |at| &root[..at]);
    for (path, kind) in [(above, NodeKind::Shared), (root, kind)] {
        match ensemble.create(path, Vec::new(), kind).await {
            Ok(_) | Err(OpError::NodeExists) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

/// Returns the path of the record of a lock: a node directly below `root`, named as the lock's path without slashes.
pub fn of_lock(root: &str, path: &str) -> String {
    let name = path.trim_start_matches('/').replace('%', "%25").replace('/', "%2F");
    format!("{root}/{name}")
}

/// Returns the path of the lock whose record has this name.
pub fn lock_of(name: &str) -> String {
    format!("/{}", name.replace("%2F", "/").replace("%25", "%"))
}

/// Returns the names of all current records; empty if no record was written yet.
///
/// One round trip, and a write for the ensemble. Dropping the future leaves nothing behind. Errors: the servers' refusal, or no answer.
pub async fn names(ensemble: &dyn Ensemble, root: &str) -> Result<Vec<String>, OpError> {
    match linearizable(ensemble, ensemble.list(root)).await {
        Err(OpError::NoNode) => Ok(Vec::new()),
        listed => Ok(listed?.names),
    }
}

/// Reads the records of these names, in that order. Deleted ones, and those that cannot be read, are left out.
///
/// One request for each, [`READS_IN_FLIGHT`] at once. Dropping the future leaves nothing behind.
pub async fn read(ensemble: &dyn Ensemble, root: &str, names: Vec<String>) -> Vec<(String, Node)> {
    let reads = names.into_iter().map(|name| {
        let read = ensemble.read(&format!("{root}/{name}"));
        async move { read.await.ok().map(|node| (name, node)) }
    });
    stream::iter(reads).buffered(READS_IN_FLIGHT).filter_map(std::future::ready).collect().await
}

/// Returns the servers' time, in milliseconds since 1970: the stamp of a small write to this node. `None` if the node does not exist.
///
/// # Cost
///
/// One round trip, and a write for the ensemble.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind, but the write may happen. It empties the node.
///
/// # Errors
///
/// As the write's.
pub async fn server_now_ms(ensemble: &dyn Ensemble, node: &str) -> Result<Option<i64>, OpError> {
    match ensemble.write(node, Vec::new(), None).await {
        Err(OpError::NoNode) => Ok(None),
        written => Ok(Some(written?.mtime_ms)),
    }
}
