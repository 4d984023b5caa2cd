//! Our embedded server beside Apache's: the same client, the same disk, turn by turn in one run.
//!
//! `cargo bench -p lockkeeper-benches --bench server` prints medians over interleaved rounds, and for each ratio how far it
//! went from round to round: absolute figures are the machine's of the moment. Every write waits for its fsync. Needs Java
//! and Maven for Apache's side.

mod client;
mod side;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;

use client::{Figures, Shape, Workload};
use side::Side;

#[derive(Parser)]
struct Args {
    /// How many rounds of each; medians are printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long a measurement lasts, in milliseconds.
    #[arg(long, default_value_t = 1500)]
    millis: u64,
    /// How long each server is kept busy first, in seconds: a JVM is slow when it is cold.
    #[arg(long, default_value_t = 10)]
    warm_up: u64,
    /// How many nodes to start with.
    #[arg(long, default_value_t = 1_000_000)]
    nodes: usize,
    /// How many idle sessions to hold.
    #[arg(long, default_value_t = 10_000)]
    sessions: usize,
    /// Which of Apache's releases.
    #[arg(long, default_value = "3.9.5")]
    version: String,
    /// Measures ours alone.
    #[arg(long)]
    alone: bool,
    /// Only these parts: load, start, nodes, sessions.
    #[arg(long, value_delimiter = ',', default_values = ["load", "start", "nodes", "sessions"])]
    parts: Vec<String>,
    /// Passed by `cargo bench`; means nothing here.
    #[arg(long, hide = true)]
    bench: bool,
    /// The server in a process of its own.
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
}

/// Everything that is measured under load.
const ROWS: [(&str, Workload, Shape); 11] = {
    const fn shape(connections: usize, depth: usize) -> Shape {
        Shape { connections, depth }
    }
    [
        ("writes, 1 in flight", Workload::Write, shape(1, 1)),
        ("writes, 8 in flight", Workload::Write, shape(8, 1)),
        ("writes, 64 in flight", Workload::Write, shape(64, 1)),
        ("writes, 64 on one connection", Workload::Write, shape(1, 64)),
        ("create and delete, 1 in flight", Workload::Cycle, shape(1, 1)),
        ("create and delete, 64 in flight", Workload::Cycle, shape(64, 1)),
        ("create and delete, 64 on one connection", Workload::Cycle, shape(1, 64)),
        ("reads, 1 in flight", Workload::Read, shape(1, 1)),
        ("reads, 8 in flight", Workload::Read, shape(8, 1)),
        ("reads, 64 in flight", Workload::Read, shape(64, 1)),
        ("reads, 64 on one connection", Workload::Read, shape(1, 64)),
    ]
};

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(directory) = args.serve {
        return side::serve(directory);
    }
    raise_descriptors();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cores} cores shared with the client; Apache ZooKeeper {}; {} rounds", args.version, args.rounds);
    println!("an append of 4 KiB with fdatasync here: p50 {:.0?}, p99 {:.0?}", floor(50)?, floor(99)?);
    let wanted = |part: &str| args.parts.iter().any(|wanted| wanted == part);
    if wanted("load") {
        under_load(&args)?;
    }
    if wanted("start") {
        let times = restarts(&args, &mut sides(&args, 1024)?, |side| {
            side.end(false)?;
            side.forget()
        })?;
        report("ready on an empty directory", &times);
    }
    if wanted("nodes") {
        let mut sides = sides(&args, 4096)?;
        for side in &mut sides {
            client::fill(side.addr(), args.nodes)?;
            let disk = side.disk_mb().map_or_else(String::new, |mb| format!(", {mb:.0} MB on disk"));
            println!("{} with {} nodes: {:.0} MB resident{disk}", side.name(), args.nodes, side.memory_mb()?);
        }
        for (gently, how) in [(false, "SIGKILL"), (true, "SIGTERM")] {
            let times = restarts(&args, &mut sides, |side| side.end(gently))?;
            report(&format!("ready with {} nodes, after {how}", args.nodes), &times);
        }
    }
    if wanted("sessions") {
        for side in sides(&args, 1024)? {
            let before = side.memory_mb()?;
            let _idle = client::idle_sessions(side.addr(), args.sessions)?;
            let now = side.memory_mb()?;
            println!(
                "{} with {} idle sessions: {now:.1} MB resident, {before:.1} MB before",
                side.name(),
                args.sessions
            );
        }
    }
    Ok(())
}

fn sides(args: &Args, heap_mib: u32) -> Result<Vec<Side>> {
    let mut sides = vec![Side::ours()?];
    if !args.alone {
        sides.push(Side::apache(&args.version, heap_mib)?);
    }
    Ok(sides)
}

fn under_load(args: &Args) -> Result<()> {
    let sides = sides(args, 1024)?;
    let length = Duration::from_millis(args.millis);
    for side in &sides {
        client::prepare(side.addr())?;
        for (_, workload, shape) in ROWS {
            client::run(side.addr(), shape, workload, Duration::from_secs(args.warm_up) / ROWS.len() as u32)?;
        }
    }
    let mut measured: Vec<Vec<Vec<Figures>>> = vec![vec![Vec::new(); sides.len()]; ROWS.len()];
    for _ in 0..args.rounds {
        for ((_, workload, shape), figures) in ROWS.into_iter().zip(&mut measured) {
            for (side, figures) in sides.iter().zip(figures) {
                figures.push(client::run(side.addr(), shape, workload, length)?);
            }
        }
    }
    println!("\n{:<40} {:>9} {:>9} {:>6} {:>12}   p50, p99 µs", "a second", "ours", "Apache's", "ratio", "from to");
    for ((name, ..), figures) in ROWS.into_iter().zip(&measured) {
        let rates: Vec<f64> = figures.iter().map(|rounds| median(rounds.iter().map(|figures| figures.rate))).collect();
        let times = figures.iter().map(|rounds| {
            let micros = |which: fn(&Figures) -> Duration| median(rounds.iter().map(|f| which(f).as_secs_f64() * 1e6));
            format!("{:.0}, {:.0}", micros(|f| f.p50), micros(|f| f.p99))
        });
        let times = times.collect::<Vec<_>>().join(" | ");
        match (&rates[..], &figures[..]) {
            ([ours, theirs], [our_rounds, their_rounds]) => {
                let ratios = our_rounds.iter().zip(their_rounds).map(|(ours, theirs)| ours.rate / theirs.rate);
                let (least, most) =
                    ratios.fold((f64::MAX, 0_f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
                let ratio = ours / theirs;
                println!("{name:<40} {ours:>9.0} {theirs:>9.0} {ratio:>6.2} {least:>5.2} {most:>6.2}   {times}");
            }
            _ => println!("{name:<40} {:>9.0} {:>9} {:>6} {:>12}   {times}", rates[0], "-", "-", "-"),
        }
    }
    Ok(())
}

/// Times of starting each side, ended by `end` before each.
fn restarts(
    args: &Args,
    sides: &mut [Side],
    end: impl Fn(&mut Side) -> Result<()>,
) -> Result<Vec<(&'static str, Vec<Duration>)>> {
    let mut times: Vec<_> = sides.iter().map(|side| (side.name(), Vec::new())).collect();
    for _ in 0..args.rounds {
        for (side, (_, times)) in sides.iter_mut().zip(&mut times) {
            end(side)?;
            times.push(side.start()?);
        }
    }
    Ok(times)
}

fn report(what: &str, times: &[(&'static str, Vec<Duration>)]) {
    for (side, times) in times {
        let all: Vec<String> = times.iter().map(|time| format!("{time:.1?}")).collect();
        let middle = median(times.iter().map(Duration::as_secs_f64)) * 1e3;
        println!("{what}: {side} {middle:.1} ms (of {})", all.join(", "));
    }
}

/// What the disk allows at most.
fn floor(percentile: usize) -> Result<Duration> {
    let mut file: File = tempfile::tempfile()?;
    let mut times = Vec::new();
    for _ in 0..300 {
        let began = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[(times.len() - 1) * percentile / 100])
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Both ends of every idle session take one, the server's in a process that inherits this.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Refused, the sessions will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
