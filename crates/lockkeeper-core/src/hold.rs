//! How long a session may be trusted, judged by the client's own clock.
//!
//! The server expires a session about one timeout after it last heard of it; the client gets to know only when it reaches
//! a server again. Between the two someone else may hold the lock, so the client must give up first. Time is an argument:
//! milliseconds on a clock that runs through suspend (`CLOCK_BOOTTIME`), never the wall clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a hold ended without a release. Final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Loss {
    /// The server says that the session has expired.
    SessionExpired,
    /// No server was reached for so long that the session may have expired, whatever the network says later.
    Unreachable,
    /// Somebody deleted the node.
    Removed,
    /// This process closed its session.
    Closed,
    /// The server refused this process's credentials.
    AuthFailed,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Loss::SessionExpired => "the session expired",
            Loss::Unreachable => "no server was reached before the session could have expired",
            Loss::Removed => "the node was deleted by someone else",
            Loss::Closed => "the session was closed",
            Loss::AuthFailed => "the server refused the credentials",
        })
    }
}

/// What is known of a session at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// Connected.
    Up,
    /// Not connected; what the session holds may be trusted until this moment of the clock and not after.
    Suspected {
        /// The deadline, as time since the clock's origin.
        until: Duration,
    },
    /// Over, for this reason.
    Over(Loss),
}

/// Judges one session: fed with what the connection does and with time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinkClock {
    timeout: Duration,
    link: Link,
}

impl LinkClock {
    /// A session that has just been connected, with its negotiated timeout.
    pub const fn connected(timeout: Duration) -> Self {
        LinkClock { timeout, link: Link::Up }
    }

    /// What is known now.
    pub const fn link(&self) -> Link {
        self.link
    }

    /// How long after a disconnect was noticed the session may still be trusted.
    ///
    /// The client pings so often and times a silent connection out so early that at the moment it notices, the server
    /// heard of it at most 2/5 of the timeout T ago. It expires the session no earlier than T after that, so 3/5 T from
    /// now; a quarter of T is kept as margin (a follower passes its touches on only when the leader pings it). What is
    /// left, rounded down, is T/3.
    pub const fn grace(&self) -> Duration {
        Duration::from_micros(self.timeout.as_micros() as u64 / 3)
    }

    /// The connection was lost at `now`.
    pub fn disconnected(&mut self, now: Duration) {
        if self.link == Link::Up {
            self.link = Link::Suspected { until: now + self.grace() };
        }
    }

    /// The same session is connected again at `now`. Too late is too late: a session past its deadline stays over.
    pub fn reconnected(&mut self, now: Duration) {
        self.tick(now);
        if let Link::Suspected { .. } = self.link {
            self.link = Link::Up;
        }
    }

    /// Time has come to `now`.
    pub fn tick(&mut self, now: Duration) {
        if let Link::Suspected { until } = self.link
            && now >= until
        {
            self.link = Link::Over(Loss::Unreachable);
        }
    }

    /// The session is over.
    pub fn over(&mut self, loss: Loss) {
        if !matches!(self.link, Link::Over(_)) {
            self.link = Link::Over(loss);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(6);
    const fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_short_break_is_forgiven() {
        let mut clock = LinkClock::connected(T);
        clock.disconnected(at(100));
        assert_eq!(clock.link(), Link::Suspected { until: at(102) });
        clock.reconnected(at(101));
        assert_eq!(clock.link(), Link::Up);
    }

    #[test]
    fn loss_is_final_whatever_the_network_says_later() {
        let mut clock = LinkClock::connected(T);
        clock.disconnected(at(100));
        clock.tick(at(102));
        assert_eq!(clock.link(), Link::Over(Loss::Unreachable));
        clock.reconnected(at(103));
        clock.over(Loss::SessionExpired);
        assert_eq!(clock.link(), Link::Over(Loss::Unreachable));
    }

    #[test]
    fn reconnecting_too_late_is_a_loss_even_if_nobody_looked_at_the_clock() {
        let mut clock = LinkClock::connected(T);
        clock.disconnected(at(100));
        clock.reconnected(at(102));
        assert_eq!(clock.link(), Link::Over(Loss::Unreachable));
    }

    #[test]
    fn a_second_disconnect_does_not_move_the_deadline() {
        let mut clock = LinkClock::connected(T);
        clock.disconnected(at(100));
        clock.disconnected(at(101));
        assert_eq!(clock.link(), Link::Suspected { until: at(102) });
    }
}
