//! A queue lock behind Helix's five operations.

use futures_util::future::BoxFuture;
use lockkeeper_core::LockPath;
use tokio::sync::Mutex as AsyncMutex;

use crate::admin::Admin;
use crate::error::{AcquireError, AdminError, Error, LeaseError, Misuse};
use crate::hold::guard::Guard;
use crate::lease::{LockAttributes, LockOperations};
use crate::queue::mutex::Mutex;
use crate::session::context::Context;

/// A queue lock behind [`LockOperations`]: the exclusive lock of a path, for code that takes any lock.
///
/// It has no lease and no priority: it is held until it is released or the session ends.
#[derive(Debug)]
pub struct QueueLock {
    admin: Admin,
    mutex: Mutex,
    path: String,
    state: AsyncMutex<State>,
}

#[derive(Debug, Default)]
struct State {
    guard: Option<Guard>,
    closed: bool,
}

impl State {
    /// The guard, unless it is lost.
    fn held(&self) -> Option<&Guard> {
        self.guard.as_ref().filter(|guard| guard.is_held())
    }
}

impl QueueLock {
    pub(crate) fn on(context: Context, path: &str) -> Self {
        let mutex = Mutex::new(context.clone(), LockPath::parse(path));
        QueueLock { admin: Admin::new(context), mutex, path: path.to_owned(), state: AsyncMutex::default() }
    }

    async fn open(&self) -> Result<tokio::sync::MutexGuard<'_, State>, Error> {
        let state = self.state.lock().await;
        match state.closed {
            true => Err(Misuse::closed(&self.path).into()),
            false => Ok(state),
        }
    }
}

impl LockOperations for QueueLock {
    fn try_lock(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let mut state = self.open().await?;
            if state.held().is_some() {
                return Ok(true);
            }
            match self.mutex.try_acquire().await {
                Ok(guard) => {
                    state.guard = Some(guard);
                    Ok(true)
                }
                Err(AcquireError::Held { .. }) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn unlock(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let guard = self.open().await?.guard.take();
            if let Some(guard) = guard
                && guard.release().await.is_ok()
            {
                return Ok(true);
            }
            match self.admin.show(&self.path).await {
                Ok(lock) => Ok(lock.holders.is_empty()),
                Err(AdminError::NoSuchLock { .. }) => Ok(true),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn current_lock_info(&self) -> BoxFuture<'_, Result<LockAttributes, Error>> {
        Box::pin(async move {
            drop(self.open().await?);
            let lock = match self.admin.show(&self.path).await {
                Ok(lock) => lock,
                Err(AdminError::NoSuchLock { .. }) => return Ok(LockAttributes::default()),
                Err(error) => return Err(error.into()),
            };
            Ok(lock.holders.into_iter().next().map_or_else(LockAttributes::default, |holder| LockAttributes {
                owner: holder.described,
                message: holder.message.unwrap_or_else(|| LockAttributes::default().message),
                timeout: i64::MAX,
                ..LockAttributes::default()
            }))
        })
    }

    fn is_current_owner(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(self.open().await?.held().is_some()) })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let mut state = self.open().await?;
            if state.held().is_some() {
                return Err(LeaseError::StillOwner { path: self.path.clone() }.into());
            }
            *state = State { guard: None, closed: true };
            Ok(())
        })
    }
}
