//! `HelixLock`, the leased lock as programs see it: its options and its operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkeeper::admin::{LEASE, LockAttributes};
use lockkeeper::error::{Misuse, misuse};
#[cfg(feature = "metrics")]
use lockkeeper::hold::Group;
use lockkeeper::hold::{HoldOptions, Meter};
use lockkeeper::{Error, LockPath, Lockkeeper};
use tokio::sync::{Mutex, oneshot, watch};

use crate::acquire::AcquireLease;
use crate::approval::{Approval, CleanupAlert, Decided, Decision, TransferRule};
use crate::error::{AcquireLeaseError, LeaseError};
use crate::guard::{HelixGuard, Preemption};
use crate::hold::Cleanup;
use crate::interface::LockOperations;
use crate::location::{LockLocation, Unlocked};
use crate::node::{LockNode, SessionRef, Stepped};
use crate::protocol::{Answer, Refusal, Rules, ScopeError, Statistics, Terms, Wish};
use crate::recorder::Recorder;
use crate::request::{CallLimits, LeaseAttempt, Progress};
use crate::status::LockStatus;

/// A leased lock with priorities, compatible with Apache Helix. Clones are the same owner.
///
/// The lock belongs to a *user id*, not to a session. Every client with the same id is the same owner, and may renew
/// and release. By default, each lock object has a unique id.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockkeeper_helix::HelixLock;
///
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let lock = HelixLock::new(keeper, "/locks/rebalance", Duration::from_secs(60)).priority(5);
/// let guard = lock.acquire().timeout(Duration::from_secs(10)).await?;
/// guard.run(async { println!("rebalancing") }).await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct HelixLock {
    keeper: Lockkeeper,
    path: Result<LockPath, ScopeError>,
    terms: Terms,
    /// The reason for using the emergency priority, if it is used.
    emergency: Option<String>,
    cleanup: Cleanup,
    approval: Approval,
    rules: Rules,
    keep: bool,
    /// Whether the hold ends with its lease, even if no other client asks.
    strict: bool,
    recorder: Recorder,
    shared: Arc<Shared>,
}

/// The state that the clones of a lock share.
struct Shared {
    status: Arc<watch::Sender<LockStatus>>,
    /// The guard of [`LockOperations::try_lock`].
    guard: Mutex<Option<HelixGuard>>,
    closed: AtomicBool,
}

impl HelixLock {
    /// Creates the leased lock of a Helix scope or at a path. `lease` limits how long a holder may keep it before others
    /// may take it. Sends nothing; the acquire reports an invalid path or lease.
    pub fn new(keeper: &Lockkeeper, location: impl Into<LockLocation>, lease: Duration) -> Self {
        let path = match &location.into() {
            LockLocation::Path(path) => LockPath::parse(path).map_err(ScopeError::Path),
            LockLocation::Scope(scope) => scope.path(),
        };
        let owner = keeper.owner();
        let id = format!("{}-{}-{}", owner.host, owner.pid, uuid::Uuid::new_v4());
        let status = Arc::new(watch::Sender::new(LockStatus::Unlocked));
        let recorder = Recorder::new(keeper.metrics_group().clone());
        HelixLock {
            keeper: keeper.clone(),
            path,
            terms: Terms::new(id, millis(lease)),
            emergency: None,
            cleanup: Cleanup::Nobody,
            approval: Approval::default(),
            rules: Rules::default(),
            keep: false,
            strict: false,
            recorder,
            shared: Arc::new(Shared { status, guard: Mutex::new(None), closed: AtomicBool::new(false) }),
        }
    }

    /// Sets the user id. The default is `host-pid-random`. It must be unique, because the same id means the same owner. The acquire
    /// refuses one of more than 1024 bytes with [`AcquireLeaseError::Misuse`](crate::AcquireLeaseError::Misuse).
    pub fn user_id(mut self, id: impl Into<String>) -> Self {
        self.terms.id = id.into();
        self
    }

    /// Sets a message for clients that find the lock held. The acquire refuses one of more than 4096 bytes with
    /// [`AcquireLeaseError::Misuse`](crate::AcquireLeaseError::Misuse).
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.terms.message = Some(message.into());
        self
    }

    /// Sets the priority. The default is 0, the lowest. A strictly higher priority preempts an owner.
    pub fn priority(mut self, priority: i32) -> Self {
        self.terms.priority = priority;
        self
    }

    /// Uses the highest possible priority, which is reserved for emergencies, for this reason.
    ///
    /// Each request is written to the ensemble's journal before it has an effect
    /// ([`HelixAdmin::emergencies`](crate::HelixAdmin::emergencies)), and logged as a warning with the target
    /// `lockkeeper::audit`. A request that cannot be recorded fails. The reason has at most 1024 bytes; an empty one is
    /// [`AcquireLeaseError::Misuse`].
    ///
    /// # Cost
    ///
    /// Each acquire costs one more write, and a listing of the journal.
    pub fn emergency(mut self, reason: impl Into<String>) -> Self {
        self.terms.priority = crate::protocol::EMERGENCY;
        self.emergency = Some(reason.into());
        self
    }

    /// Sets how long to wait for the cleanup of an owner of lower priority. The default is no limit; zero means not to
    /// wait. It takes precedence over a longer cleanup timeout of the owner.
    pub fn waiting(mut self, timeout: Duration) -> Self {
        self.terms.waiting_ms = Some(millis(timeout));
        self
    }

    /// Sets how long a cleanup takes when this lock is preempted. The default is zero: the lock is given up
    /// immediately. The cleanup is part of the lease, not added to it. [`HelixLock::on_cleanup`] or
    /// [`HelixLock::cleanup_by_guard`] says what does it.
    pub fn cleanup(mut self, timeout: Duration) -> Self {
        self.terms.cleanup_ms = millis(timeout);
        self
    }

    /// Sets whether to take the lock by force when the wait for the owner's cleanup ends, whether the cleanup is finished or
    /// not. The default is `false`.
    pub fn forceful(mut self, forceful: bool) -> Self {
        self.terms.forceful = forceful;
        self
    }

    /// Continues to wait after the owner's cleanup timeout, up to the waiting timeout. Without this, the wait ends at
    /// the earlier of the two.
    pub fn wait_past_cleanup(mut self) -> Self {
        self.terms.wait_past_cleanup = true;
        self
    }

    /// Runs `cleanup` once for each preemption; when it returns, the lock is given up.
    ///
    /// It runs on a separate thread, within the runtime in which this method is called, if there is one. It may block;
    /// no part of the library waits on that thread. A panic counts as done.
    pub fn on_cleanup<F, Fut>(mut self, cleanup: F) -> Self
    where
        F: Fn(Preemption) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = Arc::new(move |preemption| -> BoxFuture<'static, ()> { Box::pin(cleanup(preemption)) });
        self.cleanup = Cleanup::Listener(listener, tokio::runtime::Handle::try_current().ok());
        self
    }

    /// Leaves the cleanup to the code that has the guard: [`HelixGuard::preemption`] announces it, and releasing the
    /// guard ends it. After the loss of the lock, statistics count the cleanup as finished if the guard is released, and
    /// as cut off if it is dropped.
    pub fn cleanup_by_guard(mut self) -> Self {
        self.cleanup = Cleanup::Guard;
        self
    }

    /// Calls `decide` when the wait has ended, the owner has not finished its cleanup, and no rule decides. An approval
    /// takes the lock by force. After a rejection, or without an answer within `timeout`, the owner keeps it, and the
    /// attempt fails with [`AcquireLeaseError::CleanupUnfinished`].
    ///
    /// `decide` runs on a separate thread, as a cleanup does. The request stays in the record meanwhile, so if the
    /// owner finishes, this request is granted the lock. No effect for a forceful request.
    pub fn on_unfinished<F, Fut>(mut self, timeout: Duration, decide: F) -> Self
    where
        F: Fn(CleanupAlert) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Decision> + Send + 'static,
    {
        let hook = Arc::new(move |alert| -> BoxFuture<'static, Decision> { Box::pin(decide(alert)) });
        self.approval.set_hook(hook, timeout);
        self
    }

    /// Asks operators when the wait has ended, the owner has not finished its cleanup, and no rule decides. The request
    /// is a node in the ensemble, which [`HelixAdmin::requests`](crate::HelixAdmin::requests) and `lockkeeper requests` show on
    /// any machine. [`HelixAdmin::decide`](crate::HelixAdmin::decide), `lockkeeper requests approve` or `reject` answers it. No
    /// answer within `timeout` means no. The function of [`HelixLock::on_unfinished`] may answer as well; the first
    /// answer counts.
    ///
    /// The cost is one node of this session, deleted with the answer; no polling.
    pub fn ask_operators(mut self, timeout: Duration) -> Self {
        self.approval.ask_operators(timeout);
        self
    }

    /// Adds a rule that takes the lock by force from an owner that has not finished its cleanup in time.
    pub fn transfer_rule(mut self, rule: TransferRule) -> Self {
        self.approval.add_rule(rule);
        self
    }

    /// Returns the last hundred decisions about this lock object's requests, oldest first. No round trip.
    /// [`HelixAdmin::decisions`](crate::HelixAdmin::decisions) returns those of the whole fleet.
    pub fn decisions(&self) -> Vec<Decided> {
        self.approval.decisions()
    }

    /// Ends the hold when its lease ends, even if no other client asks for the lock.
    ///
    /// By default the lease is lazy, as in Helix: after its end, the hold goes on until another client asks. That client
    /// writes its request, and gets the lock when this owner has released it, at the latest after this session's timeout
    /// and the [`skew`](HelixLock::skew). The hold also ends when the session cannot be trusted any more, because a
    /// request could not be reported then.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Keeps the node of a free lock. Set this on all clients that share the lock with Helix itself: Helix clients do
    /// not expect deleted nodes, and could write to one that was deleted and created again.
    ///
    /// Implies [`HelixLock::strict`], because a Helix client takes a lock whose lease is over without asking the owner.
    pub fn keep_node(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Sets how long after its end an expired lease is taken; the default is 1 s. It covers the differences between the
    /// clocks of the ensemble's servers and those of Helix clients, which use their own clocks.
    pub fn skew(mut self, skew: Duration) -> Self {
        self.rules.skew_ms = millis(skew);
        self
    }

    /// Adds the counters of this object ([`HelixLock::statistics`]) to the fleet's counters of this lock, for
    /// [`HelixAdmin::statistics`](crate::HelixAdmin::statistics) and `lockkeeper show --stats`.
    ///
    /// The counters are in a separate node below `/lockkeeper/stats`, of at most a few kilobytes for each of 16 owners,
    /// until [`HelixAdmin::forget_statistics`](crate::HelixAdmin::forget_statistics). With more than 1024 locks, those that were
    /// not updated for the longest time are deleted. No addition is lost to another process's. Counts that a process
    /// has not written when it ends are lost: see [`HelixLock::flush_statistics`].
    ///
    /// # Cost
    ///
    /// One read and one write after each hold and each preemption, in the background, or fewer if several end while a
    /// write is under way. No acquire and no release waits for them.
    pub fn publish_statistics(mut self) -> Self {
        if let Ok(path) = &self.path {
            self.recorder.publish(self.keeper.clone(), path.to_string());
        }
        self
    }

    /// Labels the metrics of this object with `group="…"`, instead of the setting of
    /// [`Builder::metrics_group`](lockkeeper::Builder::metrics_group), which says what makes a good name.
    #[cfg(feature = "metrics")]
    pub fn metrics_group(mut self, group: impl Into<String>) -> Self {
        self.recorder.group = Group::named(group);
        self
    }

    /// Returns the counters of this object and its clones: hold times against leases, cleanup times against their
    /// timeouts, and the results of preemptions, by owner. No round trip.
    pub fn statistics(&self) -> Statistics {
        self.recorder.seen()
    }

    /// Waits, for at most `timeout`, until all counts are published; `false` if some are not. Returns `true`
    /// immediately without [`HelixLock::publish_statistics`]. Call it before the process ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops waiting.
    pub async fn flush_statistics(&self, timeout: Duration) -> bool {
        self.recorder.flush(&self.keeper, timeout).await
    }

    /// Requests the lock: it is granted immediately or not at all, unless it preempts an owner of lower priority or finds a
    /// lease that is over.
    ///
    /// After the end of another owner's lease, the call waits until the [`skew`](HelixLock::skew) has passed too, whatever the
    /// priorities. It does not wait if another client has requested the lock before.
    ///
    /// A preemption waits as the timeouts say; if the session expires meanwhile, it goes on in a new one. An owner may
    /// keep the lock after its lease until another client asks for it. A request of any priority asks such an owner. Its
    /// notice lasts until it has released the lock, at the latest for its session's timeout and the
    /// [`skew`](HelixLock::skew). No timeout of the lock and no force make it shorter. If the same user id already owns
    /// the lock, its lease begins again, and this guard replaces the previous one. A previous guard of the same handle is
    /// lost, as [`Loss::Superseded`](lockkeeper::Loss), before this returns; one of another process is lost when its watch
    /// fires.
    pub fn acquire(&self) -> AcquireLease {
        self.request(false)
    }

    /// Requests the lock as [`HelixLock::acquire`] does, if it is free now. It asks no owner to make room, whatever its
    /// priority. It also asks no owner that keeps the lock after its lease until another client asks for it. Until the
    /// [`skew`](HelixLock::skew) after the end of a lease has passed, the lock is not free.
    ///
    /// Without a timeout it waits at most 2 s for the servers.
    pub fn try_acquire(&self) -> AcquireLease {
        self.request(true)
    }

    fn request(&self, once: bool) -> AcquireLease {
        let (caller, outcome) = oneshot::channel();
        let request = self.check().map(|(node, emergency)| LeaseAttempt {
            keeper: self.keeper.clone(),
            node,
            terms: self.terms.clone(),
            limits: CallLimits::new(once),
            lazy: !(self.strict || self.keep),
            emergency,
            cleanup: self.cleanup.clone(),
            approval: self.approval.clone(),
            status: self.shared.status.clone(),
            recorder: self.recorder.clone(),
            options: HoldOptions {
                on_lost: self.keeper.on_lost().clone(),
                meter: Meter::new(LEASE, &self.recorder.group),
                ..HoldOptions::default()
            },
            caller,
            progress: Progress::default(),
        });
        AcquireLease::new(self.keeper.clone(), request, outcome)
    }

    /// Checks everything that can be checked before anything is sent. Returns the node and the reason for the emergency.
    fn check(&self) -> Result<(LockNode, Option<String>), AcquireLeaseError> {
        let node = self.node()?;
        self.keeper.check_path(&node.path)?;
        self.terms.check(self.emergency.is_some())?;
        let emergency = self.emergency.as_deref().map(|reason| misuse::check_reason(&node.path, reason)).transpose()?;
        misuse::check_message(&node.path, self.terms.message.as_deref())?;
        Ok((node, emergency))
    }

    /// Releases the lock if this user id owns it, or if its owner's lease has expired and the owner is
    /// [`strict`](HelixLock::strict) or a Helix client. An owner that keeps an expired lease must be asked first, which
    /// [`HelixLock::acquire`] does.
    ///
    /// # Cost
    ///
    /// Two round trips.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the unlock either done or not done.
    ///
    /// # Errors
    ///
    /// As an [`AcquireLease`], if the server cannot be asked.
    pub async fn unlock(&self) -> Result<Unlocked, LeaseError> {
        let node = self.node()?;
        let guard = self.shared.guard.lock().await.take();
        if let Some(guard) = guard
            && guard.release().await.is_ok()
        {
            return Ok(Unlocked::Released);
        }
        let (keeper, terms) = (self.keeper.clone(), self.terms.clone());
        let settled =
            self.keeper.sessions().run_while_answered(async move { node.settle(&keeper, &terms, Wish::Unlock).await });
        Ok(match settled.await? {
            Stepped::Done { answer: Answer::Left { expired: Some(owner) }, .. } => Unlocked::Expired { owner },
            Stepped::Done { look, .. } if look.written => Unlocked::Released,
            Stepped::Refused(Refusal::NotOwner { owner }) => Unlocked::NotOwner { owner },
            Stepped::Done { .. } | Stepped::Refused(_) | Stepped::Again { .. } => Unlocked::WasFree,
        })
    }

    /// Hands the lock to another owner in one step, as [`HelixGuard::transfer`] does, but by this object's user id and
    /// without a guard. Use it for a lock that was acquired elsewhere, for example by a process that has ended. A
    /// guard of this id is lost, in whichever process it is.
    ///
    /// # Cost
    ///
    /// Two round trips.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the transfer either done or not done.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Misuse`] if the id is empty, reserved or this owner's own. [`LeaseError::NotOwner`] if this user
    /// id does not own the lock or its lease has expired.
    pub async fn transfer(&self, to: &str) -> Result<(), LeaseError> {
        let node = self.node()?;
        self.terms.check_transfer(to)?;
        let (path, id) = (node.path.clone(), self.terms.id.clone());
        let (keeper, terms, to) = (self.keeper.clone(), self.terms.clone(), to.to_owned());
        let settled = self
            .keeper
            .sessions()
            .run_while_answered(async move { node.settle(&keeper, &terms, Wish::Transfer { to: &to }).await })
            .await?;
        match settled {
            Stepped::Refused(Refusal::NotOwner { owner }) => Err(LeaseError::NotOwner { path, id, owner }),
            Stepped::Refused(_) => Err(LeaseError::NotOwner { path, id, owner: None }),
            Stepped::Done { .. } | Stepped::Again { .. } => Ok(()),
        }
    }

    /// Returns the record: Helix's ten attributes, or the defaults of a free lock.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`Mismatch::NotARecord`](lockkeeper::error::Mismatch::NotARecord) if the node holds something else.
    pub async fn info(&self) -> Result<LockAttributes, LeaseError> {
        self.look(|record, _| record.info()).await
    }

    /// Returns whether the record names this user id as the owner and the lease has not expired by the server's clock. It
    /// returns `false` for a lock that is kept after the lease's end; ask the guard about that.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As [`HelixLock::info`].
    pub async fn is_owner(&self) -> Result<bool, LeaseError> {
        let id = self.terms.id.clone();
        self.look(move |record, latest_ms| {
            record.owner.as_ref().is_some_and(|owner| owner.id == id && latest_ms < owner.until_ms)
        })
        .await
    }

    /// Ends the use of this object; every later call fails with [`Misuse`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the object open or closed.
    ///
    /// # Errors
    ///
    /// [`LeaseError::StillOwner`] while it owns the lock; the object then stays open.
    pub async fn close(&self) -> Result<(), LeaseError> {
        let path = self.node()?.path;
        if self.is_owner().await? {
            return Err(LeaseError::StillOwner { path });
        }
        self.shared.closed.store(true, Ordering::Release);
        self.shared.guard.lock().await.take();
        Ok(())
    }

    /// Returns the state of this object. No round trip.
    pub fn status(&self) -> LockStatus {
        *self.shared.status.borrow()
    }

    /// Returns a receiver that follows the state of this object. No round trip.
    pub fn follow_status(&self) -> watch::Receiver<LockStatus> {
        self.shared.status.subscribe()
    }

    /// Returns the user id.
    pub fn id(&self) -> &str {
        &self.terms.id
    }

    /// The node, if the path or scope is valid and the object is open.
    fn node(&self) -> Result<LockNode, Misuse> {
        let path = match &self.path {
            Ok(path) => path.to_string(),
            Err(error) => return Err(error.clone().into()),
        };
        match self.shared.closed.load(Ordering::Acquire) {
            true => Err(Misuse::closed(&path)),
            false => Ok(LockNode::new(path, self.rules, self.keep)),
        }
    }

    async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&lockkeeper_core::leased::Record, i64) -> T + Send + 'static,
    ) -> Result<T, LeaseError> {
        let (node, keeper) = (self.node()?, self.keeper.clone());
        let looked = self.keeper.sessions().run_while_answered(async move {
            let mut session_ref = SessionRef::take(&keeper).await?;
            let look = node.look_until_answered(&keeper, &mut session_ref).await?;
            Ok(read(&look.record, look.now.latest_ms))
        });
        looked.await
    }
}

impl std::fmt::Debug for HelixLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HelixLock").field("path", &self.path).field("terms", &self.terms).finish_non_exhaustive()
    }
}

/// Whether an error means only that the lock was not acquired.
fn not_acquired(error: &AcquireLeaseError) -> bool {
    matches!(error, AcquireLeaseError::Outranked { .. } | AcquireLeaseError::Preempted { .. })
}

impl LockOperations for HelixLock {
    fn try_lock(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let mut kept = self.shared.guard.lock().await;
            match self.acquire().await {
                Ok(guard) => {
                    *kept = Some(guard);
                    Ok(true)
                }
                Err(error) if not_acquired(&error) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn unlock(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(self.unlock().await?.is_unlocked()) })
    }

    fn current_lock_info(&self) -> BoxFuture<'_, Result<LockAttributes, Error>> {
        Box::pin(async move { Ok(self.info().await?) })
    }

    fn is_current_owner(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(self.is_owner().await?) })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { Ok(self.close().await?) })
    }
}

/// Milliseconds as records have them: rounded up, and the maximum if the value does not fit.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}
