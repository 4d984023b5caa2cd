//! What every figure needs: the ensemble, and a line of the table.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lockkeeper::error::AcquireError;
use lockkeeper::{Guard, Lockkeeper};
use lockkeeper_testkit::proxy::Proxy;
use tokio::task::JoinHandle;

use crate::testbed::{SERVERS, SESSION_TIMEOUT, Testbed};

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
    pub(super) runs: usize,
    pub(super) cuts: usize,
}

impl Bench {
    /// Returns a handle with a session of its own.
    pub(super) async fn keeper(&self, servers: &str) -> Result<Lockkeeper> {
        let builder = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).connect_timeout(Duration::from_secs(30));
        builder.connect(servers).await.with_context(|| format!("connecting to {servers}"))
    }

    /// Returns proxies of all servers, and their connect string.
    pub(super) fn proxies(&self) -> (Vec<Proxy>, String) {
        let proxy = |server| Proxy::start_blocking(self.testbed.apache.addr(server));
        let proxies: Vec<Proxy> = (0..SERVERS).map(proxy).collect();
        let servers: Vec<String> = proxies.iter().map(Proxy::connect_string).collect();
        (proxies, servers.join(","))
    }
}

/// The next holder: the time of its grant, and its guard.
pub(super) type Next = JoinHandle<(Instant, Result<Guard, AcquireError>)>;

/// Lets a contender wait for a lock that is held, and returns when it waits.
pub(super) async fn next_holder(keeper: &Lockkeeper, path: &str) -> Result<Next> {
    let waiting = keeper.mutex(path).acquire().timeout(Duration::from_secs(60)).into_future();
    let waiting = tokio::spawn(async move {
        let guard = waiting.await;
        (Instant::now(), guard)
    });
    until_waiting(keeper, path).await?;
    Ok(waiting)
}

/// Returns when somebody waits for a lock.
pub(super) async fn until_waiting(keeper: &Lockkeeper, path: &str) -> Result<()> {
    while keeper.admin().show(path).await?.waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Returns the longest time.
pub(super) fn most(times: &[Duration]) -> Duration {
    times.iter().copied().max().unwrap_or_default()
}
