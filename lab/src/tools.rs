//! What all profiles use: the programs that they run, and the clock and the logs of their histories.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use lockkeeper_testkit::apache::Distribution;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What the campaign runs; it is only built or fetched if a profile needs it.
pub struct Tools {
    /// Returns the program `lockkeeper`.
    pub command: fn() -> Result<PathBuf>,
    /// Returns the release of Apache's servers whose leaders may be killed.
    pub servers: fn() -> Result<Distribution>,
}

/// Runs work that measures times on a thread of its own, with a higher priority than other processes; its children
/// inherit that. Passes whether it worked, because only root may do it.
pub(crate) fn urgently<T: Send>(nice: i32, work: impl FnOnce(bool) -> T + Send) -> T {
    // On Linux, this concerns only the calling thread and what it starts.
    let work = move || work(rustix::process::nice(-nice).is_ok());
    std::thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// Returns the time, by a clock that all processes share and that runs while the machine sleeps.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The log of a process: lines of JSON. Each line is one write before the next action, so the log of a killed process is complete
/// up to its last action.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(path: &Path) -> io::Result<Log> {
        Ok(Log(File::options().append(true).create(true).open(path)?))
    }

    pub(crate) fn say(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// Reads a log, if there is one.
pub(crate) fn lines<T: DeserializeOwned>(path: &Path) -> Vec<T> {
    parse(&String::from_utf8_lossy(&fs::read(path).unwrap_or_default()))
}

/// Reads the text of a log. Ignores a last line that was cut off.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the load of this machine over the last minute.
pub(crate) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}

/// Returns a description of the machine, with its load.
pub(crate) fn machine(distribution: &Distribution) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut text = format!("{cpus} × {}", value(&read("/proc/cpuinfo"), "model name"));
    _ = write!(text, ", {}", value(&read("/proc/meminfo"), "MemTotal"));
    _ = write!(text, ", Linux {}", read("/proc/sys/kernel/osrelease").trim());
    _ = write!(text, ", {}; load average at the start {}", distribution.origin(), load());
    text
}
