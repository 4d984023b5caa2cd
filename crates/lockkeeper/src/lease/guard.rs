//! The guard of a leased lock, and the word that somebody of a higher priority wants it.

use std::ops::Deref;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use lockkeeper_core::helix::Terms;

use crate::error::{Error, ReleaseError};
use crate::hold::guard::{FromHolding, Guard, Holding};
use crate::session::process::Owned;

/// Somebody of a higher priority wants the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preemption {
    /// Who.
    pub by: String,
    /// Its priority.
    pub priority: i32,
    /// When the own cleanup timeout ends, counted from the first request.
    pub deadline: Instant,
    /// When the other's wait ends: then, or at the deadline if that is earlier, it takes the lock by force or gives up.
    pub wanted_by: Instant,
}

impl Preemption {
    /// How long is left for a cleanup that the other still waits for.
    pub fn remaining(&self) -> Duration {
        self.deadline.min(self.wanted_by).saturating_duration_since(Instant::now())
    }
}

/// What a guard asks of its driver, and where to say that it is done.
pub(super) enum Order {
    /// A new lease.
    Renew(oneshot::Sender<Result<(), Error>>),
    /// To hand the lock to this owner.
    Transfer(String, oneshot::Sender<Result<(), Error>>),
}

/// A leased lock that is held. Dropping it releases the lock in the background; what else it can do is in
/// [`Holding`](crate::Holding).
///
/// It is held until its lease ends by the *server's* clock, whatever becomes of the session; while there is no connection it is
/// [`Suspected`](crate::HoldState::Suspected), for nobody could tell it of a preemption. A lease that is over is lost for good
/// for this guard, although nobody else may have asked for the lock yet: renew it before, with [`HelixGuard::renew`].
#[derive(Debug)]
#[must_use = "the lock is released at once unless the guard is bound to a name; `let _ = ..` binds nothing"]
pub struct HelixGuard {
    guard: Guard,
    orders: Owned<mpsc::UnboundedSender<Order>>,
    preemption: Owned<watch::Receiver<Option<Preemption>>>,
    /// Whose it is.
    id: String,
}

impl HelixGuard {
    pub(super) fn new(
        guard: Guard,
        orders: mpsc::UnboundedSender<Order>,
        preemption: watch::Receiver<Option<Preemption>>,
        id: String,
    ) -> Self {
        HelixGuard { guard, orders: Owned::new(orders), preemption: Owned::new(preemption), id }
    }

    /// Waits until somebody of a higher priority wants the lock, and says who and by when to be done.
    ///
    /// To clean up on this word, the lock must have been asked for with
    /// [`cleanup_by_guard`](crate::lease::HelixLock::cleanup_by_guard); releasing the guard lets the other in. Without that the
    /// lock is gone when this resolves. Dropping the future leaves nothing behind. Never resolves if nobody comes, so select it
    /// with [`lost`](crate::Holding::lost).
    pub async fn revocation(&self) -> Preemption {
        let mut preemption = watch::Receiver::clone(&self.preemption);
        match preemption.wait_for(Option::is_some).await.ok().and_then(|seen| seen.clone()) {
            Some(preemption) => preemption,
            // The driver has ended without one.
            None => std::future::pending().await,
        }
    }

    /// Who preempted this hold, or is about to. No round trip.
    pub fn preempted_by(&self) -> Option<Preemption> {
        self.preemption.borrow().clone()
    }

    /// Follows who wants the lock, also beyond this guard. No round trip.
    pub fn follow_preemption(&self) -> watch::Receiver<Option<Preemption>> {
        watch::Receiver::clone(&self.preemption)
    }

    pub(crate) fn into_holding(self) -> Holding {
        self.guard.into_holding()
    }

    /// Begins a new lease, as long as the first. Two round trips. A pending preemption is not put off by it.
    ///
    /// Dropping the future does not call the renewal back.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the hold has ended; [`Error::Outranked`] if it ends now and somebody waits for that.
    pub async fn renew(&self) -> Result<(), Error> {
        self.order(Order::Renew).await
    }

    /// Hands the lock to another owner in one step: the same lease, priority and cleanup timeout, and nobody in between. Whoever is
    /// to have it takes it with its own [`HelixLock`](crate::lease::HelixLock) of that user id, on any machine, and begins a lease
    /// of its own by that; until then the lease runs on. Two round trips.
    ///
    /// From the call on this hold is lost, [`Loss::Transferred`](crate::Loss): work under it must have ended. Who waits for the
    /// lock waits on, and for no longer than before.
    ///
    /// Dropping the future does not call it back.
    ///
    /// # Errors
    /// [`Error::InvalidTerms`] for an id that is nobody's or the owner's own: the hold goes on. [`Error::LeaseLost`] if it had ended.
    /// Where a server refuses the write, the lock is given back.
    pub async fn transfer(&self, to: &str) -> Result<(), Error> {
        Terms::new(self.id.as_str(), 1).check_heir(to)?;
        self.order(|done| Order::Transfer(to.to_owned(), done)).await
    }

    async fn order(&self, order: impl FnOnce(oneshot::Sender<Result<(), Error>>) -> Order) -> Result<(), Error> {
        if !self.orders.is_ours() {
            return Err(Error::Forked);
        }
        let (done, outcome) = oneshot::channel();
        _ = self.orders.send(order(done));
        match outcome.await {
            Ok(outcome) => outcome,
            // The driver has ended, because the hold has.
            Err(_) => Err(Error::LeaseLost { path: self.path().to_owned(), loss: self.lost().await }),
        }
    }

    /// [`Holding::release`](crate::Holding::release). One to two round trips; a waiting requestor is let in.
    ///
    /// # Errors
    /// As there.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }

    /// [`Holding::release_blocking`](crate::Holding::release_blocking).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn release_blocking(self) -> Result<(), ReleaseError> {
        self.guard.release_blocking()
    }
}

impl Deref for HelixGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}
