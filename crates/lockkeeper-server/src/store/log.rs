//! The log on the disk: files that are written from front to end, with one record and one fsync per batch.
//!
//! A file grows by a chunk of zeros at a time and is reused after it is folded. So nearly every fsync has only data to
//! write. An fdatasync that must also write a new length or new blocks takes nearly twice as long (docs/server.md).
//!
//! Invariant: a record is on the disk when `append` returns, and the next one is begun after that.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tracing::warn;

use crate::error::ServerError;
use crate::store::batch::Batch;
use crate::store::directory::{self, log_name, private_file};
use crate::store::record::{self, Changes, End, Origin};

/// The file to which batches are appended.
#[derive(Debug)]
pub(super) struct Log {
    directory: PathBuf,
    origin: Origin,
    file: File,
    /// The number of the next batch.
    next: u64,
    /// The position of the next record, and the length of the file.
    end: u64,
    allocated: u64,
    chunk: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// Begins a file, on an old one if there is one. The caller syncs the directory.
    pub(super) fn begin(directory: &Path, origin: Origin, next: u64, chunk: u64) -> io::Result<Self> {
        let file = private_file(&directory.join(log_name(origin.log)))?;
        let allocated = file.metadata()?.len();
        let directory = directory.to_owned();
        Ok(Self { directory, origin, file, next, end: 0, allocated, chunk, buffer: Vec::new() })
    }

    /// Continues after the last record of a file.
    pub(super) fn resume(directory: &Path, origin: Origin, bytes: &[u8], end: End, chunk: u64) -> io::Result<Self> {
        let mut log = Self::begin(directory, origin, end.next, chunk)?;
        let rest = &bytes[end.at..];
        if rest.chunks(4096).any(|page| page != &[0; 4096][..page.len()]) {
            if end.torn {
                let file = log_name(origin.log);
                warn!(file, at = end.at, "removing an incomplete record, which was never acknowledged");
            }
            log.allocated = end.at as u64;
            log.file.set_len(log.allocated)?;
        }
        log.end = end.at as u64;
        if let Some(last) = end.last {
            // This record is about to become visible, and it may not be on the disk: after a failed fsync the system
            // treats the page as clean. Only writing it again makes the next fsync cover it.
            log.file.seek(SeekFrom::Start(last as u64))?;
            log.file.write_all(&bytes[last..end.at])?;
            log.file.sync_all()?;
        }
        log.file.seek(SeekFrom::Start(log.end))?;
        Ok(log)
    }

    /// Makes a batch durable. After an error the log must not be written again.
    pub(super) fn append(&mut self, batch: &Batch) -> io::Result<()> {
        self.buffer.clear();
        record::encode(&mut self.buffer, self.origin, self.next, batch);
        let end = self.end + self.buffer.len() as u64;
        if end > self.allocated {
            self.allocated = end.next_multiple_of(self.chunk);
            let zeros = usize::try_from(self.allocated - end).unwrap_or(0);
            self.buffer.resize(self.buffer.len() + zeros, 0);
            self.file.write_all(&self.buffer)?;
            self.file.seek(SeekFrom::Start(end))?;
        } else {
            self.file.write_all(&self.buffer)?;
        }
        self.file.sync_data()?;
        self.end = end;
        self.next += 1;
        Ok(())
    }

    /// Continues in the next file.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        let origin = Origin { log: self.origin.log + 1, ..self.origin };
        let next = Self::begin(&self.directory, origin, self.next, self.chunk)?;
        if next.allocated == 0 {
            // This is probably a new file. The name of a reused file was synced long ago.
            directory::sync(&self.directory)?;
        }
        *self = Self { buffer: std::mem::take(&mut self.buffer), ..next };
        Ok(())
    }

    /// Frees the part of the file after the records.
    pub(super) fn shrink(&mut self) -> io::Result<()> {
        self.allocated = self.end;
        self.file.set_len(self.end)
    }

    /// Returns the number of the file.
    pub(super) fn number(&self) -> u64 {
        self.origin.log
    }

    /// Returns the length of all records in bytes.
    pub(super) fn len(&self) -> u64 {
        self.end
    }

    /// Continues in a file that cannot be written.
    #[cfg(test)]
    pub(super) fn break_with(&mut self, file: File) {
        (self.file, self.allocated) = (file, u64::MAX); // so that it is written and synced, and nothing else
    }

    /// Returns the number of the last batch.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }
}

/// A file and its bytes.
pub(super) struct Contents {
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
}

/// Reads the files from `first` up to but not including `end`; none of them may be missing.
pub(super) fn read(directory: &Path, first: u64, end: Option<u64>) -> Result<Vec<Contents>, ServerError> {
    let fail = |source| ServerError::disk(directory.to_owned(), source);
    let mut numbers = directory::logs(directory).map_err(fail)?;
    numbers.retain(|number| *number >= first && end.is_none_or(|end| *number < end));
    let mut files = Vec::new();
    for (number, expected) in numbers.into_iter().zip(first..) {
        if number != expected {
            return Err(missing(directory, expected));
        }
        let mut file = File::open(directory.join(log_name(number))).map_err(fail)?;
        let mut bytes = Vec::new();
        bytes.reserve_exact(file.metadata().map_or(0, |file| usize::try_from(file.len()).unwrap_or(0)));
        while Read::by_ref(&mut file).take(256 << 10).read_to_end(&mut bytes).map_err(fail)? > 0 {
            std::thread::yield_now();
        }
        files.push(Contents { number, bytes });
    }
    let expected = end.unwrap_or(first + 1).saturating_sub(first);
    if (files.len() as u64) < expected {
        return Err(missing(directory, first + files.len() as u64));
    }
    Ok(files)
}

fn missing(directory: &Path, number: u64) -> ServerError {
    damaged(directory, format!("{} is missing", log_name(number)))
}

fn damaged(directory: &Path, what: String) -> ServerError {
    ServerError::Damaged { path: directory.to_owned(), what }
}

/// The contents of several files, and where the log continues.
pub(super) struct Replayed<'a> {
    pub(super) changes: Changes<'a>,
    /// The index of the file for the next record, the end of its records, and the number of its first record.
    pub(super) active: usize,
    pub(super) end: End,
    pub(super) began: u64,
}

/// Reads all records; the first one must follow `batch`.
pub(super) fn replay<'a>(
    directory: &Path,
    files: &'a [Contents],
    store_id: i64,
    batch: u64,
) -> Result<Replayed<'a>, ServerError> {
    let began = batch + 1;
    let nothing = End { at: 0, last: None, next: began, torn: false };
    let mut replayed = Replayed { changes: Changes::default(), active: 0, end: nothing, began };
    let mut previous: Option<(&Contents, End)> = None;
    for (index, file) in files.iter().enumerate() {
        let origin = Origin { store_id, log: file.number };
        let began = previous.map_or(began, |(_, end)| end.next);
        let mut records = 0_u32;
        let end = record::scan(&file.bytes, origin, began, |payload| {
            records += 1;
            if records.is_multiple_of(64) {
                // Let concurrent commits go first.
                std::thread::yield_now();
            }
            replayed.changes.add(payload)
        });
        let end = end.map_err(|damage| {
            let (file, at, what) = match previous {
                Some((before, end)) if damage.missing_before => (before, end.at, "records are missing".to_owned()),
                _ => (file, damage.at, damage.what),
            };
            damaged(directory, format!("{} at byte {at}: {what}", log_name(file.number)))
        })?;
        if end.last.is_some() || index == 0 {
            (replayed.active, replayed.end, replayed.began) = (index, end, began);
        }
        previous = Some((file, end));
    }
    Ok(replayed)
}
