//! Which client carries a session now, and watches that outlive it.
//!
//! After a reconnect, the client crate (0.11.2) sets the watches of a session again in packets of 128 KiB of paths, all
//! under one request id, and takes the second answer for an error. If the paths do not fit into one packet, each of its
//! attempts fails until the session has expired. Watches of children are repeated in every packet. So if a session
//! watches more than [`CROWDED`], its client is replaced when the connection is lost: a new one takes the session over,
//! without watches (`dial.rs`). Each watcher then reads its node again and compares; the number of concurrent reads is
//! limited so that the session's own requests are not delayed.
//!
//! The client is also replaced if requests stay unanswered on a connection that is not lost. A server in trouble may
//! still answer pings. Then the session and its nodes live on, but nothing progresses, and all contenders behind it
//! would wait.
//!
//! Invariant: a watch resolves when its node may have changed since it was read, whichever client carried the session.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use zookeeper_client as zk;

use super::fault::told;
use crate::ensemble::{Fired, OpError, Watcher};

/// The maximum size of watched paths that is left to the client: half of its packet, because paths may still be added
/// while it is replaced.
const CROWDED: usize = 64 << 10;

/// The maximum number of concurrent reads of watched nodes after a reconnect, so that a heartbeat waits for at most
/// these.
const READS: usize = 1_000;

/// A client that carries the session.
pub(super) struct Carried {
    client: zk::Client,
    /// Ends it without a message to the server.
    task: AbortHandle,
    /// Cancelled before it ends: its watches and replies never resolve.
    gone: CancellationToken,
    /// The size of the paths that it watches, in bytes.
    watched: Arc<AtomicUsize>,
    reads: Semaphore,
    flow: Flow,
}

/// How many operations have begun, and how many of them have ended.
#[derive(Default)]
struct Flow {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Whether operations make progress, sampled from time to time.
#[derive(Default)]
pub(super) struct Progress {
    ended: u64,
    still: u32,
}

/// Counts an operation as ended, cancelled or not.
struct Ended<'a>(&'a Flow);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

/// What carries the session.
enum Now {
    Carried(Arc<Carried>),
    /// One client was removed; the next is not connected yet.
    Between,
    Over,
}

/// A session, whichever client carries it. Dropping it closes the session.
pub(super) struct Carrier(watch::Sender<Now>);

impl Carrier {
    pub(super) fn new(client: zk::Client, task: AbortHandle) -> Arc<Carrier> {
        Arc::new(Carrier(watch::Sender::new(Now::Carried(Arc::new(Carried::new(client, task))))))
    }

    /// The client; resolves immediately if there is one. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`OpError::SessionOver`].
    pub(super) async fn client(&self) -> Result<Arc<Carried>, OpError> {
        // Do not use the channel's receiver here: it may yield even if there is a client, but requests must go in the
        // order of first polls.
        if let Now::Carried(carried) = &*self.0.borrow() {
            return Ok(Arc::clone(carried));
        }
        let mut now = self.0.subscribe();
        match now.wait_for(|now| !matches!(now, Now::Between)).await.as_deref() {
            Ok(Now::Carried(carried)) => Ok(Arc::clone(carried)),
            _ => Err(OpError::SessionOver),
        }
    }

    /// Whether operations are under way and none has ended during `looks` samples in a row. Servers answer in order, so
    /// then nothing that was under way at the first sample has been answered.
    pub(super) fn is_stuck(&self, progress: &mut Progress, looks: u32) -> bool {
        let Now::Carried(carried) = &*self.0.borrow() else { return false };
        // In this order, so that an operation that ends in between does not count as under way.
        let (ended, begun) = (carried.flow.ended.load(Ordering::Acquire), carried.flow.begun.load(Ordering::Acquire));
        let still = if begun > ended && ended == progress.ended { progress.still + 1 } else { 0 };
        *progress = Progress { ended, still };
        still >= looks
    }

    /// Removes the client from the session: always, or only if it watches too much to reconnect.
    pub(super) fn part(&self, always: bool) -> Option<zk::SessionInfo> {
        let mut session = None;
        self.0.send_if_modified(|now| {
            let Now::Carried(carried) = now else { return false };
            if !always && carried.watched.load(Ordering::Relaxed) <= CROWDED {
                return false;
            }
            session = Some(carried.client.session().clone());
            carried.leave();
            *now = Now::Between;
            true
        });
        session
    }

    /// Another client carries the session from now on.
    pub(super) fn go_on(&self, client: zk::Client, task: AbortHandle) {
        self.0.send_replace(Now::Carried(Arc::new(Carried::new(client, task))));
    }

    /// The session is over.
    pub(super) fn end(&self) {
        self.0.send_replace(Now::Over);
    }
}

impl Deref for Carried {
    type Target = zk::Client;

    fn deref(&self) -> &zk::Client {
        &self.client
    }
}

impl Carried {
    fn new(client: zk::Client, task: AbortHandle) -> Carried {
        let (gone, watched) = (CancellationToken::new(), Arc::default());
        Carried { client, task, gone, watched, reads: Semaphore::new(READS), flow: Flow::default() }
    }

    /// Runs an operation and counts it. Dropping the future leaves the operation to the client.
    pub(super) async fn count<T>(&self, operation: impl Future<Output = T>) -> T {
        self.flow.begun.fetch_add(1, Ordering::Release);
        let _ended = Ended(&self.flow);
        operation.await
    }

    fn leave(&self) {
        self.gone.cancel();
        self.task.abort();
    }

    /// Counts a watch that was just set.
    pub(super) fn watching(&self, path: &str, watcher: zk::OneshotWatcher) -> ClientWatch {
        self.watched.fetch_add(path.len(), Ordering::Relaxed);
        ClientWatch {
            watcher,
            gone: self.gone.clone(),
            share: Share { watched: self.watched.clone(), bytes: path.len() },
        }
    }
}

/// The part of one watch in the total size.
struct Share {
    watched: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.watched.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A watch of one client.
pub(super) struct ClientWatch {
    watcher: zk::OneshotWatcher,
    gone: CancellationToken,
    share: Share,
}

impl ClientWatch {
    /// The event; `None` if its client was removed from the session.
    async fn seen(self) -> Option<Fired> {
        let ClientWatch { watcher, gone, share } = self;
        let event = tokio::select! {
            // First: the client crate panics if a watch is awaited after its session's task has ended.
            biased;
            () = gone.cancelled() => return None,
            event = watcher.changed() => event,
        };
        drop(share);
        Some(match event.event_type {
            zk::EventType::NodeDeleted => Fired::Gone,
            zk::EventType::Session => Fired::SessionOver,
            _ => Fired::Changed,
        })
    }

    /// A watch that is not set again: another client of the session counts as a change.
    pub(super) fn once(self) -> Watcher {
        self.seen().map(|fired| fired.unwrap_or(Fired::Changed)).boxed()
    }

    /// A watch of the node at this full path, which was read with this stat. It survives a change of the client.
    pub(super) fn of_node(self, carrier: Weak<Carrier>, path: String, stat: &zk::Stat) -> Watcher {
        let read = Version::of(stat);
        let mut watch = self;
        async move {
            loop {
                if let Some(fired) = watch.seen().await {
                    return fired;
                }
                // In a separate task: the watcher may do other work meanwhile, and other watchers wait for their turn
                // to read.
                let again = AbortOnDropHandle::new(tokio::spawn(again(carrier.clone(), path.clone(), read)));
                watch = match again.await {
                    Ok(Ok(watch)) => watch,
                    Ok(Err(fired)) => return fired,
                    Err(_) => return Fired::SessionOver,
                };
            }
        }
        .boxed()
    }
}

/// Identifies the node that was read and its data.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    czxid: i64,
    mzxid: i64,
}

impl Version {
    fn of(stat: &zk::Stat) -> Version {
        Version { czxid: stat.czxid, mzxid: stat.mzxid }
    }
}

/// Watches a node again in the next client if it is unchanged; otherwise returns what happened to it.
async fn again(carrier: Weak<Carrier>, path: String, read: Version) -> Result<ClientWatch, Fired> {
    loop {
        let carried = carrier.upgrade().ok_or(Fired::SessionOver)?.client().await.map_err(|_| Fired::SessionOver)?;
        let Ok(_turn) = carried.reads.acquire().await else { return Err(Fired::SessionOver) };
        let error = match carried.count(carried.client.get_and_watch_data(&path)).await {
            Ok((_, stat, watcher)) => match Version::of(&stat) {
                same if same == read => return Ok(carried.watching(&path, watcher)),
                other if other.czxid == read.czxid => return Err(Fired::Changed),
                // Another node of the same name.
                _ => return Err(Fired::Gone),
            },
            Err(error) => error,
        };
        match told(&error).await {
            OpError::NoNode => return Err(Fired::Gone),
            OpError::SessionOver => return Err(Fired::SessionOver),
            OpError::ConnectionLoss => {}
            // The watcher's next read shows the cause.
            _ => return Err(Fired::Changed),
        }
    }
}
