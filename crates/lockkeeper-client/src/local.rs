//! Unix sockets of this machine, in directories of any depth.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;

/// The longest path that the address of a Unix socket has room for on every system.
const LONGEST: usize = 103;

/// A path that the address of a Unix socket has room for, and that leads to the same file as a longer one.
///
/// A long path leads through the open directory of the file, so it is valid as long as this value lives, and in this
/// process only. This works on Linux.
#[derive(Debug)]
pub struct ShortPath {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl ShortPath {
    /// Returns such a path for this one.
    ///
    /// # Errors
    /// The path is too long, and its directory cannot be opened.
    pub fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= LONGEST {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        Self::through_the_directory(path)
    }

    /// Returns the short path.
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    #[cfg(target_os = "linux")]
    fn through_the_directory(path: &Path) -> io::Result<Self> {
        use std::os::fd::AsRawFd;

        use rustix::fs::{Mode, OFlags, open};

        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        // The right to pass through the directory suffices; it need not be readable.
        let directory = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        if path.as_os_str().as_bytes().len() > LONGEST {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        Ok(Self { path, _directory: Some(directory) })
    }

    #[cfg(not(target_os = "linux"))]
    fn through_the_directory(_path: &Path) -> io::Result<Self> {
        let problem =
            format!("its path has more than {LONGEST} bytes, which works on Linux only: choose a shorter one");
        Err(io::Error::new(io::ErrorKind::InvalidFilename, problem))
    }
}

/// Connects to the socket at this path. Dropping the future leaves no connection.
pub(crate) async fn dial(path: &Path) -> io::Result<UnixStream> {
    let short = ShortPath::new(path)?;
    UnixStream::connect(short.as_path()).await
}
