//! Answers reads from a tree.
//!
//! This is separate from the machine so that the simulator can read a copy of the tree that is behind.

use std::sync::Arc;

use bytes::Bytes;

use crate::machine::budget;
use crate::machine::identity::{Identities, masked, permit};
use crate::machine::path;
use crate::machine::tree::{Node, Tree};
use crate::machine::work::{self, Work};
use lockkeeper_wire::{Acl, ErrorCode, OpResult, Perms, ReadOp, Request, Response, WatchKind};

/// The fixed part of an answer or of an operation's result: headers and a stat.
const FIXED: usize = 128;

/// What an answer may still get: bytes, and work.
///
/// An answer is counted before its parts are copied, so a refused one costs nothing. ZooKeeper has no such limit. Its
/// code for an answer that cannot be built is `MarshallingError`, and every client knows that code.
#[derive(Debug)]
struct Room<'a> {
    bytes: usize,
    work: &'a mut Work,
}

impl Room<'_> {
    fn take(&mut self, bytes: usize) -> Result<(), ErrorCode> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(ErrorCode::MarshallingError)?;
        self.work(work::answer(bytes))
    }

    fn work(&mut self, units: usize) -> Result<(), ErrorCode> {
        self.work.take(units).ok_or(ErrorCode::MarshallingError)
    }

    /// Counts an operation on this node, whose access list it compares.
    fn look_at(&mut self, path: &str, node: Option<&Node>) -> Result<(), ErrorCode> {
        self.work(work::LOOK_UP + work::path(path) + node.map_or(0, |node| node.acl.len()))
    }

    /// Returns a node that this client may read.
    fn readable<'a>(&mut self, tree: &'a Tree, path: &str, who: &Identities) -> Result<&'a Node, ErrorCode> {
        let node = node_at(tree, path);
        // A list that does not let the client in is compared whole too.
        self.look_at(path, node.ok())?;
        let node = node?;
        permit(&node.acl, Perms::READ, who)?;
        Ok(node)
    }

    fn data(&mut self, node: &Node) -> Result<Option<Bytes>, ErrorCode> {
        self.take(FIXED + node.data.as_ref().map_or(0, Bytes::len))?;
        Ok(node.data.clone())
    }

    /// Copies a list of names or paths. Each one also costs its place in the list in memory.
    fn list<'a, I: Iterator<Item = &'a Arc<str>>>(
        &mut self,
        texts: impl Fn() -> I,
    ) -> Result<Vec<Arc<str>>, ErrorCode> {
        self.take(FIXED)?;
        let mut count = 0;
        for text in texts() {
            self.work(1)?;
            self.take(size_of::<Arc<str>>() + text.len())?;
            count += 1;
        }
        let mut list = Vec::with_capacity(count);
        list.extend(texts().cloned());
        Ok(list)
    }

    fn acl(&mut self, acl: &[Acl]) -> Result<(), ErrorCode> {
        self.take(FIXED)?;
        acl.iter().try_for_each(|entry| self.take(size_of::<Acl>() + budget::texts(entry)))
    }
}

/// Answers a read of `session`, which has the identities `who`, in at most `longest` bytes; `None` if the request is not
/// a read. Counts the work.
pub fn answer(
    tree: &Tree,
    session: i64,
    who: &Identities,
    request: &Request,
    longest: usize,
    work: &mut Work,
) -> Option<Result<Response, ErrorCode>> {
    let mut room = Room { bytes: longest, work };
    Some(match request {
        Request::Exists(request) => room.readable(tree, &request.path, who).map(|node| Response::Stat(node.stat())),
        Request::GetData(request) => room
            .readable(tree, &request.path, who)
            .and_then(|node| Ok(Response::Data { data: room.data(node)?, stat: node.stat() })),
        Request::GetChildren(request) => room
            .readable(tree, &request.path, who)
            .and_then(|node| Ok(Response::Children { names: room.list(|| node.children.iter())?, stat: None })),
        Request::GetChildren2(request) => room.readable(tree, &request.path, who).and_then(|node| {
            Ok(Response::Children { names: room.list(|| node.children.iter())?, stat: Some(node.stat()) })
        }),
        Request::GetAcl { path } => node_at(tree, path).and_then(|node| {
            room.look_at(path, Some(node))?;
            permit(&node.acl, Perms::READ | Perms::ADMIN, who)?;
            room.acl(&node.acl)?;
            let acl = match permit(&node.acl, Perms::ADMIN, who) {
                Ok(()) => node.acl.shared(),
                Err(_) => masked(&node.acl).into(),
            };
            Ok(Response::Acl { acl, stat: node.stat() })
        }),
        Request::GetAllChildrenNumber { path } => room.readable(tree, path, who).and_then(|node| {
            let count = descendants(tree, path, node, room.work).ok_or(ErrorCode::MarshallingError)?;
            Ok(Response::Count(i32::try_from(count).unwrap_or(i32::MAX)))
        }),
        Request::GetEphemerals { prefix } => {
            room.list(|| tree.ephemerals_with_prefix(session, prefix)).map(Response::Ephemerals)
        }
        Request::Sync { path } => Ok(Response::Path(path.clone())),
        Request::Ping => Ok(Response::Done),
        Request::WhoAmI => Ok(Response::Identities(who.names())),
        Request::MultiRead(ops) => {
            ops.iter().map(|op| read_op(tree, op, who, &mut room)).collect::<Result<_, _>>().map(Response::Multi)
        }
        _ => return None,
    })
}

/// Returns the watch that a read leaves, given its answer.
///
/// Only `exists` watches a missing node.
pub fn watch_left<'a>(request: &'a Request, answer: &Result<Response, ErrorCode>) -> Option<(&'a str, WatchKind)> {
    let (watched, kind, when_missing) = match request {
        Request::Exists(watched) => (watched, WatchKind::Data, true),
        Request::GetData(watched) => (watched, WatchKind::Data, false),
        Request::GetChildren(watched) | Request::GetChildren2(watched) => (watched, WatchKind::Child, false),
        _ => return None,
    };
    let leaves = answer.is_ok() || (when_missing && *answer == Err(ErrorCode::NoNode));
    (watched.watch && leaves).then_some((watched.path.as_str(), kind))
}

fn node_at<'a>(tree: &'a Tree, path: &str) -> Result<&'a Node, ErrorCode> {
    // The path of an existing node is valid, so only a miss needs the check.
    match tree.get(path) {
        Some(node) => Ok(node),
        None => Err(path::validate(path).err().unwrap_or(ErrorCode::NoNode)),
    }
}

/// The result of an operation may be its own error. The error of this function is that of the whole answer.
fn read_op(tree: &Tree, op: &ReadOp, who: &Identities, room: &mut Room<'_>) -> Result<OpResult, ErrorCode> {
    let (ReadOp::GetData { path } | ReadOp::GetChildren { path }) = op;
    let node = match room.readable(tree, path, who) {
        Ok(node) => node,
        Err(ErrorCode::MarshallingError) => return Err(ErrorCode::MarshallingError),
        Err(error) => return Ok(OpResult::Failed(error)),
    };
    Ok(match op {
        ReadOp::GetData { .. } => OpResult::Data { data: room.data(node)?, stat: node.stat() },
        ReadOp::GetChildren { .. } => OpResult::Children(room.list(|| node.children.iter())?),
    })
}

/// Returns how many nodes are below this one; `None` if they are too many to be counted.
fn descendants(tree: &Tree, path: &str, node: &Node, work: &mut Work) -> Option<usize> {
    if path == "/" {
        return Some(tree.len() - 1);
    }
    let mut count = 0;
    tree.visit_below(path, node, |_| {
        count += 1;
        work.take(work::VISIT)
    })?;
    Some(count)
}
