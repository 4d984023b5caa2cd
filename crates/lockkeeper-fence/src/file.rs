//! A file that stale holders cannot replace.
//!
//! The mark stands in a file beside it, which is locked while the file is replaced: so two processes on one machine are in one
//! order, and a process that was paused is refused when it comes back. Invariant: the mark is on disk before the new file is in
//! its place, and the file is whole at every moment, old or new.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use lockkeeper_core::FencingToken;

use crate::Refused;

/// How a mark's file begins: 1 is the version of its format.
const HEADER: &str = "lockkeeper-fence 1 ";

/// A file, or anything else that a file can stand for, behind a gate of its own: `NAME.fence` beside it holds the greatest token
/// seen and is locked (`flock`) by whoever acts. For processes of one machine, or of several on a file system whose locks they
/// share.
///
/// Everything here blocks its thread: for the disk, and for whoever acts at the moment.
#[derive(Clone, Debug)]
pub struct FencedFile {
    path: PathBuf,
    fence: PathBuf,
}

/// Why a file was not replaced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The token is stale.
    #[error("{}: {refused}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why.
        refused: Refused,
    },
    /// The mark cannot be understood. Nothing may be replaced by guess.
    #[error("{} holds no mark: {text:?}; restore it, or delete it if no older holder can be around", path.display())]
    NoMark {
        /// The mark's file.
        path: PathBuf,
        /// How it begins.
        text: String,
    },
    /// The operating system refused.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

/// The right to act on what the file stands for, until it is dropped. No other process that asks has it meanwhile.
#[derive(Debug)]
#[must_use = "others are let in when it is dropped; keep it until the resource was changed"]
pub struct FilePass {
    path: PathBuf,
    /// Locked, until it is closed.
    fence: File,
}

impl FencedFile {
    /// The file at `path`, whether it exists or not.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let mut fence = OsString::from(&path);
        fence.push(".fence");
        FencedFile { path, fence: fence.into() }
    }

    /// The greatest token that was seen, if there was one. Waits for whoever acts.
    ///
    /// # Errors
    /// As [`FencedFile::enter`].
    pub fn highest(&self) -> Result<Option<FencingToken>, FileError> {
        match File::open(&self.fence) {
            Ok(mut fence) => {
                fence.lock_shared().map_err(|source| self.io("locking", source))?;
                self.mark(&mut fence)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.io("opening", source)),
        }
    }

    /// Waits until nobody acts, raises the mark to `token`, and gives the right to act: to whoever has at least the greatest token
    /// so far. One fsync where the token is new.
    ///
    /// Who has the right and is killed leaves it; who is paused keeps it, and others wait: a paused holder cannot act late here.
    ///
    /// # Errors
    /// [`FileError::Refused`] if a greater token has been seen; [`FileError::NoMark`] if the mark's file is not one;
    /// [`FileError::Io`].
    pub fn enter(&self, token: FencingToken) -> Result<FilePass, FileError> {
        let mut open = OpenOptions::new();
        let fence = open.read(true).write(true).create(true).truncate(false).open(&self.fence);
        let mut fence = fence.map_err(|source| self.io("opening", source))?;
        fence.lock().map_err(|source| self.io("locking", source))?;
        match self.mark(&mut fence)? {
            Some(highest) if token < highest => {
                let refused = Refused::Stale { offered: token, highest };
                return Err(FileError::Refused { path: self.path.clone(), refused });
            }
            Some(highest) if token == highest => {}
            _ => self.raise(&mut fence, token).map_err(|source| self.io("writing", source))?,
        }
        Ok(FilePass { path: self.path.clone(), fence })
    }

    /// Replaces the file by `contents`, if no greater token has been seen. Readers see the old file or the new one, nothing else.
    /// Three fsyncs.
    ///
    /// # Errors
    /// As [`FencedFile::enter`]; the file is the old one then, unless the last step, syncing its directory, has failed.
    pub fn replace(&self, token: FencingToken, contents: impl AsRef<[u8]>) -> Result<(), FileError> {
        self.enter(token)?.replace(&mut contents.as_ref())
    }

    fn mark(&self, fence: &mut File) -> Result<Option<FencingToken>, FileError> {
        let mut text = String::new();
        let read = fence.rewind().and_then(|()| fence.take(100).read_to_string(&mut text));
        read.map_err(|source| self.io("reading", source))?;
        if text.is_empty() {
            // Just made, or its maker was killed before it wrote; nobody has acted by it.
            return Ok(None);
        }
        let mark = text.strip_prefix(HEADER).and_then(|rest| rest.strip_suffix('\n'));
        match mark.map(|mark| mark.trim_start_matches('0').parse()) {
            Some(Ok(mark)) => Ok(Some(mark)),
            _ => Err(FileError::NoMark { path: self.fence.clone(), text }),
        }
    }

    /// In place, for the lock is this file's; in one write of one length within a sector, so that no crash leaves half of it.
    fn raise(&self, fence: &mut File, token: FencingToken) -> io::Result<()> {
        let is_new = fence.metadata()?.len() == 0;
        fence.seek(SeekFrom::Start(0))?;
        fence.write_all(format!("{HEADER}{:019}\n", token.get()).as_bytes())?;
        fence.sync_all()?;
        if is_new { sync_directory(&self.fence) } else { Ok(()) }
    }

    fn io(&self, what: &'static str, source: io::Error) -> FileError {
        FileError::Io { what, path: self.fence.clone(), source }
    }
}

impl FilePass {
    /// Replaces the file by everything that `contents` has. If that ends in an error, the file stays as it was.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn replace(self, contents: &mut impl Read) -> Result<(), FileError> {
        // In the same directory, so that the rename is one. Nobody else has this name: the gate is ours.
        let mut new = OsString::from(&self.path);
        new.push(".new");
        let new = PathBuf::from(new);
        let io = |what, path: &Path, source| FileError::Io { what, path: path.to_owned(), source };
        let mut write = || {
            let mut file = File::create(&new)?;
            if let Ok(old) = self.path.metadata() {
                file.set_permissions(old.permissions())?;
            }
            io::copy(contents, &mut file)?;
            file.sync_all()
        };
        if let Err(source) = write() {
            _ = std::fs::remove_file(&new);
            return Err(io("writing", &new, source));
        }
        std::fs::rename(&new, &self.path).map_err(|source| io("replacing", &self.path, source))?;
        sync_directory(&self.path).map_err(|source| io("syncing the directory of", &self.path, source))
    }
}

/// Makes a file's being there durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// For those who hand the right on to a command: the lock is the open file's.
#[cfg(unix)]
impl std::os::fd::AsFd for FilePass {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fence.as_fd()
    }
}
