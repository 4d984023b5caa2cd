//! The nodes that all clients share, whatever locks they have, and their access lists.

use crate::acl::{CONTENDS, LockAcl, REGISTERS};
use crate::ensemble::{EPOCH_NODE, NodeKind};

/// The directory of Lockkeeper's locks that are named without a directory. All clients share it.
pub const LOCKS: &str = "/locks";

/// The parent of everything that Lockkeeper keeps beside the locks.
pub const OWN_TREE: &str = "/lockkeeper";

/// Whether all clients share the node at this path.
pub(crate) fn is_shared(path: &str) -> bool {
    let register = path.strip_prefix(OWN_TREE).and_then(|rest| rest.strip_prefix('/'));
    path == LOCKS || path == OWN_TREE || register.is_some_and(|name| !name.contains('/'))
}

/// The list of a shared node, if `acl` is that of all shared nodes.
pub(crate) fn list_of(acl: &LockAcl, path: &str, kind: NodeKind) -> LockAcl {
    match path {
        OWN_TREE => acl.limited_to(REGISTERS, 'a'),
        EPOCH_NODE => acl.of_epoch(),
        _ if kind == NodeKind::SharedByWriters => acl.limited_to("r", 'w'),
        _ => acl.clone(),
    }
}

/// What every client must be allowed to do in a shared node.
pub(crate) fn needed(path: &str) -> &'static str {
    match path {
        OWN_TREE => REGISTERS,
        EPOCH_NODE => "r",
        _ => CONTENDS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_locks_and_the_registers_are_shared_and_nothing_below_them() {
        for path in [LOCKS, OWN_TREE, EPOCH_NODE, "/lockkeeper/jobs"] {
            assert!(is_shared(path), "{path}");
        }
        for path in ["/", "/locks/a", "/lockkeeper/jobs/a", "/lockkeepers", "/lockkeepers/a", "/a"] {
            assert!(!is_shared(path), "{path}");
        }
    }
}
