//! What to do when a lock is lost.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{FencingToken, Loss};

/// What happens when a lock is lost, besides notifying its guard.
///
/// Set for all locks of a handle with [`Builder::on_lost`](crate::Builder::on_lost), and for one lock with
/// [`Acquire::on_lost`](crate::Acquire::on_lost).
///
/// # Examples
///
/// ```
/// use lockkeeper::Lockkeeper;
/// use lockkeeper::guard::OnLost;
///
/// # async fn example() -> Result<(), lockkeeper::Error> {
/// // Everything in this program depends on its locks.
/// let keeper = Lockkeeper::builder().on_lost(OnLost::Abort).connect("zk1:2181,zk2:2181,zk3:2181").await?;
/// keeper.check().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// Does nothing.
    #[default]
    Nothing,
    /// Ends the process with `abort` after a log event, for programs in which everything depends on the lock. A lock
    /// that is lost because the program closed its handle does not abort the process.
    Abort,
    /// Calls this on a thread of the library that runs only such callbacks.
    Call(LostCallback),
}

pub(crate) type LostCallback = Arc<dyn Fn(&LostLock) + Send + Sync>;

impl OnLost {
    /// Calls `callback` for each lost lock, on a thread of the library that runs only such callbacks and those of
    /// [`Acquire::on_requeued`](crate::Acquire::on_requeued). It may block.
    ///
    /// In one process, 16 of these callbacks run at the same time, and further ones wait in order. So a callback that never returns
    /// keeps one of 16 threads, and 16 of them hold up all others. A program that must end in time uses [`OnLost::Abort`], which
    /// waits for no callback.
    pub fn call(callback: impl Fn(&LostLock) + Send + Sync + 'static) -> Self {
        OnLost::Call(Arc::new(callback))
    }
}

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OnLost::Nothing => "Nothing",
            OnLost::Abort => "Abort",
            OnLost::Call(_) => "Call",
        })
    }
}

/// A lost lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostLock {
    /// The path of the lock.
    pub path: String,
    /// The fencing token of the hold, if its kind has one.
    pub token: Option<FencingToken>,
    /// The reason.
    pub loss: Loss,
}
