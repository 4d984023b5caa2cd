//! The options that most verbs have.

use super::connect::ConnectArgs;

/// The place of the locks, and the form of the output.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Common {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}
