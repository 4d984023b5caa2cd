//! The settings of jobs: what a fleet has in common. The schedule of a job is not a setting.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lockkeeper_jobs::records::{DEFAULT_RUNS, MAX_OUTPUT_BYTES, MAX_RUNS, MAX_SLOTS_BACK};
use lockkeeper_jobs::{Rule, RuleError};

use super::keys::Key;
use super::layers::{Given, Layers};
use super::read::{Wrong, duration, shown, take};
use super::setting::Setting;

/// The times after which a job can be late.
const LATE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10 * 366 * 24 * 3600));

/// Reads a size such as `4k`: the number of bytes of output to keep in a record.
///
/// # Errors
///
/// The remedy, if it is no size up to 16 KiB.
pub fn output_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let size = digits.parse::<usize>().ok().and_then(|size| size.checked_mul(unit));
    size.filter(|size| *size <= MAX_OUTPUT_BYTES)
        .ok_or_else(|| format!("write a size of at most {MAX_OUTPUT_BYTES} bytes, such as 4k, or 0 for none"))
}

/// The settings of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobSettings {
    /// The time zone of the calendar.
    pub time_zone: Setting<String>,
    /// What follows a run that failed.
    pub on_failure: Setting<Rule>,
    /// What follows a run whose host crashed.
    pub on_crash: Setting<Rule>,
    /// How many missed slots are run.
    pub catch_up: Setting<u32>,
    /// What happens to a job while no server is reachable.
    pub if_unreachable: Setting<IfUnreachable>,
    /// How many bytes of the command's standard error are kept; 0 means none.
    pub keep_output: Setting<usize>,
    /// How many runs are kept.
    pub keep_runs: Setting<u32>,
    /// How long after its last success a job is late; `None` means that its schedule says it.
    pub late: Setting<Option<Duration>>,
}

/// What happens to a job while no server is reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IfUnreachable {
    /// The command does not run.
    #[default]
    Skip,
    /// The command runs without the lock.
    Run,
    /// The job waits for the servers.
    Wait,
}

/// `skip`, `run`, `wait`
impl fmt::Display for IfUnreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IfUnreachable::Skip => "skip",
            IfUnreachable::Run => "run",
            IfUnreachable::Wait => "wait",
        })
    }
}

shown!(IfUnreachable);

impl FromStr for IfUnreachable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [IfUnreachable::Skip, IfUnreachable::Run, IfUnreachable::Wait];
        let found = all.into_iter().find(|what| what.to_string() == text);
        found.ok_or_else(|| "write skip, run or wait".to_owned())
    }
}

/// Reads the settings of jobs from the layers.
pub(super) fn jobs(l: &mut Layers) -> JobSettings {
    JobSettings {
        time_zone: take(l, Key::JobsTimeZone, "UTC".to_owned(), time_zone),
        on_failure: take(l, Key::JobsOnFailure, Rule::default(), rule),
        on_crash: take(l, Key::JobsOnCrash, Rule::default(), rule),
        catch_up: take(l, Key::JobsCatchUp, 0, |given| number(given, 0, MAX_SLOTS_BACK)),
        if_unreachable: take(l, Key::JobsIfUnreachable, IfUnreachable::default(), |given| {
            given.text.parse().map_err(|remedy| (format!("{:?} is not known", given.text), remedy))
        }),
        keep_output: take(l, Key::JobsKeepOutput, 0, |given| {
            output_size(&given.text).map_err(|remedy| (format!("{:?} is not a size that is kept", given.text), remedy))
        }),
        keep_runs: take(l, Key::JobsKeepRuns, DEFAULT_RUNS, |given| number(given, 1, MAX_RUNS)),
        late: take(l, Key::JobsLate, None, |given| duration(given, LATE).map(Some)),
    }
}

fn rule(given: &Given) -> Result<Rule, Wrong> {
    given.text.parse().map_err(|_: RuleError| {
        (format!("{:?} is not a rule", given.text), "write next, retry, retry:N with N from 1, or keep".to_owned())
    })
}

fn number(given: &Given, least: u32, most: u32) -> Result<u32, Wrong> {
    let number = given.text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| {
        (format!("{:?} is not a number that is possible", given.text), format!("write a number from {least} to {most}"))
    })
}

fn time_zone(given: &Given) -> Result<String, Wrong> {
    if let Err(error) = jiff::tz::TimeZone::get(&given.text) {
        return Err((error.to_string(), "write a name of the tz database, such as Europe/Berlin or UTC".to_owned()));
    }
    Ok(given.text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_limit_and_may_be_none() {
        assert_eq!((output_size("4k"), output_size("512"), output_size("16K")), (Ok(4096), Ok(512), Ok(16384)));
        assert_eq!(output_size("0"), Ok(0));
        for wrong in ["", "k", "17k", "4m", "-1", "99999999999999999999k"] {
            assert!(output_size(wrong).is_err_and(|error| error.contains("such as 4k")), "{wrong}");
        }
    }

    #[test]
    fn what_happens_without_a_server_reads_back_as_it_prints() {
        for what in [IfUnreachable::Skip, IfUnreachable::Run, IfUnreachable::Wait] {
            assert_eq!(what.to_string().parse(), Ok(what));
        }
        assert!("go".parse::<IfUnreachable>().is_err_and(|remedy| remedy.contains("skip, run or wait")));
    }
}
