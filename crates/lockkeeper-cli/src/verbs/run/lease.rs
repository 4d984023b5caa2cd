//! The options and verbs of leased locks.

use std::time::Duration;

use crate::args::values::{Waiting, duration, lease, waiting};
use crate::exit::{Code, Failure};

/// The options of a leased lock, as in Apache Helix.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Leased locks, shared with Apache Helix")]
pub(crate) struct LeaseArgs {
    /// Hold a leased lock, with a lease of this length; if another owner has it, wait only with --wait
    ///
    /// After the end of the lease, the hold goes on until someone else asks for the lock. With --wait, lockkeeper waits
    /// until an owner of any priority has released the lock or its lease is over, at most for that time. The requestors that
    /// wait get the lock in no order.
    #[arg(long, value_name = "DURATION", value_parser = lease, group = "kind", conflicts_with = "node_format")]
    pub lease: Option<Duration>,
    /// End the hold at the end of the lease, and the command of run with it, even if nobody else asks for the lock; --keep-node implies this
    #[arg(long, hide_short_help = true, requires = "lease")]
    pub strict_lease: bool,
    /// Preempt owners of a lower priority; 0 is the lowest
    #[arg(long, hide_short_help = true, value_name = "NUMBER", default_value_t = 0, requires = "lease")]
    pub priority: i32,
    /// Preempt every owner, with the priority that is reserved for emergencies; the journal records the --reason
    #[arg(long, hide_short_help = true, requires_all = ["lease", "reason"], conflicts_with = "priority")]
    pub emergency: bool,
    /// Record this reason for --emergency; not empty, at most 1024 bytes
    #[arg(long, hide_short_help = true, value_name = "TEXT", requires = "emergency")]
    pub reason: Option<String>,
    /// Wait at most this long for the cleanup of a lower owner; infinite: until it is finished [default: the owner's --cleanup]
    ///
    /// The earlier of a duration and the owner's --cleanup applies.
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = waiting, requires = "lease")]
    pub waiting: Option<Waiting>,
    /// Give the command this long to end when a higher priority preempts it: it gets the signal of --on-revoke, and its group is
    /// killed after this time
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = duration, default_value = "0s", requires = "lease")]
    pub cleanup: Duration,
    /// Take the lock at the end of the wait, even if the owner has not cleaned up
    ///
    /// Without this option, the wait ends with 75.
    #[arg(long, hide_short_help = true, requires = "lease")]
    pub forceful: bool,
    /// Keep the node of the free lock, as Helix's own clients need it
    #[arg(long, hide_short_help = true, requires = "lease")]
    pub keep_node: bool,
    /// Hold the lock as this user id: everyone with the same id is the same owner [default: a new id]
    #[arg(long, hide_short_help = true, value_name = "ID", requires = "lease")]
    pub id: Option<String>,
    /// Hand the lock to this user id in one step at a release, of run if its command succeeds
    #[arg(long, hide_short_help = true, value_name = "ID", requires = "lease")]
    pub hand_to: Option<String>,
    /// Ask operators (lockkeeper requests) for at most this long if the owner has not cleaned up; no answer
    /// is a no
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = duration, requires = "lease", conflicts_with = "forceful")]
    pub ask: Option<Duration>,
    /// Run this shell command when operators are asked, with the facts as JSON on its standard input
    #[arg(long, hide_short_help = true, value_name = "COMMAND", requires = "ask")]
    pub alert_command: Option<String>,
    /// Post the same facts to the http or https address in this file, once, within 10 s; redirects are not followed
    ///
    /// The address often contains a token, so it is not an argument, which every user of the machine can read. A file that
    /// every user may read, or that others may write, is refused. An approval counts only from https or from this machine.
    #[cfg(feature = "webhook")]
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "ask")]
    pub alert_webhook: Option<std::path::PathBuf>,
    /// Add this hold and this wait to the statistics that lockkeeper show --stats prints
    #[arg(long, hide_short_help = true, requires = "lease")]
    pub stats: bool,
}

impl LeaseArgs {
    /// Refuses what only a command can do.
    pub(crate) fn check_without_command(&self, verb: &str) -> Result<(), Failure> {
        if self.cleanup.is_zero() {
            return Ok(());
        }
        Err(Failure::new(Code::Usage, format!("--cleanup: {verb} has no command that could clean up"))
            .hint("leave it out, or use lockkeeper run"))
    }

    /// Returns whether the hold ends with its lease, even if nobody asks for the lock.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict_lease || self.keep_node
    }
}
