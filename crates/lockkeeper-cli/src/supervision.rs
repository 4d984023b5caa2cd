//! Decides when the command under a lock is signalled and killed. No I/O: [`crate::child`] reports what happens and carries out
//! what is decided here.
//!
//! While lockkeeper is stopped or after it was killed, the watchdog acts by its own [`Rules`], on the last [`Deadline`] that it
//! was told. A model runs both through every order of losses, requests, signals, stops and timers.
//!
//! All instants are those of [`crate::watchdog::now`].

mod rules;

use std::time::Duration;

use lockkeeper::Loss;
use rustix::process::Signal;

pub(crate) use self::rules::{Action, Deadline, Order, Rules, Told};
use crate::signals::ENDING;

/// What happens to the command or to its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A lock is lost.
    Lost {
        why: Loss,
        /// The watchdog has sent SIGTERM, or is about to.
        watchdog_acted: bool,
        /// The group was stopped before the loss, and does not continue: it has no step to end.
        suspended: bool,
    },
    /// The locks can be relied on for `left`, and that is not longer than the grace period. Or their connection is lost, and the
    /// command is to stop then.
    Unreliable { left: Duration },
    /// The watchdog has sent SIGTERM, or is about to, and the locks can be relied on for `left`.
    WatchdogActed { left: Duration },
    /// Somebody asks for the release of a lock, and the command gets a signal for that.
    Asked {
        signal: Signal,
        /// The command has got the signal for this lock already.
        again: bool,
        /// Another contender takes the leased lock.
        preemption: Option<Cleanup>,
    },
    /// A contender of an earlier class waits, and the command gets this signal to make way. It decides whether to end.
    MakeWay { signal: Signal },
    /// The other contender takes the leased lock no more.
    Withdrawn,
    /// Lockkeeper got a signal.
    Signal(Signal),
    /// The instant [`Supervision::due`] has come.
    Due,
}

/// How long the owner of a leased lock may clean up before another contender takes the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cleanup {
    pub left: Duration,
    /// The lease is over. Otherwise the other contender has a higher priority.
    pub lease_over: bool,
}

/// The state of a command under its locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Supervision {
    grace: Duration,
    kill_at: Option<Duration>,
    /// Another contender wants the leased lock: whether the lease is over.
    wanted: Option<bool>,
    /// When the cleanup for it must have ended.
    clean_by: Option<Duration>,
    /// When the command has run for too long.
    run_end: Option<Duration>,
    terminated: bool,
    /// The locks can no longer be relied on.
    stopped: bool,
    /// Why a lock was lost.
    pub loss: Option<Loss>,
    /// The command got SIGTERM because it ran for too long.
    pub too_long: bool,
    /// A person or a program asked the command to end: by a signal to lockkeeper, or by a request for the lock.
    pub asked_to_end: bool,
}

impl Supervision {
    /// `max_run`: how long the command may run. A sum that is too large means no limit.
    pub(crate) fn new(now: Duration, grace: Duration, max_run: Option<Duration>) -> Self {
        Supervision {
            grace,
            kill_at: None,
            wanted: None,
            clean_by: None,
            run_end: max_run.and_then(|limit| now.checked_add(limit)),
            terminated: false,
            stopped: false,
            loss: None,
            too_long: false,
            asked_to_end: false,
        }
    }

    /// Whether the command has to end because its locks can no longer be relied on, or because its lease is over and another
    /// contender wants it.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_stopped() || self.wanted == Some(true)
    }

    /// How long the command may take to end.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// Whether the locks can no longer be relied on: nothing keeps the command from its end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped || self.loss.is_some()
    }

    /// Whether a higher priority wants the lock, and the command got a signal for it or lost the lock.
    pub(crate) fn is_preempted(&self) -> bool {
        self.loss == Some(Loss::Preempted) || self.wanted == Some(false)
    }

    /// Whether another contender wants the leased lock, and may still withdraw.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.is_some() && self.loss.is_none()
    }

    /// Returns when the group is killed, if that is decided and not done.
    pub(crate) fn kill_at(&self) -> Option<Duration> {
        self.kill_at.into_iter().chain(self.clean_by).min()
    }

    /// Returns the instant of the next [`Event::Due`].
    pub(crate) fn due(&self) -> Option<Duration> {
        let run_end = self.run_end.filter(|_| !self.is_stopped());
        self.kill_at().into_iter().chain(run_end).min()
    }

    /// Returns the deadline for the watchdog while the locks can be relied on until `trusted`; `None` if the last one stays.
    pub(crate) fn deadline(&self, trusted: Duration) -> Option<Deadline> {
        match self.kill_at() {
            Some(kill) if self.loss.is_some() || kill <= trusted => Some(Deadline::at(kill)),
            // The trust may end before the cleanup of a lease that is over.
            Some(_) if self.terminated => Some(Deadline::at(trusted)),
            // SIGKILL was sent.
            None if self.is_ending() => None,
            _ => Some(Deadline::of_trust(trusted, self.grace)),
        }
    }

    /// Decides what follows from an event.
    pub(crate) fn handle(&mut self, event: Event, now: Duration) -> Option<Action> {
        match event {
            Event::Lost { why, watchdog_acted, suspended } if self.loss.is_none() => {
                self.terminated |= self.is_ending() || watchdog_acted || suspended;
                (self.loss, self.stopped) = (Some(why), true);
                if suspended {
                    // SIGTERM would take effect only when the group continues, and another contender may hold the lock.
                    (self.kill_at, self.clean_by) = (None, None);
                    return Some(Action::Kill);
                }
                // These losses come at a known time, and the grace period was before it. After other losses, another contender may
                // hold the lock already; the grace period is the command's cleanup.
                let cleanup = match why {
                    Loss::Preempted | Loss::Unreachable | Loss::LeaseEnded => Duration::ZERO,
                    _ => self.grace,
                };
                self.terminate_and_kill(now + cleanup)
            }
            Event::Unreliable { left } if !self.is_ending() => {
                self.stopped = true;
                self.terminate_and_kill(now + left.min(self.grace))
            }
            Event::WatchdogActed { left } if !self.is_stopped() => {
                (self.stopped, self.terminated) = (true, true);
                self.terminate_and_kill(now + left.min(self.grace))
            }
            Event::Asked { signal, again, preemption } if self.loss.is_none() => {
                if let Some(Cleanup { left, lease_over }) = preemption {
                    (self.wanted, self.clean_by) = (Some(lease_over), Some(now + left));
                }
                // The command gets one signal for each lock, and may take its time to end.
                self.asked_to_end |= !again;
                (!again).then_some(Action::Send(signal))
            }
            Event::MakeWay { signal } => (!self.is_ending()).then_some(Action::Send(signal)),
            Event::Withdrawn if self.loss.is_none() => {
                (self.wanted, self.clean_by) = (None, None);
                None
            }
            Event::Signal(signal) => {
                self.asked_to_end |= ENDING.contains(&signal);
                Some(Action::Send(signal))
            }
            Event::Due if self.kill_at().is_some_and(|at| at <= now) => {
                (self.kill_at, self.clean_by) = (None, None);
                Some(Action::Kill)
            }
            Event::Due if !self.is_stopped() && self.run_end.is_some_and(|end| end <= now) => {
                (self.run_end, self.too_long) = (None, true);
                self.terminate_and_kill(now + self.grace)
            }
            Event::Lost { .. }
            | Event::Unreliable { .. }
            | Event::WatchdogActed { .. }
            | Event::Asked { .. }
            | Event::Withdrawn
            | Event::Due => None,
        }
    }

    /// The command gets one SIGTERM, and the earliest end counts.
    fn terminate_and_kill(&mut self, at: Duration) -> Option<Action> {
        self.kill_by(at);
        (!std::mem::replace(&mut self.terminated, true)).then_some(Action::Terminate)
    }

    fn kill_by(&mut self, at: Duration) {
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
    }
}

#[cfg(test)]
mod model;
