//! The alarm clock of the watchdog's thread. Other threads set it, by the clock by which holds are trusted.

pub(super) use self::imp::Alarm;

/// A kernel timer that keeps running during suspend: it rings immediately if the machine wakes up too late.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod imp {
    use std::fs::File;
    use std::io::Read;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };

    pub(crate) struct Alarm(File);

    impl Alarm {
        pub(crate) fn new() -> std::io::Result<Self> {
            let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
            Ok(Alarm(timer.into()))
        }

        /// Rings at this time of the system's clock, even if it has passed. Replaces the previous time.
        pub(crate) fn set(&self, at: Duration) {
            // Zero would disarm the timer.
            let at = at.max(Duration::from_nanos(1));
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let it_value =
                Timespec { tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX), tv_nsec: at.subsec_nanos().into() };
            // It fails only for an invalid time and for a file that is not a timer.
            _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: never, it_value });
        }

        /// Waits until it rings.
        pub(crate) fn wait(&self) {
            // A signal may interrupt the read: then the check comes a moment too early.
            _ = (&self.0).read(&mut [0; 8]);
        }
    }
}

/// A condition variable, for systems on which no safe call offers a timer that runs during suspend.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod imp {
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use crate::clock::Clock;

    #[derive(Default)]
    pub(crate) struct Alarm {
        at: Mutex<Option<Duration>>,
        changed: Condvar,
    }

    impl Alarm {
        pub(crate) fn new() -> std::io::Result<Self> {
            Ok(Alarm::default())
        }

        /// Rings at this time of the system's clock, even if it has passed. Replaces the previous time.
        pub(crate) fn set(&self, at: Duration) {
            *self.at.lock().expect("held for a copy only") = Some(at);
            self.changed.notify_one();
        }

        /// Waits until it rings.
        pub(crate) fn wait(&self) {
            let mut at = self.at.lock().expect("held for a copy only");
            loop {
                let left = at.map(|at| at.saturating_sub(Clock::System.now()));
                at = match left {
                    Some(Duration::ZERO) => break *at = None,
                    Some(left) => self.changed.wait_timeout(at, left).expect("held for a copy only").0,
                    None => self.changed.wait(at).expect("held for a copy only"),
                };
            }
        }
    }
}
