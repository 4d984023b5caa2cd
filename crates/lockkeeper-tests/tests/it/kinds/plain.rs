//! A client written from Contentserv's description alone; it shares no code with Lockkeeper.
//!
//! It creates the object if it is missing, creates the request, lists and watches the object, and sorts by name. The first
//! request runs if there is no `privateLock`, and creates that node. A request that may not run waits for the object to change,
//! then lists again. Unlocking deletes both nodes, one after the other.

use zookeeper_client as zk;

use crate::support::{HOLDER_MARKER, STEADY, World};

pub(super) struct Plain {
    client: zk::Client,
    object: String,
    prefix: &'static str,
    /// Whether it deletes the marker first; the description does not say.
    marker_first: bool,
}

impl Plain {
    pub(super) async fn new(world: &World, prefix: &'static str, marker_first: bool) -> Plain {
        let connector = zk::Client::connector().with_session_timeout(STEADY);
        let client = connector.connect(&world.servers()).await.unwrap();
        Plain { client, object: world.lock(), prefix, marker_first }
    }

    async fn create(&self, path: &str, mode: zk::CreateMode) -> Result<zk::CreateSequence, zk::Error> {
        let options = mode.with_acls(zk::Acls::anyone_all());
        self.client.create(path, b"plain", &options).await.map(|(_, sequence)| sequence)
    }

    /// Waits for the lock; returns the name of the request.
    pub(super) async fn lock(&self) -> String {
        match self.create(&self.object, zk::CreateMode::Persistent).await {
            Ok(_) | Err(zk::Error::NodeExists) => {}
            Err(error) => panic!("{error}"),
        }
        let prefix = format!("{}/{}-", self.object, self.prefix);
        let number = self.create(&prefix, zk::CreateMode::EphemeralSequential).await.unwrap();
        let own = format!("{}-{number}", self.prefix);
        loop {
            let (mut names, _, changes) = self.client.get_and_watch_children(&self.object).await.unwrap();
            names.sort();
            let marked = names.iter().any(|name| name == HOLDER_MARKER);
            if !marked && names[0] == own {
                match self.create(&format!("{}/{HOLDER_MARKER}", self.object), zk::CreateMode::Ephemeral).await {
                    Ok(_) => return own,
                    Err(zk::Error::NodeExists) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            changes.changed().await;
        }
    }

    pub(super) async fn unlock(&self, own: String) {
        let mut nodes = [own.as_str(), HOLDER_MARKER];
        if self.marker_first {
            nodes.reverse();
        }
        for node in nodes {
            self.client.delete(&format!("{}/{node}", self.object), None).await.unwrap();
        }
    }
}
