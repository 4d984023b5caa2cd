//! A file that stale holders cannot replace.
//!
//! The mark is in a second file next to it, which is locked while the first file is replaced. So all processes of the machine have
//! one order, and a process that was paused is refused when it continues. Invariant: the mark is on disk before the new file is in
//! its place, and the file is complete at every moment, old or new.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use lockkeeper_core::FencingToken;

use crate::Refused;

/// The beginning of a mark's file; 1 is the version of its format.
const HEADER: &str = "lockkeeper-fence 1 ";

/// A file, or anything that a file can represent, behind its own gate.
///
/// `NAME.fence` next to the file contains the greatest token seen. The process that has the pass locks it (`flock`). So the gate
/// works among the processes of one machine, or of several machines on a file system that shares locks.
///
/// All calls block their thread: they wait for the disk and for the current pass.
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
    /// The mark's file has no valid mark, so no token can be compared with it.
    #[error("{} holds no mark: {text:?}; restore it, or delete it if no older holder can still be running", path.display())]
    NoMark {
        /// The mark's file.
        path: PathBuf,
        /// The beginning of its contents.
        text: String,
    },
    /// The operating system refused.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Its file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The right to change what the file represents, until it is dropped. Meanwhile no other process gets a pass.
#[derive(Debug)]
#[must_use = "the gate admits other processes when the pass is dropped; keep it until the change is done"]
pub struct FilePass {
    path: PathBuf,
    /// Locked until it is closed.
    fence: File,
}

impl FencedFile {
    /// Names the file at `path`. It need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let mut fence = OsString::from(&path);
        fence.push(".fence");
        FencedFile { path, fence: fence.into() }
    }

    /// Returns the greatest token that was seen, if there is one. Waits for the current pass.
    ///
    /// # Errors
    /// The same as [`FencedFile::enter`].
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

    /// Waits for the current pass, raises the mark to `token`, and returns a pass, if `token` is at least the greatest so far.
    ///
    /// A process that is killed gives up its pass. A process that is paused keeps its pass, and others wait. So a paused holder
    /// cannot make a late change here.
    ///
    /// # Cost
    /// One fsync if the token is new.
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

    /// Replaces the file by `contents`, if no greater token was seen. Readers see the old file or the new one, nothing else.
    ///
    /// # Cost
    /// Three fsyncs.
    ///
    /// # Errors
    /// The same as [`FencedFile::enter`]. The old file is then still in place, unless only the last step failed, which syncs the
    /// directory.
    pub fn replace(&self, token: FencingToken, contents: impl AsRef<[u8]>) -> Result<(), FileError> {
        self.enter(token)?.replace(&mut contents.as_ref())
    }

    fn mark(&self, fence: &mut File) -> Result<Option<FencingToken>, FileError> {
        let mut text = String::new();
        let read = fence.rewind().and_then(|()| fence.take(100).read_to_string(&mut text));
        read.map_err(|source| self.io("reading", source))?;
        if text.is_empty() {
            // The file is new, or its creator was killed before it wrote. No token has passed yet.
            return Ok(None);
        }
        let mark = text.strip_prefix(HEADER).and_then(|rest| rest.strip_suffix('\n'));
        match mark.map(|mark| mark.trim_start_matches('0').parse()) {
            Some(Ok(mark)) => Ok(Some(mark)),
            _ => Err(FileError::NoMark { path: self.fence.clone(), text }),
        }
    }

    /// Writes in place, because the lock belongs to this file. One write of fixed length within a sector: no crash leaves half of it.
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
    /// Replaces the file by all of `contents`. If reading it fails, the file does not change.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn replace(self, contents: &mut impl Read) -> Result<(), FileError> {
        // In the same directory, so that the rename is atomic. No other process uses this name, because we have the pass.
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

/// Makes a new directory entry durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// Lets a caller pass the lock on to a command: the lock belongs to the open file.
#[cfg(unix)]
impl std::os::fd::AsFd for FilePass {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fence.as_fd()
    }
}
