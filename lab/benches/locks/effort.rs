//! How much processor time a client uses for a cycle without contention.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::{Task, cpu, median, ours, raw};

/// Whose client is measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Side {
    Floor,
    Ours,
}

/// Prints the processor time of a cycle. Each client is a process of its own, so the server's time does not count.
pub(crate) async fn print(servers: &str, rounds: usize, length: Duration) -> anyhow::Result<()> {
    let (mut floor, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        floor.push(microseconds(Side::Floor, servers, length).await?);
        ours.push(microseconds(Side::Ours, servers, length).await?);
    }
    let (floor, ours) = (median(&mut floor), median(&mut ours));
    println!("\n{:<36} {:>10} {:>10} {:>7}", "processor time of the client", "raw floor", "ours", "ratio");
    println!("{:<36} {floor:>7.0} µs {ours:>7.0} µs {:>7.2}", "a cycle without contention", ours / floor);
    Ok(())
}

async fn microseconds(side: Side, servers: &str, length: Duration) -> anyhow::Result<f64> {
    let output = Task::Effort(side).command(servers, length)?.output().await?;
    ensure!(output.status.success(), "a measured process ended with {}", output.status);
    String::from_utf8(output.stdout)?.trim().parse().context("a number of microseconds")
}

pub(crate) async fn child(side: Side, servers: &str, length: Duration) -> anyhow::Result<()> {
    let used = || cpu::used_by(std::process::id());
    let (cycles, time) = match side {
        Side::Floor => {
            let floor = raw::Floor::connect(servers).await?;
            let before = used()?;
            (floor.cycles(raw::Load::Own(1), length).await?, used()? - before)
        }
        Side::Ours => {
            let locks = ours::Locks::connect(servers).await?;
            let before = used()?;
            let measured = (locks.cycles(ours::Want::Own(1), length).await?, used()? - before);
            locks.close().await;
            measured
        }
    };
    println!("{:.2}", time.as_secs_f64() * 1e6 / cycles as f64);
    Ok(())
}
