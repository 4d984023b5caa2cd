//! What the driver of an attempt remembers, and what it waits for.

use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkeeper_core::{LocalKey, Loss};
use lockkeeper_session::ensemble::{OpError, Watcher};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::operations::Finished;
use crate::contender::ContenderInfo;
use crate::hold::note::Note;

/// The patience of the caller while the connection is lost, or while a release is not confirmed.
#[derive(Default)]
pub(super) struct Disconnect {
    /// Until when the caller tolerates that.
    pub(super) cut_off: Option<Instant>,
    /// The number of failed tries at which its retries are used up.
    pub(super) last_try: Option<u32>,
    /// The number of disconnects when they were last checked.
    pub(super) count: u32,
}

/// A change of the hold that the caller requested.
#[derive(Default)]
pub(super) struct HoldChange {
    /// Notified when it has happened.
    pub(super) caller: Option<oneshot::Sender<()>>,
    /// When it happened, by the session's clock, while it waits until the session is trusted again.
    pub(super) happened_at: Option<Duration>,
}

/// A question to the servers whether they confirm the hold.
#[derive(Default)]
pub(super) struct Verification {
    /// Notified with the answer.
    pub(super) callers: Vec<oneshot::Sender<Result<(), String>>>,
    /// When the check was sent, by the session's clock.
    pub(super) sent: Duration,
}

/// How old a node must be before its own contender watches it.
///
/// The watch costs a read. It reports an operator who deletes the node, and a request to release the lock. A hold or
/// wait shorter than this is over before either could happen. No hold shorter than this writes when it began.
pub(super) const LINGER: Duration = Duration::from_millis(100);

/// How long after the create of its node a grant is late: then the create does not tell when the hold began.
const LATE: Duration = Duration::from_secs(1);

/// How old another hold is when its record says when it began. Others cannot know whether it waited for less than [`LATE`], or
/// waited for long and has not said so yet.
const SETTLED: Duration = Duration::from_secs(10);

/// When the own node was created, and when the lock was granted.
#[derive(Default)]
pub(super) struct HoldTimes {
    /// When its create was sent, by the session's clock.
    sent: Duration,
    /// When the servers created it at the latest, by the session's clock, if that is known to a second.
    created: Option<Duration>,
    /// When its create was answered, or sent if the answer was lost, by the session's clock.
    entered: Duration,
    /// When it was created, in milliseconds since 1970 by the servers' clock, once that was read.
    pub(super) created_ms: Option<i64>,
    /// When the lock, or the upgrade, was granted, by the session's clock.
    granted: Option<Duration>,
    /// When the record is to say that.
    pub(super) due: Option<Instant>,
}

impl HoldTimes {
    /// When its create was answered, by the session's clock.
    pub(super) fn queued(&self) -> Duration {
        self.entered
    }

    /// Begins with a new node.
    pub(super) fn enters(&mut self, now: Duration) {
        *self = HoldTimes { sent: now, entered: now, ..HoldTimes::default() };
    }

    /// The create was answered. It may have waited for a connection.
    pub(super) fn entered(&mut self, now: Duration) {
        self.entered = now;
        self.created = (now.saturating_sub(self.sent) <= LATE).then_some(now);
    }

    /// It waits again, for its next hold.
    pub(super) fn waits_again(&mut self, now: Duration) {
        self.entered = now;
    }

    /// The lock is granted.
    pub(super) fn grant(&mut self, now: Duration) {
        self.granted = Some(now);
        let is_late = now.saturating_sub(self.entered) > LATE;
        self.due = Some(Instant::now() + if is_late { LINGER } else { SETTLED });
    }

    /// The hold goes on with a node that is as old as what its name says.
    pub(super) fn moves(&mut self) {
        (self.granted, self.due, self.created) = (None, None, None);
    }

    /// When the lock was granted, in milliseconds since 1970 by the servers' clock: the create of the node plus what has passed since
    /// the answer. It is early by the time that the answer took, and late by that time if the answer was lost.
    pub(super) fn granted_ms(&self) -> Option<u64> {
        let waited = self.granted?.saturating_sub(self.entered);
        u64::try_from(self.created_ms?).ok()?.checked_add(u64::try_from(waited.as_millis()).ok()?)
    }

    /// Returns this moment of the session's clock in milliseconds since 1970 by the servers' clock, if that is known to a second.
    pub(super) fn servers_ms(&self, moment: Duration) -> Option<u64> {
        let since = moment.checked_sub(self.created?)?;
        u64::try_from(self.created_ms?).ok()?.checked_add(u64::try_from(since.as_millis()).ok()?)
    }
}

/// The note about the hold, and what it says.
#[derive(Default)]
pub(super) struct Noting {
    pub(super) note: Option<Box<Note>>,
    /// Whether it is written.
    pub(super) written: bool,
    /// The holder that was last seen before the grant.
    pub(super) before: Option<Box<ContenderInfo>>,
    /// When the hold began, and how and when it was lost, by the session's clock.
    pub(super) span: Option<(Duration, Option<(Loss, Duration)>)>,
    /// When the first delete of its node was sent.
    pub(super) left: Option<Duration>,
}

/// What the driver waits for.
#[derive(Default)]
pub(super) struct Pending {
    /// The operation of the contender's command.
    pub(super) flight: Option<BoxFuture<'static, Finished>>,
    /// Those of this session that the listing under way serves too have smaller keys.
    pub(super) listing_before: Option<LocalKey>,
    /// The read of the first of the queue.
    pub(super) look: Option<BoxFuture<'static, Finished>>,
    /// The check of the hold.
    pub(super) check: Option<BoxFuture<'static, Finished>>,
    /// The check whether the servers answer, and when it was sent, by the session's clock.
    pub(super) probe: Option<BoxFuture<'static, Result<(), OpError>>>,
    pub(super) probed_at: Duration,
    /// When to check that.
    pub(super) probe_at: Option<Instant>,
    /// When to look again who holds the lock.
    pub(super) last_look_at: Option<Instant>,
    /// The watches with the names of their nodes.
    pub(super) watches: Vec<(String, Watcher)>,
}
