//! The data directory: its lock, its owner and its layout.
//!
//! Invariant: a directory with a `format` file is complete, because that file is created last and atomically.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use redb::StorageBackend;
use redb::backends::FileBackend;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::ServerError;

/// The layout that this program reads and writes.
pub(super) const FORMAT: u32 = 3;

pub(super) const STATE: &str = "state.redb";
/// A snapshot that is not whole yet.
pub(super) const STATE_NEW: &str = "state.redb.new";
const FORMAT_FILE: &str = "format";
const FORMAT_NEW: &str = "format.new";
const LOCK: &str = "lock";
const LOG: &str = "log.";

/// The files of a data directory. A trait, so that tests can simulate a disk that fails and forgets.
pub(super) trait Files: fmt::Debug + Send + Sync {
    /// Returns the path, for messages.
    fn path(&self) -> &Path;

    /// Locks the directory until the result is dropped. A simulated one needs no lock.
    fn lock(&self) -> Result<Option<File>, ServerError>;

    /// Returns the names in the directory.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens a file, and creates it if it is missing.
    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>>;

    /// Asks the system to forget what it has in memory of a file and believes to be on the disk. After a failed fsync
    /// the two differ. The system may refuse.
    fn forget(&self, name: &str) -> io::Result<()>;

    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names of the files durable.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the system.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Creates the directory if it is missing.
    pub(super) fn make(path: &Path) -> Result<Self, ServerError> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        match builder.create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(ServerError::NotADirectory { path: path.to_owned() })
            }
            Err(error) => Err(ServerError::disk(path.to_owned(), error)),
            Ok(()) => Ok(Self { path: path.to_owned() }),
        }
    }

    /// Opens a file that only this user can read, and creates it if it is missing. Another user may have planted a file, or a
    /// link to one of this user's.
    fn file(&self, name: &str) -> io::Result<File> {
        let planted = |why: String| Err(io::Error::other(format!("{name} {why}")));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        let file = match options.open(self.path.join(name)) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                return planted("is a link, which someone may have planted; remove it".to_owned());
            }
            file => file?,
        };
        let found = file.metadata()?;
        if !found.is_file() || found.nlink() > 1 {
            return planted("is not a file, or has several names; remove it".to_owned());
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return planted(format!("belongs to user {}; run this as that user, or remove it", found.uid()));
        }
        Ok(file)
    }
}

impl Files for Directory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn lock(&self) -> Result<Option<File>, ServerError> {
        let lock = self.file(LOCK).map_err(|error| ServerError::disk(self.path.clone(), error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Err(ServerError::InUse { path: self.path.clone() }),
            Err(TryLockError::Error(error)) => Err(ServerError::disk(self.path.clone(), error)),
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        std::fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let backend = FileBackend::new(self.file(name)?).map_err(io::Error::other)?;
        Ok(Box::new(backend))
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(self.file(name)?, 0, None, rustix::fs::Advice::DontNeed)?;
        #[cfg(not(target_os = "linux"))]
        let _ = name;
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// Returns whether the directory has a file of this name.
pub(super) fn has(files: &dyn Files, name: &str) -> io::Result<bool> {
    Ok(files.names()?.iter().any(|found| found == name))
}

/// Returns whether the directory has a `format` file, and so is complete.
///
/// # Errors
/// The file contains another format.
pub(super) fn check_format(files: &dyn Files) -> Result<bool, ServerError> {
    let fail = |source| ServerError::disk(files.path().to_owned(), source);
    if !has(files, FORMAT_FILE).map_err(fail)? {
        return Ok(false);
    }
    let file = files.open(FORMAT_FILE).map_err(fail)?;
    let len = file.len().map_err(fail)?.min(64);
    let mut found = vec![0; usize::try_from(len).unwrap_or(0)];
    file.read(0, &mut found).map_err(fail)?;
    let found = String::from_utf8(found).map_or_else(|_| "unreadable".to_owned(), |text| text.trim().to_owned());
    if found == FORMAT.to_string() {
        return Ok(true);
    }
    Err(ServerError::Format { path: files.path().to_owned(), found, supported: FORMAT })
}

/// Without a `format` file, the directory may contain only what an interrupted first start leaves.
pub(super) fn refuse_foreign(files: &dyn Files) -> Result<(), ServerError> {
    let names = files.names().map_err(|source| ServerError::disk(files.path().to_owned(), source))?;
    let known = |name: &String| [LOCK, STATE, STATE_NEW, FORMAT_NEW].contains(&&**name) || log_number(name).is_some();
    if names.iter().all(known) {
        return Ok(());
    }
    // Leave a foreign directory as it was.
    let _ = files.remove(LOCK);
    Err(ServerError::Foreign { path: files.path().to_owned() })
}

/// Writes the `format` file atomically. This is the last step of a first start.
pub(super) fn write_format(files: &dyn Files) -> io::Result<()> {
    let file = files.open(FORMAT_NEW)?;
    file.set_len(0)?;
    file.write(0, format!("{FORMAT}\n").as_bytes())?;
    file.sync_data()?;
    files.rename(FORMAT_NEW, FORMAT_FILE)?;
    files.sync()
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
pub(super) fn logs(files: &dyn Files) -> io::Result<Vec<u64>> {
    let mut found: Vec<_> = files.names()?.iter().filter_map(|name| log_number(name)).collect();
    found.sort_unstable();
    Ok(found)
}
