//! `cargo xtask kafka` and `cargo xtask search`: what stands beside the locks, for a person, for a command, for the tests.
//!
//! Dead letters go to a Kafka broker, the example's articles to a search engine. Both come from Maven Central, run on
//! loopback, and are gone with the command that started them.

use std::ffi::OsString;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Subcommand;
use lockkeeper_testkit::{kafka, search};
use xshell::{Shell, cmd};

use crate::interop::build;

/// Where a command that is run beside a broker finds it.
const ENV_BROKERS: &str = "LOCKKEEPER_KAFKA";
/// Where one beside a search engine finds that.
const ENV_ENGINE: &str = "LOCKKEEPER_SEARCH";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Starts it and keeps it until Ctrl-C, or until CMD has ended; needs Java and Maven.
    Start {
        /// Runs this with the address in LOCKKEEPER_KAFKA or LOCKKEEPER_SEARCH, then stops it and exits as it did.
        #[arg(last = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Runs the tests that need it; each starts its own.
    Test {
        /// Arguments of the test program, such as a part of a test's name.
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Neighbour {
    Kafka,
    Search,
}

impl Neighbour {
    /// Fetches the jars; the variable that tells where they are.
    pub(crate) fn jars(self, sh: &Shell) -> Result<(&'static str, String)> {
        let (project, variable) = match self {
            Neighbour::Kafka => ("kafka", kafka::ENV_JARS),
            Neighbour::Search => ("search", search::ENV_JARS),
        };
        let jars = build(sh, project).context("its jars come from Maven Central, which must be reachable once")?;
        Ok((variable, jars))
    }

    pub(crate) fn run(self, command: &Command) -> Result<std::process::ExitCode> {
        let sh = crate::shell()?;
        let jars = self.jars(&sh)?;
        match command {
            Command::Test { arguments } => self.test(&sh, jars, arguments).map(|()| std::process::ExitCode::SUCCESS),
            Command::Start { command } => {
                let start = Instant::now();
                crate::beside::keep(command, || {
                    let (server, pid, address) = self.start(&jars.1)?;
                    let pid = pid.map_or_else(String::new, |pid| pid.to_string());
                    eprintln!("{self:?}, process {pid}, serving after {:.1?}", start.elapsed());
                    let variable = match self {
                        Neighbour::Kafka => ENV_BROKERS,
                        Neighbour::Search => ENV_ENGINE,
                    };
                    Ok((server, address.clone(), vec![(variable, address.into())]))
                })
            }
        }
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

    /// Runs what needs it. Each test has its own, for some kill it.
    pub(crate) fn test(self, sh: &Shell, (variable, jars): (&str, String), arguments: &[String]) -> Result<()> {
        match self {
            Neighbour::Kafka => {
                let features = "kafka,real-servers";
                cmd!(sh, "cargo test -p lockkeeper --features {features} --test kafka -- {arguments...}")
                    .env(variable, &jars)
                    .run()?;
                cmd!(sh, "cargo test -p lockkeeper-cli --features {features} --test kafka -- {arguments...}")
                    .env(variable, jars)
                    .run()?;
            }
            Neighbour::Search => {
                cmd!(sh, "cargo test -p catalogue --features search,real-servers --test search -- {arguments...}")
                    .env(variable, jars)
                    .run()?;
            }
        }
        Ok(())
    }
}
