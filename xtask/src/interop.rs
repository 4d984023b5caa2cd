//! `cargo xtask interop`: runs our tests that need programs of other projects: foreign clients on our nodes, databases, a broker.
//!
//! In `peers`, foreign clients test our server; here each side must understand the other.

use std::fs;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lockkeeper_testkit::apache::{Apache, Distribution, Options as Servers};
use lockkeeper_testkit::kafka::ENV_JARS;
use lockkeeper_testkit::postgres::Postgres;
use xshell::{Shell, cmd};

use crate::maven::build;
use crate::peers::kazoo_python;
use crate::programs::{LIB, Tests};
use crate::tools;
use crate::untested::Untested;
use crate::workspace::{shell, target_dir};

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    with: With,
    /// Arguments of the test program, such as a part of a test's name
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum With {
    /// A counter under one lock, from programs in Python, Node, Go and Rust, while its holders are killed and stopped; needs these
    Counting,
    /// Apache Curator's own locks and elections beside ours; needs Java and Maven
    Curator,
    /// Kazoo's own locks and elections beside ours; needs Java and Python 3 with venv
    Kazoo,
    /// Apache Helix's own lock beside ours, on the embedded server and on Apache's; needs Java and Maven
    Helix,
    /// The clients of the hold protocol in docs/examples: against the conformance program, and with the command; needs Python 3, Node and Go
    Hold,
    /// Dead letters in Kafka, whose broker is killed; needs Java and Maven
    Kafka,
    /// The statements of docs/guide/fencing.md, on `SQLite` and on a real `PostgreSQL`
    Postgres,
    /// What `list`, `why` and `deadlocks` show of locks of Curator and Kazoo, and its picture; needs Java, Maven and Python 3 with venv
    Look,
    /// The Python package in `python`: its types, and its tests on the embedded server and on Apache's; needs Java and Python 3 with venv
    Python,
    /// The web page of `lockkeeper observe` in Chromium
    Page,
    /// The action for GitHub that holds a lock over several steps, in Node, and the tasks for Ansible; needs Node and Python 3 with venv
    Pipeline,
    /// Completion in bash, zsh and fish
    Shells,
    /// Locks over TLS, on the embedded server and on Apache's; needs Java
    Tls,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let sh = &shell()?;
    // The tests of other foreign clients need these.
    let or = |usual: &str| match options.arguments.as_slice() {
        [] if usual.is_empty() => vec![],
        [] => vec![usual.to_owned()],
        some => some.to_vec(),
    };
    match options.with {
        With::Counting => match languages(sh).1.as_slice() {
            [] => Tests { package: "lockkeeper-cli", target: "cli", features: "" }.run(sh, &or("counting"), []),
            missing => Err(not_here("a counter of four languages", missing)),
        },
        With::Curator => beside_ours(sh, QUEUES, "CURATOR", &build(sh, "curator")?, &or("curator")),
        With::Kazoo => beside_ours(sh, QUEUES, "KAZOO", &kazoo_python(sh)?, &or("kazoo")),
        With::Helix => beside_ours(sh, &[("lockkeeper-helix", "interop")], "HELIX", &build(sh, "helix")?, &or("")),
        With::Hold => hold(sh, &options.arguments),
        With::Kafka => {
            let jars = build(sh, "kafka")?;
            for (package, target) in [("lockkeeper-letters", LIB), ("lockkeeper-cli", "cli")] {
                let tests = Tests { package, target, features: "lockkeeper-letters/kafka,lockkeeper-cli/kafka" };
                tests.run(sh, &or("kafka"), [(ENV_JARS, (&jars).into())])?;
            }
            Ok(())
        }
        With::Postgres => {
            if !Postgres::is_installed() && rustix::process::getuid().is_root() {
                let install = cmd!(sh, "apt-get install --yes --no-install-recommends postgresql");
                install.run().context("installing PostgreSQL")?;
            }
            let arguments = &options.arguments;
            let tests = cmd!(sh, "cargo test --quiet -p lockkeeper-example-sql -- {arguments...}");
            Ok(tests.env("RUSTC_WORKSPACE_WRAPPER", ".cargo/deep").run()?)
        }
        With::Look => {
            sh.set_var("LOCKKEEPER_INTEROP_CURATOR", build(sh, "curator")?);
            beside_ours(sh, &[("lockkeeper-cli", "cli")], "KAZOO", &kazoo_python(sh)?, &or("looking"))
        }
        With::Python => python(sh, &options.arguments),
        With::Page => {
            tools::debian(sh, "chromium", "chromium")?;
            Tests { package: "lockkeeper-observe", target: "it", features: "" }.run(sh, &or("browser"), [])
        }
        With::Pipeline => {
            tools::debian(sh, "node", "nodejs")?;
            let ansible = tools::python(sh, &["ansible-core"])?.join("ansible-playbook");
            let tests = Tests { package: "lockkeeper-cli", target: "cli", features: "" };
            tests.run(sh, &or("over_steps"), [("LOCKKEEPER_INTEROP_ANSIBLE", ansible.into())])
        }
        With::Shells => {
            // The chores need bash anyway.
            tools::debian(sh, "zsh", "zsh")?;
            tools::debian(sh, "fish", "fish")?;
            Tests { package: "lockkeeper-cli", target: "cli", features: "" }.run(sh, &or("completing"), [])
        }
        With::Tls => {
            Distribution::install()?;
            Tests { package: "lockkeeper", target: "tls", features: "" }.run(sh, &or(""), [])?;
            Tests { package: "lockkeeper-cli", target: "cli", features: "" }.run(sh, &["secured".to_owned()], [])
        }
    }
}

/// Whether a command can be run here.
fn has(sh: &Shell, command: &str) -> bool {
    let command = command.split(' ');
    cmd!(sh, "env {command...}").quiet().ignore_stdout().ignore_stderr().run().is_ok()
}

/// Returns the languages of the clients of the hold protocol: those that this machine has, and the programs of those that it has not.
fn languages(sh: &Shell) -> (Vec<&'static str>, Vec<&'static str>) {
    let all = [("python", "python3 --version"), ("node", "node --version"), ("go", "go version")];
    let (here, missing): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, command)| has(sh, command));
    let missing = missing.into_iter().filter_map(|(_, command)| command.split(' ').next());
    (here.into_iter().map(|(name, _)| name).collect(), missing.collect())
}

fn not_here(what: &str, missing: &[&str]) -> anyhow::Error {
    Untested::new(&format!("{what} with {}", missing.join(", ")), "this machine does not have that").into()
}

/// Tests the clients of the hold protocol, as far as this machine can run them.
fn hold(sh: &Shell, arguments: &[String]) -> Result<()> {
    let (here, mut missing) = languages(sh);
    let mut groups = vec!["clients"];
    if has(sh, "unshare --user --map-root-user --fork --time --boottime 3600 true") {
        groups.push("slept");
    } else {
        missing.push("time namespaces");
    }
    let all = groups.iter().flat_map(|group| here.iter().map(move |name| format!("{group}::in_{name}")));
    let tests: Vec<_> = if arguments.is_empty() { all.collect() } else { arguments.to_vec() };
    if !tests.is_empty() {
        cmd!(sh, "cargo build --quiet --example conformance").run()?;
        let conformance = target_dir(sh).join("debug/examples/conformance");
        for (package, target) in [("lockkeeper-hold", "conformance"), ("lockkeeper-cli", "cli")] {
            let environment = [("LOCKKEEPER_CONFORMANCE", conformance.clone().into())];
            Tests { package, target, features: "" }.run(sh, &tests, environment)?;
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(not_here("clients of the hold protocol", &missing)) }
}

/// What checks the Python package. Pyright runs in Node, which comes as a package, too.
const CHECKERS: &[&str] = &["pytest==9.2.0", "mypy==2.4.1", "pyright[nodejs]==1.1.414", "kazoo==2.11.0"];

/// Checks the types of the Python package, and runs its tests on the embedded server and on one of Apache's.
fn python(sh: &Shell, arguments: &[String]) -> Result<()> {
    let bin = tools::python(sh, CHECKERS)?;
    cmd!(sh, "cargo build --quiet --bin lockkeeper").run()?;
    sh.set_var("LOCKKEEPER", fs::canonicalize(target_dir(sh).join("debug/lockkeeper"))?);
    let apache = Apache::single(Servers::default())?;
    let _there = sh.push_dir("python");
    let [mypy, pyright, pytest] = ["mypy", "pyright", "pytest"].map(|program| bin.join(program));
    cmd!(sh, "{mypy}").run().context("types")?;
    let interpreter = bin.join("python");
    cmd!(sh, "{pyright} --pythonpath {interpreter}").run().context("types")?;
    cmd!(sh, "{pytest} --quiet {arguments...}").run().context("on the embedded server")?;
    let tests = cmd!(sh, "{pytest} --quiet {arguments...}").env("LOCKKEEPER_SERVERS", apache.connect_string());
    tests.run().context("on Apache's server")
}

/// The programs with the claims about Curator and Kazoo: packages and their tests.
const QUEUES: &[(&str, &str)] = &[
    ("lockkeeper", "queue_interop"),
    ("lockkeeper-election", "it"),
    ("lockkeeper-observe", "it"),
    ("lockkeeper-cli", "cli"),
];

/// Runs test programs beside one of Apache's servers; a variable tells them the other side.
fn beside_ours(
    sh: &Shell,
    programs: &[(&'static str, &'static str)],
    other: &str,
    side: &str,
    arguments: &[String],
) -> Result<()> {
    let apache = Apache::single(Servers::default())?;
    sh.set_var(format!("LOCKKEEPER_INTEROP_{other}"), side);
    for &(package, target) in programs {
        let environment = [("LOCKKEEPER_TEST_ZOOKEEPER", apache.connect_string().into())];
        Tests { package, target, features: "" }.run(sh, arguments, environment)?;
    }
    Ok(())
}
