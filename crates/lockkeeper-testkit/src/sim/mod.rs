//! A seeded ensemble in one process: the embedded server's real state machine, with a network and clocks made up.
//!
//! One [`Machine`] decides every transaction, as a leader does; each simulated server is a copy of its tree that applies the
//! transactions in order but later, answers its clients' reads from what it has, and fires their watches as it applies. So a
//! read may be stale, a create may be committed but not yet seen by the server a session moved to, and a reply may be lost
//! before or after its request took effect: what happens on a real ensemble, by seed, in paused time.
//!
//! The library above is the real one: only `zookeeper.rs`, the adapter to the TCP client, is replaced.

mod client;
mod link;
mod server;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper::ensemble::Network;
use lockkeeper_server::machine::{ConnectionId, Effect, Limits, Machine, MachineConfig, Now, Schemes, Tree, Txn};
use lockkeeper_server::request::{ConnectRequest, Request, VersionedPath};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use server::{Connection, Replica};

/// What the simulated ensemble is like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many servers there are.
    pub servers: usize,
    /// The leader's tick.
    pub tick: Duration,
    /// How long a message travels, one way.
    pub network: Range<Duration>,
    /// How long the quorum's disks take for a transaction.
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

/// Everything that is, but for the messages under way.
struct World {
    rng: fastrand::Rng,
    machine: Machine,
    /// When the last transaction was, or will be, committed.
    committed_at: Instant,
    replicas: Vec<Replica>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    clients: Vec<mpsc::UnboundedSender<Trouble>>,
    requests: BTreeMap<&'static str, u64>,
}

/// Something that befalls a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Its connection is reset; what was under way is lost, or not, by chance.
    Cut,
    /// It reaches nobody for this long, and nothing tells it so.
    Silence(Duration),
}

impl Sim {
    /// An ensemble whose every delay and fault follows from `seed`. To be made inside a runtime with paused time.
    pub fn new(seed: u64, settings: Settings) -> Sim {
        let origin = Instant::now();
        let config = MachineConfig {
            tick: settings.tick,
            session_timeouts: settings.tick * 2..=settings.tick * 60,
            container_check: settings.container_check,
            container_unused: settings.container_check,
            next_session: 0x100,
            schemes: Schemes::default(),
            enforce_quotas: false,
            limits: Limits::default(),
        };
        let now = Now { monotonic: Duration::ZERO, wall_ms: 0 };
        let machine = Machine::new(config, Tree::new(), 0, now);
        let mut world = World {
            rng: fastrand::Rng::with_seed(seed),
            machine,
            committed_at: origin,
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

    /// A way to this ensemble for one `Lockkeeper`.
    pub fn network(&self, session_timeout: Duration) -> Box<dyn Network> {
        Box::new(client::SimNetwork { sim: self.clone(), session_timeout })
    }

    /// Befalls the `client`-th session ever opened, if it still lives.
    pub fn trouble(&self, client: usize, trouble: Trouble) {
        if let Some(sender) = self.world().clients.get(client) {
            _ = sender.send(trouble);
        }
    }

    /// How many sessions were ever opened.
    pub fn sessions_opened(&self) -> usize {
        self.world().clients.len()
    }

    /// The names of a node's children at the leader; none if it does not exist.
    pub fn children(&self, path: &str) -> Vec<String> {
        let world = self.world();
        world.machine.tree().get(path).map_or_else(Vec::new, |node| node.children().map(ToString::to_string).collect())
    }

    /// Requests carried out so far, by kind.
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

    /// A number below `bound`, by the seed.
    pub fn pick(&self, bound: usize) -> usize {
        self.world().rng.usize(..bound)
    }

    /// A time in `range`, by the seed.
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

    /// Sends what the machine committed to all servers.
    fn commit(&self, world: &mut World, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Committed(txn) = effect {
                let fsync = world.within(&self.settings.fsync);
                // Transactions commit in order; those that wait together share a disk's time.
                world.committed_at = world.committed_at.max(Instant::now() + fsync);
                let committed_at = world.committed_at;
                for at in 0..world.replicas.len() {
                    let lag = world.within(&self.settings.lag);
                    world.replicas[at].feed(txn, committed_at + lag);
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
        world.machine.tick(sim.now(), &mut effects);
        sim.commit(&mut world, &effects);
    }
}

/// A transaction and when a server applies it.
type Feed = (Instant, Txn);

/// The newest transaction a server has applied.
type Applied = watch::Sender<i64>;
