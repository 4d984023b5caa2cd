//! `lockkeeper admin`: what is done once for all users of some servers.

mod copy;
mod epoch;
pub(crate) mod gc;
mod init;

use self::copy::CopyArgs;
use self::epoch::EpochArgs;
use self::gc::GcArgs;
use self::init::InitArgs;
use crate::args::common::Common;
use crate::exit::Failure;
use crate::verb::{Context, Verb};

/// `lockkeeper admin`.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  lockkeeper admin init --servers zk1:2181,zk2:2181 --auth-file ops
  lockkeeper admin epoch
  lockkeeper admin gc"
)]
pub(crate) struct AdminArgs {
    /// The action on the servers.
    #[command(subcommand)]
    pub verb: AdminVerb,
}

/// An action on servers.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum AdminVerb {
    /// Set up the nodes that all users of the servers share, once
    Init(InitArgs),
    /// Print the epoch of fencing tokens, or raise it
    ///
    /// Raise it after an ensemble was rebuilt or restored.
    Epoch(EpochArgs),
    /// Copy persistent nodes to another server
    ///
    /// From this machine to an ensemble, and back.
    Copy(CopyArgs),
    /// List, and delete, what is left of locks that nobody uses
    Gc(GcArgs),
}

impl Verb for AdminArgs {
    fn common(&self) -> Option<&Common> {
        match &self.verb {
            AdminVerb::Init(args) => args.common(),
            AdminVerb::Epoch(args) => args.common(),
            AdminVerb::Copy(args) => args.common(),
            AdminVerb::Gc(args) => args.common(),
        }
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        match self.verb {
            AdminVerb::Init(args) => args.obey(context).await,
            AdminVerb::Epoch(args) => args.obey(context).await,
            AdminVerb::Copy(args) => args.obey(context).await,
            AdminVerb::Gc(args) => args.obey(context).await,
        }
    }
}
