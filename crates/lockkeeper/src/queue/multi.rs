//! Several locks at once: all of them, or none.
//!
//! Taken one after the other in the order of their paths, whatever order the caller names them in. Everyone who needs two of
//! them asks for the same one first, so no two wait for each other (Havender's ordered resources); that holds for all
//! kinds of queue lock, for none of them lets a holder wait for a waiter.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_all};
use lockkeeper_core::{FencingToken, Loss};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::error::{ReleaseError, VerifyError};
use crate::hold::fenced::FencedWrite;
use crate::hold::guard::{HoldState, Holding, run_until};
use crate::lease::HelixGuard;
use crate::queue::acquire::Acquire;
use crate::session::on_lost::OnLost;

/// A request for several locks, not yet made: await it, or give it options first. Made by
/// [`Lockkeeper::multi_lock`](crate::Lockkeeper::multi_lock).
///
/// One deadline bounds the whole. What the parts said of timeout, message or token is replaced where the whole says it.
///
/// # Cancel safety
/// Dropping the future at any moment releases what was granted and leaves the queue of what was not.
#[derive(Debug)]
#[must_use = "a request does nothing until it is awaited"]
pub struct MultiAcquire {
    parts: Vec<Acquire<Holding>>,
    timeout: Option<Duration>,
}

impl MultiAcquire {
    pub(crate) fn new(parts: Vec<Acquire<Holding>>) -> Self {
        MultiAcquire { parts, timeout: None }
    }

    /// Gives up after `timeout`, counted from the moment the request is awaited, with the [`Error::Timeout`] of the lock that
    /// was waited for then, or with [`Error::Unreachable`] if no server answers by then. With a timeout of zero each lock is tried
    /// once.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Says why, for those who ask who holds the locks. One of more than 4096 bytes is [`Error::TooLong`].
    pub fn message(self, message: impl Into<String>) -> Self {
        let message = message.into();
        self.each(|part| part.message(message.clone()))
    }

    /// Gives up with [`Error::Cancelled`] when `token` is cancelled.
    pub fn cancel_on(self, token: CancellationToken) -> Self {
        self.each(|part| part.cancel_on(token.clone()))
    }

    /// What to do when one of the locks is lost, as [`Acquire::on_lost`] says.
    pub fn on_lost(self, on_lost: OnLost) -> Self {
        self.each(|part| part.on_lost(on_lost.clone()))
    }

    /// For how long nobody is to follow a hold that ends against its will, as [`Acquire::lock_delay`] says.
    pub fn lock_delay(self, delay: Duration) -> Self {
        self.each(|part| part.lock_delay(delay))
    }

    /// How often the program has to call [`MultiGuard::alive`], as [`Acquire::with_liveness`] says.
    pub fn with_liveness(self, limit: Duration) -> Self {
        self.each(|part| part.with_liveness(limit))
    }

    fn each(mut self, change: impl Fn(Acquire<Holding>) -> Acquire<Holding>) -> Self {
        self.parts = self.parts.into_iter().map(change).collect();
        self
    }

    /// Waits on this thread, for programs without async. Not to be called from async code.
    ///
    /// # Errors
    /// As awaiting it.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn wait(self) -> Result<MultiGuard, Error> {
        match self.parts.first().map(|part| part.io().clone()) {
            Some(io) => io.block_on(self.into_future()),
            None => Err(Error::NoLocks),
        }
    }

    async fn take(self) -> Result<MultiGuard, Error> {
        if self.parts.is_empty() {
            return Err(Error::NoLocks);
        }
        let bounds = self.timeout.filter(|timeout| !timeout.is_zero());
        let bounds = bounds.and_then(|timeout| Some((timeout, Instant::now().checked_add(timeout)?)));
        let mut parts = Vec::with_capacity(self.parts.len());
        for mut part in self.parts {
            parts.push((part.path()?, part));
        }
        // Nothing is sent for a request that cannot be carried out.
        parts.sort_by(|(a, _), (b, _)| a.cmp(b));
        if let Some(twice) = parts.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::Duplicate { path: twice[0].0.clone() });
        }
        let mut taken = MultiGuard::of(Vec::with_capacity(parts.len()));
        for (_, part) in parts {
            let part = match (bounds, self.timeout) {
                (Some((whole, deadline)), _) => part.until(whole, deadline),
                // Each is tried once.
                (None, Some(Duration::ZERO)) => part.timeout(Duration::ZERO),
                (None, _) => part,
            };
            // An error drops what was taken, the last first. A lock that is lost while the next one is waited for ends the call:
            // nobody begins work with it.
            let holding = tokio::select! {
                biased;
                _ = taken.lost(), if !taken.holdings.is_empty() => return Err(taken.lost_in_between()),
                holding = part.into_future() => holding?,
            };
            taken.holdings.push(holding);
        }
        Ok(taken)
    }
}

impl IntoFuture for MultiAcquire {
    type Output = Result<MultiGuard, Error>;
    type IntoFuture = BoxFuture<'static, Result<MultiGuard, Error>>;

    fn into_future(self) -> Self::IntoFuture {
        self.take().boxed()
    }
}

/// Several locks that are held. Dropping it releases them, the last taken first.
#[must_use = "the locks are released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct MultiGuard {
    /// In the order of their paths, which is that of their taking. At least one, from the grant of the first to the release.
    holdings: Vec<Holding>,
}

/// A leased lock as the only one of several, for code that takes any.
impl From<HelixGuard> for MultiGuard {
    fn from(guard: HelixGuard) -> Self {
        MultiGuard::of(vec![guard.into_holding()])
    }
}

impl MultiGuard {
    fn of(holdings: Vec<Holding>) -> Self {
        MultiGuard { holdings }
    }

    /// The error of a call whose first locks were lost while it waited for the others.
    fn lost_in_between(&self) -> Error {
        let lost = self.holdings.iter().find_map(|holding| Some((holding, holding.loss()?)));
        let (holding, loss) = lost.expect("one of them was lost");
        let path = holding.path().to_owned();
        match loss {
            Loss::Removed => {
                let node = holding.node();
                Error::Evicted { node: node.rsplit('/').next().unwrap_or_default().to_owned(), path, by: None }
            }
            loss => Error::SessionLost { path, loss },
        }
    }

    /// The holds, by path.
    pub fn holdings(&self) -> &[Holding] {
        &self.holdings
    }

    /// The token of the lock at `path`, to give to what that lock protects. `None` for permits, and for other paths.
    pub fn token(&self, path: &str) -> Option<FencingToken> {
        self.holdings.iter().find(|holding| holding.path() == path)?.fencing_token()
    }

    /// Changes of nodes that are made in one transaction, and only if all of these locks are held at that moment. As
    /// [`Holding::fenced_write`].
    pub fn fenced_write(&self) -> FencedWrite<'_> {
        FencedWrite::new(self.holdings.iter().collect())
    }

    /// Whether all of them may be relied on right now. No round trip. `false` is final.
    pub fn is_held(&self) -> bool {
        self.holdings.iter().all(Holding::is_held)
    }

    /// The worst of their states. No round trip.
    pub fn state(&self) -> HoldState {
        let worse = |state: &HoldState| match state {
            HoldState::Held => 0,
            HoldState::Suspected => 1,
            HoldState::Lost(_) => 2,
        };
        self.holdings.iter().map(|holding| holding.state()).max_by_key(worse).unwrap_or(HoldState::Held)
    }

    /// Waits until one of them is lost, and says why. Dropping the future leaves nothing behind.
    pub async fn lost(&self) -> Loss {
        // While the first of them is waited for.
        if self.holdings.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.holdings.iter().map(|holding| holding.lost().boxed())).await.0
    }

    /// Waits until one of them may be trusted for no longer than `margin`, or is lost. As [`Holding::nearly_lost`].
    pub async fn nearly_lost(&self, margin: Duration) -> HoldState {
        _ = select_all(self.holdings.iter().map(|holding| holding.nearly_lost(margin).boxed())).await;
        self.state()
    }

    /// Waits until the worst of their states is another than `seen`, and says which. As [`Holding::changed`].
    pub async fn changed(&self, seen: HoldState) -> HoldState {
        loop {
            // Before the look, so that no change falls between.
            let state_changed = select_all(self.holdings.iter().map(|holding| holding.state_changed().boxed()));
            let state = self.state();
            if state != seen {
                return state;
            }
            state_changed.await;
        }
    }

    /// Says that the program is at work, as [`Holding::alive`] does; whether all locks are held.
    pub fn alive(&self) -> bool {
        // Each is told, also after one that is lost.
        let held: Vec<_> = self.holdings.iter().map(|holding| holding.alive()).collect();
        held.into_iter().all(|held| held)
    }

    /// Proves at the servers that all of them are held, as [`Holding::verify`] does. One round trip: they are asked together.
    ///
    /// # Errors
    /// The first error.
    pub async fn verify(&self) -> Result<(), VerifyError> {
        futures_util::future::try_join_all(self.holdings.iter().map(Holding::verify)).await.map(drop)
    }

    /// Waits until somebody asks for one of them: for the first, [`Holding::revocation`] says the rest.
    pub async fn revocation(&self) -> (&Holding, lockkeeper_core::Revocation) {
        let asked = self.holdings.iter().map(|holding| holding.revocation().map(move |by| (holding, by)).boxed());
        select_all(asked).await.0
    }

    /// Runs `work` until it ends or one of the locks is lost, whichever is first, as [`Holding::run`] does.
    ///
    /// # Errors
    /// The [`Loss`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        run_until(self.lost(), work).await
    }

    /// Releases all of them, the last taken first, and waits for the server to confirm each.
    ///
    /// Dropping the future does not call the release back: what was not asked for yet is released in the background.
    ///
    /// # Errors
    /// The first error; the others are released all the same.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        let mut outcome = Ok(());
        while let Some(holding) = self.holdings.pop() {
            let released = holding.release().await;
            outcome = outcome.and(released);
        }
        outcome
    }

    /// [`MultiGuard::release`] on this thread, for programs without async.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn release_blocking(self) -> Result<(), ReleaseError> {
        match self.holdings.first().map(Holding::session) {
            Some(session) => session.block_on(self.release()),
            None => Ok(()),
        }
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        while self.holdings.pop().is_some() {}
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.holdings).finish()
    }
}
