//! Who may use the nodes that a handle makes.

/// The access list of the nodes that a handle makes, the paths above a lock included.
///
/// A node is deleted by the rights of its *parent*, and asked to let go by the right to write to itself. So whoever may
/// contend may also break, and a list that lets others see who holds a lock does not let them ask for it.
///
/// Nodes that exist keep their lists. All who contend for one lock must be let in by whoever came first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockAcl {
    /// Anyone may do anything: what other makers' recipes do, and works on a fresh server.
    #[default]
    Open,
    /// Those with the same credential may do anything, others may look. Needs [`Builder::credential`](crate::Builder::credential), or a certificate of this process's (`Builder::tls`).
    Visible,
    /// Those with the same credential may do anything, others nothing. Needs [`Builder::credential`](crate::Builder::credential), or a certificate of this process's (`Builder::tls`).
    Private,
}
