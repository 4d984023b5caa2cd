//! Makes a link of the fields by which the span of a wait names the span that holds the lock.

use std::sync::OnceLock;

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use tracing::dispatcher::WeakDispatch;
use tracing::field::{Field, Visit};
use tracing::span::{Id, Record};
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Add it to the subscriber beside the layer of `tracing-opentelemetry`.
#[derive(Default)]
pub(crate) struct LinkToHolder {
    subscriber: OnceLock<WeakDispatch>,
}

#[derive(Default)]
struct Holder {
    trace_id: Option<TraceId>,
    span_id: Option<SpanId>,
}

impl Visit for Holder {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "holder.trace_id" => self.trace_id = TraceId::from_hex(value).ok(),
            "holder.span_id" => self.span_id = SpanId::from_hex(value).ok(),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl<S: Subscriber> Layer<S> for LinkToHolder {
    fn on_register_dispatch(&self, subscriber: &Dispatch) {
        _ = self.subscriber.set(subscriber.downgrade());
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut holder = Holder::default();
        values.record(&mut holder);
        let Holder { trace_id: Some(trace_id), span_id: Some(span_id) } = holder else { return };
        println!("waits behind span {span_id} of trace {trace_id}");
        let subscriber = self.subscriber.get().and_then(WeakDispatch::upgrade);
        let wait = subscriber.and_then(|subscriber| tracing_opentelemetry::get_otel_context(id, &subscriber));
        let holder = SpanContext::new(trace_id, span_id, TraceFlags::default(), true, TraceState::default());
        wait.into_iter().for_each(|wait| wait.span().add_link(holder.clone(), Vec::new()));
    }
}
