//! `cargo xtask slots`: hosts whose clocks are wrong run the slots of one job, while leaders are killed.
//!
//! The clock of each host is up to an hour off. On this user's own server, a slot is an hour of the server's clock, which this
//! program turns forward by an hour as soon as the slot has run. Java does not serve under a clock that is turned, so on Apache's
//! servers a slot is a second since the last start. The judge compares the work that was done with the records of the job.

mod judge;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;
use lockkeeper_testkit::apache::{Apache, Options as Servers, WrongClock};
use lockkeeper_testkit::history::Violation;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::tools::Tools;
use judge::{Facts, Record, judge};

/// The name of the job.
const JOB: &str = "ring";

const HOUR: i64 = 3600;

/// The shortest time of `--every`.
const EVERY: Duration = Duration::from_secs(1);

/// Where in the hour the clock stands after a turn, in seconds.
const AFTER_THE_TURN: i64 = 300;

/// How long a killed server stays away.
const AWAY: Duration = Duration::from_millis(1500);

#[derive(Debug, Args)]
pub struct Options {
    /// Slots to run
    #[arg(long, value_name = "N", default_value_t = 1000)]
    slots: usize,
    /// Hosts, each with a clock of its own
    #[arg(long, value_name = "N", default_value_t = 50)]
    hosts: usize,
    /// Longest pause of a host between two starts of the command
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "3s")]
    pause: Duration,
    /// Pause between two kills of a leader
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "12s")]
    kill_every: Duration,
    /// Time limit for a slot; it contains elections, and the ends of sessions that were lost in them
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2m")]
    limit: Duration,
    /// Run on this server
    #[arg(long, default_value = "ensemble")]
    server: Which,
    /// Plant every mistake, one after the other, and fail if one is not found
    #[arg(long)]
    self_check: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// Three Apache servers, whose leaders are killed
    Ensemble,
    /// This user's own server. It is not killed: the next command would start it with the clock of its host
    Own,
}

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    /// A host works under another lock.
    OtherLock,
    /// Hosts name the slot by their own clocks.
    OwnClock,
    /// The records are deleted.
    Forget,
}

impl Plant {
    const ALL: [Plant; 3] = [Plant::OtherLock, Plant::OwnClock, Plant::Forget];
}

pub(crate) fn run(options: &Options, tools: &Tools) -> Result<()> {
    WrongClock::install()?;
    if options.self_check {
        for plant in Plant::ALL {
            let (pause, limit) = (Duration::from_millis(300), Duration::from_secs(15));
            let few = Options { slots: 4, hosts: 8, pause, limit, server: Which::Own, ..*options };
            let found = Ring::start(&few, Some(plant), tools)?.turn(&few)?;
            println!("{plant:?}: {}", found.first().map_or("not found".to_owned(), ToString::to_string));
            if found.is_empty() {
                bail!("the planted mistake {plant:?} was not found");
            }
        }
        return Ok(());
    }
    let broken = Ring::start(options, None, tools)?.turn(options)?;
    for broken in &broken {
        println!("BROKEN: {broken}");
    }
    if !broken.is_empty() {
        bail!("{} promises were broken", broken.len());
    }
    println!("each slot was claimed exactly once");
    Ok(())
}

struct Ring {
    dir: TempDir,
    program: PathBuf,
    ensemble: Option<Apache>,
    plant: Option<Plant>,
    /// How far the servers' clock is ahead of the machine's, in seconds.
    ahead: AtomicI64,
    over: AtomicBool,
    kills: AtomicUsize,
    /// How often each exit status was seen.
    ends: Mutex<BTreeMap<Option<i32>, usize>>,
}

/// The machine's clock, in seconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

impl Ring {
    fn start(options: &Options, plant: Option<Plant>, tools: &Tools) -> Result<Ring> {
        let dir = tempfile::Builder::new().prefix("lockkeeper-slots-").tempdir().context("making a directory")?;
        let clock = WrongClock::in_file(dir.path().join("clock")).context("setting the servers' clock")?;
        let ensemble = match options.server {
            Which::Own => None,
            Which::Ensemble => {
                let servers = Servers::default().distribution((tools.servers)()?);
                Some(Apache::ensemble(3, servers)?)
            }
        };
        let (over, ends) = (AtomicBool::default(), Mutex::default());
        let (ahead, kills, program) = (AtomicI64::default(), AtomicUsize::default(), (tools.command)()?);
        let ring = Ring { dir, program, ensemble, plant, ahead, over, kills, ends };
        if ring.ensemble.is_none() {
            // This command starts the server, which gets its clock.
            let mut first = ring.command(&["run", "first", "--", "true"]);
            clock.set(&mut first)?;
            if !first.status()?.success() {
                bail!("this user's own server did not start");
            }
        }
        Ok(ring)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a call of `lockkeeper` without the user's own settings.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        self.prepare(command.args(args));
        command
    }

    fn prepare(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOCKKEEPER_")) {
            command.env_remove(name);
        }
        command.env("LOCKKEEPER_CONFIG", "/dev/null").env("LOCKKEEPER_STATE_DIR", self.file("state"));
        command.env("LOCKKEEPER_IDLE_EXIT", "1h").env("lockkeeper", &self.program);
        if let Some(ensemble) = &self.ensemble {
            command.env("LOCKKEEPER_SERVERS", ensemble.connect_string());
        }
        command.current_dir(self.dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }

    /// Runs all slots; returns the broken promises.
    fn turn(&self, options: &Options) -> Result<Vec<Violation>> {
        let every = self.ensemble.as_ref().map(|_| EVERY);
        let (start, mut facts) = (Instant::now(), Facts { every, ..Facts::default() });
        let ran = scope(|threads| {
            for host in 0..options.hosts {
                threads.spawn(move || self.host(host, options));
            }
            let killer = threads.spawn(|| self.kill_leaders(options.kill_every));
            let ran = self.slots(options, &mut facts);
            self.over.store(true, Ordering::Relaxed);
            let killed = killer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ran.and(killed)
        });
        self.stop_own_server();
        ran?;
        facts.work = judge::work(&fs::read_to_string(self.file("work")).unwrap_or_default())?;
        let broken = judge(&facts);
        let ends = self.ends.lock().expect("no thread panics with it");
        let starts: usize = ends.values().sum();
        println!(
            "{} runs, {starts} starts on {} hosts, {} leaders killed, {:.0} s; {}",
            facts.records.len(),
            options.hosts,
            self.kills.load(Ordering::Relaxed),
            start.elapsed().as_secs_f64(),
            facts.summary(),
        );
        println!("exit statuses: {ends:?}");
        Ok(broken)
    }

    /// Turns the clock forward whenever a slot has run. A slot that does not run in time is the last one, and the judge sees it.
    fn slots(&self, options: &Options, facts: &mut Facts) -> Result<()> {
        let mut hour = now() / HOUR;
        for number in 0..options.slots {
            if self.ensemble.is_none() {
                hour += 1;
                // Always early in the hour: the time that passes does not reach the next one.
                let ahead = hour * HOUR + AFTER_THE_TURN - now();
                self.ahead.store(ahead, Ordering::Relaxed);
                WrongClock::turn(&self.file("clock"), ahead).context("turning the clock")?;
                facts.hours.push(hour * HOUR * 1000);
            }
            let before = facts.records.len();
            let has_run = |facts: &mut Facts| {
                let last = self.last_end(facts)?;
                anyhow::Ok(match self.ensemble {
                    Some(_) => last.is_some() && facts.records.len() > before,
                    None => last.is_some_and(|start| start >= hour * HOUR * 1000),
                })
            };
            let deadline = Instant::now() + options.limit;
            while !has_run(facts)? {
                if Instant::now() > deadline {
                    println!("slot {number} did not run within {:?}", options.limit);
                    return Ok(());
                }
                sleep(Duration::from_millis(50));
            }
            if self.plant == Some(Plant::Forget) && number == 1 {
                self.command(&["jobs", "forget", JOB]).status()?;
                while !has_run(facts)? && Instant::now() < deadline {
                    sleep(Duration::from_millis(50));
                }
            }
            if number % 100 == 99 {
                println!("{} slots", number + 1);
            }
        }
        Ok(())
    }

    /// Reads the records; returns the start of the last run if it has ended.
    fn last_end(&self, facts: &mut Facts) -> Result<Option<i64>> {
        let output = self.command(&["jobs", JOB, "--json"]).stdout(Stdio::piped()).output()?;
        // While a leader is elected, there is no answer.
        let Ok(answer) = serde_json::from_slice::<Value>(&output.stdout) else { return Ok(None) };
        let job = &answer["jobs"][0];
        let records = job["runs"].as_array().context("a job has runs")?;
        for record in records {
            let record = Record::read(record)?;
            facts.records.insert(record.id.clone(), record);
        }
        let last = records.last().filter(|_| job["state"] != "running");
        Ok(last.and_then(|record| record["start_ms"].as_i64()))
    }

    /// Starts the command again and again, as a host with a wrong clock.
    fn host(&self, number: usize, options: &Options) {
        let off = 2 * HOUR * number as i64 / (options.hosts.max(2) - 1) as i64 - HOUR;
        let work = "echo \"$LOCKKEEPER_TOKEN $(date +%s) $LOCKKEEPER_SLOT\" >> work";
        let name = if self.plant == Some(Plant::OtherLock) && number == 0 { "other" } else { JOB };
        let slot = match self.plant {
            Some(Plant::OwnClock) => "--slot \"$(date -u +%FT%H+00:00)\"",
            _ if self.ensemble.is_some() => "--every 1s",
            _ => "--once-per hour",
        };
        let line = format!("exec \"$lockkeeper\" run {name} {slot} --session-timeout 4s --wait 20s -- sh -c '{work}'");
        while !self.over.load(Ordering::Relaxed) {
            let mut shell = Command::new("sh");
            self.prepare(shell.args(["-c", &line]));
            let set = WrongClock::off(self.ahead.load(Ordering::Relaxed) + off).set(&mut shell);
            let status = set.ok().and_then(|()| shell.status().ok()).and_then(|status| status.code());
            *self.ends.lock().expect("no thread panics with it").entry(status).or_default() += 1;
            sleep(options.pause.mul_f64(fastrand::f64()));
        }
    }

    fn kill_leaders(&self, every: Duration) -> Result<()> {
        let Some(ensemble) = &self.ensemble else { return Ok(()) };
        let mut next = Instant::now() + every;
        while !self.over.load(Ordering::Relaxed) {
            if Instant::now() < next {
                sleep(Duration::from_millis(50));
                continue;
            }
            let leader = ensemble.leader()?;
            ensemble.kill(leader);
            sleep(AWAY);
            ensemble.launch(leader)?;
            ensemble.wait_serving(leader)?;
            self.kills.fetch_add(1, Ordering::Relaxed);
            next = Instant::now() + every;
        }
        Ok(())
    }

    fn stop_own_server(&self) {
        let server = UnixStream::connect(self.file("state/socket"));
        if let Some(server) = server.ok().and_then(|stream| socket_peercred(&stream).ok()) {
            // It is not a child of this process. An error means that it has ended.
            _ = kill_process(server.pid, Signal::TERM);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.stop_own_server();
    }
}
