//! What jobs, leased locks and other products are built from that have a crate of their own. **Unstable:** unlike the rest of this
//! crate, it may change in any release. A program that only uses locks needs nothing of it.
//!
//! [`ask`] runs a question with the [`Ensemble`] of a [`Lockkeeper`]'s session, [`run`] a task without one, and [`ensemble_of`] returns the
//! operations of the session that granted a hold. Their futures need a tokio runtime, so run them in [`ask`] or [`run`], which is the
//! library's own thread.

use std::sync::Arc;

use lockkeeper_core::{LockPath, NodeData, PathError};
pub use lockkeeper_core::{excerpt, is_active, plain, spell};
use tokio::sync::oneshot;

pub use crate::clock::{typed, wall_clock_ms};
pub use crate::ensemble::paths::is_below;
pub use crate::ensemble::shared::JOBS;
pub use crate::ensemble::{
    Children, Done, Ensemble, Fired, Node, NodeKind, OpError, READS_IN_FLIGHT, Reply, TxnError, TxnStep, Watcher,
    Written, linearizable,
};
use crate::error::{Misuse, ReleaseError, SessionError};
use crate::hold::holding::Holding;
pub use crate::hold::holding::run_until;
use crate::hold::{AtRelease, HoldRequest};
use crate::keeper::Lockkeeper;
pub use crate::ownership::{other_replacer, other_writer, read_credentials};
pub use crate::queue::about::About;
use crate::queue::acquire::Acquire;
use crate::queue::priority::PriorityLock;
pub use crate::recipes::distributed::GuardSlot;
pub use crate::registers::records;
pub use crate::registers::time::{known_server_now_ms, server_now_ms};
use crate::session::Io;
pub use crate::wait::cancelled;

/// Runs `question` on the library's own thread, with the operations of the handle's session. Opens a session if there is none.
///
/// # Cancel safety
///
/// Dropping the future ends `question`.
///
/// # Errors
///
/// As `question`. [`SessionError::Unreachable`] when no server has answered for the session timeout and the connect timeout
/// together, or up to half as long again.
pub async fn ask<T, E, F, Fut>(keeper: &Lockkeeper, question: F) -> Result<T, E>
where
    T: Send + 'static,
    E: From<SessionError> + Send + 'static,
    F: FnOnce(Arc<dyn Ensemble>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
{
    keeper.context().ask(question).await
}

/// Runs `task` on the library's own thread. Unlike [`ask`], it needs no session, and silent servers do not end it.
///
/// # Cancel safety
///
/// Dropping the future ends `task`.
///
/// # Errors
///
/// As `task`. [`SessionError::Closed`] if the handle is closed, and [`SessionError::Forked`] in a forked child.
pub async fn run<T, E>(keeper: &Lockkeeper, task: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<SessionError> + Send + 'static,
{
    keeper.context().run(task).await
}

/// Fails if the handle is that of a realm, and the path is in another one.
///
/// # Errors
///
/// [`Misuse`] that names both realms.
pub fn check_path(keeper: &Lockkeeper, path: &str) -> Result<(), Misuse> {
    keeper.context().check_path(path)
}

/// Returns the operations of the handle's session, and opens a session if there is none. Call it in [`ask`] or [`run`].
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
///
/// # Errors
///
/// No session was opened within the connect timeout.
pub async fn ensemble(keeper: &Lockkeeper) -> Result<Arc<dyn Ensemble>, SessionError> {
    Ok(keeper.context().session(None).await?.1)
}

/// Returns the operations of the session that granted the lock; `None` if that session is over.
///
/// A read of this session sees everything that earlier holders wrote.
pub fn ensemble_of(hold: &Holding) -> Option<Arc<dyn Ensemble>> {
    hold.session().ensemble()
}

/// Releases the lock as [`Holding::release`] does, and writes a node in the same transaction. Returns what was written; `None` if it
/// was not written, or if that is unknown.
///
/// If the node cannot be written, the lock is released without it.
///
/// # Cancel safety
///
/// Dropping the future does not cancel the release. The node is written with it, or not at all.
pub async fn release_and_write(hold: Holding, step: TxnStep) -> (Result<(), ReleaseError>, Option<Written>) {
    let (written, mut write) = oneshot::channel();
    hold.request(HoldRequest::WriteAtRelease(Box::new(AtRelease { step, written })));
    let released = hold.release().await;
    (released, write.try_recv().ok())
}

/// Returns the lock that a request asks for, in the words of its caller.
pub fn about<G>(request: &Acquire<G>) -> About {
    request.about()
}

/// Returns whether the process that a contender's node names has ended on this machine. `false` if this process cannot know.
pub fn process_has_ended(node: &Node) -> bool {
    let process = NodeData::read(&node.data).record().and_then(|record| record.process);
    process.as_ref().is_some_and(crate::identity::has_ended)
}

/// Fails if a connect string is not valid.
///
/// # Errors
///
/// [`Misuse`] with the mistake.
pub fn check_servers(servers: &str) -> Result<(), Misuse> {
    crate::ensemble::servers::parse(servers).map(drop)
}

/// The timers of the library's own thread: they run whichever runtime polls, or none. Cheap to clone.
#[derive(Clone)]
pub struct Timer(Arc<Io>);

impl Timer {
    /// Returns the timers of a handle. They do not keep its session open.
    pub fn of(keeper: &Lockkeeper) -> Timer {
        Timer(keeper.context().io().clone())
    }

    /// Resolves after `pause`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn after(&self, pause: std::time::Duration) {
        self.0.after(pause).await;
    }
}

/// Returns the lock with classes at a path that was made from another name, or why there is none. As
/// [`Lockkeeper::priority_lock`], it sends nothing, and the acquire reports an invalid path.
pub fn priority_lock(keeper: &Lockkeeper, path: Result<LockPath, PathError>) -> PriorityLock {
    PriorityLock::new(keeper.context().clone(), path)
}
