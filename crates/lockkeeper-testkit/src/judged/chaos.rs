//! Chaos: real contenders, a real ensemble, and every fault that can happen to them, chosen by a seed.
//!
//! Contenders are processes that use the library. They report what they do and believe to a witness. The witness is
//! also the resource that they write to, behind a [`TokenGate`](lockkeeper_fence::TokenGate). In the end the history is
//! judged like that of a simulated world. A seed chooses the same faults again, but the history differs: only the
//! simulator repeats a history.

mod contender;
mod fault;
mod testbed;
mod witness;

use std::io;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::Lockkeeper;
use lockkeeper::error::AdminError;
use rustix::process::{Pid, Signal, kill_process};

pub use contender::{Contender, contend};
pub use fault::Fault;
pub use testbed::{MACHINES, SERVERS, TICK, Testbed};
pub use witness::now;

use crate::infra::apache::{self, Distribution};
use crate::judged::history::{Promises, Verdict, What, judge};
use witness::Witness;

/// The session timeout of the contenders.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

/// The locks: a mutex, one with names that carry no id, one for readers and writers.
const LOCKS: [&str; 3] = ["/chaos/mutex", "/chaos/recipe", "/chaos/shared"];

/// Contenders on each machine.
const CONTENDERS: usize = 3;

/// Time limit for writes to continue after a fault.
const RECOVERY: Duration = Duration::from_secs(60);

/// An error of the chaos run itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A server failed.
    #[error(transparent)]
    Apache(#[from] apache::Error),
    /// The operating system refused an operation.
    #[error("chaos: {0}")]
    Io(#[from] io::Error),
    /// The orchestrator's own session failed.
    #[error("chaos: the lock service cannot be asked what is left: {0}")]
    Library(lockkeeper::Error),
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long faults are made.
    pub length: Duration,
    /// The seed of the faults.
    pub seed: u64,
    /// Use no network namespaces, even where they are available.
    pub loopback: bool,
    /// The servers' release.
    pub distribution: Distribution,
    /// The program and arguments that run [`contend`]; the witness, the number, the servers and the seed are added.
    pub contender: (PathBuf, Vec<String>),
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The judge's verdict.
    pub verdict: Verdict,
    /// Unexpected results of the library, and locks that stayed blocked.
    pub unexpected: Vec<String>,
    /// The kinds of faults that were made, each with its count.
    pub faults: Vec<(Fault, usize)>,
    /// The faults that are not available here, with the reasons.
    pub missing: Vec<String>,
}

impl Report {
    /// Whether every promise was kept.
    pub fn kept(&self) -> bool {
        self.verdict.violations.is_empty() && self.unexpected.is_empty()
    }
}

/// A contender's process.
struct Process {
    contender: u32,
    machine: usize,
    child: Child,
}

impl Process {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Only this process reaps it, so its id still belongs to it.
            _ = kill_process(pid, signal);
        }
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
    options: Options,
    rng: fastrand::Rng,
    next: u32,
    witness: Witness,
    testbed: Testbed,
    runtime: tokio::runtime::Runtime,
}

/// Makes faults for the given time, then ends everything and judges the history. Passes each event to `say`, with the
/// seconds.
///
/// # Errors
/// The servers or this machine fail. Errors of the library are in the report.
pub fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Report, Error> {
    let testbed = Testbed::start(options.distribution.clone(), options.loopback, true, TICK * 4)?;
    let witness = Witness::start(&testbed.dir.path().join("witness"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let rng = fastrand::Rng::with_seed(options.seed);
    let options = options.clone();
    let mut chaos = Chaos { processes: Vec::new(), options, rng, next: 0, witness, testbed, runtime };
    for machine in 0..MACHINES {
        for _ in 0..CONTENDERS {
            chaos.spawn(machine)?;
        }
    }
    chaos.goes_on("the start", say);
    let made = chaos.faults(say)?;
    chaos.end(made, say)
}

impl Chaos {
    fn spawn(&mut self, machine: usize) -> Result<(), Error> {
        let contender = self.next;
        self.next += 1;
        let (program, words) = &self.options.contender;
        let mut command = self.testbed.place(machine)?.command(program);
        command.args(words).arg(self.witness.path()).arg(contender.to_string()).arg(self.testbed.servers(machine));
        command.arg(self.rng.u64(..).to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        self.processes.push(Process { contender, machine, child: command.spawn()? });
        Ok(())
    }

    /// Makes every available kind of fault in the seed's order, then random kinds.
    fn faults(&mut self, say: &dyn Fn(&str)) -> Result<Vec<(Fault, usize)>, Error> {
        let (start, length) = (Instant::now(), self.options.length);
        let mut kinds: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| fault.can(&self.testbed)).collect();
        let mut made: Vec<(Fault, usize)> = kinds.iter().map(|kind| (*kind, 0)).collect();
        self.rng.shuffle(&mut kinds);
        while start.elapsed() < length {
            let kind = kinds.pop().unwrap_or_else(|| made[self.rng.usize(..made.len())].0);
            let detail =
                kind.strike(self, &|detail| say(&format!("{:6.1} {kind:?}: {detail}", start.elapsed().as_secs_f64())))?;
            if let Some(nothing) = detail {
                say(&format!("{:6.1} {kind:?}: {nothing}", start.elapsed().as_secs_f64()));
            } else if let Some((_, count)) = made.iter_mut().find(|(known, _)| *known == kind) {
                *count += 1;
            }
            self.testbed.recover()?;
            self.revive()?;
            self.goes_on(&format!("{kind:?}"), say);
        }
        Ok(made)
    }

    /// Reports the contenders that have ended without being killed, and replaces them.
    fn revive(&mut self) -> Result<(), Error> {
        let mut gone = Vec::new();
        self.processes.retain_mut(|process| match process.child.try_wait() {
            Ok(None) => true,
            ended => {
                gone.push((process.contender, process.machine, format!("{ended:?}")));
                false
            }
        });
        for (contender, machine, how) in gone {
            self.witness.unexpected(format!("contender {contender} ended: {how}"));
            self.witness.add(contender, 0, now(), What::Died);
            self.spawn(machine)?;
        }
        Ok(())
    }

    /// Waits until the resource gets writes again.
    fn goes_on(&self, what: &str, say: &dyn Fn(&str)) {
        let (start, enough) = (Instant::now(), self.witness.accepted() + 5);
        while self.witness.accepted() < enough {
            if start.elapsed() > RECOVERY {
                say(&format!("       no write after {what}"));
                return self.witness.unexpected(format!("nothing was written for {RECOVERY:?} after {what}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(mut self, faults: Vec<(Fault, usize)>, say: &dyn Fn(&str)) -> Result<Report, Error> {
        say("       stopping all contenders");
        self.witness.enough();
        let deadline = Instant::now() + RECOVERY;
        for process in &mut self.processes {
            while matches!(process.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            if let Ok(None) = process.child.try_wait() {
                self.witness.unexpected(format!("contender {} does not end", process.contender));
            }
        }
        self.processes.clear();
        // Nodes of killed contenders are deleted with their sessions.
        std::thread::sleep(SESSION_TIMEOUT + TICK * 2);
        for (lock, path) in (0..).zip(LOCKS) {
            let nodes = self.runtime.block_on(left(&self.testbed.apache.connect_string(), path))?;
            self.witness.add(0, lock, now(), What::LeftBehind { nodes });
        }
        let (history, unexpected) = self.witness.close();
        let verdict = judge(&history, &promises());
        Ok(Report { verdict, unexpected, faults, missing: std::mem::take(&mut self.testbed.missing) })
    }
}

fn library(error: impl Into<lockkeeper::Error>) -> Error {
    Error::Library(error.into())
}

/// Returns the nodes of the contenders of a lock.
async fn left(servers: &str, path: &str) -> Result<Vec<String>, Error> {
    let keeper = Lockkeeper::connect(servers).await.map_err(library)?;
    let seen = match keeper.admin().show(path).await {
        Ok(seen) => seen.holders.into_iter().chain(seen.waiters).map(|contender| contender.node).collect(),
        Err(AdminError::NoSuchLock { .. }) => Vec::new(),
        Err(error) => return Err(library(error)),
    };
    keeper.close().await;
    Ok(seen)
}

fn promises() -> Promises {
    // The limits of waits allow for the faults: servers are down for up to ten seconds and need some more for an
    // election.
    Promises { permits: 0, lateness: Duration::from_secs(1), abandoned: RECOVERY, idle: RECOVERY, healthy: None }
}
