//! A file that stale holders cannot replace.
//!
//! The mark is in a second file next to it, which is locked while the first file is replaced. So all processes of the machine have
//! one order, and a process that was paused is refused when it continues. Invariant: the mark is on disk before the new file is in
//! its place, and the file is complete at every moment, old or new.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use lockkeeper_core::{FencingToken, TokenEpoch};

use crate::Refused;

/// The beginning of a mark's file; 1 is the version of its format.
const HEADER: &str = "lockkeeper-fence 1 ";

/// What a mark's file is called, behind the name of the file.
const SUFFIX: &str = ".fence";

/// The length of the line with the mark: the header, 19 digits and the end of the line.
const LINE: usize = HEADER.len() + 20;

/// How much of the records of resets is read.
const MAX_HISTORY: u64 = 64 * 1024;

/// A file, or anything that a file can represent, behind its own gate.
///
/// `NAME.fence` next to the file contains the greatest token seen. The process that has the pass locks it (`flock`). So the gate
/// works among the processes of one machine, or of several machines on a file system that shares locks.
///
/// A path that ends in `.fence` is an error, because it names a mark.
///
/// A file has one gate, however its path is written: links in the directory part are resolved, and a path that is itself a symbolic
/// link is an error. A hard link is another file.
///
/// `NAME.fence` is created with mode 0600, because every user who may read it can lock it. To share a gate with other users, change
/// its mode and its group, or create it empty.
///
/// All calls block their thread: they wait for the disk and for the current pass.
#[derive(Clone, Debug)]
pub struct FencedFile {
    path: PathBuf,
    max_wait: Option<Duration>,
    any_epoch: bool,
}

/// The real paths of a file and of its mark's file.
struct FilePaths {
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
    /// The token's epoch is so far above the mark's that the token is probably wrong. It would close the gate to all right ones.
    #[error(
        "{}: token {offered} is of epoch {}, and the greatest one seen is {highest} of epoch {}",
        path.display(), TokenEpoch::of(*offered), TokenEpoch::of(*highest)
    )]
    EpochAhead {
        /// The file.
        path: PathBuf,
        /// The refused token.
        offered: FencingToken,
        /// The greatest token so far.
        highest: FencingToken,
    },
    /// Another process kept its pass for longer than [`FencedFile::max_wait`].
    #[error("{}: another process kept the gate closed for {waited:?}", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
        /// How long this process waited.
        waited: Duration,
    },
    /// The mark's file has no valid mark, so no token can be compared with it.
    #[error("{} holds no mark: {text:?}; restore it, or reset it if no older holder can still be running", path.display())]
    NoMark {
        /// The mark's file.
        path: PathBuf,
        /// The beginning of its contents.
        text: String,
    },
    /// The path is a symbolic link. It could lead to another file tomorrow, and each path to a file would have its own gate.
    #[error("{} is a symbolic link; name the file that it leads to", path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// The path ends in `.fence`, so it names the mark of another file's gate. A change would make that gate forget its tokens.
    #[error("{} is a name for the mark of a gate; name the file that the gate is for", path.display())]
    Mark {
        /// The path.
        path: PathBuf,
    },
    /// The mark's file belongs to a user who could lower the mark: not to root, to the user of this process, or to the owner of the
    /// file that the gate is for.
    #[error("{} belongs to user {uid}, who could lower its mark; remove it if no older holder can still be running", path.display())]
    Owner {
        /// The mark's file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// The path is a directory, a device, a socket or a pipe, which cannot be replaced.
    #[error("{} is {kind}, not a file; it is not replaced", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is: `a directory`, `a device`.
        kind: &'static str,
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
    /// Names the file at `path`. It need not exist, but its directory must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FencedFile { path: path.into(), max_wait: None, any_epoch: false }
    }

    /// Sets how long a call waits for the current pass, in place of "until it ends".
    ///
    /// A call that gives up leaves a thread behind, which waits on, and which opens the gate at once if it gets it.
    #[must_use]
    pub fn max_wait(mut self, limit: Duration) -> Self {
        self.max_wait = Some(limit);
        self
    }

    /// Admits tokens of every epoch. By default, a token that is more than one epoch above the mark is an error.
    #[must_use]
    pub fn any_epoch(mut self) -> Self {
        self.any_epoch = true;
        self
    }

    /// Returns the greatest token that was seen, if there is one. Waits for the current pass.
    ///
    /// # Errors
    /// The same as [`FencedFile::enter`].
    pub fn highest(&self) -> Result<Option<FencingToken>, FileError> {
        let paths = self.paths()?;
        match self.open(&paths, OpenOptions::new().read(true)) {
            Ok(fence) => paths.mark(&mut self.lock(&paths, fence, false)?),
            Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns what the resets recorded, the oldest first. Does not wait.
    ///
    /// # Errors
    /// The same as [`FencedFile::enter`].
    pub fn resets(&self) -> Result<Vec<String>, FileError> {
        let paths = self.paths()?;
        let mut fence = match self.open(&paths, OpenOptions::new().read(true)) {
            Ok(fence) => fence,
            Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut records = Vec::new();
        let read =
            fence.seek(SeekFrom::Start(LINE as u64)).and_then(|_| fence.take(MAX_HISTORY).read_to_end(&mut records));
        read.map_err(|source| paths.io("reading", source))?;
        Ok(String::from_utf8_lossy(&records).lines().map(str::to_owned).collect())
    }

    /// Lowers the mark to `to`, or removes it. Use it if a wrong token has closed the gate. Waits for the current pass.
    ///
    /// **Older holders can pass again.** Make sure that none is left. `record` is added to the mark's file as one line: say who did
    /// it, when and why.
    ///
    /// # Errors
    /// [`FileError::Io`], [`FileError::Link`], [`FileError::Mark`], [`FileError::NotAFile`] or [`FileError::Busy`].
    pub fn reset(&self, to: Option<FencingToken>, record: &str) -> Result<(), FileError> {
        let paths = self.paths()?;
        let fence = self.open(&paths, OpenOptions::new().read(true).write(true))?;
        let mut fence = self.lock(&paths, fence, true)?;
        let valid = !paths.first_line(&mut fence)?.is_empty() && paths.mark(&mut fence).is_ok();
        let record: String = record.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let reset = |fence: &mut File| {
            if !valid {
                // Not ours, or a torn one.
                fence.set_len(0)?;
                fence.rewind()?;
                fence.write_all(line(None).as_bytes())?;
            }
            // The record first: no crash leaves a lower mark without it.
            fence.seek(SeekFrom::End(0))?;
            fence.write_all(format!("{record}\n").as_bytes())?;
            fence.sync_all()?;
            fence.rewind()?;
            fence.write_all(line(to).as_bytes())?;
            fence.sync_all()
        };
        reset(&mut fence).map_err(|source| paths.io("writing", source))
    }

    /// Waits for the current pass, raises the mark to `token`, and returns a pass, if `token` is at least the greatest so far.
    ///
    /// A process that is killed gives up its pass. A process that is paused keeps its pass, and others wait. So a paused holder
    /// cannot make a late change here.
    ///
    /// # Cost
    /// One fsync.
    ///
    /// # Errors
    /// [`FileError::Refused`] if a greater token has been seen; [`FileError::EpochAhead`] if the token is probably wrong;
    /// [`FileError::Busy`] if the wait was limited and is over; [`FileError::NoMark`] if the mark's file is not one;
    /// [`FileError::Link`] and [`FileError::NotAFile`] if the path or the mark's file is no file; [`FileError::Mark`] if the path names
    /// a mark; [`FileError::Io`].
    pub fn enter(&self, token: FencingToken) -> Result<FilePass, FileError> {
        let paths = self.paths()?;
        let fence = self.open(&paths, OpenOptions::new().read(true).write(true).create(true).truncate(false))?;
        let mut fence = self.lock(&paths, fence, true)?;
        match paths.mark(&mut fence)? {
            Some(highest) if token < highest => {
                let refused = Refused::Stale { offered: token, highest };
                return Err(FileError::Refused { path: paths.path, refused });
            }
            Some(highest) if !self.any_epoch && TokenEpoch::of(token).get() > TokenEpoch::of(highest).get() + 1 => {
                return Err(FileError::EpochAhead { path: paths.path, offered: token, highest });
            }
            // Also an equal mark: the process that wrote it may have ended before it was on disk.
            _ => paths.raise(&mut fence, token).map_err(|source| paths.io("writing", source))?,
        }
        Ok(FilePass { path: paths.path, fence })
    }

    /// Checks that the path can be replaced: there is a regular file, or nothing.
    ///
    /// # Errors
    /// [`FileError::NotAFile`], [`FileError::Link`], [`FileError::Mark`] or [`FileError::Io`].
    pub fn check_replaceable(&self) -> Result<(), FileError> {
        replaceable(&self.paths()?.path).map(|_| ())
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
        self.check_replaceable()?;
        self.enter(token)?.replace(&mut contents.as_ref())
    }

    /// Resolves the directory, so that every path to the file leads to the same mark.
    fn paths(&self) -> Result<FilePaths, FileError> {
        let io = |source| FileError::Io { what: "finding the directory of", path: self.path.clone(), source };
        let path = match self.path.file_name() {
            Some(name) => directory(&self.path).canonicalize().map_err(io)?.join(name),
            // `.` and `..` are directories with a name.
            None => self.path.canonicalize().map_err(io)?,
        };
        if path.is_symlink() {
            return Err(FileError::Link { path });
        }
        if path.file_name().is_none() {
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "it has no name")));
        }
        let (name, suffix) = (path.as_os_str().as_encoded_bytes(), SUFFIX.as_bytes());
        // Some file systems do not tell capitals from small letters.
        if name.len() >= suffix.len() && name[name.len() - suffix.len()..].eq_ignore_ascii_case(suffix) {
            return Err(FileError::Mark { path });
        }
        let mut fence = OsString::from(&path);
        fence.push(SUFFIX);
        Ok(FilePaths { path, fence: fence.into() })
    }

    /// Opens the mark's file. It follows no link, and a pipe in its place does not block.
    fn open(&self, paths: &FilePaths, options: &mut OpenOptions) -> Result<File, FileError> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;

            use rustix::fs::OFlags;
            options.mode(0o600).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        }
        let fence = options.open(&paths.fence).map_err(|source| match paths.fence.is_symlink() {
            true => FileError::Link { path: paths.fence.clone() },
            false => paths.io("opening", source),
        })?;
        let metadata = fence.metadata().map_err(|source| paths.io("reading", source))?;
        check_kind(&paths.fence, &metadata)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;

            let uid = metadata.uid();
            let is_trusted = [0, rustix::process::geteuid().as_raw()].contains(&uid);
            if !is_trusted && !paths.path.symlink_metadata().is_ok_and(|file| file.uid() == uid) {
                return Err(FileError::Owner { path: paths.fence.clone(), uid });
            }
        }
        Ok(fence)
    }

    /// Waits for the current pass.
    fn lock(&self, paths: &FilePaths, fence: File, exclusive: bool) -> Result<File, FileError> {
        let failed = |source| paths.io("locking", source);
        match if exclusive { fence.try_lock() } else { fence.try_lock_shared() } {
            Ok(()) => return Ok(fence),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let wait = move || if exclusive { fence.lock() } else { fence.lock_shared() }.map(|()| fence);
        let Some(limit) = self.max_wait else {
            return wait().map_err(failed);
        };
        // The system has no lock with a time limit, so a thread waits without one. Its file is closed, and unlocked, when nobody
        // takes it any more.
        let (sender, locked) = mpsc::sync_channel(0);
        let waiting = std::thread::Builder::new().name("lockkeeper-fence".to_owned()).spawn(move || {
            _ = sender.send(wait());
        });
        waiting.map_err(failed)?;
        match locked.recv_timeout(limit) {
            Ok(locked) => locked.map_err(failed),
            Err(_) => Err(FileError::Busy { path: paths.path.clone(), waited: limit }),
        }
    }
}

/// The line that contains a mark, or none.
fn line(mark: Option<FencingToken>) -> String {
    format!("{HEADER}{:019}\n", mark.map_or(0, FencingToken::get))
}

impl FilePaths {
    /// Reads the first line of the mark's file.
    fn first_line(&self, fence: &mut File) -> Result<String, FileError> {
        let mut text = Vec::new();
        let read = fence.rewind().and_then(|()| fence.take(LINE as u64).read_to_end(&mut text));
        read.map_err(|source| self.io("reading", source))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn mark(&self, fence: &mut File) -> Result<Option<FencingToken>, FileError> {
        let text = self.first_line(fence)?;
        if text.is_empty() || text == line(None) {
            // The file is new, or its creator was killed before it wrote, or it was reset. No token has passed since.
            return Ok(None);
        }
        let mark = text.strip_prefix(HEADER).and_then(|rest| rest.strip_suffix('\n')).filter(|mark| mark.len() == 19);
        match mark.map(|mark| mark.trim_start_matches('0').parse()) {
            Some(Ok(mark)) => Ok(Some(mark)),
            _ => Err(FileError::NoMark { path: self.fence.clone(), text }),
        }
    }

    /// Writes in place, because the lock belongs to this file. One write of fixed length within a sector: no crash leaves half of it.
    fn raise(&self, fence: &mut File, token: FencingToken) -> io::Result<()> {
        if fence.metadata()?.len() == 0 {
            // First, so that a file with a mark is in its directory after a power loss, whichever process ends in between.
            sync_directory(&self.fence)?;
        }
        fence.rewind()?;
        fence.write_all(line(Some(token)).as_bytes())?;
        fence.sync_all()
    }

    fn io(&self, what: &'static str, source: io::Error) -> FileError {
        FileError::Io { what, path: self.fence.clone(), source }
    }
}

impl FilePass {
    /// Replaces the file by all of `contents`. If reading it fails, the file does not change.
    ///
    /// The new file gets the permissions of the old one, and its owner and its group as far as this process may set them, but never
    /// setuid and setgid. If it cannot get the group, the group has only the permissions that everyone has. It is written under a
    /// random name in the same directory (`.lockkeeper-…new`), which only a process that is killed leaves behind.
    ///
    /// # Errors
    /// [`FileError::NotAFile`], [`FileError::Link`] or [`FileError::Io`].
    pub fn replace(self, contents: &mut impl Read) -> Result<(), FileError> {
        let old = replaceable(&self.path)?;
        let failed = |what, source| FileError::Io { what, path: self.path.clone(), source };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".lockkeeper-").suffix(".new").rand_bytes(12);
        #[cfg(unix)]
        if old.is_none() {
            use std::os::unix::fs::PermissionsExt;
            // The umask decides, as for every new file.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        // In the same directory, so that the rename is atomic; created exclusively, so that no planted link is followed.
        let mut new = builder.tempfile_in(directory(&self.path)).map_err(|source| failed("writing", source))?;
        let mut write = || {
            io::copy(contents, new.as_file_mut())?;
            if let Some(old) = &old {
                inherit(new.as_file(), old)?;
            }
            new.as_file().sync_all()
        };
        write().map_err(|source| failed("writing", source))?;
        new.persist(&self.path).map_err(|error| failed("replacing", error.error))?;
        sync_directory(&self.path).map_err(|source| failed("syncing the directory of", source))
    }
}

/// Gives a new file the owner, the group and the permissions of the old one, as far as this process may.
#[cfg(unix)]
fn inherit(new: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let (made, mut mode) = (new.metadata()?, old.mode() & 0o777);
    if made.uid() != old.uid() {
        // Only root may. The caller has written the contents, so it may own them.
        _ = fchown(new, Some(old.uid()), None);
    }
    if made.gid() != old.gid() && fchown(new, None, Some(old.gid())).is_err() {
        // The permissions of the group were for another group.
        mode &= !0o070 | ((mode & 0o007) << 3);
    }
    new.set_permissions(std::fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn inherit(new: &File, old: &Metadata) -> io::Result<()> {
    new.set_permissions(old.permissions())
}

/// Returns the metadata of the file at `path`, if there is one.
fn replaceable(path: &Path) -> Result<Option<Metadata>, FileError> {
    match path.symlink_metadata() {
        Ok(old) => check_kind(path, &old).map(|()| Some(old)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::Io { what: "reading", path: path.to_owned(), source }),
    }
}

/// Refuses everything but a regular file.
fn check_kind(path: &Path, metadata: &Metadata) -> Result<(), FileError> {
    let (path, kind) = (path.to_owned(), metadata.file_type());
    if kind.is_file() {
        return Ok(());
    }
    if kind.is_symlink() {
        return Err(FileError::Link { path });
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_block_device() || kind.is_char_device() {
            return Err(FileError::NotAFile { path, kind: "a device" });
        }
        if kind.is_fifo() {
            return Err(FileError::NotAFile { path, kind: "a pipe" });
        }
        if kind.is_socket() {
            return Err(FileError::NotAFile { path, kind: "a socket" });
        }
    }
    Err(FileError::NotAFile { path, kind: "a directory" })
}

/// The directory of a path, as it is written.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a new directory entry durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

/// Lets a caller pass the lock on to a command: the lock belongs to the open file.
#[cfg(unix)]
impl std::os::fd::AsFd for FilePass {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fence.as_fd()
    }
}
