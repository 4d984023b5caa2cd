//! The settings of one attempt, and the events that wake its driver.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AttemptId, Class, Event, Payload};
use lockkeeper_session::Sessions;
use lockkeeper_session::ensemble::{Ensemble, Fired};
use tokio::time::Instant;

use super::operations::Finished;
use crate::hold::HoldRequest;
use crate::queue::acquire::{CallOptions, LockKind};

/// One attempt of a call.
pub(crate) struct Attempt {
    pub(crate) kind: LockKind,
    /// The options of the call.
    pub(crate) terms: CallOptions,
    /// Taken while the session was usable. If the session is over by now, the first operation reports how it ended.
    pub(crate) ensemble: Arc<dyn Ensemble>,
    /// When to enter the queue again in another class.
    pub(crate) ageing: Option<(Instant, Class)>,
    pub(crate) started: Instant,
    /// The same by the clock of this machine, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// The end of the timeout; `None` means no timeout.
    pub(crate) deadline: Option<Instant>,
}

impl Attempt {
    pub(super) fn path(&self) -> &str {
        self.kind.path.as_str()
    }

    fn sessions(&self) -> &Sessions {
        self.terms.keeper.sessions()
    }

    /// The servers' addresses, for messages.
    pub(super) fn servers(&self) -> String {
        self.sessions().servers().to_string()
    }

    /// How often a lost connection is retried before the caller gives up, if not until a server says that the session is over.
    pub(super) fn retries(&self) -> Option<u32> {
        self.sessions().retries()
    }

    /// How long the caller tolerates a lost connection if that is not set and the contender has no node in the queue.
    pub(super) fn connect_timeout(&self) -> Duration {
        if self.terms.waits_on() { Duration::MAX } else { self.sessions().connect_timeout() }
    }

    /// The record of its node.
    pub(super) fn payload(&self, id: AttemptId) -> Payload {
        let CallOptions { keeper, message, holds, traceparent, .. } = &self.terms;
        let payload = Payload::new(id, keeper.owner().clone(), message.as_deref(), self.since_ms);
        let payload =
            payload.of_process(keeper.process()).while_holding(holds.clone()).upgradeable(self.kind.upgradeable);
        payload.traced(traceparent.as_ref().and_then(|parsed| parsed.as_ref().ok()).copied())
    }
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
    /// The caller waits no longer.
    Deadline,
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
