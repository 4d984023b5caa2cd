//! The five operations that Helix asks of a distributed lock, for code that is to work with any of them.
//!
//! An object-safe trait, so that others can implement it too. The guard-based locks stay the way to write new code: a boolean
//! says nothing of how long it stays true.

use futures_util::future::BoxFuture;
use tokio::sync::Mutex as AsyncMutex;

use crate::error::Error;
use crate::hold::guard::Guard;
use crate::keeper::Lockkeeper;
use crate::lease::LockInfo;
use crate::queue::mutex::Mutex;

/// A lock that is tried, held by the object, and released by it.
///
/// Unless an implementation says otherwise, dropping one of the futures leaves the lock as it was, or as it was asked for.
pub trait DistributedLock: Send + Sync {
    /// Takes the lock; `false` if somebody else has it and keeps it.
    fn try_lock(&self) -> BoxFuture<'_, Result<bool, Error>>;

    /// Releases it; `true` also if nobody holds it, `false` if somebody else does.
    fn unlock(&self) -> BoxFuture<'_, Result<bool, Error>>;

    /// Who has it, why and until when; the defaults if nobody has.
    fn current_lock_info(&self) -> BoxFuture<'_, Result<LockInfo, Error>>;

    /// Whether this object holds it.
    fn is_current_owner(&self) -> BoxFuture<'_, Result<bool, Error>>;

    /// Ends the use of this object, which must not hold the lock; every later call fails.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>>;
}

/// A queue lock behind [`DistributedLock`]: the exclusive lock of a path, for code that takes any lock.
///
/// It has no lease and no priority: it is held until it is released or the session ends.
#[derive(Debug)]
pub struct QueueLock {
    keeper: Lockkeeper,
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
    /// The exclusive lock at `path`. A bad path is reported by the first call.
    pub fn new(keeper: &Lockkeeper, path: &str) -> Self {
        let (mutex, state) = (keeper.mutex(path), AsyncMutex::default());
        QueueLock { keeper: keeper.clone(), mutex, path: path.to_owned(), state }
    }

    async fn open(&self) -> Result<tokio::sync::MutexGuard<'_, State>, Error> {
        let state = self.state.lock().await;
        match state.closed {
            true => Err(Error::LockClosed { path: self.path.clone() }),
            false => Ok(state),
        }
    }
}

impl DistributedLock for QueueLock {
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
                Err(Error::Held { .. }) => Ok(false),
                Err(error) => Err(error),
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
            match self.keeper.admin().show(&self.path).await {
                Ok(lock) => Ok(lock.holders.is_empty()),
                Err(Error::NoSuchLock { .. }) => Ok(true),
                Err(error) => Err(error),
            }
        })
    }

    fn current_lock_info(&self) -> BoxFuture<'_, Result<LockInfo, Error>> {
        Box::pin(async move {
            drop(self.open().await?);
            let lock = match self.keeper.admin().show(&self.path).await {
                Ok(lock) => lock,
                Err(Error::NoSuchLock { .. }) => return Ok(LockInfo::default()),
                Err(error) => return Err(error),
            };
            Ok(lock.holders.into_iter().next().map_or_else(LockInfo::default, |holder| LockInfo {
                owner: holder.described,
                message: holder.message.unwrap_or_else(|| LockInfo::default().message),
                timeout: i64::MAX,
                ..LockInfo::default()
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
                return Err(Error::StillOwner { path: self.path.clone() });
            }
            *state = State { guard: None, closed: true };
            Ok(())
        })
    }
}
