//! The options of `lockkeeper run` that make the command a job.

use std::time::Duration;

use lockkeeper_config::settings::{IfUnreachable, JobSettings, output_size};
use lockkeeper_jobs::{Rule, Slot};

use crate::args::values::{Completes, positive_duration, time_zone};

/// The options of `run` that make the command a job.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Jobs, run once per slot")]
#[group(skip)]
pub(crate) struct JobArgs {
    /// Run the command once per hour, day, week or month
    ///
    /// On all machines together, by the servers' clock. A machine that comes later waits for the lock, finds the slot done, and ends with 0.
    #[arg(long, value_name = "PERIOD", group = "schedule", conflicts_with_all = OTHERS)]
    #[arg(add = Completes::Words(&["hour", "day", "week", "month"]))]
    pub once_per: Option<Slot>,
    /// Run the command when this time has passed since its last start
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, group = "schedule", conflicts_with_all = OTHERS, hide_short_help = true)]
    pub every: Option<Duration>,
    /// Run the command once for this text: a build number, a date
    #[arg(long, value_name = "TEXT", group = "schedule", conflicts_with_all = OTHERS, hide_short_help = true)]
    pub slot: Option<String>,
    /// Begin the periods of --once-per in this time zone, such as Europe/Berlin
    /// [env: LOCKKEEPER_JOBS_TIME_ZONE] [default: UTC]
    #[arg(long, value_name = "ZONE", value_parser = time_zone, requires = "once_per", conflicts_with_all = ["every", "slot"], hide_short_help = true)]
    #[arg(add = Completes::TimeZones)]
    pub time_zone: Option<String>,
    /// After a failure: next (wait for the next slot), retry or retry:N (the next machine that asks in this slot runs it
    /// again; later ones only with --catch-up), or keep (a person decides) [env: LOCKKEEPER_JOBS_ON_FAILURE] [default: next]
    #[arg(long, value_name = "RULE", requires = "schedule", hide_short_help = true)]
    #[arg(add = Completes::Words(&["next", "retry", "keep"]))]
    pub on_failure: Option<Rule>,
    /// After a crash, the same: next means at most once, retry means at least once if a machine asks in time
    /// [env: LOCKKEEPER_JOBS_ON_CRASH] [default: next]
    #[arg(long, value_name = "RULE", requires = "schedule", hide_short_help = true)]
    #[arg(add = Completes::Words(&["next", "retry", "keep"]))]
    pub on_crash: Option<Rule>,
    /// Also run up to COUNT slots that were missed, the oldest first [env: LOCKKEEPER_JOBS_CATCH_UP] [default: 0]
    #[arg(long, value_name = "COUNT", requires = "schedule", hide_short_help = true, value_parser = clap::value_parser!(u32).range(0..=366))]
    pub catch_up: Option<u32>,
    /// When no server is reachable: skip the command and end with 69, run it without the lock, or wait for the servers
    /// [env: LOCKKEEPER_JOBS_IF_UNREACHABLE] [default: skip]
    #[arg(long, value_name = "WHAT", requires = "schedule", hide_short_help = true)]
    #[arg(add = Completes::Words(&["skip", "run", "wait"]))]
    pub if_unreachable: Option<IfUnreachable>,
    /// Keep the last bytes of the command's standard error in the record, at most 16k [env: LOCKKEEPER_JOBS_KEEP_OUTPUT]
    /// [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = output_size, requires = "schedule", hide_short_help = true)]
    pub keep_output: Option<usize>,
    /// Keep the records of this many runs, at most 1000 [env: LOCKKEEPER_JOBS_KEEP_RUNS] [default: 100]
    ///
    /// A text of --slot whose record is no longer kept runs again.
    #[arg(long, value_name = "COUNT", requires = "schedule", hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub keep_runs: Option<u32>,
    /// Say why the command was not run, also without a terminal
    #[arg(long, short, requires = "schedule", conflicts_with = "quiet", hide_short_help = true)]
    pub verbose: bool,
}

impl JobArgs {
    /// Whether the options make the command a job.
    pub(super) fn is_job(&self) -> bool {
        self.once_per.is_some() || self.every.is_some() || self.slot.is_some()
    }

    /// Fills in what the settings say.
    pub(crate) fn settle(&mut self, set: &JobSettings) {
        self.time_zone.get_or_insert_with(|| set.time_zone.value.clone());
        self.on_failure.get_or_insert(set.on_failure.value);
        self.on_crash.get_or_insert(set.on_crash.value);
        self.catch_up.get_or_insert(set.catch_up.value);
        self.if_unreachable.get_or_insert(set.if_unreachable.value);
        self.keep_output.get_or_insert(set.keep_output.value);
        self.keep_runs.get_or_insert(set.keep_runs.value);
    }
}

/// The options of other kinds of locks, and of attempts. A job has one plain lock, and its slots are its retries.
const OTHERS: [&str; 11] = [
    "shared",
    "exclusive",
    "permits",
    "take",
    "foreground",
    "background",
    "class",
    "node_format",
    "lease",
    "retries",
    "dead_letter",
];
