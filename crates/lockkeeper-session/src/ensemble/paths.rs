//! The nodes above a node: their paths, and their creation if they are missing.

use crate::ensemble::shared::LOCKS;
use crate::ensemble::{Ensemble, NodeKind, OpError, Reply};

/// Returns the path of the parent.
pub fn above(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// Returns whether a path is `root` or below it. An empty root contains all.
pub fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Creates `path` and its missing parents, from the bottom up. If the deepest parent exists, no node above it is
/// touched, so no right is needed there.
///
/// The parents are containers, so that the server deletes an unused path. Servers before 3.5 do not know containers;
/// there the parents are persistent. All clients share the parents. The path itself is of the requested kind and gets the data; an
/// existing one keeps its data and its kind. It has the access list of the session, unless it is [`LOCKS`]. Returns whether it created
/// the path.
///
/// # Cost
///
/// One round trip if the parent exists, otherwise two more for each missing parent.
///
/// # Cancel safety
///
/// Dropping the future leaves the nodes that were created or are being created. The servers delete empty containers some time later.
///
/// # Errors
///
/// As [`Ensemble::create`], but not [`OpError::NodeExists`]. [`OpError::NoNode`] if another client deletes what was just created.
pub async fn make_path(ensemble: &dyn Ensemble, path: &str, last: NodeKind, data: Vec<u8>) -> Result<bool, OpError> {
    let mut missing = vec![path];
    let (mut containers, mut is_new) = (true, false);
    while let Some(deepest) = missing.last() {
        let (data, kind) =
            if missing.len() == 1 { (data.clone(), last) } else { (Vec::new(), NodeKind::SharedContainer) };
        let is_shared = kind == NodeKind::SharedContainer || *deepest == LOCKS;
        let kind = match (is_shared, containers && kind != NodeKind::Persistent) {
            (true, true) => NodeKind::SharedContainer,
            (true, false) => NodeKind::Shared,
            (false, false) if kind == NodeKind::Container => NodeKind::Persistent,
            (false, _) => kind,
        };
        let made: Reply<_> = ensemble.create(deepest, data, kind);
        match made.await {
            Ok(_) => {
                _ = missing.pop();
                is_new = true;
            }
            Err(OpError::NodeExists) => {
                _ = missing.pop();
                is_new = false;
            }
            Err(OpError::Unsupported) if containers => containers = false,
            Err(OpError::NoNode) => match deepest.rfind('/') {
                // Bounded: each step is one component shorter.
                Some(at) if at > 0 && !missing.contains(&&deepest[..at]) => missing.push(&deepest[..at]),
                // Someone deletes what was just made; the caller counts how often.
                _ => return Err(OpError::NoNode),
            },
            Err(fault) => return Err(fault),
        }
    }
    Ok(is_new)
}
