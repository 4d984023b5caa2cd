//! The parents of a node: their paths, and their creation if they are missing.

use crate::ensemble::{Ensemble, Kind, OpError, Reply};

/// The path of the parent.
pub(crate) fn above(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// Makes `path` and what is missing above it, from the bottom up: where the deepest exists, nothing above is touched, so no
/// right is needed there.
///
/// Containers above, so that a path nobody uses any more goes away by itself; where the server knows none (before 3.5), nodes
/// that stay. The path itself is of the kind asked for and gets the data; one that is there already keeps its own.
pub(crate) async fn make_path(ensemble: &dyn Ensemble, path: &str, last: Kind, data: Vec<u8>) -> Result<(), OpError> {
    let mut missing = vec![path];
    let mut containers = true;
    while let Some(deepest) = missing.last() {
        let (data, kind) = if missing.len() == 1 { (data.clone(), last) } else { (Vec::new(), Kind::Container) };
        let kind = if containers { kind } else { Kind::Persistent };
        let made: Reply<_> = ensemble.create(deepest, data, kind);
        match made.await {
            Ok(_) | Err(OpError::NodeExists) => _ = missing.pop(),
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
    Ok(())
}
