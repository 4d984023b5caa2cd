//! The log on the disk: files that are written from front to end, with one record and one fsync per batch.
//!
//! A file grows by a chunk of zeros at a time and is reused after it is folded. So nearly every fsync has only data to
//! write. An fdatasync that must also write a new length or new blocks takes nearly twice as long (docs/server.md).
//!
//! Invariant: a record is on the disk when `append` returns, and the next one is begun after that.

use std::io;
use std::sync::Arc;

use redb::StorageBackend;
use tracing::warn;

use crate::error::ServerError;
use crate::store::batch::{Batch, KEPT_BYTES};
use crate::store::directory::{self, Files, log_name};
use crate::store::record::{self, Changes, End, Origin};

/// The file to which batches are appended.
#[derive(Debug)]
pub(super) struct Log {
    files: Arc<dyn Files>,
    origin: Origin,
    file: Box<dyn StorageBackend>,
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
    pub(super) fn begin(files: Arc<dyn Files>, origin: Origin, next: u64, chunk: u64) -> io::Result<Self> {
        let file = files.open(&log_name(origin.log))?;
        let allocated = file.len()?;
        Ok(Self { files, origin, file, next, end: 0, allocated, chunk, buffer: Vec::new() })
    }

    /// Continues after the last record of a file.
    pub(super) fn resume(
        files: Arc<dyn Files>,
        origin: Origin,
        bytes: &[u8],
        end: End,
        chunk: u64,
    ) -> io::Result<Self> {
        let mut log = Self::begin(files, origin, end.next, chunk)?;
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
            log.file.write(last as u64, &bytes[last..end.at])?;
            log.file.sync_data()?;
        }
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
        }
        self.file.write(self.end, &self.buffer)?;
        self.file.sync_data()?;
        if self.buffer.capacity() > KEPT_BYTES {
            self.buffer = Vec::new();
        }
        self.end = end;
        self.next += 1;
        Ok(())
    }

    /// Continues in the next file.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        let origin = Origin { log: self.origin.log + 1, ..self.origin };
        let next = Self::begin(Arc::clone(&self.files), origin, self.next, self.chunk)?;
        // Of a reused file too: the fold that renamed it only warns if this fails.
        self.files.sync()?;
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
pub(super) fn read(files: &dyn Files, first: u64, end: Option<u64>) -> Result<Vec<Contents>, ServerError> {
    let fail = |source| ServerError::disk(files.path().to_owned(), source);
    let mut numbers = directory::logs(files).map_err(fail)?;
    numbers.retain(|number| *number >= first && end.is_none_or(|end| *number < end));
    let mut found = Vec::new();
    for (number, expected) in numbers.into_iter().zip(first..) {
        if number != expected {
            return Err(missing(files, expected));
        }
        let file = files.open(&log_name(number)).map_err(fail)?;
        let len = usize::try_from(file.len().map_err(fail)?).unwrap_or(0);
        let mut bytes = vec![0; len];
        for (piece, at) in bytes.chunks_mut(256 << 10).zip((0..).step_by(256 << 10)) {
            file.read(at, piece).map_err(fail)?;
            std::thread::yield_now();
        }
        found.push(Contents { number, bytes });
    }
    let expected = end.unwrap_or(first + 1).saturating_sub(first);
    if (found.len() as u64) < expected {
        return Err(missing(files, first + found.len() as u64));
    }
    Ok(found)
}

fn missing(files: &dyn Files, number: u64) -> ServerError {
    damaged(files, format!("{} is missing", log_name(number)))
}

fn damaged(files: &dyn Files, what: String) -> ServerError {
    ServerError::Damaged { path: files.path().to_owned(), what }
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
    directory: &dyn Files,
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
