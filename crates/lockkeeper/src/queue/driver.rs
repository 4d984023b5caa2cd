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
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, ready};
use futures_util::{FutureExt, poll};
use lockkeeper_core::{
    Arrival, Ask, Command, Contender, End, Event, Failure, FencingToken, Grant, Link, LinkState, Loss, TokenEpoch,
    WatchKind,
};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::trace;

pub(crate) use self::attempt::Attempt;
use self::attempt::{Looked, Wake};
use self::caller::Caller;
use self::operations::{CommandRunner, Finished, failure};
use crate::broken::Broken;
use crate::contender::ContenderInfo;
use crate::ensemble::{Fired, OpError, Watcher};
use crate::error::{AcquireError, ReleaseError, SessionError};
use crate::hold::AtRelease;
use crate::queue::requeue::AcquireReply;
use crate::session::epoch;
use crate::session::neighbours::{Entering, Membership, NeighbourListener, Standing};
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
    /// While the connection is lost: the number of failed tries at which its retries are used up.
    last_try: Option<u32>,
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
    /// The write in the transaction of the release.
    at_release: Option<AtRelease>,
    /// The tombstones to delete, and when.
    delays: Vec<(Instant, String)>,
    /// The last refusal; the caller's error contains it.
    refusal: Option<String>,
    /// The last known own node; messages name it after its deletion.
    node: String,
    /// Who removed the waiter's node, where that is recorded.
    broken: Option<Box<Broken>>,
    lingered: bool,
    /// Kept until the create is answered.
    entering: Option<Entering>,
    /// Kept while it has a node.
    membership: Option<Membership>,
    /// The first node of the queue that was last read, or is being read, and what it contained. The caller's error uses
    /// both.
    looked_for: Option<String>,
    looked_at: Option<Box<ContenderInfo>>,
    /// The holder of the lock is behind this contender in the queue, so the contender's count of those ahead does not
    /// include it.
    holder_behind: bool,
}

/// Returns the task that runs one attempt to its end, and sends the outcome to `answer`.
///
/// The driver is boxed: the state of an async function that owns it would contain it several times.
pub(crate) fn drive(
    attempt: Attempt,
    contender: Contender,
    session: Arc<Session>,
    answer: AcquireReply,
) -> impl Future<Output = ()> + Send {
    let disconnects = session.link().borrow().disconnects;
    let mut driver = Box::new(Driver {
        attempt,
        session,
        contender,
        caller: Caller::Waiting(answer),
        granted: None,
        granted_by: None,
        cut_off: None,
        last_try: None,
        disconnects,
        sent: Duration::ZERO,
        answered: false,
        dependant: None,
        changing: None,
        changed_at: None,
        verifying: Vec::new(),
        asked_at: Duration::ZERO,
        at_release: None,
        delays: Vec::new(),
        refusal: None,
        node: String::new(),
        broken: None,
        lingered: false,
        entering: None,
        membership: None,
        looked_for: None,
        looked_at: None,
        holder_behind: false,
    });
    async move {
        let end = driver.run().await;
        driver.finish(end);
    }
}

impl Driver {
    /// Carries out the contender's commands until it ends.
    async fn run(&mut self) -> End {
        let mut flight: Option<BoxFuture<'static, Finished>> = None;
        let mut look: Option<BoxFuture<'static, Looked>> = None;
        let mut proof: Option<BoxFuture<'static, Result<(), OpError>>> = None;
        let mut probe: Option<BoxFuture<'static, Result<(), OpError>>> = None;
        let mut probed_at = Duration::ZERO;
        let mut probe_at = self.probe_at();
        let mut watches: Vec<(String, Watcher)> = Vec::new();
        let mut neighbour: Option<NeighbourListener> = None;
        let mut link = self.session.link();
        let mut proofs = self.session.proofs();
        let closing = self.session.closing();
        let mut close_seen = false;
        let linger = tokio::time::sleep_until(self.attempt.started + LINGER);
        tokio::pin!(linger);
        let mut ended = None;
        let linked = *link.borrow();
        self.limit_disconnect(linked);
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
                    Command::Watch { name, kind: WatchKind::Blocker } if self.hears_of(&name, &mut neighbour) => {
                        self.contender.handle(Event::Neighbour);
                    }
                    Command::Enter { prefix, limit, alone } => {
                        let entering = self.session.neighbours().enter(&self.attempt.path);
                        let alone = alone && entering.company;
                        self.entering = Some(entering);
                        self.sent = self.session.now();
                        flight = Some(self.operations().start(Command::Enter { prefix, limit, alone }));
                    }
                    other => {
                        self.sent = self.session.now();
                        flight = Some(self.operations().start(other));
                    }
                }
            }
            if self.contender.has_begun_to_delete()
                && let Some(error) = self.refusal()
            {
                // The delete goes out first: the caller's next attempt never meets the node of this one.
                if let Some(delete) = &mut flight
                    && let Poll::Ready(finished) = poll!(delete.as_mut())
                {
                    flight = Some(ready(finished).boxed());
                }
                self.caller.refuse(error);
            }
            self.hand_over_if_fresh();
            self.report_standing();
            self.listen(&mut neighbour);
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
                return end;
            }
            let aged = self.attempt.ageing.map(|(when, _)| when);
            let delayed = self.delays.iter().min().cloned();
            // Biased, so that the seed alone determines a simulation.
            let wake = tokio::select! {
                biased;
                () = closing.cancelled(), if !close_seen => Wake::Closing,
                _ = link.changed() => Wake::LinkChanged,
                _ = proofs.changed(), if self.granted.is_some() || self.changed_at.is_some() => Wake::Proved,
                finished = or_never(flight.as_mut()) => Wake::Finished(Box::new(finished)),
                (name, fired) = first_fired(&mut watches) => Wake::Fired(name, fired),
                // Without a connection nobody knows whether the session lives.
                heard = or_never(neighbour.as_mut().map(NeighbourListener::heard)), if link.borrow().connected => {
                    Wake::Heard(heard)
                }
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
                Wake::Finished(finished) => {
                    flight = None;
                    self.settle(*finished, &mut watches);
                }
                Wake::Fired(name, fired) => {
                    trace!(path = %self.attempt.path, id = %self.contender.id(), node = %name, ?fired);
                    match fired {
                        Fired::SessionOver => {}
                        _ if name.is_empty() => self.contender.handle(Event::ChildrenChanged),
                        Fired::Gone => self.contender.handle(Event::Gone(name)),
                        Fired::Changed => self.contender.handle(Event::Changed(name)),
                    }
                }
                Wake::Heard(heard) => {
                    if let Some(listener) = neighbour.take() {
                        let node = listener.node().to_owned();
                        self.contender.handle(heard.event(node.clone()));
                        // A release is of no use to a contender that others hold beside, for example.
                        if self.contender.waits_for() == Some(&*node) {
                            neighbour = self.session.neighbours().listen(&self.attempt.path, &node, true);
                            if neighbour.is_none() {
                                self.contender.handle(Event::Ended { name: node, deleted: false });
                            }
                        }
                    }
                }
                Wake::Looked(seen) => {
                    look = None;
                    (self.looked_at, self.holder_behind) = (seen.info, seen.holder_behind);
                    if seen.sessionless {
                        self.contender.handle(Event::NoContender(seen.name));
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
                    self.contender.handle(Event::DelayOver(name));
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
                    self.report_cut_off();
                }
                Wake::Cancelled => {
                    let error = AcquireError::Cancelled { path: self.attempt.path.clone() };
                    self.give_up(error);
                }
                Wake::CallerGone => {
                    self.pass_on();
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

    /// Listens to the contender that has the node that this one waits for, if it is of this session.
    fn listen(&self, neighbour: &mut Option<NeighbourListener>) {
        let node = self.contender.waits_for();
        if neighbour.as_ref().map(NeighbourListener::node) != node {
            *neighbour = node.and_then(|node| self.session.neighbours().listen(&self.attempt.path, node, false));
        }
    }

    /// Listens to the owner of this node, if it is of this session and the contender waits for the node's end only.
    fn hears_of(&self, node: &str, neighbour: &mut Option<NeighbourListener>) -> bool {
        if self.contender.waits_for() == Some(node) {
            self.listen(neighbour);
        }
        neighbour.as_ref().is_some_and(|listener| listener.node() == node)
    }

    /// Reports to the other contenders of this session whether and how this one stands in the queue.
    fn report_standing(&mut self) {
        let node = self.contender.node().filter(|_| self.attempt.discipline.waits_for_one());
        let holds = self.contender.holds();
        // While it leaves, its place is what it was.
        let before = self.membership.as_ref().map_or(usize::MAX, |membership| membership.standing().ahead);
        let ahead = if holds { 0 } else { self.contender.place().map_or(before, |place| place.ahead) };
        let standing = Standing { ahead, holds, watches_itself: self.contender.watches_itself() };
        match &mut self.membership {
            Some(membership) if Some(membership.node()) == node => membership.stands(standing),
            _ => {
                let join = |node| self.session.neighbours().join(&self.attempt.path, node, standing);
                self.membership = node.and_then(join);
            }
        }
    }

    /// The caller has released: the next contender of this session holds before the delete is sent. Not if the release
    /// writes a node: the next contender would read that node as it was before.
    fn pass_on(&self) {
        if self.at_release.is_some() {
            return;
        }
        let Some(hold) = self.caller.hold() else { return };
        hold.judge();
        if let (None, Some(_), Some(membership)) = (hold.loss(), self.contender.passes_on(), &self.membership) {
            membership.released();
        }
    }

    fn operations(&self) -> CommandRunner<'_> {
        let Attempt { path, ensemble, payload, node_format, looks_beside, .. } = &self.attempt;
        let (node_format, looks_beside) = (*node_format, *looks_beside);
        let at_release = self.at_release.as_ref().map(|write| (self.node.as_str(), &write.step));
        CommandRunner { ensemble, path, node_format, looks_beside, payload, at_release }
    }

    /// Passes the outcome of an operation to the contender. Keeps the text of a refusal for the caller.
    fn settle(&mut self, finished: Finished, watches: &mut Vec<(String, Watcher)>) {
        if finished.event.proves_session() {
            self.session.proved(self.sent);
        }
        self.answered |= finished.is_answer();
        let Finished { event, error, watch, read, written } = finished;
        if let (Some(written), Some(write)) = (written, self.at_release.take_if(|_| written.is_some())) {
            _ = write.written.send(written);
        }
        match error {
            Some(OpError::SessionOver) => return self.contender.handle(Event::SessionOver),
            Some(error) if matches!(failure(&error), Failure::Refused | Failure::NodeExists) => {
                self.refusal = Some(error.to_string());
            }
            _ => {}
        }
        let event = match event {
            Event::Entered { created: Ok((name, zxid)), arrival } => {
                self.node.clone_from(&name);
                let known = self.entering.take().filter(|_| arrival == Arrival::Unknown);
                let arrival = known.map_or(arrival, |entering| entering.arrival(&name));
                Event::Entered { created: Ok((name, zxid)), arrival }
            }
            other => other,
        };
        if matches!(event, Event::Entered { .. }) {
            self.entering = None;
        }
        if let Some((name, watcher)) = watch {
            // The own node's watch comes first: if the own node and the blocker are both deleted, the blocker no
            // longer matters.
            let own = self.contender.node() == Some(&name);
            watches.insert(if own { 0 } else { watches.len() }, (name, watcher));
        }
        // In a try, the contender reads the holder's node: the caller's error names the holder.
        self.looked_at = self.looked_at.take().or(read);
        let inspected = matches!(event, Event::Inspected(_));
        let deleted = matches!(event, Event::Deleted(Ok(())));
        self.contender.handle(event);
        if deleted && self.contender.node().is_none() {
            self.membership.take().into_iter().for_each(Membership::deleted);
        }
        if inspected && self.contender.place().is_none() {
            self.looked_at = None;
        }
    }

    /// Tells the owner of a hold that the contender leaves, before the hold's other node is deleted, because that grants the
    /// lock to the next contender.
    fn report_leaving(&mut self) {
        let Some(end) = self.contender.leaves_for() else { return };
        match (&self.caller, end) {
            (Caller::Holding { hold, .. }, _) | (Caller::Releasing { hold, .. }, End::Removed) => {
                hold.lose(Loss::Removed)
            }
            (Caller::Waiting(_) | Caller::Releasing { .. } | Caller::Gone, _) => {}
        }
    }

    /// Returns the error of a waiter that leaves, whose caller need not wait for the end.
    fn refusal(&mut self) -> Option<AcquireError> {
        let path = || self.attempt.path.clone();
        match (&self.caller, self.contender.leaves_for()?) {
            (Caller::Waiting(_), End::Held { ahead }) => {
                Some(AcquireError::Held { path: path(), holder: self.looked_at.take(), ahead: Some(ahead) })
            }
            (Caller::Waiting(_), End::TooManyAhead { ahead }) => {
                Some(AcquireError::TooManyWaiters { path: path(), ahead, most: self.contender.max_ahead() })
            }
            _ => None,
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
    fn limit_disconnect(&mut self, link: Link) {
        if link.connected {
            (self.cut_off, self.last_try) = (None, None);
            return;
        }
        let patience = match (&self.caller, self.attempt.retries) {
            (Caller::Waiting(_), Some(retries)) => {
                // A new disconnect counts from its beginning, even if its first tries have failed already.
                let is_new = link.disconnects != self.disconnects;
                let failed = if is_new { 0 } else { link.failed_tries };
                // The first failed try is the rest of the round that the lost connection began: it is no retry.
                let last = failed.saturating_add(retries).saturating_add(1);
                self.last_try = Some(self.last_try.filter(|_| !is_new).unwrap_or(last));
                return;
            }
            (Caller::Waiting(_), None) => self.attempt.connect_timeout,
            _ => self.session.timeout(),
        };
        self.cut_off = self.cut_off.or_else(|| Instant::now().checked_add(patience));
    }

    /// Ends a call whose connection has been lost for as long as its caller tolerates. Without a setting, a contender in
    /// the queue keeps its position: only a server can say that its session is over. A release ends after the session
    /// timeout, because it is unknown when a server can be reached again; the contender leaves then.
    fn report_cut_off(&mut self) {
        let (path, servers) = (self.attempt.path.clone(), self.attempt.servers.to_string());
        match (&self.caller, self.attempt.retries) {
            (Caller::Waiting(_), Some(_)) => self.give_up(SessionError::ConnectionLost { path }.into()),
            (Caller::Waiting(_), None) if self.contender.node().is_none() => {
                let (waited, detail) = (self.attempt.connect_timeout, "the connection is lost".to_owned());
                self.give_up(SessionError::Unreachable { servers, waited, detail }.into());
            }
            (Caller::Releasing { .. }, _) => {
                if let Caller::Releasing { hold, confirm, requests: _kept } =
                    std::mem::replace(&mut self.caller, Caller::Gone)
                {
                    hold.judge();
                    _ = confirm.send(Err(ReleaseError::NotHeld { loss: hold.loss().unwrap_or(Loss::Unreachable) }));
                }
            }
            // A holder decides by its own clock.
            (Caller::Waiting(_) | Caller::Holding { .. } | Caller::Gone, _) => {}
        }
    }

    /// Handles a change of the connection: a holder may have lost its hold; a waiter continues until its session is over.
    fn connection_changed(&mut self, link: Link) {
        if let Caller::Holding { hold, .. } = &self.caller
            && hold.judge()
        {
            // If the session lives on after all, the node must be deleted: the hold already counts as lost.
            self.contender.handle(Event::Lost);
        }
        self.limit_disconnect(link);
        if self.last_try.take_if(|last| link.failed_tries >= *last).is_some() {
            self.report_cut_off();
        }
        // Also if the connection is up again already: an unobserved disconnect still counts.
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
