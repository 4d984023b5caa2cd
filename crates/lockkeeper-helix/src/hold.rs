//! The task of a leased lock while it is held: it watches, renews, cleans up after a preemption, and releases.
//!
//! The task runs on the library's thread, from the grant until a read of the record no longer shows this hold. It
//! survives sessions, as the record does. The user's cleanup runs on a separate thread, never here.

mod ending;
mod noted;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_channel::mpsc::{UnboundedReceiver, unbounded};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use lockkeeper::error::ReleaseError;
use lockkeeper::hold::{Hold, HoldOptions, HoldRequest, Leaving, guard_of};
use lockkeeper::{FencingToken, Lockkeeper, Loss, Revocation};
use lockkeeper_session::ensemble::{OpError, Watcher};
use lockkeeper_session::wait::or_never;
use lockkeeper_session::{KeepTrusted, Trust};
use tokio::sync::{mpsc, oneshot, watch};

use self::noted::LeaseNote;
use crate::error::LeaseError;
use crate::guard::{HelixGuard, Order, Preemption};
use crate::leases::Leases;
use crate::node::{LockNode, Look, LookError, SessionRef, Stepped, notice_ms as notice_ms_of};
use crate::protocol::{Answer, Extent, News, OwnedHold, Preempting, Refusal, Shown, Terms, Wish};
use crate::recorder::{CleanupAccount, HoldAccount, Recorder};
use crate::status::LockStatus;
use crate::trust::{Following, Lease, LeaseTrust, Versions};

const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A cleanup in the user's code.
pub(super) type CleanupListener = Arc<dyn Fn(Preemption) -> BoxFuture<'static, ()> + Send + Sync>;

/// What cleans up when the hold is preempted.
#[derive(Clone, Default)]
pub(super) enum Cleanup {
    /// Nothing: there is nothing to clean up.
    #[default]
    Nobody,
    /// The code that has the guard, until it releases it.
    Guard,
    /// This function, until it returns; in this runtime, if there is one.
    Listener(CleanupListener, Option<tokio::runtime::Handle>),
}

pub(super) struct LeaseTask {
    keeper: Lockkeeper,
    node: LockNode,
    terms: Terms,
    cleanup: Cleanup,
    status: Arc<watch::Sender<LockStatus>>,
    session_ref: SessionRef,
    hold: Arc<Hold>,
    trust: Arc<LeaseTrust>,
    _following: Following,
    /// Decides how the hold goes on.
    owned: OwnedHold,
    requests: UnboundedReceiver<HoldRequest>,
    orders: mpsc::UnboundedReceiver<Order>,
    preemption: watch::Sender<Option<Preemption>>,
    /// How often the session had lost its connection when the record last showed no requestor, if the session was trusted
    /// then and is kept trusted.
    unasked: Option<u32>,
    /// Whether the hold is to be kept after the lease's end, until there is a requestor.
    keeps: bool,
    /// Keeps the session trusted for that, from some time before the lease's end.
    kept: Option<KeepTrusted>,
    cleaned: Option<oneshot::Receiver<()>>,
    /// The cleanup has returned, or the guard was released.
    cleaned_up: bool,
    recorder: Recorder,
    /// Set until the hold has ended.
    account: Option<HoldAccount>,
    /// Set while a cleanup runs.
    cleaning: Option<CleanupAccount>,
    /// The note about the hold.
    note: Option<LeaseNote>,
    /// Dropped when the hold is released.
    _leaving: Leaving,
}

/// What woke the task.
enum LeaseWake {
    Looked(Result<Box<Look>, LookError>),
    Changed,
    SessionOver,
    Closing,
    LeaseEnded,
    LeaseEnding,
    Cleaned,
    Order(Order),
    Refuse(String),
    Release(oneshot::Sender<Result<(), ReleaseError>>),
    Verify(oneshot::Sender<Result<(), String>>),
    Dropped,
    Other,
}

impl LeaseTask {
    pub(super) fn begin(
        keeper: Lockkeeper,
        node: LockNode,
        terms: Terms,
        (cleanup, options): (Cleanup, HoldOptions),
        (status, recorder): (Arc<watch::Sender<LockStatus>>, Recorder),
        session_ref: SessionRef,
        (token, until_ms, until): (FencingToken, i64, Duration),
    ) -> (LeaseTask, HelixGuard) {
        let (session, owner) = (session_ref.session.clone(), (terms.id.clone(), until_ms));
        let lease = Lease { session, until, unasked: None, owner, versions: None };
        let trust = Arc::new(LeaseTrust::new(node.path.clone(), lease));
        let hold = Hold::trusting(node.path.clone(), token, trust.clone(), &options);
        let (request, requests) = unbounded();
        let (order, orders) = mpsc::unbounded_channel();
        let (preemption, preempted) = watch::channel(None);
        let leaving = hold.leaving();
        let guard = guard_of(hold.clone(), request);
        status.send_replace(LockStatus::Locked);
        tracing::debug!(path = %node.path, by = %terms.id, %token, "granted");
        let account = HoldAccount::open(recorder.clone(), &terms.id, session_ref.session.now(), terms.lease_ms);
        let guard = HelixGuard::new(guard, keeper.clone(), order, preempted, terms.id.clone());
        let task = LeaseTask {
            owned: OwnedHold::new(&terms, until_ms),
            keeper,
            node,
            terms,
            cleanup,
            status,
            session_ref,
            hold,
            _following: Following(trust.clone()),
            trust,
            requests,
            orders,
            preemption,
            unasked: None,
            keeps: false,
            kept: None,
            cleaned: None,
            cleaned_up: false,
            recorder,
            account: Some(account),
            cleaning: None,
            note: None,
            _leaving: leaving,
        };
        (task, guard)
    }

    /// Replaces the previous hold of the same owner.
    pub(super) fn supersede(&self) {
        self.keeper.sessions().shared::<Leases>().add(&self.terms.id, &self.hold);
    }

    pub(super) async fn run(mut self) {
        let mut watcher: Option<Watcher> = None;
        let mut renewing = Vec::new();
        let mut verifying: Vec<oneshot::Sender<Result<(), String>>> = Vec::new();
        let mut refusing: Option<String> = None;
        loop {
            if let Some(loss) = self.hold.loss() {
                self.count_hold();
                if loss == Loss::LeaseEnded && self.owned.is_wanted() {
                    // The requestor need not wait until it knows as well that the lease, or the notice, is over.
                    return self.give_back().await;
                }
            }
            let wake = match &mut watcher {
                Some(_) => self.wait(&mut watcher).await,
                None => self.look().await,
            };
            match wake {
                LeaseWake::Looked(Ok(look)) => {
                    if !self.judge(&look) {
                        self.ended();
                        return self.outlive_by_its_cleanup();
                    }
                    if matches!(self.cleanup, Cleanup::Nobody) && self.owned.is_preempted() {
                        // There is nothing to clean up, so the requestor need not wait.
                        return self.make_room().await;
                    }
                    for asked in verifying.drain(..) {
                        _ = asked.send(Ok(()));
                    }
                    if let Some(renewal) = renewing.pop() {
                        if let Some(unsure) = self.renew(*look, renewal).await {
                            renewing.push(unsure);
                        }
                        continue;
                    }
                    if let Some(reason) = refusing.take() {
                        if !self.refuse(*look, &reason).await {
                            refusing = Some(reason);
                        }
                        continue;
                    }
                    watcher = look.watcher;
                }
                LeaseWake::Looked(Err(failure)) => {
                    self.kept = None;
                    if let Err(error) = self.session_ref.recover(&self.keeper, failure).await {
                        return self.cut_off(&error);
                    }
                }
                LeaseWake::Changed => watcher = None,
                LeaseWake::SessionOver => {
                    (watcher, self.kept) = (None, None);
                    if let Err(error) =
                        self.session_ref.recover(&self.keeper, LookError::Passing(OpError::SessionOver)).await
                    {
                        return self.cut_off(&error);
                    }
                }
                // The lease may have been prolonged, or kept, since the timer was set.
                LeaseWake::LeaseEnded => _ = self.hold.judge(),
                // The next look shows the session's state from here on.
                LeaseWake::LeaseEnding => {
                    self.kept = Some(self.session_ref.session.keep_trusted());
                    watcher = None;
                }
                LeaseWake::Cleaned => return self.make_room().await,
                LeaseWake::Order(Order::Renew(renewal)) => {
                    renewing.push(renewal);
                    watcher = None;
                }
                LeaseWake::Order(Order::Transfer(to, done)) => return self.transfer(&to, done).await,
                LeaseWake::Verify(answer) => {
                    verifying.push(answer);
                    self.session_ref.distrust();
                    watcher = None;
                }
                LeaseWake::Refuse(reason) => {
                    refusing = Some(reason);
                    watcher = None;
                }
                LeaseWake::Release(confirm) => return self.release(confirm).await,
                LeaseWake::Dropped => {
                    self.cleaned_up = true;
                    return self.give_back().await;
                }
                LeaseWake::Closing => {
                    self.hold.lose(Loss::Closed);
                    return self.give_back().await;
                }
                LeaseWake::Other => {}
            }
        }
    }

    /// Reads the record; the lease may expire meanwhile.
    async fn look(&mut self) -> LeaseWake {
        // It may have changed. Heartbeats from now on do not show that no client asks.
        self.trust.freeze();
        let left = self.lease_left();
        let hold = self.hold.clone();
        let mut looked = std::pin::pin!(self.node.look(&mut self.session_ref));
        tokio::select! {
            biased;
            () = tokio::time::sleep(left), if hold.loss().is_none() => {
                hold.lose(Loss::LeaseEnded);
                LeaseWake::Looked(looked.await.map(Box::new))
            }
            looked = &mut looked => LeaseWake::Looked(looked.map(Box::new)),
        }
    }

    /// Waits for the next event.
    async fn wait(&mut self, watcher: &mut Option<Watcher>) -> LeaseWake {
        let left = self.lease_left();
        let closing = self.session_ref.session.closing();
        let ending = self.depends_in();
        let (unasked, mut link) = (self.unasked, self.session_ref.session.link());
        let (unconfirmed, mut heartbeats) =
            (self.kept.is_some() && unasked.is_none(), self.session_ref.session.heartbeats());
        tokio::select! {
            biased;
            () = tokio::time::sleep(left), if self.hold.loss().is_none() => LeaseWake::LeaseEnded,
            () = self.session_ref.over() => LeaseWake::SessionOver,
            () = tokio::time::sleep(ending.unwrap_or_default()), if ending.is_some() => LeaseWake::LeaseEnding,
            Ok(()) = heartbeats.changed(), if unconfirmed => LeaseWake::Changed,
            // The events of the meantime come in no order.
            _ = link.wait_for(|link| link.connected && Some(link.disconnects) != unasked), if unasked.is_some() => {
                LeaseWake::Changed
            }
            () = closing.cancelled() => LeaseWake::Closing,
            _ = or_never(watcher.as_mut()) => LeaseWake::Changed,
            // An error means that the cleanup panicked, which ends it as well.
            _ = or_never(self.cleaned.as_mut()) => LeaseWake::Cleaned,
            Some(order) = self.orders.recv() => LeaseWake::Order(order),
            request = self.requests.next() => match request {
                Some(HoldRequest::Release(confirm)) => LeaseWake::Release(confirm),
                Some(HoldRequest::Verify(answer)) => LeaseWake::Verify(answer),
                Some(HoldRequest::Refuse(reason)) => LeaseWake::Refuse(reason.into()),
                Some(HoldRequest::Note(note)) => {
                    self.note = Some(LeaseNote::new(note, self.hold.clone(), self.keeper.sessions().clock()));
                    LeaseWake::Other
                }
                Some(_) => LeaseWake::Other,
                None => LeaseWake::Dropped,
            },
            () = self.hold.unattended.notified() => LeaseWake::Dropped,
        }
    }

    /// How long the hold can be trusted from now.
    fn lease_left(&self) -> Duration {
        self.hold.ends().saturating_sub(self.session_ref.session.now())
    }

    /// How long from now the hold will depend on heartbeats, if it will and no heartbeats are sent yet.
    fn depends_in(&self) -> Option<Duration> {
        let session = &self.session_ref.session;
        let waits = self.keeps && self.kept.is_none();
        waits.then(|| self.trust.until().saturating_sub(session.timeout()).saturating_sub(session.now()))
    }

    /// Whether the record shows this hold.
    fn is_shown(&mut self, look: &Look) -> bool {
        self.owned.is_shown(&look.record, self.session_ref.written_ms())
    }

    /// Processes the record. Returns `false` if it no longer shows this hold.
    fn judge(&mut self, look: &Look) -> bool {
        let session_ms = notice_ms_of(&self.session_ref.session);
        match self.owned.look(look.seen(), look.now, self.session_ref.written_ms(), session_ms) {
            Shown::Over { loss, by } => {
                if let Some((by, priority)) = by.filter(|_| self.hold.loss().is_none()) {
                    self.tell(by, priority, [Duration::ZERO; 2], false);
                }
                self.hold.lose(loss);
                false
            }
            Shown::GoesOn(extent, news) => {
                self.lease(look, extent, look.versions());
                for news in news {
                    self.report(look, news);
                }
                true
            }
        }
    }

    fn report(&mut self, look: &Look, news: News) {
        match news {
            News::Preempted(preempting) => self.preempted(look, preempting),
            News::NotPreempted(asked) => {
                // In this order, so that a task that sees that nobody preempts finds no such request.
                self.hold.ask(asked);
                self.preemption.send_replace(None);
            }
            News::Asked(asked) => self.hold.ask(Some(asked)),
        }
    }

    fn preempted(&mut self, look: &Look, preempting: Preempting) {
        let Preempting { by, priority, since_ms, cleanup_ms, cleaned_ms, wanted_ms, lease_over } = preempting;
        let (lease_left, now) = (self.lease_left(), self.session_ref.session.now());
        let left = |ms| match lease_over {
            // The notice is what is left of the hold.
            true => lease_left,
            false => look.safe_until(ms).saturating_sub(now),
        };
        // An owner without a time for it has no cleanup that could be in time.
        if !matches!(self.cleanup, Cleanup::Nobody) && cleanup_ms > 0 {
            let late = u64::try_from(look.now.earliest_ms.saturating_sub(since_ms)).unwrap_or(0);
            let asked = now.saturating_sub(Duration::from_millis(late));
            self.cleaning = Some(CleanupAccount::open(self.recorder.clone(), &self.terms.id, asked, cleanup_ms));
        }
        self.tell(by, priority, [left(cleaned_ms), left(wanted_ms)], lease_over);
    }

    /// The hold continues as this read shows it.
    fn lease(&mut self, look: &Look, extent: Extent, versions: Option<Versions>) {
        let (session, owner) = (self.session_ref.session.clone(), (self.terms.id.clone(), self.owned.until_ms()));
        let until = look.safe_until(extent.until_ms);
        self.keeps = extent.keeps;
        if !self.keeps {
            self.kept = None;
        }
        let link = *session.link().borrow();
        let trusted = !matches!(session.trust(link.missed_deadlines), Trust::Lost(_));
        let unasked = self.kept.is_some() && trusted;
        self.unasked = unasked.then_some(link.disconnects);
        let unasked = unasked.then_some(link.missed_deadlines);
        self.trust.update(Lease { session, until, unasked, owner, versions });
    }

    /// Reports to the user that a requestor wants the lock.
    fn tell(&mut self, by: String, priority: i32, [left, wanted]: [Duration; 2], lease_over: bool) {
        let now = Instant::now();
        // Times beyond the clock's range count as a century.
        let after = |left: Duration| now + left.min(CENTURY);
        let (deadline, wanted_by) = (after(left), after(wanted));
        let preemption = Preemption { by, priority, deadline, wanted_by, lease_over };
        tracing::info!(path = %self.node.path, by = preemption.by, priority, ?left, lease_over, "preempted");
        let mut asked = Revocation::default();
        asked.reason = Some(match lease_over {
            true => format!("its lease is over, and {} requests the lock", preemption.by),
            false => format!("preempted by {} with priority {priority}", preemption.by),
        });
        // In this order, so that a task that sees the request also finds its facts.
        self.preemption.send_replace(Some(preemption.clone()));
        self.hold.ask(Some(asked));
        if let Cleanup::Listener(listener, runtime) = &self.cleanup {
            let (done, cleaned) = oneshot::channel();
            let (listener, runtime, session) = (listener.clone(), runtime.clone(), self.session_ref.session.clone());
            let cleaning = std::thread::Builder::new().name("lockkeeper-cleanup".to_owned()).spawn(move || {
                let work = listener(preemption);
                match runtime {
                    Some(runtime) => runtime.block_on(until_shutdown(&runtime, work)),
                    None => session.block_on(work),
                }
                _ = done.send(());
            });
            match cleaning {
                Ok(_) => self.cleaned = Some(cleaned),
                // Without a thread there is no cleanup to wait for; the requestor decides when its wait ends.
                Err(error) => {
                    tracing::warn!(path = %self.node.path, %error, "cannot create the thread for the cleanup")
                }
            }
        }
    }

    /// Refuses a request to release the lock. Returns `false` if that must be retried.
    async fn refuse(&mut self, look: Look, reason: &str) -> bool {
        match self.node.step(&mut self.session_ref, look, &self.terms, Wish::Refuse { reason }).await {
            Ok(Stepped::Again { .. }) => false,
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(path = %self.node.path, %error, "cannot answer the request to release the lock");
                true
            }
        }
    }

    async fn renew(
        &mut self,
        look: Look,
        renewal: oneshot::Sender<Result<(), LeaseError>>,
    ) -> Option<oneshot::Sender<Result<(), LeaseError>>> {
        if let Some(loss) = self.hold.loss() {
            _ = renewal.send(Err(LeaseError::Lost { path: self.node.path.clone(), loss }));
            return None;
        }
        self.terms.notice_ms = self.terms.notice_ms.map(|_| notice_ms_of(&self.session_ref.session));
        let outcome = match self.node.step(&mut self.session_ref, look, &self.terms, Wish::Renew).await {
            Ok(Stepped::Done { answer: Answer::Holds { until_ms }, look, .. }) => {
                self.owned.renewed(until_ms);
                let session_ms = notice_ms_of(&self.session_ref.session);
                self.lease(&look, self.owned.extent(look.seen(), look.now, session_ms), None);
                if let Some(account) = &mut self.account {
                    account.renewed(self.session_ref.session.now(), self.terms.lease_ms);
                }
                Ok(())
            }
            Ok(Stepped::Again { .. }) => return Some(renewal),
            Ok(Stepped::Refused(Refusal::Requested(request))) => {
                Err(LeaseError::Preempted { path: self.node.path.clone(), by: request.id, priority: request.priority })
            }
            // The record shows another owner; the next read says which.
            Ok(Stepped::Done { .. } | Stepped::Refused(_)) => return Some(renewal),
            Err(error) => Err(error.into()),
        };
        _ = renewal.send(outcome);
        None
    }
}

/// Runs `work` until it ends or the runtime shuts down. Shutting down cancels the runtime's tasks before it stops its
/// timers, which panic if they are polled after that. Dropping the future drops `work`.
async fn until_shutdown(runtime: &tokio::runtime::Handle, work: impl Future<Output = ()>) {
    let mut running = runtime.spawn(std::future::pending::<()>());
    tokio::select! {
        biased;
        _ = &mut running => {}
        () = work => running.abort(),
    }
}
