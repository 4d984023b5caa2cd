//! What the command ends with: its exit codes, and a failure as people and scripts get to see it.
//!
//! The codes are those of sysexits.h where that has a word for it, so that they stay clear of what commands under a lock
//! use themselves (small numbers) and of what a shell reports (126 and above).

use std::fmt;

use lockkeeper::retry::{Cause, Refusal};
use lockkeeper::{Error, Loss, PathError};
use lockkeeper_server::ServerError;

/// Why the command itself ended, as an exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// There is no such lock, nobody to take it from, or nobody agreed: nothing was changed.
    NoSuchLock = 1,
    /// Somebody who was asked to let go refused.
    Declined = 2,
    /// The command line or a setting is wrong; nothing was done.
    Usage = 64,
    /// No server could be reached.
    Unreachable = 69,
    /// The operating system or the program itself failed.
    Internal = 70,
    /// The embedded server cannot use its directory, its disk or its address.
    CannotServe = 73,
    /// The lock was not acquired: it is taken, or the wait was over.
    NotAcquired = 75,
    /// The lock was lost while the command ran.
    Lost = 76,
    /// A server refused.
    Refused = 77,
    /// The lock is not what the command line says it is.
    Mismatch = 78,
    /// Somebody of a higher priority took the lock while the command ran.
    Preempted = 79,
    /// The session ended while the command waited, and with it the place in line and the time.
    SessionExpired = 80,
    /// When the lock was to be unlocked, its node was not there any more.
    NoNode = 81,
    /// The command cannot be executed.
    NotExecutable = 126,
    /// The command was not found.
    NotFound = 127,
}

/// The end of a command that did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub code: Code,
    /// What happened, in one line.
    pub message: String,
    /// What to do about it, in one line.
    pub hint: Option<String>,
    /// What follows from it for another attempt at the lock.
    pub cause: Cause,
    /// Who held the lock, as far as that is known.
    pub behind: Option<String>,
}

impl Refusal for Failure {
    fn cause(&self) -> Cause {
        self.cause
    }

    fn behind(&self) -> Option<String> {
        self.behind.clone()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    /// A failure without a hint.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let cause = match code {
            Code::NotAcquired => Cause::InstanceLock,
            Code::Unreachable => Cause::ConnectionLoss,
            Code::Usage => Cause::Mistake,
            _ => Cause::Other,
        };
        Failure { code, message: message.into(), hint: None, cause, behind: None }
    }

    /// Says what to do about it.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The operating system refused something that should always work.
    pub(crate) fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Failure::new(Code::Internal, format!("{what}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidPath(_)
            | Error::InvalidClass(_)
            | Error::InvalidTerms(_)
            | Error::InvalidPermits { .. }
            | Error::InvalidLockDelay { .. }
            | Error::InvalidLiveness { .. }
            | Error::InvalidServers { .. }
            | Error::InvalidTls { .. }
            | Error::Duplicate { .. }
            | Error::NoCredential { .. } => Code::Usage,
            Error::PermitsMismatch { .. } | Error::OtherLine { .. } | Error::TokenEpoch { .. } => Code::Mismatch,
            Error::Unreachable { .. }
            | Error::ConnectionLost { .. }
            | Error::SessionLost { loss: Loss::Unreachable, .. } => Code::Unreachable,
            Error::SessionLost { loss: Loss::AuthFailed, .. } => Code::Refused,
            Error::SessionLost { .. } => Code::SessionExpired,
            Error::AuthFailed { .. } | Error::Refused { .. } => Code::Refused,
            Error::Timeout { .. }
            | Error::Held { .. }
            | Error::TooManyWaiters { .. }
            | Error::Cancelled { .. }
            | Error::Evicted { .. }
            | Error::Revoked { .. }
            | Error::Outranked { .. }
            | Error::Preempted { .. }
            | Error::CleanupUnfinished { .. }
            | Error::ParentVanishes { .. } => Code::NotAcquired,
            Error::NoSuchLock { .. } | Error::NobodyHolds { .. } | Error::NotContending { .. } => Code::NoSuchLock,
            Error::NoReason { .. }
            | Error::SeveralHold { .. }
            | Error::InvalidRealm { .. }
            | Error::Unroutable { .. } => Code::Usage,
            Error::NoSuchRequest { .. } => Code::NoSuchLock,
            Error::Decided { .. } => Code::Declined,
            Error::Server(_) | Error::File { .. } => Code::CannotServe,
            _ => Code::Internal,
        };
        let hint = match &error {
            Error::InvalidServers { .. } => Some("write them as zk1:2181,zk2:2181,zk3:2181/app".to_owned()),
            Error::InvalidTls { .. } if !cfg!(feature = "tls") => {
                Some("install a lockkeeper that has it: cargo install lockkeeper-cli --features tls".to_owned())
            }
            Error::InvalidTls { .. } => Some("see which files are set, and where: lockkeeper config".to_owned()),
            Error::AuthFailed { .. } => Some("this server answers only to the user who started it".to_owned()),
            Error::NoSuchLock { .. } => Some("see which locks there are: lockkeeper list".to_owned()),
            Error::Timeout { path, .. } | Error::Held { path, .. } => {
                Some(format!("see who is in the way: lockkeeper why {path}; ask for it: lockkeeper revoke {path}"))
            }
            Error::SeveralHold { path, .. } => {
                Some(format!("choose one with --node; lockkeeper show {path} tells their nodes"))
            }
            Error::File { .. } => {
                Some("mend that, or choose another directory: --state-dir, LOCKKEEPER_STATE_DIR".to_owned())
            }
            error => error.hint(),
        };
        Failure { code, message: error.to_string(), hint, cause: error.cause(), behind: error.behind() }
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        Failure::new(Code::Usage, error.to_string())
            .hint("a lock's name is like nightly or team/nightly, or an absolute path like /locks/nightly")
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let hint = error.hint();
        Failure::new(Code::CannotServe, error.to_string()).hint(hint)
    }
}
