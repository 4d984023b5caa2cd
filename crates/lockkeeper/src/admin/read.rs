//! Reads the nodes of one lock, or of all locks in a tree. [`Contest`] decides which contenders hold a lock.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::UNIX_EPOCH;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use lockkeeper_core::{
    CURATOR_LEASES, CURATOR_LOCK, FencingToken, ForeignSemaphore, HOLDER_MARKER, KAZOO_LOCK, NodeFormat, Sequence, Zxid,
};
use lockkeeper_session::ensemble::{
    Children, Ensemble, Node, OpError, READS_IN_FLIGHT, Watcher, is_below, linearizable,
};

use super::info::{LockInfo, Unreadable};
use crate::broken::Revoked;
use crate::contender::ContenderInfo;
use crate::contest::{Contest, Counted, OwnNode, child, node_of, place_of};
use crate::journal;

/// What was listed and read of a tree of nodes.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// The nodes that were listed, with their children. A node comes before those below it.
    pub listed: Vec<(String, Children)>,
    /// The nodes that were read, by path.
    pub nodes: HashMap<String, Node>,
    /// The nodes that this client has no right to list.
    pub unreadable: Vec<Unreadable>,
}

/// Lists the nodes at and below `root` that are no contenders, level by level, and reads contenders. `is_inside`: whether a node
/// belongs to the tree. `is_read`: whether a node with the name of a contender is read: only the read shows that it is a directory.
///
/// # Cost
///
/// One request for each node, [`READS_IN_FLIGHT`] at once.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
///
/// # Errors
///
/// The server refuses to list the root, or does not answer.
pub async fn walk(
    ensemble: &dyn Ensemble,
    root: &str,
    is_inside: impl Fn(&str) -> bool,
    is_read: impl Fn(&str) -> bool,
) -> Result<Walk, OpError> {
    let (mut walk, mut exists) = (Walk::default(), HashSet::new());
    let mut level = vec![root.to_owned()];
    while !level.is_empty() {
        let listings = stream::iter(level).map(|path| {
            let listing = ensemble.list(&path);
            async move { (path, listing.await) }
        });
        let listings: Vec<_> = listings.buffered(READS_IN_FLIGHT).collect().await;
        let mut below = Vec::new();
        for (path, listing) in listings {
            match listing {
                Ok(children) => {
                    below.extend(children.names.iter().map(|name| child(&path, name)).filter(|path| is_inside(path)));
                    walk.listed.push((path, children));
                }
                // Deleted since its parent was listed, or a root that does not exist yet.
                Err(OpError::NoNode) => {}
                // One unreadable node does not hide the others.
                Err(OpError::Refused(reason)) if path != root => walk.unreadable.push(Unreadable { path, reason }),
                Err(fault) => return Err(fault),
            }
        }
        exists.extend(below.iter().cloned());
        let is_named = |path: &String| place_of(path, |node| exists.contains(node)).is_some();
        let (mut named, mut directories): (Vec<_>, Vec<_>) = below.into_iter().partition(is_named);
        named.retain(|path| is_read(path));
        walk.read(ensemble, named.clone()).await?;
        // Contenders have a session. A lock with a record may be named like one, too.
        let is_directory = |node: &Node| node.owner.is_none() && (node.children > 0 || !node.data.is_empty());
        directories.extend(named.into_iter().filter(|path| walk.nodes.get(path).is_some_and(is_directory)));
        level = directories;
    }
    Ok(walk)
}

impl Walk {
    /// Reads these nodes, those before excepted. Nodes that are deleted, or that this client may not read, are left out.
    async fn read(&mut self, ensemble: &dyn Ensemble, paths: impl IntoIterator<Item = String>) -> Result<(), OpError> {
        let paths: Vec<_> = paths.into_iter().filter(|path| !self.nodes.contains_key(path)).collect();
        let reads = stream::iter(paths).map(|path| {
            let read = ensemble.read(&path);
            async move {
                match read.await {
                    Ok(node) => Ok(Some((path, node))),
                    Err(OpError::NoNode | OpError::Refused(_)) => Ok(None),
                    Err(fault) => Err(fault),
                }
            }
        });
        let read: Vec<_> = reads.buffered(READS_IN_FLIGHT).try_collect().await?;
        self.nodes.extend(read.into_iter().flatten());
        Ok(())
    }

    /// Lists what belongs to the lock at `path`, and is not below it: contenders beside it, and the lock of those that ask for a lease of
    /// Kazoo's semaphore. A client without the right to read the node above cannot have contenders there. `children`: those of the path.
    /// Returns whether a contender is beside it.
    async fn list_beside(&mut self, ensemble: &dyn Ensemble, path: &str, children: &[String]) -> bool {
        let above = NodeFormat::Numbered.listed(path).to_owned();
        let mut may_be_semaphore = children.iter().any(|name| ForeignSemaphore::kazoo_lease(name).is_some());
        let mut is_beside = false;
        if let Ok(mut listed) = ensemble.list(&above).await {
            listed.names.retain(|name| is_beside_of(path, name));
            let has_lock = listed.names.iter().any(|name| name.ends_with(KAZOO_LOCK));
            (is_beside, may_be_semaphore) = (listed.names.len() > usize::from(has_lock), has_lock);
            self.listed.push((above, listed));
        }
        if may_be_semaphore {
            self.list(ensemble, format!("{path}{KAZOO_LOCK}")).await;
        }
        is_beside
    }

    /// Lists a node that may not exist.
    async fn list(&mut self, ensemble: &dyn Ensemble, path: String) {
        if let Ok(children) = ensemble.list(&path).await {
            self.listed.push((path, children));
        }
    }

    /// Lists the queue of the lock at `path` once more, and watches it.
    pub(super) async fn watch(&mut self, ensemble: &dyn Ensemble, path: &str) -> Result<Watcher, OpError> {
        let (queue, known) = (self.queues(path).remove(path).unwrap_or_default(), HashMap::new());
        let place = Contest::new(path, &queue.names, &known).listed().map_or_else(|| path.to_owned(), Cow::into_owned);
        let (mut names, watcher) = ensemble.list_and_watch(&place).await?;
        if !is_below(&place, path) {
            names.retain(|name| is_beside_of(path, name));
        }
        if let Some((_, children)) = self.listed.iter_mut().find(|(path, _)| *path == place) {
            let set = |names: &[String]| names.iter().cloned().collect::<HashSet<_>>();
            // If the same contenders are there, nobody was granted the lock between the two listings.
            if set(&names) != set(&children.names) {
                (children.names, children.changed) = (names, Zxid(0));
            }
        }
        Ok(watcher)
    }

    /// The names in the queues of all locks, and the children that are in none. The lock at `path` is among them.
    fn queues(&self, path: &str) -> BTreeMap<String, Queue> {
        let nodes = || {
            let listed = self.listed.iter();
            listed.flat_map(|(parent, all)| all.names.iter().map(move |name| (parent, name, child(parent, name))))
        };
        let exists: HashSet<_> = nodes().map(|(.., path)| path).collect();
        let listed = self.listed.iter().map(|(path, _)| path.as_str());
        let mut queues: BTreeMap<_, _> = listed.chain([path]).map(|path| (path.to_owned(), Queue::default())).collect();
        for (parent, name, path) in nodes() {
            match place_of(&path, |node| exists.contains(node)) {
                Some((lock, queued)) => queues.entry(lock).or_default().names.push(queued),
                None => queues.entry(parent.clone()).or_default().others.push(name.clone()),
            }
        }
        // A minus may be the end of a lock's name or the sign of a number, so such a node is in the queues of both locks.
        let mut signed = Vec::new();
        for (path, queue) in &queues {
            if let Some(lock) = path.strip_suffix('-').filter(|lock| queues.contains_key(*lock)) {
                let numbers = queue.names.iter().map(|name| format!("-{name}"));
                let numbers = numbers.filter(|number| Sequence::read(number).is_some());
                signed.extend(numbers.map(|number| (lock.to_owned(), number)));
            }
        }
        for (lock, number) in signed {
            queues.entry(lock).or_default().names.push(number);
        }
        // Contenders beside the path count if none are below it.
        for queue in queues.values_mut() {
            let is_below = |name: &String| Sequence::read(name).is_none();
            if queue.names.iter().any(is_below) {
                queue.names.retain(is_below);
            }
        }
        queues
    }
}

/// Whether a node of this name beside the path may be of the same lock.
fn is_beside_of(path: &str, name: &str) -> bool {
    let rest = path.rsplit('/').next().and_then(|own| name.strip_prefix(own));
    rest.is_some_and(|rest| rest == KAZOO_LOCK || Sequence::read(rest).is_some())
}

/// The names in the queue of a lock, and its children that are in no queue.
#[derive(Default)]
struct Queue {
    names: Vec<String>,
    others: Vec<String>,
}

/// Lists one lock, and reads its contenders. `nodes`: those that were read before.
///
/// # Errors
///
/// [`OpError::NoNode`] if the path does not exist and no contender is beside it; otherwise as [`walk`].
pub(super) async fn list(ensemble: &dyn Ensemble, path: &str, nodes: HashMap<String, Node>) -> Result<Walk, OpError> {
    let mut walk = Walk { nodes, ..Walk::default() };
    match linearizable(ensemble, ensemble.list(path)).await {
        Ok(children) => {
            if NodeFormat::of_line(&children.names).is_none() {
                walk.list_beside(ensemble, path, &children.names).await;
                if children.names.iter().any(|name| name == CURATOR_LEASES) {
                    walk.list(ensemble, child(path, CURATOR_LEASES)).await;
                    walk.list(ensemble, child(path, CURATOR_LOCK)).await;
                }
            }
            walk.listed.push((path.to_owned(), children));
        }
        Err(OpError::NoNode) if walk.list_beside(ensemble, path, &[]).await => {}
        Err(fault) => return Err(fault),
    }
    Ok(walk)
}

/// Reads the contenders of one lock that was listed, and describes it.
pub(super) async fn describe(ensemble: &dyn Ensemble, path: &str, walk: &mut Walk) -> Result<LockInfo, OpError> {
    let queue = walk.queues(path).remove(path).unwrap_or_default();
    let nodes: Vec<_> = queue.names.iter().map(|name| node_of(path, name)).collect();
    // What a contender's node says of its owner does not change.
    let known: HashSet<_> = nodes.iter().filter(|node| !node.ends_with(HOLDER_MARKER)).collect();
    walk.nodes.retain(|node, _| known.contains(node));
    walk.read(ensemble, nodes).await?;
    let described = describe_all(ensemble, walk, BTreeMap::from([(path.to_owned(), queue)])).await?;
    Ok(described.into_iter().next().expect("one lock is described"))
}

/// Lists and reads the lock at `path`, or the semaphore of foreign clients.
///
/// # Errors
///
/// As [`list`].
pub(super) async fn lock(ensemble: &dyn Ensemble, path: &str) -> Result<LockInfo, OpError> {
    describe(ensemble, path, &mut list(ensemble, path, HashMap::new()).await?).await
}

/// Lists and reads the locks at and below `root` that are in use, by path, and the nodes that this client has no right to read.
pub(super) async fn tree(
    ensemble: &dyn Ensemble,
    root: &str,
    is_inside: impl Fn(&str) -> bool,
) -> Result<(Vec<LockInfo>, Vec<Unreadable>), OpError> {
    let mut tree = linearizable(ensemble, walk(ensemble, root, is_inside, |_| true)).await?;
    // The contenders of the root's own lock may be beside it.
    if root != "/" {
        let mut beside = Walk::default();
        let children = tree.listed.first().map_or(&[][..], |(_, children)| &children.names);
        beside.list_beside(ensemble, root, children).await;
        tree.listed.splice(0..0, beside.listed);
    }
    let mut queues = tree.queues(root);
    queues.retain(|path, _| root == "/" || is_below(path, root));
    let own = queues.get(root).into_iter().flat_map(|queue| &queue.names);
    let own: Vec<_> = own.map(|name| node_of(root, name)).collect();
    tree.read(ensemble, own).await?;
    let mut locks = describe_all(ensemble, &mut tree, queues).await?;
    locks.retain(LockInfo::is_listed);
    tree.unreadable.sort_by(|one, other| one.path.cmp(&other.path));
    Ok((locks, tree.unreadable))
}

/// Reads the own nodes of the locks where they say more than the contenders do, and describes the locks.
async fn describe_all(
    ensemble: &dyn Ensemble,
    walk: &mut Walk,
    queues: BTreeMap<String, Queue>,
) -> Result<Vec<LockInfo>, OpError> {
    let contenders = |(path, queue): (String, Queue)| {
        let read = queue.names.iter().filter_map(|name| {
            let node = walk.nodes.get(&node_of(&path, name))?;
            Some((name.clone(), ContenderInfo::read(name.clone(), node)))
        });
        let known: HashMap<_, _> = read.collect();
        (path, queue, known)
    };
    let locks: Vec<_> = queues.into_iter().map(contenders).collect();
    let listed: HashMap<_, _> =
        walk.listed.iter().map(|(path, children)| (path.clone(), (Counted::of(children), children.data_len))).collect();
    let needs = locks.iter().filter(|(path, queue, known)| {
        let has_data = listed.get(path).is_some_and(|(_, len)| *len > 0);
        has_data && Contest::new(path, &queue.names, known).needs_own_node()
    });
    let needed: Vec<_> = needs.map(|(path, ..)| path.clone()).collect();
    walk.read(ensemble, needed).await?;
    let describe = |(path, Queue { names, others }, known): (String, Queue, HashMap<_, _>)| {
        let own = walk.nodes.get(&path).map(OwnNode::of).unwrap_or_default();
        let counted = |path: &str| listed.get(path).map(|(counted, _)| *counted);
        let mut info = Contest::new(&path, &names, &known).described(&own, counted);
        if info.semaphore.is_none() {
            info.unknown.splice(0..0, others);
        }
        info
    };
    let mut locks: Vec<_> = locks.into_iter().map(describe).collect();
    recall(ensemble, &mut locks).await;
    Ok(locks)
}

pub(super) fn has_bare_requests(lock: &LockInfo) -> bool {
    lock.holders.iter().chain(&lock.waiters).any(ContenderInfo::is_bare_request)
}

/// Adds what requests to release have replaced in the nodes of foreign clients: the journal says who they are, and who asks.
pub(super) async fn recall(ensemble: &dyn Ensemble, locks: &mut [LockInfo]) {
    if !locks.iter().any(has_bare_requests) {
        return;
    }
    // Without the journal, the node says that somebody asks.
    let entries = journal::entries::<Revoked>(ensemble).await.unwrap_or_default();
    for LockInfo { path, holders, waiters, .. } in locks {
        for contender in holders.iter_mut().chain(waiters).filter(|contender| contender.is_bare_request()) {
            // A record has the epoch, above the transaction.
            let created = |token: Option<FencingToken>| token.map(FencingToken::below_epoch);
            let is_about = |asked: &&Revoked| {
                asked.path == *path && asked.node == contender.node && created(asked.token) == created(contender.token)
            };
            if let Some(asked) = entries.iter().rev().find(is_about) {
                contender.described.clone_from(&asked.described);
                let at_ms =
                    asked.at.duration_since(UNIX_EPOCH).map_or(0, |at| u64::try_from(at.as_millis()).unwrap_or(0));
                if let Some(revocation) = &mut contender.revocation {
                    (revocation.by, revocation.reason) = (Some(asked.by.clone()), asked.reason.clone());
                    revocation.at_ms = at_ms;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The locks beside these names, with the numbers of their nodes.
    fn beside(names: impl IntoIterator<Item = impl Into<String>>) -> (Vec<String>, Vec<(String, Vec<String>)>) {
        let names = names.into_iter().map(Into::into).collect();
        let children = Children { names, data_len: 0, created: 0, ctime_ms: 0, changed: Zxid(0) };
        let walk = Walk { listed: vec![("/locks".to_owned(), children)], ..Walk::default() };
        let mut queues = walk.queues("/locks");
        let left = queues.remove("/locks").unwrap().others;
        (left, queues.into_iter().map(|(lock, queue)| (lock, queue.names)).collect())
    }

    #[test]
    fn a_node_beside_locks_is_in_the_queue_of_each_lock_whose_name_and_a_number_it_is() {
        let queue = |lock: &str, numbers: &[&str]| {
            (format!("/locks/{lock}"), numbers.iter().map(|number| (*number).to_owned()).collect::<Vec<_>>())
        };
        let (left, locks) = beside([
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
        let (_, locks) = beside(["x-a-1234567890", "x-a0000000001"]);
        assert_eq!(locks, [queue("x-a", &["0000000001", "-1234567890"]), queue("x-a-", &["1234567890"])]);
        let (_, locks) = beside(["x-a-1234567890"]);
        assert_eq!(locks, [queue("x-a-", &["1234567890"])]);
    }

    /// Comparing each name with each lock would take minutes.
    #[test]
    fn twenty_thousand_locks_with_nodes_beside_their_paths_are_told_apart() {
        let (left, locks) = beside((0..20_000).map(|lock| format!("order.{lock:06}.0000000001")));
        assert_eq!((left.len(), locks.len()), (0, 20_000));
        assert!(locks.iter().all(|(_, queue)| *queue == ["0000000001"]));
    }
}
