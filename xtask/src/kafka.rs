//! `cargo xtask kafka`: runs a broker beside the locks, for a person, a command or the tests of dead letters.
//!
//! It comes from Maven Central, runs on loopback, and ends with the command that started it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Subcommand;
use lockkeeper_testkit::kafka::{Broker, ENV_JARS};
use xshell::Shell;

use crate::maven::build;
use crate::programs::{LIB, Tests as Program};

/// The variable with the address of the broker, for a command.
const ENV_BROKERS: &str = "LOCKKEEPER_KAFKA";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a broker and keep it until Ctrl-C, or until CMD has ended; needs Java and Maven
    Start {
        /// Run this with the address in LOCKKEEPER_KAFKA, then stop the broker and exit with its status
        #[arg(last = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Run the tests that need a broker; each starts its own, because some kill it
    Test {
        /// Arguments of the test program, such as a part of a test's name
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
}

pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    let sh = crate::workspace::shell()?;
    match command {
        Command::Start { command } => keep(&sh, command),
        Command::Test { arguments } => test(&sh, arguments).map(|()| ExitCode::SUCCESS),
    }
}

fn test(sh: &Shell, arguments: &[String]) -> Result<()> {
    let jars = build(sh, "kafka")?;
    let which = if arguments.is_empty() { &["kafka".to_owned()][..] } else { arguments };
    for (package, target) in [("lockkeeper", LIB), ("lockkeeper-cli", "cli")] {
        Program { package, target, features: "kafka" }.run(sh, which, [(ENV_JARS, (&jars).into())])?;
    }
    Ok(())
}

fn keep(sh: &Shell, command: &[OsString]) -> Result<ExitCode> {
    let jars = build(sh, "kafka")?;
    let start = Instant::now();
    crate::beside::keep(command, || {
        let broker = Broker::start_from(jars.clone())?;
        let (pid, address) = (broker.pid(), broker.addr().to_string());
        let pid = pid.map_or_else(String::new, |pid| pid.to_string());
        eprintln!("Kafka, process {pid}, serving after {:.1?}", start.elapsed());
        Ok((broker, address.clone(), vec![(ENV_BROKERS, address.into())]))
    })
}
