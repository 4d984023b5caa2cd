//! Errors by call, and what a caller does about them.
//!
//! Each call returns the error of its group. Two types are shared, because every call can meet them: [`Misuse`] for
//! calls that are wrong, and [`SessionError`] for servers that do not answer or refuse. [`Error`] is any of them, for
//! `?`. [`ErrorKind`] says what to do about an error without looking at its variants.
//!
//! | call | error | its variants, besides `Misuse` and `Session` |
//! |---|---|---|
//! | `connect`, `embedded`, `Realms` | [`ConnectError`] | none |
//! | `acquire`, `try_acquire`, `multi_lock`, `lock` | [`AcquireError`] | `Held`, `Timeout`, `TooManyWaiters`; `Cancelled`; `Revoked`, `Evicted`, `ParentVanishes`; `SessionLost`; `Mismatch`; `NoSuchLock`; `AlreadyHeld` |
//! | `release`, `unlock` | [`ReleaseError`] | `NotHeld`, `NotLocked`, `Failed`, `Timeout` (not `Misuse`, not `Session`) |
//! | `upgrade`, `downgrade` | [`ChangeError`] | `Timeout`, `NoAnswer`, `Cancelled`, `Lost` (not `Misuse`, not `Session`) |
//! | `verify` | [`VerifyError`] | `Lost`, `Refused` (not `Misuse`, not `Session`) |
//! | fenced writes | [`WriteError`] | `Lost`, `Unknown`, `NotSent`, `NoNode`, `NodeExists`, `BadVersion`, `Refused`, `TooLarge` (not `Session`) |
//! | [`Admin`](crate::admin::Admin) | [`AdminError`] | `NoSuchLock`, `NobodyHolds`, `SeveralHold`, `NotContending`; `CannotAsk` |
//!
//! What is special about an error of a crate that builds on this one becomes [`Error::Product`]: of leased locks, of jobs and of
//! `MonitorLock`. The errors of repeated attempts and of dead letters have no conversion. [`AclError`](lockkeeper_session::acl::AclError), of a text that is no access list,
//! has neither a kind nor a conversion to [`Error`].
//!
//! `AcquireError::Timeout` of a call with a timeout below 250 ms does not show that the lock is taken: a deadline that short cannot
//! tell a server that has just fallen silent from a taken lock. From 250 ms on, a call without any answer fails with
//! `SessionError::Unreachable`. With any timeout, so does a call without any answer at whose deadline a request of the session, its own
//! or an earlier one, has had no answer for 250 ms, and a call at whose deadline the connection is known to be lost.
//!
//! ```
//! use lockkeeper::Error;
//! use lockkeeper::error::ErrorKind;
//!
//! fn status(error: &Error) -> u16 {
//!     match error.kind() {
//!         ErrorKind::Taken | ErrorKind::Withdrawn | ErrorKind::Mismatch => 409,
//!         ErrorKind::Unavailable | ErrorKind::Cancelled => 503,
//!         ErrorKind::NotFound => 404,
//!         ErrorKind::Refused => 403,
//!         _ => 500,
//!     }
//! }
//! ```

mod acquire;
mod admin;
mod hold;
mod mismatch;
pub mod misuse;
mod product;
#[cfg(test)]
pub(crate) mod tests;
mod text;

pub use acquire::AcquireError;
pub use admin::AdminError;
pub use hold::{ChangeError, ReleaseError, VerifyError, WriteError};
use lockkeeper_core::Loss;
pub use lockkeeper_core::{ClassError, IncompatibleFormat, PathError};
use lockkeeper_session::ensemble::OpError;
#[cfg(feature = "embedded")]
pub use lockkeeper_session::error::EmbeddedError;
pub use lockkeeper_session::error::{ConnectError, ErrorKind, Misuse, SessionError, TlsProblem};
pub use mismatch::Mismatch;
pub use product::ProductError;

/// Any error of this library.
///
/// What every call can meet is [`Error::Misuse`] and [`Error::Session`], whichever call returned it; the other variants
/// contain the rest of a call's own error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call itself is wrong. Nothing was sent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// No session, no reply, or a refusal.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A lock was not acquired.
    #[error(transparent)]
    Acquire(AcquireError),
    /// A hold ended without a release: what `run` of a guard returns.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// A release could not be confirmed.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// A hold was not upgraded or downgraded.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The servers could not confirm a hold.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A fenced write failed, or its result is unknown.
    #[error(transparent)]
    Write(WriteError),
    /// A call of a product failed that is built on this crate, such as a leased lock.
    #[error(transparent)]
    Product(#[from] ProductError),
    /// An admin call failed.
    #[error(transparent)]
    Admin(AdminError),
}

impl Error {
    /// Returns what a caller does about it, whichever call returned it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Error::Misuse(error) => error.kind(),
            Error::Session(error) => error.kind(),
            Error::Acquire(error) => error.kind(),
            Error::Lost(_) => ErrorKind::Lost,
            Error::Release(error) => error.kind(),
            Error::Change(error) => error.kind(),
            Error::Verify(error) => error.kind(),
            Error::Write(error) => error.kind(),
            Error::Product(error) => error.kind(),
            Error::Admin(error) => error.kind(),
        }
    }

    /// Returns whether the same call may succeed later without a change to its arguments.
    pub const fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// Returns a one-line suggestion of what to do, if there is one. It names calls of this library, not options of the
    /// command.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Misuse(error) => error.hint(),
            Error::Session(error) => error.hint(),
            Error::Acquire(error) => error.hint(),
            Error::Product(error) => error.hint(),
            Error::Admin(error) => error.hint(),
            _ => None,
        }
    }
}

misuse::from_misuse!(Error);

impl From<Loss> for Error {
    fn from(loss: Loss) -> Self {
        Error::Lost(loss)
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Misuse(error) => Error::Misuse(error),
            ConnectError::Session(error) => Error::Session(error),
        }
    }
}

/// Converts a call's own error. What every call can meet becomes the same variant, whichever call returned it.
macro_rules! from_calls {
    ($($error:ident => $variant:ident),+) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                match error {
                    $error::Misuse(error) => Error::Misuse(error),
                    $error::Session(error) => Error::Session(error),
                    error => Error::$variant(error),
                }
            }
        })+
    };
}
from_calls!(AcquireError => Acquire, AdminError => Admin);

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Misuse(error) => Error::Misuse(error),
            error => Error::Write(error),
        }
    }
}

#[cfg(feature = "embedded")]
impl From<EmbeddedError> for Error {
    fn from(error: EmbeddedError) -> Self {
        Error::Session(error.into())
    }
}

/// Returns the error of a call for a failed operation on the node of a lock.
pub fn refused(path: &str, fault: OpError) -> AdminError {
    match fault {
        OpError::NoNode => AdminError::NoSuchLock { path: path.to_owned() },
        fault => fault.on(path).into(),
    }
}
