//! The command under the lock: starts its process group, passes signals on, and waits for its end.
//!
//! Invariant: when [`Job::attend`] returns, the command has been reaped, and the terminal is ours again if it was ours
//! before.

mod guarded;
mod pause;
mod reliance;

use std::ffi::OsString;
use std::io::{IsTerminal, PipeWriter};
use std::process::Command;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_all};
use lockkeeper::admin::LockInfo;
use lockkeeper::guard::HoldState;
use lockkeeper::{Holding, Lockkeeper, Loss, Revocation};
use lockkeeper_helix::Preemption;
use lockkeeper_session::text::spell;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpgrp, getpid, getppid, getsid, kill_process, kill_process_group,
    waitpid,
};
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::watch;
use tokio::time::sleep;

use self::pause::Pauses;
use self::reliance::unreliable;
use crate::broken::{self, Break};
use crate::exit::Failure;
use crate::group::Group;
use crate::held::Held;
use crate::launcher;
use crate::nested;
use crate::output::Printer;
use crate::program::not_started;
use crate::signals::{self, Signals};
use crate::streams;
use crate::supervision::{Action, Cleanup, Deadline, Event, Supervision};
use crate::terminal::Terminal;
use crate::text;
use crate::verbs::run::args::{OnRevoke, OnSuspect};
use crate::watchdog::{self, Reaped, Watchdog};

/// Pause between two checks of a group whose first process has ended. The other processes are not our children, so no
/// signal reports their end.
const SURVIVORS: Duration = Duration::from_millis(10);

/// Pause after a question that failed.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Time limit for printing a line before a signal is sent, so that a reader sees the line before the command's
/// reaction.
const IN_ORDER: Duration = Duration::from_millis(20);

/// The answer to a revoke request if the command gets no signal for it.
const REFUSAL: &str = "its command ignores requests (--on-revoke ignore)";

#[derive(Debug)]
pub(crate) struct Job {
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

impl Job {
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
        Ok(Job {
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
    pub(crate) async fn attend(
        mut self,
        keeper: Option<&Lockkeeper>,
        guard: Held<'_>,
        signals: &mut Signals,
        terms: RunTerms,
        printer: Printer,
    ) -> Result<CommandEnd, Failure> {
        self.tell_unguarded(printer);
        let grace = terms.grace;
        let mut supervision = Supervision::new(watchdog::now(), grace, terms.max_run);
        let mut reported = Vec::new();
        let mut why_it_ends = None;
        let mut paused = None;
        let mut breaks: Option<BoxFuture<'_, Vec<Break>>> = None;
        let mut broken_by = None;
        let mut makes_way = false;
        let mut yielded = false;
        let lost = guard.lost();
        let unreliable = unreliable(&guard, grace, terms.on_suspect);
        tokio::pin!(lost, unreliable);
        let (status, killed_by) = loop {
            let renewed = guard.holdings().first().map(Holding::renewed);
            let renewed = async {
                match renewed {
                    Some(renewed) => renewed.await,
                    None => std::future::pending().await,
                }
            };
            if !self.move_deadline(guard, &supervision) && !supervision.is_stopped() {
                self.overtaken(&mut supervision, guard, &mut paused, printer);
            }
            let due = supervision.due();
            tokio::select! {
                biased;
                why = &mut lost, if supervision.loss.is_none() => {
                    let stopped = supervision.is_ending();
                    let watchdog_acted = self.watchdog_has_acted();
                    let suspended = self.suspended;
                    let action = supervision.handle(Event::Lost { why, watchdog_acted, suspended }, watchdog::now());
                    let by_time = matches!(why, Loss::Unreachable | Loss::SessionExpired | Loss::LeaseEnded);
                    if !stopped && by_time {
                        paused = paused.or(self.pauses.cause(watchdog::now(), grace));
                    }
                    let path = guard.holdings().iter().find(|holding| !holding.is_held()).map_or("", |lost| lost.path());
                    let overslept = paused.clone().filter(|_| by_time);
                    if overslept.is_some() || matches!(why, Loss::Removed | Loss::SessionExpired) {
                        breaks = keeper.map(|keeper| broken::breaks(keeper, broken::holds(guard)).boxed());
                    }
                    let and = match (stopped, watchdog_acted) {
                        _ if suspended => "; killing the command, which is stopped",
                        (true, _) => "",
                        (false, true) => "; the watchdog has stopped the command",
                        (false, false) => "; stopping the command",
                    };
                    printer.note(&match overslept {
                        // A break in the meantime would be the true cause. Its author is printed when the records have been read.
                        Some(pause) => format!("{pause}, and lock {path} is lost{and}"),
                        None => format!("lock {path} is lost: {why}{and}"),
                    });
                    self.carry_out(action);
                }
                state = &mut unreliable, if !supervision.is_ending() => {
                    // If the lock is lost already, the branch above reports that next.
                    if self.follows_watchdog(&mut supervision, guard, &mut paused, printer) {
                        continue;
                    }
                    if !matches!(state, HoldState::Lost(_)) {
                        let left = guard.valid_for();
                        let action = supervision.handle(Event::Unreliable { left }, watchdog::now());
                        let remaining = spell(left);
                        printer.note(&format!(
                            "{} can be relied on for {remaining} more ({}); stopping the command",
                            locks(guard), reason(guard, state)
                        ));
                        self.carry_out(action);
                    } else {
                        unreliable.set(self::unreliable(&guard, grace, terms.on_suspect));
                    }
                }
                (holding, request) = asked(guard, &reported), if supervision.loss.is_none() => {
                    let signal = terms.on_revoke.signal();
                    let again = reported.iter().any(|(path, _)| *path == holding.path());
                    printer.asked(holding.path(), &request, signal.map(|(_, name)| name), again);
                    match signal {
                        Some((signal, _)) => {
                            why_it_ends = Some(text::revocation(&request));
                            reported.retain(|(path, _)| *path != holding.path());
                            reported.push((holding.path(), request));
                            let event = Event::Asked { signal, again, preemption: terms.cleanup() };
                            let action = supervision.handle(event, watchdog::now());
                            streams::STDERR.flush(IN_ORDER);
                            self.carry_out(action);
                        }
                        None => holding.refuse_revocation(REFUSAL).expect("the text is short"),
                    }
                }
                wanted = wanted(guard, makes_way), if terms.on_yield.is_some() && supervision.loss.is_none() => {
                    makes_way = wanted;
                    if let (true, Some((signal, name))) = (wanted, terms.on_yield) {
                        yielded = true;
                        printer.note(&format!("{} is wanted by an earlier class; sending {name} to the command", locks(guard)));
                        streams::STDERR.flush(IN_ORDER);
                        let action = supervision.handle(Event::MakeWay { signal }, watchdog::now());
                        self.carry_out(action);
                    }
                }
                change = change(&mut self.changed, self.pid, self.watchdog.as_ref()) => {
                    let Change::Command(change) = change? else {
                        self.guard_again(printer);
                        continue;
                    };
                    if let Some(status) = ended(change) {
                        self.follows_watchdog(&mut supervision, guard, &mut paused, printer);
                        break (status, change.terminating_signal());
                    }
                    if let Some(signal) = change.stopping_signal() {
                        self.stopped(signal, keeper, guard).await;
                    }
                }
                // After the end of the command: what ended in time has not run for too long.
                () = sleep(due.unwrap_or_default().saturating_sub(watchdog::now())), if due.is_some() => {
                    if self.follows_watchdog(&mut supervision, guard, &mut paused, printer) {
                        continue;
                    }
                    let too_long = supervision.too_long;
                    let action = supervision.handle(Event::Due, watchdog::now());
                    if supervision.too_long && !too_long {
                        let limit = spell(terms.max_run.unwrap_or_default());
                        printer.note(&format!("the command has run for {limit}, the limit of --max-run; stopping the command"));
                    }
                    self.carry_out(action);
                }
                () = withdrawn(terms.preemption.as_ref()), if supervision.is_wanted() => {
                    _ = supervision.handle(Event::Withdrawn, watchdog::now());
                    reported.clear();
                    printer.note(&format!("{} is not wanted any more; the command may go on", locks(guard)));
                }
                signal = signals.next() => {
                    if self.withheld.contains(&signal) {
                        continue;
                    }
                    let action = supervision.handle(Event::Signal(signal), watchdog::now());
                    if self.is_to_hear(signal) {
                        self.carry_out(action);
                    }
                }
                // The new deadline goes to the watchdog at the start of the loop.
                () = renewed => {}
                found = async { breaks.as_mut().expect("checked").await }, if breaks.is_some() => {
                    breaks = None;
                    broken_by = broken::tell(&found, printer);
                }
            }
        };
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.pid);
            if status > 128 {
                terminal.mend();
            }
        }
        let outlasted = async {
            if let Some(deadline) = supervision.kill_at() {
                self.outlast(deadline).await;
            }
        };
        if let (None, Some(_), Some(keeper)) = (supervision.loss, &paused, keeper) {
            // The watchdog acted first. The release may find that the hold was broken meanwhile.
            breaks = Some(broken::breaks(keeper, broken::holds(guard)).boxed());
        }
        let found = async {
            match breaks {
                Some(breaks) => broken::tell(&breaks.await, printer),
                None => broken_by,
            }
        };
        let ((), broken_by) = tokio::join!(outlasted, found);
        let is_paused = paused.is_some() && broken_by.is_none();
        let cause = broken_by.or(paused);
        let why = cause.clone().or(why_it_ends);
        let watchdog = self.watchdog.map(|watchdog| watchdog.dismiss(printer));
        let (stopped, preempted) = (supervision.is_ending(), supervision.is_preempted());
        let Supervision { loss, too_long, asked_to_end, .. } = supervision;
        let by_signal = terms.on_yield.is_some_and(|(signal, _)| status == signals::status(signal.as_raw()));
        let yielded = yielded && by_signal && !(stopped || too_long || asked_to_end) && loss.is_none();
        Ok(CommandEnd {
            status,
            loss,
            stopped,
            preempted,
            too_long,
            yielded,
            killed_by,
            asked_to_end,
            why,
            cause,
            paused: is_paused,
            _watchdog: watchdog,
        })
    }

    fn carry_out(&self, action: Option<Action>) {
        if action == Some(Action::Terminate) {
            streams::STDERR.flush(IN_ORDER);
        }
        action.into_iter().flat_map(Action::signals).for_each(|signal| self.signal(signal));
    }

    /// Waits for the other processes of the group, and kills those that are left at the deadline.
    async fn outlast(&self, deadline: Duration) {
        let mut group = Group::of(self.pid);
        while group.is_alive() {
            if watchdog::now() >= deadline {
                self.signal(Signal::KILL);
                return;
            }
            sleep(SURVIVORS).await;
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

    /// Handles a stop of the command: by Ctrl-Z, by its access to the terminal, or by `kill -STOP`.
    async fn stopped(&mut self, signal: i32, keeper: Option<&Lockkeeper>, guard: Held<'_>) {
        let Some(terminal) = &self.terminal else {
            // Without a terminal there is no job control: whatever stopped the command also continues it.
            return;
        };
        let wants_terminal = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&signal);
        let had_terminal = terminal.belongs_to(self.pid);
        if !wants_terminal && !had_terminal && signal != Signal::TSTP.as_raw() {
            return;
        }
        if !(wants_terminal && terminal.is_ours()) && has_shell() {
            terminal.take_back(self.pid);
            // A stopped group does no work. Before it continues, we check the lock.
            if let Some(watchdog) = &mut self.watchdog {
                watchdog.pause();
            }
            // The shell sees that we stopped and prompts; `fg` and `bg` continue us. The session may expire in the
            // meantime.
            let before = watchdog::now();
            self.suspended = true;
            _ = kill_process(getpid(), Signal::STOP);
            self.continued.recv().await;
            self.pauses.stopped_for(Some(watchdog::now().saturating_sub(before)));
            if !still_held(keeper, guard).await {
                // The loss kills the group, which is still stopped. Until it is reported, no other event continues the group.
                guard.lost().await;
                return;
            }
            self.pauses.stopped_for(None);
            self.suspended = false;
        }
        if (wants_terminal || had_terminal) && terminal.is_ours() {
            terminal.give(self.pid);
        }
        self.signal(Signal::CONT);
    }
}

/// `lock /locks/nightly`; of several locks, the first that ends.
fn locks(guard: Held<'_>) -> String {
    let first = guard.holdings().iter().min_by_key(|holding| holding.valid_for());
    format!("lock {}", first.map_or("", |holding| holding.path()))
}

/// Returns in a few words why the command is stopped.
fn reason(guard: Held<'_>, state: HoldState) -> &'static str {
    let leased = guard.holdings().iter().any(|holding| holding.node() == holding.path());
    match state {
        HoldState::Suspected => "the connection is lost",
        _ if leased => "its lease ends",
        _ => "no server answers",
    }
}

/// Sets the variables that describe the hold, with one line for each lock, in the order of their paths.
fn tell_of_the_hold(command: &mut Command, guard: Held<'_>) {
    if guard.holdings().is_empty() {
        // Variables in our own environment belong to another lock.
        for name in ["LOCKKEEPER_PATH", "LOCKKEEPER_NODE", "LOCKKEEPER_TOKEN"] {
            command.env_remove(name);
        }
        return;
    }
    let lines = |line: fn(&Holding) -> String| guard.holdings().iter().map(line).collect::<Vec<_>>().join("\n");
    command.env("LOCKKEEPER_PATH", lines(|holding| holding.path().to_owned()));
    command.env("LOCKKEEPER_NODE", lines(Holding::node));
    nested::tell_held(command, guard);
    let tokens = guard.holdings().iter().map(Holding::fencing_token).collect::<Option<Vec<_>>>();
    match tokens {
        Some(tokens) => {
            let tokens: Vec<_> = tokens.iter().map(ToString::to_string).collect();
            command.env("LOCKKEEPER_TOKEN", tokens.join("\n"))
        }
        // A token in our own environment belongs to another lock.
        None => command.env_remove("LOCKKEEPER_TOKEN"),
    };
}

/// Returns the next revoke request that differs from the last one reported for its lock. Dropping the future loses no
/// request.
async fn asked<'a>(guard: Held<'a>, reported: &[(&str, Revocation)]) -> (&'a Holding, Revocation) {
    if guard.holdings().is_empty() {
        return std::future::pending().await;
    }
    let requests = guard.holdings().iter().map(|holding| {
        let last = reported.iter().find(|(path, _)| *path == holding.path()).map(|(_, request)| request);
        async move {
            let request = match last {
                Some(last) => holding.revocation_after(last).await,
                None => holding.revocation().await,
            };
            (holding, request)
        }
        .boxed()
    });
    select_all(requests).await.0
}

/// Resolves when a contender of an earlier class waits for one of the locks or, if that is `known`, when none does any more.
async fn wanted(guard: Held<'_>, known: bool) -> bool {
    let changes = guard.holdings().iter().map(|holding| {
        async move {
            match known {
                true => holding.yield_withdrawn().await,
                false => holding.yield_requested().await,
            }
        }
        .boxed()
    });
    let changes: Vec<_> = changes.collect();
    if changes.is_empty() {
        return std::future::pending().await;
    }
    select_all(changes).await;
    !known
}

/// Resolves when no other contender wants the leased lock. Dropping the future loses nothing.
async fn withdrawn(preemption: Option<&watch::Receiver<Option<Preemption>>>) {
    if let Some(preemption) = preemption
        && preemption.clone().wait_for(Option::is_none).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Asks the server whether the locks are still held, before the command continues after a stop; `false` is a loss,
/// which the guard reports too.
///
/// This process was stopped as well. Without asking it cannot know for how long, nor what its connection has missed.
async fn still_held(keeper: Option<&Lockkeeper>, guard: Held<'_>) -> bool {
    let Some(keeper) = keeper else { return guard.is_held() };
    let admin = keeper.admin();
    for holding in guard.holdings() {
        if holding.node() == holding.path() {
            // A lease ends by a clock that did not stop, and its record keeps a preemption.
            continue;
        }
        loop {
            tokio::select! {
                biased;
                _ = guard.lost() => return false,
                shown = admin.show(holding.path()) => match shown {
                    Ok(lock) if holds(&lock, &holding.node()) => break,
                    // No server answered, or the server shows another holder: the guard reports the loss.
                    _ => sleep(ASK_AGAIN).await,
                },
            }
        }
    }
    guard.is_held()
}

/// Whether the node at this path holds the lock.
fn holds(lock: &LockInfo, node: &str) -> bool {
    lock.holders.iter().any(|holder| node.strip_prefix(&lock.path) == Some(&format!("/{}", holder.node)))
}

/// A change of the processes of a [`Job`].
enum Change {
    Command(WaitStatus),
    /// The watchdog has ended. It is reaped.
    Watchdog,
}

/// Returns the next change of the command's state, or that the watchdog has ended. Dropping the future loses no change.
async fn change(changed: &mut unix::Signal, pid: Pid, watchdog: Option<&Watchdog>) -> Result<Change, Failure> {
    loop {
        match waitpid(Some(pid), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((_, status))) => return Ok(Change::Command(status)),
            Ok(None) if watchdog.is_some_and(Watchdog::has_ended) => return Ok(Change::Watchdog),
            Ok(None) => _ = changed.recv().await,
            Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::system("cannot wait for the command", error)),
        }
    }
}

/// Returns the exit status as a shell reports it, if the command has ended.
fn ended(status: WaitStatus) -> Option<u8> {
    if let Some(code) = status.exit_status() {
        return Some(code as u8);
    }
    status.terminating_signal().map(signals::status)
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
    let same_session = getsid(Some(parent)).ok() == getsid(None).ok();
    same_session && getpgid(Some(parent)).is_ok_and(|group| group != getpgrp())
}
