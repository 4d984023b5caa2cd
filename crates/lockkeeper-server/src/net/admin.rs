//! The operators' HTTP port: the reports of the four-letter words as JSON, and the metrics for Prometheus.
//!
//! Paths and names are those of Apache's admin server. Each connection has one request with a head of bounded length,
//! and bodies are not read, so a client cannot occupy the server. The port never waits for the disk and never changes
//! the tree.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::net::engine::Engine;
use crate::net::words::{self, VERSION};

/// Time for a whole request and its answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of the request line with its headers.
const MAX_HEAD: usize = 8 << 10;
/// Maximum number of concurrent requests; others wait in the listener's queue.
const MAX_REQUESTS: usize = 16;

/// Serves all connections until dropped.
pub(crate) async fn serve(engine: Rc<RefCell<Engine>>, listener: TcpListener) {
    let slots = Arc::new(Semaphore::new(MAX_REQUESTS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, address)) => {
                let engine = Rc::clone(&engine);
                tokio::task::spawn_local(async move {
                    let _slot = slot;
                    if !matches!(timeout(TIMEOUT, one(&engine, stream)).await, Ok(Ok(()))) {
                        debug!(client = %address, "an HTTP client has disconnected or timed out");
                    }
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn one(engine: &RefCell<Engine>, mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let answer = match method {
        "GET" | "HEAD" => respond(&engine.borrow(), path),
        _ => HttpResponse::plain("405 Method Not Allowed", "only GET and HEAD\n"),
    };
    let HttpResponse { status, kind, body } = answer;
    let mut response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if method != "HEAD" {
        response.push_str(&body);
    }
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    // Wait until the client has closed: closing a socket with unread bytes would destroy the answer in flight.
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

struct HttpResponse {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl HttpResponse {
    fn plain(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: body.into() }
    }

    fn json(value: &Value) -> Self {
        Self { status: "200 OK", kind: "application/json", body: format!("{value:#}\n") }
    }
}

/// Builds a command's report.
type Report = fn(&Engine) -> Value;

/// Commands by name, with the four-letter word of the same report.
const COMMANDS: [(&str, &str, Report); 15] = [
    ("configuration", "conf", configuration),
    ("connections", "cons", connections),
    ("connection_stat_reset", "crst", |engine| {
        engine.reset_peers();
        json!({})
    }),
    ("dirs", "dirs", |engine| {
        numbers(words::directories(engine).into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }),
    ("dump", "dump", dump),
    ("environment", "envi", |_| text_object(words::environment_values())),
    ("is_read_only", "isro", |_| json!({ "read_only": false })),
    ("monitor", "mntr", monitor),
    ("ruok", "ruok", |_| json!({})),
    ("server_stats", "srvr", server_stats),
    ("stat_reset", "srst", |engine| {
        engine.counters.reset();
        json!({})
    }),
    ("stats", "stat", |engine| merged(server_stats(engine), connections(engine))),
    ("watch_summary", "wchs", watch_summary),
    ("watches", "wchc", watches),
    ("watches_by_path", "wchp", watches_by_path),
];

/// Commands that are answered even if clients must present a secret.
const OPEN: [&str; 3] = ["ruok", "isro", "srvr"];

fn respond(engine: &Engine, path: &str) -> HttpResponse {
    let forbidden =
        || HttpResponse::plain("403 Forbidden", "this server requires a secret; only ruok, isro and srvr are open\n");
    match path {
        "/health" => HttpResponse::json(&json!({ "status": "serving", "version": VERSION })),
        "/metrics" if engine.needs_secret() => forbidden(),
        "/metrics" => HttpResponse { status: "200 OK", kind: "text/plain; version=0.0.4", body: metrics(engine) },
        "/commands" | "/commands/" => HttpResponse::json(&json!(COMMANDS.map(|(name, word, _)| [name, word]))),
        _ => {
            let asked = path.strip_prefix("/commands/").unwrap_or_default();
            let command = COMMANDS.into_iter().find(|(name, word, _)| asked == *name || asked == *word);
            match command {
                None => HttpResponse::plain("404 Not Found", "see /commands, /metrics and /health\n"),
                Some((_, word, _)) if engine.needs_secret() && !OPEN.contains(&word) => forbidden(),
                Some((name, _, report)) => {
                    HttpResponse::json(&merged(json!({ "command": name, "error": null }), report(engine)))
                }
            }
        }
    }
}

/// Returns one object with the fields of both.
fn merged(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

fn text_object(values: Vec<(&'static str, String)>) -> Value {
    values.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value))).collect::<Map<_, _>>().into()
}

/// Returns an object in which numeric texts are numbers.
fn numbers(values: Vec<(String, String)>) -> Value {
    let number = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
    values.into_iter().map(|(name, value)| (name, number(value))).collect::<Map<_, _>>().into()
}

fn configuration(engine: &Engine) -> Value {
    numbers(words::settings(engine).into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn monitor(engine: &Engine) -> Value {
    let own = json!({ "version": VERSION, "server_state": "standalone" });
    merged(own, numbers(words::measurements(engine)))
}

fn server_stats(engine: &Engine) -> Value {
    let stats = engine.counters.snapshot();
    json!({
        "version": VERSION,
        "read_only": false,
        "server_stats": {
            "packets_sent": stats.packets_sent,
            "packets_received": stats.packets_received,
            "min_latency": stats.latency_min.as_millis(),
            "avg_latency": stats.latency_mean.as_secs_f64() * 1e3,
            "max_latency": stats.latency_max.as_millis(),
            "num_alive_client_connections": stats.connections,
            "outstanding_requests": stats.outstanding,
            "last_processed_zxid": stats.zxid,
            "server_state": "standalone",
        },
        "node_count": stats.nodes,
    })
}

fn session_id(session: i64) -> String {
    format!("{session:#x}")
}

fn connections(engine: &Engine) -> Value {
    let connections: Vec<Value> = engine
        .peers()
        .into_iter()
        .map(|peer| {
            json!({
                "remote_socket_address": peer.address.to_string(),
                "outstanding_requests": peer.queued,
                "packets_received": peer.received,
                "packets_sent": peer.sent,
                "established": peer.established_ms,
                "session_id": peer.session.map(|(session, _)| session_id(session)),
                "session_timeout": peer.session.map(|(_, timeout)| timeout.as_millis()),
                "last_operation": peer.last.operation().map(|operation| format!("{operation:?}")),
                "last_cxid": peer.last.xid,
                "last_zxid": peer.last.zxid,
                "last_response_time": peer.last.answered.as_millis(),
                "last_latency": peer.last.latency.as_millis(),
                "min_latency": peer.last.shortest().as_millis(),
                "avg_latency": peer.last.mean().as_millis(),
                "max_latency": peer.last.longest.as_millis(),
            })
        })
        .collect();
    json!({ "connections": connections })
}

fn dump(engine: &Engine) -> Value {
    let now = engine.clock.now().monotonic;
    let (sessions, tree) = (engine.machine.sessions(), engine.machine.tree());
    let expiries: Vec<Value> = sessions
        .expiries()
        .map(|(due, ids)| {
            let ids: Vec<String> = ids.iter().copied().map(session_id).collect();
            json!({ "in_ms": due.saturating_sub(now).as_millis(), "sessions": ids })
        })
        .collect();
    let ephemerals: Map<String, Value> =
        tree.ephemerals_by_session().map(|(session, paths)| (session_id(session), paths_of(paths.iter()))).collect();
    json!({ "expiries": expiries, "session_id_to_ephemeral_paths": ephemerals })
}

fn paths_of<'a, P: AsRef<str> + 'a>(paths: impl Iterator<Item = &'a P>) -> Value {
    paths.map(|path| Value::from(path.as_ref())).collect()
}

fn watch_summary(engine: &Engine) -> Value {
    let watches = engine.machine.watches();
    json!({
        "num_connections": watches.watching_connections(),
        "num_paths": watches.iter().len(),
        "num_total_watches": watches.len(),
    })
}

fn watches_by_path(engine: &Engine) -> Value {
    let sessions = |sessions: std::collections::BTreeSet<i64>| sessions.into_iter().map(session_id).collect::<Value>();
    let paths: Map<String, Value> =
        words::watchers(engine).into_iter().map(|(path, ids)| (path.to_owned(), sessions(ids))).collect();
    json!({ "path_to_session_ids": paths })
}

fn watches(engine: &Engine) -> Value {
    let by_session: Map<String, Value> = words::paths_by_session(engine)
        .into_iter()
        .map(|(session, paths)| (session_id(session), paths_of(paths.iter())))
        .collect();
    json!({ "session_id_to_watched_paths": by_session })
}

/// Returns the metrics in Prometheus' format, under the names of Apache's servers.
fn metrics(engine: &Engine) -> String {
    let mut text = String::new();
    let mut requests = Vec::new();
    for (name, value) in words::measurements(engine) {
        match name.strip_prefix("requests_") {
            Some(operation) => requests.push(format!("requests_total{{operation=\"{operation}\"}} {value}\n")),
            None => {
                let _ = write!(text, "# TYPE {name} gauge\n{name} {value}\n");
            }
        }
    }
    if !requests.is_empty() {
        text.push_str("# TYPE requests_total counter\n");
    }
    text + &requests.concat()
}
