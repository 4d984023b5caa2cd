//! Why an admin call failed.

use lockkeeper_core::plain;

use super::kind::ErrorKind;
use super::mismatch::Mismatch;
use super::misuse::{Misuse, from_misuse};
use super::session::SessionError;
use super::text::named;
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
    /// No request waits for this decision, or not any more. Nothing was changed.
    #[error("no pending request for a decision about {path}{}", named(id.as_deref()))]
    NoSuchRequest {
        /// The lock.
        path: String,
        /// The id, if the call named one.
        id: Option<String>,
    },
    /// The request is already decided. Nothing was changed.
    #[error("{path}: {} already {} the request ({})", plain(by), if *approved { "approved" } else { "rejected" }, plain(why))]
    Decided {
        /// The lock.
        path: String,
        /// The decision.
        approved: bool,
        /// The client that decided.
        by: String,
        /// Its reason.
        why: String,
    },
}

impl AdminError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            AdminError::Misuse(error) => error.kind(),
            AdminError::Session(error) => error.kind(),
            AdminError::Mismatch(error) => error.kind(),
            AdminError::NoSuchLock { .. }
            | AdminError::NobodyHolds { .. }
            | AdminError::NotContending { .. }
            | AdminError::NoSuchRequest { .. } => ErrorKind::NotFound,
            AdminError::SeveralHold { .. } => ErrorKind::Misuse,
            AdminError::CannotAsk { .. } => ErrorKind::Refused,
            AdminError::Decided { .. } => ErrorKind::Mismatch,
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
            AdminError::NoSuchRequest { .. } => "see the pending requests with HelixAdmin::requests",
            AdminError::CannotAsk { .. } => "ask its owner in another way, or break the lock with Admin::evict",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

from_misuse!(AdminError);
