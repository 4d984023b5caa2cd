//! Two processes hand one lock to and fro: how long from one's release to the other's grant?
//!
//! Each process prints when it released and when it acquired, by the machine's monotonic clock; the parent pairs the times.

use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

use crate::Task;

const HANDOFFS: usize = 1000;
const NODE: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
const PARENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

/// A form of the handoff and the side in it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// The bare event of a delete.
    Raw(u8),
    Ours(u8),
}

/// Runs two processes and pairs what they tell.
pub(crate) async fn microseconds(form: fn(u8) -> Role, servers: &str) -> anyhow::Result<Vec<f64>> {
    let mut children = Vec::new();
    for side in [0, 1] {
        let mut child = Task::Handoff(form(side)).command(servers, Duration::ZERO)?.spawn()?;
        let lines = BufReader::new(child.stdout.take().context("piped above")?).lines();
        children.push(tokio::spawn(async move {
            let mut lines = lines;
            let mut told = Vec::new();
            while let Some(line) = lines.next_line().await? {
                told.push(line);
            }
            let status = child.wait().await?;
            if !status.success() {
                bail!("a handoff process ended with {status}");
            }
            Ok(told)
        }));
    }
    let mut events = Vec::new();
    for (side, child) in children.into_iter().enumerate() {
        for line in child.await?? {
            let (what, at) = line.split_once(' ').context("a line of a child is a word and a number")?;
            events.push((at.parse::<u64>()?, side, what == "released"));
        }
    }
    events.sort_unstable();
    // A handoff is a release of one side followed by a grant of the other, with nothing in between.
    let handoffs = events.windows(2).filter(|pair| pair[0].2 && !pair[1].2 && pair[0].1 != pair[1].1);
    Ok(handoffs.map(|pair| (pair[1].0 - pair[0].0) as f64 / 1000.0).collect())
}

/// Nanoseconds of the clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

pub(crate) async fn child(role: Role, servers: &str) -> anyhow::Result<()> {
    let told = match role {
        Role::Raw(side) => raw(side, servers).await?,
        Role::Ours(_) => ours(servers).await?,
    };
    for (released, at) in told {
        println!("{} {at}", if released { "released" } else { "granted" });
    }
    Ok(())
}

async fn ours(servers: &str) -> anyhow::Result<Vec<(bool, u64)>> {
    let keeper = lockkeeper::Lockkeeper::connect(servers).await?;
    let mutex = keeper.mutex("/bench/handoff");
    let mut told = Vec::with_capacity(2 * HANDOFFS);
    let mut next = mutex.acquire().into_future();
    for _ in 0..HANDOFFS {
        let guard = next.await?;
        told.push((false, now()));
        // Long enough for the other side to have set its watch: what is measured is the handoff, not the queueing.
        tokio::time::sleep(Duration::from_millis(2)).await;
        told.push((true, now()));
        drop(guard);
        next = mutex.acquire().into_future();
    }
    drop(next);
    keeper.close().await;
    Ok(told)
}

/// Deletes its node when the other side's is deleted; it has created and watched the next nodes before.
async fn raw(side: u8, servers: &str) -> anyhow::Result<Vec<(bool, u64)>> {
    let client = Client::connector().with_session_timeout(Duration::from_secs(10)).connect(servers).await?;
    client.mkdir("/raw/handoff", &PARENT).await?;
    let node = |side: u8, round: usize| format!("/raw/handoff/{side}-{round}");
    let mut told = Vec::with_capacity(2 * HANDOFFS);
    // Side 1 shows itself once it has seen side 0, which starts once it has seen side 1.
    if side == 1 {
        wait_there(&client, &node(0, 0)).await?;
    }
    client.create(&node(side, 0), b"", &NODE).await?;
    if side == 0 {
        wait_there(&client, &node(1, 0)).await?;
    }
    for round in 0..HANDOFFS {
        // Side 0 releases first in each round.
        let mine = node(side, round);
        if side == 1 || round > 0 {
            let other = if side == 1 { node(0, round) } else { node(1, round - 1) };
            wait_gone(&client, &other).await?;
            told.push((false, now()));
        }
        client.create(&node(side, round + 1), b"", &NODE).await?;
        tokio::time::sleep(Duration::from_millis(2)).await;
        told.push((true, now()));
        client.delete(&mine, None).await?;
    }
    Ok(told)
}

pub(crate) async fn wait_there(client: &Client, path: &str) -> anyhow::Result<()> {
    while let (None, watcher) = client.check_and_watch_stat(path).await? {
        watcher.changed().await;
    }
    Ok(())
}

/// Each node is made before the one before it goes, so a node not there is one already gone.
pub(crate) async fn wait_gone(client: &Client, path: &str) -> anyhow::Result<()> {
    while let (Some(_), watcher) = client.check_and_watch_stat(path).await? {
        if watcher.changed().await.event_type == zookeeper_client::EventType::NodeDeleted {
            break;
        }
    }
    Ok(())
}
