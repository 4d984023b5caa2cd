//! The nodes of the semaphores of foreign clients. Lockkeeper's own semaphores have another layout, and never share these.
//!
//! Curator's `InterProcessSemaphoreV2`, and the `InterProcessSemaphoreMutex` that is one with a single lease, has a node below
//! `<path>/leases` for each lease, and a lock below `<path>/locks`. A client acquires this lock, creates its lease, waits until few
//! enough leases exist, and releases the lock. The limit is known only to the clients.
//!
//! Kazoo's `Semaphore` has a node `<path>/<32 hex>` for each lease, and a lock below `<path>-__lock__`. A client that holds this lock
//! creates its lease when the limit allows it. The data of the path is the limit.
//!
//! A name in the queue of such a semaphore is what follows its path: `leases/…`, `locks/…` or `-__lock__/…`. A lease of Kazoo's is
//! `./…`, so that no child of a path is taken for one.

use crate::{NodeFormat, Sequence};

/// The directory of the leases of Curator's semaphore.
pub const CURATOR_LEASES: &str = "leases";

/// The lock that a client of Curator's semaphore holds while it asks for a lease.
pub const CURATOR_LOCK: &str = "locks";

/// What follows the path of Kazoo's semaphore in the path of its lock.
pub const KAZOO_LOCK: &str = "-__lock__";

/// What precedes the name of a lease of Kazoo's semaphore in its queue.
const KAZOO_LEASE: &str = ".";

/// Whose semaphore it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForeignSemaphore {
    /// Curator's `InterProcessSemaphoreV2` or `InterProcessSemaphoreMutex`.
    Curator,
    /// Kazoo's `Semaphore`.
    Kazoo,
}

/// The part that a node has in such a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SemaphoreNode {
    /// A lease. Curator's have numbers, in the order in which the clients asked.
    Lease(Option<Sequence>),
    /// A contender for the lock that a client holds while it asks for a lease.
    Asks(Sequence),
}

impl ForeignSemaphore {
    /// The word for it in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            ForeignSemaphore::Curator => "curator",
            ForeignSemaphore::Kazoo => "kazoo",
        }
    }

    /// Reads a name in the queue of a semaphore; `None` for any other.
    pub fn read(name: &str) -> Option<(Self, SemaphoreNode)> {
        let asks = |format: NodeFormat, rest: &str| Some(SemaphoreNode::Asks(format.parse(rest)?.sequence));
        let (directory, rest) = name.split_once('/')?;
        match directory {
            CURATOR_LEASES => Some((ForeignSemaphore::Curator, SemaphoreNode::Lease(Some(curator_lease(rest)?)))),
            CURATOR_LOCK => Some((ForeignSemaphore::Curator, asks(NodeFormat::Curator, rest)?)),
            KAZOO_LOCK => Some((ForeignSemaphore::Kazoo, asks(NodeFormat::Kazoo, rest)?)),
            KAZOO_LEASE => is_kazoo_lease(rest).then_some((ForeignSemaphore::Kazoo, SemaphoreNode::Lease(None))),
            _ => None,
        }
    }

    /// The name in the queue of Kazoo's semaphore of a child of its path, if that may be a lease.
    pub fn kazoo_lease(child: &str) -> Option<String> {
        is_kazoo_lease(child).then(|| format!("{KAZOO_LEASE}/{child}"))
    }

    /// Returns the semaphore and the name in its queue of a node of this path; `None` if it is of none. `exists`: whether a node exists,
    /// because some names are also those of other nodes.
    pub fn place_of(node: &str, exists: impl Fn(&str) -> bool) -> Option<(String, String)> {
        let (parent, name) = node.rsplit_once('/')?;
        let of = |path: &str, queued: String| (!path.is_empty()).then(|| (path.to_owned(), queued));
        if let Some(path) = parent.strip_suffix("/leases") {
            return curator_lease(name).and_then(|_| of(path, format!("{CURATOR_LEASES}/{name}")));
        }
        if let Some(path) = parent.strip_suffix("/locks") {
            let asks = NodeFormat::Curator.parse(name).is_some() && exists(&format!("{path}/{CURATOR_LEASES}"));
            return asks.then(|| of(path, format!("{CURATOR_LOCK}/{name}"))).flatten();
        }
        if let Some(path) = parent.strip_suffix(KAZOO_LOCK).filter(|path| !path.ends_with('/')) {
            return NodeFormat::Kazoo.parse(name).and_then(|_| of(path, format!("{KAZOO_LOCK}/{name}")));
        }
        let lease = Self::kazoo_lease(name).filter(|_| exists(&format!("{parent}{KAZOO_LOCK}")));
        lease.and_then(|lease| of(parent, lease))
    }

    /// The limit that the data of the path says.
    pub fn limit(self, data: &[u8]) -> Option<u32> {
        let text = std::str::from_utf8(data).ok().filter(|_| self == ForeignSemaphore::Kazoo)?;
        text.parse().ok().filter(|limit| *limit > 0)
    }
}

/// `_c_<uuid>-lease-0000000001`
fn curator_lease(name: &str) -> Option<Sequence> {
    let (prefix, sequence) = Sequence::split(name)?;
    let marked = prefix.strip_suffix("lease-")?;
    (marked.is_empty() || is_protected(marked)).then_some(sequence)
}

/// Whether a name begins as Curator's protected names do.
pub(crate) fn is_protected(name: &str) -> bool {
    let id = name.strip_prefix("_c_").and_then(|rest| rest.split_at_checked(crate::AttemptId::LEN));
    id.is_some_and(|(id, rest)| crate::AttemptId::read(id.as_bytes()).is_some() && rest.starts_with('-'))
}

fn is_kazoo_lease(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d";
    const HEX: &str = "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d";

    #[test]
    fn nodes_of_foreign_semaphores_belong_to_the_semaphore() {
        let place = |node: &str| ForeignSemaphore::place_of(node, |_| true);
        let asks = format!("-__lock__/{HEX}__lock__0000000007");
        for (node, name) in [
            (format!("/apps/pool/leases/_c_{UUID}-lease-0000000007"), format!("leases/_c_{UUID}-lease-0000000007")),
            (format!("/apps/pool/locks/_c_{UUID}-lock-0000000007"), format!("locks/_c_{UUID}-lock-0000000007")),
            (format!("/apps/pool/{HEX}"), format!("./{HEX}")),
            (format!("/apps/pool{asks}"), asks.clone()),
        ] {
            assert_eq!(place(&node), Some(("/apps/pool".to_owned(), name.clone())));
            assert_eq!(crate::node_path("/apps/pool", &name), node);
            assert!(ForeignSemaphore::read(&name).is_some(), "{name}");
        }
        let read = ForeignSemaphore::read(&asks);
        assert_eq!(read, Some((ForeignSemaphore::Kazoo, SemaphoreNode::Asks(Sequence::new(7)))));
    }

    #[test]
    fn other_nodes_of_such_names_are_of_no_semaphore() {
        let place = |node: &str| ForeignSemaphore::place_of(node, |_| false);
        for node in [
            // A lock at a path that ends so.
            format!("/app/locks/_c_{UUID}-lock-0000000007"),
            format!("/locks/{HEX}"),
            format!("/leases/_c_{UUID}-lease-0000000007"),
            "/app/leases/car-lease-0000000007".to_owned(),
            "/app/leases/README".to_owned(),
            "/-__lock__/x".to_owned(),
        ] {
            assert_eq!(place(&node), None, "{node}");
        }
        for name in ["leases/x", "other/lock-0000000001", "./README", HEX, "lock-0000000001"] {
            assert_eq!(ForeignSemaphore::read(name), None, "{name}");
        }
    }

    #[test]
    fn only_kazoos_path_says_the_limit() {
        assert_eq!(ForeignSemaphore::Kazoo.limit(b"2"), Some(2));
        assert_eq!([&b""[..], b"0", b"x", b"-1"].map(|data| ForeignSemaphore::Kazoo.limit(data)), [None; 4]);
        assert_eq!(ForeignSemaphore::Curator.limit(b"2"), None);
    }
}
