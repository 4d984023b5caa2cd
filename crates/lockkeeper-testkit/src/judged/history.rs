//! What happened around some locks, to be judged afterwards by what was promised.
//!
//! Simulated worlds and chaos on real servers record the same events, so one judge serves both. Each event says when it began
//! and when it ended, by one clock. What lies between is not known, and the judge accuses nobody of what only may have been.

mod judge;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use judge::{Claim, Promises, Tally, Verdict, Violation, judge};

/// Something that was done, by whom, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Who did it, or to whom it happened.
    pub contender: u32,
    /// At which lock.
    pub lock: u32,
    /// It had not been done before this.
    pub from: Duration,
    /// It had been done by then.
    pub until: Duration,
    /// What it was.
    pub what: What,
}

/// Tells a hold from all others of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HoldId(pub u64);

/// What can be done to a lock, or befall those who use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// It was asked for. The event begins with the call and ends with its outcome.
    Asked {
        /// How long the caller was ready to wait; `None`: for ever.
        limit: Option<Duration>,
        /// What came of it.
        outcome: Outcome,
    },
    /// The guard was asked whether the lock is held.
    Looked {
        /// Which.
        hold: HoldId,
        /// What it said.
        held: bool,
    },
    /// The guard was asked how far it may be trusted. The first such look after a grant or a change is at its very beginning.
    Trusted {
        /// Which.
        hold: HoldId,
        /// Whether a server was connected that had confirmed something since.
        sure: bool,
        /// For how long without hearing from a server again.
        left: Duration,
    },
    /// What is held was changed for something else.
    Changed {
        /// Which.
        hold: HoldId,
        /// What it is now.
        share: Share,
        /// Its token now.
        token: Option<i64>,
    },
    /// It was released. The event begins with the call and ends with its answer.
    Released {
        /// Which.
        hold: HoldId,
        /// Whether the server has confirmed it.
        confirmed: bool,
    },
    /// A write reached a resource that looks at tokens.
    Wrote {
        /// Under which hold.
        hold: HoldId,
        /// The token it came with.
        token: i64,
        /// Its place in the resource's own order.
        order: u64,
        /// Whether the resource took it.
        accepted: bool,
    },
    /// The process could not run.
    Stopped,
    /// The process ended without a word.
    Died,
    /// When all was over, these nodes were still there.
    LeftBehind {
        /// Their names.
        nodes: Vec<String>,
    },
}

/// What came of asking for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is held.
    Granted(Grant),
    /// It was not free, and the call did not wait.
    Refused,
    /// Not within the time given.
    TimedOut,
    /// The caller went away.
    Dropped,
    /// Another error that may come of a world like this.
    Failed(String),
    /// Nothing, when the history ended.
    Pending,
}

/// A hold as it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Which.
    pub hold: HoldId,
    /// Beside whom it may be.
    pub share: Share,
    /// Its fencing token, where its kind has one.
    pub token: Option<i64>,
    /// Its place in the queue, where places can be compared through the whole history.
    pub place: Option<Place>,
}

/// Beside whom a hold may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share {
    /// Nobody.
    Alone,
    /// Others that read.
    Reads,
    /// Others, as long as there are permits.
    Permits(u32),
}

/// A contender's place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Order is kept within a class.
    pub class: u32,
    /// The smaller came first.
    pub number: i64,
}
