//! The exclusive lock.

use std::sync::Arc;

use lockkeeper_core::{LockPath, NodeFormat, PathError};

use crate::error::{AcquireError, ReleaseError};
use crate::hold::guard::Guard;
use crate::keeper::Lockkeeper;
use crate::queue::acquire::{Acquire, LockKind};
use crate::queue::kept::KeptHold;

/// An exclusive lock: one holder at a time, first come, first served.
///
/// Created by [`Lockkeeper::mutex`](crate::Lockkeeper::mutex), which sends nothing. It is not reentrant: a second
/// acquire by the same process, task or handle is another contender.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let nightly = keeper.mutex("/locks/nightly");
/// let guard = nightly.acquire().timeout(Duration::from_secs(30)).message("nightly index").await?;
/// // The work. Check `guard.is_held()` between its steps, or let `guard.run(work)` do it.
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Mutex {
    keeper: Lockkeeper,
    path: Result<LockPath, PathError>,
    node_format: NodeFormat,
    /// Refuse to queue where contenders are beside the path.
    looks_beside: bool,
    /// The hold that this process keeps between two uses, if it does.
    kept: Option<Arc<KeptHold>>,
}

impl Mutex {
    pub(crate) fn new(keeper: Lockkeeper, path: Result<LockPath, PathError>) -> Self {
        Mutex { keeper, path, node_format: NodeFormat::Curator, looks_beside: false, kept: None }
    }

    /// Sets the node format of this path. All clients of a path must use the same one.
    ///
    /// [`NodeFormat::Numbered`] puts the nodes beside the path instead of below it. An attempt in that format also looks
    /// below the path, and fails if there are contenders. An attempt in another format looks beside it only if it makes the path.
    pub fn node_format(mut self, node_format: NodeFormat) -> Self {
        self.node_format = node_format;
        // What is kept in another node format is another lock.
        self.kept = self.kept.map(|_| KeptHold::keep(&self.keeper));
        self
    }

    /// Fails if earlier or later contenders are beside the path. One more listing for each attempt.
    pub(crate) fn looks_beside(mut self) -> Self {
        self.looks_beside = true;
        self
    }

    /// Returns a request that waits until the lock is granted, or as its options say.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.keeper.clone(), self.kind(), false, Guard::of).among(self.kept.clone())
    }

    /// Returns a request that fails with [`AcquireError::Held`] if another contender holds the lock or is
    /// ahead.
    ///
    /// It waits only for the servers: for at most 2 s unless a [timeout](Acquire::timeout) is set, then it fails with
    /// [`SessionError::Unreachable`](crate::error::SessionError::Unreachable). This holds for the `try_acquire` of
    /// every kind of lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use lockkeeper::error::AcquireError;
    ///
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// match keeper.mutex("/locks/nightly").try_acquire().await {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(AcquireError::Held { holder: Some(holder), .. }) => println!("{holder} has it"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(&self) -> Acquire {
        Acquire::new(self.keeper.clone(), self.kind(), true, Guard::of).among(self.kept.clone())
    }

    /// Returns the same lock, which this process keeps after a use until another contender comes. Clones of the result share the
    /// hold. It ends with the last of them.
    ///
    /// The first use acquires the lock as ever. The following ones take it again without a request. When another contender enters
    /// the queue, the lock is released: immediately if it is not in use, otherwise at the end of that use. The next use here then
    /// enters the queue behind that contender. So no contender waits for longer than one use, plus one round trip.
    ///
    /// The uses come in the order of their calls. Only one of them at a time enters the queue, for all of them. If several
    /// processes want the lock, they take turns, whatever the number of their tasks.
    ///
    /// # What changes
    ///
    /// - The token is that of the whole time for which the lock is kept. A resource cannot distinguish two uses by it. It still
    ///   refuses what a former holder sends after the next one.
    /// - `show` and `why` name this process as the holder, also between two uses.
    /// - A request to release the lock ([`Admin::revoke`](crate::admin::Admin::revoke)) ends the keeping, as another contender does,
    ///   unless it is refused before the use ends.
    ///   Breaking the lock ends the keeping immediately; the next use acquires the lock again.
    /// - The options of a request that are for the hold, such as [`on_lost`](Acquire::on_lost), count if it acquires the lock, for as
    ///   long as the lock is kept. A timeout includes the wait for other uses; if it ends in that wait, the error names neither a
    ///   holder nor a position.
    /// - [`Acquire::with_liveness`] counts during a use, from its begin. Between two uses, no work runs that could call `alive`.
    /// - Releasing or dropping a guard ends the use. It releases the lock only if another contender has come.
    /// - The hold lasts as long as its session. After a loss, the next use acquires the lock again.
    /// - A contender that only tries is refused while the lock is kept, and its try ends the keeping. A try of this process is refused
    ///   while another use has the lock or acquires it; its error names no holder.
    /// - `keep()` of a kept lock is another keeper, which competes with the first one.
    /// - A use that drops the future of a [fenced write](crate::guard::FencedWrite) which is under way, or does not learn its
    ///   result, ends the keeping. So the write takes effect before the next use or not at all.
    /// - A request in the node format [`NodeFormat::Numbered`] is [`AcquireError::Misuse`], because its nodes are beside those of
    ///   other locks.
    ///
    /// # Cost
    ///
    /// The first use costs one listing more, with a watch. The following ones cost no request. While the lock is kept, the session
    /// sends heartbeats, as for every hold.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let cache = keeper.mutex("/locks/cache").keep();
    /// for entry in 0..1_000 {
    ///     let guard = cache.acquire().await?; // a round trip only if another contender came meanwhile
    ///     println!("entry {entry}");
    ///     guard.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep(&self) -> Mutex {
        Mutex { kept: Some(KeptHold::keep(&self.keeper)), ..self.clone() }
    }

    /// Returns whether the lock is [kept](Mutex::keep) and not in use: the next use takes it without a round trip. No round trip.
    pub fn is_kept(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.is_kept())
    }

    /// Releases the lock if it is [kept](Mutex::keep), after the uses that were requested before, and waits until the server
    /// confirms it. If the kept hold was lost before, nothing is left to release.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel a release that has begun.
    ///
    /// # Errors
    ///
    /// As [`Holding::release`](crate::Holding::release).
    pub async fn release_kept(&self) -> Result<(), ReleaseError> {
        match &self.kept {
            Some(kept) => kept.release_kept().await,
            None => Ok(()),
        }
    }

    fn kind(&self) -> Result<LockKind, AcquireError> {
        let (node_format, looks_beside) = (self.node_format, self.looks_beside);
        Ok(LockKind { node_format, looks_beside, ..LockKind::exclusive(self.path.clone()?) })
    }
}
