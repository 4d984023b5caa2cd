//! The repository on this machine: its root, its packages, and the directory of cargo's output.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use xshell::{Shell, cmd};

/// Returns the repository's root, wherever the chore is run.
pub(crate) fn root() -> PathBuf {
    // The value of cargo's current run, if it has one: a binary that was built in one clone may run in another.
    let own = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&own).join("..")
}

/// Returns a shell in the repository's root.
pub(crate) fn shell() -> Result<Shell> {
    let sh = Shell::new().context("entering the current directory")?;
    sh.change_dir(root());
    Ok(sh)
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
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
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
