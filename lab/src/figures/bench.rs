//! What every figure needs: the ensemble, and a line of the table.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use lockkeeper::Lockkeeper;

use crate::chaos::{SESSION_TIMEOUT, Testbed};

/// A line of the table.
pub(super) struct Figure {
    pub(super) letter: char,
    pub(super) claim: String,
    pub(super) measured: String,
    pub(super) kept: bool,
    /// Whether the machine itself was late, so that the measurement is void.
    pub(super) void: bool,
}

/// The servers and settings of the measurements.
pub(super) struct Bench {
    pub(super) testbed: Testbed,
    /// The program `lockkeeper`.
    pub(super) command: PathBuf,
    pub(super) runs: usize,
    pub(super) cuts: usize,
}

impl Bench {
    /// Returns a handle with a session of its own.
    pub(super) async fn keeper(&self, servers: &str) -> Result<Lockkeeper> {
        let builder = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).connect_timeout(Duration::from_secs(30));
        builder.connect(servers).await.with_context(|| format!("connecting to {servers}"))
    }
}

/// Returns the longest time.
pub(super) fn most(times: &[Duration]) -> Duration {
    times.iter().copied().max().unwrap_or_default()
}
