//! `cargo xtask simulate`: runs thousands of seeded worlds, and shrinks a failing one to a test.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use lockkeeper_testkit::history::Tally;
use lockkeeper_testkit::worlds::{Failure, Family, Scenario, run, shrink};
use xshell::{Shell, cmd};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The number of worlds
    #[arg(long, value_name = "N", default_value = "10000")]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value = "0")]
    first: u64,
    /// Run only this seed's world, and print its script and its history
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Run in this build, optimised or not
    #[arg(long, hide = true)]
    here: bool,
}

pub(crate) fn simulate(sh: &Shell, options: &Options) -> Result<()> {
    if !options.here {
        let which = match options.seed {
            Some(seed) => vec!["--seed".to_owned(), seed.to_string()],
            None => vec!["--seeds".into(), options.seeds.to_string(), "--first".into(), options.first.to_string()],
        };
        // Ten thousand worlds need optimised code; assertions stay on.
        cmd!(sh, "cargo run --quiet --profile worlds -p xtask -- simulate --here {which...}").run()?;
        return Ok(());
    }
    match options.seed {
        Some(seed) => one(seed),
        None => many(options.first..options.first.saturating_add(options.seeds)),
    }
}

/// Returns the world of a seed. The families take turns; every fiftieth world is one queue of ten contenders, every
/// thousandth one of 300.
fn scenario(seed: u64) -> Scenario {
    let families = Family::ALL.len() as u64;
    let family = Family::ALL[usize::try_from(seed % families).unwrap_or(0)];
    match (seed % 50, seed % 1000) {
        (_, 999) => Scenario::queue(seed, family, 300),
        (49, _) => Scenario::queue(seed, family, 10),
        _ => Scenario::of(seed, family),
    }
}

fn one(seed: u64) -> Result<()> {
    let scenario = scenario(seed);
    println!("{scenario:#?}");
    match run(&scenario) {
        Ok(tally) => {
            println!("{tally:?}");
            Ok(())
        }
        Err(failure) => {
            for event in &failure.history {
                println!("{event:?}");
            }
            report(seed, &scenario, &failure)
        }
    }
}

fn many(seeds: std::ops::Range<u64>) -> Result<()> {
    let start = Instant::now();
    let (next, stop, sum, failed) =
        (AtomicU64::new(seeds.start), AtomicBool::new(false), Mutex::new(Tally::default()), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                let mut own = Tally::default();
                while !stop.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let scenario = scenario(seed);
                    match run(&scenario) {
                        Ok(tally) => own.add(tally),
                        Err(failure) => {
                            stop.store(true, Relaxed);
                            *failed.lock().expect("no thread panics while it holds this") =
                                Some((seed, scenario, failure));
                        }
                    }
                }
                sum.lock().expect("no thread panics while it holds this").add(own);
            });
        }
    });
    if let Some((seed, scenario, failure)) = failed.into_inner().expect("no thread panicked while it held this") {
        return report(seed, &scenario, &failure);
    }
    let sum = sum.into_inner().expect("no thread panicked while it held this");
    let (worlds, took) = (seeds.end - seeds.start, start.elapsed());
    println!("{worlds} worlds in {took:.1?}, seeds {} to {}: every promise kept", seeds.start, seeds.end - 1);
    println!(
        "{} grants, {} calls not granted, {} looks at a hold, {} holds lost, {} changes of what was held",
        sum.grants, sum.refusals, sum.looks, sum.losses, sum.changes
    );
    Ok(())
}

fn report(seed: u64, scenario: &Scenario, failure: &Failure) -> Result<()> {
    eprintln!("seed {seed}: {}", failure.first());
    let claim = failure.first().claim();
    let same = |failure: &Failure| failure.problems.iter().any(|problem| problem.claim() == claim);
    let smallest = shrink(scenario, |smaller| run(smaller).is_err_and(|failure| same(&failure)));
    if let Err(failure) = run(&smallest) {
        for event in &failure.history {
            eprintln!("{event:?}");
        }
        let turns: usize = smallest.lives.iter().map(Vec::len).sum();
        eprintln!("shrunk to {turns} turns and {} faults; a test to keep:\n", smallest.strikes.len());
        println!("{}", failure.test(&format!("found_by_seed_{seed}"), &smallest));
    }
    bail!("seed {seed} breaks a promise; `cargo xtask simulate --seed {seed}` shows it");
}
