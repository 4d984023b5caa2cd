//! The four-letter words: what an operator asks with `nc`.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use crate::engine::Engine;

/// The protocol level comes first, because clients decide by it what they may ask for.
const VERSION: &str = concat!("3.9.5-lockkeeper-", env!("CARGO_PKG_VERSION"));

/// The answer, if the first four bytes of a connection are a word.
pub(crate) fn answer(engine: &Engine, word: &[u8]) -> Option<String> {
    // As a length these would be beyond any frame limit, so no client is mistaken for an operator.
    let text = match word {
        b"ruok" => "imok".to_owned(),
        b"srvr" => server(engine, false),
        b"stat" | b"mntr" if engine.is_guarded() => {
            format!("{} is not executed because it is not in the whitelist.\n", String::from_utf8_lossy(word))
        }
        b"stat" => server(engine, true),
        b"mntr" => monitor(engine),
        _ => return None,
    };
    let counters = &engine.counters;
    counters.packets_received.fetch_add(1, Relaxed);
    counters.packets_sent.fetch_add(1, Relaxed);
    counters.bytes_received.fetch_add(4, Relaxed);
    counters.bytes_sent.fetch_add(text.len() as u64, Relaxed);
    Some(text)
}

fn server(engine: &Engine, with_clients: bool) -> String {
    let stats = engine.counters.snapshot();
    let mut text = format!("Zookeeper version: {VERSION}\n");
    if with_clients {
        text.push_str("Clients:\n");
        for (address, queued, received, sent) in engine.clients() {
            let _ = writeln!(text, " /{address}[1](queued={queued},recved={received},sent={sent})");
        }
        text.push('\n');
    }
    let _ = write!(
        text,
        "Received: {}\nSent: {}\nConnections: {}\nOutstanding: {}\nZxid: {:#x}\nMode: standalone\nNode count: {}\n",
        stats.packets_received, stats.packets_sent, stats.connections, stats.outstanding, stats.zxid, stats.nodes,
    );
    text
}

fn monitor(engine: &Engine) -> String {
    let stats = engine.counters.snapshot();
    let tree = engine.machine.tree();
    let mut text = format!("zk_version\t{VERSION}\nzk_server_state\tstandalone\n");
    let numbers = [
        ("packets_received", stats.packets_received),
        ("packets_sent", stats.packets_sent),
        ("num_alive_connections", stats.connections),
        ("outstanding_requests", stats.outstanding),
        ("znode_count", stats.nodes),
        ("watch_count", stats.watches),
        ("ephemerals_count", tree.ephemeral_count() as u64),
        ("approximate_data_size", tree.approximate_bytes()),
        ("global_sessions", stats.sessions),
        ("bytes_received_count", stats.bytes_received),
        ("bytes_sent_count", stats.bytes_sent),
        ("watch_events_sent", stats.events_sent),
        ("transactions", stats.transactions),
        ("commits", stats.commits),
    ];
    for (name, number) in numbers {
        let _ = writeln!(text, "zk_{name}\t{number}");
    }
    for (opcode, count) in stats.requests {
        let _ = writeln!(text, "zk_requests_{opcode:?}\t{count}");
    }
    text
}
