//! What the proxy saw and what it did about it: counts to wait for, records to assert on.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_wire::OpCode;

/// Which way a frame travels.
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
    /// How many there were of this opcode.
    #[must_use]
    pub fn of(&self, op: OpCode) -> u64 {
        self.0.get(&op).copied().unwrap_or(0)
    }

    /// How many there were of these opcodes together, for instance of [`OpCode::CREATES`].
    #[must_use]
    pub fn of_any(&self, ops: &[OpCode]) -> u64 {
        ops.iter().map(|op| self.of(*op)).sum()
    }

    /// How many there were of all opcodes but pings: a ping comes when the client was idle, no test asked for it.
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

/// How much has passed since the proxy was started, over all its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests read from clients; what becomes of each is decided a moment later.
    pub requested: Tally,
    /// Requests written to the server.
    pub forwarded: Tally,
    /// Requests lost in a black hole. Wait for this, not for `requested`, before healing it: a request that was read but
    /// not yet swallowed passes when the proxy is healed.
    pub swallowed: Tally,
    /// Replies read from the server, whatever becomes of them: what it answered has taken effect.
    pub answered: Tally,
    /// Replies written to clients.
    pub delivered: Tally,
    /// Watch events written to clients.
    pub watch_events: u64,
    /// Connections accepted, the refused ones not among them.
    pub accepted: u64,
    /// Connections refused.
    pub refused: u64,
    /// Connections open at this moment.
    pub open: u64,
}

impl Counts {
    /// What has come since `earlier`, counts of the same proxy. `open` stays what it is now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requested: self.requested.since(&earlier.requested),
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

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was passed on as it came.
    Passed,
    /// It was swallowed in silence.
    Swallowed,
    /// Nothing of it, or only its beginning, was passed on before the connection was cut.
    CutOff,
    /// Other bytes were passed on in its place.
    Replaced,
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It was accepted.
    Opened,
    /// Both its ends are closed.
    Closed,
    /// A request's fate was decided. A held request is recorded when it is released.
    Request {
        /// The client's number for it; 0 for the ConnectRequest.
        xid: i32,
        /// What it asks for.
        op: OpCode,
        /// The path it is about, of a multi its first.
        path: Option<String>,
        /// What became of it.
        fate: Fate,
    },
    /// A reply's fate was decided. A held reply is recorded when it is released.
    Reply {
        /// The number of the request it answers.
        xid: i32,
        /// That request's opcode.
        op: OpCode,
        /// That request's path.
        path: Option<String>,
        /// The server's transaction id; 0 for the ConnectResponse.
        zxid: i64,
        /// The error code, 0 for none.
        err: i32,
        /// What became of it.
        fate: Fate,
    },
    /// A watch event's fate was decided.
    Watch {
        /// The event's type on the wire: 1 created, 2 deleted, 3 data changed, 4 children changed.
        event: i32,
        /// The path it is about.
        path: Option<String>,
        /// What became of it.
        fate: Fate,
    },
    /// Bytes that are no frame, or no frame that could be placed.
    Raw {
        /// Which way they went.
        direction: Direction,
        /// How many there were.
        length: usize,
        /// What became of them.
        fate: Fate,
    },
}

/// One line of the proxy's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, counted from the proxy's start.
    pub at: Duration,
    /// On which connection, counted from 0 in the order of their opening.
    pub connection: u64,
    /// What happened.
    pub what: What,
}
