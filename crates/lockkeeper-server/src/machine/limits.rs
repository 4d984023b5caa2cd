//! Limits on what clients can create.
//!
//! Every limit is checked before anything changes, so a server at its limit continues to serve what it has.

use crate::setters::setters;

/// Limits on what clients can create and read. Excess requests are answered `QuotaExceeded` (−125), requests with too long
/// an answer `MarshallingError` (−5). Connections with excess sessions, and excess connections, are closed; a client
/// retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of nodes. Default 10 million.
    pub nodes: usize,
    /// Maximum bytes that all clients together make the server keep: data, paths and names, access lists, watches,
    /// identities and sessions. Sessions and identities are counted, but never refused for it, and watches cost at most half
    /// of it. The fixed memory of a node, about 400 bytes, is not included. Default 1 GiB.
    pub data_bytes: u64,
    /// Maximum bytes of a new node's path. Default 4 096.
    pub path_bytes: usize,
    /// Maximum names in it. Default 64.
    pub path_depth: usize,
    /// Maximum ephemeral nodes of one session, because they end together. Default 20 000.
    pub ephemerals: usize,
    /// Maximum bytes of one answer. A name in a list counts 16 bytes more than its text. Default 64 MiB.
    pub answer_bytes: usize,
    /// Maximum number of watches. Default 10 million.
    pub watches: usize,
    /// Maximum number of sessions, connected or not. Default 1 million.
    pub sessions: usize,
    /// Maximum number of connections. Default 65 536.
    pub connections: usize,
    /// Maximum number of connections from one address. Default no limit of its own.
    pub connections_per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            nodes: 10_000_000,
            data_bytes: 1 << 30,
            path_bytes: 4 << 10,
            path_depth: 64,
            ephemerals: 20_000,
            answer_bytes: 64 << 20,
            watches: 10_000_000,
            sessions: 1_000_000,
            connections: 1 << 16,
            connections_per_address: usize::MAX,
        }
    }
}

impl Limits {
    setters! {
        /// Sets the maximum number of nodes.
        with_nodes(nodes: usize) = nodes;
        /// Sets the maximum bytes that all clients together make the server keep.
        with_data_bytes(data_bytes: u64) = data_bytes;
        /// Sets the maximum bytes of a new node's path.
        with_path_bytes(path_bytes: usize) = path_bytes;
        /// Sets the maximum names in a new node's path.
        with_path_depth(path_depth: usize) = path_depth;
        /// Sets the maximum ephemeral nodes of one session.
        with_ephemerals(ephemerals: usize) = ephemerals;
        /// Sets the maximum bytes of one answer.
        with_answer_bytes(answer_bytes: usize) = answer_bytes;
        /// Sets the maximum number of watches.
        with_watches(watches: usize) = watches;
        /// Sets the maximum number of sessions.
        with_sessions(sessions: usize) = sessions;
    }

    /// Sets the maximum number of connections, in total and from one address.
    #[must_use]
    pub fn with_connections(mut self, connections: usize, per_address: usize) -> Self {
        (self.connections, self.connections_per_address) = (connections, per_address);
        self
    }
}
