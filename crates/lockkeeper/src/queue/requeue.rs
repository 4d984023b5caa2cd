//! What a waiting request does when its session expires.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Loss;

use crate::callbacks;

/// A request that has lost its position in the queue, and joins the queue again. See
/// [`Acquire::on_requeued`](crate::Acquire::on_requeued).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requeued {
    /// The path of the lock.
    pub path: String,
    /// The reason.
    pub loss: Loss,
    /// How long the request has waited.
    pub waited: Duration,
}

/// Called with each position that was lost.
pub(crate) type Callback = Arc<dyn Fn(&Requeued) + Send + Sync>;

/// Whether a request joins the queue again, and who is informed.
#[derive(Clone)]
pub(crate) struct Requeue {
    pub(crate) again: bool,
    pub(crate) callback: Option<Callback>,
}

impl Default for Requeue {
    fn default() -> Self {
        Requeue { again: true, callback: None }
    }
}

impl Requeue {
    /// Reports that the request joins the queue again.
    pub(crate) fn report(&self, requeued: Requeued) {
        let Requeued { path, loss, .. } = &requeued;
        tracing::warn!(%path, %loss, "position in the queue lost; joining the queue again");
        let Some(callback) = self.callback.clone() else { return };
        callbacks::run(move || callback(&requeued));
    }
}

impl fmt::Debug for Requeue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requeue").field("again", &self.again).finish_non_exhaustive()
    }
}
