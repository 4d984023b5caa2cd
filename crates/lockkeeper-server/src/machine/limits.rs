//! How far clients can make a server grow.
//!
//! Every one of these is checked before anything changes, so a server at its limit goes on serving what it holds.

/// How far clients can make a server grow. Whatever is beyond is answered `QuotaExceeded` (−125), except sessions and
/// connections, which are closed: a client tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Nodes. Default 10 million.
    pub nodes: usize,
    /// Bytes of data in all nodes. Default 1 GiB.
    pub data_bytes: u64,
    /// Watches. Default 10 million.
    pub watches: usize,
    /// Sessions, whether connected or not. Default 1 million.
    pub sessions: usize,
    /// Connections. Default 65 536.
    pub connections: usize,
    /// Connections from one address. Default as many as in all.
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
    /// Sets the most nodes.
    #[must_use]
    pub fn with_nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the most bytes of data in all nodes.
    #[must_use]
    pub fn with_data_bytes(mut self, bytes: u64) -> Self {
        self.data_bytes = bytes;
        self
    }

    /// Sets the most watches.
    #[must_use]
    pub fn with_watches(mut self, watches: usize) -> Self {
        self.watches = watches;
        self
    }

    /// Sets the most sessions.
    #[must_use]
    pub fn with_sessions(mut self, sessions: usize) -> Self {
        self.sessions = sessions;
        self
    }

    /// Sets the most connections, in all and from one address.
    #[must_use]
    pub fn with_connections(mut self, connections: usize, per_address: usize) -> Self {
        (self.connections, self.connections_per_address) = (connections, per_address);
        self
    }
}
