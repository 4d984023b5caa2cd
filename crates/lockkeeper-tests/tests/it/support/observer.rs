//! An observer that looks at nodes from outside, and sees every write that was committed before its call.
//!
//! The server of another session may be behind the leader, so a plain read can be stale. So the observer sends a write before
//! each read, in the same round trip: a delete that fails. The delete has a zxid of its own, so its server has applied all
//! earlier commits. A `sync` is not enough: Apache's leader answers its own clients' syncs without waiting for commits that it
//! has sent to the followers but not yet applied (`CommitProcessor.matchSyncs`).

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
        self.ordered(|| self.0.get_data(path)).await
    }

    pub(crate) async fn get_acl(&self, path: &str) -> Result<(Vec<zk::Acl>, zk::Stat), zk::Error> {
        self.ordered(|| self.0.get_acl(path)).await
    }

    pub(crate) async fn check_stat(&self, path: &str) -> Result<Option<zk::Stat>, zk::Error> {
        self.ordered(|| self.0.check_stat(path)).await
    }

    pub(crate) async fn list_children(&self, path: &str) -> Result<Vec<String>, zk::Error> {
        self.ordered(|| self.0.list_children(path)).await
    }

    /// Watches every change at and below a path from now on, in the server's order.
    pub(crate) async fn watch(&self, path: &str) -> Result<zk::PersistentWatcher, zk::Error> {
        self.ordered(|| self.0.watch(path, zk::AddWatchMode::PersistentRecursive)).await
    }

    // The leader orders writes, so these calls need no write before them.

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

    /// Returns what `read` shows after a write; a server answers a session's requests in order.
    async fn ordered<T, R: Future<Output = Result<T, zk::Error>>>(
        &self,
        read: impl FnOnce() -> R,
    ) -> Result<T, zk::Error> {
        // This client sends the request when it is called, not when the future is polled.
        let (write, read) = (self.0.delete("/nobody makes this node", None), read());
        match tokio::join!(write, read) {
            (Err(zk::Error::NoNode), seen) => seen,
            (other, _) => panic!("{other:?}"),
        }
    }
}
