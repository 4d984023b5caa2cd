//! When a job is due, and what follows a run that did not succeed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{RunRecord, RunSlot};

/// A calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Slot {
    /// One hour of the clock on the wall. The hour that a clock shows twice in autumn is two slots.
    Hour,
    /// One date, of 23, 24 or 25 hours.
    Day,
    /// One week of ISO 8601, from Monday.
    Week,
    /// One month.
    Month,
}

impl Slot {
    const ALL: [(Slot, &str); 4] =
        [(Slot::Hour, "hour"), (Slot::Day, "day"), (Slot::Week, "week"), (Slot::Month, "month")];
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].1)
    }
}

impl FromStr for Slot {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(slot, _)| *slot).ok_or_else(|| RuleError::Slot(text.to_owned()))
    }
}

/// When a job is due.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Schedule {
    /// Once per calendar period of a time zone.
    Calendar {
        /// The period.
        per: Slot,
        /// The time zone, as in `Europe/Berlin` or `UTC`.
        time_zone: String,
    },
    /// When this time has passed since the last start.
    Every {
        /// The time, in milliseconds.
        every_ms: u64,
    },
    /// Once for this text: a build number, a date.
    Text {
        /// The text.
        slot: String,
    },
}

impl Schedule {
    /// The longest time from one slot to the next, in milliseconds. A text has none.
    pub fn longest_ms(&self) -> Option<i64> {
        const HOUR_MS: i64 = 3_600_000;
        match self {
            Schedule::Calendar { per: Slot::Hour, .. } => Some(HOUR_MS),
            // The day on which the clocks go back has an hour more.
            Schedule::Calendar { per: Slot::Day, .. } => Some(25 * HOUR_MS),
            Schedule::Calendar { per: Slot::Week, .. } => Some((7 * 24 + 1) * HOUR_MS),
            Schedule::Calendar { per: Slot::Month, .. } => Some((31 * 24 + 1) * HOUR_MS),
            Schedule::Every { every_ms } => Some(i64::try_from(*every_ms).unwrap_or(i64::MAX)),
            Schedule::Text { .. } => None,
        }
    }

    /// How far a run may be dated in the future and still count, in milliseconds. The clocks of two leaders differ a little.
    ///
    /// Within one calendar period, each slot still runs once. A time between two starts leaves no such choice: a start in the
    /// future delays the next one.
    fn tolerance_ms(&self) -> Option<i64> {
        let longest = self.longest_ms()?;
        Some(if matches!(self, Schedule::Every { .. }) { longest / 10 } else { longest })
    }

    /// Whether two records of this schedule name one slot. Machines with different versions of the time zone data begin the same day
    /// at different times, and name the same hour with different offsets.
    pub(super) fn is_one_slot(&self, one: &RunSlot, other: &RunSlot) -> bool {
        match self {
            Schedule::Calendar { .. } => one.name == other.name || one.start_ms == other.start_ms,
            Schedule::Every { .. } => one.start_ms == other.start_ms,
            Schedule::Text { .. } => one.name == other.name,
        }
    }

    /// Whether this run is dated so far in the future that it says nothing about the slot of `now_ms`, the servers' time: the
    /// clock of a leader was ahead when the run was claimed, or is behind now.
    pub fn is_ahead(&self, run: &RunRecord, now_ms: i64) -> bool {
        let begun_ms = run.start_ms.map_or(run.slot.start_ms, |start| start.max(run.slot.start_ms));
        self.tolerance_ms().is_some_and(|tolerance| begun_ms > now_ms.saturating_add(tolerance))
    }
}

/// `once per day (Europe/Berlin)`, `every 6h`, `once for 4711`
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Calendar { per, time_zone } => write!(f, "once per {per} ({time_zone})"),
            Schedule::Every { every_ms } => {
                let mut left = *every_ms;
                f.write_str("every")?;
                for (unit, ms) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
                    if left >= ms {
                        write!(f, " {}{unit}", left / ms)?;
                        left %= ms;
                    }
                }
                Ok(())
            }
            Schedule::Text { slot } => write!(f, "once for {slot}"),
        }
    }
}

/// What follows a run that failed or crashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// The slot is over; the next run is that of the next slot. After a crash: the work is done at most once.
    #[default]
    Next,
    /// The next host that asks in the slot, or later with [`Job::catch_up`](crate::Job::catch_up), runs it again. After a crash
    /// without a limit: the work is then done at least once.
    Retry {
        /// The maximum number of retries per slot; `None` means no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most: Option<u32>,
    },
    /// The job stops until a person decides.
    Keep,
}

/// `next`, `retry`, `retry:3`, `keep`
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Next => f.write_str("next"),
            Rule::Retry { most: None } => f.write_str("retry"),
            Rule::Retry { most: Some(most) } => write!(f, "retry:{most}"),
            Rule::Keep => f.write_str("keep"),
        }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let wrong = || RuleError::Rule(text.to_owned());
        match text {
            "next" => Ok(Rule::Next),
            "keep" => Ok(Rule::Keep),
            "retry" => Ok(Rule::Retry { most: None }),
            _ => {
                let most = text.strip_prefix("retry:").ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
                if most == 0 { Err(wrong()) } else { Ok(Rule::Retry { most: Some(most) }) }
            }
        }
    }
}

/// Why a text names no period or rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// No period.
    #[error("{0:?} is not a period; use hour, day, week or month")]
    Slot(String),
    /// No rule.
    #[error("{0:?} is not a rule; use next, retry, retry:N with N from 1, or keep")]
    Rule(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_and_a_period_read_back_as_they_print() {
        for rule in [Rule::Next, Rule::Keep, Rule::Retry { most: None }, Rule::Retry { most: Some(3) }] {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        for (slot, name) in Slot::ALL {
            assert_eq!((slot.to_string().as_str(), name.parse()), (name, Ok(slot)));
        }
    }

    #[test]
    fn a_wrong_rule_is_named_with_the_remedy() {
        for wrong in ["", "again", "retry:", "retry:0", "retry:-1", "retry:x"] {
            let error = wrong.parse::<Rule>().expect_err("it is no rule").to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("retry:N"), "{error}");
        }
        assert!("year".parse::<Slot>().expect_err("no period").to_string().contains("hour, day, week or month"));
    }

    #[test]
    fn a_schedule_prints_in_the_words_of_the_command() {
        let every = |every_ms| Schedule::Every { every_ms }.to_string();
        assert_eq!(every(21_600_000), "every 6h");
        assert_eq!(every(90_061_001), "every 1d 1h 1m 1s 1ms");
    }
}
