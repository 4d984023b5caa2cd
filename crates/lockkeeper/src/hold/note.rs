//! A note about a hold, which is written in the transaction that ends it.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::{Loss, Revocation};
use lockkeeper_session::ensemble::TxnStep;
use tokio::sync::oneshot;

use crate::contender::ContenderInfo;

/// What is written about a hold when its node is deleted: at its release, when its guard is dropped, and, if the session is still
/// there, after a loss.
///
/// Unlike [`AtRelease`](super::AtRelease), a note is an addition. It delays no grant to a contender of the same process and leaves room for the record of
/// the release. If it cannot be written, the node is deleted without it, one round trip later.
pub struct Note {
    /// Returns the steps that are added to the transaction; none if there is nothing to write. Called on the library's thread, so
    /// it must not block.
    pub steps: NoteSteps,
    /// Notified at once with what is known of the hold by then.
    pub begun: Option<oneshot::Sender<HoldReport>>,
    /// Notified when the hold has ended.
    pub ended: oneshot::Sender<NotedEnd>,
}

/// Returns the steps of a note, when it is written.
pub type NoteSteps = Box<dyn Fn(&HoldReport) -> Vec<TxnStep> + Send + Sync>;

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Note").finish_non_exhaustive()
    }
}

/// What the task of a hold knows of it when it ends.
#[derive(Clone, Debug)]
pub struct HoldReport {
    /// How long its contender waited, from the create of its node to the grant, by this process's clock.
    pub waited: Duration,
    /// How long it was held, by this process's clock.
    pub held: Duration,
    /// When it was granted the lock, in milliseconds since 1970 by the servers' clock. `None` if that is not known to a second, and for a
    /// hold that is shorter than 0.1 s.
    pub granted_ms: Option<u64>,
    /// How long ago it ended: the time since a loss.
    pub ended_ago: Duration,
    /// The last request to release it that was not refused.
    pub revocation: Option<Revocation>,
    /// How it was lost, if it was.
    pub loss: Option<Loss>,
    /// The holder that was last seen while the contender waited.
    pub before: Option<Box<ContenderInfo>>,
}

/// The end of a hold with a note.
#[derive(Clone, Debug)]
pub struct NotedEnd {
    /// What is known of it.
    pub report: HoldReport,
    /// Whether the note is written.
    pub written: bool,
    /// When this was said, by the clock of the sessions.
    pub at: Duration,
}
