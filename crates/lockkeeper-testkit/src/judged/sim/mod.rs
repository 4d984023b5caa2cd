//! A seeded ensemble in one process: the embedded server's real state machine, with a simulated network and simulated
//! clocks.
//!
//! One [`Machine`] decides every transaction, as a leader does. Each simulated server is a copy of its tree. It applies
//! the transactions in order but later, answers its clients' reads from its copy, and fires their watches as it
//! applies. So a read may be stale. A create may be committed and not yet visible on the server to which a session
//! moved. A reply may be lost before or after its request took effect. All this happens on a real ensemble too; here it
//! follows from a seed, in paused time. Servers fail and come back. When a leader fails, the transactions that were not
//! on a majority's disks are lost, and its successor gives every session its full timeout.
//!
//! The library above is the real one: only `zookeeper.rs`, the adapter to the TCP client, is replaced.

mod client;
mod link;
mod server;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper::ensemble::Network;
use lockkeeper_server::machine::{
    ConnectionId, Effect, Limits, Machine, MachineConfig, Now, Schemes, Tree, Txn, TxnOp,
};
use lockkeeper_wire::{ConnectRequest, Request, VersionedPath};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use server::{Connection, Replica};

/// The properties of the simulated ensemble.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of servers.
    pub servers: usize,
    /// The leader's tick.
    pub tick: Duration,
    /// The time that a message travels, one way.
    pub network: Range<Duration>,
    /// The time that the quorum's disks need for a transaction.
    pub fsync: Range<Duration>,
    /// How much later than the commit a server applies a transaction.
    pub lag: Range<Duration>,
    /// How often childless containers are removed.
    pub container_check: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            servers: 3,
            tick: Duration::from_millis(500),
            network: Duration::from_micros(50)..Duration::from_millis(5),
            fsync: Duration::from_micros(100)..Duration::from_millis(20),
            lag: Duration::ZERO..Duration::from_millis(50),
            container_check: Duration::from_secs(3),
        }
    }
}

/// The ensemble. Cheap to clone.
#[derive(Clone)]
pub struct Sim {
    world: Arc<Mutex<World>>,
    settings: Arc<Settings>,
    origin: Instant,
}

/// The whole state, except for messages on their way.
struct World {
    rng: fastrand::Rng,
    machine: Machine,
    /// When the last transaction was or will be committed.
    committed_at: Instant,
    /// The last transaction that servers will apply; a new leader's numbers begin later.
    last: i64,
    /// Transactions that may not be on a majority's disks yet, with the times when they are.
    unsure: VecDeque<(Instant, Txn)>,
    /// The durable state: a new leader begins with it.
    durable: Durable,
    /// When leaders failed. A transaction of the n-th leader that would be committed after the n-th of these times is
    /// lost.
    failures: Vec<Instant>,
    /// Until when no server accepts a connection.
    leaderless_until: Instant,
    /// Until when the disks need this much longer.
    slow_disk: (Instant, Duration),
    replicas: Vec<Replica>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    clients: Vec<mpsc::UnboundedSender<Trouble>>,
    requests: BTreeMap<&'static str, u64>,
}

/// The state that is on a majority's disks.
#[derive(Clone)]
struct Durable {
    tree: Tree,
    sessions: BTreeMap<i64, (Duration, [u8; 16])>,
    last: i64,
}

impl Durable {
    fn apply(&mut self, txn: &Txn) {
        self.last = txn.zxid;
        match &txn.op {
            TxnOp::CreateSession { timeout, password } => {
                self.sessions.insert(txn.session, (*timeout, *password));
            }
            TxnOp::CloseSession { .. } => {
                self.sessions.remove(&txn.session);
            }
            _ => {}
        }
        self.tree.apply(txn, &mut Vec::new());
    }
}

/// A fault of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Its connection is reset; by chance, requests on their way still take effect.
    Cut,
    /// It reaches no server for this time, without notice.
    Silence(Duration),
}

impl Sim {
    /// Returns an ensemble whose delays and faults all follow from `seed`. Needs a runtime with paused time.
    pub fn new(seed: u64, settings: Settings) -> Sim {
        let origin = Instant::now();
        let now = Now { monotonic: Duration::ZERO, wall_ms: 0 };
        let machine = Machine::new(config(&settings, 0x100), Tree::new(), 0, now);
        let mut world = World {
            rng: fastrand::Rng::with_seed(seed),
            machine,
            committed_at: origin,
            last: 0,
            unsure: VecDeque::new(),
            durable: Durable { tree: Tree::new(), sessions: BTreeMap::new(), last: 0 },
            failures: Vec::new(),
            leaderless_until: origin,
            slow_disk: (origin, Duration::ZERO),
            replicas: Vec::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            clients: Vec::new(),
            requests: BTreeMap::new(),
        };
        let mut feeds = Vec::new();
        for _ in 0..settings.servers {
            let (feed, txns) = mpsc::unbounded_channel();
            world.replicas.push(Replica::new(feed, origin));
            feeds.push(txns);
        }
        let sim = Sim { world: Arc::new(Mutex::new(world)), settings: Arc::new(settings), origin };
        for (at, txns) in feeds.into_iter().enumerate() {
            tokio::spawn(server::apply(sim.clone(), at, txns));
        }
        tokio::spawn(tick(sim.clone()));
        sim
    }

    /// Returns the network to this ensemble, for one `Lockkeeper`.
    pub fn network(&self, session_timeout: Duration) -> Box<dyn Network> {
        Box::new(client::SimNetwork { sim: self.clone(), session_timeout })
    }

    /// Makes a fault for the `client`-th session ever opened, if it is still alive.
    pub fn trouble(&self, client: usize, trouble: Trouble) {
        if let Some(sender) = self.world().clients.get(client) {
            _ = sender.send(trouble);
        }
    }

    /// Makes a server fail: its connections end, and it accepts none for this time.
    pub fn server_fails(&self, server: usize, length: Duration) {
        let world = &mut *self.world();
        world.replicas[server].down_until = Instant::now() + length;
        world.hang_up(Some(server));
    }

    /// Makes the leader fail: transactions that are not on a majority's disks are lost, and no server serves for this
    /// time.
    pub fn leader_fails(&self, length: Duration) {
        let world = &mut *self.world();
        world.settle();
        world.unsure.clear();
        world.last = world.durable.last;
        let now = Instant::now();
        world.failures.push(now);
        world.leaderless_until = now + length;
        world.committed_at = world.leaderless_until;
        world.hang_up(None);
        // A new leader numbers its transactions in an epoch of its own. Session ids are never used twice.
        let zxid = ((world.machine.zxid() >> 32) + 1) << 32;
        let mut begins = self.now();
        begins.monotonic += length;
        let config = config(&self.settings, world.machine.next_session());
        world.machine = Machine::new(config, world.durable.tree.clone(), zxid, begins);
        for (id, (timeout, password)) in &world.durable.sessions {
            world.machine.restore_session(*id, *timeout, *password, begins);
        }
    }

    /// Slows the disks by `delay`, for `length`.
    pub fn slow_disk(&self, delay: Duration, length: Duration) {
        self.world().slow_disk = (Instant::now() + length, delay);
    }

    /// Returns the time since the ensemble was made.
    pub fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Returns the number of sessions ever opened.
    pub fn sessions_opened(&self) -> usize {
        self.world().clients.len()
    }

    /// Returns the names of a node's children at the leader; none if it does not exist.
    pub fn children(&self, path: &str) -> Vec<String> {
        let world = self.world();
        world.machine.tree().get(path).map_or_else(Vec::new, |node| node.children().map(ToString::to_string).collect())
    }

    /// Returns the numbers of executed requests, by kind.
    pub fn requests(&self) -> BTreeMap<&'static str, u64> {
        self.world().requests.clone()
    }

    /// Deletes a node as an operator would.
    pub fn delete(&self, path: &str) {
        let (mut effects, now) = (Vec::new(), self.now());
        let mut world = self.world();
        let connection = world.open_connection(0, mpsc::unbounded_channel().0);
        let wish = ConnectRequest { timeout_ms: 1000, ..ConnectRequest::default() };
        world.machine.connect(connection, &wish, [0; 16], now, &mut effects);
        let delete = Request::Delete(VersionedPath { path: path.to_owned(), version: -1 });
        world.machine.request(connection, 1, delete, now, &mut effects);
        world.machine.request(connection, 2, Request::CloseSession, now, &mut effects);
        self.commit(&mut world, &effects);
        world.connections.remove(&connection.0);
    }

    /// Returns a number below `bound`, by the seed.
    pub fn pick(&self, bound: usize) -> usize {
        self.world().rng.usize(..bound)
    }

    /// Returns a time in `range`, by the seed.
    pub fn within(&self, range: &Range<Duration>) -> Duration {
        self.world().within(range)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("a panic in the simulator ends the test anyway")
    }

    fn now(&self) -> Now {
        let monotonic = self.origin.elapsed();
        Now { monotonic, wall_ms: 1_700_000_000_000 + i64::try_from(monotonic.as_millis()).unwrap_or(i64::MAX) }
    }

    /// Sends the machine's commits to all servers.
    fn commit(&self, world: &mut World, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Committed(txn) = effect {
                let mut fsync = world.within(&self.settings.fsync);
                if Instant::now() < world.slow_disk.0 {
                    fsync += world.slow_disk.1;
                }
                // Transactions commit in order; those that wait together share one disk write.
                world.committed_at = world.committed_at.max(Instant::now() + fsync);
                let (committed_at, leader) = (world.committed_at, world.failures.len());
                world.settle();
                world.last = txn.zxid;
                world.unsure.push_back((committed_at, txn.clone()));
                for at in 0..world.replicas.len() {
                    let lag = world.within(&self.settings.lag);
                    let feed = Feed { due: committed_at + lag, committed_at, leader, txn: txn.clone() };
                    world.replicas[at].feed(feed);
                }
            }
        }
    }
}

impl World {
    fn within(&mut self, range: &Range<Duration>) -> Duration {
        let width = u64::try_from(range.end.saturating_sub(range.start).as_micros()).unwrap_or(u64::MAX);
        range.start + Duration::from_micros(if width == 0 { 0 } else { self.rng.u64(..width) })
    }

    fn open_connection(&mut self, replica: usize, replies: mpsc::UnboundedSender<server::ToClient>) -> ConnectionId {
        self.next_connection += 1;
        self.connections.insert(self.next_connection, Connection { replica, replies });
        ConnectionId(self.next_connection)
    }

    /// Moves the transactions that are on disk by now to the durable state.
    fn settle(&mut self) {
        let now = Instant::now();
        while self.unsure.front().is_some_and(|(committed_at, _)| *committed_at <= now) {
            if let Some((_, txn)) = self.unsure.pop_front() {
                self.durable.apply(&txn);
            }
        }
    }

    /// Ends the connections of one server, or of all servers.
    fn hang_up(&mut self, server: Option<usize>) {
        let ended = |connection: &Connection| server.is_none_or(|server| connection.replica == server);
        let gone: Vec<u64> = self.connections.iter().filter(|(_, known)| ended(known)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(connection) = self.connections.remove(&id) {
                _ = connection.replies.send(server::ToClient::Close);
                self.replicas[connection.replica].watches.remove_connection(ConnectionId(id));
            }
            self.machine.disconnected(ConnectionId(id));
        }
    }

    /// Returns until when this server accepts no connection.
    fn closed_until(&self, server: usize) -> Instant {
        self.leaderless_until.max(self.replicas[server].down_until)
    }

    fn count(&mut self, kind: &'static str) {
        *self.requests.entry(kind).or_default() += 1;
    }
}

/// Lets the machine expire sessions and remove containers.
async fn tick(sim: Sim) {
    let mut ticks = tokio::time::interval(sim.settings.tick);
    loop {
        ticks.tick().await;
        let mut effects = Vec::new();
        let mut world = sim.world();
        if Instant::now() < world.leaderless_until {
            continue;
        }
        world.machine.tick(sim.now(), &mut effects);
        sim.commit(&mut world, &effects);
    }
}

fn config(settings: &Settings, next_session: i64) -> MachineConfig {
    MachineConfig {
        tick: settings.tick,
        session_timeouts: settings.tick * 2..=settings.tick * 60,
        container_check: settings.container_check,
        container_unused: settings.container_check,
        next_session,
        schemes: Schemes::default(),
        enforce_quotas: false,
        limits: Limits::default(),
    }
}

/// A transaction on its way to a server.
struct Feed {
    /// When the server applies it.
    due: Instant,
    /// When a majority has it on disk.
    committed_at: Instant,
    /// The number of leaders before the one that made it.
    leader: usize,
    txn: Txn,
}

/// The newest transaction that a server has applied.
type Applied = watch::Sender<i64>;
