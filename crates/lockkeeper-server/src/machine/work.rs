//! Work: what the one thread that serves all clients does for a request.
//!
//! Everything whose amount a request can choose is counted here where it is done: operations, entries of access lists that are
//! compared, visited nodes, names of a list, events, and bytes that the next batch gets besides those of the request. A unit
//! is 0.10 to 0.15 microseconds of an optimised build.
//!
//! A request takes [`MOST`] units at most, and is refused before it changes anything if it would take more. The driver gets
//! the number of units, so that one client with many requests does not keep the others waiting.

use lockkeeper_wire::ErrorCode;

use crate::machine::identity::{ENTRIES, LIST_BYTES};
use crate::machine::limits::Limits;

/// The most that one request may take: about 40 ms.
pub(crate) const MOST: usize = 300_000;

/// A request, whatever it asks for.
pub(crate) const REQUEST: usize = 5;
/// An operation of a read, or a check: a look-up.
pub(crate) const LOOK_UP: usize = 5;
/// An operation that changes a node, with its place in the next batch.
pub(crate) const CHANGE: usize = 25;
/// A watch that is set again.
pub(crate) const WATCH: usize = 6;
/// A node that is visited besides those that the request names.
pub(crate) const VISIT: usize = 3;
/// An event for a client, without its path.
const EVENT: usize = 3;

/// An event with a path and an access list of the usual limits.
pub(crate) const LONGEST_EVENT: usize = EVENT + ENTRIES + (4 << 10) / 64;

/// Returns the units of an operation with this path: it is checked, hashed and copied.
pub(crate) fn path(path: &str) -> usize {
    path.len() / 16
}

/// Returns the units of bytes that are copied into an answer.
pub(crate) fn answer(bytes: usize) -> usize {
    bytes / 256
}

/// Returns the units of bytes that the next batch gets: they are copied, and the disk writes them.
pub(crate) fn batch(bytes: usize) -> usize {
    bytes / 16
}

/// Returns the units of the events of one change: each client's identities are compared with the list, and each gets a copy of
/// the path.
pub(crate) fn events(clients: usize, path: &str, entries: usize) -> usize {
    clients.saturating_mul(EVENT + entries + path.len() / 64)
}

/// A limit that a request exceeds, for the log: the client gets a code only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The work of one request.
    Work,
    /// Bytes of a new node's path.
    PathBytes,
    /// Names in it.
    PathDepth,
    /// Ephemeral nodes of a session.
    Ephemerals,
    /// Entries and bytes of an access list.
    AccessList,
}

impl Limit {
    /// Returns what is limited, its value and the flag of `lockkeeper serve`, or what to do.
    pub(crate) fn explain(self, limits: &Limits) -> String {
        let Limits { path_bytes, path_depth, ephemerals, .. } = limits;
        match self {
            Self::Work => format!("a request takes at most {MOST} units of work: send several requests"),
            Self::PathBytes => format!("a path has at most {path_bytes} bytes (--max-path)"),
            Self::PathDepth => format!("a path has at most {path_depth} names (--max-depth)"),
            Self::Ephemerals => format!("a session has at most {ephemerals} ephemeral nodes (--max-ephemerals)"),
            Self::AccessList => format!("an access list has at most {ENTRIES} entries and {LIST_BYTES} bytes"),
        }
    }
}

/// The work of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    done: usize,
    /// Events that the request will cause, counted before it changes anything.
    foreseen: usize,
    exceeded: Option<Limit>,
}

impl Work {
    /// Counts units; `None` if the request takes too many with them.
    pub(crate) fn take(&mut self, units: usize) -> Option<()> {
        self.room_for(units)?;
        self.done += units;
        Some(())
    }

    /// Counts the units of events that the request will cause; `None` if it takes too many with them.
    pub(crate) fn foresee(&mut self, units: usize) -> Option<()> {
        self.room_for(units)?;
        self.foreseen += units;
        Some(())
    }

    fn room_for(&mut self, units: usize) -> Option<()> {
        let room = MOST.checked_sub(self.done + self.foreseen).and_then(|left| left.checked_sub(units));
        if room.is_none() {
            self.exceeded = Some(Limit::Work);
        }
        room.map(drop)
    }

    /// Notes the limit that the request exceeds, and returns the answer.
    pub(crate) fn refuse(&mut self, limit: Limit, answer: ErrorCode) -> ErrorCode {
        self.exceeded = Some(limit);
        answer
    }

    /// Returns the units that are done.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Returns the limit that the request exceeds.
    pub(crate) fn exceeded(&self) -> Option<Limit> {
        self.exceeded
    }
}
