//! The example as two processes, and a collector that keeps what it gets.

#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use lockkeeper::Lockkeeper;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// Answers one connection: requests of OTLP by HTTP, one after the other.
fn collect(connection: TcpStream, spans: &Sender<Span>) {
    let mut reader = BufReader::new(connection);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        assert!(line.starts_with("POST /v1/traces "), "{line}");
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            match header.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().unwrap();
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
        let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).for_each(|span| spans.send(span).unwrap());
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    }
}

/// A collector on loopback: its address, and what it gets.
fn collector() -> (String, Receiver<Span>) {
    let (listener, (sender, spans)) = (TcpListener::bind("127.0.0.1:0").unwrap(), channel());
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let sender = sender.clone();
            std::thread::spawn(move || collect(connection.unwrap(), &sender));
        }
    });
    (address, spans)
}

/// How long a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Step {
    process: Child,
    said: Receiver<String>,
}

impl Step {
    fn start(dir: &Path, collector: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper-example-otlp"));
        command.arg(dir).env("OTEL_EXPORTER_OTLP_ENDPOINT", collector).env("NO_PROXY", "127.0.0.1");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, said) = channel();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| _ = sender.send(line)));
        Step { process, said }
    }

    /// Waits for its next line, which begins like this.
    fn says(&self, beginning: &str) {
        let line = self.said.recv_timeout(PATIENCE).unwrap();
        assert!(line.starts_with(beginning), "{line:?}");
    }

    fn ends(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

/// The only span of this name and trace.
fn span<'a>(spans: &'a [Span], name: &str, trace_id: &[u8]) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name && span.trace_id == trace_id).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

#[tokio::test]
async fn the_collector_gets_a_wait_with_a_link_to_the_span_of_the_holder() {
    let (dir, (collector, collected)) = (tempfile::tempdir().unwrap(), collector());
    let keeper = Lockkeeper::embedded(dir.path()).await.unwrap();
    let first = Step::start(dir.path(), &collector);
    first.says("holds /locks/nightly");
    let second = Step::start(dir.path(), &collector);
    second.says("waits behind span ");
    first.ends();
    second.says("holds /locks/nightly");
    second.ends();
    keeper.close().await;

    // Each process sends its last spans before it ends, and waits for the answers.
    let spans: Vec<_> = collected.try_iter().collect();
    let traces: Vec<_> = spans.iter().filter(|span| span.name == "nightly").collect();
    let [holder, waiter] = traces[..] else { panic!("{spans:#?}") };
    let (wait, no_wait) = (span(&spans, "lock.wait", &waiter.trace_id), span(&spans, "lock.wait", &holder.trace_id));
    let links: Vec<_> = wait.links.iter().map(|link| (&link.trace_id, &link.span_id)).collect();
    assert_eq!(links, [(&holder.trace_id, &holder.span_id)]);
    assert!(no_wait.links.is_empty());
    assert_eq!(wait.parent_span_id, waiter.span_id);
    for step in [holder, waiter] {
        let hold = span(&spans, "lock.hold", &step.trace_id);
        assert_eq!(hold.parent_span_id, step.span_id);
    }
    let held = span(&spans, "lock.hold", &holder.trace_id);
    assert!(held.start_time_unix_nano > holder.start_time_unix_nano);
    assert!(wait.end_time_unix_nano > wait.start_time_unix_nano);
}
