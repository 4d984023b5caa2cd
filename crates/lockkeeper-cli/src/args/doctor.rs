//! The options of the verbs that look for trouble, and tidy up.

use std::time::Duration;

use super::connect::ConnectArgs;
use super::values::{Completes, duration};
use crate::statuses::help;

/// `lockkeeper doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("doctor", "\
Each finding begins with !! if it is serious, or with ! if it is a notice, and ends with the command that handles it. The last lines \
say what the command could not see.", ""))]
pub(crate) struct DoctorArgs {
    /// Where to look for locks: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper gc`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("gc", "\
Without --empty, --garbage and --tombstones it only lists. Servers do not date the last use of a lock: it is dated by nodes that were \
written later. So a lock may be unused for longer than it is said to be, never for less. Each deletion checks that the node is as it was \
listed, and is recorded.", "\
Examples:
  lockkeeper gc
  lockkeeper gc team --empty --older-than 7d"))]
pub(crate) struct GcArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// Delete nodes of locks that are empty, and unused for --older-than
    #[arg(long)]
    pub empty: bool,
    /// Treat every node directly below PREFIX as a monitor object, as Contentserv's clients create them; only then may PREFIX be /
    #[arg(long, requires = "prefix", conflicts_with = "log")]
    pub objects: bool,
    /// Delete nodes that are named as contenders and have no session: foreign clients wait behind them
    #[arg(long)]
    pub garbage: bool,
    /// Delete the tombstones of abandoned holds whose lock delay has passed
    #[arg(long)]
    pub tombstones: bool,
    /// Leave empty nodes that were used within this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1d")]
    pub older_than: Duration,
    /// List the recorded deletions of empty nodes and tombstones instead, the oldest first
    #[arg(long, conflicts_with_all = ["empty", "garbage", "tombstones", "older_than"])]
    pub log: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}
