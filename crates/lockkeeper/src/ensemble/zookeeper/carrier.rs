//! Which client carries a session now, and watches that outlive it.
//!
//! The client crate (0.11.2) sets the watches of a session again after a reconnect in packets of 128 KiB of paths, all under one
//! request id, and takes the second answer for an error: where they do not fit one packet, each of its attempts fails until the
//! session has expired. Those of children it repeats in every packet. So the client of a session that watches more than
//! [`CROWDED`] is taken off it when the connection is lost, and a new one takes the session over, without a watch (`dial.rs`).
//! Whoever watches then reads again and compares, so many at a time that the session's own requests get between.
//!
//! The same is done where requests stay unanswered on a connection that stands. A server in trouble may go on answering pings, so
//! that the session lives, and its nodes with it, while nothing of it gets on: everybody behind it would wait as long.
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

use super::told;
use crate::ensemble::{Fired, OpError, Watcher};

/// More bytes of watched paths than this are not left to the client: half of its packet, for what is being taken off it.
const CROWDED: usize = 64 << 10;

/// So many reads of watched nodes are under way at once after a reconnect; a heartbeat waits for no more than these.
const READS: usize = 1_000;

/// A client that carries the session.
pub(super) struct Carried {
    client: zk::Client,
    /// Ends it without a word to the server.
    task: AbortHandle,
    /// Cancelled before that: its watches and replies never come.
    gone: CancellationToken,
    /// Bytes of paths that it watches.
    watched: Arc<AtomicUsize>,
    reads: Semaphore,
    flow: Flow,
}

/// How many operations were begun, and how many of them have ended.
#[derive(Default)]
struct Flow {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Whether operations get on, looked at from time to time.
#[derive(Default)]
pub(super) struct Progress {
    ended: u64,
    still: u32,
}

/// Counts an operation as ended, given up or not.
struct Ended<'a>(&'a Flow);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

/// Who carries the session.
enum Now {
    Carried(Arc<Carried>),
    /// One client was taken off, the next is not there yet.
    Between,
    Over,
}

/// A session, whichever client carries it. Dropping it closes the session.
pub(super) struct Carrier(watch::Sender<Now>);

impl Carrier {
    pub(super) fn new(client: zk::Client, task: AbortHandle) -> Arc<Carrier> {
        Arc::new(Carrier(watch::Sender::new(Now::Carried(Arc::new(Carried::new(client, task))))))
    }

    /// The client, at once where there is one. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// [`OpError::SessionOver`].
    pub(super) async fn client(&self) -> Result<Arc<Carried>, OpError> {
        // Not by way of the channel's receiver: it may yield though there is one, and requests go in the order of first polls.
        if let Now::Carried(carried) = &*self.0.borrow() {
            return Ok(Arc::clone(carried));
        }
        let mut now = self.0.subscribe();
        match now.wait_for(|now| !matches!(now, Now::Between)).await.as_deref() {
            Ok(Now::Carried(carried)) => Ok(Arc::clone(carried)),
            _ => Err(OpError::SessionOver),
        }
    }

    /// Whether something is under way and nothing has ended at so many looks in a row. Servers answer in order, so then nothing that
    /// was under way at the first of them has been answered.
    pub(super) fn is_stuck(&self, progress: &mut Progress, looks: u32) -> bool {
        let Now::Carried(carried) = &*self.0.borrow() else { return false };
        // In this order, so that what ends in between is not taken for one that is under way.
        let (ended, begun) = (carried.flow.ended.load(Ordering::Acquire), carried.flow.begun.load(Ordering::Acquire));
        let still = if begun > ended && ended == progress.ended { progress.still + 1 } else { 0 };
        *progress = Progress { ended, still };
        still >= looks
    }

    /// Takes the client off the session: always, or only if it could not take it up again, for it watches too much.
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

    /// The session goes on in another client.
    pub(super) fn go_on(&self, client: zk::Client, task: AbortHandle) {
        self.0.send_replace(Now::Carried(Arc::new(Carried::new(client, task))));
    }

    /// It does not go on.
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

    /// Carries out an operation, counted. Dropping the future leaves it to the client.
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
    pub(super) fn watching(&self, path: &str, watcher: zk::OneshotWatcher) -> Watch {
        self.watched.fetch_add(path.len(), Ordering::Relaxed);
        Watch { watcher, gone: self.gone.clone(), share: Share { watched: self.watched.clone(), bytes: path.len() } }
    }
}

/// What a watch is of all that is watched.
struct Share {
    watched: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.watched.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A watch that one client has.
pub(super) struct Watch {
    watcher: zk::OneshotWatcher,
    gone: CancellationToken,
    share: Share,
}

impl Watch {
    /// What it saw; nothing, if its client was taken off the session.
    async fn seen(self) -> Option<Fired> {
        let Watch { watcher, gone, share } = self;
        let event = tokio::select! {
            // First: the client panics where a watch is waited for and its session's task is gone.
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

    /// A watch that is not set again: another client of the session is a change.
    pub(super) fn once(self) -> Watcher {
        self.seen().map(|fired| fired.unwrap_or(Fired::Changed)).boxed()
    }

    /// A watch of the node at this full path, which was read with this stat; it holds whichever client has the session.
    pub(super) fn of_node(self, carrier: Weak<Carrier>, path: String, stat: &zk::Stat) -> Watcher {
        let read = Version::of(stat);
        let mut watch = self;
        async move {
            loop {
                if let Some(fired) = watch.seen().await {
                    return fired;
                }
                // In a task: who waits for this may do something else meanwhile, and others wait for its turn to read.
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

/// Which node was read, and which of its data.
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

/// Watches a node again, in the next client, if it is as it was; else what has happened to it.
async fn again(carrier: Weak<Carrier>, path: String, read: Version) -> Result<Watch, Fired> {
    loop {
        let carried = carrier.upgrade().ok_or(Fired::SessionOver)?.client().await.map_err(|_| Fired::SessionOver)?;
        let Ok(_turn) = carried.reads.acquire().await else { return Err(Fired::SessionOver) };
        let error = match carried.count(carried.client.get_and_watch_data(&path)).await {
            Ok((_, stat, watcher)) => match Version::of(&stat) {
                same if same == read => return Ok(carried.watching(&path, watcher)),
                other if other.czxid == read.czxid => return Err(Fired::Changed),
                // Its name was used again.
                _ => return Err(Fired::Gone),
            },
            Err(error) => error,
        };
        match told(&error).await {
            OpError::NoNode => return Err(Fired::Gone),
            OpError::SessionOver => return Err(Fired::SessionOver),
            OpError::ConnectionLoss => {}
            // Who looks hears of it.
            _ => return Err(Fired::Changed),
        }
    }
}
