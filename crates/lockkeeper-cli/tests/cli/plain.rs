//! A client of ZooKeeper that knows nothing of Lockkeeper: what it creates, and what it sees.

use tokio::runtime::{Builder, Runtime};
use zookeeper_client::{Acls, Client, CreateMode};

/// One session. The drop ends its connection, and not the session.
pub(crate) struct Plain {
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
}

impl Plain {
    pub(crate) fn connect(servers: &str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(Client::connect(servers)).unwrap();
        Plain { runtime, client }
    }

    /// Creates a node that lasts, and that everyone may change.
    pub(crate) fn create(&self, path: &str, data: &str) {
        self.create_as(CreateMode::Persistent, path, data);
    }

    /// The same in another mode; returns the path with its number.
    pub(crate) fn create_as(&self, mode: CreateMode, path: &str, data: &str) -> String {
        let options = mode.with_acls(Acls::anyone_all());
        let (_, number) = self.runtime.block_on(self.client.create(path, data.as_bytes(), &options)).unwrap();
        if mode == CreateMode::EphemeralSequential { format!("{path}{number}") } else { path.to_owned() }
    }

    pub(crate) fn delete(&self, path: &str) {
        self.runtime.block_on(self.client.delete(path, None)).unwrap();
    }

    /// Returns the names below a node in their order; none if it does not exist.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let mut names = self.runtime.block_on(self.client.list_children(path)).unwrap_or_default();
        names.sort();
        names
    }

    /// Returns every node: its path, and its data with its versions. One that is deleted meanwhile is left out.
    pub(crate) fn tree(&self) -> Vec<(String, String)> {
        let (mut tree, mut left) = (Vec::new(), vec!["/".to_owned()]);
        while let Some(path) = left.pop() {
            let above = path.trim_end_matches('/');
            left.extend(self.names(&path).iter().map(|name| format!("{above}/{name}")));
            let Ok((data, stat)) = self.runtime.block_on(self.client.get_data(&path)) else { continue };
            tree.push((path, format!("{} {stat:?}", String::from_utf8_lossy(&data))));
        }
        tree.sort();
        tree
    }
}
