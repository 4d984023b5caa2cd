//! The access list of the nodes that a handle creates.

/// The access list of the nodes that a handle creates, including the parents of a lock.
///
/// The rights to a *parent* decide who may delete a node; the right to write to the node itself decides who may request
/// its release. So every client that may contend may also break, and a list that lets other clients read a lock does
/// not let them request its release.
///
/// Existing nodes keep their lists. The first contender's list must admit all clients that contend for the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockAcl {
    /// Every client may do anything. Most recipes do this, and it works on a new server.
    #[default]
    Open,
    /// Clients with the same credential may do anything; other clients may read. Needs
    /// [`Builder::credential`](crate::Builder::credential) or a client certificate (`Builder::tls`).
    Visible,
    /// Clients with the same credential may do anything; other clients nothing. Needs
    /// [`Builder::credential`](crate::Builder::credential) or a client certificate (`Builder::tls`).
    Private,
}
