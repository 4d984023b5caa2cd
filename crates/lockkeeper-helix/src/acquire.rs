//! A request for a leased lock: its options, and the future that waits for the result.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper::admin::LEASE;
use lockkeeper::error::SessionError;
use lockkeeper::guard::OnLost;
use lockkeeper::hold::{Call, Meter};
use lockkeeper::{CancellationToken, Lockkeeper, Request};
use tokio::sync::oneshot;

use crate::error::AcquireLeaseError;
use crate::guard::HelixGuard;
use crate::request::LeaseAttempt;

/// A request for a leased lock that is not sent yet: await it, or set options first. Created by
/// [`HelixLock::acquire`](crate::HelixLock::acquire) and
/// [`HelixLock::try_acquire`](crate::HelixLock::try_acquire).
///
/// One deadline limits the whole call, including the time to open a session.
///
/// # Cost
///
/// Without contention, two round trips: an ordered write that changes nothing and two reads together, then one write. If the node above
/// the path has other children, up to 1 000, one more lists them, for contenders in the node format
/// [`NodeFormat::Numbered`](lockkeeper::NodeFormat::Numbered). The first use in a session reads the server's clock before that, and the
/// first of a path makes its parents.
///
/// # Cancel safety
///
/// Dropping the future withdraws the request, or releases the lock if it was just granted. A hold that the same user id
/// already had stays, unless the grant has replaced it: then it is lost first.
///
/// # Errors
///
/// [`AcquireLeaseError::Outranked`], [`AcquireLeaseError::Preempted`] and [`AcquireLeaseError::CleanupUnfinished`] if another client has the
/// lock. After a [`try_acquire`](crate::HelixLock::try_acquire), the error is [`AcquireLeaseError::Outranked`] also if that
/// client has a lower priority. [`AcquireLeaseError::Timeout`] and [`AcquireLeaseError::Cancelled`] as the options say.
/// [`SessionError::Unreachable`] if no server answers for the session timeout and the connect timeout together.
/// [`AcquireLeaseError::Misuse`], before anything is sent, if the terms, the path or the scope are not valid.
#[must_use = "a request does nothing until it is awaited"]
pub struct AcquireLease {
    keeper: Lockkeeper,
    /// The attempt, if its arguments are valid.
    request: Result<Box<LeaseAttempt>, AcquireLeaseError>,
    outcome: oneshot::Receiver<Result<HelixGuard, AcquireLeaseError>>,
}

impl AcquireLease {
    pub(super) fn new(
        keeper: Lockkeeper,
        request: Result<LeaseAttempt, AcquireLeaseError>,
        outcome: oneshot::Receiver<Result<HelixGuard, AcquireLeaseError>>,
    ) -> Self {
        AcquireLease { keeper, request: request.map(Box::new), outcome }
    }

    fn with(mut self, set: impl FnOnce(&mut LeaseAttempt)) -> Self {
        if let Ok(request) = &mut self.request {
            set(request);
        }
        self
    }

    /// Fails after `timeout`, counted from when the request is awaited: with [`AcquireLeaseError::Timeout`], or with
    /// [`SessionError::Unreachable`] if no server answers, which may be earlier. A timeout of zero tries once, as
    /// [`try_acquire`](crate::HelixLock::try_acquire) does.
    ///
    /// [`HelixLock::waiting`](crate::HelixLock::waiting) limits something else: how long the requestor waits for the
    /// owner's cleanup. The owner learns of that limit. The call returns at its deadline even if the servers are silent; with a timeout of zero, after at most 2 s. Its
    /// request is then withdrawn in the background, as soon as a server answers.
    ///
    /// The error is `Unreachable` if the connection is lost at the deadline, or if a request has had no answer for 2 s.
    /// It is also `Unreachable` if the call had no answer at all, and it, or another request of its session, has waited for one for
    /// 250 ms.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|request| request.limits.timeout = Some(timeout))
    }

    /// Waits while a client of the same or a higher priority owns the lock or will own it next, instead of failing with
    /// [`AcquireLeaseError::Outranked`] or [`AcquireLeaseError::Preempted`]. The wait ends when that client releases the lock
    /// or the end of its lease is certain, at the deadline of [`AcquireLease::timeout`], or by a cancellation. No effect on
    /// a [`try_acquire`](crate::HelixLock::try_acquire).
    ///
    /// Helix has no queue: the requestors that wait are granted the lock in no order, except that a higher priority is
    /// preferred if it requests the lock while the owner cleans up.
    ///
    /// # Cost
    ///
    /// One watch of the record; after each change of it, one read.
    pub fn wait_for_every_owner(self) -> Self {
        self.with(|request| request.limits.waits_for_every_owner = true)
    }

    /// Fails with [`AcquireLeaseError::Cancelled`] when `token` is cancelled.
    pub fn cancel_on(self, token: CancellationToken) -> Self {
        self.with(|request| request.limits.cancel = Some(token))
    }

    /// Sets what happens when the lock is lost after the grant, instead of the setting of
    /// [`Builder::on_lost`](lockkeeper::Builder::on_lost).
    pub fn on_lost(self, on_lost: OnLost) -> Self {
        self.with(|request| request.options.on_lost = on_lost)
    }

    /// Acquires the lock and blocks this thread until the result is known, for programs without async. Do not call it
    /// from async code.
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn wait(self) -> Result<HelixGuard, AcquireLeaseError> {
        let keeper = self.keeper.clone();
        keeper.block_on(self.into_future())
    }
}

impl std::fmt::Debug for AcquireLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcquireLease").finish_non_exhaustive()
    }
}

impl IntoFuture for AcquireLease {
    type Output = Result<HelixGuard, AcquireLeaseError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        // Start here, not at the first poll, as a request for any other kind does.
        let AcquireLease { keeper, request, outcome } = self;
        let (request, refused) =
            match request.and_then(|request| Ok(keeper.sessions().check_process().map(|()| request)?)) {
                Ok(request) => (Some(request), None),
                Err(error) => (None, Some(error)),
            };
        let started = keeper.sessions().clock().instant();
        let call = match &request {
            Some(request) => Call::begin(request.node.path.clone(), &request.options.meter),
            None => Call::begin(String::new(), &Meter::new(LEASE, keeper.metrics_group())),
        };
        if let Some(mut request) = request {
            request.limits.begin(started);
            keeper.sessions().spawn(request.run());
        }
        let outcome = outcome.map(|reply| reply.unwrap_or(Err(refused.unwrap_or(SessionError::Closed.into()))));
        outcome.map(move |outcome| call.end(outcome, |guard| guard)).boxed()
    }
}

impl Request for AcquireLease {
    type Guard = HelixGuard;
    type Error = AcquireLeaseError;

    fn timeout(self, timeout: Duration) -> Self {
        self.timeout(timeout)
    }

    fn cancel_on(self, token: CancellationToken) -> Self {
        self.cancel_on(token)
    }

    fn on_lost(self, on_lost: OnLost) -> Self {
        self.on_lost(on_lost)
    }

    #[track_caller]
    fn wait(self) -> Result<HelixGuard, AcquireLeaseError> {
        self.wait()
    }
}
