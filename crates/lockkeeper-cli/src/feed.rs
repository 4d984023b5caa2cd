//! The locks of a tree, read again after each change, for screens that stay.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::{FutureExt, join_all, select_all};
use futures_util::stream::StreamExt;
use lockkeeper::admin::LockInfo;
use lockkeeper::error::refused;
use lockkeeper_session::ensemble::{OpError, TreeEvent, TreeWatch};

use lockkeeper::error::AdminError;
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_history::Habits;
use lockkeeper_observe::deadlock::Deadlock;
use lockkeeper_observe::table::Row;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::commands::show::connect_to_ask;
use crate::evidence::Overview;
use crate::exit::Failure;
use crate::servertime::ServerTime;
use crate::settings::Part;
use crate::table::recorded;

/// The shortest time between two reads.
const PAUSE: Duration = Duration::from_millis(250);

/// A read is not made again before this many times as long as it took.
const SHARE: u32 = 4;

/// How long after a failed read the next one is made.
const RETRY: Duration = Duration::from_secs(1);

/// How many changes wait while a read is made. The read shows all of them.
const CHANGES: usize = 64;

/// The locks at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub locks: Vec<LockInfo>,
    pub deadlocks: Vec<Deadlock>,
    /// What the records of a lock show.
    pub habits: HashMap<String, Habits>,
    /// Why a part of the locks is missing.
    pub failures: Vec<String>,
    time: ServerTime,
    read: Instant,
}

impl Snapshot {
    fn of(found: Vec<Result<Found, String>>) -> Self {
        let mut snapshot = Snapshot {
            locks: Vec::new(),
            deadlocks: Vec::new(),
            habits: HashMap::new(),
            failures: Vec::new(),
            time: ServerTime::of(&[]),
            read: Instant::now(),
        };
        for found in found {
            match found {
                Ok(found) => {
                    snapshot.locks.extend(found.locks);
                    snapshot.deadlocks.extend(found.overview.deadlocks);
                    snapshot.habits.extend(found.overview.habits);
                    snapshot.time = found.overview.time;
                }
                Err(failure) => snapshot.failures.push(failure),
            }
        }
        snapshot
    }

    /// Returns the servers' time now, if it is known.
    pub(crate) fn now(&self) -> Option<SystemTime> {
        self.time.now.map(|now| now + self.read.elapsed())
    }

    /// What to say about this machine's clock.
    pub(crate) fn note(&self) -> Option<&str> {
        self.time.note.as_deref()
    }

    /// Returns the row of each lock.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let now = self.now();
        let row = |lock| Row::of(lock, now, recorded(self.habits.get(&lock.path)), &self.deadlocks);
        self.locks.iter().map(row).collect()
    }
}

/// What one part has.
struct Found {
    locks: Vec<LockInfo>,
    overview: Overview,
}

/// One part, and how its changes are noticed.
struct Source<'p> {
    part: &'p Part,
    keeper: Option<Lockkeeper>,
    changes: Option<TreeWatch>,
    /// Whether the servers have no watch of a tree.
    unwatched: bool,
    failed: bool,
}

impl<'p> Source<'p> {
    fn new(part: &'p Part) -> Self {
        Source { part, keeper: None, changes: None, unwatched: false, failed: false }
    }

    /// Reads the locks; the changes since then wake [`Source::changed`].
    async fn read(&mut self) -> Result<Found, String> {
        let found = self.try_read().await;
        self.failed = found.is_err();
        found.map_err(|failure| failure.message)
    }

    async fn try_read(&mut self) -> Result<Found, Failure> {
        let part = self.part;
        let keeper = match self.keeper.clone() {
            Some(keeper) => keeper,
            None => connect_to_ask(&part.settings).await?,
        };
        self.keeper = Some(keeper.clone());
        if self.changes.is_none() && !self.unwatched {
            let root = part.root.clone();
            let watched = keeper.sessions().ask(move |ensemble| async move {
                match ensemble.watch_tree(&root, CHANGES).await {
                    Err(OpError::Unsupported) => Ok(None),
                    watched => watched.map(Some).map_err(|fault| refused(&root, fault)),
                }
            });
            self.changes =
                watched.await.map_err(|error: AdminError| Failure::from(error).scoped(&part.settings.place))?;
            self.unwatched = self.changes.is_none();
        }
        let admin = keeper.admin();
        let found = async {
            let mut locks = admin.survey(part.root.as_str()).await?.locks;
            locks.retain(|lock| part.has(&lock.path));
            let overview = Overview::of(&keeper, part, &mut locks).await?;
            Ok(Found { locks, overview })
        };
        found.await.map_err(|error: Error| Failure::from(error).scoped(&part.settings.place))
    }

    /// Resolves after a change, or a while after a failed read. Dropping the future leaves nothing behind.
    async fn changed(&mut self) {
        if self.failed {
            return sleep(RETRY).await;
        }
        loop {
            let Some(changes) = &mut self.changes else { return std::future::pending().await };
            match changes.next().await {
                // The time of the next connection is the time to read again.
                Some(TreeEvent::Disconnected) => {}
                Some(_) => return while_ready(changes),
                None => {
                    self.changes = None;
                    return;
                }
            }
        }
    }
}

/// Takes the changes that are there already: one read shows all of them.
fn while_ready(changes: &mut TreeWatch) {
    while let Some(Some(_)) = changes.next().now_or_never() {}
}

/// Reads the locks of these parts again after each change, and tells them. Ends when nobody listens.
///
/// A change wakes the feed through one watch of the whole tree, which ZooKeeper has since 3.6; `unwatched` is called once if a server
/// has none, and then only `again` wakes it. Between two reads it pauses for a few times as long as a read takes, so that a large tree
/// costs a bounded share of this process and of the servers.
///
/// Dropping the future leaves nothing behind.
pub(crate) async fn feed(
    parts: &[Part],
    told: &watch::Sender<Option<Arc<Snapshot>>>,
    mut again: watch::Receiver<()>,
    unwatched: impl Fn(),
) {
    let mut sources: Vec<_> = parts.iter().map(Source::new).collect();
    loop {
        let begun = Instant::now();
        let found = join_all(sources.iter_mut().map(Source::read)).await;
        if told.send(Some(Arc::new(Snapshot::of(found)))).is_err() {
            return;
        }
        if sources.iter().any(|source| source.unwatched) {
            unwatched();
        }
        sleep((begun.elapsed() * SHARE).max(PAUSE)).await;
        let changed = select_all(sources.iter_mut().map(|source| source.changed().boxed_local()));
        tokio::select! {
            biased;
            () = told.closed() => return,
            _ = again.changed() => {}
            _ = changed => {}
        }
    }
}
