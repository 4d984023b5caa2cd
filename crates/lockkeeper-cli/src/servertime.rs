//! The servers' clock beside this machine's: every time that is printed about a lock is the servers'.

use std::borrow::Borrow;
use std::time::{Duration, SystemTime};

use lockkeeper::admin::{Admin, LockInfo};
use lockkeeper_jobs::known_server_now_ms;

use crate::liveline::whole;
use crate::place::Place;

/// A smaller difference between the clocks is not reported.
const TOLERATED: Duration = Duration::from_secs(2);

/// A job says nothing of a smaller difference: its output is mail, each time that it runs.
const FAR: Duration = Duration::from_secs(60);

/// What a command knows of the servers' clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerTime {
    /// What it shows now; `None` if only this machine's clock is known, and that one is wrong.
    pub now: Option<SystemTime>,
    /// What to say about this machine's clock, if it differs.
    pub note: Option<String>,
}

impl ServerTime {
    /// As [`ServerTime::ask`] for an ensemble. A server of this machine has this machine's clock: as [`ServerTime::of`].
    pub(crate) async fn at(place: &Place, admin: &Admin, locks: &[impl Borrow<LockInfo>]) -> Self {
        match place {
            Place::Ensemble(_) => Self::ask(admin, locks).await,
            Place::Machine(_) => Self::of(locks),
        }
    }

    /// Asks the servers, if anything is to be said about these locks. As [`ServerTime::of`], if this user may not write, or if there
    /// is nothing to write to: a command that asks creates no node.
    pub(crate) async fn ask(admin: &Admin, locks: &[impl Borrow<LockInfo>]) -> Self {
        let sent = SystemTime::now();
        if stamps(locks).next().is_some()
            && let Ok(Some(ms)) = known_server_now_ms(admin.keeper()).await
            && let Ok(ms) = u64::try_from(ms)
        {
            let now = SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
            return Self::answered(now, sent, SystemTime::now());
        }
        Self::of(locks)
    }

    /// As [`ServerTime::ask`], from an answer: the servers' clock showed `servers_ms` between `sent` and now.
    pub(crate) fn answered_now(servers_ms: i64, sent: SystemTime) -> Self {
        Self::answered(of_ms(servers_ms), sent, SystemTime::now())
    }

    /// Takes this machine's clock for the servers', unless these locks have times that are in its future.
    pub(crate) fn of(locks: &[impl Borrow<LockInfo>]) -> Self {
        Self::no_earlier(stamps(locks).max(), SystemTime::now())
    }

    /// Returns what to say about the slot of a job, if the clocks are far apart: the servers' one chose it. It showed `servers_ms` between
    /// `sent` and `heard`.
    pub(crate) fn far_off(slot: &str, servers_ms: i64, sent: SystemTime, heard: SystemTime) -> Option<String> {
        let servers = of_ms(servers_ms);
        let (behind, ahead) = (servers.duration_since(heard), sent.duration_since(servers));
        let (by, how) = behind.map(|by| (by, "behind")).or(ahead.map(|by| (by, "ahead of"))).ok()?;
        (by > FAR).then(|| {
            format!(
                "this machine's clock is {} {how} the servers', by which the slot is {slot}: correct the wrong one",
                whole(by)
            )
        })
    }

    /// The servers answered a question of `sent` with `now`, and this machine's clock showed `heard` then.
    fn answered(now: SystemTime, sent: SystemTime, heard: SystemTime) -> Self {
        let (behind, ahead) = (now.duration_since(heard), sent.duration_since(now));
        let differs = |by: Duration, how: &str| (by > TOLERATED).then(|| note("", by, how));
        let note = behind.ok().and_then(|by| differs(by, "behind"));
        ServerTime { now: Some(now), note: note.or_else(|| ahead.ok().and_then(|by| differs(by, "ahead of"))) }
    }

    /// The servers' clock shows `latest` or more, this machine's `local`.
    fn no_earlier(latest: Option<SystemTime>, local: SystemTime) -> Self {
        let behind = latest.and_then(|latest| latest.duration_since(local).ok()).filter(|by| *by > TOLERATED);
        let note = behind.map(|by| note("at least ", by, "behind"));
        ServerTime { now: note.is_none().then_some(local), note }
    }

    /// How long ago that was; `None` if it is not known.
    pub(crate) fn ago(&self, then: SystemTime) -> Option<Duration> {
        self.now?.duration_since(then).ok()
    }
}

/// A time in milliseconds since 1970.
fn of_ms(ms: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// `this machine's clock is 5 min ahead of the servers'; times here are the servers'`
fn note(least: &str, by: Duration, how: &str) -> String {
    let by = whole(by + Duration::from_millis(500));
    format!("this machine's clock is {least}{by} {how} the servers'; times here are the servers'")
}

/// The times that servers wrote into these locks.
fn stamps(locks: &[impl Borrow<LockInfo>]) -> impl Iterator<Item = SystemTime> {
    let contenders = locks.iter().map(Borrow::borrow).flat_map(|lock| lock.holders.iter().chain(&lock.waiters));
    contenders.flat_map(|contender| [Some(contender.since), contender.granted].into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn at(time: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + secs(time)
    }

    fn says(difference: &str) -> Option<String> {
        Some(format!("this machine's clock is {difference} the servers'; times here are the servers'"))
    }

    #[test]
    fn a_clock_that_differs_by_more_than_two_seconds_is_reported() {
        let note = |servers| ServerTime::answered(at(servers), at(1_000), at(1_010)).note;
        assert_eq!(
            [note(998), note(1_000), note(1_005), note(1_012)],
            [const { None }; 4],
            "a slow answer is no difference"
        );
        assert_eq!(note(700), says("5 min ahead of"));
        assert_eq!(note(1_013), says("3 s behind"));
    }

    /// A claim may wait for minutes, and each line of a job is mail.
    #[test]
    fn the_slot_of_a_job_is_said_to_be_that_of_the_servers_clock_if_that_one_is_far_off() {
        let far = |servers: i64| ServerTime::far_off("2026-11-29T23", servers * 1_000, at(1_000), at(1_300));
        for servers in [950, 1_000, 1_200, 1_350] {
            assert_eq!(far(servers), None, "{servers}");
        }
        let says = |difference: &str| {
            let end = "the servers', by which the slot is 2026-11-29T23: correct the wrong one";
            Some(format!("this machine's clock is {difference} {end}"))
        };
        assert_eq!(far(12_100), says("3 h behind"));
        assert_eq!(far(700), says("5 min ahead of"));
    }

    /// The servers were not asked.
    #[test]
    fn a_time_in_the_future_shows_that_the_clock_is_behind() {
        let time = |latest| ServerTime::no_earlier(latest, at(1_000));
        for latest in [None, Some(at(900)), Some(at(1_002))] {
            assert_eq!(time(latest), ServerTime { now: Some(at(1_000)), note: None });
        }
        assert_eq!(time(Some(at(1_300))), ServerTime { now: None, note: says("at least 5 min behind") });
    }

    #[test]
    fn nothing_is_said_to_be_some_time_ago_that_is_in_the_future_or_not_known() {
        let time = ServerTime { now: Some(at(1_000)), note: None };
        assert_eq!(
            [time.ago(at(940)), time.ago(at(1_000)), time.ago(at(1_001))],
            [Some(secs(60)), Some(secs(0)), None]
        );
        assert_eq!(ServerTime { now: None, note: None }.ago(at(940)), None);
    }
}
