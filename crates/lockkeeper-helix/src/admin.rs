//! `HelixAdmin`, the handle for questions about leased locks and for decisions about them.

use lockkeeper::error::{AdminError, misuse};
use lockkeeper::{Lockkeeper, journal};
use lockkeeper_session::ensemble::is_below;

use crate::approval::Decision;
use crate::error::LeaseError;
use crate::journal::{DecisionRecord, EmergencyRecord};
use crate::pending::{self, OperatorDecision, TransferRequest};
use crate::protocol::Statistics;
use crate::published;

/// The admin calls about leased locks alone: pending decisions, their records, and statistics. [`Admin`](lockkeeper::admin::Admin) shows, revokes and
/// breaks leased locks, as all others.
#[derive(Clone, Debug)]
pub struct HelixAdmin {
    keeper: Lockkeeper,
}

impl HelixAdmin {
    /// Creates the handle. Sends nothing.
    pub fn new(keeper: &Lockkeeper) -> Self {
        HelixAdmin { keeper: keeper.clone() }
    }

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
        let root = self.keeper.root(root.as_ref())?;
        self.keeper
            .sessions()
            .ask(move |ensemble| async move {
                let mut requests = pending::waiting(&*ensemble).await?;
                requests.retain(|request| is_below(&request.facts.path, &root));
                requests.sort_by_key(|request| request.since);
                Ok(requests)
            })
            .await
    }

    /// Decides a request: the lock is taken from its owner by force, or the owner keeps it. The reason is recorded with this
    /// client, the time and the facts ([`HelixAdmin::decisions`]). It has at most 1024 bytes. `by` of the decision is recorded as
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
    /// [`LeaseError::Misuse`] if the reason is empty; [`LeaseError::NoSuchRequest`] if the request has ended;
    /// [`LeaseError::Decided`] if another decision came first.
    pub async fn decide(&self, request: &TransferRequest, decision: Decision) -> Result<DecisionRecord, LeaseError> {
        let (approved, by, reason) = decision.into_parts();
        let reason = misuse::check_reason(&request.facts.path, &reason)?;
        let decision = OperatorDecision { approved, by, reason };
        let (keeper, id, path) = (self.keeper.clone(), request.id.clone(), request.facts.path.clone());
        self.keeper
            .sessions()
            .run_while_answered(async move { pending::decide(&keeper, &id, path, decision).await })
            .await
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
        journal::entries_below(&self.keeper, root.as_ref()).await
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
        journal::entries_below(&self.keeper, root.as_ref()).await
    }

    /// Returns the fleet's counters of the leased lock at `path`, by owner; `None` if there are none.
    ///
    /// Lock objects with [`HelixLock::publish_statistics`](crate::HelixLock::publish_statistics) count.
    ///
    /// # Cost
    ///
    /// One round trip, and one from its server to the leader.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the read or cannot be reached.
    pub async fn statistics(&self, path: impl AsRef<str>) -> Result<Option<Statistics>, AdminError> {
        let path = self.keeper.path(path.as_ref())?;
        self.keeper.sessions().ask(move |ensemble| async move { published::read(&*ensemble, &path).await }).await
    }

    /// Deletes the fleet's counters of the leased lock at `path`; `false` if there were none.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the deletion either done or not done.
    ///
    /// # Errors
    ///
    /// As [`HelixAdmin::statistics`].
    pub async fn forget_statistics(&self, path: impl AsRef<str>) -> Result<bool, AdminError> {
        let path = self.keeper.path(path.as_ref())?;
        self.keeper.sessions().ask(move |ensemble| async move { published::forget(&*ensemble, &path).await }).await
    }
}
