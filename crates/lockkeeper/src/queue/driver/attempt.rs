//! The settings of one attempt, and the events that wake its driver.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Class, Discipline, Event, NodeFormat, Payload};
use lockkeeper_session::ensemble::{Ensemble, Fired};
use lockkeeper_session::{CancellationToken, latest};
use tokio::time::Instant;

use super::operations::Finished;
use crate::hold::spans::WaitRef;
use crate::hold::{HoldOptions, HoldRequest};
use crate::queue::requeue::Rejoin;

/// The settings of an attempt.
pub(crate) struct Attempt {
    pub(crate) path: String,
    /// Taken while the session was usable. If the session is over by now, the first operation reports how it ended.
    pub(crate) ensemble: Arc<dyn Ensemble>,
    pub(crate) payload: Payload,
    /// The span of the caller's wait.
    pub(crate) span: WaitRef,
    pub(crate) discipline: Discipline,
    pub(crate) node_format: NodeFormat,
    /// Look also for contenders beside the path, where this node format has none.
    pub(crate) looks_beside: bool,
    /// When to enter the queue again in another class.
    pub(crate) ageing: Option<(Instant, Class)>,
    pub(crate) timeout: Option<Duration>,
    /// The servers' addresses, for messages.
    pub(crate) servers: Arc<str>,
    /// How often a lost connection is retried before the caller gives up, if not until a server says that the session
    /// is over.
    pub(crate) retries: Option<u32>,
    /// How long the caller tolerates a lost connection if that is not set and the contender has no node in the queue.
    pub(crate) connect_timeout: Duration,
    /// Joins the queue again with a new session, if the caller wants that.
    pub(crate) rejoin: Option<Rejoin>,
    pub(crate) started: Instant,
    /// The end of the timeout; `None` means no timeout.
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: Option<CancellationToken>,
    /// Set to whether it is known to wait for other contenders, if somebody must know.
    pub(crate) waits: Option<Arc<latest::Sender<bool>>>,
    /// The options of the hold.
    pub(crate) options: HoldOptions,
}

/// The event that woke the driver.
pub(super) enum Wake {
    Finished(Box<Finished>),
    Fired(String, Fired),
    Heard(Box<Event>),
    Looked(Box<Finished>),
    Checked(Box<Finished>),
    Due(Timer),
    Probed,
    Deadline,
    Cancelled,
    CallerGone,
    Requested(HoldRequest),
    /// The program missed its liveness limit.
    Unattended,
    LinkChanged,
    Heartbeat,
    Closing,
}

/// What is to be done when its time has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Timer {
    /// Check whether the servers answer.
    Probe,
    /// Watch the own node.
    Linger,
    /// See who holds the lock, because the caller soon stops waiting.
    LastLook,
    /// Write into the record when the lock was granted.
    Date,
    /// Make way for contenders of earlier classes, from now on.
    Yield,
    /// Enter the queue again in another class.
    Age,
    Delay,
    /// The caller tolerates the lost connection no longer.
    CutOff,
}
