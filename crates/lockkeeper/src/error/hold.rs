//! Why a release, a change, a check or a fenced write of a held lock failed.

use std::io;
use std::time::Duration;

use lockkeeper_core::{Loss, spell};

use super::ErrorKind;
use super::Misuse;
use super::misuse::from_misuse;

/// Why a release could not be confirmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lock was lost earlier; there was nothing to release.
    #[error("the lock was no longer held: {loss}")]
    NotHeld {
        /// How it was lost.
        loss: Loss,
    },
    /// The object does not hold the lock.
    #[error("this object does not hold {path}")]
    NotLocked {
        /// The lock.
        path: String,
    },
    /// No server confirmed the release before the deadline of the call, or while the connection was lost for the session timeout. The
    /// lock was held until the release, as far as this process knows. The release goes on in the background.
    #[error("no server confirmed the release of {path} within {}; it goes on in the background", spell(*waited))]
    Timeout {
        /// The lock.
        path: String,
        /// The timeout.
        waited: Duration,
    },
    /// A server refused to delete the node. It stays until the session ends.
    #[error("the server refused to delete the lock's node: {reason}")]
    Failed {
        /// The server's reason.
        reason: String,
    },
}

/// For code whose other errors are those of files and sockets. The result keeps this error as its source, and has the kind of
/// [`ReleaseError::kind`].
impl From<ReleaseError> for io::Error {
    fn from(error: ReleaseError) -> Self {
        io::Error::new(error.kind().into(), error)
    }
}

impl ReleaseError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            ReleaseError::NotHeld { .. } => ErrorKind::Lost,
            ReleaseError::NotLocked { .. } => ErrorKind::Misuse,
            ReleaseError::Timeout { .. } => ErrorKind::Unconfirmed,
            ReleaseError::Failed { .. } => ErrorKind::Refused,
        }
    }
}

/// Why an upgrade or a downgrade of a hold failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The deadline passed while readers ahead held the lock. The hold is unchanged.
    #[error("waited {} for the readers of {path} to release", spell(*waited))]
    Timeout {
        /// The lock.
        path: String,
        /// The timeout.
        waited: Duration,
    },
    /// The deadline passed before a server answered, so it is unknown whether readers ahead hold the lock. The hold is unchanged.
    #[error("no server answered the upgrade of {path} within {}", spell(*waited))]
    NoAnswer {
        /// The lock.
        path: String,
        /// The timeout.
        waited: Duration,
    },
    /// The caller's cancellation token was cancelled first. The hold is unchanged.
    #[error("the upgrade of {path} was cancelled")]
    Cancelled {
        /// The lock.
        path: String,
    },
    /// The lock was lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
}

impl ChangeError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            ChangeError::Timeout { .. } => ErrorKind::Taken,
            ChangeError::NoAnswer { .. } => ErrorKind::Unavailable,
            ChangeError::Cancelled { .. } => ErrorKind::Cancelled,
            ChangeError::Lost(_) => ErrorKind::Lost,
        }
    }
}

/// Why the servers could not confirm that the lock is held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The lock is lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// A server refused the request. As far as the clock shows, the lock is still held.
    #[error("the server refused to confirm the hold of {path}: {reason}")]
    Refused {
        /// The lock.
        path: String,
        /// The server's reason.
        reason: String,
    },
}

impl VerifyError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            VerifyError::Lost(_) => ErrorKind::Lost,
            VerifyError::Refused { .. } => ErrorKind::Refused,
        }
    }
}

/// Why a fenced write failed or has an unknown result. Except for [`WriteError::Unknown`], nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The lock is no longer held.
    #[error("nothing was written: {path} is no longer held: {loss}")]
    Lost {
        /// The lock.
        path: String,
        /// How it was lost.
        loss: Loss,
    },
    /// The result is unknown. The connection was lost before the reply and did not come back while the hold was
    /// trusted. Or a server in trouble did not reply. The write took effect once, while this hold held the lock, or not
    /// at all. It is not sent again. Read the nodes to find out.
    #[error("the reply was lost: it is unknown whether the write under {path} took effect; read the nodes to find out")]
    Unknown {
        /// The lock.
        path: String,
    },
    /// The session of a leased lock was lost before the write was sent. The lock may still be held: try again.
    #[error("nothing was written: the session for {path} was lost; try again")]
    NotSent {
        /// The lock.
        path: String,
    },
    /// A node to set or to delete does not exist, or the parent of a node to create does not exist.
    #[error("nothing was written: node {path} does not exist")]
    NoNode {
        /// The node that does not exist: the parent if a node was to be created.
        path: String,
    },
    /// A node to create exists.
    #[error("nothing was written: node {path} exists")]
    NodeExists {
        /// The node.
        path: String,
    },
    /// A node's data has another version than the expected one.
    #[error("nothing was written: the data of {path} does not have version {expected}")]
    BadVersion {
        /// The node.
        path: String,
        /// The expected version.
        expected: i32,
    },
    /// A server refused the write.
    #[error("nothing was written: the server refused the write to {path}: {reason}")]
    Refused {
        /// The node.
        path: String,
        /// The server's reason.
        reason: String,
    },
    /// The path is not a valid node path. Nothing was sent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The write is larger than a server accepts in one request. Nothing was sent.
    #[error("a write of {bytes} bytes exceeds the {max} bytes of a transaction; split it, or store the data elsewhere")]
    TooLarge {
        /// The size of the write.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

impl WriteError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            WriteError::Lost { .. } => ErrorKind::Lost,
            WriteError::Unknown { .. } => ErrorKind::Unconfirmed,
            WriteError::NotSent { .. } => ErrorKind::Unavailable,
            WriteError::NoNode { .. } => ErrorKind::NotFound,
            WriteError::NodeExists { .. } | WriteError::BadVersion { .. } => ErrorKind::Mismatch,
            WriteError::Refused { .. } => ErrorKind::Refused,
            WriteError::Misuse(_) | WriteError::TooLarge { .. } => ErrorKind::Misuse,
        }
    }
}

from_misuse!(WriteError);
