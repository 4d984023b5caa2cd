//! `cargo xtask peers`: runs other clients' own tests, unchanged, against our server.
//!
//! Their authors do not know this server, so these tests are independent.

pub(crate) mod apache;
mod c;
mod go;
mod java;
mod python;
mod rust;
mod served;

use anyhow::Result;
use clap::Subcommand;

use crate::workspace::shell;
use apache::SCRIPTS;
pub(crate) use python::{NoPython, kazoo_python};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run Kazoo's tests; needs Python 3 with venv and a package index for pip
    Kazoo {
        /// Arguments of pytest, such as -k TestLock; with them, the number of passes is not checked
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Run aiozk's tests; needs the same as Kazoo's
    Aiozk {
        /// Arguments of pytest, such as -k lock; with them, the number of passes is not checked
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Run go-zookeeper's tests; needs Go
    Go {
        /// Arguments of go test, such as -run TestIntegration_Lock; with them, the number of passes is not checked
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Run the tests of ZooKeeper's C client from Debian; needs Debian's apt, Java, Maven, CMake and CppUnit
    C {
        /// Suites or tests, such as Zookeeper_multi or Zookeeper_multi::testCheck; with them, the number of passes is
        /// not checked
        #[arg(last = true, value_name = "TESTS")]
        tests: Vec<String>,
    },
    /// Run the tests of clients in Rust; needs crates that cargo fetches
    Rust {
        /// Crates, such as tokio-zookeeper
        #[arg(last = true, value_name = "CRATES")]
        crates: Vec<String>,
    },
    /// Type a session into ZooKeeper's command line on Apache's server and on ours; needs Java and Maven
    Zkcli,
    /// Run tests of ZooKeeper's own Java client; needs Java and Maven
    Zookeeper {
        /// Classes of org.apache.zookeeper, such as test.WatcherTest; with them, the number of passes is not checked
        #[arg(last = true, value_name = "CLASSES")]
        classes: Vec<String>,
    },
    /// Run tests of Curator; needs Java and Maven
    Curator {
        /// Classes of org.apache.curator.framework, such as imps.TestCreate; with them, the number of passes is not
        /// checked
        #[arg(last = true, value_name = "CLASSES")]
        classes: Vec<String>,
    },
    /// Play random scripts to Apache's server and to ours and compare everything that clients see; needs Java and Maven
    Apache {
        /// The number of scripts
        #[arg(long, value_name = "N", default_value_t = SCRIPTS)]
        scripts: u64,
    },
}

pub(crate) fn run(command: &Command) -> Result<()> {
    let sh = shell()?;
    match command {
        Command::Kazoo { arguments } => python::kazoo(&sh, arguments),
        Command::Aiozk { arguments } => python::aiozk(&sh, arguments),
        Command::Go { arguments } => go::run(&sh, arguments),
        Command::C { tests } => c::run(&sh, tests),
        Command::Rust { crates } => rust::run(&sh, crates),
        Command::Zkcli => java::zkcli(&sh),
        Command::Zookeeper { classes } => java::run(&sh, "zookeeper", classes),
        Command::Curator { classes } => java::run(&sh, "curator", classes),
        Command::Apache { scripts } => apache::run(&sh, *scripts),
    }
}
