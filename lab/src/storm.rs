//! `cargo xtask storm`: runs random jobs through the command under seeded faults, and judges them by the jobs' own
//! logs.
//!
//! A round chooses its jobs and faults by one seed, runs them on one kind of server, and is judged at the end. The
//! judge does not know what the command believes. It knows only what jobs logged during their work, how commands ended,
//! and which faults were made.

pub(crate) mod healthy;
mod job;
mod judge;
mod plan;
mod runner;

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::site::{Site, Which};
use crate::tools::{Tools, now};
pub(crate) use job::Work;
use judge::{Attempt, Storm, Word, judge};
use lockkeeper_testkit::history::Violation;
use plan::{Job, LOCKS, Plan, Plant, name};
use runner::Runner;

/// Time limit for the rest of crashed commands: the end of a session or a lease, and the delay that servers add.
const EXPIRY: Duration = Duration::from_secs(20);

/// How long a server is not counted as healthy after a fault: sessions reconnect and become trusted again.
const RECOVERY: Duration = Duration::from_secs(6);

#[derive(Debug, Args)]
pub struct Options {
    /// Minutes of rounds; the last round is finished
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,
    /// The seed of the first round; each later round adds one [default: random]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Run only one round
    #[arg(long, conflicts_with_all = ["minutes", "brief"])]
    once: bool,
    /// Run on this server [default: on each in turn]
    #[arg(long)]
    server: Option<Which>,
    /// Plant every mistake, one after the other, and fail if one is not found
    #[arg(long, conflicts_with = "brief")]
    self_check: bool,
    /// Run as long as CI does
    #[arg(long, conflicts_with = "minutes")]
    brief: bool,
}

/// The duration in CI: a round or two.
const BRIEF: Duration = Duration::from_secs(75);

pub(crate) fn run(options: &Options, tools: &Tools) -> Result<()> {
    if options.self_check {
        return self_check(tools);
    }
    let servers = options.server.map_or(Which::ALL.to_vec(), |server| vec![server]);
    let first = options.seed.unwrap_or_else(|| now().as_nanos() as u64 % 1_000_000);
    let length = if options.brief { BRIEF } else { Duration::from_secs(options.minutes * 60) };
    let (start, mut rounds, mut totals, mut found) = (Instant::now(), 0, [0; 3], 0);
    println!("storm from seed {first}");
    for (seed, which) in (first..).zip(servers.iter().cycle()) {
        let round = Round::run(seed, *which, None, tools)?;
        found += round.report();
        rounds += 1;
        totals.iter_mut().zip(round.counts()).for_each(|(total, count)| *total += count);
        if options.once || start.elapsed() >= length {
            break;
        }
    }
    let ([jobs, granted, faults], took) = (totals, start.elapsed().as_secs_f64() / 60.0);
    println!("{rounds} rounds, {jobs} jobs, {granted} of them granted, {faults} faults; {found} broken; {took:.1} min");
    println!("from seed {first}: {}", if found == 0 { "every promise kept" } else { "PROMISES BROKEN" });
    if found > 0 {
        bail!("{found} promises were broken");
    }
    Ok(())
}

/// Plants each mistake in a few rounds until it is found.
fn self_check(tools: &Tools) -> Result<()> {
    for plant in Plant::ALL {
        let mut found = false;
        // Calm rounds: a mistake that is found there is found in any round.
        for seed in [3, 6, 9] {
            let round = Round::run(seed, Which::Embedded, Some(plant), tools)?;
            let shown = round.broken.iter().find(|broken| broken.claim == plant.breaks());
            println!("{plant:?}, seed {seed}: {}", shown.map_or("not found".into(), ToString::to_string));
            found = shown.is_some();
            if found {
                break;
            }
        }
        if !found {
            bail!("the planted mistake {plant:?} was not found");
        }
    }
    Ok(())
}

/// A finished round.
struct Round {
    seed: u64,
    which: Which,
    storm: Storm,
    broken: Vec<Violation>,
}

impl Round {
    fn run(seed: u64, which: Which, plant: Option<Plant>, tools: &Tools) -> Result<Round> {
        let plan = Plan::of(seed);
        let site = Site::prepare(which, tools)?;
        let start = now();
        let runner = Runner { site: &site, plant, start, asked: Mutex::default() };
        let stray = (plant == Some(Plant::Stray)).then(|| {
            let mut stray = site.command();
            stray.args(["run", "stray", "--", "sleep", "120"]).stderr(Stdio::null()).spawn()
        });
        let mut storm = observed(&site, 0..LOCKS.len(), || {
            scope(|threads| {
                let faults = threads.spawn(|| {
                    plan.faults
                        .iter()
                        .map(|fault| {
                            sleep((start + fault.at).saturating_sub(now()));
                            let from = now();
                            site.disturb(fault)?;
                            Ok((from, now() + RECOVERY))
                        })
                        .collect::<Result<Vec<_>>>()
                });
                let jobs: Vec<_> = plan.jobs.iter().map(|job| threads.spawn(|| runner.attempt(job))).collect();
                let attempts: Result<Vec<_>> = jobs.into_iter().map(joined).collect();
                Ok((attempts?, joined(faults)?))
            })
        })?;
        if let Some(stray) = stray {
            let mut stray = stray?;
            // Its command ends with it.
            stray.kill()?;
            stray.wait()?;
        }
        runner.hand_out(&mut storm.attempts);
        let broken = judge(&storm);
        Ok(Round { seed, which, storm, broken })
    }

    /// Returns the numbers of jobs, of granted jobs and of faults.
    fn counts(&self) -> [usize; 3] {
        let Storm { attempts, disturbed, .. } = &self.storm;
        let granted = attempts.iter().filter(|attempt| !attempt.lines.is_empty()).count();
        let faults = attempts.iter().map(|attempt| attempt.done.len()).sum::<usize>() + disturbed.len();
        [attempts.len(), granted, faults]
    }

    /// Prints the results; returns the number of broken promises.
    fn report(&self) -> usize {
        let Round { seed, which, storm, broken } = self;
        let start = &storm.start;
        let [jobs, granted, faults] = self.counts();
        let late = storm.control.iter().map(|(_, late)| *late).max().unwrap_or_default();
        println!(
            "seed {seed} on {which:?}: {jobs} jobs, {granted} granted, {faults} faults, machine late by {late:.0?} at most: {} broken",
            broken.len(),
        );
        let which =
            clap::ValueEnum::to_possible_value(which).map_or(String::new(), |value| value.get_name().to_owned());
        for broken in broken {
            println!("BROKEN: {broken}");
            for number in &broken.contenders {
                println!("{}", history(&storm.attempts[*number as usize], *start));
            }
            println!("  again: cargo xtask storm --once --seed {seed} --server {which}");
        }
        if !broken.is_empty() {
            for (from, until) in &storm.disturbed {
                println!(
                    "  server away or recovering from {:.3?} until {:.3?}",
                    from.saturating_sub(*start),
                    until.saturating_sub(*start)
                );
            }
        }
        broken.len()
    }
}

/// Runs jobs of these locks, and observes the machine meanwhile, and what is left afterwards.
fn observed(
    site: &Site,
    locks: Range<usize>,
    run: impl FnOnce() -> Result<(Vec<Attempt>, Vec<(Duration, Duration)>)>,
) -> Result<Storm> {
    for lock in locks {
        fs::write(site.file(&name(lock)), "0\n")?;
    }
    let (start, over) = (now(), AtomicBool::new(false));
    scope(|threads| {
        let control = threads.spawn(|| control(&site.file("control"), &over));
        let probes = threads.spawn(|| probes(site, &over));
        let ran = run();
        let left = left(site);
        over.store(true, Ordering::Relaxed);
        let mut control = joined(control)?;
        control.extend(joined(probes));
        let (attempts, disturbed) = ran?;
        Ok(Storm { start, attempts, disturbed, control, left: left? })
    })
}

/// Returns the events of one job, with times since the round's beginning.
fn history(attempt: &Attempt, start: Duration) -> String {
    let at = |time: Duration| format!("{:.3}", time.saturating_sub(start).as_secs_f64());
    let Job { number, work, on_term, status, second, .. } = &attempt.job;
    let mut text = format!(
        "  job {number}: lockkeeper run {} (works {work:?}, ends with {status}, {on_term:?}{}), pid {}\n    {} started",
        attempt.job.words().join(" "),
        if *second { ", two processes" } else { "" },
        attempt.pid,
        at(attempt.started),
    );
    if let Some((time, lock)) = attempt.waiting {
        text += &format!("\n    {} seen waiting for {}", at(time), name(lock));
    }
    for (time, word) in attempt.lines.iter().filter(|(_, word)| *word != Word::Tick) {
        text += &format!("\n    {} {word:?}", at(*time));
    }
    for (who, lines) in [("first", &attempt.lines), ("second", &attempt.second)] {
        text += &lines
            .last()
            .map_or(String::new(), |(time, _)| format!("\n    {} last line of its {who} process", at(*time)));
    }
    for done in &attempt.done {
        text += &format!("\n    {} to {} done to it: {:?}", at(done.from), at(done.until), done.what);
    }
    text += &match attempt.ended {
        Some((time, status)) => format!("\n    {} lockkeeper ended: {status:?}", at(time)),
        None => "\n    lockkeeper did not end".to_owned(),
    };
    for line in attempt.said.lines().filter(|line| line.contains("lockkeeper: ") || line.starts_with('{')).take(8) {
        text += &format!("\n    said: {line}");
    }
    text
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Sleeps and writes to the disk, without Lockkeeper, and records each time that this was late.
fn control(file: &Path, over: &AtomicBool) -> Result<Vec<(Duration, Duration)>> {
    const NOTED: Duration = Duration::from_millis(20);
    const SLEEP: Duration = Duration::from_millis(10);
    let mut file = File::create(file).context("writing beside the round")?;
    let mut seen = Vec::new();
    let mut turns = 0_u32;
    while !over.load(Ordering::Relaxed) {
        let from = now();
        sleep(SLEEP);
        turns += 1;
        if turns.is_multiple_of(10) {
            file.write_all(b".")?;
            file.sync_data()?;
        }
        let late = now().saturating_sub(from + SLEEP);
        if late >= NOTED {
            seen.push((now(), late));
        }
    }
    Ok(seen)
}

/// Opens plain sessions repeatedly, and records each slow answer: a busy machine delays a JVM more than a thread.
fn probes(site: &Site, over: &AtomicBool) -> Vec<(Duration, Duration)> {
    const NOTED: Duration = Duration::from_millis(50);
    let mut seen = Vec::new();
    for turn in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        seen.extend(site.probe(turn).filter(|took| *took >= NOTED).map(|took| (now(), took)));
        sleep(Duration::from_millis(100));
    }
    seen
}

/// Returns what is left after the end of a round: contenders whose sessions have expired, and processes.
fn left(site: &Site) -> Result<Vec<String>> {
    let deadline = Instant::now() + EXPIRY;
    loop {
        let (locks, processes) = (site.locks(), site.processes());
        let clean = locks.as_ref().is_ok_and(Vec::is_empty) && processes.is_empty();
        if clean || Instant::now() >= deadline {
            let locks = locks.unwrap_or_else(|error| vec![format!("{error:#}").into()]);
            let locks = locks.into_iter().map(|lock| format!("left at a lock {EXPIRY:?} after the end: {lock}"));
            let processes =
                processes.into_iter().map(|(pid, line)| format!("process {} is left: {line}", pid.as_raw_nonzero()));
            return Ok(locks.chain(processes).collect());
        }
        sleep(Duration::from_millis(200));
    }
}
