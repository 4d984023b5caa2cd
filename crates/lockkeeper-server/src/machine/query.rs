//! Answers reads from a tree.
//!
//! This is separate from the machine so that the simulator can read a copy of the tree that is behind.

use std::sync::Arc;

use crate::machine::identity::{Identities, masked, permit};
use crate::machine::path;
use crate::machine::tree::{Node, Tree};
use lockkeeper_wire::{ErrorCode, OpResult, Perms, ReadOp, Request, Response, WatchKind};

/// Answers a read of `session`, which has the identities `who`; `None` if the request is not a read.
pub fn answer(tree: &Tree, session: i64, who: &Identities, request: &Request) -> Option<Result<Response, ErrorCode>> {
    Some(match request {
        Request::Exists(request) => readable(tree, &request.path, who).map(|node| Response::Stat(node.stat())),
        Request::GetData(request) => {
            readable(tree, &request.path, who).map(|node| Response::Data { data: node.data.clone(), stat: node.stat() })
        }
        Request::GetChildren(request) => {
            readable(tree, &request.path, who).map(|node| Response::Children { names: names(node), stat: None })
        }
        Request::GetChildren2(request) => readable(tree, &request.path, who)
            .map(|node| Response::Children { names: names(node), stat: Some(node.stat()) }),
        Request::GetAcl { path } => node_at(tree, path).and_then(|node| {
            permit(&node.acl, Perms::READ | Perms::ADMIN, who)?;
            let acl = match permit(&node.acl, Perms::ADMIN, who) {
                Ok(()) => Arc::clone(&node.acl),
                Err(_) => masked(&node.acl).into(),
            };
            Ok(Response::Acl { acl, stat: node.stat() })
        }),
        Request::GetAllChildrenNumber { path } => readable(tree, path, who)
            .map(|node| Response::Count(i32::try_from(descendants(tree, path, node)).unwrap_or(i32::MAX))),
        Request::GetEphemerals { prefix } => Ok(Response::Ephemerals(
            tree.ephemerals(session).filter(|path| path.starts_with(prefix)).cloned().collect(),
        )),
        Request::Sync { path } => Ok(Response::Path(path.clone())),
        Request::Ping => Ok(Response::Done),
        Request::WhoAmI => Ok(Response::Identities(who.names())),
        Request::MultiRead(ops) => Ok(Response::Multi(ops.iter().map(|op| read_op(tree, op, who)).collect())),
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

fn readable<'a>(tree: &'a Tree, path: &str, who: &Identities) -> Result<&'a Node, ErrorCode> {
    let node = node_at(tree, path)?;
    permit(&node.acl, Perms::READ, who)?;
    Ok(node)
}

fn names(node: &Node) -> Vec<Arc<str>> {
    node.children.iter().cloned().collect()
}

fn read_op(tree: &Tree, op: &ReadOp, who: &Identities) -> OpResult {
    let result = match op {
        ReadOp::GetData { path } => {
            readable(tree, path, who).map(|node| OpResult::Data { data: node.data.clone(), stat: node.stat() })
        }
        ReadOp::GetChildren { path } => readable(tree, path, who).map(|node| OpResult::Children(names(node))),
    };
    result.unwrap_or_else(OpResult::Failed)
}

fn descendants(tree: &Tree, path: &str, node: &Node) -> usize {
    if path == "/" {
        return tree.len() - 1;
    }
    let mut open = vec![(path.to_owned(), node)];
    let mut count = 0;
    while let Some((path, node)) = open.pop() {
        count += node.children.len();
        for name in &node.children {
            let child = format!("{path}/{name}");
            if let Some(node) = tree.get(&child).filter(|node| !node.children.is_empty()) {
                open.push((child, node));
            }
        }
    }
    count
}
