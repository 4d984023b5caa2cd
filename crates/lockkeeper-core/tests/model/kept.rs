//! Every interleaving of the calls of one process that share a hold: stateright explores the real `KeptQueue`.
//!
//! Calls come, wait, are dropped, use the hold and end. Attempts are granted, wait for other contenders, or fail. Other contenders
//! come, and holds are lost. The lock's queue is not modelled: a granted attempt has a new hold.

use lockkeeper_core::{CallNumber, HoldNumber, KeptCommand, KeptEvent, KeptQueue, UsePolicy};
use stateright::{Checker, HasDiscoveries, Model, Property};

const ONE_BY_ONE: &str = "the uses of a hold that is kept are one after the other";
const WANTED: &str =
    "no use begins in a hold that is released, lost, or wanted by another contender as far as the process knows";
const ANSWERED: &str = "a call gets one answer, and only while it waits for one";
const TURN: &str = "a call that waits is behind one that has the turn";
const RELEASED: &str = "a hold is released once, after its last use, and is otherwise used or may have another use";
const TRIES: &str = "a call that does not wait for other contenders does not wait behind an attempt that does";
const GIVEN_UP: &str = "an attempt for which no call waits is given up";

/// What is broken in how the queue's commands are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// It does not learn that a call was dropped.
    GoneUntold,
    /// It does not learn that the turn of an ended use is over.
    TurnOverUntold,
    /// A use that ends says of each hold that it is usable.
    AlwaysUsable,
    /// A hold of readers needs no look although the queue has changed.
    AlwaysOpen,
    /// A hold that nobody needs is not released.
    NeverReleased,
    /// It does not learn that the attempt waits for other contenders.
    WaitUntold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Call {
    Unmade,
    Waits,
    Looks(HoldNumber),
    Acquires {
        shared: bool,
    },
    Uses(HoldNumber),
    /// Its use has ended, and the turn of the use is not over.
    Ends,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Hold {
    number: HoldNumber,
    lost: bool,
    /// Another contender wants the lock.
    others: bool,
    /// The queue knows one of them.
    told: bool,
    released: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    queue: KeptQueue,
    calls: Vec<Call>,
    holds: Vec<Hold>,
    /// The shared attempt, and whether it waits for other contenders.
    attempt: Option<bool>,
    /// What was broken by a command.
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Make(usize),
    Drop(usize),
    Look(usize),
    Grant(usize),
    Fail(usize, bool),
    Wait(bool),
    End(usize),
    TurnOver(usize),
    Lose(usize),
    OthersCome(usize),
    Tell(usize),
}

#[derive(Clone, Debug)]
struct World {
    policy: UsePolicy,
    /// The calls, and whether each does not wait for other contenders.
    calls: Vec<bool>,
    mistake: Option<Mistake>,
}

impl World {
    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn keeps(&self) -> bool {
        self.policy == UsePolicy::Keep
    }

    /// Whether another use of this hold may begin, as its own state shows.
    fn usable(&self, hold: &Hold) -> bool {
        self.has(Mistake::AlwaysUsable) || !hold.lost && (self.keeps() || !hold.others)
    }

    fn tell(&self, state: &mut State, event: KeptEvent) {
        state.queue.handle(event);
        while let Some(command) = state.queue.next_command() {
            self.carry_out(state, command);
        }
    }

    fn carry_out(&self, state: &mut State, command: KeptCommand) {
        let mut answer = |call: CallNumber, from: &dyn Fn(Call) -> bool, to: Call| {
            let at = usize::try_from(call.0).expect("few calls");
            if !from(state.calls[at]) {
                state.broken = Some(ANSWERED);
            }
            state.calls[at] = to;
        };
        let in_line = |call| matches!(call, Call::Waits);
        let has_turn = |call| matches!(call, Call::Waits | Call::Looks(_) | Call::Acquires { .. });
        match command {
            KeptCommand::Use(call, number) => {
                answer(call, &has_turn, Call::Uses(number));
                let hold = state.holds.iter().find(|hold| hold.number == number).expect("it was granted");
                if hold.released || hold.told || hold.lost || !self.keeps() && hold.others {
                    state.broken = Some(WANTED);
                }
            }
            KeptCommand::Look(call, hold) => answer(call, &in_line, Call::Looks(hold)),
            KeptCommand::Acquire { call, shared } => {
                answer(call, &|call| matches!(call, Call::Waits | Call::Looks(_)), Call::Acquires { shared });
                if shared {
                    _ = state.attempt.get_or_insert(false);
                }
            }
            KeptCommand::Held(call) => answer(call, &has_turn, Call::Over),
            KeptCommand::Fail(call) => answer(call, &in_line, Call::Over),
            KeptCommand::GiveUp => {
                if state.attempt.take().is_none() {
                    state.broken = Some(GIVEN_UP);
                }
            }
            KeptCommand::Release(_) if self.has(Mistake::NeverReleased) => {}
            KeptCommand::Release(number) => {
                let used = state.calls.contains(&Call::Uses(number));
                let hold = state.holds.iter_mut().find(|hold| hold.number == number).expect("it was granted");
                if std::mem::replace(&mut hold.released, true) || used {
                    state.broken = Some(RELEASED);
                }
            }
        }
    }
}

fn number(call: usize) -> CallNumber {
    CallNumber(call as u64)
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (queue, calls) = (KeptQueue::new(self.policy), vec![Call::Unmade; self.calls.len()]);
        vec![State { queue, calls, holds: Vec::new(), attempt: None, broken: None }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (i, call) in state.calls.iter().enumerate() {
            match call {
                Call::Unmade => actions.push(Action::Make(i)),
                Call::Waits => actions.push(Action::Drop(i)),
                Call::Looks(_) => actions.extend([Action::Drop(i), Action::Look(i)]),
                Call::Acquires { .. } => {
                    actions.extend([Action::Drop(i), Action::Grant(i), Action::Fail(i, false), Action::Fail(i, true)]);
                }
                Call::Uses(_) => actions.push(Action::End(i)),
                Call::Ends => actions.push(Action::TurnOver(i)),
                Call::Over => {}
            }
        }
        if let Some(waits) = state.attempt
            && state.calls.iter().any(|call| matches!(call, Call::Acquires { shared: true }))
        {
            actions.push(Action::Wait(!waits));
        }
        for (i, hold) in state.holds.iter().enumerate().filter(|(_, hold)| !hold.released) {
            if !hold.lost {
                actions.push(Action::Lose(i));
            }
            if !hold.others {
                actions.push(Action::OthersCome(i));
            }
            if self.keeps() && (hold.others || hold.lost) && !hold.told {
                actions.push(Action::Tell(i));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Make(i) => {
                state.calls[i] = Call::Waits;
                let current = state.queue.current().and_then(|at| state.holds.iter().find(|hold| hold.number == at));
                let open = current.is_some_and(|hold| self.usable(hold) || self.has(Mistake::AlwaysOpen));
                self.tell(&mut state, KeptEvent::Call { call: number(i), once: self.calls[i], open });
            }
            Action::Drop(i) => {
                state.calls[i] = Call::Over;
                if !self.has(Mistake::GoneUntold) {
                    self.tell(&mut state, KeptEvent::Gone(number(i)));
                }
            }
            Action::Look(i) => {
                let Call::Looks(at) = state.calls[i] else { return None };
                let usable = state.holds.iter().any(|hold| hold.number == at && self.usable(hold));
                self.tell(&mut state, KeptEvent::Looked(number(i), usable));
            }
            Action::Grant(i) => {
                if state.calls[i] == (Call::Acquires { shared: true }) {
                    state.attempt = None;
                }
                let hold = HoldNumber(state.holds.len() as u64);
                state.holds.push(Hold { number: hold, lost: false, others: false, told: false, released: false });
                self.tell(&mut state, KeptEvent::Granted(number(i), hold));
            }
            Action::Fail(i, for_all) => {
                if state.calls[i] == (Call::Acquires { shared: true }) {
                    state.attempt = None;
                }
                state.calls[i] = Call::Over;
                self.tell(&mut state, KeptEvent::Failed { call: number(i), for_all });
            }
            Action::Wait(waits) => {
                state.attempt = Some(waits);
                if !self.has(Mistake::WaitUntold) {
                    self.tell(&mut state, KeptEvent::Waits(waits));
                }
            }
            Action::End(i) => {
                let Call::Uses(hold) = state.calls[i] else { return None };
                state.calls[i] = if self.keeps() { Call::Ends } else { Call::Over };
                let usable = state.holds.iter().any(|it| it.number == hold && self.usable(it));
                self.tell(&mut state, KeptEvent::UseEnded { hold, usable });
            }
            Action::TurnOver(i) => {
                state.calls[i] = Call::Over;
                if !self.has(Mistake::TurnOverUntold) {
                    self.tell(&mut state, KeptEvent::TurnOver);
                }
            }
            Action::Lose(i) => state.holds[i].lost = true,
            Action::OthersCome(i) => state.holds[i].others = true,
            Action::Tell(i) => {
                state.holds[i].told = true;
                let hold = state.holds[i].number;
                self.tell(&mut state, KeptEvent::Unwanted(hold));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn unbroken(state: &State, claim: &str) -> bool {
            state.broken != Some(claim)
        }
        vec![
            Property::always(ONE_BY_ONE, |world: &World, state: &State| {
                let with_turn = |call: &&Call| matches!(call, Call::Uses(_) | Call::Ends);
                !world.keeps() || state.calls.iter().filter(with_turn).count() <= 1
            }),
            Property::always(WANTED, |_, state: &State| unbroken(state, WANTED)),
            Property::always(ANSWERED, |_, state: &State| unbroken(state, ANSWERED)),
            Property::always(TURN, |world: &World, state: &State| {
                let has_turn = |call: &Call| match call {
                    Call::Looks(_) | Call::Acquires { .. } | Call::Ends => true,
                    Call::Uses(_) => world.keeps(),
                    Call::Unmade | Call::Waits | Call::Over => false,
                };
                let turns = state.calls.iter().filter(|call| has_turn(call)).count();
                turns <= 1 && (turns == 1 || !state.calls.contains(&Call::Waits))
            }),
            Property::always(RELEASED, |world: &World, state: &State| {
                unbroken(state, RELEASED)
                    && state.holds.iter().filter(|hold| !hold.released).all(|hold| {
                        let used = state.calls.contains(&Call::Uses(hold.number));
                        used || world.keeps() && state.queue.current() == Some(hold.number) && !hold.told
                    })
            }),
            Property::always(TRIES, |world: &World, state: &State| {
                let tries = || world.calls.iter().zip(&state.calls).filter(|(once, _)| **once).map(|(_, call)| *call);
                state.attempt != Some(true)
                    || !tries().any(|call| matches!(call, Call::Waits | Call::Acquires { shared: true }))
            }),
            Property::always(GIVEN_UP, |_, state: &State| {
                let goes_on = state.calls.contains(&Call::Acquires { shared: true });
                unbroken(state, GIVEN_UP) && state.attempt.is_some() == goes_on
            }),
            Property::sometimes("a second use has the hold of the first", |_, state: &State| {
                let ended = |call: &&Call| matches!(call, Call::Over | Call::Ends);
                state.holds.len() == 1
                    && state.calls.iter().any(|call| matches!(call, Call::Uses(_)))
                    && state.calls.iter().filter(ended).count() >= 1
            }),
            Property::sometimes("a second hold follows", |_, state: &State| state.holds.len() >= 2),
        ]
    }
}

/// Returns the claims that are broken.
fn explore(world: World) -> Vec<&'static str> {
    let witnesses = world.mistake.is_none();
    let checker = world.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    let found = checker.discoveries();
    if witnesses {
        assert!(found.keys().any(|claim| *claim == "a second hold follows"), "{found:?}");
        assert!(found.keys().any(|claim| *claim == "a second use has the hold of the first"), "{found:?}");
    }
    let broken = found.into_iter().filter(|(_, path)| !path.clone().into_vec().is_empty());
    broken.map(|(claim, _)| claim).filter(|claim| !claim.starts_with("a second")).collect()
}

fn world(policy: UsePolicy, calls: &[bool]) -> World {
    World { policy, calls: calls.to_vec(), mistake: None }
}

#[test]
fn every_interleaving_of_the_uses_of_one_hold_keeps_the_promises() {
    for policy in [UsePolicy::Keep, UsePolicy::Share] {
        for calls in [[false, false, false, false], [false, true, false, true], [true, false, true, false]] {
            let calls = if super::is_deep() { &calls[..] } else { &calls[..3] };
            assert_eq!(explore(world(policy, calls)), [""; 0], "{policy:?} {calls:?}");
        }
    }
}

#[test]
fn planted_mistakes_in_the_uses_of_one_hold_are_found() {
    let (keep, share) = (UsePolicy::Keep, UsePolicy::Share);
    for (mistake, policy, claim) in [
        (Mistake::GoneUntold, keep, TURN),
        (Mistake::GoneUntold, share, GIVEN_UP),
        (Mistake::TurnOverUntold, keep, TURN),
        (Mistake::AlwaysUsable, keep, WANTED),
        (Mistake::AlwaysOpen, share, WANTED),
        (Mistake::NeverReleased, keep, RELEASED),
        (Mistake::NeverReleased, share, RELEASED),
        (Mistake::WaitUntold, share, TRIES),
    ] {
        let broken = explore(World { mistake: Some(mistake), ..world(policy, &[false, true, false]) });
        assert!(broken.contains(&claim), "{mistake:?} {policy:?}: {broken:?}");
    }
}
