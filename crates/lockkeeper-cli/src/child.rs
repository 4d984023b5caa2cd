//! The command under the lock: starts its process group, passes signals on, and waits for its end.
//!
//! Invariant: when [`Supervised::attend`] returns, the command has been reaped, and the terminal is ours again if it was ours
//! before.

mod attended;
mod guarded;
mod pause;
mod reliance;

use std::ffi::OsString;
use std::io::{IsTerminal, PipeWriter};
use std::process::Command;
use std::time::Duration;

use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_helix::Preemption;
use lockkeeper_hold::HeldLock;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, kill_process_group};
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::watch;

use self::attended::Attended;
use self::pause::Pauses;
use crate::exit::Failure;
use crate::group::Group;
use crate::held::Held;
use crate::ids;
use crate::launcher;
use crate::nested;
use crate::output::Printer;
use crate::program::not_started;
use crate::signals::Signals;
use crate::supervision::{Cleanup, Deadline};
use crate::terminal::Terminal;
use crate::verbs::run::args::{OnRevoke, OnSuspect};
use crate::watchdog::{self, Reaped, Watchdog};

/// Time limit for printing a line before a signal is sent, so that a reader sees the line before the command's
/// reaction.
const IN_ORDER: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Supervised {
    /// The first process of the group; the group has the same id.
    pid: Pid,
    changed: unix::Signal,
    continued: unix::Signal,
    terminal: Option<Terminal>,
    watchdog: Option<Watchdog>,
    /// Why the first watchdog was not started.
    unguarded: Option<std::io::Error>,
    /// How many watchdogs have ended before the command.
    replaced: u32,
    pauses: Pauses,
    /// The group was stopped together with lockkeeper, and its locks have not been confirmed since.
    suspended: bool,
    withheld: &'static [Signal],
}

/// How the command is treated when something happens to its locks.
#[derive(Clone, Debug)]
pub(crate) struct RunTerms {
    /// Time that the command gets to end. It gets SIGTERM this long before the lock can no longer be relied on.
    pub grace: Duration,
    /// The reaction to a lost connection.
    pub on_suspect: OnSuspect,
    /// The signal that the command gets for a revoke request.
    pub on_revoke: OnRevoke,
    /// The signal that the command gets when it is to make way, with its name.
    pub on_yield: Option<(Signal, &'static str)>,
    /// The preemption of a leased lock by a contender with a higher priority.
    pub preemption: Option<watch::Receiver<Option<Preemption>>>,
    /// The longest run; then the command gets SIGTERM, and SIGKILL after the grace period.
    pub max_run: Option<Duration>,
}

impl RunTerms {
    /// Returns how long the command may take to end because another contender wants the leased lock; `None` if no contender wants it.
    ///
    /// The limit is the owner's own cleanup time, or the notice after the end of the lease. A contender that waits for a
    /// shorter time may give up.
    fn cleanup(&self) -> Option<Cleanup> {
        let preemption = self.preemption.as_ref()?.borrow().clone()?;
        let left = preemption.deadline.saturating_duration_since(std::time::Instant::now());
        Some(Cleanup { left, lease_over: preemption.lease_over })
    }
}

/// What not every command gets.
#[derive(Debug, Default)]
pub(crate) struct Extras<'a> {
    /// The standard error of a job's command.
    pub stderr: Option<PipeWriter>,
    /// The name of its slot.
    pub slot: Option<String>,
    /// A watchdog that was started before the grant.
    pub watchdog: Option<Watchdog>,
    /// The hold that its variables describe, if its end does not stop the command.
    pub described: Option<Held<'a>>,
    /// The signals to lockkeeper that are not passed on to it.
    pub withheld: &'static [Signal],
}

/// How the command ended.
#[derive(Debug)]
pub(crate) struct CommandEnd {
    /// The command's exit status; 128+n if signal n killed it.
    pub status: u8,
    /// The reason of the loss, if the lock was lost.
    pub loss: Option<Loss>,
    /// Whether the command got a signal because the lock could no longer be relied on, or because its lease is over and
    /// another contender wants it.
    pub stopped: bool,
    /// Whether a higher priority wanted the lock, and the command got a signal for it or lost the lock.
    pub preempted: bool,
    /// Whether the command got SIGTERM because it ran for too long.
    pub too_long: bool,
    /// Whether it has made way: it got the signal for that, and ended by it.
    pub yielded: bool,
    /// The signal that killed the command, if one did.
    pub killed_by: Option<i32>,
    /// Whether a person or a program asked the command to end: by a signal to lockkeeper, or by a revoke.
    pub asked_to_end: bool,
    /// The request that the command ends, with its author and reason, or why the hold ended, if that is known.
    pub why: Option<String>,
    /// What ended the hold, if more is known than the loss says: a break, or a pause of this process.
    pub cause: Option<String>,
    /// Whether this process was paused until its holds had almost ended.
    pub paused: bool,
    _watchdog: Option<Reaped>,
}

impl Supervised {
    /// Starts a command that holds `guard`.
    pub(crate) fn start(
        command: &[OsString],
        guard: Held<'_>,
        grace: Duration,
        extras: Extras<'_>,
    ) -> Result<Self, Failure> {
        let catch = |kind| unix::signal(kind).map_err(|error| Failure::system("cannot catch signals", error));
        let (changed, continued) = (catch(SignalKind::child())?, catch(SignalKind::from_raw(Signal::CONT.as_raw()))?);
        let terminal = Terminal::controlling();
        // Not if standard output is redirected: a pager in our group may need the terminal. A command that needs the
        // terminal gets it when it asks for it (see `stopped`).
        let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let foreground = interactive && terminal.as_ref().is_some_and(Terminal::is_ours);
        // If the watchdog cannot be started, the kernel's death signal remains.
        let started = extras.watchdog.map_or_else(Watchdog::start, Ok);
        let (mut watchdog, unguarded) =
            started.map_or_else(|error| (None, Some(error)), |started| (Some(started), None));
        let now = watchdog::now();
        let end = now + guard.valid_for();
        if let Some(watchdog) = &mut watchdog {
            watchdog.until(Deadline::of_trust(end, grace));
        }
        let mut child = launcher::command(command, foreground, end, watchdog.as_ref());
        tell_of_the_hold(&mut child, extras.described.unwrap_or(guard));
        if let Some(stderr) = extras.stderr {
            child.stderr(stderr);
        }
        if let Some(slot) = extras.slot {
            child.env("LOCKKEEPER_SLOT", slot);
        }
        let child = match &watchdog {
            Some(watchdog) => watchdog.lent(|| child.spawn()).flatten(),
            None => child.spawn(),
        };
        let pid = Pid::from_child(&child.map_err(|error| not_started("cannot start a process", error))?);
        let mut pauses = Pauses::default();
        // A pause may begin before the hold is looked at again.
        pauses.trusted_until(end);
        let withheld = extras.withheld;
        Ok(Supervised {
            pid,
            changed,
            continued,
            terminal,
            watchdog,
            unguarded,
            replaced: 0,
            pauses,
            suspended: false,
            withheld,
        })
    }

    /// Waits for the end of the command, passes on signals and revoke requests, and stops the command when a lock is
    /// lost.
    ///
    /// Dropping the future leaves the command to its watchdog, which ends it in time.
    pub(crate) async fn attend(
        self,
        keeper: Option<&Lockkeeper>,
        guard: Held<'_>,
        signals: &mut Signals,
        terms: RunTerms,
        printer: Printer,
    ) -> Result<CommandEnd, Failure> {
        Attended::new(self, (keeper, guard), terms, printer).run(signals).await
    }

    /// Waits for the other processes of the group, and kills those that are left at the deadline.
    async fn outlast(&self, deadline: Duration) {
        if !Group::of(self.pid).ends_by(deadline).await {
            self.signal(Signal::KILL);
        }
    }

    /// Takes the terminal back from the command, which has ended.
    fn take_terminal_back(&self, status: u8) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.pid);
            if status > 128 {
                terminal.mend();
            }
        }
    }

    /// Whether to pass a signal on to the group. The terminal itself sends a change of its size to its foreground group. Without a
    /// terminal there is no job control, and nobody would continue a command that stops and keeps the lock.
    fn is_to_hear(&self, signal: Signal) -> bool {
        match signal {
            Signal::WINCH => !self.terminal.as_ref().is_some_and(|tty| tty.belongs_to(self.pid)),
            Signal::TSTP => self.terminal.is_some(),
            _ => true,
        }
    }

    fn signal(&self, signal: Signal) {
        // The pid belongs to this group until we reap it, so the signal cannot reach another process. Sending fails if
        // the group has no member left.
        _ = kill_process_group(self.pid, signal);
    }
}

/// Sets the variables that describe the hold, with one line for each lock, in the order of their paths.
fn tell_of_the_hold(command: &mut Command, guard: Held<'_>) {
    let locks = guard.locks();
    if locks.is_empty() {
        // Variables in our own environment belong to another lock.
        for name in ["LOCKKEEPER_PATH", "LOCKKEEPER_NODE", "LOCKKEEPER_TOKEN"] {
            command.env_remove(name);
        }
        return;
    }
    let lines = |line: fn(&HeldLock) -> &str| locks.iter().map(line).collect::<Vec<_>>().join("\n");
    command.env("LOCKKEEPER_PATH", lines(|lock| &lock.path));
    command.env("LOCKKEEPER_NODE", lines(|lock| &lock.node));
    nested::tell_held(command, &locks);
    match locks.iter().map(|lock| lock.token.as_deref()).collect::<Option<Vec<_>>>() {
        Some(tokens) => command.env("LOCKKEEPER_TOKEN", tokens.join("\n")),
        // A token in our own environment belongs to another lock.
        None => command.env_remove("LOCKKEEPER_TOKEN"),
    };
}

/// Stops this process on Ctrl-Z, as if the signal were not caught.
pub(crate) fn suspend() {
    if has_shell() {
        _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Whether a shell with job control started us. Without one, nothing continues us after we stop ourselves.
fn has_shell() -> bool {
    let Some(parent) = getppid() else {
        return false;
    };
    let same_session = ids::leader_of(parent) == ids::leader_of(getpid());
    same_session && ids::group_of(parent).is_ok_and(|group| group != ids::own_group())
}
