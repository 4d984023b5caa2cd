//! Reads of the history.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::select_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use lockkeeper::Lockkeeper;
use lockkeeper::error::{AdminError, refused};
use lockkeeper_session::ensemble::{Ensemble, OpError, READS_IN_FLIGHT, Watcher, is_below};
use lockkeeper_session::records;

use super::entry::{Entry, Refusal};
use super::habits::Habits;
use super::store::Stored;
use super::{merge, store};
use crate::ROOT;

/// Why the history cannot be read.
pub type HistoryError = AdminError;

/// How many locks are read at a time.
const LOCKS_IN_FLIGHT: usize = READS_IN_FLIGHT / 4;

/// Reads of the history of locks.
#[derive(Clone, Debug)]
pub struct History {
    keeper: Lockkeeper,
}

impl History {
    /// Creates the handle. Sends nothing.
    pub fn new(keeper: &Lockkeeper) -> Self {
        History { keeper: keeper.clone() }
    }

    /// Returns what is recorded about the lock at `path`, the oldest first. Empty if nothing is.
    ///
    /// # Cost
    ///
    /// Three round trips: the records, and the journal of breaks and of requests to release. At most 24 reads and those of the journal.
    ///
    /// # Errors
    ///
    /// The path is not one, the server refuses the read, or it cannot be reached.
    pub async fn of(&self, path: impl AsRef<str>) -> Result<Vec<Entry>, HistoryError> {
        let keeper = &self.keeper;
        let path = keeper.path(path.as_ref())?;
        let at = path.clone();
        let stored = keeper.sessions().ask(move |ensemble| async move { recorded(&*ensemble, &at).await });
        let admin = self.keeper.admin();
        let (stored, breaks, asked) = tokio::join!(stored, admin.broken(&path), admin.revoked(&path));
        let (mut breaks, mut asked) = (breaks?, asked?);
        breaks.retain(|broken| broken.path == path);
        asked.retain(|asked| asked.path == path);
        Ok(merge::entries(&path, &stored?, breaks, asked))
    }

    /// Returns a [`Follow`] of the history of the lock at `path`. Sends nothing. Breaks are noticed with the next record.
    pub fn follow(&self, path: impl AsRef<str>) -> Follow {
        let path = self.keeper.path(path.as_ref()).map_err(AdminError::from);
        Follow { history: self.clone(), path, watchers: Vec::new() }
    }

    /// Returns a [`FollowRefusals`] of the lock at `path`. Sends nothing.
    pub fn follow_refusals(&self, path: impl AsRef<str>) -> FollowRefusals {
        FollowRefusals { follow: self.follow(path) }
    }

    /// Returns what is recorded about the locks at and below `root`, the oldest first. `root` may be `/`.
    ///
    /// # Cost
    ///
    /// One listing for each lock with records, and a read for each record, 64 at a time: at most 1 024 listings and 24 576 reads.
    ///
    /// # Errors
    ///
    /// As [`History::of`].
    pub async fn below(&self, root: impl AsRef<str>) -> Result<Vec<Entry>, HistoryError> {
        let keeper = &self.keeper;
        let root = keeper.root(root.as_ref())?;
        let below = root.clone();
        let stored = keeper.sessions().ask(move |ensemble| async move {
            let names = store::locks(&*ensemble).await.map_err(|fault| refused(ROOT, fault))?;
            let paths = names.iter().map(|name| records::lock_of(name)).filter(|path| is_below(path, &below));
            read_each(&ensemble, paths.collect()).await
        });
        let stored = stored.await?;
        let (admin, root) = (self.keeper.admin(), if root.is_empty() { "/" } else { &root });
        let (breaks, asked) = tokio::join!(admin.broken(root), admin.revoked(root));
        let (breaks, asked) = (breaks?, asked?);
        let stored: HashMap<_, _> = stored.into_iter().collect();
        let others = breaks.iter().map(|broken| &broken.path).chain(asked.iter().map(|asked| &asked.path));
        let paths: HashSet<_> = stored.keys().chain(others).collect();
        let mut entries = Vec::new();
        for path in paths {
            let breaks = breaks.iter().filter(|broken| broken.path == *path).cloned().collect();
            let asked = asked.iter().filter(|asked| asked.path == *path).cloned().collect();
            entries.extend(merge::entries(path, stored.get(path).unwrap_or(&Vec::new()), breaks, asked));
        }
        entries.sort_by_key(Entry::at);
        Ok(entries)
    }

    /// Returns the refusals of these locks.
    ///
    /// # Cost
    ///
    /// One listing, and for each of these locks that has records a listing and at most 24 reads. 64 are in flight at a time.
    ///
    /// # Errors
    ///
    /// As [`History::of`].
    pub async fn refusals(&self, paths: &[String]) -> Result<Vec<Refusal>, HistoryError> {
        let (keeper, paths) = (self.keeper.clone(), paths.to_vec());
        let read = keeper.sessions().ask(move |ensemble| async move { known(&ensemble, &paths).await });
        Ok(read.await?.iter().flat_map(|(path, records)| refusals_of(path, records)).collect())
    }

    /// Returns the habits of those of these locks that have records; `now` is the servers' time, if it is known. The journal of breaks is
    /// not read, so a hold that was broken counts as one that ended without a record.
    ///
    /// # Cost
    ///
    /// As [`History::refusals`].
    ///
    /// # Errors
    ///
    /// As [`History::of`].
    pub async fn habits(
        &self,
        paths: &[String],
        now: Option<SystemTime>,
    ) -> Result<HashMap<String, Habits>, HistoryError> {
        let (keeper, paths) = (self.keeper.clone(), paths.to_vec());
        let read = keeper.sessions().ask(move |ensemble| async move { known(&ensemble, &paths).await }).await?;
        let habits = read.into_iter().map(|(path, records)| {
            let habits = Habits::of(&merge::entries(&path, &records, Vec::new(), Vec::new()), now);
            (path, habits)
        });
        Ok(habits.collect())
    }
}

/// The changes of the history of one lock. Created by [`History::follow`].
pub struct Follow {
    history: History,
    path: Result<String, AdminError>,
    watchers: Vec<Watcher>,
}

impl Follow {
    /// Returns what is recorded about the lock, the oldest first: the first call what is recorded now, later calls after the next
    /// change.
    ///
    /// # Cost
    ///
    /// Nine reads with watches, and those of [`History::of`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind; the next call reports a change that happens meanwhile.
    ///
    /// # Errors
    ///
    /// As [`History::of`].
    pub async fn next(&mut self) -> Result<Vec<Entry>, HistoryError> {
        let (path, watchers) = self.changed().await?;
        let entries = self.history.of(&path).await?;
        // The watches are kept only with the answer: without it, the next call reads again.
        self.watchers = watchers;
        Ok(entries)
    }

    /// Waits for the next change, and returns the watches for the one after it; the first call does not wait.
    async fn changed(&mut self) -> Result<(String, Vec<Watcher>), HistoryError> {
        let path = self.path.clone()?;
        if !self.watchers.is_empty() {
            select_all(&mut self.watchers).await;
            self.watchers.clear();
        }
        let lock = store::node(&path);
        let watch = self.history.keeper.sessions().ask(move |ensemble| async move {
            store::watch(&*ensemble, &lock).await.map_err(|fault| refused(&lock, fault))
        });
        Ok((path, watch.await?))
    }
}

/// The refusals of one lock, after each change of its history. Created by [`History::follow_refusals`].
#[derive(Debug)]
pub struct FollowRefusals {
    follow: Follow,
}

impl FollowRefusals {
    /// Returns the recorded refusals of the lock: the first call those of now, later calls those after the next change.
    ///
    /// # Cost
    ///
    /// Nine reads with watches, a listing and at most 24 reads. Waiting costs nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind; the next call reports a change that happens meanwhile.
    ///
    /// # Errors
    ///
    /// As [`History::of`].
    pub async fn next(&mut self) -> Result<Vec<Refusal>, HistoryError> {
        let (path, watchers) = self.follow.changed().await?;
        let at = path.clone();
        let sessions = self.follow.history.keeper.sessions();
        let records = sessions.ask(move |ensemble| async move { recorded(&*ensemble, &at).await }).await?;
        self.follow.watchers = watchers;
        Ok(refusals_of(&path, &records))
    }
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The refusals among the records of a lock.
fn refusals_of(path: &str, records: &Stored) -> Vec<Refusal> {
    let entries = merge::entries(path, records, Vec::new(), Vec::new());
    entries
        .into_iter()
        .filter_map(|entry| if let Entry::Refused(refusal) = entry { Some(refusal) } else { None })
        .collect()
}

/// The records of those of these locks that have some.
async fn known(ensemble: &Arc<dyn Ensemble>, paths: &[String]) -> Result<Vec<(String, Stored)>, AdminError> {
    let names = store::locks(&**ensemble).await.map_err(|fault| refused(ROOT, fault))?;
    let known: HashSet<_> = names.iter().map(|name| records::lock_of(name)).collect();
    read_each(ensemble, paths.iter().filter(|path| known.contains(*path)).cloned().collect()).await
}

async fn recorded(ensemble: &dyn Ensemble, path: &str) -> Result<Stored, AdminError> {
    match store::read(ensemble, path).await {
        Ok(read) => Ok(read.into_iter().map(|(name, node)| (name, node.data, node.mtime_ms)).collect()),
        Err(OpError::NoNode) => Ok(Vec::new()),
        Err(fault) => Err(refused(path, fault)),
    }
}

async fn read_each(ensemble: &Arc<dyn Ensemble>, paths: Vec<String>) -> Result<Vec<(String, Stored)>, AdminError> {
    let reads = paths.into_iter().map(|path| {
        let ensemble = ensemble.clone();
        async move {
            match recorded(&*ensemble, &path).await {
                Ok(stored) => Ok(Some((path, stored))),
                // A private lock.
                Err(AdminError::Session(lockkeeper::error::SessionError::Refused { .. })) => Ok(None),
                Err(error) => Err(error),
            }
        }
    });
    stream::iter(reads).buffered(LOCKS_IN_FLIGHT).try_filter_map(async |read| Ok(read)).try_collect().await
}
