//! Carries out the contender's commands: the only part of the lock protocol that does I/O.
//!
//! Each attempt has one task on the session's thread. The task runs from the create until the node is seen deleted or
//! the session is over. It *owns* every outcome; the caller only listens. A caller that stops listening, at any moment,
//! leaves nothing behind: the task notices it and makes the contender leave. (`zookeeper-client`'s own lock leaves its
//! node for ever if its create is cancelled before the reply.)

mod answering;
mod attempt;
mod caller;
mod connection;
mod inquiry;
pub(crate) mod operations;
mod state;
mod timers;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::ready;
use futures_util::{FutureExt, poll};
use lockkeeper_core::{Arrival, Command, Contender, End, Event, Failure, Grant, Loss, TokenEpoch, WatchKind};
use lockkeeper_session::ensemble::{Fired, OpError, Watcher};
use lockkeeper_session::wait::or_never;
use lockkeeper_session::{KeepTrusted, Session, epoch};
use tokio::time::{Instant, Sleep};
use tracing::trace;

pub(crate) use self::attempt::Attempt;
use self::attempt::{Timer, Wake};
use self::caller::Caller;
use self::operations::{CommandRunner, Finished, failure};
use self::state::{Disconnect, HoldChange, HoldTimes, Noting, Pending, Verification};
use crate::broken::Broken;
use crate::contender::ContenderInfo;
use crate::error::{AcquireError, SessionError};
use crate::hold::exit::Leaving;
use crate::hold::spans::waits_behind;
use crate::hold::{AcquireReply, AtRelease};
use crate::queue::local::{LocalRegistration, SessionQueues};

struct Driver {
    attempt: Attempt,
    session: Arc<Session>,
    local: LocalRegistration,
    /// Kept while the session needs heartbeats at all times.
    dependant: Option<KeepTrusted>,
    contender: Contender,
    caller: Caller,
    /// A grant that waits until the session is trusted again, and when the grant came, by the session's clock.
    granted: Option<(Grant, Duration)>,
    disconnect: Disconnect,
    times: HoldTimes,
    change: HoldChange,
    verification: Verification,
    /// The first of the queue, as last read. The caller's error names the holder.
    first: Option<Box<ContenderInfo>>,
    /// When the current operation was started, by the session's clock.
    sent: Duration,
    /// Whether an operation was answered.
    answered: bool,
    /// The write in the transaction of the release.
    at_release: Option<Box<AtRelease>>,
    /// The note about the hold.
    noting: Noting,
    /// The tombstones to delete, and when.
    delays: Vec<(Instant, String)>,
    /// The last refusal; the caller's error contains it.
    refusal: Option<String>,
    /// The last known own node; messages name it after its deletion.
    node: String,
    /// Who removed the waiter's node, where that is recorded.
    broken: Option<Box<Broken>>,
    lingered: bool,
    /// When the hold is old enough to make way.
    yield_at: Option<Instant>,
    /// Kept while there is a hold to release.
    leaving: Option<Leaving>,
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
    let count = session.link().borrow().disconnects;
    let local = session.shared::<SessionQueues>().of(attempt.kind.node_format).register(attempt.path());
    let mut driver = Box::new(Driver {
        attempt,
        session,
        local,
        dependant: None,
        contender,
        caller: Caller::Waiting(answer),
        granted: None,
        disconnect: Disconnect { count, ..Disconnect::default() },
        times: HoldTimes::default(),
        change: HoldChange::default(),
        verification: Verification::default(),
        first: None,
        sent: Duration::ZERO,
        answered: false,
        at_release: None,
        noting: Noting::default(),
        delays: Vec::new(),
        refusal: None,
        node: String::new(),
        broken: None,
        lingered: false,
        yield_at: None,
        leaving: None,
    });
    async move {
        let end = driver.run().await;
        driver.finish(end);
    }
}

impl Driver {
    /// Carries out the contender's commands until it ends.
    async fn run(&mut self) -> End {
        let (probe_at, last_look_at) = (self.probe_at(), self.last_look_at());
        let mut pending = Pending { probe_at, last_look_at, ..Pending::default() };
        let mut link = self.session.link();
        let mut heartbeats = self.session.heartbeats();
        let closing = self.session.closing();
        let mut close_seen = false;
        // One timer for all: a timer is large, and every attempt has this task.
        let mut timer = pin!(tokio::time::sleep_until(self.attempt.started));
        let linked = *link.borrow();
        self.limit_disconnect(linked);
        loop {
            self.report_leaving();
            let ended = self.carry_out(&mut pending);
            if self.contender.has_begun_to_delete()
                && let Some(error) = self.refusal()
            {
                // The delete goes out first: the caller's next attempt never meets the node of this one.
                if let Some(delete) = &mut pending.flight
                    && let Poll::Ready(finished) = poll!(delete.as_mut())
                {
                    pending.flight = Some(ready(finished).boxed());
                }
                self.caller.refuse(error);
            }
            if ended.is_none() && self.is_evicted(&mut pending) {
                continue;
            }
            self.hand_over_if_fresh();
            self.local.report(&self.contender);
            self.report_wait(ended);
            pending.watches.retain(|(name, _)| self.contender.watches(name));
            if let Some(end) = ended {
                return match end {
                    // Boxed: it is larger than all that the task has otherwise.
                    End::Removed | End::SessionOver => self.explain(end, &mut link).boxed().await,
                    end => end,
                };
            }
            let next = self.next_timer(&pending);
            if let Some((when, _)) = next
                && timer.deadline() != when
            {
                timer.as_mut().reset(when);
            }
            // Biased, so that the seed alone determines a simulation.
            let wake = tokio::select! {
                biased;
                () = closing.cancelled(), if !close_seen => Wake::Closing,
                _ = link.changed() => Wake::LinkChanged,
                _ = heartbeats.changed(), if self.granted.is_some() || self.change.happened_at.is_some() => Wake::Heartbeat,
                finished = or_never(pending.flight.as_mut()) => Wake::Finished(Box::new(finished)),
                (name, fired) = first_fired(&mut pending.watches) => Wake::Fired(name, fired),
                // Without a connection nobody knows whether the session lives.
                signal = self.local.signal(), if link.borrow().connected => Wake::Heard(Box::new(signal)),
                seen = or_never(pending.look.as_mut()) => Wake::Looked(Box::new(seen)),
                checked = or_never(pending.check.as_mut()) => Wake::Checked(Box::new(checked)),
                _ = or_never(pending.probe.as_mut()) => Wake::Probed,
                wake = self.caller.state_changed(self.attempt.terms.cancel.as_ref()) => wake,
                due = reached(timer.as_mut(), next) => Wake::Due(due),
            };
            match wake {
                Wake::LinkChanged => {
                    let link = *link.borrow_and_update();
                    self.connection_changed(link);
                }
                Wake::Closing => {
                    close_seen = true;
                    self.lose(Loss::Closed);
                    self.give_up(SessionError::Closed.into());
                }
                wake => self.woken(wake, &mut pending),
            }
        }
    }

    /// Carries out the commands that the contender has now. Returns the end of the attempt, if it has come.
    fn carry_out(&mut self, pending: &mut Pending) -> Option<End> {
        let mut ended = None;
        while let Some(command) = self.contender.next_command() {
            trace!(path = %self.attempt.path(), id = %self.contender.id(), ?command);
            match command {
                Command::Grant(grant) => {
                    self.granted = Some((grant, self.session.now()));
                    self.note_grant();
                }
                Command::Revoke => self.revoke(),
                Command::Contended(contended) => self.contended(contended),
                Command::Delay { name, delay } => self.delays.push((Instant::now() + delay.duration(), name)),
                Command::Upgraded => {
                    self.change.happened_at = Some(self.session.now());
                    self.note_grant();
                }
                Command::Reads { name } => {
                    if let Some(hold) = self.caller.hold() {
                        hold.moved_to(name.clone());
                    }
                    self.node = name;
                    self.times.moves();
                    self.change.happened_at = Some(self.session.now());
                }
                Command::End(end) => ended = Some(end),
                Command::Verified(shown) => self.verified(shown),
                Command::Look { first, front } => {
                    self.first.take_if(|seen| seen.node != first);
                    pending.look = Some(self.operations().start(Command::Look { first, front }));
                }
                check @ Command::Check { .. } => {
                    self.verification.sent = self.session.now();
                    pending.check = Some(self.operations().start(check));
                }
                Command::Watch { name, kind: WatchKind::Blocker } if self.local.hears_of(&self.contender, &name) => {
                    self.contender.handle(Event::BlockerIsLocal);
                }
                Command::Enter { prefix, limit, alone, beside } => {
                    let alone = self.local.enter(alone);
                    self.sent = self.session.now();
                    self.times.enters(self.sent);
                    let enter = Command::Enter { prefix, limit, alone, beside };
                    pending.flight = Some(self.operations().start(enter));
                }
                other => {
                    self.sent = self.session.now();
                    pending.listing_before = matches!(other, Command::List { .. }).then(|| self.local.next_key());
                    if matches!(other, Command::WriteRecord { granted: true, .. }) {
                        self.times.due = None;
                    }
                    let note = self.note_steps(&other);
                    pending.flight = Some(self.operations().with_note(note).start(other));
                }
            }
        }
        ended
    }

    /// Notes when the lock was granted. The holder marker, where there is one, was created at that moment and tells it.
    fn note_grant(&mut self) {
        if self.attempt.kind.discipline.holder_marker().is_none() {
            self.times.grant(self.session.now());
        }
    }

    /// Handles what woke the driver, except what concerns the session.
    fn woken(&mut self, wake: Wake, pending: &mut Pending) {
        match wake {
            Wake::Finished(finished) => {
                pending.flight = None;
                if let (Some(before), Event::Listed(Ok(listing))) = (pending.listing_before.take(), &finished.event) {
                    self.local.listed(before, listing);
                }
                self.settle(*finished, self.sent, &mut pending.watches);
            }
            Wake::Fired(name, fired) => {
                trace!(path = %self.attempt.path(), id = %self.contender.id(), node = %name, ?fired);
                match fired {
                    Fired::SessionOver => {}
                    _ if name.is_empty() => self.contender.handle(Event::ChildrenChanged),
                    Fired::Gone => self.contender.handle(Event::Gone(name)),
                    Fired::Changed => self.contender.handle(Event::Changed(name)),
                }
            }
            Wake::Heard(signal) => self.contender.handle(*signal),
            Wake::Looked(finished) => {
                pending.look = None;
                waits_behind(&self.attempt.terms.span, finished.traceparent);
                // After a read that failed, the caller's error says what was last seen.
                if finished.event.failure().is_none_or(|failure| failure == Failure::NoNode) {
                    self.first = finished.read;
                }
                self.contender.handle(finished.event);
            }
            Wake::Checked(finished) => {
                pending.check = None;
                self.settle(*finished, self.verification.sent, &mut pending.watches);
            }
            Wake::Due(timer) => self.due(timer, pending),
            Wake::Probed => pending.probe = None,
            Wake::Cancelled => {
                let error = AcquireError::Cancelled { path: self.attempt.path().to_owned() };
                self.give_up(error);
            }
            Wake::CallerGone => {
                self.release(None);
                // The process may end before the answer comes, which nobody needs any more.
                if self.contender.only_watches_itself() && pending.flight.take().is_some() {
                    self.contender.handle(Event::Watched(Err(Failure::ConnectionLoss)));
                }
            }
            Wake::Requested(request) => {
                self.requested(request);
                if self.caller.is_waiting() {
                    // It has made way, and waits without a deadline.
                    (pending.probe_at, pending.last_look_at) = (None, None);
                }
            }
            Wake::Unattended => self.contender.handle(Event::Lost),
            // A hold that waits for a heartbeat is handed over before the next wake; `run` handles the others.
            Wake::Heartbeat | Wake::LinkChanged | Wake::Closing => {}
        }
    }

    /// Looks at the watch on the own node before a grant or a changed hold is handed over. Returns whether it has fired.
    ///
    /// The deletion of the own node may have been reported before what led to the grant. Two examples are the answer that the
    /// blocker does not exist, and the heartbeat after a reconnect. Both are ready at the same moment, and the watch is polled last.
    fn is_evicted(&mut self, pending: &mut Pending) -> bool {
        if self.granted.is_none() && self.change.happened_at.is_none() {
            return false;
        }
        let own = self.contender.node();
        let fired = pending.watches.iter_mut().enumerate().find_map(|(at, (name, watcher))| {
            let fired = own.filter(|own| *own == name).and_then(|_| watcher.now_or_never())?;
            Some((at, fired))
        });
        let Some((at, fired)) = fired else { return false };
        let (name, _) = pending.watches.remove(at);
        self.woken(Wake::Fired(name, fired), pending);
        true
    }

    /// Hands a grant, or a changed hold, to the caller once the session is trusted again.
    ///
    /// The session may have expired since the node ahead was deleted, and its last heartbeat may be old. The hold would
    /// then start with almost no time left, and its work would be stopped immediately. The second contender in the
    /// queue sends heartbeats, so its grant needs no round trip here. Others need one heartbeat.
    fn hand_over_if_fresh(&mut self) {
        if let (Some(hold), Some(_)) = (self.caller.hold(), self.contender.waits_for()) {
            hold.waits_for_readers.store(true, Ordering::Relaxed);
        }
        let next = self.contender.holds() || self.contender.place().is_some_and(|place| place.ahead <= 1);
        if next != self.dependant.is_some() {
            self.dependant = next.then(|| self.session.keep_trusted());
        }
        if let Some(at) = self.change.happened_at {
            if self.caller.hold().is_none_or(|hold| hold.loss().is_some()) {
                self.change = HoldChange::default();
            } else if self.session.is_fresh(at) {
                self.change.happened_at = None;
                self.changed();
            }
        }
        let Some(at) = self.granted.as_ref().map(|(_, at)| *at) else { return };
        if !self.contender.holds() {
            self.granted = None;
        } else if self.session.is_fresh(at) {
            let known = match self.attempt.kind.discipline.has_tokens() {
                true => self.session.known_epoch(),
                false => epoch::Known::Epoch(TokenEpoch::default()),
            };
            match known {
                epoch::Known::Epoch(epoch) => {
                    let Some((Grant { name, token }, _)) = self.granted.take() else { return };
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

    fn operations(&self) -> CommandRunner<'_> {
        let at_release = self.at_release.as_ref().map(|write| (&write.step, write.again));
        let (id, granted_ms) = (self.contender.id(), self.times.granted_ms());
        CommandRunner { attempt: &self.attempt, id, granted_ms, at_release, note: Vec::new() }
    }

    /// Passes the outcome of an operation to the contender, which was sent at this time. Keeps the text of a refusal for the caller.
    fn settle(&mut self, finished: Finished, sent: Duration, watches: &mut Vec<(String, Watcher)>) {
        if finished.event.shows_session_alive() {
            self.session.confirmed(sent);
        }
        self.answered |= finished.is_answer();
        let Finished { event, error, watch, read, written, noted, created_ms, traceparent } = finished;
        self.noting.written |= noted;
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
                self.times.entered(self.session.now());
                let local = self.local.entered(Some(&name));
                let arrival = if arrival == Arrival::Unknown { local } else { arrival };
                Event::Entered { created: Ok((name, zxid)), arrival }
            }
            other => other,
        };
        if matches!(event, Event::Entered { .. }) {
            self.local.entered(None);
        }
        if let Some((name, watcher)) = watch {
            // The own node's watch comes first: if the own node and the blocker are both deleted, the blocker no
            // longer matters.
            let own = self.contender.node() == Some(&name);
            match own {
                true => self.times.created_ms = created_ms,
                false => waits_behind(&self.attempt.terms.span, traceparent),
            }
            // Most attempts have one.
            watches.reserve_exact(1);
            watches.insert(if own { 0 } else { watches.len() }, (name, watcher));
        }
        // In a try, the contender reads the holder's node: the caller's error names the holder.
        self.first = self.first.take().or(read);
        let inspected = matches!(event, Event::Inspected(_));
        let made_way = self.contender.gives_way();
        self.contender.handle(event);
        if made_way && !self.contender.gives_way() {
            self.end_hold_that_made_way();
        }
        match self.contender.place() {
            _ if !inspected => {}
            Some(_) => waits_behind(&self.attempt.terms.span, traceparent),
            None => self.first = None,
        }
    }

    /// Reports whether the attempt is known to wait for other contenders. Not any more at its end, which another attempt may follow.
    fn report_wait(&self, ended: Option<End>) {
        let Some(report) = &self.attempt.terms.waits else { return };
        let waits = ended.is_none() && (self.contender.place().is_some() || self.contender.waits_for().is_some());
        report.send_if_modified(|before| std::mem::replace(before, waits) != waits);
    }

    /// Reports to the owner of a hold that the contender leaves, before the hold's other node is deleted. That delete grants
    /// the lock to the next contender.
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
        let path = || self.attempt.path().to_owned();
        match (&self.caller, self.contender.leaves_for()?) {
            (Caller::Waiting(_), End::Held { ahead }) => {
                Some(AcquireError::Held { path: path(), holder: self.take_holder(), ahead: Some(ahead) })
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
}

/// Resolves with `next` at its time; without one, never.
async fn reached(timer: Pin<&mut Sleep>, next: Option<(Instant, Timer)>) -> Timer {
    match next {
        Some((_, next)) => {
            timer.await;
            next
        }
        None => std::future::pending().await,
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
