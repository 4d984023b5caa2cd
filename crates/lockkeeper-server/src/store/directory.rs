//! The data directory: its lock, its owner and its layout.
//!
//! Invariant: a directory with a `format` file is complete, because that file is created last and atomically.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::Path;

use crate::error::ServerError;

/// The layout that this program reads and writes.
const FORMAT: u32 = 3;

pub(super) const STATE: &str = "state.redb";
const LOG: &str = "log.";

pub(super) fn make_directory(path: &Path) -> Result<(), ServerError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(ServerError::NotADirectory { path: path.to_owned() })
        }
        Err(error) => Err(ServerError::disk(path.to_owned(), error)),
        Ok(()) => Ok(()),
    }
}

/// Opens a file that only this user can read, and creates it if it is missing.
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Returns whether the directory has a `format` file, and so is complete.
///
/// # Errors
/// The file contains another format.
pub(super) fn check_format(path: &Path) -> Result<bool, ServerError> {
    let found = match std::fs::read_to_string(path.join("format")) {
        Ok(found) => found.trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => "unreadable".to_owned(),
        Err(error) => return Err(ServerError::disk(path.to_owned(), error)),
    };
    if found == FORMAT.to_string() {
        return Ok(true);
    }
    Err(ServerError::Format { path: path.to_owned(), found, supported: FORMAT })
}

pub(super) fn lock(path: &Path) -> Result<File, ServerError> {
    let lock = private_file(&path.join("lock")).map_err(|error| ServerError::disk(path.to_owned(), error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(ServerError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(ServerError::disk(path.to_owned(), error)),
    }
}

/// Without a `format` file, the directory may contain only what an interrupted first start leaves.
pub(super) fn refuse_foreign(path: &Path) -> Result<(), ServerError> {
    let fail = |source| ServerError::disk(path.to_owned(), source);
    for entry in std::fs::read_dir(path).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name();
        let known = name == "lock" || name == STATE || name == "format.new";
        if !known && name.to_str().and_then(log_number).is_none() {
            // Leave a foreign directory as it was.
            let _ = std::fs::remove_file(path.join("lock"));
            return Err(ServerError::Foreign { path: path.to_owned() });
        }
    }
    Ok(())
}

/// Writes the `format` file atomically. This is the last step of a first start.
pub(super) fn write_format(path: &Path) -> io::Result<()> {
    let new = path.join("format.new");
    let mut file = private_file(&new)?;
    file.set_len(0)?;
    writeln!(file, "{FORMAT}")?;
    file.sync_all()?;
    std::fs::rename(&new, path.join("format"))?;
    sync(path)
}

/// Makes the names of the files durable.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Returns the name of a file of the log.
pub(super) fn log_name(number: u64) -> String {
    format!("{LOG}{number:010}")
}

fn log_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix(LOG)?.parse().ok()?;
    (log_name(number) == name).then_some(number)
}

/// Returns the numbers of the log's files, in order.
pub(super) fn logs(path: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path)? {
        found.extend(entry?.file_name().to_str().and_then(log_number));
    }
    found.sort_unstable();
    Ok(found)
}

/// Removes the files of the log before this one.
pub(super) fn remove_logs(path: &Path, before: u64) -> io::Result<()> {
    let mut old = logs(path)?.into_iter().filter(|number| *number < before);
    old.try_for_each(|number| std::fs::remove_file(path.join(log_name(number))))
}
