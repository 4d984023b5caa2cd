//! Copies of a server's data, while no server uses it.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::exit::{Code, Failure};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copied {
    pub files: u64,
    pub bytes: u64,
}

/// Copies the files of a data directory into a new directory, which only this user can enter. They may not be on the disk
/// yet: see [`sync`]. After a failure the new directory is removed.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<Copied, Failure> {
    make(to)?;
    copy_files(from, to).inspect_err(|_| _ = std::fs::remove_dir_all(to))
}

/// Makes a directory that only this user can enter.
pub(crate) fn make(dir: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().mode(0o700).create(dir);
    made.map_err(|error| Failure::new(Code::Internal, format!("cannot make {}: {error}", dir.display())))
}

fn copy_files(from: &Path, to: &Path) -> Result<Copied, Failure> {
    let failed = |what: &str, path: &Path| {
        let what = format!("{what} {}", path.display());
        move |error: io::Error| Failure::new(Code::Internal, format!("cannot {what}: {error}"))
    };
    let mut copied = Copied::default();
    for entry in std::fs::read_dir(from).map_err(failed("read", from))? {
        let entry = entry.map_err(failed("read", from))?;
        let file = entry.path();
        // The lock is that of the store, not of its data. Nothing else in a store is a link or a directory.
        if entry.file_name() == "lock" || !entry.file_type().map_err(failed("read", &file))?.is_file() {
            continue;
        }
        copied.bytes += std::fs::copy(&file, to.join(entry.file_name())).map_err(failed("copy", &file))?;
        copied.files += 1;
    }
    Ok(copied)
}

/// Makes a directory and the files in it durable.
pub(crate) fn sync(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        File::open(entry?.path())?.sync_all()?;
    }
    File::open(dir)?.sync_all()
}

/// Makes a copy durable, and gives it its name.
pub(crate) fn settle(copy: &Path, name: &Path) -> io::Result<()> {
    sync(copy)?;
    std::fs::rename(copy, name)?;
    File::open(parent(name))?.sync_all()
}

/// Returns the directory that contains a path.
pub(crate) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
