//! The guard of a leased lock, and the notification that a request of a higher priority wants it.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, Instant};

use lockkeeper::error::{ReleaseError, SessionError};
use lockkeeper::{Guard, Holding, Lockkeeper, Loss, MultiGuard};
use lockkeeper_session::process::Owned;
use lockkeeper_session::wait::reply;
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::LeaseError;
use crate::protocol::Terms;

/// A request of another client for the lock: of a higher priority, or after the end of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preemption {
    /// The requestor's user id.
    pub by: String,
    /// The requestor's priority.
    pub priority: i32,
    /// When this owner's cleanup timeout ends, counted from the first request.
    pub deadline: Instant,
    /// When the requestor's wait ends. At this time or at the deadline, whichever is earlier, it takes the lock by
    /// force or gives up.
    pub wanted_by: Instant,
    /// Whether the lease is over, so that the requestor gets the lock whatever its priority. Both times are then those at
    /// which this hold ends.
    pub lease_over: bool,
}

impl Preemption {
    /// Returns how much time is left for a cleanup that the requestor still waits for.
    pub fn remaining(&self) -> Duration {
        self.deadline.min(self.wanted_by).saturating_duration_since(Instant::now())
    }
}

/// A guard's order to its task, with the channel for the result.
pub(super) enum Order {
    /// Begin a new lease.
    Renew(oneshot::Sender<Result<(), LeaseError>>),
    /// Hand the lock to this owner.
    Transfer(String, oneshot::Sender<Result<(), LeaseError>>),
}

/// A held leased lock. Dropping it releases the lock in the background; [`Holding`](lockkeeper::Holding) has its other
/// methods.
///
/// That release begins with a read. An acquire of another user id right after the drop, also in the same program, may therefore find this
/// owner and fail with [`AcquireLeaseError::Outranked`](crate::AcquireLeaseError::Outranked). Await
/// [`HelixGuard::release`] before it.
///
/// It is held until its lease expires by the *server's* clock, whatever happens to the session. While there is no
/// connection it is [`Suspected`](lockkeeper::guard::HoldState::Suspected), because a preemption could not be reported.
///
/// After that it is kept until another client requests the lock, as long as the session lives and its heartbeats are
/// confirmed. Then it is immediately lost as [`Loss::LeaseEnded`](lockkeeper::Loss). With
/// [`cleanup_by_guard`](crate::HelixLock::cleanup_by_guard) or a cleanup of its own, it is lost when that is
/// done, at the latest after the session's timeout. With [`strict`](crate::HelixLock::strict), it is lost at
/// the end of its lease. [`HelixGuard::renew`] begins a new lease, before the end or while it is kept.
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct HelixGuard {
    guard: Guard,
    keeper: Lockkeeper,
    orders: Owned<mpsc::UnboundedSender<Order>>,
    preemption: Owned<watch::Receiver<Option<Preemption>>>,
    /// The owner's user id.
    id: String,
}

impl HelixGuard {
    pub(super) fn new(
        guard: Guard,
        keeper: Lockkeeper,
        orders: mpsc::UnboundedSender<Order>,
        preemption: watch::Receiver<Option<Preemption>>,
        id: String,
    ) -> Self {
        HelixGuard { guard, keeper, orders: Owned::new(orders), preemption: Owned::new(preemption), id }
    }

    /// Waits until a request of a higher priority wants the lock, and returns the requestor and the deadlines.
    ///
    /// To clean up after this, create the lock with [`cleanup_by_guard`](crate::HelixLock::cleanup_by_guard);
    /// releasing the guard then grants the lock to the requestor. Without it, the lock is already lost when this
    /// resolves. Never resolves if no request comes: select it together with [`lost`](lockkeeper::Holding::lost).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn preemption(&self) -> Preemption {
        let mut preemption = watch::Receiver::clone(&self.preemption);
        match preemption.wait_for(Option::is_some).await.ok().and_then(|seen| seen.clone()) {
            Some(preemption) => preemption,
            // The task has ended without a preemption.
            None => std::future::pending().await,
        }
    }

    /// Returns the request that preempted this hold or is about to; `None` once it is withdrawn. No round trip.
    pub fn preempted_by(&self) -> Option<Preemption> {
        self.preemption.borrow().clone()
    }

    /// Returns a receiver that follows the preemption, even after this guard is dropped. No round trip.
    pub fn follow_preemption(&self) -> watch::Receiver<Option<Preemption>> {
        watch::Receiver::clone(&self.preemption)
    }

    /// Begins a new lease as long as the first. It does not delay a pending preemption.
    ///
    /// # Cost
    ///
    /// Two round trips.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the renewal.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Lost`] if the hold has ended, or ends before a server answers; [`LeaseError::Preempted`] if it ends now because
    /// a requestor waits.
    pub async fn renew(&self) -> Result<(), LeaseError> {
        self.order(Order::Renew).await
    }

    /// Hands the lock to another owner in one step: with the same lease, priority and cleanup timeout, and without a
    /// gap. The new owner acquires it with its own [`HelixLock`](crate::HelixLock) of that user id, on any
    /// machine, which begins a new lease. Until then the current lease continues.
    ///
    /// Work under this hold must have ended before the call. The hold is lost, as [`Loss::Transferred`](lockkeeper::Loss), before the transfer
    /// is written.
    /// Requestors continue to wait, for no longer than before.
    ///
    /// # Cost
    ///
    /// Two round trips.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the transfer.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Misuse`] if the id is empty, reserved or this owner's own; the hold continues.
    /// [`LeaseError::Lost`] if the hold had ended. If a server refuses the write, the lock is released.
    /// [`SessionError::Unreachable`] if no server answers for the session timeout and the connect timeout together, or up to half as
    /// long again: the transfer goes on in the background.
    pub async fn transfer(&self, to: &str) -> Result<(), LeaseError> {
        Terms::new(self.id.as_str(), 1).check_transfer(to)?;
        let keeper = self.keeper.clone();
        let silence = self.keeper.sessions().run(async move { Err(keeper.sessions().silence().await.into()) });
        tokio::select! {
            biased;
            handed = self.order(|done| Order::Transfer(to.to_owned(), done)) => handed,
            silent = silence => silent,
        }
    }

    async fn order(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<(), LeaseError>>) -> Order,
    ) -> Result<(), LeaseError> {
        if !self.orders.is_ours() {
            return Err(SessionError::Forked.into());
        }
        let lost = |loss| LeaseError::Lost { path: self.path().to_owned(), loss };
        if let Some(loss) = self.loss() {
            return Err(lost(loss));
        }
        let (done, outcome) = oneshot::channel();
        let order = order(done);
        let transfers = matches!(order, Order::Transfer(..));
        _ = self.orders.send(order);
        // The task may wait for the servers meanwhile. A transfer begins with the loss that it causes.
        let ended = async {
            match self.lost().await {
                Loss::Transferred if transfers => std::future::pending().await,
                loss => loss,
            }
        };
        tokio::select! {
            biased;
            outcome = reply(self.orders.closed(), outcome) => match outcome {
                Some(Ok(())) if !transfers => self.loss().map_or(Ok(()), |loss| Err(lost(loss))),
                Some(outcome) => outcome,
                // The task has ended, because the hold has.
                None => Err(lost(self.lost().await)),
            },
            loss = ended => Err(lost(loss)),
        }
    }

    /// Releases the lock as [`Holding::release`](lockkeeper::Holding::release) does, which grants it to a waiting requestor. If the
    /// process ends before an unconfirmed release is done, the lock becomes free at the end of its lease.
    ///
    /// # Cost
    ///
    /// One or two round trips.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// As [`Holding::release`](lockkeeper::Holding::release).
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }

    /// Releases the lock and waits for the confirmation for no longer than `timeout`, as
    /// [`Holding::release_within`](lockkeeper::Holding::release_within) does. After the timeout, the release goes on in the
    /// background. If the process ends before that, the lock becomes free at the end of its lease.
    ///
    /// # Cost
    ///
    /// One or two round trips.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// As [`Holding::release_within`](lockkeeper::Holding::release_within).
    pub async fn release_within(self, timeout: Duration) -> Result<(), ReleaseError> {
        self.guard.release_within(timeout).await
    }

    /// Calls [`HelixGuard::release`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`Holding::release`](lockkeeper::Holding::release).
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn release_blocking(self) -> Result<(), ReleaseError> {
        self.guard.release_blocking()
    }
}

/// Forgets the lease's own methods. The hold stays as it is; it can no longer be renewed.
impl From<HelixGuard> for Guard {
    fn from(guard: HelixGuard) -> Guard {
        guard.guard
    }
}

/// As the conversion to a [`Guard`].
impl From<HelixGuard> for Holding {
    fn from(guard: HelixGuard) -> Holding {
        guard.guard.into()
    }
}

impl fmt::Debug for HelixGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HelixGuard").field("guard", &self.guard).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Deref for HelixGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

/// Wraps a single leased lock, for code that takes any lock.
impl From<HelixGuard> for MultiGuard {
    fn from(guard: HelixGuard) -> Self {
        Holding::from(guard).into()
    }
}
