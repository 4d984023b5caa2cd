//! Finds the contenders behind a listing. [`Contest`] decides which of them hold the lock.

use std::collections::{BTreeMap, HashMap};
use std::time::UNIX_EPOCH;

use futures_util::stream::{self, StreamExt};
use lockkeeper_core::{
    CURATOR_LEASES, CURATOR_LOCK, FencingToken, ForeignSemaphore, HOLDER_MARKER, KAZOO_LOCK, Limit, NodeFormat,
    PathRecord, Queue, Zxid, node_path,
};
use lockkeeper_session::ensemble::{Children, Ensemble, Node, OpError, READS_IN_FLIGHT, Watcher, linearizable};
use lockkeeper_session::text::moment;

use super::info::{Entries, LockInfo};
use crate::broken::Revoked;
use crate::contender::ContenderInfo;
use crate::contest::{Contest, Marker, PathState, names_of};
use crate::journal;

/// The names in the queue of one lock.
pub(super) struct Listed {
    node_format: NodeFormat,
    names: Vec<String>,
    /// How many contenders have entered, if the names are the children of the lock's path.
    entries: Option<Entries>,
    /// The transaction that last created or deleted one of its nodes, if that is known.
    changed: Option<Zxid>,
}

impl Listed {
    /// The children of a lock's path, which are only names.
    pub(super) fn names_of(names: Vec<String>) -> Self {
        Listed { node_format: NodeFormat::of(&names), names, entries: None, changed: None }
    }

    /// The children of a lock's path.
    pub(super) fn of(Children { names, created, ctime_ms, changed, .. }: Children) -> Self {
        let entries = moment(ctime_ms).map(|since| Entries { count: created, since });
        Listed { entries, changed: Some(changed), ..Listed::names_of(names) }
    }

    /// The nodes beside the path, from a listing of the node above it.
    fn beside(path: &str, names: Vec<String>, changed: Option<Zxid>) -> Self {
        let node_format = NodeFormat::Numbered;
        Listed { node_format, names: node_format.names(path, names), entries: None, changed }
    }

    /// The nodes of the semaphore of a foreign client, from the children of its path. `None` if it is none, or not in use.
    ///
    /// One listing if the names are none of a semaphore's, two of Curator's.
    pub(super) async fn of_semaphore(ensemble: &dyn Ensemble, path: &str, children: &[String]) -> Option<Self> {
        let has = |name: &str| children.iter().any(|child| child == name);
        let list = async |directory: &str| ensemble.list(&format!("{path}{directory}")).await.ok();
        let own = |directory: &str, children: &Children| {
            let names = children.names.iter().map(|name| format!("{directory}/{name}"));
            names.filter(|name| ForeignSemaphore::read(name).is_some()).collect::<Vec<_>>()
        };
        let (names, changed) = if has(CURATOR_LEASES) {
            let (leases, locks) = tokio::join!(list("/leases"), list("/locks"));
            let asking = locks.as_ref().map(|locks| own(CURATOR_LOCK, locks)).unwrap_or_default();
            let leases = leases?;
            ([own(CURATOR_LEASES, &leases), asking].concat(), Some(leases.changed))
        } else {
            let locks = list(KAZOO_LOCK).await?;
            let leases = children.iter().filter_map(|name| ForeignSemaphore::kazoo_lease(name));
            (leases.chain(own(KAZOO_LOCK, &locks)).collect(), None)
        };
        (!names.is_empty()).then(|| Listed { changed, ..Listed::names_of(names) })
    }

    /// The paths of the nodes.
    pub(super) fn nodes(&self, path: &str) -> Vec<String> {
        self.names.iter().map(|name| node_path(path, name)).collect()
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Removes the children of the node at `path` that are the nodes of locks beside them, and returns those locks.
    ///
    /// A directory whose name ends in a number looks the same. [`describe`] tells them apart: only contenders have a
    /// session.
    pub(super) fn split_off_beside(self, path: &str) -> (Self, BTreeMap<String, Listed>) {
        let above = path.trim_end_matches('/');
        let below = |name: &String| NodeFormat::of_line(&[name]).is_some();
        let (names, beside): (Vec<_>, Vec<_>) =
            self.names.into_iter().partition(|name| below(name) || NodeFormat::beside(name).is_none());
        // A directory may have nodes of thousands of locks, so each lock gets only the names that may be of its nodes.
        let locks = beside.iter().filter_map(|name| NodeFormat::beside(name));
        let mut locks: BTreeMap<_, Vec<_>> = locks.map(|lock| (lock, Vec::new())).collect();
        for name in &beside {
            // The lengths of a number.
            for length in [10, 11] {
                let lock = name.len().checked_sub(length).and_then(|end| name.get(..end));
                if let Some(names) = lock.and_then(|lock| locks.get_mut(lock)) {
                    names.push(name.clone());
                }
            }
        }
        let changed = self.changed;
        let listed = |(lock, names)| {
            let path = format!("{above}/{lock}");
            let listed = Listed::beside(&path, names, changed);
            (path, listed)
        };
        (Listed { names, ..self }, locks.into_iter().map(listed).collect())
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
        Ok(children) if NodeFormat::of_line(&children.names).is_some() => return Ok(Listed::of(children)),
        below @ (Ok(_) | Err(OpError::NoNode)) => below.map(Listed::of),
        Err(fault) => return Err(fault),
    };
    let beside = list_beside(ensemble, path).await;
    if beside.names.is_empty() { listed } else { Ok(beside) }
}

/// Lists the contenders beside the lock's path. A client without the right to read the node above cannot have contenders
/// there.
pub(super) async fn list_beside(ensemble: &dyn Ensemble, path: &str) -> Listed {
    let above = ensemble.list(NodeFormat::Numbered.listed(path)).await;
    let (names, changed) = above.map(|it| (it.names, Some(it.changed))).unwrap_or_default();
    Listed::beside(path, names, changed)
}

/// Lists the queue as [`list`] does, and watches the node that was listed.
pub(super) async fn list_and_watch(ensemble: &dyn Ensemble, path: &str) -> Result<(Listed, Watcher), OpError> {
    let before = list(ensemble, path).await?;
    let place = before.node_format.listed(path);
    let (names, watcher) = ensemble.list_and_watch(place).await?;
    let listed = if place == path { Listed::names_of(names) } else { Listed::beside(path, names, None) };
    // If the same contenders are there, nobody was granted the lock between the two listings.
    let changed = before.changed.filter(|_| {
        let [mut one, mut other] = [&before.names, &listed.names].map(|names| names.iter().collect::<Vec<_>>());
        one.sort_unstable();
        other.sort_unstable();
        one == other
    });
    let entries = before.entries.filter(|_| place == path);
    Ok((Listed { entries, changed, ..listed }, watcher))
}

/// Lists and reads the lock at `path`, or the semaphore of foreign clients.
///
/// # Errors
///
/// As [`list`].
pub(super) async fn look(ensemble: &dyn Ensemble, path: &str) -> Result<LockInfo, OpError> {
    let info = describe(ensemble, path, list(ensemble, path).await?, &mut HashMap::new()).await;
    if !info.is_quiet() {
        return Ok(info);
    }
    match Listed::of_semaphore(ensemble, path, &info.unknown).await {
        Some(listed) => Ok(describe(ensemble, path, listed, &mut HashMap::new()).await),
        None => Ok(info),
    }
}

/// The bits of a token that are the epoch's.
const EPOCH_BITS: u32 = 16;

/// Whether the node of a foreign client says only that somebody asks it to release.
fn is_bare(contender: &ContenderInfo) -> bool {
    contender.owner.is_none() && contender.revocation.as_ref().is_some_and(|asked| asked.by.is_none())
}

pub(super) fn has_bare_requests(info: &LockInfo) -> bool {
    info.holders.iter().chain(&info.waiters).any(is_bare)
}

/// Adds what a request to release has replaced in the nodes of foreign clients: the journal says who they are, and who asks.
pub(super) async fn recall(ensemble: &dyn Ensemble, info: &mut LockInfo) {
    let path = &info.path;
    let mut bare: Vec<_> = info.holders.iter_mut().chain(&mut info.waiters).filter(|it| is_bare(it)).collect();
    if bare.is_empty() {
        return;
    }
    // Without the journal, the node says that somebody asks.
    let entries = journal::entries::<Revoked>(ensemble).await.unwrap_or_default();
    for contender in &mut bare {
        // A record has the epoch, above the transaction.
        let created = |token: Option<FencingToken>| token.map(|token| token.get() << EPOCH_BITS);
        let is_about = |asked: &&Revoked| {
            asked.path == *path && asked.node == contender.node && created(asked.token) == created(contender.token)
        };
        if let Some(asked) = entries.iter().rev().find(is_about) {
            contender.described.clone_from(&asked.described);
            let at_ms = asked.at.duration_since(UNIX_EPOCH).map_or(0, |at| u64::try_from(at.as_millis()).unwrap_or(0));
            if let Some(revocation) = &mut contender.revocation {
                (revocation.by, revocation.reason) = (Some(asked.by.clone()), asked.reason.clone());
                revocation.at_ms = at_ms;
            }
        }
    }
}

/// Reads the contenders of a listing. Contenders that were deleted since the listing are left out.
pub(super) async fn describe(
    ensemble: &dyn Ensemble,
    path: &str,
    listed: Listed,
    known: &mut HashMap<String, ContenderInfo>,
) -> LockInfo {
    let Listed { node_format, names, entries, changed } = listed;
    let queue = Queue::read(node_format, &names);
    // The holder marker has the token of the holder of a lock with classes.
    let holder_marker = match queue.has_holder_marker() {
        true => ensemble.read(&format!("{path}/{HOLDER_MARKER}")).await.ok(),
        false => None,
    };
    let reads: Vec<_> = names_of(&queue)
        .into_iter()
        .filter(|name| !known.contains_key(*name))
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
    let contest = Contest::new(path, node_format, &names, known);
    let permits = match contest.semaphore() {
        Some(semaphore) => ensemble.read(path).await.ok().and_then(|node| semaphore.limit(&node.data)),
        None if contest.counts_permits() => stated_permits(ensemble, path).await,
        None => None,
    };
    let state = PathState { permits, entries, changed, leased: None };
    let mut info = contest.described(holder_marker.as_ref().map(Marker::of), state);
    for waiter in &info.waiters {
        known.get_mut(&waiter.node).into_iter().for_each(ContenderInfo::waits);
    }
    recall(ensemble, &mut info).await;
    info
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The locks beside these names, with the numbers of their nodes.
    fn beside(names: &[&str]) -> (Vec<String>, Vec<(String, Vec<String>)>) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let (listed, locks) = Listed::names_of(names).split_off_beside("/locks");
        (listed.names, locks.into_iter().map(|(lock, listed)| (lock, listed.names)).collect())
    }

    #[test]
    fn a_node_beside_locks_is_in_the_queue_of_each_lock_whose_name_and_a_number_it_is() {
        let queue = |lock: &str, numbers: &[&str]| {
            (format!("/locks/{lock}"), numbers.iter().map(|number| (*number).to_owned()).collect::<Vec<_>>())
        };
        let (left, locks) = beside(&[
            "b.0000000007",
            "a0000000002",
            "directory",
            "b.-2147483648",
            "a0000000001",
            "a-000000001",
            "ä0000000001",
            "0000000001",
        ]);
        assert_eq!(left, ["directory", "0000000001"]);
        assert_eq!(
            locks,
            [
                queue("a", &["0000000002", "0000000001", "-000000001"]),
                queue("b.", &["0000000007", "-2147483648"]),
                queue("ä", &["0000000001"]),
            ]
        );
        // The minus may be the end of a lock's name or the sign of a number.
        let (_, locks) = beside(&["x-a-1234567890", "x-a0000000001"]);
        assert_eq!(locks, [queue("x-a", &["-1234567890", "0000000001"]), queue("x-a-", &["1234567890"])]);
        let (_, locks) = beside(&["x-a-1234567890"]);
        assert_eq!(locks, [queue("x-a-", &["1234567890"])]);
    }

    /// Comparing each name with each lock would take minutes.
    #[test]
    fn twenty_thousand_locks_with_nodes_beside_their_paths_are_told_apart() {
        let names: Vec<_> = (0..20_000).map(|lock| format!("order.{lock:06}.0000000001")).collect();
        let (left, locks) = Listed::names_of(names).split_off_beside("/locks");
        assert_eq!((left.names.len(), locks.len()), (0, 20_000));
        assert!(locks.values().all(|queue| queue.names == ["0000000001"]));
    }
}
