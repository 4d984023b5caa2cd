//! Gives processes a wrong wall clock, by libfaketime; the machine's own clock does not change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::distribution::install_package;

/// The variant for programs with threads.
const LIBRARY: &str = "libfaketimeMT.so.1";

const MISSING: &str =
    "no libfaketime on this machine to set a server's clock wrong with: install the package libfaketime";

/// A wall clock of processes that differs from the machine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongClock(Source);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Seconds(i64),
    File(PathBuf),
}

impl WrongClock {
    /// Returns a clock that is this many seconds ahead of the machine's, or behind it.
    pub const fn off(seconds: i64) -> Self {
        WrongClock(Source::Seconds(seconds))
    }

    /// Returns a clock whose difference is in this file: [`WrongClock::turn`] changes it while processes run.
    pub fn in_file(file: impl Into<PathBuf>) -> io::Result<Self> {
        let file = file.into();
        WrongClock::turn(&file, 0)?;
        Ok(WrongClock(Source::File(file)))
    }

    /// Turns a clock whose difference is in this file; processes see that within a second.
    pub fn turn(file: &Path, seconds: i64) -> io::Result<()> {
        // Replaced in one step: it may be read at any moment.
        let next = file.with_extension("next");
        fs::write(&next, format!("{seconds:+}\n"))?;
        fs::rename(next, file)
    }

    /// Checks that libfaketime exists; as root with apt-get, installs it from Debian.
    pub fn install() -> Result<()> {
        if find().is_some() || (install_package("libfaketime")? && find().is_some()) { Ok(()) } else { bail!(MISSING) }
    }

    /// Makes a command use this clock. Timers follow the machine's clock: only the wall clock is wrong.
    pub fn set(&self, command: &mut Command) -> Result<()> {
        command.envs(self.variables()?);
        Ok(())
    }

    /// Returns the variables that make a process use this clock.
    pub fn variables(&self) -> Result<Vec<(String, String)>> {
        let library = find().context(MISSING)?.display().to_string();
        let differs = match &self.0 {
            Source::Seconds(seconds) => ("FAKETIME", format!("{seconds:+}s")),
            Source::File(file) => ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        };
        let others = [
            ("LD_PRELOAD", library),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        Ok(others.into_iter().chain([differs]).map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

/// Finds the library: Debian keeps it by architecture, other systems in one place.
fn find() -> Option<PathBuf> {
    let by_architecture = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let places = by_architecture.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/lib64")]);
    places.map(|place| place.join("faketime").join(LIBRARY)).find(|file| Path::exists(file))
}
