//! Why a lock was not acquired.

use std::io;
use std::time::Duration;

use lockkeeper_core::{Loss, Revocation, spell};
use lockkeeper_session::error::{AUTHENTICATE, SessionError};

use super::mismatch::Mismatch;
use super::misuse::from_misuse;
use super::text::{contenders, evicted, holder_and_ahead};
use super::{ErrorKind, Misuse};
use crate::broken::Broken;
use crate::contender::ContenderInfo;

/// Why a lock was not acquired. Returned by every acquire of every kind of queue lock. [`AcquireError::kind`] groups
/// the variants.
///
/// # Examples
///
/// ```
/// use lockkeeper::error::AcquireError;
///
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// match keeper.mutex("/locks/nightly").try_acquire().await {
///     Ok(guard) => guard.release().await?,
///     Err(AcquireError::Held { .. }) => println!("somebody else runs it"),
///     Err(error) if error.kind().is_retryable() => println!("later: {error}"),
///     Err(error) => println!("{error}; {}", error.hint().unwrap_or_default()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// An argument cannot be used. Nothing was sent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// No session, no reply, or a refusal: what any call can meet.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The path is in use in another way: with other permits, in another node format, or by something that is no lock.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// Another contender holds the lock, and the caller did not want to wait.
    #[error("{path} is taken{}", holder_and_ahead("held by", holder.as_deref(), *ahead))]
    Held {
        /// The lock.
        path: String,
        /// The holder, if it is known.
        holder: Option<Box<ContenderInfo>>,
        /// The number of contenders ahead; it includes the holders.
        ahead: Option<usize>,
    },
    /// The deadline passed before the lock was granted. The attempt's nodes are deleted as soon as the connection
    /// allows it.
    #[error("waited {} for {path}{}", spell(*waited), holder_and_ahead("last seen held by", holder.as_deref(), *ahead))]
    Timeout {
        /// The lock.
        path: String,
        /// The timeout, counted from the start of the call.
        waited: Duration,
        /// The holder, as last seen: 200 ms before the deadline, or, in a wait of less than 0.8 s, when three quarters of it were
        /// over. As seen before that if the servers did not answer in time. `None` if the first of the queue has left since, and
        /// more than 100 contenders are ahead or the name of the next holder came after the deadline. Also `None` if the wait was too short to ask, and if
        /// the call waited for other calls of its process.
        holder: Option<Box<ContenderInfo>>,
        /// The number of contenders ahead, as last seen; it includes the holders.
        ahead: Option<usize>,
    },
    /// The queue is longer than the caller's limit.
    #[error("{} ahead in the queue of {path}; max_waiters allows {most}", contenders(*ahead))]
    TooManyWaiters {
        /// The lock.
        path: String,
        /// The number of contenders ahead; it includes the holders.
        ahead: usize,
        /// The limit.
        most: usize,
    },
    /// The caller's cancellation token was cancelled.
    #[error("the wait for {path} was cancelled")]
    Cancelled {
        /// The lock.
        path: String,
    },
    /// Another client asked this attempt to withdraw before the lock was granted.
    #[error("the wait for {path} was revoked by {by}")]
    Revoked {
        /// The lock.
        path: String,
        /// The requestor and its reason.
        by: Box<Revocation>,
    },
    /// Another client deleted the waiter's node, or that of a lock that a call for several locks held already.
    #[error("{}", evicted(path, node, by.as_deref()))]
    Evicted {
        /// The lock.
        path: String,
        /// The node.
        node: String,
        /// The client that broke the wait or the hold, and its reason, if it gave one.
        by: Option<Box<Broken>>,
    },
    /// The session ended before the lock was granted, and the position in the queue with it. A request reports an expired
    /// session only with [`Acquire::requeue(false)`](crate::Acquire::requeue).
    #[error("the position in the queue of {path} is lost: {loss}")]
    SessionLost {
        /// The lock.
        path: String,
        /// How the session ended.
        loss: Loss,
    },
    /// Another client deletes the lock's parent node each time that this one creates it.
    #[error("another client keeps deleting the node {path}, which this one creates")]
    ParentVanishes {
        /// The lock.
        path: String,
    },
    /// The lock node does not exist.
    #[error("there is no lock at {path}")]
    NoSuchLock {
        /// The lock.
        path: String,
    },
    /// The object already holds the lock, or another call of the same object is acquiring it. The call would wait for
    /// itself.
    #[error("{path} is already held by this object, or another call of it is acquiring the lock")]
    AlreadyHeld {
        /// The lock.
        path: String,
    },
}

/// For code whose other errors are those of files and sockets. The result keeps this error as its source. Its kind is
/// [`TimedOut`](io::ErrorKind::TimedOut) for [`AcquireError::Timeout`], otherwise that of [`AcquireError::kind`].
impl From<AcquireError> for io::Error {
    fn from(error: AcquireError) -> Self {
        let kind = match error {
            AcquireError::Timeout { .. } => io::ErrorKind::TimedOut,
            _ => error.kind().into(),
        };
        io::Error::new(kind, error)
    }
}

impl AcquireError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            AcquireError::Misuse(error) => error.kind(),
            AcquireError::Session(error) => error.kind(),
            AcquireError::Mismatch(error) => error.kind(),
            AcquireError::Held { .. } | AcquireError::Timeout { .. } | AcquireError::TooManyWaiters { .. } => {
                ErrorKind::Taken
            }
            AcquireError::Cancelled { .. } => ErrorKind::Cancelled,
            AcquireError::Revoked { .. } | AcquireError::Evicted { .. } | AcquireError::ParentVanishes { .. } => {
                ErrorKind::Withdrawn
            }
            AcquireError::SessionLost { loss: Loss::AuthFailed | Loss::AuthRequired, .. } => ErrorKind::Refused,
            AcquireError::SessionLost { .. } => ErrorKind::Unavailable,
            AcquireError::NoSuchLock { .. } => ErrorKind::NotFound,
            AcquireError::AlreadyHeld { .. } => ErrorKind::Misuse,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one. It names calls of this library, not options of the
    /// command.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            AcquireError::Misuse(error) => return error.hint(),
            AcquireError::Session(error) => return error.hint(),
            AcquireError::Mismatch(error) => return error.hint(),
            AcquireError::Held { holder: None, .. } => {
                "try again: it may be free by now, or in use by this process; see Admin::show"
            }
            AcquireError::Timeout { holder: None, .. } => {
                "see the holders and the waiters with Admin::show; another call of this process may hold the lock"
            }
            AcquireError::Timeout { .. } | AcquireError::Held { .. } => {
                "see the holders and the waiters with Admin::show"
            }
            AcquireError::TooManyWaiters { .. } => {
                "try again later, spread the work over several locks, or raise max_waiters"
            }
            AcquireError::SessionLost { loss: Loss::AuthRequired, .. } => AUTHENTICATE,
            AcquireError::SessionLost { .. } => "try again to enter the queue again",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

from_misuse!(AcquireError);
