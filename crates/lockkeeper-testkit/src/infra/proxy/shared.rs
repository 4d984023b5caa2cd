//! The proxy's state, under one lock.
//!
//! A frame's fate is decided and its first bytes are written under this lock. So when a control such as
//! [`Proxy::black_hole`](super::Proxy::black_hole) has returned, no later frame slips through.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::frame::Request;
use super::installed::{Armed, Installed};
use super::record::{Counts, Direction, Record, What};
use super::{Cut, Proxy};
use lockkeeper_wire::OpCode;

/// Maximum records; the oldest are dropped first. Enough for any one test, bounded for endless ones.
const LOG_LIMIT: usize = 1 << 17;

/// How the proxy treats all its traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Forward,
    /// Bytes in these directions wait.
    Stall {
        to_server: bool,
        to_client: bool,
    },
    BlackHole,
    Refuse,
}

/// What may happen to bytes at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    Wait,
    Swallow,
    Closed,
}

/// How the two ends of a connection are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) client: Cut,
    pub(super) server: Cut,
}

/// A request that the server has not answered yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) request: Request,
    pub(super) fault: Option<Armed>,
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) cut: Option<Ends>,
    /// Some of its bytes were dropped, so it cannot continue.
    pub(super) spoiled: bool,
    pub(super) in_flight: VecDeque<InFlight>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) upstream: SocketAddr,
    pub(super) mode: Mode,
    pub(super) rules: Vec<Installed>,
    pub(super) next_rule: u64,
    pub(super) counts: Counts,
    pub(super) log: VecDeque<Record>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) next_connection: u64,
    started: Instant,
}

impl State {
    pub(super) fn record(&mut self, connection: u64, what: What) {
        if self.log.len() == LOG_LIMIT {
            self.log.pop_front();
        }
        self.log.push_back(Record { at: self.started.elapsed(), connection, what });
    }

    /// Lets every rule count a frame (a watch event has no opcode), and returns the fault of the first rule that
    /// applies.
    pub(super) fn arm(&mut self, op: Option<OpCode>, path: Option<&str>) -> Option<Armed> {
        let mut armed = None;
        for rule in &mut self.rules {
            if rule.counts(op, path) && armed.is_none() {
                armed = Some(Armed { id: rule.id, fault: rule.fault.clone(), by: rule.by });
            }
        }
        armed
    }

    pub(super) fn fired(&mut self, rule: u64) {
        if let Some(rule) = self.rules.iter_mut().find(|installed| installed.id == rule) {
            rule.fired += 1;
        }
    }

    pub(super) fn gate(&self, connection: u64, direction: Direction) -> Gate {
        if self.connections.get(&connection).is_none_or(|connection| connection.cut.is_some()) {
            return Gate::Closed;
        }
        match (self.mode, direction) {
            (Mode::BlackHole, _) => Gate::Swallow,
            (Mode::Stall { to_server: true, .. }, Direction::ToServer)
            | (Mode::Stall { to_client: true, .. }, Direction::ToClient) => Gate::Wait,
            _ => Gate::Open,
        }
    }

    /// Closes the gate of a connection; its task closes the sockets. Only the first cut has an effect.
    pub(super) fn cut(&mut self, connection: u64, ends: Ends) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.cut.get_or_insert(ends);
        }
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Shared {
    pub(super) fn new(upstream: SocketAddr) -> Self {
        let state = State {
            upstream,
            mode: Mode::Forward,
            rules: Vec::new(),
            next_rule: 0,
            counts: Counts::default(),
            log: VecDeque::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            started: Instant::now(),
        };
        Self { state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    /// Returns the state, for reading. It stays readable after a panic elsewhere.
    pub(super) fn look(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes all tasks that wait for a change.
    pub(super) fn change<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        let result = with(&mut self.look());
        self.changed.send_replace(());
        result
    }

    /// Returns a receiver that sees every change from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Waits until `probe` returns a value.
    pub(super) async fn until<T>(&self, mut probe: impl FnMut(&State) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            if let Some(found) = probe(&self.look()) {
                return found;
            }
            changes.changed().await.expect("the sender lives as long as self");
        }
    }

    /// As [`Shared::until`], for tests: panics after [`Proxy::PATIENCE`].
    ///
    /// The clock is the proxy's own, so the caller may be on any executor.
    pub(super) async fn patiently<T>(
        &self,
        clock: &tokio::runtime::Handle,
        what: &str,
        probe: impl FnMut(&State) -> Option<T>,
    ) -> T {
        let alarm = clock.spawn(tokio::time::sleep(Proxy::PATIENCE));
        let stop = alarm.abort_handle();
        let found = tokio::select! {
            biased;
            found = self.until(probe) => Some(found),
            _ = alarm => None,
        };
        stop.abort();
        found.unwrap_or_else(|| {
            let state = self.look();
            let tail: Vec<String> = state.log.iter().rev().take(20).rev().map(|line| format!("{line:?}")).collect();
            let (counts, patience) = (&state.counts, Proxy::PATIENCE);
            panic!("waited {patience:?} for {what}\n{counts:?}\nthe last records:\n{}", tail.join("\n"))
        })
    }
}
