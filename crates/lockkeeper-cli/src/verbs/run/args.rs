//! The options of `lockkeeper run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{FromArgMatches, ValueEnum};
use lockkeeper::{Class, NodeFormat};
use rustix::process::Signal;

use super::lease::LeaseArgs;
use super::slots::JobArgs;
use crate::args::common::Common;
use crate::args::values::{Completes, duration, positive_duration};
use crate::statuses::{Code, EXIT_STATUS, INTERNAL, REFUSED, Status, Statuses, lines};
use crate::verb::{Files, Sets};

/// The row of each verb that acquires locks with [`LockArgs`].
pub(crate) const NOT_ACQUIRED: Status = (
    Code::NotAcquired,
    "not acquired: taken (--try), --wait is over, or the wait was cancelled",
    "`revoke --node` cancels a wait, and so does deleting the waiting node",
);

/// The exit statuses of `lockkeeper run`.
pub(crate) const STATUSES: &[Status] = &[
    (
        Code::Usage,
        "the command line or a setting is wrong; nothing was done",
        "also if the lock is in use in another way (another kind, another number of permits, another node format), if the chroot does not \
         exist, and if this `run` would wait for a lock that the `run` around it holds",
    ),
    (
        Code::Unreachable,
        "no server was reachable, or none answered by the end of the wait",
        "with `connection.retry` or `connection.delay`, also if the session expired while waiting",
    ),
    INTERNAL,
    NOT_ACQUIRED,
    (
        Code::Lost,
        "the lock was lost while the command ran, or before its release",
        "the command was stopped, or had ended; also if a higher priority took a leased lock, and if the end of a job may not be in its \
         records",
    ),
    REFUSED,
    (
        Code::Kept,
        "an earlier run of the job failed or crashed, and a person must decide",
        "only with --on-failure keep or --on-crash keep; lockkeeper jobs resolve decides",
    ),
    (Code::TooLong, "the command ran for longer than --max-run, and was stopped", "the status of timeout(1)"),
    (Code::NotExecutable, "the command cannot be executed", "no permission, or its interpreter is missing"),
    (Code::NotFound, "the command was not found", ""),
];

/// Each paragraph is one line, which the parser wraps to the terminal's width. Indented lines fit into 80 columns.
const BEFORE_STATUSES: &str = "\
NAME is a name like nightly or team/nightly, meaning /locks/nightly and /locks/team/nightly, or an absolute path. Several locks are \
all held or none: run takes them in the order of their paths, so that no two commands wait for each other.

All users of one lock use it in the same way: --shared goes with plain and --exclusive, --permits with the same --permits, --class \
with --class, --lease with --lease. Another way, or another --format, at the same path is refused with 64, because the two would \
not exclude each other. (One order is checked only if the path does not exist yet: a holder with --format numbered, and a \
newcomer without it. So use it for all contenders of a path, or for none.) Only --permits and the plain kinds do, so they wait: a plain or shared hold takes all permits.

The command runs in a process group of its own and inherits the standard streams. LOCKKEEPER_TOKEN, LOCKKEEPER_PATH and \
LOCKKEEPER_NODE describe the hold, with a line for each of several. Signals sent to lockkeeper go to the whole group. So does \
the signal of --on-revoke when a revoke asks for the lock: the command then ends in its own time, or ignores it.

What a lock cannot do:

No lock can stop a process that is paused between a check and an action. If two at a time would do damage, let the resource refuse: \
LOCKKEEPER_TOKEN grows with every grant of the lock, so the resource can reject smaller ones. Permits have no token, because several \
are held at a time.

The hold ends with the command. What the command leaves running in the background, or as a daemon, runs without the lock.";

const EXAMPLES: &str = "\
Examples:
  lockkeeper run nightly -- ./job.sh
  lockkeeper run nightly --try --message 'nightly index' -- ./job.sh
  lockkeeper run deploy --wait 30s --servers zk1:2181,zk2:2181 -- make deploy
  lockkeeper run catalog --shared -- ./report.sh
  lockkeeper run downloads --permits 3 -- ./fetch.sh
  lockkeeper run index --background --on-revoke USR1 -- ./reindex.sh
  lockkeeper run index --background --yield USR1 -- ./reindex.sh
  lockkeeper run accounts orders -- ./transfer.sh
  lockkeeper run nightly --once-per day --max-run 2h -- ./job.sh";

fn long_help() -> String {
    let status = "that of the command; 128+n if signal n killed it. Of lockkeeper itself:";
    format!("{BEFORE_STATUSES}\n\n{EXIT_STATUS} {status}\n{}\n\n{EXAMPLES}", lines(STATUSES))
}

/// The variables of a command under a lock, of a job last. The texts are those of its page in the manual, with their marks.
pub(crate) const VARIABLES: &[(&str, &str)] = &[
    (
        "LOCKKEEPER_TOKEN",
        "the fencing token: a number greater than that of every earlier hold of this lock, the [epoch](admin.md#admin-epoch) included. \
         Not set with `--permits`: several permits are held at the same time, so none is the newest",
    ),
    ("LOCKKEEPER_PATH", "the lock's path"),
    ("LOCKKEEPER_NODE", "the node of this hold"),
    ("LOCKKEEPER_HELD", "the nodes of this hold and of the holds around it, one per line; for lockkeeper itself"),
    ("LOCKKEEPER_SLOT", "of a [job](../guide/jobs.md): the name of its slot, such as `2026-11-22`"),
];

/// Its files beside those of the place.
const FILES: &[(&str, &str)] = &[
    ("~/.local/state/lockkeeper/dead-letters.jsonl", "the commands of --dead-letter file that never got their lock"),
    ("~/.local/state/lockkeeper/unsent.jsonl", "refusals and ends of holds that no server has recorded yet"),
];

/// `lockkeeper run`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "All options, exit statuses and more examples: lockkeeper run --help",
    after_long_help = long_help(),
    add = Statuses(STATUSES),
    add = Files(FILES),
    add = Sets(VARIABLES),
    mut_arg("json", |json| json.help("Print messages as JSON lines on standard error")),
    override_usage = "lockkeeper run <NAME>... [OPTIONS] -- <COMMAND>..."
)]
pub(crate) struct RunArgs {
    /// The lock, or several: all of them or none
    #[arg(required = true, value_name = "NAME")]
    #[arg(add = Completes::Locks)]
    pub names: Vec<String>,
    /// The locks.
    #[command(flatten)]
    pub lock: LockArgs,
    /// Show the whole command line to everyone who may read the lock, not only the program's name
    #[arg(long, hide_short_help = true)]
    pub publish_command: bool,
    /// Send this signal to the command when a revoke asks for the lock: TERM, INT, HUP, USR1, USR2; or ignore
    ///
    /// With ignore, the command gets no signal, and lockkeeper refuses the request.
    #[arg(
        long,
        value_name = "SIGNAL",
        value_enum,
        ignore_case = true,
        default_value = "TERM",
        hide_possible_values = true
    )]
    pub on_revoke: OnRevoke,
    /// Make way for --foreground and other earlier classes: send this signal to the command when one of them waits: TERM, INT, HUP,
    /// USR1, USR2
    ///
    /// A command that then ends with 128+n, where n is the number of the signal, as one that the signal kills does, is started
    /// again after the others, before all later waiters of its class. With any other status, or if it does not end, nothing changes.
    /// It needs one lock with --background or --class. See --min-hold.
    #[arg(
        long = "yield",
        value_name = "SIGNAL",
        value_enum,
        ignore_case = true,
        hide_short_help = true,
        hide_possible_values = true
    )]
    pub yields: Option<JobSignal>,
    /// Make way only when the command has held the lock for this long [default: 1s]
    ///
    /// So the command always gets this much done, however often others come. It counts again each time that the lock is granted.
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "yields", hide_short_help = true)]
    pub min_hold: Option<Duration>,
    /// Give the command this long to end when the lock can no longer be relied on; then kill it [default: a fifth of the
    /// session timeout, at most 5s; of a lease, a quarter, at most 10s]
    ///
    /// At most a fifth of the session timeout, or half of the lease.
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub grace: Option<Duration>,
    /// Stop the command when it has run for this long: SIGTERM to its group, and SIGKILL after the grace period
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, hide_short_help = true)]
    pub max_run: Option<Duration>,
    /// Wait for a random time of up to this long before anything else, so that machines do not start at the same moment
    ///
    /// It comes before the time of --wait.
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub jitter: Option<Duration>,
    /// When the connection is lost while the lock may still be held: wait for the servers until the grace period begins, or
    /// stop the command immediately
    #[arg(long, value_name = "WHAT", value_enum, default_value = "wait", hide_short_help = true)]
    pub on_suspect: OnSuspect,
    /// Say nothing about the wait, and nothing if the lock is not acquired
    ///
    /// Everything else is still said: a lost lock, servers that do not answer, a job that crashed.
    #[arg(long, short, hide_short_help = true)]
    pub quiet: bool,
    /// Exit with this status if the lock is not acquired; with 0, say nothing about it
    #[arg(long, value_name = "STATUS", default_value_t = Code::NotAcquired.status(), hide_short_help = true)]
    pub conflict_exit_code: u8,
    /// Keep the command line here, for lockkeeper dlq, if it never gets the lock [default: not kept; with --background, the
    /// setting background.dead_letter]
    ///
    /// Nothing is kept if another attempt would fail in the same way, for example if the lock is in use in another way (78).
    /// Write file:PATH, in a directory that exists, or file, which is in the state directory, or kafka:HOST:PORT/TOPIC.
    #[arg(long, value_name = "WHERE", conflicts_with = "lease", hide_short_help = true)]
    pub dead_letter: Option<String>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
    /// The kind of lock.
    #[command(flatten)]
    pub kind: KindArgs,
    /// The lease.
    #[command(flatten)]
    pub leased: LeaseArgs,
    /// The job.
    #[command(flatten)]
    pub job: JobArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None::<&'static str>)]
    pub command: Vec<OsString>,
}

/// The locks, and how they are acquired.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct LockArgs {
    /// Give up immediately if the lock is taken
    ///
    /// With --lease, --try asks no owner to make room. So it also gives up if the owner has a lower priority, or if its lease is
    /// over and it keeps the lock until someone asks. To get the lock of an owner that died, leave out --try. If no server can
    /// be reached, lockkeeper gives up after 10s.
    #[arg(long = "try", conflicts_with = "wait")]
    pub once: bool,
    /// Give up after this long [default: waits; --foreground and --background: as the settings say]
    ///
    /// One deadline for starting a server, reaching it and waiting; lockkeeper gives up at most a second after it. 0s is --try: if no server
    /// can be reached, it gives up after 10s. With --retries, or --dead-letter of run, the default is otherwise 2s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Show this reason to everyone who looks at the lock
    #[arg(long, short, value_name = "TEXT")]
    pub message: Option<String>,
    /// After a loss, keep the lock unavailable for this long
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "lease", hide_short_help = true)]
    pub lock_delay: Option<Duration>,
    /// If this wait closes a ring of waits, each of which holds a lock that another one waits for: wait, or give up with the ring in
    /// the message
    ///
    /// For runs of several locks, and for a run in the command of another one. See lockkeeper deadlocks.
    #[arg(long, value_name = "WHAT", value_enum, default_value = "wait", hide_short_help = true)]
    pub deadlock: OnDeadlock,
    /// Try again this many times, with pauses, if the lock is not granted within --wait [default: 0; with --background,
    /// the setting background.retries]
    #[arg(long, value_name = "COUNT", conflicts_with = "lease", hide_short_help = true)]
    pub retries: Option<u32>,
    /// Pause this long before the first retry; each pause is about twice as long as the one before, up to 30s
    /// [env: LOCKKEEPER_BACKGROUND_RETRY_DELAY] [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub retry_delay: Option<Duration>,
    /// Do not record this hold, or its refusal, in the history of the lock [env: LOCKKEEPER_HISTORY=false]
    ///
    /// lockkeeper history and lockkeeper why --at show the records.
    #[arg(long, hide_short_help = true)]
    pub no_history: bool,
    /// Write the trace context of TRACEPARENT into the lock, so that the traces of those who wait can link to this one
    ///
    /// The text of TRACEPARENT is that of W3C Trace Context, which pipelines with tracing set. The command of run gets it unchanged,
    /// with or without this option. Everyone who may read the lock sees it. Without TRACEPARENT, this option does nothing.
    #[arg(long, conflicts_with = "lease", hide_short_help = true)]
    pub trace: bool,
}

/// Parses a recorded command line of `run`.
pub(crate) fn parse_run(words: impl IntoIterator<Item = OsString>) -> Result<RunArgs, String> {
    let run = <RunArgs as clap::Args>::augment_args(clap::Command::new("lockkeeper run").no_binary_name(true));
    let parsed = run.try_get_matches_from(words).and_then(|run| RunArgs::from_arg_matches(&run));
    parsed.map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// Whether `run` has an option of this name, given without its dashes.
pub(crate) fn is_option(name: &str) -> bool {
    let run = <RunArgs as clap::Args>::augment_args(clap::Command::new("run"));
    run.get_arguments().any(|option| option.get_long() == Some(name))
}

/// The kind of lock: at most one, with its own options.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "How the lock is held")]
pub(crate) struct KindArgs {
    /// Share the lock with other --shared holders
    ///
    /// A waiter that does not share is not overtaken.
    #[arg(long, group = "kind")]
    pub shared: bool,
    /// Hold the lock alone, with a writer's node, which the readers of foreign clients wait for
    ///
    /// Among lockkeeper's commands, the same as no option.
    #[arg(long, group = "kind", hide_short_help = true)]
    pub exclusive: bool,
    /// Hold one of the lock's COUNT permits, or several with --take
    #[arg(long, value_name = "COUNT", group = "kind", value_parser = clap::value_parser!(u32).range(1..))]
    pub permits: Option<u32>,
    /// Hold this many of the --permits, all or none
    #[arg(long, hide_short_help = true, value_name = "COUNT", requires = "permits", value_parser = clap::value_parser!(u32).range(1..))]
    pub take: Option<u32>,
    /// Hold the lock alone; wait before all of the background
    ///
    /// The same as --class A.
    #[arg(long, group = "kind")]
    pub foreground: bool,
    /// Hold the lock alone; wait behind all of the foreground
    ///
    /// The same as --class B.
    #[arg(long, group = "kind")]
    pub background: bool,
    /// Hold the lock alone; wait behind all classes before this one in the alphabet (1 to 32 bytes without blanks, -, / and %; not lock, read or write)
    #[arg(long, value_name = "CLASS", group = "kind", hide_short_help = true)]
    pub class: Option<Class>,
    /// Name the lock's nodes as these foreign clients do, to queue with them [default: curator]
    #[arg(long = "format", alias = "dialect", value_name = "FORMAT", value_enum, conflicts_with_all = ["permits", "foreground", "background", "class"], hide_short_help = true)]
    pub node_format: Option<NodeFormatArg>,
}

/// A node format.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum NodeFormatArg {
    /// Apache Curator
    Curator,
    /// The recipes of ZooKeeper's documentation
    Recipe,
    /// Kazoo
    Kazoo,
    /// Curator's LeaderLatch
    LeaderLatch,
    /// Clients with a base path and a name: nodes beside the path, a number behind its name
    Numbered,
}

impl RunArgs {
    /// Returns a request for locks without a command, which has the usual values of all options that a command has.
    pub(crate) fn without_command(
        (names, lock): (Vec<String>, LockArgs),
        (common, kind, leased): (Common, KindArgs, LeaseArgs),
    ) -> Self {
        let run = parse_run(["x", "--", "x"].map(Into::into)).expect("a name and a command are a command line");
        RunArgs { names, lock, common, kind, leased, command: Vec::new(), ..run }
    }

    /// Whether it is a problem that the lock is not acquired.
    pub(crate) fn reports_conflicts(&self) -> bool {
        !self.quiet && self.conflict_exit_code != 0
    }
}

impl From<NodeFormatArg> for NodeFormat {
    fn from(node_format: NodeFormatArg) -> Self {
        match node_format {
            NodeFormatArg::Curator => NodeFormat::Curator,
            NodeFormatArg::Recipe => NodeFormat::Recipe,
            NodeFormatArg::Kazoo => NodeFormat::Kazoo,
            NodeFormatArg::LeaderLatch => NodeFormat::LeaderLatch,
            NodeFormatArg::Numbered => NodeFormat::Numbered,
        }
    }
}

/// The reaction of a command while its lock is suspected to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnSuspect {
    /// Keep running until the grace period begins
    Wait,
    /// End immediately
    Stop,
}

/// What `run` does if it closes a ring of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnDeadlock {
    /// Wait
    #[default]
    Wait,
    /// Give up, as after --wait
    Fail,
}

/// A signal to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum JobSignal {
    /// SIGTERM: ends most commands
    Term,
    /// SIGINT, as Ctrl-C
    Int,
    /// SIGHUP
    Hup,
    /// SIGUSR1: ends a command that does not expect it
    Usr1,
    /// SIGUSR2: ends a command that does not expect it
    Usr2,
}

impl JobSignal {
    /// Returns the signal and its name.
    pub(crate) fn signal(self) -> (Signal, &'static str) {
        match self {
            JobSignal::Term => (Signal::TERM, "SIGTERM"),
            JobSignal::Int => (Signal::INT, "SIGINT"),
            JobSignal::Hup => (Signal::HUP, "SIGHUP"),
            JobSignal::Usr1 => (Signal::USR1, "SIGUSR1"),
            JobSignal::Usr2 => (Signal::USR2, "SIGUSR2"),
        }
    }
}

/// What the command gets when a revoke asks for its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnRevoke {
    Signal(JobSignal),
    /// No signal; lockkeeper refuses the request.
    Ignore,
}

impl ValueEnum for OnRevoke {
    fn value_variants<'a>() -> &'a [Self] {
        use JobSignal::{Hup, Int, Term, Usr1, Usr2};
        use OnRevoke::{Ignore, Signal};
        &[Signal(Term), Signal(Int), Signal(Hup), Signal(Usr1), Signal(Usr2), Ignore]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            OnRevoke::Signal(signal) => signal.to_possible_value(),
            OnRevoke::Ignore => Some(PossibleValue::new("ignore").help("No signal; lockkeeper refuses the request")),
        }
    }
}

impl OnRevoke {
    /// Returns the signal and its name; `None` for `ignore`.
    pub(crate) fn signal(self) -> Option<(Signal, &'static str)> {
        match self {
            OnRevoke::Signal(signal) => Some(signal.signal()),
            OnRevoke::Ignore => None,
        }
    }
}
