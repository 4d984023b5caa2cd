//! What the driver reports to its caller: the grant, the changes of the hold, and the error at the end.

use std::sync::Arc;
use std::time::Duration;

use futures_channel::mpsc;
use lockkeeper_core::{Ask, Command, End, Event, Failure, Grant, LinkState, Loss, Silence, node_path};
use lockkeeper_session::ensemble::TxnStep;
use lockkeeper_session::epoch;
use lockkeeper_session::wait::judged_at;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::Driver;
use super::attempt::Attempt;
use super::caller::Caller;
use super::state::{HoldChange, Noting};
use crate::contender::ContenderInfo;
use crate::error::{AcquireError, Mismatch, ReleaseError, SessionError};
use crate::hold::holding::Holding;
use crate::hold::note::{HoldReport, NotedEnd};
use crate::hold::{Hold, HoldRequest, YieldRequest};

impl Driver {
    /// Gives the lock to the caller; releases it if the caller no longer listens.
    pub(super) fn hand_over(&mut self, grant: Grant) {
        let caller = std::mem::replace(&mut self.caller, Caller::Gone);
        let Caller::Waiting(caller) = caller else {
            return self.contender.handle(Event::Leave);
        };
        self.node.clone_from(&grant.name);
        self.noting.before = self.first.take();
        self.attempt.terms.is_granted();
        let (sender, requests) = mpsc::unbounded();
        let (path, discipline) = (self.attempt.path().to_owned(), self.attempt.kind.discipline);
        let (holder_marker, fences) = (discipline.holder_marker().map(str::to_owned), discipline.has_tokens());
        let hold = Hold::new(path, grant, holder_marker, fences, self.session.clone(), &self.attempt.terms.options);
        debug!(path = %hold.path, node = %hold.node(), token = %hold.token, "granted");
        self.yield_at = self.attempt.terms.options.min_hold.and_then(|after| Instant::now().checked_add(after));
        // The revocation may have come while the grant waited for its heartbeat.
        hold.ask(self.contender.revocation().filter(|asked| asked.refused.is_none()).cloned());
        self.leaving = Some(hold.leaving());
        self.caller = Caller::Holding { hold: hold.clone(), requests };
        // If the caller no longer listens, the guard is dropped here, which requests the release.
        _ = caller.send(Ok(Holding::new(hold, sender)));
    }

    /// Handles a request from the guard's owner.
    pub(super) fn requested(&mut self, request: HoldRequest) {
        match request {
            HoldRequest::Release(confirm) => self.release(Some(confirm)),
            HoldRequest::WriteAtRelease(write) => {
                self.at_release = Some(write);
                self.contender.handle(Event::Ask(Ask::WriteAtRelease));
            }
            HoldRequest::Note(mut note) => {
                let begun = note.begun.take();
                self.noting.note = Some(note);
                self.look_at_hold();
                if let Some((begun, report)) = begun.zip(self.report(None)) {
                    // Its author may not need it.
                    _ = begun.send(report);
                }
            }
            HoldRequest::Downgrade(done) => {
                self.change = HoldChange { caller: Some(done), happened_at: None };
                self.contender.handle(Event::Ask(Ask::Downgrade));
            }
            HoldRequest::Upgrade(done) => {
                self.change = HoldChange { caller: Some(done), happened_at: None };
                self.contender.handle(Event::Ask(Ask::Upgrade));
            }
            HoldRequest::StayReader => {
                self.change = HoldChange::default();
                self.contender.handle(Event::Ask(Ask::StayReader));
            }
            HoldRequest::Refuse(why) => self.contender.handle(Event::Refuse(why.into())),
            HoldRequest::Yield(request) => self.make_way(*request),
            HoldRequest::Verify(answer) => {
                self.verification.callers.push(answer);
                self.contender.handle(Event::Ask(Ask::Verify));
            }
        }
    }

    /// The caller is gone, or releases its hold and waits for the confirmation.
    pub(super) fn release(&mut self, confirm: Option<oneshot::Sender<Result<(), ReleaseError>>>) {
        // The owner's clock may already show a loss; the release reports it too, whether or not the timer has run.
        let lost = self.caller.hold().is_some_and(|hold| hold.judge());
        self.look_at_hold();
        let Caller::Holding { hold, .. } = std::mem::replace(&mut self.caller, Caller::Gone) else {
            return self.contender.handle(Event::Leave);
        };
        self.contender.handle(Event::Release { lost, writes: hold.may_still_write() });
        if let Some(confirm) = confirm {
            self.await_confirmation(hold, confirm);
        }
    }

    /// Lets the owner of a hold wait for the confirmation of its release. If no node of the hold can exist, there is nothing to
    /// confirm.
    fn await_confirmation(&mut self, hold: Arc<Hold>, confirm: oneshot::Sender<Result<(), ReleaseError>>) {
        let before = hold.loss();
        // The other node of a hold with a holder marker may exist.
        let has_one_node = self.attempt.kind.discipline.holder_marker().is_none();
        if let Some(loss @ Loss::Removed) = before.filter(|_| has_one_node) {
            _ = confirm.send(Err(ReleaseError::NotHeld { loss }));
            return;
        }
        self.caller = Caller::Releasing { hold, before, confirm };
        // The limit counts from the release, whatever the connection does meanwhile.
        self.disconnect.cut_off = Instant::now().checked_add(self.session.timeout());
        self.disconnect.last_try = None;
    }

    /// Tells the holder whether a contender of an earlier class waits.
    pub(super) fn contended(&mut self, contended: bool) {
        if let Caller::Holding { hold, .. } = &self.caller {
            debug!(path = %hold.path, node = %hold.node(), contended, "a contender of an earlier class waits");
            hold.contended.send_replace(contended);
        }
    }

    /// Ends the hold of a caller that makes way, and lets the caller wait for the next grant.
    fn make_way(&mut self, request: YieldRequest) {
        self.look_at_hold();
        let YieldRequest { reply, span } = request;
        let Caller::Holding { hold, .. } = std::mem::replace(&mut self.caller, Caller::Gone) else { return };
        hold.judge();
        if let Some(loss) = hold.loss() {
            let (path, node) = (hold.path.clone(), hold.node());
            _ = reply.send(Err(match loss {
                Loss::Removed => AcquireError::Evicted { path, node, by: None },
                loss => AcquireError::SessionLost { path, loss },
            }));
            // The caller has not released.
            return self.contender.handle(Event::Lost);
        }
        (self.caller, self.leaving) = (Caller::Waiting(reply), None);
        self.attempt.terms.span = span;
        (self.attempt.started, self.attempt.terms.timeout, self.attempt.deadline) = (Instant::now(), None, None);
        (self.change, self.yield_at) = (HoldChange::default(), None);
        self.verification.callers.clear();
        // What is said of the next hold counts from here.
        self.times.waits_again(self.session.now());
        self.contender.handle(Event::Ask(Ask::Yield));
    }

    /// The holder marker of a hold that made way is deleted: the hold has ended, whatever becomes of the attempt.
    pub(super) fn end_hold_that_made_way(&mut self) {
        if self.contender.leaves_for().is_none() {
            self.end_note(End::Left, Loss::Closed);
            self.noting = Noting::default();
        }
    }

    /// Answers those who asked the servers for a proof of the hold.
    pub(super) fn verified(&mut self, shown: Result<(), Failure>) {
        let answer = match shown {
            Ok(()) => Ok(()),
            // This counts as a loss, and is reported by this answer or by the connection's state. The contender's own
            // watch informs the contender.
            Err(Failure::NoNode) => {
                self.verification.callers.clear();
                return self.lose(Loss::Removed);
            }
            Err(_) => Err(self.refusal.clone().unwrap_or_default()),
        };
        for asked in self.verification.callers.drain(..) {
            _ = asked.send(answer.clone());
        }
    }

    /// Handles a revocation: the holder is asked to release.
    pub(super) fn revoke(&mut self) {
        if let (Caller::Holding { hold, .. }, Some(asked)) = (&self.caller, self.contender.revocation()) {
            debug!(path = %hold.path, node = %hold.node(), %asked, "asked to release");
            hold.ask(Some(asked.clone()));
        }
    }

    /// Reports that the change of the hold that its owner waits for has happened.
    pub(super) fn changed(&mut self) {
        if let Some(done) = self.change.caller.take() {
            _ = done.send(());
        }
    }

    /// Ends the attempt and reports the outcome to every caller that still waits.
    pub(super) fn finish(mut self, end: End) {
        let loss = session_loss(self.session.link().borrow().state);
        self.end_note(end, loss);
        let first = self.take_holder();
        let refusal = self.refusal;
        let Attempt { kind, terms, started, .. } = self.attempt;
        let path = kind.path.to_string();
        match self.caller {
            Caller::Waiting(caller) => {
                let error = match end {
                    End::SessionOver => match self.session.known_epoch() {
                        // A server that requires a secret rejects the first request of a client without it, which is
                        // this one, and ends the session.
                        epoch::Known::Refused(reason) => SessionError::Refused { path, reason }.into(),
                        // The server may have reported the delete of its node before the end of the session.
                        _ if terms.requeue.again && loss == Loss::SessionExpired => {
                            return terms.rejoin(kind, started, caller, !self.node.is_empty());
                        }
                        _ => AcquireError::SessionLost { path, loss },
                    },
                    End::Removed => AcquireError::Evicted { path, node: self.node, by: self.broken },
                    End::NoParent => AcquireError::NoSuchLock { path },
                    End::ParentVanishes => AcquireError::ParentVanishes { path },
                    End::Revoked => {
                        let by = self.contender.revocation().cloned().map(Box::new).unwrap_or_default();
                        AcquireError::Revoked { path, by }
                    }
                    End::LimitDiffers(stated) => {
                        Mismatch::Permits { path, ours: kind.discipline.limit().unwrap_or_default(), stated }.into()
                    }
                    End::IncompatibleFormat(theirs) => Mismatch::Format { path, theirs }.into(),
                    End::Held { ahead } => AcquireError::Held { path, holder: first, ahead: Some(ahead) },
                    End::TooManyAhead { ahead } => {
                        AcquireError::TooManyWaiters { path, ahead, most: self.contender.max_ahead() }
                    }
                    End::Refused | End::Stuck | End::Left => {
                        let reason = refusal.unwrap_or_else(|| "no reason given".to_owned());
                        SessionError::Refused { path, reason }.into()
                    }
                };
                _ = caller.send(Err(error));
            }
            Caller::Holding { hold, .. } => {
                hold.lose(match end {
                    End::SessionOver => loss,
                    _ => Loss::Removed,
                });
            }
            Caller::Releasing { before, confirm, .. } => {
                _ = confirm.send(match (before, end) {
                    (Some(before), _) => Err(ReleaseError::NotHeld { loss: before }),
                    (None, End::SessionOver) => Err(ReleaseError::NotHeld { loss }),
                    (None, End::Removed) => Err(ReleaseError::NotHeld { loss: Loss::Removed }),
                    (None, End::Stuck) => Err(ReleaseError::Failed { reason: refusal.unwrap_or_default() }),
                    (None, _) => Ok(()),
                });
            }
            Caller::Gone => {
                if end == End::Stuck {
                    warn!(%path, node = %self.node, reason = ?refusal,
                        "the server refuses to delete the lock's node; it stays until the session ends");
                }
            }
        }
    }

    /// Returns what the transaction of this command writes about the hold that it ends.
    pub(super) fn note_steps(&mut self, command: &Command) -> Vec<TxnStep> {
        let leaves = matches!(command, Command::Delete { .. }) && self.contender.leaves_for().is_some();
        let ends = leaves || matches!(command, Command::GiveUpHolderMarker { .. });
        if !ends || self.noting.written || self.noting.note.is_none() {
            return Vec::new();
        }
        self.look_at_hold();
        _ = self.noting.left.get_or_insert(self.session.now());
        let (note, report) = (&self.noting.note, self.report(None));
        note.as_ref().zip(report).map_or_else(Vec::new, |(note, report)| (note.steps)(&report))
    }

    /// Notes what the note about the hold needs of it, while the caller has it.
    pub(super) fn look_at_hold(&mut self) {
        if let (Some(hold), Some(_)) = (self.caller.hold(), &self.noting.note) {
            self.noting.span = Some(hold.span());
        }
    }

    /// Reports the end of a hold to the author of the note about it.
    fn end_note(&mut self, end: End, over: Loss) {
        self.look_at_hold();
        let loss = match end {
            End::SessionOver => Some(over),
            End::Removed => Some(Loss::Removed),
            _ => None,
        };
        let report = self.report(loss);
        if let Some((note, report)) = self.noting.note.take().zip(report) {
            // Nobody may wait for it.
            _ = note.ended.send(NotedEnd { report, written: self.noting.written, at: self.session.now() });
        }
    }

    /// Returns what is known of a hold with a note, which ended with this loss if no earlier one is known.
    fn report(&self, loss: Option<Loss>) -> Option<HoldReport> {
        let Noting { span, left, before, .. } = &self.noting;
        let (began, lost) = (*span)?;
        let now = self.session.now();
        let ended = lost.map(|(_, at)| at).or(*left).unwrap_or(now);
        Some(HoldReport {
            waited: began.saturating_sub(self.times.queued()),
            held: ended.saturating_sub(began),
            granted_ms: self.times.servers_ms(began),
            ended_ago: now.saturating_sub(ended),
            revocation: self.contender.revocation().filter(|asked| asked.refused.is_none()).cloned(),
            loss: lost.map(|(loss, _)| loss).or(loss),
            before: before.clone(),
        })
    }

    /// Reports an error to the caller now; the contender leaves on its own afterwards.
    pub(super) fn give_up(&mut self, error: AcquireError) {
        self.caller.refuse(error);
        self.contender.handle(Event::Leave);
    }

    /// Returns the first contender of the queue, for the caller's error. It is the holder, unless a node without a session
    /// blocks it.
    pub(super) fn take_holder(&mut self) -> Option<Box<ContenderInfo>> {
        let mut first = self.first.take()?;
        let blocks = self.contender.place().and_then(|place| place.blocks_first.as_ref());
        let blocks = blocks.filter(|node| first.is_blocked_by(node));
        first.blocked_by = blocks.map(|node| node_path(self.attempt.path(), &node.name));
        first.holds(None);
        Some(first)
    }

    /// Returns the error of a call at its deadline. `unanswered` is when the oldest request without an answer was sent,
    /// by the session's clock.
    pub(super) fn timed_out(&mut self, unanswered: Option<Duration>) -> AcquireError {
        let path = self.attempt.path().to_owned();
        let mut place = self.contender.ahead();
        if self.attempt.kind.discipline.granted_by_listing() {
            // Since it looked, contenders of this session may have left.
            let now = self.local.place();
            place = place.into_iter().chain(now.map(|place| place.ahead)).min();
        }
        if let (true, Some(ahead)) = (self.contender.is_once(), place) {
            return AcquireError::Held { path, holder: self.take_holder(), ahead: Some(ahead) };
        }
        let waited = self.attempt.terms.timeout.unwrap_or_default();
        let detail = if !self.session.link().borrow().connected {
            "the connection is lost"
        } else if self.servers_are_silent(unanswered) {
            "a request was not answered"
        } else if self.contender.is_once() {
            // It waits for nothing but the servers.
            "the servers answered too slowly, or the connection was lost again and again"
        } else {
            return AcquireError::Timeout { path, waited, holder: self.take_holder(), ahead: place };
        };
        let servers = self.attempt.servers();
        SessionError::Unreachable { servers, waited, detail: detail.to_owned() }.into()
    }
}

impl Driver {
    /// Returns whether the servers have been silent for so long that they count as unreachable.
    fn servers_are_silent(&self, unanswered: Option<Duration>) -> bool {
        // A grant waits for a heartbeat.
        let heartbeat = self.granted.as_ref().map(|(_, at)| *at);
        let at = judged_at(self.attempt.deadline);
        // How long ago that was.
        let late = at.elapsed();
        let age = |sent| self.session.now().saturating_sub(sent).saturating_sub(late);
        let silence = Silence {
            called: at.saturating_duration_since(self.attempt.started),
            answered: self.answered,
            unanswered: unanswered.into_iter().chain(heartbeat).min().map(age),
            session: self.attempt.ensemble.unanswered_for().saturating_sub(late),
        };
        silence.is_outage()
    }
}

/// Returns how the session ended. Only a server can say that it has expired.
fn session_loss(state: LinkState) -> Loss {
    match state {
        LinkState::Over(loss) => loss,
        _ => Loss::Unreachable,
    }
}
