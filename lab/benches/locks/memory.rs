//! How much memory a held and a waiting lock take in their process.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use lockkeeper::Lockkeeper;

use crate::Task;

const LOCKS: usize = 10_000;
/// How many requests are on their way at a time, so that their buffers are small beside the locks.
const AT_ONCE: usize = 100;

/// Prints the resident memory of a lock. The server is in another process.
pub(crate) async fn print(servers: &str) -> anyhow::Result<()> {
    let output = Task::Memory.command(servers, Duration::ZERO)?.output().await?;
    ensure!(output.status.success(), "a measured process ended with {}", output.status);
    println!("\n{:<36} {:>10}", format!("memory of one of {LOCKS} locks"), "");
    print!("{}", String::from_utf8(output.stdout)?);
    Ok(())
}

pub(crate) async fn child(servers: &str) -> anyhow::Result<()> {
    let (one, other) = (Lockkeeper::connect(servers).await?, Lockkeeper::connect(servers).await?);
    let path = |number: usize| format!("/bench/memory/{number}");
    let first = other.mutex("/bench/memory/first").acquire().await?;
    let empty = resident()?;
    let mut guards = Vec::with_capacity(LOCKS);
    for from in (0..LOCKS).step_by(AT_ONCE) {
        guards.extend(
            try_join_all((from..from + AT_ONCE).map(|number| one.mutex(path(number)).acquire().into_future())).await?,
        );
    }
    settle().await;
    let held = resident()?;
    let mut waiting = Vec::with_capacity(LOCKS);
    for from in (0..LOCKS).step_by(AT_ONCE) {
        for number in from..from + AT_ONCE {
            let mut request = Box::pin(other.mutex(path(number)).acquire().into_future());
            ensure!(futures_util::poll!(&mut request).is_pending(), "{} is free", path(number));
            waiting.push(request);
        }
        // They are answered in order, so the last of these waits after this.
        first.verify().await?;
    }
    settle().await;
    let waited = resident()?;
    println!("{:<36} {:>7.1} kB", "held", (held - empty) as f64 / LOCKS as f64 / 1e3);
    println!("{:<36} {:>7.1} kB", "waiting", (waited - held) as f64 / LOCKS as f64 / 1e3);
    drop((waiting, guards));
    one.close().await;
    other.close().await;
    Ok(())
}

/// Waits until the locks are old enough for their watches.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

/// The resident memory of this process, in bytes (proc(5)).
fn resident() -> anyhow::Result<u64> {
    let sizes = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = sizes.split(' ').nth(1).context("no second number in /proc/self/statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
