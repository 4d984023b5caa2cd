//! Guards: the values that stand for a hold, and what they know of how long it may be trusted.
//!
//! What every hold can do is in [`Holding`]; a guard is a holding and what its kind of lock adds: a token, a way to change it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{FencingToken, Loss, Revocation, Trust};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::error::{ChangeError, ReleaseError, VerifyError};
use crate::hold::fenced::FencedWrite;
use crate::hold::{Hold, Request};
use crate::session::Session;
use crate::session::process::Owned;

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

/// A hold of any kind of lock: what all guards can do. Dropping it releases the lock in the background.
///
/// Owned and `Send`, tied to no task and no thread; not `Clone`, so that there is one value per hold. The lock itself
/// cannot stop a process that is paused between looking at the guard and acting: hand [`Guard::token`] to the resource.
///
/// Bind a guard to a name, as `let guard = …` or `let _guard = …`. `let _ = lock.acquire().await?` binds nothing and releases the
/// lock at once. The compiler warns of a guard that is not bound at all, and of `let _` only with its lint
/// `let_underscore_drop` (or Clippy's `let_underscore_must_use`), which a crate turns on itself.
///
/// Dropping never blocks and works outside any runtime. It asks the session to delete the node, which is tried until
/// confirmed or until the session is over. If the process ends first, session expiry frees the lock.
///
/// It belongs to the process that acquired it. In a forked child its copy is [`Loss::Forked`], and dropping that does nothing.
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct Holding {
    hold: Owned<Arc<Hold>>,
    requests: Owned<mpsc::UnboundedSender<Request>>,
}

impl Holding {
    pub(crate) fn new(hold: Arc<Hold>, requests: mpsc::UnboundedSender<Request>) -> Self {
        hold.can_ask(&requests);
        Holding { hold: Owned::new(hold), requests: Owned::new(requests) }
    }

    /// The session that it rests on now.
    pub(crate) fn session(&self) -> Arc<Session> {
        self.hold.session()
    }

    /// The lock's path.
    pub fn path(&self) -> &str {
        &self.hold.path
    }

    /// The number to give to the protected resource, where this kind of hold has one: permits have none.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        Some(self.hold.token).filter(|_| self.hold.fences)
    }

    /// The full path of the node that stands for this hold.
    pub fn node(&self) -> String {
        match self.hold.node().as_str() {
            // A record: the lock's own node.
            "" => self.hold.path.clone(),
            node => format!("{}/{node}", self.hold.path),
        }
    }

    /// The timeout of the session that holds the lock, as agreed with the server.
    ///
    /// A loss for want of a server shows early enough to leave a quarter of it before anybody else can be granted the lock.
    pub fn session_timeout(&self) -> Duration {
        self.hold.session().timeout()
    }

    /// Whether the lock may be relied on right now, by this process's own clock. No round trip.
    ///
    /// `false` is final. Look before each step of protected work.
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), HoldState::Lost(_))
    }

    /// How far it may be trusted, by this very process.
    fn trust(&self) -> Trust {
        if self.hold.is_ours() { self.hold.trust() } else { Trust::Lost(Loss::Forked) }
    }

    /// For how long the lock may still be trusted without hearing from a server again: zero once it is lost. No round trip.
    ///
    /// A hold starts with at least half of [`Holding::session_timeout`], if the servers answer within a quarter of it.
    ///
    /// Each step of protected work should end within it. It is renewed by a write of the session every fifth of the
    /// session's timeout while something is held, and counted from when that write was sent, by a clock that runs through
    /// suspend.
    pub fn valid_for(&self) -> Duration {
        self.trust().until().saturating_sub(self.hold.session().now())
    }

    /// The same, told apart. No round trip.
    pub fn state(&self) -> HoldState {
        match self.trust() {
            Trust::Held { .. } => HoldState::Held,
            Trust::Suspected { .. } => HoldState::Suspected,
            Trust::Lost(loss) => HoldState::Lost(loss),
        }
    }

    /// Why it was lost, if that is known already. No round trip.
    pub fn loss(&self) -> Option<Loss> {
        if self.hold.is_ours() { self.hold.loss() } else { Some(Loss::Forked) }
    }

    /// Waits until the lock is lost, and says why.
    ///
    /// Resolves at the latest when the session could have expired at the server, by a clock that runs through suspend, also if
    /// the library's own thread is stuck. Dropping the future leaves nothing behind.
    pub async fn lost(&self) -> Loss {
        if self.hold.is_ours() {
            self.hold.lost.cancelled().await;
        }
        self.loss().unwrap_or(Loss::SessionExpired)
    }

    /// A token that is cancelled when the lock is lost: for code that takes one.
    pub fn lost_token(&self) -> CancellationToken {
        if self.hold.is_ours() {
            return self.hold.lost.child_token();
        }
        let token = CancellationToken::new();
        token.cancel();
        token
    }

    /// Waits until the lock may be trusted for longer than when this was called: until [`Holding::valid_for`] has been renewed.
    ///
    /// A lock that is not renewed any more never resolves it; [`Holding::lost`] tells of that. Dropping the future leaves nothing
    /// behind.
    pub fn renewed(&self) -> impl Future<Output = ()> + Send + use<> {
        let renewed = self.hold.is_ours().then(|| self.hold.renewed());
        async move {
            match renewed {
                Some(renewed) => renewed.await,
                None => std::future::pending().await,
            }
        }
    }

    /// See [`Hold::state_changed`].
    pub(crate) fn state_changed(&self) -> impl Future<Output = ()> + Send + '_ {
        self.hold.state_changed()
    }

    /// Waits until the state is another than `seen`, and says which: for work that pauses while the lock is
    /// [`Suspected`](HoldState::Suspected). A state that came and went while nobody waited is not told, but for `Lost`.
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn changed(&self, seen: HoldState) -> HoldState {
        loop {
            if !self.hold.is_ours() {
                return self.state();
            }
            let state_changed = self.state_changed();
            let state = self.state();
            if state != seen {
                return state;
            }
            state_changed.await;
        }
    }

    /// Waits until the lock may be trusted for no longer than `margin`, or is lost: when work that takes so long to stop has
    /// to be stopped, to be done before anybody else can be in.
    ///
    /// While the servers answer, a hold may always be trusted for more than half of [`Holding::session_timeout`], from its grant
    /// on: choose a third of that at most. Told like [`Holding::lost`], also if the library's own thread is stuck. Judged when
    /// this resolves; the hold may recover afterwards.
    /// Dropping the future leaves nothing behind.
    pub async fn nearly_lost(&self, margin: Duration) -> HoldState {
        if self.hold.is_ours() {
            self.hold.nearly_lost(margin).await;
        }
        self.state()
    }

    /// Says that the program is at work, where it was acquired [`with_liveness`](crate::Acquire::with_liveness); whether the
    /// lock is held. No round trip.
    ///
    /// To be called where work is done, not by a timer.
    pub fn alive(&self) -> bool {
        let held = self.is_held();
        if held {
            self.hold.attend();
        }
        held
    }

    /// Proves that the lock is held, at the servers: one round trip, a small write.
    ///
    /// `Ok`: when the leader put the request in order, the hold's node stood in the session that made it; and the hold may be
    /// trusted anew from when the request was sent ([`Holding::valid_for`]). That is more than [`Holding::is_held`] knows (a
    /// node that somebody deleted a moment ago), and no more than a clock can say of the time after. While the connection is
    /// lost this waits, but not longer than the hold may be trusted. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// [`VerifyError::Lost`]; [`VerifyError::Refused`] if a server does not answer such a question.
    pub async fn verify(&self) -> Result<(), VerifyError> {
        if !self.hold.is_ours() {
            return Err(VerifyError::Lost(Loss::Forked));
        }
        let (answer, answered) = oneshot::channel();
        // Unheard: the driver has ended, because the hold has.
        _ = self.requests.send(Request::Verify(answer));
        tokio::select! {
            biased;
            loss = self.lost() => Err(VerifyError::Lost(loss)),
            Ok(answer) = answered => match answer {
                Ok(()) if self.is_held() => Ok(()),
                Ok(()) => Err(VerifyError::Lost(self.lost().await)),
                Err(reason) => Err(VerifyError::Refused { path: self.hold.path.clone(), reason }),
            },
        }
    }

    /// How late the caller's async runtime last ran a task that was ready, where the lock was acquired on one of tokio's.
    ///
    /// Measured whenever the hold is renewed, a fifth of the session's timeout apart, and logged as a warning above a tenth of
    /// that timeout: who looks at a guard so late looks too late. No round trip.
    pub fn runtime_lag(&self) -> Option<Duration> {
        self.hold.is_ours().then(|| self.hold.session().runtime_lag())?
    }

    /// Runs `work` until it ends or the lock is lost, whichever is first.
    ///
    /// On loss, `work` is dropped at its next await: it stops where it stands, and what it did so far is done.
    ///
    /// # Errors
    /// The [`Loss`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        run_until(self.lost(), work).await
    }

    /// [`Holding::release`] on this thread, for programs without async.
    ///
    /// # Errors
    /// As [`Holding::release`].
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn release_blocking(self) -> Result<(), ReleaseError> {
        let session = self.hold.session();
        session.block_on(self.release())
    }

    /// [`Holding::lost`] on this thread, for programs without async.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn lost_blocking(&self) -> Loss {
        self.hold.session().block_on(self.lost())
    }

    /// Waits until somebody asks for the lock, and says who and why. Told within a second where the lock is older than 100 ms.
    ///
    /// Asking takes nothing by force: the lock stays held until this guard is released, or [`Holding::refuse_revocation`]
    /// says that it will not be. A request replaces the one before it; [`Holding::revocation_after`] tells. Dropping the future leaves nothing behind; a request is
    /// told to every call until it is answered.
    ///
    /// Never resolves if nobody asks; pending for ever once the lock is lost, so select it with [`Holding::lost`].
    pub async fn revocation(&self) -> Revocation {
        let mut asked = self.hold.asked.subscribe();
        let seen = asked.wait_for(Option::is_some).await.ok().and_then(|asked| asked.clone());
        seen.expect("the sender lives in this guard, and the value was seen")
    }

    /// Waits for a request to let go that is another than the one `seen`. As [`Holding::revocation`].
    pub async fn revocation_after(&self, seen: &Revocation) -> Revocation {
        let mut asked = self.hold.asked.subscribe();
        let other = asked.wait_for(|asked| asked.as_ref().is_some_and(|asked| asked != seen)).await;
        let other = other.ok().and_then(|asked| asked.clone());
        other.expect("the sender lives in this guard, and the value was seen")
    }

    /// The request to let go, if there was one. No round trip.
    pub fn revocation_requested(&self) -> Option<Revocation> {
        self.hold.asked.borrow().clone()
    }

    /// Tells whoever asked for the lock that it is not to be had, and why. One write, in the background.
    ///
    /// [`Holding::revocation`] waits for the next request then.
    pub fn refuse_revocation(&self, why: &str) {
        if !self.hold.is_ours() {
            return;
        }
        self.hold.asked.send_replace(None);
        // Unheard: the driver has ended, because the hold has.
        _ = self.requests.send(Request::Refuse(why.to_owned()));
    }

    /// Changes of nodes of the same ensemble that are made in one transaction, and only if this hold still stands at that moment
    /// by the ensemble's own order of events: also if this process was paused for an hour before it sends them.
    ///
    /// ```no_run
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), Box<dyn std::error::Error>> {
    /// use lockkeeper::WriteError;
    ///
    /// match guard.fenced_write().set("/index/current", "2026-11").delete("/index/next").await {
    ///     Ok(written) => println!("now in version {:?}", written.version("/index/current")),
    ///     Err(WriteError::Lost { loss, .. }) => println!("nothing was written: {loss}"),
    ///     Err(WriteError::Unknown { .. }) => println!("read the nodes to know"),
    ///     Err(other) => return Err(other.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One round trip; what can go wrong, and what dropping it leaves, stands at [`FencedWrite`](crate::FencedWrite) and
    /// [`WriteError`](crate::WriteError). Where names carry no id (a lock in the recipes' node format, a class's mark, a leased lock's
    /// record), a node that was made anew under the same name after somebody had removed this hold's by hand passes for it.
    pub fn fenced_write(&self) -> FencedWrite<'_> {
        FencedWrite::new(vec![self])
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Releases the lock and waits for the server to confirm it. One round trip.
    ///
    /// Dropping the future does not call the release back; it only stops waiting for it. While the connection is lost
    /// this waits: until the delete is confirmed, or until the session is over, which frees the lock as well.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`] if the lock was lost before; [`ReleaseError::Failed`] if a server refuses the delete.
    pub async fn release(self) -> Result<(), ReleaseError> {
        if !self.hold.is_ours() {
            return Err(ReleaseError::NotHeld { loss: Loss::Forked });
        }
        let (confirm, confirmed) = oneshot::channel();
        // Unheard: the driver has ended, because the hold has.
        _ = self.requests.send(Request::Release(confirm));
        let unheard = || ReleaseError::NotHeld { loss: self.hold.loss().unwrap_or(Loss::Closed) };
        confirmed.await.unwrap_or_else(|_| Err(unheard()))
    }

    /// Asks the driver to change what is held, and waits until it has.
    async fn change(
        &self,
        request: impl FnOnce(oneshot::Sender<()>) -> Request,
        timeout: Option<Duration>,
    ) -> Result<(), ChangeError> {
        if !self.hold.is_ours() {
            return Err(ChangeError::Lost(Loss::Forked));
        }
        let (done, changed) = oneshot::channel();
        _ = self.requests.send(request(done));
        let wait = async { changed.await.map_err(|_| ChangeError::Lost(self.hold.loss().unwrap_or(Loss::Closed))) };
        let Some(timeout) = timeout else { return wait.await };
        let deadline = std::pin::pin!(self.hold.session().after(timeout));
        match futures_util::future::select(std::pin::pin!(wait), deadline).await {
            futures_util::future::Either::Left((changed, _)) => changed,
            futures_util::future::Either::Right(_) => {
                _ = self.requests.send(Request::StayReader);
                Err(ChangeError::Timeout { path: self.hold.path.clone(), waited: timeout })
            }
        }
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding").field("node", &self.node()).field("state", &self.state()).finish()
    }
}

/// A lock that is held, with its fencing token. What else it can do, and what dropping it does: [`Holding`].
#[derive(Debug)]
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct Guard(Holding);

impl Guard {
    /// The number to give to the protected resource, greater than that of every earlier grant of this lock.
    ///
    /// A reader's is greater than those of the writers before it; readers that hold together are in no order.
    pub fn token(&self) -> FencingToken {
        self.0.hold.token
    }
}

/// A writer's hold of a shared lock.
#[derive(Debug)]
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct WriteGuard(Guard);

impl WriteGuard {
    /// Goes on as a reader, in the same place: nobody gets in between. One transaction. The token stays.
    ///
    /// Dropping the future releases the lock.
    ///
    /// # Errors
    /// [`ChangeError::Lost`] if the lock is lost before that is done.
    pub async fn downgrade(self) -> Result<Guard, ChangeError> {
        self.0.0.change(Request::Downgrade, None).await?;
        Ok(self.0)
    }

    /// [`WriteGuard::downgrade`] on this thread, for programs without async.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn downgrade_blocking(self) -> Result<Guard, ChangeError> {
        let session = self.hold.session();
        session.block_on(self.downgrade())
    }
}

/// A reader's hold that may become a writer's: of all contenders there is one such at a time.
///
/// It reads beside the readers before it; whoever comes later waits behind it, readers too.
#[derive(Debug)]
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct UpgradeableGuard(Guard);

impl UpgradeableGuard {
    /// Waits, at most `timeout` where one is given, until the readers before it have left, and is the writer then.
    ///
    /// Cannot deadlock: nobody who waits for this hold has the lock. One listing, and one for each reader that leaves.
    /// Dropping the future releases the lock.
    ///
    /// # Errors
    /// The guard comes back, still a reader's, beside the reason: [`ChangeError::Timeout`], or [`ChangeError::Lost`].
    pub async fn upgrade(self, timeout: Option<Duration>) -> Result<WriteGuard, (UpgradeableGuard, ChangeError)> {
        match self.0.0.change(Request::Upgrade, timeout).await {
            Ok(()) => Ok(WriteGuard(self.0)),
            Err(error) => Err((self, error)),
        }
    }

    /// [`UpgradeableGuard::upgrade`] on this thread, for programs without async.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn upgrade_blocking(self, timeout: Option<Duration>) -> Result<WriteGuard, (UpgradeableGuard, ChangeError)> {
        let session = self.hold.session();
        session.block_on(self.upgrade(timeout))
    }

    /// Gives the right to become a writer up and goes on as a plain reader, in the same place. One transaction.
    ///
    /// Dropping the future releases the lock.
    ///
    /// # Errors
    /// [`ChangeError::Lost`] if the lock is lost before that is done.
    pub async fn downgrade(self) -> Result<Guard, ChangeError> {
        WriteGuard(self.0).downgrade().await
    }
}

/// Permits of a semaphore. There is no token: permits are held beside others, so none of them is the newest.
#[derive(Debug)]
#[must_use = "the permits are given back at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct Permit(Holding);

impl Deref for Guard {
    type Target = Holding;

    fn deref(&self) -> &Holding {
        &self.0
    }
}

impl Deref for WriteGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl Deref for UpgradeableGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl Deref for Permit {
    type Target = Holding;

    fn deref(&self) -> &Holding {
        &self.0
    }
}

/// Runs `work` until it ends or something is lost.
pub(crate) async fn run_until<T>(lost: impl Future<Output = Loss>, work: impl Future<Output = T>) -> Result<T, Loss> {
    let (lost, work) = (std::pin::pin!(lost), std::pin::pin!(work));
    // Loss first: work that became ready at the same moment was not done under the lock.
    match futures_util::future::select(lost, work).await {
        futures_util::future::Either::Left((loss, _)) => Err(loss),
        futures_util::future::Either::Right((done, _)) => Ok(done),
    }
}

/// A guard that a lock may hand out.
#[doc(hidden)]
pub trait FromHolding: sealed::Sealed + Send + 'static {
    /// The guard of this hold. For this crate alone: elsewhere it would make a writer of a reader.
    fn from_holding(holding: Holding, here: sealed::Here) -> Self;

    /// The hold of this guard, whatever its kind.
    fn into_holding(self) -> Holding;
}

pub(crate) mod sealed {
    pub trait Sealed {}
    pub struct Here(pub(crate) ());
}

/// How each kind of guard wraps a hold; releasing it is releasing that.
macro_rules! guards {
    ($($kind:ty: $wrap:expr, $unwrap:expr;)*) => {$(
        impl $kind {
            /// [`Holding::release`].
            ///
            /// # Errors
            /// As there.
            pub async fn release(self) -> Result<(), ReleaseError> {
                self.into_holding().release().await
            }

            /// [`Holding::release_blocking`].
            ///
            /// # Errors
            /// As there.
            ///
            /// # Panics
            /// If called from within an async runtime's thread.
            #[track_caller]
            pub fn release_blocking(self) -> Result<(), ReleaseError> {
                self.into_holding().release_blocking()
            }
        }

        impl sealed::Sealed for $kind {}
        impl FromHolding for $kind {
            fn from_holding(holding: Holding, _: sealed::Here) -> Self {
                $wrap(holding)
            }

            fn into_holding(self) -> Holding {
                $unwrap(self)
            }
        }
    )*};
}

impl sealed::Sealed for Holding {}

impl FromHolding for Holding {
    fn from_holding(holding: Holding, _: sealed::Here) -> Self {
        holding
    }

    fn into_holding(self) -> Holding {
        self
    }
}

guards! {
    Guard: Guard, |guard: Guard| guard.0;
    WriteGuard: |holding| WriteGuard(Guard(holding)), |guard: WriteGuard| guard.0.0;
    UpgradeableGuard: |holding| UpgradeableGuard(Guard(holding)), |guard: UpgradeableGuard| guard.0.0;
    Permit: Permit, |permit: Permit| permit.0;
}
