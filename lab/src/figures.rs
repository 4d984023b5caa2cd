//! `cargo xtask figures`: every number that docs/guarantees.md claims, measured on an ensemble of Apache ZooKeeper by one command.

mod bench;
mod clients;
mod control;
mod network;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use lockkeeper_testkit::Stalls;

use crate::campaign::chaos;
use crate::testbed::{LONG_TICK, SESSION_TIMEOUT, TICK, Testbed};
use crate::tools::{Tools, load, machine, urgently};
use bench::{Bench, Figure};
pub(crate) use clients::Stand;
pub(crate) use control::tick;

#[derive(Debug, Args)]
pub struct Options {
    /// How often each figure is measured
    #[arg(long, value_name = "N", default_value = "20")]
    runs: usize,
    /// How many creates are cut
    #[arg(long, value_name = "N", default_value = "1000")]
    cuts: usize,
    /// Minutes of chaos; 0 for none
    #[arg(long, value_name = "N", default_value = "10")]
    chaos: u64,
    /// Measure as CI does: few of each, and no chaos
    #[arg(long, conflicts_with_all = ["runs", "cuts", "chaos", "only"])]
    few: bool,
    /// Measure only these figures, by their letters
    #[arg(long, value_name = "LETTERS", default_value = "abcdefghi")]
    only: String,
}

impl Options {
    /// Returns the options of CI: few of each figure. Chaos has a step of its own.
    fn few() -> Options {
        Options { runs: 3, cuts: 100, chaos: 0, few: true, only: "abdefghi".into() }
    }
}

/// How often a figure that the machine has disturbed is measured again. The last result counts.
const AGAIN: usize = 3;

/// A stall that makes a figure other than a time void: half of the time between a holder's own deadline and the end of
/// its session.
const STALLED: Duration = SESSION_TIMEOUT.checked_div(8).expect("8 is not 0");

/// The figures about order, which a machine that stalls can reverse. A stale write or an abandoned node is never
/// excused by a stall.
const ORDER: &str = "aghi";

pub(crate) fn run(options: &Options, tools: &Tools) -> Result<()> {
    let few = options.few.then(Options::few);
    let options = few.as_ref().unwrap_or(options);
    urgently(20, |urgent| measure(options, urgent, tools))
}

fn measure(options: &Options, urgent: bool, tools: &Tools) -> Result<()> {
    let (start, distribution) = (Instant::now(), (tools.servers)()?);
    println!(
        "{}; ensemble of three, tick {TICK:?} ({LONG_TICK:?} for i), sessions {SESSION_TIMEOUT:?}{}",
        machine(&distribution),
        if urgent { "; before all other work (nice -20)" } else { "" }
    );
    let mut figures = Vec::new();
    let (few_ticks, enough): (String, String) =
        options.only.chars().filter(|letter| *letter != 'c').partition(|letter| *letter == 'i');
    for (tick, letters) in [(TICK, enough), (LONG_TICK, few_ticks)] {
        if letters.is_empty() {
            continue;
        }
        // The servers' timeouts are long, so that a disconnected follower answers for longer than sessions live.
        let testbed = Testbed::start(tools, tick, false, false, SESSION_TIMEOUT * 2)?;
        let bench = Arc::new(Bench { testbed, runs: options.runs, cuts: options.cuts });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        for letter in letters.chars() {
            for left in (0..=AGAIN).rev() {
                let (since, stalls) = (Instant::now(), Stalls::watch());
                let figure = runtime.block_on(figure(letter, &bench));
                let mut figure = figure.with_context(|| format!("figure {letter}"))?;
                let stalled = stalls.longest();
                figure.void |= !figure.kept && ORDER.contains(letter) && stalled > STALLED;
                eprintln!("{letter}: {} ({:.1?})", figure.measured, since.elapsed());
                bench.testbed.site.recover()?;
                if left == 0 || !figure.void {
                    if left < AGAIN {
                        _ = write!(
                            figure.measured,
                            "; measured {} times because the machine stalled",
                            AGAIN - left + 1
                        );
                    }
                    figures.push(figure);
                    break;
                }
                eprintln!("{letter}: THE MACHINE STALLED (for {stalled:.2?}; load {}): once more", load());
            }
        }
    }
    if options.only.contains('c') && options.chaos > 0 {
        let report = chaos::make(options.chaos, None, false, tools)?;
        let tally = report.tally;
        figures.push(Figure {
            letter: 'c',
            claim: "over chaos, no stale write is taken by a resource behind a gate".into(),
            measured: format!(
                "{} of {} writes taken were stale, {} stale ones refused, in {} min; {}",
                tally.stale,
                tally.accepted,
                tally.refused,
                options.chaos,
                if report.broken == 0 { "all other promises kept too" } else { "OTHER PROMISES BROKEN" }
            ),
            kept: tally.stale == 0 && report.broken == 0,
            void: false,
        });
    }
    figures.sort_by_key(|figure| figure.letter);
    println!("\n|  | claim | measured |\n|---|---|---|");
    for Figure { letter, claim, measured, kept, .. } in &figures {
        println!("| {letter} | {claim} | {measured}{} |", if *kept { "" } else { " **NOT KEPT**" });
    }
    println!("\n{:.0?} in all", start.elapsed());
    if figures.iter().any(|figure| !figure.kept) {
        bail!("not every figure is what docs/guarantees.md says");
    }
    Ok(())
}

async fn figure(letter: char, bench: &Arc<Bench>) -> Result<Figure> {
    match letter {
        'a' | 'i' => network::follower_cut(letter, bench).await,
        'b' => clients::stopped(bench).await,
        'd' => network::cut_creates(bench).await,
        'e' => network::black_hole(bench).await,
        'f' => clients::killed(bench).await,
        'g' => clients::partitioned_run(bench).await,
        'h' => clients::saturated(bench).await,
        other => bail!("there is no figure {other}: they are a to i"),
    }
}
