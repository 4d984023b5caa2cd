//! The journal of interventions: of breaks, of requests to release a lock and, from the crate of leased locks, of decisions about forced transfers and of requests
//! with the emergency priority.
//!
//! It is in the ensemble, so that every client that may read finds it, whichever machine the break came from. It has
//! its own parent node, because the server removes a lock's node when the lock is not used for a while. It is bounded:
//! beyond 256 entries of a kind the oldest of that kind are deleted. The name of a node begins with the kind.
//!
//! What an entry says about its writer is the writer's claim. A server of this machine knows the user of each client. There
//! an entry is a record that names that user in its access list and that nobody can change ([`NodeKind::Record`]).

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, StreamExt};
use lockkeeper_session::ensemble::{
    Ensemble, Node, NodeKind, OpError, Proof, READS_IN_FLIGHT, TxnStep, is_below, linearizable,
};
use lockkeeper_session::records;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::broken::{Broken, Revoked};
use crate::error::{AdminError, SessionError, refused};
use crate::keeper::Lockkeeper;

/// How long a client whose node was removed searches the journal for who removed it.
const SEARCH: Duration = Duration::from_secs(1);

/// How often writing an entry is tried.
const MAX_ATTEMPTS: usize = 10;

/// The parent of all entries.
pub const ROOT: &str = "/lockkeeper/audit";

/// How many entries of a kind are kept. Each has at most 10 KiB (a reason, a message and an owner), so a few megabytes in all.
const LIMIT: usize = 256;

/// How many more are deleted when there are too many, so that not every break has to read them all.
const SPARE: usize = 32;

/// The content of an entry. It is stored as JSON with the field `kind`.
pub trait Entry: Serialize + DeserializeOwned + Send {
    /// The kind of the entry: a word with which the name of its node begins.
    const KIND: &'static str;

    /// The path of the lock that it is about.
    fn path(&self) -> &str;

    /// Adds what the server knows: who wrote the entry, and when.
    fn stamp(&mut self, proof: Proof, at: SystemTime);
}

impl Entry for Broken {
    const KIND: &'static str = "break";

    fn path(&self) -> &str {
        &self.path
    }

    fn stamp(&mut self, proof: Proof, at: SystemTime) {
        (self.proof, self.at) = (proof, at);
    }
}

impl Entry for Revoked {
    const KIND: &'static str = "revoke";

    fn path(&self) -> &str {
        &self.path
    }

    fn stamp(&mut self, proof: Proof, at: SystemTime) {
        (self.proof, self.at) = (proof, at);
    }
}

/// An entry as it is stored.
#[derive(Serialize)]
struct StoredEntry<'a, T> {
    kind: &'static str,
    #[serde(flatten)]
    entry: &'a T,
}

/// Returns who removed this node of the lock at `path`, and why: the same transaction writes the record. This takes one ordered write,
/// one listing and the reads, at most a second.
pub(crate) async fn who_removed(ensemble: &dyn Ensemble, path: &str, node: &str) -> Option<Box<Broken>> {
    let looked = async {
        let breaks = entries::<Broken>(ensemble).await.ok()?;
        breaks.into_iter().rev().find(|broken| broken.path == path && broken.removed(node, None))
    };
    tokio::time::timeout(SEARCH, looked).await.ok()?.map(Box::new)
}

/// The kind in the name of an entry's node; `None` if it is nobody's entry.
fn kind_of(name: &str) -> Option<&str> {
    name.split_once('-').map(|(kind, _)| kind)
}

/// The node of one entry.
fn node<T: Entry>(id: uuid::Uuid) -> String {
    format!("{ROOT}/{}-{id}", T::KIND)
}

/// Returns the step of a transaction that writes an entry.
pub fn step<T: Entry>(id: uuid::Uuid, entry: &T) -> TxnStep {
    let data = serde_json::to_vec(&StoredEntry { kind: T::KIND, entry })
        .expect("a struct of strings and numbers, with text for keys, always serialises");
    TxnStep::Create { path: node::<T>(id), data, kind: NodeKind::Record }
}

/// Reads one entry, no older than anything that this session has sent; `None` if it does not exist.
///
/// # Errors
///
/// The entry cannot be read.
pub async fn find<T: Entry>(ensemble: &dyn Ensemble, id: uuid::Uuid) -> Result<Option<T>, OpError> {
    let path = node::<T>(id);
    match linearizable(ensemble, ensemble.read(&path)).await {
        Ok(seen) => Ok(parse(&seen, ensemble.proof(&path).await?)),
        Err(OpError::NoNode) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Returns all entries of a kind, the oldest first. Data that is not an entry, or of a later version, is left out.
///
/// # Errors
///
/// The entries cannot be listed.
pub async fn entries<T: Entry>(ensemble: &dyn Ensemble) -> Result<Vec<T>, OpError> {
    let mut names = records::names(ensemble, ROOT).await?;
    names.retain(|name| kind_of(name) == Some(T::KIND));
    let proved = oldest_first(ensemble, names).await.into_iter().map(|(name, seen)| {
        let proof = ensemble.proof(&format!("{ROOT}/{name}"));
        // An error: it was deleted meanwhile, or the next reply has the error too.
        async move { parse(&seen, proof.await.unwrap_or(Proof::Missing)) }
    });
    Ok(stream::iter(proved).buffered(READS_IN_FLIGHT).filter_map(std::future::ready).collect().await)
}

/// Returns all entries of a kind about locks at and below `root`, the oldest first. `root` may be `/`.
///
/// # Errors
///
/// The root is no path, the server refuses the read, or it cannot be reached.
pub async fn entries_below<T: Entry + 'static>(keeper: &Lockkeeper, root: &str) -> Result<Vec<T>, AdminError> {
    let root = keeper.root(root)?;
    let listed = keeper.sessions().ask(move |ensemble| async move {
        let mut entries = entries::<T>(&*ensemble).await.map_err(|fault| refused(ROOT, fault))?;
        entries.retain(|entry| is_below(entry.path(), &root));
        Ok(entries)
    });
    listed.await
}

/// Deletes the oldest entries of a kind if there are too many of it. What fails is left to the next break.
pub async fn prune(ensemble: &dyn Ensemble) {
    let Ok(names) = records::names(ensemble, ROOT).await else { return };
    let kinds: BTreeSet<_> = names.iter().map(|name| kind_of(name)).collect();
    for kind in kinds {
        let names: Vec<_> = names.iter().filter(|name| kind_of(name) == kind).cloned().collect();
        if names.len() <= LIMIT {
            continue;
        }
        let entries = oldest_first(ensemble, names).await;
        let surplus = entries.len().saturating_sub(LIMIT - SPARE);
        for (name, _) in entries.into_iter().take(surplus) {
            // Another client may prune at the same time.
            _ = ensemble.delete(&format!("{ROOT}/{name}"), None).await;
        }
    }
}

async fn oldest_first(ensemble: &dyn Ensemble, names: Vec<String>) -> Vec<(String, Node)> {
    let mut entries = records::read(ensemble, ROOT, names).await;
    entries.sort_by_key(|(_, node)| node.czxid);
    entries
}

fn parse<T: Entry>(seen: &Node, proof: Proof) -> Option<T> {
    let mut entry: T = serde_json::from_slice(&seen.data).ok()?;
    entry.stamp(proof, UNIX_EPOCH + Duration::from_millis(u64::try_from(seen.ctime_ms).unwrap_or(0)));
    Some(entry)
}

/// Does these steps, and writes an entry with this id in the same transaction. If the entry cannot be written, it does nothing.
///
/// # Errors
///
/// As the transaction's. A step of a node that does not exist fails with [`OpError::NoNode`], and the entry with
/// [`OpError::Refused`].
pub(crate) async fn transact_recorded<T: Entry>(
    ensemble: &dyn Ensemble,
    steps: Vec<TxnStep>,
    (id, entry): (uuid::Uuid, &T),
) -> Result<(), OpError> {
    for _ in 0..2 {
        let with_entry = steps.iter().cloned().chain([step(id, entry)]).collect();
        let Err(undone) = ensemble.transact(with_entry).await else {
            prune(ensemble).await;
            return Ok(());
        };
        match (undone.step, undone.fault) {
            (Some(at), OpError::NoNode) if at == steps.len() => records::make(ensemble, ROOT, NodeKind::Shared).await?,
            // After a lost reply, the same entry is written once more.
            (Some(at), OpError::NodeExists) if at == steps.len() => return Ok(()),
            (_, fault) => return Err(fault),
        }
    }
    Err(OpError::ConnectionLoss)
}

/// Does these steps, and writes an entry with this id in the same transaction. If the entry cannot be written, or exists,
/// does them without it.
///
/// # Errors
///
/// As the transaction's, of the steps without the entry.
pub(crate) async fn transact<T: Entry>(
    ensemble: &dyn Ensemble,
    steps: Vec<TxnStep>,
    (id, entry): (uuid::Uuid, &T),
) -> Result<(), OpError> {
    for _ in 0..2 {
        let with_entry = steps.iter().cloned().chain([step(id, entry)]).collect();
        let Err(undone) = ensemble.transact(with_entry).await else {
            prune(ensemble).await;
            return Ok(());
        };
        match undone.step {
            Some(at) if at == steps.len() => {}
            _ => return Err(undone.fault),
        }
        // The first entry of all makes their parent.
        if undone.fault != OpError::NoNode || records::make(ensemble, ROOT, NodeKind::Shared).await.is_err() {
            break;
        }
    }
    ensemble.transact(steps).await.map(drop).map_err(OpError::from)
}

/// Writes an entry once and returns when it exists.
///
/// # Errors
///
/// The entry could not be confirmed.
pub async fn write<T: Entry>(keeper: &Lockkeeper, id: uuid::Uuid, entry: &T) -> Result<(), AdminError> {
    for _ in 0..MAX_ATTEMPTS {
        let (_session, ensemble) = keeper.sessions().session(None).await?;
        let ensemble = &*ensemble;
        let TxnStep::Create { path, data, kind } = step(id, entry) else { break };
        match ensemble.create(&path, data, kind).await {
            // Its name is unique, so an existing node is this entry.
            Ok(_) | Err(OpError::NodeExists) => {
                prune(ensemble).await;
                return Ok(());
            }
            Err(OpError::NoNode) => match records::make(ensemble, ROOT, NodeKind::Shared).await {
                Ok(()) | Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
                Err(fault) => return Err(refused(ROOT, fault)),
            },
            Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
            Err(fault) => return Err(refused(ROOT, fault)),
        }
    }
    Err(SessionError::ConnectionLost { path: ROOT.to_owned() }.into())
}
