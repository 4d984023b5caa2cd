//! Checks a write request and turns it into a transaction.
//!
//! The tree does not change. A multi is checked against the tree and the changes of its earlier operations. So it is
//! refused as a whole before anything changes, and no rollback is needed.
//!
//! The order of the checks is ZooKeeper's, because a request with two errors must fail with the same one.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_wire::{
    Acl, Create, CreateMode, ErrorCode, EventKind, OpCode, OpResult, Perms, SetData, VersionedPath, WriteOp,
};

use crate::machine::budget;
use crate::machine::identity::{AccessList, Identities, Schemes, is_short, permit, resolve};
use crate::machine::limits::Limits;
use crate::machine::path;
use crate::machine::quota;
use crate::machine::tree::Tree;
use crate::machine::txn::{Owner, TxnOp};
use crate::machine::watches::Watches;
use crate::machine::work::{self, Limit, Work};

/// The longest time to live that fits beside the marker in ZooKeeper's owner field: 2^40 − 1 ms, 34 years.
const MAX_TTL_MS: i64 = 0xff_ffff_ffff;

/// ZooKeeper's own nodes, which cannot be deleted.
const SPECIAL: [&str; 4] = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];

/// The client of a request, and the server's settings for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester<'a> {
    pub(crate) session: i64,
    pub(crate) who: &'a Identities,
    /// The optional schemes that access lists may use.
    pub(crate) schemes: Schemes,
    /// Whether hard limits of quotas are enforced.
    pub(crate) enforce_quotas: bool,
    pub(crate) limits: &'a Limits,
    /// The part of the budget that others than nodes have spent.
    pub(crate) others: u64,
    pub(crate) watches: &'a Watches,
}

/// The part of a node that the checks need.
#[derive(Clone, Debug)]
struct NodeSummary {
    acl: AccessList,
    owner: Owner,
    version: i32,
    creates: i32,
    children: usize,
    bytes: i64,
}

/// The tree after the operations prepared so far.
#[derive(Debug)]
struct View<'a> {
    tree: &'a Tree,
    work: &'a mut Work,
    /// The watches, if there are so many that the events of the request may be too many.
    watches: Option<&'a Watches>,
    /// How many clients get each further event of a path: their watches do not end with the first one.
    told: HashMap<(EventKind, String), usize>,
    /// Nodes that differ from the tree; `None` is a deleted one.
    pending: HashMap<String, Option<NodeSummary>>,
    /// Whether to keep the changes. A single request needs none of them.
    keep_changes: bool,
    /// Nodes and costs added to the tree.
    added: (i64, i64),
    /// Ephemeral nodes added to the session.
    ephemerals: usize,
    /// Nodes and bytes added to each quota.
    quotas: HashMap<String, (i64, i64)>,
}

impl<'a> View<'a> {
    fn new(tree: &'a Tree, requester: Requester<'a>, work: &'a mut Work, ops: usize) -> Self {
        Self {
            tree,
            work,
            watches: Some(requester.watches).filter(|watches| watches.may_need_counting(ops)),
            told: HashMap::new(),
            pending: HashMap::new(),
            keep_changes: ops > 1,
            added: (0, 0),
            ephemerals: 0,
            quotas: HashMap::new(),
        }
    }

    /// Counts work; fails if the request takes too much.
    fn work(&mut self, units: usize) -> Result<(), ErrorCode> {
        self.work.take(units).ok_or(ErrorCode::QuotaExceeded)
    }

    /// Checks that the client has one of these permissions.
    fn permit(&mut self, acl: &AccessList, perms: i32, who: &Identities) -> Result<(), ErrorCode> {
        self.work(acl.len())?;
        permit(acl, perms, who)
    }

    /// Counts the node as a part of the next batch. A request alone has one such node; many operations of a few bytes can
    /// have many with much data.
    fn write_again(&mut self, path: &str, node: &NodeSummary) -> Result<(), ErrorCode> {
        if self.keep_changes && !self.pending.contains_key(path) {
            self.work(work::batch(usize::try_from(node.bytes).unwrap_or(usize::MAX)))?;
        }
        Ok(())
    }

    /// Counts the nodes of a subtree that a new stats node counts.
    fn count_below(&mut self, root: &str) -> Result<(), ErrorCode> {
        let Some((root, node)) = self.tree.get_with_path(root) else { return Ok(()) };
        // Once here, and once when the change is made.
        let visited = self.tree.visit_below(root, node, |_| self.work.take(2 * work::VISIT));
        visited.ok_or(ErrorCode::QuotaExceeded)
    }

    /// Counts the events of a change before it is made, because it cannot be taken back.
    fn tell(&mut self, path: &str, kind: EventKind, acl: &[Acl]) -> Result<(), ErrorCode> {
        let Some(watches) = self.watches else { return Ok(()) };
        let clients = match self.told.get(&(kind, path.to_owned())) {
            Some(clients) => *clients,
            None => {
                let (first, later) = watches.concerned(path, kind);
                self.told.insert((kind, path.to_owned()), later);
                first
            }
        };
        self.work.foresee(work::events(clients, path, acl.len())).ok_or(ErrorCode::QuotaExceeded)
    }

    fn node(&self, path: &str) -> Result<NodeSummary, ErrorCode> {
        if self.keep_changes
            && let Some(pending) = self.pending.get(path)
        {
            return pending.clone().ok_or(ErrorCode::NoNode);
        }
        let node = self.tree.get(path).ok_or(ErrorCode::NoNode)?;
        Ok(NodeSummary {
            acl: node.acl.clone(),
            owner: node.owner,
            version: node.version,
            creates: node.creates,
            children: node.children.len(),
            bytes: data_len(node.data.as_ref()),
        })
    }

    /// Adds nodes, bytes of data and the cost of texts, or fails if the tree, the budget or a quota would exceed its
    /// limit.
    fn grow(
        &mut self,
        requester: Requester<'_>,
        path: &str,
        (nodes, bytes, texts): (i64, i64, i64),
    ) -> Result<(), ErrorCode> {
        let Limits { nodes: max_nodes, data_bytes: max_bytes, .. } = *requester.limits;
        let cost = bytes + texts;
        let total = (self.added.0 + nodes, self.added.1 + cost);
        let fits = |added: i64, now: u64, max: u64| now.saturating_add_signed(added) <= max;
        let nodes_fit = nodes <= 0 || fits(total.0, self.tree.len() as u64, max_nodes as u64);
        if !nodes_fit || (cost > 0 && !fits(total.1, self.tree.cost() + requester.others, max_bytes)) {
            return Err(ErrorCode::QuotaExceeded);
        }
        self.added = total;
        if requester.enforce_quotas
            && let Some((path, limits, held)) = self.tree.quota_of(path)
        {
            let pending = self.quotas.entry(path.to_owned()).or_default();
            if limits.forbids(&held.plus(pending.0, pending.1), nodes, bytes) {
                return Err(ErrorCode::QuotaExceeded);
            }
            *pending = (pending.0 + nodes, pending.1 + bytes);
        }
        Ok(())
    }

    fn set(&mut self, path: &str, outline: Option<NodeSummary>) {
        if self.keep_changes {
            self.pending.insert(path.to_owned(), outline);
        }
    }
}

/// Checks one write outside a multi.
pub(crate) fn single(tree: &Tree, requester: Requester<'_>, op: &WriteOp, work: &mut Work) -> Result<TxnOp, ErrorCode> {
    let mut view = View::new(tree, requester, work, 1);
    one(&mut view, requester, op)
}

/// Checks a multi; the error is the complete answer.
pub(crate) fn multi(
    tree: &Tree,
    requester: Requester<'_>,
    ops: &[WriteOp],
    work: &mut Work,
) -> Result<Vec<TxnOp>, Vec<OpResult>> {
    let mut view = View::new(tree, requester, work, ops.len());
    let mut txns = Vec::with_capacity(ops.len());
    let mut room = requester.limits.answer_bytes;
    for (at, op) in ops.iter().enumerate() {
        let prepared = one(&mut view, requester, op).and_then(|txn| {
            room = room.checked_sub(result_len(&txn)).ok_or(ErrorCode::MarshallingError)?;
            Ok(txn)
        });
        match prepared {
            Ok(txn) => txns.push(txn),
            Err(error) => {
                let mut results = vec![OpResult::RolledBack; at];
                results.push(OpResult::Failed(error));
                results.resize(ops.len(), OpResult::Failed(ErrorCode::RuntimeInconsistency));
                return Err(results);
            }
        }
    }
    Ok(txns)
}

/// Returns the length of an operation's result in the answer to a multi, or a little more.
fn result_len(txn: &TxnOp) -> usize {
    match txn {
        TxnOp::Create { path, .. } => 96 + path.len(),
        _ => 96,
    }
}

fn one(view: &mut View<'_>, requester: Requester<'_>, op: &WriteOp) -> Result<TxnOp, ErrorCode> {
    match op {
        WriteOp::Create(request) => create(view, requester, request),
        WriteOp::Delete(request) => delete(view, requester, request),
        WriteOp::SetData(request) => set_data(view, requester, request),
        WriteOp::Check(VersionedPath { path, version }) => {
            view.work(work::LOOK_UP + work::path(path))?;
            path::validate(path)?;
            let node = view.node(path)?;
            view.permit(&node.acl, Perms::READ, requester.who)?;
            expect_version(node.version, *version)?;
            Ok(TxnOp::Check)
        }
    }
}

fn create(view: &mut View<'_>, requester: Requester<'_>, request: &Create) -> Result<TxnOp, ErrorCode> {
    let Create { path, data, acl, mode, ttl_ms, opcode } = request;
    view.work(work::CHANGE + work::path(path))?;
    let owner = owner(*mode, *ttl_ms, *opcode, requester.session)?;
    if mode.is_sequential() {
        path::validate_prefix(path)?
    } else {
        path::validate(path)?
    }
    let (parent_path, _) = path::split(path).ok_or(ErrorCode::BadArguments)?;
    let acl = resolved(view, requester, acl)?;
    let mut parent = view.node(parent_path)?;
    view.permit(&parent.acl, Perms::CREATE, requester.who)?;
    let full: Arc<str> = if mode.is_sequential() {
        Arc::from(format!("{path}{:010}", parent.creates))
    } else {
        Arc::from(path.as_str())
    };
    if view.node(&full).is_ok() {
        return Err(ErrorCode::NodeExists);
    }
    check_path(&full, requester.limits, view.work)?;
    if matches!(parent.owner, Owner::Session(_)) {
        return Err(ErrorCode::NoChildrenForEphemerals);
    }
    if matches!(owner, Owner::Session(_)) {
        if view.tree.ephemerals_of(requester.session) + view.ephemerals >= requester.limits.ephemerals {
            return Err(view.work.refuse(Limit::Ephemerals, ErrorCode::QuotaExceeded));
        }
        view.ephemerals += 1;
    }
    let bytes = data_len(data.as_ref());
    view.grow(requester, &full, (1, bytes, signed(budget::name(&full) + budget::acl(&acl))))?;
    view.write_again(parent_path, &parent)?;
    if let Some(counted) = quota::counted_path(&full) {
        view.count_below(counted)?;
    }
    view.tell(&full, EventKind::Created, &acl)?;
    view.tell(parent_path, EventKind::ChildrenChanged, &parent.acl)?;
    parent.creates = parent.creates.wrapping_add(1);
    parent.children += 1;
    let parent_creates = parent.creates;
    view.set(parent_path, Some(parent));
    view.set(&full, Some(NodeSummary { acl: acl.clone(), owner, version: 0, creates: 0, children: 0, bytes }));
    let with_stat = *opcode != OpCode::Create;
    Ok(TxnOp::Create { path: full, data: data.clone(), acl, owner, parent_creates, with_stat })
}

/// Checks the length and the depth of a new node's path.
pub(crate) fn check_path(path: &str, limits: &Limits, work: &mut Work) -> Result<(), ErrorCode> {
    let limit = if path.len() > limits.path_bytes {
        Limit::PathBytes
    } else if path.bytes().filter(|byte| *byte == b'/').count() > limits.path_depth {
        Limit::PathDepth
    } else {
        return Ok(());
    };
    Err(work.refuse(limit, ErrorCode::QuotaExceeded))
}

fn owner(mode: CreateMode, ttl_ms: i64, opcode: OpCode, session: i64) -> Result<Owner, ErrorCode> {
    if mode.is_ttl() {
        return if (1..=MAX_TTL_MS).contains(&ttl_ms) { Ok(Owner::Ttl(ttl_ms)) } else { Err(ErrorCode::BadArguments) };
    }
    if ttl_ms >= 0 {
        return Err(ErrorCode::BadArguments);
    }
    // As in Apache's server, the request alone decides whether the node is a container. A plain create with a container's
    // mode makes a node that stays.
    Ok(match mode {
        _ if opcode == OpCode::CreateContainer => Owner::Container,
        mode if mode.is_ephemeral() => Owner::Session(session),
        _ => Owner::None,
    })
}

fn delete(view: &mut View<'_>, requester: Requester<'_>, request: &VersionedPath) -> Result<TxnOp, ErrorCode> {
    let VersionedPath { path, version } = request;
    view.work(work::CHANGE + work::path(path))?;
    path::validate(path)?;
    if SPECIAL.contains(&path.as_str()) {
        return Err(ErrorCode::BadArguments);
    }
    let (parent_path, _) = path::split(path).ok_or(ErrorCode::BadArguments)?;
    let mut parent = view.node(parent_path)?;
    view.permit(&parent.acl, Perms::DELETE, requester.who)?;
    let node = view.node(path)?;
    expect_version(node.version, *version)?;
    if node.children > 0 {
        return Err(ErrorCode::NotEmpty);
    }
    view.grow(requester, path, (-1, -node.bytes, -signed(budget::name(path) + budget::acl(&node.acl))))?;
    view.write_again(parent_path, &parent)?;
    view.tell(path, EventKind::Deleted, &node.acl)?;
    view.tell(parent_path, EventKind::ChildrenChanged, &parent.acl)?;
    parent.children -= 1;
    view.set(parent_path, Some(parent));
    view.set(path, None);
    Ok(TxnOp::Delete { path: shared_path(view.tree, path) })
}

fn set_data(view: &mut View<'_>, requester: Requester<'_>, request: &SetData) -> Result<TxnOp, ErrorCode> {
    let SetData { path, data, version } = request;
    view.work(work::CHANGE + work::path(path))?;
    path::validate(path)?;
    let mut node = view.node(path)?;
    view.permit(&node.acl, Perms::WRITE, requester.who)?;
    expect_version(node.version, *version)?;
    let bytes = data_len(data.as_ref());
    view.grow(requester, path, (0, bytes - node.bytes, 0))?;
    view.tell(path, EventKind::DataChanged, &node.acl)?;
    node.bytes = bytes;
    node.version = node.version.wrapping_add(1);
    let version = node.version;
    view.set(path, Some(node));
    Ok(TxnOp::SetData { path: shared_path(view.tree, path), data: data.clone(), version })
}

/// Checks a change of an access list.
pub(crate) fn set_acl(
    tree: &Tree,
    requester: Requester<'_>,
    path: &str,
    acl: &[Acl],
    version: i32,
    work: &mut Work,
) -> Result<TxnOp, ErrorCode> {
    let mut view = View::new(tree, requester, work, 1);
    view.work(work::CHANGE + work::path(path))?;
    path::validate(path)?;
    let acl = resolved(&mut view, requester, acl)?;
    let (path, node) = tree.get_with_path(path).ok_or(ErrorCode::NoNode)?;
    view.permit(&node.acl, Perms::ADMIN, requester.who)?;
    expect_version(node.aversion, version)?;
    let texts = signed(budget::acl(&acl)) - signed(budget::acl(&node.acl));
    view.grow(requester, path, (0, 0, texts))?;
    Ok(TxnOp::SetAcl { path: Arc::clone(path), acl, version: node.aversion.wrapping_add(1) })
}

/// Returns the list to store for a requested list.
fn resolved(view: &mut View<'_>, requester: Requester<'_>, acl: &[Acl]) -> Result<AccessList, ErrorCode> {
    // Nearly every request has this list, and it needs no allocation.
    if acl == [Acl::OPEN] {
        return Ok(view.tree.share_acl(acl));
    }
    if !is_short(acl) {
        return Err(view.work.refuse(Limit::AccessList, ErrorCode::InvalidAcl));
    }
    let resolved = resolve(acl, requester.who, requester.schemes)?;
    if !is_short(&resolved) {
        return Err(view.work.refuse(Limit::AccessList, ErrorCode::InvalidAcl));
    }
    // Each entry is compared with those before it.
    view.work(resolved.len() * resolved.len() / 16)?;
    Ok(view.tree.share_acl(&resolved))
}

fn data_len(data: Option<&Bytes>) -> i64 {
    signed(budget::data(data))
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

fn expect_version(current: i32, expected: i32) -> Result<(), ErrorCode> {
    if expected == -1 || expected == current { Ok(()) } else { Err(ErrorCode::BadVersion) }
}

/// Returns the tree's copy of the path. A multi may name a node that it has just created.
fn shared_path(tree: &Tree, path: &str) -> Arc<str> {
    tree.get_with_path(path).map_or_else(|| Arc::from(path), |(path, _)| Arc::clone(path))
}
