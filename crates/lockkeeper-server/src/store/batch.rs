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
pub(crate) struct StoredState {
    pub(crate) tree: Tree,
    pub(crate) sessions: Vec<(i64, Duration, [u8; 16])>,
    pub(crate) zxid: i64,
    pub(crate) next_session: i64,
    pub(crate) store_id: i64,
}

/// 2020-01-01, in milliseconds since 1970.
const YEAR_2020_MS: i64 = 1_577_836_800_000;

/// How many milliseconds of a clock are believed: until January 2088, which is half of the 48 bits of a zxid.
const BELIEVED_MS: i64 = (1 << 31) * 1_000;

/// Returns the zxid that a start at this time has at least: 65 536 for each second since 2020.
///
/// So tokens grow although a store was deleted, restored or rolled back, if no store carried out more transactions than
/// that. A clock that is further ahead than [`BELIEVED_MS`] would use up the zxids, and has no say.
fn least_zxid(wall_ms: i64) -> Option<i64> {
    let ms = wall_ms.saturating_sub(YEAR_2020_MS);
    (0..BELIEVED_MS).contains(&ms).then(|| ms * 65_536 / 1_000)
}

impl StoredState {
    /// Raises the zxid to that of the time. Returns what must be committed before a client sees it.
    pub(crate) fn raise_zxid(&mut self, wall_ms: i64) -> Option<Batch> {
        let zxid = least_zxid(wall_ms).filter(|least| *least > self.zxid)?;
        self.zxid = zxid;
        Some(Batch { zxid, next_session: self.next_session, totals: self.totals(), ..Batch::default() })
    }

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

/// Buffers with more room than this are freed after their batch: few batches are so long.
pub(super) const KEPT_BYTES: usize = 1 << 20;
/// The same, for lists of nodes and sessions.
const KEPT_RECORDS: usize = 4_096;

impl Batch {
    /// Empties it for another one, and keeps its buffers unless they are long.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.nodes.shrink_to(KEPT_RECORDS);
        self.sessions.clear();
        self.sessions.shrink_to(KEPT_RECORDS);
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = BytesMut::new();
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a server would keep several times the longest batch that it ever had.
    #[test]
    fn a_long_batch_leaves_no_long_buffers() {
        let mut batch = Batch::default();
        for (bytes, kept) in [(KEPT_BYTES / 2, true), (KEPT_BYTES * 8, false)] {
            batch.bytes.resize(bytes, 7);
            batch.nodes = (0..bytes / 64).map(|_| (Arc::from("/a"), None)).collect();
            batch.clear();
            assert_eq!(batch.bytes.capacity() >= bytes, kept, "{bytes}");
            assert!(batch.bytes.is_empty() && batch.nodes.is_empty());
            assert!(batch.bytes.capacity() <= KEPT_BYTES && batch.nodes.capacity() <= 2 * KEPT_RECORDS);
        }
    }

    #[test]
    fn the_least_zxid_follows_the_clock_from_2020_to_2088_and_leaves_room() {
        assert_eq!(least_zxid(YEAR_2020_MS), Some(0));
        assert_eq!(least_zxid(YEAR_2020_MS + 1_000), Some(1 << 16));
        let last = YEAR_2020_MS + BELIEVED_MS - 1;
        assert!(least_zxid(last).is_some_and(|zxid| (1 << 46..1 << 47).contains(&zxid)));
        for wrong in [i64::MIN, 0, YEAR_2020_MS - 1, last + 1, i64::MAX] {
            assert_eq!(least_zxid(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_clock_that_is_behind_or_absurd_keeps_the_stored_zxid() {
        let fresh =
            || StoredState { tree: Tree::new(), sessions: Vec::new(), zxid: 5 << 16, next_session: 1, store_id: 5 };
        for wall_ms in [0, YEAR_2020_MS + 5_000, YEAR_2020_MS + BELIEVED_MS] {
            let mut state = fresh();
            assert!(state.raise_zxid(wall_ms).is_none());
            assert_eq!(state.zxid, 5 << 16);
        }
        let mut state = fresh();
        let batch = state.raise_zxid(YEAR_2020_MS + 6_000).unwrap();
        assert_eq!((state.zxid, batch.zxid, batch.totals), (6 << 16, 6 << 16, state.totals()));
    }
}
