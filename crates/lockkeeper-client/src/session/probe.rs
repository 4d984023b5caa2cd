//! Finds out by proof that the servers have lost transactions that the session saw.
//!
//! A server whose newest transaction is older than the session's closes the connection without an answer, because it may
//! only be behind the others. All servers may be like this, for example because an ensemble was replaced by an empty
//! one. Then no server ever reports that the session has expired. So a *probe* opens a new session, makes a write that
//! changes nothing, and closes that session. A majority has ordered the write after everything that the session saw, so
//! its transaction is newer, unless the servers have lost that history.
//!
//! The create of the new session alone proves nothing: a server may keep such a session to itself.

use std::time::Duration;

use lockkeeper_wire::response::Header;
use lockkeeper_wire::{Request, VersionedPath, WriteOp};

use super::{Purpose, Session, State};

/// What suggests that the servers have lost the session's history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// Since when no server has accepted the session, or when the last probe began if that is later.
    pub(super) since: Duration,
    /// How many servers of this round have ended the connection after the connect request, without an answer.
    pub(super) refusals: usize,
}

impl Evidence {
    pub(super) fn new(now: Duration) -> Evidence {
        Evidence { since: now, refusals: 0 }
    }
}

/// An attempt that opens another session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Whether the servers have lost the session's history.
    pub(super) lost: bool,
}

impl Session {
    /// Returns whether the current transport is for a probe.
    pub(crate) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Whether a probe follows this round: every server has refused the session, for a whole session timeout.
    pub(super) fn must_probe(&self, now: Duration) -> bool {
        let known = self.id != 0 && self.newest_zxid > 0 && self.closing.is_none();
        known && self.evidence.refusals == self.order.len() && now >= self.evidence.since + self.timeout
    }

    /// Begins a probe. Each probe asks another server, because one may have lost the others.
    pub(super) fn begin_probe(&mut self, now: Duration) {
        self.at = self.rounds as usize % self.order.len();
        self.probe = Some(Probe { lost: false });
        self.attempt(now);
    }

    /// A server has opened the session of the probe. Makes the write.
    pub(super) fn probe_history(&mut self, now: Duration) {
        self.state = State::Login { until: now + self.timeout / 3 };
        // A transaction of one check. A majority orders it, whether the check succeeds or not, and it changes nothing. No
        // server refuses it ahead of that, also not with `zookeeper.enableEagerACLCheck`.
        let check = WriteOp::Check(VersionedPath { path: "/".to_owned(), version: -1 });
        self.push(&Request::Multi(vec![check]), Purpose::Probe, now);
    }

    /// Handles a reply to a request of the probe.
    pub(super) fn probed(&mut self, purpose: &Purpose, header: Header, now: Duration) {
        if !matches!(purpose, Purpose::Probe) {
            return self.next_server(now);
        }
        // A failed check is an answer too. If the transaction was refused as a whole, the zxid may be anything.
        let ordered = header.error.is_none();
        let lost = ordered && header.zxid > 0 && header.zxid <= self.newest_zxid;
        self.probe = Some(Probe { lost });
        self.push(&Request::CloseSession, Purpose::Close, now);
    }
}
