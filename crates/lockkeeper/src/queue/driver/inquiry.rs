//! The reads behind the caller's error: the client that removed the node, and how the session ended.

use std::pin::pin;

use lockkeeper_core::{End, Link, LinkState, node_path};
use lockkeeper_session::ensemble::OpError;
use lockkeeper_session::latest;
use lockkeeper_session::wait::passed;

use super::Driver;
use super::attempt::Wake;
use super::caller::Caller;
use crate::broken::Broken;
use crate::error::{AcquireError, SessionError};
use crate::journal;

impl Driver {
    /// Finds out why a waiter's node is deleted: another client deleted it, or the session ended and the server
    /// reported its nodes first.
    ///
    /// This takes one round trip, or longer while the connection is lost, but no longer than the caller waits. A holder
    /// instead learns of its loss immediately, whatever the cause.
    async fn look_closer(&mut self, end: End, link: &mut latest::Receiver<Link>) -> End {
        if end != End::Removed {
            return end;
        }
        let ensemble = self.attempt.ensemble.clone();
        let mut session_lives = pin!(async move {
            loop {
                match ensemble.heartbeat().await {
                    Err(OpError::SessionOver) => return false,
                    // The next check waits until the connection is back or the session is over.
                    Err(OpError::ConnectionLoss) => {}
                    _ => return true,
                }
            }
        });
        let closing = self.session.closing();
        while self.caller.is_waiting() {
            let wake = tokio::select! {
                biased;
                () = closing.cancelled() => Wake::Closing,
                lives = &mut session_lives => return if lives { End::Removed } else { End::SessionOver },
                Ok(()) = link.changed() => Wake::LinkChanged,
                () = passed(self.attempt.deadline) => return End::Removed,
                wake = self.caller.state_changed(self.attempt.terms.cancel.as_ref()) => wake,
            };
            match wake {
                Wake::Closing => self.caller.refuse(SessionError::Closed.into()),
                Wake::LinkChanged => {
                    let link = *link.borrow_and_update();
                    self.limit_disconnect(link);
                    if self.disconnect.last_try.is_some_and(|last| link.failed_tries >= last) {
                        let path = self.attempt.path().to_owned();
                        self.caller.refuse(SessionError::ConnectionLost { path }.into());
                    }
                }
                Wake::Cancelled => self.caller.refuse(AcquireError::Cancelled { path: self.attempt.path().to_owned() }),
                Wake::CallerGone => self.caller = Caller::Gone,
                _ => return End::Removed,
            }
        }
        End::Removed
    }

    /// Finds out what the caller's error is to say about the end of the attempt.
    pub(super) async fn explain(&mut self, end: End, link: &mut latest::Receiver<Link>) -> End {
        let end = self.look_closer(end, link).await;
        if end == End::Removed && self.caller.is_waiting() {
            self.broken = self.who_broke_it().await;
        }
        if end == End::SessionOver {
            self.learn_how_it_ended(link).await;
        }
        end
    }

    /// Waits until it is known why the session is over. An operation may fail a moment before the session's own task
    /// learns the reason.
    async fn learn_how_it_ended(&self, link: &mut latest::Receiver<Link>) {
        tokio::select! {
            biased;
            _ = link.wait_for(|link| matches!(link.state, LinkState::Over(_))) => {}
            () = passed(self.attempt.deadline) => {}
        }
    }

    /// Returns who removed the waiter's node, and why. Does not go past the deadline.
    async fn who_broke_it(&self) -> Option<Box<Broken>> {
        let path = self.attempt.path();
        let node = node_path(path, &self.node);
        tokio::select! {
            biased;
            broken = journal::who_removed(&*self.attempt.ensemble, path, &node) => broken,
            () = passed(self.attempt.deadline) => None,
        }
    }
}
