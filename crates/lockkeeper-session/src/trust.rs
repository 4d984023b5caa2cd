//! The source of trust of a hold, which is given when the hold begins.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkeeper_core::Trust;

use crate::ensemble::{Ensemble, OpError, TxnStep};
use crate::session::Session;

/// The source of trust of a hold. Its times are those of the session's clock.
pub trait TrustSource: Send + Sync {
    /// Returns the session whose heartbeats keep the hold. A hold that outlives it continues in another one.
    fn session(&self) -> Arc<Session>;

    /// Returns until when the hold can be trusted. No round trip.
    fn trust(&self) -> Trust;

    /// Returns when the clock ends the hold, unless something renews it first.
    fn ends(&self) -> Duration;

    /// Returns the record that the hold depends on, if it is not a node of the session.
    fn record(&self) -> Option<&dyn HeldRecord> {
        None
    }
}

/// A record that a hold depends on. It outlives sessions.
pub trait HeldRecord: Send + Sync {
    /// Resolves when the hold continues in another session, until another time, or with another version of the record than
    /// at the call. Dropping the future leaves nothing behind.
    fn changed(&self) -> BoxFuture<'static, ()>;

    /// Returns what a transaction must check so that it fails if the hold is over. If the record no longer shows the hold,
    /// waits until the hold is known to have changed, and returns `None`.
    ///
    /// No round trip if the version of the record is known, otherwise one. `doubted`: a check with the known version has
    /// failed.
    ///
    /// # Errors
    ///
    /// The record cannot be read.
    fn checks<'a>(
        &'a self,
        ensemble: &'a dyn Ensemble,
        doubted: bool,
    ) -> BoxFuture<'a, Result<Option<Vec<TxnStep>>, OpError>>;
}

/// The trust in a node of a session: it lasts as long as that in the session. The session must have heartbeats meanwhile:
/// [`Session::keep_trusted`].
pub struct SessionTrust {
    session: Arc<Session>,
    /// The number of the session's deadlines that had passed at the grant.
    missed_deadlines: u32,
}

impl SessionTrust {
    /// Returns the trust in a node that the session has at this moment. Sends nothing.
    pub fn new(session: Arc<Session>) -> Self {
        let missed_deadlines = session.link().borrow().missed_deadlines;
        SessionTrust { session, missed_deadlines }
    }
}

impl TrustSource for SessionTrust {
    fn session(&self) -> Arc<Session> {
        self.session.clone()
    }

    fn trust(&self) -> Trust {
        self.session.trust(self.missed_deadlines)
    }

    fn ends(&self) -> Duration {
        self.session.due(self.missed_deadlines)
    }
}
