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
//! Above the socket everything is real: the library, the client `lockkeeper_client` and the frames. Client and servers
//! exchange bytes over simulated links. These bytes arrive in pieces, late, or not at all; a link ends inside a frame, or
//! for one side only. Time is tokio's paused clock. The client's own random choices follow from the seed as well.
//! Nothing here waits with tokio's `watch`, which wakes its listeners in a random order. So one seed gives one history,
//! byte for byte.

mod client;
mod faults;
mod link;
mod server;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use lockkeeper_client::Connect;
use lockkeeper_server::machine::{
    ConnectionId, Effect, Limits, Machine, MachineConfig, Now, Schemes, Tree, Txn, TxnOp,
};
use lockkeeper_wire::{ConnectRequest, Create, CreateMode, Request, VersionedPath};
use tokio::sync::mpsc;
use tokio::time::Instant;

use faults::Counts;
pub use faults::Fault;
use link::{Inlet, Outlet, link};
use server::{Connection, Replica};

/// The properties of the simulated ensemble.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of servers.
    pub servers: usize,
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
    origin: Instant,
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
    hosts: Vec<Faults>,
    /// The listings of nodes, each with its host and its time.
    listings: Vec<(usize, Duration, String)>,
    requests: BTreeMap<&'static str, u64>,
    bytes: usize,
    /// The time that a piece of bytes travels.
    network: Range<Duration>,
    counts: Counts,
    /// The sessions that were older than an election that took longer than their timeouts.
    outlasted: BTreeSet<i64>,
    /// Every piece of bytes that was sent, with its host and its time.
    sent: DefaultHasher,
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

/// A fault of a host's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Its connections are reset. Bytes on their way are lost from a random one on, perhaps inside a frame. By chance,
    /// the server does not notice.
    Cut,
    /// It reaches no server for this time, without notice.
    Silence(Duration),
    /// For this time, bytes take up to 0.4 s.
    Slow(Duration),
    /// The servers of its connections answer pings and nothing else.
    PingsOnly,
}

/// A host's network, and its current faults.
struct Faults {
    silent_until: Instant,
    slow_until: Instant,
    /// The connections that its clients have and use.
    connections: usize,
    /// When its clients dropped the last of them.
    alone_since: Instant,
}

/// When the ensemble was made, in milliseconds since 1970 by its servers' clock.
const BEGAN_MS: i64 = 1_700_000_000_000;
/// How long a piece takes over a slow link, in addition.
const SLOW: Range<Duration> = Duration::from_millis(50)..Duration::from_millis(400);
/// One write of this many arrives in two or more pieces.
const WHOLE: u8 = 4;
/// Of this many resets, the server misses one.
const NOTICED: u8 = 4;

impl Sim {
    /// Returns an ensemble whose delays and faults all follow from `seed`. Needs a runtime with paused time.
    pub fn new(seed: u64, settings: Settings) -> Sim {
        // The client takes the order of servers and the jitter of its pauses from the thread's generator.
        fastrand::seed(seed);
        let origin = Instant::now();
        let now = Now { monotonic: Duration::ZERO, wall_ms: 0 };
        let machine = Machine::new(config(&settings, 0x100), Tree::new(), 0, now);
        let mut world = World {
            origin,
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
            hosts: Vec::new(),
            listings: Vec::new(),
            requests: BTreeMap::new(),
            bytes: 0,
            network: settings.network.clone(),
            counts: Counts::default(),
            outlasted: BTreeSet::new(),
            sent: DefaultHasher::new(),
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

    /// Returns the network from a new host to this ensemble, for one `Lockkeeper`. Hosts are numbered from 0.
    pub fn network(&self) -> Arc<dyn Connect> {
        self.host()
    }

    /// Makes a fault in the network of a host, if there is such a host.
    pub fn trouble(&self, host: usize, trouble: Trouble) {
        let (world, now) = (&mut *self.world(), Instant::now());
        let Some(faults) = world.hosts.get_mut(host) else { return };
        match trouble {
            Trouble::Silence(length) => faults.silent_until = faults.silent_until.max(now + length),
            Trouble::Slow(length) => faults.slow_until = now + length,
            Trouble::Cut | Trouble::PingsOnly => {}
        }
        let silent_until = faults.silent_until;
        for connection in world.connections.values_mut().filter(|connection| connection.host == host) {
            match trouble {
                Trouble::Cut => {
                    lose_some(&mut world.rng, &connection.to_client);
                    if world.rng.u8(..NOTICED) == 0 {
                        connection.to_server.sever();
                    } else {
                        lose_some(&mut world.rng, &connection.to_server);
                    }
                }
                Trouble::Silence(_) => {
                    connection.to_client.silence(silent_until);
                    connection.to_server.silence(silent_until);
                }
                Trouble::Slow(_) => {}
                Trouble::PingsOnly => connection.pings_only = true,
            }
        }
    }

    /// Makes a server fail: its connections end, and it accepts none for this time.
    pub fn server_fails(&self, server: usize, length: Duration) {
        let world = &mut *self.world();
        world.replicas[server].down_until = Instant::now() + length;
        let ended = world.connections.values().filter(|connection| connection.replica == server).count();
        world.counts.add(Fault::FailedServer, ended);
        world.hang_up(|connection| connection.replica == server, World::crash);
    }

    /// Makes the leader fail: transactions that are not on a majority's disks are lost, and no server serves for this
    /// time.
    pub fn leader_fails(&self, length: Duration) {
        let world = &mut *self.world();
        world.settle();
        world.counts.add(Fault::LostTransaction, world.unsure.len());
        world.unsure.clear();
        let outlasted = world.durable.sessions.iter().filter(|(_, (timeout, _))| *timeout < length).map(|(id, _)| *id);
        let outlasted: Vec<i64> = outlasted.collect();
        world.counts.add(Fault::LongElection, (!outlasted.is_empty()).into());
        world.outlasted.extend(outlasted);
        world.last = world.durable.last;
        let now = Instant::now();
        world.failures.push(now);
        world.leaderless_until = now + length;
        world.committed_at = world.leaderless_until;
        world.hang_up(|_| true, World::crash);
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

    /// Returns the names of a node's children at the leader; none if it does not exist.
    pub fn children(&self, path: &str) -> Vec<String> {
        let world = self.world();
        world.machine.tree().get(path).map_or_else(Vec::new, |node| node.children().map(ToString::to_string).collect())
    }

    /// Returns the numbers of executed requests by kind, and of events.
    pub fn requests(&self) -> BTreeMap<&'static str, u64> {
        self.world().requests.clone()
    }

    /// Returns the bytes that clients and servers have sent.
    pub fn bytes(&self) -> usize {
        self.world().bytes
    }

    /// Returns how often each fault has taken effect.
    pub fn faults(&self) -> BTreeMap<Fault, u64> {
        self.world().counts.all()
    }

    /// Returns for how long the clients of a host have known that they have no connection; 0 if they have one.
    pub fn alone_for(&self, host: usize) -> Duration {
        match self.world().hosts.get(host) {
            Some(faults) if faults.connections == 0 => faults.alone_since.elapsed(),
            _ => Duration::ZERO,
        }
    }

    /// Returns when a server first listed this node for a host since `from`.
    pub fn listed(&self, host: usize, path: &str, from: Duration) -> Option<Duration> {
        let world = self.world();
        let mut listings =
            world.listings.iter().filter(|(by, at, listed)| *by == host && *at >= from && listed == path);
        listings.next().map(|(_, at, _)| *at)
    }

    /// Returns a digest of all bytes that were sent over the links, with their times. Equal digests mean equal
    /// histories.
    pub fn digest(&self) -> u64 {
        self.world().sent.finish()
    }

    /// Returns the nodes below one at the leader: each with the transaction that created it, and its time.
    pub fn below(&self, path: &str) -> Vec<(String, i64, Duration)> {
        let created = |name: String| {
            let stat = self.world().machine.tree().get(&format!("{path}/{name}"))?.stat();
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(stat.ctime.unsigned_abs());
            Some((name, stat.czxid, self.time_of(at)))
        };
        self.children(path).into_iter().filter_map(created).collect()
    }

    /// Returns the time since the ensemble was made, of a moment by its servers' clock.
    pub fn time_of(&self, at: SystemTime) -> Duration {
        let began = SystemTime::UNIX_EPOCH + Duration::from_millis(BEGAN_MS.unsigned_abs());
        at.duration_since(began).unwrap_or_default()
    }

    /// Creates a persistent node without data, as an operator would.
    pub fn create(&self, path: &str) {
        self.operate(Request::Create(Create::new(path, "", CreateMode::Persistent)));
    }

    /// Deletes a node as an operator would.
    pub fn delete(&self, path: &str) {
        self.operate(Request::Delete(VersionedPath { path: path.to_owned(), version: -1 }));
    }

    fn operate(&self, request: Request) {
        let (mut effects, now) = (Vec::new(), self.now());
        let mut world = self.world();
        let connection = world.number_connection();
        let wish = ConnectRequest { timeout_ms: 1000, ..ConnectRequest::default() };
        world.machine.connect(connection, &wish, [0; 16], true, now, &mut effects);
        world.machine.request(connection, 1, request, now, &mut effects);
        world.machine.request(connection, 2, Request::CloseSession, now, &mut effects);
        self.commit(&mut world, &effects);
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
        Now { monotonic, wall_ms: BEGAN_MS + i64::try_from(monotonic.as_millis()).unwrap_or(i64::MAX) }
    }

    /// Sends the machine's commits to all servers.
    fn commit(&self, world: &mut World, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Committed(txn) = effect {
                let mut fsync = world.within(&self.settings.fsync);
                if Instant::now() < world.slow_disk.0 {
                    fsync += world.slow_disk.1;
                    world.counts.add(Fault::SlowDisk, 1);
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

    fn add_host(&mut self) -> usize {
        let now = Instant::now();
        self.hosts.push(Faults { silent_until: now, slow_until: now, connections: 0, alone_since: now });
        self.hosts.len() - 1
    }

    fn number_connection(&mut self) -> ConnectionId {
        self.next_connection += 1;
        ConnectionId(self.next_connection)
    }

    /// Opens a connection from a host to a server. Returns the client's sending end, and both receiving ends: the
    /// server's and the client's.
    fn accept(&mut self, host: usize, replica: usize) -> (ConnectionId, Inlet, Outlet, Outlet) {
        let id = self.number_connection();
        self.hosts[host].connections += 1;
        let new = || link(self.hosts[host].silent_until, self.counts.clone());
        let ((to_server, from_client), (to_client, from_server)) = (new(), new());
        let connection =
            Connection { replica, host, to_client, to_server: to_server.clone(), session: 0, pings_only: false };
        self.connections.insert(id.0, connection);
        (id, to_server, from_client, from_server)
    }

    /// Sends bytes over a link of a host, in pieces.
    fn transmit(&mut self, host: usize, link: &Inlet, bytes: &[u8]) {
        let slow = Instant::now() < self.hosts[host].slow_until;
        self.bytes += bytes.len();
        let mut rest = Bytes::copy_from_slice(bytes);
        while !rest.is_empty() {
            let split = rest.len() > 1 && self.rng.u8(..WHOLE) == 0;
            let piece = if split { rest.split_to(self.rng.usize(1..rest.len())) } else { std::mem::take(&mut rest) };
            let mut travel = self.within(&self.network.clone());
            if slow {
                travel += self.within(&SLOW);
                self.counts.add(Fault::SlowLink, 1);
            }
            (host, self.origin.elapsed(), travel, &piece[..]).hash(&mut self.sent);
            link.send(piece, travel);
        }
    }

    /// The client has dropped its connection. By chance, bytes on their way are lost.
    fn client_left(&mut self, host: usize, to_server: &Inlet) {
        let faults = &mut self.hosts[host];
        faults.connections -= 1;
        faults.alone_since = Instant::now();
        if self.rng.bool() { lose_some(&mut self.rng, to_server) } else { to_server.close() }
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

    /// Ends the connections that `which` selects.
    fn hang_up(&mut self, which: impl Fn(&Connection) -> bool, how: impl Fn(&mut World, &Connection)) {
        let gone: Vec<u64> = self.connections.iter().filter(|(_, known)| which(known)).map(|(id, _)| *id).collect();
        for id in gone {
            self.hang_up_one(ConnectionId(id), &how);
        }
    }

    /// Ends a connection from the server's side, if it has not ended.
    fn hang_up_one(&mut self, id: ConnectionId, how: impl Fn(&mut World, &Connection)) {
        if let Some(connection) = self.connections.remove(&id.0) {
            how(self, &connection);
            self.replicas[connection.replica].watches.remove_connection(id);
            self.machine.disconnected(id);
        }
    }

    /// The server closes a connection behind what it has sent.
    fn leave(&mut self, connection: &Connection) {
        connection.to_client.close();
    }

    /// The connection ends with its server: bytes on their way are lost.
    fn crash(&mut self, connection: &Connection) {
        lose_some(&mut self.rng, &connection.to_client);
        connection.to_server.cut(0);
    }

    /// Returns until when this server accepts no connection.
    fn closed_until(&self, server: usize) -> Instant {
        self.leaderless_until.max(self.replicas[server].down_until)
    }

    fn count(&mut self, kind: &'static str) {
        *self.requests.entry(kind).or_default() += 1;
    }
}

/// Ends a link behind a random part of the bytes on their way.
fn lose_some(rng: &mut fastrand::Rng, link: &Inlet) {
    link.cut(rng.usize(..=link.on_their_way()));
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
        // A client that has made a container needs one more write for its first child.
        container_unused: settings.container_check + settings.fsync.end * 2,
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
