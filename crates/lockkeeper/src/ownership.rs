//! Whether other users of this machine may have written a file.
//!
//! Secrets and commands are taken only from files that no other user than root can change. The check is of an open file, so that
//! nobody can put another one in its place after it.

use std::fs::{File, Metadata};
#[cfg(feature = "deadletter")]
use std::io;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::Misuse;

/// The bit of a directory in which users may not rename or remove each other's files.
#[cfg(feature = "deadletter")]
const STICKY: u32 = 0o1000;

/// Returns how another user could have written a file or a directory: because of its owner or its mode.
pub(crate) fn other_writer(metadata: &Metadata) -> Option<String> {
    if ![0, rustix::process::geteuid().as_raw()].contains(&metadata.uid()) {
        return Some(format!("belongs to user {}", metadata.uid()));
    }
    let mode = metadata.mode() & 0o777;
    (mode & 0o022 != 0).then(|| format!("may be written by other users (mode {mode:03o})"))
}

/// Returns how another user could have replaced the files in a directory: through it, or through one above it.
///
/// A sticky directory such as `/tmp` may be writable by all. What is in it must then belong to this user or to root, as
/// [`other_writer`] checks.
#[cfg(feature = "deadletter")]
pub(crate) fn other_replacer(dir: &Path) -> io::Result<Option<String>> {
    // Resolve links, so that the directories above are the real ones.
    for at in dir.canonicalize()?.ancestors() {
        let metadata = at.metadata()?;
        let may_be_shared = metadata.uid() == 0 && metadata.mode() & STICKY != 0;
        if let Some(how) = other_writer(&metadata).filter(|_| !may_be_shared) {
            return Ok(Some(format!("{} {how}", at.display())));
        }
    }
    Ok(None)
}

/// Reads a file with credentials. It must belong to this user or to root, no other user may write it, and not every user may read
/// it.
///
/// # Errors
/// The file cannot be read, or other users could know or choose what is in it. The error names the file and never what is in it.
pub fn read_credentials(argument: &'static str, file: &Path) -> Result<String, Misuse> {
    let name = file.display();
    let unreadable = |error| Misuse::new(argument, format!("cannot read {name}: {error}"));
    let mut open = File::open(file).map_err(unreadable)?;
    let metadata = open.metadata().map_err(unreadable)?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o004 != 0 {
        let problem = format!("{name} has credentials, and every user may read it (mode {mode:03o})");
        return Err(Misuse::new(argument, problem).remedy(format!("chmod 600 {name}")));
    }
    // A user who can change it chooses the account of this program, and the address that it believes.
    if let Some(how) = other_writer(&metadata) {
        let remedy = format!("make it a file of the user who runs this, and chmod 600 {name}");
        return Err(Misuse::new(argument, format!("{name} has credentials, and {how}")).remedy(remedy));
    }
    let mut text = String::new();
    open.read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}
