//! Pending decisions: whether to take a leased lock from an owner that has not finished its cleanup in time.
//!
//! Each decision is one node below a common parent, so that operators find it from any machine. The node belongs to the
//! requestor's session, so there are never more nodes than requests. The requestor watches it. A decision and its
//! record in the journal are one transaction, and the record has the decision's name. So there is never a second
//! decision, and none is lost with the node.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::admin::Owner;
use lockkeeper::error::{AdminError, SessionError, refused};
use lockkeeper::{Lockkeeper, journal};
use lockkeeper_session::ensemble::{Ensemble, NodeKind, OpError, TxnStep, Watcher};
use lockkeeper_session::records;
use lockkeeper_session::text::as_millis;
use serde::{Deserialize, Serialize};

use crate::error::LeaseError;
use crate::journal::{DecisionRecord, TransferFacts};

/// The parent of the pending decisions about leased locks.
pub(crate) const ROOT: &str = "/lockkeeper/requests";

/// How often a decision is retried after a lost connection.
const MAX_ATTEMPTS: usize = 10;

/// A pending decision. Returned by [`HelixAdmin::requests`](crate::HelixAdmin::requests).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransferRequest {
    /// Its id.
    pub id: String,
    /// The facts to decide about.
    #[serde(flatten)]
    pub facts: TransferFacts,
    /// The requestor's process, which waits for the decision.
    pub by: Owner,
    /// Since when, by the server's clock.
    #[serde(rename = "since_ms", serialize_with = "as_millis")]
    pub since: SystemTime,
    /// Until when, by the server's clock. No answer by then means no.
    #[serde(rename = "until_ms", serialize_with = "as_millis")]
    pub until: SystemTime,
}

/// The data of a node.
#[derive(Clone, Serialize, Deserialize)]
struct StoredRequest {
    /// The version of this format, now 1.
    lockkeeper: u32,
    facts: TransferFacts,
    by: Owner,
    until_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decision: Option<Word>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Word {
    approved: bool,
    by: Owner,
    #[serde(rename = "why")]
    reason: String,
}

fn node(id: &str) -> String {
    format!("{ROOT}/{id}")
}

/// Reads the pending decisions.
pub(crate) async fn waiting(ensemble: &dyn Ensemble) -> Result<Vec<TransferRequest>, AdminError> {
    let names = records::names(ensemble, ROOT).await.map_err(|fault| refused(ROOT, fault))?;
    let seen = records::read(ensemble, ROOT, names).await;
    let waiting = seen.into_iter().filter_map(|(id, seen)| {
        let stored: StoredRequest = serde_json::from_slice(&seen.data).ok()?;
        stored.decision.is_none().then(|| TransferRequest {
            id,
            facts: stored.facts,
            by: stored.by,
            since: UNIX_EPOCH + Duration::from_millis(u64::try_from(seen.ctime_ms).unwrap_or(0)),
            until: UNIX_EPOCH + Duration::from_millis(stored.until_ms),
        })
    });
    Ok(waiting.collect())
}

/// Writes a decision and its record in the journal in one transaction.
pub(crate) async fn decide(
    keeper: &Lockkeeper,
    id: &str,
    path: String,
    OperatorDecision { approved, by: behalf, reason }: OperatorDecision,
) -> Result<DecisionRecord, LeaseError> {
    let on_behalf_of = Some(behalf).filter(|behalf| !behalf.is_empty());
    let gone = || LeaseError::NoSuchRequest { path: path.clone(), id: Some(id.to_owned()) };
    let name = uuid::Uuid::parse_str(id).map_err(|_| gone())?;
    let by = keeper.owner();
    let mut sent = false;
    for _ in 0..MAX_ATTEMPTS {
        let (_session, ensemble) = keeper.sessions().session(None).await?;
        let ensemble = &*ensemble;
        match journal::find::<DecisionRecord>(ensemble, name).await {
            Ok(Some(decision)) => {
                let same = decision.by == *by && decision.on_behalf_of == on_behalf_of;
                let ours = sent && same && decision.approved == approved && decision.reason == reason;
                if !ours {
                    let (approved, by, reason) = (decision.approved, decision.by.to_string(), decision.reason);
                    return Err(LeaseError::Decided { path, approved, by, reason });
                }
                journal::prune(ensemble).await;
                tracing::warn!(target: "lockkeeper::audit", %path, %by, approved, %reason, "a forced transfer was decided");
                return Ok(decision);
            }
            Ok(_) => {}
            Err(OpError::ConnectionLoss | OpError::SessionOver) => continue,
            Err(fault) => return Err(refused(&path, fault).into()),
        }
        let seen = match ensemble.read(&node(id)).await {
            Ok(seen) => seen,
            Err(OpError::NoNode) => return Err(gone()),
            Err(OpError::ConnectionLoss | OpError::SessionOver) => continue,
            Err(fault) => return Err(refused(&path, fault).into()),
        };
        let Ok(mut stored) = serde_json::from_slice::<StoredRequest>(&seen.data) else { return Err(gone()) };
        stored.decision = Some(Word { approved, by: by.clone(), reason: reason.clone() });
        let entry = DecisionRecord {
            facts: stored.facts.clone(),
            approved,
            by: by.clone(),
            proof: lockkeeper::admin::Proof::default(),
            on_behalf_of: on_behalf_of.clone(),
            by_rule: false,
            reason: reason.clone(),
            at: UNIX_EPOCH,
        };
        let data = serde_json::to_vec(&stored).expect("a struct of strings and numbers always serialises");
        let write = TxnStep::Write { path: node(id), data, version: Some(seen.version) };
        match ensemble.transact(vec![journal::step(name, &entry), write]).await.map_err(OpError::from) {
            Ok(_) | Err(OpError::ConnectionLoss | OpError::SessionOver) => sent = true,
            // Another decision came first, which the next read shows.
            Err(OpError::NodeExists | OpError::BadVersion) => {}
            // The node was deleted, which the next read shows; or the journal does not exist yet.
            Err(OpError::NoNode) => match records::make(ensemble, journal::ROOT, NodeKind::Shared).await {
                Ok(()) | Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
                Err(fault) => return Err(refused(journal::ROOT, fault).into()),
            },
            Err(fault) => return Err(refused(&path, fault).into()),
        }
    }
    Err(SessionError::ConnectionLost { path }.into())
}

/// A decision that this process waits for. The code that opened it must close it.
pub(crate) struct Pending {
    keeper: Lockkeeper,
    id: uuid::Uuid,
    data: Vec<u8>,
    path: String,
}

/// A decision of an operator.
pub(crate) struct OperatorDecision {
    pub(crate) approved: bool,
    /// Empty if the client decides that says so.
    pub(crate) by: String,
    pub(crate) reason: String,
}

impl Pending {
    /// A request to be decided until that time of the server.
    pub(crate) fn new(keeper: Lockkeeper, id: uuid::Uuid, facts: TransferFacts, until_ms: u64) -> Self {
        let path = facts.path.clone();
        let stored = StoredRequest { lockkeeper: 1, facts, by: keeper.owner().clone(), until_ms, decision: None };
        let data = serde_json::to_vec(&stored).expect("a struct of strings and numbers always serialises");
        Pending { keeper, id, data, path }
    }

    fn node(&self) -> String {
        node(&self.id.to_string())
    }

    /// Creates the request's node, in a new session if necessary, and waits for the decision. Dropping the future
    /// leaves the node to [`Pending::close`].
    ///
    /// # Errors
    ///
    /// The server refuses it or cannot be reached.
    pub(crate) async fn decided(&self) -> Result<OperatorDecision, AdminError> {
        loop {
            let (_session, ensemble) = self.keeper.sessions().session(None).await?;
            let ensemble = &*ensemble;
            // A decision made in the last moment of a session is still in the journal.
            match self.spoken(ensemble).await {
                Ok(Some(verdict)) => return Ok(verdict),
                Ok(None) => {}
                Err(fault) => {
                    self.passing(fault)?;
                    continue;
                }
            }
            match self.open(ensemble).await {
                Ok(changed) => _ = changed.await,
                Err(fault) => self.passing(fault)?,
            }
        }
    }

    /// Creates the node if it does not exist, and watches it.
    async fn open(&self, ensemble: &dyn Ensemble) -> Result<Watcher, OpError> {
        for _ in 0..2 {
            match ensemble.create(&self.node(), self.data.clone(), NodeKind::Ephemeral).await {
                Ok(_) | Err(OpError::NodeExists) => break,
                Err(OpError::NoNode) => records::make(ensemble, ROOT, NodeKind::Shared).await?,
                Err(fault) => return Err(fault),
            }
        }
        let (seen, changed) = ensemble.read_and_watch(&self.node()).await?;
        match serde_json::from_slice::<StoredRequest>(&seen.data) {
            // The journal has the decision, which the next read shows.
            Ok(StoredRequest { decision: Some(_), .. }) => {
                Ok(Box::pin(std::future::ready(lockkeeper_session::ensemble::Fired::Changed)))
            }
            _ => Ok(changed),
        }
    }

    async fn spoken(&self, ensemble: &dyn Ensemble) -> Result<Option<OperatorDecision>, OpError> {
        Ok(match journal::find::<DecisionRecord>(ensemble, self.id).await? {
            Some(decision) => {
                let by = decision.on_behalf_of.unwrap_or_else(|| decision.by.to_string());
                Some(OperatorDecision { approved: decision.approved, by, reason: decision.reason })
            }
            _ => None,
        })
    }

    /// Deletes the node, so that the request can no longer be decided. Returns the decision if one was made before.
    pub(crate) async fn close(&self) -> Option<OperatorDecision> {
        for _ in 0..MAX_ATTEMPTS {
            let Ok((_session, ensemble)) = self.keeper.sessions().session(None).await else { return None };
            match ensemble.delete(&self.node(), None).await {
                Ok(()) | Err(OpError::NoNode) => match self.spoken(&*ensemble).await {
                    Ok(verdict) => return verdict,
                    Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
                    Err(_) => return None,
                },
                Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
                Err(fault) => {
                    tracing::warn!(path = %self.path, %fault, "a request for a decision stays until the session ends");
                    return None;
                }
            }
        }
        None
    }

    /// Faults that may pass are retried.
    fn passing(&self, fault: OpError) -> Result<(), AdminError> {
        match fault {
            OpError::ConnectionLoss | OpError::SessionOver | OpError::NoNode => Ok(()),
            fault => Err(refused(&self.path, fault)),
        }
    }
}
