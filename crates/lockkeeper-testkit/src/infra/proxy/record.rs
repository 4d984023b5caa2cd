//! The history of the proxy: counts for waits, records for assertions.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_wire::OpCode;

use super::frame::Request;

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// A request, from the client to the server.
    ToServer,
    /// A reply or a watch event, from the server to the client.
    ToClient,
}

/// A number of frames for each opcode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<OpCode, u64>);

impl Tally {
    /// Returns the number of frames with this opcode.
    #[must_use]
    pub fn of(&self, op: OpCode) -> u64 {
        self.0.get(&op).copied().unwrap_or(0)
    }

    /// Returns the number of frames with these opcodes, for instance with [`OpCode::CREATES`].
    #[must_use]
    pub fn of_any(&self, ops: &[OpCode]) -> u64 {
        ops.iter().map(|op| self.of(*op)).sum()
    }

    /// Returns the number of frames without pings: an idle client sends pings that no test requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().filter(|(op, _)| **op != OpCode::Ping).map(|(_, count)| count).sum()
    }

    pub(super) fn add(&mut self, op: OpCode) {
        *self.0.entry(op).or_default() += 1;
    }

    fn since(&self, earlier: &Self) -> Self {
        let grown = self.0.iter().map(|(op, count)| (*op, count - earlier.of(*op)));
        Self(grown.filter(|(_, count)| *count > 0).collect())
    }
}

/// The numbers of frames since the proxy was started, over all its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests read from clients; their fate is decided a moment later.
    pub requested: Tally,
    /// The same, with the operations of each multi in place of the multi.
    pub operations: Tally,
    /// Requests written to the server.
    pub forwarded: Tally,
    /// Requests lost in a black hole. Wait for this, not for `requested`, before a heal: a request that was read but
    /// not yet dropped passes when the proxy is healed.
    pub swallowed: Tally,
    /// Replies read from the server, whatever their fate: the answered requests have taken effect.
    pub answered: Tally,
    /// Replies written to clients.
    pub delivered: Tally,
    /// Watch events written to clients.
    pub watch_events: u64,
    /// Connections accepted, without the refused ones.
    pub accepted: u64,
    pub refused: u64,
    /// Connections that are open now.
    pub open: u64,
}

impl Counts {
    pub(super) fn request(&mut self, request: &Request) {
        self.requested.add(request.op);
        match &request.parts[..] {
            [] => self.operations.add(request.op),
            parts => parts.iter().for_each(|(op, _)| self.operations.add(*op)),
        }
    }

    /// Returns the differences to `earlier` counts of the same proxy. `open` keeps its value.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requested: self.requested.since(&earlier.requested),
            operations: self.operations.since(&earlier.operations),
            forwarded: self.forwarded.since(&earlier.forwarded),
            swallowed: self.swallowed.since(&earlier.swallowed),
            answered: self.answered.since(&earlier.answered),
            delivered: self.delivered.since(&earlier.delivered),
            watch_events: self.watch_events - earlier.watch_events,
            accepted: self.accepted - earlier.accepted,
            refused: self.refused - earlier.refused,
            open: self.open,
        }
    }
}

/// The fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was passed on unchanged.
    Passed,
    /// It was dropped silently.
    Swallowed,
    /// The connection was cut before the frame, or all of it, was passed on.
    CutOff,
    /// Other bytes were passed on instead.
    Replaced,
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Opened,
    /// Both its ends are closed.
    Closed,
    /// An operation of the multi that was recorded before it.
    Part {
        op: OpCode,
        path: String,
    },
    /// The fate of a request was decided. A held request is recorded when it is released.
    Request {
        /// The client's number for it; 0 for the ConnectRequest.
        xid: i32,
        op: OpCode,
        /// Its path; for a multi, the first one.
        path: Option<String>,
        fate: Fate,
    },
    /// The fate of a reply was decided. A held reply is recorded when it is released.
    Reply {
        /// The number of the request it answers.
        xid: i32,
        op: OpCode,
        path: Option<String>,
        /// The server's transaction id; 0 for the ConnectResponse.
        zxid: i64,
        /// The error code, 0 for none.
        err: i32,
        fate: Fate,
    },
    /// The fate of a watch event was decided.
    Watch {
        /// The event's type on the wire: 1 created, 2 deleted, 3 data changed, 4 children changed.
        event: i32,
        path: Option<String>,
        fate: Fate,
    },
    /// Bytes that are not a frame, or a frame that could not be assigned.
    Raw {
        direction: Direction,
        length: usize,
        fate: Fate,
    },
}

/// One line of the proxy's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time since the proxy's start.
    pub at: Duration,
    /// The connection, counted from 0 in the order of opening.
    pub connection: u64,
    pub what: What,
}
