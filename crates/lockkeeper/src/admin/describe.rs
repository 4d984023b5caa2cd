//! Finds the contenders behind a listing, and which of them hold.

use std::collections::HashMap;

use futures_util::stream::{self, StreamExt};
use lockkeeper_core::{
    Discipline, FencingToken, HOLDER_MARKER, Limit, Mode, NodeData, NodeFormat, PathRecord, Queue, Verdict,
};

use super::info::LockInfo;
use crate::contender::ContenderInfo;
use crate::ensemble::{Ensemble, Node, READS_IN_FLIGHT};

/// The limit of a semaphore whose path states none: all contenders count as holders.
const UNSTATED: u32 = u32::MAX;

/// Reads the contenders of a listing. Contenders that were deleted since the listing are left out.
pub(super) async fn describe(
    ensemble: &dyn Ensemble,
    path: &str,
    names: Vec<String>,
    known: &mut HashMap<String, ContenderInfo>,
) -> LockInfo {
    let node_format = NodeFormat::of(&names);
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
        permits: discipline.limit().filter(|permits| *permits != UNSTATED),
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
            None => discipline.decide(&queue, entry.name) == Verdict::Granted,
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
