//! Questions about locks: which there are, who holds them, who waits.
//!
//! Answers are a sync, a listing behind it and the reads that follow: true of a moment since the question, however far this
//! session's server lags behind the leader. Nothing here changes a node, but for what a person asks to be broken (`breaking`).

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

/// The limit of a semaphore whose path states none: all hold, as far as one can tell.
const UNSTATED: u32 = u32::MAX;

/// Where what is said about locks is kept; there are none there.
const OURS: [&str; 3] = [journal::ROOT, decisions::ROOT, counts::ROOT];

/// How deep below the root of a listing locks are looked for.
const MAX_DEPTH: usize = 16;

/// A lock and all who contend for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its path.
    pub path: String,
    /// How many permits it has, where it is a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// Who holds it.
    pub holders: Vec<ContenderInfo>,
    /// Who waits, the next in line first.
    pub waiters: Vec<ContenderInfo>,
    /// Children that are no contenders and count for nothing.
    pub unknown: Vec<String>,
    /// What the record of a leased lock says; its owner is in `holders` too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
}

impl LockInfo {
    /// Nobody holds it or waits for it, as far as its children tell.
    fn is_quiet(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }
}

/// The locks of a part of the tree, and what could not be read of it. Made by [`Admin::survey`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Survey {
    /// The locks that somebody holds or waits for, by path.
    pub locks: Vec<LockInfo>,
    /// The nodes that the server does not let this process read, by path. Locks at and below them are not among the others.
    pub unreadable: Vec<Unreadable>,
}

/// A node that the server does not let this process read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unreadable {
    /// The node.
    pub path: String,
    /// The server's words.
    pub reason: String,
}

/// Asks about locks, and breaks them. Made by [`Lockkeeper::admin`](crate::Lockkeeper::admin).
///
/// What it tells was so at some moment since it was asked: the server of its session first catches up with the leader, which takes
/// their round trip, not one more of the client's. A server without a majority cannot, and does not answer from what it has: the call
/// waits until that server notices and closes the connection (seconds), and ends with [`Error::ConnectionLost`].
#[derive(Clone, Debug)]
pub struct Admin {
    pub(crate) context: Context,
}

impl Admin {
    pub(crate) fn new(context: Context) -> Self {
        Admin { context }
    }

    /// Who holds the lock at `path` and who waits for it, in order. A sync and a listing in flight together, then one read a
    /// contender, those too; one of the path, for its permits or its record, where nobody contends.
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// [`Error::NoSuchLock`] if the path has no node; a lock whose node exists with nobody at it is an answer.
    /// [`Error::ConnectionLost`] where there is no majority; otherwise a refusal by the server, or no server.
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

    /// The locks at and below `root`, which may be `/`, that somebody holds or waits for, by path.
    ///
    /// Walks the tree behind one sync: one listing a node, and the reads of [`Admin::show`]; so one read more for each node that is no
    /// queue. A root that does not exist has no locks. What is at and below a node that cannot be read is left out: [`Admin::survey`]
    /// names such nodes.
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// A refusal by the server, or no server.
    pub async fn list(&self, root: &str) -> Result<Vec<LockInfo>, Error> {
        Ok(self.survey(root).await?.locks)
    }

    /// [`Admin::list`], with the nodes that the server does not let this process read.
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// As there.
    pub async fn survey(&self, root: &str) -> Result<Survey, Error> {
        let root = if root == "/" { root.to_owned() } else { LockPath::parse_node(root)?.to_string() };
        let listed = self.on_session(move |ensemble| async move {
            let (mut found, mut quiet, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
            // What a session reads later is no older.
            let mut listings = vec![(root.clone(), synced(&*ensemble, &root, ensemble.list(&root)).await)];
            for _ in 0..MAX_DEPTH {
                let mut level = Vec::new();
                for (path, listed) in std::mem::take(&mut listings) {
                    match listed {
                        // Gone since its parent was listed, or a root nobody made yet.
                        Err(OpError::NoNode) => {}
                        // One such node does not hide the others.
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

    /// Follows the lock at `path`: each call of [`Follow::next`] tells what it looks like after the next change.
    pub fn follow(&self, path: &str) -> Follow {
        Follow { admin: self.clone(), path: LockPath::parse_node(path), watcher: None, known: HashMap::new() }
    }

    /// Through which it is asked.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Who asks.
    pub(crate) fn owner(&self) -> &Owner {
        self.context.owner()
    }

    /// Runs `question` where the session's input and output run, so that any runtime, or none, may ask.
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

/// The changes of one lock. Made by [`Admin::follow`].
///
/// Watches the lock's children, so every coming and going wakes it, and costs a sync: meant for a person who looks, not for a fleet.
pub struct Follow {
    admin: Admin,
    path: Result<LockPath, lockkeeper_core::PathError>,
    watcher: Option<Watcher>,
    /// Contenders read before; a node's owner does not change.
    known: HashMap<String, ContenderInfo>,
}

impl Follow {
    /// What the lock looks like now, then after each change.
    ///
    /// Dropping the future leaves nothing behind; a change meanwhile is told by the next call.
    ///
    /// # Errors
    /// As [`Admin::show`]; a lock that has no node cannot be followed either.
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
                // Always: the session may be a new one since the last look.
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

/// Reads who stands behind the names of a listing. A contender gone since the listing is left out.
async fn describe(
    ensemble: &dyn Ensemble,
    path: &str,
    names: Vec<String>,
    known: &mut HashMap<String, ContenderInfo>,
) -> LockInfo {
    let node_format = NodeFormat::of(&names);
    let queue = Queue::read_with_holder_marker(node_format, node_format.mark(), &names);
    // The mark has the token of a class's holder.
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

/// The rule of a queue, by its first contender.
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

/// How many permits the path states.
async fn stated_permits(ensemble: &dyn Ensemble, path: &str) -> Option<u32> {
    permits_in(&ensemble.read(path).await.ok()?)
}

fn permits_in(node: &Node) -> Option<u32> {
    match PathRecord::limit(&node.data, node.version) {
        Limit::Permits(permits) => Some(permits),
        _ => None,
    }
}
