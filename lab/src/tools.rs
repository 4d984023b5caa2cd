//! What all profiles use: the programs that they run, and the clock of their histories.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use lockkeeper_testkit::apache::Distribution;
use rustix::time::{ClockId, clock_gettime};

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
