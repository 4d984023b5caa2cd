//! The options of `lockkeeper history`.

use std::time::Duration;

use super::connect::ConnectArgs;
use super::values::{Completes, positive_duration};
use crate::statuses::help;

/// `lockkeeper history`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("history", "\
The last 16 holds and 8 groups of refusals of a lock are kept, for at most 1024 locks. lockkeeper run records its holds with the \
release, unless --no-history or the setting history switches that off. Programs record theirs only if they ask for it. Foreign \
clients never do: of them the history knows what the next holder saw.", "\
Examples:
  lockkeeper history nightly
  lockkeeper history leader --since 1h
  lockkeeper history --all --since 1d
  lockkeeper history nightly --follow"))]
pub(crate) struct HistoryArgs {
    /// The lock; with --all, where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(required_unless_present = "all")]
    #[arg(add = Completes::Locks)]
    pub name: Option<String>,
    /// Show the history of all locks
    #[arg(long)]
    pub all: bool,
    /// Show only what ended within this time
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub since: Option<Duration>,
    /// Print the oldest first, and go on with each new entry
    #[arg(long, short, conflicts_with = "all")]
    pub follow: bool,
    /// Print one JSON document; with --follow, one line for each entry
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}
