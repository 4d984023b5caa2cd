//! What the driver tells its caller: the grant, the changes of the hold, and the error at the end.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::{End, FencingToken, Grant, LinkState, Loss, Revocation};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::Driver;
use super::attempt::Attempt;
use super::caller::Caller;
use crate::Error;
use crate::ensemble::{OpError, Step};
use crate::error::ReleaseError;
use crate::hold::guard::Holding;
use crate::hold::{Hold, Request};
use crate::session::epoch;

/// How old a request without an answer is at the deadline if the servers are called unreachable. A younger one may only have
/// met a busy server.
const SILENCE: Duration = Duration::from_secs(2);

/// The same for a call that had no answer at all: then it is not known either that the lock is taken.
const FIRST_SILENCE: Duration = Duration::from_millis(250);

impl Driver {
    /// Gives the lock to the caller; if nobody takes it, leaves again.
    pub(super) fn hand_over(&mut self, grant: Grant) {
        let caller = std::mem::replace(&mut self.caller, Caller::Gone);
        let Caller::Waiting(caller) = caller else {
            return self.contender.handle(lockkeeper_core::Event::Leave);
        };
        self.node.clone_from(&grant.name);
        let (sender, requests) = mpsc::unbounded_channel();
        let fences = self.attempt.permits.is_none();
        let Attempt { path, mark, options, .. } = &self.attempt;
        let hold = Hold::new(path.clone(), grant, mark.clone(), fences, self.session.clone(), options);
        debug!(path = %hold.path, node = %hold.node(), token = %hold.token, "granted");
        // Asked while the grant waited for its proof.
        hold.asked.send_replace(self.revocation.clone().filter(|asked| asked.refused.is_none()));
        self.caller = Caller::Holding { hold: hold.clone(), requests };
        // A guard that nobody takes is dropped here, and asks for the release by that.
        _ = caller.send(Ok(Holding::new(hold, sender)));
    }

    /// The guard's owner wants something.
    pub(super) fn requested(&mut self, request: Request) {
        use lockkeeper_core::{Ask, Event};
        match request {
            Request::Release(confirm) => {
                if let Caller::Holding { hold, .. } = std::mem::replace(&mut self.caller, Caller::Gone) {
                    // What its owner sees by the clock, it is told on release too, whether or not the timer has run.
                    hold.judge();
                    self.caller = Caller::Releasing { hold, confirm };
                }
                self.contender.handle(Event::Leave);
            }
            Request::Downgrade(done) => {
                (self.changing, self.changed_at) = (Some(done), None);
                self.contender.handle(Event::Ask(Ask::Downgrade));
            }
            Request::Upgrade(done) => {
                (self.changing, self.changed_at) = (Some(done), None);
                self.contender.handle(Event::Ask(Ask::Upgrade));
            }
            Request::StayReader => {
                (self.changing, self.changed_at) = (None, None);
                self.contender.handle(Event::Ask(Ask::StayReader));
            }
            Request::Refuse(why) => {
                if let Some(asked) = &mut self.revocation {
                    asked.refuse(&why);
                    self.refusing = true;
                    self.contender.handle(Event::Ask(Ask::Refuse));
                }
            }
            Request::LetGo => self.contender.handle(Event::Lost),
            Request::Verify(answer) => self.verifying.push(answer),
        }
    }

    /// Asks the servers whether the node of the hold stands, and its mark where there is one.
    ///
    /// A check in a transaction is put in order with all writes, so the answer is a majority's and proves the session. It is
    /// asked again where the connection is lost.
    pub(super) fn prove_the_hold(&mut self) -> Option<BoxFuture<'static, Result<(), OpError>>> {
        let hold = self.caller.hold()?;
        let (ensemble, path) = (self.attempt.ensemble.clone(), self.attempt.path.clone());
        let (node, granted_by) = (format!("{path}/{}", hold.node()), self.granted_by);
        let mark = self.attempt.mark.as_ref().map(|mark| format!("{path}/{mark}"));
        self.asked_at = self.session.now();
        let asked = async move {
            loop {
                let check = Step::Check { path: node.clone(), version: None };
                let checked = ensemble.transact(vec![check]).map(|done| done.map(drop).map_err(OpError::from));
                let outcome = match &mark {
                    None => checked.await,
                    Some(mark) => {
                        let (checked, seen) = tokio::join!(biased; checked, ensemble.read(mark));
                        let ours =
                            |seen: crate::ensemble::Node| Some(FencingToken::from_zxid(seen.czxid)) == granted_by;
                        checked.and(seen).and_then(|seen| if ours(seen) { Ok(()) } else { Err(OpError::NoNode) })
                    }
                };
                if outcome != Err(OpError::ConnectionLoss) {
                    return outcome;
                }
            }
        };
        Some(asked.boxed())
    }

    /// What the servers say of the hold.
    pub(super) fn verified(&mut self, proved: Result<(), OpError>) {
        let answer = match proved {
            Ok(()) => {
                self.session.proved(self.asked_at);
                Ok(())
            }
            // Told as a loss: by this word, or by the link's. The contender's own watch tells the contender.
            Err(OpError::NoNode) => {
                self.verifying.clear();
                return self.lose(Loss::Removed);
            }
            Err(OpError::SessionOver) => return self.verifying.clear(),
            Err(refusal) => Err(refusal.to_string()),
        };
        for asked in self.verifying.drain(..) {
            _ = asked.send(answer.clone());
        }
    }

    /// The holder is asked to let go.
    pub(super) fn revoke(&mut self) {
        let asked = self.revocation.get_or_insert_with(Revocation::default);
        if let Caller::Holding { hold, .. } = &self.caller {
            debug!(path = %hold.path, node = %hold.node(), %asked, "asked to let go");
            hold.asked.send_replace(Some(asked.clone()));
        }
    }

    /// A change of the hold that its owner waits for has happened.
    pub(super) fn changed(&mut self) {
        if let Some(done) = self.changing.take() {
            _ = done.send(());
        }
    }

    /// The attempt is over: whoever still waits for something learns how.
    pub(super) fn finish(self, end: End) {
        let loss = session_loss(self.session.link().borrow().state);
        let refusal = self.refusal;
        let Attempt { path, permits, max_waiters, .. } = self.attempt;
        match self.caller {
            Caller::Waiting(caller) => {
                let error = match end {
                    End::SessionOver => match self.session.known_epoch() {
                        // A server with a secret answers a stranger's first question, which is that one, and ends the session.
                        epoch::Known::Refused(reason) => Error::Refused { path, reason },
                        _ => Error::SessionLost { path, loss },
                    },
                    End::Evicted => Error::Evicted { path, node: self.node, by: self.broken },
                    End::ParentVanishes => Error::ParentVanishes { path },
                    End::Revoked => {
                        let by = self.revocation.map(Box::new).unwrap_or_default();
                        Error::Revoked { path, by }
                    }
                    End::LimitDiffers(stated) => {
                        Error::PermitsMismatch { path, ours: permits.unwrap_or_default(), stated }
                    }
                    End::IncompatibleFormat(theirs) => Error::IncompatibleFormat { path, theirs },
                    End::Held { ahead } => Error::Held { path, holder: self.looked_at, ahead: Some(ahead) },
                    End::TooManyAhead { ahead } => Error::TooManyWaiters { path, ahead, most: max_waiters },
                    End::Refused | End::Stuck | End::Left => {
                        Error::Refused { path, reason: refusal.unwrap_or_else(|| "no reason given".to_owned()) }
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
            Caller::Releasing { hold, confirm } => {
                _ = confirm.send(match (hold.loss(), end) {
                    (Some(before), _) => Err(ReleaseError::NotHeld { loss: before }),
                    (None, End::SessionOver) => Err(ReleaseError::NotHeld { loss }),
                    (None, End::Evicted) => Err(ReleaseError::NotHeld { loss: Loss::Removed }),
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

    /// The caller gets an error now; the contender leaves in its own time.
    pub(super) fn give_up(&mut self, error: Error) {
        self.caller.refuse(error);
        self.contender.handle(lockkeeper_core::Event::Leave);
    }

    /// The error of a call at its deadline. `unanswered`: when the oldest request was sent that has no answer yet, by the session's
    /// clock.
    pub(super) fn timed_out(&mut self, unanswered: Option<Duration>) -> Error {
        let path = self.attempt.path.clone();
        let place = self.contender.place().map(|place| place.ahead + usize::from(self.holder_behind));
        if let (true, Some(ahead)) = (self.attempt.once, place) {
            return Error::Held { path, holder: self.looked_at.take(), ahead: Some(ahead) };
        }
        let waited = self.attempt.timeout.unwrap_or_default();
        let detail = if !self.session.link().borrow().connected {
            "the connection is lost"
        } else if self.silent_for(unanswered) >= if self.answered { SILENCE } else { FIRST_SILENCE } {
            "a request was not answered"
        } else {
            return Error::Timeout { path, waited, holder: self.looked_at.take(), ahead: place };
        };
        Error::Unreachable { servers: self.attempt.servers.to_string(), waited, detail: detail.to_owned() }
    }
}

impl Driver {
    /// How long the servers have been silent.
    fn silent_for(&self, unanswered: Option<Duration>) -> Duration {
        // A grant waits for a heartbeat.
        let heartbeat = self.granted.as_ref().map(|(_, at)| *at);
        let oldest = unanswered.into_iter().chain(heartbeat).min();
        oldest.map_or(Duration::ZERO, |sent| self.session.now().saturating_sub(sent))
    }
}

/// How the session ended. Only a server says that it has expired.
fn session_loss(state: LinkState) -> Loss {
    match state {
        LinkState::Over(loss) => loss,
        _ => Loss::Unreachable,
    }
}
