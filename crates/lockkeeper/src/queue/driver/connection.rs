//! What a lost connection means for the caller: how long it waits, and what it is told then.

use lockkeeper_core::{Event, Link, LinkState};
use tokio::time::Instant;

use super::Driver;
use super::caller::Caller;
use crate::error::{ReleaseError, SessionError};

impl Driver {
    /// Starts or stops the clock for how long a waiting caller tolerates a lost connection. A release has a limit of its own.
    pub(super) fn limit_disconnect(&mut self, link: Link) {
        if !self.caller.is_waiting() {
            return;
        }
        if link.connected {
            (self.disconnect.cut_off, self.disconnect.last_try) = (None, None);
            return;
        }
        if let Some(retries) = self.attempt.retries() {
            // A new disconnect counts from its beginning, even if its first tries have failed already.
            let is_new = link.disconnects != self.disconnect.count;
            let failed = if is_new { 0 } else { link.failed_tries };
            // The first failed try is the rest of the round that the lost connection began: it is no retry.
            let last = failed.saturating_add(retries).saturating_add(1);
            self.disconnect.last_try = Some(self.disconnect.last_try.filter(|_| !is_new).unwrap_or(last));
            return;
        }
        let patience = self.attempt.connect_timeout();
        self.disconnect.cut_off = self.disconnect.cut_off.or_else(|| Instant::now().checked_add(patience));
    }

    /// Ends a call whose connection has been lost for as long as its caller tolerates. Without a setting, a contender in
    /// the queue keeps its position: only a server can say that its session is over. A release ends after the session
    /// timeout, because it is unknown when a server will confirm it; the contender goes on to leave.
    pub(super) fn report_cut_off(&mut self) {
        let (path, servers) = (self.attempt.path().to_owned(), self.attempt.servers());
        match (&self.caller, self.attempt.retries()) {
            (Caller::Waiting(_), Some(_)) => self.give_up(SessionError::ConnectionLost { path }.into()),
            (Caller::Waiting(_), None) if self.contender.node().is_none() => {
                let (waited, detail) = (self.attempt.connect_timeout(), "the connection is lost".to_owned());
                self.give_up(SessionError::Unreachable { servers, waited, detail }.into());
            }
            (Caller::Releasing { .. }, _) => {
                self.look_at_hold();
                if let Caller::Releasing { before, confirm, .. } = std::mem::replace(&mut self.caller, Caller::Gone) {
                    let unconfirmed = ReleaseError::Timeout { path, waited: self.session.timeout() };
                    _ = confirm.send(Err(before.map_or(unconfirmed, |loss| ReleaseError::NotHeld { loss })));
                }
            }
            // A holder decides by its own clock.
            (Caller::Waiting(_) | Caller::Holding { .. } | Caller::Gone, _) => {}
        }
    }

    /// Handles a change of the connection: a holder may have lost its hold; a waiter continues until its session is over.
    pub(super) fn connection_changed(&mut self, link: Link) {
        if let Caller::Holding { hold, .. } = &self.caller
            && hold.judge()
        {
            // If the session lives on after all, the node must be deleted: the hold already counts as lost.
            self.contender.handle(Event::Lost);
        }
        self.limit_disconnect(link);
        if self.disconnect.last_try.take_if(|last| link.failed_tries >= *last).is_some() {
            self.report_cut_off();
        }
        // Also if the connection is up again already: an unobserved disconnect still counts.
        if std::mem::replace(&mut self.disconnect.count, link.disconnects) != link.disconnects {
            self.contender.handle(Event::Disconnected);
        }
        if let LinkState::Over(loss) = link.state {
            self.lose(loss);
            self.contender.handle(Event::SessionOver);
        }
    }
}
