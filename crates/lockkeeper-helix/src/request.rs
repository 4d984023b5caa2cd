//! One attempt to acquire a leased lock: from the first read until it is held, refused or given up.
//!
//! A task on the library's thread; the caller only waits for its result. If the caller stops waiting, the task cleans
//! up: it withdraws a request in the record and releases a lock that was just granted.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::error::{AdminError, SessionError};
use lockkeeper::hold::HoldOptions;
use lockkeeper::{CancellationToken, FencingToken, Lockkeeper, journal};
use lockkeeper_session::Silence;
use lockkeeper_session::ensemble::OpError;
use lockkeeper_session::wait::{TRY, cancelled, judged_at, passed};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::approval::{Approval, CleanupAlert};
use crate::error::AcquireLeaseError;
use crate::guard::HelixGuard;
use crate::hold::{Cleanup, LeaseTask};
use crate::journal::EmergencyRecord;
use crate::leases::Leases;
use crate::node::{LockNode, Look, LookError, SessionRef, Stepped, notice_ms};
use crate::protocol::{Answer, Measurement, PreemptionOutcome, Refusal, ServerNow, Terms, Unfinished, Wish};
use crate::recorder::Recorder;
use crate::status::LockStatus;
use crate::verdict::CleanupVerdict;

/// A request and its options.
pub(super) struct LeaseAttempt {
    pub(super) keeper: Lockkeeper,
    pub(super) node: LockNode,
    pub(super) terms: Terms,
    pub(super) limits: CallLimits,
    /// Whether the owner keeps the lock after the lease's end until another client asks.
    pub(super) lazy: bool,
    /// The reason for the emergency priority.
    pub(super) emergency: Option<String>,
    pub(super) cleanup: Cleanup,
    pub(super) approval: Approval,
    pub(super) status: Arc<watch::Sender<LockStatus>>,
    pub(super) recorder: Recorder,
    pub(super) options: HoldOptions,
    pub(super) caller: LeaseReply,
    pub(super) progress: Progress,
}

/// The caller that waits for the result.
pub(super) type LeaseReply = oneshot::Sender<Result<HelixGuard, AcquireLeaseError>>;

/// What ends an attempt early.
#[derive(Clone)]
pub(super) struct CallLimits {
    /// Whether the attempt asks no owner to make room.
    once: bool,
    /// Whether the attempt waits while a client of the same or a higher priority owns or requests the lock.
    pub(super) waits_for_every_owner: bool,
    /// When the call began.
    started: Instant,
    pub(super) timeout: Option<Duration>,
    pub(super) cancel: Option<CancellationToken>,
}

impl CallLimits {
    pub(super) fn new(once: bool) -> Self {
        CallLimits { once, waits_for_every_owner: false, started: Instant::now(), timeout: None, cancel: None }
    }

    /// The call begins. A timeout of zero is a try, and a try without a timeout does not wait long for the servers.
    pub(super) fn begin(&mut self, started: Instant) {
        self.started = started;
        self.once |= self.timeout.is_some_and(|timeout| timeout.is_zero());
        self.timeout = self.timeout.filter(|timeout| !timeout.is_zero()).or(self.once.then_some(TRY));
    }

    /// When the timeout ends; `None` if that is beyond the clock's range.
    fn deadline(&self) -> Option<Instant> {
        self.started.checked_add(self.timeout?)
    }
}

/// What the servers have answered so far.
#[derive(Default)]
pub(super) struct Progress {
    /// Whether there was any answer.
    answered: bool,
    /// When the question was sent that has no answer yet.
    asked: Option<Instant>,
}

impl Progress {
    fn asks(&mut self) {
        self.asked = Some(Instant::now());
    }

    /// An answer came, and nothing else was asked.
    fn is_answered(&mut self) {
        (self.answered, self.asked) = (true, None);
    }

    /// Whether the servers have been silent for so long that they count as unreachable. The oldest request of the session without
    /// an answer has this age.
    fn shows_silence(&self, limits: &CallLimits, session: Duration) -> bool {
        let at = judged_at(limits.deadline());
        // Until the first answer, the call waits for nothing else.
        let asked = if self.answered { self.asked } else { Some(limits.started) };
        let silence = Silence {
            called: at.saturating_duration_since(limits.started),
            answered: self.answered,
            unanswered: asked.map(|asked| at.saturating_duration_since(asked)),
            session: session.saturating_sub(at.elapsed()),
        };
        silence.is_outage()
    }
}

/// The result of an attempt.
enum AttemptEnd {
    /// Held until this time of the server, and at least until this time of the session's clock.
    Held {
        token: FencingToken,
        until_ms: i64,
        until: Duration,
    },
    Failed(AcquireLeaseError),
    CallerGone,
}

/// The owner that this attempt asked to make room; counted when the wait ends.
struct AskedOwner {
    owner: String,
    /// By the session's clock.
    since: Duration,
    /// When the owner's cleanup timeout ends, by the server's clock. `None` if the owner has nothing to clean up.
    cleaned_ms: Option<i64>,
}

/// What ends an attempt before its result.
enum Early {
    Cancelled,
    TimedOut,
    Silent(SessionError),
    Closed,
}

/// What ended a wait.
enum Woken {
    LookAgain,
    SessionOver,
    Closing,
    CallerGone,
}

impl LeaseAttempt {
    /// Runs the attempt and, if it succeeds, the hold.
    pub(super) async fn run(mut self) {
        let (keeper, limits) = (self.keeper.clone(), self.limits.clone());
        let closed = keeper.sessions().closed();
        let ended = async {
            tokio::select! {
                biased;
                () = cancelled(limits.cancel.as_ref()) => Early::Cancelled,
                () = closed.cancelled() => Early::Closed,
                () = passed(limits.deadline()) => Early::TimedOut,
            }
        };
        let mut ended = std::pin::pin!(ended);
        let taken = tokio::select! {
            biased;
            early = &mut ended => Err(self.ended_early(early, None)),
            session_ref = SessionRef::take(&keeper) => session_ref.map_err(AcquireLeaseError::from),
        };
        let mut session_ref = match taken {
            Ok(session_ref) => session_ref,
            Err(error) => return self.refuse(LockStatus::Unlocked, error),
        };
        // `Err` if the attempt ends early. The caller gets the error now; the request is withdrawn when a server answers.
        let pursued = tokio::select! {
            biased;
            pursued = self.pursue(&mut session_ref) => Ok(pursued),
            silence = keeper.sessions().silence() => Err(Early::Silent(silence)),
            early = ended => Err(early),
        };
        let pursued = match pursued {
            Ok(pursued) => pursued,
            Err(early) => {
                let error = self.ended_early(early, Some(&session_ref));
                let (done, _) = oneshot::channel();
                _ = std::mem::replace(&mut self.caller, done).send(Err(error));
                self.ended(LockStatus::Unlocked);
                return self.withdraw(&mut session_ref).await;
            }
        };
        match pursued {
            Ok(AttemptEnd::Held { token, until_ms, until }) => {
                self.hand_over(session_ref, (token, until_ms, until)).await
            }
            Ok(AttemptEnd::Failed(error)) => {
                let status = match error {
                    AcquireLeaseError::Preempted { .. } => LockStatus::Preempted,
                    _ => LockStatus::Unlocked,
                };
                self.refuse(status, error);
            }
            Ok(AttemptEnd::CallerGone) => {
                self.ended(LockStatus::Unlocked);
                self.withdraw(&mut session_ref).await;
            }
            Err(error) => {
                if !matches!(error, AcquireLeaseError::Session(SessionError::Closed)) {
                    self.withdraw(&mut session_ref).await;
                }
                self.refuse(LockStatus::Unlocked, error);
            }
        }
    }

    /// The error of an attempt that ends early; without a session, no server has answered.
    fn ended_early(&self, early: Early, session_ref: Option<&SessionRef>) -> AcquireLeaseError {
        let path = self.node.path.clone();
        let detail = match (early, session_ref) {
            (Early::Cancelled, _) => return AcquireLeaseError::Cancelled { path },
            (Early::Silent(silence), _) => return silence.into(),
            (Early::Closed, _) => return SessionError::Closed.into(),
            (Early::TimedOut, Some(session_ref)) if !session_ref.session.link().borrow().connected => {
                "the connection is lost"
            }
            (Early::TimedOut, Some(session_ref))
                if self.progress.shows_silence(&self.limits, session_ref.unanswered_for()) =>
            {
                "a request was not answered"
            }
            // It waits for nothing but the servers.
            (Early::TimedOut, Some(_)) if self.limits.once => "the servers answered too slowly",
            (Early::TimedOut, Some(_)) => {
                let waited = self.limits.timeout.unwrap_or_default();
                return AcquireLeaseError::Timeout { path, waited };
            }
            (Early::TimedOut, None) => "no session was opened in time",
        };
        let (servers, waited) = (self.keeper.sessions().servers().to_string(), self.limits.timeout.unwrap_or_default());
        SessionError::Unreachable { servers, waited, detail: detail.to_owned() }.into()
    }

    async fn pursue(&mut self, session_ref: &mut SessionRef) -> Result<AttemptEnd, AcquireLeaseError> {
        self.record_emergency().await?;
        let mut give_up_ms = None;
        let mut asked: Option<AskedOwner> = None;
        let mut requested = false;
        let mut verdict = CleanupVerdict::new(&self.approval, &self.terms);
        loop {
            self.progress.asks();
            let look = self.node.look_until_answered(&self.keeper, session_ref).await?;
            self.progress.is_answered();
            self.progress.asks();
            if look.record.is_free()
                && let Err(failure) = self.node.refuse_incompatible_formats(session_ref, look.others()).await
            {
                session_ref.recover(&self.keeper, failure).await?;
                continue;
            }
            let waiting_ms = self.terms.waiting_ms.unwrap_or(i64::MAX);
            let give_up_ms = *give_up_ms.get_or_insert(look.now.latest_ms.saturating_add(waiting_ms));
            if self.caller.is_closed() {
                return Ok(AttemptEnd::CallerGone);
            }
            if self.waits_for_the_skew(&look) {
                match self.wait_or_end(session_ref, look, i64::MAX, &mut verdict).await? {
                    Some(outcome) => return Ok(outcome),
                    None => continue,
                }
            }
            self.terms.notice_ms = self.lazy.then(|| notice_ms(&session_ref.session));
            let (terms, give_up_ms) = verdict.terms(&self.terms, &look, give_up_ms);
            let room = asked.as_ref().map(|asked| self.room(asked, &look));
            let wish = if self.limits.once { Wish::Try } else { Wish::Acquire { give_up_ms } };
            let now = look.now;
            if self.limits.waits_for_every_owner && !self.limits.once {
                match self.node.refusal(&look, &terms, wish) {
                    // The owner has a running lease again, or a higher request came before the own one. The other waiters wait for
                    // the owner as well.
                    Some(Refusal::Held(_)) if requested => {
                        self.withdraw(session_ref).await;
                        (requested, asked) = (false, None);
                        continue;
                    }
                    Some(Refusal::Held(_)) => {
                        match self.wait_or_end(session_ref, look, i64::MAX, &mut verdict).await? {
                            Some(outcome) => return Ok(outcome),
                            None => continue,
                        }
                    }
                    Some(Refusal::Requested(_)) => {
                        (requested, asked) = (false, None);
                        let lapses_ms = self.node.request_lapses_ms(&look, &terms);
                        match self.wait_or_end(session_ref, look, lapses_ms, &mut verdict).await? {
                            Some(outcome) => return Ok(outcome),
                            None => continue,
                        }
                    }
                    _ => {}
                }
            }
            match self.node.step(session_ref, look, &terms, wish).await? {
                Stepped::Again { .. } => {}
                Stepped::Refused(refusal) => {
                    if let Refusal::Unfinished(facts) = &refusal {
                        self.count(asked.as_ref(), &facts.owner, PreemptionOutcome::Refused, session_ref);
                    }
                    if requested && matches!(refusal, Refusal::Held(_)) {
                        // The owner has a running lease again.
                        self.withdraw(session_ref).await;
                    }
                    return Ok(AttemptEnd::Failed(self.refusal(refusal, requested, now)));
                }
                Stepped::Done { answer: Answer::Holds { until_ms }, token, look } => {
                    if let Some((asked, room)) = asked.as_ref().zip(room) {
                        self.count(Some(asked), &asked.owner, room, session_ref);
                    }
                    return Ok(AttemptEnd::Held { token, until_ms, until: look.safe_until(until_ms) });
                }
                Stepped::Done { answer: Answer::Waits { until_ms, owner }, look, .. } => {
                    asked.get_or_insert_with(|| {
                        let since_ms = look.record.request.as_ref().map_or(look.now.latest_ms, |own| own.since_ms);
                        let cleaned_ms = (owner.allotted_ms > 0).then(|| since_ms.saturating_add(owner.allotted_ms));
                        AskedOwner { owner: owner.owner.clone(), since: session_ref.session.now(), cleaned_ms }
                    });
                    requested = true;
                    if self.status.send_replace(LockStatus::Pending) != LockStatus::Pending {
                        tracing::debug!(path = %self.node.path, owner = %owner.owner, "asked the owner to clean up");
                    }
                    let until_ms = verdict.until(
                        until_ms,
                        &look,
                        || self.alert(owner),
                        &self.approval,
                        (&self.keeper, session_ref),
                    );
                    if let Some(outcome) = self.wait_or_end(session_ref, *look, until_ms, &mut verdict).await? {
                        return Ok(outcome);
                    }
                }
                Stepped::Done { answer: Answer::GivesNotice { until_ms }, look, .. } => {
                    requested = true;
                    if self.status.send_replace(LockStatus::Pending) != LockStatus::Pending {
                        tracing::debug!(path = %self.node.path, "asked the owner, whose lease is over");
                    }
                    if let Some(outcome) = self.wait_or_end(session_ref, *look, until_ms, &mut verdict).await? {
                        return Ok(outcome);
                    }
                }
                Stepped::Done { answer: Answer::Unfinished(facts), .. } => {
                    self.count(asked.as_ref(), &facts.owner, PreemptionOutcome::Refused, session_ref);
                    return Ok(AttemptEnd::Failed(self.unfinished(facts)));
                }
                // Not an answer to this wish.
                Stepped::Done { answer: Answer::Left { .. } | Answer::Transferred | Answer::Told, .. } => {}
            }
        }
    }

    /// Writes the use of the emergency priority to the journal, before it has an effect.
    async fn record_emergency(&self) -> Result<(), AcquireLeaseError> {
        let Some(reason) = self.emergency.clone() else { return Ok(()) };
        let (path, requestor, message) = (&self.node.path, &self.terms.id, &self.terms.message);
        tracing::warn!(target: "lockkeeper::audit", %path, by = %requestor, ?message, %reason,
            "a lock is requested with the emergency priority");
        let entry = EmergencyRecord {
            path: path.clone(),
            requestor: requestor.clone(),
            message: message.clone(),
            by: self.keeper.owner().clone(),
            proof: lockkeeper::admin::Proof::default(),
            reason,
            at: std::time::UNIX_EPOCH,
        };
        journal::write(&self.keeper, uuid::Uuid::new_v4(), &entry).await.map_err(|error| match error {
            AdminError::Session(error) => error.into(),
            other => SessionError::Refused { path: journal::ROOT.to_owned(), reason: other.to_string() }.into(),
        })
    }

    /// Whether the lease of an owner that would refuse this attempt is over, so that its priority counts only until the skew has
    /// passed. Not if another request is next: that one gets the lock then.
    fn waits_for_the_skew(&self, look: &Look) -> bool {
        let (Some(owner), None) = (&look.record.owner, &look.record.request) else { return false };
        let over_ms = owner.until_ms.saturating_add(self.node.rules.skew_ms);
        let refuses = owner.id != self.terms.id && owner.priority >= self.terms.priority;
        !self.limits.once && refuses && (owner.until_ms..over_ms).contains(&look.now.earliest_ms)
    }

    /// How the lock became available after its owner was asked to make room.
    fn room(&self, asked: &AskedOwner, look: &Look) -> PreemptionOutcome {
        let over = |until_ms: i64| look.now.earliest_ms >= until_ms.saturating_add(self.node.rules.skew_ms);
        match &look.record.owner {
            // With nothing to clean up, force interrupts nothing, and no answer is late.
            Some(owner) if owner.cleanup_ms <= 0 => PreemptionOutcome::InTime,
            Some(owner) if !over(owner.until_ms) => PreemptionOutcome::Forced,
            _ if asked.cleaned_ms.is_some_and(|cleaned_ms| look.now.earliest_ms > cleaned_ms) => {
                PreemptionOutcome::Late
            }
            _ => PreemptionOutcome::InTime,
        }
    }

    /// Counts the result of a preemption for the preempted owner.
    fn count(&self, asked: Option<&AskedOwner>, owner: &str, outcome: PreemptionOutcome, session_ref: &SessionRef) {
        let waited = asked.map_or(Duration::ZERO, |asked| session_ref.session.now().saturating_sub(asked.since));
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        self.recorder.record(owner, Measurement::Preemption { waited_ms, outcome });
    }

    /// Waits, and returns how the attempt ends if it does.
    async fn wait_or_end(
        &mut self,
        session_ref: &mut SessionRef,
        look: Look,
        until_ms: i64,
        verdict: &mut CleanupVerdict,
    ) -> Result<Option<AttemptEnd>, AcquireLeaseError> {
        self.progress.is_answered();
        match self.wait(session_ref, look, until_ms, verdict).await {
            Woken::LookAgain => {}
            Woken::SessionOver => session_ref.recover(&self.keeper, LookError::Passing(OpError::SessionOver)).await?,
            Woken::CallerGone => return Ok(Some(AttemptEnd::CallerGone)),
            Woken::Closing => {
                self.withdraw(session_ref).await;
                return Err(SessionError::Closed.into());
            }
        }
        Ok(None)
    }

    /// Waits for a change of the record, the end of the wait, or the expiry of the owner's lease.
    async fn wait(
        &mut self,
        session_ref: &SessionRef,
        look: Look,
        until_ms: i64,
        verdict: &mut CleanupVerdict,
    ) -> Woken {
        let lease_over_ms =
            look.record.owner.as_ref().map_or(i64::MAX, |owner| owner.until_ms.saturating_add(self.node.rules.skew_ms));
        // An owner may keep a lease that is over; then only the end of its notice counts.
        let lease_over_ms = if look.now.earliest_ms < lease_over_ms { lease_over_ms } else { i64::MAX };
        let over = look.until(until_ms.min(lease_over_ms)).saturating_add(Duration::from_millis(1));
        // The record was just written: the next read sets the watch.
        let Some(changed) = look.watcher else { return Woken::LookAgain };
        let closing = session_ref.session.closing();
        tokio::select! {
            biased;
            () = self.caller.closed() => Woken::CallerGone,
            () = session_ref.over() => Woken::SessionOver,
            () = closing.cancelled() => Woken::Closing,
            _ = changed => Woken::LookAgain,
            () = verdict.decided(&self.approval) => Woken::LookAgain,
            () = tokio::time::sleep(over) => Woken::LookAgain,
        }
    }

    /// Removes the own request, or an unwanted grant, from the record. Another hold of the same id stays.
    async fn withdraw(&self, session_ref: &mut SessionRef) {
        loop {
            let left = match self.node.look_until_answered(&self.keeper, session_ref).await {
                Ok(look) => {
                    let written_ms = session_ref.written_ms().to_vec();
                    if look.record.held_until_ms(&self.terms.id).is_some_and(|end| written_ms.contains(&end)) {
                        // The record shows the hold of before no more, so it is lost before others can get the lock.
                        self.keeper.sessions().shared::<Leases>().supersede(&self.terms.id, &self.node.path);
                    }
                    self.node.step(session_ref, look, &self.terms, Wish::Withdraw { written_ms: &written_ms }).await
                }
                Err(error) => Err(error),
            };
            match left {
                Ok(Stepped::Again { .. }) => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(path = %self.node.path, %error, "a request could not be withdrawn");
                    return;
                }
            }
        }
    }

    async fn hand_over(self, session_ref: SessionRef, grant: (FencingToken, i64, Duration)) {
        let LeaseAttempt { keeper, node, terms, cleanup, status, recorder, options, caller, .. } = self;
        let (task, guard) =
            LeaseTask::begin(keeper, node, terms, (cleanup, options), (status, recorder), session_ref, grant);
        task.supersede();
        // If the caller has gone, the guard is dropped here, which requests the release.
        _ = caller.send(Ok(guard));
        task.run().await;
    }

    fn refusal(&self, refusal: Refusal, asked: bool, now: ServerNow) -> AcquireLeaseError {
        let path = self.node.path.clone();
        let mut lease_left = None;
        let (by, priority, message) = match refusal {
            Refusal::Held(owner) => {
                let over_ms = owner.until_ms.saturating_add(self.node.rules.skew_ms);
                lease_left = Some(millis(over_ms.saturating_sub(now.earliest_ms)));
                (owner.id, owner.priority, owner.message)
            }
            Refusal::Requested(request) => (request.id, request.priority, None),
            Refusal::Unfinished(facts) => return self.unfinished(facts),
            // Not a refusal of this wish.
            Refusal::NotOwner { owner } => (owner.unwrap_or_default(), 0, None),
            Refusal::LeaseOver { .. } => (self.terms.id.clone(), self.terms.priority, None),
        };
        match asked {
            true => AcquireLeaseError::Preempted { path, by, priority },
            false => AcquireLeaseError::Outranked { path, by, priority, message, lease_left },
        }
    }

    fn alert(&self, facts: Unfinished) -> CleanupAlert {
        let Unfinished { owner, message, priority, elapsed_ms, allotted_ms } = facts;
        CleanupAlert {
            path: self.node.path.clone(),
            owner,
            owner_message: message,
            owner_priority: priority,
            elapsed: millis(elapsed_ms),
            allotted: millis(allotted_ms),
            requestor: self.terms.id.clone(),
            requestor_message: self.terms.message.clone(),
            requestor_priority: self.terms.priority,
            request: None,
        }
    }

    fn unfinished(&self, facts: Unfinished) -> AcquireLeaseError {
        let Unfinished { owner, message, priority, elapsed_ms, allotted_ms } = facts;
        let (elapsed, allotted) = (millis(elapsed_ms), millis(allotted_ms));
        AcquireLeaseError::CleanupUnfinished {
            path: self.node.path.clone(),
            owner,
            message,
            priority,
            elapsed,
            allotted,
        }
    }

    fn refuse(self, status: LockStatus, error: AcquireLeaseError) {
        self.ended(status);
        _ = self.caller.send(Err(error));
    }

    /// Sets the status after an attempt without success. An older hold of the same object reports its own end.
    fn ended(&self, status: LockStatus) {
        self.status.send_if_modified(|now| *now != LockStatus::Locked && std::mem::replace(now, status) != status);
    }
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
