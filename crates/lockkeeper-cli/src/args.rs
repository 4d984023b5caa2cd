//! The command line as it was typed.
//!
//! What a missing word means is not decided here: see [`crate::settings`].

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use lockkeeper::{Class, FencingToken, NodeFormat};
use rustix::process::Signal;

use crate::advice::{self, PlaceOption, Suggested};
use crate::exit::{Code, Failure};
use crate::limits::LimitArgs;
use crate::output::Printer;

mod leased;
mod mistakes;

pub(crate) use leased::{DecideArgs, LeaseArgs, RequestsArgs, StatsArgs};

/// Runs commands under locks that hold across processes and machines.
///
/// With no servers configured, the locks are this user's on this machine: a small server is started when none runs.
/// With --servers or LOCKKEEPER_SERVERS they are those of an Apache ZooKeeper ensemble, shared by all who use it.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Runs a command while holding a lock, or several
    Run(Box<RunArgs>),
    /// Lists the locks that somebody holds or waits for
    #[command(aliases = ["ls", "ps"])]
    List(ListArgs),
    /// Shows who holds a lock and who waits for it
    Show(ShowArgs),
    /// Explains why a lock cannot be had now, and what one can do
    Why(ShowArgs),
    /// Asks whoever holds a lock to let go
    Revoke(RevokeArgs),
    /// Takes a lock from whoever holds it, with a reason
    Break(BreakArgs),
    /// Tells how long a leased lock was held, and which timeouts follow
    Stats(StatsArgs),
    /// Lists the decisions about leased locks that operators are asked for
    Requests(RequestsArgs),
    /// Decides that a leased lock is taken from its owner, by force
    Approve(DecideArgs),
    /// Decides that a leased lock is left to its owner
    Reject(DecideArgs),
    /// Lists, replays and drops commands that never got their lock
    Dlq(DlqArgs),
    /// Replaces a file, or runs a command, unless a newer holder did
    Fence(FenceArgs),
    /// Tells the epoch of fencing tokens, and raises it
    ///
    /// It is raised after an ensemble was rebuilt or restored.
    Epoch(EpochArgs),
    /// Copies what lasts to other servers
    ///
    /// From this machine to an ensemble, and back.
    Copy(CopyArgs),
    /// Prints every setting and where it comes from
    Config(ConfigArgs),
    /// Runs the embedded server, as a ZooKeeper for this machine
    Serve(ServeArgs),
    /// Prints a completion script for a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints a manual page, or writes them all to a directory
    Man(ManArgs),
    /// Prints the version
    #[command(hide = true)]
    Version,
}

impl Verb {
    /// Whether to print for machines.
    pub(crate) fn json(&self) -> bool {
        match self {
            Verb::Run(args) => args.json,
            Verb::List(args) => args.json,
            Verb::Show(args) => args.json,
            Verb::Why(args) => args.json,
            Verb::Revoke(args) => args.json,
            Verb::Break(args) => args.json,
            Verb::Stats(args) => args.json,
            Verb::Requests(args) => args.json,
            Verb::Approve(args) | Verb::Reject(args) => args.json,
            Verb::Dlq(args) => args.verb.place().json,
            Verb::Epoch(args) => args.json,
            Verb::Copy(args) => args.json,
            Verb::Config(args) => args.json,
            Verb::Fence(_) | Verb::Serve(_) | Verb::Completions { .. } | Verb::Man(_) | Verb::Version => false,
        }
    }

    /// Whether it runs for long, so that what it says is read later, in a log.
    pub(crate) fn takes_a_while(&self) -> bool {
        match self {
            Verb::Run(_) | Verb::Serve(_) => true,
            Verb::Dlq(args) => matches!(args.verb, DlqVerb::Replay { .. }),
            _ => false,
        }
    }
}

impl Verb {
    /// The options that say where this command's locks are, for the commands that it prints.
    pub(crate) fn place(&self) -> Vec<PlaceOption> {
        let connect = match self {
            Verb::Run(args) => &args.connect,
            Verb::List(args) => &args.connect,
            Verb::Show(args) | Verb::Why(args) => &args.connect,
            Verb::Revoke(args) => &args.connect,
            Verb::Break(args) => &args.connect,
            Verb::Stats(args) => &args.connect,
            Verb::Requests(args) => &args.connect,
            Verb::Approve(args) | Verb::Reject(args) => &args.connect,
            Verb::Dlq(args) => &args.verb.place().connect,
            Verb::Epoch(args) => &args.connect,
            Verb::Copy(args) => &args.connect,
            Verb::Config(args) => &args.settings,
            Verb::Fence(_) | Verb::Serve(_) | Verb::Completions { .. } | Verb::Man(_) | Verb::Version => {
                return Vec::new();
            }
        };
        advice::place(connect, |name| std::env::var_os(name))
    }
}

/// Where the locks are.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Where the locks are")]
pub(crate) struct ConnectArgs {
    /// ZooKeeper servers, as zk1:2181,zk2:2181/chroot [env: LOCKKEEPER_SERVERS]
    #[arg(long, value_name = "SERVERS")]
    pub servers: Option<String>,
    /// Create the chroot of the servers if it is missing
    ///
    /// Without this, a missing chroot is an error: it may be misspelt.
    #[arg(long, hide_short_help = true)]
    pub create_chroot: bool,
    /// Where this user's own server keeps its state [env: LOCKKEEPER_STATE_DIR]
    ///
    /// It is used when no servers are given. The default is $XDG_STATE_HOME/lockkeeper or ~/.local/state/lockkeeper.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Use the server that all users of this machine share [env: LOCKKEEPER_MACHINE]
    ///
    /// It is a service of the machine: lockkeeper serve --machine. DIR is its directory, /var/lib/lockkeeper unless given.
    #[arg(long, hide_short_help = true, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = lockkeeper::embedded::MACHINE_DIR, conflicts_with_all = ["servers", "state_dir"])]
    pub machine: Option<PathBuf>,
    /// How long after a crash of this process its locks stay taken [env: LOCKKEEPER_SESSION_TIMEOUT]
    ///
    /// The command goes on while the servers are away for a quarter of it at least. The default is 30s with servers, and 10s with this
    /// user's own server.
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub session_timeout: Option<Duration>,
    /// Reads settings from this TOML file, in place of /etc/lockkeeper/config.toml and ~/.config/lockkeeper/config.toml
    /// [env: LOCKKEEPER_CONFIG]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub config: Option<PathBuf>,
    /// Reads settings from this Contentserv properties file; may be given several times [env: LOCKKEEPER_PROPERTIES]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub properties: Vec<PathBuf>,
    /// Speaks TLS with the servers, and trusts those whose certificates lead to one of these (PEM) [env: LOCKKEEPER_TLS_CA]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_ca: Option<PathBuf>,
    /// Shows the servers this certificate, with its chain (PEM) [env: LOCKKEEPER_TLS_CERT]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_cert: Option<PathBuf>,
    /// The key that belongs to the certificate (PEM) [env: LOCKKEEPER_TLS_KEY]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_key: Option<PathBuf>,
    /// Takes unknown zookeeper.* keys and unknown variables for mistakes, not for warnings [env: LOCKKEEPER_STRICT]
    #[arg(long, hide_short_help = true)]
    pub strict: bool,
}

/// A paragraph is one line: the parser breaks it where the terminal ends. Indented lines fit into 80 columns.
const RUN_HELP: &str = "\
NAME is a name like nightly or team/nightly, meaning /locks/nightly and /locks/team/nightly, or an absolute path. Of several, \
all are held or none: they are taken in the order of their paths, so that no two commands wait for each other.

All who use one lock say the same of it: --shared goes with plain and --exclusive, --permits with --permits, --class with \
--class, --lease with --lease. Others at the same path, or another node format, are refused: they would not see each other.

The command runs in a process group of its own, with its standard streams untouched, and is told of the hold in \
LOCKKEEPER_TOKEN, LOCKKEEPER_PATH and LOCKKEEPER_NODE, of several holds a line each. Signals sent to lockkeeper go to the whole \
group. So does --on-revoke's when somebody asks for the lock: the command ends in its own time, or not at all.

What a lock cannot do:

No lock can stop a process that is paused between looking and acting. If two at once would do damage, let the resource refuse: \
LOCKKEEPER_TOKEN grows with every grant of the lock, so it can turn away whoever comes with a smaller one. Permits have no token: \
they are held beside others.

The hold ends with the command. What it leaves running in the background, or as a daemon, runs without the lock.

Exit status: that of the command; 128+n if signal n killed it. Of lockkeeper itself:
   64  the command line is wrong
   69  no server could be reached
   70  internal failure
   73  the embedded server cannot start
   75  not acquired: taken (--try), --wait is over, or somebody called it off
   76  the lock was lost while the command ran; it was stopped
   77  the server refused
   78  the lock has another number of permits, or the chroot does not exist
   79  a higher priority took the lock (--lease); the command was stopped
   80  the session expired while waiting, and the time was over
   81  the lock's node was gone when it was to be unlocked
  126  the command cannot be executed
  127  the command was not found

Examples:
  lockkeeper run nightly -- ./job.sh
  lockkeeper run nightly --try --message 'nightly index' -- ./job.sh
  lockkeeper run deploy --wait 30s --servers zk1:2181,zk2:2181 -- make deploy
  lockkeeper run catalog --shared -- ./report.sh
  lockkeeper run downloads --permits 3 -- ./fetch.sh
  lockkeeper run index --background --on-revoke USR1 -- ./reindex.sh
  lockkeeper run accounts orders -- ./transfer.sh";

/// `lockkeeper run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "All options, exit statuses and more examples: lockkeeper run --help",
    after_long_help = RUN_HELP,
    override_usage = "lockkeeper run <NAME>... [OPTIONS] -- <COMMAND>..."
)]
pub(crate) struct RunArgs {
    /// The lock, or several: all of them or none
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Gives up at once if the lock is taken
    #[arg(long = "try", conflicts_with = "wait")]
    pub once: bool,
    /// Gives up after this long [default: waits]
    ///
    /// The time begins with the command: it includes starting a server and reaching it. 0s is --try.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Says why, to those who wait and look
    #[arg(long, short, value_name = "TEXT")]
    pub message: Option<String>,
    /// Shows the whole command line to everyone who may read the lock, not only the program's name
    #[arg(long, hide_short_help = true)]
    pub publish_command: bool,
    /// What the command gets when somebody asks for the lock
    ///
    /// With ignore it gets nothing, and whoever asks is told that the lock is not to be had.
    #[arg(
        long,
        value_name = "SIGNAL",
        value_enum,
        ignore_case = true,
        default_value = "TERM",
        hide_possible_values = true
    )]
    pub on_revoke: OnRevoke,
    /// When the lock can no longer be relied on, how long the command may take to end before it is killed
    ///
    /// At most a third of the session timeout, or half of the lease. The default is a quarter.
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub grace: Option<Duration>,
    /// When the hold ends against its will, how long nobody is to get the lock
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "lease", hide_short_help = true)]
    pub lock_delay: Option<Duration>,
    /// When the connection is lost while the lock may still be held: wait for the servers until the grace period begins, or
    /// stop the command at once
    #[arg(long, value_name = "WHAT", value_enum, default_value = "wait", hide_short_help = true)]
    pub on_suspect: OnSuspect,
    /// The exit status for "not acquired"
    #[arg(long, value_name = "STATUS", default_value_t = Code::NotAcquired as u8, hide_short_help = true)]
    pub conflict_exit_code: u8,
    /// Tries so often again, with pauses, if the lock is not granted within --wait
    ///
    /// The default is 0; of --background, LOCKKEEPER_BACKGROUND_RETRIES or the setting.
    #[arg(long, value_name = "COUNT", conflicts_with = "lease", hide_short_help = true)]
    pub retries: Option<u32>,
    /// The first of these pauses; each is about twice as long as the one before, up to 30s
    /// [env: LOCKKEEPER_BACKGROUND_RETRY_DELAY] [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub retry_delay: Option<Duration>,
    /// Where the command line is kept if it never gets the lock, for lockkeeper dlq
    ///
    /// Write file:PATH, or file, which is in the state directory, or kafka:HOST:PORT/TOPIC. With --background the default is
    /// LOCKKEEPER_BACKGROUND_DEAD_LETTER or the setting.
    #[arg(long, value_name = "WHERE", conflicts_with = "lease", hide_short_help = true)]
    pub dead_letter: Option<String>,
    /// Prints what lockkeeper has to say as JSON, a line each, on standard error
    #[arg(long)]
    pub json: bool,
    /// How it is held.
    #[command(flatten)]
    pub kind: KindArgs,
    /// Where the lock is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Holds a leased lock instead of standing in line
    #[command(flatten)]
    pub leased: LeaseArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None::<&'static str>)]
    pub command: Vec<OsString>,
}

/// How a lock is held. At most one of these, and what goes with it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How the lock is held")]
pub(crate) struct KindArgs {
    /// Holds the lock beside others who share it, and beside nobody else
    #[arg(long, group = "kind")]
    pub shared: bool,
    /// Holds the lock alone. So it is without this; with it, as the writer of a lock that other makers' readers share
    #[arg(long, group = "kind", hide_short_help = true)]
    pub exclusive: bool,
    /// The lock has this many permits; takes one of them, or --take
    #[arg(long, value_name = "COUNT", group = "kind", value_parser = clap::value_parser!(u32).range(1..))]
    pub permits: Option<u32>,
    /// Takes so many of the --permits, all or none
    #[arg(long, hide_short_help = true, value_name = "COUNT", requires = "permits", value_parser = clap::value_parser!(u32).range(1..))]
    pub take: Option<u32>,
    /// Holds the lock alone; while waiting, before all of the background
    ///
    /// The same as --class A.
    #[arg(long, group = "kind")]
    pub foreground: bool,
    /// Holds the lock alone; while waiting, behind all of the foreground
    ///
    /// The same as --class B.
    #[arg(long, group = "kind")]
    pub background: bool,
    /// Holds the lock alone; while waiting, behind all of the classes before it in the alphabet
    #[arg(long, value_name = "CLASS", group = "kind", hide_short_help = true)]
    pub class: Option<Class>,
    /// Names the lock's nodes as these other clients do, to stand in one line with them [default: curator]
    #[arg(long = "format", alias = "dialect", value_name = "FORMAT", value_enum, conflicts_with_all = ["permits", "foreground", "background", "class"], hide_short_help = true)]
    pub node_format: Option<NodeFormatArg>,
}

/// Whose names the nodes have.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum NodeFormatArg {
    /// Apache Curator
    Curator,
    /// The recipes of ZooKeeper's documentation
    Recipe,
    /// Kazoo
    Kazoo,
}

impl From<NodeFormatArg> for NodeFormat {
    fn from(node_format: NodeFormatArg) -> Self {
        match node_format {
            NodeFormatArg::Curator => NodeFormat::Curator,
            NodeFormatArg::Recipe => NodeFormat::Recipe,
            NodeFormatArg::Kazoo => NodeFormat::Kazoo,
        }
    }
}

/// What becomes of a command whose lock is suspected to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnSuspect {
    /// Goes on until it takes the grace period to be gone in time
    Wait,
    /// Is told to end at once
    Stop,
}

/// What a command gets when somebody asks for its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum OnRevoke {
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
    /// Nothing; whoever asks is told that the lock is not to be had
    #[value(name = "ignore")]
    Ignore,
}

impl OnRevoke {
    /// The signal, if it is one, and its name.
    pub(crate) fn signal(self) -> Option<(Signal, &'static str)> {
        match self {
            OnRevoke::Term => Some((Signal::TERM, "SIGTERM")),
            OnRevoke::Int => Some((Signal::INT, "SIGINT")),
            OnRevoke::Hup => Some((Signal::HUP, "SIGHUP")),
            OnRevoke::Usr1 => Some((Signal::USR1, "SIGUSR1")),
            OnRevoke::Usr2 => Some((Signal::USR2, "SIGUSR2")),
            OnRevoke::Ignore => None,
        }
    }
}

/// `lockkeeper list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    pub prefix: Option<String>,
    /// Lists who was removed from locks by break, the oldest first, instead
    #[arg(long)]
    pub broken: bool,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where the locks are.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper show` and `lockkeeper why`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The lock
    pub name: String,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where the lock is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper revoke`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nothing is taken by force. A command under lockkeeper run gets the signal of its --on-revoke, and the lock is free when it has \
ended. To take a lock away: lockkeeper break.

Exit status:
   0  asked; with --wait, all who were asked have let go
   1  there is nobody to ask
   2  with --wait: somebody refused
  75  with --wait: not all have answered in time")]
pub(crate) struct RevokeArgs {
    /// The lock
    pub name: String,
    /// Whom: the name of its node, as show tells it; one in line is asked to withdraw [default: all who hold the lock]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Why, for those who are asked
    #[arg(long, short, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Waits for the answers, at most this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Prints who was asked, and what they answered, as one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where the lock is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper break`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Whoever is removed is told, but what it does at this moment is not undone: the next holder may be at work beside it until it has \
stopped. Only a resource that looks at LOCKKEEPER_TOKEN is safe from that. Who broke what, when and why stays to be read: \
lockkeeper list --broken.")]
pub(crate) struct BreakArgs {
    /// The lock
    pub name: String,
    /// Why, for those who ask later
    #[arg(long, short, value_name = "TEXT")]
    pub reason: String,
    /// Whom: the name of its node, as show tells it; it may also be one in line [default: the only holder]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Does not ask
    #[arg(long, short)]
    pub yes: bool,
    /// Prints what was done as one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where the lock is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper dlq`.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Exit status:
   0  done; of replay: every letter that was named was done, each command with 0
   1  there is no such letter, or nothing is to be done about it any more
  64  the command line or a setting is wrong
  70  the letters cannot be read or written
  75  of replay: at least one letter was not done and stays"
)]
pub(crate) struct DlqArgs {
    /// What to do with them.
    #[command(subcommand)]
    pub verb: DlqVerb,
}

/// What to do with dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqVerb {
    /// Lists the letters that wait, the oldest first
    List {
        /// Those that were replayed or dropped too
        #[arg(long)]
        all: bool,
        /// Which letters.
        #[command(flatten)]
        place: DlqPlace,
    },
    /// Shows one letter
    Show {
        /// The operation, or the beginning of its id
        operation: String,
        /// Which letters.
        #[command(flatten)]
        place: DlqPlace,
    },
    /// Runs the command of a letter under its lock; one that succeeds is marked, one that fails stays
    Replay {
        /// The operations, or the beginnings of their ids
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        operations: Vec<String>,
        /// All that wait, the oldest first
        #[arg(long)]
        all: bool,
        /// Also what somebody has begun without telling how it ended: it may be done twice
        #[arg(long)]
        again: bool,
        /// Which letters.
        #[command(flatten)]
        place: DlqPlace,
    },
    /// Marks a letter as not wanted any more
    Drop {
        /// The operations, or the beginnings of their ids
        #[arg(required = true)]
        operations: Vec<String>,
        /// Why, for those who ask later
        #[arg(long, short, value_name = "TEXT")]
        reason: Option<String>,
        /// Which letters.
        #[command(flatten)]
        place: DlqPlace,
    },
}

impl DlqVerb {
    /// Which letters.
    pub(crate) fn place(&self) -> &DlqPlace {
        match self {
            DlqVerb::List { place, .. }
            | DlqVerb::Show { place, .. }
            | DlqVerb::Replay { place, .. }
            | DlqVerb::Drop { place, .. } => place,
        }
    }
}

/// Which dead letters.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DlqPlace {
    /// Where they are kept, as run --dead-letter says [env: LOCKKEEPER_BACKGROUND_DEAD_LETTER] [default: file]
    #[arg(long, value_name = "WHERE")]
    pub dead_letter: Option<String>,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where settings are read from.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper fence`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Beside FILE, FILE.fence keeps the greatest token that has been seen, and is locked while FILE is replaced or the command runs. \
Whoever comes with a smaller token is refused with exit status 76, and nothing was changed. Use it in a job:
  lockkeeper run nightly -- sh -c 'report > new && lockkeeper fence all < new'
  lockkeeper run nightly -- lockkeeper fence /mirror -- rsync -a src/ /mirror/

Standard input is taken to its end: generate first where that may fail. A command has the gate until it has ended, and all that \
it leaves running.")]
pub(crate) struct FenceArgs {
    /// The file, or what else the gate is for
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The token of the hold [env: LOCKKEEPER_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<FencingToken>,
    /// Runs this behind FILE's gate, in place of replacing FILE
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `lockkeeper epoch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Tokens grow for the life of one ensemble. One that was rebuilt empty, restored from an older backup or put in another's place \
begins below: then raise the epoch above the greatest token that any resource has seen, before those who hold locks come back. \
The epoch is never lowered, so raising it asks first; without a terminal it is refused unless --yes is given.

Exit status:
   0  told, or raised
   1  nothing was changed: the answer to the question was not yes
  64  the command line is wrong, or there is no terminal to ask on
  78  the node of the epoch holds no number")]
pub(crate) struct EpochArgs {
    /// Raises the epoch, so that all tokens to come are greater than this one
    #[arg(long, value_name = "TOKEN")]
    pub above: Option<FencingToken>,
    /// Does not ask before it raises the epoch
    #[arg(long, short, requires = "above")]
    pub yes: bool,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where the locks are.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper copy`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies nodes with their data and access lists, parents first. Nodes that end with a session are left out: stop what takes locks, \
then copy. So are /zookeeper, with its quotas, and the epoch of tokens. Nothing is copied while a node is at the target with other \
content, or while the target's tokens are not above the source's. Copying again is harmless.

Exit status:
   0  copied; with --dry-run: would be
  78  nothing was copied: other content is there, or tokens would fall

Examples:
  lockkeeper copy --to zk1:2181,zk2:2181,zk3:2181 --dry-run
  lockkeeper copy --to zk1:2181,zk2:2181,zk3:2181 --raise-epoch
  lockkeeper copy --servers zk1/app --to zk2/app --create-chroot /config")]
pub(crate) struct CopyArgs {
    /// Where to copy to, as --servers says where from
    #[arg(long, value_name = "SERVERS")]
    pub to: String,
    /// What to copy, with all below and the parents that are missing: absolute paths [default: everything]
    #[arg(value_name = "PATH")]
    pub paths: Vec<String>,
    /// Replaces nodes that are at the target with other data or another access list
    #[arg(long)]
    pub overwrite: bool,
    /// First raises the target's epoch of tokens, if its tokens would not be above the source's
    #[arg(long, conflicts_with = "dry_run")]
    pub raise_epoch: bool,
    /// Compares, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Proves itself on both sides with what this file has: lines such as `digest USER:PASSWORD`
    #[arg(long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Prints what was done as one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where to copy from.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper config`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The later layer counts: defaults, /etc/lockkeeper/config.toml, ~/.config/lockkeeper/config.toml, --properties files, a --config \
file, the environment, flags. With a properties file, what it leaves out is as Contentserv's document has it.")]
pub(crate) struct ConfigArgs {
    /// Opens a session, and tells what session timeout the server agrees to
    #[arg(long)]
    pub connect: bool,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
    /// What to read.
    #[command(flatten)]
    pub settings: ConnectArgs,
}

/// `lockkeeper man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockkeeper man run | man -l -
  lockkeeper man --directory ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Whose page: a verb, or a verb and what it is followed by, as in dlq replay [default: the main page]
    #[arg(value_name = "VERB")]
    pub verb: Vec<String>,
    /// Writes every page into this directory, which is made if it is missing
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    pub directory: Option<PathBuf>,
}

/// `lockkeeper serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Any ZooKeeper client on this machine can use it. One machine, one disk: not an ensemble. Stop it with Ctrl-C or SIGTERM; \
everything that was acknowledged is on the disk.")]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2181")]
    pub listen: SocketAddr,
    /// Where to keep the data [default: the state directory's serve/]
    #[arg(long, value_name = "DIR", conflicts_with = "memory")]
    pub data: Option<PathBuf>,
    /// Keeps everything in memory: a restart starts empty
    #[arg(long)]
    pub memory: bool,
    /// Serve all users of this machine, for run --machine and the others
    ///
    /// DIR is the server's directory, /var/lib/lockkeeper unless given. Users who may enter it may use the server.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = lockkeeper::embedded::MACHINE_DIR)]
    #[arg(conflicts_with_all = ["listen", "data", "memory", "allow_remote", "tls_cert", "accounts", "state_dir"])]
    pub machine: Option<PathBuf>,
    /// Allows an address that other machines can reach; see --tls-cert
    #[arg(long)]
    pub allow_remote: bool,
    /// Speaks TLS only, with this certificate and its chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key that belongs to the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Turns away clients without a certificate that leads to one of these (PEM); access lists name them x509:SUBJECT
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Where to serve operators' HTTP: /health, /metrics and /commands [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin: Option<SocketAddr>,
    /// Whom to let do more than everyone: a file of lines `super USER:HASH` (digest) and `sasl USER:PASSWORD`
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub accounts: Option<PathBuf>,
    /// In a new data directory, counts transactions from after this one, so that fencing tokens stay above those of a server
    /// that this one replaces
    #[arg(long, hide_short_help = true, value_name = "ZXID", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    pub first_zxid: i64,
    /// Where the default data directory is [env: LOCKKEEPER_STATE_DIR]
    #[arg(long, hide_short_help = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// How far clients can make it grow.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Parses a recorded command line of `run`.
pub(crate) fn parse_run(words: impl IntoIterator<Item = OsString>) -> Result<RunArgs, String> {
    let words = [OsString::from("lockkeeper"), OsString::from("run")].into_iter().chain(words);
    match Args::try_parse_from(words).map(|args| args.verb) {
        Ok(Verb::Run(args)) => Ok(*args),
        Ok(_) => Err("it is no command line of run".to_owned()),
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

/// Parses the command line; help, version and mistakes are printed here.
pub(crate) fn parse() -> Result<Args, ExitCode> {
    let error = match Args::try_parse() {
        Ok(args) => return Ok(args),
        Err(error) => error,
    };
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Broken pipe: whoever looks at the help has seen enough.
        _ = error.print();
        return Err(ExitCode::SUCCESS);
    }
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let json = before_command(&words).iter().any(|word| word == "--json");
    Printer::new(json).failure(&mistakes::failure(&error, &words));
    crate::streams::flush();
    Err(ExitCode::from(Code::Usage as u8))
}

/// The words of lockkeeper's own.
fn before_command(words: &[OsString]) -> &[OsString] {
    words.split(|word| word == "--").next().unwrap_or_default()
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 500ms, 30s, 5m or 3h"))
}

/// The option of `run` that has this name, without its dashes.
pub(crate) fn run_option(name: &str) -> Option<String> {
    let command = Args::command();
    let mut options = command.find_subcommand("run")?.get_arguments().filter_map(clap::Arg::get_long);
    options.find(|option| *option == name).map(str::to_owned)
}

/// Prints a completion script.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "lockkeeper", &mut script);
    print(&script)
}

/// Prints a manual page, or writes them all.
pub(crate) fn man(args: ManArgs) -> Result<u8, Failure> {
    let all = pages();
    if let Some(directory) = args.directory {
        let failed = |what: &Path, error| Failure::system(&format!("cannot write {}", what.display()), error);
        std::fs::create_dir_all(&directory).map_err(|error| failed(&directory, error))?;
        for page in all {
            let file = directory.join(format!("{}.1", page_name(&page)));
            std::fs::write(&file, rendered(page)?).map_err(|error| failed(&file, error))?;
        }
        return Ok(0);
    }
    let words: Vec<_> = std::iter::once("lockkeeper").chain(args.verb.iter().map(String::as_str)).collect();
    let name = words.join("-");
    match all.into_iter().find(|page| page_name(page) == name) {
        Some(page) => print(&rendered(page)?),
        None => Err(Failure::new(Code::Usage, format!("there is no page for {:?}", args.verb.join(" ")))
            .advise("see all verbs", Suggested::new(["--help"]).elsewhere())),
    }
}

/// The commands that have a manual page.
fn pages() -> Vec<clap::Command> {
    fn collect(command: &clap::Command, pages: &mut Vec<clap::Command>) {
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).for_each(|verb| collect(verb, pages));
        // A page has what the short help leaves out; the renderer would leave out its text.
        pages.push(command.clone().mut_args(|option| option.hide_short_help(false)));
    }
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages);
    pages
}

/// The name of a command's page: `lockkeeper`, `lockkeeper-run`, `lockkeeper-dlq-replay`.
fn page_name(page: &clap::Command) -> &str {
    page.get_display_name().unwrap_or_else(|| page.get_name())
}

fn rendered(page: clap::Command) -> Result<Vec<u8>, Failure> {
    let source = format!("lockkeeper {}", env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(page).source(source);
    page.render(&mut text).map_err(|error| Failure::system("cannot make the page", error))?;
    Ok(text)
}

/// Prints the version.
pub(crate) fn version() -> Result<u8, Failure> {
    print(Args::command().render_version().as_bytes())
}

fn print(text: &[u8]) -> Result<u8, Failure> {
    crate::output::tolerate_closed(std::io::stdout().write_all(text))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Args::command().debug_assert();
    }

    /// Every command with all that it prints in its help.
    fn commands() -> Vec<clap::Command> {
        fn collect(command: &clap::Command, all: &mut Vec<clap::Command>) {
            command.get_subcommands().for_each(|verb| collect(verb, all));
            all.push(command.clone());
        }
        let mut command = Args::command();
        command.build();
        let mut all = Vec::new();
        collect(&command, &mut all);
        all
    }

    /// A paragraph with breaks of its own is broken a second time where the terminal is narrower.
    #[test]
    fn help_is_broken_into_lines_once() {
        for command in commands() {
            let texts = [command.get_after_help(), command.get_after_long_help(), command.get_long_about()];
            for text in texts.into_iter().flatten().map(ToString::to_string) {
                let lines: Vec<_> = text.lines().collect();
                for pair in lines.windows(2) {
                    let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
                    assert!(!(is_text(pair[0]) && is_text(pair[1])), "{}: {pair:?}", command.get_name());
                }
                let wide = lines.iter().find(|line| line.starts_with(' ') && line.chars().count() > 80);
                assert_eq!(wide, None, "{}", command.get_name());
            }
        }
    }

    /// The manual, README and the guide.
    fn documents() -> Vec<(PathBuf, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let guide = std::fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
        let files = [root.join("README.md"), root.join("docs/command.md")].into_iter().chain(guide);
        files.map(|file| (file.clone(), std::fs::read_to_string(&file).unwrap())).collect()
    }

    #[test]
    fn the_manual_names_every_option_and_no_other() {
        let (_, manual) = documents().remove(1);
        let commands = commands();
        let known: Vec<_> =
            commands.iter().flat_map(clap::Command::get_arguments).filter_map(clap::Arg::get_long).collect();
        let named = |option: &str| {
            let option = format!("--{option}");
            let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
            manual.match_indices(&option).any(|(at, _)| ends(&manual[at + option.len()..]))
        };
        // The limits of the server are in docs/server.md.
        let limits = <LimitArgs as clap::Args>::augment_args(clap::Command::new("limits"));
        let elsewhere = |option: &str| limits.get_arguments().any(|limit| limit.get_long() == Some(option));
        let missing: Vec<_> = known.iter().filter(|option| !elsewhere(option) && !named(option)).collect();
        assert!(missing.is_empty(), "{missing:?} is missing in docs/command.md");
        for (at, _) in manual.match_indices("`--") {
            let option: String =
                manual[at + 3..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            // Of cargo, not of lockkeeper.
            let family = option.ends_with('-') && known.iter().any(|known| known.starts_with(&option));
            assert!(
                known.contains(&option.as_str()) || family || option == "features",
                "docs/command.md has --{option}"
            );
        }
    }

    /// Every command line of ours in the documents and in the help can be typed.
    #[test]
    fn examples_can_be_typed() {
        let mut examples = Vec::new();
        for (file, text) in documents() {
            let lines = text.lines().map(|line| line.trim().trim_start_matches("$ "));
            let inline = text.split('`').skip(1).step_by(2);
            let found = lines.chain(inline).filter(|line| line.starts_with("lockkeeper "));
            examples.extend(found.map(|line| (file.display().to_string(), line.to_owned())));
        }
        for command in commands() {
            let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
            let help = help.unwrap_or_default();
            let found = help.lines().map(str::trim).filter(|line| line.starts_with("lockkeeper "));
            examples.extend(found.map(|line| (command.get_name().to_owned(), line.to_owned())));
        }
        let (mut tried, mut refused) = (0, Vec::new());
        for (file, example) in examples {
            // Without what stands beside it.
            let mut line = example.split("  ").next().unwrap_or_default().to_owned();
            for (placeholder, value) in [("TOKEN", "7"), ("ZXID", "7"), ("SHELL", "bash"), ("VERB", "run")] {
                line = line.replace(placeholder, value);
            }
            // A pattern, or one that is cut.
            if line.contains(['…', '[', '{']) || line.contains("__watch") || line.contains("...") {
                continue;
            }
            let words = shlex::split(&line).unwrap_or_else(|| panic!("{file}: {example}"));
            let shells = words.iter().position(|word| ["#", "|", "<", ">"].contains(&word.as_str()));
            let words = &words[..shells.unwrap_or(words.len())];
            if words.iter().any(|word| word.contains('|')) {
                continue;
            }
            tried += 1;
            if let Err(error) = Args::try_parse_from(words) {
                let kind = error.kind();
                let fine = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
                    // A sentence names a verb, or a verb with its options.
                    || kind == ErrorKind::MissingRequiredArgument
                    || kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
                if !fine {
                    refused.push(format!("{file}: {example}: {error}"));
                }
            }
        }
        assert!(tried > 30 && refused.is_empty(), "{tried}: {refused:#?}");
    }

    #[test]
    fn every_verb_has_a_page() {
        let names: Vec<_> = pages().iter().map(|page| page_name(page).to_owned()).collect();
        for name in ["lockkeeper", "lockkeeper-run", "lockkeeper-dlq-replay", "lockkeeper-serve"] {
            assert!(names.iter().any(|page| page == name), "{name} is missing in {names:?}");
        }
        for page in pages() {
            let name = page_name(&page).to_owned();
            let text = String::from_utf8(rendered(page).unwrap()).unwrap();
            assert!(text.contains(&format!(".TH {name} 1")) && text.contains("SYNOPSIS"), "{name}: {text}");
            // What an option or an argument is stands below it.
            let lines: Vec<_> = text.lines().collect();
            let bare = lines.windows(3).find(|lines| lines[0] == ".TP" && lines[2].is_empty());
            assert_eq!(bare, None, "{name}");
        }
    }

    #[test]
    fn case_47_waits_may_take_hours() {
        assert_eq!(duration("3h"), Ok(Duration::from_secs(3 * 3600)));
        assert!(duration("30").is_err_and(|error| error.contains("30s")));
        assert!(duration("-1s").is_err());
    }
}
