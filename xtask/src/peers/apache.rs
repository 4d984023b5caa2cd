//! Random scripts on Apache's server and on ours.

use anyhow::{Context, Result};
use lockkeeper_testkit::apache::Distribution;
use xshell::Shell;

use crate::programs::Tests;
use crate::untested::fetched;

/// A number of scripts that is more than enough to find every difference that was ever found.
pub(super) const SCRIPTS: u64 = 2_000;

/// The release of Apache's server that ours is compared with, request by request.
pub(super) const RELEASE: &str = "3.9.5";

/// Compares every answer, error and event of our server with those of Apache's server.
pub(super) fn run(sh: &Shell, scripts: u64) -> Result<()> {
    release()?;
    Tests { package: "lockkeeper-server", target: "differential", features: "" }
        .run(sh, &["--nocapture".to_owned()], [("LOCKKEEPER_SCRIPTS", scripts.to_string().into())])
        .context("our server does not answer as Apache's")
}

/// Returns Apache's server of that release.
pub(crate) fn release() -> Result<Distribution> {
    let (distribution, _home) =
        fetched(&format!("ZooKeeper {RELEASE}, which comes from Maven Central"), Distribution::fetch(RELEASE))?;
    Ok(distribution)
}
