//! Reads of pending decisions, and the decisions that a person makes.

use lockkeeper_core::LockPath;

use super::Admin;
use crate::ensemble::paths::is_below;
use crate::ensemble::refused;
use crate::error::{AdminError, Misuse};
use crate::lease::Decision;
use crate::registers::journal::{self, DecisionRecord, EmergencyRecord, JournalEntry};
use crate::registers::requests::{self, OperatorDecision, TransferRequest};

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
            requests.retain(|request| is_below(&request.facts.path, &root));
            requests.sort_by_key(|request| request.since);
            Ok(requests)
        })
        .await
    }

    /// Decides a request: the lock is taken from its owner by force, or the owner keeps it. The reason is recorded with this
    /// client, the time and the facts ([`Admin::decisions`]). It has at most 1024 bytes. `by` of the decision is recorded as
    /// the person or program on whose behalf this client decides; leave it empty if there is none.
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
    /// [`AdminError::Misuse`] if the reason is empty; [`AdminError::NoSuchRequest`] if the request has ended;
    /// [`AdminError::Decided`] if another decision came first.
    pub async fn decide(&self, request: &TransferRequest, decision: Decision) -> Result<DecisionRecord, AdminError> {
        let (approved, by, why) = decision.into_parts();
        let why = Misuse::check_reason(&request.facts.path, &why)?;
        let decision = OperatorDecision { approved, by, why };
        let (context, id, path) = (self.context().clone(), request.id.clone(), request.facts.path.clone());
        self.context().run_while_answered(async move { requests::decide(&context, &id, path, decision).await }).await
    }

    /// Returns the decisions about locks at and below `root`, the oldest first. They are those of people, of rules and of
    /// programs, and the rejections because no answer came in time. `root` may be `/`. The ensemble keeps the last 224 to 256
    /// of them.
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
        self.entries_below(root.as_ref(), |entry| match entry {
            JournalEntry::Decision(decision) => Some((decision.facts.path.clone(), decision)),
            JournalEntry::Break(_) | JournalEntry::Emergency(_) => None,
        })
        .await
    }

    /// Returns the requests with the emergency priority for locks at and below `root`, the oldest first, whether they
    /// were granted or not. `root` may be `/`. The ensemble keeps the last 224 to 256 of them.
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
    pub async fn emergencies(&self, root: impl AsRef<str>) -> Result<Vec<EmergencyRecord>, AdminError> {
        self.entries_below(root.as_ref(), |entry| match entry {
            JournalEntry::Emergency(emergency) => Some((emergency.path.clone(), emergency)),
            JournalEntry::Break(_) | JournalEntry::Decision(_) => None,
        })
        .await
    }

    /// The journal's entries of one kind about locks at and below `root`. `pick` returns each with its lock.
    pub(super) async fn entries_below<T: Send + 'static>(
        &self,
        root: &str,
        pick: impl Fn(JournalEntry) -> Option<(String, T)> + Send + 'static,
    ) -> Result<Vec<T>, AdminError> {
        let root = if root == "/" { String::new() } else { LockPath::parse_node(root)?.to_string() };
        self.on_session(move |ensemble| async move {
            let entries = journal::entries(&*ensemble).await.map_err(|fault| refused(journal::ROOT, fault))?;
            let picked = entries.into_iter().filter_map(pick);
            Ok(picked.filter(|(path, _)| is_below(path, &root)).map(|(_, entry)| entry).collect())
        })
        .await
    }
}
