//! Folds the log into the snapshot on a thread of its own, so that no commit waits for it.
//!
//! Invariant: a file of the log is removed only when its contents are in the snapshot and on the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use tracing::warn;

use crate::error::ServerError;
use crate::store::directory::{self, Files, log_name};
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
    pub(super) fn start(files: Arc<dyn Files>, mut snapshot: Snapshot) -> Result<Self, ServerError> {
        let (jobs, inbox) = channel();
        let (outbox, results) = channel();
        let run = move || {
            for job in inbox {
                // The database panics over some damaged pages.
                let folded = catch_unwind(AssertUnwindSafe(|| fold(&*files, &mut snapshot, job)));
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

fn fold(files: &dyn Files, snapshot: &mut Snapshot, job: Job) -> Result<(), ServerError> {
    let logs = log::read(files, snapshot.log(), Some(job.before))?;
    let replayed = log::replay(files, &logs, snapshot.store_id(), snapshot.batch())?;
    let last = replayed.end.next - 1;
    if last != job.through {
        let file = logs.get(replayed.active).map_or_else(String::new, |file| log_name(file.number));
        let what = format!("{file} at byte {}: record {} is missing", replayed.end.at, last + 1);
        return Err(snapshot.damaged(what));
    }
    snapshot.fold(&replayed.changes, job.before, job.through)?;
    // The files that are left are not needed. The next start takes them for a fold that was interrupted: it writes the whole
    // snapshot again, which needs room for it, and removes them.
    if let Err(error) = discard(files, job) {
        warn!(%error, directory = %files.path().display(), "cannot remove a folded file of the log");
    }
    Ok(())
}

/// Removes the folded files, or keeps the last one for reuse.
fn discard(files: &dyn Files, job: Job) -> std::io::Result<()> {
    let spare = log_name(job.before + 1);
    for number in directory::logs(files)?.into_iter().filter(|number| *number < job.before) {
        let name = log_name(number);
        if job.keep > 0 && number + 1 == job.before && !directory::has(files, &spare)? {
            let file = files.open(&name)?;
            file.set_len(file.len()?.min(job.keep))?;
            files.rename(&name, &spare)?;
        } else {
            files.remove(&name)?;
        }
    }
    files.sync()
}
