//! Folds the log into the snapshot on a thread of its own, so that no commit waits for it.
//!
//! Invariant: a file of the log is removed only when its contents are in the snapshot and on the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use tracing::warn;

use crate::error::ServerError;
use crate::store::directory::{self, log_name};
use crate::store::log;
use crate::store::snapshot::Snapshot;

/// The files to fold: all files before `before`, which contain all batches up to `through`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) before: u64,
    pub(super) through: u64,
    /// How many bytes of a folded file are kept for reuse; 0 removes the file.
    pub(super) keep: u64,
}

/// The running thread. Dropping it waits for the current job.
#[derive(Debug)]
pub(super) struct Folder {
    jobs: Option<Sender<Job>>,
    results: Receiver<Result<(), ServerError>>,
    thread: Option<JoinHandle<()>>,
}

impl Folder {
    pub(super) fn start(directory: PathBuf, mut snapshot: Snapshot) -> Result<Self, ServerError> {
        let (jobs, inbox) = channel();
        let (outbox, results) = channel();
        let run = move || {
            for job in inbox {
                // The database panics over some damaged pages.
                let folded = catch_unwind(AssertUnwindSafe(|| fold(&directory, &mut snapshot, job)));
                let folded = folded.unwrap_or_else(|_| Err(snapshot.damaged("state.redb cannot be read".to_owned())));
                if outbox.send(folded).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("lockkeeper-fold".to_owned())
            .spawn(run)
            .map_err(|source| ServerError::System { what: "a thread for the snapshot", source })?;
        Ok(Self { jobs: Some(jobs), results, thread: Some(thread) })
    }

    /// Begins a job; the one before must have ended.
    pub(super) fn begin(&self, job: Job) -> Result<(), ServerError> {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if sent { Ok(()) } else { Err(ServerError::Bug) }
    }

    /// Returns the result of the job if it has ended.
    pub(super) fn result(&self) -> Option<Result<(), ServerError>> {
        match self.results.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(ServerError::Bug)),
        }
    }

    /// Waits for the result of the job.
    pub(super) fn wait(&self) -> Result<(), ServerError> {
        self.results.recv().unwrap_or(Err(ServerError::Bug))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Panics of a job are caught in the thread.
            let _ = thread.join();
        }
    }
}

fn fold(directory: &std::path::Path, snapshot: &mut Snapshot, job: Job) -> Result<(), ServerError> {
    let files = log::read(directory, snapshot.log(), Some(job.before))?;
    let replayed = log::replay(directory, &files, snapshot.store_id(), snapshot.batch())?;
    let last = replayed.end.next - 1;
    if last != job.through {
        let file = files.get(replayed.active).map_or_else(String::new, |file| log_name(file.number));
        let what = format!("{file} at byte {}: record {} is missing", replayed.end.at, last + 1);
        return Err(snapshot.damaged(what));
    }
    snapshot.fold(&replayed.changes, job.before, job.through)?;
    // The files that are left are not needed; the next start removes them.
    if let Err(error) = discard(directory, job) {
        warn!(%error, directory = %directory.display(), "cannot remove a folded file of the log");
    }
    Ok(())
}

/// Removes the folded files, or keeps the last one for reuse.
fn discard(directory: &std::path::Path, job: Job) -> std::io::Result<()> {
    let spare = directory.join(log_name(job.before + 1));
    for number in directory::logs(directory)?.into_iter().filter(|number| *number < job.before) {
        let path = directory.join(log_name(number));
        if job.keep > 0 && number + 1 == job.before && !spare.try_exists()? {
            let file = directory::private_file(&path)?;
            file.set_len(file.metadata()?.len().min(job.keep))?;
            std::fs::rename(path, &spare)?;
        } else {
            std::fs::remove_file(path)?;
        }
    }
    directory::sync(directory)
}
