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

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use tokio::signal::unix::{self, SignalKind};

use crate::daemon::detach;
use crate::exit::Code;
use crate::group;
use crate::output::Printer;
use crate::program::this_program;
use crate::supervision::{Action, Deadline, Order, Rules, Told};

/// The argument that starts this part of the program.
pub(crate) const WORD: &str = "__watch";

/// The clock of deadlines, which is the same in all processes and runs while the machine sleeps.
pub(crate) use lockkeeper_hold::now;

/// Lockkeeper's end of the pipe. The drop closes it, which ends the watchdog and the group, if there is one.
#[derive(Debug)]
pub(crate) struct Watchdog {
    // Dropped before the process, which waits for that.
    pipe: PipeWriter,
    process: Reaped,
    told: Told,
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
        Ok(Watchdog { pipe, process, told: Told::default() })
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
        let before = self.told.clone();
        if let Some(order) = self.told.until(deadline, now()) {
            self.order(order);
        }
        // Checked after the write: the watchdog obeys an order that was written before its deadline.
        !before.has_acted(now())
    }

    /// Whether the watchdog has sent SIGTERM, or is about to.
    pub(crate) fn has_acted(&self) -> bool {
        self.told.has_acted(now())
    }

    /// Lets the watchdog send SIGTERM, unless it has, and kill the group at `kill`.
    pub(crate) fn end_by(&mut self, kill: Duration) {
        let order = self.told.end_by(kill);
        self.order(order);
    }

    /// Removes the deadline, until the next one.
    pub(crate) fn pause(&mut self) {
        let order = self.told.pause();
        self.order(order);
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

/// Reaps a watchdog that ends while there is no command. The one that starts the command then starts another watchdog. Dropping the
/// future leaves the watchdog as it is.
pub(crate) async fn reap(watchdog: Option<Pid>) -> Infallible {
    if let Some(pid) = watchdog
        && let Ok(mut changed) = unix::signal(SignalKind::child())
    {
        while matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None) | Err(Errno::INTR)) {
            changed.recv().await;
        }
    }
    std::future::pending().await
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

pub(crate) fn main(_: impl Iterator<Item = OsString>) -> ExitCode {
    let Ok(()) = detach() else {
        return ExitCode::from(Code::Internal.status());
    };
    let Ok(alarm) = Alarm::new() else {
        return ExitCode::from(Code::Internal.status());
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
                watch.carry_out(Some(Action::Kill));
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

/// The group, and the rules for it.
#[derive(Debug, Default)]
struct WatchdogState {
    group: Option<Pid>,
    rules: Rules,
}

impl WatchdogState {
    fn obey(&mut self, order: Order) {
        if let Order::Group(group) = order {
            self.group = Some(group);
        }
        let action = self.rules.obey(order);
        self.carry_out(action);
    }

    /// Returns the instant of the next action.
    fn due(&self) -> Option<Duration> {
        self.group.and_then(|_| self.rules.due())
    }

    /// Does the action that is due.
    fn act(&mut self) {
        let Some(group) = self.group else { return };
        let action = self.rules.act(|| group::has_ended(group));
        self.carry_out(action);
    }

    fn carry_out(&self, action: Option<Action>) {
        let (Some(group), Some(action)) = (self.group, action) else { return };
        // `ESRCH` if the whole group has ended.
        action.signals().for_each(|signal| _ = kill_process_group(group, signal));
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
