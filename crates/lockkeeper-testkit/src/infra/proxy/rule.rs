//! Faults bound to a frame: how a test chooses them, and the handles that it keeps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_wire::ErrorCode;

use super::installed::{Fault, Installed, Matcher};
use super::shared::Shared;
use super::{Cut, Proxy};

/// A rule under construction: selects the frame. Made by [`Proxy::on`], [`Proxy::on_any`], [`Proxy::on_watch_event`].
///
/// Frames are counted from the moment the rule is made, over all connections. By default the rule selects the first
/// one, once.
#[derive(Debug)]
#[must_use = "nothing happens until a fault is named"]
pub struct On<'p> {
    proxy: &'p Proxy,
    rule: Installed,
}

impl<'p> On<'p> {
    pub(super) fn new(proxy: &'p Proxy, matcher: Matcher) -> Self {
        Self { proxy, rule: Installed::first(matcher) }
    }

    /// Selects the n-th such frame from now, counted from 1.
    pub fn nth(mut self, nth: u64) -> Self {
        assert!(nth > 0, "frames are counted from 1");
        self.rule.nth = nth;
        self
    }

    /// Selects every later such frame too.
    pub fn every(mut self) -> Self {
        self.rule.every = true;
        self
    }

    /// Selects only frames whose path contains `part`. The path of a multi is that of its first operation.
    pub fn path(mut self, part: impl Into<String>) -> Self {
        self.rule.path = Some(part.into());
        self
    }

    /// Sets how the client's side is cut; [`Cut::Fin`] by default, because a reset may overtake bytes on their way.
    pub fn by(mut self, cut: Cut) -> Self {
        self.rule.by = cut;
        self
    }

    /// Cuts the connection instead of passing the request on: it never reaches the server.
    ///
    /// As with any cut, replies to earlier requests that have not arrived yet are lost too.
    pub fn cut_before_request(self) -> Rule {
        self.install(Fault::CutBeforeRequest)
    }

    /// Passes on the first `bytes` bytes of the request, its length included, then cuts. Never passes on the whole
    /// request.
    pub fn cut_inside_request(self, bytes: usize) -> Rule {
        self.install(Fault::CutInsideRequest { bytes })
    }

    /// Passes the request on and cuts after `delay`. An answer that comes earlier still arrives.
    pub fn cut_after_request(self, delay: Duration) -> Rule {
        self.install(Fault::CutAfterRequest { delay })
    }

    /// Holds back the request and all later bytes of that connection, as TCP would.
    pub fn hold_request(self) -> Hold {
        Hold(self.install(Fault::HoldRequest))
    }

    /// Waits until the server has replied, so that the request took effect, then cuts instead of passing the reply on.
    ///
    /// For a watch event the reply is the event itself.
    pub fn cut_before_reply(self) -> Rule {
        self.install(Fault::CutBeforeReply)
    }

    /// Passes on the first `bytes` bytes of the reply, its length included, then cuts. Never passes on the whole reply.
    pub fn cut_inside_reply(self, bytes: usize) -> Rule {
        self.install(Fault::CutInsideReply { bytes })
    }

    /// Passes the reply on, then cuts.
    pub fn cut_after_reply(self) -> Rule {
        self.install(Fault::CutAfterReply)
    }

    /// Holds back the reply and all later bytes of that connection, as TCP would. Requests still reach the server.
    pub fn hold_reply(self) -> Hold {
        Hold(self.install(Fault::HoldReply))
    }

    /// Sends these bytes to the client instead of the reply, unchanged: a length is not added.
    pub fn replace_reply(self, with: impl Into<Bytes>) -> Rule {
        self.install(Fault::ReplaceReply { with: with.into() })
    }

    /// Sends this error to the client instead of the reply, without a transaction: the refusal of a server that has not asked
    /// its leader.
    pub fn refuse_reply(self, error: ErrorCode) -> Rule {
        self.install(Fault::RefuseReply { error })
    }

    fn install(mut self, fault: Fault) -> Rule {
        assert!(
            !(fault.is_on_request() && matches!(self.rule.matcher, Matcher::WatchEvents)),
            "a watch event comes unasked: name a fault of the reply"
        );
        self.rule.fault = fault;
        let shared = Arc::clone(&self.proxy.shared);
        let id = shared.change(|state| {
            self.rule.id = state.next_rule;
            state.next_rule += 1;
            state.rules.push(self.rule);
            state.next_rule - 1
        });
        Rule { shared, runtime: self.proxy.runtime.clone(), id }
    }
}

/// A rule in force. Dropping this leaves it in force; [`Proxy::heal`] ends it.
#[derive(Debug)]
pub struct Rule {
    shared: Arc<Shared>,
    runtime: tokio::runtime::Handle,
    id: u64,
}

impl Rule {
    /// Whether the fault has happened; `false` again after the proxy was healed.
    pub fn has_fired(&self) -> bool {
        self.shared.look().rules.iter().any(|rule| rule.id == self.id && rule.fired > 0)
    }

    /// Waits until the fault has happened; returns immediately if it has.
    pub async fn fired(&self) {
        let id = self.id;
        self.shared
            .patiently(&self.runtime, "a rule to fire", |state| {
                let rule = state.rules.iter().find(|rule| rule.id == id);
                rule.expect("the proxy was healed before the rule fired").fired.min(1).checked_sub(1)
            })
            .await;
    }
}

/// A rule that holds frames back until it is released or dropped.
#[derive(Debug)]
#[must_use = "dropping a hold releases everything immediately"]
pub struct Hold(Rule);

impl Hold {
    /// Whether a frame is held back.
    pub fn has_caught(&self) -> bool {
        self.0.has_fired()
    }

    /// Waits until a frame is held back.
    pub async fn caught(&self) {
        self.0.fired().await;
    }

    /// Releases the frames that are held back, and ends the rule.
    pub fn release(self) {}
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.shared.change(|state| {
            if let Some(rule) = state.rules.iter_mut().find(|rule| rule.id == self.0.id) {
                rule.released = true;
            }
        });
    }
}
