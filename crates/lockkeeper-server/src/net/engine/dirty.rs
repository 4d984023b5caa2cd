//! The changes since the last batch.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::machine::path;
use crate::machine::{Machine, Tree, TxnOp};
use crate::store::{Batch, Totals};

/// The nodes and sessions that the next batch writes.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    any: bool,
    nodes: BTreeSet<Arc<str>>,
    sessions: BTreeSet<i64>,
}

impl Dirty {
    /// Returns whether there is anything to write.
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Adds a session whose timeout has changed without a transaction.
    pub(super) fn mark_session(&mut self, session: i64) {
        self.any = true;
        self.sessions.insert(session);
    }

    /// Adds the changes of a transaction of this session. The tree is the one after it.
    pub(super) fn mark(&mut self, tree: &Tree, session: i64, op: &TxnOp) {
        self.any = true;
        match op {
            TxnOp::CreateSession { .. } => {
                self.sessions.insert(session);
            }
            TxnOp::CloseSession { ephemerals } => {
                self.sessions.insert(session);
                for path in ephemerals {
                    self.mark_with_parent(tree, path);
                }
            }
            TxnOp::Create { path, .. } | TxnOp::Delete { path } => self.mark_with_parent(tree, path),
            TxnOp::SetData { path, .. } => {
                self.nodes.insert(Arc::clone(path));
                self.nodes.extend(tree.counting_node(path).cloned());
            }
            TxnOp::SetAcl { path, .. } | TxnOp::SetChildCounter { path, .. } => {
                self.nodes.insert(Arc::clone(path));
            }
            TxnOp::Multi(ops) => {
                for op in ops {
                    self.mark(tree, session, op);
                }
            }
            TxnOp::Check | TxnOp::Failed(_) => {}
        }
    }

    fn mark_with_parent(&mut self, tree: &Tree, path: &Arc<str>) {
        self.nodes.insert(Arc::clone(path));
        self.nodes.extend(tree.counting_node(path).cloned());
        // A transaction that has deleted the parent since then marks the parent itself.
        let parent = path::split(path).and_then(|(parent, _)| tree.get_with_path(parent));
        self.nodes.extend(parent.map(|(parent, _)| Arc::clone(parent)));
    }

    /// Takes all changes as a batch. `spare` is an old batch whose buffers are used again.
    pub(super) fn take(&mut self, machine: &Machine, spare: &mut Batch) -> Option<Batch> {
        if !std::mem::take(&mut self.any) {
            return None;
        }
        let mut batch = std::mem::take(spare);
        batch.nodes.clear();
        batch.sessions.clear();
        batch.bytes.clear();
        batch.zxid = machine.zxid();
        batch.next_session = machine.next_session();
        batch.totals = Totals::of(machine.tree(), machine.sessions().len());
        for path in std::mem::take(&mut self.nodes) {
            let node = machine.tree().get(&path);
            batch.put_node(path, node);
        }
        for id in std::mem::take(&mut self.sessions) {
            let session = machine.sessions().get(id).map(|session| (session.timeout, session.password));
            batch.sessions.push((id, session));
        }
        Some(batch)
    }
}
