//! The priority lock: one holder, and waiters in classes.

use std::time::Duration;

use lockkeeper_core::{Class, Discipline, LockPath, Mode, NodeFormat, PathError};

use crate::error::AcquireError;
use crate::hold::guard::Guard;
use crate::keeper::Lockkeeper;
use crate::queue::acquire::{Acquire, LockKind};

/// An exclusive lock with classes of waiters. The foreground is granted the lock before the background; within a class,
/// first come, first served.
///
/// The layout is Contentserv's, so its clients can share the queue. It has a persistent node at the path, children
/// `A-` and `B-`, and the holder marker `privateLock`. [`PriorityLock::container`] creates a container instead of the
/// persistent node. A holder is never interrupted. One that allows it is asked to make way
/// ([`Acquire::yielding`]). Otherwise a foreground request that
/// finds a background holder waits for it, and is granted the lock before all waiters of the background. A steady
/// stream of foreground requests starves the background; [`PriorityLock::ageing`] avoids that.
///
/// Its tokens are those of the holder marker. A later contender may be granted the lock earlier, so no other number
/// grows from grant to grant.
///
/// Created by [`Lockkeeper::priority_lock`](crate::Lockkeeper::priority_lock), which sends nothing. The default class
/// is the foreground.
///
/// # Examples
///
/// ```
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let article = keeper.priority_lock("/locks/article-7");
/// let mut batch = article.background().acquire().yielding().await?;
/// for step in 0..100 {
///     println!("step {step}");
///     batch = batch.yield_lock().await?; // returns at once unless a foreground request waits
/// }
/// batch.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct PriorityLock {
    keeper: Lockkeeper,
    path: Result<LockPath, PathError>,
    class: Class,
    ageing: Option<(Duration, Class)>,
    container: bool,
}

impl PriorityLock {
    /// How old a hold of a later class must be before it makes way, unless the request says otherwise.
    pub const MIN_HOLD: Duration = crate::queue::acquire::MIN_HOLD;

    /// Returns the lock with classes at a path that was made from another name, or why there is none. As
    /// [`Lockkeeper::priority_lock`], it sends nothing, and the acquire reports an invalid path.
    pub fn at(keeper: &Lockkeeper, path: Result<LockPath, PathError>) -> Self {
        PriorityLock { keeper: keeper.clone(), path, class: Class::FOREGROUND, ageing: None, container: false }
    }

    /// Returns the lock for the foreground, class `A`: for users who wait.
    pub fn foreground(&self) -> Self {
        self.class(Class::FOREGROUND)
    }

    /// Returns the lock for the background, class `B`: for bulk work.
    pub fn background(&self) -> Self {
        self.class(Class::BACKGROUND)
    }

    /// Returns the lock for any class. Classes are served in the order of their letters.
    pub fn class(&self, class: Class) -> Self {
        PriorityLock { class, ..self.clone() }
    }

    /// After a wait of `after`, a request enters `class` instead, at its end. Off by default.
    pub fn ageing(mut self, after: Duration, class: Class) -> Self {
        self.ageing = Some((after, class));
        self
    }

    /// Sets whether a missing node at the path is created as a container (`true`) or as a persistent node (`false`, the
    /// default). An existing node stays what it is.
    ///
    /// A persistent node stays for ever, as Contentserv's document says. `lockkeeper admin gc --empty` deletes those that were
    /// not used for a time.
    ///
    /// The servers delete a container some time after its last use; Apache ZooKeeper checks once a minute. A client of
    /// Contentserv's document first creates this node, and then its request below it. If the servers delete the container
    /// between these two calls, the client fails with `NoNode`. Use containers only if no such client shares the lock:
    /// Lockkeeper itself creates the node again.
    pub fn container(mut self, container: bool) -> Self {
        self.container = container;
        self
    }

    /// Returns a request that waits until the lock is granted, or as its options say.
    ///
    /// # Cost
    ///
    /// Without contention: a create and a list in one round trip, and a transaction for the holder marker. A release
    /// reads the holder marker and needs one transaction.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.keeper.clone(), self.kind(), false, Guard::of)
    }

    /// Returns a request that fails with [`AcquireError::Held`] if another contender holds the lock or is ahead.
    pub fn try_acquire(&self) -> Acquire {
        Acquire::new(self.keeper.clone(), self.kind(), true, Guard::of)
    }

    fn kind(&self) -> Result<LockKind, AcquireError> {
        Ok(LockKind {
            path: self.path.clone()?,
            node_format: NodeFormat::Contentserv,
            discipline: Discipline::Classes,
            mode: Mode::Class(self.class),
            upgradeable: false,
            ageing: self.ageing.filter(|(_, class)| *class != self.class),
            looks_beside: false,
            persistent: !self.container,
        })
    }
}
