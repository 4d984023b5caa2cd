//! The terms on which one client requests a lock, checked before anything is sent.

use lockkeeper_core::leased::NOBODY;

/// The priority for emergencies: the highest one. An owner with this priority is not preempted by another request with it.
pub const EMERGENCY: i32 = i32::MAX;

/// The value that Helix stores for a wait without a limit.
const FOR_EVER: i64 = i32::MAX as i64;

/// The longest id of a user. Every client that looks at the lock reads it.
const MAX_ID_BYTES: usize = 1024;

/// The terms of a client's request. The times are milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The user's id. It is unique: clients with the same id are the same owner.
    pub id: String,
    /// The reason, for clients that ask who has the lock.
    pub message: Option<String>,
    /// The priority: a larger number is granted first; 0 is the lowest.
    pub priority: i32,
    /// How long the lock is needed, including a normal cleanup; `i64::MAX` is without a limit.
    pub lease_ms: i64,
    /// How long another client's request must be in the record before it takes the lock after the lease's end, in
    /// milliseconds; `None`: not at all. With it the lease is lazy: its end changes nothing until another client asks.
    pub notice_ms: Option<i64>,
    /// How long to wait for the owner to release; `None` is without a limit.
    pub waiting_ms: Option<i64>,
    /// How long this client's cleanup takes when it is preempted.
    pub cleanup_ms: i64,
    /// Whether to take the lock by force if the owner has not released it by the end of the wait.
    pub forceful: bool,
    /// Whether the wait continues after the owner's cleanup timeout. Then only the own waiting timeout ends it.
    pub wait_past_cleanup: bool,
}

/// Why terms are refused. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TermsError {
    /// The id is empty, or the word that Helix stores for no owner.
    #[error("{id:?} is not an owner's id: it must not be empty or {NOBODY:?}")]
    Id {
        /// The value.
        id: String,
    },
    /// The id is too long.
    #[error("an owner's id has {bytes} bytes; the limit is {MAX_ID_BYTES}; shorten it")]
    LongId {
        /// The length of the id.
        bytes: usize,
    },
    /// The lock cannot be transferred to its own owner.
    #[error("{id:?} has the lock already; hand it to another owner")]
    SameOwner {
        /// The value.
        id: String,
    },
    /// The message is the word that Helix stores for no message.
    #[error("the message {NOBODY:?} means no message; choose another")]
    Message,
    /// The lease is not positive.
    #[error("a lease must be longer than zero, not {lease_ms} ms")]
    Lease {
        /// The value.
        lease_ms: i64,
    },
    /// A timeout below zero.
    #[error("the {which} timeout cannot be negative: {ms} ms")]
    NegativeTimeout {
        /// The name of the timeout.
        which: &'static str,
        /// The value.
        ms: i64,
    },
    /// A priority below zero.
    #[error("a priority cannot be negative: {priority}")]
    NegativePriority {
        /// The value.
        priority: i32,
    },
    /// The emergency priority without the flag for emergencies.
    #[error("priority {EMERGENCY} is for emergencies only: request it as an emergency")]
    Reserved,
}

impl Terms {
    /// Returns the default terms: the lowest priority, a wait without a limit, no cleanup, no force.
    pub fn new(id: impl Into<String>, lease_ms: i64) -> Self {
        Terms {
            id: id.into(),
            message: None,
            priority: 0,
            lease_ms,
            notice_ms: None,
            waiting_ms: None,
            cleanup_ms: 0,
            forceful: false,
            wait_past_cleanup: false,
        }
    }

    /// Checks the terms. `emergency` allows the emergency priority.
    ///
    /// # Errors
    /// [`TermsError`] names the value.
    pub fn check(&self, emergency: bool) -> Result<(), TermsError> {
        check_id(&self.id)?;
        if self.message.as_deref() == Some(NOBODY) {
            return Err(TermsError::Message);
        }
        for (which, ms) in [("waiting", self.waiting_ms.unwrap_or(0)), ("cleanup", self.cleanup_ms)] {
            if ms < 0 {
                return Err(TermsError::NegativeTimeout { which, ms });
            }
        }
        if self.lease_ms <= 0 {
            return Err(TermsError::Lease { lease_ms: self.lease_ms });
        }
        if self.priority < 0 {
            return Err(TermsError::NegativePriority { priority: self.priority });
        }
        if self.priority == EMERGENCY && !emergency {
            return Err(TermsError::Reserved);
        }
        Ok(())
    }

    /// Checks the client to which the lock is transferred.
    ///
    /// # Errors
    /// [`TermsError`] names the value.
    pub fn check_transfer(&self, id: &str) -> Result<(), TermsError> {
        check_id(id)?;
        if id == self.id { Err(TermsError::SameOwner { id: id.to_owned() }) } else { Ok(()) }
    }

    /// The waiting timeout as it is stored.
    pub(super) fn stored_waiting_ms(&self) -> i64 {
        self.waiting_ms.unwrap_or(FOR_EVER)
    }
}

fn check_id(id: &str) -> Result<(), TermsError> {
    match id {
        "" | NOBODY => Err(TermsError::Id { id: id.to_owned() }),
        id if id.len() > MAX_ID_BYTES => Err(TermsError::LongId { bytes: id.len() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every client that finds the lock held reads the id.
    #[test]
    fn an_id_has_a_limit_which_the_error_names_without_the_id() {
        let (longest, long) = ("x".repeat(1024), "x".repeat(1025));
        assert_eq!(check(|t| t.id = longest.clone()), Ok(()));
        assert_eq!(check(|t| t.id = long.clone()), Err(TermsError::LongId { bytes: 1025 }));
        assert_eq!(Terms::new("a", 1).check_transfer(&long), Err(TermsError::LongId { bytes: 1025 }));
        assert!(TermsError::LongId { bytes: 1025 }.to_string().contains("limit is 1024"));
    }

    fn check(change: impl FnOnce(&mut Terms)) -> Result<(), TermsError> {
        let mut terms = Terms::new("a", 1);
        change(&mut terms);
        terms.check(false)
    }

    /// H-43, H-44, H-69: the defaults of terms.
    #[test]
    fn the_defaults_are_an_endless_wait_no_cleanup_and_no_force() {
        let terms = Terms::new("a", 1);
        assert_eq!((terms.waiting_ms, terms.cleanup_ms, terms.forceful, terms.priority), (None, 0, false, 0));
        assert_eq!(terms.check(false), Ok(()));
        // Helix stores an endless wait as Java's largest `int`.
        assert_eq!(terms.stored_waiting_ms(), i64::from(i32::MAX));
        assert_eq!(Terms { waiting_ms: Some(7), ..terms }.stored_waiting_ms(), 7);
    }

    /// H-14, H-25, H-26, H-45: the error names each value, before anything is sent.
    #[test]
    fn leases_are_positive_and_nothing_is_negative() {
        assert_eq!(check(|t| t.lease_ms = 0), Err(TermsError::Lease { lease_ms: 0 }));
        assert_eq!(check(|t| t.lease_ms = -1), Err(TermsError::Lease { lease_ms: -1 }));
        assert_eq!(check(|t| t.priority = -1), Err(TermsError::NegativePriority { priority: -1 }));
        assert_eq!(check(|t| t.cleanup_ms = -1), Err(TermsError::NegativeTimeout { which: "cleanup", ms: -1 }));
        assert_eq!(check(|t| t.waiting_ms = Some(-5)), Err(TermsError::NegativeTimeout { which: "waiting", ms: -5 }));
        assert_eq!(check(|t| t.priority = EMERGENCY - 1), Ok(()));
    }

    /// H-25, H-45: the texts that Helix has, and the value.
    #[test]
    fn the_error_of_a_negative_value_says_which() {
        let text = |error: Result<(), TermsError>| error.unwrap_err().to_string();
        assert_eq!(text(check(|t| t.priority = -1)), "a priority cannot be negative: -1");
        assert_eq!(text(check(|t| t.cleanup_ms = -1)), "the cleanup timeout cannot be negative: -1 ms");
        assert_eq!(text(check(|t| t.waiting_ms = Some(-5))), "the waiting timeout cannot be negative: -5 ms");
    }

    /// H-28: the emergency priority needs the flag for emergencies.
    #[test]
    fn the_emergency_priority_needs_the_flag() {
        assert_eq!(check(|t| t.priority = EMERGENCY), Err(TermsError::Reserved));
        assert_eq!(Terms { priority: EMERGENCY, ..Terms::new("a", 1) }.check(true), Ok(()));
    }

    /// H-68, H-71: an id is not empty, and not the word for no owner.
    #[test]
    fn an_id_names_an_owner() {
        assert!(matches!(check(|t| t.id = String::new()), Err(TermsError::Id { .. })));
        assert!(matches!(check(|t| t.id = NOBODY.into()), Err(TermsError::Id { .. })));
        assert_eq!(check(|t| t.message = Some(NOBODY.into())), Err(TermsError::Message));
        let me = Terms::new("a", 1);
        assert_eq!(me.check_transfer("b"), Ok(()));
        assert_eq!(me.check_transfer("a"), Err(TermsError::SameOwner { id: "a".into() }));
        assert!(matches!(me.check_transfer(""), Err(TermsError::Id { .. })));
        assert!(matches!(me.check_transfer(NOBODY), Err(TermsError::Id { .. })));
    }
}
