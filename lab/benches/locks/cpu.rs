//! Processor time of a process, from /proc: of all its threads, those that have ended included.

use std::time::Duration;

use anyhow::{Context, Result};

/// How long its threads have run, in the kernel and outside; to 10 ms.
pub(crate) fn used_by(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may contain anything; 14th and 15th of all fields are the 12th and 13th after it (proc(5)).
    let (_, fields) = stat.rsplit_once(") ").context("no name in /proc/PID/stat")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second()))
}
