//! [`Holding`]: what every hold can do, of whatever kind of lock, and how long it can be trusted.

mod yielding;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_channel::mpsc;
use futures_util::FutureExt;
use lockkeeper_core::{FencingToken, Loss, MAX_MESSAGE_BYTES, Revocation, Trust, node_path};
use lockkeeper_session::process::Owned;
use lockkeeper_session::wait::{cancelled, or_never};
use lockkeeper_session::{CancellationToken, Session};
use tokio::sync::oneshot;

use crate::error::{ChangeError, Misuse, ReleaseError, VerifyError};
use crate::hold::spans::HoldSpan;
use crate::hold::{Hold, HoldRequest};

/// Whether a hold can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldState {
    /// The lock is held.
    Held,
    /// The connection is lost. The lock is still held for [`Holding::valid_for`], and [`Holding::is_held`] is `true`: begin only a step
    /// that ends within that time.
    Suspected,
    /// The lock is lost, for this reason. This is final.
    Lost(Loss),
}

/// `held`, `suspected`, or `lost: the session expired`.
impl fmt::Display for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldState::Held => f.write_str("held"),
            HoldState::Suspected => f.write_str("suspected"),
            HoldState::Lost(loss) => write!(f, "lost: {loss}"),
        }
    }
}

/// A hold of any kind of lock: what all guards have in common. Dropping it releases the lock without waiting.
///
/// A holding is owned and `Send`. It is tied to no task and no thread. It is not `Clone`, so there is one value for
/// each hold. No lock can stop a process that is paused between checking the guard and acting: pass [`Guard::token`](crate::Guard::token) to
/// the resource.
///
/// Bind a guard to a name, as in `let guard = …` or `let _guard = …`. `let _ = lock.acquire().await?` binds nothing and
/// releases the lock immediately. The compiler warns of a guard that is not bound at all. It warns of `let _` only with
/// its lint `let_underscore_drop` (or Clippy's `let_underscore_must_use`), which a crate must enable.
///
/// # Dropping
///
/// Dropping works on any thread, in and outside of runtimes, and while a panic unwinds. It waits for nothing: it wakes the library's
/// thread, which deletes the node, and repeats the delete until it is confirmed or the session is over.
///
/// A program that drops its guard may end right after: by a return from `main`, an early return with `?`, a panic that unwinds, or
/// `std::process::exit`. When a process exits, it waits until the servers have confirmed the deletes for the guards that were dropped,
/// but no longer than 100 ms.
///
/// The lock stays held until the session expires, and a leased lock until its lease ends, if the process ends in one of these ways:
///
/// - Without a drop: `std::process::exit` while a variable still has the guard, or a guard in a `static` or in a value that
///   was forgotten or leaked. Drop or release the guard first.
/// - Without an exit: a signal, `abort`, a panic with `panic = "abort"`, or `_exit`.
/// - Right after the drop, in an outage. Call [`Holding::release`], which waits for the confirmation, or
///   [`Lockkeeper::close`](crate::Lockkeeper::close) for all locks of a handle.
/// - Right after the drop, if an answer of the servers takes longer than 100 ms, and the delete is sent after one. A release begins with
///   a read if the lock is leased, has classes ([`PriorityLock`](crate::PriorityLock)), or has the node format
///   [`Recipe`](crate::NodeFormat::Recipe) or [`Numbered`](crate::NodeFormat::Numbered), which is the default of
///   [`DistributedLock`](crate::DistributedLock). While two writes of a handle have no answer, further deletes wait for one. Call
///   [`Holding::release`] or [`Lockkeeper::close`](crate::Lockkeeper::close).
/// - After the drop of a lock that the process [keeps](crate::Mutex::keep), which stays held: call
///   [`Mutex::release_kept`](crate::Mutex::release_kept).
///
/// # Forks
///
/// A holding belongs to the process that acquired it. In a forked child, its copy is [`Loss::Forked`], and dropping the
/// copy does nothing.
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct Holding {
    parts: Owned<Parts>,
}

struct Parts {
    hold: Arc<Hold>,
    requests: mpsc::UnboundedSender<HoldRequest>,
    /// If this is one of several uses of the hold: it ends in place of the hold.
    part: Option<Box<dyn UseOfKept>>,
    /// The span of the time that this guard has, if a program subscribes to it.
    span: OnceLock<Arc<HoldSpan>>,
}

/// One of several uses of a hold in this process. Dropping it ends it.
pub(crate) trait UseOfKept: Send + Sync {
    /// Ends it. Returns the hold if the hold is to be released now.
    fn end(&mut self) -> Option<Holding>;
}

impl Holding {
    /// Creates the guard of this hold, whose task receives the requests.
    pub(crate) fn new(hold: Arc<Hold>, requests: mpsc::UnboundedSender<HoldRequest>) -> Self {
        Self::of(Parts { hold, requests, part: None, span: OnceLock::new() })
    }

    fn of(parts: Parts) -> Self {
        Holding { parts: Owned::new(parts) }
    }

    /// The hold itself, without the right to release it.
    pub(crate) fn state_of_hold(&self) -> Arc<Hold> {
        self.parts.hold.clone()
    }

    /// The guard of one of several uses of this hold.
    pub(crate) fn with_use(&self, part: Box<dyn UseOfKept>) -> Self {
        let (hold, requests) = (self.parts.hold.clone(), self.parts.requests.clone());
        Self::of(Parts { hold, requests, part: Some(part), span: OnceLock::new() })
    }

    /// Ends this span with this guard, or with the loss.
    pub(crate) fn has_span(&self, span: HoldSpan) {
        let span = self.parts.span.get_or_init(|| Arc::new(span));
        self.parts.hold.spans.add(span);
        // The loss may have been reported before.
        if let Some(loss) = self.loss() {
            self.parts.hold.spans.lost(loss);
        }
    }

    /// The session that the hold depends on now.
    pub(crate) fn session(&self) -> Arc<Session> {
        self.parts.hold.session()
    }

    /// Returns the lock's path.
    pub fn path(&self) -> &str {
        &self.parts.hold.path
    }

    /// Returns the number to pass to the protected resource, if this kind of hold has one: permits have none.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        Some(self.parts.hold.token).filter(|_| self.parts.hold.fences)
    }

    /// Returns the full path of the node that represents this hold.
    pub fn node(&self) -> String {
        node_path(&self.parts.hold.path, &self.parts.hold.node())
    }

    /// Returns the timeout of the session that holds the lock, as agreed with the server.
    ///
    /// When the loss is caused by an unreachable server, it shows at least a tenth of this timeout before another contender
    /// can be granted the lock.
    pub fn session_timeout(&self) -> Duration {
        self.parts.hold.session().timeout()
    }

    /// Returns whether the lock can be relied on now, by this process's own clock. No round trip.
    ///
    /// `false` is final. Check it before each step of protected work.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
    /// let mut pages = (0..1_000).map(|page| async move { println!("page {page}") });
    /// while let Some(page) = pages.next().filter(|_| guard.is_held()) {
    ///     page.await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), HoldState::Lost(_))
    }

    /// Until when this process may trust the hold.
    fn trust(&self) -> Trust {
        if self.parts.is_ours() { self.parts.hold.trust() } else { Trust::Lost(Loss::Forked) }
    }

    /// Returns for how long the lock can still be trusted without another answer from a server: zero once it is lost.
    /// No round trip.
    ///
    /// A hold starts with at least half of [`Holding::session_timeout`] if the servers answer within 0.24 of it.
    ///
    /// Each step of protected work should end within this time. While something is held, the session renews it with a
    /// write every fifth of its timeout. The new time counts from when that write was sent, by a clock that keeps
    /// running during suspend.
    pub fn valid_for(&self) -> Duration {
        self.trust().until().saturating_sub(self.parts.hold.session().now())
    }

    /// Returns the state of the hold: held, suspected or lost. No round trip.
    pub fn state(&self) -> HoldState {
        match self.trust() {
            Trust::Held { .. } => HoldState::Held,
            Trust::Suspected { .. } => HoldState::Suspected,
            Trust::Lost(loss) => HoldState::Lost(loss),
        }
    }

    /// Returns why the lock was lost, if that is already known. No round trip.
    pub fn loss(&self) -> Option<Loss> {
        if self.parts.is_ours() { self.parts.hold.loss() } else { Some(Loss::Forked) }
    }

    /// Waits until the lock is lost, and returns why.
    ///
    /// Resolves at the latest when the server could expire the session, by a clock that keeps running during suspend.
    /// This holds even if the library's own thread is stuck.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
    /// let loss = guard.lost().await;
    /// println!("stop the work: {loss}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> Loss {
        if self.parts.is_ours() {
            self.parts.hold.lost.cancelled().await;
        }
        self.loss().unwrap_or(Loss::SessionExpired)
    }

    /// Returns a token that is cancelled when the lock is lost, for code that takes one.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
    /// let lost = guard.cancelled_when_lost();
    /// std::thread::spawn(move || {
    ///     while !lost.is_cancelled() {
    ///         // A step of the work, on a thread without async.
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancelled_when_lost(&self) -> CancellationToken {
        if self.parts.is_ours() {
            return self.parts.hold.lost.child_token();
        }
        let token = CancellationToken::new();
        token.cancel();
        token
    }

    /// Waits until the lock can be trusted for longer than when this was called: until [`Holding::valid_for`] has been
    /// renewed.
    ///
    /// Never resolves for a lock that is no longer renewed; use [`Holding::lost`] for that.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub fn renewed(&self) -> impl Future<Output = ()> + Send + use<> {
        let renewed = self.parts.is_ours().then(|| self.parts.hold.renewed());
        or_never(renewed)
    }

    pub(crate) fn state_changed(&self) -> impl Future<Output = ()> + Send + '_ {
        self.parts.hold.state_changed()
    }

    /// Waits until the state differs from `seen`, and returns it: for work that pauses while the lock is
    /// [`Suspected`](HoldState::Suspected). A state that came and went while no call waited is not reported, except for
    /// `Lost`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn changed(&self, seen: HoldState) -> HoldState {
        loop {
            if !self.parts.is_ours() {
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

    /// Waits until the lock can be trusted for no longer than `margin`, or is lost. Use it to stop work that needs
    /// `margin` to stop, so that the work ends before another contender can be granted the lock.
    ///
    /// While the servers answer at once, a hold can always be trusted for more than half of [`Holding::session_timeout`], from
    /// its grant on; while they need a quarter of it for an answer, for 0.24 of it. So choose at most a fifth. Like
    /// [`Holding::lost`], this resolves even if the library's own thread is stuck. It reports the state when it resolves; the hold
    /// may recover afterwards.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
    /// let state = guard.nearly_lost(Duration::from_secs(2)).await;
    /// println!("two seconds are left to stop: the lock is {state}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn nearly_lost(&self, margin: Duration) -> HoldState {
        if self.parts.is_ours() {
            self.parts.hold.nearly_lost(margin).await;
        }
        self.state()
    }

    /// Confirms that the program is at work. A lock that was acquired [`with_liveness`](crate::Acquire::with_liveness)
    /// needs this. Returns whether the lock is held. No round trip.
    ///
    /// Call it from the work itself, not from a timer.
    pub fn alive(&self) -> bool {
        let held = self.is_held();
        if held {
            self.parts.hold.attend();
        }
        held
    }

    /// Proves at the servers that the lock is held.
    ///
    /// `Ok` means: when the leader ordered the request, the hold's node existed in the session that created it. The
    /// hold can be trusted again from when the request was sent ([`Holding::valid_for`]). That is more than
    /// [`Holding::is_held`] knows: it also notices a node that was deleted a moment ago. It says no more about the time
    /// after than a clock can. While the connection is lost, the call waits, but no longer than the hold can be
    /// trusted.
    ///
    /// # Cost
    ///
    /// One round trip and one small write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Lost`] if the lock is lost; [`VerifyError::Refused`] if a server refuses the request.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
    /// guard.verify().await?;
    /// println!("the servers say that it is held");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn verify(&self) -> Result<(), VerifyError> {
        if !self.parts.is_ours() {
            return Err(VerifyError::Lost(Loss::Forked));
        }
        let (answer, answered) = oneshot::channel();
        // A send fails only if the driver has ended, and then the hold has too.
        _ = self.parts.requests.unbounded_send(HoldRequest::Verify(answer));
        tokio::select! {
            biased;
            loss = self.lost() => Err(VerifyError::Lost(loss)),
            Ok(answer) = answered => match answer {
                Ok(()) if self.is_held() => Ok(()),
                Ok(()) => Err(VerifyError::Lost(self.lost().await)),
                Err(reason) => Err(VerifyError::Refused { path: self.parts.hold.path.clone(), reason }),
            },
        }
    }

    /// Returns how late the caller's async runtime last ran a task that was ready, if the lock was acquired on a tokio
    /// runtime.
    ///
    /// The lag is measured each time the hold is renewed, every fifth of the session's timeout. Above a tenth of that
    /// timeout it is logged as a warning, because above this lag checking a guard is unreliable. No round trip.
    pub fn runtime_lag(&self) -> Option<Duration> {
        self.parts.is_ours().then(|| self.parts.hold.session().runtime_lag())?
    }

    /// Runs `work` until it ends or the lock is lost, whichever comes first.
    ///
    /// On loss, `work` is dropped at its next await. What it did until then stays done.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the lock stays held.
    ///
    /// # Errors
    ///
    /// The [`Loss`], if the lock was lost first.
    ///
    /// # Examples
    ///
    /// ```
    /// use lockkeeper::Loss;
    ///
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
    /// match guard.run(async { "indexed" }).await {
    ///     Ok(done) => println!("{done}"),
    ///     Err(Loss::Removed) => println!("somebody broke the lock"),
    ///     Err(loss) => println!("stopped: {loss}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        run_until(self.lost(), work).await
    }

    /// Calls [`Holding::release`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`Holding::release`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn release_blocking(self) -> Result<(), ReleaseError> {
        let session = self.parts.hold.session();
        session.block_on(self.release())
    }

    /// Calls [`Holding::lost`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn lost_blocking(&self) -> Loss {
        self.parts.hold.session().block_on(self.lost())
    }

    /// Waits until another client asks the holder to release the lock, and returns the requestor and its reason. A
    /// request arrives within a second once the lock is older than 100 ms.
    ///
    /// A request takes nothing by force: the lock stays held until this guard is released. Answer a request that you
    /// will not follow with [`Holding::refuse_revocation`]. Every call returns the same request until it is answered. A
    /// new request replaces the one before it; [`Holding::revocation_after`] waits for that.
    ///
    /// Never resolves if no client asks, nor after the lock is lost: select it together with [`Holding::lost`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
    /// tokio::select! {
    ///     asked = guard.revocation() => println!("stopping: {asked}"),
    ///     () = async { println!("working") } => {}
    /// }
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn revocation(&self) -> Revocation {
        self.parts.hold.revocation().await
    }

    /// Waits for a request to release the lock other than `seen`, as [`Holding::revocation`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn revocation_after(&self, seen: &Revocation) -> Revocation {
        let mut asked = self.parts.hold.asked.subscribe();
        let other = asked.wait_for(|asked| asked.as_ref().is_some_and(|asked| **asked != *seen)).await;
        let other = other.ok().flatten();
        *other.expect("the sender lives in this guard, and the value was seen")
    }

    /// Returns the latest request to release the lock, if there is one. No round trip.
    pub fn revocation_requested(&self) -> Option<Revocation> {
        self.parts.hold.asked.borrow().as_deref().cloned()
    }

    /// Refuses the request to release the lock, and gives a reason. One write, in the background.
    ///
    /// [`Holding::revocation`] then waits for the next request.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the reason has more than 4096 bytes. The request then stays unanswered.
    pub fn refuse_revocation(&self, reason: &str) -> Result<(), Misuse> {
        Misuse::check_length("refusal", &self.parts.hold.path, Some(reason), MAX_MESSAGE_BYTES)?;
        if !self.parts.is_ours() {
            return Ok(());
        }
        self.parts.hold.ask(None);
        // A send fails only if the driver has ended, and then the hold has too.
        _ = self.parts.requests.unbounded_send(HoldRequest::Refuse(reason.into()));
        Ok(())
    }

    /// Returns whether a request of an earlier class waits for this hold, which allows that
    /// ([`Acquire::yielding`](crate::Acquire::yielding)) and is old enough. No round trip.
    ///
    /// Ask between two steps of the work, and then call [`Guard::yield_lock`](crate::Guard::yield_lock). It becomes `false` again if the
    /// request stops waiting. It is always `false` for a hold that does not allow it.
    pub fn should_yield(&self) -> bool {
        self.parts.is_ours() && *self.parts.hold.contended.borrow() && self.is_held()
    }

    /// Waits until [`Holding::should_yield`] is true.
    ///
    /// Never resolves if no request of an earlier class comes, nor after the lock is lost: select it together with
    /// [`Holding::lost`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn yield_requested(&self) {
        let mut contended = self.parts.hold.contended.subscribe();
        if !self.parts.is_ours() || contended.wait_for(|contended| *contended).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until [`Holding::should_yield`] is false.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn yield_withdrawn(&self) {
        let mut contended = self.parts.hold.contended.subscribe();
        if self.should_yield() {
            tokio::select! {
                biased;
                _ = self.lost() => {}
                _ = contended.wait_for(|contended| !*contended) => {}
            }
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.parts.hold
    }

    /// Releases the lock and waits until the server confirms it.
    ///
    /// While no server answers, the call waits until the delete is confirmed or the session is over, which frees the lock as well,
    /// but no longer than [`Holding::session_timeout`], counted from the call. After that, the release goes on in the background.
    ///
    /// If the lock was lost because the session ended, the call returns at once. So it does if another client deleted the node, except
    /// for a lock with classes, whose holder marker may still exist. That marker, and the node after another loss, such as
    /// [`Loss::Unreachable`], must be deleted: the call waits for that as for the release of a held lock.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// [`ReleaseError::NotHeld`] if the lock was lost before, or if a server says that the session or the node had ended before the
    /// delete; [`ReleaseError::Timeout`] if the lock was held and no server confirmed the delete within the session timeout;
    /// [`ReleaseError::Failed`] if a server refuses the delete.
    ///
    /// # Examples
    ///
    /// ```
    /// use lockkeeper::error::ReleaseError;
    ///
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
    /// match guard.release().await {
    ///     Ok(()) => println!("released"),
    ///     Err(ReleaseError::NotHeld { loss }) => println!("the work may have overlapped with another holder's: {loss}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(self) -> Result<(), ReleaseError> {
        // The task of a queue lock limits its release. That of a leased lock may be in a read.
        let is_limited = self.parts.is_ours() && self.parts.hold.record().is_some();
        let limit = is_limited.then(|| self.session_timeout());
        self.end(limit).await
    }

    /// Releases the lock, or ends this use of it, and waits for what its task answers.
    async fn end(mut self, limit: Option<Duration>) -> Result<(), ReleaseError> {
        if !self.parts.is_ours() {
            return Err(ReleaseError::NotHeld { loss: Loss::Forked });
        }
        let hold = self.parts.hold.clone();
        // What its clock shows until here is a loss; what it shows later is not, because the work is done.
        hold.judge();
        let before = hold.loss();
        let not_held = |loss| ReleaseError::NotHeld { loss };
        let last_use = self.parts.part.as_mut().map(|part| part.end());
        let whole = last_use.as_ref().map_or(Some(&self), Option::as_ref);
        let released = match whole.map(Holding::ask_for_release) {
            None => before.map_or(Ok(()), |loss| Err(not_held(loss))),
            Some(confirmed) => {
                let passed = or_never(limit.map(|limit| hold.session().after(limit)));
                tokio::select! {
                    biased;
                    answer = confirmed => answer.unwrap_or_else(|_| Err(not_held(hold.loss().unwrap_or(Loss::Closed)))),
                    () = passed => {
                        let (path, waited) = (hold.path.clone(), limit.unwrap_or_default());
                        Err(before.map_or(ReleaseError::Timeout { path, waited }, not_held))
                    }
                }
            }
        };
        self.parts.span.get().into_iter().for_each(|span| span.released(&released));
        released
    }

    /// Asks the task of the hold, which has no other uses, to release it. Returns where the confirmation comes.
    fn ask_for_release(&self) -> oneshot::Receiver<Result<(), ReleaseError>> {
        let (confirm, confirmed) = oneshot::channel();
        self.parts.hold.released.store(true, Ordering::Release);
        // A send fails only if the driver has ended, and then the hold has too.
        _ = self.parts.requests.unbounded_send(HoldRequest::Release(confirm));
        confirmed
    }

    /// Releases the lock as [`Holding::release`] does, but waits for the confirmation for no longer than `timeout`: for a
    /// program that must end by a certain time, also in an outage.
    ///
    /// After the timeout, the release goes on in the background: the delete is sent when the connection is back. If the
    /// process ends before that, the lock becomes free when the session expires, at most [`Holding::session_timeout`]
    /// after the servers last heard of the process. No program holds the lock twice in either case.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// After `timeout`, [`ReleaseError::NotHeld`] if the lock was lost before this call, otherwise [`ReleaseError::Timeout`]; before
    /// that as [`Holding::release`].
    pub async fn release_within(self, timeout: Duration) -> Result<(), ReleaseError> {
        self.end(Some(timeout)).await
    }

    /// Asks the driver for a change.
    pub(crate) fn request(&self, request: HoldRequest) {
        _ = self.parts.requests.unbounded_send(request);
    }

    /// Asks the driver to change the hold, and waits until it has done so or the hold is lost.
    pub(super) async fn change(
        &self,
        request: impl FnOnce(oneshot::Sender<()>) -> HoldRequest,
        timeout: Option<Duration>,
        cancel: Option<&CancellationToken>,
    ) -> Result<(), ChangeError> {
        if !self.parts.is_ours() {
            return Err(ChangeError::Lost(Loss::Forked));
        }
        self.parts.hold.judge();
        if let Some(loss) = self.parts.hold.loss() {
            return Err(ChangeError::Lost(loss));
        }
        self.parts.hold.waits_for_readers.store(false, Ordering::Relaxed);
        let (done, changed) = oneshot::channel();
        _ = self.parts.requests.unbounded_send(request(done));
        let lost = || ChangeError::Lost(self.parts.hold.loss().unwrap_or(Loss::Closed));
        let wait = async { changed.await.map_err(|_| lost()) };
        let waited = timeout.unwrap_or_default();
        let deadline = or_never(timeout.map(|timeout| self.parts.hold.session().after(timeout)));
        let path = || self.parts.hold.path.clone();
        let unchanged = tokio::select! {
            biased;
            // The driver waits for the servers meanwhile: it has the node to delete.
            loss = self.lost() => return Err(ChangeError::Lost(loss)),
            changed = wait => return changed,
            () = cancelled(cancel) => ChangeError::Cancelled { path: path() },
            () = deadline => {
                let is_answered = self.parts.hold.waits_for_readers.load(Ordering::Relaxed);
                match is_answered && self.parts.hold.session().link().borrow().connected {
                    true => ChangeError::Timeout { path: path(), waited },
                    false => ChangeError::NoAnswer { path: path(), waited },
                }
            }
        };
        _ = self.parts.requests.unbounded_send(HoldRequest::StayReader);
        Err(unchanged)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if !self.parts.is_ours() {
            return;
        }
        // One of several uses ends with its value, below.
        if self.parts.part.is_none() {
            self.parts.hold.report_duration();
            // The end of the channel, below, wakes the task.
            self.parts.hold.departure.begin();
        }
        self.parts.span.get().into_iter().for_each(|span| span.guard_ended(self.parts.hold.loss()));
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding").field("node", &self.node()).field("state", &self.state()).finish()
    }
}

/// Runs `work` until it is done, or drops it at its next await when `lost` resolves.
pub async fn run_until<T>(lost: impl Future<Output = Loss>, work: impl Future<Output = T>) -> Result<T, Loss> {
    let (lost, work) = (std::pin::pin!(lost), std::pin::pin!(work));
    // Loss wins: work that became ready at the same moment was not done under the lock.
    match futures_util::future::select(lost, work).await {
        futures_util::future::Either::Left((loss, _)) => Err(loss),
        // The lock may have been lost during the last part of the work, which did not await.
        futures_util::future::Either::Right((done, lost)) => lost.now_or_never().map_or(Ok(done), Err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_ends_without_an_await_after_the_loss_was_not_done_under_the_lock() {
        let token = CancellationToken::new();
        let lost = token.cancelled().map(|()| Loss::Removed);
        let work = async { token.cancel() };
        assert_eq!(run_until(lost, work).now_or_never(), Some(Err(Loss::Removed)));
    }
}
