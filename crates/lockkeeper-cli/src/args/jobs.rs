//! The options of jobs: those of `run` with a slot, and those of `lockkeeper jobs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use lockkeeper_config::settings::{IfUnreachable, JobSettings, output_size};
use lockkeeper_jobs::{Rule, Slot};

use super::connect::ConnectArgs;
use super::values::{Completes, positive_duration, time_zone};
use crate::statuses::help;

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

/// `lockkeeper jobs`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "lockkeeper jobs [NAME] [OPTIONS]\n       lockkeeper jobs <VERB>",
    after_help = "Exit statuses and examples: lockkeeper jobs --help",
    after_long_help = help("jobs", "\
Without --late, a job is late when a whole slot has passed without a run. A job without a schedule of its own, such as --slot, is \
never late. A failed job stays failed until a run succeeds, or a person accepts the failure: jobs resolve NAME --accept.", "\
Examples:
  lockkeeper jobs
  lockkeeper jobs nightly --history
  lockkeeper jobs --check --late 26h
  lockkeeper jobs --prometheus /var/lib/node_exporter/lockkeeper.prom
  lockkeeper jobs import /etc/crontab")
)]
pub(crate) struct JobsArgs {
    /// Another verb.
    #[command(subcommand)]
    pub verb: Option<JobsVerb>,
    /// The job [default: all jobs]
    #[arg(value_name = "NAME")]
    #[arg(add = Completes::Locks)]
    pub name: Option<String>,
    /// List the runs of the job, the oldest first
    #[arg(long, requires = "name")]
    pub history: bool,
    /// Print only the jobs that are not in order, and end with 1 or 2 if there are any
    #[arg(long, conflicts_with_all = ["history", "watch", "prometheus"])]
    pub check: bool,
    /// A job is late when it has not succeeded for this long [env: LOCKKEEPER_JOBS_LATE]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub late: Option<Duration>,
    /// Keep the table up to date until Ctrl-C; needs a terminal
    #[arg(long, conflicts_with_all = ["history", "prometheus", "json"])]
    pub watch: bool,
    /// Write metrics for node_exporter's textfile collector to FILE, in one step; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["history", "json"])]
    pub prometheus: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the jobs.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

impl JobsArgs {
    /// Whether the output is JSON.
    pub(crate) fn json(&self) -> bool {
        match &self.verb {
            Some(JobsVerb::Import(_)) => false,
            Some(JobsVerb::Resolve(args)) => args.json,
            Some(JobsVerb::Rerun(args)) => args.json,
            Some(JobsVerb::Expect(args)) => args.json,
            Some(JobsVerb::Forget(args)) => args.json,
            None => self.json,
        }
    }

    /// Returns the options of the place, which belong to the verb.
    pub(crate) fn connect(&self) -> &ConnectArgs {
        match &self.verb {
            Some(JobsVerb::Import(args)) => &args.connect,
            Some(JobsVerb::Resolve(args)) => &args.connect,
            Some(JobsVerb::Rerun(args)) => &args.connect,
            Some(JobsVerb::Expect(args)) => &args.connect,
            Some(JobsVerb::Forget(args)) => &args.connect,
            None => &self.connect,
        }
    }
}

/// What else to do with jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobsVerb {
    /// Print a crontab with its lines rewritten; changes nothing
    Import(ImportArgs),
    /// Decide about a run that failed or crashed and was kept for a person
    Resolve(ResolveArgs),
    /// Let a slot that has ended run again, also if it succeeded
    Rerun(RerunArgs),
    /// Say that a job is to run, so that it is late even if no machine ever asks
    Expect(ExpectArgs),
    /// Delete the records of a job
    Forget(ForgetArgs),
}

/// `lockkeeper jobs expect`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("jobs expect", "\
The job has no run then. It is late when a whole slot has passed without one. What a machine states when it runs the job counts from then \
on.", "\
Examples:
  lockkeeper jobs expect nightly --once-per day --time-zone Europe/Berlin"))]
pub(crate) struct ExpectArgs {
    /// The job
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// It is to run once per hour, day, week or month
    #[arg(long, value_name = "PERIOD", required_unless_present = "every", conflicts_with = "every")]
    #[arg(add = Completes::Words(&["hour", "day", "week", "month"]))]
    pub once_per: Option<Slot>,
    /// It is to run when this time has passed since its last start
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub every: Option<Duration>,
    /// Begin the periods of --once-per in this time zone, such as Europe/Berlin
    /// [env: LOCKKEEPER_JOBS_TIME_ZONE] [default: UTC]
    #[arg(long, value_name = "ZONE", value_parser = time_zone, requires = "once_per", conflicts_with = "every")]
    #[arg(add = Completes::TimeZones)]
    pub time_zone: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the job.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper jobs import`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("jobs import", "\
Comments, variables and schedules stay. Each command becomes a job with the slot of one start. Notes with line numbers go to \
standard error. Read them, then install the result: it contains the options of the place that you give here.", "\
Examples:
  crontab -l | lockkeeper jobs import - --servers zk1:2181,zk2:2181
  lockkeeper jobs import /etc/crontab --servers zk1:2181,zk2:2181"))]
pub(crate) struct ImportArgs {
    /// The crontab; - is standard input
    #[arg(value_name = "CRONTAB")]
    pub file: PathBuf,
    /// Read a column with the user, as in /etc/crontab and /etc/cron.d, where this is the default
    #[arg(long)]
    pub system: bool,
    /// The place of the jobs, for the rewritten lines.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper jobs resolve`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("decision").required(true)))]
#[command(after_help = help("jobs resolve", "", ""))]
pub(crate) struct ResolveArgs {
    /// The job
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Let the next machine that asks run the slot again
    ///
    /// Of a job with --slot, the next machine that asks for that text.
    #[arg(long, group = "decision")]
    pub again: bool,
    /// Count the slot as done
    #[arg(long, group = "decision")]
    pub accept: bool,
    /// Print the run and the decision as one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the job.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper jobs rerun`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("jobs rerun", "\
It runs nothing itself. The next machine that asks runs the slot: with --once-per the newest slot that ran, before that of the \
present; with --slot, the next machine that asks for this text.", ""))]
pub(crate) struct RerunArgs {
    /// The job
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// The slot, as jobs prints it [default: that of the last run]
    pub slot: Option<String>,
    /// Print the run and the decision as one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the job.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper jobs forget`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("jobs forget", "\
A job that is running is refused, because nothing would record its end. Wait for its end, or end it: lockkeeper revoke NAME.", ""))]
pub(crate) struct ForgetArgs {
    /// The job
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Print what was done as one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the job.
    #[command(flatten)]
    pub connect: ConnectArgs,
}
