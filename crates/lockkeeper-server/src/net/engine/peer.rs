//! What the engine knows of a connection.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper_wire::OpCode;

use crate::account::Exchange;
use crate::machine::Identity;
use crate::net::outbox::{Outbox, Waited};

/// What the engine knows of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// Whom its transport has proved it to be, until it has greeted. Boxed, for hardly any has one.
    pub(super) identity: Option<Box<Identity>>,
    pub(super) outbox: Rc<Outbox>,
    /// Has sent its connect request.
    pub(super) greeted: bool,
    /// Has presented the secret, or there is none.
    pub(super) trusted: bool,
    /// Opened its session itself, so an untrusted one goes with it.
    pub(super) opened_session: bool,
    /// A SASL exchange that waits for the client's answer. Boxed, for hardly any has one.
    pub(super) exchange: Option<Box<Exchange>>,
    pub(super) established_ms: i64,
    pub(super) last: Cell<Last>,
}

/// The last request of a connection and the answers so far, since the connection came or its counts were started anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    /// The last number that a client gave a request, −1 before the first.
    pub(crate) xid: i32,
    /// The operation of the last request, 0 before the first.
    operation: i32,
    /// The transaction that the last answer tells, −1 before the first.
    pub(crate) zxid: i64,
    /// When the last answer was given, by the server's clock.
    pub(crate) answered: Duration,
    /// How long that took, and the extremes and the sum of all.
    pub(crate) latency: Duration,
    least: Option<Duration>,
    pub(crate) most: Duration,
    total: Duration,
    answers: u64,
}

impl Last {
    pub(super) const NOTHING: Last = Last {
        xid: -1,
        operation: 0,
        zxid: -1,
        answered: Duration::ZERO,
        latency: Duration::ZERO,
        least: None,
        most: Duration::ZERO,
        total: Duration::ZERO,
        answers: 0,
    };

    /// Pings and the like have a negative number, which is none.
    pub(super) fn asked(self, xid: i32, operation: i32) -> Self {
        Last { xid: if xid < 0 { self.xid } else { xid }, operation, ..self }
    }

    pub(super) fn with_zxid(self, zxid: i64) -> Self {
        Last { zxid, ..self }
    }

    /// Counts answers that took `total` together, the last of them `latency`.
    pub(super) fn answered(self, now: Duration, waited: &Waited) -> Self {
        let Some(count) = u32::try_from(waited.frames).ok().filter(|count| *count > 0) else { return self };
        let (latency, most) = (now.saturating_sub(waited.last), now.saturating_sub(waited.first));
        Last {
            answered: now,
            latency,
            least: Some(self.least.map_or(latency, |least| least.min(latency))),
            most: self.most.max(most),
            total: self.total + (now * count).saturating_sub(waited.sum),
            answers: self.answers + waited.frames,
            ..self
        }
    }

    pub(crate) fn operation(&self) -> Option<OpCode> {
        OpCode::from_i32(self.operation)
    }

    pub(crate) fn least(&self) -> Duration {
        self.least.unwrap_or_default()
    }

    pub(crate) fn mean(&self) -> Duration {
        self.total / u32::try_from(self.answers).unwrap_or(u32::MAX).max(1)
    }
}

/// What an operator may know of a connection.
#[derive(Debug)]
pub(crate) struct PeerReport {
    pub(crate) address: SocketAddr,
    /// Frames that wait for the disk.
    pub(crate) queued: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) established_ms: i64,
    pub(crate) last: Last,
    /// Its session and that one's timeout.
    pub(crate) session: Option<(i64, Duration)>,
}
