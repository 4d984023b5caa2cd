//! The watchdog of a running command: its deadline, and what is done when it acts first or ends.

use lockkeeper::guard::HoldState;

use super::attended::{Attended, locks, reason};
use crate::supervision::Event;
use crate::watchdog::{self, Watchdog};

/// How many watchdogs are started in place of those before them. One that cannot live would be started for ever.
const REPLACEMENTS: u32 = 3;

/// What the end of the watchdog means.
const UNGUARDED: &str =
    "if lockkeeper is killed or stopped from now on, processes of the command may run on without the lock";

impl Attended<'_> {
    /// Sets the deadline in the watchdog; returns `false` if the watchdog has begun to end the group.
    pub(super) fn move_deadline(&mut self) -> bool {
        let ending = self.supervision.is_ending();
        if !ending && !self.guard.is_held() {
            // Lost a moment ago: the loop decides next how long the group may take to end.
            return true;
        }
        // Read first: a stop of this process between the two reads makes the deadline earlier, not later.
        let now = watchdog::now();
        let trusted = now + self.guard.valid_for();
        let Some(deadline) = self.supervision.deadline(trusted) else { return true };
        let in_time = self.command.watchdog.as_mut().is_none_or(|watchdog| watchdog.until(deadline));
        if in_time && !ending {
            self.command.pauses.trusted_until(trusted);
        }
        in_time
    }

    pub(super) fn watchdog_has_acted(&self) -> bool {
        self.command.watchdog.as_ref().is_some_and(Watchdog::has_acted)
    }

    /// Prints that no watchdog was started, if that is so.
    pub(super) fn tell_unguarded(&mut self) {
        if let Some(error) = self.command.unguarded.take() {
            self.printer.note(&format!("no watchdog of the command can be started ({error}): {UNGUARDED}"));
        }
    }

    /// Prints that the watchdog has ended before the command, and starts another one.
    pub(super) fn guard_again(&mut self) {
        let Some(ended) = self.command.watchdog.take() else { return };
        let text = format!("the watchdog of the command (pid {}) has ended", ended.pid().as_raw_nonzero());
        self.command.replaced += 1;
        self.command.watchdog =
            (self.command.replaced <= REPLACEMENTS).then(|| Watchdog::start_for(self.command.pid).ok()).flatten();
        // Before anybody is told that it guards the command. The loop sees if that is too late.
        _ = self.move_deadline();
        self.printer.note(&match self.command.watchdog {
            Some(_) => format!("{text}; another one guards the command now"),
            None => format!("{text}, and no other one is started: {UNGUARDED}"),
        });
    }

    /// Follows the watchdog if it has acted first and nothing else stops the command. Returns whether that is so.
    pub(super) fn follows_watchdog(&mut self) -> bool {
        let follows = self.watchdog_has_acted() && !self.supervision.is_stopped();
        if follows {
            self.overtaken();
        }
        follows
    }

    /// Lets the watchdog, which acted first, end the group, and says so.
    pub(super) fn overtaken(&mut self) {
        let lock = locks(self.guard);
        self.paused = self.paused.take().or(self.command.pauses.cause(watchdog::now(), self.supervision.grace()));
        let cause = self.paused.as_deref().unwrap_or(reason(self.guard, HoldState::Held));
        self.printer.note(&format!("{cause}; the watchdog stopped the command, because {lock} was about to be lost"));
        let (now, left) = (watchdog::now(), self.guard.valid_for());
        _ = self.supervision.handle(Event::WatchdogActed { left }, now);
        if let (Some(watchdog), Some(kill)) = (&mut self.command.watchdog, self.supervision.kill_at()) {
            watchdog.end_by(kill);
        }
    }
}
