//! Why a slot of a job was not claimed.

use lockkeeper::error::{AcquireError, ErrorKind, Misuse, PathError, ProductError, SessionError};
use lockkeeper::{Error, Loss};
use lockkeeper_session::ensemble::OpError;

use super::records::{LogError, NoRerun};

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
    /// No failed or crashed run of the job waits for a decision. Nothing was changed.
    #[error("no failed or crashed run of {path} waits for a decision")]
    NothingToDecide {
        /// The job.
        path: String,
    },
    /// The job has no records: no host has claimed a run, and nobody has said that it is to run. Nothing was changed.
    #[error("no run of {path} as a job is recorded")]
    NoRecords {
        /// The job.
        path: String,
    },
    /// The job is not paused. Nothing was changed.
    #[error("{path} is not paused")]
    NotPaused {
        /// The job.
        path: String,
    },
    /// The slot of the job is not marked to run again. Nothing was changed.
    #[error("{path}: {reason}")]
    NoRerun {
        /// The job.
        path: String,
        /// Why not.
        reason: NoRerun,
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
            // The slot may run again later.
            JobError::NoRerun { reason: NoRerun::Running { .. } | NoRerun::Waits { .. }, .. } => ErrorKind::Taken,
            JobError::NothingToDecide { .. }
            | JobError::NoRerun { .. }
            | JobError::NoRecords { .. }
            | JobError::NotPaused { .. } => ErrorKind::NotFound,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one. It names calls of this library, not options of the
    /// command.
    pub fn hint(&self) -> Option<String> {
        match self {
            JobError::Misuse(error) => error.hint(),
            JobError::Session(error) => error.hint(),
            JobError::Acquire(error) => error.hint(),
            JobError::NoRecords { .. } => Some("see which jobs there are with JobsAdmin::jobs".to_owned()),
            JobError::NothingToDecide { .. } | JobError::NoRerun { .. } | JobError::NotPaused { .. } => {
                Some("see the runs with JobsAdmin::job".to_owned())
            }
            JobError::Unknown { .. } => Some("read the records with JobsAdmin::job".to_owned()),
            JobError::Unreadable { problem: LogError::Damaged(_), .. } => {
                Some("delete the records with JobsAdmin::forget".to_owned())
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

impl From<PathError> for JobError {
    fn from(error: PathError) -> Self {
        JobError::Misuse(error.into())
    }
}

/// What every call can meet keeps its variant; the rest becomes [`Error::Product`].
impl From<JobError> for Error {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Misuse(error) => Error::Misuse(error),
            JobError::Session(error) => Error::Session(error),
            JobError::Acquire(error) => error.into(),
            error => Error::Product(ProductError::new(error.kind(), error.hint(), error)),
        }
    }
}

/// The error of a failed operation on the records at this path.
pub(super) fn refused(path: &str, fault: OpError) -> JobError {
    let path = path.to_owned();
    match fault {
        OpError::ConnectionLoss | OpError::SessionOver => SessionError::ConnectionLost { path }.into(),
        fault => SessionError::Refused { path, reason: fault.to_string() }.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_a_job_has_a_kind() {
        let (path, text) = (|| "/jobs/nightly".to_owned(), || "text".to_owned());
        let by = || Box::new(lockkeeper::admin::this_process());
        let unreadable = |problem| JobError::Unreadable { path: path(), problem };
        let all = [
            (JobError::from(Misuse::new("slot", "none")), ErrorKind::Misuse),
            (SessionError::Closed.into(), ErrorKind::Cancelled),
            (AcquireError::Cancelled { path: path() }.into(), ErrorKind::Cancelled),
            (JobError::Lost { path: path(), loss: Loss::Removed }, ErrorKind::Lost),
            (JobError::Unknown { path: path() }, ErrorKind::Unconfirmed),
            (JobError::Refused { path: path(), reason: text() }, ErrorKind::Refused),
            (unreadable(LogError::Newer(2)), ErrorKind::Mismatch),
            (unreadable(LogError::Damaged(text())), ErrorKind::Mismatch),
            (JobError::NothingToDecide { path: path() }, ErrorKind::NotFound),
            (JobError::NoRecords { path: path() }, ErrorKind::NotFound),
            (JobError::NotPaused { path: path() }, ErrorKind::NotFound),
            (JobError::NoRerun { path: path(), reason: NoRerun::NeverRan { slot: None } }, ErrorKind::NotFound),
            (JobError::NoRerun { path: path(), reason: NoRerun::Running { slot: text(), by: by() } }, ErrorKind::Taken),
            (JobError::NoRerun { path: path(), reason: NoRerun::Waits { slot: text(), by: by() } }, ErrorKind::Taken),
        ];
        for (error, kind) in all {
            assert_eq!((error.kind(), Error::from(error.clone()).kind()), (kind, kind), "{error}");
            assert_eq!(Error::from(error.clone()).to_string(), error.to_string());
        }
        assert!(
            unreadable(LogError::Damaged(text())).hint().is_some() && unreadable(LogError::Newer(2)).hint().is_none()
        );
    }
}
