//! The journal of breaks, of decisions about forced transfers, and of requests with the emergency priority.
//!
//! It is in the ensemble, so that every client that may read finds it, whichever machine the break came from. It has
//! its own parent node, because the server removes a lock's node when the lock is not used for a while. It is bounded:
//! beyond 256 entries of a kind the oldest of that kind are deleted. The name of a node begins with the kind.
//!
//! What an entry says about its writer is the writer's claim. A server of this machine knows the user of each client. There
//! an entry is a record that names that user in its access list and that nobody can change ([`NodeKind::Record`]).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::Owner;
use serde::{Deserialize, Serialize};

use futures_util::stream::{self, StreamExt};

use super::records;
use crate::broken::{Broken, Proof};
use crate::ensemble::{Ensemble, Node, NodeKind, OpError, READS_IN_FLIGHT, TxnStep, linearizable, refused};
use crate::error::{AdminError, SessionError};
use crate::session::context::Context;

/// How long a client whose node was removed searches the journal for who removed it.
const SEARCH: Duration = Duration::from_secs(1);

/// How often writing an entry is tried.
const MAX_ATTEMPTS: usize = 10;

/// The parent of all entries.
pub(crate) const ROOT: &str = "/lockkeeper/audit";

/// How many entries of a kind are kept. Each has at most 10 KiB (a reason, a message and an owner), so a few megabytes in all.
const LIMIT: usize = 256;

/// How many more are deleted when there are too many, so that not every break has to read them all.
const SPARE: usize = 32;

/// The facts about an owner that has not finished its cleanup in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TransferFacts {
    /// The path of the lock.
    pub path: String,
    /// The owner's user id.
    pub owner: String,
    /// The owner's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_message: Option<String>,
    /// The owner's priority.
    pub owner_priority: i32,
    /// How long the cleanup has run, in milliseconds.
    pub elapsed_ms: u64,
    /// How long the cleanup may take, in milliseconds.
    pub allotted_ms: u64,
    /// The requestor's user id.
    pub requestor: String,
    /// The requestor's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requestor_message: Option<String>,
    /// The requestor's priority.
    pub requestor_priority: i32,
}

/// A decision about taking a leased lock from an owner that has not finished its cleanup in time. Returned by
/// [`HelixAdmin::decisions`](crate::helix::HelixAdmin::decisions).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DecisionRecord {
    /// The request that was decided.
    pub facts: TransferFacts,
    /// Whether the lock may be taken.
    pub approved: bool,
    /// The client that decided, as it says itself. If a rule decided, the process that applied it.
    pub by: Owner,
    /// Whether the server knows its user.
    #[serde(skip)]
    pub proof: Proof,
    /// The name of the rule, or the name that the deciding program gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// Whether a rule decided.
    #[serde(default)]
    pub by_rule: bool,
    /// The reason that it gave.
    pub why: String,
    /// When, by the server's clock. Not stored in the record: the server's creation time of the record's node.
    #[serde(skip, default = "crate::clock::unix_epoch")]
    pub at: SystemTime,
}

/// A request for a leased lock with the emergency priority. Returned by
/// [`HelixAdmin::emergencies`](crate::helix::HelixAdmin::emergencies).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EmergencyRecord {
    /// The path of the lock.
    pub path: String,
    /// The requestor's user id.
    pub requestor: String,
    /// The requestor's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The requestor's process, as it says itself.
    pub by: Owner,
    /// Whether the server knows its user.
    #[serde(skip)]
    pub proof: Proof,
    /// The reason that it gave.
    pub why: String,
    /// When, by the server's clock. Not stored in the record: the server's creation time of the record's node.
    #[serde(skip, default = "crate::clock::unix_epoch")]
    pub at: SystemTime,
}

/// An entry as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum JournalEntry {
    Break(Broken),
    Decision(DecisionRecord),
    Emergency(EmergencyRecord),
}

impl JournalEntry {
    fn kind(&self) -> EntryKind {
        match self {
            JournalEntry::Break(_) => EntryKind::Break,
            JournalEntry::Decision(_) => EntryKind::Decision,
            JournalEntry::Emergency(_) => EntryKind::Emergency,
        }
    }

    /// The break, if it is one.
    pub(crate) fn into_break(self) -> Option<Broken> {
        match self {
            JournalEntry::Break(broken) => Some(broken),
            JournalEntry::Decision(_) | JournalEntry::Emergency(_) => None,
        }
    }
}

/// Returns who removed this node of the lock at `path`, and why: the same transaction writes the record. This takes one ordered write,
/// one listing and the reads, at most a second.
pub(crate) async fn who_removed(ensemble: &dyn Ensemble, path: &str, node: &str) -> Option<Box<Broken>> {
    let looked = async {
        let mut breaks = entries(ensemble).await.ok()?.into_iter().rev().filter_map(JournalEntry::into_break);
        breaks.find(|broken| broken.path == path && broken.removed(node, None))
    };
    tokio::time::timeout(SEARCH, looked).await.ok()?.map(Box::new)
}

/// The kinds of entries, as the names of their nodes begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Break,
    Decision,
    Emergency,
}

impl EntryKind {
    const ALL: [EntryKind; 3] = [EntryKind::Break, EntryKind::Decision, EntryKind::Emergency];

    fn prefix(self) -> &'static str {
        match self {
            EntryKind::Break => "break-",
            EntryKind::Decision => "decision-",
            EntryKind::Emergency => "emergency-",
        }
    }

    /// The kind of the node with this name; `None` if it is nobody's entry.
    fn of(name: &str) -> Option<EntryKind> {
        EntryKind::ALL.into_iter().find(|kind| name.starts_with(kind.prefix()))
    }

    /// The node of one entry.
    fn node(self, id: uuid::Uuid) -> String {
        format!("{ROOT}/{}{id}", self.prefix())
    }
}

/// The step of a transaction that writes an entry.
pub(crate) fn step(id: uuid::Uuid, entry: &JournalEntry) -> TxnStep {
    let data =
        serde_json::to_vec(entry).expect("a struct of strings and numbers, with text for keys, always serialises");
    TxnStep::Create { path: entry.kind().node(id), data, kind: NodeKind::Record }
}

/// Reads one entry, no older than anything that this session has sent; `None` if it does not exist.
pub(crate) async fn find(
    ensemble: &dyn Ensemble,
    kind: EntryKind,
    id: uuid::Uuid,
) -> Result<Option<JournalEntry>, OpError> {
    let path = kind.node(id);
    match linearizable(ensemble, ensemble.read(&path)).await {
        Ok(seen) => Ok(parse(&seen, ensemble.proof(&path).await?)),
        Err(OpError::NoNode) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Returns all entries, the oldest first. Data that is not an entry, or of a later version, is left out.
pub(crate) async fn entries(ensemble: &dyn Ensemble) -> Result<Vec<JournalEntry>, OpError> {
    let entries = oldest_first(ensemble, records::names(ensemble, ROOT).await?).await;
    let proved = entries.into_iter().map(|(name, seen)| {
        let proof = ensemble.proof(&format!("{ROOT}/{name}"));
        // An error: it was deleted meanwhile, or the next reply has the error too.
        async move { parse(&seen, proof.await.unwrap_or(Proof::Missing)) }
    });
    Ok(stream::iter(proved).buffered(READS_IN_FLIGHT).filter_map(std::future::ready).collect().await)
}

/// Deletes the oldest entries of a kind if there are too many of it. What fails is left to the next break.
pub(crate) async fn prune(ensemble: &dyn Ensemble) {
    let Ok(names) = records::names(ensemble, ROOT).await else { return };
    for kind in EntryKind::ALL.map(Some).into_iter().chain([None]) {
        let names: Vec<_> = names.iter().filter(|name| EntryKind::of(name) == kind).cloned().collect();
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

fn parse(seen: &Node, proof: Proof) -> Option<JournalEntry> {
    let mut entry = serde_json::from_slice(&seen.data).ok()?;
    let (at, shown) = match &mut entry {
        JournalEntry::Break(broken) => (&mut broken.at, &mut broken.proof),
        JournalEntry::Decision(decision) => (&mut decision.at, &mut decision.proof),
        JournalEntry::Emergency(emergency) => (&mut emergency.at, &mut emergency.proof),
    };
    *shown = proof;
    *at = UNIX_EPOCH + Duration::from_millis(u64::try_from(seen.ctime_ms).unwrap_or(0));
    Some(entry)
}

/// Writes an entry once and returns when it exists.
///
/// # Errors
///
/// The entry could not be confirmed.
pub(crate) async fn write(context: &Context, id: uuid::Uuid, entry: &JournalEntry) -> Result<(), AdminError> {
    for _ in 0..MAX_ATTEMPTS {
        let (_session, ensemble) = context.session(None).await?;
        let ensemble = &*ensemble;
        let TxnStep::Create { path, data, kind } = step(id, entry) else { break };
        match ensemble.create(&path, data, kind).await {
            // Its name is unique, so an existing node is this entry.
            Ok(_) | Err(OpError::NodeExists) => {
                prune(ensemble).await;
                return Ok(());
            }
            Err(OpError::NoNode) => match records::make(ensemble, ROOT).await {
                Ok(()) | Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
                Err(fault) => return Err(refused(ROOT, fault)),
            },
            Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
            Err(fault) => return Err(refused(ROOT, fault)),
        }
    }
    Err(SessionError::ConnectionLost { path: ROOT.to_owned() }.into())
}
