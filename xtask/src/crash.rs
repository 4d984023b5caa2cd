//! `cargo xtask crash`: kills the embedded server while it works, damages its data, and makes its disk fail.
//!
//! It runs tests of `cargo test` many more times.

use std::ffi::OsString;

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

/// Tests by their programs, with the variable that makes them long. The last two cut at every byte.
const TESTS: [(&str, &str, &str); 4] = [
    ("it", "storage::nothing_acknowledged_is_lost_by_kill_9", "LOCKKEEPER_KILLS"),
    (
        LIB,
        "store::disk_store::simulated::nothing_acknowledged_is_lost_by_operations_that_fail_and_by_power_loss",
        "LOCKKEEPER_HISTORIES",
    ),
    (
        LIB,
        "store::disk_store::tests::a_log_cut_anywhere_opens_to_the_state_after_its_last_whole_record",
        "LOCKKEEPER_CUTS",
    ),
    ("it", "storage::damaged_data_is_refused_or_harmless_but_never_believed", "LOCKKEEPER_CUTS"),
];

pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id())).to_string();
    for (target, test, variable) in TESTS {
        let cuts = variable == "LOCKKEEPER_CUTS";
        if !cuts || options.cuts {
            let value = if cuts { "all".to_owned() } else { options.rounds.to_string() };
            one(sh, target, test, [(variable, value.into()), ("LOCKKEEPER_SEED", seed.clone().into())])?;
        }
    }
    // A server on a real filesystem whose device is full. Only root can set that up, where there are loop devices.
    for needed in ["losetup --find", "mkfs.ext4 -V", "unshare --mount true"] {
        let (program, arguments) = needed.split_once(' ').unwrap_or((needed, ""));
        let arguments = arguments.split(' ');
        if cmd!(sh, "{program} {arguments...}").quiet().ignore_stdout().ignore_stderr().run().is_err() {
            return Err(Untested::new("a store on a full device", &format!("`{needed}` fails; it needs root")).into());
        }
    }
    let test = "device::a_fold_that_failed_on_a_full_device_loses_nothing_acknowledged";
    one(sh, "it", test, [("LOCKKEEPER_DEVICE", "1".into())])
}

fn one<const N: usize>(sh: &Shell, target: &'static str, test: &str, set: [(&'static str, OsString); N]) -> Result<()> {
    let tests = Tests { package: "lockkeeper-server", target, features: "" };
    let environment = set.into_iter().chain([("RUST_BACKTRACE", "0".into())]);
    let run = tests.run(sh, &["--exact", test, "--nocapture"].map(str::to_owned), environment);
    run.context("an acknowledged write is lost, or damaged data was accepted")
}
