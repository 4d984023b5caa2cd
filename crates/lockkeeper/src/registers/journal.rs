//! Where it stays who broke which lock, who decided that one changes hands by force, and why.
//!
//! In the ensemble, for there everybody who may ask finds it, whichever machine the break came from; and below a node of its own,
//! not in the lock's node, which the server removes when the lock is not used for a while. Bounded: beyond 256 entries the
//! oldest go.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::Owner;
use serde::{Deserialize, Serialize};

use super::records;
use crate::Error;
use crate::broken::Broken;
use crate::ensemble::{Ensemble, Kind, Node, OpError, Step, refused, synced};
use crate::session::context::Context;

/// How often it is tried to write an entry.
const MAX_ATTEMPTS: usize = 10;

/// The node above all entries.
pub(crate) const ROOT: &str = "/lockkeeper/audit";

/// How many entries are kept. At most 10 KiB each (a reason, a message and an owner), so a few megabytes.
const LIMIT: usize = 256;

/// How many more go when there are too many, so that not every break has to read them all.
const SPARE: usize = 32;

/// All that is known when an owner has not cleaned up in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TransferFacts {
    /// The lock.
    pub path: String,
    /// Who owns it.
    pub owner: String,
    /// Why, in its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_message: Option<String>,
    /// Its priority.
    pub owner_priority: i32,
    /// How long it has been cleaning up, in milliseconds.
    pub elapsed_ms: u64,
    /// How long it may.
    pub allotted_ms: u64,
    /// Who wants the lock.
    pub requestor: String,
    /// Why, in its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requestor_message: Option<String>,
    /// Its priority.
    pub requestor_priority: i32,
}

/// A decision whether a leased lock is taken from an owner that has not cleaned up in time, as
/// [`Admin::decisions`](crate::Admin::decisions) remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DecisionRecord {
    /// What was to be decided.
    pub facts: TransferFacts,
    /// Whether the lock is to be taken.
    pub approved: bool,
    /// Who decided; for a rule, the process that followed it.
    pub by: Owner,
    /// The rule's name, where one decided; or who the asked program says that it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// Whether a rule decided.
    #[serde(default)]
    pub by_rule: bool,
    /// Why, in their words.
    pub why: String,
    /// When, by the server's clock. Not in the record: the server's own time of the record's node.
    #[serde(skip, default = "crate::clock::unix_epoch")]
    pub at: SystemTime,
}

/// An entry as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Entry {
    Break(Broken),
    Decision(DecisionRecord),
}

impl Entry {
    /// The break, if it is one.
    pub(crate) fn into_break(self) -> Option<Broken> {
        match self {
            Entry::Break(broken) => Some(broken),
            Entry::Decision(_) => None,
        }
    }
}

/// The node of one entry.
fn node(id: uuid::Uuid) -> String {
    format!("{ROOT}/{id}")
}

/// The step of a transaction that writes an entry.
pub(crate) fn step(id: uuid::Uuid, entry: &Entry) -> Step {
    let data =
        serde_json::to_vec(entry).expect("a struct of strings and numbers, with text for keys, always serialises");
    Step::Create { path: node(id), data, kind: Kind::Persistent }
}

/// Reads one entry, as of now or later than all this session has sent; `None` if it is not there.
pub(crate) async fn find(ensemble: &dyn Ensemble, id: uuid::Uuid) -> Result<Option<Entry>, OpError> {
    let path = node(id);
    match synced(ensemble, &path, ensemble.read(&path)).await {
        Ok(seen) => Ok(parse(&seen)),
        Err(OpError::NoNode) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// All entries, the oldest first. What is no entry, or of a later kind, is left out.
pub(crate) async fn entries(ensemble: &dyn Ensemble) -> Result<Vec<Entry>, OpError> {
    let entries = oldest_first(ensemble, records::names(ensemble, ROOT).await?).await;
    Ok(entries.into_iter().filter_map(|(_, seen)| parse(&seen)).collect())
}

/// Deletes the oldest entries if there are too many. What fails is left to the next break.
pub(crate) async fn prune(ensemble: &dyn Ensemble) {
    let Ok(names) = records::names(ensemble, ROOT).await else { return };
    if names.len() <= LIMIT {
        return;
    }
    let entries = oldest_first(ensemble, names).await;
    let surplus = entries.len().saturating_sub(LIMIT - SPARE);
    for (name, _) in entries.into_iter().take(surplus) {
        // Somebody else may prune at the same time.
        _ = ensemble.delete(&format!("{ROOT}/{name}"), None).await;
    }
}

async fn oldest_first(ensemble: &dyn Ensemble, names: Vec<String>) -> Vec<(String, Node)> {
    let mut entries = records::read(ensemble, ROOT, names).await;
    entries.sort_by_key(|(_, node)| node.czxid);
    entries
}

fn parse(seen: &Node) -> Option<Entry> {
    let mut entry = serde_json::from_slice(&seen.data).ok()?;
    *match &mut entry {
        Entry::Break(broken) => &mut broken.at,
        Entry::Decision(decision) => &mut decision.at,
    } = UNIX_EPOCH + Duration::from_millis(u64::try_from(seen.ctime_ms).unwrap_or(0));
    Some(entry)
}

/// Writes an entry of its own, once, and comes back when it stands.
///
/// # Errors
/// It does not, as far as one can tell.
pub(crate) async fn write(context: &Context, id: uuid::Uuid, entry: &Entry) -> Result<(), Error> {
    for _ in 0..MAX_ATTEMPTS {
        let (_session, ensemble) = context.session(None).await?;
        let ensemble = &*ensemble;
        let Step::Create { path, data, kind } = step(id, entry) else { break };
        match ensemble.create(&path, data, kind).await {
            // Its name is its own, so whatever stands there is this one.
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
    Err(Error::ConnectionLost { path: ROOT.to_owned() })
}
