//! The verbs: a folder for each, and a row in the table below.
//!
//! A folder has the options of its verb, its exit statuses, what it does, and its texts. To add a verb, add its folder, its `mod`,
//! its row with the group of the help that it belongs to (of 24 lines: alike verbs share one, see `ALIKE`), and its page in docs/commands,
//! with empty tables that `LOCKKEEPER_BLESS=1 cargo test --bin lockkeeper -- tables` fills, and a line of docs/SUMMARY.md.

pub(crate) mod acquire;
pub(crate) mod admin;
pub(crate) mod breaking;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod deadlocks;
pub(crate) mod dlq;
pub(crate) mod doctor;
pub(crate) mod fence;
pub(crate) mod history;
pub(crate) mod hold;
pub(crate) mod holds;
pub(crate) mod jobs;
pub(crate) mod lead;
pub(crate) mod list;
pub(crate) mod man;
pub(crate) mod observe;
pub(crate) mod release;
pub(crate) mod requests;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod show;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod why;
pub(crate) mod withhold;

use crate::args::connect::ConnectArgs;
use crate::exit::Failure;
use crate::verb::{Context, Verb as _};

/// A group of verbs in the help, and in the manual pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Run,
    Look,
    Decide,
    Jobs,
    Servers,
    Hidden,
}

impl Group {
    /// The groups of the help, in order, with their headings.
    const SHOWN: [(Group, &str); 5] = [
        (Group::Run, "Run something under a lock"),
        (Group::Look, "Look at locks"),
        (Group::Decide, "Decide about a lock"),
        (Group::Jobs, "Jobs, and commands that got no lock"),
        (Group::Servers, "Servers and settings"),
    ];
}

/// Verbs that share a line of the help, which fits a small terminal.
const ALIKE: [(&[&str], &str); 9] = [
    (&["acquire", "release", "with-hold", "holds"], "Hold a lock over several commands"),
    (&["list", "top"], "List the locks in use, once or as they change"),
    (&["show", "why"], "Show who holds a lock and who waits, and what you can do"),
    (&["deadlocks", "doctor"], "Find rings of waits, and trouble of servers, locks and jobs"),
    (&["revoke", "break"], "Ask the holders of a lock to release it, or remove one"),
    (&["jobs", "dlq"], "Show jobs and their runs, and commands that got no lock"),
    (&["serve", "server"], "Run the embedded server; show, stop or back it up"),
    (&["admin", "config"], "Set up and tidy up servers; print every setting"),
    (&["completions", "man"], "Print a script for a shell's completion, or a manual page"),
];

/// Returns the help of the command: its verbs, in groups.
pub(crate) fn overview() -> String {
    let mut text = String::from(
        "Runs commands under locks that hold across processes and machines.\n\
         Usage: lockkeeper VERB [OPTIONS]; all options of a verb: lockkeeper help VERB\n\n",
    );
    for (group, heading) in Group::SHOWN {
        text += &format!("{heading}\n");
        let mut rows: Vec<_> = of(group).collect();
        while let Some((name, about)) = rows.first() {
            let alike = ALIKE.iter().find(|(names, _)| names.contains(&name.as_str()));
            let is_named = |other: &str| alike.map_or(other == name, |(names, _)| names.contains(&other));
            let names: Vec<_> = rows.iter().map(|(name, _)| name.clone()).filter(|name| is_named(name)).collect();
            // One of them may be missing in this build.
            let about = alike.filter(|_| names.len() > 1).map_or(*about, |(_, about)| about);
            // A blank more, if they are too long for the column.
            let names_text = names.join(", ") + " ";
            text += &format!("  {names_text:<18} {about}\n");
            rows.retain(|(name, _)| !names.contains(name));
        }
    }
    text
}

/// Returns the verbs of the group of a verb, without it.
pub(crate) fn neighbours(verb: &str) -> Vec<String> {
    let group = ROWS.iter().find(|(_, name, _)| hyphenated(name) == verb).map(|(group, ..)| *group);
    let all = group.into_iter().flat_map(of).map(|(name, _)| name);
    all.filter(|name| name != verb).collect()
}

/// Returns the name of each verb of a group, and what it does.
fn of(group: Group) -> impl Iterator<Item = (String, &'static str)> {
    let rows = ROWS.iter().filter(move |(of, ..)| *of == group);
    rows.map(|(_, name, about)| (hyphenated(name), about.trim()))
}

/// `WithHold` is `with-hold`.
fn hyphenated(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// Makes the enum of the verbs from rows: the text of the help, the name, the options, and the group.
macro_rules! verbs {
    ($($(#[doc = $about:literal])+ $([$attribute:meta])* $name:ident($options:ty) in $group:ident $(if $feature:literal)?;)+) => {
        /// What to do.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Verb {
            $($(#[cfg(feature = $feature)])? $(#[doc = $about])+ $(#[$attribute])* $name(Box<$options>),)+
        }

        /// The group, the name and what the help says of each verb, in order.
        const ROWS: &[(Group, &str, &str)] = &[
            $($(#[cfg(feature = $feature)])? (Group::$group, stringify!($name), concat!($($about),+)),)+
        ];

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
    Run(run::RunArgs) in Run;
    /// Run a command on one of several machines, the leader
    Lead(lead::LeadArgs) in Run;
    /// Replace a file, or run a command, unless a newer holder did
    Fence(fence::FenceArgs) in Run;
    /// Hold a lock for the program that starts this, in JSON lines
    Hold(hold::HoldArgs) in Run;
    /// Hold a lock after this command, until release or an end that is set
    Acquire(acquire::AcquireArgs) in Run;
    /// End a hold of acquire
    Release(release::ReleaseArgs) in Run;
    /// Run a command under a hold of acquire
    WithHold(withhold::WithHoldArgs) in Run;
    /// List your holds of acquire
    Holds(holds::HoldsArgs) in Run;
    /// List the locks that have holders or waiters
    [command(aliases = ["ls", "ps"])]
    List(list::ListArgs) in Look;
    /// Show the locks on this terminal, as they change
    Top(top::TopArgs) in Look if "top";
    /// Show the holders and waiters of a lock
    Show(show::ShowArgs) in Look;
    /// Explain why a lock is not available now, and what to do about it
    Why(why::WhyArgs) in Look;
    /// Show who held a lock, how holds ended, and who was refused
    History(history::HistoryArgs) in Look;
    /// Show contenders that wait for each other in a ring
    Deadlocks(deadlocks::DeadlocksArgs) in Look;
    /// Look for trouble: servers, clocks, locks, leftovers and jobs
    Doctor(doctor::DoctorArgs) in Look;
    /// Observe all locks of all clients: metrics, page, journal
    Observe(observe::ObserveArgs) in Look;
    /// Ask the holders of a lock to release it
    Revoke(revoke::RevokeArgs) in Decide;
    /// Remove the holder of a lock by force, with a reason
    Break(breaking::BreakArgs) in Decide;
    /// List the pending decisions about leased locks, and decide
    Requests(requests::RequestsArgs) in Decide;
    /// Show jobs that run once per slot, and how each run ended
    Jobs(jobs::JobsArgs) in Jobs;
    /// List, replay and drop commands that never got their lock
    Dlq(dlq::DlqArgs) in Jobs;
    /// Run the embedded server, as a ZooKeeper for this machine
    Serve(serve::ServeArgs) in Servers;
    /// Show, stop, restart or back up the server of this machine
    Server(server::ServerArgs) in Servers;
    /// Set up, raise the epoch of, copy and tidy up servers
    Admin(admin::AdminArgs) in Servers;
    /// Print every setting and its origin
    Config(config::ConfigArgs) in Servers;
    /// Print a script that completes commands, options and names of locks in a shell
    Completions(completions::CompletionsArgs) in Servers;
    /// Print a manual page, or write them all to a directory
    Man(man::ManArgs) in Servers;
    /// Print the version
    [command(hide = true)]
    Version(man::VersionArgs) in Hidden;
}
