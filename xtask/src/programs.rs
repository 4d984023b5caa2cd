//! Test programs: cargo builds them when a person needs one, and CI builds all of them beforehand.
//!
//! Each suite needs features of its own, and for each set of features cargo compiles half of the dependencies again. So
//! CI builds all programs once, with every feature, and the suites find them in a list.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use xshell::{Shell, cmd};

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
    /// The package of the tests.
    pub package: &'static str,
    /// [`LIB`], [`MAIN`], or the name of a test program.
    pub target: &'static str,
    /// The features that they need, separated by commas. Tests that need real servers are always compiled.
    pub features: &'static str,
}

/// A program that was built.
#[derive(Debug, Serialize, Deserialize)]
struct Built {
    program: PathBuf,
    /// The directory of its package: cargo runs tests there.
    directory: PathBuf,
}

type List = BTreeMap<String, Built>;

impl Tests {
    /// Runs the tests with these arguments and this environment.
    pub(crate) fn run(
        &self,
        sh: &Shell,
        arguments: &[String],
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> Result<()> {
        let Tests { package, target, features } = *self;
        match listed(package, target)? {
            Some(Built { program, directory }) => {
                let _there = sh.push_dir(&directory);
                cmd!(sh, "{program} {arguments...}")
                    .env("CARGO_MANIFEST_DIR", &directory)
                    .envs(environment)
                    .run()
                    .with_context(|| format!("{target} of {package}"))
            }
            None => {
                let which = match target {
                    LIB => vec!["--lib"],
                    MAIN => vec!["--bins"],
                    name => vec!["--test", name],
                };
                let features = if features.is_empty() { vec![] } else { vec!["--features", features] };
                cmd!(sh, "cargo test --quiet -p {package} {features...} {which...} -- {arguments...}")
                    .env(WRAPPER, REAL_SERVERS)
                    .envs(environment)
                    .run()
                    .with_context(|| format!("{target} of {package}"))
            }
        }
    }
}

/// Cargo's variable for a program that starts the compiler, for the workspace's own crates only.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";
/// Compiles the tests that need real servers. As in .ci/run: cargo compares the text.
const REAL_SERVERS: &str = ".cargo/real-servers";

/// Set for tests that are small without it.
pub(crate) const DEEP: &str = "LOCKKEEPER_DEEP";

/// Runs the tests that are small in `cargo test` at their full size. The model checker is optimised: it explores millions of states.
pub(crate) fn deep(sh: &Shell) -> Result<()> {
    for test in ["model", "helix_model"] {
        cmd!(sh, "cargo test --quiet --profile worlds -p lockkeeper-core --test {test}").env(DEEP, "1").run()?;
    }
    cmd!(sh, "cargo test --quiet --profile worlds -p lockkeeper-testkit --lib one_seed").env(DEEP, "1").run()?;
    for (package, target, tests) in [
        ("lockkeeper", LIB, vec!["case_37_many_thousand_watches"]),
        ("lockkeeper", "it", vec!["simulation::", "jobs_simulated::"]),
        ("lockkeeper-cli", "real_work", vec!["no_update_is_lost_on_this_users_server"]),
    ] {
        let tests: Vec<String> = tests.into_iter().map(str::to_owned).collect();
        Tests { package, target, features: "" }.run(sh, &tests, [(DEEP, "1".into())])?;
    }
    Ok(())
}

/// Builds the `lockkeeper` command as `cargo test` does, with overflow checks; its server is optimised.
pub(crate) fn command(sh: &Shell) -> Result<PathBuf> {
    if let Some(program) = built("lockkeeper-cli", BIN)? {
        return Ok(program);
    }
    cmd!(sh, "cargo build --quiet -p lockkeeper-cli").run()?;
    Ok(target_dir(sh).join("debug/lockkeeper"))
}

/// Returns the path of a program, if all were built beforehand.
pub(crate) fn built(package: &str, target: &str) -> Result<Option<PathBuf>> {
    Ok(listed(package, target)?.map(|built| built.program))
}

/// Returns a program of the list, if all were built beforehand.
fn listed(package: &str, target: &str) -> Result<Option<Built>> {
    let Some(list) = env::var_os(ENV_LIST) else { return Ok(None) };
    let text = fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let mut list: List = serde_json::from_str(&text).context("reading the list of test programs")?;
    let key = format!("{package}/{target}");
    Ok(Some(list.remove(&key).with_context(|| format!("no test program {key} was built"))?))
}

/// Cargo's report of an artifact.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all programs with every feature, and writes the list.
pub(crate) fn build(sh: &Shell, list: &Path) -> Result<()> {
    let output = cmd!(
        sh,
        "cargo test --workspace --all-features --lib --bins --tests --no-run --message-format json-render-diagnostics"
    )
    .env(WRAPPER, REAL_SERVERS)
    .read()
    .context("building the test programs")?;
    let list_of = output.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok()).filter_map(entry);
    let text = serde_json::to_string_pretty(&list_of.collect::<List>())?;
    fs::write(list, text).with_context(|| format!("writing {}", list.display()))
}

fn entry(artifact: Artifact) -> Option<(String, Built)> {
    let Artifact { executable, manifest_path, target, profile } = artifact;
    let directory = manifest_path.parent()?.to_owned();
    let package = directory.file_name()?.to_str()?;
    let target = match (target.kind.first()?.as_str(), profile.test) {
        ("lib", true) => LIB,
        ("bin", true) => MAIN,
        ("bin", false) => BIN,
        ("test", true) => target.name.as_str(),
        _ => return None,
    };
    let key = format!("{package}/{target}");
    Some((key, Built { program: executable?, directory }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(kind: &str, name: &str, test: bool) -> Option<String> {
        let line = serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/src/crates/lockkeeper-cli/Cargo.toml",
            "target": { "kind": [kind], "name": name },
            "profile": { "test": test },
            "executable": "/target/debug/deps/cli-1",
        });
        entry(serde_json::from_value(line).unwrap()).map(|(key, built)| {
            assert_eq!(built.directory, Path::new("/src/crates/lockkeeper-cli"));
            key
        })
    }

    #[test]
    fn programs_are_known_by_package_and_target() {
        assert_eq!(listed("test", "cli", true).as_deref(), Some("lockkeeper-cli/cli"));
        assert_eq!(listed("bin", "lockkeeper", false).as_deref(), Some("lockkeeper-cli/bin"));
        assert_eq!(listed("bin", "lockkeeper", true).as_deref(), Some("lockkeeper-cli/main"));
        assert_eq!(listed("lib", "lockkeeper_cli", true).as_deref(), Some("lockkeeper-cli/lib"));
        assert_eq!(listed("custom-build", "build-script-build", false), None);
    }
}
