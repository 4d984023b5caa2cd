//! The snapshot's file below redb: what redb may change on the disk, and whether the file may still be believed.
//!
//! After a failed fsync, the system has pages in memory that are not on the disk and that it never writes again. Who
//! reads the file then reads those pages. So nothing may be built on such a file, and nothing may be written to it.

use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use redb::{BackendError, StorageBackend};

/// What happens to what redb writes.
#[derive(Debug)]
enum Mode {
    /// It is kept in memory, in order. redb writes the header when it opens a file, and that must not be on the disk before
    /// it is known that the rest of the file is.
    Held(Vec<(u64, Vec<u8>)>),
    Written,
    /// It is an error. redb writes to a file that it closes, and does not report it if that fails.
    Refused,
}

/// A file that redb uses, shared with the snapshot.
#[derive(Debug)]
pub(super) struct Guarded {
    file: Box<dyn StorageBackend>,
    mode: RwLock<Mode>,
    doubtful: AtomicBool,
}

impl Guarded {
    /// A file whose writes are held until [`Guarded::release`].
    pub(super) fn held(file: Box<dyn StorageBackend>) -> Arc<Self> {
        Self::with(file, Mode::Held(Vec::new()))
    }

    /// A file that is written.
    pub(super) fn written(file: Box<dyn StorageBackend>) -> Arc<Self> {
        Self::with(file, Mode::Written)
    }

    fn with(file: Box<dyn StorageBackend>, mode: Mode) -> Arc<Self> {
        Arc::new(Self { file, mode: RwLock::new(mode), doubtful: AtomicBool::new(false) })
    }

    /// Writes what was held, and then everything.
    pub(super) fn release(&self) -> io::Result<()> {
        let mut mode = self.mode.write().unwrap_or_else(PoisonError::into_inner);
        if let Mode::Held(writes) = &*mode {
            for (at, bytes) in writes {
                self.note(self.file.write(*at, bytes))?;
            }
            *mode = Mode::Written;
        }
        Ok(())
    }

    /// Refuses all later writes.
    pub(super) fn refuse(&self) {
        *self.mode.write().unwrap_or_else(PoisonError::into_inner) = Mode::Refused;
    }

    /// Returns whether what the system has in memory of the file may differ from the disk for good.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Relaxed)
    }

    /// Only a write for which there is no room leaves no doubt: its pages are free or still to be written.
    fn note(&self, result: io::Result<()>) -> io::Result<()> {
        if result.as_ref().is_err_and(|error| !is_full(error)) {
            self.doubtful.store(true, Ordering::Relaxed);
        }
        result
    }

    fn mode(&self) -> std::sync::RwLockReadGuard<'_, Mode> {
        self.mode.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

/// Whether there is no room for a write.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn closed() -> io::Error {
    io::Error::other("the file is closed")
}

#[derive(Debug)]
pub(super) struct Backend(pub(super) Arc<Guarded>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mode = self.0.mode();
        self.0.file.read(offset, out)?;
        if let Mode::Held(writes) = &*mode {
            let end = offset + out.len() as u64;
            for (at, bytes) in writes {
                let (from, to) = (offset.max(*at), end.min(at + bytes.len() as u64));
                if from < to {
                    let part = |start: u64| {
                        usize::try_from(from - start).unwrap_or(0)..usize::try_from(to - start).unwrap_or(0)
                    };
                    out[part(offset)].copy_from_slice(&bytes[part(*at)]);
                }
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match &*self.0.mode() {
            // redb does so only if the length is not one that it has set.
            Mode::Held(_) => Err(io::ErrorKind::InvalidData.into()),
            Mode::Written => self.0.note(self.0.file.set_len(len)),
            Mode::Refused => Err(closed()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &*self.0.mode() {
            Mode::Held(_) => {}
            Mode::Written => return self.0.note(self.0.file.write(offset, data)),
            Mode::Refused => return Err(closed()),
        }
        if let Mode::Held(writes) = &mut *self.0.mode.write().unwrap_or_else(PoisonError::into_inner) {
            writes.push((offset, data.to_owned()));
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        match &*self.0.mode() {
            Mode::Held(_) => Ok(()),
            // After this error even a full disk leaves doubt.
            Mode::Written => self.0.file.sync_data().inspect_err(|_| self.0.doubtful.store(true, Ordering::Relaxed)),
            Mode::Refused => Err(closed()),
        }
    }

    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.unlock_range(start, end)
    }
}
