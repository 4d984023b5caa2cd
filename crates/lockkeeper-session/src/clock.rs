//! The clock by which holds are trusted, which keeps running while the machine is suspended.
//!
//! `std::time::Instant` is `CLOCK_MONOTONIC` on Linux, which stops during suspend (rust #87906, #79462): after an hour
//! of suspend a dead session would look alive. Tests under paused time use the runtime's clock instead.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// A duration as a person types it in an option or a setting: `1m30s`.
pub fn typed(time: Duration) -> String {
    let hours = time.as_secs() / 3600;
    // More than a day in whole hours: `26h`, as people write it.
    if hours > 24 && hours < 100 && time == Duration::from_secs(hours * 3600) && !hours.is_multiple_of(24) {
        return format!("{hours}h");
    }
    humantime::format_duration(time).to_string().replace(' ', "")
}

/// A source of the current time, as the time since a fixed origin.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// The operating system's, which runs during suspend if the system has such a clock.
    System,
    /// The runtime's, counted from this moment, which follows paused time.
    Runtime(tokio::time::Instant),
}

impl Clock {
    /// The current time by which holds are trusted.
    pub fn now(self) -> Duration {
        match self {
            Clock::System => boot_time(),
            Clock::Runtime(origin) => origin.elapsed(),
        }
    }

    /// The current time for the deadline of a call, which the library's thread measures. The caller's runtime may be one with paused
    /// time.
    pub fn instant(self) -> tokio::time::Instant {
        match self {
            Clock::System => std::time::Instant::now().into(),
            Clock::Runtime(_) => tokio::time::Instant::now(),
        }
    }

    /// The current time for people, in milliseconds since 1970.
    pub fn wall_ms(self) -> u64 {
        match self {
            Clock::System => wall_clock_ms(),
            Clock::Runtime(_) => {
                SIMULATED_START_MS.saturating_add(u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX))
            }
        }
    }

    /// Returns a new id. In a simulation it follows from the seed of the thread's generator, because servers order
    /// nodes by their names.
    pub fn unique_id(self) -> u128 {
        match self {
            Clock::System => uuid::Uuid::new_v4().as_u128(),
            Clock::Runtime(_) => fastrand::u128(..),
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
    // `Instant` may stop during suspend here too; no safe call offers a clock that does not.
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

/// When the clock of a simulation starts, in milliseconds since 1970.
const SIMULATED_START_MS: u64 = 1_700_000_000_000;

/// The current time by this machine's clock, in milliseconds since 1970, for people.
pub fn wall_clock_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Milliseconds since 1970.
pub fn as_millis_since_1970(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Serialises a time as milliseconds since 1970.
pub fn as_millis<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(as_millis_since_1970(*time))
}

/// The same for a time that may be unknown.
pub fn as_some_millis<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(as_millis_since_1970).serialize(serializer)
}

/// A time in a record, in milliseconds since 1970; `None` for never and for values that are not a time.
pub fn moment(ms: i64) -> Option<SystemTime> {
    // Times beyond the year 9999 mean forever.
    const LAST_MS: i64 = 253_402_300_799_000;
    let ms = u64::try_from(ms).ok().filter(|_| ms <= LAST_MS)?;
    Some(UNIX_EPOCH + Duration::from_millis(ms))
}

/// The value of a time that a record does not have.
pub fn unix_epoch() -> SystemTime {
    UNIX_EPOCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_as_it_is_typed() {
        let hours = |hours: u64| typed(Duration::from_secs(hours * 3600));
        assert_eq!([2, 24, 26, 48].map(hours), ["2h", "1day", "26h", "2days"]);
        assert_eq!(typed(Duration::from_millis(1_500)), "1s500ms");
    }
}
