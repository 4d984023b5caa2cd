//! Gives a server a wall clock that is wrong, by libfaketime: nothing of the machine's own clock is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Error;
use super::distribution::install_package;

/// For programs with threads.
const LIBRARY: &str = "libfaketimeMT.so.1";

/// A server's wall clock, off by so many seconds from the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongClock(pub(super) i64);

impl WrongClock {
    /// Makes sure that libfaketime exists; as root with apt-get, installs it from Debian.
    ///
    /// # Errors
    /// [`Error::NoFaketime`], or [`Error::Install`] with what apt-get had to say.
    pub fn install() -> Result<(), Error> {
        if find().is_some() || (install_package("libfaketime")? && find().is_some()) {
            Ok(())
        } else {
            Err(Error::NoFaketime)
        }
    }

    /// Lets a command run by this clock. Timers keep going by the machine's: only what people call the time is wrong.
    pub(super) fn set(self, command: &mut Command) -> Result<(), Error> {
        let library = find().ok_or(Error::NoFaketime)?;
        command.env("LD_PRELOAD", library).env("FAKETIME", format!("{:+}s", self.0));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Ok(())
    }
}

/// Debian keeps it by architecture, others in one place.
fn find() -> Option<PathBuf> {
    let by_architecture = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let places = by_architecture.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/lib64")]);
    places.map(|place| place.join("faketime").join(LIBRARY)).find(|file| Path::exists(file))
}
