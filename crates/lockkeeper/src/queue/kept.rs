//! One hold for several uses of this process: one after the other ([`Mutex::keep`](crate::Mutex::keep)), or those of readers
//! together ([`Access::share`](crate::request::Access::share)).
//!
//! [`KeptQueue`] decides which call uses the hold, which one acquires the lock, and when the hold ends. This carries it out.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_channel::mpsc;
use futures_util::future::OptionFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use lockkeeper_core::{
    CallNumber, HoldNumber, KeptCommand, KeptEvent, KeptQueue, Loss, Mode, NodeFormat, Queue, Silence, UsePolicy,
};
use lockkeeper_session::ensemble::{Fired, Watcher};
use lockkeeper_session::wait::{cancelled, passed};
use lockkeeper_session::{CancellationToken, latest};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::{AcquireError, ReleaseError, SessionError};
use crate::hold::AcquireReply;
use crate::hold::holding::{Holding, UseOfKept};
use crate::keeper::Lockkeeper;

/// The uses of one hold.
pub(crate) struct KeptHold {
    keeper: Lockkeeper,
    policy: UsePolicy,
    state: Mutex<KeptState>,
}

struct KeptState {
    /// Decides who uses the hold.
    queue: KeptQueue,
    /// The holds that are not released. Each use has a reference too.
    holds: Vec<(HoldNumber, Arc<Holding>)>,
    /// The calls that wait for an answer.
    calls: Vec<(CallNumber, mpsc::UnboundedSender<Answer>)>,
    /// The next number of a call or a hold.
    number: u64,
    /// Resolves when the queue has changed since a listing showed nothing but readers. `None` if it may have changed.
    only_readers: Option<Watcher>,
    /// The shared attempt, while no call is at it.
    attempt: Option<SharedAttempt>,
}

/// What a call gets that waits.
enum Answer {
    Use(Holding),
    /// It looks whether another use of this hold may begin.
    Look(HoldNumber),
    /// It acquires the lock, perhaps for the other calls too.
    Acquire {
        shared: bool,
    },
    /// The shared attempt waits for other contenders, and the call does not.
    Held,
    /// No call of this process gets a session.
    Failed(SessionError),
}

/// What is to be done when the state is no longer locked: the end of a use locks it.
#[derive(Default)]
struct Told {
    released: Vec<Arc<Holding>>,
    given_up: Option<SharedAttempt>,
    answers: Vec<(mpsc::UnboundedSender<Answer>, Answer)>,
}

/// An attempt to acquire the lock.
struct SharedAttempt {
    outcome: oneshot::Receiver<Result<Holding, AcquireError>>,
    /// Whether it is known to wait for other contenders.
    waits: latest::Receiver<bool>,
}

/// What an attempt reports to: its caller, and whether it is known to wait for other contenders.
pub(crate) type Reply = (AcquireReply, Arc<latest::Sender<bool>>);

/// The limits of a call.
pub(crate) struct Limits {
    pub(crate) path: String,
    /// It does not wait for other contenders.
    pub(crate) once: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: Option<CancellationToken>,
}

impl KeptState {
    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// The hold that another use may get.
    fn current(&self) -> Option<(HoldNumber, &Arc<Holding>)> {
        let current = self.queue.current()?;
        self.holds.iter().find(|(number, _)| *number == current).map(|(number, hold)| (*number, hold))
    }

    fn add_call(&mut self) -> (CallNumber, mpsc::UnboundedReceiver<Answer>) {
        let (call, (sender, answers)) = (CallNumber(self.next_number()), mpsc::unbounded());
        self.calls.push((call, sender));
        (call, answers)
    }

    /// Where the answers of a call go, which gets more of them unless this is the last one.
    fn answers_to(&mut self, call: CallNumber, is_last: bool) -> Option<mpsc::UnboundedSender<Answer>> {
        let at = self.calls.iter().position(|(other, _)| *other == call)?;
        Some(if is_last { self.calls.swap_remove(at).1 } else { self.calls[at].1.clone() })
    }
}

impl KeptHold {
    pub(crate) fn keep(keeper: &Lockkeeper) -> Arc<Self> {
        Self::new(keeper, UsePolicy::Keep)
    }

    pub(crate) fn share(keeper: &Lockkeeper) -> Arc<Self> {
        Self::new(keeper, UsePolicy::Share)
    }

    fn new(keeper: &Lockkeeper, policy: UsePolicy) -> Arc<Self> {
        let (queue, holds, calls) = (KeptQueue::new(policy), Vec::new(), Vec::new());
        let state = KeptState { queue, holds, calls, number: 0, only_readers: None, attempt: None };
        Arc::new(KeptHold { keeper: keeper.clone(), policy, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, KeptState> {
        self.state.lock().expect("held for a change only")
    }

    fn keeps(&self) -> bool {
        self.policy == UsePolicy::Keep
    }

    /// Whether an attempt outlives its call while other calls wait, and so has no limits of its own.
    pub(crate) fn outlives_its_call(&self, once: bool) -> bool {
        !self.keeps() && !once
    }

    /// Tells the queue what happened, and carries out its commands. Returns the hold that nobody uses any more.
    fn tell(self: &Arc<Self>, event: KeptEvent) -> Option<Holding> {
        let told = self.handle(&mut self.state(), event, None);
        Self::deliver(told)
    }

    /// `error`: what the calls fail with that wait for a failed attempt.
    fn handle(self: &Arc<Self>, state: &mut KeptState, event: KeptEvent, error: Option<&SessionError>) -> Told {
        let mut told = Told::default();
        state.queue.handle(event);
        while let Some(command) = state.queue.next_command() {
            let (call, answer) = match command {
                KeptCommand::Release(number) => {
                    if let Some(at) = state.holds.iter().position(|(other, _)| *other == number) {
                        told.released.push(state.holds.swap_remove(at).1);
                    }
                    continue;
                }
                KeptCommand::GiveUp => {
                    told.given_up = state.attempt.take();
                    continue;
                }
                KeptCommand::Use(call, number) => match state.holds.iter().find(|(other, _)| *other == number) {
                    Some((_, hold)) => (call, Answer::Use(self.use_of(number, hold.clone()))),
                    None => continue,
                },
                KeptCommand::Look(call, hold) => (call, Answer::Look(hold)),
                KeptCommand::Acquire { call, shared } => (call, Answer::Acquire { shared }),
                KeptCommand::Held(call) => (call, Answer::Held),
                KeptCommand::Fail(call) => (call, Answer::Failed(error.cloned().unwrap_or(SessionError::Closed))),
            };
            let is_last = !matches!(answer, Answer::Look(_) | Answer::Acquire { .. });
            // Without a call, the use ends when the answer is dropped.
            let answers = state.answers_to(call, is_last).unwrap_or_else(|| mpsc::unbounded().0);
            told.answers.push((answers, answer));
        }
        told
    }

    /// Returns the hold that nobody uses any more, which ends when it is dropped.
    fn deliver(told: Told) -> Option<Holding> {
        drop(told.given_up);
        let released = told.released.into_iter().filter_map(Arc::into_inner).next_back();
        // The use of a call that has gone ends here.
        told.answers.into_iter().for_each(|(call, answer)| _ = call.unbounded_send(answer));
        released
    }

    /// Gets a use for the caller. `begin` starts an attempt to acquire the lock.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        limits: Limits,
        node_format: NodeFormat,
        caller: AcquireReply,
        begin: impl FnOnce(Reply) + Send + 'static,
    ) {
        let mut state = self.state();
        let open = self.is_open(&mut state);
        let (call, mut answers) = state.add_call();
        let told = self.handle(&mut state, KeptEvent::Call { call, once: limits.once, open }, None);
        drop(state);
        drop(Self::deliver(told));
        let waiting = WaitingCall { uses: self.clone(), call, attempt: None };
        let outcome = match answers.try_recv() {
            Ok(Answer::Use(used)) => Ok(used),
            Ok(Answer::Held) => Err(held(&limits.path)),
            first => {
                let answers = stream::iter(first).chain(answers);
                return self.keeper.sessions().spawn(waiting.wait(
                    limits,
                    node_format,
                    Box::pin(answers),
                    caller,
                    begin,
                ));
            }
        };
        drop(waiting);
        // The caller may have gone, and then its use ends here.
        _ = caller.send(outcome);
    }

    /// Whether a use may begin without a look at the queue.
    fn is_open(&self, state: &mut KeptState) -> bool {
        if !self.keeps() && state.only_readers.as_mut().is_none_or(|changed| changed.now_or_never().is_some()) {
            state.only_readers = None;
            return false;
        }
        state.current().is_some_and(|(_, hold)| self.is_usable(hold))
    }

    /// Whether another use may begin. Not in a hold that can be trusted for less than a third of the session timeout. A kept one
    /// also not while a fenced write of a use may still take effect: the release is ordered behind it.
    fn is_usable(&self, hold: &Holding) -> bool {
        let backed = hold.is_held() && hold.hold().backed_for() >= hold.session_timeout() / 3;
        backed && hold.revocation_requested().is_none() && !(self.keeps() && hold.hold().may_still_write())
    }

    fn use_of(self: &Arc<Self>, number: HoldNumber, hold: Arc<Holding>) -> Holding {
        if self.keeps() {
            hold.hold().attend_again();
        }
        let part = Part { uses: self.clone(), number, hold: Some(hold.clone()) };
        hold.with_use(Box::new(part))
    }

    /// The error of a call whose time is over.
    fn timed_out(&self, path: String, waited: Duration, once: bool) -> AcquireError {
        let ready = self.keeper.sessions().ready_session().filter(|(session, _)| session.link().borrow().connected);
        // An attempt that waits for other contenders had answers. Its own requests are not known here.
        let silence = ready.as_ref().map(|(_, ensemble)| {
            let session = ensemble.unanswered_for();
            Silence { called: Duration::ZERO, answered: self.state().queue.waits(), unanswered: Some(session), session }
        });
        let detail = match silence {
            None => "there is no connection",
            Some(silence) if silence.is_outage() => "a request was not answered",
            // It waits for nothing but the servers.
            Some(_) if once => "the servers answered too slowly",
            Some(_) => return AcquireError::Timeout { path, waited, holder: None, ahead: None },
        };
        let servers = self.keeper.sessions().servers().to_string();
        SessionError::Unreachable { servers, waited, detail: detail.to_owned() }.into()
    }

    /// Looks whether another use of this hold may begin, and tells the queue. Dropping the future tells nothing: the call is to leave then.
    async fn look_for(self: &Arc<Self>, call: CallNumber, hold: HoldNumber, node_format: NodeFormat) {
        let usable = |state: &KeptState| {
            state.current().filter(|(at, it)| *at == hold && self.is_usable(it)).map(|(_, it)| it.clone())
        };
        let mut only_readers = None;
        if !self.keeps() {
            // The hold must be able to end meanwhile.
            let looking = usable(&self.state()).map(|hold| self.look(&hold, node_format));
            only_readers = OptionFuture::from(looking).await.flatten();
        }
        let mut state = self.state();
        let is_usable = usable(&state).is_some() && (self.keeps() || only_readers.is_some());
        state.only_readers = only_readers;
        let told = self.handle(&mut state, KeptEvent::Looked(call, is_usable), None);
        drop(state);
        drop(Self::deliver(told));
    }

    /// Lists the queue. Returns the watch on it, unless a contender is in it that ends the uses.
    fn look(&self, hold: &Holding, node_format: NodeFormat) -> impl Future<Output = Option<Watcher>> + Send + use<> {
        let listing = hold.session().ensemble().map(|ensemble| ensemble.list_and_watch(hold.path()));
        let (node, keeps) = (hold.node(), self.keeps());
        async move {
            let (names, changed) = listing?.await.ok()?;
            let queue = Queue::read(node_format, &names);
            let own = queue.position(node.rsplit('/').next()?)?;
            let mut others = queue.entries().iter().enumerate().filter(|(at, _)| *at != own);
            others.all(|(_, other)| !keeps && other.mode == Mode::Read).then_some(changed)
        }
    }

    /// Keeps the hold no longer when another contender comes, the hold is lost, or it is asked to release.
    fn watch(self: &Arc<Self>, number: HoldNumber, hold: &Holding, node_format: NodeFormat) {
        let (uses, looking) = (Arc::downgrade(self), self.look(hold, node_format));
        let (mut asked, lost) = (hold.hold().asked.subscribe(), hold.cancelled_when_lost());
        let others_come = async {
            if let Some(changed) = looking.await {
                let _: Fired = changed.await;
            }
        };
        self.keeper.sessions().spawn(async move {
            tokio::select! {
                biased;
                () = lost.cancelled() => {}
                // Also when the hold has ended.
                _ = asked.wait_for(Option::is_some) => {}
                () = others_come => {}
            }
            if let Some(uses) = uses.upgrade() {
                drop(uses.tell(KeptEvent::Unwanted(number)));
            }
        });
    }

    /// The attempt of the call with the turn has the lock.
    fn granted(self: &Arc<Self>, call: CallNumber, hold: Holding, node_format: NodeFormat) {
        let mut state = self.state();
        let number = HoldNumber(state.next_number());
        if self.keeps() {
            self.watch(number, &hold, node_format);
        }
        state.holds.push((number, Arc::new(hold)));
        state.only_readers = None;
        let told = self.handle(&mut state, KeptEvent::Granted(call, number), None);
        drop(state);
        drop(Self::deliver(told));
    }

    /// Whether the next use gets a kept hold without a round trip.
    pub(crate) fn is_kept(&self) -> bool {
        if self.keeper.sessions().check_process().is_err() {
            return false;
        }
        let state = self.state();
        !state.queue.is_taken() && state.current().is_some_and(|(_, hold)| self.is_usable(hold))
    }

    /// Releases a kept hold after the uses that were requested before.
    pub(crate) async fn release_kept(self: &Arc<Self>) -> Result<(), ReleaseError> {
        if self.keeper.sessions().check_process().is_err() {
            return Err(ReleaseError::NotHeld { loss: Loss::Forked });
        }
        let (call, mut answers) = self.state().add_call();
        let _waiting = WaitingCall { uses: self.clone(), call, attempt: None };
        self.tell(KeptEvent::Call { call, once: false, open: false });
        // It has the turn.
        _ = answers.next().await;
        let current = self.state().queue.current();
        match current.and_then(|hold| self.tell(KeptEvent::Unwanted(hold))) {
            Some(hold) => hold.release().await,
            None => Ok(()),
        }
    }
}

/// The error of a call that does not wait for other contenders. Who they are is not known here.
fn held(path: &str) -> AcquireError {
    AcquireError::Held { path: path.to_owned(), holder: None, ahead: None }
}

impl fmt::Debug for KeptHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptHold")
            .field("policy", &self.policy)
            .field("is_kept", &self.is_kept())
            .finish_non_exhaustive()
    }
}

/// A call that waits for a use. Dropping it leaves the queue, and the next call goes on with the shared attempt.
struct WaitingCall {
    uses: Arc<KeptHold>,
    call: CallNumber,
    /// The shared attempt, while this call is at it.
    attempt: Option<SharedAttempt>,
}

impl WaitingCall {
    /// Waits for a use, within the limits of the call. Dropping the future leaves the queue.
    async fn wait(
        mut self,
        limits: Limits,
        node_format: NodeFormat,
        mut answers: BoxStream<'static, Answer>,
        mut caller: AcquireReply,
        begin: impl FnOnce(Reply) + Send,
    ) {
        let Limits { path, once, timeout, deadline, cancel } = limits;
        let uses = self.uses.clone();
        let mut over = pin!(async {
            tokio::select! {
                biased;
                () = cancelled(cancel.as_ref()) => AcquireError::Cancelled { path: path.clone() },
                () = passed(deadline) => uses.timed_out(path.clone(), timeout.unwrap_or_default(), once),
            }
        });
        let mut shared = None;
        let answer = tokio::select! {
            biased;
            () = caller.closed() => return,
            error = &mut over => Err(error),
            answer = self.answer(node_format, &mut answers, &mut shared) => answer,
        };
        let outcome = match (answer, shared) {
            (Ok(None), Some(shared)) => tokio::select! {
                biased;
                () = caller.closed() => return,
                // Otherwise the attempt ends by them.
                error = &mut over, if shared => Err(error),
                outcome = self.fill(node_format, (shared, once), &mut answers, begin) => outcome,
            },
            (answer, _) => answer,
        };
        // Otherwise the caller's next call could come before this one has left, and would go on with its attempt.
        drop(self);
        _ = caller.send(outcome.and_then(|used| used.ok_or_else(|| held(&path))));
    }

    /// Waits for the last answer. `None`: the call gets nothing, or is to acquire the lock, `shared` or not. Dropping the future loses
    /// no answer: the use of one that was not taken ends with the call.
    async fn answer(
        &self,
        node_format: NodeFormat,
        answers: &mut BoxStream<'static, Answer>,
        shared: &mut Option<bool>,
    ) -> Result<Option<Holding>, AcquireError> {
        loop {
            match answers.next().await {
                Some(Answer::Use(used)) => return Ok(Some(used)),
                Some(Answer::Look(hold)) => self.uses.look_for(self.call, hold, node_format).await,
                Some(Answer::Acquire { shared: is_shared }) => {
                    *shared = Some(is_shared);
                    return Ok(None);
                }
                Some(Answer::Held) => return Ok(None),
                Some(Answer::Failed(error)) => return Err(error.into()),
                None => return Err(SessionError::Closed.into()),
            }
        }
    }

    /// Acquires the lock. Dropping the future ends the attempt; if it `is_shared`, the next call goes on with it once this one leaves.
    async fn fill(
        &mut self,
        node_format: NodeFormat,
        (is_shared, once): (bool, bool),
        answers: &mut BoxStream<'static, Answer>,
        begin: impl FnOnce(Reply),
    ) -> Result<Option<Holding>, AcquireError> {
        let (uses, call) = (self.uses.clone(), self.call);
        let mut own = None;
        if is_shared {
            self.attempt = uses.state().attempt.take();
        }
        let attempt = if is_shared { &mut self.attempt } else { &mut own };
        let attempt = attempt.get_or_insert_with(|| {
            let ((reply, outcome), waits) = (oneshot::channel(), latest::Sender::new(false));
            let attempt = SharedAttempt { outcome, waits: waits.subscribe() };
            begin((reply, Arc::new(waits)));
            attempt
        });
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut attempt.outcome => break outcome,
                Ok(()) = attempt.waits.changed(), if is_shared => {
                    let waits = *attempt.waits.borrow();
                    if waits && once {
                        // The next call goes on with it.
                        uses.state().attempt = self.attempt.take();
                        uses.tell(KeptEvent::Waits(true));
                        return Ok(None);
                    }
                    uses.tell(KeptEvent::Waits(waits));
                }
            }
        };
        self.attempt = None;
        match outcome.unwrap_or(Err(SessionError::Closed.into())) {
            Ok(hold) => uses.granted(call, hold, node_format),
            Err(error) => {
                // A shared attempt has no limits of a call, so the next one would only meet the same.
                let for_all = match &error {
                    AcquireError::Session(error) if is_shared => Some(error),
                    _ => None,
                };
                let failed = KeptEvent::Failed { call, for_all: for_all.is_some() };
                let told = uses.handle(&mut uses.state(), failed, for_all);
                drop(KeptHold::deliver(told));
                return Err(error);
            }
        }
        Ok(match answers.next().await {
            Some(Answer::Use(used)) => Some(used),
            _ => None,
        })
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        let mut state = self.uses.state();
        state.attempt = self.attempt.take().or(state.attempt.take());
        drop(state.answers_to(self.call, true));
        let told = self.uses.handle(&mut state, KeptEvent::Gone(self.call), None);
        drop(state);
        drop(KeptHold::deliver(told));
    }
}

/// One use of the hold.
struct Part {
    uses: Arc<KeptHold>,
    number: HoldNumber,
    /// `None` once it has ended.
    hold: Option<Arc<Holding>>,
}

impl UseOfKept for Part {
    fn end(&mut self) -> Option<Holding> {
        let hold = self.hold.take()?;
        if self.uses.keeps() {
            hold.hold().attend_later();
        }
        let usable = self.uses.is_usable(&hold);
        drop(hold);
        self.uses.tell(KeptEvent::UseEnded { hold: self.number, usable })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.end());
        if self.uses.keeps() {
            self.uses.tell(KeptEvent::TurnOver);
        }
    }
}
