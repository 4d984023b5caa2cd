//! Questions about decisions that a requestor waits for, and the decisions that a person makes.

use lockkeeper_core::LockPath;

use super::Admin;
use super::breaking::{is_below, reason_for};
use crate::Error;
use crate::ensemble::refused;
use crate::registers::journal::{self, DecisionRecord, Entry};
use crate::registers::requests::{self, TransferRequest};

impl Admin {
    /// The decisions about locks at and below `root`, which may be `/`, that somebody waits for, the oldest first. A sync and a
    /// listing in flight together, then one read for each.
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// A refusal by the server, or no server.
    pub async fn requests(&self, root: &str) -> Result<Vec<TransferRequest>, Error> {
        let root = if root == "/" { String::new() } else { LockPath::parse_node(root)?.to_string() };
        self.on_session(move |ensemble| async move {
            let mut requests = requests::waiting(&*ensemble).await?;
            requests.retain(|request| is_below(&root, &request.facts.path));
            requests.sort_by_key(|request| request.since);
            Ok(requests)
        })
        .await
    }

    /// Decides: the lock is taken from its owner by force, or left to it. `why` is for those who ask later, and is kept with who
    /// decided, when and about what ([`Admin::decisions`]). At most 1024 bytes.
    ///
    /// One read and one transaction. An approved request that is let in meanwhile takes nothing. Dropping the future leaves it decided
    /// or not.
    ///
    /// # Errors
    /// [`Error::NoReason`]; [`Error::NoSuchRequest`] if nobody waits for it any more; [`Error::Decided`] if somebody was first.
    pub async fn decide(&self, request: &TransferRequest, approve: bool, why: &str) -> Result<DecisionRecord, Error> {
        let why = reason_for(&request.facts.path, why)?;
        let (context, id, path) = (self.context().clone(), request.id.clone(), request.facts.path.clone());
        self.context()
            .run_while_answered(async move { requests::decide(&context, &id, path, approve, why).await })
            .await
    }

    /// What was decided about locks at and below `root`, which may be `/`, the oldest first: by people, by rules and by programs that
    /// were asked. Of the last 224 to 256 entries in the ensemble, [`Admin::broken`] included.
    ///
    /// Costs a sync and a listing in flight together, then one read an entry. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// A refusal by the server, or no server.
    pub async fn decisions(&self, root: &str) -> Result<Vec<DecisionRecord>, Error> {
        let root = if root == "/" { String::new() } else { LockPath::parse_node(root)?.to_string() };
        self.on_session(move |ensemble| async move {
            let entries = journal::entries(&*ensemble).await.map_err(|fault| refused(journal::ROOT, fault))?;
            let decisions = entries.into_iter().filter_map(|entry| match entry {
                Entry::Decision(decision) => Some(decision),
                Entry::Break(_) => None,
            });
            Ok(decisions.filter(|decision| is_below(&root, &decision.facts.path)).collect())
        })
        .await
    }
}
