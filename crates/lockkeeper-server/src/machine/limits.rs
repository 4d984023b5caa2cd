//! Limits on what clients can create.
//!
//! Every limit is checked before anything changes, so a server at its limit continues to serve what it has.

/// Limits on what clients can create. Excess requests are answered `QuotaExceeded` (−125). Connections with excess
/// sessions, and excess connections, are closed; a client retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of nodes. Default 10 million.
    pub nodes: usize,
    /// Maximum bytes of data in all nodes. Default 1 GiB.
    pub data_bytes: u64,
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
            watches: 10_000_000,
            sessions: 1_000_000,
            connections: 1 << 16,
            connections_per_address: usize::MAX,
        }
    }
}

impl Limits {
    /// Sets the maximum number of nodes.
    #[must_use]
    pub fn with_nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the maximum bytes of data in all nodes.
    #[must_use]
    pub fn with_data_bytes(mut self, bytes: u64) -> Self {
        self.data_bytes = bytes;
        self
    }

    /// Sets the maximum number of watches.
    #[must_use]
    pub fn with_watches(mut self, watches: usize) -> Self {
        self.watches = watches;
        self
    }

    /// Sets the maximum number of sessions.
    #[must_use]
    pub fn with_sessions(mut self, sessions: usize) -> Self {
        self.sessions = sessions;
        self
    }

    /// Sets the maximum number of connections, in total and from one address.
    #[must_use]
    pub fn with_connections(mut self, connections: usize, per_address: usize) -> Self {
        (self.connections, self.connections_per_address) = (connections, per_address);
        self
    }
}
