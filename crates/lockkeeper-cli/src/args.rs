//! The command line as it was typed.
//!
//! [`crate::settings`] decides what a missing option means.

pub(crate) mod ask;
pub(crate) mod connect;
pub(crate) mod dlq;
pub(crate) mod doctor;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod lead;
pub(crate) mod leased;
mod mistakes;
pub(crate) mod observe;
pub(crate) mod pages;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod values;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(feature = "top")]
use self::ask::TopArgs;
use self::ask::{
    BreakArgs, ConfigArgs, CopyArgs, DeadlocksArgs, EpochArgs, FenceArgs, InitArgs, ListArgs, ManArgs, RevokeArgs,
    ShowArgs, WhyArgs,
};
use self::dlq::{DlqArgs, DlqVerb};
use self::doctor::{DoctorArgs, GcArgs};
use self::history::HistoryArgs;
use self::jobs::JobsArgs;
use self::lead::LeadArgs;
use self::leased::{DecideArgs, RequestsArgs, StatsArgs};
use self::observe::ObserveArgs;
use self::run::RunArgs;
use self::serve::ServeArgs;
use self::server::ServerArgs;
use self::values::before_command;
use crate::advice::{self, PlaceOption};
use crate::exit::{Code, Failure};
use crate::output::{self, Printer};

/// Runs commands under locks that hold across processes and machines.
///
/// Without servers, the locks are this user's on this machine: lockkeeper starts a small server if none runs.
/// With --servers or LOCKKEEPER_SERVERS, they are those of an Apache ZooKeeper ensemble, shared by all its users.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command while holding a lock, or several
    Run(Box<RunArgs>),
    /// Run a command on one of several machines, the leader
    Lead(Box<LeadArgs>),
    /// List the locks that have holders or waiters
    #[command(aliases = ["ls", "ps"])]
    List(ListArgs),
    /// Show the holders and waiters of a lock
    Show(ShowArgs),
    /// Show jobs that run once per slot, and how each run ended
    Jobs(JobsArgs),
    /// Show the locks on this terminal, as they change
    #[cfg(feature = "top")]
    Top(TopArgs),
    /// Explain why a lock is not available now, and what to do about it
    Why(WhyArgs),
    /// Show contenders that wait for each other in a ring
    Deadlocks(DeadlocksArgs),
    /// Look for trouble: servers, clocks, locks, leftovers and jobs
    Doctor(DoctorArgs),
    /// List, and delete, what is left of locks that nobody uses
    Gc(GcArgs),
    /// Show who held a lock, how each hold ended, and who was refused
    History(HistoryArgs),
    /// Observe all locks of all clients: metrics, a journal and alerts
    Observe(Box<ObserveArgs>),
    /// Ask the holders of a lock to release it
    Revoke(RevokeArgs),
    /// Remove the holder of a lock by force, with a reason
    Break(BreakArgs),
    /// Print how long a leased lock was held, and its timeouts
    Stats(StatsArgs),
    /// List the pending decisions about leased locks
    Requests(RequestsArgs),
    /// Decide that a leased lock is taken from its owner by force
    Approve(DecideArgs),
    /// Decide that the owner keeps a leased lock
    Reject(DecideArgs),
    /// List, replay and drop commands that never got their lock
    Dlq(DlqArgs),
    /// Replace a file, or run a command, unless a newer holder did
    Fence(FenceArgs),
    /// Print the epoch of fencing tokens, or raise it
    ///
    /// Raise it after an ensemble was rebuilt or restored.
    Epoch(EpochArgs),
    /// Set up the nodes that all users of the servers share, once
    Init(InitArgs),
    /// Copy persistent nodes to another server
    ///
    /// From this machine to an ensemble, and back.
    Copy(CopyArgs),
    /// Print every setting and its origin
    Config(ConfigArgs),
    /// Run the embedded server, as a ZooKeeper for this machine
    Serve(ServeArgs),
    /// Show, stop, restart or back up the server of this machine
    Server(ServerArgs),
    /// Print a script that completes commands, options and names of locks in a shell
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print a manual page, or write them all to a directory
    Man(ManArgs),
    /// Print the version
    #[command(hide = true)]
    Version,
}

/// A shell that has a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Verb {
    /// Whether the output is JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            Verb::Run(args) => args.json,
            Verb::Lead(args) => args.json,
            Verb::List(args) => args.json,
            Verb::Show(args) => args.json,
            Verb::Jobs(args) => args.json(),
            Verb::Deadlocks(args) => args.json,
            Verb::Doctor(args) => args.json,
            Verb::Gc(args) => args.json,
            Verb::Why(args) => args.show.json,
            Verb::History(args) => args.json,
            Verb::Observe(args) => args.json,
            Verb::Revoke(args) => args.json,
            Verb::Break(args) => args.json,
            Verb::Stats(args) => args.json,
            Verb::Requests(args) => args.json,
            Verb::Approve(args) | Verb::Reject(args) => args.json,
            Verb::Dlq(args) => args.verb.place().json,
            Verb::Epoch(args) => args.json,
            Verb::Init(args) => args.json,
            Verb::Copy(args) => args.json,
            Verb::Config(args) => args.json,
            Verb::Server(args) => args.verb.place().json,
            #[cfg(feature = "top")]
            Verb::Top(_) => false,
            Verb::Fence(_) | Verb::Serve(_) | Verb::Completions { .. } | Verb::Man(_) | Verb::Version => false,
        }
    }

    /// Whether it runs for long, so that people read its messages later, in a log.
    pub(crate) fn takes_a_while(&self) -> bool {
        match self {
            Verb::Run(_) | Verb::Lead(_) | Verb::Observe(_) | Verb::Serve(_) => true,
            Verb::Dlq(args) => matches!(args.verb, DlqVerb::Replay { .. }),
            _ => false,
        }
    }

    /// Returns the options that name the place of the locks. Printed commands repeat them.
    pub(crate) fn place(&self) -> Vec<PlaceOption> {
        let connect = match self {
            Verb::Run(args) => &args.connect,
            Verb::Lead(args) => &args.connect,
            Verb::List(args) => &args.connect,
            Verb::Show(args) => &args.connect,
            Verb::Deadlocks(args) => &args.connect,
            #[cfg(feature = "top")]
            Verb::Top(args) => &args.connect,
            Verb::Why(args) => &args.show.connect,
            Verb::Jobs(args) => args.connect(),
            Verb::Doctor(args) => &args.connect,
            Verb::Gc(args) => &args.connect,
            Verb::History(args) => &args.connect,
            Verb::Observe(args) => &args.connect,
            Verb::Revoke(args) => &args.connect,
            Verb::Break(args) => &args.connect,
            Verb::Stats(args) => &args.connect,
            Verb::Requests(args) => &args.connect,
            Verb::Approve(args) | Verb::Reject(args) => &args.connect,
            Verb::Dlq(args) => &args.verb.place().connect,
            Verb::Epoch(args) => &args.connect,
            Verb::Init(args) => &args.connect,
            Verb::Copy(args) => &args.connect,
            Verb::Config(args) => &args.settings,
            Verb::Server(args) => &args.verb.place().connect,
            Verb::Fence(_) | Verb::Serve(_) | Verb::Completions { .. } | Verb::Man(_) | Verb::Version => {
                return Vec::new();
            }
        };
        advice::place(connect, |name| std::env::var_os(name))
    }
}

/// Parses a recorded command line of `run`.
pub(crate) fn parse_run(words: impl IntoIterator<Item = OsString>) -> Result<RunArgs, String> {
    let words = [OsString::from("lockkeeper"), OsString::from("run")].into_iter().chain(words);
    match Args::try_parse_from(words).map(|args| args.verb) {
        Ok(Verb::Run(args)) => Ok(*args),
        Ok(_) => Err("it is not a command line of lockkeeper run".to_owned()),
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

/// Parses the command line. Prints help, the version and mistakes itself.
pub(crate) fn parse() -> Result<Args, ExitCode> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let refuse = |failure: &Failure| {
        let json = before_command(&words).iter().any(|word| word == "--json");
        Printer::new(json).failure(failure);
        crate::streams::flush();
        Err(ExitCode::from(failure.code as u8))
    };
    if let Some(failure) = directory_of_machine(&words) {
        return refuse(&failure);
    }
    if let Some(run) = run_alone(words.iter().cloned()) {
        return Ok(Args { verb: Verb::Run(Box::new(run)) });
    }
    let error = match Args::try_parse() {
        Ok(args) => return Ok(args),
        Err(error) => error,
    };
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let printed = error.print().and_then(|()| io::stdout().flush());
        return match output::tolerate_closed(printed) {
            Ok(()) => Err(ExitCode::SUCCESS),
            Err(failure) => refuse(&failure),
        };
    }
    refuse(&mistakes::failure(&Args::command(), &error, &words))
}

/// Refuses a directory behind a bare `--machine`: it would be taken for the name of a lock.
fn directory_of_machine(words: &[OsString]) -> Option<Failure> {
    let pair = before_command(words).windows(2).find(|pair| pair[0] == "--machine")?;
    let is_path = pair[1].as_encoded_bytes().starts_with(b"/");
    let dir = Path::new(&pair[1]);
    (is_path && dir.is_dir()).then(|| {
        let dir = dir.display();
        Failure::new(Code::Usage, format!("{dir} behind --machine is a directory, and would be the name of a lock"))
            .hint(format!("write --machine={dir}"))
    })
}

/// Parses a correct command line of `run` without the definitions of the other verbs.
///
/// They take a millisecond, by which each command under a lock would start later. `None` for all other command lines: the
/// definitions of all verbs say what is wrong, or print the help.
fn run_alone(words: impl IntoIterator<Item = OsString>) -> Option<RunArgs> {
    let mut words = words.into_iter().peekable();
    words.next_if(|word| word == "run")?;
    let run = <RunArgs as clap::Args>::augment_args(clap::Command::new("run").no_binary_name(true));
    RunArgs::from_arg_matches(&run.try_get_matches_from(words).ok()?).ok()
}

/// Returns the definitions of all verbs and options.
pub(crate) fn definitions() -> clap::Command {
    Args::command()
}

#[cfg(test)]
mod tests;
