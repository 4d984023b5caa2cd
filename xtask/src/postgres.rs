//! `cargo xtask postgres`: tests the statements of docs/guide/fencing.md on SQLite and on a real PostgreSQL.

use anyhow::{Context, Result};
use clap::Subcommand;
use lockkeeper_testkit::postgres::{Error, Postgres};
use xshell::{Shell, cmd};

use crate::programs::Tests;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the tests of the fencing statements against servers of their own
    Test {
        /// Arguments of the test program, such as a part of a test's name
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
}

pub(crate) fn run(command: &Command) -> Result<()> {
    let Command::Test { arguments } = command;
    test(&crate::workspace::shell()?, arguments)
}

/// Installs PostgreSQL if it is missing and this user may, and runs the tests.
pub(crate) fn test(sh: &Shell, arguments: &[String]) -> Result<()> {
    match Postgres::start() {
        Err(Error::Missing) if rustix::process::getuid().is_root() => {
            cmd!(sh, "apt-get install --yes --no-install-recommends postgresql")
                .run()
                .context("installing PostgreSQL")?;
        }
        started => drop(started?),
    }
    Tests { package: "xtask", target: "sql", features: "" }.run(sh, arguments, [])
}
