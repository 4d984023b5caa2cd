//! The packages of Debian and rpm. What is in them is metadata in crates/lockkeeper-cli/Cargo.toml; both hold the same files.

use anyhow::{Context, Result};
use xshell::cmd;

use super::{Machine, Release};
use crate::tools;

const CARGO_DEB: &str = "3.8.0";
const CARGO_GENERATE_RPM: &str = "0.21.1";

impl Release {
    pub(super) fn packages(&self, machine: Machine) -> Result<()> {
        self.program(machine)?;
        self.stage()?;
        self.deb(machine, "1")?;
        self.rpm(machine, "1")
    }

    /// Makes the package for Debian with this revision, whose number grows when the same version is packed again.
    pub(super) fn deb(&self, machine: Machine, revision: &str) -> Result<()> {
        // xz is what every Debian reads; the program of that name packs without a library in C.
        let tool = tools::cargo(&self.sh, "cargo-deb", CARGO_DEB, &["--no-default-features"])?;
        let (sh, out, target) = (&self.sh, self.file(machine, revision, "deb"), machine.target());
        let deb = cmd!(sh, "{tool} --quiet --no-build --no-strip --profile dist --package lockkeeper-cli --locked");
        deb.args(["--target", &target, "--deb-revision", revision, "--output"])
            .arg(out)
            .env("CARGO_TARGET_DIR", self.root.join("target/dist"))
            .quiet()
            .ignore_stdout()
            .run()
            .context("making the package for Debian")
    }

    pub(super) fn rpm(&self, machine: Machine, revision: &str) -> Result<()> {
        let tool = tools::cargo(&self.sh, "cargo-generate-rpm", CARGO_GENERATE_RPM, &[])?;
        let (sh, out, target) = (&self.sh, self.file(machine, revision, "rpm"), machine.target());
        let release = format!("release = \"{revision}\"");
        let rpm = cmd!(
            sh,
            "{tool} --package crates/lockkeeper-cli --profile dist --target-dir target/dist --auto-req disabled"
        );
        rpm.args(["--target", &target, "--arch", machine.name(), "--set-metadata", &release, "--output"])
            .arg(out)
            .quiet()
            .run()
            .context("making the package for rpm")
    }

    /// Returns the path of a package with the usual name of its kind.
    pub(super) fn file(&self, machine: Machine, revision: &str, kind: &str) -> std::path::PathBuf {
        let version = &self.version;
        self.out().join(match kind {
            "deb" => format!("lockkeeper_{version}-{revision}_{}.deb", machine.other_name()),
            _ => format!("lockkeeper-{version}-{revision}.{}.rpm", machine.name()),
        })
    }
}
