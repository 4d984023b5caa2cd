//! One campaign: workers with their faults, a server with its faults, one history and one judge. The profiles below say
//! which and for how long.

pub(crate) mod chaos;
mod contender;
pub(crate) mod healthy;
mod job;
mod judge;
mod observer;
mod plan;
mod runner;
pub(crate) mod storm;

use std::fs;
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::site::Site;
use crate::tools::now;
pub(crate) use contender::Contender;
pub(crate) use job::Work;
use judge::{Attempt, Storm, Word};
use plan::{Job, name};

/// Time limit for the rest of crashed commands: the end of a session or a lease, and the delay that servers add.
const EXPIRY: Duration = Duration::from_secs(20);

/// Runs workers on these locks, each on a thread of its own, and makes faults of the servers meanwhile. Also observes the
/// machine, and what is left within `expiry` after the end. `faults` returns the times when a server was away.
fn observed<W: FnOnce() -> Result<Vec<Attempt>> + Send>(
    site: &Site,
    locks: Range<usize>,
    expiry: Duration,
    workers: impl Iterator<Item = W>,
    faults: impl FnOnce() -> Result<Vec<(Duration, Duration)>> + Send,
) -> Result<Storm> {
    for lock in locks {
        fs::write(site.file(&name(lock)), "0\n")?;
    }
    let (start, over) = (now(), AtomicBool::new(false));
    scope(|threads| {
        let control = threads.spawn(|| control(&over));
        let probes = threads.spawn(|| probes(site, &over));
        let faults = threads.spawn(faults);
        let workers: Vec<_> = workers.map(|worker| threads.spawn(worker)).collect();
        let attempts: Result<Vec<_>> = workers.into_iter().map(joined).collect();
        let disturbed = joined(faults);
        let left = left(site, expiry);
        over.store(true, Ordering::Relaxed);
        let (control, probes) = (joined(control)?, joined(probes));
        Ok(Storm { start, attempts: attempts?.concat(), disturbed: disturbed?, control, probes, left: left? })
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
fn control(over: &AtomicBool) -> Result<Vec<(Duration, Duration)>> {
    const NOTED: Duration = Duration::from_millis(20);
    const SLEEP: Duration = Duration::from_millis(10);
    let mut file = tempfile::tempfile().context("writing beside the round")?;
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
fn left(site: &Site, expiry: Duration) -> Result<Vec<String>> {
    let deadline = Instant::now() + expiry;
    loop {
        let (locks, processes) = (site.locks(), site.processes());
        let clean = locks.as_ref().is_ok_and(Vec::is_empty) && processes.is_empty();
        if clean || Instant::now() >= deadline {
            let locks = locks.unwrap_or_else(|error| vec![format!("{error:#}").into()]);
            let locks = locks.into_iter().map(|lock| format!("left at a lock {expiry:?} after the end: {lock}"));
            let processes =
                processes.into_iter().map(|(pid, line)| format!("process {} is left: {line}", pid.as_raw_nonzero()));
            return Ok(locks.chain(processes).collect());
        }
        sleep(Duration::from_millis(200));
    }
}
