//! A data directory in use.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use tracing::warn;

use crate::error::ServerError;
use crate::store::batch::{Batch, Store, StoredState};
use crate::store::directory::{self, Directory, Files, STATE, log_name};
use crate::store::folder::{Folder, Job};
use crate::store::log::{self, Log};
use crate::store::record::{Changes, Origin};
use crate::store::snapshot::Snapshot;

/// Limits on the length of the log's files, in bytes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// A file grows by this.
    chunk: u64,
    /// A file of this length is folded when the fold before has ended.
    long: u64,
    /// At this length, commits wait for the fold. The log has at most twice this, plus one batch.
    most: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { chunk: 256 << 10, long: 16 << 20, most: 64 << 20 }
    }
}

/// The state of the folding thread.
#[derive(Debug)]
enum Folding {
    /// All files but the current one are folded.
    Done,
    Running,
    /// The disk was full. The fold is retried when the log has this length.
    Full {
        again: u64,
    },
}

/// A data directory in use.
#[derive(Debug)]
pub(crate) struct DiskStore {
    files: Arc<dyn Files>,
    sizes: Sizes,
    log: Log,
    folding: Folding,
    /// The last batch before the current file.
    through: u64,
    folder: Folder,
    /// The lock of the directory; dropped last.
    _lock: Option<File>,
}

impl DiskStore {
    /// Opens a data directory, and creates it if it is missing. `fresh` returns the state of a new one.
    pub(crate) fn open(path: &Path, fresh: impl FnOnce() -> StoredState) -> Result<(Self, StoredState), ServerError> {
        Self::open_sized(path, Sizes::default(), fresh)
    }

    fn open_sized(
        path: &Path,
        sizes: Sizes,
        fresh: impl FnOnce() -> StoredState,
    ) -> Result<(Self, StoredState), ServerError> {
        Self::open_on(Arc::new(Directory::make(path)?), sizes, fresh)
    }

    fn open_on(
        files: Arc<dyn Files>,
        sizes: Sizes,
        fresh: impl FnOnce() -> StoredState,
    ) -> Result<(Self, StoredState), ServerError> {
        let fail = |source| disk(&*files, source);
        let complete = directory::check_format(&*files)?;
        let lock = files.lock()?;
        if !complete {
            directory::refuse_foreign(&*files)?;
        } else if !directory::has(&*files, STATE).map_err(fail)? {
            return Err(damaged(&*files, "state.redb is missing"));
        }
        // The database does not check its pages, and panics over some damaged ones.
        let opened = catch_unwind(AssertUnwindSafe(|| open_parts(&files, complete, sizes, fresh)));
        let Parts { snapshot, log, through, unfolded, state } =
            opened.unwrap_or_else(|_| Err(damaged(&*files, "state.redb cannot be read")))?;
        if !complete {
            directory::write_format(&*files).map_err(fail)?;
        }
        let folder = Folder::start(Arc::clone(&files), snapshot)?;
        let mut store = Self { files, sizes, log, folding: Folding::Done, through, folder, _lock: lock };
        if unfolded {
            store.fold()?;
        }
        Ok((store, state))
    }

    fn fold(&mut self) -> Result<(), ServerError> {
        self.folding = Folding::Running;
        self.folder.begin(Job { before: self.log.number(), through: self.through, keep: self.sizes.long })
    }

    /// Handles the result of a fold. A full disk does no harm yet: the log continues and the old files stay.
    fn folded(&mut self, result: Result<(), ServerError>) -> Result<(), ServerError> {
        self.folding = match result {
            Ok(()) => Folding::Done,
            Err(error @ ServerError::DiskFull { .. }) if self.log.len() < self.sizes.most => {
                // A fold whose fsync failed may look complete and not be on the disk. The files of the log stay, and the
                // next fold writes a new snapshot.
                let most_mib = self.sizes.most >> 20;
                warn!(%error, log = self.log.len(), most_mib, "the log cannot be folded, so it grows: free space on the disk");
                Folding::Full { again: (self.log.len() + self.sizes.long / 2).min(self.sizes.most) }
            }
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Folds files to limit the length of the log.
    fn limit_length(&mut self) -> Result<(), ServerError> {
        if matches!(self.folding, Folding::Running) {
            let result = if self.log.len() < self.sizes.most { self.folder.result() } else { Some(self.folder.wait()) };
            match result {
                Some(result) => self.folded(result)?,
                None => return Ok(()),
            }
        }
        match self.folding {
            Folding::Full { again } if self.log.len() >= again => self.fold(),
            Folding::Done if self.log.len() >= self.sizes.long => self.rotate(),
            _ => Ok(()),
        }
    }

    /// Continues in a new file and folds the file before.
    fn rotate(&mut self) -> Result<(), ServerError> {
        self.through = self.log.last();
        self.log.rotate().map_err(|source| disk(&*self.files, source))?;
        self.fold()
    }

    fn fold_all(&mut self) -> Result<(), ServerError> {
        if matches!(self.folding, Folding::Running) {
            let result = self.folder.wait();
            self.folded(result)?;
        }
        if self.log.len() == 0 && matches!(self.folding, Folding::Done) {
            return self.log.shrink().map_err(|source| disk(&*self.files, source));
        }
        if self.log.len() > 0 {
            self.through = self.log.last();
            self.log.rotate().map_err(|source| disk(&*self.files, source))?;
        }
        self.log.shrink().map_err(|source| disk(&*self.files, source))?;
        self.folder.begin(Job { before: self.log.number(), through: self.through, keep: 0 })?;
        self.folder.wait()
    }
}

impl Store for DiskStore {
    fn commit(&mut self, batch: &Batch) -> Result<(), ServerError> {
        self.limit_length()?;
        self.log.append(batch).map_err(|source| disk(&*self.files, source))
    }

    fn close(&mut self) {
        if let Err(error) = self.fold_all() {
            warn!(%error, "the log could not be folded; the next start reads it");
        }
    }
}

/// The parts of an opened directory.
struct Parts {
    snapshot: Snapshot,
    log: Log,
    /// The last batch before the current file, and whether older files are still to be folded.
    through: u64,
    unfolded: bool,
    state: StoredState,
}

fn disk(files: &dyn Files, source: io::Error) -> ServerError {
    ServerError::disk(files.path().to_owned(), source)
}

fn damaged(files: &dyn Files, what: &str) -> ServerError {
    ServerError::Damaged { path: files.path().to_owned(), what: what.to_owned() }
}

fn open_parts(
    files: &Arc<dyn Files>,
    complete: bool,
    sizes: Sizes,
    fresh: impl FnOnce() -> StoredState,
) -> Result<Parts, ServerError> {
    let (mut snapshot, found) = Snapshot::open(Arc::clone(files))?;
    if found {
        return open_found(files, complete, sizes, snapshot);
    }
    if complete {
        return Err(snapshot.damaged("state.redb is empty".to_owned()));
    }
    let fail = |source| disk(&**files, source);
    // Files of a log without a snapshot come from a first start that was interrupted.
    let logs = directory::logs(&**files).map_err(fail)?;
    logs.into_iter().try_for_each(|log| files.remove(&log_name(log))).map_err(fail)?;
    let state = fresh();
    let totals = state.totals();
    let mut all = Batch { zxid: state.zxid, next_session: state.next_session, totals, ..Batch::default() };
    for (path, node) in state.tree.iter() {
        all.put_node(Arc::clone(path), Some(node));
    }
    let origin = Origin { store_id: state.store_id, log: 1 };
    let log = Log::begin(Arc::clone(files), origin, 1, sizes.chunk).map_err(fail)?;
    files.sync().map_err(fail)?;
    snapshot.create(&Changes::of(&all), state.store_id, 1)?;
    Ok(Parts { snapshot, log, through: 0, unfolded: false, state })
}

fn open_found(
    files: &Arc<dyn Files>,
    complete: bool,
    sizes: Sizes,
    mut snapshot: Snapshot,
) -> Result<Parts, ServerError> {
    let fail = |source| disk(&**files, source);
    let logs = log::read(&**files, snapshot.log(), None)?;
    let replayed = log::replay(&**files, &logs, snapshot.store_id(), snapshot.batch())?;
    let state = snapshot.load(&replayed.changes)?;
    // Nothing is changed or removed before all of it has been read and checked.
    let active = &logs[replayed.active];
    let origin = Origin { store_id: state.store_id, log: active.number };
    let log = Log::resume(Arc::clone(files), origin, &active.bytes, replayed.end, sizes.chunk).map_err(fail)?;
    // If the names were not durable before, they are before anything is acknowledged.
    files.sync().map_err(fail)?;
    // A fold ends by removing the files before its mark. So the last fold has not ended, and may not be on the disk.
    let interrupted = directory::logs(&**files).map_err(fail)?.first().is_some_and(|first| *first < snapshot.log());
    if interrupted || !complete {
        snapshot.doubt();
    }
    if !complete {
        // A first start that was interrupted before the last step.
        snapshot.fold(&Changes::default(), snapshot.log(), snapshot.batch())?;
    }
    let unfolded = interrupted || active.number > snapshot.log();
    Ok(Parts { snapshot, log, through: replayed.began - 1, unfolded, state })
}

#[cfg(test)]
mod simulated;
#[cfg(test)]
mod stored;
#[cfg(test)]
mod tests;
