//! The clock of the protocol's times, which both processes read.

use std::time::Duration;

/// Returns the time by the clock of the protocol: since the start of the machine, the time that it slept included. On Linux it is
/// `CLOCK_BOOTTIME`; other systems have `CLOCK_MONOTONIC`.
pub fn now() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns a time of this clock as the protocol writes it.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
