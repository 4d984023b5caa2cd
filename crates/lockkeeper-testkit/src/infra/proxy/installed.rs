//! The rules inside the proxy: which frames they match, and what happens there.

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_wire::{ErrorCode, OpCode};

use super::Cut;

/// The frames that a rule counts.
#[derive(Clone, Debug)]
pub(super) enum Matcher {
    /// Requests of these opcodes.
    Requests(Vec<OpCode>),
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
    RefuseReply { error: ErrorCode },
}

impl Fault {
    /// Whether the fault happens at the request; otherwise it happens at the reply.
    pub(super) fn is_on_request(&self) -> bool {
        matches!(
            self,
            Self::CutBeforeRequest | Self::CutInsideRequest { .. } | Self::CutAfterRequest { .. } | Self::HoldRequest
        )
    }
}

/// A rule inside the proxy.
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
    /// How often the fault happened.
    pub(super) fired: u64,
    /// Holds only: nothing is held back any more.
    pub(super) released: bool,
}

impl Installed {
    /// Returns a rule for the first matching frame, once; the caller sets its fault.
    pub(super) fn first(matcher: Matcher) -> Self {
        let (path, fault) = (None, Fault::CutBeforeRequest);
        Self { id: 0, matcher, path, nth: 1, every: false, by: Cut::Fin, fault, seen: 0, fired: 0, released: false }
    }

    /// Counts a frame if it matches; returns whether the fault must happen on it.
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

/// A fault that happens on one frame, with the id of its rule.
#[derive(Clone, Debug)]
pub(super) struct Armed {
    pub(super) id: u64,
    pub(super) fault: Fault,
    pub(super) by: Cut,
}
