//! How long a command may take to end when its lock can no longer be relied on. It must have ended before the next
//! grant.
//!
//! A hold may be relied on for three quarters of the session timeout, counted from the servers' last answer. Heartbeats
//! are sent every fifth of the timeout. So half of the timeout is always left while the servers answer at once, and 0.24 of
//! it while they need a quarter of it for an answer. A command with a fifth as its grace period gets SIGTERM only after a
//! longer interruption.

use std::time::Duration;

use lockkeeper_session::text::typed;

use crate::exit::{Code, Failure};

/// The longest default grace period. Each second of it shortens the outage of the servers that a command survives by a
/// second.
const USUAL: Duration = Duration::from_secs(5);

/// The longest default grace period of a lease, which ends at a known time and not by an outage.
const LEASED: Duration = Duration::from_secs(10);

/// The longest session timeout that a ZooKeeper server grants by default. Servers may grant less than a longer one.
const GRANTED: Duration = Duration::from_secs(40);

/// What ends a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Term {
    /// The session's timeout, as requested.
    Session(Duration),
    /// The session's timeout, where requesting a longer one does not help: the servers grant less, or the lease is too short too.
    Fixed(Duration),
    /// The lease, independently of the session.
    Lease(Duration),
}

impl Term {
    /// Returns the longest grace period that fits.
    pub(crate) fn limit(self) -> Duration {
        match self {
            Term::Session(timeout) | Term::Fixed(timeout) => millis(timeout / 5),
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
            Term::Session(timeout) | Term::Fixed(timeout) => (timeout / 5).min(USUAL),
            Term::Lease(lease) => (lease / 4).min(LEASED),
        };
        let Some(grace) = given else { return Ok(millis(usual)) };
        if grace <= self.limit() {
            return Ok(grace);
        }
        let (given, limit) = (typed(grace), typed(self.limit()));
        let text = match self {
            Term::Session(timeout) | Term::Fixed(timeout) => format!(
                "a grace of {given} does not fit into a session timeout of {}: a lock can be relied on for three quarters of that \
                 from the servers' last answer, they may take a quarter to answer, and what is always left then is more than {limit}",
                typed(timeout)
            ),
            Term::Lease(lease) => {
                format!("a grace of {given} does not fit into a lease of {}: at most half of it, {limit}", typed(lease))
            }
        };
        let longer = millis(grace).saturating_mul(5);
        let hint = match self {
            Term::Session(_) if longer <= GRANTED => {
                format!("give --grace {limit}, or --session-timeout {}", typed(longer))
            }
            _ => format!("give --grace {limit} or less"),
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
        assert_eq!(hint, "give --grace 2s, or --session-timeout 20s");
        assert_eq!(Term::Lease(Duration::from_secs(1)).grace(None).ok(), Some(Duration::from_millis(250)));
        assert!(Term::Lease(Duration::from_secs(1)).grace(Some(Duration::from_secs(1))).is_err());
    }
    /// The servers grant no such timeout, or have granted less than one.
    #[test]
    fn a_remedy_is_never_refused_itself() {
        let hint = |term: Term, grace| term.grace(Some(Duration::from_secs(grace))).unwrap_err().hint.unwrap();
        assert_eq!(hint(Term::Session(Duration::from_secs(10)), 3600), "give --grace 2s or less");
        assert_eq!(hint(Term::Fixed(Duration::from_secs(10)), 4), "give --grace 2s or less");
    }
}
