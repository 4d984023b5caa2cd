//! Histories of locks, which are judged afterwards by the promises.
//!
//! Simulated worlds, and library calls, commands and jobs on real servers record the same events, so one judge serves all.
//! Each event has the times of its beginning and its end, by one clock. The exact time between them is unknown, and the
//! judge reports only certain violations.

mod judge;
mod slots;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use judge::{Claim, Health, Promises, Tally, Verdict, Violation, judge};

/// An action or an occurrence, with its contender and its times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The contender that acted, or that was affected.
    pub contender: u32,
    /// The number of the lock.
    pub lock: u32,
    /// It happened after this time.
    pub from: Duration,
    /// It happened before this time.
    pub until: Duration,
    /// The action or occurrence.
    pub what: What,
}

/// The identity of a hold in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HoldId(pub u64);

/// An action on a lock, or an occurrence that affects its users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// The lock was requested. The event begins with the call and ends with its outcome.
    Asked {
        /// The time limit of the caller; `None`: no limit.
        limit: Option<Duration>,
        outcome: Outcome,
    },
    /// The guard was asked whether the lock is held.
    Looked { hold: HoldId, held: bool },
    /// The guard was asked how long it may be trusted. The first such event after a grant or a change comes at its very
    /// beginning.
    Trusted {
        hold: HoldId,
        /// Whether a server was connected that had confirmed a write since.
        sure: bool,
        /// How long it may be trusted without another answer of a server.
        left: Duration,
    },
    /// The hold was changed: upgraded or downgraded.
    Changed { hold: HoldId, share: Share, token: Option<i64> },
    /// The hold is a use of the hold that `first` was a use of: one hold for all other contenders, with one token.
    Joins { hold: HoldId, first: HoldId },
    /// After a loss of the hold, the lock stays unavailable for this long.
    Delays { hold: HoldId, delay: Duration },
    /// Somebody broke the hold, at this time by the servers. Its holder learns of that within a time.
    Broken { hold: HoldId, within: Duration },
    /// Somebody looked at the lock at the beginning of the event, and broke the hold of the holder that was seen: this one.
    Aimed { hold: HoldId },
    /// Somebody ended the delay of the hold, at this time by the servers.
    Pardoned { hold: HoldId },
    /// The hold made way for contenders of earlier classes. The event ends when its contender holds the lock again, as another hold, or
    /// does not wait any more.
    Yielded { hold: HoldId },
    /// A lease of the hold began during the event, with the grant or later.
    Leased {
        hold: HoldId,
        priority: i32,
        /// Whether the hold ends with the lease.
        strict: bool,
        /// When the lease ends: not before the first of these times, and not after the second.
        ends: (Duration, Duration),
    },
    /// A hold with a lease was found lost.
    Ended { hold: HoldId, cause: Cause },
    /// A request with this priority, or of the foreground, was under way during the event.
    Wanted { priority: i32 },
    /// An observer of an election reported the leader with this token, or that there is none.
    Reported { token: Option<i64> },
    /// A call for several locks may have held this one meanwhile.
    Reserved,
    /// A call for several locks was granted these, and so many of them were held at that moment.
    Together { wanted: usize, held: usize },
    /// A write that depends on the hold was sent. The event ends with its answer.
    Fenced {
        hold: HoldId,
        token: i64,
        /// Whether it took effect, as the answer said; `None`: it had none.
        answer: Option<bool>,
        /// Its transaction and its time by the servers, if it took effect.
        done: Option<(i64, Duration)>,
    },
    /// The hold was released. The event begins with the call and ends with its answer.
    Released {
        hold: HoldId,
        /// Whether the server has confirmed the release.
        confirmed: bool,
    },
    /// A write reached a resource that checks tokens.
    Wrote {
        /// The hold of the writer.
        hold: HoldId,
        /// The token of the write.
        token: i64,
        /// Its position in the resource's own order.
        order: u64,
        /// Whether the resource accepted it.
        accepted: bool,
    },
    /// The number in a resource was read, which each write increments.
    Read {
        hold: HoldId,
        /// The position of the last write, in the resource's own order.
        order: u64,
    },
    /// Because of a fault, the hold may be believed beside another one, or beside any, from the beginning of the event until
    /// its end.
    Excused { hold: HoldId, beside: Option<HoldId> },
    /// The contender was seen waiting at the beginning of the event, and stopped waiting before its end.
    Waited {
        /// The class in which it waited.
        class: u32,
        /// Nothing changed its position until then.
        kept: Duration,
        /// Whether the end is the time of its grant, to be the only holder.
        exact: bool,
        /// How uncertain the end is otherwise.
        slack: Duration,
    },
    /// A slot of a job came due.
    Due { slot: String },
    /// A run claimed a slot at this time, as its record says.
    Claimed {
        slot: String,
        token: i64,
        /// The slot that this time is in, unless slots depend on the last start.
        due: Option<String>,
        /// How the run ended.
        ended: Option<String>,
        /// How many slots the record says were missed before this one.
        missed: u64,
    },
    /// Work was done for a slot under this token.
    Worked { slot: String, token: i64 },
    /// The process could not run.
    Stopped,
    /// The process ended without notice.
    Died,
    /// At the end of the run, these nodes still existed.
    LeftBehind { nodes: Vec<String> },
}

/// Why a hold with a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    LeaseEnded,
    Preempted,
    Other,
}

/// The outcome of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The lock was granted.
    Granted(Grant),
    /// The lock was not free, and the call did not wait.
    Refused,
    /// The lock was not granted within the time limit.
    TimedOut,
    /// The caller dropped the call.
    Dropped,
    /// Another error that this world may cause.
    Failed(String),
    /// None until the end of the history.
    Pending,
}

/// A hold at its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub hold: HoldId,
    /// Which other holds may exist beside it.
    pub share: Share,
    /// Its fencing token, if its kind has tokens.
    pub token: Option<i64>,
    /// Its position in the queue, if positions can be compared through the whole history.
    pub place: Option<QueuePosition>,
}

/// Which other holds may exist beside a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share {
    /// No other hold.
    Alone,
    Reads,
    /// Other holds, as long as there are permits.
    Permits(u32),
}

/// A contender's position in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePosition {
    /// The class; order is kept within a class.
    pub class: u32,
    /// The number; the smaller one came first. `None`: unknown.
    pub number: Option<i64>,
}
