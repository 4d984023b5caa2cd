//! A TCP proxy that breaks ZooKeeper connections at an exact frame.
//!
//! Many bugs of lock clients appear between a request and its reply: was the create stored before the connection died?
//! A test that sleeps hits that moment rarely. This proxy reads the frames and hits it every time. It passes on every
//! byte unchanged and in order, except for the faults that a test requests.
//!
//! ```no_run
//! # async fn test(server: std::net::SocketAddr) {
//! use lockkeeper_testkit::proxy::{OpCode, Proxy};
//!
//! let proxy = Proxy::start(server).await;
//! let lost_reply = proxy.on_any(OpCode::CREATES).path("/locks/nightly").cut_before_reply();
//! // .. connect a client to proxy.connect_string() and acquire the lock ..
//! lost_reply.fired().await;
//! proxy.wait_until(|counts| counts.forwarded.of_any(OpCode::CREATES) == 2).await;
//! # }
//! ```

mod frame;
mod installed;
mod pump;
mod record;
mod rule;
mod shared;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

pub use lockkeeper_wire::{ErrorCode, OpCode};
pub use record::{Counts, Direction, Fate, Record, Tally, What};
pub use rule::{Hold, On, Rule};

use installed::Matcher;
use shared::{Ends, Mode, Shared};

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// An orderly end of stream, as when the peer's process exits. Bytes that were passed on before arrive before it.
    Fin,
    /// A reset, as from a firewall or a machine that came back without its state.
    Reset,
}

/// A proxy on a loopback port of its own, in front of one server.
///
/// It runs on its own thread, so a test's runtime can be blocked or gone without stopping it. Every control takes effect
/// before it returns: no later frame passes. Dropping the proxy closes everything and waits for its thread.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    addr: SocketAddr,
    runtime: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Limit of the waits of this module, after which they panic with the counts and the last records. A working test
    /// needs far less, so reaching the limit means that the condition never comes.
    pub const PATIENCE: Duration = Duration::from_secs(90);

    /// Starts a proxy in front of `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        Self::start_blocking(upstream)
    }

    /// As [`Proxy::start`], for tests without async. It does not wait either.
    #[must_use]
    pub fn start_blocking(upstream: SocketAddr) -> Self {
        Self::start_on(Ipv4Addr::LOCALHOST, upstream)
    }

    /// As [`Proxy::start_blocking`], at another address of this machine, for clients in other network namespaces.
    #[must_use]
    pub fn start_on(own: Ipv4Addr, upstream: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind((own, 0)).expect("a port is free");
        let addr = listener.local_addr().expect("a bound socket has an address");
        listener.set_nonblocking(true).expect("a socket can be non-blocking");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event loop can be made");
        let handle = runtime.handle().clone();
        let shared = Arc::new(Shared::new(upstream));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("fault-proxy".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    runtime.block_on(async move {
                        let listener = tokio::net::TcpListener::from_std(listener).expect("the socket is non-blocking");
                        tokio::select! {
                            () = pump::accept(listener, shared) => {}
                            _ = stopped => {}
                        }
                    });
                }
            })
            .expect("a thread can be started");
        Self { shared, addr, runtime: handle, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns [`Proxy::addr`] as a ZooKeeper connect string.
    #[must_use]
    pub fn connect_string(&self) -> String {
        self.addr.to_string()
    }

    /// Directs new connections to another server; open ones stay.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        self.shared.change(|state| state.upstream = upstream);
    }

    /// Cuts all connections, at both ends. New ones are accepted.
    pub fn cut(&self, how: Cut) {
        self.shared.change(|state| {
            for connection in state.connections.values_mut() {
                connection.cut.get_or_insert(Ends { client: how, server: how });
            }
        });
    }

    /// Keeps all sockets open and drops every byte in both directions. New connections are accepted and stay silent.
    ///
    /// The bytes are lost, so [`Proxy::heal`] resets every connection that lost some. [`Proxy::stall`] simulates a
    /// network that loses packets which TCP sends again.
    pub fn black_hole(&self) {
        self.shared.change(|state| state.mode = Mode::BlackHole);
    }

    /// Holds back every byte in both directions; [`Proxy::heal`] delivers them. A TCP connection that survives a
    /// partition sees the same.
    pub fn stall(&self) {
        self.shared.change(|state| state.mode = Mode::Stall { to_server: true, to_client: true });
    }

    /// As [`Proxy::stall`], in one direction only. Stalled to the server, it receives nothing but its answers pass.
    /// Stalled to the client, requests take effect but their replies do not arrive.
    pub fn stall_direction(&self, direction: Direction) {
        let (to_server, to_client) = (direction == Direction::ToServer, direction == Direction::ToClient);
        self.shared.change(|state| state.mode = Mode::Stall { to_server, to_client });
    }

    /// Resets new connections immediately. Open ones continue; [`Proxy::cut`] ends them too.
    pub fn refuse(&self) {
        self.shared.change(|state| state.mode = Mode::Refuse);
    }

    /// Ends every fault: traffic flows, rules are removed, held bytes are delivered, and connections that lost bytes are
    /// reset.
    pub fn heal(&self) {
        self.shared.change(|state| {
            state.mode = Mode::Forward;
            state.rules.clear();
            for connection in state.connections.values_mut() {
                for waiting in &mut connection.in_flight {
                    waiting.fault = None;
                }
                if connection.spoiled {
                    connection.cut.get_or_insert(Ends { client: Cut::Reset, server: Cut::Reset });
                }
            }
        });
    }

    /// Starts a rule for requests of this opcode, or for their replies.
    pub fn on(&self, op: OpCode) -> On<'_> {
        self.on_any(&[op])
    }

    /// Starts a rule for requests of any of these opcodes, or for their replies.
    pub fn on_any(&self, ops: &[OpCode]) -> On<'_> {
        On::new(self, Matcher::Requests(ops.to_vec()))
    }

    /// Starts a rule for watch events.
    pub fn on_watch_event(&self) -> On<'_> {
        On::new(self, Matcher::WatchEvents)
    }

    /// Holds back all watch events, on every connection, and all later frames of the same connection.
    pub fn hold_watch_events(&self) -> Hold {
        self.on_watch_event().every().hold_reply()
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.look().counts.clone()
    }

    /// Returns the records so far, oldest first; of a very long run only the last 131 072.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.shared.look().log.iter().cloned().collect()
    }

    /// Waits until the counts satisfy `condition`, and returns them. Needs no runtime of the caller's.
    pub async fn wait_until(&self, mut condition: impl FnMut(&Counts) -> bool) -> Counts {
        self.shared
            .patiently(&self.runtime, "counts to satisfy a condition", |state| {
                condition(&state.counts).then(|| state.counts.clone())
            })
            .await
    }

    /// Waits until a record, old or new, satisfies `condition`, and returns the first that does.
    pub async fn wait_for(&self, mut condition: impl FnMut(&Record) -> bool) -> Record {
        self.shared
            .patiently(&self.runtime, "a record to satisfy a condition", |state| {
                state.log.iter().find(|record| condition(record)).cloned()
            })
            .await
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed when it happened; a second one here would hide the test's own.
            drop(thread.join());
        }
    }
}
