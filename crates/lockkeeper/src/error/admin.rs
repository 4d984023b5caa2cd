//! Why an admin call failed.

use lockkeeper_session::error::SessionError;

use super::mismatch::Mismatch;
use super::misuse::from_misuse;
use super::{ErrorKind, Misuse};
use crate::contender::ContenderInfo;

/// Why a call of [`Admin`](crate::admin::Admin) failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// An argument cannot be used: a path, or a missing or too long reason. Nothing was sent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// No session, no reply, or a refusal: what any call can meet.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The path is in use in another way: its node is not a leased lock's.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The lock node does not exist.
    #[error("there is no lock at {path}")]
    NoSuchLock {
        /// The lock.
        path: String,
    },
    /// The lock has no holder.
    #[error("no contender holds {path}")]
    NobodyHolds {
        /// The lock.
        path: String,
    },
    /// The lock has several holders, and the call did not name one. Nothing was changed.
    #[error("{path} has {} holders; name one of them", holders.len())]
    SeveralHold {
        /// The lock.
        path: String,
        /// The holders.
        holders: Vec<ContenderInfo>,
    },
    /// The node is not a contender of the lock, or not any more. Nothing was changed.
    #[error("node {node} is not a contender of {path}")]
    NotContending {
        /// The lock.
        path: String,
        /// The node.
        node: String,
    },
    /// The node has no room for a request to release the lock: its foreign client does not understand them, or the clients of its node
    /// format would not hear of its end afterwards. Nothing was changed.
    #[error("node {node} of {path} cannot take a request to release the lock")]
    CannotAsk {
        /// The lock.
        path: String,
        /// The node.
        node: String,
    },
}

impl AdminError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            AdminError::Misuse(error) => error.kind(),
            AdminError::Session(error) => error.kind(),
            AdminError::Mismatch(error) => error.kind(),
            AdminError::NoSuchLock { .. } | AdminError::NobodyHolds { .. } | AdminError::NotContending { .. } => {
                ErrorKind::NotFound
            }
            AdminError::SeveralHold { .. } => ErrorKind::Misuse,
            AdminError::CannotAsk { .. } => ErrorKind::Refused,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one. It names calls of this library, not options of the
    /// command.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            AdminError::Misuse(error) => return error.hint(),
            AdminError::Session(error) => return error.hint(),
            AdminError::Mismatch(error) => return error.hint(),
            AdminError::SeveralHold { .. } | AdminError::NotContending { .. } => {
                "see the holders and the waiters with Admin::show"
            }
            AdminError::CannotAsk { .. } => "ask its owner in another way, or break the lock with Admin::evict",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

from_misuse!(AdminError);
