//! Reports whose length depends on the state, in slices.
//!
//! A server has one thread. A report of a million watches takes it for a moment only, again and again, and is never in
//! memory as a whole. Each slice shows the state of its own moment. So what changes meanwhile may be missing or listed
//! twice.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::machine::ConnectionId;
use crate::net::engine::{Engine, PeerReport};

/// Maximum number of rows and about the maximum bytes of a slice.
const ROWS: usize = 500;
const BYTES: usize = 64 << 10;

/// Appends the next slice of a report; returns whether more follows.
pub(crate) type Slices = Box<dyn FnMut(&Engine, &mut String) -> bool>;

/// A report of one slice.
pub(crate) fn whole(report: impl Fn(&Engine) -> String + 'static) -> Slices {
    Box::new(move |engine, out| {
        out.push_str(&report(engine));
        false
    })
}

/// One report after the other.
pub(crate) fn chain(mut first: Slices, mut second: Slices) -> Slices {
    let mut at_second = false;
    Box::new(move |engine, out| {
        if at_second {
            return second(engine, out);
        }
        at_second = !first(engine, out);
        true
    })
}

/// Counts the rows of a slice.
#[derive(Debug, Default)]
struct Slice(usize);

impl Slice {
    fn is_full(&mut self, out: &str) -> bool {
        self.0 += 1;
        self.0 >= ROWS || out.len() >= BYTES
    }
}

/// The layout of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As the words have it.
    Text,
    /// As the operators' HTTP port has it.
    Json,
}

/// Lists below headings: in text a line for each heading, with indented lines below it; in JSON an object of arrays.
#[derive(Debug)]
struct Lists {
    layout: Layout,
    /// What follows a heading in text.
    suffix: &'static str,
    heading: Option<String>,
}

impl Lists {
    fn new(layout: Layout, suffix: &'static str) -> Self {
        Self { layout, suffix, heading: None }
    }

    fn row(&mut self, out: &mut String, heading: &str, item: &str) {
        let same = self.heading.as_deref() == Some(heading);
        let _ = match self.layout {
            Layout::Text if same => writeln!(out, "\t{item}"),
            Layout::Text => writeln!(out, "{heading}{}\n\t{item}", self.suffix),
            Layout::Json if same => write!(out, ",{}", Value::from(item)),
            Layout::Json => {
                let before = if self.heading.is_some() { "]," } else { "{" };
                write!(out, "{before}{}:[{}", Value::from(heading), Value::from(item))
            }
        };
        if !same {
            self.heading = Some(heading.to_owned());
        }
    }

    fn end(&self, out: &mut String) {
        match (self.layout, &self.heading) {
            (Layout::Text, _) => {}
            (Layout::Json, None) => out.push_str("{}"),
            (Layout::Json, Some(_)) => out.push_str("]}"),
        }
    }
}

pub(crate) fn session_id(session: i64) -> String {
    format!("{session:#x}")
}

/// Lists watched paths with the sessions that watch them, or sessions with the paths that they watch.
pub(crate) fn watches(layout: Layout, by_path: bool) -> Slices {
    let mut lists = Lists::new(layout, "");
    let mut last: Option<(ConnectionId, Arc<str>)> = None;
    Box::new(move |engine, out| {
        let (machine, watches) = (&engine.machine, engine.machine.watches());
        let mut slice = Slice::default();
        let before = last.take();
        for (connection, path) in watches.behind(before.as_ref().map(|(connection, path)| (*connection, &**path))) {
            if !by_path {
                if let Some(session) = machine.session_of(connection) {
                    lists.row(out, &session_id(session), path);
                }
            } else if watches.watchers(path).next() == Some(connection) {
                // Each path is listed once: for the first connection that watches it.
                for session in watches.watchers(path).filter_map(|id| machine.session_of(id)) {
                    lists.row(out, path, &session_id(session));
                }
            }
            if slice.is_full(out) {
                last = Some((connection, Arc::clone(path)));
                return true;
            }
        }
        lists.end(out);
        false
    })
}

/// Lists the sessions that have ephemeral nodes, with the nodes' paths.
pub(crate) fn ephemerals(layout: Layout) -> Slices {
    let mut lists = Lists::new(layout, ":");
    let mut last: Option<(i64, Arc<str>)> = None;
    Box::new(move |engine, out| {
        let tree = engine.machine.tree();
        if last.is_none() && layout == Layout::Text {
            let count = tree.ephemerals_by_session().len();
            let _ = writeln!(out, "ephemeral nodes dump:\nSessions with Ephemerals ({count}):");
        }
        let mut slice = Slice::default();
        let before = last.take();
        for (session, path) in tree.ephemerals_behind(before.as_ref().map(|(session, path)| (*session, &**path))) {
            lists.row(out, &session_id(session), path);
            if slice.is_full(out) {
                last = Some((session, Arc::clone(path)));
                return true;
            }
        }
        lists.end(out);
        false
    })
}

/// Lists the sessions by the time when they expire.
pub(crate) fn expiries(layout: Layout) -> Slices {
    let mut last = None;
    Box::new(move |engine, out| {
        let (now, sessions) = (engine.clock.now().monotonic, engine.machine.sessions());
        if last.is_none() {
            let (sets, count) = (sessions.expiries().len(), sessions.len());
            let _ = match layout {
                Layout::Text => writeln!(out, "SessionTracker dump:\nSession Sets ({sets})/({count}):"),
                Layout::Json => write!(out, "["),
            };
        }
        let mut slice = Slice::default();
        for (due, together, id) in sessions.expiries_behind(last) {
            let in_ms = due.saturating_sub(now).as_millis();
            let first = last.is_none_or(|(before, _)| before != due);
            let _ = match layout {
                Layout::Text if first => writeln!(out, "{together} expire in {in_ms} ms:\n\t{}", session_id(id)),
                Layout::Text => writeln!(out, "\t{}", session_id(id)),
                Layout::Json if first => {
                    let before = if last.is_some() { "]}," } else { "" };
                    write!(out, "{before}{{\"in_ms\":{in_ms},\"sessions\":[\"{}\"", session_id(id))
                }
                Layout::Json => write!(out, ",\"{}\"", session_id(id)),
            };
            last = Some((due, id));
            if slice.is_full(out) {
                return true;
            }
        }
        if layout == Layout::Json {
            out.push_str(if last.is_some() { "]}]" } else { "]" });
        }
        false
    })
}

/// Lists the connections, oldest first: `row` appends one.
pub(crate) fn peers(mut row: impl FnMut(&mut String, &PeerReport) + 'static) -> Slices {
    let mut ids = None;
    Box::new(move |engine, out| {
        let ids = ids.get_or_insert_with(|| engine.peer_ids().into_iter());
        let mut slice = Slice::default();
        for peer in ids.filter_map(|id| engine.peer(id)) {
            row(out, &peer);
            if slice.is_full(out) {
                return true;
            }
        }
        false
    })
}

/// Lists the connections in JSON.
pub(crate) fn peers_json() -> Slices {
    let mut is_first = true;
    let rows = peers(move |out, peer| {
        if !std::mem::take(&mut is_first) {
            out.push(',');
        }
        let _ = write!(out, "{}", peer_json(peer));
    });
    chain(whole(|_| "[".to_owned()), chain(rows, whole(|_| "]".to_owned())))
}

fn peer_json(peer: &PeerReport) -> Value {
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
}

/// The fields of an object, without its braces.
pub(crate) fn fields(fields: impl Fn(&Engine) -> Map<String, Value> + 'static) -> Slices {
    whole(move |engine| {
        let text = Value::Object(fields(engine)).to_string();
        text[1..text.len() - 1].to_owned()
    })
}

/// A field of an object whose value is a report.
pub(crate) fn field(name: &'static str, value: Slices) -> Slices {
    chain(whole(move |_| format!("\"{name}\":")), value)
}
