//! Whether this process was paused until its holds had almost ended, and for how long.

use std::time::Duration;

use lockkeeper_session::text::spell;

/// How late this process reacts at most if the machine is only busy. A longer delay is a pause.
const BUSY: Duration = Duration::from_millis(100);

/// What is known of the pauses of this process. All instants are those of [`crate::watchdog::now`].
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Until when the holds could be relied on, as it was read last.
    trusted: Option<Duration>,
    /// How long this process was stopped together with its command, if the holds were not confirmed since.
    stopped: Option<Duration>,
}

impl Pauses {
    /// Notes until when the holds can be relied on.
    pub(super) fn trusted_until(&mut self, end: Duration) {
        self.trusted = Some(end);
    }

    /// Notes how long this process was stopped; `None` once the holds are confirmed.
    pub(super) fn stopped_for(&mut self, time: Option<Duration>) {
        self.stopped = time;
    }

    /// Returns why the hold ends if this process was paused: it comes later than the grace period before the end of the trust, when
    /// it sends SIGTERM.
    pub(super) fn cause(&self, now: Duration, grace: Duration) -> Option<String> {
        let late = now.saturating_sub(self.trusted?.saturating_sub(grace));
        (late >= BUSY).then(|| paused_for(self.stopped, late))
    }
}

/// `lockkeeper was paused for too long (12 s)`
fn paused_for(stopped: Option<Duration>, late: Duration) -> String {
    let time = match stopped {
        Some(time) => spell(time),
        // It began at some time before it was late.
        None if late.as_secs() > 0 => format!("at least {}", spell(Duration::from_secs(late.as_secs()))),
        None => format!("at least {}", spell(late)),
    };
    format!("lockkeeper was paused for too long ({time})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_told_with_its_length_or_with_what_is_known_of_it() {
        let told = |stopped, late| paused_for(stopped, Duration::from_millis(late));
        assert_eq!(told(None, 3900), "lockkeeper was paused for too long (at least 3 s)");
        assert_eq!(told(None, 120), "lockkeeper was paused for too long (at least 120 ms)");
        assert_eq!(told(Some(Duration::from_secs(65)), 3900), "lockkeeper was paused for too long (1 min 05 s)");
    }

    #[test]
    fn a_process_that_is_only_busy_was_not_paused() {
        let (mut pauses, due, grace) = (Pauses::default(), Duration::from_secs(60), Duration::from_secs(2));
        assert_eq!(pauses.cause(due, grace), None);
        pauses.trusted_until(due + grace);
        assert_eq!(pauses.cause(due + BUSY / 2, grace), None);
        assert!(pauses.cause(due + BUSY, grace).is_some());
    }
}
