//! The stored state, and the batches of changes to it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;

use crate::error::ServerError;
use crate::machine::{Node, Tree};
use crate::store::node::encode_node;

/// Everything that a restart restores.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) sessions: Vec<(i64, Duration, [u8; 16])>,
    pub(crate) zxid: i64,
    pub(crate) next_session: i64,
    pub(crate) store_id: i64,
}

impl State {
    pub(super) fn totals(&self) -> Totals {
        Totals::of(&self.tree, self.sessions.len())
    }
}

/// The size of the state, by which a replayed log is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(super) nodes: u64,
    pub(super) sessions: u64,
    pub(super) data_bytes: u64,
}

impl Totals {
    pub(crate) fn of(tree: &Tree, sessions: usize) -> Self {
        Self { nodes: tree.len() as u64, sessions: sessions as u64, data_bytes: tree.approximate_bytes() }
    }
}

/// A session's timeout and password.
pub(crate) type StoredSession = (Duration, [u8; 16]);

/// The changes since the batch before; the values are the state at its end.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) zxid: i64,
    pub(crate) next_session: i64,
    pub(crate) totals: Totals,
    /// Changed nodes, `None` if they were deleted; the ranges refer to `bytes`.
    pub(crate) nodes: Vec<(Arc<str>, Option<Range<usize>>)>,
    /// Changed sessions, `None` if they have ended.
    pub(crate) sessions: Vec<(i64, Option<StoredSession>)>,
    /// All encoded nodes in one buffer.
    pub(crate) bytes: BytesMut,
}

impl Batch {
    pub(crate) fn put_node(&mut self, path: Arc<str>, node: Option<&Node>) {
        let range = node.map(|node| {
            let start = self.bytes.len();
            encode_node(&mut self.bytes, node);
            start..self.bytes.len()
        });
        self.nodes.push((path, range));
    }
}

/// Makes batches durable. A trait, so that tests can make it fail.
pub(crate) trait Store: Send {
    /// Returns when the whole batch is on the disk. After an error the store must not be used again.
    fn commit(&mut self, batch: &Batch) -> Result<(), ServerError>;

    /// Prepares for a fast start. Everything committed is durable without it, and after an error in it.
    fn close(&mut self) {}
}
