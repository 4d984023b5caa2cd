//! The options of jobs: those of `run` with a slot, and those of `lockkeeper jobs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use lockkeeper_jobs::Slot;

use crate::args::common::Common;
use crate::args::connect::ConnectArgs;
use crate::args::values::{Completes, positive_duration, time_zone};
use crate::statuses::{Code, Status, Statuses, help};

/// The exit statuses of `lockkeeper jobs`.
const STATUSES: &[Status] = &[
    (
        Code::Done,
        "printed; with --check, every job is in order",
        "a job whose records cannot be read is printed as `unreadable`, and the others as they are",
    ),
    (Code::NoSuchLock, "there is no such job; with --check, a job is late", ""),
    (
        Code::Declined,
        "with --check: a job failed, is unreadable, or waits for a person",
        "a failure that a person accepted does not count",
    ),
    (Code::Unreachable, "no server was reachable", ""),
];

/// The exit statuses of `lockkeeper jobs resolve`.
const RESOLVE: &[Status] =
    &[(Code::Done, "decided", ""), (Code::NoSuchLock, "no run of the job waits for a decision", "")];

/// The exit statuses of `lockkeeper jobs expect`.
const EXPECT: &[Status] = &[(Code::Done, "the job has records, from now on or since before", "")];

/// The exit statuses of `lockkeeper jobs forget`.
const FORGET: &[Status] =
    &[(Code::Done, "the records are deleted", ""), (Code::NoSuchLock, "the job has no records, or is running", "")];

/// The exit statuses of `lockkeeper jobs import`.
const IMPORT: &[Status] = &[
    (Code::Done, "every command is one of lockkeeper now, or was one before", ""),
    (Code::NoSuchLock, "some lines are not rewritten, as the notes say", ""),
];

/// The exit statuses of `lockkeeper jobs rerun`.
const RERUN: &[Status] = &[
    (Code::Done, "the slot runs again", ""),
    (
        Code::NoSuchLock,
        "it never ran, runs now or waits, or a later slot of --once-per ran",
        "also if another slot of the job runs now",
    ),
];

/// The exit statuses of `lockkeeper jobs pause`.
const PAUSE: &[Status] =
    &[(Code::Done, "the job is paused, also if it was before", ""), (Code::NoSuchLock, "there is no such job", "")];

/// The exit statuses of `lockkeeper jobs resume`.
const RESUME: &[Status] =
    &[(Code::Done, "the job goes on", ""), (Code::NoSuchLock, "there is no such job, or it is not paused", "")];

/// `lockkeeper jobs`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "lockkeeper jobs [NAME] [OPTIONS]\n       lockkeeper jobs <VERB>",
    after_help = "Exit statuses and examples: lockkeeper jobs --help",
    add = Statuses(STATUSES), after_long_help = help(STATUSES, "\
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
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl JobsArgs {
    /// Returns the options of the place and the output, which belong to the verb. Import prints a crontab, in no other form.
    pub(super) fn common(&self) -> Option<&Common> {
        match &self.verb {
            Some(JobsVerb::Import(_)) => None,
            Some(JobsVerb::Resolve(args)) => Some(&args.common),
            Some(JobsVerb::Rerun(args)) => Some(&args.common),
            Some(JobsVerb::Pause(args)) => Some(&args.common),
            Some(JobsVerb::Resume(args)) => Some(&args.common),
            Some(JobsVerb::Expect(args)) => Some(&args.common),
            Some(JobsVerb::Forget(args)) => Some(&args.common),
            None => Some(&self.common),
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
    /// Let no machine begin a run of a job, until a time or until it is resumed
    Pause(PauseArgs),
    /// End the pause of a job
    Resume(ResumeArgs),
    /// Say that a job is to run, so that it is late even if no machine ever asks
    Expect(ExpectArgs),
    /// Delete the records of a job
    Forget(ForgetArgs),
}

/// `lockkeeper jobs expect`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(EXPECT), after_help = help(EXPECT, "\
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
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

/// `lockkeeper jobs import`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(IMPORT), after_help = help(IMPORT, "\
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
#[command(add = Statuses(RESOLVE), after_help = help(RESOLVE, "", "\
Examples:
  lockkeeper jobs resolve nightly --again
  lockkeeper jobs resolve nightly --accept"))]
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
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

/// `lockkeeper jobs rerun`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(RERUN), after_help = help(RERUN, "\
It runs nothing itself. The next machine that asks runs the slot: with --once-per the newest slot that ran, before that of the \
present; with --slot, the next machine that asks for this text.", "\
Examples:
  lockkeeper jobs rerun nightly
  lockkeeper jobs rerun build 4711"))]
pub(crate) struct RerunArgs {
    /// The job
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// The slot, as jobs prints it [default: that of the last run]
    pub slot: Option<String>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

/// `lockkeeper jobs pause`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(PAUSE), after_help = help(PAUSE, "\
A run that goes on is not ended. A machine that asks meanwhile runs nothing and ends with 0, and its slot is recorded as left out: \
lockkeeper jobs NAME --history. A pause replaces the one before.", "\
Examples:
  lockkeeper jobs pause nightly --until 06:00 --reason 'the database moves'
  lockkeeper jobs pause nightly --until 2h --reason 'the database moves'"))]
pub(crate) struct PauseArgs {
    /// The job
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Go on by itself then: after a duration, at the next such time of day, or at a date and a time [default: when it is resumed]
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Record this reason; not empty, at most 1024 bytes
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

/// `lockkeeper jobs resume`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(RESUME), after_help = help(RESUME, "\
It runs nothing itself. The next machine that asks runs its slot, also one that was left out, if it is not over.", "\
Examples:
  lockkeeper jobs resume nightly"))]
pub(crate) struct ResumeArgs {
    /// The job
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

/// `lockkeeper jobs forget`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(FORGET), after_help = help(FORGET, "\
A job that is running is refused, because nothing would record its end. Wait for its end, or end it: lockkeeper revoke NAME.", "\
Examples:
  lockkeeper jobs forget report"))]
pub(crate) struct ForgetArgs {
    /// The job
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}
