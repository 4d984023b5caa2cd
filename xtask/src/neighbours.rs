//! `cargo xtask kafka` and `cargo xtask search`: run servers beside the locks, for a person, a command or the tests.
//!
//! Dead letters can go to a Kafka broker, the example's articles to a search engine. Both come from Maven Central, run
//! on loopback, and end with the command that started them.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, Subcommand};
use lockkeeper_testkit::{kafka, search};
use xshell::Shell;

use crate::maven::build;
use crate::programs::{LIB, Tests as Program};

/// The variable with the address of the broker, for a command.
const ENV_BROKERS: &str = "LOCKKEEPER_KAFKA";
/// The variable with the address of the search engine, for a command.
const ENV_ENGINE: &str = "LOCKKEEPER_SEARCH";

#[derive(Debug, Subcommand)]
pub(crate) enum Kafka {
    /// Start a broker and keep it until Ctrl-C, or until CMD has ended; needs Java and Maven
    Start(Start),
    /// Run the tests that need a broker; each starts its own, because some kill it
    Test(Tests),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Search {
    /// Start a node and keep it until Ctrl-C, or until CMD has ended; needs Java and Maven
    Start(Start),
    /// Run the tests that need a node; each starts its own
    Test(Tests),
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Run this with the address in LOCKKEEPER_KAFKA or LOCKKEEPER_SEARCH, then stop the server and exit with its
    /// status
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Default, Args)]
pub(crate) struct Tests {
    /// Arguments of the test program, such as a part of a test's name
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

impl Kafka {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let sh = crate::workspace::shell()?;
        match self {
            Kafka::Start(start) => Neighbour::Kafka.keep(&sh, start),
            Kafka::Test(tests) => kafka(&sh, &tests.arguments).map(|()| ExitCode::SUCCESS),
        }
    }
}

impl Search {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let sh = crate::workspace::shell()?;
        match self {
            Search::Start(start) => Neighbour::Search.keep(&sh, start),
            Search::Test(tests) => search(&sh, &tests.arguments).map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Runs the tests of dead letters in Kafka.
pub(crate) fn kafka(sh: &Shell, arguments: &[String]) -> Result<()> {
    let (variable, jars) = Neighbour::Kafka.jars(sh)?;
    let which = if arguments.is_empty() { &["kafka".to_owned()][..] } else { arguments };
    for (package, target) in [("lockkeeper", LIB), ("lockkeeper-cli", "cli")] {
        Program { package, target, features: "kafka" }.run(sh, which, [(variable, (&jars).into())])?;
    }
    Ok(())
}

/// Runs the example's tests beside a search engine.
pub(crate) fn search(sh: &Shell, arguments: &[String]) -> Result<()> {
    let (variable, jars) = Neighbour::Search.jars(sh)?;
    Program { package: "catalogue", target: "search", features: "search" }.run(sh, arguments, [(variable, jars.into())])
}

/// A server beside the locks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Neighbour {
    Kafka,
    Search,
}

impl Neighbour {
    /// Fetches the jars; returns the variable for their class path, and the class path.
    pub(crate) fn jars(self, sh: &Shell) -> Result<(&'static str, String)> {
        let (project, variable) = match self {
            Neighbour::Kafka => ("kafka", kafka::ENV_JARS),
            Neighbour::Search => ("search", search::ENV_JARS),
        };
        Ok((variable, build(sh, project)?))
    }

    fn keep(self, sh: &Shell, Start { command }: &Start) -> Result<ExitCode> {
        let (_, jars) = self.jars(sh)?;
        let start = Instant::now();
        crate::beside::keep(command, || {
            let (server, pid, address) = self.start(&jars)?;
            let pid = pid.map_or_else(String::new, |pid| pid.to_string());
            eprintln!("{self:?}, process {pid}, serving after {:.1?}", start.elapsed());
            let variable = match self {
                Neighbour::Kafka => ENV_BROKERS,
                Neighbour::Search => ENV_ENGINE,
            };
            Ok((server, address.clone(), vec![(variable, address.into())]))
        })
    }

    fn start(self, jars: &str) -> Result<(Box<dyn std::any::Any>, Option<u32>, String)> {
        Ok(match self {
            Neighbour::Kafka => {
                let broker = kafka::Broker::start_from(jars.to_owned())?;
                let (pid, address) = (broker.pid(), broker.addr().to_string());
                (Box::new(broker), pid, address)
            }
            Neighbour::Search => {
                let engine = search::Engine::start_from(jars)?;
                let (pid, address) = (engine.pid(), engine.url());
                (Box::new(engine), pid, address)
            }
        })
    }
}
