//! Our embedded server beside Apache's: the same client, the same disk, turn by turn in one run.
//!
//! `cargo bench -p lockkeeper-lab --bench server` prints medians over interleaved rounds, and behind each ratio how far it
//! went from round to round: absolute figures are the machine's of the moment. Processor time an operation depends less on
//! the other load of the machine. Every write waits for its fsync. Below the table of both is what the same client gets from sockets
//! with no server behind them: floor.rs. Needs Java and Maven for Apache's side; `--beside PROGRAM` puts an earlier
//! build of this very bench in its place. load.rs says what the client does to cost little.

mod client;
mod cpu;
mod floor;
mod load;
mod side;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;

use load::{Figures, Shape, Workload};
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
    /// Measures an earlier build of this bench, by its path, in place of Apache's server.
    #[arg(long, conflicts_with = "alone")]
    beside: Option<PathBuf>,
    /// Only rows under load whose names contain this.
    #[arg(long, default_value = "")]
    only: String,
    /// Only these parts: load, start, nodes, sessions.
    #[arg(long, value_delimiter = ',', default_values = ["load", "start", "nodes", "sessions"])]
    parts: Vec<String>,
    /// Passed by `cargo bench`; means nothing here.
    #[arg(long, hide = true)]
    bench: bool,
    /// The server in a process of its own.
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
    /// The raw floor in a process of its own, with so many threads.
    #[arg(long, hide = true)]
    serve_floor: Option<usize>,
}

/// With how many threads the floor is measured.
const FLOORS: [usize; 2] = [1, 2];

/// Everything that is measured under load.
const ROWS: [(&str, Workload, Shape); 11] = {
    const fn shape(connections: usize, depth: usize) -> Shape {
        Shape { connections, depth }
    }
    [
        ("writes, 1 in flight", Workload::Write, shape(1, 1)),
        ("writes, 8 connections", Workload::Write, shape(8, 1)),
        ("writes, 64 connections", Workload::Write, shape(64, 1)),
        ("writes, 64 in flight on one connection", Workload::Write, shape(1, 64)),
        ("create and delete, 1 in flight", Workload::Cycle, shape(1, 1)),
        ("create and delete, 64 connections", Workload::Cycle, shape(64, 1)),
        ("create and delete, 64 in flight on one connection", Workload::Cycle, shape(1, 64)),
        ("reads, 1 in flight", Workload::Read, shape(1, 1)),
        ("reads, 8 connections", Workload::Read, shape(8, 1)),
        ("reads, 64 connections", Workload::Read, shape(64, 1)),
        ("reads, 64 in flight on one connection", Workload::Read, shape(1, 64)),
    ]
};

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(directory) = args.serve {
        return side::serve(directory);
    }
    if let Some(threads) = args.serve_floor {
        return floor::serve(threads);
    }
    raise_descriptors();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cores} cores shared with the client; Apache ZooKeeper {}; {} rounds", args.version, args.rounds);
    println!("an append of 4 KiB with fdatasync here: p50 {:.0?}, p99 {:.0?}", fsync(50)?, fsync(99)?);
    let wanted = |part: &str| args.parts.iter().any(|wanted| wanted == part);
    if wanted("load") {
        under_load(&args)?;
    }
    if args.parts.iter().any(|part| part != "load") {
        println!("\n| | here | {} |\n|---|---|---|", other(&args));
    }
    if wanted("start") {
        let times = restarts(&args, &mut sides(&args, 1024)?, |side| {
            side.end(false)?;
            side.forget()
        })?;
        row("from the start of the process to the first answer, empty directory", &times);
    }
    if wanted("nodes") {
        let mut sides = sides(&args, 4096)?;
        let (mut memory, mut disk) = (Vec::new(), Vec::new());
        for side in &sides {
            client::fill(side.addr(), args.nodes)?;
            memory.push(format!("{:.0} MB", side.memory_mb()?));
            disk.push(side.disk_mb().map_or_else(|| "–".to_owned(), |mb| format!("{mb:.0} MB")));
        }
        for (gently, how) in [(false, "SIGKILL"), (true, "SIGTERM")] {
            let times = restarts(&args, &mut sides, |side| side.end(gently))?;
            row(&format!("the same with {} nodes of 100 bytes, after {how}", args.nodes), &times);
        }
        row(&format!("resident with {} nodes", args.nodes), &memory);
        row(&format!("on disk with {} nodes", args.nodes), &disk);
    }
    if wanted("sessions") {
        let sides = sides(&args, 1024)?;
        let held = sides.iter().map(|side| {
            let before = side.memory_mb()?;
            let _idle = client::idle_sessions(side.addr(), args.sessions)?;
            Ok(format!("{:.1} MB, {before:.1} before", side.memory_mb()?))
        });
        row(
            &format!("resident with {} idle sessions on as many connections", args.sessions),
            &held.collect::<Result<Vec<_>>>()?,
        );
    }
    Ok(())
}

/// The server that is measured beside ours.
fn other(args: &Args) -> &'static str {
    if args.beside.is_some() { "before" } else { "Apache's" }
}

fn sides(args: &Args, heap_mib: u32) -> Result<Vec<Side>> {
    let mut sides = vec![Side::ours(std::env::current_exe()?)?];
    match &args.beside {
        Some(program) => sides.push(Side::ours(program.clone())?),
        None if args.alone => {}
        None => sides.push(Side::apache(&args.version, heap_mib)?),
    }
    Ok(sides)
}

fn under_load(args: &Args) -> Result<()> {
    let mut sides = sides(args, 1024)?;
    let servers = sides.len();
    for threads in FLOORS {
        sides.push(Side::floor(threads)?);
    }
    let rows: Vec<_> = ROWS.into_iter().filter(|(name, ..)| name.contains(&args.only)).collect();
    let measure = |side: &Side, shape, workload, length| load::run(side.addr(), side.pid()?, shape, workload, length);
    for side in &sides {
        client::prepare(side.addr())?;
        for &(_, workload, shape) in &rows {
            measure(side, shape, workload, Duration::from_secs(args.warm_up) / u32::try_from(rows.len())?)?;
        }
    }
    let mut measured: Vec<Vec<Vec<Figures>>> = vec![vec![Vec::new(); sides.len()]; rows.len()];
    for _ in 0..args.rounds {
        for (&(_, workload, shape), figures) in rows.iter().zip(&mut measured) {
            for (side, figures) in sides.iter().zip(figures) {
                figures.push(measure(side, shape, workload, Duration::from_millis(args.millis))?);
            }
        }
    }
    let other = other(args);
    println!(
        "\n| a second | here | {other} | ratio | p50 and p99 here, µs | {other} | CPU here, server + client, µs | {other} |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for ((name, ..), figures) in rows.iter().zip(&measured) {
        let cells = |cell: fn(&[Figures]) -> String| {
            let mut cells = figures[..servers].iter().map(|rounds| cell(rounds));
            [cells.next().unwrap_or_default(), cells.next().unwrap_or_default()]
        };
        let ratio = match &figures[..servers] {
            [ours, theirs] => ratio(ours, theirs),
            _ => String::new(),
        };
        let [rate, their_rate] = cells(|rounds| thousands(middle(rounds, |f| f.rate)));
        let [times, their_times] = cells(times);
        let [cpu, their_cpu] = cells(processor);
        println!("| {name} | {rate} | {their_rate} | {ratio} | {times} | {their_times} | {cpu} | {their_cpu} |");
    }
    for (threads, at) in FLOORS.into_iter().zip(servers..) {
        println!(
            "\n| the raw floor, threads: {threads} | a second | to {other} | here to it | p50 and p99, µs | CPU, it + client, µs |"
        );
        println!("|---|---|---|---|---|---|");
        for ((name, ..), figures) in rows.iter().zip(&measured) {
            let floor = &figures[at];
            let rate = thousands(middle(floor, |f| f.rate));
            let to_other = if servers > 1 { ratio(floor, &figures[1]) } else { String::new() };
            println!(
                "| {name} | {rate} | {to_other} | {} | {} | {} |",
                ratio(&figures[0], floor),
                times(floor),
                processor(floor)
            );
        }
    }
    Ok(())
}

/// Half of the requests and the 99th of a hundred are answered within these.
fn times(rounds: &[Figures]) -> String {
    let micros = |which: fn(&Figures) -> Duration| thousands(middle(rounds, |f| which(f).as_secs_f64() * 1e6));
    format!("{}, {}", micros(|f| f.p50), micros(|f| f.p99))
}

/// Processor time of the server and of the client.
fn processor(rounds: &[Figures]) -> String {
    let micros = |which: fn(&Figures) -> Duration| middle(rounds, |f| which(f).as_secs_f64() * 1e6);
    format!("{:.1} + {:.1}", micros(|f| f.server), micros(|f| f.client))
}

/// The ratio of the medians, and between which the rounds were.
fn ratio(ours: &[Figures], theirs: &[Figures]) -> String {
    let rounds = ours.iter().zip(theirs).map(|(ours, theirs)| ours.rate / theirs.rate);
    let (least, most) = rounds.fold((f64::MAX, 0_f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
    format!("{:.2} ({least:.2} to {most:.2})", middle(ours, |f| f.rate) / middle(theirs, |f| f.rate))
}

fn middle(rounds: &[Figures], which: impl Fn(&Figures) -> f64) -> f64 {
    median(rounds.iter().map(which))
}

/// A whole number as the documents have it: 12 345.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(" ")
}

/// One line of the second table; missing cells are those that were not asked for.
fn row(what: &str, cells: &[String]) {
    let cell = |at: usize| cells.get(at).map_or("", String::as_str);
    println!("| {what} | {} | {} |", cell(0), cell(1));
}

/// Times of starting each side, ended by `end` before each: the median, and between which they were.
fn restarts(args: &Args, sides: &mut [Side], end: impl Fn(&mut Side) -> Result<()>) -> Result<Vec<String>> {
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); sides.len()];
    for _ in 0..args.rounds {
        for (side, times) in sides.iter_mut().zip(&mut times) {
            end(side)?;
            times.push(side.start()?);
        }
    }
    let cell = |times: Vec<Duration>| {
        let middle = Duration::from_secs_f64(median(times.iter().map(Duration::as_secs_f64)));
        let (least, most) = (times.iter().min().copied(), times.iter().max().copied());
        format!("{middle:.1?} ({:.1?} to {:.1?})", least.unwrap_or_default(), most.unwrap_or_default())
    };
    Ok(times.into_iter().map(cell).collect())
}

/// What the disk allows at most.
fn fsync(percentile: usize) -> Result<Duration> {
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
