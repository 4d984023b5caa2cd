//! `cargo xtask crash`: kills the embedded server while it works, damages its data, and makes its disk fail.
//!
//! It runs tests of `cargo test` many more times.

use anyhow::{Context, Result};
use clap::Args;
use xshell::{Shell, cmd};

use crate::programs::{LIB, Tests};
use crate::untested::Untested;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How often a server is killed during writes, and how many simulated disks fail
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
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
    kill(sh, options.rounds, seed)?;
    fail(sh, u64::from(options.rounds), seed)?;
    if options.cuts {
        cut(sh, LIB, "store::disk_store::tests::a_log_cut_anywhere_opens_to_the_state_after_its_last_whole_record")?;
        cut(sh, STORAGE.target, "storage::damaged_data_is_refused_or_harmless_but_never_believed")?;
    }
    full_device(sh)
}

/// Runs the store on this many simulated disks that fail and lose power.
fn fail(sh: &Shell, disks: u64, seed: u64) -> Result<()> {
    let test = "store::disk_store::simulated::nothing_acknowledged_is_lost_by_operations_that_fail_and_by_power_loss";
    let environment = [
        ("LOCKKEEPER_HISTORIES", disks.to_string().into()),
        ("LOCKKEEPER_SEED", seed.to_string().into()),
        ("RUST_BACKTRACE", "0".into()),
    ];
    Tests { target: LIB, ..STORAGE }
        .run(sh, &["--exact", test, "--nocapture"].map(str::to_owned), environment)
        .context("an acknowledged write is lost")
}

/// Runs a server on a real filesystem whose device is full. Only root can set that up, where there are loop devices.
fn full_device(sh: &Shell) -> Result<()> {
    for needed in ["losetup --find", "mkfs.ext4 -V", "unshare --mount true"] {
        let (program, arguments) = needed.split_once(' ').unwrap_or((needed, ""));
        let arguments = arguments.split(' ');
        if cmd!(sh, "{program} {arguments...}").quiet().ignore_stdout().ignore_stderr().run().is_err() {
            return Err(Untested::new("a store on a full device", &format!("`{needed}` fails; it needs root")).into());
        }
    }
    let test = "device::a_fold_that_failed_on_a_full_device_loses_nothing_acknowledged";
    STORAGE
        .run(sh, &["--exact", test, "--nocapture"].map(str::to_owned), [("LOCKKEEPER_DEVICE", "1".into())])
        .context("an acknowledged write is lost")
}

/// Runs a test that cuts at every byte.
fn cut(sh: &Shell, target: &'static str, test: &str) -> Result<()> {
    let environment = [("LOCKKEEPER_CUTS", "all".into()), ("RUST_BACKTRACE", "0".into())];
    Tests { target, ..STORAGE }
        .run(sh, &["--exact", test, "--nocapture"].map(str::to_owned), environment)
        .context("damaged data was accepted")
}

/// Kills a server this many times, and checks that every acknowledged write is still there.
fn kill(sh: &Shell, rounds: u32, seed: u64) -> Result<()> {
    let test = "storage::nothing_acknowledged_is_lost_by_kill_9";
    let environment = [("LOCKKEEPER_KILLS", rounds.to_string().into()), ("LOCKKEEPER_SEED", seed.to_string().into())];
    STORAGE
        .run(sh, &["--exact", test, "--nocapture"].map(str::to_owned), environment)
        .context("an acknowledged write is lost")
}
