//! Reads about locks: which locks exist, their holders and their waiters.
//!
//! A read consists of a sync, a listing behind it, and the reads that follow. Its result was true at some moment since
//! the call, however far this session's server lags behind the leader. Nothing here changes a node, except for a break
//! that a person requests (`breaking`).

pub(crate) mod revoke;

mod breaking;
mod copy;
mod lease;
mod requests;
mod statistics;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use lockkeeper_core::{
    Discipline, FencingToken, HOLDER_MARKER, Limit, LockPath, Mode, NodeData, NodeFormat, Owner, PathRecord, Queue,
    Verdict, decide,
};
use serde::Serialize;

use crate::Error;
use crate::contender::ContenderInfo;
use crate::ensemble::{Children, Ensemble, Node, OpError, READS_IN_FLIGHT, Watcher, refused, synced};
use crate::registers::{journal, requests as decisions, statistics as counts};
use crate::session::context::Context;

pub use copy::{Copied, CopyOptions};
pub use lease::{LeaseInfo, RequestorInfo};

/// The limit of a semaphore whose path states none: all contenders count as holders.
const UNSTATED: u32 = u32::MAX;

/// The side trees of this library, which contain no locks.
const OURS: [&str; 3] = [journal::ROOT, decisions::ROOT, counts::ROOT];

/// How deep below the root a listing searches for locks.
const MAX_DEPTH: usize = 16;

/// A lock and its contenders.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its path.
    pub path: String,
    /// The number of permits of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// The holders.
    pub holders: Vec<ContenderInfo>,
    /// The waiters, in the order of the queue.
    pub waiters: Vec<ContenderInfo>,
    /// Children that are not contenders; they are ignored.
    pub unknown: Vec<String>,
    /// The record of a leased lock; its owner is in `holders` too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
}

impl LockInfo {
    /// Whether its children show no holder and no waiter.
    fn is_quiet(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }
}

/// The locks of a part of the tree, and the nodes that could not be read. Returned by [`Admin::survey`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Survey {
    /// The locks with holders or waiters, by path.
    pub locks: Vec<LockInfo>,
    /// The nodes that this client has no right to read, by path. Locks at and below them are missing in `locks`.
    pub unreadable: Vec<Unreadable>,
}

/// A node that this client has no right to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unreadable {
    /// Its path.
    pub path: String,
    /// The server's reason.
    pub reason: String,
}

/// Reads about locks, requests to release them, and breaks. Created by [`Lockkeeper::admin`](crate::Lockkeeper::admin).
///
/// Reads about locks are linearizable: each one is preceded by a `sync`, with which the session's server catches up
/// with the leader. That costs a round trip between these servers, not one more of the client's. A server without a
/// majority cannot catch up, and does not answer from stale data. The call then waits until that server notices and
/// closes the connection, which takes seconds, and fails with [`Error::ConnectionLost`].
#[derive(Clone, Debug)]
pub struct Admin {
    pub(crate) context: Context,
}

impl Admin {
    pub(crate) fn new(context: Context) -> Self {
        Admin { context }
    }

    /// Returns the holders and the waiters of the lock at `path`, in order.
    ///
    /// # Cost
    ///
    /// A sync and a listing in one round trip, then one read for each contender, also sent together. Without
    /// contenders, one read of the path, for its permits or its record.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchLock`] if the path has no node; a node without contenders is not an error.
    /// [`Error::ConnectionLost`] without a majority. Otherwise, the server refuses the read or cannot be reached.
    pub async fn show(&self, path: &str) -> Result<LockInfo, Error> {
        let path = LockPath::parse_node(path)?;
        let shown = self.on_session(move |ensemble| async move {
            let listed = synced(&*ensemble, path.as_str(), ensemble.list(path.as_str())).await;
            let names = listed.map_err(|fault| refused(path.as_str(), fault))?.names;
            let mut info = describe(&*ensemble, path.as_str(), names, &mut HashMap::new()).await;
            if info.is_quiet()
                && let Ok(seen) = ensemble.read(path.as_str()).await
            {
                info.permits = permits_in(&seen);
                if let Some(record) = lease::read(&seen) {
                    lease::tell(&mut info, &seen, &record);
                }
            }
            Ok(info)
        });
        let info = shown.await?;
        Ok(info.in_epoch(self.known_epoch().await?))
    }

    /// Returns the locks at and below `root` that have holders or waiters, by path. `root` may be `/`.
    ///
    /// A root that does not exist has no locks. Nodes that cannot be read are left out, with everything below them;
    /// [`Admin::survey`] names them.
    ///
    /// # Cost
    ///
    /// Walks the tree behind one sync: one listing for each node, and the reads of [`Admin::show`]. A node that is not
    /// a queue costs one read more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the read or cannot be reached.
    pub async fn list(&self, root: &str) -> Result<Vec<LockInfo>, Error> {
        Ok(self.survey(root).await?.locks)
    }

    /// Returns the locks as [`Admin::list`] does, and the nodes that this client has no right to read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As [`Admin::list`].
    pub async fn survey(&self, root: &str) -> Result<Survey, Error> {
        let root = if root == "/" { root.to_owned() } else { LockPath::parse_node(root)?.to_string() };
        let listed = self.on_session(move |ensemble| async move {
            let (mut found, mut quiet, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
            // Later reads of a session are never older than earlier ones.
            let mut listings = vec![(root.clone(), synced(&*ensemble, &root, ensemble.list(&root)).await)];
            for _ in 0..MAX_DEPTH {
                let mut level = Vec::new();
                for (path, listed) in std::mem::take(&mut listings) {
                    match listed {
                        // Deleted since its parent was listed, or a root that does not exist yet.
                        Err(OpError::NoNode) => {}
                        // One unreadable node does not hide the others.
                        Err(OpError::Refused(reason)) if path != root => unreadable.push(Unreadable { path, reason }),
                        Err(fault) => return Err(refused(&path, fault)),
                        Ok(Children { names, .. }) => {
                            let info = describe(&*ensemble, &path, names, &mut HashMap::new()).await;
                            let above = path.trim_end_matches('/');
                            let below = info.unknown.iter().map(|name| format!("{above}/{name}"));
                            level.extend(below.filter(|path| !OURS.contains(&path.as_str())));
                            if info.is_quiet() { quiet.push(info) } else { found.push(info) }
                        }
                    }
                }
                let records = std::mem::take(&mut quiet).into_iter().map(|mut info| async {
                    let (seen, record) = lease::record(&*ensemble, &info.path).await?;
                    lease::tell(&mut info, &seen, &record);
                    Some(info)
                });
                let records = stream::iter(records).buffered(READS_IN_FLIGHT).collect::<Vec<_>>().await;
                found.extend(records.into_iter().flatten());
                if level.is_empty() {
                    break;
                }
                listings = stream::iter(level)
                    .map(|path| {
                        let listing = ensemble.list(&path);
                        async move { (path, listing.await) }
                    })
                    .buffered(READS_IN_FLIGHT)
                    .collect()
                    .await;
            }
            found.sort_by(|a, b| a.path.cmp(&b.path));
            unreadable.sort_by(|a: &Unreadable, b| a.path.cmp(&b.path));
            Ok((found, unreadable))
        });
        let (found, unreadable) = listed.await?;
        let epoch = self.known_epoch().await?;
        Ok(Survey { locks: found.into_iter().map(|info| info.in_epoch(epoch)).collect(), unreadable })
    }

    /// Returns a [`Follow`] of the lock at `path`: each call of [`Follow::next`] returns the lock after its next
    /// change.
    pub fn follow(&self, path: &str) -> Follow {
        Follow { admin: self.clone(), path: LockPath::parse_node(path), watcher: None, known: HashMap::new() }
    }

    /// The handle that it uses.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The owner of this client.
    pub(crate) fn owner(&self) -> &Owner {
        self.context.owner()
    }

    /// Runs `question` on the I/O thread, so that any runtime, or none, can wait for it.
    pub(crate) async fn on_session<T, F, Fut>(&self, question: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Arc<dyn Ensemble>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let context = self.context.clone();
        self.context
            .run(async move {
                let (_session, ensemble) = context.session(None).await?;
                question(ensemble).await
            })
            .await
    }
}

/// The changes of one lock. Created by [`Admin::follow`].
///
/// It watches the lock's children, so every contender that enters or leaves wakes it and costs a sync: it is meant for
/// a person, not for a fleet.
pub struct Follow {
    admin: Admin,
    path: Result<LockPath, lockkeeper_core::PathError>,
    watcher: Option<Watcher>,
    /// Contenders that were read before; a node's owner does not change.
    known: HashMap<String, ContenderInfo>,
}

impl Follow {
    /// Returns the lock: the first call its present state, later calls the state after the next change.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind; the next call reports a change that happens meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Admin::show`]; also [`Error::NoSuchLock`] if the lock has no node.
    pub async fn next(&mut self) -> Result<LockInfo, Error> {
        let path = self.path.clone()?.to_string();
        if let Some(watcher) = &mut self.watcher {
            watcher.await;
            self.watcher = None;
        }
        let mut known = std::mem::take(&mut self.known);
        let (info, watcher, known) = self
            .admin
            .on_session(move |ensemble| async move {
                // Always, because the session may be a new one since the last read.
                let (names, watcher) = match synced(&*ensemble, &path, ensemble.list_and_watch(&path)).await {
                    Ok((names, watcher)) => (names, Some(watcher)),
                    Err(fault) => return Err(refused(&path, fault)),
                };
                known.retain(|name, _| names.contains(name));
                let info = describe(&*ensemble, &path, names, &mut known).await;
                Ok((info, watcher, known))
            })
            .await?;
        self.watcher = watcher;
        self.known = known;
        Ok(info.in_epoch(self.admin.known_epoch().await?))
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Reads the contenders of a listing. Contenders that were deleted since the listing are left out.
async fn describe(
    ensemble: &dyn Ensemble,
    path: &str,
    names: Vec<String>,
    known: &mut HashMap<String, ContenderInfo>,
) -> LockInfo {
    let node_format = NodeFormat::of(&names);
    let queue = Queue::read_with_holder_marker(node_format, node_format.mark(), &names);
    // The holder marker has the token of the holder of a lock with classes.
    let holder_marker = match queue.has_holder_marker() {
        true => ensemble.read(&format!("{path}/{HOLDER_MARKER}")).await.ok(),
        false => None,
    };
    let marked = holder_marker.as_ref().and_then(|node| NodeData::read(&node.data).id());
    let fresh = queue.entries().iter().map(|e| e.name).filter(|name| !known.contains_key(*name));
    let reads: Vec<_> = fresh
        .map(|name| {
            let (name, read) = (name.to_owned(), ensemble.read(&format!("{path}/{name}")));
            async move { read.await.ok().map(|node| ContenderInfo::read(name, &node)) }
        })
        .collect();
    let mut reads = stream::iter(reads).buffered(READS_IN_FLIGHT);
    while let Some(seen) = reads.next().await {
        if let Some(info) = seen {
            known.insert(info.node.clone(), info);
        }
    }
    // Waiters ignore these nodes too.
    let sessionless: Vec<_> =
        known.values().filter(|info| info.session.is_none()).map(|info| info.node.clone()).collect();
    let queue = queue.without(&sessionless);
    let discipline = discipline(ensemble, path, &queue).await;
    let mut info = LockInfo {
        path: path.to_owned(),
        permits: discipline.permits().filter(|permits| *permits != UNSTATED),
        holders: Vec::new(),
        waiters: Vec::new(),
        unknown: queue.unknown().iter().map(|name| (*name).to_owned()).collect(),
        lease: None,
    };
    for entry in queue.entries() {
        let Some(mut contender) = known.get(entry.name).cloned() else {
            continue;
        };
        let holds = match &holder_marker {
            Some(mark) => {
                marked.is_some() && marked == contender.id
                    || marked.is_none() && info.holders.is_empty() && mark.owner == contender.session
            }
            None => decide(&discipline, &queue, entry.name) == Verdict::Granted,
        };
        if holds {
            if let Some(mark) = &holder_marker {
                contender.token = Some(FencingToken::from_zxid(mark.czxid));
            }
            info.holders.push(contender);
        } else {
            info.waiters.push(contender);
        }
    }
    info
}

/// The rule of a queue, derived from its first contender.
async fn discipline(ensemble: &dyn Ensemble, path: &str, queue: &Queue<'_>) -> Discipline {
    match queue.entries().first().map(|entry| entry.mode) {
        Some(Mode::Class(_)) => Discipline::Classes { holder_marker: HOLDER_MARKER.to_owned() },
        Some(Mode::Permits(_)) => {
            Discipline::Permits { permits: stated_permits(ensemble, path).await.unwrap_or(UNSTATED) }
        }
        // An exclusive lock is a shared one without readers.
        _ => Discipline::SharedExclusive,
    }
}

/// The number of permits that the path states.
async fn stated_permits(ensemble: &dyn Ensemble, path: &str) -> Option<u32> {
    permits_in(&ensemble.read(path).await.ok()?)
}

fn permits_in(node: &Node) -> Option<u32> {
    match PathRecord::limit(&node.data, node.version) {
        Limit::Permits(permits) => Some(permits),
        _ => None,
    }
}
