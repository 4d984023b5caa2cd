//! The semaphore: a number of permits.

use lockkeeper_core::{Discipline, LockPath, Mode, PathError};

use crate::error::{AcquireError, Misuse};
use crate::hold::guard::Permit;
use crate::keeper::Lockkeeper;
use crate::queue::acquire::{Acquire, LockKind};

/// A number of permits. Each contender takes some of them: all that it requests, or it waits. First come, first served.
///
/// The path's node states the number. The first contender writes it; a client configured with another number gets
/// [`Mismatch::Permits`](crate::error::Mismatch::Permits). So a fleet need not rely on the same configuration
/// everywhere. After a crash, the permits are returned when the session expires.
///
/// Created by [`Lockkeeper::semaphore`](crate::Lockkeeper::semaphore), which sends nothing.
///
/// # Examples
///
/// ```
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let downloads = keeper.semaphore("/locks/downloads", 3);
/// let one = downloads.acquire().await?;
/// let rest = downloads.acquire_many(2).await?; // three at a time on the whole fleet
/// rest.release().await?;
/// one.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Semaphore {
    keeper: Lockkeeper,
    path: Result<LockPath, PathError>,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(keeper: Lockkeeper, path: Result<LockPath, PathError>, permits: u32) -> Self {
        Semaphore { keeper, path, permits }
    }

    /// Returns a request that waits until one permit is granted, or as its options say.
    pub fn acquire(&self) -> Acquire<Permit> {
        self.acquire_many(1)
    }

    /// Returns a request for `take` permits, all of them or none.
    ///
    /// Later contenders wait behind it, even if they need fewer permits, so small requests cannot starve a large one.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let two = keeper.semaphore("/locks/downloads", 8).acquire_many(2).await?;
    /// two.release().await?; // both
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_many(&self, take: u32) -> Acquire<Permit> {
        Acquire::new(self.keeper.clone(), self.kind(take), false, Permit::of)
    }

    /// Returns a request for one permit that fails with [`AcquireError::Held`] if none is free or a contender waits
    /// ahead.
    pub fn try_acquire(&self) -> Acquire<Permit> {
        self.try_acquire_many(1)
    }

    /// Returns a request for `take` permits that fails with [`AcquireError::Held`] if they are not all free or a
    /// contender waits ahead.
    pub fn try_acquire_many(&self, take: u32) -> Acquire<Permit> {
        Acquire::new(self.keeper.clone(), self.kind(take), true, Permit::of)
    }

    fn kind(&self, take: u32) -> Result<LockKind, AcquireError> {
        let (path, permits) = (self.path.clone()?, self.permits);
        let cannot = match take {
            _ if permits == 0 => Some(format!("{path} cannot have 0 permits: a semaphore needs at least 1 permit")),
            0 => Some(format!("cannot take 0 of {permits} permits of {path}: a request needs at least 1 permit")),
            _ if take > permits => Some(format!(
                "cannot take {take} of {permits} permits of {path}: a request cannot exceed the number of permits"
            )),
            _ => None,
        };
        if let Some(problem) = cannot {
            return Err(Misuse::new("permits", problem).into());
        }
        let (discipline, mode) = (Discipline::Permits { permits }, Mode::Permits(take));
        Ok(LockKind { discipline, mode, ..LockKind::exclusive(path) })
    }
}
