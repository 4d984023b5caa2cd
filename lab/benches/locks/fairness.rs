//! Whether workers that want one lock all the time get it equally often.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use lockkeeper::Lockkeeper;
use lockkeeper::error::AcquireError;

use crate::Task;
use crate::handoff::now;

/// How long all processes have for their start.
const LEAD: Duration = Duration::from_secs(1);

/// Prints the most and the fewest grants of a worker.
pub(crate) async fn print(servers: &str, length: Duration) -> anyhow::Result<()> {
    println!("\n{:<36} {:>10} {:>10} {:>7}", "grants of one lock, by worker", "fewest", "most", "ratio");
    for (processes, workers) in [(1, 64), (8, 8)] {
        let grants = grants(servers, processes, workers, length).await?;
        ensure!(grants.len() == processes * workers, "{} workers of {processes} x {workers}", grants.len());
        let (fewest, most) = (*grants.iter().min().context("a worker")?, *grants.iter().max().context("a worker")?);
        let name = format!("processes x tasks: {processes} x {workers}");
        println!("{name:<36} {fewest:>10} {most:>10} {:>7.2}", most as f64 / fewest as f64);
    }
    Ok(())
}

/// Runs the processes and returns the grants of each worker.
async fn grants(servers: &str, processes: usize, workers: usize, length: Duration) -> anyhow::Result<Vec<u64>> {
    let from = now() + u64::try_from(LEAD.as_nanos())?;
    let started = (0..processes).map(|_| Ok(Task::Crowd { from, workers }.command(servers, length)?.output()));
    let outputs = try_join_all(started.collect::<anyhow::Result<Vec<_>>>()?).await?;
    let mut grants = Vec::new();
    for output in outputs {
        ensure!(output.status.success(), "a process of the crowd ended with {}", output.status);
        for line in String::from_utf8(output.stdout)?.lines() {
            grants.push(line.parse()?);
        }
    }
    Ok(grants)
}

/// One process: prints the grants of each of its workers.
pub(crate) async fn child(servers: &str, from: u64, workers: usize, length: Duration) -> anyhow::Result<()> {
    let keeper = Lockkeeper::connect(servers).await?;
    let until = from + u64::try_from(length.as_nanos())?;
    tokio::time::sleep(Duration::from_nanos(from.saturating_sub(now()))).await;
    let workers = (0..workers).map(|_| {
        let mutex = keeper.mutex("/bench/crowd");
        tokio::spawn(async move {
            let mut grants = 0_u64;
            loop {
                let guard = mutex.acquire().await?;
                if now() >= until {
                    return Ok::<u64, AcquireError>(grants);
                }
                grants += 1;
                drop(guard);
            }
        })
    });
    for grants in try_join_all(workers).await? {
        println!("{}", grants?);
    }
    keeper.close().await;
    Ok(())
}
