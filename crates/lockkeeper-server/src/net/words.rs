//! The four-letter words, which an operator sends with `nc`.
//!
//! The answers have the layout of Apache's server, because programs parse them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::config::Storage;
use crate::net::engine::{Engine, PeerReport};
use crate::net::peer::Peer;
use lockkeeper_wire::OpCode;

/// The version begins with the protocol level, by which clients decide which operations they use.
pub(crate) const VERSION: &str = concat!("3.9.5-lockkeeper-", env!("CARGO_PKG_VERSION"));

/// Returns the answer if the first four bytes of a connection are a word. `asker` is the address of the connection.
pub(crate) fn answer(engine: &Engine, word: &[u8], asker: Peer) -> Option<String> {
    // As a length, these bytes exceed every frame limit, so a word cannot be a client's frame.
    let report = match word {
        b"ruok" => |_: &Engine, _| "imok".to_owned(),
        b"isro" => |_: &Engine, _| "rw".to_owned(),
        b"srvr" => |engine: &Engine, _| server(engine, None),
        b"stat" => |engine: &Engine, asker| server(engine, Some(asker)),
        b"mntr" => |engine: &Engine, _| monitor(engine),
        b"cons" => connections,
        b"dirs" => |engine: &Engine, _| lines_with(": ", directories(engine)) + "\n",
        b"dump" => |engine: &Engine, _| dump(engine),
        b"wchs" => |engine: &Engine, _| watch_summary(engine),
        b"wchc" => |engine: &Engine, _| watches_by_session(engine),
        b"wchp" => |engine: &Engine, _| watches_by_path(engine),
        b"conf" => |engine: &Engine, _| configuration(engine),
        b"envi" => |_: &Engine, _| environment(),
        b"srst" => |engine: &Engine, _| {
            engine.counters.reset();
            "Server stats reset.\n".to_owned()
        },
        b"crst" => |engine: &Engine, _| {
            engine.reset_peers();
            "Connection stats reset.\n".to_owned()
        },
        _ => return None,
    };
    // Without the secret, only words without information about clients are answered.
    let text = if engine.needs_secret() && !matches!(word, b"ruok" | b"isro" | b"srvr") {
        format!("{} is not executed because it is not in the whitelist.\n", String::from_utf8_lossy(word))
    } else {
        report(engine, asker)
    };
    let counters = &engine.counters;
    counters.packets_received.fetch_add(1, Relaxed);
    counters.packets_sent.fetch_add(1, Relaxed);
    counters.bytes_received.fetch_add(4, Relaxed);
    counters.bytes_sent.fetch_add(text.len() as u64, Relaxed);
    Some(text)
}

/// Returns whole milliseconds, as Apache's server does.
fn millis(time: Duration) -> u128 {
    time.as_millis()
}

/// Returns the line of the connection of the word itself: it has sent the word and received nothing.
fn own_line(asker: Peer) -> String {
    format!(" /{asker}[0](queued=0,recved=1,sent=0)\n\n")
}

/// Includes the clients if the address of the word's connection is given.
fn server(engine: &Engine, clients_for: Option<Peer>) -> String {
    let stats = engine.counters.snapshot();
    let mut text = format!("Zookeeper version: {VERSION}\n");
    if let Some(asker) = clients_for {
        text.push_str("Clients:\n");
        for PeerReport { address, queued, received, sent, .. } in engine.peers() {
            let _ = writeln!(text, " /{address}[1](queued={queued},recved={received},sent={sent})");
        }
        text.push_str(&own_line(asker));
    }
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
    let numbers: [(&str, &dyn Display); 18] = [
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
        ("global_sessions", &stats.sessions),
        ("bytes_received_count", &stats.bytes_received),
        ("bytes_sent_count", &stats.bytes_sent),
        ("watch_events_sent", &stats.events_sent),
        ("transactions", &stats.transactions),
        ("commits", &stats.commits),
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

fn connections(engine: &Engine, asker: Peer) -> String {
    let mut text = String::new();
    for peer in engine.peers() {
        let _ =
            write!(text, " /{}[1](queued={},recved={},sent={}", peer.address, peer.queued, peer.received, peer.sent);
        if let Some((session, timeout)) = peer.session {
            let last = &peer.last;
            let operation = last.operation().map_or("NA", short_name);
            let _ =
                write!(text, ",sid={session:#x},lop={operation},est={},to={}", peer.established_ms, millis(timeout));
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
    text + &own_line(asker)
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

fn dump(engine: &Engine) -> String {
    let now = engine.clock.now().monotonic;
    let (sessions, tree) = (engine.machine.sessions(), engine.machine.tree());
    let mut text =
        format!("SessionTracker dump:\nSession Sets ({})/({}):\n", sessions.expiries().len(), sessions.len());
    for (due, ids) in sessions.expiries() {
        let _ = writeln!(text, "{} expire in {} ms:", ids.len(), millis(due.saturating_sub(now)));
        for id in ids {
            let _ = writeln!(text, "\t{id:#x}");
        }
    }
    let owners = tree.ephemerals_by_session();
    let _ = writeln!(text, "ephemeral nodes dump:\nSessions with Ephemerals ({}):", owners.len());
    for (session, paths) in owners {
        let _ = writeln!(text, "{session:#x}:");
        for path in paths {
            let _ = writeln!(text, "\t{path}");
        }
    }
    text
}

fn watch_summary(engine: &Engine) -> String {
    let watches = engine.machine.watches();
    let (connections, paths) = (watches.watching_connections(), watches.iter().len());
    format!("{connections} connections watching {paths} paths\nTotal watches:{}\n", watches.len())
}

/// Returns every watched path with the sessions that watch it.
pub(crate) fn watchers(engine: &Engine) -> BTreeMap<&str, BTreeSet<i64>> {
    let machine = &engine.machine;
    let sessions = |watchers: &mut dyn Iterator<Item = _>| watchers.filter_map(|id| machine.session_of(id)).collect();
    machine.watches().iter().map(|(path, mut connections)| (&**path, sessions(&mut connections))).collect()
}

fn watches_by_path(engine: &Engine) -> String {
    let mut text = String::new();
    for (path, sessions) in watchers(engine) {
        let _ = writeln!(text, "{path}");
        for session in sessions {
            let _ = writeln!(text, "\t{session:#x}");
        }
    }
    text
}

/// Returns every session with watches, with the watched paths.
pub(crate) fn paths_by_session(engine: &Engine) -> BTreeMap<i64, Vec<&str>> {
    let mut by_session: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
    for (path, sessions) in watchers(engine) {
        for session in sessions {
            by_session.entry(session).or_default().push(path);
        }
    }
    by_session
}

fn watches_by_session(engine: &Engine) -> String {
    let mut text = String::new();
    for (session, paths) in paths_by_session(engine) {
        let _ = writeln!(text, "{session:#x}");
        for path in paths {
            let _ = writeln!(text, "\t{path}");
        }
    }
    text
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

/// Returns the values of `envi`.
pub(crate) fn environment_values() -> Vec<(&'static str, String)> {
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
    vec![
        ("zookeeper.version", format!("{VERSION}, built on Rust")),
        ("host.name", or_unknown(host)),
        ("os.name", std::env::consts::OS.to_owned()),
        ("os.arch", std::env::consts::ARCH.to_owned()),
        ("user.name", or_unknown(std::env::var("USER").ok())),
        ("user.dir", or_unknown(std::env::current_dir().ok().map(|path| path.display().to_string()))),
    ]
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
