//! Whoever waits for an attempt's outcome, or has it: the other end of the driver.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempt::Wake;
use crate::Error;
use crate::error::ReleaseError;
use crate::hold::guard::Holding;
use crate::hold::{Hold, Request};
use crate::wait::{cancelled, passed};

/// Where the outcome goes.
pub(crate) type Answer = oneshot::Sender<Result<Holding, Error>>;

/// Who is on the other end.
pub(super) enum Caller {
    /// Somebody waits for the lock.
    Waiting(Answer),
    /// Somebody has the guard.
    Holding { hold: Arc<Hold>, requests: mpsc::UnboundedReceiver<Request> },
    /// Somebody waits for the release to be confirmed.
    Releasing { hold: Arc<Hold>, confirm: oneshot::Sender<Result<(), ReleaseError>> },
    /// Nobody.
    Gone,
}

impl Caller {
    /// What the other end does next.
    pub(super) async fn state_changed(
        &mut self,
        deadline: Option<Instant>,
        cancel: Option<&CancellationToken>,
    ) -> Wake {
        match self {
            Caller::Waiting(outcome) => {
                tokio::select! {
                    biased;
                    () = outcome.closed() => Wake::CallerGone,
                    () = passed(deadline) => Wake::Deadline,
                    () = cancelled(cancel) => Wake::Cancelled,
                }
            }
            Caller::Holding { requests, .. } => match requests.recv().await {
                Some(request) => Wake::Requested(request),
                None => Wake::CallerGone,
            },
            Caller::Releasing { .. } | Caller::Gone => std::future::pending().await,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self, Caller::Waiting(_))
    }

    /// The hold that somebody has.
    pub(super) fn hold(&self) -> Option<&Arc<Hold>> {
        match self {
            Caller::Holding { hold, .. } | Caller::Releasing { hold, .. } => Some(hold),
            Caller::Waiting(_) | Caller::Gone => None,
        }
    }

    /// Whoever waits gets this error. Who holds, keeps.
    pub(super) fn refuse(&mut self, error: Error) {
        match std::mem::replace(self, Caller::Gone) {
            Caller::Waiting(caller) => _ = caller.send(Err(error)),
            other => *self = other,
        }
    }
}
