//! `cargo xtask storm`: runs random jobs through the command under seeded faults, and judges them by the jobs' own
//! logs.
//!
//! A round chooses its jobs and faults by one seed, runs them on one kind of server, and is judged at the end. The
//! judge does not know what the command believes. It knows only what jobs logged during their work, how commands ended,
//! and which faults were made.

mod field;
mod job;
mod judge;
mod plan;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use field::Field;
pub(crate) use field::Which;
pub(crate) use job::Working;
use job::{Task, now};
use judge::{Attempt, Broken, Done, Promise, Share, Status, Storm, Word, judge, lines};
use plan::{Job, LOCKS, Moment, Plan, Stderr, Trouble, Wait, Whom};

/// Time limit for all jobs to end after the last one was started.
const DRAIN: Duration = Duration::from_secs(60);

/// Time limit for the rest of crashed commands: the end of a session or a lease, and the delay that servers add.
const EXPIRY: Duration = Duration::from_secs(20);

/// How long a server is not counted as healthy after a fault: sessions reconnect and become trusted again.
const RECOVERY: Duration = Duration::from_secs(6);

/// Pause between two checks of a state that reports no change.
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug, Args)]
pub(crate) struct Options {
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
    /// Plant this mistake, which must be found
    #[arg(long, value_name = "MISTAKE")]
    plant: Option<Plant>,
    /// Plant every mistake, one after the other, and fail if one is not found
    #[arg(long, conflicts_with_all = ["plant", "brief"])]
    self_check: bool,
    /// Run as long as CI does
    #[arg(long, conflicts_with = "minutes")]
    brief: bool,
}

/// The duration in CI: a round or two.
const BRIEF: Duration = Duration::from_secs(75);

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Plant {
    /// A wrapper that sometimes skips the lock.
    Skip,
    /// A command that cannot be stopped when its lock is lost.
    Flee,
    /// A wrapper that reports that it waits before it does.
    Overtake,
    /// A process that kills a healthy job.
    Kill,
    /// A wrapper that waits twice as long as `--wait` says.
    Late,
    /// Every hold has the same token.
    Token,
    /// A command that is never ended, so that its lock stays held.
    Stray,
}

impl Plant {
    const ALL: [Plant; 7] =
        [Plant::Skip, Plant::Flee, Plant::Overtake, Plant::Kill, Plant::Late, Plant::Token, Plant::Stray];

    /// Returns the promise that it breaks.
    fn breaks(self) -> Promise {
        match self {
            Plant::Skip => Promise::Exclusion,
            Plant::Flee => Promise::EndsInTime,
            Plant::Overtake => Promise::Order,
            Plant::Kill => Promise::HealthyStaysHealthy,
            Plant::Late => Promise::Deadline,
            Plant::Token => Promise::Tokens,
            Plant::Stray => Promise::NothingLeft,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let sh = crate::shell()?;
    let program = crate::programs::command(&sh)?;
    if options.self_check {
        return self_check(&program);
    }
    let servers = options.server.map_or(Which::ALL.to_vec(), |server| vec![server]);
    if servers.iter().any(|which| matches!(which, Which::Apache | Which::Ensemble)) {
        lockkeeper_testkit::apache::Distribution::install()?;
    }
    let first = options.seed.unwrap_or_else(|| now().as_nanos() as u64 % 1_000_000);
    let length = if options.brief { BRIEF } else { Duration::from_secs(options.minutes * 60) };
    let (start, mut rounds, mut totals, mut found) = (Instant::now(), 0, [0; 3], 0);
    println!("storm from seed {first}");
    for (seed, which) in (first..).zip(servers.iter().cycle()) {
        let round = Round::run(seed, *which, options.plant, &program)?;
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
fn self_check(program: &Path) -> Result<()> {
    for plant in Plant::ALL {
        let mut found = false;
        // Calm rounds: a mistake that is found there is found in any round.
        for seed in [3, 6, 9] {
            let round = Round::run(seed, Which::Embedded, Some(plant), program)?;
            let shown = round.broken.iter().find(|broken| broken.promise == plant.breaks());
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
    broken: Vec<Broken>,
    start: Duration,
}

impl Round {
    fn run(seed: u64, which: Which, plant: Option<Plant>, program: &Path) -> Result<Round> {
        let plan = Plan::of(seed);
        let field = Field::prepare(which, program)?;
        for (lock, _) in LOCKS {
            fs::write(field.file(lock), "0\n")?;
        }
        let start = now();
        let over = AtomicBool::new(false);
        let runner = Runner { field: &field, plant, start, asked: Mutex::default() };
        let mut storm = Storm::default();
        let stray = (plant == Some(Plant::Stray)).then(|| {
            let mut stray = field.command();
            stray.args(["run", "stray", "--", "sleep", "120"]).stderr(Stdio::null()).spawn()
        });
        scope(|threads| {
            let control = threads.spawn(|| control(&field.file("control"), &over));
            let probes = threads.spawn(|| probes(&field, &over));
            let faults = threads.spawn(|| {
                plan.faults
                    .iter()
                    .map(|fault| {
                        sleep((start + fault.at).saturating_sub(now()));
                        let from = now();
                        field.disturb(fault)?;
                        Ok((from, now() + RECOVERY))
                    })
                    .collect::<Result<Vec<_>>>()
            });
            let jobs: Vec<_> = plan.jobs.iter().map(|job| threads.spawn(|| runner.attempt(job))).collect();
            let attempts: Result<Vec<_>> = jobs.into_iter().map(joined).collect();
            let disturbed = joined(faults);
            let left = left(&field);
            over.store(true, Ordering::Relaxed);
            storm.control = joined(control)?;
            storm.control.extend(joined(probes));
            (storm.attempts, storm.disturbed, storm.left) = (attempts?, disturbed?, left?);
            anyhow::Ok(())
        })?;
        if let Some(stray) = stray {
            let mut stray = stray?;
            // Its command ends with it.
            stray.kill()?;
            stray.wait()?;
        }
        runner.hand_out(&mut storm.attempts);
        let broken = judge(&storm);
        Ok(Round { seed, which, storm, broken, start })
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
        let Round { seed, which, storm, broken, start } = self;
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
            for number in &broken.jobs {
                println!("{}", history(&storm.attempts[*number], *start));
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
        text += &format!("\n    {} seen waiting for {}", at(time), LOCKS[lock].0);
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
fn probes(field: &Field, over: &AtomicBool) -> Vec<(Duration, Duration)> {
    const NOTED: Duration = Duration::from_millis(50);
    let mut seen = Vec::new();
    for turn in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        seen.extend(field.probe(turn).filter(|took| *took >= NOTED).map(|took| (now(), took)));
        sleep(Duration::from_millis(100));
    }
    seen
}

/// Returns what is left after the end of a round: contenders whose sessions have expired, and processes.
fn left(field: &Field) -> Result<Vec<String>> {
    let deadline = Instant::now() + EXPIRY;
    loop {
        let (locks, processes) = (field.locks(), field.processes());
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

/// A `revoke` or a `break`.
struct Asked {
    lock: usize,
    done: Done,
    /// The process ids that the command printed; `None` if it printed none, so that it may concern all jobs of that
    /// time.
    pids: Option<Vec<u32>>,
}

/// Runs a round's jobs.
struct Runner<'a> {
    field: &'a Field,
    plant: Option<Plant>,
    start: Duration,
    asked: Mutex<Vec<Asked>>,
}

impl Runner<'_> {
    /// Runs a job from its start to its end, with its faults.
    fn attempt(&self, job: &Job) -> Result<Attempt> {
        sleep((self.start + job.at).saturating_sub(now()));
        let name = |what: &str| self.field.file(&format!("job-{}.{what}", job.number));
        let (log, said) = (name("log"), name("stderr"));
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
        let deadline = now() + DRAIN;
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
                child.kill()?;
                child.wait()?;
                break;
            }
            turns += 1;
            if attempt.waiting.is_none() && turns.is_multiple_of(4) {
                let text = fs::read_to_string(&said).unwrap_or_default();
                let named = |lock: &usize| text.contains(&format!("waiting for /locks/{}", LOCKS[*lock].0));
                attempt.waiting = job.locks.iter().copied().find(named).map(|lock| (now(), lock));
            }
            if attempt.lines.is_empty() && (trouble.is_some() || to_kill) {
                attempt.lines = lines(&fs::read_to_string(&log).unwrap_or_default());
            }
            if to_kill && !attempt.lines.is_empty() {
                send(&self.targets(&child, &attempt, Whom::Command), Signal::KILL);
                to_kill = false;
            }
            if let Some((moment, what)) = trouble
                && attempt.is_due(moment)
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
        let read = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        attempt.lines = lines(&read(log.clone()));
        // It may outlive the first process, and is read at the end of the round.
        attempt.second = vec![];
        attempt.said = read(said);
        Ok(attempt)
    }

    /// Whether this job is one of those with the planted mistake.
    fn planted(&self, plant: Plant, job: &Job) -> bool {
        self.plant == Some(plant) && job.number.is_multiple_of(4) && job.kind.share() == Share::Alone
    }

    /// Returns the command line of a job.
    fn command(&self, job: &Job, log: &Path) -> Result<Command> {
        let own = std::env::current_exe().context("finding this program")?;
        let (skips, overtakes) = (self.planted(Plant::Skip, job), self.planted(Plant::Overtake, job));
        let mut command = match (skips, overtakes) {
            (true, _) => {
                let mut command = Command::new(&own);
                self.field.prepare_environment(&mut command);
                let token = now().as_nanos().to_string();
                command.env("LOCKKEEPER_TOKEN", vec![token; job.locks.len()].join("\n"));
                command
            }
            (_, true) => {
                let mut command = Command::new("sh");
                self.field.prepare_environment(&mut command);
                let name = LOCKS[job.locks[0]].0;
                let words = format!("echo 'lockkeeper: waiting for /locks/{name}: ' >&2; sleep 2; exec \"$@\"");
                command.args(["-c", &words, "sh"]).arg(self.field.command().get_program());
                command
            }
            _ => self.field.command(),
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
        let counter = |lock: &usize| self.field.file(LOCKS[*lock].0);
        let task = Task {
            log: log.to_owned(),
            work: if flees { Duration::from_secs(8) } else { job.work },
            status: job.status,
            on_term: job.on_term,
            second: job.second,
            counter: job.locks.iter().filter(|_| job.kind.share() == Share::Alone).map(counter).collect(),
            flees,
            one_token: self.plant == Some(Plant::Token),
        };
        command.args(task.arguments()?);
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
                let output = self.field.command().args(verb).arg(LOCKS[lock].0).output()?;
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
        let command = attempt.pid_of_command().filter(|command| self.field.is_ours(*command));
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
        let others = others.into_iter().filter(|other| Some(*other) != command && self.field.is_ours(*other));
        targets.extend(others.map(Target::Process));
        targets
    }

    /// Tells each job which requests concerned it, and reads the logs of second processes.
    fn hand_out(&self, attempts: &mut [Attempt]) {
        for attempt in attempts.iter_mut() {
            let log = self.field.file(&format!("job-{}.second", attempt.job.number));
            attempt.second = lines(&fs::read_to_string(log).unwrap_or_default());
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
    /// Continues them.
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

    fn is_due(&self, moment: Moment) -> bool {
        match moment {
            Moment::AfterStart(after) => now() >= self.started + after,
            Moment::AfterBegin(after) => self.lines.first().is_some_and(|(begun, _)| now() >= *begun + after),
        }
    }
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
