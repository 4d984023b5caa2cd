//! `cargo xtask chaos`: real contenders, a real ensemble, and every fault that can happen to them, chosen by a seed.
//!
//! Contenders are processes that use the library. They log what they do and believe, and increment numbers in files behind
//! gates ([`FencedFile`](lockkeeper_fence::FencedFile)). In the end the history is judged like that of a simulated world. A seed chooses the same faults again, but the history differs: only the
//! simulator repeats a history.

mod contender;
mod fault;
mod log;
mod testbed;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use lockkeeper::Lockkeeper;
use lockkeeper::error::AdminError;
use lockkeeper_testkit::apache::SlowFsync;
use lockkeeper_testkit::history::{Event, Promises, Tally, What, judge};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::Role;
use crate::tools::{Tools, now, urgently};
pub(crate) use contender::Contender;
use fault::Fault;
pub(crate) use testbed::{MACHINES, SERVERS, TICK, Testbed};

/// The session timeout of the contenders.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

/// The locks: a mutex, one with names that carry no id, one for readers and writers.
const LOCKS: [&str; 3] = ["/chaos/mutex", "/chaos/recipe", "/chaos/shared"];

/// Contenders on each machine.
const CONTENDERS: usize = 3;

/// Time limit for writes to continue after a fault.
const RECOVERY: Duration = Duration::from_secs(60);

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
    /// The number of broken promises and unexpected results.
    pub(crate) broken: usize,
}

/// A contender's process.
struct Process {
    contender: u32,
    machine: usize,
    child: Child,
}

impl Process {
    fn signal(&self, signal: Signal) {
        // Only this process reaps it, so its id still belongs to it.
        _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// All participants of a run.
struct Chaos {
    // Before the testbed: fields are dropped in this order, and a namespace stays while processes run in it.
    processes: Vec<Process>,
    rng: fastrand::Rng,
    next: u32,
    /// What happened to contenders, and what was left at the end.
    events: Vec<Event>,
    unexpected: Vec<String>,
    testbed: Testbed,
    runtime: tokio::runtime::Runtime,
}

/// Makes faults for this many minutes, then ends everything and judges the history. Prints each event with its second.
pub(crate) fn make(minutes: u64, seed: Option<u64>, loopback: bool, tools: &Tools) -> Result<Report> {
    let distribution = (tools.servers)()?;
    SlowFsync::install()?;
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) ^ now().as_nanos() as u64 & 0xffff_ffff);
    println!("chaos for {minutes} min by seed {seed}");
    let testbed = Testbed::start(distribution, loopback, true, TICK * 4)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let rng = fastrand::Rng::with_seed(seed);
    let mut chaos =
        Chaos { processes: Vec::new(), rng, next: 0, events: Vec::new(), unexpected: Vec::new(), testbed, runtime };
    for machine in 0..MACHINES {
        for _ in 0..CONTENDERS {
            chaos.spawn(machine)?;
        }
    }
    chaos.goes_on("the start");
    let made = chaos.faults(Duration::from_secs(minutes * 60))?;
    for (fault, count) in &made {
        println!("  {count:3} × {fault:?}");
    }
    for missing in &chaos.testbed.missing {
        println!("  NOT AVAILABLE HERE: {missing}");
    }
    let report = chaos.end()?;
    let never: Vec<_> = made.iter().filter(|(_, count)| *count == 0).collect();
    if !never.is_empty() {
        println!("faults that were not made: {never:?}");
    }
    println!("seed {seed}: {}", if report.broken == 0 { "every promise kept" } else { "PROMISES BROKEN" });
    Ok(report)
}

impl Chaos {
    fn add(&mut self, contender: u32, lock: u32, from: Duration, what: What) {
        self.events.push(Event { contender, lock, from, until: now(), what });
    }

    fn spawn(&mut self, machine: usize) -> Result<()> {
        let contender = self.next;
        self.next += 1;
        let (dir, servers) = (self.testbed.dir.path().to_owned(), self.testbed.servers(machine));
        let task = Contender { dir, contender, servers, seed: self.rng.u64(..) };
        let mut command = self.testbed.place(machine)?.command(&std::env::current_exe()?);
        command.args(Role::Contend.words(&task));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        self.processes.push(Process { contender, machine, child: command.spawn()? });
        Ok(())
    }

    /// Makes every available kind of fault in the seed's order, then random kinds.
    fn faults(&mut self, length: Duration) -> Result<Vec<(Fault, usize)>> {
        let start = Instant::now();
        let mut kinds: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| fault.can(&self.testbed)).collect();
        let mut made: Vec<(Fault, usize)> = kinds.iter().map(|kind| (*kind, 0)).collect();
        self.rng.shuffle(&mut kinds);
        while start.elapsed() < length {
            let kind = kinds.pop().unwrap_or_else(|| made[self.rng.usize(..made.len())].0);
            let say = |detail: &str| println!("{:6.1} {kind:?}: {detail}", start.elapsed().as_secs_f64());
            if let Some(nothing) = kind.strike(self, &say)? {
                say(nothing);
            } else if let Some((_, count)) = made.iter_mut().find(|(known, _)| *known == kind) {
                *count += 1;
            }
            self.testbed.recover()?;
            self.revive()?;
            self.goes_on(&format!("{kind:?}"));
        }
        Ok(made)
    }

    /// Reports the contenders that have ended without being killed, and replaces them.
    fn revive(&mut self) -> Result<()> {
        let mut gone = Vec::new();
        self.processes.retain_mut(|process| match process.child.try_wait() {
            Ok(None) => true,
            ended => {
                gone.push((process.contender, process.machine, format!("{ended:?}")));
                false
            }
        });
        for (contender, machine, how) in gone {
            self.unexpected.push(format!("contender {contender} ended: {how}"));
            self.add(contender, 0, now(), What::Died);
            self.spawn(machine)?;
        }
        Ok(())
    }

    /// Waits until the resource gets writes again.
    fn goes_on(&mut self, what: &str) {
        let start = Instant::now();
        let enough = log::accepted(self.testbed.dir.path()) + 5;
        while log::accepted(self.testbed.dir.path()) < enough {
            if start.elapsed() > RECOVERY {
                println!("       no write after {what}");
                return self.unexpected.push(format!("nothing was written for {RECOVERY:?} after {what}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends everything, judges the history and prints what is broken.
    fn end(mut self) -> Result<Report> {
        println!("       stopping all contenders");
        std::fs::write(log::over(self.testbed.dir.path()), "")?;
        let deadline = Instant::now() + RECOVERY;
        for process in &mut self.processes {
            while matches!(process.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            if let Ok(None) = process.child.try_wait() {
                self.unexpected.push(format!("contender {} does not end", process.contender));
            }
        }
        self.processes.clear();
        // Nodes of killed contenders are deleted with their sessions.
        std::thread::sleep(SESSION_TIMEOUT + TICK * 2);
        let keeper = Lockkeeper::builder().connect_blocking(&self.testbed.apache.connect_string())?;
        for (lock, path) in (0..).zip(LOCKS) {
            let nodes = self.runtime.block_on(left(&keeper, path))?;
            self.add(0, lock, now(), What::LeftBehind { nodes });
        }
        let (mut history, mut unexpected) = (self.events, self.unexpected);
        log::read(self.testbed.dir.path(), self.next, &mut history, &mut unexpected);
        let verdict = judge(&history, &promises());
        let tally = verdict.tally;
        println!(
            "{} grants, {} calls not granted, {} looks at a hold, {} holds lost",
            tally.grants, tally.refusals, tally.looks, tally.losses
        );
        println!(
            "{} writes accepted, {} stale ones rejected, {} stale ones accepted",
            tally.accepted, tally.refused, tally.stale
        );
        for violation in &verdict.violations {
            println!("BROKEN: {violation}");
        }
        for unexpected in &unexpected {
            println!("UNEXPECTED: {unexpected}");
        }
        Ok(Report { tally, broken: verdict.violations.len() + unexpected.len() })
    }
}

/// Returns the nodes of the contenders of a lock.
pub(crate) async fn left(keeper: &Lockkeeper, path: &str) -> Result<Vec<String>> {
    match keeper.admin().show(path).await {
        Ok(seen) => Ok(seen.holders.into_iter().chain(seen.waiters).map(|contender| contender.node).collect()),
        Err(AdminError::NoSuchLock { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn promises() -> Promises {
    // The limits of waits allow for the faults: servers are down for up to ten seconds and need some more for an
    // election.
    Promises {
        permits: 0,
        lateness: Duration::from_secs(1),
        abandoned: RECOVERY,
        idle: RECOVERY,
        healthy: None,
        every: None,
    }
}
