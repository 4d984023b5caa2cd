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
    /// Its lease is over; whoever asks next gets the lock.
    LeaseEnded,
    /// Somebody of a higher priority got the lock.
    Preempted,
    /// The same owner acquired the lock anew; that hold goes on.
    Superseded,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Loss::SessionExpired => "the session expired",
            Loss::Unreachable => "no server was reached before the session could have expired",
            Loss::Removed => "the node was deleted by someone else",
            Loss::Closed => "the session was closed",
            Loss::AuthFailed => "the server refused the credentials",
            Loss::LeaseEnded => "its lease is over",
            Loss::Preempted => "somebody of a higher priority got it",
            Loss::Superseded => "the same owner acquired it anew",
        })
    }
}

impl std::error::Error for Loss {}

/// What is known of a session's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// Connected.
    Up,
    /// Not connected; what the session holds may be trusted until this moment of the clock and not after.
    Suspected {
        /// The deadline, as time since the clock's origin.
        until: Duration,
    },
    /// Not connected for too long: the session may have expired. It may also come back; what it held does not.
    Unreachable,
    /// Over for good, for this reason.
    Over(Loss),
}

/// A session at one moment, as its holds need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The connection.
    pub state: LinkState,
    /// How many deadlines have passed without a connection. A hold granted before the latest one is lost for good, also if
    /// its holder slept through the whole break and finds the connection up again.
    pub breaches: u32,
}

/// How far a hold may be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// It is held.
    Held,
    /// The connection is lost; it may still be trusted until this moment of the clock, but start nothing new.
    Suspected {
        /// The deadline, as time since the clock's origin.
        until: Duration,
    },
    /// It is lost. Final.
    Lost(Loss),
}

impl Link {
    /// Judges, at `now`, a hold that was granted when `breaches` deadlines had passed.
    pub fn trust(&self, granted_under: u32, now: Duration) -> Trust {
        match self.state {
            LinkState::Over(loss) => Trust::Lost(loss),
            LinkState::Unreachable => Trust::Lost(Loss::Unreachable),
            _ if self.breaches != granted_under => Trust::Lost(Loss::Unreachable),
            LinkState::Up => Trust::Held,
            LinkState::Suspected { until } if now < until => Trust::Suspected { until },
            LinkState::Suspected { .. } => Trust::Lost(Loss::Unreachable),
        }
    }
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
        LinkClock { timeout, link: Link { state: LinkState::Up, breaches: 0 } }
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
    pub fn grace(&self) -> Duration {
        self.timeout / 3
    }

    /// The connection was lost at `now`.
    pub fn disconnected(&mut self, now: Duration) {
        if self.link.state == LinkState::Up {
            self.link.state = LinkState::Suspected { until: now + self.grace() };
        }
    }

    /// The same session is connected again at `now`.
    pub fn reconnected(&mut self, now: Duration) {
        self.tick(now);
        if !matches!(self.link.state, LinkState::Over(_)) {
            self.link.state = LinkState::Up;
        }
    }

    /// Time has come to `now`.
    pub fn tick(&mut self, now: Duration) {
        if let LinkState::Suspected { until } = self.link.state
            && now >= until
        {
            self.link.state = LinkState::Unreachable;
            self.link.breaches += 1;
        }
    }

    /// The session is over. The first reason stays.
    pub fn over(&mut self, loss: Loss) {
        if !matches!(self.link.state, LinkState::Over(_)) {
            self.link.state = LinkState::Over(loss);
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
        assert_eq!(clock.link().trust(0, at(101)), Trust::Suspected { until: at(102) });
        clock.reconnected(at(101));
        assert_eq!(clock.link().trust(0, at(101)), Trust::Held);
    }

    #[test]
    fn loss_is_final_whatever_the_network_says_later() {
        let mut clock = LinkClock::connected(T);
        clock.disconnected(at(100));
        assert_eq!(clock.link().trust(0, at(102)), Trust::Lost(Loss::Unreachable));
        clock.reconnected(at(103));
        assert_eq!(clock.link().trust(0, at(103)), Trust::Lost(Loss::Unreachable));
        // A hold granted after the break is another matter.
        assert_eq!(clock.link().trust(clock.link().breaches, at(103)), Trust::Held);
    }

    #[test]
    fn an_ended_session_never_comes_back() {
        let mut clock = LinkClock::connected(T);
        clock.over(Loss::SessionExpired);
        clock.reconnected(at(1));
        clock.over(Loss::Closed);
        assert_eq!(clock.link().trust(0, at(1)), Trust::Lost(Loss::SessionExpired));
    }

    #[test]
    fn a_second_disconnect_does_not_move_the_deadline() {
        let mut clock = LinkClock::connected(T);
        clock.disconnected(at(100));
        clock.disconnected(at(101));
        assert_eq!(clock.link().state, LinkState::Suspected { until: at(102) });
    }
}
