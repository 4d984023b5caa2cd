//! Test programs: cargo builds them when a person needs one, and CI builds all of them beforehand.
//!
//! Each suite needs features of its own, and for each set of features cargo compiles half of the dependencies again. So
//! CI builds all programs once, with every feature, and the suites find them in a list.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::script::Script;
use crate::workspace::target_dir;

/// The variable with the path of the list.
pub(crate) const ENV_LIST: &str = "LOCKKEEPER_TEST_PROGRAMS";

/// The library's own tests, as a target.
pub(crate) const LIB: &str = "lib";
/// A program's own tests.
pub(crate) const MAIN: &str = "main";
/// The program itself.
const BIN: &str = "bin";

/// Tests that need more than `cargo test` has.
pub(crate) struct Tests {
    /// The directory of the package of the tests, below `crates` or at the top.
    pub package: &'static str,
    /// [`LIB`], [`MAIN`], or the name of a test program.
    pub target: &'static str,
    /// The features that they need, separated by commas. Tests that need real servers are always compiled.
    pub features: &'static str,
}

/// The programs by package and target: `lockkeeper-tests/it`.
pub(crate) type List = BTreeMap<String, PathBuf>;

impl Tests {
    /// Runs the tests with these arguments and this environment.
    pub(crate) fn run(
        &self,
        sh: &Shell,
        arguments: &[String],
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> Result<()> {
        let Tests { package, target, .. } = *self;
        let program = self.program(sh)?;
        // Cargo runs tests in the directory of their package.
        let above = match package {
            "xtask" | "lab" => "",
            "otlp" => "examples",
            _ => "crates",
        };
        let directory = sh.current_dir().join(above).join(package);
        let _there = sh.push_dir(&directory);
        let tests = cmd!(sh, "{program} --list {arguments...}").quiet().read().context("listing tests")?;
        if !tests.lines().any(|line| line.ends_with(": test")) {
            bail!("{target} of {package} has no test of {arguments:?}");
        }
        cmd!(sh, "{program} {arguments...}")
            .env("CARGO_MANIFEST_DIR", &directory)
            .envs(environment)
            .run()
            .with_context(|| format!("{target} of {package}"))
    }

    /// Returns the test program: that of the list, or the one that cargo builds.
    pub(crate) fn program(&self, sh: &Shell) -> Result<PathBuf> {
        let Tests { package, target, features } = *self;
        let key = format!("{package}/{target}");
        let mut programs = match listed()? {
            Some(programs) => programs,
            None => {
                let which = match target {
                    LIB => vec!["--lib"],
                    MAIN => vec!["--bins"],
                    name => vec!["--test", name],
                };
                let features = if features.is_empty() { vec![] } else { vec!["--features", features] };
                let name = match package {
                    "lab" => "lockkeeper-lab",
                    "otlp" => "lockkeeper-example-otlp",
                    _ => package,
                };
                built(sh, &[vec!["--package", name], features, which].concat())?
            }
        };
        programs.remove(&key).with_context(|| format!("no test program {key} was built"))
    }
}

/// Cargo's variable: it names a program that starts the compiler of the workspace's own crates.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";
/// Compiles the tests that need real servers. As in .ci/run: cargo compares the text.
const REAL_SERVERS: &str = ".cargo/real-servers";

/// Set for tests that are small without it.
pub(crate) const DEEP: &str = "LOCKKEEPER_DEEP";

/// Runs the tests that are small in `cargo test` at their full size. The model checker is optimised: it explores millions of states, one
/// world after the other, each with two threads.
pub(crate) fn deep(sh: &Shell) -> Result<()> {
    for package in ["lockkeeper-core", "lockkeeper-helix"] {
        let model = cmd!(sh, "cargo test --quiet --profile worlds -p {package} --test model -- --test-threads 1");
        model.env(DEEP, "1").run()?;
    }
    cmd!(sh, "cargo test --quiet --profile worlds -p lockkeeper-testkit --lib one_seed").env(DEEP, "1").run()?;
    for (package, target, tests) in [
        ("lockkeeper", LIB, vec!["case_37_many_thousand_watches"]),
        // The other families of worlds: `cargo xtask simulate` runs a thousand worlds of each.
        ("lockkeeper-tests", "it", vec!["simulation::a_healthy_hold_stays_healthy", "jobs_simulated::"]),
        ("lockkeeper-cli", "real_work", vec!["no_update_is_lost_on_this_users_server"]),
    ] {
        let tests: Vec<String> = tests.into_iter().map(str::to_owned).collect();
        Tests { package, target, features: "" }.run(sh, &tests, [(DEEP, "1".into())])?;
    }
    Ok(())
}

/// Runs the targets of the server's crate on random input.
pub(crate) fn fuzz(sh: &Shell, script: &Script) -> Result<()> {
    let tests = Tests { package: "lockkeeper-server", target: LIB, features: "" };
    script.run("fuzz", &[("FUZZ_PROGRAM", tests.program(sh)?)])
}

/// Runs commands of two versions on one server.
pub(crate) fn skew(sh: &Shell, script: &Script) -> Result<()> {
    script.run("skew", &[("LOCKKEEPER", command(sh)?)])
}

/// Builds the `lockkeeper` command as `cargo test` does, with overflow checks; its server is optimised.
pub(crate) fn command(sh: &Shell) -> Result<PathBuf> {
    if let Some(mut programs) = listed()? {
        return programs.remove("lockkeeper-cli/bin").context("the command was not built");
    }
    cmd!(sh, "cargo build --quiet -p lockkeeper-cli").run()?;
    Ok(target_dir(sh).join("debug/lockkeeper"))
}

/// Returns the list, if all programs were built beforehand.
fn listed() -> Result<Option<List>> {
    let Some(list) = env::var_os(ENV_LIST) else { return Ok(None) };
    let text = fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    Ok(Some(serde_json::from_str(&text).context("reading the list of test programs")?))
}

/// Returns all programs, with every feature.
pub(crate) fn all(sh: &Shell) -> Result<List> {
    match listed()? {
        Some(programs) => Ok(programs),
        None => built(sh, &["--workspace", "--all-features", "--lib", "--bins", "--tests"]),
    }
}

/// Builds all programs, and writes the list.
pub(crate) fn write_list(sh: &Shell, list: &Path) -> Result<()> {
    fs::write(list, serde_json::to_string_pretty(&all(sh)?)?).with_context(|| format!("writing {}", list.display()))
}

/// Lets cargo build test programs.
fn built(sh: &Shell, which: &[&str]) -> Result<List> {
    let output = cmd!(sh, "cargo test --quiet {which...} --no-run --message-format json-render-diagnostics");
    let output = output.env(WRAPPER, REAL_SERVERS).quiet().read().context("building test programs")?;
    Ok(output.lines().filter_map(|line| entry(&serde_json::from_str(line).ok()?)).collect())
}

/// Reads cargo's report of an artifact.
fn entry(artifact: &Value) -> Option<(String, PathBuf)> {
    let package = Path::new(artifact["manifest_path"].as_str()?).parent()?.file_name()?.to_str()?;
    let target = match (artifact["target"]["kind"][0].as_str()?, artifact["profile"]["test"].as_bool()?) {
        ("lib", true) => LIB,
        ("bin", true) => MAIN,
        ("bin", false) => BIN,
        ("test", true) => artifact["target"]["name"].as_str()?,
        _ => return None,
    };
    Some((format!("{package}/{target}"), artifact["executable"].as_str()?.into()))
}
