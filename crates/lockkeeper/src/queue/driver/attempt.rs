//! What one attempt is asked to do, and what wakes its driver.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Class, Payload};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::operations::Outcome;
use crate::contender::ContenderInfo;
use crate::ensemble::{Ensemble, Fired, OpError};
use crate::hold::{HoldOptions, Request};

/// How an attempt is to be made.
pub(crate) struct Attempt {
    pub(crate) path: String,
    /// Taken while the session was usable: were it over by now, the first operation says how it ended.
    pub(crate) ensemble: Arc<dyn Ensemble>,
    pub(crate) payload: Payload,
    /// How many permits there are, where they are counted.
    pub(crate) permits: Option<u32>,
    /// The mark that it is held by, where there are classes.
    pub(crate) mark: Option<String>,
    /// Make the path where it is missing.
    pub(crate) create_parents: bool,
    /// More than so many ahead are too many.
    pub(crate) max_waiters: usize,
    /// Get the lock at once or not at all.
    pub(crate) once: bool,
    /// When to enter anew in another class.
    pub(crate) ageing: Option<(Instant, Class)>,
    pub(crate) timeout: Option<Duration>,
    /// Which servers these are, for messages.
    pub(crate) servers: Arc<str>,
    /// How long the caller bears a lost connection, if not as long as the session may live.
    pub(crate) reconnect: Option<Duration>,
    pub(crate) started: Instant,
    /// When the timeout ends; without one, never.
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: Option<CancellationToken>,
    /// What is to be done about the hold.
    pub(crate) options: HoldOptions,
}

/// What woke the driver.
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

/// What a look at the node first in the queue told.
#[derive(Default)]
pub(super) struct Looked {
    pub(super) name: String,
    pub(super) info: Option<Box<ContenderInfo>>,
    /// It has no session.
    pub(super) sessionless: bool,
    pub(super) holder_behind: bool,
}
