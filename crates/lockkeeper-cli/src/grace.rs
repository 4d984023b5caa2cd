//! How long a command may take to end when its lock can no longer be relied on. It must have ended before the next
//! grant.
//!
//! A hold may be relied on for three quarters of the session timeout, counted from the servers' last answer. Heartbeats
//! are sent every fifth of the timeout. So half of the timeout is always left while the servers answer at once, and 0.24 of
//! it while they need a quarter of it for an answer. A command with a fifth as its grace period gets SIGTERM only after a
//! longer interruption.

use std::time::Duration;

use lockkeeper::typed;

use crate::exit::{Code, Failure};

/// The longest default grace period. Each second of it shortens the outage of the servers that a command survives by a
/// second.
const USUAL: Duration = Duration::from_secs(5);

/// The longest default grace period of a lease, which ends at a known time and not by an outage.
const LEASED: Duration = Duration::from_secs(10);

/// What ends a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Term {
    /// The session's timeout.
    Session(Duration),
    /// The lease, independently of the session.
    Lease(Duration),
}

impl Term {
    /// Returns the longest grace period that fits.
    fn limit(self) -> Duration {
        match self {
            Term::Session(timeout) => millis(timeout / 5),
            Term::Lease(lease) => millis(lease / 2),
        }
    }

    /// Returns the grace period: as given, otherwise a fifth of the session timeout, at most 5 s, or a quarter of the lease, at
    /// most 10 s.
    ///
    /// # Errors
    /// The given grace period does not fit; the message has the arithmetic.
    pub(crate) fn grace(self, given: Option<Duration>) -> Result<Duration, Failure> {
        let usual = match self {
            Term::Session(timeout) => (timeout / 5).min(USUAL),
            Term::Lease(lease) => (lease / 4).min(LEASED),
        };
        let Some(grace) = given else { return Ok(millis(usual)) };
        if grace <= self.limit() {
            return Ok(grace);
        }
        let (given, limit) = (typed(grace), typed(self.limit()));
        let (text, hint) = match self {
            Term::Session(timeout) => (
                format!(
                    "a grace of {given} does not fit into a session timeout of {}: a lock can be relied on for three quarters of \
                     that from the servers' last answer, they may take a quarter to answer, and what is always left then is more \
                     than {limit}",
                    typed(timeout)
                ),
                format!(
                    "give --grace {} or less, or --session-timeout {} or more",
                    typed(self.limit()),
                    typed(millis(grace) * 5)
                ),
            ),
            Term::Lease(lease) => (
                format!(
                    "a grace of {given} does not fit into a lease of {}: at most half of it, {limit}",
                    typed(lease)
                ),
                format!("give --grace {} or less, or a longer --lease", typed(self.limit())),
            ),
        };
        Err(Failure::new(Code::Usage, text).hint(hint))
    }
}

/// Rounds down to milliseconds, for a short text.
fn millis(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_fits_or_is_refused_with_the_arithmetic() {
        let session = Term::Session(Duration::from_secs(10));
        assert_eq!(session.grace(None).ok(), Some(Duration::from_secs(2)));
        assert_eq!(Term::Session(Duration::from_secs(30)).grace(None).ok(), Some(Duration::from_secs(5)));
        assert_eq!(session.grace(Some(Duration::from_secs(2))).ok(), Some(Duration::from_secs(2)));
        let failure = session.grace(Some(Duration::from_secs(4))).unwrap_err();
        assert_eq!(failure.code, Code::Usage);
        assert!(
            failure.message.contains("a grace of 4s") && failure.message.contains("more than 2s"),
            "{}",
            failure.message
        );
        let hint = failure.hint.unwrap();
        assert!(hint.contains("--grace 2s or less") && hint.contains("--session-timeout 20s"), "{hint}");
        assert_eq!(Term::Lease(Duration::from_secs(1)).grace(None).ok(), Some(Duration::from_millis(250)));
        assert!(Term::Lease(Duration::from_secs(1)).grace(Some(Duration::from_secs(1))).is_err());
    }
}
