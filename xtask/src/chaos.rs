//! `cargo xtask chaos`: runs contenders and seeded faults on a real ensemble.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use lockkeeper_testkit::chaos::{self, Contender, Report};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Minutes of faults; every kind of fault comes once in five minutes
    #[arg(long, value_name = "N", default_value = "10", conflicts_with = "hours")]
    minutes: u64,
    /// Hours of faults, at most twelve
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=12))]
    hours: Option<u64>,
    /// The seed of the faults [default: random]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Run as long as CI does
    #[arg(long, conflicts_with_all = ["minutes", "hours"])]
    brief: bool,
    /// Use loopback and proxies, even where network namespaces are available.
    #[arg(long)]
    loopback: bool,
}

/// A contender's process; not for people.
#[derive(Debug, Args)]
pub(crate) struct Contend {
    witness: PathBuf,
    contender: u32,
    servers: String,
    seed: u64,
}

impl Contend {
    pub(crate) fn run(self) -> Result<()> {
        let Contend { witness, contender, servers, seed } = self;
        chaos::contend(&Contender { witness, contender, servers, seed }).context("reporting to the witness")
    }
}

/// The minutes of a run in CI: every kind of fault comes once.
const BRIEF: u64 = 5;

pub(crate) fn run(options: &Options) -> Result<()> {
    let usual = if options.brief { BRIEF } else { options.minutes };
    let minutes = options.hours.map_or(usual, |hours| hours * 60);
    let report = crate::workspace::urgently(10, |_| make(minutes, options.seed, options.loopback))?;
    if !report.kept() {
        bail!("promises were broken");
    }
    Ok(())
}

/// Runs chaos and prints its events.
pub(crate) fn make(minutes: u64, seed: Option<u64>, loopback: bool) -> Result<Report> {
    let distribution = crate::zookeeper::sound()?;
    lockkeeper_testkit::apache::SlowFsync::install()?;
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) ^ chaos::now().as_nanos() as u64 & 0xffff_ffff);
    println!("chaos for {minutes} min by seed {seed}");
    let own = std::env::current_exe().context("finding this program")?;
    let length = Duration::from_secs(minutes * 60);
    let contender = (own, vec!["contend".to_owned()]);
    let options = chaos::Options { length, seed, loopback, distribution, contender };
    let report = chaos::run(&options, &|what| println!("{what}"))?;
    for (fault, count) in &report.faults {
        println!("  {count:3} × {fault:?}");
    }
    for missing in &report.missing {
        println!("  NOT AVAILABLE HERE: {missing}");
    }
    let tally = &report.verdict.tally;
    println!(
        "{} grants, {} calls not granted, {} looks at a hold, {} holds lost",
        tally.grants, tally.refusals, tally.looks, tally.losses
    );
    println!(
        "{} writes accepted, {} stale ones rejected, {} stale ones accepted",
        tally.accepted, tally.refused, tally.stale
    );
    for violation in &report.verdict.violations {
        println!("BROKEN: {violation}");
    }
    for unexpected in &report.unexpected {
        println!("UNEXPECTED: {unexpected}");
    }
    let never: Vec<_> = report.faults.iter().filter(|(_, count)| *count == 0).collect();
    if !never.is_empty() {
        println!("faults that were not made: {never:?}");
    }
    println!("seed {seed}: {}", if report.kept() { "every promise kept" } else { "PROMISES BROKEN" });
    Ok(report)
}
