//! The spans of waits and holds, for programs that subscribe to them.
//!
//! They are made where the caller polls, so that they reach the caller's subscriber. Without a subscriber for them, a wait costs one
//! check of a flag and a hold nothing.

use std::fmt::Display;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::{FencingToken, Loss, TraceParent};
use tracing::Span;
use tracing::field::{Empty, display};

use crate::error::ReleaseError;
use crate::meters::label;

/// The target of both spans.
const TARGET: &str = "lockkeeper::spans";

/// The span of one call that waits for a lock.
pub(crate) struct WaitSpan {
    /// `None` without a subscriber.
    span: Option<Arc<Span>>,
    /// The caller's span at the call, which is the parent of the hold's too.
    caller: Span,
}

/// A reference to the span of a wait, which does not keep it open.
pub(crate) type WaitRef = Weak<Span>;

impl WaitSpan {
    /// Begins in the caller's span.
    pub(crate) fn begin(lock: &str, mode: &'static str) -> Self {
        let span = tracing::debug_span!(
            target: TARGET,
            "lock.wait",
            lock,
            mode,
            waited_ms = Empty,
            end = Empty,
            error = Empty,
            holder.trace_id = Empty,
            holder.span_id = Empty,
        );
        match span.is_disabled() {
            true => WaitSpan { span: None, caller: Span::none() },
            false => WaitSpan { span: Some(Arc::new(span)), caller: Span::current() },
        }
    }

    /// The reference for the attempt.
    pub(crate) fn reference(&self) -> WaitRef {
        self.span.as_ref().map(Arc::downgrade).unwrap_or_default()
    }

    pub(crate) fn end(&mut self, end: &'static str, waited: Duration, error: Option<&dyn Display>) {
        let Some(span) = self.span.take() else { return };
        span.record("waited_ms", millis(waited)).record("end", end);
        if let Some(error) = error {
            span.record("error", display(error));
        }
    }

    /// Begins the span of the hold that the call got, if there is a subscriber.
    pub(crate) fn hold(
        &self,
        lock: &str,
        mode: &'static str,
        node: impl FnOnce() -> String,
        token: Option<FencingToken>,
    ) -> Option<HoldSpan> {
        self.span.as_ref()?;
        let span = tracing::debug_span!(
            target: TARGET,
            parent: &self.caller,
            "lock.hold",
            lock,
            mode,
            node = node(),
            token = token.map(FencingToken::get),
            end = Empty,
        );
        (!span.is_disabled()).then(|| HoldSpan(Mutex::new(Some(span))))
    }
}

/// Milliseconds of a span or an event.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Says in the span of a wait which span holds the lock, or will hold it next.
pub(crate) fn waits_behind(wait: &WaitRef, ahead: Option<TraceParent>) {
    if let (Some(ahead), Some(span)) = (ahead, wait.upgrade()) {
        // In one record, so that a subscriber need not put them together.
        tracing::record_all!(span, holder.trace_id = ahead.trace_id(), holder.span_id = ahead.span_id());
    }
}

/// The span of a hold, until the first of its ends.
pub(crate) struct HoldSpan(Mutex<Option<Span>>);

impl HoldSpan {
    fn end(&self, end: &str) {
        // Closed after the mutex is free: a subscriber does what it likes.
        let span = self.0.lock().expect("held for a change only").take();
        if let Some(span) = span {
            span.record("end", end);
        }
    }

    /// The guard has ended.
    pub(crate) fn guard_ended(&self, loss: Option<Loss>) {
        match loss {
            Some(loss) => self.end(&label(loss)),
            None => self.end("released"),
        }
    }

    /// The release is answered.
    pub(crate) fn released(&self, outcome: &Result<(), ReleaseError>) {
        self.guard_ended(match outcome {
            Err(ReleaseError::NotHeld { loss }) => Some(*loss),
            _ => None,
        });
    }
}

/// The spans of the guards of one hold.
#[derive(Default)]
pub(crate) struct HoldSpans(Mutex<Vec<Weak<HoldSpan>>>);

impl HoldSpans {
    /// Adds that of another guard.
    pub(crate) fn add(&self, span: &Arc<HoldSpan>) {
        let mut spans = self.0.lock().expect("held for a change only");
        spans.retain(|span| span.strong_count() > 0);
        spans.push(Arc::downgrade(span));
    }

    /// The hold is lost.
    pub(crate) fn lost(&self, loss: Loss) {
        let spans = std::mem::take(&mut *self.0.lock().expect("held for a change only"));
        spans.iter().filter_map(Weak::upgrade).for_each(|span| span.guard_ended(Some(loss)));
    }
}
