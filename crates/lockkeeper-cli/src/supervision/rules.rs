//! What is done to a process group and until when it may run; the rules of the watchdog, and what lockkeeper knows of them. No I/O.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// Changes of the deadline that are shorter than this are not sent.
const SAME: Duration = Duration::from_millis(1);

/// What is done to the command's process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// SIGTERM, which is ours.
    Terminate,
    /// A signal that came to us.
    Send(Signal),
    Kill,
}

impl Action {
    /// Returns the signals to send to the group. A stopped process gets a signal that ends it only when it continues.
    pub(crate) fn signals(self) -> impl Iterator<Item = Signal> {
        let signal = match self {
            Action::Terminate => Signal::TERM,
            Action::Send(signal) => signal,
            Action::Kill => Signal::KILL,
        };
        let ends = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal);
        std::iter::once(signal).chain(ends.then_some(Signal::CONT))
    }
}

/// Until when a process group may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Deadline {
    /// When to kill the group.
    pub kill: Duration,
    /// When to send SIGTERM; equal to `kill` if it was sent already.
    pub term: Duration,
}

impl Deadline {
    /// Returns the deadline for a watchdog that gets no further order. Its SIGTERM is later than lockkeeper's, so that the
    /// command gets only one.
    pub(crate) fn of_trust(end: Duration, grace: Duration) -> Self {
        Deadline { kill: end, term: end.saturating_sub(grace / 4 * 3) }
    }

    pub(super) fn at(kill: Duration) -> Self {
        Deadline { kill, term: kill }
    }
}

/// The orders to the watchdog, one per line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The group to end.
    Group(Pid),
    /// The group may run until the deadline.
    Until(Deadline),
    /// Send SIGTERM now, unless it was sent, and kill the group at this instant.
    EndBy(Duration),
    /// The group is stopped, and so is lockkeeper: there is no deadline until the next order.
    Paused,
    /// The command has ended while lockkeeper ran: processes that it left running may stay.
    Dismissed,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Group(group) => writeln!(f, "group {}", group.as_raw_nonzero()),
            Order::Until(Deadline { kill, term }) => writeln!(f, "until {} {}", kill.as_nanos(), term.as_nanos()),
            Order::EndBy(kill) => writeln!(f, "end {}", kill.as_nanos()),
            Order::Paused => writeln!(f, "paused"),
            Order::Dismissed => writeln!(f, "dismissed"),
        }
    }
}

impl FromStr for Order {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let words: Vec<_> = line.split(' ').collect();
        let nanos = |word: &str| word.parse().map(Duration::from_nanos).map_err(|_| ());
        match words[..] {
            ["group", group] => group.parse().ok().and_then(Pid::from_raw).map(Order::Group).ok_or(()),
            ["until", kill, term] => Ok(Order::Until(Deadline { kill: nanos(kill)?, term: nanos(term)? })),
            ["end", kill] => Ok(Order::EndBy(nanos(kill)?)),
            ["paused"] => Ok(Order::Paused),
            ["dismissed"] => Ok(Order::Dismissed),
            _ => Err(()),
        }
    }
}

/// The deadline that the watchdog was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Told(Option<Deadline>);

impl Told {
    /// Whether the watchdog has sent SIGTERM, or is about to.
    pub(crate) fn has_acted(&self, now: Duration) -> bool {
        self.0.is_some_and(|told| told.term < told.kill && now >= told.term)
    }

    /// Returns the order for a new deadline, unless it is about the same.
    ///
    /// A watchdog that is about to send SIGTERM would not send it if it read a later deadline first.
    pub(crate) fn until(&mut self, deadline: Deadline, now: Duration) -> Option<Order> {
        if self.has_acted(now) {
            return Some(self.end_by(deadline.kill));
        }
        let is_about =
            |told: Deadline| told.kill.abs_diff(deadline.kill) < SAME && told.term.abs_diff(deadline.term) < SAME;
        if self.0.is_some_and(is_about) {
            return None;
        }
        self.0 = Some(deadline);
        Some(Order::Until(deadline))
    }

    pub(crate) fn end_by(&mut self, kill: Duration) -> Order {
        self.0 = Some(Deadline::at(kill));
        Order::EndBy(kill)
    }

    pub(crate) fn pause(&mut self) -> Order {
        self.0 = None;
        Order::Paused
    }
}

/// What the watchdog does about a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    deadline: Option<Deadline>,
    asked_to_end: bool,
}

impl Rules {
    pub(crate) fn obey(&mut self, order: Order) -> Option<Action> {
        match order {
            Order::Until(deadline) => self.deadline = Some(deadline),
            Order::EndBy(kill) => {
                self.deadline = Some(Deadline::at(kill));
                return self.ask_to_end();
            }
            Order::Paused => self.deadline = None,
            Order::Group(_) | Order::Dismissed => {}
        }
        None
    }

    /// Returns the instant of the next action.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.deadline.map(|deadline| if self.asked_to_end { deadline.kill } else { deadline.term })
    }

    /// Returns the action that is due. `has_ended`: the command has ended; processes that it left running may stay.
    pub(crate) fn act(&mut self, has_ended: impl FnOnce() -> bool) -> Option<Action> {
        let deadline = self.deadline?;
        if self.asked_to_end || deadline.term >= deadline.kill {
            self.deadline = None;
            Some(Action::Kill)
        } else if has_ended() {
            self.deadline = None;
            None
        } else {
            self.ask_to_end()
        }
    }

    fn ask_to_end(&mut self) -> Option<Action> {
        (!std::mem::replace(&mut self.asked_to_end, true)).then_some(Action::Terminate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_pipe() {
        let deadline = Deadline { kill: Duration::from_nanos(u64::MAX), term: Duration::from_millis(7) };
        let group = Pid::from_raw(4711).unwrap();
        for order in
            [Order::Group(group), Order::Until(deadline), Order::EndBy(deadline.term), Order::Paused, Order::Dismissed]
        {
            let line = order.to_string();
            assert_eq!(line.strip_suffix('\n').unwrap().parse(), Ok(order));
        }
        for bad in ["", "group 0", "group x", "until 1", "until 1 x", "until 1 2 3"] {
            assert_eq!(bad.parse::<Order>(), Err(()), "{bad:?}");
        }
    }
}
