//! A data directory in use.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use crate::error::ServerError;
use crate::store::batch::{Batch, State, Store};
use crate::store::directory::{self, STATE};
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
    path: PathBuf,
    sizes: Sizes,
    log: Log,
    folding: Folding,
    /// The last batch before the current file.
    through: u64,
    /// Owns the snapshot.
    folder: Folder,
    /// The lock of the directory; dropped last.
    _lock: File,
}

impl DiskStore {
    /// Opens a data directory, and creates it if it is missing. `fresh` returns the state of a new one.
    pub(crate) fn open(path: &Path, fresh: impl FnOnce() -> State) -> Result<(Self, State), ServerError> {
        Self::open_sized(path, Sizes::default(), fresh)
    }

    fn open_sized(path: &Path, sizes: Sizes, fresh: impl FnOnce() -> State) -> Result<(Self, State), ServerError> {
        let fail = |source| ServerError::disk(path.to_owned(), source);
        directory::make_directory(path)?;
        let complete = directory::check_format(path)?;
        let lock = directory::lock(path)?;
        if !complete {
            directory::refuse_foreign(path)?;
        } else if !path.join(STATE).try_exists().map_err(fail)? {
            return Err(ServerError::Damaged { path: path.to_owned(), what: "state.redb is missing".to_owned() });
        }
        // The database does not check its pages, and panics over some damaged ones.
        let opened = catch_unwind(AssertUnwindSafe(|| open_parts(path, complete, sizes, fresh)));
        let Parts { snapshot, log, through, unfolded, state } = opened.unwrap_or_else(|_| {
            Err(ServerError::Damaged { path: path.to_owned(), what: "state.redb cannot be read".to_owned() })
        })?;
        if !complete {
            directory::write_format(path).map_err(fail)?;
        }
        let folder = Folder::start(path.to_owned(), snapshot)?;
        let path = path.to_owned();
        let mut store = Self { path, sizes, log, folding: Folding::Done, through, folder, _lock: lock };
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
                warn!(%error, hint = error.hint(), "the log cannot be folded, so it grows");
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
        self.log.rotate().map_err(|source| ServerError::disk(self.path.clone(), source))?;
        self.fold()
    }

    /// Folds everything.
    fn fold_all(&mut self) -> Result<(), ServerError> {
        if matches!(self.folding, Folding::Running) {
            let result = self.folder.wait();
            self.folded(result)?;
        }
        if self.log.len() == 0 && matches!(self.folding, Folding::Done) {
            return self.log.shrink().map_err(|source| ServerError::disk(self.path.clone(), source));
        }
        if self.log.len() > 0 {
            self.through = self.log.last();
            self.log.rotate().map_err(|source| ServerError::disk(self.path.clone(), source))?;
        }
        self.log.shrink().map_err(|source| ServerError::disk(self.path.clone(), source))?;
        self.folder.begin(Job { before: self.log.number(), through: self.through, keep: 0 })?;
        self.folder.wait()
    }
}

impl Store for DiskStore {
    fn commit(&mut self, batch: &Batch) -> Result<(), ServerError> {
        self.limit_length()?;
        self.log.append(batch).map_err(|source| ServerError::disk(self.path.clone(), source))
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
    state: State,
}

fn open_parts(path: &Path, complete: bool, sizes: Sizes, fresh: impl FnOnce() -> State) -> Result<Parts, ServerError> {
    let (mut snapshot, found) = Snapshot::open(path)?;
    if found {
        // Without a `format` file this is a first start that was interrupted before the last step.
        return open_found(path, sizes, snapshot);
    }
    if complete {
        return Err(snapshot.damaged("state.redb is empty".to_owned()));
    }
    let fail = |source| ServerError::disk(path.to_owned(), source);
    // Files of a log without a snapshot come from a first start that was interrupted.
    directory::remove_logs(path, u64::MAX).map_err(fail)?;
    let state = fresh();
    let totals = state.totals();
    let mut all = Batch { zxid: state.zxid, next_session: state.next_session, totals, ..Batch::default() };
    for (path, node) in state.tree.iter() {
        all.put_node(Arc::clone(path), Some(node));
    }
    let log = Log::begin(path, Origin { store_id: state.store_id, log: 1 }, 1, sizes.chunk).map_err(fail)?;
    directory::sync(path).map_err(fail)?;
    snapshot.create(&Changes::of(&all), state.store_id, 1)?;
    Ok(Parts { snapshot, log, through: 0, unfolded: false, state })
}

fn open_found(path: &Path, sizes: Sizes, snapshot: Snapshot) -> Result<Parts, ServerError> {
    let fail = |source| ServerError::disk(path.to_owned(), source);
    let files = log::read(path, snapshot.log(), None)?;
    let replayed = log::replay(path, &files, snapshot.store_id(), snapshot.batch())?;
    let state = snapshot.load(&replayed.changes)?;
    // Nothing is changed or removed before all of it has been read and checked.
    let active = &files[replayed.active];
    let origin = Origin { store_id: state.store_id, log: active.number };
    let log = Log::resume(path, origin, &active.bytes, replayed.end, sizes.chunk).map_err(fail)?;
    directory::remove_logs(path, snapshot.log()).map_err(fail)?;
    let unfolded = active.number > snapshot.log();
    Ok(Parts { snapshot, log, through: replayed.began - 1, unfolded, state })
}

#[cfg(test)]
mod tests;
