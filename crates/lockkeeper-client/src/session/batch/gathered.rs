//! The requests that wait until they leave together: which transaction each belongs to, and their order.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use lockkeeper_wire::{Create, OpCode, Request, WatchedPath, WriteOp};

use crate::types::RequestId;

/// The largest number of operations of a transaction, and of nodes of a read.
pub(super) const OPERATIONS: usize = 128;
/// The largest sum of the bytes of the paths and the data of a transaction, and of the paths of a read. Apache's servers
/// refuse frames of 1 MiB.
pub(super) const BYTES: usize = 128 << 10;

/// Requests that have not left.
#[derive(Debug, Default)]
pub(in super::super) struct Gathered {
    /// They leave in this order. A transaction creates at most one child of a node, so that each child has a transaction, and a
    /// fencing token, of its own. Containers do not count.
    pub(super) writes: Vec<Writes>,
    /// The positions of the transactions that have had room for every request until now.
    with_room: BTreeSet<usize>,
    /// The position of the last transaction that creates a child of this node, or this container.
    last: HashMap<String, usize>,
    /// Each leaves behind the transactions that had gathered before it: it shows each write that was made before it, and need not
    /// wait for a crowd of later ones.
    pub(super) lists: Vec<List>,
    /// How many requests there are.
    pub(super) len: usize,
    /// When the oldest one was made.
    pub(super) at: Duration,
    /// How many transactions were looked at for a place.
    #[cfg(test)]
    looked_at: usize,
}

/// A transaction that has not left.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) ids: Vec<RequestId>,
    pub(super) ops: Vec<WriteOp>,
    bytes: usize,
}

/// A list of children that has not left.
#[derive(Debug)]
pub(super) struct List {
    pub(super) id: RequestId,
    pub(super) path: String,
    /// How many transactions leave before it.
    pub(super) behind: usize,
}

/// The node whose child is created.
pub(super) fn parent(create: &Create) -> &str {
    &create.path[..create.path.rfind('/').unwrap_or(0)]
}

/// An operation of a transaction as a request of its own.
pub(super) fn alone(op: WriteOp) -> Request {
    match op {
        WriteOp::Create(create) => Request::Create(create),
        WriteOp::Delete(delete) => Request::Delete(delete),
        WriteOp::SetData(_) | WriteOp::Check(_) => unreachable!("not gathered"),
    }
}

pub(super) fn list(path: String) -> Request {
    Request::GetChildren2(WatchedPath { path, watch: false })
}

impl Gathered {
    /// Adds a request; returns one of another kind. The time does not grow with the number of requests.
    pub(super) fn add(&mut self, id: RequestId, request: Request, now: Duration) -> Option<Request> {
        if self.len == 0 {
            self.at = now;
        }
        match request {
            Request::Create(create) if matches!(create.opcode, OpCode::Create2 | OpCode::CreateContainer) => {
                let bytes = create.path.len() + create.data.as_ref().map_or(0, bytes::Bytes::len);
                // Containers need no tokens, but of two creates of one, the second fails.
                let container = create.opcode == OpCode::CreateContainer;
                let one_of = if container { create.path.clone() } else { parent(&create).to_owned() };
                let from = self.last.get(&one_of).map_or(0, |last| last + 1);
                let at = self.add_write(from, id, WriteOp::Create(create), bytes);
                self.last.insert(one_of, at);
            }
            Request::Delete(delete) => {
                let bytes = delete.path.len();
                self.add_write(0, id, WriteOp::Delete(delete), bytes);
            }
            Request::GetChildren2(WatchedPath { path, watch: false }) => {
                self.lists.push(List { id, path, behind: self.writes.len() });
            }
            other => return Some(other),
        }
        self.len += 1;
        None
    }

    /// Adds a write to the first transaction that has room, from this one on. Returns its position.
    fn add_write(&mut self, from: usize, id: RequestId, op: WriteOp, bytes: usize) -> usize {
        // Each turn but the last one removes a transaction for good.
        let at = loop {
            let Some(at) = self.with_room.range(from..).next().copied() else {
                self.writes.push(Writes::default());
                self.with_room.insert(self.writes.len() - 1);
                break self.writes.len() - 1;
            };
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            if self.writes[at].ids.len() < OPERATIONS && self.writes[at].bytes + bytes <= BYTES {
                break at;
            }
            self.with_room.remove(&at);
        };
        let writes = &mut self.writes[at];
        writes.ids.push(id);
        writes.ops.push(op);
        writes.bytes += bytes;
        at
    }

    /// Returns the requests in the order in which they were made.
    pub(in super::super) fn into_requests(self) -> Vec<(RequestId, Request)> {
        let writes =
            self.writes.into_iter().flat_map(|writes| writes.ids.into_iter().zip(writes.ops.into_iter().map(alone)));
        let lists = self.lists.into_iter().map(|List { id, path, .. }| (id, list(path)));
        let mut requests: Vec<_> = writes.chain(lists).collect();
        requests.sort_unstable_by_key(|(id, _)| *id);
        requests
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lockkeeper_wire::{Create, CreateMode, VersionedPath};

    use super::*;

    /// They are added while no other request of the session can leave.
    #[test]
    fn a_request_gathers_in_two_steps_however_many_have_gathered() {
        const LOCKS: u64 = 20_000;
        static LARGE: [u8; BYTES - 100] = [0; BYTES - 100];
        let mut gathered = Gathered::default();
        for at in 0..4 * LOCKS {
            let path = match at / LOCKS {
                // Locks, a crowd at one of them, deletes, and the locks again.
                0 | 3 => format!("/locks/{}/n-", at % LOCKS),
                _ => "/locks/crowd/n-".to_owned(),
            };
            let data = if at % 10 == 3 { Bytes::from_static(&LARGE) } else { Bytes::new() };
            let request = match at / LOCKS {
                2 => Request::Delete(VersionedPath { path, version: -1 }),
                _ => Request::Create(Create::new(path, data, CreateMode::EphemeralSequential)),
            };
            assert_eq!(gathered.add(RequestId(at), request, Duration::ZERO), None);
        }
        assert_eq!(gathered.len as u64, 4 * LOCKS);
        assert!(gathered.looked_at <= 2 * gathered.len, "{} steps for {} requests", gathered.looked_at, gathered.len);
        assert!(gathered.writes.iter().all(|writes| writes.ids.len() <= OPERATIONS && writes.bytes <= BYTES));
    }
}
