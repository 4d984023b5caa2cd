//! The guard: the value that stands for a hold, and what it knows of how long it may be trusted.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::{FencingToken, Grant, Loss, Trust};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::ReleaseError;
use crate::session::Session;

/// What the guard tells its driver: where to confirm the release. Dropped unsent, it asks for the same without an answer.
pub(crate) type ReleaseRequest = oneshot::Sender<Result<(), ReleaseError>>;

/// What a guard and its driver share.
pub(crate) struct Hold {
    pub(crate) path: String,
    pub(crate) node: String,
    pub(crate) token: FencingToken,
    session: Arc<Session>,
    /// How many of the session's deadlines had passed when it was granted.
    breaches: u32,
    loss: OnceLock<Loss>,
    lost: CancellationToken,
}

impl Hold {
    pub(crate) fn new(path: String, grant: Grant, session: Arc<Session>, breaches: u32) -> Arc<Hold> {
        let Grant { name, token } = grant;
        let (loss, lost) = (OnceLock::new(), CancellationToken::new());
        Arc::new(Hold { path, node: name, token, session, breaches, loss, lost })
    }

    /// Marks it lost. The first reason stays.
    pub(crate) fn lose(&self, loss: Loss) {
        if self.loss.set(loss).is_ok() {
            tracing::warn!(path = %self.path, node = %self.node, token = %self.token, %loss, "lock lost");
        }
        self.lost.cancel();
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.get().copied()
    }

    /// How far it may be trusted now.
    pub(crate) fn trust(&self) -> Trust {
        match self.loss.get() {
            Some(loss) => Trust::Lost(*loss),
            None => self.session.trust(self.breaches),
        }
    }
}

/// Whether a hold may be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldState {
    /// The lock is held.
    Held,
    /// The connection is lost. The lock may still be ours; start nothing new.
    Suspected,
    /// The lock is lost, for this reason. Final.
    Lost(Loss),
}

/// A lock that is held. Dropping it releases the lock in the background.
///
/// Owned and `Send`, tied to no task and no thread; not `Clone`, so that there is one value per hold. The lock itself
/// cannot stop a process that is paused between looking at the guard and acting: hand [`Guard::token`] to the resource.
///
/// Dropping never blocks and works outside any runtime. It asks the session to delete the node, which is tried until
/// confirmed or until the session is over. If the process ends first, session expiry frees the lock.
#[must_use = "the lock is released when the guard is dropped; bind it to a name"]
pub struct Guard {
    hold: Arc<Hold>,
    /// Taken by `release`.
    request: Option<oneshot::Sender<ReleaseRequest>>,
}

impl Guard {
    pub(crate) fn new(hold: Arc<Hold>, request: oneshot::Sender<ReleaseRequest>) -> Self {
        Guard { hold, request: Some(request) }
    }

    /// The number to give to the protected resource, greater than that of every earlier grant of this lock.
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// The lock's path.
    pub fn path(&self) -> &str {
        &self.hold.path
    }

    /// The full path of the node that stands for this hold.
    pub fn node(&self) -> String {
        format!("{}/{}", self.hold.path, self.hold.node)
    }

    /// The timeout of the session that holds the lock, as agreed with the server.
    ///
    /// A loss for want of a server shows early enough to leave a quarter of it before anybody else can be granted the lock.
    pub fn session_timeout(&self) -> Duration {
        self.hold.session.timeout()
    }

    /// Whether the lock may be relied on right now, by this process's own clock. No round trip.
    ///
    /// `false` is final. Look before each step of protected work.
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), HoldState::Lost(_))
    }

    /// The same, told apart. No round trip.
    pub fn state(&self) -> HoldState {
        match self.hold.trust() {
            Trust::Held => HoldState::Held,
            Trust::Suspected { .. } => HoldState::Suspected,
            Trust::Lost(loss) => HoldState::Lost(loss),
        }
    }

    /// Waits until the lock is lost, and says why.
    ///
    /// Resolves at the latest when the session could have expired at the server, by a clock that runs through suspend.
    /// Dropping the future leaves nothing behind.
    pub async fn lost(&self) -> Loss {
        self.hold.lost.cancelled().await;
        self.hold.loss().unwrap_or(Loss::SessionExpired)
    }

    /// A token that is cancelled when the lock is lost: for code that takes one.
    pub fn lost_token(&self) -> CancellationToken {
        self.hold.lost.child_token()
    }

    /// Runs `work` until it ends or the lock is lost, whichever is first.
    ///
    /// On loss, `work` is dropped at its next await: it stops where it stands, and what it did so far is done.
    ///
    /// # Errors
    /// The [`Loss`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        let lost = std::pin::pin!(self.lost());
        let work = std::pin::pin!(work);
        // Loss first: work that became ready at the same moment was not done under the lock.
        match futures_util::future::select(lost, work).await {
            futures_util::future::Either::Left((loss, _)) => Err(loss),
            futures_util::future::Either::Right((done, _)) => Ok(done),
        }
    }

    /// [`Guard::release`] on this thread, for programs without async.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    pub fn release_blocking(self) -> Result<(), ReleaseError> {
        let session = self.hold.session.clone();
        session.block_on(self.release())
    }

    /// [`Guard::lost`] on this thread, for programs without async.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    pub fn lost_blocking(&self) -> Loss {
        self.hold.session.block_on(self.lost())
    }

    /// Releases the lock and waits for the server to confirm it. One round trip.
    ///
    /// Dropping the future does not call the release back; it only stops waiting for it. While the connection is lost
    /// this waits: until the delete is confirmed, or until the session is over, which frees the lock as well.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`] if the lock was lost before; [`ReleaseError::Failed`] if a server refuses the delete.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        let (confirm, confirmed) = oneshot::channel();
        if let Some(request) = self.request.take() {
            // Unheard: the driver has ended, because the hold has.
            _ = request.send(confirm);
        }
        let unheard = || ReleaseError::NotHeld { loss: self.hold.loss().unwrap_or(Loss::Closed) };
        confirmed.await.unwrap_or_else(|_| Err(unheard()))
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("node", &self.node())
            .field("token", &self.token())
            .field("state", &self.state())
            .finish()
    }
}
