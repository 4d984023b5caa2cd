//! Whether a call that ends at its deadline found its servers silent.

use std::time::Duration;

/// How old a request of a call that had answers must be before its servers count as silent. A younger one may only have met a busy
/// server.
const SILENT: Duration = Duration::from_secs(2);

/// The same for a call that had no answer at all. Such a call does not know either whether the lock is held.
const SILENT_FROM_THE_START: Duration = Duration::from_millis(250);

/// What a call knows about its servers at its deadline. All times are ages at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// How long ago the call began.
    pub called: Duration,
    /// Whether a request of the call was answered.
    pub answered: bool,
    /// The age of its oldest request without an answer, if it waits for one.
    pub unanswered: Option<Duration>,
    /// The age of the oldest request of its session without an answer, whichever call made it. Zero if there is none.
    pub session: Duration,
}

impl Silence {
    /// Returns whether the servers were silent for so long that they count as unreachable.
    ///
    /// A call that had no answer also counts the silence that the calls before it have met. So a call with a short deadline reports an
    /// outage, unless the outage has only begun.
    pub fn is_outage(&self) -> bool {
        match self.unanswered {
            None => false,
            Some(oldest) if self.answered => oldest >= SILENT,
            // From the call, which begins a moment before its first request leaves.
            Some(_) => self.called.max(self.session) >= SILENT_FROM_THE_START,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A call of this age without an answer.
    fn unanswered(age: u64) -> Silence {
        Silence { called: ms(age), answered: false, unanswered: Some(ms(age)), session: ms(age) }
    }

    #[test]
    fn a_call_without_an_answer_is_an_outage_from_250_ms_on() {
        assert!(!unanswered(249).is_outage());
        assert!(unanswered(250).is_outage());
    }

    #[test]
    fn a_short_call_without_an_answer_is_an_outage_if_its_session_has_waited_for_250_ms() {
        assert!(!Silence { session: ms(249), ..unanswered(50) }.is_outage());
        assert!(Silence { session: ms(250), ..unanswered(50) }.is_outage());
    }

    #[test]
    fn a_call_that_had_an_answer_is_an_outage_only_after_2_s_without_the_next() {
        let answered =
            |age| Silence { answered: true, unanswered: Some(ms(age)), session: ms(9_000), called: ms(9_000) };
        assert!(!answered(1_999).is_outage());
        assert!(answered(2_000).is_outage());
    }

    #[test]
    fn a_call_that_waits_for_no_answer_has_met_no_silence() {
        assert!(!Silence { unanswered: None, ..unanswered(9_000) }.is_outage());
    }
}
