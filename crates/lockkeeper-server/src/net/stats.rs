//! The server's counters.
//!
//! A counter is incremented before the answer is sent, so a client that has its answer finds it counted. Tests may
//! compare exact values.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lockkeeper_wire::OpCode;

/// The counts at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Received requests by operation, without operations that were never received. A connect request is a
    /// `CreateSession`.
    pub requests: BTreeMap<OpCode, u64>,
    /// Requests with an unknown operation code.
    pub unknown_requests: u64,
    /// Frames and four-letter words received.
    pub packets_received: u64,
    /// Frames and four-letter answers that were sent.
    pub packets_sent: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// Watch events sent.
    pub events_sent: u64,
    /// Transactions, failed ones included.
    pub transactions: u64,
    /// Batches that were made durable, with one fsync each.
    pub commits: u64,
    /// Open connections.
    pub connections: u64,
    /// Live sessions.
    pub sessions: u64,
    /// Nodes, the root and `/zookeeper` included.
    pub nodes: u64,
    pub watches: u64,
    /// Answers that wait for the disk.
    pub outstanding: u64,
    /// The shortest time from the last byte of a request to the moment when its answer could be sent.
    pub latency_min: Duration,
    /// The mean of these times.
    pub latency_mean: Duration,
    /// The longest of these times.
    pub latency_max: Duration,
    /// The last transaction.
    pub zxid: i64,
}

impl Stats {
    /// Returns how many requests of this operation were received.
    pub fn requests(&self, opcode: OpCode) -> u64 {
        self.requests.get(&opcode).copied().unwrap_or(0)
    }
}

/// The live counters. Only the engine writes them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: [AtomicU64; OpCode::ALL.len()],
    unknown_requests: AtomicU64,
    pub(crate) packets_received: AtomicU64,
    pub(crate) packets_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) events_sent: AtomicU64,
    pub(crate) transactions: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) sessions: AtomicU64,
    pub(crate) nodes: AtomicU64,
    pub(crate) watches: AtomicU64,
    pub(crate) outstanding: AtomicU64,
    /// The most work of a request.
    pub(crate) most_work: AtomicU64,
    pub(crate) zxid: AtomicI64,
    latency: Latency,
}

/// Request times in microseconds.
#[derive(Debug, Default)]
struct Latency {
    count: AtomicU64,
    total: AtomicU64,
    /// The shortest time plus 1; 0 if there is none, so that the default is right.
    least: AtomicU64,
    most: AtomicU64,
}

impl Counters {
    pub(crate) fn count_request(&self, opcode: i32) {
        let counter = OpCode::from_i32(opcode).map_or(&self.unknown_requests, |opcode| &self.requests[opcode.slot()]);
        counter.fetch_add(1, Relaxed);
    }

    /// Counts `count` answers with these total, shortest and longest times.
    pub(crate) fn count_latency(&self, count: u64, total: Duration, least: Duration, most: Duration) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let Latency { count: counted, total: summed, least: shortest, most: longest } = &self.latency;
        counted.fetch_add(count, Relaxed);
        summed.fetch_add(micros(total), Relaxed);
        longest.fetch_max(micros(most), Relaxed);
        let least = micros(least).saturating_add(1);
        // The engine's thread is the only writer.
        let known = shortest.load(Relaxed);
        if known == 0 || least < known {
            shortest.store(least, Relaxed);
        }
    }

    /// Resets the counts of packets and times.
    pub(crate) fn reset(&self) {
        let Latency { count, total, least, most } = &self.latency;
        for counter in [&self.packets_received, &self.packets_sent, count, total, least, most] {
            counter.store(0, Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let requests = OpCode::ALL.into_iter().map(|opcode| (opcode, get(&self.requests[opcode.slot()])));
        Stats {
            requests: requests.filter(|(_, count)| *count > 0).collect(),
            unknown_requests: get(&self.unknown_requests),
            packets_received: get(&self.packets_received),
            packets_sent: get(&self.packets_sent),
            bytes_received: get(&self.bytes_received),
            bytes_sent: get(&self.bytes_sent),
            events_sent: get(&self.events_sent),
            transactions: get(&self.transactions),
            commits: get(&self.commits),
            connections: get(&self.connections),
            sessions: get(&self.sessions),
            nodes: get(&self.nodes),
            watches: get(&self.watches),
            outstanding: get(&self.outstanding),
            latency_min: Duration::from_micros(get(&self.latency.least).saturating_sub(1)),
            latency_mean: Duration::from_micros(get(&self.latency.total) / get(&self.latency.count).max(1)),
            latency_max: Duration::from_micros(get(&self.latency.most)),
            zxid: self.zxid.load(Relaxed),
        }
    }
}
