//! Why a slot of a job was not claimed.

use lockkeeper_core::Loss;
use lockkeeper_core::jobs::LogError;

use super::acquire::AcquireError;
use super::kind::ErrorKind;
use super::misuse::{Misuse, from_misuse};
use super::session::SessionError;

/// Why it is not known whether a slot of a job is done, or why it was not claimed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// An argument cannot be used. Nothing was sent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// No session, no reply, or a refusal: what any call can meet.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The lock was not acquired.
    #[error(transparent)]
    Acquire(AcquireError),
    /// The lock was lost before the slot was claimed.
    #[error("the lock of job {path} was lost before the slot was claimed: {loss}")]
    Lost {
        /// The job.
        path: String,
        /// How it was lost.
        loss: Loss,
    },
    /// The connection was lost while the slot was claimed. The claim may have taken effect: the records then show a run
    /// that crashed.
    #[error("it is unknown whether a slot of job {path} was claimed: the connection was lost")]
    Unknown {
        /// The job.
        path: String,
    },
    /// A server refuses to read or write the records.
    #[error("the records of job {path} cannot be written: {reason}")]
    Refused {
        /// The job.
        path: String,
        /// The server's reason.
        reason: String,
    },
    /// The records cannot be read.
    #[error("job {path}: {problem}")]
    Unreadable {
        /// The job.
        path: String,
        /// Why not, and what to do.
        problem: LogError,
    },
}

impl JobError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            JobError::Misuse(error) => error.kind(),
            JobError::Session(error) => error.kind(),
            JobError::Acquire(error) => error.kind(),
            JobError::Lost { .. } => ErrorKind::Lost,
            JobError::Unknown { .. } => ErrorKind::Unconfirmed,
            JobError::Refused { .. } => ErrorKind::Refused,
            JobError::Unreadable { .. } => ErrorKind::Mismatch,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one. It names calls of this library, not options of the
    /// command.
    pub fn hint(&self) -> Option<String> {
        match self {
            JobError::Misuse(error) => error.hint(),
            JobError::Session(error) => error.hint(),
            JobError::Acquire(error) => error.hint(),
            JobError::Unknown { .. } => Some("read the records with Admin::job".to_owned()),
            JobError::Unreadable { problem: LogError::Damaged(_), .. } => {
                Some("delete the records with Admin::forget_job".to_owned())
            }
            _ => None,
        }
    }
}

impl From<AcquireError> for JobError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Misuse(error) => JobError::Misuse(error),
            AcquireError::Session(error) => JobError::Session(error),
            error => JobError::Acquire(error),
        }
    }
}

from_misuse!(JobError);
