//! The changes since the last batch.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::machine::path;
use crate::machine::{Machine, Tree, TxnOp};
use crate::store::{Batch, Totals};

/// When the next batch has so many bytes, requests wait until the disk takes it, and short ones when it has twice as many. So a batch
/// has at most twice these and those of one request, and a client waits no longer than the disk takes for two such batches.
const FULL: usize = 2 << 20;

/// A record of a node or a session without its path and data, or a little more.
const RECORD: usize = 128;

/// The nodes and sessions that the next batch writes.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    any: bool,
    /// About the bytes of the batch.
    bytes: usize,
    nodes: BTreeSet<Arc<str>>,
    sessions: BTreeSet<i64>,
}

impl Dirty {
    /// Returns whether there is anything to write.
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Returns whether the next batch has as many bytes as it may have.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= FULL
    }

    /// Returns whether it has as many as it may have with short requests.
    pub(super) fn is_overfull(&self) -> bool {
        self.bytes >= 2 * FULL
    }

    fn insert(&mut self, path: &Arc<str>, data: usize) {
        if self.nodes.insert(Arc::clone(path)) {
            self.bytes += RECORD + path.len() + data;
        }
    }

    /// Adds a session whose timeout has changed without a transaction.
    pub(super) fn mark_session(&mut self, session: i64) {
        self.any = true;
        self.bytes += RECORD;
        self.sessions.insert(session);
    }

    /// Adds a node that a transaction has changed and does not name.
    pub(super) fn mark_node(&mut self, path: Arc<str>) {
        self.any = true;
        self.insert(&path, 0);
    }

    /// Adds the changes of a transaction of this session. The tree is the one after it, or a later one.
    pub(super) fn mark(&mut self, tree: &Tree, session: i64, op: &TxnOp) {
        self.any = true;
        match op {
            TxnOp::CreateSession { .. } => self.mark_session(session),
            TxnOp::CloseSession { ephemerals } => {
                self.mark_session(session);
                for path in ephemerals {
                    self.mark_with_parent(tree, path, 0);
                }
            }
            TxnOp::Create { path, data, .. } => self.mark_with_parent(tree, path, len(data.as_ref())),
            TxnOp::Delete { path } => self.mark_with_parent(tree, path, 0),
            TxnOp::SetData { path, data, .. } => {
                // The node may be there already, with less data.
                self.bytes += len(data.as_ref());
                self.insert(path, 0);
            }
            TxnOp::SetAcl { path, .. } | TxnOp::SetChildCounter { path, .. } => {
                self.insert(path, tree.get(path).map_or(0, |node| len(node.data())));
            }
            TxnOp::Multi(ops) => {
                for op in ops {
                    self.mark(tree, session, op);
                }
            }
            TxnOp::Check | TxnOp::Failed(_) => {}
        }
    }

    fn mark_with_parent(&mut self, tree: &Tree, path: &Arc<str>, data: usize) {
        self.insert(path, data);
        // A transaction that has deleted the parent since then marks the parent itself.
        if let Some((parent, node)) = path::split(path).and_then(|(parent, _)| tree.get_with_path(parent)) {
            self.insert(parent, len(node.data()));
        }
    }

    /// Takes all changes as a batch. `spare` is an old batch whose buffers are used again.
    pub(super) fn take(&mut self, machine: &Machine, spare: &mut Batch) -> Option<Batch> {
        if !std::mem::take(&mut self.any) {
            return None;
        }
        self.bytes = 0;
        let mut batch = std::mem::take(spare);
        batch.clear();
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

fn len(data: Option<&Bytes>) -> usize {
    data.map_or(0, Bytes::len)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lockkeeper_wire::{Acl, ConnectRequest, Create, CreateMode, Request, SetData, VersionedPath, WriteOp};
    use proptest::prelude::*;

    use super::super::{Clock, Config, ConnectionId, Engine, Outbox};
    use super::FULL;
    use crate::machine::tests::config;
    use crate::machine::tree::Loader;
    use crate::machine::{AccessList, Machine, Node, Tree};
    use crate::store::{Batch, DiskStore, Store, StoredState, Totals, decode_node};
    use std::rc::Rc;
    use std::sync::Arc;

    const LIMITS: &str = "/zookeeper/quota/a/zookeeper_limits";
    const NEARER_LIMITS: &str = "/zookeeper/quota/a/b/zookeeper_limits";
    const STATS: &str = "/zookeeper/quota/a/zookeeper_stats";
    const NEARER_STATS: &str = "/zookeeper/quota/a/b/zookeeper_stats";

    fn create(path: &str, mode: CreateMode) -> WriteOp {
        WriteOp::Create(Create::new(path, "", mode))
    }

    fn delete(path: &str) -> WriteOp {
        WriteOp::Delete(VersionedPath { path: path.to_owned(), version: -1 })
    }

    fn persistent(paths: &[&str]) -> Request {
        Request::Multi(paths.iter().map(|path| create(path, CreateMode::Persistent)).collect())
    }

    fn connect(engine: &mut Engine) {
        let hello = ConnectRequest { timeout_ms: 1_000, ..ConnectRequest::default() };
        let now = engine.clock.now();
        engine.machine.connect(ConnectionId(1), &hello, [7; 16], true, now, &mut engine.effects);
        engine.carry_out();
    }

    fn request(engine: &mut Engine, request: Request) {
        let now = engine.clock.now();
        engine.machine.request(ConnectionId(1), 1, request, now, &mut engine.effects);
        engine.carry_out();
    }

    /// Returns an engine with a disk, and `/a` and `/a/b` with stats nodes. `/a` has eight nodes below it.
    fn engine() -> Engine {
        let clock = Clock::start();
        let machine = Machine::new(config(), Tree::new(), 0, clock.now());
        let mut engine = Engine::new(machine, clock, &Config::default(), None, true);
        connect(&mut engine);
        request(&mut engine, persistent(&["/a", "/a/b", "/a/1", "/a/2", "/a/3", "/a/4", "/a/5", "/a/6", "/a/b/1"]));
        request(&mut engine, persistent(&["/zookeeper/quota/a", "/zookeeper/quota/a/b", STATS, NEARER_STATS]));
        engine
    }

    fn contents(tree: &Tree) -> Vec<(Arc<str>, Node)> {
        tree.iter().map(|(path, node)| (Arc::clone(path), node.clone())).collect()
    }

    /// A start would refuse the whole directory if the log did not fit the sizes that each of its records states.
    #[test]
    fn the_numbers_of_a_quota_survive_a_crash_although_their_transaction_changes_which_quota_counts() {
        let ends =
            vec![persistent(&[LIMITS]), Request::Multi(vec![create("/a/x", CreateMode::Persistent), delete(LIMITS)])];
        let becomes_nearer = vec![persistent(&[LIMITS]), persistent(&["/a/b/x", NEARER_LIMITS])];
        let own = ["/a/x", LIMITS].map(|path| create(path, CreateMode::Ephemeral));
        let ends_with_a_session = vec![Request::Multi(own.into()), Request::CloseSession];
        for requests in [ends, becomes_nearer, ends_with_a_session] {
            let mut engine = engine();
            let directory = tempfile::tempdir().unwrap();
            let fresh =
                || StoredState { tree: Tree::new(), sessions: Vec::new(), zxid: 0, next_session: 1, store_id: 5 };
            let (mut store, _) = DiskStore::open(directory.path(), fresh).unwrap();
            let mut commit = |engine: &mut Engine| {
                store.commit(&engine.take_batch(&mut Batch::default()).unwrap()).unwrap();
            };
            commit(&mut engine);
            let before = engine.machine.tree().get(STATS).cloned();
            for each in requests.clone() {
                request(&mut engine, each);
                commit(&mut engine);
            }
            assert_ne!(engine.machine.tree().get(STATS).cloned(), before, "{requests:?} changes no number");
            // Dropped and not closed, as by a crash.
            drop(store);
            let (_, state) =
                DiskStore::open(directory.path(), fresh).unwrap_or_else(|error| panic!("{requests:?}: {error:?}"));
            assert_eq!(contents(&state.tree), contents(engine.machine.tree()), "{requests:?}");
        }
    }

    /// Else one client could make a batch of all data, which is copied twice while all others wait for it.
    #[test]
    fn a_batch_is_full_at_some_megabytes_until_the_disk_takes_it() {
        let set = |path: &str, len| {
            let data = Some(vec![7; len].into());
            Request::SetData(SetData { path: path.to_owned(), data, version: -1 })
        };
        let child = |n: usize| persistent(&[&format!("/a/{n}")]);
        let mut engine = engine();
        engine.take_batch(&mut Batch::default()).unwrap();
        let outbox = Rc::new(Outbox::default());
        let mut written = 0;
        while !engine.waits_for_the_disk(&outbox, false) {
            request(&mut engine, set("/a/b", 1_000_000));
            written += 1;
        }
        assert!(!engine.waits_for_the_disk(&outbox, true), "a short one has room");
        assert_eq!(written, FULL.div_ceil(1_000_000));
        assert!(!outbox.wait_for_disk(), "it is woken");
        assert!(engine.take_batch(&mut Batch::default()).unwrap().bytes.len() < 2 * FULL);
        assert!(outbox.wait_for_disk() && !engine.waits_for_the_disk(&outbox, false));
        // A node that is written again because of its children counts with its data.
        request(&mut engine, set("/a", 1_000_000));
        engine.take_batch(&mut Batch::default()).unwrap();
        request(&mut engine, child(77));
        assert!((1_000_000..1_001_000).contains(&engine.dirty.bytes), "{}", engine.dirty.bytes);
        request(&mut engine, child(78));
        assert!((1_000_000..1_002_000).contains(&engine.dirty.bytes), "its parent is in the batch once");
    }

    fn operation() -> impl Strategy<Value = WriteOp> {
        let path =
            proptest::sample::select(vec!["/a/x", "/a/b/x", "/a/b/y", LIMITS, NEARER_LIMITS, STATS, NEARER_STATS]);
        let mode = proptest::sample::select(vec![CreateMode::Persistent, CreateMode::Ephemeral]);
        (path, mode, 0..4_u8).prop_map(|(path, mode, kind)| match kind {
            0 | 1 => create(path, mode),
            2 => delete(path),
            _ => WriteOp::SetData(SetData { path: path.to_owned(), data: Some("data".into()), version: -1 }),
        })
    }

    proptest! {
        /// The batches of any history are all that a restart needs. They are taken one for each request, so that no later
        /// request hides what an earlier one has left out.
        #[test]
        fn any_history_of_nodes_and_quotas_is_the_same_when_it_is_read_from_its_batches(
            history in proptest::collection::vec((proptest::collection::vec(operation(), 1..4), 0..8_u8), 1..30),
        ) {
            let mut engine = engine();
            let open = AccessList::from([Acl::OPEN]);
            let mut stored = BTreeMap::new();
            Tree::new().iter().for_each(|(path, node)| drop(stored.insert(Arc::clone(path), node.clone())));
            for (operations, kind) in history {
                match kind {
                    0 => {
                        request(&mut engine, Request::CloseSession);
                        connect(&mut engine);
                    }
                    _ => request(&mut engine, Request::Multi(operations)),
                }
                let batch = engine.take_batch(&mut Batch::default()).unwrap();
                for (path, range) in batch.nodes {
                    match range {
                        Some(range) => stored.insert(path, decode_node(&batch.bytes[range], &open).unwrap()),
                        None => stored.remove(&path),
                    };
                }
                let mut loader = Loader::new(stored.len(), open.clone());
                for (path, node) in &stored {
                    loader.add(Arc::clone(path), node.clone()).unwrap();
                }
                let read = loader.finish().unwrap();
                prop_assert_eq!(contents(&read), contents(engine.machine.tree()));
                prop_assert_eq!(Totals::of(&read, engine.machine.sessions().len()), batch.totals);
            }
        }
    }
}
