//! The settings of one attempt, and the events that wake its driver.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Class, Discipline, Payload};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::operations::Outcome;
use crate::contender::ContenderInfo;
use crate::ensemble::{Ensemble, Fired, OpError};
use crate::hold::{HoldOptions, Request};

/// The settings of an attempt.
pub(crate) struct Attempt {
    pub(crate) path: String,
    /// Taken while the session was usable. If the session is over by now, the first operation reports how it ended.
    pub(crate) ensemble: Arc<dyn Ensemble>,
    pub(crate) payload: Payload,
    pub(crate) discipline: Discipline,
    /// Create the path if it is missing.
    pub(crate) create_parents: bool,
    /// When to enter the queue again in another class.
    pub(crate) ageing: Option<(Instant, Class)>,
    pub(crate) timeout: Option<Duration>,
    /// The servers' addresses, for messages.
    pub(crate) servers: Arc<str>,
    /// How long the caller tolerates a lost connection, if not as long as the session may live.
    pub(crate) reconnect: Option<Duration>,
    pub(crate) started: Instant,
    /// The end of the timeout; `None` means no timeout.
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: Option<CancellationToken>,
    /// The options of the hold.
    pub(crate) options: HoldOptions,
}

/// The event that woke the driver.
pub(super) enum Wake {
    Outcome(Outcome),
    Fired(String, Fired),
    Looked(Looked),
    Verified(Result<(), OpError>),
    Lingered,
    DelayOver(String),
    Aged,
    NearDeadline,
    Probed,
    Deadline,
    CutOff,
    Cancelled,
    CallerGone,
    Requested(Request),
    LinkChanged,
    Proved,
    Closing,
}

/// The result of reading the first node of the queue.
#[derive(Default)]
pub(super) struct Looked {
    pub(super) name: String,
    pub(super) info: Option<Box<ContenderInfo>>,
    /// The node belongs to no session.
    pub(super) sessionless: bool,
    pub(super) holder_behind: bool,
}
