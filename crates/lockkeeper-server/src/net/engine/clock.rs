//! The server's clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::machine::Now;

/// The time for the machine: the real time, unless a test has moved or stopped it.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// How far it is ahead of the real time, for faults.
    ahead: Duration,
    /// The time that it shows while it is stopped, for faults.
    frozen: Option<Now>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), ahead: Duration::ZERO, frozen: None }
    }

    pub(crate) fn now(&self) -> Now {
        if let Some(frozen) = self.frozen {
            return frozen;
        }
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + self.ahead;
        let wall_ms = i64::try_from(wall.as_millis()).unwrap_or(i64::MAX);
        Now { monotonic: self.start.elapsed() + self.ahead, wall_ms }
    }

    /// Returns when the next multiple of `interval` is due; deadlines are such multiples.
    pub(crate) fn next_multiple(&self, interval: Duration) -> Instant {
        if self.frozen.is_some() {
            return Instant::now() + interval;
        }
        let now = self.now().monotonic;
        let ticks = u32::try_from(now.as_nanos() / interval.as_nanos()).unwrap_or(u32::MAX).saturating_add(1);
        Instant::now() + (interval * ticks).saturating_sub(now)
    }
}

#[cfg(feature = "faults")]
impl Clock {
    pub(crate) fn freeze(&mut self) {
        self.frozen = Some(self.now());
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        match &mut self.frozen {
            None => self.ahead += by,
            Some(Now { monotonic, wall_ms }) => {
                *monotonic += by;
                *wall_ms = wall_ms.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX));
            }
        }
    }

    /// Continues from the time that it shows, which may be behind the real time. It never goes back.
    pub(crate) fn resume(&mut self) {
        if let Some(Now { monotonic, .. }) = self.frozen.take() {
            let real = self.start.elapsed();
            self.ahead = monotonic.saturating_sub(real);
            if let Some(behind) = real.checked_sub(monotonic) {
                self.start += behind;
            }
        }
    }
}
