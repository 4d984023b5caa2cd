//! `cargo xtask tls`: our client's TLS, on the embedded server and on Apache's.
//!
//! Apart from `cargo test` because the feature builds a second library of cryptography, in C.

use anyhow::{Context, Result};
use clap::Args;
use lockkeeper_testkit::apache::Distribution;
use xshell::{Shell, cmd};

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Arguments of the test program, such as a part of a test's name.
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    Distribution::install()?;
    let arguments = &options.arguments;
    cmd!(sh, "cargo test --quiet -p lockkeeper --features tls,real-servers --test tls -- {arguments...}")
        .run()
        .context("locks over TLS")?;
    cmd!(sh, "cargo test --quiet -p lockkeeper-cli --features tls --test cli -- secured")
        .run()
        .context("the command over TLS")
}
