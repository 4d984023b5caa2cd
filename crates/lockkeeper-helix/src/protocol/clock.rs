//! The server's time, as far as one client can know it.
//!
//! Lease ends are numbers in a shared record. So they are written and judged by one clock, the leader's, never by that of a
//! client. A client whose clock is an hour off neither steals nor loses a lock. What a client knows is an interval, and
//! each question takes the end of it that errs on the safe side.

use std::time::Duration;

/// The range of the server's clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerNow {
    /// It shows this or more, in milliseconds since 1970: for "has another client's time run out?".
    pub earliest_ms: i64,
    /// It shows this or less: for "has my own time run out?".
    pub latest_ms: i64,
}

/// An estimate of the server's clock from one write and its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerClock {
    sent: Duration,
    heard: Duration,
    stamp_ms: i64,
}

impl ServerClock {
    /// A write sent and answered at these moments of a clock that runs through suspend was stamped with `stamp_ms`.
    pub const fn stamped(sent: Duration, heard: Duration, stamp_ms: i64) -> Self {
        ServerClock { sent, heard, stamp_ms }
    }

    /// The server's time when the client's clock shows `now`.
    ///
    /// The stamp was given at some moment between sending and hearing. Both clocks are taken to run at the same rate up to
    /// one part in a thousand. An hour widens that to 3.6 s each way; every write narrows it again.
    pub fn at(&self, now: Duration) -> ServerNow {
        let since_heard = millis(now.saturating_sub(self.heard));
        let since_sent = millis(now.saturating_sub(self.sent)).saturating_add(1);
        let drift = since_sent / 1000;
        ServerNow {
            earliest_ms: self.stamp_ms.saturating_add(since_heard - since_heard.min(drift)),
            latest_ms: self.stamp_ms.saturating_add(since_sent).saturating_add(drift),
        }
    }

    /// How old the estimate is when the client's clock shows `now`.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.sent)
    }

    /// The moment of the client's clock by which the server's may show `ms`: the last at which something that ends then can
    /// still be relied on.
    pub fn safe_until(&self, ms: i64) -> Duration {
        let left = u64::try_from(ms.saturating_sub(self.stamp_ms).saturating_sub(1)).unwrap_or(0);
        self.sent + Duration::from_millis(left - left / 1000)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_stamp_was_given_between_sending_and_hearing() {
        let clock = ServerClock::stamped(ms(100), ms(140), 5_000);
        assert_eq!(clock.at(ms(140)), ServerNow { earliest_ms: 5_000, latest_ms: 5_041 });
        assert_eq!(clock.at(ms(240)), ServerNow { earliest_ms: 5_100, latest_ms: 5_141 });
    }

    #[test]
    fn rates_may_differ_by_a_thousandth() {
        let now = ServerClock::stamped(ms(0), ms(0), 0).at(ms(1_000_000));
        assert!(now.earliest_ms <= 999_000 && now.latest_ms >= 1_001_000, "{now:?}");
    }

    #[test]
    fn trust_ends_before_the_servers_clock_can_show_its_end() {
        let clock = ServerClock::stamped(ms(100), ms(140), 5_000);
        for end in [5_000, 5_001, 6_000, 3_605_000] {
            let until = clock.safe_until(end);
            assert!(until <= ms(100) || clock.at(until).latest_ms <= end + 1, "{end}");
        }
        assert!(clock.safe_until(i64::MAX) > ms(u64::MAX >> 20));
    }
}
