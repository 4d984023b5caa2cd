//! Faults bound to a frame: which one is meant, what happens there, and the handles a test keeps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::shared::Shared;
use super::{Cut, Proxy};
use lockkeeper_wire::OpCode;

/// Which frames a rule counts.
#[derive(Clone, Debug)]
pub(super) enum Matcher {
    /// Requests of these opcodes.
    Requests(Vec<OpCode>),
    /// Watch events.
    WatchEvents,
}

/// What happens at the frame.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    CutBeforeRequest,
    CutInsideRequest { bytes: usize },
    CutAfterRequest { delay: Duration },
    HoldRequest,
    CutBeforeReply,
    CutInsideReply { bytes: usize },
    CutAfterReply,
    HoldReply,
    ReplaceReply { with: Bytes },
}

impl Fault {
    /// Whether it is carried out at the request; else it waits for the reply.
    pub(super) fn is_on_request(&self) -> bool {
        matches!(
            self,
            Self::CutBeforeRequest | Self::CutInsideRequest { .. } | Self::CutAfterRequest { .. } | Self::HoldRequest
        )
    }
}

/// A rule as the proxy keeps it.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) id: u64,
    pub(super) matcher: Matcher,
    pub(super) path: Option<String>,
    pub(super) nth: u64,
    pub(super) every: bool,
    pub(super) by: Cut,
    pub(super) fault: Fault,
    /// Frames counted so far.
    pub(super) seen: u64,
    /// How often the fault was carried out.
    pub(super) fired: u64,
    /// Holds only: nothing waits any more.
    pub(super) released: bool,
}

impl Installed {
    /// Counts a frame that matches; true when the fault is to be carried out on it.
    pub(super) fn counts(&mut self, op: Option<OpCode>, path: Option<&str>) -> bool {
        let named = match (&self.matcher, op) {
            (Matcher::Requests(ops), Some(op)) => ops.contains(&op),
            (Matcher::WatchEvents, None) => true,
            _ => false,
        };
        let placed = self.path.as_deref().is_none_or(|part| path.is_some_and(|path| path.contains(part)));
        if self.released || !named || !placed {
            return false;
        }
        self.seen += 1;
        self.seen == self.nth || self.every && self.seen > self.nth
    }
}

/// A fault carried out on one frame: a rule's id with what it asks for.
#[derive(Clone, Debug)]
pub(super) struct Armed {
    pub(super) id: u64,
    pub(super) fault: Fault,
    pub(super) by: Cut,
}

/// A rule in the making: says which frame is meant. Made by [`Proxy::on`], [`Proxy::on_any`], [`Proxy::on_watch_event`].
///
/// Frames are counted from the moment the rule is made, over all connections. Unless told otherwise it is the first one,
/// once.
#[derive(Debug)]
#[must_use = "nothing happens until a fault is named"]
pub struct On<'p> {
    proxy: &'p Proxy,
    matcher: Matcher,
    path: Option<String>,
    nth: u64,
    every: bool,
    by: Cut,
}

impl<'p> On<'p> {
    pub(super) fn new(proxy: &'p Proxy, matcher: Matcher) -> Self {
        Self { proxy, matcher, path: None, nth: 1, every: false, by: Cut::Fin }
    }

    /// The n-th such frame from now, counted from 1.
    pub fn nth(mut self, nth: u64) -> Self {
        assert!(nth > 0, "frames are counted from 1");
        self.nth = nth;
        self
    }

    /// Also every such frame after that.
    pub fn every(mut self) -> Self {
        self.every = true;
        self
    }

    /// Only frames about a path that contains `part`. A multi is about its first operation's path.
    pub fn path(mut self, part: impl Into<String>) -> Self {
        self.path = Some(part.into());
        self
    }

    /// How the client's side is cut; [`Cut::Fin`] by default, because a reset may overtake bytes on their way.
    pub fn by(mut self, cut: Cut) -> Self {
        self.by = cut;
        self
    }

    /// Cuts the connection instead of passing the request on: it never reaches the server.
    ///
    /// As with any cut, replies to earlier requests that have not arrived yet are lost too.
    pub fn cut_before_request(self) -> Rule {
        self.install(Fault::CutBeforeRequest)
    }

    /// Passes on the first `bytes` bytes of the request, its length included, then cuts. Never passes on all of them.
    pub fn cut_inside_request(self, bytes: usize) -> Rule {
        self.install(Fault::CutInsideRequest { bytes })
    }

    /// Passes the request on and cuts after `delay`. What the server answers sooner still arrives.
    pub fn cut_after_request(self, delay: Duration) -> Rule {
        self.install(Fault::CutAfterRequest { delay })
    }

    /// Keeps the request back, and everything behind it on that connection, as TCP would.
    pub fn hold_request(self) -> Hold {
        Hold(self.install(Fault::HoldRequest))
    }

    /// Waits until the server has replied, so that the request took effect, then cuts instead of passing the reply on.
    ///
    /// For a watch event the reply is the event itself.
    pub fn cut_before_reply(self) -> Rule {
        self.install(Fault::CutBeforeReply)
    }

    /// Passes on the first `bytes` bytes of the reply, its length included, then cuts. Never passes on all of them.
    pub fn cut_inside_reply(self, bytes: usize) -> Rule {
        self.install(Fault::CutInsideReply { bytes })
    }

    /// Passes the reply on, then cuts.
    pub fn cut_after_reply(self) -> Rule {
        self.install(Fault::CutAfterReply)
    }

    /// Keeps the reply back, and everything behind it on that connection, as TCP would. Requests still reach the server.
    pub fn hold_reply(self) -> Hold {
        Hold(self.install(Fault::HoldReply))
    }

    /// Sends these bytes to the client instead of the reply, as they are: a length is not added.
    pub fn replace_reply(self, with: impl Into<Bytes>) -> Rule {
        self.install(Fault::ReplaceReply { with: with.into() })
    }

    fn install(self, fault: Fault) -> Rule {
        assert!(
            !(fault.is_on_request() && matches!(self.matcher, Matcher::WatchEvents)),
            "a watch event comes unasked: name a fault of the reply"
        );
        let shared = Arc::clone(&self.proxy.shared);
        let id = shared.change(|state| {
            let id = state.next_rule;
            state.next_rule += 1;
            state.rules.push(Installed {
                id,
                matcher: self.matcher,
                path: self.path,
                nth: self.nth,
                every: self.every,
                by: self.by,
                fault,
                seen: 0,
                fired: 0,
                released: false,
            });
            id
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
    /// Whether the fault has been carried out by now; not any more once the proxy was healed.
    pub fn has_fired(&self) -> bool {
        self.shared.look().rules.iter().any(|rule| rule.id == self.id && rule.fired > 0)
    }

    /// Waits until the fault has been carried out; returns at once when it already was.
    ///
    /// # Panics
    /// After [`Proxy::PATIENCE`], and when [`Proxy::heal`] ended the rule before it fired.
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

/// A rule that keeps frames back until it is released or dropped.
#[derive(Debug)]
#[must_use = "dropping a hold lets everything go at once"]
pub struct Hold(Rule);

impl Hold {
    /// Waits until a frame is being kept back.
    ///
    /// # Panics
    /// As [`Rule::fired`] does.
    pub async fn caught(&self) {
        self.0.fired().await;
    }

    /// Lets go what is kept back and keeps nothing back any more.
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
