//! The caller's end of the driver: the caller waits for an attempt's outcome, or has it.

use std::sync::Arc;

use futures_channel::mpsc;
use futures_util::StreamExt;
use lockkeeper_core::Loss;
use lockkeeper_session::CancellationToken;
use lockkeeper_session::wait::cancelled;
use tokio::sync::oneshot;

use super::attempt::Wake;
use crate::error::{AcquireError, ReleaseError};
use crate::hold::{AcquireReply, Hold, HoldRequest};

/// The state of the caller.
pub(super) enum Caller {
    /// The caller waits for the lock.
    Waiting(AcquireReply),
    /// The caller has the guard.
    Holding { hold: Arc<Hold>, requests: mpsc::UnboundedReceiver<HoldRequest> },
    /// The caller waits for the confirmation of the release. `before`: how the hold was lost, if it was lost before the release.
    Releasing { hold: Arc<Hold>, before: Option<Loss>, confirm: oneshot::Sender<Result<(), ReleaseError>> },
    /// The caller no longer listens.
    Gone,
}

impl Caller {
    /// Waits for the caller's next action.
    pub(super) async fn state_changed(&mut self, cancel: Option<&CancellationToken>) -> Wake {
        match self {
            Caller::Waiting(outcome) => {
                tokio::select! {
                    biased;
                    () = outcome.closed() => Wake::CallerGone,
                    () = cancelled(cancel) => Wake::Cancelled,
                }
            }
            Caller::Holding { hold, requests } => {
                tokio::select! {
                    biased;
                    request = requests.next() => request.map_or(Wake::CallerGone, Wake::Requested),
                    () = hold.unattended.notified() => Wake::Unattended,
                }
            }
            Caller::Releasing { .. } | Caller::Gone => std::future::pending().await,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self, Caller::Waiting(_))
    }

    /// Returns the hold, if the caller has one.
    pub(super) fn hold(&self) -> Option<&Arc<Hold>> {
        match self {
            Caller::Holding { hold, .. } | Caller::Releasing { hold, .. } => Some(hold),
            Caller::Waiting(_) | Caller::Gone => None,
        }
    }

    /// Fails a waiting caller with this error. A holder keeps its hold.
    pub(super) fn refuse(&mut self, error: AcquireError) {
        match std::mem::replace(self, Caller::Gone) {
            Caller::Waiting(caller) => _ = caller.send(Err(error)),
            other => *self = other,
        }
    }
}
