//! The options of `lockkeeper server`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::args::common::Common;
use crate::statuses::{Code, Status, Statuses, help};

/// The exit statuses of `lockkeeper server`.
const STATUSES: &[Status] = &[
    (Code::Done, "done; of status: the server runs", ""),
    (Code::Usage, "the command line or a setting is wrong; nothing was done", "also if the place is an ensemble"),
    (Code::Unreachable, "the server is not running, does not answer, or was not started again", ""),
    (Code::Internal, "a directory, a backup or the data cannot be used", ""),
    (Code::NotAcquired, "of stop and restore: sessions are open, so nothing was done", "`--force` does it"),
    (Code::Refused, "the server belongs to another user or to another program", ""),
];

/// `lockkeeper server`.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    add = Statuses(STATUSES), after_help = help(STATUSES, "\
The server is this user's own, or with --machine the one that all users share. Sessions are on its disk: a restart within their \
timeout loses no hold and no position in a queue.", "\
Examples:
  lockkeeper server status
  lockkeeper server restart")
)]
pub(crate) struct ServerArgs {
    /// The action on the server.
    #[command(subcommand)]
    pub verb: ServerVerb,
}

/// An action on a server of this machine.
#[derive(Debug, Subcommand)]
pub(crate) enum ServerVerb {
    /// Print whether the server runs, its version, its age and its size
    #[command(after_help = "\
Examples:
  lockkeeper server status
  lockkeeper server status --machine")]
    Status {
        /// The server, and the form of the output.
        #[command(flatten)]
        common: Common,
    },
    /// Stop the server, unless sessions are open: their commands would start it again
    #[command(after_help = "\
Examples:
  lockkeeper server stop")]
    Stop {
        /// Stop it although sessions are open, by SIGKILL if it hangs
        #[arg(long)]
        force: bool,
        /// The server, and the form of the output.
        #[command(flatten)]
        common: Common,
    },
    /// Start the server again, with this version of lockkeeper; holders and waiters go on
    #[command(after_help = "\
Examples:
  lockkeeper server restart")]
    Restart {
        /// The server, and the form of the output.
        #[command(flatten)]
        common: Common,
    },
    /// Copy the server's data to a new directory; holders and waiters go on
    ///
    /// The server is stopped for as long as the copy takes.
    #[command(after_help = "\
Examples:
  lockkeeper server backup locks-2026-11-25")]
    Backup {
        /// The directory for the copy, which must not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// The server, and the form of the output.
        #[command(flatten)]
        common: Common,
    },
    /// Replace the server's data by a backup, unless sessions are open
    ///
    /// The data before it is kept beside it. The epoch is raised, so that all tokens to come exceed the earlier ones.
    #[command(after_help = "\
Examples:
  lockkeeper server restore locks-2026-11-25")]
    Restore {
        /// The directory with the backup, which is not changed
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Restore although sessions are open: they go on as they were at the backup, or lose their locks
        #[arg(long)]
        force: bool,
        /// The server, and the form of the output.
        #[command(flatten)]
        common: Common,
    },
}

impl ServerVerb {
    /// Returns the options that name the server.
    pub(crate) fn common(&self) -> &Common {
        match self {
            ServerVerb::Status { common }
            | ServerVerb::Stop { common, .. }
            | ServerVerb::Restart { common }
            | ServerVerb::Backup { common, .. }
            | ServerVerb::Restore { common, .. } => common,
        }
    }
}
