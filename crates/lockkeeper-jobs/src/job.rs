//! What a job is: its path, its schedule and its rules.

use std::mem::discriminant;
use std::ops::RangeInclusive;
use std::time::Duration;

use lockkeeper::error::{Misuse, PathError};
use lockkeeper::{LockPath, Lockkeeper};
use lockkeeper_session::text::typed;

use super::calendar::Calendar;
use crate::records::{DEFAULT_RUNS, MAX_RUNS, MAX_SLOTS_BACK, Rule, Schedule, Slot};

/// Work that runs once per slot.
///
/// Exactly one of [`Job::once_per`], [`Job::every`] and [`Job::slot`] must be called. All hosts of a job should state the same schedule. If
/// a host states another one than the host before, a run that has started within its slot counts as the run of it.
///
/// # Examples
///
/// ```
/// use lockkeeper_jobs::{Job, Ran, Slot};
///
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let job = Job::new(keeper, "/jobs/nightly-index").once_per(Slot::Day);
/// match job.run(async |_run| std::fs::write("/tmp/index", "done")).await? {
///     Ran::Done(()) => println!("done"),
///     other => println!("not done: {other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until it is claimed or run"]
pub struct Job {
    pub(super) keeper: Lockkeeper,
    pub(super) path: Result<LockPath, PathError>,
    when: Option<When>,
    /// Whether schedules of several kinds were stated.
    several: bool,
    time_zone: Option<String>,
    pub(super) on_failure: Rule,
    pub(super) on_crash: Rule,
    pub(super) catch_up: u32,
    pub(super) keep_runs: u32,
    pub(super) command: Option<String>,
}

/// The times between two starts that [`Job::every`] accepts.
const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(100 * 366 * 24 * 3600);

/// The longest text of a slot.
const MAX_SLOT_BYTES: usize = 256;

/// The schedule as it was stated.
#[derive(Clone, Debug)]
enum When {
    Per(Slot),
    Every(Duration),
    Text(String),
}

/// Checks the text of a slot of the job at `path`.
///
/// # Errors
///
/// [`Misuse`] if it is empty, longer than 256 bytes, or has control characters.
pub fn check_slot(path: &str, slot: &str) -> Result<(), Misuse> {
    Misuse::check_length("slot", path, Some(slot), MAX_SLOT_BYTES)?;
    if slot.is_empty() || slot.chars().any(char::is_control) {
        let problem = format!("slot {slot:?} of {path} cannot be used");
        return Err(Misuse::new("slot", problem).remedy("use 1 to 256 bytes without control characters"));
    }
    Ok(())
}

impl Job {
    /// Creates the job whose lock is at `path`: work that runs once per slot on all hosts. Sends nothing; the claim reports
    /// an invalid path.
    pub fn new(keeper: &Lockkeeper, path: impl AsRef<str>) -> Self {
        Job {
            keeper: keeper.clone(),
            path: LockPath::parse(path.as_ref()),
            when: None,
            several: false,
            time_zone: None,
            on_failure: Rule::default(),
            on_crash: Rule::default(),
            catch_up: 0,
            keep_runs: DEFAULT_RUNS,
            command: None,
        }
    }

    /// Runs once per calendar period.
    pub fn once_per(self, slot: Slot) -> Self {
        self.when(When::Per(slot))
    }

    /// Sets the time zone of the calendar, as in `Europe/Berlin`. The default is `UTC` on every machine, because hosts with
    /// different zones of their own would disagree about the slots. Only [`Job::once_per`] has a calendar.
    pub fn time_zone(mut self, zone: impl Into<String>) -> Self {
        self.time_zone = Some(zone.into());
        self
    }

    /// Runs when this time has passed since the last start: 1 s to 100 years.
    pub fn every(self, time: Duration) -> Self {
        self.when(When::Every(time))
    }

    /// Runs once for this text, such as a build number: 1 to 256 bytes. A text whose run is no longer among the kept ones may
    /// run again.
    pub fn slot(self, text: impl Into<String>) -> Self {
        self.when(When::Text(text.into()))
    }

    /// Notes a schedule, which replaces an earlier one of its kind.
    fn when(mut self, when: When) -> Self {
        self.several |= self.when.as_ref().is_some_and(|stated| discriminant(stated) != discriminant(&when));
        self.when = Some(when);
        self
    }

    /// Sets what follows a run that failed, took too long or was stopped. The default is [`Rule::Next`]. A [`Rule::Retry`] has at least
    /// one retry.
    pub fn on_failure(mut self, rule: Rule) -> Self {
        self.on_failure = rule;
        self
    }

    /// Sets what follows a run whose host crashed or lost the lock. The default is [`Rule::Next`]: at most once.
    pub fn on_crash(mut self, rule: Rule) -> Self {
        self.on_crash = rule;
        self
    }

    /// Runs up to this many missed slots of a calendar, the oldest first: 0 to 366. The default is 0.
    ///
    /// Each claim is one slot: claim again after a run to get the next. Without a calendar it changes nothing, because a run that is
    /// late for its time is still run.
    pub fn catch_up(mut self, slots: u32) -> Self {
        self.catch_up = slots;
        self
    }

    /// Sets how many runs are kept: 1 to 1000. The default is 100.
    pub fn keep_runs(mut self, runs: u32) -> Self {
        self.keep_runs = runs;
        self
    }

    /// Sets the command that the records show, or another name of the work. More than 4 KiB is cut.
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// Checks everything that can be checked before anything is sent.
    pub(super) fn checked(&self) -> Result<(String, Schedule, Option<Calendar>), Misuse> {
        let path = self.path.clone()?.to_string();
        if !(1..=MAX_RUNS).contains(&self.keep_runs) {
            let problem = format!("{path} cannot keep {} runs: must be 1 to {MAX_RUNS}", self.keep_runs);
            return Err(Misuse::new("keep runs", problem));
        }
        if self.catch_up > MAX_SLOTS_BACK {
            let problem = format!("{path} cannot catch up {} slots: must be 0 to {MAX_SLOTS_BACK}", self.catch_up);
            return Err(Misuse::new("catch up", problem));
        }
        for (option, rule) in [("on_failure", self.on_failure), ("on_crash", self.on_crash)] {
            if rule == (Rule::Retry { most: Some(0) }) {
                let problem = format!("job {path} cannot retry 0 times ({option})");
                return Err(Misuse::new("rule", problem).remedy("use Rule::Next, which does not retry"));
            }
        }
        let when = match &self.when {
            Some(when) if !self.several => when,
            stated => {
                let problem = if stated.is_none() { "has no schedule" } else { "has several schedules" };
                let remedy = "call one of once_per, every and slot";
                return Err(Misuse::new("schedule", format!("job {path} {problem}")).remedy(remedy));
            }
        };
        if let (Some(zone), When::Every(_) | When::Text(_)) = (&self.time_zone, when) {
            let problem = format!("job {path} has the time zone {zone}, and no calendar that it could be for");
            return Err(Misuse::new("time zone", problem).remedy("call once_per, or leave out time_zone"));
        }
        let (schedule, calendar) = match when {
            When::Per(per) => {
                let time_zone = self.time_zone.clone().unwrap_or_else(|| "UTC".to_owned());
                let calendar = Calendar::new(*per, &time_zone)?;
                (Schedule::Calendar { per: *per, time_zone }, Some(calendar))
            }
            When::Every(time) => {
                if !INTERVALS.contains(time) {
                    let remedy =
                        if time < INTERVALS.start() { "choose 1s or more" } else { "choose 100 years or less" };
                    let problem = format!("{path} cannot run every {}", typed(*time));
                    return Err(Misuse::new("every", problem).remedy(remedy));
                }
                (Schedule::Every { every_ms: time.as_millis() as u64 }, None)
            }
            When::Text(slot) => {
                check_slot(&path, slot)?;
                (Schedule::Text { slot: slot.clone() }, None)
            }
        };
        Ok((path, schedule, calendar))
    }
}
