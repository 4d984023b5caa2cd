//! Programs of others that chores use, installed when a chore first needs them, below `target/tools`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

use crate::untested::{Untested, fetched};
use crate::workspace::{root, target_dir};

/// Returns the directory of the tools: those of this repository, also for a chore that works in another clone.
fn home() -> Result<PathBuf> {
    let sh = crate::workspace::shell()?;
    let home = target_dir(&sh).join("tools");
    fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
    fs::canonicalize(&home).with_context(|| format!("finding {}", home.display()))
}

/// Returns a program that cargo installs in this version.
pub(crate) fn cargo(sh: &Shell, name: &str, version: &str, features: &[&str]) -> Result<PathBuf> {
    let home = home()?;
    let (root, build) = (home.join(format!("{name}-{version}")), home.join("build"));
    let program = root.join("bin").join(name);
    if !program.exists() {
        // Not optimised: that is most of its installation time, and it runs for a second.
        let install = cmd!(sh, "cargo install --quiet --locked --debug --root {root} --target-dir {build}");
        let install = install.args(["--version", version]).args(features).arg(name);
        fetched(&format!("{name}, because it cannot be installed"), install.run())?;
        // Hundreds of megabytes that are not used again.
        sh.remove_path(&build)?;
    }
    Ok(program)
}

/// Returns the programs' directory of an environment with these packages of PyPI.
pub(crate) fn python(sh: &Shell, packages: &[&str]) -> Result<PathBuf> {
    let place = home()?.join(packages.join("+"));
    let (bin, done) = (place.join("bin"), place.join("installed"));
    if !done.exists() {
        let what = format!("{}, because pip cannot install it", packages.join(" and "));
        cmd!(sh, "python3 -m venv --clear {place}").run().context("making an environment (Debian: python3-venv)")?;
        let pip = bin.join("pip");
        fetched(&what, cmd!(sh, "{pip} install --quiet --disable-pip-version-check {packages...}").run())?;
        fs::write(&done, "").context("noting what is installed")?;
    }
    Ok(bin)
}

/// Installs a package of Debian if this machine has no such program.
pub(crate) fn debian(sh: &Shell, program: &str, package: &str) -> Result<()> {
    if cmd!(sh, "which {program}").quiet().ignore_stdout().ignore_stderr().run().is_ok() {
        return Ok(());
    }
    if !rustix::process::getuid().is_root() {
        return Err(
            Untested::new(package, &format!("there is no {program} (Debian: apt-get install {package})")).into()
        );
    }
    fetched(
        &format!("{package}, because apt cannot install it"),
        cmd!(sh, "apt-get install --quiet --yes --no-install-recommends {package}").run(),
    )
}

/// Returns what the pinned compiler needs to build for another machine.
pub(crate) fn target(sh: &Shell, triple: &str) -> Result<()> {
    let installed =
        cmd!(sh, "rustup target list --installed").quiet().read().context("asking rustup for its targets")?;
    if installed.lines().any(|line| line == triple) {
        return Ok(());
    }
    fetched(&format!("the standard library for {triple}"), cmd!(sh, "rustup target add {triple}").run())
}

/// Returns the path of a file of the repository.
pub(crate) fn file(name: &str) -> PathBuf {
    root().join(Path::new(name))
}
