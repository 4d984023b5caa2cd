//! `cargo xtask healthy`: checks that a healthy job is never stopped.
//!
//! It runs queues of jobs through the command, as the storm does. No job may be stopped while its server answers, however
//! long it waited in any position. It also measures how long an ordinary restart and an election take, which a session
//! timeout must outlast.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use lockkeeper::Lockkeeper;
use lockkeeper_testkit::apache::{Apache, Distribution, Mode, Options as Servers};

use super::judge::{Attempt, PROMISES, judge};
use super::plan::{Job, JobKind, LOCKS, PERMITS};
use super::runner::{POLL, Runner};
use super::{EXPIRY, history, joined, observed};
use crate::site::{Site, Which};
use crate::tools::{Tools, machine, now};

#[derive(Debug, Args)]
pub struct Options {
    /// Queues for each kind of lock, server and time
    #[arg(long, value_name = "N", default_value = "24")]
    runs: usize,
    /// Queues that run at a time
    #[arg(long, value_name = "N", default_value = "12")]
    at_once: usize,
    /// The jobs' session timeout.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "4s")]
    session_timeout: Duration,
    /// How often servers are restarted, and leaders ended
    #[arg(long, value_name = "N", default_value = "10")]
    away: usize,
}

/// The kinds of lock: a name, the first job's kind, the other jobs' kind.
const KINDS: [(&str, JobKind, JobKind); 6] = [
    ("mutex", JobKind::Plain, JobKind::Plain),
    ("writers", JobKind::Exclusive, JobKind::Exclusive),
    ("readers behind a writer", JobKind::Exclusive, JobKind::Shared),
    ("permits, three at once", JobKind::Permits(PERMITS), JobKind::Permits(1)),
    ("foreground", JobKind::Foreground, JobKind::Foreground),
    ("background", JobKind::Background, JobKind::Background),
];

/// How long the first job holds the lock, in hundredths of the session timeout.
const HOLDS: [u32; 8] = [10, 30, 55, 65, 80, 100, 140, 180];

/// The columns of the table: until when a job was granted, in hundredths of the session timeout.
const COLUMNS: [(u32, &str); 5] =
    [(25, "0 to ¼ T"), (50, "¼ to ½ T"), (75, "½ to ¾ T"), (100, "¾ to 1 T"), (200, "1 to 2 T")];

/// The number of waiters behind the first job.
const WAITERS: usize = 4;

/// The numbers of jobs and of stopped jobs, by position: the second, the third, and later ones.
type Cell = [(usize, usize); 3];

pub(crate) fn run(options: &Options, tools: &Tools) -> Result<()> {
    let distribution = (tools.servers)()?;
    println!("{}", machine(&distribution));
    if options.away > 0 {
        tokio::runtime::Runtime::new()?.block_on(away(options.away, &distribution))?;
    }
    if options.runs > 0 {
        queues(options, tools)?;
    }
    Ok(())
}

/// Runs all queues on one server after the other, and prints the table.
fn queues(options: &Options, tools: &Tools) -> Result<()> {
    let (start, timeout, mut late, mut broken) = (Instant::now(), options.session_timeout, Duration::ZERO, 0);
    let mut table: BTreeMap<(&str, &str), [Cell; COLUMNS.len()]> = BTreeMap::new();
    let mut queues: Vec<(&str, Vec<Job>)> = Vec::new();
    for _ in 0..options.runs {
        for (kind, first, others) in KINDS {
            for hold in HOLDS {
                let lock = LOCKS.len() + queues.len();
                // A moment for a decision to stop it.
                let waiters = (0..WAITERS).map(|_| (others, Duration::from_millis(50)));
                let jobs = std::iter::once((first, timeout * hold / 100)).chain(waiters).enumerate();
                let jobs = jobs.map(|(place, (kind, work))| {
                    let number = queues.len() * (WAITERS + 1) + place;
                    Job { number, ..Job::new(vec![lock], kind, work, timeout) }
                });
                queues.push((kind, jobs.collect()));
            }
        }
    }
    for (server, which) in [("embedded", Which::Embedded), ("Apache", Which::Apache)] {
        let site = Site::prepare(which, tools)?;
        let runner = Runner { site: &site, plant: None, start: now(), asked: Mutex::default() };
        let next = AtomicUsize::new(0);
        let work = || {
            let mut attempts = Vec::new();
            while let Some((_, jobs)) = queues.get(next.fetch_add(1, Ordering::Relaxed)) {
                attempts.extend(queue(&runner, jobs)?);
            }
            Ok(attempts)
        };
        let workers = (0..options.at_once.max(1)).map(|_| work);
        let storm = observed(&site, LOCKS.len()..LOCKS.len() + queues.len(), EXPIRY, workers, || Ok(vec![]))?;
        late = late.max(storm.lateness(Duration::ZERO, Duration::MAX));
        for found in judge(&storm, &PROMISES).violations {
            println!("BROKEN: {found}");
            broken += 1;
        }
        for queue in storm.attempts.chunks(WAITERS + 1) {
            let kind = queues[queue[0].job.number / (WAITERS + 1)].0;
            // In the order of their creates.
            let mut waiters: Vec<&Attempt> = queue[1..].iter().collect();
            waiters.sort_by_key(|attempt| attempt.node().get(attempt.node().len().saturating_sub(10)..));
            for (place, attempt) in waiters.into_iter().enumerate() {
                let waited = attempt.begun().map(|begun| begun - attempt.started);
                let column = COLUMNS.iter().position(|(until, _)| waited.is_some_and(|it| it < timeout * *until / 100));
                let (all, stopped) =
                    &mut table.entry((server, kind)).or_default()[column.unwrap_or(COLUMNS.len() - 1)][place.min(2)];
                *all += 1;
                if !attempt.ended_well() {
                    *stopped += 1;
                    println!("{}", history(attempt, runner.start));
                }
            }
        }
    }
    print(&table);
    let cells = || table.values().flatten().flatten();
    let (jobs, stopped) = (cells().map(|cell| cell.0).sum::<usize>(), cells().map(|cell| cell.1).sum::<usize>());
    let least = cells().map(|cell| cell.0).min().unwrap_or_default();
    println!(
        "\n{stopped} of {jobs} jobs stopped, at least {least} in a cell; T is {timeout:?}; the machine late by {late:.2?} at most; {:.0?}",
        start.elapsed()
    );
    if stopped + broken > 0 {
        bail!("{stopped} healthy jobs were stopped, and {broken} promises were broken");
    }
    Ok(())
}

/// Runs a queue: a job that holds the lock for a time, and then others behind it.
fn queue(runner: &Runner<'_>, jobs: &[Job]) -> Result<Vec<Attempt>> {
    scope(|threads| {
        let first = threads.spawn(|| runner.attempt(&jobs[0]));
        while !runner.has_begun(&jobs[0]) && !first.is_finished() {
            sleep(POLL);
        }
        let others: Vec<_> = jobs[1..].iter().map(|job| threads.spawn(|| runner.attempt(job))).collect();
        std::iter::once(first).chain(others).map(joined).collect()
    })
}

fn print(table: &BTreeMap<(&str, &str), [Cell; COLUMNS.len()]>) {
    let heads: Vec<_> = COLUMNS.iter().map(|(_, head)| *head).collect();
    println!("\n| server | kind | {} |\n|---|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for ((server, kind), columns) in table {
        let told = |cell: &Cell| {
            let told = cell.iter().map(|(all, stopped)| format!("{stopped}/{all}"));
            told.collect::<Vec<_>>().join(" ")
        };
        let cells: Vec<_> = columns.iter().map(told).collect();
        println!("| {server} | {kind} | {} |", cells.join(" | "));
    }
}

/// Measures how long a client has no server that orders its writes, with ZooKeeper's sample configuration and a default
/// session.
async fn away(runs: usize, distribution: &Distribution) -> Result<()> {
    let sample = || {
        let limits = Servers::default().distribution(distribution.clone()).tick(Duration::from_secs(2)).for_speed(512);
        let limits = limits.session_timeouts(Duration::from_secs(4), Duration::from_secs(40));
        limits.config("initLimit", "10").config("syncLimit", "5")
    };
    let single = Apache::single(sample())?;
    let ensemble = Apache::ensemble(3, sample())?;
    let restarted = |apache: &Apache, _: usize| {
        apache.stop(0);
        apache.launch(0)
    };
    report("a single server is restarted (SIGTERM, then started)", &single, runs, restarted).await?;
    let ended = |apache: &Apache, leader: usize| {
        apache.stop(leader);
        Ok(())
    };
    report("the leader of three ends (SIGTERM)", &ensemble, runs, ended).await?;
    let frozen = |apache: &Apache, leader: usize| {
        apache.pause(leader);
        Ok(())
    };
    report("the leader of three says nothing more (SIGSTOP)", &ensemble, runs.min(5), frozen).await
}

/// Whether all servers serve, and one leads: a leader that was stopped reports briefly that it still leads.
fn settled(apache: &Apache) -> bool {
    let modes: Vec<_> = (0..apache.size()).map(|server| apache.mode(server)).collect();
    let leaders = modes.iter().filter(|mode| matches!(mode, Some(Mode::Leader | Mode::Standalone))).count();
    leaders == 1 && modes.iter().all(Option::is_some)
}

/// Holds a lock, makes a fault of its server or leader, and waits until a write of the hold is confirmed.
async fn report(what: &str, apache: &Apache, runs: usize, befall: impl Fn(&Apache, usize) -> Result<()>) -> Result<()> {
    let keeper = Lockkeeper::connect(&apache.connect_string()).await?;
    let (mut times, mut lost) = (Vec::new(), 0);
    for _ in 0..runs {
        let leader = apache.leader()?;
        let guard = keeper.mutex("/healthy/away").acquire().await?;
        let since = Instant::now();
        // Blocks this thread; the library has its own.
        befall(apache, leader)?;
        match guard.verify().await {
            Ok(()) => times.push(since.elapsed()),
            Err(_) => lost += 1,
        }
        _ = guard.release().await;
        apache.resume(leader);
        if apache.pid(leader).is_none() {
            apache.launch(leader)?;
        }
        while !settled(apache) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    times.sort();
    let at = |index: usize| times.get(index).copied().unwrap_or_default();
    println!(
        "{what}: a client's next write is confirmed {:.1?} to {:.1?} later, {:.1?} in the middle; {lost} of {runs} holds lost",
        at(0),
        at(times.len().saturating_sub(1)),
        at(times.len() / 2)
    );
    keeper.close().await;
    Ok(())
}
