//! The terms on which one client requests a lock, checked before anything is sent.

use crate::helix::NOBODY;

/// The priority kept for emergencies: above every other, below none, not above itself.
pub const EMERGENCY: i32 = i32::MAX;

/// What Helix stores for a wait without end.
const FOR_EVER: i64 = i32::MAX as i64;

/// The terms of a client's request. The times are milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The user's id. It is unique: clients with the same id are the same owner.
    pub id: String,
    /// The reason, for clients that ask who has the lock.
    pub message: Option<String>,
    /// Larger goes first; 0 is the lowest.
    pub priority: i32,
    /// How long the lock is needed, a normal cleanup included; `i64::MAX` is for ever.
    pub lease_ms: i64,
    /// How long to wait for the owner to make room; `None` is for ever.
    pub waiting_ms: Option<i64>,
    /// How long the cleanup takes when this client is itself preempted.
    pub cleanup_ms: i64,
    /// Whether to take the lock when the wait is over and the owner has not made room.
    pub forceful: bool,
    /// Whether the wait outlasts the owner's cleanup timeout: then only the own waiting timeout ends it.
    pub wait_past_cleanup: bool,
}

/// Why terms are refused. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TermsError {
    /// No id, or the one that means none.
    #[error("a lock owner's id must be given and must not be {NOBODY:?}, not {id:?}")]
    Id {
        /// What was given.
        id: String,
    },
    /// The lock cannot be transferred to its own owner.
    #[error("{id:?} has the lock already; hand it to somebody else")]
    SameOwner {
        /// What was given.
        id: String,
    },
    /// The message that means none.
    #[error("the message {NOBODY:?} stands for none; choose another")]
    Message,
    /// The lease is not positive.
    #[error("a lease must be longer than nothing, not {lease_ms} ms")]
    Lease {
        /// What was given.
        lease_ms: i64,
    },
    /// A timeout below zero.
    #[error("the {which} timeout cannot be negative: {ms} ms")]
    NegativeTimeout {
        /// Which one.
        which: &'static str,
        /// What was given.
        ms: i64,
    },
    /// A priority below zero.
    #[error("a priority cannot be negative: {priority}")]
    NegativePriority {
        /// What was given.
        priority: i32,
    },
    /// The emergency priority without the word for it.
    #[error("priority {EMERGENCY} is kept for emergencies and must be asked for as one")]
    Reserved,
}

impl Terms {
    /// The least that can be asked for: the lowest priority, an endless wait, no cleanup, no force.
    pub fn new(id: impl Into<String>, lease_ms: i64) -> Self {
        Terms {
            id: id.into(),
            message: None,
            priority: 0,
            lease_ms,
            waiting_ms: None,
            cleanup_ms: 0,
            forceful: false,
            wait_past_cleanup: false,
        }
    }

    /// Checks the terms; `emergency` is the word that the reserved priority needs.
    ///
    /// # Errors
    /// [`TermsError`] names the value.
    pub fn check(&self, emergency: bool) -> Result<(), TermsError> {
        if self.id.is_empty() || self.id == NOBODY {
            return Err(TermsError::Id { id: self.id.clone() });
        }
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
    pub fn check_heir(&self, id: &str) -> Result<(), TermsError> {
        match id {
            "" | NOBODY => Err(TermsError::Id { id: id.to_owned() }),
            id if id == self.id => Err(TermsError::SameOwner { id: id.to_owned() }),
            _ => Ok(()),
        }
    }

    /// The waiting timeout as it is stored.
    pub(super) fn stored_waiting_ms(&self) -> i64 {
        self.waiting_ms.unwrap_or(FOR_EVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Terms)) -> Result<(), TermsError> {
        let mut terms = Terms::new("a", 1);
        change(&mut terms);
        terms.check(false)
    }

    /// H-43, H-44, H-69: nothing else was asked for.
    #[test]
    fn the_defaults_are_an_endless_wait_no_cleanup_and_no_force() {
        let terms = Terms::new("a", 1);
        assert_eq!((terms.waiting_ms, terms.cleanup_ms, terms.forceful, terms.priority), (None, 0, false, 0));
        assert_eq!(terms.check(false), Ok(()));
    }

    /// H-14, H-25, H-26, H-45: each is refused by name, before anything is sent.
    #[test]
    fn leases_are_positive_and_nothing_is_negative() {
        assert_eq!(check(|t| t.lease_ms = 0), Err(TermsError::Lease { lease_ms: 0 }));
        assert_eq!(check(|t| t.lease_ms = -1), Err(TermsError::Lease { lease_ms: -1 }));
        assert_eq!(check(|t| t.priority = -1), Err(TermsError::NegativePriority { priority: -1 }));
        assert_eq!(check(|t| t.cleanup_ms = -1), Err(TermsError::NegativeTimeout { which: "cleanup", ms: -1 }));
        assert_eq!(check(|t| t.waiting_ms = Some(-5)), Err(TermsError::NegativeTimeout { which: "waiting", ms: -5 }));
        assert_eq!(check(|t| t.priority = EMERGENCY - 1), Ok(()));
    }

    /// H-28: one number, one word.
    #[test]
    fn the_emergency_priority_needs_the_word() {
        assert_eq!(check(|t| t.priority = EMERGENCY), Err(TermsError::Reserved));
        assert_eq!(Terms { priority: EMERGENCY, ..Terms::new("a", 1) }.check(true), Ok(()));
    }

    /// H-68, H-71: neither missing nor the word that means none.
    #[test]
    fn an_id_is_somebodys() {
        assert!(matches!(check(|t| t.id = String::new()), Err(TermsError::Id { .. })));
        assert!(matches!(check(|t| t.id = NOBODY.into()), Err(TermsError::Id { .. })));
        assert_eq!(check(|t| t.message = Some(NOBODY.into())), Err(TermsError::Message));
        let me = Terms::new("a", 1);
        assert_eq!(me.check_heir("b"), Ok(()));
        assert_eq!(me.check_heir("a"), Err(TermsError::SameOwner { id: "a".into() }));
        assert!(matches!(me.check_heir(""), Err(TermsError::Id { .. })));
        assert!(matches!(me.check_heir(NOBODY), Err(TermsError::Id { .. })));
    }
}
