//! The faults of a simulated world, counted where each one takes effect: a world that only orders faults shows nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A fault that took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A connection ended for its reader inside a frame.
    CutInsideFrame,
    /// A connection lost bytes on their way.
    LostBytes,
    /// Bytes arrived at the end of a silence.
    LateBytes,
    /// Bytes were sent over a slow link.
    SlowLink,
    /// A server answered a ping on a connection on which it ignores requests.
    OnlyPing,
    /// A server ignored a request.
    IgnoredRequest,
    /// A session was resumed while a server still had an earlier connection, which its client had lost.
    HalfOpen,
    /// The servers had no leader for longer than a session timeout.
    LongElection,
    /// A session was resumed that is older than such an election.
    KeptSession,
    /// A transaction was lost with its leader.
    LostTransaction,
    /// A server did not accept a connection.
    RefusedConnection,
    /// A server did not accept a client that had seen more than the server.
    StaleServer,
    /// A session was refused because it had expired.
    RefusedSession,
    /// A server failed and ended a connection.
    FailedServer,
    /// A transaction waited for a slow disk.
    SlowDisk,
    /// A request waited for an earlier write of its session.
    HeldBack,
}

impl Fault {
    pub const ALL: [Fault; 16] = [
        Fault::CutInsideFrame,
        Fault::LostBytes,
        Fault::LateBytes,
        Fault::SlowLink,
        Fault::OnlyPing,
        Fault::IgnoredRequest,
        Fault::HalfOpen,
        Fault::LongElection,
        Fault::KeptSession,
        Fault::LostTransaction,
        Fault::RefusedConnection,
        Fault::StaleServer,
        Fault::RefusedSession,
        Fault::FailedServer,
        Fault::SlowDisk,
        Fault::HeldBack,
    ];
}

/// How often each fault took effect. A clone counts together with the original.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(Arc<[AtomicU64; Fault::ALL.len()]>);

impl Counts {
    pub(super) fn add(&self, fault: Fault, count: usize) {
        self.0[fault as usize].fetch_add(count as u64, Relaxed);
    }

    /// Returns the counts, also those that are 0.
    pub(super) fn all(&self) -> BTreeMap<Fault, u64> {
        Fault::ALL.into_iter().map(|fault| (fault, self.0[fault as usize].load(Relaxed))).collect()
    }
}
