//! A deep queue that empties: each waiter releases as soon as it is granted. What do a handoff's time and bytes become?
//!
//! The waiters are in processes of their own. This process holds the lock until all of them are queued and the server has become
//! quiet, and then releases it. The floor is a chain of as many nodes. Each is deleted when the one before it is.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use lockkeeper::Lockkeeper;
use lockkeeper_server::Server;
use serde::{Deserialize, Serialize};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

use crate::Task;
use crate::handoff::{now, wait_gone, wait_there};
use crate::median;

const NODE: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
const PARENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

/// How many waiters join at a time.
const AT_ONCE: usize = 100;

/// If there are only few requests for so long, they are heartbeats, and every waiter waits for its turn only.
const QUIET: Duration = Duration::from_secs(1);
const FEW: u64 = 50;

/// Whose queue is measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Queue {
    Chain,
    Ours,
}

impl Queue {
    /// The node whose children are the queue.
    const fn parent(self) -> &'static str {
        match self {
            Queue::Chain => "/raw/deep",
            Queue::Ours => "/bench/deep",
        }
    }
}

/// Prints what a handoff costs in queues of several lengths.
pub(crate) async fn print(servers: &str, server: Option<&Server>, rounds: usize) -> anyhow::Result<()> {
    println!(
        "\n{:<36} {:>10} {:>10} {:>7} {:>14} {:>10}",
        "a handoff in a deep queue", "chain", "ours", "ratio", "chain", "ours"
    );
    for (waiters, processes) in [(1_000, 1), (1_000, 4), (5_000, 1), (5_000, 4)] {
        let [mut chain, mut ours] = [const { (Vec::new(), Vec::new()) }; 2];
        for _ in 0..rounds {
            for (queue, (times, sizes)) in [(Queue::Chain, &mut chain), (Queue::Ours, &mut ours)] {
                let (time, size) = round(queue, servers, server, waiters, processes).await?;
                times.push(time);
                sizes.push(size);
            }
        }
        let name = format!("{waiters} waiters, processes: {processes}");
        let [chain, ours] = [chain, ours].map(|(mut times, mut sizes)| (median(&mut times), median(&mut sizes)));
        let ratio = ours.0 / chain.0;
        println!(
            "{name:<36} {:>7.0} µs {:>7.0} µs {ratio:>7.2} {:>12.0} B {:>8.0} B",
            chain.0, ours.0, chain.1, ours.1
        );
    }
    Ok(())
}

/// Returns the microseconds and the bytes of a handoff; not a number of bytes if the server is not ours.
async fn round(
    queue: Queue,
    servers: &str,
    server: Option<&Server>,
    waiters: usize,
    processes: usize,
) -> anyhow::Result<(f64, f64)> {
    let client = Client::connector().with_session_timeout(Duration::from_secs(30)).connect(servers).await?;
    client.mkdir(queue.parent(), &PARENT).await?;
    let keeper = Lockkeeper::connect(servers).await?;
    let guard = match queue {
        Queue::Chain => None,
        Queue::Ours => Some(keeper.mutex(queue.parent()).acquire().await?),
    };
    let first = format!("{}/0", queue.parent());
    if guard.is_none() {
        client.create(&first, b"", &NODE).await?;
    }
    let children = (0..processes).map(|process| {
        let task = Task::Deep { queue, waiters, share: (process, processes) };
        Ok(task.command(servers, Duration::ZERO)?.spawn()?)
    });
    let children = children.collect::<anyhow::Result<Vec<_>>>()?;
    while client.list_children(queue.parent()).await?.len() <= waiters {
        tokio::time::sleep(QUIET).await;
    }
    let requests = || server.map(|server| server.stats().packets_received);
    loop {
        let seen = requests();
        tokio::time::sleep(QUIET).await;
        if requests().zip(seen).is_none_or(|(now, seen)| now - seen < FEW) {
            break;
        }
    }
    let bytes = || server.map_or(f64::NAN, |server| (server.stats().bytes_received + server.stats().bytes_sent) as f64);
    let (before, released) = (bytes(), now());
    match guard {
        Some(guard) => guard.release().await?,
        None => client.delete(&first, None).await?,
    }
    let mut last = released;
    for output in try_join_all(children.into_iter().map(|child| child.wait_with_output())).await? {
        ensure!(output.status.success(), "a process of the queue ended with {}", output.status);
        last = last.max(String::from_utf8(output.stdout)?.trim().parse().context("a time")?);
    }
    let size = (bytes() - before) / waiters as f64;
    keeper.close().await;
    Ok(((last - released) as f64 / 1000.0 / waiters as f64, size))
}

/// One process with its share of the waiters: prints when its last one was granted.
pub(crate) async fn child(queue: Queue, servers: &str, waiters: usize, share: (usize, usize)) -> anyhow::Result<()> {
    let last = match queue {
        Queue::Chain => chain(servers, waiters, share).await?,
        Queue::Ours => ours(servers, waiters / share.1).await?,
    };
    println!("{last}");
    Ok(())
}

async fn ours(servers: &str, waiters: usize) -> anyhow::Result<u64> {
    let keeper = Lockkeeper::connect(servers).await?;
    let mutex = keeper.mutex(Queue::Ours.parent());
    let mut granted = Vec::with_capacity(waiters);
    for _ in 0..waiters {
        let request = mutex.acquire().into_future();
        granted.push(tokio::spawn(async move {
            let guard = request.await?;
            let at = now();
            guard.release().await?;
            anyhow::Ok(at)
        }));
        if granted.len() % AT_ONCE == 0 {
            // They are answered in order, so the nodes are there after this.
            keeper.check().await?;
        }
    }
    let mut last = 0;
    for granted in granted {
        last = last.max(granted.await??);
    }
    keeper.close().await;
    Ok(last)
}

/// Its nodes are all with the same remainder.
async fn chain(servers: &str, waiters: usize, (process, of): (usize, usize)) -> anyhow::Result<u64> {
    let client = Client::connector().with_session_timeout(Duration::from_secs(30)).connect(servers).await?;
    let node = |number: usize| format!("{}/{number}", Queue::Chain.parent());
    let numbers = (1..=waiters).filter(|number| number % of == process);
    let links: Vec<_> = numbers.map(|number| (client.clone(), node(number - 1), node(number))).collect();
    let mut gone = Vec::with_capacity(links.len());
    for (client, before, mine) in links {
        gone.push(tokio::spawn(async move {
            client.create(&mine, b"", &NODE).await?;
            wait_there(&client, &before).await?;
            wait_gone(&client, &before).await?;
            let at = now();
            client.delete(&mine, None).await?;
            anyhow::Ok(at)
        }));
    }
    let mut last = 0;
    for gone in gone {
        last = last.max(gone.await??);
    }
    Ok(last)
}
