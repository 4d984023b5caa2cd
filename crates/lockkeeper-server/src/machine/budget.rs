//! What clients make the server keep, in bytes: the cost of each thing.
//!
//! Costs are counted when a thing is added and removed. The sum of all costs is the machine's one budget, with the limit
//! [`Limits::data_bytes`](crate::Limits::data_bytes). The fixed memory of a node is not part of a cost: the limit of nodes
//! bounds it.
//!
//! The budget refuses growth, and nothing that clients live on: sessions and identities are counted but never refused for
//! it, because their own limits bound them. Deleting needs a session, and the holder of a lock that reconnects proves its
//! identity again. It also sets its watches again, so these need room in a share of their own only.

use bytes::Bytes;
use lockkeeper_wire::{Acl, AclId};

use crate::machine::path;

/// A session with its place among the deadlines.
pub(crate) const SESSION: u64 = 200;
/// A watch of a connection, without its path.
pub(crate) const WATCH: u64 = 100;
/// All watches together cost at most the budget divided by this.
pub(crate) const WATCHES_SHARE: u64 = 2;
/// An entry of an access list, without its texts.
const ENTRY: u64 = 64;

/// Returns the cost of a node's name: its path, and its name in the list of its parent.
pub(crate) fn name(path: &str) -> u64 {
    let name = path::split(path).map_or(0, |(_, name)| name.len());
    (path.len() + name) as u64
}

/// Returns the cost of a watch, with its path as if no other client watched it.
pub(crate) fn watch(path: &str) -> u64 {
    WATCH + path.len() as u64
}

/// Returns the cost of an access list. All nodes share the usual list, so it costs nothing.
pub(crate) fn acl(acl: &[Acl]) -> u64 {
    if acl == [Acl::OPEN] { 0 } else { acl.iter().map(|entry| ENTRY + texts(entry) as u64).sum() }
}

/// Returns the bytes of the texts of an access list's entry.
pub(crate) fn texts(entry: &Acl) -> usize {
    match &entry.id {
        AclId::WorldAnyone => 0,
        AclId::Other { scheme, id } => scheme.len() + id.len(),
    }
}

/// Returns the cost of a node's data.
pub(crate) fn data(data: Option<&Bytes>) -> u64 {
    data.map_or(0, |data| data.len() as u64)
}

/// Returns the cost of an identity.
pub(crate) fn identity(scheme: &str, id: &str) -> u64 {
    ENTRY + (scheme.len() + id.len()) as u64
}
