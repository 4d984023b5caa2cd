//! The trust in a hold by a leased lock's record.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper::Loss;
use lockkeeper_core::leased::Record;
use lockkeeper_session::ensemble::{Ensemble, OpError, TxnStep, above, linearizable};
use lockkeeper_session::{CancellationToken, HeldRecord, Session, Trust, TrustSource, latest};

/// The source of trust of one hold. Its task says how the hold continues.
pub(super) struct LeaseTrust {
    path: String,
    lease: latest::Sender<Lease>,
    /// The task has ended: the hold was released or lost.
    unfollowed: CancellationToken,
}

/// The current state of a hold that depends on a lease.
#[derive(Clone)]
pub(super) struct Lease {
    pub(super) session: Arc<Session>,
    /// The time on that session's clock until when the lease can be trusted.
    pub(super) until: Duration,
    /// Set while the owner keeps the lock after the lease's end and no other client asks for it. The value is the number
    /// of the session's deadlines that had passed when the record last showed that. The session's watch on the record
    /// reports the first request before any later heartbeat is confirmed. So after `until`, the lease is trusted as long
    /// as the session, whose timeout is not longer than the notice that a requestor gives.
    pub(super) unasked: Option<u32>,
    /// The record's owner, and its expiry by the server's clock. Together they identify this hold.
    pub(super) owner: (String, i64),
    /// The versions of the record and of its parent node when last read; unknown after this client's own write.
    pub(super) versions: Option<Versions>,
}

/// What the task of a hold keeps. When it is dropped, no later look at the record can say how the hold continues.
pub(super) struct Following(pub(super) Arc<LeaseTrust>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.unfollowed.cancel();
    }
}

impl Lease {
    /// Until when it can be trusted.
    fn trust(&self) -> Trust {
        let leased = trust_in_lease(&self.session, self.until);
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
    fn ends(&self) -> Duration {
        let kept = self.unasked.map_or(Duration::ZERO, |missed_deadlines| self.session.due(missed_deadlines));
        self.until.max(kept)
    }
}

impl LeaseTrust {
    /// The trust in the hold of the lock at `path`.
    pub(super) fn new(path: String, lease: Lease) -> Self {
        LeaseTrust { path, lease: latest::Sender::new(lease), unfollowed: CancellationToken::new() }
    }

    /// Continues with another session, another expiry or another version of the record.
    pub(super) fn update(&self, now: Lease) {
        self.lease.send_replace(now);
    }

    /// From now on, another client may ask for the lock without this hold's knowledge: it ends when it would end without
    /// a further heartbeat.
    pub(super) fn freeze(&self) {
        self.lease.send_if_modified(|lease| {
            let was_unasked = lease.unasked.is_some();
            (lease.until, lease.unasked) = (lease.ends(), None);
            was_unasked
        });
    }

    /// The time on the session's clock until when the lease can be trusted.
    pub(super) fn until(&self) -> Duration {
        self.lease.borrow().until
    }
}

impl TrustSource for LeaseTrust {
    fn session(&self) -> Arc<Session> {
        self.lease.borrow().session.clone()
    }

    fn trust(&self) -> Trust {
        self.lease.borrow().trust()
    }

    fn ends(&self) -> Duration {
        self.lease.borrow().ends()
    }

    fn record(&self) -> Option<&dyn HeldRecord> {
        Some(self)
    }
}

impl HeldRecord for LeaseTrust {
    fn changed(&self) -> BoxFuture<'static, ()> {
        let mut lease = self.lease.subscribe();
        async move {
            if lease.changed().await.is_err() {
                std::future::pending().await
            }
        }
        .boxed()
    }

    fn checks<'a>(
        &'a self,
        ensemble: &'a dyn Ensemble,
        doubted: bool,
    ) -> BoxFuture<'a, Result<Option<Vec<TxnStep>>, OpError>> {
        async move {
            let mut leases = self.lease.subscribe();
            let lease = leases.borrow_and_update().clone();
            let known = match lease.versions.filter(|_| !doubted) {
                None => current_versions(ensemble, &self.path, &lease.owner).await?,
                known => known,
            };
            let Some(versions) = known else {
                // The lease was renewed or taken. The task of the hold sees the same event and knows which. If it was released, nobody
                // waits for the write any more.
                return tokio::select! {
                    biased;
                    _ = leases.changed() => Ok(None),
                    () = self.unfollowed.cancelled() => Err(OpError::SessionOver),
                };
            };
            let parent = TxnStep::Check { path: above(&self.path).to_owned(), version: Some(versions.parent) };
            let record = TxnStep::Check { path: self.path.clone(), version: Some(versions.record) };
            Ok(Some(vec![parent, record]))
        }
        .boxed()
    }
}

/// Until when a lease that ends at `until` can be trusted. The lease survives sessions, but without a connection a
/// preemption cannot be reported. No round trip.
fn trust_in_lease(session: &Session, until: Duration) -> Trust {
    if session.now() >= until {
        Trust::Lost(Loss::LeaseEnded)
    } else if session.link().borrow().connected {
        Trust::Held { until }
    } else {
        Trust::Suspected { until }
    }
}

/// Identifies a record: its version and that of its parent node, which increases when the record is deleted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Versions {
    pub(super) record: i32,
    pub(super) parent: i32,
}

/// Returns the versions of the record at `path` if it shows this owner until this time; otherwise `None`. One round
/// trip.
async fn current_versions(
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
