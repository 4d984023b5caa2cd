//! What is left in a tree of locks when nobody uses it, and its deletion.
//!
//! Servers date the creation of a node and the last write of its data, but not the last use of a lock: that is the creation or the
//! deletion of a child, and they show only the number of that transaction. So [`leftovers`] dates it by its neighbours: transactions are numbered
//! in the order of time, and another node that was created or written by a later transaction says that this one was no later. A use
//! that no node dates counts as one of now. So a lock may be older than it is said to be, and is never younger.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use lockkeeper::error::{AdminError, refused};
use lockkeeper::{Lockkeeper, NodeFormat, journal};
use lockkeeper_core::{AttemptId, Limit, PathRecord, Tombstone, leased};
use lockkeeper_session::Zxid;
use lockkeeper_session::ensemble::{Children, Ensemble, Node, OpError, READS_IN_FLIGHT, linearizable};
use lockkeeper_session::records::server_now_ms;
use serde::{Serialize, Serializer};

mod sweep;

pub use sweep::{Cleanup, Swept, cleanups, sweep};

/// The trees of the servers and of Lockkeeper, which contain no locks.
const NO_LOCKS: [&str; 2] = ["/zookeeper", "/lockkeeper"];

/// A duration in whole milliseconds, in JSON.
fn whole_ms<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// What is left of locks below a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Leftovers {
    /// The nodes, by path.
    pub nodes: Vec<Leftover>,
    /// The nodes that this client has no right to read. What is below them is not known.
    pub unreadable: Vec<String>,
    /// The servers' time when they were read, in milliseconds since 1970. If the servers could not be asked without creating a node,
    /// the latest time that a node showed, which is earlier.
    pub now_ms: i64,
}

/// A node that no session owns, without children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Leftover {
    /// Its path.
    pub path: String,
    /// What it is.
    #[serde(flatten)]
    pub kind: LeftoverKind,
    /// When it was created, in milliseconds since 1970 by the servers' clock.
    pub created_ms: i64,
    /// A time since which it was not used: neither written, nor was a child of it created or deleted. For a tombstone, a time since
    /// which its hold was abandoned. `None` if that is not known.
    pub unused_since_ms: Option<i64>,
    /// The version of its data, which a deletion checks.
    #[serde(skip)]
    version: i32,
}

/// What a leftover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeftoverKind {
    /// The node of a lock, or a directory of locks, with no data but a lock's own. The servers delete it by themselves if it is a
    /// container; they do not say whether it is.
    Empty,
    /// A node with the name of a contender. Foreign clients wait behind it.
    Sessionless,
    /// The tombstone of an abandoned hold: it delays the next grant.
    Tombstone {
        /// The lock delay.
        #[serde(rename = "delay_ms", serialize_with = "whole_ms")]
        delay: Duration,
    },
    /// It has data that is no lock's, such as the note of a person.
    Note,
}

impl Leftover {
    /// Returns for how long it was not used at least; zero if that is not known.
    pub fn unused_for(&self, now_ms: i64) -> Duration {
        let ms = self.unused_since_ms.map_or(0, |since| now_ms.saturating_sub(since));
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    /// Returns whether it is an empty node that is known to be unused for this long.
    pub fn is_unused(&self, now_ms: i64, time: Duration) -> bool {
        self.kind == LeftoverKind::Empty && self.unused_since_ms.is_some() && self.unused_for(now_ms) >= time
    }

    /// Returns whether it is a tombstone that delays a grant for longer than it should: the lock delay has passed since the hold was
    /// abandoned.
    pub fn is_overdue(&self, now_ms: i64) -> bool {
        matches!(self.kind, LeftoverKind::Tombstone { delay } if self.unused_for(now_ms) >= delay && self.unused_since_ms.is_some())
    }
}

/// Returns what is left of locks below `root`, which may be `/`. The root itself is not counted. It changes nothing, except for the
/// data of the first node of `records`, whose write asks for the servers' time. `now_ms`: that time, if the caller knows it; then
/// nothing is written. `records`: roots of records below `/lockkeeper`, whose times date what is left.
///
/// # Cost
///
/// One ordered write, one read for each node below the root and one listing for each node with children, many at once; then five
/// reads and a write.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
///
/// # Errors
///
/// The root is no path, the server refuses the read of the root, or it cannot be reached. A root that does not exist has no leftovers.
pub async fn leftovers(
    keeper: &Lockkeeper,
    root: &str,
    records: &[&'static str],
    now_ms: Option<i64>,
) -> Result<Leftovers, AdminError> {
    let (root, records) = (keeper.root(root)?, records.to_vec());
    keeper.sessions().ask(move |ensemble| async move { walk(&*ensemble, &root, &records, now_ms).await }).await
}

/// A node with its children.
struct Directory {
    /// Its path; empty for `/`.
    path: String,
    names: Vec<String>,
}

impl Directory {
    fn node(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }
}

/// What the names in a directory say about the queue of a lock there.
#[derive(Default)]
struct Names {
    of: Option<String>,
    format: NodeFormat,
    /// The ids of its contenders.
    ids: HashSet<AttemptId>,
}

impl Names {
    /// Reads the names of a directory, once while they are asked for.
    fn of(&mut self, directory: &Directory) -> &Names {
        if self.of.as_ref() != Some(&directory.path) {
            self.of = Some(directory.path.clone());
            self.format = NodeFormat::of(&directory.names);
            self.ids = directory.names.iter().filter_map(|name| NodeFormat::Curator.parse(name)?.id).collect();
        }
        self
    }

    /// Whether foreign clients of the queue count a node with this name, whoever created it.
    fn count(&self, name: &str) -> bool {
        self.format.foreign_clients_wait_for_any_node() && self.format.parse(name).is_some()
    }
}

/// The transactions whose time is known.
#[derive(Default)]
struct Dates(Vec<(Zxid, i64)>);

impl Dates {
    fn note(&mut self, node: &Node) {
        self.0.extend([(node.czxid, node.ctime_ms), (node.mzxid, node.mtime_ms)]);
    }

    /// Returns the latest known time.
    fn latest(&self) -> i64 {
        self.0.iter().map(|(_, ms)| *ms).max().unwrap_or(0)
    }

    /// Returns the function that dates a transaction: the time of the first known one that is not before it.
    fn dating(mut self) -> impl Fn(Zxid) -> Option<i64> {
        self.0.sort_unstable();
        move |zxid| self.0.get(self.0.partition_point(|(known, _)| *known < zxid)).map(|(_, ms)| *ms)
    }
}

async fn walk(
    ensemble: &dyn Ensemble,
    root: &str,
    records: &[&str],
    now_ms: Option<i64>,
) -> Result<Leftovers, AdminError> {
    let top = if root.is_empty() { "/" } else { root };
    let mut level = match linearizable(ensemble, ensemble.list(top)).await {
        Ok(Children { names, .. }) => vec![Directory { path: root.to_owned(), names }],
        Err(OpError::NoNode) => Vec::new(),
        Err(fault) => return Err(refused(top, fault)),
    };
    let mut found = Found::default();
    while !level.is_empty() {
        let below = found.read(ensemble, &level).await?;
        level = found.list(ensemble, below).await?;
    }
    // Each question for the servers' time has written the first one.
    for path in records.iter().copied().chain([journal::ROOT]) {
        if let Ok(node) = ensemble.read(path).await {
            found.dates.note(&node);
        }
    }
    let now_ms = match now_ms {
        Some(now_ms) => Some(now_ms),
        // An error: this client may not write there.
        None => match records.first() {
            Some(first) => server_now_ms(ensemble, first).await.unwrap_or(None),
            None => None,
        },
    };
    Ok(found.dated(now_ms))
}

/// What a walk has found so far.
#[derive(Default)]
struct Found {
    /// The leftovers, each with its last transaction.
    nodes: Vec<(Leftover, Zxid)>,
    unreadable: Vec<String>,
    dates: Dates,
}

impl Found {
    /// Returns what was found, with the times of the last uses.
    fn dated(self, now_ms: Option<i64>) -> Leftovers {
        let now_ms = now_ms.unwrap_or_else(|| self.dates.latest());
        let date = self.dates.dating();
        let nodes = self.nodes.into_iter().map(|(node, last)| Leftover { unused_since_ms: date(last), ..node });
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Leftovers { nodes, unreadable: self.unreadable, now_ms }
    }

    /// Reads the children of these directories, and returns those that have children.
    async fn read(&mut self, ensemble: &dyn Ensemble, level: &[Directory]) -> Result<Vec<String>, AdminError> {
        // Owned, so that the future can be sent to another thread.
        let mut children = Vec::new();
        for (above, directory) in level.iter().enumerate() {
            let paths = directory.names.iter().map(|name| format!("{}/{name}", directory.path)).enumerate();
            children.extend(paths.map(|(at, path)| (above, at, path)));
        }
        children.retain(|(.., path)| !NO_LOCKS.contains(&path.as_str()));
        let mut reads = stream::iter(children)
            .map(|(above, at, path)| {
                let read = ensemble.read(&path);
                async move { (above, at, path, read.await) }
            })
            .buffered(READS_IN_FLIGHT);
        let (mut below, mut names) = (Vec::new(), Names::default());
        while let Some((above, at, path, read)) = reads.next().await {
            let above = &level[above];
            let name = &above.names[at];
            let node = match read {
                Ok(node) => node,
                // Deleted since the listing.
                Err(OpError::NoNode) => continue,
                Err(OpError::Refused(_)) => {
                    self.unreadable.push(path);
                    continue;
                }
                Err(fault) => return Err(refused(&path, fault)),
            };
            self.dates.note(&node);
            if node.children > 0 {
                below.push(path);
                continue;
            }
            if node.owner.0 != 0 {
                continue;
            }
            let Some(kind) = kind(name, &node, names.of(above)) else { continue };
            let last = match kind {
                // The loss of its hold is the deletion of another child. Read behind the listing, so that it is no earlier one.
                LeftoverKind::Tombstone { .. } => match ensemble.read(above.node()).await {
                    Ok(above) => above.pzxid,
                    Err(_) => continue,
                },
                _ => node.pzxid.max(node.mzxid),
            };
            let leftover =
                Leftover { path, kind, created_ms: node.ctime_ms, unused_since_ms: None, version: node.version };
            self.nodes.push((leftover, last));
        }
        Ok(below)
    }

    async fn list(&mut self, ensemble: &dyn Ensemble, paths: Vec<String>) -> Result<Vec<Directory>, AdminError> {
        let mut listings = stream::iter(paths)
            .map(|path| {
                let listing = ensemble.list(&path);
                async move { (path, listing.await) }
            })
            .buffered(READS_IN_FLIGHT);
        let mut level = Vec::new();
        while let Some((path, listed)) = listings.next().await {
            match listed {
                Ok(Children { names, .. }) => level.push(Directory { path, names }),
                Err(OpError::NoNode) => {}
                Err(OpError::Refused(_)) => self.unreadable.push(path),
                Err(fault) => return Err(refused(&path, fault)),
            }
        }
        Ok(level)
    }
}
/// Returns what a node without a session and without children is; `None` if it is the tombstone of a hold that goes on, or the record of a
/// leased lock.
fn kind(name: &str, node: &Node, names: &Names) -> Option<LeftoverKind> {
    if let Some(tombstone) = Tombstone::read(name) {
        let delay = tombstone.delay.duration();
        return (!names.ids.contains(&tombstone.id)).then_some(LeftoverKind::Tombstone { delay });
    }
    if names.count(name) {
        return Some(LeftoverKind::Sessionless);
    }
    match PathRecord::limit(&node.data, node.version) {
        Limit::Foreign if leased::Record::from_bytes(&node.data).is_ok() => None,
        Limit::Foreign => Some(LeftoverKind::Note),
        _ => Some(LeftoverKind::Empty),
    }
}

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
