//! A work queue: each item is done by one worker at a time, and stays until one has done it.

use futures_util::future::select_all;
use lockkeeper::error::{AcquireError, Error, SessionError, WriteError};
use lockkeeper::{Guard, Lockkeeper};
use lockkeeper_session::ensemble::{Ensemble, NodeKind, OpError, Watcher, make_path, until_answered};

/// A queue below a path: `items` has a node for each item, and `locks` a lock. The contenders of a lock are children of its path, and
/// only a node without children can be deleted, so an item is not its own lock's path.
#[derive(Clone)]
pub struct WorkQueue {
    keeper: Lockkeeper,
    path: String,
}

/// An item and its lock. If it is dropped, or its session ends, another worker gets it.
pub struct Item {
    pub data: Vec<u8>,
    pub guard: Guard,
    node: String,
}

/// What a worker finds of an item.
enum Look {
    Mine(Item),
    /// Another worker has the lock. Resolves when that may have changed.
    Taken(Watcher),
    Done,
}

impl WorkQueue {
    pub fn new(keeper: &Lockkeeper, path: &str) -> WorkQueue {
        WorkQueue { keeper: keeper.clone(), path: path.to_owned() }
    }

    /// Adds an item. Dropping the future leaves it in the queue or not.
    pub async fn put(&self, data: Vec<u8>) -> Result<(), SessionError> {
        // A name of its own, so that the create can be repeated. The oldest item is the first, as far as clocks agree.
        let clock = self.keeper.sessions().clock();
        let node = format!("{}/items/{:013}-{:032x}-item", self.path, clock.wall_ms(), clock.unique_id());
        let put = self.keeper.sessions().ask(move |ensemble| async move {
            let made = until_answered(|| make_path(&*ensemble, &node, NodeKind::Persistent, data.clone())).await;
            made.map(drop).map_err(|error| error.on(&node))
        });
        put.await
    }

    /// Waits for an item that no other worker has. Dropping the future leaves no lock. If the session ends, or no server answers, the
    /// call fails.
    ///
    /// Nothing is sent while it waits. An item that is put or done, and a lock that is released, wake each waiting worker.
    pub async fn take(&self) -> Result<Item, Error> {
        let queue = self.clone();
        self.keeper.sessions().run_while_answered(async move { queue.next().await }).await
    }

    async fn next(&self) -> Result<Item, Error> {
        let (_session, ensemble) = self.keeper.sessions().session(None).await?;
        let items = format!("{}/items", self.path);
        loop {
            let (mut names, changed) = match until_answered(|| ensemble.list_and_watch(&items)).await {
                Err(OpError::NoNode) => {
                    let made = until_answered(|| make_path(&*ensemble, &items, NodeKind::Container, Vec::new())).await;
                    made.map_err(|error| error.on(&items))?;
                    continue;
                }
                listed => listed.map_err(|error| error.on(&items))?,
            };
            names.sort();
            let mut changes = vec![changed];
            for name in names {
                match self.look(&*ensemble, &name).await? {
                    Look::Mine(item) => return Ok(item),
                    Look::Taken(changed) => changes.push(changed),
                    Look::Done => {}
                }
            }
            select_all(changes).await.0.in_session().map_err(|error| error.on(&items))?;
        }
    }

    async fn look(&self, ensemble: &dyn Ensemble, name: &str) -> Result<Look, Error> {
        let (node, lock) = (format!("{}/items/{name}", self.path), format!("{}/locks/{name}", self.path));
        loop {
            match until_answered(|| ensemble.list_and_watch(&lock)).await {
                Ok((contenders, changed)) if !contenders.is_empty() => return Ok(Look::Taken(changed)),
                Ok(_) | Err(OpError::NoNode) => {}
                Err(error) => return Err(error.on(&lock).into()),
            }
            let guard = match self.keeper.mutex(&lock).try_acquire().await {
                Err(AcquireError::Held { .. }) => continue,
                acquired => acquired?,
            };
            return match until_answered(|| ensemble.read(&node)).await {
                Ok(found) => Ok(Look::Mine(Item { data: found.data, guard, node })),
                Err(OpError::NoNode) => Ok(Look::Done),
                Err(error) => Err(error.on(&node).into()),
            };
        }
    }
}

impl Item {
    /// Deletes the item if this worker still has its lock, and releases the lock. A worker that lost its lock gets
    /// `WriteError::Lost`, and another one does the item again. Dropping the future releases the lock; the item is deleted or not.
    pub async fn done(self) -> Result<(), WriteError> {
        loop {
            match self.guard.fenced_write().delete(&self.node).await {
                // Without a reply, only this worker can have deleted it.
                Ok(_) | Err(WriteError::NoNode { .. }) => return Ok(()),
                Err(WriteError::Unknown { .. }) if self.guard.is_held() => {}
                Err(error) => return Err(error),
            }
        }
    }
}
