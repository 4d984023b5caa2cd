//! The settings of jobs: what a fleet has in common. The schedule of a job is not a setting.

use std::time::Duration;

use lockkeeper_jobs::records::{DEFAULT_RUNS, MAX_OUTPUT_BYTES, MAX_RUNS, MAX_SLOTS_BACK};
use lockkeeper_jobs::{Rule, RuleError};

use super::keys::Key;
use super::layers::{Given, Layers};
use super::read::{Wrong, duration, take};
use super::types::{IfUnreachable, JobSettings};

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
