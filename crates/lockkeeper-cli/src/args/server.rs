//! The options of `lockkeeper server`.

use std::path::PathBuf;

use clap::Subcommand;

use super::connect::ConnectArgs;
use crate::statuses::help;

/// `lockkeeper server`.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = help("server", "\
The server is this user's own, or with --machine the one that all users share. Sessions are on its disk: a restart within their \
timeout loses no hold and no position in a queue.", "")
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
    Status {
        /// The server.
        #[command(flatten)]
        place: ServerPlace,
    },
    /// Stop the server, unless sessions are open: their commands would start it again
    Stop {
        /// Stop it although sessions are open, by SIGKILL if it hangs
        #[arg(long)]
        force: bool,
        /// The server.
        #[command(flatten)]
        place: ServerPlace,
    },
    /// Start the server again, with this version of lockkeeper; holders and waiters go on
    Restart {
        /// The server.
        #[command(flatten)]
        place: ServerPlace,
    },
    /// Copy the server's data to a new directory; holders and waiters go on
    ///
    /// The server is stopped for as long as the copy takes.
    Backup {
        /// The directory for the copy, which must not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// The server.
        #[command(flatten)]
        place: ServerPlace,
    },
    /// Replace the server's data by a backup, unless sessions are open
    ///
    /// The data before it is kept beside it. The epoch is raised, so that all tokens to come exceed the earlier ones.
    Restore {
        /// The directory with the backup, which is not changed
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Restore although sessions are open: they go on as they were at the backup, or lose their locks
        #[arg(long)]
        force: bool,
        /// The server.
        #[command(flatten)]
        place: ServerPlace,
    },
}

impl ServerVerb {
    /// Returns the options that name the server.
    pub(crate) fn place(&self) -> &ServerPlace {
        match self {
            ServerVerb::Status { place }
            | ServerVerb::Stop { place, .. }
            | ServerVerb::Restart { place }
            | ServerVerb::Backup { place, .. }
            | ServerVerb::Restore { place, .. } => place,
        }
    }
}

/// The server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerPlace {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}
