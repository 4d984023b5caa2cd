//! `cargo xtask crash`: kills the embedded server while it works, and damages its data on the disk.
//!
//! It runs tests of `cargo test` many more times.

use anyhow::{Context, Result};
use clap::Args;
use xshell::Shell;

use crate::programs::{LIB, Tests};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How often a server is killed during writes
    #[arg(long, value_name = "N", default_value_t = 500)]
    rounds: u32,
    /// The seed of the moments; printed
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Also cut a log of 1 MB and a snapshot of 1 MB at every byte, and change 2 000 random bits of the snapshot: takes
    /// an hour
    #[arg(long)]
    cuts: bool,
}

const STORAGE: Tests = Tests { package: "lockkeeper-server", target: "it", features: "" };

pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    kill(sh, options.rounds, options.seed)?;
    if options.cuts {
        cut(sh, LIB, "store::disk_store::tests::a_log_cut_anywhere_opens_to_the_state_after_its_last_whole_record")?;
        cut(sh, STORAGE.target, "storage::damaged_data_is_refused_or_harmless_but_never_believed")?;
    }
    Ok(())
}

/// Runs a test that cuts at every byte.
fn cut(sh: &Shell, target: &'static str, test: &str) -> Result<()> {
    let environment = [("LOCKKEEPER_CUTS", "all".into()), ("RUST_BACKTRACE", "0".into())];
    Tests { target, ..STORAGE }
        .run(sh, &["--exact", test, "--nocapture"].map(str::to_owned), environment)
        .context("damaged data was accepted")
}

/// Kills a server this many times, and checks that every acknowledged write is still there.
fn kill(sh: &Shell, rounds: u32, seed: Option<u64>) -> Result<()> {
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let test = "storage::nothing_acknowledged_is_lost_by_kill_9";
    let environment = [("LOCKKEEPER_KILLS", rounds.to_string().into()), ("LOCKKEEPER_SEED", seed.to_string().into())];
    STORAGE
        .run(sh, &["--exact", test, "--nocapture"].map(str::to_owned), environment)
        .context("an acknowledged write is lost")
}
