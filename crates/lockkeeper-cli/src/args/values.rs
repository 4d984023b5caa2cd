//! The values of options, and the words of a command line.

use std::ffi::OsString;
use std::time::Duration;

/// What completes the values of an argument, if the parser does not know them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Completes {
    /// The names of locks and jobs.
    Locks,
    /// The nodes of the contenders of the lock that was typed.
    Nodes,
    /// These words.
    Words(&'static [&'static str]),
    /// Time zones.
    TimeZones,
}

impl clap::builder::ArgExt for Completes {}

/// Parses a duration with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 500ms, 30s, 5m or 3h"))
}

/// Parses a duration with its unit, which is not zero.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be longer than 0; write 500ms, 30s, 5m or 3h".to_owned()),
        duration => Ok(duration),
    }
}

/// The longest lease, in days: a century. The watchdog of a command counts nanoseconds, of which 64 bits hold 584 years.
const LONGEST_LEASE: u64 = 36_500;

/// Parses the length of a lease.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        long if long > Duration::from_secs(LONGEST_LEASE * 24 * 3600) => {
            Err(format!("the longest lease is {LONGEST_LEASE}days"))
        }
        lease => Ok(lease),
    }
}

/// How long to wait for the cleanup of a lower owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// At most this long.
    Limit(Duration),
    /// Until the cleanup is finished.
    Infinite,
}

/// Parses a duration, or `infinite`.
pub(crate) fn waiting(text: &str) -> Result<Waiting, String> {
    match text {
        "infinite" => Ok(Waiting::Infinite),
        text => duration(text).map(Waiting::Limit).map_err(|error| format!("{error}, or infinite")),
    }
}

/// Checks the name of a time zone.
pub(crate) fn time_zone(text: &str) -> Result<String, String> {
    match jiff::tz::TimeZone::get(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; write a name of the tz database, such as Europe/Berlin or UTC")),
    }
}

/// Returns the words before `--`, which are lockkeeper's own.
pub(super) fn before_command(words: &[OsString]) -> &[OsString] {
    words.split(|word| word == "--").next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_47_waits_may_take_hours() {
        assert_eq!(duration("3h"), Ok(Duration::from_secs(3 * 3600)));
        assert!(duration("30").is_err_and(|error| error.contains("30s")));
        assert!(duration("-1s").is_err());
        assert!(time_zone("Europe/Berlin").is_ok() && time_zone("UTC").is_ok());
        assert!(time_zone("Berlin").is_err_and(|error| error.contains("Europe/Berlin")));
        assert!(positive_duration("0s").is_err_and(|error| error.contains("longer than 0")));
        assert_eq!(waiting("infinite"), Ok(Waiting::Infinite));
        assert_eq!(waiting("2s"), Ok(Waiting::Limit(Duration::from_secs(2))));
        assert!(waiting("ever").is_err_and(|error| error.ends_with("or infinite")));
    }
}
