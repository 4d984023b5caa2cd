//! The clock by which holds are trusted: one that runs while the machine sleeps.
//!
//! `std::time::Instant` is `CLOCK_MONOTONIC` on Linux, which stops in suspend (rust #87906, #79462): after an hour of sleep a
//! dead session would look fresh. Tests under paused time use the runtime's clock instead.

use std::time::Duration;

/// A source of "now", as time since an origin of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The operating system's, running through suspend where it has such a one.
    System,
    /// The runtime's, counted from this moment: follows paused time.
    Runtime(tokio::time::Instant),
}

impl Clock {
    pub(crate) fn now(self) -> Duration {
        match self {
            Clock::System => boot_time(),
            Clock::Runtime(origin) => origin.elapsed(),
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot_time() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    // `Instant` may stop in suspend here too; no safe call offers a clock that does not.
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}
