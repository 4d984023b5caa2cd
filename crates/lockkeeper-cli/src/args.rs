//! The command line as it was typed.
//!
//! [`crate::settings`] decides what a missing option means.

pub(crate) mod common;
pub(crate) mod connect;
mod mistakes;
pub(crate) mod values;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use self::values::before_command;
use crate::exit::{Code, Failure};
use crate::output::{self, Printer};
use crate::verbs::run::args::RunArgs;
use crate::verbs::{self, Verb};

/// Runs commands under locks that hold across processes and machines.
///
/// Without servers, the locks are this user's on this machine: lockkeeper starts a small server if none runs.
/// With --servers or LOCKKEEPER_SERVERS, they are those of an Apache ZooKeeper ensemble, shared by all its users.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, arg_required_else_help = true, max_term_width = 100)]
#[command(override_help = verbs::overview(), after_help = "\
Examples:
  lockkeeper run nightly -- ./job.sh
  lockkeeper list
  lockkeeper why nightly")]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Parses the command line. Prints help, the version and mistakes itself.
pub(crate) fn parse() -> Result<Args, ExitCode> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let refuse = |failure: &Failure| {
        let json = before_command(&words).iter().any(|word| word == "--json");
        Printer::new(json).failure(failure);
        crate::streams::flush();
        Err(ExitCode::from(failure.code.status()))
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
