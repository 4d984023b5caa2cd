//! A hold as its guard and its driver share it: what it stands on, and whether it is lost.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockkeeper_core::{FencingToken, Grant, Loss, Revocation, Trust};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::error::ReleaseError;
use crate::session::Session;

/// What a guard tells its driver. All guards gone asks for the release, without an answer.
#[derive(Debug)]
pub(crate) enum Request {
    /// Release, and confirm it.
    Release(oneshot::Sender<Result<(), ReleaseError>>),
    /// Read on in the place of the writer.
    Downgrade(oneshot::Sender<()>),
    /// Be alone.
    Upgrade(oneshot::Sender<()>),
    /// Never mind being alone.
    StayReader,
    /// Refuse the request to let go, for this reason.
    Refuse(String),
}

/// What a hold stands and falls with.
enum Ground {
    /// A node of the session.
    Session {
        session: Arc<Session>,
        /// How many of the session's deadlines had passed when it was granted.
        breaches: u32,
    },
    /// A record that outlives sessions, until its lease ends.
    Lease(watch::Sender<Lease>),
}

/// How a hold by a record stands.
#[derive(Clone)]
pub(crate) struct Lease {
    /// The session of now.
    pub(crate) session: Arc<Session>,
    /// The last moment of that session's clock at which the lease can be relied on.
    pub(crate) until: Duration,
    /// Whom the record names as the owner, and until when by the server's clock: by these two it is this hold's.
    pub(crate) owner: (String, i64),
    /// The versions of the record and of the node above it when that was last seen; unknown after a write of our own.
    pub(crate) versions: Option<Versions>,
}

/// What tells a record from any other: its version, and that of the node above it, which grows when the record is deleted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Versions {
    pub(crate) record: i32,
    pub(crate) parent: i32,
}

/// What a guard and its driver share.
pub(crate) struct Hold {
    pub(crate) path: String,
    /// It changes with a downgrade.
    node: Mutex<String>,
    /// The mark that a lock with classes is held by, beside the node.
    mark: Option<String>,
    pub(crate) token: FencingToken,
    /// Its kind has tokens.
    pub(crate) fences: bool,
    ground: Ground,
    loss: OnceLock<Loss>,
    pub(crate) lost: CancellationToken,
    /// The request to let go that was seen last.
    pub(crate) asked: watch::Sender<Option<Revocation>>,
}

impl Hold {
    pub(crate) fn new(
        path: String,
        grant: Grant,
        mark: Option<String>,
        fences: bool,
        session: Arc<Session>,
    ) -> Arc<Hold> {
        let breaches = session.link().borrow().breaches;
        let Grant { name, token } = grant;
        Self::on(path, name, mark, token, fences, Ground::Session { session, breaches })
    }

    /// A hold by the record at `path`.
    pub(crate) fn leased(path: String, token: FencingToken, lease: Lease) -> Arc<Hold> {
        Self::on(path, String::new(), None, token, true, Ground::Lease(watch::Sender::new(lease)))
    }

    fn on(
        path: String,
        node: String,
        mark: Option<String>,
        token: FencingToken,
        fences: bool,
        ground: Ground,
    ) -> Arc<Hold> {
        Arc::new(Hold {
            path,
            node: Mutex::new(node),
            mark,
            token,
            fences,
            ground,
            loss: OnceLock::new(),
            lost: CancellationToken::new(),
            asked: watch::Sender::new(None),
        })
    }

    /// Goes on in another session, or with another end of the lease, or another version of the record.
    pub(crate) fn lease(&self, now: Lease) {
        if let Ground::Lease(lease) = &self.ground {
            lease.send_replace(now);
        }
    }

    /// How its lease stands and goes on, where it has one.
    pub(crate) fn leases(&self) -> Option<watch::Receiver<Lease>> {
        match &self.ground {
            Ground::Session { .. } => None,
            Ground::Lease(lease) => Some(lease.subscribe()),
        }
    }

    /// The last moment of the session's clock at which a lease can be relied on.
    pub(crate) fn lease_until(&self) -> Duration {
        match &self.ground {
            Ground::Session { .. } => Duration::MAX,
            Ground::Lease(lease) => lease.borrow().until,
        }
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        match &self.ground {
            Ground::Session { session, .. } => session.clone(),
            Ground::Lease(lease) => lease.borrow().session.clone(),
        }
    }

    /// The nodes without which it is not held: its own, and the mark where there is one. Of a record there are none.
    pub(crate) fn nodes(&self) -> Vec<String> {
        match &self.ground {
            Ground::Lease(_) => Vec::new(),
            Ground::Session { .. } => {
                let names = std::iter::once(self.node()).chain(self.mark.clone());
                names.map(|name| format!("{}/{name}", self.path)).collect()
            }
        }
    }

    /// The name of the node that stands for it.
    pub(crate) fn node(&self) -> String {
        self.node.lock().expect("held for a copy only").clone()
    }

    /// It stands in another node from now on.
    pub(crate) fn moved_to(&self, node: String) {
        *self.node.lock().expect("held for a copy only") = node;
    }

    /// Marks it lost. The first reason stays.
    pub(crate) fn lose(&self, loss: Loss) {
        if self.loss.set(loss).is_ok() {
            tracing::warn!(path = %self.path, node = %self.node(), token = %self.token, %loss, "lock lost");
        }
        self.lost.cancel();
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.get().copied()
    }

    /// Marks it lost if its clock says that it is. Whether it is.
    pub(crate) fn judge(&self) -> bool {
        match self.trust() {
            Trust::Lost(loss) => self.lose(loss),
            Trust::Held { .. } | Trust::Suspected { .. } => return false,
        }
        true
    }

    /// How far it may be trusted now.
    pub(crate) fn trust(&self) -> Trust {
        match self.loss.get() {
            Some(loss) => Trust::Lost(*loss),
            None => match &self.ground {
                Ground::Session { session, breaches } => session.trust(*breaches),
                Ground::Lease(lease) => {
                    let lease = lease.borrow();
                    lease.session.lease_trust(lease.until)
                }
            },
        }
    }
}
