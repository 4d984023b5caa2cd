//! The floor: the same operations with no lock logic, through the crate zookeeper-client; merged ones through our client.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures_util::future::try_join_all;
use lockkeeper_client::ConnectionState;
use lockkeeper_client::wire::{self, Create, OpResult, ReadOp, VersionedPath, WriteOp};
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
    merging: lockkeeper_client::Client,
}

#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// Each of so many tasks: the previous delete, create and list in one write.
    Own(usize),
    /// The same for so many locks, in two requests that leave together: a transaction of all deletes and creates, and a read
    /// of all lists. Two tasks share the locks, so that the server always has work.
    Merged(usize),
    /// So many tasks in a ring, each told in memory whom it follows: the event of that one's delete, then delete, create, watch.
    Ring(usize),
    /// The same, and nine of ten cycles are a reader's, which follows the last writer.
    ReadRing(usize),
}

pub(crate) fn is_write(task: usize, cycle: u64) -> bool {
    (task as u64 + cycle).is_multiple_of(10)
}

impl Floor {
    pub(crate) async fn connect(servers: &str) -> anyhow::Result<Self> {
        let client = Client::connector().with_session_timeout(Duration::from_secs(10)).connect(servers).await?;
        let timeout = Duration::from_secs(10);
        let config = lockkeeper_client::Config::new(timeout);
        let (merging, mut states) = lockkeeper_client::Client::open(servers.parse()?, config);
        let state = tokio::time::timeout(timeout, states.recv()).await?;
        ensure!(state == Some(ConnectionState::Connected), "no session: {state:?}");
        Ok(Floor { client, merging })
    }

    /// Returns the number of cycles.
    pub(crate) async fn cycles(&self, load: Load, length: Duration) -> anyhow::Result<u64> {
        match load {
            Load::Own(tasks) => self.own(tasks, length).await,
            Load::Merged(locks) => {
                let (one, other) = (self.merged(0..locks / 2, length), self.merged(locks / 2..locks, length));
                let (one, other) = tokio::try_join!(one, other)?;
                Ok(one + other)
            }
            Load::Ring(tasks) => self.ring(tasks, |_, _| true, length).await,
            Load::ReadRing(tasks) => self.ring(tasks, is_write, length).await,
        }
    }

    async fn merged(&self, locks: Range<usize>, length: Duration) -> anyhow::Result<u64> {
        let parents: Vec<_> = locks.map(|lock| format!("/raw/merged-{lock}")).collect();
        for parent in &parents {
            self.client.mkdir(parent, &PARENT).await?;
        }
        let create = |parent| {
            let create = Create::new(format!("{parent}/{PREFIX}"), &DATA[..], wire::CreateMode::EphemeralSequential);
            WriteOp::Create(create)
        };
        let list = |parent: &String| ReadOp::GetChildren { path: parent.clone() };
        let (until, mut cycles, mut held) = (Instant::now() + length, 0, Vec::new());
        while Instant::now() < until {
            let steps = held.drain(..).chain(parents.iter().map(create)).collect();
            let reads = parents.iter().map(list).collect();
            let (done, lists) = tokio::join!(biased; self.merging.multi(steps), self.merging.multi_read(reads));
            held.extend(done?.into_iter().filter_map(|done| match done {
                OpResult::Created { path, .. } => {
                    Some(WriteOp::Delete(VersionedPath { path: path.to_string(), version: -1 }))
                }
                _ => None,
            }));
            cycles += lists?.len() as u64;
        }
        self.merging.multi(held).await?;
        Ok(cycles)
    }

    async fn own(&self, workers: usize, length: Duration) -> anyhow::Result<u64> {
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

    async fn ring(&self, workers: usize, writes: fn(usize, u64) -> bool, length: Duration) -> anyhow::Result<u64> {
        self.client.mkdir("/raw/shared", &PARENT).await?;
        let until = Instant::now() + length;
        let asked = format!("/raw/shared/{PREFIX}");
        // Joining behind the last one and becoming it is one step.
        let last: Arc<Mutex<Last>> = Arc::default();
        let mut tasks = Vec::new();
        for worker in 0..workers {
            let (client, asked, last) = (self.client.clone(), asked.clone(), last.clone());
            let enter = async |client: &Client| {
                let mut last = last.lock().await;
                let (_, sequence) = client.create(&asked, &DATA, &NODE).await?;
                let own = format!("{asked}{sequence}");
                Ok::<_, zookeeper_client::Error>((last.join(&own, writes(worker, 0)), own))
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
                    before = last.join(&fresh, writes(worker, cycles)).filter(|before| *before != own);
                    own = fresh;
                }
            }));
        }
        Ok(try_join_all(tasks).await?.into_iter().sum::<Result<u64, _>>()?)
    }
}

/// The last nodes in a queue.
#[derive(Default)]
struct Last {
    node: Option<String>,
    writer: Option<String>,
}

impl Last {
    /// Puts a node behind the others; returns the one that it follows.
    fn join(&mut self, node: &str, writes: bool) -> Option<String> {
        let before = self.node.replace(node.to_owned());
        if !writes {
            return self.writer.clone();
        }
        self.writer = Some(node.to_owned());
        before
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
