//! Connections of the engine.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper_wire::OpCode;

use crate::account::Exchange;
use crate::machine::Identity;
use crate::net::engine::half_open::HalfOpen;
use crate::net::outbox::{Outbox, WaitingFrames};
use crate::net::peer::Peer;

/// A connection of the engine.
#[derive(Debug)]
pub(super) struct ConnectionState {
    pub(super) address: Peer,
    /// The identity that its transport has proved, until its first frame. Boxed, because few connections have one.
    pub(super) identity: Option<Box<Identity>>,
    pub(super) outbox: Rc<Outbox>,
    /// Whether it has sent its connect request.
    pub(super) greeted: bool,
    /// Its place among the half-open connections, until it has presented the secret.
    pub(super) half_open: Option<Rc<HalfOpen>>,
    /// A SASL exchange that waits for the client's answer. Boxed, because few connections have one.
    pub(super) exchange: Option<Box<Exchange>>,
    pub(super) established_ms: i64,
    pub(super) last: Cell<RequestStats>,
}

/// The last request of a connection, and the times of its answers since the last reset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestStats {
    /// The number of the last request, −1 before the first.
    pub(crate) xid: i32,
    /// The operation of the last request, 0 before the first.
    operation: i32,
    /// The zxid of the last answer, −1 before the first.
    pub(crate) zxid: i64,
    /// The server's clock at the last answer.
    pub(crate) answered: Duration,
    /// The last, the shortest, the longest and the total time.
    pub(crate) latency: Duration,
    shortest: Option<Duration>,
    pub(crate) longest: Duration,
    total: Duration,
    answers: u64,
}

impl RequestStats {
    pub(super) const NONE: RequestStats = RequestStats {
        xid: -1,
        operation: 0,
        zxid: -1,
        answered: Duration::ZERO,
        latency: Duration::ZERO,
        shortest: None,
        longest: Duration::ZERO,
        total: Duration::ZERO,
        answers: 0,
    };

    /// The negative numbers of pings and the like are not shown.
    pub(super) fn asked(self, xid: i32, operation: i32) -> Self {
        RequestStats { xid: if xid < 0 { self.xid } else { xid }, operation, ..self }
    }

    pub(super) fn with_zxid(self, zxid: i64) -> Self {
        RequestStats { zxid, ..self }
    }

    /// Counts answers that could be sent at `now`.
    pub(super) fn answered(self, now: Duration, frames: &WaitingFrames) -> Self {
        let Some(count) = u32::try_from(frames.frames).ok().filter(|count| *count > 0) else { return self };
        let (latency, longest) = (now.saturating_sub(frames.last), now.saturating_sub(frames.first));
        RequestStats {
            answered: now,
            latency,
            shortest: Some(self.shortest.map_or(latency, |shortest| shortest.min(latency))),
            longest: self.longest.max(longest),
            total: self.total + (now * count).saturating_sub(frames.sum),
            answers: self.answers + frames.frames,
            ..self
        }
    }

    pub(crate) fn operation(&self) -> Option<OpCode> {
        OpCode::from_i32(self.operation)
    }

    pub(crate) fn shortest(&self) -> Duration {
        self.shortest.unwrap_or_default()
    }

    pub(crate) fn mean(&self) -> Duration {
        self.total / u32::try_from(self.answers).unwrap_or(u32::MAX).max(1)
    }
}

/// The state of a connection for operators.
#[derive(Debug)]
pub(crate) struct PeerReport {
    pub(crate) address: Peer,
    /// Frames that wait for the disk.
    pub(crate) queued: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) established_ms: i64,
    pub(crate) last: RequestStats,
    /// Its session and the session's timeout.
    pub(crate) session: Option<(i64, Duration)>,
}
