//! Finds the contenders behind a listing, and which of them hold.

use std::collections::{BTreeMap, HashMap};

use futures_util::stream::{self, StreamExt};
use lockkeeper_core::{
    Discipline, FencingToken, HOLDER_MARKER, Limit, Mode, NodeData, NodeFormat, PathRecord, Queue, Sessionless,
    Verdict, node_path,
};

use super::info::LockInfo;
use crate::clock::moment;
use crate::contender::ContenderInfo;
use crate::ensemble::{Children, Ensemble, Node, OpError, READS_IN_FLIGHT, Watcher, linearizable};

/// The limit of a semaphore whose path states none: all contenders count as holders.
const UNSTATED: u32 = u32::MAX;

/// The names in the queue of one lock.
pub(super) struct Listed {
    node_format: NodeFormat,
    names: Vec<String>,
}

impl Listed {
    /// The children of a lock's path.
    pub(super) fn of(names: Vec<String>) -> Self {
        Listed { node_format: NodeFormat::of(&names), names }
    }

    /// The nodes beside the path, from a listing of the node above it.
    fn beside(path: &str, names: Vec<String>) -> Self {
        let node_format = NodeFormat::Numbered;
        Listed { node_format, names: node_format.names(path, names) }
    }

    /// The names.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Removes the children of the node at `path` that are the nodes of locks beside them, and returns those locks.
    ///
    /// A directory whose name ends in a number looks the same. [`describe`] tells them apart: only contenders have a
    /// session.
    pub(super) fn split_off_beside(self, path: &str) -> (Self, BTreeMap<String, Listed>) {
        let mut locks = BTreeMap::new();
        let above = path.trim_end_matches('/');
        let below = |name: &String| NodeFormat::of_line(&[name]).is_some();
        let (names, beside): (Vec<_>, Vec<_>) =
            self.names.into_iter().partition(|name| below(name) || NodeFormat::beside(name).is_none());
        for name in &beside {
            if let Some(lock) = NodeFormat::beside(name) {
                let lock = format!("{above}/{lock}");
                locks.entry(lock.clone()).or_insert_with(|| Listed::beside(&lock, beside.clone()));
            }
        }
        (Listed { names, ..self }, locks)
    }
}

/// Lists the queue of the lock at `path` behind an ordered write: below the path or, without a contender there, beside
/// it.
///
/// # Errors
///
/// [`OpError::NoNode`] if the path does not exist and no contender is beside it.
pub(super) async fn list(ensemble: &dyn Ensemble, path: &str) -> Result<Listed, OpError> {
    let below = linearizable(ensemble, ensemble.list(path)).await;
    let listed = match below {
        Ok(Children { names, .. }) if NodeFormat::of_line(&names).is_some() => return Ok(Listed::of(names)),
        below @ (Ok(_) | Err(OpError::NoNode)) => below.map(|children| Listed::of(children.names)),
        Err(fault) => return Err(fault),
    };
    let beside = list_beside(ensemble, path).await;
    if beside.names.is_empty() { listed } else { Ok(beside) }
}

/// Lists the contenders beside the lock's path. A client without the right to read the node above cannot have contenders
/// there.
pub(super) async fn list_beside(ensemble: &dyn Ensemble, path: &str) -> Listed {
    let above = ensemble.list(NodeFormat::Numbered.listed(path)).await;
    Listed::beside(path, above.map(|children| children.names).unwrap_or_default())
}

/// Lists the queue as [`list`] does, and watches the node that was listed.
pub(super) async fn list_and_watch(ensemble: &dyn Ensemble, path: &str) -> Result<(Listed, Watcher), OpError> {
    let place = list(ensemble, path).await?.node_format.listed(path);
    let (names, watcher) = ensemble.list_and_watch(place).await?;
    let listed = if place == path { Listed::of(names) } else { Listed::beside(path, names) };
    Ok((listed, watcher))
}

/// Reads the contenders of a listing. Contenders that were deleted since the listing are left out.
pub(super) async fn describe(
    ensemble: &dyn Ensemble,
    path: &str,
    listed: Listed,
    known: &mut HashMap<String, ContenderInfo>,
) -> LockInfo {
    let Listed { node_format, names } = listed;
    let queue = Queue::read(node_format, &names);
    // The holder marker has the token of the holder of a lock with classes.
    let holder_marker = match queue.has_holder_marker() {
        true => ensemble.read(&format!("{path}/{HOLDER_MARKER}")).await.ok(),
        false => None,
    };
    let marked = holder_marker.as_ref().and_then(|node| NodeData::read(&node.data).id());
    let fresh = queue.entries().iter().map(|e| e.name).filter(|name| !known.contains_key(*name));
    let reads: Vec<_> = fresh
        .map(|name| {
            let (name, read) = (name.to_owned(), ensemble.read(&node_path(path, name)));
            async move { read.await.ok().map(|node| ContenderInfo::read(name, &node)) }
        })
        .collect();
    let mut reads = stream::iter(reads).buffered(READS_IN_FLIGHT);
    while let Some(seen) = reads.next().await {
        if let Some(info) = seen {
            known.insert(info.node.clone(), info);
        }
    }
    // Our waiters ignore these nodes too.
    let without_session = |name: &str| known.get(name).filter(|info| info.session.is_none() && !info.abandoned);
    let skipped: Vec<_> = queue.entries().iter().filter_map(|entry| without_session(entry.name)).cloned().collect();
    let names: Vec<_> = skipped.iter().map(|info| &info.node).collect();
    let all = (!skipped.is_empty()).then(|| queue.clone());
    let queue = queue.without(&names);
    let discipline = discipline(ensemble, path, &queue).await;
    let nodes: Vec<_> = skipped.iter().map(|info| Sessionless { name: info.node.clone(), czxid: info.czxid }).collect();
    let blocks = |contender: &ContenderInfo| {
        let ahead = Sessionless::ahead_of(&nodes, all.as_ref()?, (node_format, discipline), &contender.node)?;
        contender.is_blocked_by(ahead).then(|| node_path(path, &ahead.name))
    };
    let mut unknown: Vec<_> = queue.unknown().iter().map(|name| (*name).to_owned()).collect();
    let mut sessionless = Vec::new();
    if node_format.foreign_clients_wait_for_any_node() {
        unknown.retain(|name| !skipped.iter().any(|info| info.node == *name));
        sessionless = skipped;
    }
    let mut info = LockInfo {
        path: path.to_owned(),
        permits: discipline.limit().filter(|permits| *permits != UNSTATED),
        holders: Vec::new(),
        waiters: Vec::new(),
        sessionless,
        unknown,
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
            None => discipline.decide(&queue, entry.name) == Verdict::Granted,
        };
        contender.blocked_by = blocks(&contender).filter(|_| holds);
        if holds && contender.blocked_by.is_none() {
            if let Some(mark) = &holder_marker {
                contender.token = Some(FencingToken::from_zxid(mark.czxid));
                contender.granted = moment(mark.ctime_ms);
            }
            contender.holds();
            info.holders.push(contender);
        } else {
            contender.waits();
            known.insert(entry.name.to_owned(), contender.clone());
            info.waiters.push(contender);
        }
    }
    info
}

/// The rule of a queue, derived from its first contender.
async fn discipline(ensemble: &dyn Ensemble, path: &str, queue: &Queue<'_>) -> Discipline {
    let mode = queue.entries().first().map_or(Mode::Exclusive, |entry| entry.mode);
    let unlimited = Discipline::of(mode, UNSTATED);
    match unlimited.limit() {
        Some(_) => Discipline::of(mode, stated_permits(ensemble, path).await.unwrap_or(UNSTATED)),
        None => unlimited,
    }
}

/// The number of permits that the path states.
async fn stated_permits(ensemble: &dyn Ensemble, path: &str) -> Option<u32> {
    permits_in(&ensemble.read(path).await.ok()?)
}

pub(super) fn permits_in(node: &Node) -> Option<u32> {
    match PathRecord::limit(&node.data, node.version) {
        Limit::Permits(permits) => Some(permits),
        _ => None,
    }
}
