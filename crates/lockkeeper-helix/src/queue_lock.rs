//! A queue lock behind Helix's five operations.

use futures_util::future::BoxFuture;
use lockkeeper::admin::Admin;
use lockkeeper::error::{AcquireError, AdminError, Misuse};
use lockkeeper::hold::GuardSlot;
use lockkeeper::{Error, Lockkeeper, Mutex};
use tokio::sync::Mutex as AsyncMutex;

use crate::{LeaseError, LockAttributes, LockOperations};

/// A queue lock behind [`LockOperations`]: the exclusive lock of a path, for code that takes any lock.
///
/// It has no lease and no priority: it is held until it is released or the session ends.
#[derive(Debug)]
pub struct QueueLock {
    admin: Admin,
    mutex: Mutex,
    path: String,
    slot: GuardSlot,
    /// Whether the object is closed. Locked by each call, so that calls take turns.
    closed: AsyncMutex<bool>,
}

impl QueueLock {
    /// Creates the object for the exclusive lock at `path`. The first call reports an invalid path.
    pub fn new(keeper: &Lockkeeper, path: impl AsRef<str>) -> Self {
        let path = path.as_ref();
        let mutex = keeper.mutex(path);
        let (slot, closed) = (GuardSlot::new(keeper), AsyncMutex::default());
        QueueLock { admin: keeper.admin(), mutex, path: path.to_owned(), slot, closed }
    }

    async fn open(&self) -> Result<tokio::sync::MutexGuard<'_, bool>, Error> {
        let closed = self.closed.lock().await;
        match *closed {
            true => Err(Misuse::closed(&self.path).into()),
            false => Ok(closed),
        }
    }
}

impl LockOperations for QueueLock {
    fn try_lock(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let _turn = self.open().await?;
            if self.slot.is_held() {
                return Ok(true);
            }
            match self.slot.fill(self.mutex.try_acquire()).await {
                Ok(()) => Ok(true),
                Err(AcquireError::Held { .. }) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn unlock(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            drop(self.open().await?);
            if self.slot.clear(&self.path).await.is_ok() {
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
        Box::pin(async move { self.open().await.map(|_| self.slot.is_held()) })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let mut closed = self.open().await?;
            if self.slot.is_held() {
                return Err(LeaseError::StillOwner { path: self.path.clone() }.into());
            }
            *closed = true;
            drop(self.slot.look(Option::take));
            Ok(())
        })
    }
}
