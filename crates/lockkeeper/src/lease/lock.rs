//! The leased lock as programs see it: what it is asked for with, and what can be asked of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkeeper_core::helix::{Answer, LockInfo, Refusal, Rules, Scope, ScopeError, Statistics, Terms, Wish};
use lockkeeper_core::{LockPath, MAX_MESSAGE_BYTES};
use tokio::sync::{Mutex, oneshot, watch};

use crate::Error;
use crate::error::check_length;
use crate::lease::approval::{Approval, CleanupAlert, Decided, Decision, TransferRule};
use crate::lease::guard::{HelixGuard, Preemption};
use crate::lease::hold::Cleanup;
use crate::lease::interface::DistributedLock;
use crate::lease::leases::Leases;
use crate::lease::node::{LockNode, SessionRef, Stepped};
use crate::lease::recorder::Recorder;
use crate::lease::request::Request;
use crate::session::context::Context;

/// Where a leased lock is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a path.
    Path(String),
    /// Where Helix has it.
    Scope(Scope),
}

impl From<&str> for Place {
    fn from(path: &str) -> Self {
        Place::Path(path.to_owned())
    }
}

impl From<String> for Place {
    fn from(path: String) -> Self {
        Place::Path(path)
    }
}

impl From<Scope> for Place {
    fn from(scope: Scope) -> Self {
        Place::Scope(scope)
    }
}

/// Where a lock object stands with its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockStatus {
    /// It neither holds nor wants it.
    #[default]
    Unlocked,
    /// The owner was asked to make room.
    Pending,
    /// It holds it.
    Locked,
    /// Somebody of a higher priority took its place.
    Preempted,
}

/// What became of an unlock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unlocked {
    /// The lock was ours, and is free.
    Released,
    /// Nobody had it.
    WasFree,
    /// It was somebody else's whose lease was over, and is free.
    Expired {
        /// Whose.
        owner: String,
    },
    /// It is somebody else's.
    NotOwner {
        /// Whose.
        owner: Option<String>,
    },
}

impl Unlocked {
    /// Whether the lock is not held any more.
    pub fn is_unlocked(&self) -> bool {
        !matches!(self, Unlocked::NotOwner { .. })
    }
}

/// A leased lock with priorities, as Apache Helix has it. Made by [`Lockkeeper::helix_lock`](crate::Lockkeeper::helix_lock); clones are the same owner.
///
/// The lock belongs to a *user id*, not to a session: whoever uses the same id is the same owner, and may renew and release.
/// Unless one is given, each lock object has an id of its own.
#[derive(Clone)]
pub struct HelixLock {
    context: Context,
    leases: Leases,
    path: Result<LockPath, ScopeError>,
    terms: Terms,
    emergency: bool,
    cleanup: Cleanup,
    approval: Approval,
    rules: Rules,
    keep: bool,
    recorder: Recorder,
    shared: Arc<Shared>,
}

/// What the clones of a lock share.
struct Shared {
    status: Arc<watch::Sender<LockStatus>>,
    /// The guard of [`DistributedLock::try_lock`].
    guard: Mutex<Option<HelixGuard>>,
    closed: AtomicBool,
}

impl HelixLock {
    pub(crate) fn new(context: Context, leases: Leases, place: Place, lease: Duration) -> Self {
        let path = match &place {
            Place::Path(path) => LockPath::parse(path).map_err(ScopeError::Path),
            Place::Scope(scope) => scope.path(),
        };
        let owner = context.owner();
        let id = format!("{}-{}-{}", owner.host, owner.pid, uuid::Uuid::new_v4());
        let status = Arc::new(watch::Sender::new(LockStatus::Unlocked));
        HelixLock {
            context,
            leases,
            path,
            terms: Terms::new(id, millis(lease)),
            emergency: false,
            cleanup: Cleanup::Nobody,
            approval: Approval::default(),
            rules: Rules::default(),
            keep: false,
            recorder: Recorder::new(),
            shared: Arc::new(Shared { status, guard: Mutex::new(None), closed: AtomicBool::new(false) }),
        }
    }

    /// Who asks; `host-pid-random` unless set. To be unique, for the same id is the same owner.
    #[must_use]
    pub fn user_id(mut self, id: impl Into<String>) -> Self {
        self.terms.id = id.into();
        self
    }

    /// Why, for those who find the lock taken.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.terms.message = Some(message.into());
        self
    }

    /// How important it is: 0, the lowest, unless set. A strictly higher one preempts an owner.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.terms.priority = priority;
        self
    }

    /// Asks with the priority above all others, kept for emergencies. Each use is logged as a warning with the target
    /// `lockkeeper::audit`.
    #[must_use]
    pub fn emergency(mut self) -> Self {
        self.terms.priority = lockkeeper_core::helix::EMERGENCY;
        self.emergency = true;
        self
    }

    /// How long to wait for a lower owner's cleanup; for ever unless set. It wins over a longer cleanup timeout of the owner;
    /// nothing is not to wait at all.
    #[must_use]
    pub fn waiting(mut self, timeout: Duration) -> Self {
        self.terms.waiting_ms = Some(millis(timeout));
        self
    }

    /// How long a cleanup takes when this lock is preempted; nothing unless set, which gives the lock away at once. Part of
    /// the lease, not added to it. Who does it is said by [`HelixLock::on_cleanup`] or [`HelixLock::cleanup_by_guard`].
    #[must_use]
    pub fn cleanup(mut self, timeout: Duration) -> Self {
        self.terms.cleanup_ms = millis(timeout);
        self
    }

    /// Takes the lock when the wait for its owner's cleanup is over, whether it has finished or not.
    #[must_use]
    pub fn forceful(mut self) -> Self {
        self.terms.forceful = true;
        self
    }

    /// Waits on when the owner's cleanup timeout is over, up to the own waiting timeout. Without this the wait ends at the
    /// earlier of the two.
    #[must_use]
    pub fn wait_past_cleanup(mut self) -> Self {
        self.terms.wait_past_cleanup = true;
        self
    }

    /// Runs `cleanup` once for each preemption; when it returns, the lock is given away.
    ///
    /// On a thread of its own, within the runtime that this is called in, if any: it may block, and nothing of the library
    /// waits for it. A panic in it counts as done.
    #[must_use]
    pub fn on_cleanup<F, Fut>(mut self, cleanup: F) -> Self
    where
        F: Fn(Preemption) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = Arc::new(move |preemption| -> BoxFuture<'static, ()> { Box::pin(cleanup(preemption)) });
        self.cleanup = Cleanup::Listener(listener, tokio::runtime::Handle::try_current().ok());
        self
    }

    /// Leaves the cleanup to whoever has the guard: [`HelixGuard::revocation`] tells, releasing the guard ends it.
    #[must_use]
    pub fn cleanup_by_guard(mut self) -> Self {
        self.cleanup = Cleanup::Guard;
        self
    }

    /// Asks `decide` when the wait is over, the owner has not cleaned up, and no rule decides: approve takes the lock by force,
    /// reject, or no answer within `timeout`, leaves it to the owner, and the attempt fails with [`Error::CleanupUnfinished`].
    ///
    /// On a thread of its own, as a cleanup. The request stays in the record meanwhile, so an owner that finishes lets it in.
    /// Without effect for a forceful request.
    #[must_use]
    pub fn on_unfinished<F, Fut>(mut self, timeout: Duration, decide: F) -> Self
    where
        F: Fn(CleanupAlert) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Decision> + Send + 'static,
    {
        let hook = Arc::new(move |alert| -> BoxFuture<'static, Decision> { Box::pin(decide(alert)) });
        self.approval.set_hook(hook, timeout);
        self
    }

    /// Asks operators when the wait is over, the owner has not cleaned up, and no rule decides: the question stands in the ensemble, where
    /// [`Admin::requests`](crate::Admin::requests) and `lockkeeper requests` find it from any machine, until
    /// [`Admin::decide`](crate::Admin::decide), `lockkeeper approve` or `lockkeeper reject` answers it. No answer within `timeout` is a
    /// no. Who else is asked by [`HelixLock::on_unfinished`] may answer as well; the first answer counts.
    ///
    /// One node of this session, gone with the answer; no polling.
    #[must_use]
    pub fn ask_operators(mut self, timeout: Duration) -> Self {
        self.approval.ask_operators(timeout);
        self
    }

    /// Adds a rule by which the lock is taken by force where its owner has not cleaned up in time.
    #[must_use]
    pub fn transfer_rule(mut self, rule: TransferRule) -> Self {
        self.approval.add_rule(rule);
        self
    }

    /// What was decided about this lock object's requests, the last hundred, oldest first. No round trip. Of the whole fleet:
    /// [`Admin::decisions`](crate::Admin::decisions).
    pub fn decisions(&self) -> Vec<Decided> {
        self.approval.decisions()
    }

    /// Leaves the node of a free lock where it is. To be set by all who share the lock with Helix itself: its clients know
    /// nothing of deleted nodes and could write to one that was deleted and made again.
    #[must_use]
    pub fn keep_node(mut self) -> Self {
        self.keep = true;
        self
    }

    /// How much later than its end a lease is taken; 1 s unless set. What the clocks of the ensemble's servers differ by, and
    /// those of Helix clients, which judge by their own.
    #[must_use]
    pub fn skew(mut self, skew: Duration) -> Self {
        self.rules.skew_ms = millis(skew);
        self
    }

    /// Adds what this object counts ([`HelixLock::statistics`]) to what the fleet has counted of this lock, for
    /// [`Admin::statistics`](crate::Admin::statistics) and `lockkeeper stats`.
    ///
    /// Costs a read and a write for each hold and each preemption, after it and in the background, or fewer where several end while a
    /// write is under way: no acquire and no release waits for them. They stand in a node of their own, below `/lockkeeper/stats`, of
    /// at most a few kilobytes for each of 16 owners, until [`Admin::forget_statistics`](crate::Admin::forget_statistics); of more
    /// than 1024 locks those go that nobody counted for the longest time. No addition is lost to another process's; what a process
    /// has not written when it ends is: see [`HelixLock::flush_statistics`].
    #[must_use]
    pub fn publish_statistics(mut self) -> Self {
        if let Ok(path) = &self.path {
            self.recorder.publish(self.context.clone(), path.to_string());
        }
        self
    }

    /// What this object and its clones have counted: holds against leases, cleanups against their timeouts, and what came of
    /// preemptions, by owner. No round trip.
    pub fn statistics(&self) -> Statistics {
        self.recorder.seen()
    }

    /// Waits, at most `timeout`, until what was counted is published; `false` if some of it is not. Nothing to do, and `true`, without
    /// [`HelixLock::publish_statistics`]. To be called by a process that is about to end.
    ///
    /// Dropping the future only stops waiting.
    pub async fn flush_statistics(&self, timeout: Duration) -> bool {
        self.recorder.flush(&self.context, timeout).await
    }

    /// Asks for the lock: at once or not at all, unless a lower owner is to be preempted.
    ///
    /// Uncontended: a read and a write, two round trips, three the first time in a session. A preemption waits as the timeouts
    /// say. If the same user id owns the lock already, its lease begins anew, and this guard takes the place of the one before. A guard
    /// of the same handle is lost, [`Loss::Superseded`](crate::Loss), before this returns; one of another process when its watch tells it.
    ///
    /// Dropping the future withdraws the request, or gives the lock back if it had just been granted.
    ///
    /// # Errors
    /// [`Error::Outranked`], [`Error::Preempted`] and [`Error::CleanupUnfinished`] where somebody else has it;
    /// [`Error::Unreachable`] if no server answers for the session timeout and the connect timeout together;
    /// [`Error::InvalidTerms`], [`Error::InvalidPath`] and [`Error::InvalidScope`] before anything is sent.
    pub async fn acquire(&self) -> Result<HelixGuard, Error> {
        let node = self.node()?;
        self.terms.check(self.emergency)?;
        check_length("message", &node.path, self.terms.message.as_deref(), MAX_MESSAGE_BYTES)?;
        let (caller, outcome) = oneshot::channel();
        let (context, leases) = (self.context.clone(), self.leases.clone());
        let (terms, cleanup) = (self.terms.clone(), self.cleanup.clone());
        let (status, approval, recorder) = (self.shared.status.clone(), self.approval.clone(), self.recorder.clone());
        self.context.spawn(Request { context, leases, node, terms, cleanup, approval, status, recorder, caller }.run());
        outcome.await.unwrap_or(Err(Error::Closed))
    }

    /// Frees the lock if it is ours, or if its owner's lease is over. Two round trips.
    ///
    /// Dropping the future may leave it undone, or done.
    ///
    /// # Errors
    /// As [`HelixLock::acquire`], where the server cannot be asked.
    pub async fn unlock(&self) -> Result<Unlocked, Error> {
        let node = self.node()?;
        let guard = self.shared.guard.lock().await.take();
        if let Some(guard) = guard
            && guard.release().await.is_ok()
        {
            return Ok(Unlocked::Released);
        }
        let (context, terms) = (self.context.clone(), self.terms.clone());
        let settled = self.context.run_while_answered(async move { node.settle(&context, &terms, Wish::Unlock).await });
        Ok(match settled.await? {
            Stepped::Done { answer: Answer::Left { expired: Some(owner) }, .. } => Unlocked::Expired { owner },
            Stepped::Done { look, .. } if look.written => Unlocked::Released,
            Stepped::Refused(Refusal::NotOwner { owner }) => Unlocked::NotOwner { owner },
            Stepped::Done { .. } | Stepped::Refused(_) | Stepped::Again { .. } => Unlocked::WasFree,
        })
    }

    /// Hands the lock to another owner in one step, as [`HelixGuard::transfer`], by this object's user id and without a guard: for
    /// a lock that was acquired elsewhere, by a process that has ended maybe. A guard of this id is lost, wherever it is.
    ///
    /// Two round trips. Dropping the future may leave it undone, or done.
    ///
    /// # Errors
    /// [`Error::InvalidTerms`] for an id that is nobody's or the owner's own; [`Error::NotOwner`] if the lock is not this user id's, or
    /// its lease is over.
    pub async fn transfer(&self, to: &str) -> Result<(), Error> {
        let node = self.node()?;
        self.terms.check_heir(to)?;
        let (path, id) = (node.path.clone(), self.terms.id.clone());
        let (context, terms, to) = (self.context.clone(), self.terms.clone(), to.to_owned());
        let settled = self
            .context
            .run_while_answered(async move { node.settle(&context, &terms, Wish::Transfer { to: &to }).await })
            .await?;
        match settled {
            Stepped::Refused(Refusal::NotOwner { owner }) => Err(Error::NotOwner { path, id, owner }),
            Stepped::Refused(_) => Err(Error::NotOwner { path, id, owner: None }),
            Stepped::Done { .. } | Stepped::Again { .. } => Ok(()),
        }
    }

    /// What the record says: Helix's ten attributes, or the defaults of a free lock. One round trip.
    ///
    /// # Errors
    /// [`Error::NotARecord`] if the node holds something else.
    pub async fn info(&self) -> Result<LockInfo, Error> {
        self.look(|record, _| record.info()).await
    }

    /// Whether the record names this user id as the owner and the lease runs by the server's clock. One round trip.
    ///
    /// # Errors
    /// As [`HelixLock::info`].
    pub async fn is_owner(&self) -> Result<bool, Error> {
        let id = self.terms.id.clone();
        self.look(move |record, latest_ms| {
            record.owner.as_ref().is_some_and(|owner| owner.id == id && latest_ms < owner.until_ms)
        })
        .await
    }

    /// Ends the use of this object; every later call fails with [`Error::LockClosed`].
    ///
    /// # Errors
    /// [`Error::StillOwner`] while it owns the lock; nothing is changed then.
    pub async fn close(&self) -> Result<(), Error> {
        let path = self.node()?.path;
        if self.is_owner().await? {
            return Err(Error::StillOwner { path });
        }
        self.shared.closed.store(true, Ordering::Release);
        self.shared.guard.lock().await.take();
        Ok(())
    }

    /// Where this object stands now. No round trip.
    pub fn status(&self) -> LockStatus {
        *self.shared.status.borrow()
    }

    /// Follows where this object stands. No round trip.
    pub fn follow_status(&self) -> watch::Receiver<LockStatus> {
        self.shared.status.subscribe()
    }

    /// The user id that it asks with.
    pub fn id(&self) -> &str {
        &self.terms.id
    }

    /// The node, if the lock can be used at all.
    fn node(&self) -> Result<LockNode, Error> {
        let path = match &self.path {
            Ok(path) => path.to_string(),
            Err(ScopeError::Path(error)) => return Err(error.clone().into()),
            Err(error) => return Err(error.clone().into()),
        };
        match self.shared.closed.load(Ordering::Acquire) {
            true => Err(Error::LockClosed { path }),
            false => Ok(LockNode::new(path, self.rules, self.keep)),
        }
    }

    async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&lockkeeper_core::helix::Record, i64) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (node, context) = (self.node()?, self.context.clone());
        let looked = self.context.run_while_answered(async move {
            let mut seat = SessionRef::take(&context).await?;
            loop {
                match node.look(&mut seat).await? {
                    Ok(look) => return Ok(read(&look.record, look.now.latest_ms)),
                    Err(fault) => seat.recover(&context, &fault).await?,
                }
            }
        });
        looked.await
    }
}

impl std::fmt::Debug for HelixLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HelixLock").field("path", &self.path).field("terms", &self.terms).finish_non_exhaustive()
    }
}

/// Whether an attempt that failed so has simply not got the lock.
fn not_acquired(error: &Error) -> bool {
    matches!(error, Error::Outranked { .. } | Error::Preempted { .. })
}

impl DistributedLock for HelixLock {
    fn try_lock(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let mut kept = self.shared.guard.lock().await;
            match self.acquire().await {
                Ok(guard) => {
                    *kept = Some(guard);
                    Ok(true)
                }
                Err(error) if not_acquired(&error) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn unlock(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(self.unlock().await?.is_unlocked()) })
    }

    fn current_lock_info(&self) -> BoxFuture<'_, Result<LockInfo, Error>> {
        Box::pin(self.info())
    }

    fn is_current_owner(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.is_owner())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.close())
    }
}

/// Milliseconds as records have them: any part of one counts, and what does not fit is for ever.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}
