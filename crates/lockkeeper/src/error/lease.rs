//! Why a call of a leased lock failed.

use lockkeeper_core::{Loss, plain};

use super::kind::ErrorKind;
use super::mismatch::Mismatch;
use super::misuse::{Misuse, from_misuse};
use super::session::SessionError;
use super::text::owned_by;

/// Why a leased lock was not renewed, handed over, unlocked, read or closed. An acquire returns
/// [`AcquireError`](super::AcquireError).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// An argument cannot be used, or the object is closed. Nothing was sent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// No session, no reply, or a refusal: what any call can meet.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The path is in use in another way.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The lock belongs to another owner, or its lease has expired, so it cannot be handed over. Nothing was changed.
    #[error("{id} cannot hand over {path}, which it does not own{}", owned_by(owner.as_deref()))]
    NotOwner {
        /// The lock.
        path: String,
        /// The client that wanted to hand it over.
        id: String,
        /// The owner, if it is another client.
        owner: Option<String>,
    },
    /// The hold is lost and cannot be renewed.
    #[error("{path} is no longer held: {loss}")]
    Lost {
        /// The lock.
        path: String,
        /// How it was lost.
        loss: Loss,
    },
    /// The hold ends: a request of a higher priority waits for the lock.
    #[error("the hold of {path} ends: {} requests it with priority {priority}", plain(by))]
    Preempted {
        /// The lock.
        path: String,
        /// The owner of the request.
        by: String,
        /// Its priority.
        priority: i32,
    },
    /// The owner cannot close the lock while it holds it.
    #[error("{path} is still held; unlock the lock before closing it")]
    StillOwner {
        /// The lock.
        path: String,
    },
}

impl LeaseError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            LeaseError::Misuse(error) => error.kind(),
            LeaseError::Session(error) => error.kind(),
            LeaseError::Mismatch(error) => error.kind(),
            LeaseError::NotOwner { .. } | LeaseError::Lost { .. } | LeaseError::Preempted { .. } => ErrorKind::Lost,
            LeaseError::StillOwner { .. } => ErrorKind::Misuse,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one. It names calls of this library, not options of the
    /// command.
    pub fn hint(&self) -> Option<String> {
        match self {
            LeaseError::Misuse(error) => error.hint(),
            LeaseError::Session(error) => error.hint(),
            LeaseError::Mismatch(error) => error.hint(),
            _ => None,
        }
    }
}

from_misuse!(LeaseError);
