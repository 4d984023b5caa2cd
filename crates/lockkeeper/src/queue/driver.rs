//! Carries out the contender's commands: the only part of the lock protocol that does I/O.
//!
//! Each attempt has one task on the session's thread. The task runs from the create until the node is seen deleted or
//! the session is over. It *owns* every outcome; the caller only listens. A caller that stops listening, at any moment,
//! leaves nothing behind: the task notices it and makes the contender leave. (`zookeeper-client`'s own lock leaves its
//! node for ever if its create is cancelled before the reply.)

mod answering;
mod attempt;
mod caller;
mod inquiry;
mod operations;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::{
    Ask, Command, Contender, End, Event, Failure, FencingToken, Grant, Link, LinkState, Loss, TokenEpoch,
};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::trace;

pub(crate) use self::attempt::Attempt;
use self::attempt::{Looked, Wake};
use self::caller::Caller;
use self::operations::{Operations, Outcome, failure, inspection};
use crate::broken::Broken;
use crate::contender::ContenderInfo;
use crate::ensemble::{Fired, OpError, Watcher};
use crate::error::{AcquireError, SessionError};
use crate::session::epoch;
use crate::session::{Dependant, Session};
use crate::wait::{or_never, passed};

/// How old a node must be before its own contender watches it.
///
/// The watch costs a read. It reports an operator who deletes the node, and a request to release the lock. A hold or
/// wait shorter than this is over before either could happen.
const LINGER: Duration = Duration::from_millis(100);

/// How long before its deadline a waiter checks whether the servers answer. It is slightly longer than the silence
/// after which servers are called unreachable, because timers are late.
const PROBE_LEAD: Duration = Duration::from_millis(2_100);

struct Driver {
    attempt: Attempt,
    session: Arc<Session>,
    contender: Contender,
    caller: Caller,
    /// A grant that waits until the session is trusted again, and when the grant came, by the session's clock.
    granted: Option<(Grant, Duration)>,
    /// The transaction that granted the lock, as a token without its epoch.
    granted_by: Option<FencingToken>,
    /// While the connection is lost: until when the caller tolerates that.
    cut_off: Option<Instant>,
    /// The number of disconnects when they were last checked.
    disconnects: u32,
    /// When the current operation was started, by the session's clock.
    sent: Duration,
    /// Whether an operation was answered.
    answered: bool,
    /// Kept while the session needs heartbeats at all times.
    dependant: Option<Dependant>,
    /// Notified when the change of the hold that the caller requested has happened.
    changing: Option<oneshot::Sender<()>>,
    /// When that change happened, by the session's clock, while it waits until the session is trusted again.
    changed_at: Option<Duration>,
    /// Notified when the servers have confirmed the hold; and when that request was sent.
    verifying: Vec<oneshot::Sender<Result<(), String>>>,
    asked_at: Duration,
    /// The tombstones to delete, and when.
    delays: Vec<(Instant, String)>,
    /// The last refusal; the caller's error contains it.
    refusal: Option<String>,
    /// The last known own node; messages name it after its deletion.
    node: String,
    /// Who removed the waiter's node, where that is recorded.
    broken: Option<Box<Broken>>,
    lingered: bool,
    /// The first node of the queue that was last read, or is being read, and what it contained. The caller's error uses
    /// both.
    looked_for: Option<String>,
    looked_at: Option<Box<ContenderInfo>>,
    /// The holder of the lock is behind this contender in the queue, so the contender's count of those ahead does not
    /// include it.
    holder_behind: bool,
}

/// Runs one attempt to its end, and sends the outcome to `answer`.
pub(crate) async fn drive(attempt: Attempt, contender: Contender, session: Arc<Session>, answer: caller::Answer) {
    let disconnects = session.link().borrow().disconnects;
    let driver = Driver {
        attempt,
        session,
        contender,
        caller: Caller::Waiting(answer),
        granted: None,
        granted_by: None,
        cut_off: None,
        disconnects,
        sent: Duration::ZERO,
        answered: false,
        dependant: None,
        changing: None,
        changed_at: None,
        verifying: Vec::new(),
        asked_at: Duration::ZERO,
        delays: Vec::new(),
        refusal: None,
        node: String::new(),
        broken: None,
        lingered: false,
        looked_for: None,
        looked_at: None,
        holder_behind: false,
    };
    driver.run().await;
}

impl Driver {
    async fn run(mut self) {
        let mut flight: Option<BoxFuture<'static, Outcome>> = None;
        let mut look: Option<BoxFuture<'static, Looked>> = None;
        let mut proof: Option<BoxFuture<'static, Result<(), OpError>>> = None;
        let mut probe: Option<BoxFuture<'static, Result<(), OpError>>> = None;
        let mut probed_at = Duration::ZERO;
        let mut probe_at = self.probe_at();
        let mut watches: Vec<(String, Watcher)> = Vec::new();
        let mut link = self.session.link();
        let mut proofs = self.session.proofs();
        let closing = self.session.closing();
        let mut close_seen = false;
        let linger = tokio::time::sleep_until(self.attempt.started + LINGER);
        tokio::pin!(linger);
        let mut ended = None;
        self.limit_disconnect(link.borrow().connected);
        loop {
            if let Some(place) = self.wants_a_look() {
                look = Some(self.look(place));
            }
            self.report_leaving();
            while let Some(command) = self.contender.next_command() {
                trace!(path = %self.attempt.path, id = %self.contender.id(), ?command);
                match command {
                    Command::Grant(grant) => self.granted = Some((grant, self.session.now())),
                    Command::Revoke => self.revoke(),
                    Command::Delay { name, delay } => self.delays.push((Instant::now() + delay.duration(), name)),
                    Command::Upgraded => self.changed_at = Some(self.session.now()),
                    Command::Reads { name } => {
                        if let Some(hold) = self.caller.hold() {
                            hold.moved_to(name.clone());
                        }
                        self.node = name;
                        self.changed_at = Some(self.session.now());
                    }
                    Command::End(end) => ended = Some(end),
                    Command::MakeParent { .. } if !self.attempt.create_parents => {
                        let error = AcquireError::NoSuchLock { path: self.attempt.path.clone() };
                        self.caller.refuse(error);
                        self.contender.handle(Event::ParentMade(Err(Failure::Refused)));
                    }
                    other => {
                        self.sent = self.session.now();
                        flight = Some(self.operations().start(other));
                    }
                }
            }
            self.hand_over_if_fresh();
            if proof.is_none() && !self.verifying.is_empty() {
                proof = self.prove_the_hold();
            }
            watches.retain(|(name, _)| self.contender.watches(name));
            if let Some(end) = ended.take() {
                let end = self.look_closer(end).await;
                if end == End::Removed && self.caller.is_waiting() {
                    self.broken = self.who_broke_it().await;
                }
                if end == End::SessionOver {
                    self.learn_how_it_ended(&mut link).await;
                }
                return self.finish(end);
            }
            let aged = self.attempt.ageing.map(|(when, _)| when);
            let delayed = self.delays.iter().min().cloned();
            // Biased, so that the seed alone determines a simulation.
            let wake = tokio::select! {
                biased;
                () = closing.cancelled(), if !close_seen => Wake::Closing,
                _ = link.changed() => Wake::LinkChanged,
                _ = proofs.changed(), if self.granted.is_some() || self.changed_at.is_some() => Wake::Proved,
                outcome = or_never(flight.as_mut()) => Wake::Outcome(outcome),
                (name, fired) = first_fired(&mut watches) => Wake::Fired(name, fired),
                seen = or_never(look.as_mut()) => Wake::Looked(seen),
                proved = or_never(proof.as_mut()) => Wake::Verified(proved),
                _ = or_never(probe.as_mut()) => Wake::Probed,
                () = passed(probe_at) => Wake::NearDeadline,
                wake = self.caller.state_changed(self.attempt.deadline, self.attempt.cancel.as_ref()) => wake,
                () = &mut linger, if !self.lingered => Wake::Lingered,
                () = passed(aged) => Wake::Aged,
                () = passed(delayed.as_ref().map(|(when, _)| *when)) => {
                    Wake::DelayOver(delayed.map(|(_, name)| name).unwrap_or_default())
                }
                () = passed(self.cut_off) => Wake::CutOff,
            };
            match wake {
                Wake::Outcome(outcome) => {
                    flight = None;
                    self.settle(outcome, &mut watches);
                }
                Wake::Fired(name, fired) => {
                    trace!(path = %self.attempt.path, id = %self.contender.id(), node = %name, ?fired);
                    match fired {
                        Fired::SessionOver => {}
                        _ if name.is_empty() => self.contender.handle(Event::ChildrenChanged),
                        Fired::Gone => self.contender.handle(Event::Gone(&name)),
                        Fired::Changed => self.contender.handle(Event::Changed(&name)),
                    }
                }
                Wake::Looked(seen) => {
                    look = None;
                    (self.looked_at, self.holder_behind) = (seen.info, seen.holder_behind);
                    if seen.sessionless {
                        self.contender.handle(Event::NoContender(&seen.name));
                    }
                }
                Wake::Verified(proved) => {
                    proof = None;
                    self.verified(proved);
                }
                Wake::Lingered => {
                    self.lingered = true;
                    self.contender.handle(Event::Lingered);
                }
                Wake::DelayOver(name) => {
                    self.delays.retain(|(_, delayed)| *delayed != name);
                    self.contender.handle(Event::DelayOver(&name));
                }
                Wake::Aged => {
                    if let Some((_, class)) = self.attempt.ageing.take() {
                        self.contender.handle(Event::Ask(Ask::Reclassify(class)));
                    }
                }
                Wake::NearDeadline => {
                    (probe_at, probed_at) = (None, self.session.now());
                    probe = self.contender.place().map(|_| self.attempt.ensemble.prove());
                }
                Wake::Probed => probe = None,
                Wake::Deadline => {
                    let sent = flight.is_some().then_some(self.sent);
                    let error = self.timed_out(sent.into_iter().chain(probe.is_some().then_some(probed_at)).min());
                    self.give_up(error);
                }
                Wake::CutOff => {
                    self.cut_off = None;
                    // A holder decides by its own clock.
                    if self.caller.is_waiting() {
                        let error = SessionError::ConnectionLost { path: self.attempt.path.clone() }.into();
                        self.give_up(error);
                    }
                }
                Wake::Cancelled => {
                    let error = AcquireError::Cancelled { path: self.attempt.path.clone() };
                    self.give_up(error);
                }
                Wake::CallerGone => {
                    self.caller = Caller::Gone;
                    self.contender.handle(Event::Leave);
                }
                Wake::Requested(request) => self.requested(request),
                Wake::LinkChanged => {
                    let link = *link.borrow_and_update();
                    self.connection_changed(link);
                }
                // Handled above.
                Wake::Proved => {}
                Wake::Closing => {
                    close_seen = true;
                    self.lose(Loss::Closed);
                    self.give_up(SessionError::Closed.into());
                }
            }
        }
    }

    /// Hands a grant, or a changed hold, to the caller once the session is trusted again.
    ///
    /// The session may have expired since the node ahead was deleted, and its last heartbeat may be old. The hold would
    /// then start with almost no time left, and its work would be stopped immediately. The second contender in the
    /// queue sends heartbeats, so its grant needs no round trip here. Others need one heartbeat.
    fn hand_over_if_fresh(&mut self) {
        let next = self.contender.holds() || self.contender.place().is_some_and(|place| place.ahead <= 1);
        if next != self.dependant.is_some() {
            self.dependant = next.then(|| self.session.depend());
        }
        if let Some(at) = self.changed_at {
            if self.caller.hold().is_none_or(|hold| hold.loss().is_some()) {
                (self.changed_at, self.changing) = (None, None);
            } else if self.session.is_fresh(at) {
                self.changed_at = None;
                self.changed();
            }
        }
        let Some(at) = self.granted.as_ref().map(|(_, at)| *at) else { return };
        if !self.contender.holds() {
            self.granted = None;
        } else if self.session.is_fresh(at) {
            let known = match self.attempt.discipline.has_tokens() {
                true => self.session.known_epoch(),
                false => epoch::Known::Epoch(TokenEpoch::default()),
            };
            match known {
                epoch::Known::Epoch(epoch) => {
                    let Some((Grant { name, token }, _)) = self.granted.take() else { return };
                    self.granted_by = Some(token);
                    self.hand_over(Grant { name, token: token.in_epoch(epoch) });
                }
                epoch::Known::Unreadable(problem) | epoch::Known::Refused(problem) => {
                    self.granted = None;
                    self.give_up(epoch::unreadable(problem).into());
                }
                // The next change of the connection reports it.
                epoch::Known::Unknown | epoch::Known::Over => {}
            }
        }
    }

    fn operations(&self) -> Operations<'_> {
        let Attempt { path, ensemble, payload, .. } = &self.attempt;
        Operations { ensemble, path, payload }
    }

    /// Passes the outcome of an operation to the contender.
    fn settle(&mut self, outcome: Outcome, watches: &mut Vec<(String, Watcher)>) {
        if outcome.proves() {
            self.session.proved(self.sent);
        }
        self.answered |= outcome.is_answer();
        if let Some(OpError::SessionOver) = outcome.fault() {
            return self.contender.handle(Event::SessionOver);
        }
        match outcome {
            Outcome::Entered(created, seen) => {
                if let Ok((name, _)) = &created {
                    self.node.clone_from(name);
                }
                let created = created.as_ref().map(|(name, zxid)| (name.as_str(), *zxid)).map_err(|f| self.failure(f));
                let listed = seen.as_ref().map(|seen| seen.listing()).map_err(|f| self.failure(f));
                self.contender.handle(Event::Entered { created, listed });
            }
            Outcome::ParentMade(made) => {
                let made = made.map_err(|f| self.failure(&f));
                self.contender.handle(Event::ParentMade(made));
            }
            Outcome::LimitStored(stored) => {
                let stored = stored.map_err(|f| self.failure(&f));
                self.contender.handle(Event::LimitStored(stored));
            }
            Outcome::Listed(Ok((seen, watcher))) => {
                watches.extend(watcher.map(|watcher| (String::new(), watcher)));
                self.contender.handle(Event::Listed(Ok(seen.listing())));
            }
            Outcome::Listed(Err(fault)) => {
                let failure = self.failure(&fault);
                self.contender.handle(Event::Listed(Err(failure)));
            }
            Outcome::Inspected(name, read) => {
                // In a try, this is the holder: the caller's error names it.
                if let (Ok(node), None) = (&read, &self.looked_at) {
                    self.looked_at = Some(Box::new(ContenderInfo::read(name, node)));
                }
                let seen = read.map(|node| inspection(&node)).map_err(|f| self.failure(&f));
                self.contender.handle(Event::Inspected(seen));
                if self.contender.place().is_none() {
                    self.looked_at = None;
                }
            }
            Outcome::Watched(name, Ok((node, watcher))) => {
                let own = self.contender.node() == Some(&name);
                let seen = inspection(&node);
                // The own node's watch comes first: if the own node and the blocker are both deleted, the blocker no
                // longer matters.
                watches.insert(if own { 0 } else { watches.len() }, (name, watcher));
                self.contender.handle(Event::Watched(Ok(seen)));
            }
            Outcome::Watched(_, Err(fault)) => {
                let failure = self.failure(&fault);
                self.contender.handle(Event::Watched(Err(failure)));
            }
            Outcome::TombstoneMade(made) => {
                let made = made.map_err(|f| self.failure(&f));
                self.contender.handle(Event::TombstoneMade(made));
            }
            Outcome::HolderMarkerTaken(taken) => {
                let taken = taken.map_err(|f| self.failure(&f));
                self.contender.handle(Event::HolderMarkerTaken(taken));
            }
            Outcome::RecordWritten(written) => {
                let written = written.map_err(|f| self.failure(&f));
                self.contender.handle(Event::RecordWritten(written));
            }
            Outcome::Downgraded(made) => {
                let made = made.map_err(|f| self.failure(&f));
                self.contender.handle(Event::Downgraded(made));
            }
            Outcome::Deleted(deleted) => {
                let deleted = deleted.map_err(|f| self.failure(&f));
                self.contender.handle(Event::Deleted(deleted));
            }
        }
    }

    /// Returns what an operation's error means to the contender. Keeps the text of a refusal for the caller.
    fn failure(&mut self, fault: &OpError) -> Failure {
        let failure = failure(fault);
        if let Failure::Refused | Failure::NodeExists = failure {
            self.refusal = Some(fault.to_string());
        }
        failure
    }

    /// Tells the caller that the contender leaves, before it has left. A waiter's caller need not wait for the end. The
    /// owner of a hold whose node was taken must know before the hold's other node is deleted, because that grants the
    /// lock to the next contender.
    fn report_leaving(&mut self) {
        let Some(end) = self.contender.leaves_for() else { return };
        let path = || self.attempt.path.clone();
        match (&self.caller, end) {
            (Caller::Holding { hold, .. }, _) | (Caller::Releasing { hold, .. }, End::Removed) => {
                hold.lose(Loss::Removed)
            }
            (Caller::Waiting(_), End::Held { ahead }) => {
                let error = AcquireError::Held { path: path(), holder: self.looked_at.take(), ahead: Some(ahead) };
                self.caller.refuse(error);
            }
            (Caller::Waiting(_), End::TooManyAhead { ahead }) => {
                let error = AcquireError::TooManyWaiters { path: path(), ahead, most: self.contender.max_ahead() };
                self.caller.refuse(error);
            }
            (Caller::Waiting(_) | Caller::Releasing { .. } | Caller::Gone, _) => {}
        }
    }

    /// Ends the hold, if there is one, as lost.
    fn lose(&mut self, loss: Loss) {
        if let Some(hold) = self.caller.hold() {
            hold.lose(loss);
        }
    }

    /// Returns when to check whether the servers answer, so that the error at the deadline can distinguish a lock that
    /// is held from servers that are silent.
    fn probe_at(&self) -> Option<Instant> {
        self.attempt.deadline?.checked_sub(PROBE_LEAD).filter(|at| *at > self.attempt.started)
    }

    /// Starts or stops the clock for how long the caller tolerates a lost connection.
    fn limit_disconnect(&mut self, connected: bool) {
        let now = Instant::now();
        self.cut_off = match (connected, self.attempt.reconnect) {
            (false, Some(patience)) => self.cut_off.or_else(|| now.checked_add(patience)),
            _ => None,
        };
    }

    /// Handles a change of the connection: a holder may have lost its hold; a waiter continues as long as the session
    /// may live.
    fn connection_changed(&mut self, link: Link) {
        if let Caller::Holding { hold, .. } = &self.caller
            && hold.judge()
        {
            // If the session lives on after all, the node must be deleted: the hold already counts as lost.
            self.contender.handle(Event::Lost);
        }
        self.limit_disconnect(link.connected);
        // Also if the connection is up again already: a disconnect that nobody observed still counts.
        if std::mem::replace(&mut self.disconnects, link.disconnects) != link.disconnects {
            self.contender.handle(Event::Disconnected);
        }
        if let LinkState::Over(loss) = link.state {
            self.lose(loss);
            self.contender.handle(Event::SessionOver);
        }
    }
}

/// Takes out and returns a watch that has fired: the foremost if several have.
async fn first_fired(watches: &mut Vec<(String, Watcher)>) -> (String, Fired) {
    let (at, fired) = std::future::poll_fn(|cx| {
        for (at, (_, watcher)) in watches.iter_mut().enumerate() {
            if let std::task::Poll::Ready(fired) = watcher.poll_unpin(cx) {
                return std::task::Poll::Ready((at, fired));
            }
        }
        std::task::Poll::Pending
    })
    .await;
    (watches.remove(at).0, fired)
}
