//! One step of a pipeline, which waits for a lock and works under it. Its spans go to a collector by OTLP.
//!
//! `cargo run -p lockkeeper-example-otlp -- DIRECTORY`
//!
//! Start it twice with the same directory, in two terminals. The second one waits until you press Enter in the first one. In the
//! collector, the span `lock.wait` of the second one has a link to the span of the first one, which is in another trace.
//! `OTEL_EXPORTER_OTLP_ENDPOINT` names the collector; without it, that is `http://localhost:4318`.

mod links;

use lockkeeper::Lockkeeper;
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::io::AsyncReadExt as _;
use tracing::level_filters::LevelFilter;
use tracing::{Instrument as _, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::links::LinkToHolder;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Returns the current span as W3C Trace Context names it. A propagator of OpenTelemetry writes the same text into requests.
fn traceparent() -> String {
    let context = Span::current().context();
    let span = context.span();
    let span = span.span_context();
    format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8())
}

async fn nightly(keeper: &Lockkeeper) -> Result<(), Failure> {
    let guard = keeper.mutex("/locks/nightly").acquire().traceparent(traceparent()).await?;
    println!("holds /locks/nightly with token {}; press Enter to release it", guard.token());
    tokio::io::stdin().read_u8().await.ok();
    guard.release().await?;
    Ok(())
}

/// The spans of this program, and those of the library, which are of the level DEBUG.
fn spans() -> Targets {
    Targets::new()
        .with_target("lockkeeper::spans", LevelFilter::DEBUG)
        .with_target("lockkeeper_example_otlp", LevelFilter::INFO)
}

fn export() -> Result<SdkTracerProvider, Failure> {
    let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("nightly").build())
        .build();
    let layers =
        tracing_opentelemetry::layer().with_tracer(provider.tracer("nightly")).and_then(LinkToHolder::default());
    tracing_subscriber::registry().with(layers.with_filter(spans())).init();
    Ok(provider)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let dir = std::env::args_os().nth(1).ok_or("give a directory, the same to each process")?;
    let provider = export()?;
    let keeper = Lockkeeper::embedded(dir).await?;
    let worked = nightly(&keeper).instrument(info_span!("nightly")).await;
    keeper.close().await;
    // The last spans are sent here. That blocks.
    tokio::task::spawn_blocking(move || provider.shutdown()).await??;
    worked
}
