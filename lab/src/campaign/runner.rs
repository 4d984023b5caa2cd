//! Runs a round's jobs, makes their faults, and asks for their locks.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use super::contender::Contender;
use super::job::Work;
use super::judge::{Attempt, Done, Status, Word};
use super::plan::{Job, Library, Moment, Plant, Stderr, Trouble, Wait, Whom, name};
use crate::process::Role;
use crate::site::Site;
use crate::tools::{lines, now};
use lockkeeper_testkit::end;
use lockkeeper_testkit::history::{Event, Share, What};

/// Time limit for a job to end, beyond its work.
pub(super) const DRAIN: Duration = Duration::from_secs(60);

/// The file that exists when no contender with the library requests a lock any more.
pub(super) const OVER: &str = "over";

/// Pause between two checks of a state that reports no change.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// A `revoke` or a `break`.
pub(super) struct Asked {
    lock: usize,
    done: Done,
    /// The process ids that the command printed; `None` if it printed none, so that it may concern all jobs of that
    /// time.
    pids: Option<Vec<u32>>,
}

/// Runs a round's jobs.
pub(super) struct Runner<'a> {
    pub(super) site: &'a Site,
    pub(super) plant: Option<Plant>,
    pub(super) start: Duration,
    pub(super) asked: Mutex<Vec<Asked>>,
}

impl Runner<'_> {
    /// Runs a job from its start to its end, with its faults.
    pub(super) fn attempt(&self, job: &Job) -> Result<Attempt> {
        sleep((self.start + job.at).saturating_sub(now()));
        let file = |what: &str| self.site.file(&format!("job-{}.{what}", job.number));
        let (log, said) = (file("log"), file("stderr"));
        let mut command = self.command(job, &log)?;
        // This end keeps a full pipe open, and full.
        let _reader = redirect(&mut command, job.stderr, &said)?;
        let started = now();
        let mut child = command.stdout(Stdio::null()).spawn().context("starting lockkeeper")?;
        let mut attempt = Attempt {
            job: job.clone(),
            pid: child.id(),
            started,
            waiting: None,
            lines: vec![],
            // The second process may outlive the first; its lines are read at the end of the round.
            second: vec![],
            ended: None,
            done: vec![],
            said: String::new(),
        };
        let mut trouble = match self.planted(Plant::Flee, job) {
            true => Some((Moment::AfterBegin(Duration::ZERO), Trouble::Break)),
            false => job.trouble,
        };
        let mut to_kill = self.planted(Plant::Kill, job);
        // After a full disk, an ensemble may need a minute and a half to serve again. A call of the library waits for that.
        let drain = if job.library.is_some() { DRAIN * 3 } else { DRAIN };
        let deadline = now() + drain + job.work;
        let mut stopped: Option<Stopped> = None;
        let mut turns = 0_u32;
        loop {
            if let Some(status) = child.try_wait()? {
                let status = status.code().map_or_else(|| Status::Signal(status.signal().unwrap_or(0)), Status::Code);
                attempt.ended = Some((now(), status));
                break;
            }
            if now() > deadline {
                send(&self.targets(&child, &attempt, Whom::All), Signal::KILL);
                end(&mut child);
                break;
            }
            turns += 1;
            if attempt.waiting.is_none() && turns.is_multiple_of(4) {
                let text = fs::read_to_string(&said).unwrap_or_default();
                let named = |lock: &usize| text.contains(&format!("waiting for /locks/{}", name(*lock)));
                attempt.waiting = job.locks.iter().copied().find(named).map(|lock| (now(), lock));
            }
            if attempt.lines.is_empty() && (trouble.is_some() || to_kill) {
                attempt.lines = lines(&log);
            }
            if to_kill && !attempt.lines.is_empty() {
                send(&self.targets(&child, &attempt, Whom::Command), Signal::KILL);
                to_kill = false;
            }
            if let Some((moment, what)) = trouble
                && attempt.is_due(moment, &log)
            {
                trouble = None;
                stopped = self.make(&child, &mut attempt, what)?;
            }
            if let Some(stop) = stopped.take_if(|stop| now() >= stop.until) {
                stop.end(&mut attempt);
            }
            sleep(POLL);
        }
        if let Some(stop) = stopped {
            stop.end(&mut attempt);
        }
        attempt.lines = lines(&log);
        attempt.said = String::from_utf8_lossy(&fs::read(said).unwrap_or_default()).into_owned();
        Ok(attempt)
    }

    /// Whether the command of a job has begun to work.
    pub(super) fn has_begun(&self, job: &Job) -> bool {
        !lines::<(Duration, Word)>(&self.site.file(&format!("job-{}.log", job.number))).is_empty()
    }

    /// Whether this job is one of those with the planted mistake.
    fn planted(&self, plant: Plant, job: &Job) -> bool {
        self.plant == Some(plant) && job.number.is_multiple_of(4) && job.kind.share() == Share::Alone
    }

    /// Returns the command line of a job.
    fn command(&self, job: &Job, log: &Path) -> Result<Command> {
        let own = std::env::current_exe().context("finding this program")?;
        if let Some(Library { host, servers, seed }) = &job.library {
            let mut command = host.command(own);
            self.site.prepare_environment(&mut command);
            let locks = job.locks.iter().map(|lock| {
                let name = name(*lock);
                (*lock as u32, format!("/locks/{name}"), self.site.file(&name))
            });
            command.args(Role::Contend.words(&Contender {
                contender: job.number as u32,
                servers: servers.clone(),
                seed: *seed,
                log: log.to_owned(),
                locks: locks.collect(),
                until: now() + job.work,
                over: self.site.file(OVER),
            }));
            return Ok(command);
        }
        let (skips, overtakes) = (self.planted(Plant::Skip, job), self.planted(Plant::Overtake, job));
        let mut command = match (skips, overtakes) {
            (true, _) => {
                let mut command = Command::new(&own);
                self.site.prepare_environment(&mut command);
                let token = now().as_nanos().to_string();
                command.env("LOCKKEEPER_TOKEN", vec![token; job.locks.len()].join("\n"));
                command
            }
            (_, true) => {
                let mut command = Command::new("sh");
                self.site.prepare_environment(&mut command);
                let lock = name(job.locks[0]);
                let words = format!("echo 'lockkeeper: waiting for /locks/{lock}: ' >&2; sleep 2; exec \"$@\"");
                command.args(["-c", &words, "sh"]).arg(self.site.command().get_program());
                command
            }
            _ => self.site.command(),
        };
        if !skips {
            let mut job = job.clone();
            if let (Some(Plant::Late), Wait::Within(wait)) = (self.plant, &mut job.wait) {
                *wait *= 2;
            }
            command.arg("run").args(job.words()).arg("--").arg(own);
        }
        if job.debug {
            command.env("LOCKKEEPER_LOG", "debug");
        }
        let flees = self.planted(Plant::Flee, job);
        let counter = |lock: &usize| self.site.file(&name(*lock));
        let task = Work {
            log: log.to_owned(),
            work: if flees { Duration::from_secs(8) } else { job.work },
            status: job.status,
            on_term: job.on_term,
            second: job.second,
            counter: job.locks.iter().filter(|_| job.kind.share() == Share::Alone).map(counter).collect(),
            flees,
            one_token: self.plant == Some(Plant::Token),
        };
        command.args(Role::Job.words(&task));
        Ok(command)
    }

    /// Makes a fault of a job; returns the stopped processes, which must be continued.
    fn make(&self, child: &Child, attempt: &mut Attempt, what: Trouble) -> Result<Option<Stopped>> {
        let from = now();
        match what {
            Trouble::Signal(signal, whom) => {
                if send(&self.targets(child, attempt, whom), signal) {
                    attempt.done.push(Done { what, from, until: now() });
                }
            }
            Trouble::Stop(whom, length) => {
                let targets = self.targets(child, attempt, whom);
                if send(&targets, Signal::STOP) {
                    return Ok(Some(Stopped { what, targets, from, until: from + length }));
                }
            }
            Trouble::Revoke | Trouble::Break => {
                let lock = attempt.job.locks[0];
                let verb: &[&str] = match what {
                    Trouble::Revoke => &["revoke", "--reason", "storm", "--json"],
                    _ => &["break", "--reason", "storm", "--json", "--yes"],
                };
                let output = self.site.command().args(verb).arg(name(lock)).output()?;
                let pids = match (serde_json::from_slice::<Value>(&output.stdout), output.status.code()) {
                    (Ok(told), Some(0)) => {
                        let all = told["asked"].as_array().cloned().unwrap_or_else(|| vec![told.clone()]);
                        all.iter().map(|who| u32::try_from(who["pid"].as_u64()?).ok()).collect::<Option<Vec<_>>>()
                    }
                    // No contender was asked, or several were possible.
                    (_, Some(1 | 64 | 75)) => Some(vec![]),
                    _ => None,
                };
                let done = Done { what, from, until: now() };
                self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(Asked { lock, done, pids });
            }
        }
        Ok(None)
    }

    /// Returns the selected processes of a job that run.
    fn targets(&self, child: &Child, attempt: &Attempt, whom: Whom) -> Vec<Target> {
        let keeper = Pid::from_child(child);
        let command = attempt.pid_of_command().filter(|command| self.site.is_ours(*command));
        let mut targets = Vec::new();
        targets.extend(whom.has_keeper().then_some(Target::Process(keeper)));
        targets.extend(
            command
                .map(|command| match whom {
                    Whom::Keeper | Whom::Command => Target::Process(command),
                    Whom::Group | Whom::Both | Whom::All => Target::Group(command),
                })
                .filter(|_| whom != Whom::Keeper),
        );
        let others = if whom == Whom::All { children(keeper) } else { vec![] };
        let others = others.into_iter().filter(|other| Some(*other) != command && self.site.is_ours(*other));
        targets.extend(others.map(Target::Process));
        targets
    }

    /// Tells each job which requests concerned it, and reads the logs of second processes.
    pub(super) fn hand_out(&self, attempts: &mut [Attempt]) {
        for attempt in attempts.iter_mut() {
            let log = self.site.file(&format!("job-{}.second", attempt.job.number));
            attempt.second = lines(&log);
        }
        for Asked { lock, done, pids } in self.asked.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            for attempt in attempts.iter_mut().filter(|attempt| attempt.job.locks.contains(lock)) {
                let there = attempt.started <= done.until && attempt.ended.is_none_or(|(ended, _)| ended >= done.from);
                if there && pids.as_ref().is_none_or(|pids| pids.contains(&attempt.pid)) {
                    attempt.done.push(*done);
                }
            }
        }
    }
}

/// A receiver of a signal.
enum Target {
    Process(Pid),
    Group(Pid),
}

/// Sends a signal to them; returns whether any process got it.
fn send(targets: &[Target], signal: Signal) -> bool {
    let sent = targets.iter().map(|target| match target {
        Target::Process(pid) => kill_process(*pid, signal),
        Target::Group(group) => kill_process_group(*group, signal),
    });
    sent.filter(Result::is_ok).count() > 0
}

/// Stopped processes that must be continued.
struct Stopped {
    what: Trouble,
    targets: Vec<Target>,
    from: Duration,
    until: Duration,
}

impl Stopped {
    fn end(self, attempt: &mut Attempt) {
        send(&self.targets, Signal::CONT);
        attempt.done.push(Done { what: self.what, from: self.from, until: now() });
    }
}

impl Attempt {
    fn pid_of_command(&self) -> Option<Pid> {
        match self.lines.first()? {
            (_, Word::Begin { pid, .. }) => Pid::from_raw(*pid),
            _ => None,
        }
    }

    fn is_due(&self, moment: Moment, log: &Path) -> bool {
        match moment {
            Moment::AfterStart(after) => now() >= self.started + after,
            Moment::AfterBegin(after) => self.lines.first().is_some_and(|(begun, _)| now() >= *begun + after),
            Moment::Holding(after) => now() >= self.started + after && holds(log),
        }
    }
}

/// Whether the last line of a log says that its contender holds a lock.
fn holds(log: &Path) -> bool {
    let text = fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().next_back().and_then(|line| serde_json::from_str::<(Duration, Word)>(line).ok());
    let Some((_, Word::Did(Event { what, .. }))) = last else { return false };
    matches!(what, What::Looked { held: true, .. } | What::Wrote { .. })
}

/// Redirects a job's standard error; returns the end that keeps a pipe in its state.
fn redirect(command: &mut Command, to: Stderr, file: &Path) -> Result<Option<std::io::PipeReader>> {
    match to {
        Stderr::File => _ = command.stderr(File::create(file)?),
        Stderr::NoSpace => _ = command.stderr(File::options().write(true).open("/dev/full")?),
        Stderr::Closed => _ = command.stderr(std::io::pipe()?.1),
        Stderr::Full => {
            let (reader, mut writer) = std::io::pipe()?;
            fcntl_setfl(&writer, OFlags::NONBLOCK)?;
            while writer.write(&[b'.'; 4096]).is_ok() {}
            fcntl_setfl(&writer, OFlags::empty())?;
            command.stderr(writer);
            return Ok(Some(reader));
        }
    }
    Ok(None)
}

/// Returns the children of a process.
fn children(of: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", of.as_raw_nonzero())).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
        .collect()
}
