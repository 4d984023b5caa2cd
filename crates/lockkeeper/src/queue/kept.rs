//! One hold for several uses of this process: one after the other ([`Mutex::keep`](crate::Mutex::keep)), or those of readers
//! together ([`Access::share`](crate::request::Access::share)).
//!
//! To the protocol, it is one hold of one contender. So nothing here decides who holds: this only chooses who uses the hold, and
//! when it is released. (Chubby's clients keep locks in the same way: Burrows, "The Chubby lock service", section 3.)

use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use lockkeeper_core::{Loss, Mode, NodeFormat, Queue, Silence};
use lockkeeper_session::ensemble::{Fired, Watcher};
use lockkeeper_session::wait::{cancelled, passed};
use lockkeeper_session::{CancellationToken, latest};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::{AcquireError, ReleaseError, SessionError};
use crate::hold::AcquireReply;
use crate::hold::holding::{Holding, UseOfKept};
use crate::keeper::Lockkeeper;

/// How several uses have one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// One after the other. The hold stays between two uses until another contender comes.
    Keep,
    /// Together, while only readers are in the queue. The hold ends with the last use.
    Share,
}

/// A hold for several uses, and the calls that wait for a use.
pub(crate) struct KeptHold {
    keeper: Lockkeeper,
    policy: Policy,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The hold that another use may get. Each use has a reference too, which is added and dropped under the mutex.
    hold: Option<Arc<Holding>>,
    /// Resolves when the queue has changed since a listing showed nothing but readers. `None` if it may have changed.
    only_readers: Option<Watcher>,
    /// A call or a use has the [`Renewal`].
    is_taken: bool,
    /// The shared attempt is known to wait for other contenders.
    waits: bool,
    /// The calls that wait for it, in their order.
    waiting: VecDeque<Waiting>,
}

/// A call that waits for a use or the turn.
struct Waiting {
    /// It does not wait for other contenders.
    once: bool,
    call: oneshot::Sender<Answer>,
}

/// What a call gets that has waited.
enum Answer {
    Use(Holding),
    /// It finds or acquires the hold.
    Renewal(Renewal),
    /// The shared attempt waits for other contenders, and the call does not.
    Held,
    /// No call of this process gets a session.
    Failed(SessionError),
}

/// An attempt to acquire the lock.
struct Attempt {
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

impl KeptHold {
    pub(crate) fn keep(keeper: &Lockkeeper) -> Arc<Self> {
        Self::new(keeper, Policy::Keep)
    }

    pub(crate) fn share(keeper: &Lockkeeper) -> Arc<Self> {
        Self::new(keeper, Policy::Share)
    }

    fn new(keeper: &Lockkeeper, policy: Policy) -> Arc<Self> {
        Arc::new(KeptHold { keeper: keeper.clone(), policy, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("held for a change only")
    }

    fn keeps(&self) -> bool {
        self.policy == Policy::Keep
    }

    /// Whether an attempt outlives its call while other calls wait, and so has no limits of its own.
    pub(crate) fn outlives_its_call(&self, once: bool) -> bool {
        !self.keeps() && !once
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
        let outcome = match self.take_open(&mut state) {
            Some(used) => Ok(used),
            None if limits.once && state.is_taken && (self.keeps() || state.waits) => Err(held(&limits.path)),
            None => {
                let served = self.line_up(&mut state, limits.once);
                drop(state);
                return self.keeper.sessions().spawn(self.clone().wait(limits, node_format, served, caller, begin));
            }
        };
        // The caller may have gone, and then its use ends here.
        drop(state);
        _ = caller.send(outcome);
    }

    /// A use of the hold, if that needs no look at the queue.
    fn take_open(self: &Arc<Self>, state: &mut State) -> Option<Holding> {
        if self.keeps() {
            if state.is_taken {
                return None;
            }
        } else if state.only_readers.as_mut()?.now_or_never().is_some() {
            state.only_readers = None;
            return None;
        }
        let hold = state.hold.clone().filter(|hold| self.is_usable(hold))?;
        state.is_taken |= self.keeps();
        let turn = self.keeps().then(|| Renewal { uses: self.clone(), attempt: None });
        Some(self.use_of(hold, turn))
    }

    /// Whether another use may begin. Not in a hold that can be trusted for less than a third of the session timeout. A kept one
    /// also not while a fenced write of a use may still take effect: the release is ordered behind it.
    fn is_usable(&self, hold: &Holding) -> bool {
        let backed = hold.is_held() && hold.hold().backed_for() >= hold.session_timeout() / 3;
        backed && hold.revocation_requested().is_none() && !(self.keeps() && hold.hold().may_still_write())
    }

    fn use_of(self: &Arc<Self>, hold: Arc<Holding>, turn: Option<Renewal>) -> Holding {
        if self.keeps() {
            hold.hold().attend_again();
        }
        let part = Part { uses: self.clone(), hold: Some(hold.clone()), _turn: turn };
        hold.with_use(Box::new(part))
    }

    /// Waits for a use or the turn, behind the calls that came before.
    fn line_up(self: &Arc<Self>, state: &mut State, once: bool) -> oneshot::Receiver<Answer> {
        let (call, served) = oneshot::channel();
        if state.is_taken {
            if state.waiting.len() == state.waiting.capacity() {
                // Those of calls that gave up.
                state.waiting.retain(|waiting| !waiting.call.is_closed());
            }
            state.waiting.push_back(Waiting { once, call });
        } else {
            state.is_taken = true;
            _ = call.send(Answer::Renewal(Renewal { uses: self.clone(), attempt: None }));
        }
        served
    }

    /// Whether the shared attempt is known to wait for other contenders. If it does, the calls that do not wait for those get nothing.
    fn shared_attempt_waits(&self, waits: bool) {
        let mut state = self.state();
        state.waits = waits;
        if waits {
            let (tries, others) =
                std::mem::take(&mut state.waiting).into_iter().partition::<VecDeque<_>, _>(|it| it.once);
            state.waiting = others;
            tries.into_iter().for_each(|tried| _ = tried.call.send(Answer::Held));
        }
    }

    /// Waits for a use, within the limits of the call.
    async fn wait(
        self: Arc<Self>,
        limits: Limits,
        node_format: NodeFormat,
        served: oneshot::Receiver<Answer>,
        mut caller: AcquireReply,
        begin: impl FnOnce(Reply) + Send,
    ) {
        let Limits { path, once, timeout, deadline, cancel } = limits;
        let mut over = pin!(async {
            tokio::select! {
                biased;
                () = cancelled(cancel.as_ref()) => AcquireError::Cancelled { path: path.clone() },
                () = passed(deadline) => self.timed_out(path.clone(), timeout.unwrap_or_default(), once),
            }
        });
        let find = async {
            match served.await.unwrap_or(Answer::Failed(SessionError::Closed)) {
                Answer::Use(used) => Ok(Ok(used)),
                Answer::Held => Ok(Err(held(&path))),
                Answer::Failed(error) => Ok(Err(error.into())),
                Answer::Renewal(turn) => match turn.present(node_format).await {
                    Some((hold, only_readers)) => Ok(Ok(turn.settle(hold, only_readers))),
                    None => Err(turn),
                },
            }
        };
        let found = tokio::select! {
            biased;
            () = caller.closed() => return,
            error = &mut over => Ok(Err(error)),
            found = find => found,
        };
        let outcome = match found {
            Ok(outcome) => outcome,
            Err(turn) => {
                let is_shared = turn.attempt.is_some() || self.outlives_its_call(once);
                tokio::select! {
                    biased;
                    () = caller.closed() => return,
                    // Otherwise the attempt ends by them.
                    error = &mut over, if is_shared => Err(error),
                    outcome = turn.fill(node_format, is_shared, once, begin) => outcome.unwrap_or_else(|| Err(held(&path))),
                }
            }
        };
        _ = caller.send(outcome);
    }

    /// The error of a call whose time is over.
    fn timed_out(&self, path: String, waited: Duration, once: bool) -> AcquireError {
        let ready = self.keeper.sessions().ready_session().filter(|(session, _)| session.link().borrow().connected);
        // An attempt that waits for other contenders had answers. Its own requests are not known here.
        let silence = ready.as_ref().map(|(_, ensemble)| {
            let session = ensemble.unanswered_for();
            Silence { called: Duration::ZERO, answered: self.state().waits, unanswered: Some(session), session }
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

    /// The hold, if the call that has the turn may use it, and the watch on its queue if it is shared.
    async fn present(&self, node_format: NodeFormat) -> Option<(Arc<Holding>, Option<Watcher>)> {
        if self.keeps() {
            // The release is sent before the next create, so that this process queues behind those that came meanwhile.
            drop(self.forget(|hold| !self.is_usable(hold)));
            return Some((self.state().hold.clone()?, None));
        }
        // The hold must be able to end meanwhile.
        let looking = self.look(self.state().hold.as_ref().filter(|hold| self.is_usable(hold))?, node_format);
        let only_readers = looking.await?;
        let state = self.state();
        let hold = state.hold.clone().filter(|hold| self.is_usable(hold))?;
        Some((hold, Some(only_readers)))
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
    fn watch(self: &Arc<Self>, hold: &Arc<Holding>, node_format: NodeFormat) {
        let (uses, watched, looking) = (Arc::downgrade(self), Arc::downgrade(hold), self.look(hold, node_format));
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
                drop(uses.forget(|hold| Arc::as_ptr(hold) == watched.as_ptr()));
            }
        });
    }

    /// No other use gets the hold, if it is the one that is meant. Returns the hold if nobody uses it.
    fn forget(&self, is_meant: impl FnOnce(&Arc<Holding>) -> bool) -> Option<Holding> {
        self.state().hold.take_if(|hold| is_meant(hold)).and_then(Arc::into_inner)
    }

    /// Whether the next use gets a kept hold without a round trip.
    pub(crate) fn is_kept(&self) -> bool {
        if self.keeper.sessions().check_process().is_err() {
            return false;
        }
        let state = self.state();
        !state.is_taken && state.hold.as_ref().is_some_and(|hold| self.is_usable(hold))
    }

    /// Releases a kept hold after the uses that were requested before.
    pub(crate) async fn release_kept(self: &Arc<Self>) -> Result<(), ReleaseError> {
        if self.keeper.sessions().check_process().is_err() {
            return Err(ReleaseError::NotHeld { loss: Loss::Forked });
        }
        let served = self.line_up(&mut self.state(), false);
        let _turn = served.await;
        match self.forget(|_| true) {
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

/// The right to find or acquire the hold, which one call at a time has. With a hold that is kept, its use has it. Dropping it
/// passes it on.
struct Renewal {
    uses: Arc<KeptHold>,
    /// The shared attempt, which the next call continues when this one leaves.
    attempt: Option<Attempt>,
}

impl Renewal {
    /// Finds the hold, unless an attempt is under way.
    async fn present(&self, node_format: NodeFormat) -> Option<(Arc<Holding>, Option<Watcher>)> {
        if self.attempt.is_some() { None } else { self.uses.present(node_format).await }
    }

    /// Acquires the lock. If the attempt `is_shared`, another call continues it when the future is dropped. A call that tries only
    /// `once` leaves a shared attempt, with `None`, when it is known to wait for other contenders.
    async fn fill(
        mut self,
        node_format: NodeFormat,
        is_shared: bool,
        once: bool,
        begin: impl FnOnce(Reply),
    ) -> Option<Result<Holding, AcquireError>> {
        let mut own = None;
        let attempt = if is_shared { &mut self.attempt } else { &mut own };
        let attempt = attempt.get_or_insert_with(|| {
            let ((reply, outcome), waits) = (oneshot::channel(), latest::Sender::new(false));
            let attempt = Attempt { outcome, waits: waits.subscribe() };
            begin((reply, Arc::new(waits)));
            attempt
        });
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut attempt.outcome => break outcome,
                Ok(()) = attempt.waits.changed(), if is_shared => {
                    let waits = *attempt.waits.borrow();
                    self.uses.shared_attempt_waits(waits);
                    if waits && once {
                        return None;
                    }
                }
            }
        };
        self.attempt = None;
        let hold = match outcome.unwrap_or(Err(SessionError::Closed.into())) {
            Ok(hold) => Arc::new(hold),
            Err(error) => {
                if let (true, AcquireError::Session(error)) = (is_shared, &error) {
                    // It has no limits of a call, so the next one would only meet the same.
                    let waiting = std::mem::take(&mut self.uses.state().waiting);
                    waiting.into_iter().for_each(|waiting| _ = waiting.call.send(Answer::Failed(error.clone())));
                }
                return Some(Err(error));
            }
        };
        let (uses, kept) = (self.uses.clone(), hold.clone());
        let used = self.settle(hold, None);
        if uses.keeps() {
            uses.watch(&kept, node_format);
        }
        Some(Ok(used))
    }

    /// Uses the hold. All calls that wait for a shared one use it too.
    fn settle(self, hold: Arc<Holding>, only_readers: Option<Watcher>) -> Holding {
        let uses = self.uses.clone();
        let mut state = uses.state();
        (state.hold, state.only_readers, state.waits) = (Some(hold.clone()), only_readers, false);
        if uses.keeps() {
            return uses.use_of(hold, Some(self));
        }
        let serve = |waiting| (waiting, uses.use_of(hold.clone(), None));
        let served: Vec<_> = std::mem::take(&mut state.waiting).into_iter().map(serve).collect();
        let used = uses.use_of(hold, None);
        drop(state);
        for (waiting, used) in served {
            // The use of a call that has gone ends here.
            _ = waiting.call.send(Answer::Use(used));
        }
        used
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        let next = {
            let mut state = self.uses.state();
            let next = std::iter::from_fn(|| state.waiting.pop_front()).find(|waiting| !waiting.call.is_closed());
            state.is_taken = next.is_some();
            state.waits &= next.is_some() && self.attempt.is_some();
            next
        };
        if let Some(next) = next {
            // If that call goes meanwhile, the turn is dropped with it, and passes on.
            _ = next.call.send(Answer::Renewal(Renewal { uses: self.uses.clone(), attempt: self.attempt.take() }));
        }
    }
}

/// One use of the hold.
struct Part {
    uses: Arc<KeptHold>,
    /// `None` once it has ended.
    hold: Option<Arc<Holding>>,
    /// Passes on after the use.
    _turn: Option<Renewal>,
}

impl UseOfKept for Part {
    fn end(&mut self) -> Option<Holding> {
        let hold = self.hold.take()?;
        if self.uses.keeps() {
            hold.hold().attend_later();
        }
        let mut state = self.uses.state();
        let stays = if self.uses.keeps() {
            self.uses.is_usable(&hold)
        } else {
            // There are other references than this one and that of the state.
            Arc::strong_count(&hold) > 2
        };
        if !stays {
            drop(state.hold.take_if(|current| Arc::ptr_eq(current, &hold)));
        }
        Arc::into_inner(hold)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.end());
    }
}
