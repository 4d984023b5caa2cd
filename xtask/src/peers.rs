//! `cargo xtask peers`: runs other clients' own tests, unchanged, against our server.
//!
//! Their authors do not know this server, so these tests are independent.

mod c;
mod go;
mod java;
mod python;
mod rust;
mod served;

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;
use lockkeeper_testkit::apache::Distribution;
use serde::Deserialize;
use xshell::{Shell, cmd};

use crate::programs::Tests;
use crate::untested::fetched;

pub(crate) use python::{NoPython, kazoo_python};

/// The users on the suites' own servers.
const ACCOUNTS: &str =
    "super super:D/InIHSb7yEEbrWz8b9l71RjZJU=\nsasl super:super_secret\nsasl jaasuser:jaas_password\n";

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

/// A number of scripts that is more than enough to find every difference that was ever found.
pub(crate) const SCRIPTS: u64 = 2_000;

/// The release of Apache's server that ours is compared with, request by request.
pub(crate) const APACHE: &str = "3.9.5";

pub(crate) fn run(command: &Command) -> Result<()> {
    let sh = crate::shell()?;
    match command {
        Command::Kazoo { arguments } => python::kazoo(&sh, arguments),
        Command::Aiozk { arguments } => python::aiozk(&sh, arguments),
        Command::Go { arguments } => go::run(&sh, arguments),
        Command::C { tests } => c::run(&sh, tests),
        Command::Rust { crates } => rust::run(&sh, crates),
        Command::Zkcli => java::zkcli(&sh),
        Command::Zookeeper { classes } => java::run(&sh, "zookeeper", classes),
        Command::Curator { classes } => java::run(&sh, "curator", classes),
        Command::Apache { scripts } => apache(&sh, *scripts),
    }
}

/// Compares every answer, error and event of our server with those of Apache's server.
pub(crate) fn apache(sh: &Shell, scripts: u64) -> Result<()> {
    apache_release()?;
    Tests { package: "lockkeeper-server", target: "differential", features: "real-servers" }
        .run(sh, &["--nocapture".to_owned()], [("LOCKKEEPER_SCRIPTS", scripts.to_string().into())])
        .context("our server does not answer as Apache's")
}

/// Returns Apache's server of that release.
pub(crate) fn apache_release() -> Result<Distribution> {
    let (distribution, _home) =
        fetched(&format!("ZooKeeper {APACHE}, which comes from Maven Central"), Distribution::fetch(APACHE))?;
    Ok(distribution)
}

/// The output of `cargo metadata` for a workspace.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

/// A package of it.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    version: String,
    manifest_path: PathBuf,
    /// The registries to which it may be published; any if absent.
    pub(crate) publish: Option<Vec<String>>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
}

/// Asks cargo for the metadata of the shell's directory.
pub(crate) fn metadata(sh: &Shell, arguments: &[&str]) -> Result<Metadata> {
    let output = cmd!(sh, "cargo metadata --quiet --format-version 1 {arguments...}").quiet().read();
    serde_json::from_str(&output.context("running cargo metadata")?).context("reading cargo metadata")
}

/// Returns the directory of cargo's output.
pub(crate) fn target_dir(sh: &Shell) -> PathBuf {
    sh.current_dir().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}
