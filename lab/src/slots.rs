//! `cargo xtask slots`: hosts whose clocks are wrong run the slots of one job, while leaders are killed.
//!
//! The clock of each host is up to an hour off. On `lockkeeper serve`, a slot is an hour of the server's clock, which this program
//! turns forward by an hour as soon as the slot has run. Java does not serve under a clock that is turned, and this user's own
//! server takes none from the command that starts it, so on other servers a slot is a second since the last start. The judge compares the work that was done with the records of the job.

mod judge;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;
use lockkeeper_testkit::apache::WrongClock;
use lockkeeper_testkit::history::Violation;
use serde_json::Value;

use crate::site::{ServerFault, ServerTrouble, Site, Which};
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
    /// Pause between two kills of a server, the leader if there are several
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "12s")]
    kill_every: Duration,
    /// Time limit for a slot; it contains elections, and the ends of sessions that were lost in them
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2m")]
    limit: Duration,
    /// Run on this server, whose leader is killed
    #[arg(long, default_value = "ensemble")]
    server: Which,
    /// Plant every mistake, one after the other, and fail if one is not found
    #[arg(long)]
    self_check: bool,
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
        let (pause, limit) = (Duration::from_millis(300), Duration::from_secs(15));
        let few = Options { slots: 4, hosts: 8, pause, limit, server: Which::Embedded, ..*options };
        let found = Ring::start(&few, None, tools)?.turn(&few)?;
        if let Some(found) = found.first() {
            bail!("without a planted mistake: {found}");
        }
        for plant in Plant::ALL {
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
    site: Site,
    which: Which,
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
        let which = options.server;
        let site = if which == Which::Embedded { Site::with_clock(tools)? } else { Site::prepare(which, tools)? };
        let (over, ends) = (AtomicBool::default(), Mutex::default());
        Ok(Ring { site, which, plant, ahead: AtomicI64::default(), over, kills: AtomicUsize::default(), ends })
    }

    /// Returns a call of `lockkeeper`.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.site.command();
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs all slots; returns the broken promises.
    fn turn(&self, options: &Options) -> Result<Vec<Violation>> {
        let every = (self.which != Which::Embedded).then_some(EVERY);
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
        ran?;
        facts.work = judge::work(&fs::read_to_string(self.site.file("work")).unwrap_or_default())?;
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

    /// Turns the clock forward whenever a slot has run. A slot that does not run in time is the last one.
    fn slots(&self, options: &Options, facts: &mut Facts) -> Result<()> {
        let mut hour = now() / HOUR;
        for number in 0..options.slots {
            if self.which == Which::Embedded {
                hour += 1;
                // Always early in the hour: the time that passes does not reach the next one.
                let ahead = hour * HOUR + AFTER_THE_TURN - now();
                self.ahead.store(ahead, Ordering::Relaxed);
                WrongClock::turn(&self.site.file("clock"), ahead).context("turning the clock")?;
                facts.hours.push(hour * HOUR * 1000);
            }
            let before = facts.records.len();
            let has_run = |facts: &mut Facts| {
                let last = self.last_end(facts)?;
                anyhow::Ok(match self.which {
                    Which::Embedded => last.is_some_and(|start| start >= hour * HOUR * 1000),
                    _ => last.is_some() && facts.records.len() > before,
                })
            };
            let deadline = Instant::now() + options.limit;
            while !has_run(facts)? {
                if Instant::now() > deadline {
                    println!("slot {number} did not run within {:?}", options.limit);
                    if self.which != Which::Embedded {
                        bail!("slot {number} did not run, and the judge does not know when it was due");
                    }
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
            _ if self.which == Which::Embedded => "--once-per hour",
            _ => "--every 1s",
        };
        let line = format!("exec \"$lockkeeper\" run {name} {slot} --session-timeout 4s --wait 20s -- sh -c '{work}'");
        while !self.over.load(Ordering::Relaxed) {
            let mut shell = Command::new("sh");
            self.site.prepare_environment(shell.args(["-c", &line]).stdout(Stdio::null()).stderr(Stdio::null()));
            let set = WrongClock::off(self.ahead.load(Ordering::Relaxed) + off).set(&mut shell);
            let status = set.ok().and_then(|()| shell.status().ok()).and_then(|status| status.code());
            *self.ends.lock().expect("no thread panics with it").entry(status).or_default() += 1;
            sleep(options.pause.mul_f64(fastrand::f64()));
        }
    }

    fn kill_leaders(&self, every: Duration) -> Result<()> {
        let mut next = Instant::now() + every;
        while !self.over.load(Ordering::Relaxed) {
            if Instant::now() >= next {
                self.site.disturb(&ServerFault {
                    at: Duration::ZERO,
                    what: ServerTrouble::Kill,
                    behind: 0,
                    down: AWAY,
                })?;
                self.kills.fetch_add(1, Ordering::Relaxed);
                next = Instant::now() + every;
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
