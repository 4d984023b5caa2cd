//! Test programs that need real servers, or that a chore starts itself: cargo builds them, and the chore runs them.
//!
//! Each is built with the features of the workspace's default members, as `cargo test` builds it. With those of its package alone, cargo
//! would compile half of the dependencies again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::script::Script;
use crate::workspace::target_dir;

/// The library's own tests, as a target.
pub(crate) const LIB: &str = "lib";

/// Tests that need more than `cargo test` has.
pub(crate) struct Tests {
    /// The directory of the package of the tests, below `crates`.
    pub package: &'static str,
    /// [`LIB`], or the name of a test program.
    pub target: &'static str,
    /// The features that they need, such as `lockkeeper-letters/kafka`. Tests that need real servers are always compiled.
    pub features: &'static str,
}

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
        let directory = sh.current_dir().join("crates").join(package);
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

    /// Returns the test program.
    pub(crate) fn program(&self, sh: &Shell) -> Result<PathBuf> {
        let Tests { package, target, features } = *self;
        let which = if target == LIB { vec!["--lib"] } else { vec!["--test", target] };
        // The wrapper adds the tests that need real servers: cargo builds only this workspace's crates anew for it.
        let build = cmd!(sh, "cargo test --quiet {which...} --no-run --message-format json-render-diagnostics");
        let build = build.args(["--features", features]).env("RUSTC_WORKSPACE_WRAPPER", ".cargo/deep");
        let output = build.quiet().read().context("building test programs")?;
        let program = output.lines().find_map(|line| executable(&serde_json::from_str(line).ok()?, package));
        program.with_context(|| format!("no test program {target} of {package} was built"))
    }
}

/// Reads cargo's report of an artifact; returns the test program of the package.
fn executable(artifact: &Value, package: &str) -> Option<PathBuf> {
    let directory = Path::new(artifact["manifest_path"].as_str()?).parent()?;
    let is_test = artifact["profile"]["test"].as_bool()? && directory.file_name()? == package;
    is_test.then(|| artifact["executable"].as_str().map(PathBuf::from))?
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

/// Builds the `lockkeeper` command as `cargo run` does, with overflow checks.
pub(crate) fn command(sh: &Shell) -> Result<PathBuf> {
    cmd!(sh, "cargo build --quiet --bin lockkeeper").run()?;
    Ok(target_dir(sh).join("debug/lockkeeper"))
}
