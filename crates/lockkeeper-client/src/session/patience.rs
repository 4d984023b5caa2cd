//! How long the session waits for its servers.

use std::time::Duration;

use super::{Session, State};

/// Divides the session timeout into the time after which an idle client sends a ping.
const PING: u32 = 10;
/// Share of the session timeout after which a connection without incoming bytes is given up: 2/5. There is time to find
/// another server before the session could expire.
const SILENCE: (u32, u32) = (2, 5);
/// Share of the session timeout that a server has for an answer at least: 3/10. A process that was stalled has sent no ping;
/// it sends one first.
///
/// A server may need a quarter of the timeout for a write. ZooKeeper answers nothing else of a session before that, pings
/// included. A shorter time would end the connection to a healthy server, again and again.
const ANSWER: (u32, u32) = (3, 10);
/// Divides the session timeout into the time for one attempt to connect in the first round over all servers. Each further
/// round doubles that time.
const ATTEMPT: u32 = 6;
/// The longest time for an attempt in the first round. A server may accept a connection while it starts, and forget it.
const LONGEST_FIRST_ATTEMPT: Duration = Duration::from_secs(4);
/// Divides the session timeout into the time for the search of a server's address in the first round. Each further round
/// doubles that time.
const SEARCH: u32 = 3;
/// The longest time for a search. A resolver tries several name servers, for 5 s each.
const LONGEST_SEARCH: Duration = Duration::from_secs(30);

fn share(of: Duration, (times, parts): (u32, u32)) -> Duration {
    of * times / parts
}

impl Session {
    /// Returns whether the session waits for the address of its server.
    pub fn is_searching(&self) -> bool {
        matches!(self.state, State::Searching { .. })
    }

    /// Reports that the server's address is known. From now on, the server has only as long as an attempt lasts. The search
    /// is not the server's silence, and has a longer limit.
    pub fn found(&mut self, now: Duration) {
        if self.is_searching() {
            let first = (self.timeout / ATTEMPT).min(LONGEST_FIRST_ATTEMPT);
            self.state = State::Connecting { until: now + self.in_this_round(first).min(self.timeout) };
        }
    }

    /// Returns when the server counts as silent. A server that was not asked is not silent.
    pub(super) fn silent_at(&self) -> Option<Duration> {
        let answered = self.asked_at? + share(self.timeout, ANSWER);
        Some(answered.max(self.last_received + share(self.timeout, SILENCE)))
    }

    /// Returns how long nothing may be sent before a ping is.
    pub(super) fn ping_after(&self) -> Duration {
        self.timeout / PING
    }

    /// Begins an attempt with the current server.
    pub(super) fn attempt(&mut self, now: Duration) {
        self.attempt += 1;
        let patience = self.in_this_round(self.timeout / SEARCH).min(LONGEST_SEARCH);
        self.state = State::Searching { until: now + patience };
    }

    /// Doubles this time for each round that has failed: a server that is slow because it is busy gets more time.
    fn in_this_round(&self, first: Duration) -> Duration {
        first.saturating_mul(2_u32.saturating_pow(self.rounds))
    }
}
