//! `cargo xtask dist`: everything that a release consists of, except its publication.
//!
//! All artefacts hold the same program, which is built once for each machine, static and reproducible. They are in `target/packages`.

mod binary;
mod check;
mod image;
mod notices;
mod packages;
mod wheel;

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use xshell::{Shell, cmd};

use crate::workspace::shell;

#[derive(Debug, Subcommand)]
pub(crate) enum Dist {
    /// The static program, and an archive of it with its manual pages and completions
    Binaries(Options),
    /// The packages for Debian and for rpm
    Packages(Options),
    /// The OCI image, which holds nothing but the program
    Image(Options),
    /// The wheel for pip
    Wheel(Options),
    /// All of these, and their checksums
    All(Options),
    /// Build all of these again in a new clone and compare the bytes; changes that are not committed are not in it
    Reproduce(Options),
    /// Install, use, upgrade and remove what was built, each in a clean root; needs root and Debian's archive
    Check {
        /// Check only this; may be given several times
        #[arg(value_enum)]
        what: Vec<What>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Build only for this machine; may be given several times
    #[arg(long, value_enum)]
    machine: Vec<Machine>,
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// The static programs, on a root with nothing else in it
    Binary,
    /// The package for Debian
    Deb,
    /// The package for rpm
    Rpm,
    /// The wheel
    Wheel,
    /// The OCI image, and the Compose file
    Image,
    /// The units for systemd
    Units,
}

/// What artefacts are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Machine {
    #[value(name = "x86_64")]
    X86,
    #[value(name = "aarch64")]
    Arm,
}

impl Machine {
    /// Its name for Linux, rpm and Python.
    fn name(self) -> &'static str {
        match self {
            Machine::X86 => "x86_64",
            Machine::Arm => "aarch64",
        }
    }

    /// Its name for Debian and in images.
    fn other_name(self) -> &'static str {
        match self {
            Machine::X86 => "amd64",
            Machine::Arm => "arm64",
        }
    }

    fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }

    /// The machine of this chore. Its program prints the manual pages and completions of all packages.
    fn this() -> Result<Machine> {
        let name = std::env::consts::ARCH;
        let found = [Machine::X86, Machine::Arm].into_iter().find(|machine| machine.name() == name);
        found.with_context(|| format!("releases are built on x86_64 or aarch64, not on {name}"))
    }
}

impl Options {
    fn machines(&self) -> Vec<Machine> {
        if self.machine.is_empty() { vec![Machine::X86, Machine::Arm] } else { self.machine.clone() }
    }
}

pub(crate) fn run(dist: &Dist) -> Result<()> {
    let release = Release::new(shell()?)?;
    match dist {
        Dist::Binaries(options) => options.machines().into_iter().try_for_each(|machine| release.archive(machine))?,
        Dist::Packages(options) => options.machines().into_iter().try_for_each(|machine| release.packages(machine))?,
        Dist::Image(options) => options.machines().into_iter().try_for_each(|machine| release.image(machine))?,
        Dist::Wheel(options) => options.machines().into_iter().try_for_each(|machine| release.wheel(machine))?,
        Dist::All(options) => return release.all(&options.machines()),
        Dist::Reproduce(options) => return release.reproduce(&options.machines()),
        Dist::Check { what } => return release.check(what),
    }
    release.print()
}

/// A release of the shell's clone.
struct Release {
    sh: Shell,
    root: PathBuf,
    version: String,
    /// When its commit was made, in seconds since 1970: the only time that artefacts know.
    epoch: String,
    /// The programs that this chore has built.
    built: RefCell<Vec<Machine>>,
    staged: Cell<bool>,
}

impl Release {
    fn new(sh: Shell) -> Result<Release> {
        let root = fs::canonicalize(sh.current_dir()).context("finding the repository")?;
        sh.change_dir(&root);
        let epoch = cmd!(sh, "git log -1 --format=%ct").quiet().read();
        let epoch = epoch.context("asking git for the time of the commit (in an archive, set SOURCE_DATE_EPOCH)");
        let epoch = std::env::var("SOURCE_DATE_EPOCH").or(epoch)?;
        sh.set_var("SOURCE_DATE_EPOCH", &epoch);
        fs::create_dir_all(root.join("target/packages")).context("making target/packages")?;
        Ok(Release {
            sh,
            root,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch,
            built: RefCell::default(),
            staged: Cell::default(),
        })
    }

    /// Where artefacts are. Always below `target`: the metadata of packages names it.
    fn out(&self) -> PathBuf {
        self.root.join("target/packages")
    }

    fn all(&self, machines: &[Machine]) -> Result<()> {
        let start = Instant::now();
        for &machine in machines {
            self.archive(machine)?;
            self.packages(machine)?;
            self.image(machine)?;
            self.wheel(machine)?;
        }
        self.print()?;
        eprintln!("built in {:.0?}", start.elapsed());
        Ok(())
    }

    /// The names of all artefacts.
    fn artefacts(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(self.out()).context("reading target/packages")?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_file() && entry.file_name() != "SHA256SUMS" {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Prints the artefacts with their sizes, and writes their checksums.
    fn print(&self) -> Result<()> {
        let (names, out) = (self.artefacts()?, self.out());
        for name in &names {
            let megabytes = fs::metadata(out.join(name))?.len() as f64 / 1e6;
            println!("{megabytes:6.2} MB  target/packages/{name}");
        }
        let _there = self.sh.push_dir(&out);
        let sums = cmd!(self.sh, "sha256sum {names...}").quiet().read()?;
        fs::write(out.join("SHA256SUMS"), sums + "\n").context("writing the checksums")
    }

    /// Builds everything again from this clone's commit, in a clone in another directory.
    fn reproduce(&self, machines: &[Machine]) -> Result<()> {
        let (sh, clone) = (&self.sh, std::env::temp_dir().join(format!("lockkeeper-again-{}", std::process::id())));
        let root = &self.root;
        cmd!(sh, "git clone --quiet --local {root} {clone}").run()?;
        let there = Shell::new()?;
        there.change_dir(&clone);
        let built = Release::new(there).and_then(|again| again.all(machines).map(|()| again));
        let differ = built.and_then(|again| {
            let same = |name: &&String| {
                let read = |release: &Release| fs::read(release.out().join(name)).ok();
                read(self).is_some_and(|ours| read(&again) == Some(ours))
            };
            let (same, differ): (Vec<_>, Vec<_>) = again.artefacts()?.into_iter().partition(|name| same(&name));
            println!("the same bytes: {}", same.join(", "));
            Ok(differ)
        });
        sh.remove_path(&clone)?;
        match differ? {
            differ if differ.is_empty() => Ok(()),
            differ => bail!("other bytes, or not built here: {}", differ.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The programs of both machines are in one directory of artefacts.
    #[test]
    fn machines_have_names_of_their_own() {
        assert_eq!(Machine::X86.target(), "x86_64-unknown-linux-musl");
        assert_eq!(Machine::Arm.target(), "aarch64-unknown-linux-musl");
        assert_ne!(Machine::X86.other_name(), Machine::Arm.other_name());
    }
}
