//! The options of `lockkeeper dlq`.

use clap::Subcommand;

use crate::args::common::Common;
use crate::statuses::{Code, Status, Statuses, help};
use crate::verb::Files;

/// The exit statuses of `lockkeeper dlq`.
const STATUSES: &[Status] = &[
    (Code::Done, "done; of replay: every named letter was done, each command with 0", ""),
    (Code::NoSuchLock, "there is no such letter, or it was replayed or dropped before", ""),
    (Code::Usage, "the command line or a setting is wrong", ""),
    (Code::Internal, "the letters cannot be read or written", ""),
    (
        Code::NotAcquired,
        "of replay: at least one letter was not done and stays",
        "also if the answer to the question was not yes",
    ),
    (Code::Refused, "of replay: other users may have written the letters; see --foreign", ""),
];

/// `lockkeeper dlq`.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    add = Files(&[("~/.local/state/lockkeeper/dead-letters.jsonl", "the letters, without --dead-letter")]),
    add = Statuses(STATUSES), after_help = help(STATUSES, "", "\
Examples:
  lockkeeper dlq list
  lockkeeper dlq replay --all")
)]
pub(crate) struct DlqArgs {
    /// The action on the letters.
    #[command(subcommand)]
    pub verb: DlqVerb,
}

/// An action on dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqVerb {
    /// List the letters that wait, the oldest first
    #[command(after_help = "\
Examples:
  lockkeeper dlq list
  lockkeeper dlq list --all --json")]
    List {
        /// List the replayed and dropped letters too
        #[arg(long)]
        all: bool,
        /// The store of the letters.
        #[command(flatten)]
        place: DlqPlace,
    },
    /// Show one letter
    #[command(after_help = "\
Examples:
  lockkeeper dlq show 01981d")]
    Show {
        /// The operation, or the beginning of its id
        operation: String,
        /// The store of the letters.
        #[command(flatten)]
        place: DlqPlace,
    },
    /// Run the command of a letter under its lock; mark the letter if the command succeeds
    #[command(after_help = "\
Examples:
  lockkeeper dlq replay 01981d
  lockkeeper dlq replay --all")]
    Replay {
        /// The operations, or the beginnings of their ids
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        operations: Vec<String>,
        /// Replay all letters that wait, the oldest first
        #[arg(long)]
        all: bool,
        /// Replay also letters whose replay began and did not report an end: their work may be done twice
        #[arg(long)]
        again: bool,
        /// Replay the named letters also from where other users may write: a Kafka topic, or a file with such an owner or mode
        ///
        /// Look at each one first, with lockkeeper dlq show: the replay runs its command as you.
        #[arg(long, conflicts_with = "all")]
        foreign: bool,
        /// Skip the confirmation of --foreign, and of --all on a terminal
        #[arg(long, short)]
        yes: bool,
        /// The store of the letters.
        #[command(flatten)]
        place: DlqPlace,
    },
    /// Mark letters as no longer wanted
    #[command(after_help = "\
Examples:
  lockkeeper dlq drop 01981d --reason obsolete")]
    Drop {
        /// The operations, or the beginnings of their ids
        #[arg(required = true)]
        operations: Vec<String>,
        /// Record this reason
        #[arg(long, short, value_name = "TEXT")]
        reason: Option<String>,
        /// The store of the letters.
        #[command(flatten)]
        place: DlqPlace,
    },
}

impl DlqVerb {
    /// Returns the options that name the store.
    pub(crate) fn place(&self) -> &DlqPlace {
        match self {
            DlqVerb::List { place, .. }
            | DlqVerb::Show { place, .. }
            | DlqVerb::Replay { place, .. }
            | DlqVerb::Drop { place, .. } => place,
        }
    }
}

/// The store of dead letters.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DlqPlace {
    /// Read the letters here, as run --dead-letter keeps them [env: LOCKKEEPER_BACKGROUND_DEAD_LETTER] [default: file]
    #[arg(long, value_name = "WHERE")]
    pub dead_letter: Option<String>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}
