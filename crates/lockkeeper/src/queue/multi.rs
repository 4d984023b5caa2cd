//! Several locks in one call: all of them, or none.
//!
//! The locks are acquired one after the other in the order of their paths, whatever order the caller names. Callers
//! that need two of the same locks acquire the same one first, so they never wait for each other (Havender's ordered
//! resources). This holds for all kinds of queue lock, because no holder of one waits for a waiter.

use std::fmt;
use std::future::IntoFuture;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, select_all};
use lockkeeper_core::{FencingToken, Loss, Revocation, node_path};
use lockkeeper_session::CancellationToken;
use lockkeeper_session::wait::passed;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::{AcquireError, Misuse, ReleaseError, SessionError, VerifyError};
use crate::hold::fenced::FencedWrite;
use crate::hold::guard::{Guard, Permit, UpgradeableGuard, WriteGuard};
use crate::hold::holding::{HoldState, Holding, run_until};
use crate::hold::on_lost::OnLost;
use crate::journal;
use crate::queue::acquire::Acquire;
use crate::queue::requeue::Requeued;

/// A request for several locks that is not sent yet: await it, or set options first. Created by
/// [`Lockkeeper::multi_lock`](crate::Lockkeeper::multi_lock).
///
/// One deadline limits the whole call. The other options are those of the single requests; [`MultiAcquire::each`] sets them for all.
/// Each request says in its node that the caller keeps the holds before it ([`Acquire::while_holding`]).
///
/// # Cancel safety
///
/// Dropping the future releases the locks that were granted and leaves the queues of the others.
///
/// # Errors
///
/// [`AcquireError::Misuse`], before anything is sent, if a lock is requested twice or no lock is requested, or if the requests are those of
/// handles with different connect strings.
/// Otherwise the error of the lock that failed.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let requests = ["/accounts/1", "/accounts/2"].map(|path| keeper.mutex(path).acquire());
/// let both = keeper.multi_lock(requests).timeout(Duration::from_secs(10)).await?;
/// both.release().await?;
/// # Ok(())
/// # }
/// ```
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

    /// Fails after `timeout`, counted from when the request is awaited. The error is the [`AcquireError::Timeout`] of
    /// the lock that the call was waiting for, or
    /// [`SessionError::Unreachable`](crate::error::SessionError::Unreachable) if no server answers by then. With a
    /// timeout of zero, each lock is tried once.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Fails with [`AcquireError::Cancelled`] when `token` is cancelled.
    pub fn cancel_on(self, token: CancellationToken) -> Self {
        self.each(|part| part.cancel_on(token.clone()))
    }

    /// Sets what happens when one of the locks is lost, as [`Acquire::on_lost`] does.
    pub fn on_lost(self, on_lost: OnLost) -> Self {
        self.each(|part| part.on_lost(on_lost.clone()))
    }

    /// Sets options of each single request: `all.each(|one| one.message("nightly import"))`.
    ///
    /// If the session ends before all locks are granted, those that were granted are lost with it, and the call acquires all of them
    /// again within the same timeout, unless [`Acquire::requeue`] says otherwise.
    pub fn each(mut self, change: impl FnMut(Acquire<Holding>) -> Acquire<Holding>) -> Self {
        self.parts = self.parts.into_iter().map(change).collect();
        self
    }

    /// Acquires the locks and blocks this thread until all are granted, for programs without async. Do not call it from
    /// async code.
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn wait(self) -> Result<MultiGuard, AcquireError> {
        match self.parts.first().map(|part| part.sessions().clone()) {
            Some(io) => io.block_on(self.into_future()),
            None => Err(crate::error::misuse::no_locks().into()),
        }
    }

    async fn take(self) -> Result<MultiGuard, AcquireError> {
        let Some(clock) = self.parts.first().map(|part| part.keeper().sessions().clock()) else {
            return Err(crate::error::misuse::no_locks().into());
        };
        let started = clock.instant();
        let bounds = self.timeout.filter(|timeout| !timeout.is_zero());
        let bounds = bounds.and_then(|timeout| Some((timeout, started.checked_add(timeout)?)));
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in self.parts {
            parts.push((part.path()?, part));
        }
        // Check all requests before the first one is sent.
        for pair in parts.windows(2) {
            let (one, other) = (pair[0].1.keeper().sessions().servers(), pair[1].1.keeper().sessions().servers());
            if one != other {
                return Err(crate::error::misuse::of_two_handles(&pair[1].0, (&one, &other)).into());
            }
        }
        parts.sort_by(|(a, _), (b, _)| a.cmp(b));
        if let Some(twice) = parts.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(crate::error::misuse::twice(&twice[0].0).into());
        }
        let mut requeued = false;
        loop {
            let error = match Self::take_once(&parts, (bounds, self.timeout), requeued).await {
                Ok(taken) => return Ok(taken),
                Err(error) => error,
            };
            let part = &parts[0].1;
            let lost = match &error {
                AcquireError::SessionLost { path, loss } => Some((path.clone(), *loss)),
                _ => None,
            };
            let again = lost.filter(|(_, loss)| match loss {
                Loss::SessionExpired => true,
                Loss::Unreachable => part.retries().is_none(),
                _ => false,
            });
            match again.filter(|_| part.requeues().again) {
                Some((path, loss)) => {
                    let waited = clock.instant().saturating_duration_since(started);
                    part.requeues().report(Requeued { path, loss, waited });
                }
                None => return Err(error),
            }
            requeued = true;
        }
    }

    /// Acquires the locks once.
    async fn take_once(
        parts: &[(String, Acquire<Holding>)],
        (bounds, timeout): (Option<(Duration, Instant)>, Option<Duration>),
        requeued: bool,
    ) -> Result<MultiGuard, AcquireError> {
        let mut taken = MultiGuard::of(Vec::with_capacity(parts.len()));
        for (_, part) in parts {
            let part = match (bounds, timeout) {
                (Some((whole, deadline)), _) => part.again(requeued).until(whole, deadline),
                // Each lock is tried once.
                (None, Some(Duration::ZERO)) => part.again(requeued).timeout(Duration::ZERO),
                (None, _) => part.again(requeued),
            };
            let part = part.while_holding(taken.holdings.iter().map(Holding::node));
            let granted = taken.holdings.len();
            // With granted locks, the call begins again as a whole.
            let again = part.requeues().again && granted == 0;
            // An error drops the granted locks, the last one first. If a granted lock is lost while the call waits for
            // the next one, the call fails, so that no work starts.
            let holding = tokio::select! {
                biased;
                _ = taken.lost(), if granted > 0 => {
                    let lost = taken.lost_in_between();
                    // The other locks are free before the servers are asked for the reason.
                    drop(taken);
                    return Err(Self::explain(lost, parts, bounds.map(|(_, deadline)| deadline)).await);
                }
                holding = part.requeue(again).into_future() => holding?,
            };
            taken.holdings.push(holding);
        }
        Ok(taken)
    }

    /// Finds out who broke a hold that is lost, for the caller's error. Without a session, or after the deadline, the error says what
    /// is known.
    async fn explain(
        error: AcquireError,
        parts: &[(String, Acquire<Holding>)],
        deadline: Option<Instant>,
    ) -> AcquireError {
        let AcquireError::Evicted { path, node, by: None } = error else { return error };
        let by = async {
            let keeper = parts.iter().find(|(lock, _)| *lock == path)?.1.keeper();
            let (_session, ensemble) = keeper.sessions().ready_session()?;
            let (lock, at) = (path.clone(), node_path(&path, &node));
            let asked = keeper.sessions().run(async move {
                Ok::<_, SessionError>(tokio::select! {
                    biased;
                    by = journal::who_removed(&*ensemble, &lock, &at) => by,
                    () = passed(deadline) => None,
                })
            });
            asked.await.ok()?
        };
        let by = by.await;
        AcquireError::Evicted { path, node, by }
    }
}

impl IntoFuture for MultiAcquire {
    type Output = Result<MultiGuard, AcquireError>;
    type IntoFuture = BoxFuture<'static, Result<MultiGuard, AcquireError>>;

    fn into_future(self) -> Self::IntoFuture {
        self.take().boxed()
    }
}

/// Several held locks. Dropping it releases them.
///
/// # Examples
///
/// ```
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let requests = ["/accounts/1", "/accounts/2"].map(|path| keeper.mutex(path).acquire());
/// let both = keeper.multi_lock(requests).await?;
/// for hold in both.holdings() {
///     println!("{} with token {:?}", hold.path(), hold.fencing_token());
/// }
/// both.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the locks are released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct MultiGuard {
    /// In the order of their paths, in which they were granted. At least one, from the first grant to the release.
    holdings: Vec<Holding>,
    /// The token for callers that want one, and the task that cancels it. The task ends with this guard.
    cancelled: OnceLock<(CancellationToken, oneshot::Sender<()>)>,
}

impl MultiGuard {
    pub(crate) fn of(holdings: Vec<Holding>) -> Self {
        MultiGuard { holdings, cancelled: OnceLock::new() }
    }

    /// The error of a call whose first locks were lost while it waited for the others.
    fn lost_in_between(&self) -> AcquireError {
        let lost = self.holdings.iter().find_map(|holding| Some((holding, holding.loss()?)));
        let (holding, loss) = lost.expect("one of them was lost");
        let path = holding.path().to_owned();
        match loss {
            Loss::Removed => {
                let node = holding.node();
                AcquireError::Evicted { node: node.rsplit('/').next().unwrap_or_default().to_owned(), path, by: None }
            }
            Loss::Closed => SessionError::Closed.into(),
            loss => AcquireError::SessionLost { path, loss },
        }
    }

    /// Returns the holds, in the order of their paths.
    pub fn holdings(&self) -> &[Holding] {
        &self.holdings
    }

    /// Returns the token of the lock at `path`, to pass to the resource that it protects. `None` for permits and for
    /// other paths.
    pub fn token(&self, path: impl AsRef<str>) -> Option<FencingToken> {
        let path = path.as_ref();
        self.holdings.iter().find(|holding| holding.path() == path)?.fencing_token()
    }

    /// Returns a builder for changes of nodes. They take effect in one transaction, and only if all of these locks are
    /// held at that moment. See [`Holding::fenced_write`].
    pub fn fenced_write(&self) -> FencedWrite<'_> {
        FencedWrite::new(self.holdings.iter().collect())
    }

    /// Returns whether all of them can be relied on now. No round trip. `false` is final.
    pub fn is_held(&self) -> bool {
        self.holdings.iter().all(Holding::is_held)
    }

    /// Returns for how long all of them can still be trusted, as [`Holding::valid_for`] does: zero once one is lost. No
    /// round trip.
    pub fn valid_for(&self) -> Duration {
        self.holdings.iter().map(|holding| holding.valid_for()).min().unwrap_or_default()
    }

    /// Returns why one of them was lost, if that is already known. No round trip.
    pub fn loss(&self) -> Option<Loss> {
        self.holdings.iter().find_map(|holding| holding.loss())
    }

    /// Returns the worst of their states. No round trip.
    pub fn state(&self) -> HoldState {
        let worse = |state: &HoldState| match state {
            HoldState::Held => 0,
            HoldState::Suspected => 1,
            HoldState::Lost(_) => 2,
        };
        self.holdings.iter().map(|holding| holding.state()).max_by_key(worse).unwrap_or(HoldState::Held)
    }

    /// Waits until one of them is lost, and returns why.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn lost(&self) -> Loss {
        // Empty only while the first lock is being acquired.
        if self.holdings.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.holdings.iter().map(|holding| holding.lost().boxed())).await.0
    }

    /// Calls [`MultiGuard::lost`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn lost_blocking(&self) -> Loss {
        match self.holdings.first() {
            Some(holding) => holding.session().block_on(self.lost()),
            None => unreachable!("a caller's guard has a lock"),
        }
    }

    /// Returns a token that is cancelled when one of the locks is lost, for code that takes one.
    pub fn cancelled_when_lost(&self) -> CancellationToken {
        let (token, _) = self.cancelled.get_or_init(|| {
            let (token, (guard, mut released)) = (CancellationToken::new(), oneshot::channel());
            let tokens: Vec<_> = self.holdings.iter().map(|holding| holding.cancelled_when_lost()).collect();
            match self.holdings.first() {
                // In a forked child, or lost already.
                _ if tokens.iter().any(CancellationToken::is_cancelled) => token.cancel(),
                Some(holding) => holding.session().spawn({
                    let token = token.clone();
                    async move {
                        let lost = select_all(tokens.iter().map(|token| token.cancelled().boxed()));
                        tokio::select! {
                            biased;
                            _ = lost => token.cancel(),
                            _ = &mut released => {}
                        }
                    }
                }),
                None => {}
            }
            (token, guard)
        });
        token.child_token()
    }

    /// Waits until all of them can be trusted for longer than when this was called, as [`Holding::renewed`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub fn renewed(&self) -> impl Future<Output = ()> + Send + use<> {
        join_all(self.holdings.iter().map(|holding| holding.renewed())).map(drop)
    }

    /// Waits until one of them can be trusted for no longer than `margin`, or is lost. See [`Holding::nearly_lost`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn nearly_lost(&self, margin: Duration) -> HoldState {
        _ = select_all(self.holdings.iter().map(|holding| holding.nearly_lost(margin).boxed())).await;
        self.state()
    }

    /// Waits until the worst of their states differs from `seen`, and returns it. See [`Holding::changed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn changed(&self, seen: HoldState) -> HoldState {
        loop {
            // Subscribe before reading the state, so that no change is missed.
            let state_changed = select_all(self.holdings.iter().map(|holding| holding.state_changed().boxed()));
            let state = self.state();
            if state != seen {
                return state;
            }
            state_changed.await;
        }
    }

    /// Confirms that the program is at work, as [`Holding::alive`] does. Returns whether all locks are held.
    pub fn alive(&self) -> bool {
        // Confirm for each of them, even after one that is lost.
        let held: Vec<_> = self.holdings.iter().map(|holding| holding.alive()).collect();
        held.into_iter().all(|held| held)
    }

    /// Proves at the servers that all of them are held, as [`Holding::verify`] does.
    ///
    /// # Cost
    ///
    /// One round trip: the requests are sent together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The first error.
    pub async fn verify(&self) -> Result<(), VerifyError> {
        futures_util::future::try_join_all(self.holdings.iter().map(Holding::verify)).await.map(drop)
    }

    /// Waits until another client asks the holder to release one of them. See [`Holding::revocation`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn revocation(&self) -> (&Holding, Revocation) {
        let asked = self.holdings.iter().map(|holding| holding.revocation().map(move |by| (holding, by)).boxed());
        select_all(asked).await.0
    }

    /// Waits for a request to release one of them, other than `seen`. See [`Holding::revocation_after`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn revocation_after(&self, seen: &Revocation) -> (&Holding, Revocation) {
        let asked =
            self.holdings.iter().map(|holding| holding.revocation_after(seen).map(move |by| (holding, by)).boxed());
        select_all(asked).await.0
    }

    /// Returns the latest request to release one of them, if there is one, and the lock. No round trip.
    pub fn revocation_requested(&self) -> Option<(&Holding, Revocation)> {
        self.holdings.iter().find_map(|holding| Some((holding, holding.revocation_requested()?)))
    }

    /// Refuses the requests to release one of them, and gives a reason, as [`Holding::refuse_revocation`] does. One write
    /// for each request, in the background.
    ///
    /// # Errors
    ///
    /// As [`Holding::refuse_revocation`].
    pub fn refuse_revocation(&self, reason: &str) -> Result<(), Misuse> {
        let mut asked = self.holdings.iter().filter(|holding| holding.revocation_requested().is_some());
        asked.try_for_each(|holding| holding.refuse_revocation(reason))
    }

    /// Runs `work` until it ends or one of the locks is lost, as [`Holding::run`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the locks stay held.
    ///
    /// # Errors
    ///
    /// The [`Loss`], if a lock was lost first.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        run_until(self.lost(), work).await
    }

    /// Releases all of them side by side, and waits until the server confirms each. While no server
    /// answers, the call waits for no longer than the longest timeout of their sessions, as [`Holding::release`] does for one.
    ///
    /// # Cost
    ///
    /// One round trip: the requests are sent together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the releases; it only stops waiting for the confirmations.
    ///
    /// # Errors
    ///
    /// As [`Holding::release`]: [`ReleaseError::NotHeld`] if one of them was lost, otherwise the error of the first lock that has
    /// one. The other locks are released anyway.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.release_each(Holding::release).await
    }

    /// Makes way with a guard of one lock, as [`Guard::yield_lock`](crate::Guard::yield_lock) does. A guard of several locks is
    /// returned unchanged: to wait for one while the others are held could deadlock.
    ///
    /// # Cost
    ///
    /// As [`Guard::yield_lock`](crate::Guard::yield_lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::yield_lock`](crate::Guard::yield_lock).
    ///
    /// # Errors
    ///
    /// As [`Guard::yield_lock`](crate::Guard::yield_lock).
    pub async fn yield_lock(mut self) -> Result<Self, AcquireError> {
        if self.holdings.len() != 1 {
            return Ok(self);
        }
        let holding = self.holdings.remove(0);
        Ok(MultiGuard::of(vec![holding.yield_lock().await?]))
    }

    /// Releases all of them as [`MultiGuard::release`] does, but waits for the confirmations for no longer than `timeout`
    /// in all. After that, the releases go on in the background, as [`Holding::release_within`] describes.
    ///
    /// # Cost
    ///
    /// As [`MultiGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// As [`MultiGuard::release`].
    ///
    /// # Errors
    ///
    /// After `timeout`, [`ReleaseError::NotHeld`] if one of them was lost before this call, otherwise [`ReleaseError::Timeout`] with
    /// the path of the first lock without a confirmation; before that as [`MultiGuard::release`].
    pub async fn release_within(self, timeout: Duration) -> Result<(), ReleaseError> {
        self.release_each(|holding| holding.release_within(timeout)).await
    }

    /// Releases all of them, and waits for the answers of all. A known loss counts more than another
    /// error.
    async fn release_each<R>(mut self, release: impl FnMut(Holding) -> R) -> Result<(), ReleaseError>
    where
        R: Future<Output = Result<(), ReleaseError>>,
    {
        let holdings = std::mem::take(&mut self.holdings);
        let released = join_all(holdings.into_iter().rev().map(release)).await;
        let errors = released.into_iter().rev().filter_map(Result::err);
        let worst = errors.min_by_key(|error| !matches!(error, ReleaseError::NotHeld { .. }));
        worst.map_or(Ok(()), Err)
    }

    /// Calls [`MultiGuard::release`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`MultiGuard::release`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn release_blocking(self) -> Result<(), ReleaseError> {
        match self.holdings.first().map(Holding::session) {
            Some(session) => session.block_on(self.release()),
            None => Ok(()),
        }
    }
}

/// Wraps a single hold of any kind, for code that takes several.
impl From<Holding> for MultiGuard {
    fn from(holding: Holding) -> Self {
        MultiGuard::of(vec![holding])
    }
}

macro_rules! of_one {
    ($($guard:ty),+) => {$(
        /// Wraps a single hold, for a struct that keeps a lock of any kind.
        impl From<$guard> for MultiGuard {
            fn from(guard: $guard) -> Self {
                Holding::from(guard).into()
            }
        }
    )+};
}

of_one!(Guard, WriteGuard, UpgradeableGuard, Permit);

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
