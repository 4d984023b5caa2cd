//! The four-letter words, which an operator sends with `nc`.
//!
//! The answers have the layout of Apache's server, because programs parse them.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::config::{Storage, Words};
use crate::net::engine::{Engine, PeerReport};
use crate::net::peer::Peer;
use crate::net::reports::{self, Layout, Slices, chain, whole};
use lockkeeper_wire::OpCode;

/// The version of a server, as `srvr` and `mntr` show it. It begins with the protocol level, by which clients decide which
/// operations they use, and ends with the version of Lockkeeper.
pub const VERSION: &str = concat!("3.9.5-lockkeeper-", env!("CARGO_PKG_VERSION"));

/// The first line of `srvr` and `stat`.
const VERSION_LINE: &str = concat!("Zookeeper version: 3.9.5-lockkeeper-", env!("CARGO_PKG_VERSION"), "\n");

/// Returns the answer if the first four bytes of a connection are a word. `asker` is the address of the connection.
pub(crate) fn answer(engine: &Engine, word: &[u8], asker: Peer) -> Option<Slices> {
    // As a length, these bytes exceed every frame limit, so a word cannot be a client's frame.
    let word = Words::ALL.into_iter().find(|known| known.as_bytes() == word)?;
    // Without the secret, only words without information about clients are answered.
    let is_open = !engine.needs_secret() || matches!(word, "ruok" | "isro" | "srvr");
    let mut report = match word {
        word if !is_open || !engine.config.words.contains(word) => {
            whole(move |_| format!("{word} is not executed because it is not in the whitelist.\n"))
        }
        "ruok" => whole(|_| "imok".to_owned()),
        "isro" => whole(|_| "rw".to_owned()),
        "srvr" => whole(|engine| VERSION_LINE.to_owned() + &server(engine)),
        "stat" => {
            let clients = reports::peers(|out, PeerReport { address, queued, received, sent, .. }| {
                let _ = writeln!(out, " /{address}[1](queued={queued},recved={received},sent={sent})");
            });
            let end = whole(move |engine| own_line(asker) + &server(engine));
            chain(whole(|_| format!("{VERSION_LINE}Clients:\n")), chain(clients, end))
        }
        "mntr" => whole(monitor),
        "cons" => chain(reports::peers(connection), whole(move |_| own_line(asker))),
        "dirs" => whole(|engine| lines_with(": ", directories(engine)) + "\n"),
        "dump" => chain(reports::expiries(Layout::Text), reports::ephemerals(Layout::Text)),
        "wchs" => whole(watch_summary),
        "wchc" => reports::watches(Layout::Text, false),
        "wchp" => reports::watches(Layout::Text, true),
        "conf" => whole(configuration),
        "envi" => whole(|_| environment()),
        "srst" => whole(|engine| {
            engine.counters.reset();
            "Server stats reset.\n".to_owned()
        }),
        "crst" => whole(|engine| {
            engine.reset_peers();
            "Connection stats reset.\n".to_owned()
        }),
        _ => unreachable!("all words are listed"),
    };
    Some(Box::new(move |engine, out| {
        let before = out.len();
        let more = report(engine, out);
        let counters = &engine.counters;
        counters.bytes_sent.fetch_add((out.len() - before) as u64, Relaxed);
        if !more {
            // After the report, so that a reset does not forget the word itself.
            counters.packets_received.fetch_add(1, Relaxed);
            counters.packets_sent.fetch_add(1, Relaxed);
            counters.bytes_received.fetch_add(4, Relaxed);
        }
        more
    }))
}

/// Returns whole milliseconds, as Apache's server does.
fn millis(time: Duration) -> u128 {
    time.as_millis()
}

/// Returns the line of the connection of the word itself: it has sent the word and received nothing.
fn own_line(asker: Peer) -> String {
    format!(" /{asker}[0](queued=0,recved=1,sent=0)\n\n")
}

fn server(engine: &Engine) -> String {
    let stats = engine.counters.snapshot();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Latency min/avg/max: {}/{:.4}/{}",
        millis(stats.latency_min),
        stats.latency_mean.as_secs_f64() * 1e3,
        millis(stats.latency_max)
    );
    let _ = write!(
        text,
        "Received: {}\nSent: {}\nConnections: {}\nOutstanding: {}\nZxid: {:#x}\nMode: standalone\nNode count: {}\n",
        stats.packets_received, stats.packets_sent, stats.connections, stats.outstanding, stats.zxid, stats.nodes,
    );
    text
}

/// Returns names and values of `mntr`, in its order.
pub(crate) fn measurements(engine: &Engine) -> Vec<(String, String)> {
    let stats = engine.counters.snapshot();
    let tree = engine.machine.tree();
    let numbers: [(&str, &dyn Display); 20] = [
        ("min_latency", &millis(stats.latency_min)),
        ("avg_latency", &format_args!("{:.4}", stats.latency_mean.as_secs_f64() * 1e3)),
        ("max_latency", &millis(stats.latency_max)),
        ("packets_received", &stats.packets_received),
        ("packets_sent", &stats.packets_sent),
        ("num_alive_connections", &stats.connections),
        ("outstanding_requests", &stats.outstanding),
        ("znode_count", &stats.nodes),
        ("watch_count", &stats.watches),
        ("ephemerals_count", &tree.ephemeral_count()),
        ("approximate_data_size", &tree.approximate_bytes()),
        ("kept_bytes", &engine.machine.cost()),
        ("global_sessions", &stats.sessions),
        ("bytes_received_count", &stats.bytes_received),
        ("bytes_sent_count", &stats.bytes_sent),
        ("watch_events_sent", &stats.events_sent),
        ("transactions", &stats.transactions),
        ("commits", &stats.commits),
        ("max_request_work", &engine.counters.most_work.load(Relaxed)),
        ("uptime", &millis(engine.clock.now().monotonic)),
    ];
    let numbers = numbers.map(|(name, number)| (name.to_owned(), number.to_string()));
    let requests = stats.requests.into_iter().map(|(op, count)| (format!("requests_{op:?}"), count.to_string()));
    numbers.into_iter().chain(requests).collect()
}

fn monitor(engine: &Engine) -> String {
    let mut text = format!("zk_version\t{VERSION}\nzk_server_state\tstandalone\n");
    for (name, value) in measurements(engine) {
        let _ = writeln!(text, "zk_{name}\t{value}");
    }
    text
}

/// Appends the line of a connection.
fn connection(text: &mut String, peer: &PeerReport) {
    let _ = write!(text, " /{}[1](queued={},recved={},sent={}", peer.address, peer.queued, peer.received, peer.sent);
    if let Some((session, timeout)) = peer.session {
        let last = &peer.last;
        let operation = last.operation().map_or("NA", short_name);
        let _ = write!(text, ",sid={session:#x},lop={operation},est={},to={}", peer.established_ms, millis(timeout));
        if last.xid >= 0 {
            let _ = write!(text, ",lcxid={:#x}", last.xid);
        }
        let _ = write!(
            text,
            ",lzxid={:#x},lresp={},llat={},minlat={},avglat={},maxlat={}",
            last.zxid,
            millis(last.answered),
            millis(last.latency),
            millis(last.shortest()),
            millis(last.mean()),
            millis(last.longest),
        );
    }
    text.push_str(")\n");
}

/// Returns the size of the files of the data directory. Apache's server separates snapshots and log only if they have
/// directories of their own; here they share one.
pub(crate) fn directories(engine: &Engine) -> Vec<(&'static str, String)> {
    let bytes = match &engine.config.storage {
        Storage::Memory => 0,
        // The sizes of these few files are cached by the system, so this does not wait for the disk.
        Storage::Directory(path) => std::fs::read_dir(path).map_or(0, |files| {
            files
                .filter_map(|file| file.ok()?.metadata().ok())
                .filter(|file| file.is_file())
                .map(|file| file.len())
                .sum()
        }),
    };
    ["datadir_size", "logdir_size"].map(|name| (name, bytes.to_string())).to_vec()
}

/// Returns Apache's abbreviation of an operation.
fn short_name(operation: OpCode) -> &'static str {
    match operation {
        OpCode::CloseSession => "CLOS",
        OpCode::CreateSession => "SESS",
        OpCode::Create | OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => "CREA",
        OpCode::Delete | OpCode::DeleteContainer => "DELE",
        OpCode::Exists => "EXIS",
        OpCode::GetData => "GETD",
        OpCode::SetData => "SETD",
        OpCode::GetAcl => "GETA",
        OpCode::SetAcl => "SETA",
        OpCode::GetChildren | OpCode::GetChildren2 => "GETC",
        OpCode::GetAllChildrenNumber => "GETACN",
        OpCode::GetEphemerals => "GETE",
        OpCode::Sync => "SYNC",
        OpCode::Ping => "PING",
        OpCode::Check => "CHEC",
        OpCode::Multi => "MULT",
        OpCode::MultiRead => "MLTR",
        OpCode::Reconfig => "RECO",
        OpCode::CheckWatches => "CHKW",
        OpCode::RemoveWatches => "REMW",
        OpCode::Auth => "AUTH",
        OpCode::Sasl => "SASL",
        OpCode::SetWatches => "SETW",
        OpCode::SetWatches2 => "STW2",
        OpCode::AddWatch => "ADDW",
        OpCode::WhoAmI => "HOMI",
    }
}

fn watch_summary(engine: &Engine) -> String {
    let watches = engine.machine.watches();
    let (connections, paths) = (watches.watching_connections(), watches.paths());
    format!("{connections} connections watching {paths} paths\nTotal watches:{}\n", watches.len())
}

/// Returns a limit as Apache's server shows it: 0 is no limit.
fn limit_text(limit: usize) -> String {
    if limit == usize::MAX { 0 } else { limit }.to_string()
}

/// Returns the settings in Apache's order, under Apache's names where they exist.
pub(crate) fn settings(engine: &Engine) -> Vec<(&'static str, String)> {
    let config = &engine.config;
    let timeouts = config.timeouts();
    let directory = match &config.storage {
        Storage::Memory => String::new(),
        Storage::Directory(path) => path.display().to_string(),
    };
    vec![
        ("clientPort", engine.address.map_or(0, |address| address.port()).to_string()),
        ("clientPortAddress", engine.address.map_or_else(String::new, |address| address.ip().to_string())),
        ("dataDir", directory),
        ("tickTime", millis(config.tick).to_string()),
        ("minSessionTimeout", millis(*timeouts.start()).to_string()),
        ("maxSessionTimeout", millis(*timeouts.end()).to_string()),
        ("maxClientCnxns", limit_text(config.limits.connections_per_address)),
        ("maxCnxns", limit_text(config.limits.connections)),
        ("maxSessions", limit_text(config.limits.sessions)),
        ("maxNodes", limit_text(config.limits.nodes)),
        ("maxDataBytes", config.limits.data_bytes.to_string()),
        ("maxAnswerBytes", config.limits.answer_bytes.to_string()),
        ("maxPathBytes", limit_text(config.limits.path_bytes)),
        ("maxPathDepth", limit_text(config.limits.path_depth)),
        ("maxEphemerals", limit_text(config.limits.ephemerals)),
        ("maxWatches", limit_text(config.limits.watches)),
        ("enforceQuota", config.enforce_quotas.to_string()),
        ("jute.maxbuffer", config.max_frame.to_string()),
        ("containerCheckIntervalMs", millis(config.container_check).to_string()),
        ("containerMaxNeverUsedIntervalMs", millis(config.container_unused).to_string()),
        ("serverId", "0".to_owned()),
    ]
}

fn configuration(engine: &Engine) -> String {
    lines_with("=", settings(engine))
}

/// Returns the values of `envi`. Clients ask it for the version. Apache's server also tells the host, the user and
/// directories, which concern nobody who is not on the machine.
pub(crate) fn environment_values() -> Vec<(&'static str, String)> {
    vec![("zookeeper.version", format!("{VERSION}, built on Rust"))]
}

fn environment() -> String {
    "Environment:\n".to_owned() + &lines_with("=", environment_values())
}

fn lines_with(between: &str, values: Vec<(&'static str, String)>) -> String {
    values.into_iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name}{between}{value}");
        text
    })
}
