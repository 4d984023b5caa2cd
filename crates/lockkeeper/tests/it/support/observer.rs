//! Somebody who looks at nodes from outside, and sees what has been written by the time it asks.
//!
//! Another session's server may lag behind the leader, so a plain read tells what was true a while ago. Here every read has a
//! sync before it, in the same flight, and there is no other: a claim about what somebody has just done cannot race.

use super::STEADY;
use zookeeper_client as zk;

/// A plain client, in a session of its own that no fault touches.
pub(crate) struct Observer(zk::Client);

impl Observer {
    pub(crate) async fn connect(servers: &str) -> Observer {
        Observer(zk::Client::connector().with_session_timeout(STEADY).connect(servers).await.unwrap())
    }

    pub(crate) fn session_id(&self) -> i64 {
        self.0.session_id().0
    }

    pub(crate) async fn get_data(&self, path: &str) -> Result<(Vec<u8>, zk::Stat), zk::Error> {
        self.synced(path, || self.0.get_data(path)).await
    }

    pub(crate) async fn get_acl(&self, path: &str) -> Result<(Vec<zk::Acl>, zk::Stat), zk::Error> {
        self.synced(path, || self.0.get_acl(path)).await
    }

    pub(crate) async fn check_stat(&self, path: &str) -> Result<Option<zk::Stat>, zk::Error> {
        self.synced(path, || self.0.check_stat(path)).await
    }

    pub(crate) async fn list_children(&self, path: &str) -> Result<Vec<String>, zk::Error> {
        self.synced(path, || self.0.list_children(path)).await
    }

    /// Every coming and going at and below a path from now on, in the order of the server.
    pub(crate) async fn watch(&self, path: &str) -> Result<zk::PersistentWatcher, zk::Error> {
        self.synced(path, || self.0.watch(path, zk::AddWatchMode::PersistentRecursive)).await
    }

    // The leader judges writes, so these need no sync.

    pub(crate) async fn create(
        &self,
        path: &str,
        data: &[u8],
        options: &zk::CreateOptions<'_>,
    ) -> Result<(zk::Stat, zk::CreateSequence), zk::Error> {
        self.0.create(path, data, options).await
    }

    pub(crate) async fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> Result<zk::Stat, zk::Error> {
        self.0.set_data(path, data, version).await
    }

    pub(crate) async fn delete(&self, path: &str, version: Option<i32>) -> Result<(), zk::Error> {
        self.0.delete(path, version).await
    }

    pub(crate) fn new_multi_writer(&self) -> zk::MultiWriter<'_> {
        self.0.new_multi_writer()
    }

    /// What `read` sees behind a sync; a server answers a session in the order of its asking.
    async fn synced<T, R: Future<Output = Result<T, zk::Error>>>(
        &self,
        path: &str,
        read: impl FnOnce() -> R,
    ) -> Result<T, zk::Error> {
        // This client sends when it is called, not when the future is polled.
        let (sync, read) = (self.0.sync(path), read());
        let (synced, seen) = tokio::join!(sync, read);
        synced.and(seen)
    }
}
