//! The tree of znodes.
//!
//! The tree does not check requests (see `prepare`) and does not know watches or sessions. Applying a transaction
//! cannot fail, because a transaction is created only after its checks.
//!
//! Invariant: a node exists if and only if its parent lists it. The two indexes (ephemerals; containers and TTL nodes)
//! contain exactly the nodes with such an owner.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use bytes::Bytes;

use crate::machine::budget;
use crate::machine::identity::AccessList;
use crate::machine::path;
use crate::machine::quota::{self, Quota, Quotas};
use crate::machine::txn::{Owner, Txn, TxnOp};
use lockkeeper_wire::{Acl, EventKind, Stat};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub(crate) data: Option<Bytes>,
    pub(crate) acl: AccessList,
    pub(crate) owner: Owner,
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) pzxid: i64,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    pub(crate) aversion: i32,
    /// The number of children ever created: the next sequence number. It wraps to negative.
    pub(crate) creates: i32,
    pub(crate) children: BTreeSet<Arc<str>>,
}

impl Node {
    /// Returns a node of the initial tree, older than every transaction.
    fn primordial(acl: &AccessList) -> Self {
        Self {
            data: Some(Bytes::new()),
            acl: acl.clone(),
            owner: Owner::None,
            czxid: 0,
            mzxid: 0,
            pzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            aversion: 0,
            creates: 0,
            children: BTreeSet::new(),
        }
    }

    pub fn stat(&self) -> Stat {
        let num_children = clamp_len(self.children.len());
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            // One for each create and each delete of a child: twice the creates, less the children that still exist.
            cversion: self.creates.wrapping_mul(2).wrapping_sub(num_children),
            aversion: self.aversion,
            ephemeral_owner: if let Owner::Session(id) = self.owner { id } else { 0 },
            data_length: self.data.as_ref().map_or(0, |data| clamp_len(data.len())),
            num_children,
            pzxid: self.pzxid,
        }
    }

    pub fn data(&self) -> Option<&Bytes> {
        self.data.as_ref()
    }

    /// Returns its children's names in byte order.
    pub fn children(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.children.iter()
    }
}

fn clamp_len(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

/// The result of an applied operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// No result.
    Done,
    /// The created node's path, and its stat if requested.
    Created(Arc<str>, Option<Stat>),
    /// The changed node's stat.
    Stat(Stat),
    /// One for each operation of a multi.
    Multi(Vec<Applied>),
}

/// A change that fires watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEvent {
    /// The kind of event.
    pub kind: EventKind,
    pub path: Arc<str>,
    /// The node's access list. Clients that may not read the node get no event.
    pub acl: AccessList,
}

/// Rebuilds a tree from stored nodes in path order.
///
/// Siblings mostly follow each other in that order. The loader looks up their parent once, and builds the parent's
/// list from a sorted one: a million nodes take about a second.
#[derive(Debug)]
pub(crate) struct Loader {
    tree: Tree,
    /// The parent of the last nodes, with their names.
    parent: Arc<str>,
    names: Vec<Arc<str>>,
}

impl Loader {
    /// Creates a loader for about this many nodes. `open` is the shared copy of the access list that nearly every node
    /// has.
    pub(crate) fn new(nodes: usize, open: AccessList) -> Self {
        Self { tree: Tree::with_capacity(nodes, open), parent: Arc::from("/"), names: Vec::new() }
    }

    /// Adds the next node; returns its path as an error if its parent was not added before it.
    pub(crate) fn add(&mut self, path: Arc<str>, node: Node) -> Result<(), Arc<str>> {
        let Some((parent, name)) = path::split(&path) else { return Err(path) };
        if !name.is_empty() {
            if *parent != *self.parent {
                let Some((parent, _)) = self.tree.get_with_path(parent) else { return Err(path) };
                let parent = Arc::clone(parent);
                self.link();
                self.parent = parent;
            }
            self.names.push(Arc::from(name));
        }
        self.tree.insert_loaded(path, node);
        Ok(())
    }

    fn link(&mut self) {
        let names = std::mem::take(&mut self.names);
        let Some(parent) = self.tree.nodes.get_mut(&self.parent) else { return };
        if parent.children.is_empty() {
            parent.children = names.into_iter().collect();
        } else {
            parent.children.extend(names);
        }
    }

    /// Returns the whole tree; returns the missing root's path as an error.
    pub(crate) fn finish(mut self) -> Result<Tree, Arc<str>> {
        self.link();
        if self.tree.nodes.contains_key("/") { Ok(self.tree) } else { Err(Arc::from("/")) }
    }
}

#[derive(Clone, Debug)]
pub struct Tree {
    /// Boxed: a hash table of a million entries has about another million free slots.
    nodes: HashMap<Arc<str>, Box<Node>>,
    ephemerals: BTreeMap<i64, BTreeSet<Arc<str>>>,
    /// Containers and TTL nodes, which the server removes itself.
    reapable: BTreeSet<Arc<str>>,
    quotas: Quotas,
    /// The quotas whose soft limits the last transaction has exceeded: path, nodes and bytes.
    exceeded: Vec<(Arc<str>, i64, i64)>,
    /// The stats nodes whose numbers the last transaction has changed.
    counted: Vec<Arc<str>>,
    data_bytes: u64,
    /// The cost of all names and access lists; see [`budget`].
    text_bytes: u64,
    open: AccessList,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// Creates a tree of the root and ZooKeeper's own nodes.
    pub fn new() -> Self {
        let open: AccessList = AccessList::from([Acl::OPEN]);
        let read: AccessList = AccessList::from([Acl::READ]);
        let nodes = [
            ("/", Node::primordial(&open)),
            ("/zookeeper", Node::primordial(&open)),
            ("/zookeeper/config", Node { aversion: -1, ..Node::primordial(&read) }),
            ("/zookeeper/quota", Node::primordial(&open)),
        ];
        let mut loader = Loader::new(nodes.len(), open);
        for (path, node) in nodes {
            loader.add(Arc::from(path), node).expect("parents come first");
        }
        loader.finish().expect("the root is among them")
    }

    fn with_capacity(nodes: usize, open: AccessList) -> Self {
        Self {
            nodes: HashMap::with_capacity(nodes),
            ephemerals: BTreeMap::new(),
            reapable: BTreeSet::new(),
            quotas: Quotas::default(),
            exceeded: Vec::new(),
            counted: Vec::new(),
            data_bytes: 0,
            text_bytes: 0,
            open,
        }
    }

    fn insert_loaded(&mut self, path: Arc<str>, node: Node) {
        self.data_bytes += budget::data(node.data.as_ref());
        self.text_bytes += budget::name(&path) + budget::acl(&node.acl);
        self.index_owner(&path, node.owner, true);
        self.quotas.node_changed(&path, true);
        self.nodes.insert(path, Box::new(node));
    }

    /// Returns the node at a path.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path).map(Box::as_ref)
    }

    /// Returns the node at a path with the tree's own copy of the path.
    pub(crate) fn get_with_path(&self, path: &str) -> Option<(&Arc<str>, &Node)> {
        self.nodes.get_key_value(path).map(|(path, node)| (path, &**node))
    }

    /// Returns the number of nodes, the root and `/zookeeper` included.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the bytes of data in all nodes.
    pub fn approximate_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Returns the cost of all nodes; see [`budget`].
    pub(crate) fn cost(&self) -> u64 {
        self.data_bytes + self.text_bytes
    }

    /// Returns all nodes in path order. It sorts them, so it is for dumps and the store only.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Node)> {
        let mut all: Vec<_> = self.nodes.iter().map(|(path, node)| (path, &**node)).collect();
        all.sort_unstable_by_key(|(path, _)| *path);
        all.into_iter()
    }

    /// Returns the paths of a session's ephemeral nodes in byte order.
    pub fn ephemerals(&self, session: i64) -> impl Iterator<Item = &Arc<str>> {
        self.ephemerals.get(&session).into_iter().flatten()
    }

    /// Returns how many ephemeral nodes a session has.
    pub(crate) fn ephemerals_of(&self, session: i64) -> usize {
        self.ephemerals.get(&session).map_or(0, BTreeSet::len)
    }

    /// Returns those of them that begin with `prefix`, and visits no others.
    pub(crate) fn ephemerals_with_prefix<'a>(
        &'a self,
        session: i64,
        prefix: &'a str,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        let paths = self.ephemerals.get(&session).into_iter();
        paths
            .flat_map(move |paths| paths.range::<str, _>((Included(prefix), Unbounded)))
            .take_while(move |path| path.starts_with(prefix))
    }

    /// Returns all sessions with ephemeral nodes, with the nodes' paths.
    pub fn ephemerals_by_session(&self) -> impl ExactSizeIterator<Item = (i64, &BTreeSet<Arc<str>>)> {
        self.ephemerals.iter().map(|(session, paths)| (*session, paths))
    }

    /// Returns each session with each of its ephemeral nodes, in order, from behind this pair.
    pub(crate) fn ephemerals_behind<'a>(
        &'a self,
        last: Option<(i64, &'a str)>,
    ) -> impl Iterator<Item = (i64, &'a Arc<str>)> {
        let rest = last.and_then(|(session, path)| {
            let paths = self.ephemerals.get(&session)?;
            Some(paths.range::<str, _>((Excluded(path), Unbounded)).map(move |path| (session, path)))
        });
        let from = last.map_or(Unbounded, |(session, _)| Excluded(session));
        let others = self.ephemerals.range((from, Unbounded));
        rest.into_iter().flatten().chain(others.flat_map(|(of, paths)| paths.iter().map(|path| (*of, path))))
    }

    /// Returns the number of ephemeral nodes.
    pub fn ephemeral_count(&self) -> usize {
        self.ephemerals.values().map(BTreeSet::len).sum()
    }

    /// Looks at the containers and TTL nodes behind a path: returns those that may be removed now, and the last path that it
    /// has looked at if there may be more behind it.
    ///
    /// A container that never had a child is kept for `unused_after_ms`. Otherwise it could be removed between its
    /// creation and the creation of its first child.
    pub(crate) fn reapable(
        &self,
        behind: &str,
        most: usize,
        now_ms: i64,
        unused_after_ms: i64,
    ) -> (Vec<Arc<str>>, Option<Arc<str>>) {
        let is_due = |node: &Node| match node.owner {
            Owner::Container => node.creates != 0 || now_ms - node.mtime > unused_after_ms,
            Owner::Ttl(ttl) => now_ms - node.mtime > ttl,
            Owner::None | Owner::Session(_) => false,
        };
        let seen = || self.reapable.range::<str, _>((Excluded(behind), Unbounded)).take(most);
        let due = seen().filter(|path| self.get(path).is_some_and(|node| node.children.is_empty() && is_due(node)));
        (due.cloned().collect(), seen().nth(most - 1).cloned())
    }

    /// Returns the shared copy if the list is `world:anyone:cdrwa`, which nearly every node has.
    pub(crate) fn share_acl(&self, acl: &[Acl]) -> AccessList {
        if *acl == *self.open { self.open.clone() } else { AccessList::from(acl) }
    }

    /// Applies a transaction, and appends the events in ZooKeeper's order.
    pub fn apply(&mut self, txn: &Txn, events: &mut Vec<TreeEvent>) -> Applied {
        self.exceeded.clear();
        self.counted.clear();
        self.apply_op(txn, &txn.op, events)
    }

    fn apply_op(&mut self, txn: &Txn, op: &TxnOp, events: &mut Vec<TreeEvent>) -> Applied {
        match op {
            TxnOp::CreateSession { .. } | TxnOp::Check | TxnOp::Failed(_) => Applied::Done,
            TxnOp::CloseSession { ephemerals } => {
                for path in ephemerals {
                    self.delete(path, txn.zxid, events);
                }
                Applied::Done
            }
            TxnOp::Create { path, data, acl, owner, parent_creates, with_stat } => {
                let node = Node {
                    data: data.clone(),
                    acl: acl.clone(),
                    owner: *owner,
                    czxid: txn.zxid,
                    mzxid: txn.zxid,
                    pzxid: txn.zxid,
                    ctime: txn.time_ms,
                    mtime: txn.time_ms,
                    version: 0,
                    aversion: 0,
                    creates: 0,
                    children: BTreeSet::new(),
                };
                let stat = with_stat.then(|| node.stat());
                self.create(path, node, *parent_creates, events);
                Applied::Created(Arc::clone(path), stat)
            }
            TxnOp::Delete { path } => {
                self.delete(path, txn.zxid, events);
                Applied::Done
            }
            TxnOp::SetData { path, data, version } => {
                let Some(node) = self.nodes.get_mut(path) else { return Applied::Done };
                let (old, new) = (budget::data(node.data.as_ref()), budget::data(data.as_ref()));
                let more = i64::try_from(new).unwrap_or(i64::MAX) - i64::try_from(old).unwrap_or(i64::MAX);
                self.data_bytes = self.data_bytes + new - old;
                node.data = data.clone();
                node.version = *version;
                node.mzxid = txn.zxid;
                node.mtime = txn.time_ms;
                let acl = node.acl.clone();
                events.push(TreeEvent { kind: EventKind::DataChanged, path: Arc::clone(path), acl });
                let stat = node.stat();
                self.count(path, 0, more);
                Applied::Stat(stat)
            }
            TxnOp::SetAcl { path, acl, version } => {
                let Some(node) = self.nodes.get_mut(path) else { return Applied::Done };
                self.text_bytes += budget::acl(acl);
                self.text_bytes -= budget::acl(&node.acl);
                node.acl = acl.clone();
                node.aversion = *version;
                Applied::Stat(node.stat())
            }
            TxnOp::SetChildCounter { path, creates } => {
                let Some(node) = self.nodes.get_mut(path) else { return Applied::Done };
                node.creates = *creates;
                Applied::Stat(node.stat())
            }
            TxnOp::Multi(ops) => Applied::Multi(ops.iter().map(|op| self.apply_op(txn, op, events)).collect()),
        }
    }

    fn create(&mut self, path: &Arc<str>, node: Node, parent_creates: i32, events: &mut Vec<TreeEvent>) {
        let Some((parent_path, name)) = path::split(path) else { return };
        let Some((parent_path, _)) = self.nodes.get_key_value(parent_path) else { return };
        let parent_path = Arc::clone(parent_path);
        let parent = self.nodes.get_mut(&parent_path).expect("found one line above");
        parent.children.insert(Arc::from(name));
        parent.creates = parent_creates;
        parent.pzxid = node.czxid;
        let bytes = budget::data(node.data.as_ref());
        self.data_bytes += bytes;
        self.text_bytes += budget::name(path) + budget::acl(&node.acl);
        let (parent_acl, acl) = (parent.acl.clone(), node.acl.clone());
        self.index_owner(path, node.owner, true);
        self.nodes.insert(Arc::clone(path), Box::new(node));
        self.quotas.node_changed(path, true);
        if let Some(counted) = quota::counted_path(path) {
            let (nodes, bytes) = self.holdings(counted);
            self.set_holdings(path, nodes, bytes);
        } else {
            self.count(path, 1, i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        events.push(TreeEvent { kind: EventKind::Created, path: Arc::clone(path), acl });
        events.push(TreeEvent { kind: EventKind::ChildrenChanged, path: parent_path, acl: parent_acl });
    }

    fn delete(&mut self, path: &Arc<str>, zxid: i64, events: &mut Vec<TreeEvent>) {
        let Some(node) = self.nodes.remove(path) else { return };
        let bytes = budget::data(node.data.as_ref());
        self.data_bytes -= bytes;
        self.text_bytes -= budget::name(path) + budget::acl(&node.acl);
        self.index_owner(path, node.owner, false);
        self.quotas.node_changed(path, false);
        self.count(path, -1, -i64::try_from(bytes).unwrap_or(i64::MAX));
        events.push(TreeEvent { kind: EventKind::Deleted, path: Arc::clone(path), acl: node.acl });
        let Some((parent_path, name)) = path::split(path) else { return };
        let Some((parent_path, _)) = self.nodes.get_key_value(parent_path) else { return };
        let parent_path = Arc::clone(parent_path);
        let parent = self.nodes.get_mut(&parent_path).expect("found one line above");
        parent.children.remove(name);
        parent.pzxid = zxid;
        let acl = parent.acl.clone();
        events.push(TreeEvent { kind: EventKind::ChildrenChanged, path: parent_path, acl });
    }

    /// Returns the quota that a node counts for: its path, its limits and its current numbers.
    pub(crate) fn quota_of<'a>(&self, node: &'a str) -> Option<(&'a str, Quota, Quota)> {
        let path = self.quotas.nearest(node)?;
        let limits = Quota::parse(self.get(&quota::limits_node(path))?.data.as_ref());
        let held = Quota::parse(self.get(&quota::stats_node(path))?.data.as_ref());
        Some((path, limits, held))
    }

    /// Returns the quotas whose soft limits the last transaction has exceeded: path, nodes and bytes.
    pub(crate) fn exceeded_quotas(&self) -> impl Iterator<Item = (Arc<str>, i64, i64)> {
        self.exceeded.iter().cloned()
    }

    /// Returns the stats nodes whose numbers the last transaction has changed. Only the transaction itself shows which they
    /// are: it may also change which quota is the nearest one.
    pub(crate) fn counted_nodes(&self) -> impl Iterator<Item = Arc<str>> {
        self.counted.iter().cloned()
    }

    /// Returns the nodes and bytes of a subtree, its root included.
    fn holdings(&self, root: &str) -> (i64, i64) {
        let Some((root, node)) = self.get_with_path(root) else { return (0, 0) };
        let mut found = (1, budget::data(node.data.as_ref()));
        let _ = self.visit_below(root, node, |node| {
            found = (found.0 + 1, found.1 + budget::data(node.data.as_ref()));
            Some(())
        });
        (found.0, i64::try_from(found.1).unwrap_or(i64::MAX))
    }

    /// Visits the nodes below a node, without copies of their paths, until `visit` returns `None`.
    pub(crate) fn visit_below<'a>(
        &'a self,
        path: &'a str,
        node: &'a Node,
        mut visit: impl FnMut(&'a Node) -> Option<()>,
    ) -> Option<()> {
        let mut open = vec![(path, node)];
        while let Some((path, node)) = open.pop() {
            let parent = if path == "/" { "" } else { path };
            for name in &node.children {
                let Some((path, node)) = self.get_with_path(&format!("{parent}/{name}")) else { continue };
                visit(node)?;
                if !node.children.is_empty() {
                    open.push((path, node));
                }
            }
        }
        Some(())
    }

    /// Adds to the numbers of the quota that the node counts for.
    fn count(&mut self, node: &str, nodes: i64, bytes: i64) {
        let Some((path, limits, held)) = self.quota_of(node) else { return };
        let now = held.plus(nodes, bytes);
        if limits.becomes_exceeded(&held, &now) {
            let exceeded = (Arc::from(path), now.nodes, now.bytes);
            self.exceeded.push(exceeded);
        }
        self.set_holdings(&quota::stats_node(path), now.nodes, now.bytes);
    }

    /// Writes a stats node. In its own stat only the length changes, because other nodes have caused the change.
    fn set_holdings(&mut self, stats: &str, nodes: i64, bytes: i64) {
        let Some((path, _)) = self.nodes.get_key_value(stats) else { return };
        if self.counted.last() != Some(path) {
            self.counted.push(Arc::clone(path));
        }
        let node = self.nodes.get_mut(stats).expect("found above");
        let data = Quota::stats(nodes, bytes);
        self.data_bytes += data.len() as u64;
        self.data_bytes -= node.data.replace(data).map_or(0, |data| data.len() as u64);
    }

    fn index_owner(&mut self, path: &Arc<str>, owner: Owner, present: bool) {
        let index = match owner {
            Owner::None => return,
            Owner::Container | Owner::Ttl(_) => &mut self.reapable,
            Owner::Session(session) => self.ephemerals.entry(session).or_default(),
        };
        if present {
            index.insert(Arc::clone(path));
            return;
        }
        index.remove(path);
        if let Owner::Session(session) = owner
            && self.ephemerals.get(&session).is_some_and(BTreeSet::is_empty)
        {
            self.ephemerals.remove(&session);
        }
    }

    /// Panics if the module's invariant does not hold.
    #[cfg(test)]
    pub(crate) fn assert_consistent(&self) {
        let mut listed = 1;
        let (mut ephemerals, mut reapable) = (0, 0);
        for (path, node) in &self.nodes {
            for child in &node.children {
                let child = if &**path == "/" { format!("/{child}") } else { format!("{path}/{child}") };
                assert!(self.nodes.contains_key(child.as_str()), "{child} is listed but missing");
                listed += 1;
            }
            match node.owner {
                Owner::None => {}
                Owner::Session(id) => {
                    assert!(node.children.is_empty(), "ephemeral {path} has children");
                    assert!(self.ephemerals[&id].contains(path));
                    ephemerals += 1;
                }
                Owner::Container | Owner::Ttl(_) => {
                    assert!(self.reapable.contains(path));
                    reapable += 1;
                }
            }
        }
        assert_eq!(listed, self.nodes.len(), "a node is not listed by its parent");
        assert_eq!(ephemerals, self.ephemeral_count());
        assert_eq!(reapable, self.reapable.len());
        let data: u64 = self.nodes.values().map(|node| budget::data(node.data.as_ref())).sum();
        assert_eq!(self.data_bytes, data);
        let texts = self.nodes.iter().map(|(path, node)| budget::name(path) + budget::acl(&node.acl));
        assert_eq!(self.text_bytes, texts.sum::<u64>());
    }
}
