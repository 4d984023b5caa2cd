//! Runs steps: those of a lane one after the other, the lanes of a group side by side.
//!
//! A step is a process group of its own. It is ended, and failed by name, when its time is over; what it printed is kept
//! apart and printed whole when it ends.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::untested;

/// How long a step that is told to end may take before it is killed: servers are stopped in order meanwhile.
const GRACE: Duration = Duration::from_secs(15);

/// One thing to check.
pub(crate) struct Step {
    /// What it is called.
    pub name: &'static str,
    limit: Duration,
    what: What,
    environment: Vec<(&'static str, &'static str)>,
}

enum What {
    Cargo(&'static str),
    Chore(&'static str),
}

impl Step {
    /// A call of cargo, its words separated by spaces.
    pub(crate) fn cargo(name: &'static str, minutes: u64, words: &'static str) -> Step {
        Step::new(name, minutes, What::Cargo(words))
    }

    /// One of our chores, likewise.
    pub(crate) fn chore(name: &'static str, minutes: u64, words: &'static str) -> Step {
        Step::new(name, minutes, What::Chore(words))
    }

    fn new(name: &'static str, minutes: u64, what: What) -> Step {
        Step { name, limit: Duration::from_secs(minutes * 60), what, environment: Vec::new() }
    }

    pub(crate) fn env(mut self, name: &'static str, value: &'static str) -> Step {
        self.environment.push((name, value));
        self
    }
}

/// `chaos: cargo xtask chaos --brief, 20 min at most`
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, words) = match self.what {
            What::Cargo(words) => ("cargo", words),
            What::Chore(words) => ("cargo xtask", words),
        };
        write!(f, "{}: {by} {words}, {} min at most", self.name, self.limit.as_secs() / 60)
    }
}

/// Steps that run one after the other.
pub(crate) struct Lane {
    pub steps: Vec<Step>,
    yields: bool,
}

impl Lane {
    pub(crate) fn of(steps: Vec<Step>) -> Lane {
        Lane { steps, yields: false }
    }

    /// A lane that leaves every core to the others as soon as they want it.
    pub(crate) fn yielding(steps: Vec<Step>) -> Lane {
        Lane { steps, yields: true }
    }
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// Something real that it needs could not be fetched.
    Untested,
}

/// The end of a step.
pub(crate) struct End {
    pub name: &'static str,
    pub verdict: Verdict,
    how: String,
    took: Duration,
}

/// `  61.3 s  passed      kill -9 in the middle of writes`
impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.1} s  {:11} {}", self.took.as_secs_f64(), self.how, self.name)
    }
}

/// What runs steps.
pub(crate) struct Crew {
    /// This program.
    own: PathBuf,
    /// Where outputs are kept until they are printed.
    home: PathBuf,
    /// What every step is told.
    pub environment: Vec<(OsString, OsString)>,
}

impl Crew {
    pub(crate) fn new(own: PathBuf, home: PathBuf) -> Crew {
        Crew { own, home, environment: Vec::new() }
    }

    /// Runs the lanes side by side, until all have ended. A signal to stop ends what runs, and is an error.
    pub(crate) async fn group(&self, lanes: Vec<Lane>) -> Result<Vec<End>> {
        let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
        let all = join_all(lanes.iter().map(|lane| async {
            let mut ends = Vec::new();
            for step in &lane.steps {
                ends.push(self.step(step, lane.yields).await?);
            }
            Ok::<_, anyhow::Error>(ends)
        }));
        // Dropping a step under way ends its group.
        tokio::select! {
            ended = all => Ok(ended.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()),
            _ = interrupt.recv() => bail!("interrupted"),
            _ = terminate.recv() => bail!("told to stop"),
        }
    }

    async fn step(&self, step: &Step, yields: bool) -> Result<End> {
        eprintln!("== {}: begun", step.name);
        let start = Instant::now();
        let path = self.home.join("output").with_extension(step.name.replace(|c: char| !c.is_alphanumeric(), "-"));
        let mut group = self.start(step, yields, &path).with_context(|| format!("starting {}", step.name))?;
        let status = match timeout(step.limit, group.child.wait()).await {
            Ok(status) => Some(status.with_context(|| format!("waiting for {}", step.name))?),
            Err(_) => {
                group.end().await;
                None
            }
        };
        let took = start.elapsed();
        let (verdict, how) = judge(status, step.limit);
        let mut output = File::open(&path).with_context(|| format!("reading {}", path.display()))?;
        eprintln!("== {}:", step.name);
        let mut stdout = io::stdout().lock();
        io::copy(&mut output, &mut stdout).and_then(|_| stdout.flush()).context("printing what a step printed")?;
        eprintln!("== {}: {how} in {took:.1?}\n", step.name);
        // It has been told; a file less in the target directory.
        _ = std::fs::remove_file(&path);
        Ok(End { name: step.name, verdict, how, took })
    }

    fn start(&self, step: &Step, yields: bool, output: &Path) -> Result<Group> {
        let (program, words) = match step.what {
            What::Cargo(words) => ("cargo".into(), words),
            What::Chore(words) => (self.own.clone().into_os_string(), words),
        };
        let mut command = if yields {
            let mut nice = Command::new("nice");
            nice.args(["-n", "19"]).arg(program);
            nice
        } else {
            Command::new(program)
        };
        let file = File::create(output).with_context(|| format!("making {}", output.display()))?;
        let errors = file.try_clone().context("one file for both streams")?;
        command.args(words.split(' ')).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.envs(step.environment.iter().copied()).current_dir(crate::root());
        command.stdin(Stdio::null()).stdout(file).stderr(errors).process_group(0);
        let child = command.spawn()?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Group { child, leader: leader.context("a process without an id")? })
    }
}

/// A step's processes.
struct Group {
    child: Child,
    leader: Pid,
}

impl Group {
    /// Ends all of them.
    async fn end(&mut self) {
        _ = kill_process_group(self.leader, Signal::TERM);
        _ = timeout(GRACE, self.child.wait()).await;
        _ = kill_process_group(self.leader, Signal::KILL);
        _ = self.child.wait().await;
    }
}

impl Drop for Group {
    /// Whatever a step leaves running goes with it. Once the leader is reaped and nothing is left, the group's id is free;
    /// nobody has taken it a moment later.
    fn drop(&mut self) {
        _ = kill_process_group(self.leader, Signal::TERM);
    }
}

fn judge(status: Option<ExitStatus>, limit: Duration) -> (Verdict, String) {
    match status {
        None => (Verdict::Failed, format!("HUNG for {} min", limit.as_secs() / 60)),
        Some(status) if status.success() => (Verdict::Passed, "passed".to_owned()),
        Some(status) if status.code() == Some(untested::STATUS.into()) => (Verdict::Untested, "NOT TESTED".to_owned()),
        Some(status) => match status.signal() {
            Some(signal) => (Verdict::Failed, format!("FAILED by signal {signal}")),
            None => (Verdict::Failed, "FAILED".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(limit: Duration, words: &'static str) -> Step {
        Step { name: "one", limit, what: What::Chore(words), environment: Vec::new() }
    }

    fn run(program: &str, lanes: Vec<Lane>) -> Vec<(Verdict, String)> {
        let home = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let crew = Crew::new(program.into(), home.path().to_owned());
        let ends = runtime.block_on(crew.group(lanes)).unwrap();
        ends.into_iter().map(|end| (end.verdict, end.how)).collect()
    }

    #[test]
    fn a_step_that_hangs_fails_and_those_after_it_run() {
        let (moment, long) = (Duration::from_millis(50), Duration::from_secs(60));
        let ends = run("sleep", vec![Lane::of(vec![step(moment, "1000"), step(long, "0"), step(long, "nonsense")])]);
        let verdicts: Vec<_> = ends.iter().map(|(verdict, _)| *verdict).collect();
        assert_eq!(verdicts, [Verdict::Failed, Verdict::Passed, Verdict::Failed]);
        assert!(ends[0].1.starts_with("HUNG"), "{ends:?}");
    }

    #[test]
    fn lanes_run_side_by_side() {
        // Each waits for the other's end of a pipe.
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("pipe").display().to_string();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let script = place.path().join("meet");
        std::fs::write(&script, format!("case $1 in in) read -r _ < {pipe};; out) echo > {pipe};; esac")).unwrap();
        let meet = |side: &'static str| {
            let words = format!("{} {side}", script.display()).leak();
            Lane::of(vec![Step { name: side, ..step(Duration::from_secs(60), words) }])
        };
        let ends = run("sh", vec![meet("in"), meet("out")]);
        assert!(ends.iter().all(|(verdict, _)| *verdict == Verdict::Passed), "{ends:?}");
    }
}
