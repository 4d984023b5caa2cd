//! Signals as a stream. Signals that the starter of this process ignored stay ignored.
//!
//! `nohup lockkeeper …` and a shell's background jobs start us with signals ignored, and the command under the lock
//! should inherit that. Catching such a signal would undo it.

use std::task::Poll;

use futures_util::FutureExt;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;

/// The signals that end a program that does not handle them.
pub(crate) const ENDING: &[Signal] =
    &[Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// The signals that stop a service.
pub(crate) const STOPPING: &[Signal] = &[Signal::INT, Signal::QUIT, Signal::TERM];

/// The signals that a service uses for anything but its end.
pub(crate) const RELOADING: &[Signal] = &[Signal::HUP, Signal::USR1, Signal::USR2];

/// The signals that matter only while a command runs.
pub(crate) const RUNNING: &[Signal] = &[Signal::TSTP, Signal::WINCH];

/// A set of signals, caught from now to the end of the process.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    stop: bool,
}

impl Signals {
    /// Catches these signals too, except those that are ignored or caught already.
    pub(crate) fn add(&mut self, signals: &[Signal]) -> Result<(), Failure> {
        let ignored = ignored();
        let caught = |signal: &Signal| self.streams.iter().any(|(caught, _)| caught == signal);
        let new = signals.iter().copied().filter(|signal| !caught(signal));
        let heeded: Vec<_> = new.filter(|signal| ignored & bit(*signal) == 0).collect();
        self.catch(&heeded)
    }

    /// Catches these signals too, even if they are ignored.
    pub(crate) fn catch(&mut self, signals: &[Signal]) -> Result<(), Failure> {
        for &signal in signals {
            let stream = unix::signal(SignalKind::from_raw(signal.as_raw()))
                .map_err(|error| Failure::system("cannot catch signals", error))?;
            self.streams.push((signal, stream));
        }
        Ok(())
    }

    /// Returns the next signal. Dropping the future loses no signal.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    self.stop |= STOPPING.contains(signal);
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Whether [`Signals::next`] has returned a signal that stops a service.
    pub(crate) fn are_to_stop(&self) -> bool {
        self.stop
    }

    /// Notes how the command ended: on a terminal, Ctrl-C reaches only the command.
    pub(crate) fn note_end(&mut self, ended: u8) {
        self.stop |= STOPPING.iter().chain([&Signal::HUP]).any(|signal| status(signal.as_raw()) == ended);
    }

    /// Whether a signal that ends this process has come, or has ended the command.
    pub(crate) fn are_to_end(&mut self) -> bool {
        while let Some(signal) = self.next().now_or_never() {
            self.stop |= signal == Signal::HUP;
        }
        self.stop
    }
}

const fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// Returns the signals that this process ignores, as a mask.
#[cfg(target_os = "linux")]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
fn ignored() -> u64 {
    // There is no way to ask without `unsafe`; such signals are then passed on like all others.
    0
}

/// Returns the exit status that a shell reports for a command that this signal killed.
pub(crate) fn status(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
