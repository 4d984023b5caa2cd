//! What belongs to leased locks: how one is held, what was counted of it, and who decides when its owner hangs.

use std::time::Duration;

use super::{ConnectArgs, duration};

/// What makes a leased lock, as Apache Helix has it.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Leased locks, shared with Apache Helix")]
pub(crate) struct LeaseArgs {
    /// Takes the lock for this long, or not at all
    ///
    /// The command is stopped when that is over.
    #[arg(long, value_name = "DURATION", value_parser = duration, group = "kind", conflicts_with_all = ["wait", "once", "node_format"])]
    pub lease: Option<Duration>,
    /// Takes the lock from owners of a lower priority; 0 is the lowest
    #[arg(long, hide_short_help = true, value_name = "NUMBER", default_value_t = 0, requires = "lease")]
    pub priority: i32,
    /// How long to wait for a lower owner's cleanup [default: as long as it may take]
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = duration, requires = "lease")]
    pub waiting: Option<Duration>,
    /// How long the command may take to end when a higher priority wants the lock: it gets what --on-revoke says, and its group is killed
    /// after this
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = duration, default_value = "0s", requires = "lease")]
    pub cleanup: Duration,
    /// Takes the lock when the wait is over, whether the owner has cleaned up or not
    #[arg(long, hide_short_help = true, requires = "lease")]
    pub forceful: bool,
    /// Leaves the node of the free lock, as is needed where Helix's own clients use it too
    #[arg(long, hide_short_help = true, requires = "lease")]
    pub keep_node: bool,
    /// Holds the lock as this user id, and takes it up where it was handed to it [default: one of its own]
    #[arg(long, hide_short_help = true, value_name = "ID", requires = "lease")]
    pub id: Option<String>,
    /// Hands the lock to this user id, in one step, when the command has succeeded; it is released if the command fails
    #[arg(long, hide_short_help = true, value_name = "ID", requires = "lease")]
    pub hand_to: Option<String>,
    /// When the wait is over and the owner has not cleaned up, asks operators at most this long (lockkeeper requests, approve,
    /// reject); no answer is a no
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = duration, requires = "lease", conflicts_with = "forceful")]
    pub ask: Option<Duration>,
    /// Runs this shell command when operators are asked, with all that is known as JSON on its standard input
    #[arg(long, hide_short_help = true, value_name = "COMMAND", requires = "ask")]
    pub alert_command: Option<String>,
    /// Posts the same to this http or https address
    #[cfg(feature = "webhook")]
    #[arg(long, hide_short_help = true, value_name = "URL", requires = "ask", value_parser = crate::alert::webhook)]
    pub alert_webhook: Option<String>,
    /// Adds what becomes of the hold and of the wait to what lockkeeper stats tells of this lock
    #[arg(long, hide_short_help = true, requires = "lease")]
    pub stats: bool,
}

/// `lockkeeper stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Only what was counted is told: by commands with --stats, and by programs that publish their statistics.

Exit status:
   0  told, or forgotten
   1  nothing was counted of this lock")]
pub(crate) struct StatsArgs {
    /// The lock
    pub name: String,
    /// Forgets what was counted so far
    #[arg(long)]
    pub reset: bool,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where the lock is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper requests`.
#[derive(Debug, clap::Args)]
pub(crate) struct RequestsArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    pub prefix: Option<String>,
    /// Lists what was decided lately, by whom and why, the oldest first, instead
    #[arg(long)]
    pub decided: bool,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where the locks are.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper approve` and `lockkeeper reject`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first answer counts. An approved requestor takes the lock although its owner may still be at work: only a resource that looks \
at LOCKKEEPER_TOKEN is safe from that. Who decided what, when and why stays to be read: lockkeeper requests --decided.

Exit status:
   0  decided
   1  no such decision is waited for, or not any more
   2  somebody has decided before
  64  several wait: choose one with --id")]
pub(crate) struct DecideArgs {
    /// The lock
    pub name: String,
    /// Why, for those who ask later
    #[arg(long, short, value_name = "TEXT")]
    pub reason: String,
    /// Which, as requests tells it [default: the only one]
    #[arg(long, hide_short_help = true, value_name = "ID")]
    pub id: Option<String>,
    /// Prints what was decided as one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where the lock is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}
