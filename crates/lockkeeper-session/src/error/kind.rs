//! What a caller does about an error.

use std::io;

/// What a caller does about an error, whichever call returned it.
///
/// Every error of Lockkeeper's crates has a `kind()`. A service can choose its answer by it:
///
/// | kind | means | HTTP |
/// |---|---|---|
/// | [`Taken`](Self::Taken) | another client has the lock, or is before this one; or the timeout was below 250 ms and the servers have just fallen silent | 409 or 423 |
/// | [`Withdrawn`](Self::Withdrawn) | another client ended the attempt | 409 |
/// | [`Cancelled`](Self::Cancelled) | the caller ended the attempt, or closed the handle | 503 |
/// | [`Unavailable`](Self::Unavailable) | no server answered | 503 |
/// | [`Lost`](Self::Lost) | the hold has ended without a release | 500 |
/// | [`Unconfirmed`](Self::Unconfirmed) | it is unknown whether a write took effect | 500 |
/// | [`NotFound`](Self::NotFound) | the lock, the holder or the node does not exist | 404 |
/// | [`Mismatch`](Self::Mismatch) | the servers hold something else than the call states | 409 |
/// | [`Refused`](Self::Refused) | a server or another client does not allow it | 403 |
/// | [`Misuse`](Self::Misuse) | the call itself is wrong | 400 or 500 |
/// | [`System`](Self::System) | this machine failed: a thread, a file, the embedded server | 500 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another client has the lock or is before this one. The same call may succeed later.
    ///
    /// With a timeout below 250 ms, also `AcquireError::Timeout` of a free lock whose servers have just
    /// fallen silent: a deadline that short cannot tell them from a taken lock. Once a request of the session has had no answer for
    /// 250 ms, the kind is [`Unavailable`](Self::Unavailable) with any timeout.
    Taken,
    /// Another client revoked the attempt or deleted its node. Its user does not want this attempt to continue.
    Withdrawn,
    /// The caller's token was cancelled, or the handle is closed.
    Cancelled,
    /// No server answered, or the session ended first. The same call may succeed later.
    Unavailable,
    /// The hold has ended without a release. Stop the work that it protects.
    Lost,
    /// It is unknown whether a write took effect. Read before it is repeated.
    Unconfirmed,
    /// The lock, its holder, the node or the request does not exist.
    NotFound,
    /// The servers hold something else than the call states: other permits, another node format, another owner, a decision.
    Mismatch,
    /// A server does not allow the operation, or a foreign client does not understand it.
    Refused,
    /// An argument or the moment of the call is wrong. Nothing was sent.
    Misuse,
    /// This machine failed: a thread, a file, or the embedded server.
    System,
}

impl ErrorKind {
    /// Returns whether the same call may succeed later without a change to its arguments. The module `retry` repeats the
    /// same attempts.
    pub const fn is_retryable(self) -> bool {
        matches!(self, ErrorKind::Taken | ErrorKind::Unavailable)
    }
}

/// For code whose other errors are those of files and sockets:
///
/// | kind | of `io::Error` |
/// |---|---|
/// | [`Taken`](ErrorKind::Taken) | [`WouldBlock`](io::ErrorKind::WouldBlock) |
/// | [`Unavailable`](ErrorKind::Unavailable) | [`NotConnected`](io::ErrorKind::NotConnected) |
/// | [`Lost`](ErrorKind::Lost) | [`ConnectionAborted`](io::ErrorKind::ConnectionAborted) |
/// | [`NotFound`](ErrorKind::NotFound) | [`NotFound`](io::ErrorKind::NotFound) |
/// | [`Refused`](ErrorKind::Refused) | [`PermissionDenied`](io::ErrorKind::PermissionDenied) |
/// | [`Misuse`](ErrorKind::Misuse) | [`InvalidInput`](io::ErrorKind::InvalidInput) |
/// | others | [`Other`](io::ErrorKind::Other) |
impl From<ErrorKind> for io::ErrorKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Taken => io::ErrorKind::WouldBlock,
            ErrorKind::Unavailable => io::ErrorKind::NotConnected,
            ErrorKind::Lost => io::ErrorKind::ConnectionAborted,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::Refused => io::ErrorKind::PermissionDenied,
            ErrorKind::Misuse => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        }
    }
}
