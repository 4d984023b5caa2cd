//! The deletion of leftovers: each checks the version that was read, and one transaction deletes some of them and records that.

use std::time::SystemTime;

use lockkeeper::admin::{Owner, Proof};
use lockkeeper::error::{AdminError, SessionError, refused};
use lockkeeper::{Lockkeeper, journal};
use lockkeeper_session::ensemble::{Ensemble, NodeKind, OpError, TxnError, TxnStep};
use lockkeeper_session::records;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Leftover, LeftoverKind};

/// Maximum nodes and bytes of their paths in one transaction, and so in one record.
const MOST: (usize, usize) = (100, 8 << 10);

/// How often a transaction is retried after a lost connection, or because the journal's node is missing.
const MAX_ATTEMPTS: usize = 10;

/// A record of the journal: leftovers that were deleted together. The ensemble keeps the last 224 to 256 of these records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cleanup {
    /// Where they were looked for.
    pub root: String,
    /// What they were: `empty` or `tombstone`.
    pub what: String,
    /// Their paths.
    pub nodes: Vec<String>,
    /// The client that deleted them, as it says itself.
    pub by: Owner,
    /// Whether the server knows its user.
    #[serde(skip)]
    pub proof: Proof,
    /// When, by the server's clock.
    #[serde(skip, default = "lockkeeper_session::text::unix_epoch")]
    pub at: SystemTime,
}

impl journal::Entry for Cleanup {
    const KIND: &'static str = "cleanup";

    fn path(&self) -> &str {
        &self.root
    }

    fn stamp(&mut self, proof: Proof, at: SystemTime) {
        (self.proof, self.at) = (proof, at);
    }
}

/// What a deletion of leftovers has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Swept {
    /// The paths that were deleted.
    pub deleted: Vec<String>,
    /// The paths that changed since they were read, got a child, or were deleted by another client: they were not deleted here.
    pub changed: Vec<String>,
}

/// Leftovers of one kind that one transaction deletes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Batch {
    what: &'static str,
    /// The paths, each with its version.
    nodes: Vec<(String, i32)>,
    /// The bytes of the paths.
    bytes: usize,
}

/// Deletes these leftovers below `root`: empty nodes, and tombstones. Others are left out; a node without a session is deleted as a
/// contender, with `Admin::evict`. Each deletion checks that the node has the version that was read, and no child. Each transaction
/// writes a [`Cleanup`].
///
/// # Cost
///
/// A transaction for at most 100 nodes, two requests more for each node that changed, and the pruning of the journal.
///
/// # Cancel safety
///
/// Dropping the future leaves some of them deleted, and those recorded.
///
/// # Errors
///
/// The server refuses a deletion or the record, or it cannot be reached. What was deleted before that is recorded.
pub async fn sweep(keeper: &Lockkeeper, root: &str, leftovers: &[Leftover]) -> Result<Swept, AdminError> {
    keeper.root(root)?;
    let (root, batches, own) = (root.to_owned(), batches(leftovers), keeper.clone());
    let sweeping = keeper.sessions().run_while_answered(async move {
        let mut swept = Swept::default();
        for batch in batches {
            delete(&own, &root, batch, &mut swept).await?;
        }
        if !swept.deleted.is_empty() {
            let (_session, ensemble) = own.sessions().session(None).await?;
            journal::prune(&*ensemble).await;
        }
        Ok(swept)
    });
    sweeping.await
}

/// Returns the records of deletions at and below `root`, the oldest first. `root` may be `/`.
///
/// # Cost
///
/// An ordered write and a listing in one round trip, then one read for each entry of the journal.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
///
/// # Errors
///
/// The server refuses the read or cannot be reached.
pub async fn cleanups(keeper: &Lockkeeper, root: &str) -> Result<Vec<Cleanup>, AdminError> {
    journal::entries_below(keeper, root).await
}

/// Divides leftovers into those of one transaction each.
fn batches(leftovers: &[Leftover]) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for Leftover { path, kind, version, .. } in leftovers {
        let what = match kind {
            LeftoverKind::Empty => "empty",
            LeftoverKind::Tombstone { .. } => "tombstone",
            LeftoverKind::Sessionless | LeftoverKind::Note => continue,
        };
        let fits =
            |batch: &&mut Batch| batch.what == what && batch.nodes.len() < MOST.0 && batch.bytes + path.len() <= MOST.1;
        if batches.last_mut().filter(fits).is_none() {
            batches.push(Batch { what, ..Batch::default() });
        }
        if let Some(batch) = batches.last_mut() {
            batch.bytes += path.len();
            batch.nodes.push((path.clone(), *version));
        }
    }
    batches
}

/// Deletes the nodes of a batch that are as they were read, and adds all of them to `swept`.
async fn delete(keeper: &Lockkeeper, root: &str, batch: Batch, swept: &mut Swept) -> Result<(), AdminError> {
    let Batch { what, mut nodes, .. } = batch;
    let (mut id, mut attempts) = (Uuid::new_v4(), 0);
    while !nodes.is_empty() && attempts < MAX_ATTEMPTS {
        let (_session, ensemble) = keeper.sessions().session(None).await?;
        let ensemble = &*ensemble;
        let paths: Vec<_> = nodes.iter().map(|(path, _)| path.clone()).collect();
        // Written by an attempt whose reply was lost.
        let is_done = attempts > 0
            && match journal::find::<Cleanup>(ensemble, id).await {
                Ok(found) => found.is_some(),
                Err(OpError::ConnectionLoss | OpError::SessionOver) => {
                    attempts += 1;
                    continue;
                }
                Err(fault) => return Err(refused(journal::ROOT, fault)),
            };
        if is_done {
            swept.deleted.extend(paths);
            return Ok(());
        }
        let (by, proof, at) = (keeper.owner().clone(), Proof::default(), SystemTime::UNIX_EPOCH);
        let record = Cleanup { root: root.to_owned(), what: what.to_owned(), nodes: paths.clone(), by, proof, at };
        let deletes =
            nodes.iter().map(|(path, version)| TxnStep::Delete { path: path.clone(), version: Some(*version) });
        let steps = std::iter::once(journal::step(id, &record)).chain(deletes).collect();
        match ensemble.transact(steps).await {
            Ok(_) => {
                swept.deleted.extend(paths);
                return Ok(());
            }
            Err(TxnError { step: Some(0), fault: OpError::NoNode }) => {
                attempts += 1;
                match records::make(ensemble, journal::ROOT, NodeKind::Shared).await {
                    Ok(()) | Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
                    Err(fault) => return Err(refused(journal::ROOT, fault)),
                }
            }
            Err(TxnError { fault: OpError::ConnectionLoss | OpError::SessionOver, .. }) => attempts += 1,
            Err(TxnError { step: Some(at), fault }) if at > 0 && at <= nodes.len() => {
                let (path, version) = nodes.remove(at - 1);
                if !has_changed(ensemble, &path, version).await {
                    return Err(refused(&path, fault));
                }
                swept.changed.push(path);
                // The transaction as a whole was not carried out, and the next one is another.
                (id, attempts) = (Uuid::new_v4(), 0);
            }
            Err(TxnError { fault, .. }) => return Err(refused(root, fault)),
        }
    }
    if nodes.is_empty() { Ok(()) } else { Err(SessionError::ConnectionLost { path: root.to_owned() }.into()) }
}

/// Whether a node is not as it was read. A server that refuses the deletion of one that is, refuses it for another reason.
async fn has_changed(ensemble: &dyn Ensemble, path: &str, version: i32) -> bool {
    match ensemble.read(path).await {
        Ok(node) => node.version != version || node.children > 0,
        Err(OpError::NoNode) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leftover(path: &str, kind: LeftoverKind) -> Leftover {
        Leftover { path: path.to_owned(), kind, created_ms: 0, unused_since_ms: None, version: 3 }
    }

    #[test]
    fn a_transaction_deletes_nodes_of_one_kind_and_not_too_many() {
        let empty: Vec<_> = (0..250).map(|at| leftover(&format!("/locks/{at}"), LeftoverKind::Empty)).collect();
        let sizes =
            |leftovers: &[Leftover]| batches(leftovers).iter().map(|batch| batch.nodes.len()).collect::<Vec<_>>();
        assert_eq!(sizes(&empty), [100, 100, 50]);
        let long: Vec<_> = (0..3).map(|_| leftover(&"x".repeat(5_000), LeftoverKind::Empty)).collect();
        assert_eq!(sizes(&long), [1, 1, 1]);
        let delay = std::time::Duration::from_secs(1);
        let kinds = [
            LeftoverKind::Empty,
            LeftoverKind::Note,
            LeftoverKind::Sessionless,
            LeftoverKind::Tombstone { delay },
            LeftoverKind::Tombstone { delay },
        ];
        let mixed = kinds.map(|kind| leftover("/locks/a", kind));
        let told: Vec<_> = batches(&mixed).into_iter().map(|batch| (batch.what, batch.nodes)).collect();
        let node = || ("/locks/a".to_owned(), 3);
        assert_eq!(told, [("empty", vec![node()]), ("tombstone", vec![node(), node()])]);
    }
}
