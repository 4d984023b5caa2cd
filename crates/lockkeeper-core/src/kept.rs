//! One hold for several uses of a process: one after the other, or those of readers together.
//!
//! To the queue of the lock, it is one hold of one contender. So nothing here decides who holds. [`KeptQueue`] decides which call of
//! this process uses the hold, which call acquires the lock for the others, and when nobody needs the hold any more. (Chubby's
//! clients keep locks in the same way: Burrows, "The Chubby lock service", section 3.)
//!
//! One call at a time has the *turn*: it looks whether the hold may have another use, and otherwise acquires the lock. The use of a
//! hold that is kept has the turn until it ends.

use std::collections::VecDeque;

/// How several uses have one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UsePolicy {
    /// One after the other. The hold stays between two uses until another contender comes.
    Keep,
    /// Together, while only readers are in the queue. The hold ends with the last use.
    Share,
}

/// A call. The caller of [`KeptQueue`] numbers them, and uses no number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallNumber(pub u64);

/// A hold. The caller of [`KeptQueue`] numbers them, and uses no number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldNumber(pub u64);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeptEvent {
    /// A call wants a use.
    Call {
        /// Its number.
        call: CallNumber,
        /// It does not wait for other contenders.
        once: bool,
        /// Another use of the present hold may begin without a look.
        open: bool,
    },
    /// The call wants nothing any more: it has returned, or was dropped.
    Gone(CallNumber),
    /// The call that was to [look](KeptCommand::Look) has looked: whether another use of the hold may begin.
    Looked(CallNumber, bool),
    /// The attempt of the call that was to [acquire](KeptCommand::Acquire) has this hold.
    Granted(CallNumber, HoldNumber),
    /// The shared attempt is known to wait for other contenders, or not any more.
    Waits(bool),
    /// The attempt has failed. `for_all`: an attempt of any other call would fail in the same way.
    Failed {
        /// Whose attempt it is.
        call: CallNumber,
        /// Whether the calls that wait for it fail too.
        for_all: bool,
    },
    /// A use has ended. `usable`: another use of this hold may begin.
    UseEnded {
        /// The hold.
        hold: HoldNumber,
        /// Whether another use may begin.
        usable: bool,
    },
    /// The turn of an ended use is over: what it had to send is sent.
    TurnOver,
    /// No other use may get this hold: it is lost, or another contender wants the lock.
    Unwanted(HoldNumber),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeptCommand {
    /// The call uses this hold.
    Use(CallNumber, HoldNumber),
    /// The call has the turn: it looks whether another use of the hold may begin.
    Look(CallNumber, HoldNumber),
    /// The call has the turn: it makes an attempt, or goes on with the shared one.
    Acquire {
        /// The call.
        call: CallNumber,
        /// The attempt is shared: it goes on when the call is gone while others wait for it.
        shared: bool,
    },
    /// The call gets nothing: it would have to wait.
    Held(CallNumber),
    /// The call fails as the attempt did.
    Fail(CallNumber),
    /// Nobody waits for the shared attempt.
    GiveUp,
    /// Nobody uses this hold, and nobody will.
    Release(HoldNumber),
}

/// The call or the use that has the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Turn {
    Nobody,
    Call { call: CallNumber, once: bool },
    Use,
}

/// The calls and uses of one lock in this process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeptQueue {
    policy: UsePolicy,
    /// The hold that another use may get.
    current: Option<HoldNumber>,
    /// How many uses each hold has that is not released.
    uses: Vec<(HoldNumber, usize)>,
    turn: Turn,
    /// A shared attempt is under way.
    attempt: bool,
    /// It is known to wait for other contenders.
    waits: bool,
    /// The calls that wait, in their order, and whether each does not wait for other contenders.
    waiting: VecDeque<(CallNumber, bool)>,
    commands: VecDeque<KeptCommand>,
}

impl KeptQueue {
    /// No call, and no hold.
    pub fn new(policy: UsePolicy) -> Self {
        let (uses, waiting, commands) = (Vec::new(), VecDeque::new(), VecDeque::new());
        KeptQueue { policy, current: None, uses, turn: Turn::Nobody, attempt: false, waits: false, waiting, commands }
    }

    /// The hold that another use may get.
    pub fn current(&self) -> Option<HoldNumber> {
        self.current
    }

    /// Whether a call or a use has the turn.
    pub fn is_taken(&self) -> bool {
        self.turn != Turn::Nobody
    }

    /// Whether the shared attempt is known to wait for other contenders.
    pub fn waits(&self) -> bool {
        self.waits
    }

    fn keeps(&self) -> bool {
        self.policy == UsePolicy::Keep
    }

    /// Takes in an event.
    pub fn handle(&mut self, event: KeptEvent) {
        match event {
            KeptEvent::Call { call, once, open } => self.called(call, once, open),
            KeptEvent::Gone(call) => self.gone(call),
            KeptEvent::Looked(call, usable) if self.has_turn(call) => match self.current {
                Some(_) if usable => self.serve(call),
                before => {
                    before.into_iter().for_each(|hold| self.forget(hold));
                    self.acquire(call);
                }
            },
            KeptEvent::Granted(call, hold) if self.has_turn(call) => {
                self.current.into_iter().for_each(|before| self.forget(before));
                (self.attempt, self.waits, self.current) = (false, false, Some(hold));
                self.uses.push((hold, 0));
                self.serve(call);
            }
            KeptEvent::Granted(_, hold) => self.commands.push_back(KeptCommand::Release(hold)),
            KeptEvent::Waits(waits) => self.attempt_waits(waits),
            KeptEvent::Failed { call, for_all } if self.has_turn(call) => {
                if self.attempt && for_all {
                    self.commands.extend(self.waiting.drain(..).map(|(call, _)| KeptCommand::Fail(call)));
                }
                (self.attempt, self.waits) = (false, false);
                self.pass_on();
            }
            KeptEvent::UseEnded { hold, usable } => self.use_ended(hold, usable),
            KeptEvent::TurnOver if self.turn == Turn::Use => self.pass_on(),
            KeptEvent::Unwanted(hold) if self.current == Some(hold) => self.forget(hold),
            KeptEvent::Looked(..) | KeptEvent::Failed { .. } | KeptEvent::TurnOver | KeptEvent::Unwanted(_) => {}
        }
    }

    /// What to do now; `None` until something happens.
    pub fn next_command(&mut self) -> Option<KeptCommand> {
        self.commands.pop_front()
    }

    fn has_turn(&self, call: CallNumber) -> bool {
        matches!(self.turn, Turn::Call { call: turn, .. } if turn == call)
    }

    fn called(&mut self, call: CallNumber, once: bool, open: bool) {
        let taken = self.is_taken();
        if open && self.current.is_some() && !(self.keeps() && taken) {
            self.begin_use(call);
        } else if once && taken && (self.keeps() || self.waits) {
            self.commands.push_back(KeptCommand::Held(call));
        } else if taken {
            self.waiting.push_back((call, once));
        } else {
            self.give_turn(call, once);
        }
    }

    fn gone(&mut self, call: CallNumber) {
        self.waiting.retain(|(waiting, _)| *waiting != call);
        if self.has_turn(call) {
            self.pass_on();
        }
    }

    fn give_turn(&mut self, call: CallNumber, once: bool) {
        self.turn = Turn::Call { call, once };
        match self.current {
            Some(hold) if !self.attempt => self.commands.push_back(KeptCommand::Look(call, hold)),
            _ => self.acquire(call),
        }
    }

    /// A try makes an attempt of its own, unless others share one already.
    fn acquire(&mut self, call: CallNumber) {
        let waits_for_others = matches!(self.turn, Turn::Call { once: false, .. });
        let shared = !self.keeps() && (self.attempt || waits_for_others);
        self.attempt = shared;
        self.commands.push_back(KeptCommand::Acquire { call, shared });
    }

    /// The call with the turn uses the hold. All that wait for a shared one use it too.
    fn serve(&mut self, call: CallNumber) {
        self.begin_use(call);
        if !self.keeps() {
            self.turn = Turn::Nobody;
            for (waiting, _) in std::mem::take(&mut self.waiting) {
                self.begin_use(waiting);
            }
        }
    }

    fn begin_use(&mut self, call: CallNumber) {
        let Some(hold) = self.current else { return };
        self.uses.iter_mut().filter(|(used, _)| *used == hold).for_each(|(_, uses)| *uses += 1);
        if self.keeps() {
            self.turn = Turn::Use;
        }
        self.commands.push_back(KeptCommand::Use(call, hold));
    }

    fn use_ended(&mut self, hold: HoldNumber, usable: bool) {
        let keeps = self.keeps();
        let Some((_, uses)) = self.uses.iter_mut().find(|(used, _)| *used == hold) else { return };
        *uses -= 1;
        let stays = if keeps { usable } else { *uses > 0 };
        if self.current == Some(hold) && stays {
            return;
        }
        self.forget(hold);
    }

    /// No other use gets this hold. It ends with its last use.
    fn forget(&mut self, hold: HoldNumber) {
        self.current.take_if(|current| *current == hold);
        if let Some(at) = self.uses.iter().position(|used| *used == (hold, 0)) {
            self.uses.swap_remove(at);
            self.commands.push_back(KeptCommand::Release(hold));
        }
    }

    /// While the shared attempt waits for other contenders, the calls that do not wait for any get nothing.
    fn attempt_waits(&mut self, waits: bool) {
        self.waits = waits && self.attempt;
        if !self.waits {
            return;
        }
        let (tries, others) =
            std::mem::take(&mut self.waiting).into_iter().partition::<VecDeque<_>, _>(|(_, once)| *once);
        self.waiting = others;
        self.commands.extend(tries.into_iter().map(|(call, _)| KeptCommand::Held(call)));
        if let Turn::Call { call, once: true } = self.turn {
            self.commands.push_back(KeptCommand::Held(call));
            self.pass_on();
        }
    }

    /// The next call gets the turn, and goes on with the shared attempt.
    fn pass_on(&mut self) {
        self.turn = Turn::Nobody;
        match self.waiting.pop_front() {
            Some((call, once)) => self.give_turn(call, once),
            None => {
                self.waits = false;
                if std::mem::take(&mut self.attempt) {
                    self.commands.push_back(KeptCommand::GiveUp);
                }
            }
        }
    }
}
