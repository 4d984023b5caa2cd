//! `cargo xtask tls`: tests our client's TLS, on the embedded server and on Apache's.
//!
//! The part against Apache's server is not in `cargo test`.

use anyhow::{Context, Result};
use clap::Args;
use lockkeeper_testkit::apache::Distribution;
use xshell::Shell;

use crate::programs::Tests;

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Arguments of the test program, such as a part of a test's name
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    Distribution::install()?;
    Tests { package: "lockkeeper", target: "tls", features: "tls" }
        .run(sh, &options.arguments, [])
        .context("locks over TLS")?;
    Tests { package: "lockkeeper-cli", target: "cli", features: "tls" }
        .run(sh, &["secured".to_owned()], [])
        .context("the command over TLS")
}
