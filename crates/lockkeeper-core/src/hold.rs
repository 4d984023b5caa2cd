//! How long a session may be trusted, judged by the client's own clock.
//!
//! The server expires a session about one timeout after it last heard of it. The client learns of that only when it
//! reaches a server again. Between the two, another client may hold the lock, so the client must give up first. Time is
//! an argument: milliseconds on a clock that runs through suspend (`CLOCK_BOOTTIME`), never the wall clock.

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
    /// Another client deleted the node.
    Removed,
    /// This process closed its session.
    Closed,
    /// The server refused this process's credentials.
    AuthFailed,
    /// The server accepts only clients that have authenticated, by SASL or by another scheme of its settings.
    AuthRequired,
    /// Its lease is over; the next request gets the lock.
    LeaseEnded,
    /// A client of a higher priority got the lock.
    Preempted,
    /// The same owner acquired the lock again; the new hold continues.
    Superseded,
    /// The program did not say in time that it is still at work (its own liveness limit).
    Unattended,
    /// This process was forked from the one that holds the lock: the hold is the parent's, and continues there.
    Forked,
    /// Its owner transferred it to another client.
    Transferred,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Loss::SessionExpired => "the session expired",
            Loss::Unreachable => "no server was reached before the session could have expired",
            Loss::Removed => "the node was deleted by someone else",
            Loss::Closed => "the session was closed",
            Loss::AuthFailed => "the server refused the credentials",
            Loss::AuthRequired => {
                "the server accepts only clients that have authenticated, by SASL unless its settings name another scheme"
            }
            Loss::LeaseEnded => "its lease is over",
            Loss::Preempted => "a client of a higher priority got it",
            Loss::Superseded => "the same owner acquired it again",
            Loss::Unattended => "the program did not say in time that it is still at work",
            Loss::Forked => "it is held by the process that this one was forked from",
            Loss::Transferred => "its owner handed it over",
        })
    }
}

impl std::error::Error for Loss {}

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// Connected, with a heartbeat confirmed since.
    Up,
    /// Not connected, or no heartbeat confirmed since: its holds may still be held, until its deadline.
    Suspected,
    /// No heartbeat for so long that the session may have expired. The session may also come back; its holds do not.
    Overdue,
    /// Over for good, for this reason.
    Over(Loss),
}

/// A session at one moment, as its holds need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The session.
    pub state: LinkState,
    /// Whether a server is connected, so that events arrive.
    pub connected: bool,
    /// How many deadlines have passed without a heartbeat. A hold granted before the latest one is finally lost, even
    /// if its holder slept through the whole disconnect and finds the session alive again.
    pub missed_deadlines: u32,
    /// How often the connection was lost. Afterwards, the events of the meantime come in no order.
    pub disconnects: u32,
    /// How many tries to connect again have failed since the connection was last lost.
    pub failed_tries: u32,
}

/// How far a hold may be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// It is held, and may be trusted until this moment of the clock without a further heartbeat.
    Held {
        /// The deadline, as time since the clock's origin.
        until: Duration,
    },
    /// The connection is lost; it may still be trusted until this moment of the clock, but start nothing new.
    Suspected {
        /// The deadline, as time since the clock's origin.
        until: Duration,
    },
    /// It is lost. Final.
    Lost(Loss),
}

impl Trust {
    /// Until when it may be trusted without a further heartbeat, as time since the clock's origin; zero if it is lost.
    pub const fn until(self) -> Duration {
        match self {
            Trust::Held { until } | Trust::Suspected { until } => until,
            Trust::Lost(_) => Duration::ZERO,
        }
    }
}

/// How many ticks of its servers a session's timeout has at least, as far as its client knows.
///
/// A follower tells its leader of the signs of life of its sessions only when the leader asks, every half tick. A write that it passes on
/// does not renew its session. So a sign of life may be half a tick older at the leader than at the client: half a tick is a quarter of a
/// timeout of two ticks, and a tenth of one of five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ticks {
    /// At least five, or the server has no followers.
    Five,
    /// At least two, the least that servers grant by default.
    Two,
}

impl Ticks {
    /// The default of ZooKeeper's servers.
    const DEFAULT: Duration = Duration::from_secs(2);

    /// Judges by the timeouts that were requested and granted. Servers grant more than requested if that is their least. A timeout of at
    /// least five default ticks is taken for five.
    pub fn of(requested: Duration, granted: Duration) -> Ticks {
        if granted > requested || granted < 5 * Ticks::DEFAULT { Ticks::Two } else { Ticks::Five }
    }
}

/// Decides how far one session may be trusted, from its heartbeats, its connection's state, and time.
///
/// A heartbeat is a request that the leader has ordered with all others, confirmed by a majority: a write, whether it
/// succeeds or not. A ping, a read or a `sync` is none. A server cut off from its peers continues to answer those, and
/// so does a former leader. The leader had not expired the session when it ordered the request, so not when the request
/// was *sent*. It had also heard of the session shortly before. A client sends a sign of life every tenth of the
/// timeout, and a follower passes it on within half a tick ([`Ticks`]). So, counted from the moment of sending, the session lives for a
/// timeout less both, whatever happens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionClock {
    timeout: Duration,
    ticks: Ticks,
    connected: bool,
    /// A heartbeat was sent, and confirmed, on this connection.
    confirmed: bool,
    /// Until when the last heartbeat is valid.
    until: Duration,
    overdue: bool,
    missed_deadlines: u32,
    disconnects: u32,
    failed_tries: u32,
    over: Option<Loss>,
}

impl SessionClock {
    /// A session that has just been connected, with its negotiated timeout. No heartbeat is confirmed yet.
    pub const fn connected(timeout: Duration, ticks: Ticks) -> Self {
        let (until, over) = (Duration::ZERO, None);
        SessionClock {
            timeout,
            ticks,
            connected: true,
            confirmed: false,
            until,
            overdue: false,
            missed_deadlines: 0,
            disconnects: 0,
            failed_tries: 0,
            over,
        }
    }

    /// The current state.
    pub fn link(&self) -> Link {
        let state = match self.over {
            Some(loss) => LinkState::Over(loss),
            None if self.overdue => LinkState::Overdue,
            None if self.connected && self.confirmed => LinkState::Up,
            None => LinkState::Suspected,
        };
        let connected = self.connected && self.over.is_none();
        let SessionClock { missed_deadlines, disconnects, failed_tries, .. } = *self;
        Link { state, connected, missed_deadlines, disconnects, failed_tries }
    }

    /// How long a heartbeat is valid, counted from when it was sent.
    ///
    /// A quarter of the timeout is kept back, or 7/20 if the timeout may be only two ticks. One part covers the sign of life that the leader
    /// has counted last: a tenth of the timeout and half a tick before the heartbeat, or half a tick alone where that is longer. The rest, a
    /// twentieth of the timeout or a tenth of a short one, covers a delay of a ping of the leader. A further hundredth is for clocks that do
    /// not run alike.
    pub fn validity(&self) -> Duration {
        let kept_back = match self.ticks {
            Ticks::Five => self.timeout / 4,
            Ticks::Two => self.timeout * 7 / 20,
        };
        (self.timeout - kept_back) / 100 * 99
    }

    /// How often to send a heartbeat while something depends on the session.
    ///
    /// A fifth of the timeout, so that a session is fresh ([`SessionClock::is_fresh`]) at every moment while servers answer at
    /// once: a heartbeat is valid for 0.74 of the timeout, and the next one is confirmed before the first is a quarter of the timeout
    /// old. One heartbeat is under way at a time. So if answers take a quarter of the timeout, 0.24 of it are always left. A timeout that may
    /// be only two ticks needs a heartbeat every tenth of it, and if answers take a quarter of it, 0.14 of it are left.
    pub fn heartbeat(&self) -> Duration {
        match self.ticks {
            Ticks::Five => self.timeout / 5,
            Ticks::Two => self.timeout / 10,
        }
    }

    /// The server has no followers: it hears each sign of life itself.
    pub fn without_followers(&mut self) {
        let before = self.validity();
        self.ticks = Ticks::Five;
        if self.until > Duration::ZERO && !self.overdue {
            self.until += self.validity() - before;
        }
    }

    /// Whether a hold that was granted at `granted` may be handed over at `now`. It starts with at least half of the
    /// timeout, or with the rest of a heartbeat that was sent after the grant.
    ///
    /// The second case is for servers that take longer than a quarter of the timeout to answer: no heartbeat leaves
    /// half there.
    pub fn is_fresh(&self, granted: Duration, now: Duration) -> bool {
        let sent = self.until.saturating_sub(self.validity());
        let left = self.until.saturating_sub(now);
        self.is_trusted(now) && (left >= self.timeout / 2 || sent >= granted)
    }

    /// Whether the session can be trusted at `now`, for however short a time. If not, only a new heartbeat helps.
    pub fn is_trusted(&self, now: Duration) -> bool {
        self.link().state == LinkState::Up && now < self.until
    }

    /// Until when the last heartbeat is valid, as time since the clock's origin.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// When a hold that was granted when `missed_deadlines` deadlines had passed is lost, unless a heartbeat comes
    /// before.
    pub fn due(&self, granted_under: u32) -> Duration {
        let gone = self.over.is_some() || self.overdue || self.missed_deadlines != granted_under;
        if gone { Duration::ZERO } else { self.until }
    }

    /// Decides, at `now`, how far a hold may be trusted that was granted when `missed_deadlines` deadlines had passed.
    pub fn trust(&self, granted_under: u32, now: Duration) -> Trust {
        let until = self.until;
        match self.link().state {
            LinkState::Over(loss) => Trust::Lost(loss),
            LinkState::Overdue => Trust::Lost(Loss::Unreachable),
            _ if self.missed_deadlines != granted_under || now >= until => Trust::Lost(Loss::Unreachable),
            LinkState::Up => Trust::Held { until },
            LinkState::Suspected => Trust::Suspected { until },
        }
    }

    /// A request that was sent at `sent` was ordered by the leader; its reply came at `now`.
    pub fn confirmed(&mut self, sent: Duration, now: Duration) {
        self.tick(now);
        let until = sent + self.validity();
        if self.over.is_none() && until > now {
            self.until = self.until.max(until);
            self.overdue = false;
            // A reply arrives over the current connection.
            self.confirmed = self.connected;
        }
    }

    /// The connection was lost.
    pub fn disconnected(&mut self) {
        if self.connected {
            self.disconnects += 1;
            self.failed_tries = 0;
        }
        (self.connected, self.confirmed) = (false, false);
    }

    /// A try to connect again has failed.
    pub fn try_failed(&mut self) {
        self.failed_tries = self.failed_tries.saturating_add(1);
    }

    /// The same session is connected again.
    pub fn reconnected(&mut self) {
        self.connected = true;
    }

    /// Time has come to `now`.
    pub fn tick(&mut self, now: Duration) {
        if !self.overdue && now >= self.until {
            self.overdue = true;
            self.missed_deadlines += 1;
        }
    }

    /// The session is over. The first reason stays.
    pub fn over(&mut self, loss: Loss) {
        _ = self.over.get_or_insert(loss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(8);

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Confirmed at 100 s, by a heartbeat sent then.
    fn confirmed() -> (SessionClock, Duration) {
        let mut clock = SessionClock::connected(T, Ticks::Five);
        assert_eq!(clock.trust(0, at(100_000)), Trust::Lost(Loss::Unreachable), "nothing is confirmed yet");
        clock.confirmed(at(100_000), at(100_010));
        (clock, at(100_000 + 5_940))
    }

    #[test]
    fn a_heartbeat_counts_from_when_it_was_sent() {
        let (clock, until) = confirmed();
        let granted = clock.link().missed_deadlines;
        assert_eq!(clock.trust(granted, at(100_010)), Trust::Held { until });
        assert_eq!(clock.trust(granted, until - at(1)), Trust::Held { until });
        assert_eq!(
            clock.trust(granted, until),
            Trust::Lost(Loss::Unreachable),
            "also while the connection seems to stand"
        );
    }

    #[test]
    fn a_session_is_trusted_while_it_is_connected_and_its_heartbeat_is_valid() {
        let (mut clock, until) = confirmed();
        assert!(clock.is_trusted(until - at(1)));
        assert!(!clock.is_trusted(until), "although it is connected");
        clock.disconnected();
        assert!(!clock.is_trusted(until - at(1)), "although the heartbeat is valid");
    }

    #[test]
    fn a_hold_starts_with_half_of_the_timeout_or_with_a_heartbeat_of_its_own() {
        let (mut clock, until) = confirmed();
        let granted = at(101_000);
        assert!(clock.is_fresh(granted, until - T / 2));
        assert!(!clock.is_fresh(granted, until - T / 2 + at(1)), "an old heartbeat leaves too little");
        // Sent before the grant, and confirmed late.
        clock.confirmed(granted - at(1), granted + at(4_000));
        assert!(!clock.is_fresh(granted, granted + at(4_000)));
        clock.confirmed(granted, granted + at(4_000));
        assert!(clock.is_fresh(granted, granted + at(4_000)), "slow servers: nothing fresher is possible");
        clock.disconnected();
        assert!(!clock.is_fresh(granted, granted + at(4_000)), "no server is connected");
    }

    #[test]
    fn a_session_that_sends_heartbeats_is_always_fresh() {
        let (clock, until) = confirmed();
        let answer = T / 25;
        assert!(clock.is_fresh(Duration::MAX, until - clock.validity() + clock.heartbeat() + answer));
    }

    #[test]
    fn servers_that_need_a_quarter_of_the_timeout_leave_0_24_of_it() {
        let (mut clock, mut until) = confirmed();
        let mut sent = until - clock.validity();
        for _ in 0..20 {
            // Sent when the one before was answered, which is later than its pause.
            sent += clock.heartbeat().max(T / 4);
            let answered = sent + T / 4;
            assert!(until - answered >= T * 24 / 100, "{:?} are left", until - answered);
            clock.confirmed(sent, answered);
            until = clock.until();
        }
    }

    #[test]
    fn a_timeout_that_may_be_two_ticks_is_trusted_for_less_and_stays_fresh() {
        let secs = Duration::from_secs;
        assert_eq!(Ticks::of(secs(30), secs(30)), Ticks::Five);
        assert_eq!(Ticks::of(secs(60), secs(40)), Ticks::Five, "the most that the server grants");
        assert_eq!(Ticks::of(secs(10), secs(12)), Ticks::Two, "the least that the server grants");
        assert_eq!(Ticks::of(secs(5), secs(5)), Ticks::Two);
        let mut clock = SessionClock::connected(T, Ticks::Two);
        clock.confirmed(at(100_000), at(100_010));
        let until = at(100_000 + 5_148);
        assert_eq!(
            clock.trust(0, at(100_010)),
            Trust::Lost(Loss::Unreachable),
            "no hold was granted before a heartbeat"
        );
        assert_eq!((clock.until(), clock.link().state), (until, LinkState::Up));
        assert!(clock.is_fresh(Duration::MAX, at(100_000) + clock.heartbeat() + T / 25));
        clock.without_followers();
        assert_eq!(clock.until(), at(100_000 + 5_940));
        assert_eq!(clock.heartbeat(), T / 5);
        let mut late = SessionClock::connected(T, Ticks::Two);
        late.confirmed(at(100_000), at(100_010));
        late.tick(until);
        late.without_followers();
        assert_eq!(late.link().state, LinkState::Overdue, "a loss is final");
    }

    #[test]
    fn a_short_break_is_forgiven_once_a_heartbeat_is_confirmed() {
        let (mut clock, until) = confirmed();
        let granted = clock.link().missed_deadlines;
        clock.disconnected();
        assert_eq!(clock.trust(granted, at(101_000)), Trust::Suspected { until });
        clock.reconnected();
        assert_eq!(
            clock.trust(granted, at(102_000)),
            Trust::Suspected { until },
            "an answer is no confirmed heartbeat"
        );
        clock.confirmed(at(102_000), at(102_010));
        assert_eq!(clock.trust(granted, at(102_010)), Trust::Held { until: until + at(2_000) });
    }

    #[test]
    fn loss_is_final_whatever_the_network_says_later() {
        let (mut clock, until) = confirmed();
        let granted = clock.link().missed_deadlines;
        clock.confirmed(until, until + at(10));
        assert_eq!(
            clock.trust(granted, until + at(10)),
            Trust::Lost(Loss::Unreachable),
            "it slept through the deadline"
        );
        // A hold granted after the disconnect is unaffected.
        assert!(matches!(clock.trust(clock.link().missed_deadlines, until + at(10)), Trust::Held { .. }));
    }

    #[test]
    fn a_reply_that_took_too_long_does_not_count() {
        let (mut clock, until) = confirmed();
        clock.confirmed(at(100_100), at(107_000));
        assert_eq!(clock.until(), until);
        assert_eq!(clock.link().state, LinkState::Overdue);
        let sent = at(101_000);
        clock.confirmed(sent, sent + clock.validity());
        assert_eq!((clock.until(), clock.link().state), (until, LinkState::Overdue), "it ends as it comes");
    }

    #[test]
    fn a_hold_is_due_when_its_last_heartbeat_ends_and_at_once_after_a_missed_deadline() {
        let (mut clock, until) = confirmed();
        let granted = clock.link().missed_deadlines;
        assert_eq!(clock.due(granted), until);
        assert_eq!(clock.due(granted + 1), Duration::ZERO, "granted under another deadline");
        let mut over = clock.clone();
        over.over(Loss::Closed);
        assert_eq!(over.due(granted), Duration::ZERO);
        clock.tick(until);
        assert_eq!(clock.due(clock.link().missed_deadlines), Duration::ZERO, "no heartbeat since");
        clock.confirmed(until, until + at(10));
        assert_eq!(clock.due(clock.link().missed_deadlines), until + clock.validity());
        assert_eq!(clock.due(granted), Duration::ZERO, "loss is final");
    }

    #[test]
    fn an_ended_session_never_comes_back() {
        let (mut clock, _) = confirmed();
        clock.over(Loss::SessionExpired);
        clock.reconnected();
        clock.confirmed(at(100_100), at(100_110));
        clock.over(Loss::Closed);
        assert_eq!(clock.trust(clock.link().missed_deadlines, at(100_110)), Trust::Lost(Loss::SessionExpired));
    }
}
