//! Every order of what can happen to a command, its locks, lockkeeper and the watchdog.
//!
//! A step of the clock is a second. What is due happens before the clock goes on, in any order. The command ignores signals.

use std::time::Duration;

use stateright::{Checker, Model, Property};

use super::*;

const GRACE: u64 = 4;
/// How long the locks can be relied on after a heartbeat.
const TRUST: u64 = 8;
const END: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lockkeeper {
    Runs,
    Stopped,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    trusted: u64,
    lockkeeper: Lockkeeper,
    supervision: Supervision,
    told: Told,
    rules: Rules,
    /// When the command got its first SIGTERM for its locks or its limit, and how many.
    terminated: Option<u64>,
    terms: u8,
    /// When the command got a signal because somebody asked for the lock.
    asked: Option<u64>,
    killed: Option<u64>,
    /// When a lock was taken away.
    removed: Option<u64>,
    /// When the owner of a leased lock must have cleaned up.
    cleaned_up: Option<u64>,
    /// The instant of the watchdog's SIGTERM has come: lockkeeper cannot know whether it was sent.
    overdue: bool,
    /// The command was stopped without a reason.
    unjust: bool,
    max_run: Option<u64>,
    stops: u8,
    heartbeats: u8,
    /// The group was stopped together with lockkeeper.
    suspended: bool,
    /// The group continued although its lock was lost while it was stopped.
    continued: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Tick,
    Heartbeat,
    Stop,
    Continue,
    /// The group and lockkeeper are stopped for so long, as by Ctrl-Z. Nothing else changes meanwhile.
    Suspend {
        seconds: u64,
    },
    /// The shell continues lockkeeper, which asks for its locks before it continues the group.
    Foreground,
    KillLockkeeper,
    Watchdog,
    Unreliable,
    Lost,
    Removed,
    Asked,
    AskedAgain,
    Preempted {
        cleanup: u64,
        lease_over: bool,
    },
    Withdrawn,
    Due,
}

/// A command that may run for so long.
struct World {
    max_run: Option<u64>,
}

impl State {
    fn time(&self) -> Duration {
        Duration::from_secs(self.now)
    }

    fn left(&self) -> u64 {
        self.trusted.saturating_sub(self.now)
    }

    fn watchdog_acted(&self) -> bool {
        self.told.has_acted(self.time())
    }

    fn carry_out(&mut self, action: Option<Action>) {
        let has_reason = self.left() <= GRACE
            || self.overdue
            || self.removed.is_some()
            || self.cleaned_up.is_some()
            || self.terminated.is_some()
            || self.max_run.is_some_and(|limit| self.now >= limit)
            || self.lockkeeper == Lockkeeper::Dead;
        self.unjust |= matches!(action, Some(Action::Terminate | Action::Kill)) && !has_reason;
        self.continued |=
            self.suspended && action.is_some_and(|action| action.signals().any(|sent| sent == Signal::CONT));
        match action {
            Some(Action::Terminate) => {
                self.terms += 1;
                self.terminated = self.terminated.or(Some(self.now));
            }
            Some(Action::Send(_)) => self.asked = self.asked.or(Some(self.now)),
            Some(Action::Kill) => self.killed = self.killed.or(Some(self.now)),
            None => {}
        }
    }

    fn obey(&mut self, order: Option<Order>) {
        let action = order.and_then(|order| self.rules.obey(order));
        self.carry_out(action);
    }

    /// As the loop of `attend`: an event, then the new deadline for the watchdog.
    fn handle(&mut self, event: Event) {
        let action = self.supervision.handle(event, self.time());
        self.carry_out(action);
        self.move_deadline();
    }

    fn overtaken(&mut self) {
        let left = Duration::from_secs(self.left());
        let action = self.supervision.handle(Event::WatchdogActed { left }, self.time());
        self.carry_out(action);
        let kill = self.supervision.kill_at();
        let order = kill.map(|kill| self.told.end_by(kill));
        self.obey(order);
    }

    fn move_deadline(&mut self) {
        let ending = self.supervision.is_ending();
        if !ending && self.left() == 0 {
            return;
        }
        let Some(deadline) = self.supervision.deadline(Duration::from_secs(self.trusted)) else { return };
        let before = self.told.clone();
        let order = self.told.until(deadline, self.time());
        self.obey(order);
        if before.has_acted(self.time()) && !self.supervision.is_stopped() {
            self.overtaken();
        }
    }

    /// What lockkeeper does before the clock goes on.
    fn is_due(&self) -> Vec<Step> {
        let mut due = Vec::new();
        if self.lockkeeper == Lockkeeper::Runs {
            if self.supervision.loss.is_none() && self.left() == 0 {
                due.push(Step::Lost);
            }
            if !self.supervision.is_ending() && self.left() <= GRACE && self.left() > 0 {
                due.push(Step::Unreliable);
            }
            if self.supervision.due().is_some_and(|at| at <= self.time()) {
                due.push(Step::Due);
            }
        }
        if self.lockkeeper != Lockkeeper::Dead && self.rules.due().is_some_and(|at| at <= self.time()) {
            due.push(Step::Watchdog);
        }
        due
    }
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let max_run = self.max_run.map(Duration::from_secs);
        let mut state = State {
            now: 0,
            trusted: TRUST,
            lockkeeper: Lockkeeper::Runs,
            supervision: Supervision::new(Duration::ZERO, Duration::from_secs(GRACE), max_run),
            told: Told::default(),
            rules: Rules::default(),
            terminated: None,
            terms: 0,
            asked: None,
            killed: None,
            removed: None,
            cleaned_up: None,
            overdue: false,
            unjust: false,
            max_run: self.max_run,
            stops: 1,
            heartbeats: 2,
            suspended: false,
            continued: false,
        };
        state.move_deadline();
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.killed.is_some() {
            return;
        }
        let due = state.is_due();
        if state.suspended && state.lockkeeper == Lockkeeper::Stopped {
            steps.push(Step::Foreground);
            return;
        }
        if due.is_empty() && state.now < END {
            steps.push(Step::Tick);
        }
        steps.extend(due);
        if state.lockkeeper == Lockkeeper::Stopped {
            steps.push(Step::Continue);
        }
        if state.lockkeeper != Lockkeeper::Runs {
            return;
        }
        steps.push(Step::KillLockkeeper);
        if state.stops > 0 {
            steps.push(Step::Stop);
        }
        if state.supervision.loss.is_some() {
            return;
        }
        // A command that has got its SIGTERM may be stopped too, but a lost lock has its end already.
        if state.stops > 0 && state.left() > 0 {
            steps.extend([0, state.left()].map(|seconds| Step::Suspend { seconds }));
        }
        if state.heartbeats > 0 && state.left() > 0 {
            steps.push(Step::Heartbeat);
        }
        steps.push(Step::Removed);
        if state.asked.is_some() {
            steps.push(Step::AskedAgain);
            if state.supervision.is_wanted() {
                steps.push(Step::Withdrawn);
            }
            return;
        }
        steps.push(Step::Asked);
        for cleanup in [0, 2, 12] {
            steps.extend([true, false].map(|lease_over| Step::Preempted { cleanup, lease_over }));
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let asked = |again, preemption| Event::Asked { signal: Signal::TERM, again, preemption };
        let watchdog_acted = state.watchdog_acted();
        state.overdue |= watchdog_acted;
        match step {
            Step::Tick => state.now += 1,
            Step::Heartbeat => {
                state.heartbeats -= 1;
                state.trusted = state.now + TRUST;
                state.move_deadline();
            }
            Step::Stop => {
                state.stops -= 1;
                state.lockkeeper = Lockkeeper::Stopped;
            }
            Step::Continue => state.lockkeeper = Lockkeeper::Runs,
            Step::Suspend { seconds } => {
                state.stops -= 1;
                state.now += seconds;
                let order = state.told.pause();
                state.obey(Some(order));
                (state.lockkeeper, state.suspended) = (Lockkeeper::Stopped, true);
            }
            Step::Foreground => {
                state.lockkeeper = Lockkeeper::Runs;
                let is_lost = state.left() == 0 || state.cleaned_up.is_some_and(|end| end <= state.now);
                if is_lost && state.supervision.loss.is_none() {
                    state.handle(Event::Lost { why: Loss::Unreachable, watchdog_acted, suspended: true });
                } else {
                    state.suspended = false;
                    state.move_deadline();
                }
            }
            Step::KillLockkeeper => {
                // The pipe closes.
                state.lockkeeper = Lockkeeper::Dead;
                state.carry_out(Some(Action::Kill));
            }
            Step::Watchdog => {
                let action = state.rules.act(|| false);
                state.carry_out(action);
            }
            Step::Unreliable | Step::Due if watchdog_acted && !state.supervision.is_stopped() => {
                state.overtaken();
                state.move_deadline();
            }
            Step::Unreliable => state.handle(Event::Unreliable { left: Duration::from_secs(state.left()) }),
            Step::Lost => state.handle(Event::Lost { why: Loss::Unreachable, watchdog_acted, suspended: false }),
            Step::Removed => {
                state.removed = Some(state.now);
                state.handle(Event::Lost { why: Loss::Removed, watchdog_acted, suspended: false });
            }
            Step::Asked => state.handle(asked(false, None)),
            Step::AskedAgain => state.handle(asked(true, None)),
            Step::Preempted { cleanup, lease_over } => {
                state.cleaned_up = Some(state.now + cleanup);
                let left = Duration::from_secs(cleanup);
                state.handle(asked(false, Some(Cleanup { left, lease_over })));
            }
            Step::Withdrawn => {
                state.cleaned_up = None;
                state.handle(Event::Withdrawn);
            }
            Step::Due => state.handle(Event::Due),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no command outlives the trust in its locks", |_, state: &State| {
                state.killed.is_some() || state.suspended || state.removed.is_some() || state.now <= state.trusted
            }),
            Property::always("after another loss, no command outlives its grace period", |_, state: &State| {
                let end = state.removed.map(|removed| removed + GRACE);
                state.killed.is_some()
                    || end.is_none_or(|end| state.now <= end)
                    || state.lockkeeper == Lockkeeper::Stopped
            }),
            Property::always("no command outlives the cleanup of its lease", |_, state: &State| {
                let end = state.cleaned_up.filter(|_| state.lockkeeper == Lockkeeper::Runs);
                state.killed.is_some() || end.is_none_or(|end| state.now <= end)
            }),
            Property::always(
                "no command outlives its limit by more than the grace period",
                |world: &World, state: &State| {
                    let counts = state.lockkeeper == Lockkeeper::Runs && state.stops > 0;
                    let end = world.max_run.filter(|_| counts);
                    state.killed.is_some() || end.is_none_or(|end| state.now <= end + GRACE)
                },
            ),
            Property::always(
                "a command that lost its lock while it was stopped does not continue",
                |_, state: &State| !state.continued,
            ),
            Property::always("a command gets one SIGTERM", |_, state: &State| state.terms <= 1),
            Property::always("a command that is killed had time to end", |_, state: &State| {
                let Some(killed) = state.killed.filter(|_| state.lockkeeper != Lockkeeper::Dead) else { return true };
                let warned = |at: Option<u64>, before: u64| at.is_some_and(|at| at + before <= killed);
                // A group that is stopped has nothing to end. The owner of a leased lock has chosen how long it needs.
                state.suspended
                    || state.cleaned_up == Some(killed)
                    || warned(state.terminated, GRACE / 4 * 3)
                    || warned(state.asked, GRACE / 4 * 3)
            }),
            Property::always("a healthy command is not stopped", |_, state: &State| !state.unjust),
            Property::sometimes("the watchdog kills", |_, state: &State| {
                state.killed.is_some() && state.lockkeeper == Lockkeeper::Stopped
            }),
            Property::sometimes("the watchdog acts first, and lockkeeper follows", |_, state: &State| {
                state.stops == 0
                    && state.lockkeeper == Lockkeeper::Runs
                    && state.supervision.is_ending()
                    && state.terms == 1
            }),
            Property::sometimes("a stopped command is killed for a loss", |_, state: &State| {
                state.killed.is_some() && state.suspended && state.terms == 0
            }),
            Property::sometimes("lockkeeper kills", |_, state: &State| {
                state.killed.is_some() && state.lockkeeper == Lockkeeper::Runs && state.stops == 1
            }),
            Property::sometimes("a command whose lock is wanted no more runs on", |_, state: &State| {
                state.asked.is_some_and(|asked| state.now > asked + 2) && state.cleaned_up.is_none() && state.terms == 0
            }),
            Property::sometimes("a command runs on", |_, state: &State| state.now > TRUST + 2 && state.terms == 0),
        ]
    }
}

#[test]
fn every_order_of_losses_requests_signals_stops_and_timers_keeps_the_promises() {
    // One of them takes five seconds in a build that is not optimised.
    let whole = [None, Some(6), Some(9)];
    for max_run in if lockkeeper_testkit::is_deep() { &whole[..] } else { &whole[1..2] } {
        let max_run = *max_run;
        let checker = World { max_run }.checker().spawn_bfs().join();
        println!("{} states, {max_run:?}", checker.unique_state_count());
        checker.assert_properties();
        assert!(checker.unique_state_count() > 1_000);
    }
}
