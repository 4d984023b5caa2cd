//! `cargo xtask peers`: other clients' own tests, unchanged, against our server.
//!
//! They were written by people who have never heard of this server, so they are the judges that cannot be tuned.

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

/// The users that the suites' own servers have.
const ACCOUNTS: &str =
    "super super:D/InIHSb7yEEbrWz8b9l71RjZJU=\nsasl super:super_secret\nsasl jaasuser:jaas_password\n";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs Kazoo's tests; needs Python 3 with venv and a package index for pip.
    Kazoo {
        /// Arguments of pytest, such as -k TestLock; with them, any number of passes will do.
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Runs aiozk's tests; needs what Kazoo's need.
    Aiozk {
        /// Arguments of pytest, such as -k lock; with them, any number of passes will do.
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Runs go-zookeeper's tests; needs Go.
    Go {
        /// Arguments of go test, such as -run TestIntegration_Lock; with them, any number of passes will do.
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Runs the tests of ZooKeeper's C client, as Debian has them; needs Debian's apt, Java, Maven, CMake and CppUnit.
    C {
        /// Suites or tests, such as Zookeeper_multi or Zookeeper_multi::testCheck; with them, any number of passes will do.
        #[arg(last = true, value_name = "TESTS")]
        tests: Vec<String>,
    },
    /// Runs the tests of clients in Rust; needs what cargo can fetch.
    Rust {
        /// Crates, such as tokio-zookeeper.
        #[arg(last = true, value_name = "CRATES")]
        crates: Vec<String>,
    },
    /// Types a session into ZooKeeper's command line on Apache's server and on ours; needs Java and Maven.
    Zkcli,
    /// Runs tests of ZooKeeper's own Java client; needs Java and Maven.
    Zookeeper {
        /// Classes of org.apache.zookeeper, such as test.WatcherTest; with them, any number of passes will do.
        #[arg(last = true, value_name = "CLASSES")]
        classes: Vec<String>,
    },
    /// Runs tests of Curator; needs Java and Maven.
    Curator {
        /// Classes of org.apache.curator.framework, such as imps.TestCreate; with them, any number of passes will do.
        #[arg(last = true, value_name = "CLASSES")]
        classes: Vec<String>,
    },
    /// Plays random scripts to Apache's server and to ours and compares all that clients see; needs Java and Maven.
    Apache {
        /// How many scripts.
        #[arg(long, value_name = "N", default_value_t = SCRIPTS)]
        scripts: u64,
    },
}

/// How many scripts are enough to find again every difference that was ever found, and then some.
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

/// Compares our server with Apache's, in every answer, error and event.
pub(crate) fn apache(sh: &Shell, scripts: u64) -> Result<()> {
    apache_release()?;
    Tests { package: "lockkeeper-server", target: "differential", features: "real-servers" }
        .run(sh, &["--nocapture".to_owned()], [("LOCKKEEPER_SCRIPTS", scripts.to_string().into())])
        .context("our server does not answer as Apache's")
}

/// Apache's server, of that release.
pub(crate) fn apache_release() -> Result<Distribution> {
    let (distribution, _home) =
        fetched(&format!("ZooKeeper {APACHE}, which comes from Maven Central"), Distribution::fetch(APACHE))?;
    Ok(distribution)
}

/// What `cargo metadata` says of a workspace.
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
    let told = cmd!(sh, "cargo metadata --quiet --format-version 1 {arguments...}").quiet().read();
    serde_json::from_str(&told.context("running cargo metadata")?).context("reading cargo metadata")
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir(sh: &Shell) -> PathBuf {
    sh.current_dir().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}
