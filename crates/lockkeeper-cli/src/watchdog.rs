//! A process that ends the command under the lock when lockkeeper cannot: after `kill -9`, and while lockkeeper is
//! stopped.
//!
//! After `kill -9` no process is left to stop the command's group, and the next waiter gets the lock. On Linux, the
//! kernel's death signal reaches the command itself, but not its children: of `sh -c 'rsync …'` it would leave the
//! rsync. While lockkeeper is stopped (`kill -STOP`), its session expires, and the next waiter gets the lock too.
//!
//! So `lockkeeper __watch` reads orders from a pipe. The launcher writes the id of its group before it becomes the
//! command. Lockkeeper writes each new deadline of the group, one per line, and the end of the command. If the pipe
//! closes before that, lockkeeper has died. Each heartbeat moves the deadline. If lockkeeper does not move it in time,
//! the watchdog sends `SIGTERM`, and `SIGKILL` at the deadline. It sleeps until then. It has a session of its own, so
//! no signal that is meant for lockkeeper reaches it.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::process::{ExitCode, Stdio};
use std::str::FromStr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};

use crate::daemon::detach;
use crate::exit::Code;
use crate::group;
use crate::output::Printer;
use crate::program::this_program;

/// The argument that starts this part of the program.
pub(crate) const WORD: &str = "__watch";

/// Changes of the deadline that are shorter than this are not sent.
const SAME: Duration = Duration::from_millis(1);

/// The orders to the watchdog, one per line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
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

/// The instants until which a group may run, by [`now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// When to kill the group.
    pub kill: Duration,
    /// When to send SIGTERM; equal to `kill` if it was sent already.
    pub term: Duration,
}

impl Deadline {
    /// Whether the watchdog is sending SIGTERM at this deadline.
    fn has_begun(self) -> bool {
        self.term < self.kill && now() >= self.term
    }

    fn is_about(self, other: Deadline) -> bool {
        self.kill.abs_diff(other.kill) < SAME && self.term.abs_diff(other.term) < SAME
    }
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

/// Returns the time by the clock of deadlines, which is the same in all processes and runs while the machine sleeps.
pub(crate) fn now() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the deadline for a watchdog that gets no further order. Its SIGTERM is later than lockkeeper's, so that the
/// command gets only one.
pub(crate) fn trusted_until(kill: Duration, grace: Duration) -> Deadline {
    Deadline { kill, term: kill.saturating_sub(grace / 4 * 3) }
}

/// Lockkeeper's end of the pipe. The drop closes it, which ends the watchdog and the group, if there is one.
#[derive(Debug)]
pub(crate) struct Watchdog {
    // Dropped before the process, which waits for that.
    pipe: PipeWriter,
    process: Reaped,
    sent: Option<Deadline>,
}

impl Watchdog {
    /// Starts the watchdog. It has no group to end yet.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (reader, pipe) = std::io::pipe()?;
        // A stopped watchdog must not block a write.
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        let mut watch = this_program(WORD);
        let child = watch.stdin(reader).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let process = Reaped { pid: Pid::from_child(&child), printer: None };
        Ok(Watchdog { pipe, process, sent: None })
    }

    /// Starts the watchdog of a group that runs already.
    pub(crate) fn start_for(group: Pid) -> std::io::Result<Self> {
        let mut watchdog = Watchdog::start()?;
        watchdog.order(Order::Group(group));
        Ok(watchdog)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.pid
    }

    /// Whether it has ended: it was killed, or it could not go on. Its process is reaped then.
    pub(crate) fn has_ended(&self) -> bool {
        // Without UNTRACED: the drop must see a stop.
        !matches!(waitpid(Some(self.process.pid), WaitOptions::NOHANG), Ok(None) | Err(Errno::INTR))
    }

    /// Runs `spawn`, during which a started process inherits the pipe, for [`introduce`].
    pub(crate) fn lent<T>(&self, spawn: impl FnOnce() -> T) -> std::io::Result<T> {
        fcntl_setfd(&self.pipe, FdFlags::empty())?;
        let spawned = spawn();
        fcntl_setfd(&self.pipe, FdFlags::CLOEXEC)?;
        Ok(spawned)
    }

    /// Returns the descriptor of the pipe in a process that inherits it.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.pipe.as_raw_fd()
    }

    /// Moves the deadline; `false` if it is too late, because the watchdog has sent SIGTERM or is about to.
    pub(crate) fn until(&mut self, deadline: Deadline) -> bool {
        let before = self.sent;
        if !before.is_some_and(|sent| sent.is_about(deadline)) {
            self.sent = Some(deadline);
            self.order(Order::Until(deadline));
        }
        // Checked after the write: the watchdog obeys an order that was written before its deadline.
        !before.is_some_and(Deadline::has_begun)
    }

    /// Whether the watchdog has sent SIGTERM, or is about to.
    pub(crate) fn has_acted(&self) -> bool {
        self.sent.is_some_and(Deadline::has_begun)
    }

    /// Lets the watchdog send SIGTERM, unless it has, and kill the group at `kill`.
    pub(crate) fn end_by(&mut self, kill: Duration) {
        self.sent = Some(Deadline { kill, term: kill });
        self.order(Order::EndBy(kill));
    }

    /// Removes the deadline, until the next one.
    pub(crate) fn pause(&mut self) {
        self.sent = None;
        self.order(Order::Paused);
    }

    /// Tells the watchdog that the command has ended while lockkeeper ran. `printer` says so if the watchdog is stopped.
    pub(crate) fn dismiss(mut self, printer: Printer) -> Reaped {
        self.order(Order::Dismissed);
        self.process.printer = Some(printer);
        self.process
    }

    fn order(&mut self, order: Order) {
        // One write, which a pipe keeps whole. It fails if the watchdog has ended, or was stopped for hours; both are
        // tolerated.
        _ = self.pipe.write_all(order.to_string().as_bytes());
    }
}

/// Names the group to the watchdog, through the inherited pipe with this descriptor, and closes the pipe.
///
/// It fails if the watchdog has ended.
pub(crate) fn introduce(group: Pid, descriptor: RawFd) {
    if let Ok(mut pipe) = File::options().write(true).open(format!("/dev/fd/{descriptor}")) {
        _ = pipe.write_all(Order::Group(group).to_string().as_bytes());
    }
    _ = nix::unistd::close(descriptor);
}

/// The process of a watchdog that is about to end. The drop waits for its end, so that no zombie stays where process 1 does
/// not reap. After a command, that wait does not delay the release. A watchdog that is stopped (`kill -STOP`) would not end, so
/// the drop kills it.
#[derive(Debug)]
pub(crate) struct Reaped {
    pid: Pid,
    printer: Option<Printer>,
}

impl Drop for Reaped {
    fn drop(&mut self) {
        loop {
            match waitpid(Some(self.pid), WaitOptions::UNTRACED) {
                Ok(Some((_, status))) if status.stopped() => {
                    if let Some(printer) = self.printer {
                        printer.note(&format!(
                            "the watchdog of the command (pid {}) was stopped by a signal, and is killed now: meanwhile nothing would have ended the processes of the command if lockkeeper had been killed or stopped",
                            self.pid.as_raw_nonzero()
                        ));
                    }
                    // The pid is that of the watchdog until it is reaped.
                    _ = kill_process(self.pid, Signal::KILL);
                }
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

/// Runs the watchdog.
pub(crate) fn main(_: impl Iterator<Item = OsString>) -> ExitCode {
    let Ok(()) = detach() else {
        return ExitCode::from(Code::Internal as u8);
    };
    let Ok(alarm) = Alarm::new() else {
        return ExitCode::from(Code::Internal as u8);
    };
    let stdin = rustix::stdio::stdin();
    let mut watch = WatchdogState::default();
    let mut text = String::new();
    loop {
        if !alarm.wait(stdin, watch.due()) {
            watch.act();
            continue;
        }
        let mut some = [0; 4096];
        match rustix::io::read(stdin, &mut some) {
            Ok(count @ 1..) => text.push_str(&String::from_utf8_lossy(&some[..count])),
            Err(Errno::INTR) => {}
            _ => {
                watch.signal(Signal::KILL);
                return ExitCode::SUCCESS;
            }
        }
        while let Some(end) = text.find('\n') {
            let line: String = text.drain(..=end).collect();
            match line.trim_end().parse() {
                Ok(Order::Dismissed) => return ExitCode::SUCCESS,
                Ok(order) => watch.obey(order),
                Err(()) => {}
            }
        }
    }
}

/// The state of the watchdog.
#[derive(Debug, Default)]
struct WatchdogState {
    group: Option<Pid>,
    deadline: Option<Deadline>,
    asked_to_end: bool,
}

impl WatchdogState {
    fn obey(&mut self, order: Order) {
        match order {
            Order::Group(group) => self.group = Some(group),
            Order::Until(deadline) => self.deadline = Some(deadline),
            Order::EndBy(kill) => {
                self.deadline = Some(Deadline { kill, term: kill });
                self.ask_to_end();
            }
            Order::Paused => self.deadline = None,
            Order::Dismissed => {}
        }
    }

    /// Returns the instant of the next action.
    fn due(&self) -> Option<Duration> {
        let deadline = self.deadline.filter(|_| self.group.is_some())?;
        Some(if self.asked_to_end { deadline.kill } else { deadline.term })
    }

    /// Does the action that is due.
    fn act(&mut self) {
        let (Some(group), Some(deadline)) = (self.group, self.deadline) else { return };
        if self.asked_to_end || deadline.term >= deadline.kill {
            self.signal(Signal::KILL);
            self.deadline = None;
        } else if group::has_ended(group) {
            // Processes that an ended command left running may stay.
            self.deadline = None;
        } else {
            self.ask_to_end();
        }
    }

    fn ask_to_end(&mut self) {
        if !std::mem::replace(&mut self.asked_to_end, true) {
            self.signal(Signal::TERM);
            // A stopped process gets the signal only when it continues.
            self.signal(Signal::CONT);
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // `ESRCH` if the whole group has ended.
            _ = kill_process_group(group, signal);
        }
    }
}

/// Waits for input or for an instant, whichever comes first.
#[cfg(target_os = "linux")]
struct Alarm(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Alarm {
    fn new() -> rustix::io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        Ok(Alarm(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?))
    }

    /// Returns `true` if there is input, `false` if the instant has come.
    fn wait(&self, input: BorrowedFd<'_>, due: Option<Duration>) -> bool {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would disarm the timer.
        let it_value = due.map_or(never, |due| {
            let due = due.max(Duration::from_nanos(1));
            Timespec { tv_sec: i64::try_from(due.as_secs()).unwrap_or(i64::MAX), tv_nsec: due.subsec_nanos().into() }
        });
        _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: never, it_value });
        loop {
            let mut either = [PollFd::from_borrowed_fd(input, PollFlags::IN), PollFd::new(&self.0, PollFlags::IN)];
            if poll(&mut either, None).is_ok() {
                // Input first: it may move the deadline.
                return !either[0].revents().is_empty();
            }
        }
    }
}

/// The same for systems where no safe call offers a timer that runs while the machine sleeps.
#[cfg(not(target_os = "linux"))]
struct Alarm;

#[cfg(not(target_os = "linux"))]
impl Alarm {
    fn new() -> rustix::io::Result<Self> {
        Ok(Alarm)
    }

    fn wait(&self, input: BorrowedFd<'_>, due: Option<Duration>) -> bool {
        loop {
            let left = due.map(|due| due.saturating_sub(now()));
            let left = left.and_then(|left| rustix::event::Timespec::try_from(left).ok());
            let mut inputs = [PollFd::from_borrowed_fd(input, PollFlags::IN)];
            match poll(&mut inputs, left.as_ref()) {
                Ok(0) if due.is_some_and(|due| now() < due) => {}
                Ok(ready) => return ready > 0,
                Err(_) => {}
            }
        }
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
