//! `Admin`, the handle for questions and interventions.

use std::sync::Arc;

use lockkeeper_core::Owner;
use lockkeeper_session::ensemble::Ensemble;

use crate::error::AdminError;
use crate::keeper::Lockkeeper;

/// Reads about locks, requests to release them, and breaks. Created by [`Lockkeeper::admin`](crate::Lockkeeper::admin).
///
/// Reads about locks are linearizable: each one is preceded by a write that changes nothing. So the session's server
/// answers from a state that contains everything confirmed before. That costs the ensemble a write, but it costs the
/// client no round trip. A server without a majority cannot order the write, and does not answer from stale data. The
/// call then waits until that server notices and closes the connection, which takes seconds, and fails with
/// [`SessionError::ConnectionLost`](crate::error::SessionError::ConnectionLost). Without any server it fails with
/// [`SessionError::Unreachable`](crate::error::SessionError::Unreachable), after the session timeout and the connect
/// timeout together, or up to half as long again.
///
/// Through the handle of a realm, calls about a path of another realm or of none fail with
/// [`AdminError::Misuse`](crate::error::AdminError::Misuse), before anything is sent. The root `/` means all paths of its servers.
///
/// # Examples
///
/// ```
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let admin = keeper.admin();
/// for lock in admin.list("/locks").await? {
///     println!("{}: {} hold it, {} wait", lock.path, lock.holders.len(), lock.waiters.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    pub(crate) keeper: Lockkeeper,
}

impl Lockkeeper {
    /// Returns the admin calls: they show holders and waiters, ask holders to release, and break locks.
    pub fn admin(&self) -> Admin {
        Admin { keeper: self.clone() }
    }
}

impl Admin {
    /// Returns the handle that it uses.
    pub fn keeper(&self) -> &Lockkeeper {
        &self.keeper
    }

    /// The owner of this client.
    pub(crate) fn owner(&self) -> &Owner {
        self.keeper.owner()
    }

    /// Returns this path of a lock. Fails if it is not a path, or if this is the handle of a realm that does not have it.
    pub(crate) fn path(&self, path: &str) -> Result<String, AdminError> {
        Ok(self.keeper.path(path)?)
    }

    /// Runs `question` on the I/O thread, so that any runtime, or none, can wait for it.
    pub(crate) async fn on_session<T, F, Fut>(&self, question: F) -> Result<T, AdminError>
    where
        T: Send + 'static,
        F: FnOnce(Arc<dyn Ensemble>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, AdminError>> + Send + 'static,
    {
        self.keeper.sessions().ask(question).await
    }
}
