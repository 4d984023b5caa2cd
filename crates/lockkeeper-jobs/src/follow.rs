//! Follows the changes of all jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use lockkeeper_session::ensemble::{READS_IN_FLIGHT, Watcher, is_below};

use super::admin::{JobStatus, JobsAdmin, look};
use super::error::{JobError, refused};
use super::stored as jobs;
use super::stored::ROOT;

/// The changes of jobs. Created by [`JobsAdmin::follow`].
///
/// It watches the records of each job, the list of the jobs, and the node of each run that goes on. Records that the server does not
/// show are read again with each change of another job. It is meant for a person, not for a fleet.
pub struct FollowJobs {
    admin: JobsAdmin,
    root: Result<String, JobError>,
    /// Watches the list of the jobs; `None` before the first listing and after a change.
    list: Option<Watcher>,
    jobs: BTreeMap<String, Followed>,
}

/// A job as it was read.
struct Followed {
    /// `None` if it has no records any more.
    status: Option<JobStatus>,
    /// Watches what was read; `None` after a change. Records that the server does not show have no watch.
    changes: Option<Vec<Watcher>>,
}

impl JobsAdmin {
    /// Returns a [`FollowJobs`] of the jobs at and below `root`, which may be `/`: each call of [`FollowJobs::next`] returns the
    /// jobs after their next change.
    pub fn follow(&self, root: impl AsRef<str>) -> FollowJobs {
        FollowJobs { admin: self.clone(), root: self.root(root.as_ref()), list: None, jobs: BTreeMap::new() }
    }
}

impl FollowJobs {
    /// Returns the jobs by path: the first call their present state, later calls the state after the next change.
    ///
    /// # Cost
    ///
    /// A change costs the reads of the jobs that changed: one for each of them, or two while it runs. A new job and a forgotten one
    /// cost an ordered write and a listing. Waiting costs nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind; the next call reports a change that happens meanwhile.
    ///
    /// # Errors
    ///
    /// As [`JobsAdmin::jobs`]. The next call tries again.
    pub async fn next(&mut self) -> Result<Vec<JobStatus>, JobError> {
        let root = self.root.clone()?;
        poll_fn(|keeper| {
            let is_listed = self.list.as_mut().is_some_and(|list| list.poll_unpin(keeper).is_pending());
            if !is_listed {
                self.list = None;
            }
            let mut all_seen = is_listed;
            for job in self.jobs.values_mut().filter(|job| job.status.is_some()) {
                if job.changes.iter_mut().flatten().any(|change| change.poll_unpin(keeper).is_ready()) {
                    job.changes = None;
                }
                all_seen &= job.changes.is_some();
            }
            if all_seen { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        let lists = self.list.is_none();
        let is_watched = |job: &Followed| job.changes.as_ref().is_some_and(|changes| !changes.is_empty());
        let seen: BTreeSet<_> =
            self.jobs.iter().filter(|(_, job)| is_watched(job)).map(|(path, _)| path.clone()).collect();
        let known: Vec<_> = self.jobs.keys().cloned().collect();
        let (list, paths, read) = self
            .admin
            .keeper
            .sessions()
            .ask(move |ensemble| async move {
                let (paths, list) = if lists {
                    let listed = jobs::watch(&*ensemble).await.map_err(|fault| refused(ROOT, fault))?;
                    (listed.0, Some(listed.1))
                } else {
                    (known, None)
                };
                let paths: BTreeSet<_> = paths.into_iter().filter(|path| is_below(path, &root)).collect();
                let changed: Vec<_> = paths.difference(&seen).cloned().collect();
                let looks = changed.into_iter().map(|path| {
                    let ensemble = &*ensemble;
                    async move {
                        let mut changes = Vec::new();
                        let looked = look(ensemble, &path, Some(&mut changes)).await;
                        let looked = looked.map_err(|fault| refused(&path, fault))?;
                        let status = looked.map(|looked| JobStatus::of(path.clone(), looked));
                        Ok::<_, JobError>((path, Followed { status, changes: Some(changes) }))
                    }
                });
                let read: Vec<_> = stream::iter(looks).buffered(READS_IN_FLIGHT).try_collect().await?;
                Ok::<_, JobError>((list, paths, read))
            })
            .await?;
        self.list = list.or(self.list.take());
        self.jobs.retain(|path, _| paths.contains(path));
        self.jobs.extend(read);
        Ok(self.jobs.values().filter_map(|job| job.status.clone()).collect())
    }
}

impl fmt::Debug for FollowJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowJobs").field("root", &self.root).finish_non_exhaustive()
    }
}
