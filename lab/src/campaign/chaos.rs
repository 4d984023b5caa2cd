//! `cargo xtask chaos`: real contenders, a real ensemble, and every fault that can happen to them, chosen by a seed.
//!
//! Contenders are processes that use the library. They log what they do and believe, and increment numbers in files behind
//! gates ([`FencedFile`](lockkeeper_fence::FencedFile)). A seed chooses the same faults again, but the history differs: only the
//! simulator repeats a history.

mod fault;

use std::fs;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use fastrand::Rng;
use lockkeeper_testkit::apache::SlowFsync;
use lockkeeper_testkit::history::{Claim, Promises, Tally, Violation};
use rustix::process::Signal;

use super::contender::{ChaosLock, number};
use super::judge::{Attempt, Status, judge};
use super::observed;
use super::observer::Observer;
use super::plan::{self, Job, JobKind, Library, Moment, Trouble, Whom, between, name};
use super::runner::{OVER, POLL, Runner};
use crate::site::Site;
use crate::testbed::{LONG_TICK, MACHINES, SESSION_TIMEOUT, TICK, Testbed};
use crate::tools::{Tools, now, urgently};
use fault::Fault;

/// The locks: one of each kind.
pub(super) const LOCKS: Range<usize> = plan::LOCKS.len()..plan::LOCKS.len() + ChaosLock::ALL.len();

/// Contenders at a time on each machine.
const CONTENDERS: usize = 3;

/// How many of its last words are printed of a contender that has to do with a broken promise.
const LAST: usize = 12;

/// Time limit for writes to continue after a fault.
const RECOVERY: Duration = Duration::from_secs(60);

/// The limits of waits allow for the faults: servers are down for up to ten seconds and need some more for an election.
const PROMISES: Promises = Promises {
    permits: 0,
    lateness: Duration::from_secs(1),
    abandoned: RECOVERY,
    idle: RECOVERY,
    healthy: None,
    every: None,
};

#[derive(Debug, Args)]
pub struct Options {
    /// Minutes of faults; every kind of fault comes once in five minutes
    #[arg(long, value_name = "N", default_value = "10")]
    minutes: u64,
    /// The seed of the faults [default: random]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Run as long as CI does
    #[arg(long, conflicts_with = "minutes")]
    brief: bool,
    /// Use loopback and proxies, even where network namespaces are available.
    #[arg(long)]
    loopback: bool,
}

/// The minutes of a run in CI: every kind of fault comes once.
const BRIEF: u64 = 5;

pub(crate) fn run(options: &Options, tools: &Tools) -> Result<()> {
    let minutes = if options.brief { BRIEF } else { options.minutes };
    let report = urgently(10, |_| make(minutes, options.seed, options.loopback, tools))?;
    if report.broken > 0 {
        bail!("{} promises were broken", report.broken);
    }
    Ok(())
}

/// The result of a run.
pub(crate) struct Report {
    pub(crate) tally: Tally,
    /// The number of broken promises, and of kinds of faults that could not be made.
    pub(crate) broken: usize,
}

/// What the faults of the servers and of the network need.
struct Chaos<'a> {
    testbed: &'a Testbed,
    rng: Rng,
    runtime: &'a tokio::runtime::Runtime,
    /// How often each available kind of fault was made.
    made: Vec<(Fault, usize)>,
    /// After which ones nobody wrote.
    stuck: Vec<Violation>,
}

/// Makes faults for this many minutes, then ends everything and judges the history. Prints each fault with its second.
pub(crate) fn make(minutes: u64, seed: Option<u64>, loopback: bool, tools: &Tools) -> Result<Report> {
    SlowFsync::install()?;
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) ^ now().as_nanos() as u64 & 0xffff_ffff);
    println!("chaos for {minutes} min by seed {seed}");
    // Before the testbed: it outlives the proxies.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    // Every second seed: a session timeout of two ticks.
    let tick = if seed.is_multiple_of(2) { TICK } else { LONG_TICK };
    println!("a tick of {tick:?}, sessions of {SESSION_TIMEOUT:?}");
    let testbed = Testbed::start(tools, tick, loopback, true, tick * 4)?;
    let made = Fault::ALL.into_iter().filter(|fault| fault.can(&testbed)).map(|fault| (fault, 0)).collect();
    let rng = Rng::with_seed(seed);
    let mut chaos = Chaos { testbed: &testbed, rng, runtime: &runtime, made, stuck: Vec::new() };
    let site = &testbed.site;
    let runner = Runner { site, plant: None, start: now(), asked: Mutex::default() };
    let next = AtomicUsize::new(0);
    let contenders = (0..MACHINES * CONTENDERS).map(|place| {
        let (runner, testbed, next) = (&runner, &testbed, &next);
        move || {
            let mut attempts = Vec::new();
            while !testbed.site.file(OVER).exists() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let attempt = runner.attempt(&contender(seed, number, place % MACHINES, testbed)?)?;
                // One that ends by a mistake is reported, and is not replaced.
                let ended_well = matches!(attempt.ended, Some((_, Status::Code(0) | Status::Signal(9))));
                attempts.push(attempt);
                if !ended_well {
                    break;
                }
            }
            Ok(attempts)
        }
    });
    let observer = Observer::start(site)?;
    let storm = observed(site, LOCKS, SESSION_TIMEOUT + tick * 2, contenders, || {
        let made = chaos.faults(Duration::from_secs(minutes * 60));
        println!("       stopping all contenders");
        fs::write(site.file(OVER), "")?;
        made.map(|()| vec![])
    })?;
    let seen = observer.end()?;
    let mut made: Vec<_> = chaos.made.into_iter().map(|(fault, count)| (format!("{fault:?}"), count)).collect();
    let troubles = || storm.attempts.iter().flat_map(|attempt| &attempt.done).map(|done| done.what);
    let kills = troubles().filter(|what| matches!(what, Trouble::Signal(..))).count();
    made.extend([("KillClient".to_owned(), kills), ("StopClient".to_owned(), troubles().count() - kills)]);
    for (fault, count) in &made {
        println!("  {count:3} × {fault}");
    }
    for missing in &testbed.missing {
        println!("  NOT AVAILABLE HERE: {missing}");
    }
    let verdict = judge(&storm, &PROMISES);
    let tally = verdict.tally;
    println!(
        "{} grants, {} calls not granted, {} looks at a hold, {} holds lost",
        tally.grants, tally.refusals, tally.looks, tally.losses
    );
    let late = storm.control.iter().map(|(_, late)| *late).max().unwrap_or_default();
    println!(
        "{} writes accepted, {} stale ones rejected, {} stale ones accepted; machine late by {late:.0?} at most",
        tally.accepted, tally.refused, tally.stale
    );
    let missed = seen.missed(&storm.attempts, storm.start, late);
    for missed in &missed {
        println!("BROKEN: {missed}");
    }
    let mut broken = missed.len();
    for violation in verdict.violations.iter().chain(&chaos.stuck) {
        println!("BROKEN: {violation}");
        for attempt in storm.attempts.iter().filter(|it| violation.contenders.contains(&(it.job.number as u32))) {
            println!("{}", last_words(attempt, storm.start));
        }
        broken += 1;
    }
    for (fault, _) in made.iter().filter(|(_, count)| *count == 0 && minutes >= BRIEF) {
        println!("NOT MADE: {fault}");
        broken += 1;
    }
    println!("seed {seed}: {}", if broken == 0 { "every promise kept" } else { "PROMISES BROKEN" });
    Ok(Report { tally, broken })
}

/// Returns the contender with this number: how long it lives, and what is done to it while it holds a lock.
fn contender(seed: u64, number: usize, machine: usize, testbed: &Testbed) -> Result<Job> {
    let rng = &mut Rng::with_seed(seed.wrapping_add(number as u64 + 1));
    let life = between(rng, 20_000, 120_000);
    let trouble = match rng.u8(..3) {
        0 => Some(Trouble::Signal(Signal::KILL, Whom::Keeper)),
        1 => Some(Trouble::Stop(Whom::Keeper, between(rng, 500, 8_000))),
        _ => None,
    };
    let trouble = trouble.map(|trouble| (Moment::Holding(life.mul_f64(rng.f64())), trouble));
    let library = Library { host: testbed.place(machine)?, servers: testbed.servers(machine), seed: rng.u64(..) };
    let job = Job::new(LOCKS.collect(), JobKind::Plain, life, SESSION_TIMEOUT);
    Ok(Job { number, trouble, library: Some(library), ..job })
}

/// Returns what a contender did last.
fn last_words(attempt: &Attempt, start: Duration) -> String {
    let at = |time: Duration| time.saturating_sub(start).as_secs_f64();
    let mut text = format!("  contender {}, pid {}, done to it: {:?}", attempt.job.number, attempt.pid, attempt.done);
    for (time, word) in &attempt.lines[attempt.lines.len().saturating_sub(LAST)..] {
        text += &format!("\n    {:.3} {word:?}", at(*time));
    }
    if let Some((time, status)) = attempt.ended {
        text += &format!("\n    {:.3} ended: {status:?}", at(time));
    }
    text + "\n    said: " + &attempt.said
}

/// Returns how many writes the files have accepted.
fn accepted(site: &Site) -> u64 {
    LOCKS.map(|lock| number(&site.file(&name(lock)))).sum()
}

impl Chaos<'_> {
    /// Makes every available kind of fault in the seed's order, then random kinds.
    fn faults(&mut self, length: Duration) -> Result<()> {
        self.goes_on("the start");
        let start = Instant::now();
        let mut kinds: Vec<Fault> = self.made.iter().map(|(kind, _)| *kind).collect();
        self.rng.shuffle(&mut kinds);
        while start.elapsed() < length {
            let kind = kinds.pop().unwrap_or_else(|| self.made[self.rng.usize(..self.made.len())].0);
            let say = |detail: &str| println!("{:6.1} {kind:?}: {detail}", start.elapsed().as_secs_f64());
            if let Some(nothing) = kind.strike(self, &say)? {
                say(nothing);
                kinds.insert(0, kind);
            } else if let Some((_, count)) = self.made.iter_mut().find(|(known, _)| *known == kind) {
                *count += 1;
            }
            self.testbed.site.recover()?;
            self.goes_on(&format!("{kind:?}"));
        }
        Ok(())
    }

    /// Waits until the files get writes again.
    fn goes_on(&mut self, what: &str) {
        let (start, enough) = (Instant::now(), accepted(&self.testbed.site) + 5);
        while accepted(&self.testbed.site) < enough {
            if start.elapsed() > RECOVERY {
                let detail = format!("nothing was written for {RECOVERY:?} after {what}");
                println!("       {detail}");
                return self.stuck.push(Violation { claim: Claim::WakeUp, lock: 0, detail, contenders: vec![] });
            }
            sleep(POLL);
        }
    }
}
