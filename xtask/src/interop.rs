//! `cargo xtask interop`: runs foreign clients and ours on the same nodes.
//!
//! In `peers`, foreign clients test our server; here each side must understand the nodes of the other.

use anyhow::Result;
use clap::Subcommand;
use lockkeeper_testkit::apache::{Apache, Options};
use xshell::Shell;

use crate::maven::build;
use crate::peers;
use crate::programs::Tests;
use crate::workspace::shell;

/// The connect string of a running server.
const ENV_SINGLE: &str = "LOCKKEEPER_TEST_ZOOKEEPER";
/// The variable with the class path of Helix's side.
const ENV_HELIX: &str = "LOCKKEEPER_INTEROP_HELIX";
/// The variable with the class path of Curator's side.
const ENV_CURATOR: &str = "LOCKKEEPER_INTEROP_CURATOR";
/// The variable with the Python that has Kazoo.
const ENV_KAZOO: &str = "LOCKKEEPER_INTEROP_KAZOO";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run Apache Curator's own locks beside ours; needs Java and Maven
    Curator {
        /// Arguments of the test program, such as a part of a test's name
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Run Kazoo's own locks beside ours; needs Java and Python 3 with venv
    Kazoo {
        /// Arguments of the test program, such as a part of a test's name
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Run Apache Helix's own lock beside ours, on the embedded server and on Apache's; needs Java and Maven
    Helix {
        /// Arguments of the test program, such as a part of a test's name
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
}

pub(crate) fn run(command: &Command) -> Result<()> {
    let sh = shell()?;
    match command {
        Command::Helix { arguments } => helix(&sh, arguments),
        Command::Curator { arguments } => curator(&sh, arguments),
        Command::Kazoo { arguments } => kazoo(&sh, arguments),
    }
}

/// Builds Curator's side, then runs the tests with its locks and ours on one path.
pub(crate) fn curator(sh: &Shell, arguments: &[String]) -> Result<()> {
    let classpath = build(sh, "curator")?;
    beside_ours(sh, "queue_interop", (ENV_CURATOR, &classpath), or_all_of("curator", arguments))
}

/// Installs Kazoo, then runs the tests with its locks and ours on one path.
pub(crate) fn kazoo(sh: &Shell, arguments: &[String]) -> Result<()> {
    let python = peers::kazoo_python(sh)?;
    let python = python.display().to_string();
    beside_ours(sh, "queue_interop", (ENV_KAZOO, &python), or_all_of("kazoo", arguments))
}

/// Builds Helix's side, then runs its tests.
pub(crate) fn helix(sh: &Shell, arguments: &[String]) -> Result<()> {
    let classpath = build(sh, "helix")?;
    beside_ours(sh, "helix_interop", (ENV_HELIX, &classpath), arguments.to_vec())
}

/// Returns the given tests, or those with this client's name: the others need another client.
fn or_all_of(maker: &str, arguments: &[String]) -> Vec<String> {
    if arguments.is_empty() { vec![maker.to_owned()] } else { arguments.to_vec() }
}

/// Runs a test program beside one of Apache's servers; this variable names the other side.
fn beside_ours(
    sh: &Shell,
    test: &'static str,
    (variable, value): (&'static str, &str),
    arguments: Vec<String>,
) -> Result<()> {
    let apache = Apache::single(Options::default())?;
    let environment = [(ENV_SINGLE, apache.connect_string().into()), (variable, value.into())];
    Tests { package: "lockkeeper", target: test, features: "" }.run(sh, &arguments, environment)
}
