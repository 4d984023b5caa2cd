//! Reads of pending decisions, and the decisions that a person makes.

use lockkeeper_core::LockPath;

use super::Admin;
use super::breaking::{is_below, reason_for};
use crate::ensemble::refused;
use crate::error::AdminError;
use crate::registers::journal::{self, DecisionRecord, Entry};
use crate::registers::requests::{self, TransferRequest};

impl Admin {
    /// Returns the pending decisions about locks at and below `root`, the oldest first. `root` may be `/`.
    ///
    /// # Cost
    ///
    /// An ordered write and a listing in one round trip, then one read for each decision.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the read or cannot be reached.
    pub async fn requests(&self, root: impl AsRef<str>) -> Result<Vec<TransferRequest>, AdminError> {
        let root = root.as_ref();
        let root = if root == "/" { String::new() } else { LockPath::parse_node(root)?.to_string() };
        self.on_session(move |ensemble| async move {
            let mut requests = requests::waiting(&*ensemble).await?;
            requests.retain(|request| is_below(&root, &request.facts.path));
            requests.sort_by_key(|request| request.since);
            Ok(requests)
        })
        .await
    }

    /// Decides a request: the lock is taken from its owner by force, or the owner keeps it. `why` is recorded with the
    /// client that decided, the time and the facts ([`Admin::decisions`]). It has at most 1024 bytes.
    ///
    /// An approved request that is granted the lock meanwhile takes nothing by force.
    ///
    /// # Cost
    ///
    /// One read and one transaction.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the request either decided or not decided.
    ///
    /// # Errors
    ///
    /// [`AdminError::Misuse`] if `why` is empty; [`AdminError::NoSuchRequest`] if the request has ended;
    /// [`AdminError::Decided`] if another decision came first.
    pub async fn decide(
        &self,
        request: &TransferRequest,
        approve: bool,
        why: &str,
    ) -> Result<DecisionRecord, AdminError> {
        let why = reason_for(&request.facts.path, why)?;
        let (context, id, path) = (self.context().clone(), request.id.clone(), request.facts.path.clone());
        self.context()
            .run_while_answered(async move { requests::decide(&context, &id, path, approve, why).await })
            .await
    }

    /// Returns the decisions about locks at and below `root`, the oldest first: those of people, of rules and of
    /// programs. `root` may be `/`. The ensemble keeps the last 224 to 256 entries, including those of
    /// [`Admin::broken`].
    ///
    /// # Cost
    ///
    /// An ordered write and a listing in one round trip, then one read for each entry.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the read or cannot be reached.
    pub async fn decisions(&self, root: impl AsRef<str>) -> Result<Vec<DecisionRecord>, AdminError> {
        let root = root.as_ref();
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
