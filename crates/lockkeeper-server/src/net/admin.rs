//! The operators' HTTP port: the reports of the four-letter words as JSON, and the metrics for Prometheus.
//!
//! Paths and names are those of Apache's admin server. Each connection has one request with a head of bounded length,
//! and bodies are not read, so a client cannot occupy the server. A connection takes one of the few slots when its head is whole. A request that names another server is refused. The port never waits for the disk and never changes
//! the tree.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::yield_now;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::net::engine::Engine;
use crate::net::reports::{self, Layout, Slices, chain, field, fields, whole};
use crate::net::words::{self, VERSION};

/// Time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of the request line with its headers.
const MAX_HEAD: usize = 8 << 10;
/// A report of at most about this length is sent with its length, a longer one in chunks.
const MAX_PART: usize = 64 << 10;
/// Maximum number of requests that are answered at once; others wait with their whole head.
const MAX_REQUESTS: usize = 16;
/// Maximum number of connections that have not sent their head. One more takes the place of the oldest one, so that silent clients
/// keep nobody out.
const MAX_HEADS: usize = 32;

/// Serves all connections until dropped.
pub(crate) async fn serve(engine: Rc<RefCell<Engine>>, listener: TcpListener) {
    let slots = Rc::new(Semaphore::new(MAX_REQUESTS));
    let heads = Rc::new(RefCell::new(VecDeque::new()));
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let (engine, slots, heads) = (Rc::clone(&engine), Rc::clone(&slots), Rc::clone(&heads));
                tokio::task::spawn_local(async move {
                    if !matches!(connection(&engine, &slots, &heads, stream).await, Some(Ok(()))) {
                        debug!(client = %address, "an HTTP client has disconnected or timed out");
                    }
                });
            }
            Err(error) => {
                if let Some(left_out) = engine.borrow_mut().line() {
                    warn!(%error, left_out, "cannot accept an HTTP connection");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The connections that have not sent their head, oldest first. Each ends when its value is notified.
type Heads = RefCell<VecDeque<Rc<Notify>>>;

/// Serves one connection. Returns `None` if its time was over, or if another one has taken its place.
async fn connection(
    engine: &RefCell<Engine>,
    slots: &Semaphore,
    heads: &Heads,
    mut stream: TcpStream,
) -> Option<std::io::Result<()>> {
    let place = Rc::new(Notify::new());
    heads.borrow_mut().push_back(Rc::clone(&place));
    if heads.borrow().len() > MAX_HEADS
        && let Some(oldest) = heads.borrow_mut().pop_front()
    {
        oldest.notify_one();
    }
    let head = tokio::select! {
        head = timeout(HEAD_TIMEOUT, read_head(&mut stream)) => head.ok(),
        () = place.notified() => None,
    };
    heads.borrow_mut().retain(|other| !Rc::ptr_eq(other, &place));
    let head = match head? {
        Ok(Some(head)) => head,
        Ok(None) => return Some(Ok(())),
        Err(error) => return Some(Err(error)),
    };
    let answered = timeout(TIMEOUT, async {
        let _slot = slots.acquire().await;
        answer(engine, &head, stream).await
    });
    answered.await.ok()
}

/// Reads the head of a request; `None` if it is too long, or not whole.
async fn read_head(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(head))
}

async fn answer(engine: &RefCell<Engine>, head: &[u8], mut stream: TcpStream) -> std::io::Result<()> {
    let head = String::from_utf8_lossy(head);
    let Request { method, path, has_chunks, trouble } = Request::read(&head, &engine.borrow());
    let answer = match trouble {
        Some(trouble) => HttpResponse::plain("403 Forbidden", trouble),
        None => match method {
            "GET" | "HEAD" | "POST" => respond(&engine.borrow(), method, path),
            _ => HttpResponse::plain("405 Method Not Allowed", "only GET, HEAD and POST\n"),
        },
    };
    let HttpResponse { status, kind, mut body } = answer;
    let (mut part, mut more) = (String::new(), method != "HEAD");
    while more && part.len() < MAX_PART {
        more = body(&engine.borrow(), &mut part);
        yield_now().await;
    }
    // So a client can tell a whole report from one that was cut off.
    let chunked = more && has_chunks;
    let length = if chunked {
        "Transfer-Encoding: chunked\r\n".to_owned()
    } else if more || method == "HEAD" {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", part.len())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    loop {
        if chunked && !part.is_empty() {
            part = format!("{:x}\r\n{part}\r\n", part.len());
        }
        stream.write_all(part.as_bytes()).await?;
        if !more {
            break;
        }
        part.clear();
        more = body(&engine.borrow(), &mut part);
        yield_now().await;
    }
    if chunked {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    stream.shutdown().await?;
    // Wait until the client has closed: closing a socket with unread bytes would destroy the answer in flight.
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

/// The head of a request.
struct Request<'a> {
    method: &'a str,
    path: &'a str,
    /// Whether the client understands a body in chunks.
    has_chunks: bool,
    /// Why it is refused, whatever it asks for.
    trouble: Option<String>,
}

impl<'a> Request<'a> {
    /// A page of a foreign site can make a browser ask this port. It cannot change the headers Host and Origin, which name
    /// the site, not this server.
    fn read(head: &'a str, engine: &Engine) -> Self {
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (method, target, has_chunks) = (word(), word(), word() == "HTTP/1.1");
        let path = target.split('?').next().unwrap_or_default();
        let headers = lines.filter_map(|line| line.split_once(':'));
        let is_foreign = |(name, value): &(&str, &str)| {
            let value = value.trim();
            let host = if name.eq_ignore_ascii_case("host") {
                value
            } else if name.eq_ignore_ascii_case("origin") {
                let site = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
                site.unwrap_or_default()
            } else {
                return false;
            };
            !is_own(host, &engine.config.admin_hosts)
        };
        let trouble = { headers }.find(is_foreign).map(|(name, value)| {
            let value = crate::machine::identity::shown(value.trim());
            format!("the header {} names {value}; name this server by its address, localhost, or a name that it was given\n", name.trim())
        });
        Self { method, path, has_chunks, trouble }
    }
}

/// Returns whether a host, perhaps with a port, is an address, `localhost`, or one of these names. A foreign site has a
/// name.
fn is_own(host: &str, names: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    name.parse::<std::net::IpAddr>().is_ok() || is("localhost") || names.iter().any(|known| is(known))
}

struct HttpResponse {
    status: &'static str,
    kind: &'static str,
    body: Slices,
}

impl HttpResponse {
    fn plain(status: &'static str, body: impl Into<String>) -> Self {
        let body = body.into();
        Self { status, kind: "text/plain; charset=utf-8", body: whole(move |_| body.clone()) }
    }

    fn json(body: Slices) -> Self {
        Self { status: "200 OK", kind: "application/json", body: chain(body, whole(|_| "\n".to_owned())) }
    }
}

/// Builds the fields of a command's report.
type Report = fn() -> Slices;

/// Commands by name, with the four-letter word of the same report.
const COMMANDS: [(&str, &str, Report); 15] = [
    ("configuration", "conf", || fields(configuration)),
    ("connections", "cons", || field("connections", reports::peers_json())),
    ("connection_stat_reset", "crst", || {
        fields(|engine| {
            engine.reset_peers();
            Map::new()
        })
    }),
    ("dirs", "dirs", || fields(|engine| numbers(owned(words::directories(engine))))),
    ("dump", "dump", || {
        let ephemerals = field("session_id_to_ephemeral_paths", reports::ephemerals(Layout::Json));
        joined(field("expiries", reports::expiries(Layout::Json)), ephemerals)
    }),
    ("environment", "envi", || {
        fields(|_| owned(words::environment_values()).into_iter().map(|(name, value)| (name, value.into())).collect())
    }),
    ("is_read_only", "isro", || fields(|_| object(json!({ "read_only": false })))),
    ("monitor", "mntr", || fields(monitor)),
    ("ruok", "ruok", || fields(|_| Map::new())),
    ("server_stats", "srvr", || fields(server_stats)),
    ("stat_reset", "srst", || {
        fields(|engine| {
            engine.counters.reset();
            Map::new()
        })
    }),
    ("stats", "stat", || joined(fields(server_stats), field("connections", reports::peers_json()))),
    ("watch_summary", "wchs", || fields(watch_summary)),
    ("watches", "wchc", || field("session_id_to_watched_paths", reports::watches(Layout::Json, false))),
    ("watches_by_path", "wchp", || field("path_to_session_ids", reports::watches(Layout::Json, true))),
];

/// Commands that are answered even if clients must present a secret.
const OPEN: [&str; 3] = ["ruok", "isro", "srvr"];

/// Commands that change something. A page of a foreign site may cause a GET, but no POST without its Origin.
const RESETS: [&str; 2] = ["srst", "crst"];

fn respond(engine: &Engine, method: &str, path: &str) -> HttpResponse {
    let forbidden =
        || HttpResponse::plain("403 Forbidden", "this server requires a secret; only ruok, isro and srvr are open\n");
    let asked = path.strip_prefix("/commands/").unwrap_or_default();
    let command = COMMANDS.into_iter().find(|(name, word, _)| asked == *name || asked == *word);
    let resets = command.is_some_and(|(_, word, _)| RESETS.contains(&word));
    if resets != (method == "POST") {
        let text = if resets { "this command needs POST\n" } else { "this path needs GET\n" };
        return HttpResponse::plain("405 Method Not Allowed", text);
    }
    match path {
        "/health" => HttpResponse::json(whole(|_| json!({ "status": "serving", "version": VERSION }).to_string())),
        "/metrics" if engine.needs_secret() => forbidden(),
        "/metrics" => HttpResponse { status: "200 OK", kind: "text/plain; version=0.0.4", body: whole(metrics) },
        "/commands" | "/commands/" => {
            HttpResponse::json(whole(|_| json!(COMMANDS.map(|(name, word, _)| [name, word])).to_string()))
        }
        _ => match command {
            None => HttpResponse::plain("404 Not Found", "see /commands, /metrics and /health\n"),
            Some((_, word, _)) if engine.needs_secret() && !OPEN.contains(&word) => forbidden(),
            Some((name, _, report)) => {
                let own = fields(move |_| object(json!({ "command": name, "error": null })));
                let open = chain(whole(|_| "{".to_owned()), joined(own, report()));
                HttpResponse::json(chain(open, whole(|_| "}".to_owned())))
            }
        },
    }
}

/// The fields of both reports, with a comma between them if the second one has any.
fn joined(first: Slices, mut second: Slices) -> Slices {
    let mut begun = false;
    let with_comma: Slices = Box::new(move |engine, out| {
        let before = out.len();
        let more = second(engine, out);
        if !begun && out.len() > before {
            out.insert(before, ',');
            begun = true;
        }
        more
    });
    chain(first, with_comma)
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(fields) = value { fields } else { Map::new() }
}

fn owned(values: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns fields in which numeric texts are numbers.
fn numbers(values: Vec<(String, String)>) -> Map<String, Value> {
    let number = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
    values.into_iter().map(|(name, value)| (name, number(value))).collect()
}

fn configuration(engine: &Engine) -> Map<String, Value> {
    numbers(owned(words::settings(engine)))
}

fn monitor(engine: &Engine) -> Map<String, Value> {
    let mut own = object(json!({ "version": VERSION, "server_state": "standalone" }));
    own.extend(numbers(words::measurements(engine)));
    own
}

fn server_stats(engine: &Engine) -> Map<String, Value> {
    let stats = engine.counters.snapshot();
    object(json!({
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
    }))
}

fn watch_summary(engine: &Engine) -> Map<String, Value> {
    let watches = engine.machine.watches();
    object(json!({
        "num_connections": watches.watching_connections(),
        "num_paths": watches.paths(),
        "num_total_watches": watches.len(),
    }))
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
