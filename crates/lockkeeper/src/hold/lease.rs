//! What a hold by a leased lock's record depends on.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Trust;
use lockkeeper_core::helix::Record;

use crate::ensemble::paths::above;
use crate::ensemble::{Ensemble, OpError, linearizable};
use crate::session::Session;

/// The current state of a hold that depends on a lease.
#[derive(Clone)]
pub(crate) struct Lease {
    /// The current session.
    pub(crate) session: Arc<Session>,
    /// The time on that session's clock until when the lease can be trusted.
    pub(crate) until: Duration,
    /// Set while the owner keeps the lock after the lease's end and no other client asks for it. The value is the number
    /// of the session's deadlines that had passed when the record last showed that. The session's watch on the record
    /// reports the first request before any later heartbeat is confirmed. So after `until`, the lease is trusted as long
    /// as the session, whose timeout is not longer than the notice that a requestor gives.
    pub(crate) unasked: Option<u32>,
    /// The record's owner, and its expiry by the server's clock. Together they identify this hold.
    pub(crate) owner: (String, i64),
    /// The versions of the record and of its parent node when last read; unknown after this client's own write.
    pub(crate) versions: Option<Versions>,
}

impl Lease {
    /// Until when it can be trusted.
    pub(crate) fn trust(&self) -> Trust {
        let leased = self.session.lease_trust(self.until);
        let Some(missed_deadlines) = self.unasked else { return leased };
        let kept = self.session.trust(missed_deadlines);
        let until = leased.until().max(kept.until());
        match (leased, kept) {
            (leased, Trust::Lost(_)) => leased,
            (Trust::Held { .. }, _) | (Trust::Lost(_), Trust::Held { .. }) => Trust::Held { until },
            (Trust::Suspected { .. } | Trust::Lost(_), _) => Trust::Suspected { until },
        }
    }

    /// When the clock ends it, unless something renews it first.
    pub(crate) fn ends(&self) -> Duration {
        let kept = self.unasked.map_or(Duration::ZERO, |missed_deadlines| self.session.due(missed_deadlines));
        self.until.max(kept)
    }
}

/// Identifies a record: its version and that of its parent node, which increases when the record is deleted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Versions {
    pub(crate) record: i32,
    pub(crate) parent: i32,
}

/// Returns the versions of the record at `path` if it shows this owner until this time; otherwise `None`. One round
/// trip.
pub(crate) async fn current_versions(
    ensemble: &dyn Ensemble,
    path: &str,
    (id, until_ms): &(String, i64),
) -> Result<Option<Versions>, OpError> {
    // Another server than that of an earlier write may be stale. Read the parent first, as in `look`.
    let both = async { Ok(tokio::join!(biased; ensemble.read(above(path)), ensemble.read(path))) };
    let (parent, node) = linearizable(ensemble, both).await?;
    let (parent, node) = match (parent, node) {
        (Ok(parent), Ok(node)) => (parent, node),
        (_, Err(OpError::NoNode)) | (Err(OpError::NoNode), _) => return Ok(None),
        (Err(fault), _) | (_, Err(fault)) => return Err(fault),
    };
    let owner = Record::from_bytes(&node.data).ok().and_then(|record| record.owner);
    let is_its = owner.is_some_and(|owner| owner.id == *id && owner.until_ms == *until_ms);
    Ok(is_its.then_some(Versions { record: node.version, parent: parent.version }))
}
