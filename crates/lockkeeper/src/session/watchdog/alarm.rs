//! One thread's alarm clock, set by others, on the clock that holds are judged by.

pub(super) use self::imp::Alarm;

/// A timer of the kernel, which runs through suspend: it rings at once when the machine wakes up too late.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod imp {
    use std::fs::File;
    use std::io::Read;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };

    pub(in crate::session::watchdog) struct Alarm(File);

    impl Alarm {
        pub(in crate::session::watchdog) fn new() -> std::io::Result<Self> {
            let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
            Ok(Alarm(timer.into()))
        }

        /// Rings at that moment of the system's clock, also if it has passed; not at the moment set before.
        pub(in crate::session::watchdog) fn set(&self, at: Duration) {
            // Zero would take the alarm off.
            let at = at.max(Duration::from_nanos(1));
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let it_value =
                Timespec { tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX), tv_nsec: at.subsec_nanos().into() };
            // It fails for a time that is none, and for what is no timer.
            _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: never, it_value });
        }

        /// Waits until it rings.
        pub(in crate::session::watchdog) fn wait(&self) {
            // A signal may interrupt it: then it is looked at a moment too early.
            _ = (&self.0).read(&mut [0; 8]);
        }
    }
}

/// A condition variable, where no safe call offers a timer that runs through suspend.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod imp {
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use crate::clock::Clock;

    #[derive(Default)]
    pub(in crate::session::watchdog) struct Alarm {
        at: Mutex<Option<Duration>>,
        changed: Condvar,
    }

    impl Alarm {
        pub(in crate::session::watchdog) fn new() -> std::io::Result<Self> {
            Ok(Alarm::default())
        }

        /// Rings at that moment of the system's clock, also if it has passed; not at the moment set before.
        pub(in crate::session::watchdog) fn set(&self, at: Duration) {
            *self.at.lock().expect("held for a copy only") = Some(at);
            self.changed.notify_one();
        }

        /// Waits until it rings.
        pub(in crate::session::watchdog) fn wait(&self) {
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
