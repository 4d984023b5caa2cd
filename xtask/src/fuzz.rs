//! `cargo xtask fuzz`: whatever a stranger can send or a disk can give back, changed at random for as long as wanted.
//!
//! The targets and their corpus live in the server's crate; `cargo test` runs each for a moment.

use anyhow::{Context, Result};
use clap::Args;
use xshell::{Shell, cmd};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long each target runs.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// Chooses the changes; printed.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
}

impl Options {
    pub(crate) fn of(seconds: u32) -> Self {
        Self { seconds, seed: None }
    }
}

pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
    // Side by side, as tests are: each has its own time.
    cmd!(sh, "cargo test --quiet -p lockkeeper-server --lib -- fuzz::")
        // The store panics over some damaged pages, which a start answers for; thousands of traces would tell nobody more.
        .env("RUST_BACKTRACE", "0")
        .env("LOCKKEEPER_FUZZ_SECONDS", options.seconds.to_string())
        .env("LOCKKEEPER_SEED", seed.to_string())
        .run()
        .context("an input that the server cannot cope with: it is printed above, add it to the corpus")
}
