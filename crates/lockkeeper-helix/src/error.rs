//! Why a call of a leased lock failed.

use std::fmt;
use std::time::Duration;

use lockkeeper::error::{AdminError, ErrorKind, Mismatch, Misuse, ProductError, SessionError};
use lockkeeper::journal::ROOT;
use lockkeeper::{Error, Loss};
use lockkeeper_session::text::{excerpt, plain, spell};

use crate::node::NodeError;
use crate::protocol::{ScopeError, TermsError};

/// Why a leased lock was not acquired. An [`Error`] that was converted from it is `Misuse`, `Session` or `Product`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireLeaseError {
    /// An argument cannot be used. Nothing was sent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// No session, no reply, or a refusal: what any call can meet.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The path is in use in another way: by contenders of a queue, or by something that is no lock.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A client of the same or a higher priority owns the lock or will own it next; after a try, a client of any
    /// priority. The owner was not asked.
    #[error(
        "{path} is held or requested by {} with priority {priority}{}{}",
        plain(by),
        because(message.as_deref()),
        lease_over_in(*lease_left)
    )]
    Outranked {
        /// The lock.
        path: String,
        /// The owner or the next owner.
        by: String,
        /// Its priority.
        priority: i32,
        /// Its message.
        message: Option<String>,
        /// After how long every clock shows that the owner's lease is over, counted from when the owner was read: the rest of the lease
        /// and the allowed difference of clocks. The lease itself may have ended before. The owner may renew it, or release before.
        /// Zero if every clock showed that it was over: the owner keeps the lock until it is asked, which a try does not do.
        /// `None` for the next owner.
        lease_left: Option<Duration>,
    },
    /// A request of a higher priority replaced this one.
    #[error("the request for {path} was replaced by {} with priority {priority}", plain(by))]
    Preempted {
        /// The lock.
        path: String,
        /// The owner of the other request.
        by: String,
        /// Its priority.
        priority: i32,
    },
    /// The wait ended before the owner finished its cleanup, and the request did not force it. The owner keeps the
    /// lock.
    #[error(
        "owner {} with priority {priority} has not finished the cleanup of {path} after {} of {}{}",
        plain(owner), spell(*elapsed), spell(*allotted), because(message.as_deref())
    )]
    CleanupUnfinished {
        /// The lock.
        path: String,
        /// The owner.
        owner: String,
        /// Its message.
        message: Option<String>,
        /// Its priority.
        priority: i32,
        /// How long the cleanup has run.
        elapsed: Duration,
        /// How long the cleanup may take.
        allotted: Duration,
    },
    /// The deadline passed before the lock was granted. The request is withdrawn as soon as the connection allows it.
    #[error("waited {} for {path}", spell(*waited))]
    Timeout {
        /// The lock.
        path: String,
        /// The timeout, counted from the start of the call.
        waited: Duration,
    },
    /// The call's token was cancelled. The request is withdrawn as soon as the connection allows it.
    #[error("the wait for {path} was cancelled")]
    Cancelled {
        /// The lock.
        path: String,
    },
}

impl AcquireLeaseError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            AcquireLeaseError::Misuse(error) => error.kind(),
            AcquireLeaseError::Session(error) => error.kind(),
            AcquireLeaseError::Mismatch(error) => error.kind(),
            AcquireLeaseError::Outranked { .. }
            | AcquireLeaseError::Preempted { .. }
            | AcquireLeaseError::CleanupUnfinished { .. }
            | AcquireLeaseError::Timeout { .. } => ErrorKind::Taken,
            AcquireLeaseError::Cancelled { .. } => ErrorKind::Cancelled,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one. It names calls of this library, not options of the
    /// command.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            AcquireLeaseError::Misuse(error) => return error.hint(),
            AcquireLeaseError::Session(error) => return error.hint(),
            AcquireLeaseError::Mismatch(error) => return error.hint(),
            AcquireLeaseError::Timeout { .. } => "see the owner and the requestor with Admin::show",
            AcquireLeaseError::Outranked { lease_left: Some(Duration::ZERO), .. } => {
                "acquire asks the owner, which keeps the lock until then; try_acquire does not ask"
            }
            AcquireLeaseError::CleanupUnfinished { elapsed, allotted, .. } if elapsed >= allotted => {
                "wait for the owner after the cleanup timeout with HelixLock::wait_past_cleanup, or force the acquire"
            }
            AcquireLeaseError::CleanupUnfinished { .. } => {
                "wait longer, longer than the cleanup may take, or force the acquire"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// Who owns the lock, or will own it next.
    fn holder(&self) -> Option<String> {
        match self {
            AcquireLeaseError::Outranked { by: owner, .. }
            | AcquireLeaseError::Preempted { by: owner, .. }
            | AcquireLeaseError::CleanupUnfinished { owner, .. } => Some(owner.clone()),
            _ => None,
        }
    }
}

/// Why a leased lock was not renewed, handed over, unlocked, read or closed, or why a request about it was not decided. An acquire
/// returns [`AcquireLeaseError`].
/// An [`Error`] that was converted from it is `Misuse`, `Session` or `Product`.
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
    /// No request waits for this decision, or not any more. Nothing was changed.
    #[error("no pending request for a decision about {path}{}", named(id.as_deref()))]
    NoSuchRequest {
        /// The lock.
        path: String,
        /// The id, if the call named one.
        id: Option<String>,
    },
    /// The request is already decided. Nothing was changed.
    #[error("{path}: {} already {} the request ({})", plain(by), if *approved { "approved" } else { "rejected" }, plain(reason))]
    Decided {
        /// The lock.
        path: String,
        /// The decision.
        approved: bool,
        /// The client that decided.
        by: String,
        /// Its reason.
        reason: String,
    },
}

impl LeaseError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            LeaseError::Misuse(error) => error.kind(),
            LeaseError::Session(error) => error.kind(),
            LeaseError::Mismatch(error) => error.kind(),
            LeaseError::NotOwner { .. } => ErrorKind::Mismatch,
            LeaseError::Lost { .. } | LeaseError::Preempted { .. } => ErrorKind::Lost,
            LeaseError::StillOwner { .. } => ErrorKind::Misuse,
            LeaseError::NoSuchRequest { .. } => ErrorKind::NotFound,
            LeaseError::Decided { .. } => ErrorKind::Mismatch,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one. It names calls of this library, not options of the
    /// command.
    pub fn hint(&self) -> Option<String> {
        match self {
            LeaseError::Misuse(error) => error.hint(),
            LeaseError::Session(error) => error.hint(),
            LeaseError::Mismatch(error) => error.hint(),
            LeaseError::NoSuchRequest { .. } => Some("see the pending requests with HelixAdmin::requests".to_owned()),
            _ => None,
        }
    }

    /// Who owns the lock.
    fn holder(&self) -> Option<String> {
        match self {
            LeaseError::NotOwner { owner, .. } => owner.clone(),
            _ => None,
        }
    }
}

/// The conversions of both types. What every call can meet becomes the same variant of [`Error`], whichever call returned
/// it.
macro_rules! conversions {
    ($($error:ident),+) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                match error {
                    $error::Misuse(error) => Error::Misuse(error),
                    $error::Session(error) => Error::Session(error),
                    error => {
                        let (kind, hint, holder) = (error.kind(), error.hint(), error.holder());
                        Error::Product(ProductError::new(kind, hint, error).with_holder(holder))
                    }
                }
            }
        }

        impl From<NodeError> for $error {
            fn from(error: NodeError) -> Self {
                match error {
                    NodeError::Session(error) => $error::Session(error),
                    NodeError::Mismatch(error) => $error::Mismatch(error),
                }
            }
        }

        impl From<TermsError> for $error {
            fn from(error: TermsError) -> Self {
                $error::Misuse(error.into())
            }
        }
    )+};
}
conversions!(AcquireLeaseError, LeaseError);

/// The journal and the pending requests are nodes that the calls of `Admin` read too.
impl From<AdminError> for LeaseError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Misuse(error) => LeaseError::Misuse(error),
            AdminError::Session(error) => LeaseError::Session(error),
            AdminError::Mismatch(error) => LeaseError::Mismatch(error),
            other => SessionError::Refused { path: ROOT.to_owned(), reason: other.to_string() }.into(),
        }
    }
}

impl From<TermsError> for Misuse {
    fn from(error: TermsError) -> Self {
        Misuse::new("terms", error.to_string())
    }
}

impl From<ScopeError> for Misuse {
    fn from(error: ScopeError) -> Self {
        match error {
            ScopeError::Path(error) => error.into(),
            error => Misuse::new("scope", error.to_string()),
        }
    }
}

/// For `?` on the path of a scope.
impl From<ScopeError> for Error {
    fn from(error: ScopeError) -> Self {
        Error::Misuse(error.into())
    }
}

/// " as 0aa5…".
fn named(id: Option<&str>) -> impl fmt::Display {
    id.map(|id| format!(" as {id}")).unwrap_or_default()
}

/// ": it is a's".
fn owned_by(owner: Option<&str>) -> impl fmt::Display {
    owner.map(|owner| format!(": it is {}'s", plain(owner))).unwrap_or_default()
}

/// "; its lease is over in 9 s at the latest, unless it is renewed". The time includes the allowed difference of clocks, so the lease
/// may have ended already.
fn lease_over_in(left: Option<Duration>) -> impl fmt::Display {
    match left {
        None => String::new(),
        Some(Duration::ZERO) => "; its lease is over".to_owned(),
        Some(left) => format!("; its lease is over in {} at the latest, unless it is renewed", spell(left)),
    }
}

fn because(message: Option<&str>) -> impl fmt::Display {
    message.map(|message| format!(" ({})", plain(&excerpt(message)))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use lockkeeper::error::misuse;
    use lockkeeper_session::text::is_active;

    use super::*;

    const WAITED: Duration = Duration::from_secs(2);

    /// Text of another client that a terminal would obey.
    const ACTIVE: &str = "a\x1b[2J\u{202e}rtl\nfake: line";
    const SHOWN: &str = "a\\u{1b}[2J\\u{202e}rtl fake: line";

    fn path() -> String {
        "/locks/nightly".to_owned()
    }

    fn text() -> String {
        "because".to_owned()
    }

    fn mismatch() -> Mismatch {
        Mismatch::NotARecord { path: path(), problem: text() }
    }

    /// Checks the kind of each error, as itself and as an [`Error`].
    fn are<E: Clone + fmt::Debug + Into<Error>>(kind: ErrorKind, own: fn(&E) -> ErrorKind, errors: Vec<E>) {
        for error in errors {
            assert_eq!(own(&error), kind, "{error:?}");
            assert_eq!(error.clone().into().kind(), kind, "{error:?}");
        }
    }

    #[test]
    fn every_error_of_a_leased_lock_has_a_kind() {
        let own = |error: &AcquireLeaseError| error.kind();
        let unfinished = AcquireLeaseError::CleanupUnfinished {
            path: path(),
            owner: text(),
            message: None,
            priority: 1,
            elapsed: WAITED,
            allotted: WAITED,
        };
        let taken = vec![
            AcquireLeaseError::Outranked { path: path(), by: text(), priority: 1, message: None, lease_left: None },
            AcquireLeaseError::Preempted { path: path(), by: text(), priority: 1 },
            unfinished,
            AcquireLeaseError::Timeout { path: path(), waited: WAITED },
        ];
        are(ErrorKind::Taken, own, taken);
        are(
            ErrorKind::Cancelled,
            own,
            vec![AcquireLeaseError::Cancelled { path: path() }, SessionError::Closed.into()],
        );
        are(ErrorKind::Misuse, own, vec![misuse::no_reason(&path()).into()]);
        are(ErrorKind::Mismatch, own, vec![mismatch().into()]);
        let own = |error: &LeaseError| error.kind();
        let lost = vec![
            LeaseError::Lost { path: path(), loss: Loss::SessionExpired },
            LeaseError::Preempted { path: path(), by: text(), priority: 1 },
        ];
        are(ErrorKind::Lost, own, lost);
        // It may never have been the owner.
        let decided = LeaseError::Decided { path: path(), approved: true, by: text(), reason: text() };
        are(ErrorKind::Mismatch, own, vec![LeaseError::NotOwner { path: path(), id: text(), owner: None }, decided]);
        are(ErrorKind::NotFound, own, vec![LeaseError::NoSuchRequest { path: path(), id: None }]);
        are(ErrorKind::Misuse, own, vec![LeaseError::StillOwner { path: path() }, misuse::no_reason(&path()).into()]);
        are(ErrorKind::Mismatch, own, vec![mismatch().into()]);
        are(ErrorKind::Cancelled, own, vec![SessionError::Closed.into()]);
    }

    /// A longer wait does not help if it is the cleanup timeout that ended it; nor does another try after the end of a lease.
    #[test]
    fn hints_name_what_helps() {
        let unfinished = |elapsed| AcquireLeaseError::CleanupUnfinished {
            path: path(),
            owner: text(),
            message: None,
            priority: 1,
            elapsed,
            allotted: WAITED,
        };
        assert!(unfinished(WAITED).hint().is_some_and(|hint| hint.contains("wait_past_cleanup")));
        assert!(unfinished(WAITED / 2).hint().is_some_and(|hint| hint.contains("wait longer")));
        let outranked = |lease_left| AcquireLeaseError::Outranked {
            path: path(),
            by: text(),
            priority: 1,
            message: None,
            lease_left,
        };
        let over = outranked(Some(Duration::ZERO));
        assert!(over.to_string().ends_with("; its lease is over"), "{over}");
        assert!(over.hint().is_some_and(|hint| hint.contains("acquire asks the owner")));
        assert!(outranked(Some(WAITED)).hint().is_none() && outranked(None).hint().is_none());
    }

    /// A caller with one error type for all calls gets back what a call of a leased lock returned.
    #[test]
    fn the_error_of_a_leased_lock_is_found_in_an_error_of_the_library() {
        let error: Error = LeaseError::StillOwner { path: path() }.into();
        let Error::Product(error) = error else { panic!("{error:?}") };
        assert!(
            matches!(error.get(), Some(LeaseError::StillOwner { .. })) && error.get::<AcquireLeaseError>().is_none()
        );
        assert_eq!(error.to_string(), LeaseError::StillOwner { path: path() }.to_string());
    }

    #[test]
    fn the_texts_of_other_clients_are_shown_without_control_characters() {
        let (text, priority) = (|| ACTIVE.to_owned(), 1);
        let unfinished = AcquireLeaseError::CleanupUnfinished {
            path: path(),
            owner: text(),
            message: Some(text()),
            priority,
            elapsed: WAITED,
            allotted: WAITED,
        };
        let errors: Vec<Error> = vec![
            AcquireLeaseError::Outranked {
                path: path(),
                by: text(),
                priority,
                message: Some(text()),
                lease_left: None,
            }
            .into(),
            AcquireLeaseError::Preempted { path: path(), by: text(), priority }.into(),
            unfinished.into(),
            LeaseError::Preempted { path: path(), by: text(), priority }.into(),
            LeaseError::NotOwner { path: path(), id: "b".to_owned(), owner: Some(text()) }.into(),
            LeaseError::Decided { path: path(), approved: true, by: text(), reason: text() }.into(),
        ];
        for error in errors {
            let shown = error.to_string();
            assert!(shown.contains(SHOWN) && !shown.contains(is_active), "{shown:?}");
        }
    }
}
