//! `cargo xtask storm`: runs random jobs through the command under seeded faults, and judges them by the jobs' own
//! logs.
//!
//! A round chooses its jobs and faults by one seed, runs them on one kind of server, and is judged at the end. The
//! judge does not know what the command believes. It knows only what jobs logged during their work, how commands ended,
//! and which faults were made.

use std::process::Stdio;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use lockkeeper_testkit::end;
use lockkeeper_testkit::history::Violation;

use super::judge::{PROMISES, Storm, judge};
use super::plan::{LOCKS, Plan, Plant};
use super::runner::Runner;
use super::{EXPIRY, history, observed};
use crate::site::{Site, Which};
use crate::tools::{Tools, now};

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
        let faults = || {
            let made = plan.faults.iter().map(|fault| {
                sleep((start + fault.at).saturating_sub(now()));
                let from = now();
                site.disturb(fault)?;
                Ok((from, now() + RECOVERY))
            });
            made.collect()
        };
        let jobs = plan.jobs.iter().map(|job| || Ok(vec![runner.attempt(job)?]));
        let mut storm = observed(&site, 0..LOCKS.len(), EXPIRY, jobs, faults)?;
        if let Some(stray) = stray {
            // Its command ends with it.
            end(&mut stray?);
        }
        runner.hand_out(&mut storm.attempts);
        let broken = judge(&storm, &PROMISES).violations;
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
        let late = storm.lateness(Duration::ZERO, Duration::MAX);
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
