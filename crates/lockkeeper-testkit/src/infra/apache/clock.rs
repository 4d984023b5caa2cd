//! Gives a server a wrong wall clock, by libfaketime; the machine's own clock does not change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Error;
use super::distribution::install_package;

/// The variant for programs with threads.
const LIBRARY: &str = "libfaketimeMT.so.1";

/// A server's wall clock, this many seconds off from the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongClock(pub(super) i64);

impl WrongClock {
    /// Checks that libfaketime exists; as root with apt-get, installs it from Debian.
    ///
    /// # Errors
    /// [`Error::NoFaketime`], or [`Error::Install`] with the output of apt-get.
    pub fn install() -> Result<(), Error> {
        if find().is_some() || (install_package("libfaketime")? && find().is_some()) {
            Ok(())
        } else {
            Err(Error::NoFaketime)
        }
    }

    /// Makes a command use this clock. Timers follow the machine's clock: only the wall clock is wrong.
    pub(super) fn set(self, command: &mut Command) -> Result<(), Error> {
        let library = find().ok_or(Error::NoFaketime)?;
        command.env("LD_PRELOAD", library).env("FAKETIME", format!("{:+}s", self.0));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Ok(())
    }
}

/// Finds the library: Debian keeps it by architecture, other systems in one place.
fn find() -> Option<PathBuf> {
    let by_architecture = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let places = by_architecture.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/lib64")]);
    places.map(|place| place.join("faketime").join(LIBRARY)).find(|file| Path::exists(file))
}
