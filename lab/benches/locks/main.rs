//! Our locks beside the raw floor: the same operations through the same client crate on the same server, with no lock logic.
//!
//! `cargo bench -p lockkeeper-lab` starts an embedded server and prints medians over interleaved rounds. Absolute figures
//! are the machine's of the moment; the ratio of two things measured in turn is what may be compared. `--servers` measures
//! on another server, `--disk` on an embedded one that syncs to disk.

mod cpu;
mod deep;
mod effort;
mod fairness;
mod handoff;
mod memory;
mod ours;
mod raw;

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use lockkeeper_server::{Config, Server};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::ours::Want;
use crate::raw::Load;

/// How many tasks work at once in the crowded workloads.
const CROWD: usize = 64;

#[derive(Parser)]
struct Args {
    /// Measure on these servers instead of an embedded one.
    #[arg(long)]
    servers: Option<String>,
    /// Let the embedded server sync to disk.
    #[arg(long)]
    disk: bool,
    /// How many rounds of each; medians are printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long a round lasts, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    millis: u64,
    /// Passed by `cargo bench`; means nothing here.
    #[arg(long, hide = true)]
    bench: bool,
    /// A process of a workload, as JSON.
    #[arg(long, hide = true, value_parser = |text: &str| serde_json::from_str::<Task>(text))]
    child: Option<Task>,
}

/// What a process of a workload does.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Task {
    Handoff(handoff::Role),
    Effort(effort::Side),
    Memory,
    /// Some workers of the fairness workload, from this time of the monotonic clock.
    Crowd {
        from: u64,
        workers: usize,
    },
    Deep {
        queue: deep::Queue,
        waiters: usize,
        /// Which process it is, and how many they are.
        share: (usize, usize),
    },
}

impl Task {
    /// Returns the command of such a process, which ends with its handle.
    fn command(&self, servers: &str, length: Duration) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--servers", servers, "--millis", &length.as_millis().to_string()]);
        command.args(["--child", &serde_json::to_string(self)?]);
        command.stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        Ok(command)
    }
}

/// One workload in both forms, in cycles a second.
struct Row {
    name: &'static str,
    load: Load,
    want: Want,
    raw: Vec<f64>,
    ours: Vec<f64>,
    requests: Option<f64>,
}

impl Row {
    /// Measures ours once, and the requests a cycle of it takes.
    async fn ours(
        &mut self,
        count: &impl Fn() -> Option<u64>,
        work: impl Future<Output = anyhow::Result<u64>>,
    ) -> anyhow::Result<()> {
        let before = count();
        let started = Instant::now();
        let cycles = work.await?;
        self.requests = per_cycle(before, count(), cycles);
        self.ours.push(cycles as f64 / started.elapsed().as_secs_f64());
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let Some(task) = &args.child else { return measure(&args).await };
        let servers = args.servers.as_deref().context("a child needs --servers")?;
        let length = Duration::from_millis(args.millis);
        match *task {
            Task::Handoff(role) => handoff::child(role, servers).await,
            Task::Effort(side) => effort::child(side, servers, length).await,
            Task::Memory => memory::child(servers).await,
            Task::Crowd { from, workers } => fairness::child(servers, from, workers, length).await,
            Task::Deep { queue, waiters, share } => deep::child(queue, servers, waiters, share).await,
        }
    })
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let server = match &args.servers {
        Some(_) => None,
        None if args.disk => Some(Server::start(Config::default().with_directory(dir.path().join("data"))).await?),
        None => Some(Server::start(Config::default()).await?),
    };
    let servers = match (&args.servers, &server) {
        (Some(servers), _) => servers.clone(),
        (None, Some(server)) => server.connect_string(),
        (None, None) => unreachable!("one or the other"),
    };
    let kind = match (&args.servers, args.disk) {
        (Some(servers), _) => servers.clone(),
        (None, true) => "embedded server, fsync on disk".to_owned(),
        (None, false) => "embedded server, in memory".to_owned(),
    };
    println!("{kind}; {} rounds of {} ms; 2 worker threads; medians", args.rounds, args.millis);
    let length = Duration::from_millis(args.millis);
    let count = || server.as_ref().map(|server| server.stats().packets_received);

    let row = |name, load, want| Row { name, load, want, raw: vec![], ours: vec![], requests: None };
    let mut rows = [
        row("uncontended, one after the other", Load::Own(1), Want::Own(1)),
        row("64 independent locks, one process", Load::Own(CROWD), Want::Own(CROWD)),
        row("the same, the floor's merged too", Load::Merged(CROWD), Want::Own(CROWD)),
        row("64 tasks, one lock, one process", Load::Ring(CROWD), Want::Shared(CROWD)),
        row("64 tasks, 90 % readers, one lock", Load::ReadRing(CROWD), Want::Reads(CROWD)),
        row("the same, readers share a node", Load::ReadRing(CROWD), Want::SharedReads(CROWD)),
        row("one lock, kept between its uses", Load::Own(1), Want::Kept),
    ];
    let raw = raw::Floor::connect(&servers).await?;
    let ours = ours::Locks::connect(&servers).await?;
    for _ in 0..args.rounds {
        for row in &mut rows {
            row.raw.push(rate(length, raw.cycles(row.load, length)).await?);
            row.ours(&count, ours.cycles(row.want, length)).await?;
        }
    }
    println!("\n{:<36} {:>10} {:>10} {:>7} {:>14}", "cycles a second", "raw floor", "ours", "ratio", "requests/cycle");
    for row in &mut rows {
        let (raw, ours) = (median(&mut row.raw), median(&mut row.ours));
        let requests = row.requests.map_or_else(|| "-".to_owned(), |requests| format!("{requests:.2}"));
        println!("{:<36} {raw:>10.0} {ours:>10.0} {:>7.2} {requests:>14}", row.name, ours / raw);
    }
    ours.close().await;

    let mut floor = handoff::microseconds(handoff::Role::Raw, &servers).await?;
    let mut locks = handoff::microseconds(handoff::Role::Ours, &servers).await?;
    let (floor, locks) = (median(&mut floor), median(&mut locks));
    println!("\n{:<36} {:>10} {:>10} {:>7}", "handoff between two processes", "raw event", "ours", "ratio");
    println!("{:<36} {:>7.0} µs {:>7.0} µs {:>7.2}", "release to grant, median", floor, locks, locks / floor);
    deep::print(&servers, server.as_ref(), args.rounds.min(3)).await?;
    effort::print(&servers, args.rounds, length).await?;
    memory::print(&servers).await?;
    fairness::print(&servers, length).await?;
    if let Some(server) = server {
        server.shutdown().await?;
    }
    Ok(())
}

async fn rate(length: Duration, work: impl Future<Output = anyhow::Result<u64>>) -> anyhow::Result<f64> {
    let started = Instant::now();
    let cycles = work.await?;
    Ok(cycles as f64 / started.elapsed().max(length).as_secs_f64())
}

fn per_cycle(before: Option<u64>, after: Option<u64>, cycles: u64) -> Option<f64> {
    Some((after? - before?) as f64 / cycles.max(1) as f64)
}

/// The middle one; of none, not a number.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
