//! The floor: the same operations with no lock logic, through the client crate that the locks use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::sync::Mutex;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

/// As many bytes as a contender's record has.
const DATA: [u8; 150] = [b'x'; 150];
const NODE: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
const PARENT: CreateOptions<'static> = CreateMode::Container.with_acls(Acls::anyone_all());
/// As long as the names of a protected contender.
const PREFIX: &str = "_c_00000000-0000-0000-0000-000000000000-lock-";

pub(crate) struct Floor {
    client: Client,
}

impl Floor {
    pub(crate) async fn connect(servers: &str) -> anyhow::Result<Self> {
        let client = Client::connector().with_session_timeout(Duration::from_secs(10)).connect(servers).await?;
        Ok(Floor { client })
    }

    /// Each of `workers`: the previous delete, create and list in one write.
    pub(crate) async fn cycles(&self, workers: usize, length: Duration) -> anyhow::Result<u64> {
        let until = Instant::now() + length;
        let mut tasks = Vec::new();
        for worker in 0..workers {
            let (client, parent) = (self.client.clone(), format!("/raw/own-{worker}"));
            client.mkdir(&parent, &PARENT).await?;
            tasks.push(tokio::spawn(async move {
                let mut cycles = 0;
                let asked = format!("{parent}/{PREFIX}");
                let mut held: Option<String> = None;
                while Instant::now() < until {
                    let delete = held.as_ref().map(|node| client.delete(node, None));
                    let (create, list) = (client.create(&asked, &DATA, &NODE), client.list_children(&parent));
                    let (deleted, created, listed) = tokio::join!(optional(delete), create, list);
                    deleted?;
                    listed?;
                    held = Some(format!("{asked}{}", created?.1));
                    cycles += 1;
                }
                if let Some(node) = held {
                    client.delete(&node, None).await?;
                }
                Ok::<u64, zookeeper_client::Error>(cycles)
            }));
        }
        Ok(try_join_all(tasks).await?.into_iter().sum::<Result<u64, _>>()?)
    }

    /// `workers` in a ring, each told in memory whom it follows: the event of that one's delete, then delete, create, watch.
    pub(crate) async fn ring(&self, workers: usize, length: Duration) -> anyhow::Result<u64> {
        self.client.mkdir("/raw/shared", &PARENT).await?;
        let until = Instant::now() + length;
        let asked = format!("/raw/shared/{PREFIX}");
        // The last one in the queue; joining behind it and becoming it is one step.
        let last: Arc<Mutex<Option<String>>> = Arc::default();
        let mut tasks = Vec::new();
        for _ in 0..workers {
            let (client, asked, last) = (self.client.clone(), asked.clone(), last.clone());
            let enter = async |client: &Client| {
                let mut last = last.lock().await;
                let (_, sequence) = client.create(&asked, &DATA, &NODE).await?;
                let own = format!("{asked}{sequence}");
                Ok::<_, zookeeper_client::Error>((last.replace(own.clone()), own))
            };
            let (mut before, mut own) = enter(&client).await?;
            let last = last.clone();
            tasks.push(tokio::spawn(async move {
                let mut cycles = 0;
                loop {
                    if let Some(before) = &before
                        && let Ok((_, _, watcher)) = client.get_and_watch_data(before).await
                    {
                        watcher.changed().await;
                    }
                    cycles += 1;
                    if Instant::now() >= until {
                        client.delete(&own, None).await?;
                        return Ok::<u64, zookeeper_client::Error>(cycles);
                    }
                    // Sent together, the create under the ring's order.
                    let mut last = last.lock().await;
                    let delete = client.delete(&own, None);
                    let create = client.create(&asked, &DATA, &NODE);
                    let (deleted, created) = tokio::join!(delete, create);
                    deleted?;
                    let fresh = format!("{asked}{}", created?.1);
                    before = last.replace(fresh.clone()).filter(|before| *before != own);
                    own = fresh;
                }
            }));
        }
        Ok(try_join_all(tasks).await?.into_iter().sum::<Result<u64, _>>()?)
    }
}

async fn optional<T>(
    future: Option<impl Future<Output = Result<T, zookeeper_client::Error>>>,
) -> Result<Option<T>, zookeeper_client::Error> {
    match future {
        Some(future) => future.await.map(Some),
        None => Ok(None),
    }
}
