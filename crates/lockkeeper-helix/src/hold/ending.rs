//! How the hold of a leased lock ends: released, handed over, taken, or given up.

use futures_util::StreamExt;
use lockkeeper::Loss;
use lockkeeper::error::{ReleaseError, SessionError};
use lockkeeper::hold::HoldRequest;
use lockkeeper_session::wait::or_never;
use tokio::sync::oneshot;

use super::LeaseTask;
use crate::error::LeaseError;
use crate::node::{Look, NodeError, Stepped};
use crate::protocol::Wish;
use crate::status::LockStatus;

impl LeaseTask {
    /// Releases the lock. Returns the record if it no longer showed this hold.
    async fn leave(&mut self) -> Result<Option<Box<Look>>, NodeError> {
        let mut unsure = false;
        loop {
            let look = self.node.look_until_answered(&self.keeper, &mut self.session_ref).await?;
            if !self.is_shown(&look) {
                // It did show this hold, if a write whose reply was lost has released it.
                return Ok((!unsure).then(|| Box::new(look)));
            }
            match self.node.step(&mut self.session_ref, look, &self.terms, Wish::Leave).await? {
                Stepped::Again { written } => unsure |= written,
                Stepped::Done { .. } | Stepped::Refused(_) => return Ok(None),
            }
        }
    }

    /// Makes another client the owner, or releases the lock if that is refused.
    pub(super) async fn transfer(mut self, to: &str, done: oneshot::Sender<Result<(), LeaseError>>) {
        let path = self.node.path.clone();
        let lost = |loss| LeaseError::Lost { path, loss };
        if let Some(loss) = self.hold.loss() {
            _ = done.send(Err(lost(loss)));
            return self.give_back().await;
        }
        // Before the write: the next owner may rely on the lock the next moment, so this one must not.
        self.hold.lose(Loss::Transferred);
        let handed = match self.hand_over(to).await {
            Ok(None) => Ok(()),
            Ok(Some(loss)) => Err(lost(loss)),
            Err(error) => Err(error.into()),
        };
        match &handed {
            Ok(()) => self.ended(),
            Err(_) => self.give_back().await,
        }
        _ = done.send(handed);
    }

    /// The loss of the hold, if it could no longer be handed over.
    async fn hand_over(&mut self, to: &str) -> Result<Option<Loss>, NodeError> {
        let mut unsure = false;
        loop {
            let look = self.node.look_until_answered(&self.keeper, &mut self.session_ref).await?;
            match &look.record.owner {
                _ if self.is_shown(&look) => {}
                // This client's own write, whose reply was lost.
                Some(owner) if unsure && owner.id == to => return Ok(None),
                Some(owner) if owner.priority > self.terms.priority => return Ok(Some(Loss::Preempted)),
                _ => return Ok(Some(Loss::Removed)),
            }
            match self.node.step(&mut self.session_ref, look, &self.terms, Wish::Transfer { to }).await? {
                Stepped::Again { written } => unsure |= written,
                Stepped::Refused(_) => return Ok(Some(Loss::LeaseEnded)),
                Stepped::Done { .. } => return Ok(None),
            }
        }
    }

    /// The cleanup is done, or none is needed: the requestor is granted the lock.
    pub(super) async fn make_room(mut self) {
        self.cleaned_up = true;
        self.hold.lose(self.owned.lost_to_requestor());
        self.give_back().await;
    }

    /// Releases the lock without a caller that waits for it.
    pub(super) async fn give_back(&mut self) {
        match self.leave().await {
            Ok(_) => self.ended(),
            Err(error) => {
                tracing::warn!(path = %self.node.path, %error, "the lock could not be released; its lease will expire");
            }
        }
    }

    pub(super) async fn release(mut self, confirm: oneshot::Sender<Result<(), ReleaseError>>) {
        self.cleaned_up = true;
        let before = self.hold.loss();
        let left = self.leave().await;
        if let Ok(taken) = &left {
            // The record names the new owner, whether or not the watch has fired.
            if let Some(look) = taken {
                self.judge(look);
            }
            self.ended();
        }
        let gone = self.hold.loss().unwrap_or(Loss::Removed);
        _ = confirm.send(match (before, left) {
            (Some(loss), _) => Err(ReleaseError::NotHeld { loss }),
            (None, Ok(None)) => Ok(()),
            (None, Ok(Some(_))) => Err(ReleaseError::NotHeld { loss: gone }),
            (None, Err(NodeError::Session(SessionError::Closed))) => Err(ReleaseError::NotHeld { loss: Loss::Closed }),
            (None, Err(error)) => Err(ReleaseError::Failed { reason: error.to_string() }),
        });
    }

    /// No server can be reached any more, or the node is not a lock's: the lease ends this hold.
    pub(super) fn cut_off(&mut self, error: &NodeError) {
        tracing::warn!(path = %self.node.path, %error, "a hold is given up");
        self.hold.lose(match error {
            NodeError::Session(SessionError::Closed) => Loss::Closed,
            _ => Loss::Removed,
        });
        self.ended();
    }

    /// Counts the hold when it is first known to have ended.
    pub(super) fn count_hold(&mut self) {
        if let Some(account) = self.account.take() {
            account.close(self.session_ref.session.now(), self.hold.loss() == Some(Loss::LeaseEnded));
        }
    }

    pub(super) fn ended(&mut self) {
        self.count_hold();
        let now = self.session_ref.session.now();
        // Unless the lock was taken while the cleanup still runs.
        let goes_on = self.hold.loss() == Some(Loss::Preempted) && !self.cleaned_up;
        if let Some(cleaning) = self.cleaning.take_if(|_| !goes_on) {
            cleaning.close(now, self.cleaned_up);
        }
        self.status.send_if_modified(|status| {
            let now = match self.hold.loss() {
                Some(Loss::Preempted) => LockStatus::Preempted,
                // Another hold of the same lock continues.
                Some(Loss::Superseded) => return false,
                _ => LockStatus::Unlocked,
            };
            std::mem::replace(status, now) != now
        });
    }

    /// The lock has another owner and the cleanup may continue. It is counted when it ends, so that its owner learns how
    /// long it takes. A cleanup by the guard has finished if the guard is released, and is cut off if the guard is
    /// dropped. Needs no session, because it sends nothing to a server.
    pub(super) fn outlive_by_its_cleanup(self) {
        let Some(account) = self.cleaning else { return };
        let (mut cleaned, mut requests, clock) = (self.cleaned, self.requests, self.keeper.sessions().clock());
        let hold = self.hold.clone();
        let by_listener = cleaned.is_some();
        let closed = self.keeper.sessions().closed();
        self.keeper.sessions().spawn(async move {
            let given_back = async {
                // Dropping this channel answers a release, as after any loss.
                let released = async {
                    loop {
                        match requests.next().await {
                            Some(HoldRequest::Release(_)) => return true,
                            None => return false,
                            Some(_) => {}
                        }
                    }
                };
                tokio::select! {
                    biased;
                    released = released => released,
                    () = hold.unattended.notified() => false,
                }
            };
            let finished = tokio::select! {
                biased;
                _ = or_never(cleaned.as_mut()), if by_listener => true,
                released = given_back, if !by_listener => released,
                // The duration of the cleanup is not counted then.
                () = closed.cancelled() => return,
            };
            account.close(clock.now(), finished);
        });
    }
}
