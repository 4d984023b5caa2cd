//! The verbs: a folder for each, and a row in the table below.
//!
//! A folder has the options of its verb, its exit statuses, what it does, and its texts. To add a verb, add its folder, its `mod`
//! and its row.

pub(crate) mod admin;
pub(crate) mod breaking;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod deadlocks;
pub(crate) mod dlq;
pub(crate) mod doctor;
pub(crate) mod fence;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod lead;
pub(crate) mod list;
pub(crate) mod man;
pub(crate) mod observe;
pub(crate) mod requests;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod show;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod why;

use crate::args::connect::ConnectArgs;
use crate::exit::Failure;
use crate::verb::{Context, Verb as _};

/// Makes the enum of the verbs from rows: the text of the help, the name, the options.
macro_rules! verbs {
    ($($(#[doc = $about:literal])+ $([$attribute:meta])* $name:ident($options:ty) $(if $feature:literal)?;)+) => {
        /// What to do.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Verb {
            $($(#[cfg(feature = $feature)])? $(#[doc = $about])+ $(#[$attribute])* $name(Box<$options>),)+
        }

        impl Verb {
            /// Whether the output is JSON.
            pub(crate) fn json(&self) -> bool {
                match self { $($(#[cfg(feature = $feature)])? Verb::$name(options) => options.json(),)+ }
            }

            /// The options that name the place of the locks.
            pub(crate) fn connect(&self) -> Option<&ConnectArgs> {
                match self { $($(#[cfg(feature = $feature)])? Verb::$name(options) => options.connect(),)+ }
            }

            /// Whether it runs for long, so that people read its messages later, in a log.
            pub(crate) fn takes_a_while(&self) -> bool {
                match self { $($(#[cfg(feature = $feature)])? Verb::$name(options) => options.takes_a_while(),)+ }
            }

            /// Does what was asked; returns the exit status.
            pub(crate) async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
                match self { $($(#[cfg(feature = $feature)])? Verb::$name(options) => options.obey(context).await,)+ }
            }
        }
    };
}

verbs! {
    /// Run a command while holding a lock, or several
    Run(run::RunArgs);
    /// Run a command on one of several machines, the leader
    Lead(lead::LeadArgs);
    /// List the locks that have holders or waiters
    [command(aliases = ["ls", "ps"])]
    List(list::ListArgs);
    /// Show the holders and waiters of a lock
    Show(show::ShowArgs);
    /// Show jobs that run once per slot, and how each run ended
    Jobs(jobs::JobsArgs);
    /// Show the locks on this terminal, as they change
    Top(top::TopArgs) if "top";
    /// Explain why a lock is not available now, and what to do about it
    Why(why::WhyArgs);
    /// Show contenders that wait for each other in a ring
    Deadlocks(deadlocks::DeadlocksArgs);
    /// Look for trouble: servers, clocks, locks, leftovers and jobs
    Doctor(doctor::DoctorArgs);
    /// Show who held a lock, how each hold ended, and who was refused
    History(history::HistoryArgs);
    /// Observe all locks of all clients: metrics, a journal and alerts
    Observe(observe::ObserveArgs);
    /// Ask the holders of a lock to release it
    Revoke(revoke::RevokeArgs);
    /// Remove the holder of a lock by force, with a reason
    Break(breaking::BreakArgs);
    /// List the pending decisions about leased locks, and decide
    Requests(requests::RequestsArgs);
    /// List, replay and drop commands that never got their lock
    Dlq(dlq::DlqArgs);
    /// Replace a file, or run a command, unless a newer holder did
    Fence(fence::FenceArgs);
    /// Set up, raise the epoch of, copy and tidy up servers
    Admin(admin::AdminArgs);
    /// Print every setting and its origin
    Config(config::ConfigArgs);
    /// Run the embedded server, as a ZooKeeper for this machine
    Serve(serve::ServeArgs);
    /// Show, stop, restart or back up the server of this machine
    Server(server::ServerArgs);
    /// Print a script that completes commands, options and names of locks in a shell
    Completions(completions::CompletionsArgs);
    /// Print a manual page, or write them all to a directory
    Man(man::ManArgs);
    /// Print the version
    [command(hide = true)]
    Version(man::VersionArgs);
}
