//! The time under the locks: what happens to a running command and to its locks, until the command has ended.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper::admin::LockInfo;
use lockkeeper::guard::HoldState;
use lockkeeper::{Holding, Lockkeeper, Loss, Revocation};
use lockkeeper_helix::Preemption;
use lockkeeper_hold::{asked, wanted};
use lockkeeper_session::text::spell;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, waitpid};
use tokio::signal::unix;
use tokio::sync::watch;
use tokio::time::sleep;

use super::reliance::unreliable;
use super::{CommandEnd, IN_ORDER, RunTerms, Supervised, has_shell};
use crate::broken::{self, Break};
use crate::exit::Failure;
use crate::held::Held;
use crate::output::Printer;
use crate::signals::{self, Signals};
use crate::streams;
use crate::supervision::{Action, Event, Supervision};
use crate::text;
use crate::watchdog::{self, Watchdog};

/// Pause after a question that failed.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The answer to a revoke request if the command gets no signal for it.
const REFUSAL: &str = "its command ignores requests (--on-revoke ignore)";

/// A running command with its locks, and what has happened to them.
pub(super) struct Attended<'a> {
    pub(super) command: Supervised,
    keeper: Option<&'a Lockkeeper>,
    pub(super) guard: Held<'a>,
    terms: RunTerms,
    pub(super) printer: Printer,
    pub(super) supervision: Supervision,
    /// The last request of each lock that the command got a signal for.
    reported: HashMap<&'a str, Revocation>,
    why_it_ends: Option<String>,
    /// That this process was paused until its holds had almost ended.
    pub(super) paused: Option<String>,
    /// The read of who broke the locks.
    breaks: Option<BoxFuture<'a, Vec<Break>>>,
    broken_by: Option<String>,
    /// Whether a contender of an earlier class waits, and whether the command got a signal for one.
    makes_way: bool,
    yielded: bool,
}

/// What happens to the command or to its locks.
enum Wake<'a> {
    Lost(Loss),
    /// The locks can no longer be relied on.
    Unreliable(HoldState),
    Asked(&'a Holding, Revocation),
    /// A contender of an earlier class waits, or none does any more.
    Wanted(bool),
    Changed(Change),
    Due,
    /// No other contender wants the leased lock any more.
    Withdrawn,
    Signal(Signal),
    Renewed,
    /// It is read who broke the locks.
    Found(Vec<Break>),
}

impl<'a> Attended<'a> {
    pub(super) fn new(
        command: Supervised,
        (keeper, guard): (Option<&'a Lockkeeper>, Held<'a>),
        terms: RunTerms,
        printer: Printer,
    ) -> Self {
        Attended {
            command,
            keeper,
            guard,
            supervision: Supervision::new(watchdog::now(), terms.grace, terms.max_run),
            terms,
            printer,
            reported: HashMap::new(),
            why_it_ends: None,
            paused: None,
            breaks: None,
            broken_by: None,
            makes_way: false,
            yielded: false,
        }
    }

    /// Waits for the end of the command, as [`Supervised::attend`] says.
    pub(super) async fn run(mut self, signals: &mut Signals) -> Result<CommandEnd, Failure> {
        self.tell_unguarded();
        let (guard, grace, on_suspect) = (self.guard, self.terms.grace, self.terms.on_suspect);
        let (lost, nearly) = (guard.lost(), unreliable(&guard, grace, on_suspect));
        tokio::pin!(lost, nearly);
        let (status, killed_by) = loop {
            if !self.move_deadline() && !self.supervision.is_stopped() {
                self.overtaken();
            }
            let (due, is_lost) = (self.supervision.due(), self.supervision.loss.is_some());
            let wake = tokio::select! {
                biased;
                why = &mut lost, if !is_lost => Wake::Lost(why),
                state = &mut nearly, if !self.supervision.is_ending() => Wake::Unreliable(state),
                (holding, request) = asked(guard.holdings(), &self.reported), if !is_lost => Wake::Asked(holding, request),
                wanted = wanted(guard.holdings(), self.makes_way), if self.terms.on_yield.is_some() && !is_lost => Wake::Wanted(wanted),
                change = change(&mut self.command.changed, self.command.pid, self.command.watchdog.as_ref()) => Wake::Changed(change?),
                // After the end of the command: what ended in time has not run for too long.
                () = sleep(due.unwrap_or_default().saturating_sub(watchdog::now())), if due.is_some() => Wake::Due,
                () = withdrawn(self.terms.preemption.as_ref()), if self.supervision.is_wanted() => Wake::Withdrawn,
                signal = signals.next() => Wake::Signal(signal),
                () = guard.renewed() => Wake::Renewed,
                found = async { self.breaks.as_mut().expect("checked").await }, if self.breaks.is_some() => Wake::Found(found),
            };
            match wake {
                Wake::Lost(why) => self.lost(why),
                Wake::Unreliable(HoldState::Lost(_)) => {
                    // The loss itself is reported next.
                    self.follows_watchdog();
                    nearly.set(unreliable(&guard, grace, on_suspect));
                }
                Wake::Unreliable(state) => self.unreliable(state),
                Wake::Asked(holding, request) => self.asked(holding, request),
                Wake::Wanted(wanted) => self.wanted(wanted),
                Wake::Changed(Change::Watchdog) => self.guard_again(),
                Wake::Changed(Change::Command(change)) => {
                    if let Some(status) = ended(change) {
                        self.follows_watchdog();
                        break (status, change.terminating_signal());
                    }
                    if let Some(signal) = change.stopping_signal() {
                        self.stopped(signal).await;
                    }
                }
                Wake::Due => self.due(),
                Wake::Withdrawn => {
                    _ = self.supervision.handle(Event::Withdrawn, watchdog::now());
                    self.reported.clear();
                    self.printer.note(&format!("{} is not wanted any more; the command may go on", locks(guard)));
                }
                Wake::Signal(signal) => self.signalled(signal),
                // The new deadline goes to the watchdog at the start of the loop.
                Wake::Renewed => {}
                Wake::Found(found) => {
                    self.breaks = None;
                    self.broken_by = broken::tell(&found, self.printer);
                }
            }
        };
        Ok(self.end(status, killed_by).await)
    }

    fn lost(&mut self, why: Loss) {
        let stopped = self.supervision.is_ending();
        let (watchdog_acted, suspended) = (self.watchdog_has_acted(), self.command.suspended);
        let action = self.supervision.handle(Event::Lost { why, watchdog_acted, suspended }, watchdog::now());
        let by_time = matches!(why, Loss::Unreachable | Loss::SessionExpired | Loss::LeaseEnded);
        if !stopped && by_time {
            self.paused = self.paused.take().or(self.command.pauses.cause(watchdog::now(), self.terms.grace));
        }
        let overslept = self.paused.clone().filter(|_| by_time);
        if overslept.is_some() || matches!(why, Loss::Removed | Loss::SessionExpired) {
            self.read_breaks();
        }
        let and = match (stopped, watchdog_acted) {
            _ if suspended => "; killing the command, which is stopped",
            (true, _) => "",
            (false, true) => "; the watchdog has stopped the command",
            (false, false) => "; stopping the command",
        };
        let lost = self.guard.holdings().iter().find(|holding| !holding.is_held()).map(|lost| lost.path().to_owned());
        let path = lost.or_else(|| Some(self.guard.locks().first()?.path.clone())).unwrap_or_default();
        self.printer.note(&match overslept {
            None if self.guard.is_released() => format!("the hold of {path} is being released{and}"),
            // A break in the meantime would be the true cause. Its author is printed when the records have been read.
            Some(pause) => format!("{pause}, and lock {path} is lost{and}"),
            None => format!("lock {path} is lost: {why}{and}"),
        });
        self.carry_out(action);
    }

    fn read_breaks(&mut self) {
        self.breaks = self.keeper.map(|keeper| broken::breaks(keeper, broken::holds(self.guard)).boxed());
    }

    /// Stops the command, whose locks can no longer be relied on.
    fn unreliable(&mut self, state: HoldState) {
        if self.follows_watchdog() {
            return;
        }
        let left = self.guard.valid_for();
        let action = self.supervision.handle(Event::Unreliable { left }, watchdog::now());
        let (locks, why, remaining) = (locks(self.guard), reason(self.guard, state), spell(left));
        self.printer.note(&format!("{locks} can be relied on for {remaining} more ({why}); stopping the command"));
        self.carry_out(action);
    }

    fn asked(&mut self, holding: &'a Holding, request: Revocation) {
        let signal = self.terms.on_revoke.signal();
        let again = self.reported.contains_key(holding.path());
        self.printer.asked(holding.path(), &request, signal.map(|(_, name)| name), again);
        match signal {
            Some((signal, _)) => {
                self.why_it_ends = Some(text::revocation(&request));
                self.reported.insert(holding.path(), request);
                let event = Event::Asked { signal, again, preemption: self.terms.cleanup() };
                let action = self.supervision.handle(event, watchdog::now());
                streams::STDERR.flush(IN_ORDER);
                self.carry_out(action);
            }
            None => holding.refuse_revocation(REFUSAL).expect("the text is short"),
        }
    }

    fn wanted(&mut self, wanted: bool) {
        self.makes_way = wanted;
        if let (true, Some((signal, name))) = (wanted, self.terms.on_yield) {
            self.yielded = true;
            let locks = locks(self.guard);
            self.printer.note(&format!("{locks} is wanted by an earlier class; sending {name} to the command"));
            streams::STDERR.flush(IN_ORDER);
            let action = self.supervision.handle(Event::MakeWay { signal }, watchdog::now());
            self.carry_out(action);
        }
    }

    fn due(&mut self) {
        if self.follows_watchdog() {
            return;
        }
        let too_long = self.supervision.too_long;
        let action = self.supervision.handle(Event::Due, watchdog::now());
        if self.supervision.too_long && !too_long {
            let limit = spell(self.terms.max_run.unwrap_or_default());
            self.printer
                .note(&format!("the command has run for {limit}, the limit of --max-run; stopping the command"));
        }
        self.carry_out(action);
    }

    fn signalled(&mut self, signal: Signal) {
        if self.command.withheld.contains(&signal) {
            return;
        }
        let action = self.supervision.handle(Event::Signal(signal), watchdog::now());
        if self.command.is_to_hear(signal) {
            self.carry_out(action);
        }
    }

    fn carry_out(&self, action: Option<Action>) {
        if action == Some(Action::Terminate) {
            streams::STDERR.flush(IN_ORDER);
        }
        action.into_iter().flat_map(Action::signals).for_each(|signal| self.command.signal(signal));
    }

    /// Handles a stop of the command: by Ctrl-Z, by its access to the terminal, or by `kill -STOP`.
    async fn stopped(&mut self, signal: i32) {
        let Some(terminal) = &self.command.terminal else {
            // Without a terminal there is no job control: whatever stopped the command also continues it.
            return;
        };
        let wants_terminal = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&signal);
        let had_terminal = terminal.belongs_to(self.command.pid);
        if !wants_terminal && !had_terminal && signal != Signal::TSTP.as_raw() {
            return;
        }
        if !(wants_terminal && terminal.is_ours()) && has_shell() {
            terminal.take_back(self.command.pid);
            // A stopped group does no work. Before it continues, we check the lock.
            if let Some(watchdog) = &mut self.command.watchdog {
                watchdog.pause();
            }
            // The shell sees that we stopped and prompts; `fg` and `bg` continue us. The session may expire in the
            // meantime.
            let before = watchdog::now();
            self.command.suspended = true;
            _ = kill_process(getpid(), Signal::STOP);
            self.command.continued.recv().await;
            self.command.pauses.stopped_for(Some(watchdog::now().saturating_sub(before)));
            if !still_held(self.keeper, self.guard).await {
                // The loss kills the group, which is still stopped. Until it is reported, no other event continues the group.
                self.guard.lost().await;
                return;
            }
            self.command.pauses.stopped_for(None);
            self.command.suspended = false;
        }
        if (wants_terminal || had_terminal) && terminal.is_ours() {
            terminal.give(self.command.pid);
        }
        self.command.signal(Signal::CONT);
    }

    /// Sees the rest of the group end, and says how the command has ended.
    async fn end(mut self, status: u8, killed_by: Option<i32>) -> CommandEnd {
        self.command.take_terminal_back(status);
        if let (None, Some(_)) = (self.supervision.loss, &self.paused) {
            // The watchdog acted first. The release may find that the hold was broken meanwhile.
            self.read_breaks();
        }
        let outlasted = async {
            if let Some(deadline) = self.supervision.kill_at() {
                self.command.outlast(deadline).await;
            }
        };
        let found = async {
            match self.breaks.take() {
                Some(breaks) => broken::tell(&breaks.await, self.printer),
                None => self.broken_by.take(),
            }
        };
        let ((), broken_by) = tokio::join!(outlasted, found);
        let paused = self.paused.is_some() && broken_by.is_none();
        let cause = broken_by.or(self.paused);
        let watchdog = self.command.watchdog.map(|watchdog| watchdog.dismiss(self.printer));
        let (stopped, preempted) = (self.supervision.is_ending(), self.supervision.is_preempted());
        let Supervision { loss, too_long, asked_to_end, .. } = self.supervision;
        let by_signal = self.terms.on_yield.is_some_and(|(signal, _)| status == signals::status(signal.as_raw()));
        let yielded = self.yielded && by_signal && !(stopped || too_long || asked_to_end) && loss.is_none();
        CommandEnd {
            status,
            loss,
            stopped,
            preempted,
            too_long,
            yielded,
            killed_by,
            asked_to_end,
            why: cause.clone().or(self.why_it_ends),
            cause,
            paused,
            _watchdog: watchdog,
        }
    }
}

/// `lock /locks/nightly`; of several locks, the first that ends.
pub(super) fn locks(guard: Held<'_>) -> String {
    match guard.holdings().iter().min_by_key(|holding| holding.valid_for()) {
        Some(first) => format!("lock {}", first.path()),
        None => format!("lock {}", guard.locks().first().map_or("", |lock| &lock.path)),
    }
}

/// Returns in a few words why the command is stopped.
pub(super) fn reason(guard: Held<'_>, state: HoldState) -> &'static str {
    let leased = guard.locks().iter().any(|lock| lock.node == lock.path);
    match state {
        HoldState::Suspected => "the connection is lost",
        _ if leased => "its lease ends",
        _ => "no server answers",
    }
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

/// A change of the processes of a [`Supervised`].
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
