//! This machine's clock.

/// The time by this machine's clock, in milliseconds since 1970; 0 if the clock is before that.
pub(crate) fn wall_clock_ms() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
