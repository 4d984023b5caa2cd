//! Seeded worlds: client sessions and the embedded server's machine exchange bytes over simulated connections. These
//! are slow, cut inside frames, silent, or answer pings only, and elections take longer than a session timeout.
//!
//! A seed determines a world. Nothing sleeps: time is a number.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_client::wire::{
    Create, CreateMode, ErrorCode, EventKind, PING_XID, Request, Response, SetData, VersionedPath, WatchedPath, frame,
    request, response,
};
use lockkeeper_client::{Config, RequestError, RequestId, Session, SessionEvent, Transport};
use lockkeeper_server::Limits;
use lockkeeper_server::machine::{ConnectionId, Effect, Machine, MachineConfig, Now, Schemes, Tree};

const TIMEOUT: Duration = Duration::from_secs(4);
const TICK: Duration = Duration::from_millis(500);
const SERVERS: usize = 3;
const PATHS: usize = 6;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn config() -> MachineConfig {
    MachineConfig {
        tick: TICK,
        session_timeouts: TICK * 2..=TICK * 20,
        container_check: Duration::from_secs(60),
        container_unused: Duration::from_secs(60),
        next_session: 0x100,
        schemes: Schemes::default(),
        enforce_quotas: false,
        limits: Limits::default(),
    }
}

/// Bytes in flight, each piece with the time of its arrival.
#[derive(Default)]
struct Pipe(VecDeque<(Duration, Vec<u8>)>);

impl Pipe {
    /// Sends bytes in pieces of random size; no piece overtakes another.
    fn send(&mut self, bytes: &[u8], now: Duration, random: &mut fastrand::Rng, slow: bool) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(random.usize(1..=rest.len()));
            rest = later;
            let delay = if slow { random.u64(50..400) } else { random.u64(0..4) };
            let last = self.0.back().map_or(Duration::ZERO, |(at, _)| *at);
            self.0.push_back((last.max(now + ms(delay)), piece.to_vec()));
        }
    }

    fn due(&self) -> Option<Duration> {
        self.0.front().map(|(at, _)| *at)
    }

    fn take(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.due().filter(|at| *at <= now)?;
        self.0.pop_front().map(|(_, bytes)| bytes)
    }
}

/// A connection of one client.
struct Link {
    id: ConnectionId,
    transport: Transport,
    to_server: Pipe,
    to_client: Pipe,
    received: BytesMut,
    greeted: bool,
    slow: bool,
    /// The server answers pings and nothing else.
    pings_only: bool,
    /// Nothing arrives any more, and neither side is notified.
    silent: bool,
    /// Closed by the server once all earlier bytes have arrived.
    closed: bool,
}

/// A request and its reply.
#[derive(Debug)]
struct PendingRequest {
    request: Request,
    /// When it was made, and over which connection if there was one.
    at: Duration,
    attempt: Option<u64>,
    reply: Option<Result<Response, RequestError>>,
    /// It may leave together with others.
    batched: bool,
    /// A list that was made behind this create.
    behind: Option<RequestId>,
}

/// A data watch, and the transaction that had last written the data that was read with it.
#[derive(Debug)]
struct DataWatch {
    path: String,
    mzxid: i64,
    fired: u32,
}

struct Client {
    session: Session,
    link: Option<Link>,
    asked: BTreeMap<RequestId, PendingRequest>,
    watches: BTreeMap<RequestId, DataWatch>,
    last_replied: Option<RequestId>,
    last_zxid: i64,
    connected: bool,
    over: bool,
}

struct World {
    seed: u64,
    random: fastrand::Rng,
    now: Duration,
    machine: Machine,
    clients: Vec<Client>,
    next_connection: u64,
    /// No server is available before this time.
    serves_from: Duration,
    healed: bool,
    /// When the server's machine expired a session.
    expired: HashMap<i64, Duration>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let now = Duration::from_secs(100);
        let machine = Machine::new(config(), Tree::new(), 0, Now { monotonic: now, wall_ms: 0 });
        let clients = (0..2)
            .map(|_| Client {
                session: Session::new(Config::new(TIMEOUT), SERVERS, random.u64(..), now),
                link: None,
                asked: BTreeMap::new(),
                watches: BTreeMap::new(),
                last_replied: None,
                last_zxid: 0,
                connected: false,
                over: false,
            })
            .collect();
        let (next_connection, serves_from, healed, expired) = (1, Duration::ZERO, false, HashMap::new());
        World { seed, random, now, machine, clients, next_connection, serves_from, healed, expired }
    }

    fn at(&self) -> Now {
        Now { monotonic: self.now, wall_ms: i64::try_from(self.now.as_millis()).unwrap() }
    }

    fn run(seed: u64) -> World {
        let mut world = World::new(seed);
        for path in 0..PATHS {
            let create = Create::new(format!("/p{path}"), "", CreateMode::Persistent);
            world.ask(0, Request::Create(create));
        }
        let end = world.now + Duration::from_secs(60);
        while world.now < end {
            let pause = world.random.u64(1..600);
            world.advance(world.now + ms(pause));
            world.act();
        }
        world.heal();
        let settled = world.now + TIMEOUT * 4;
        world.advance(settled);
        world.judge();
        world
    }

    /// Performs a random action of a client or of the network.
    fn act(&mut self) {
        let who = self.random.usize(0..self.clients.len());
        match self.random.u32(0..100) {
            0..45 => {
                if self.random.u32(0..3) == 0 {
                    return self.burst(who);
                }
                let path = format!("/p{}", self.random.usize(0..PATHS));
                let data = format!("{}", self.random.u32(..));
                let request = match self.random.u32(0..6) {
                    0 | 1 => Request::SetData(SetData { path, data: Some(data.into()), version: -1 }),
                    2 => Request::Create(Create::new("/n-", "", CreateMode::PersistentSequential)),
                    3 => Request::GetChildren2(WatchedPath { path: "/".to_owned(), watch: false }),
                    _ => Request::GetData(WatchedPath { path, watch: true }),
                };
                self.ask(who, request);
            }
            45..55 => self.cut(who),
            55..60 => self.with_link(who, |link, random| link.slow = random.bool()),
            60..63 => self.with_link(who, |link, _| link.pings_only = true),
            63..66 => self.with_link(who, |link, _| link.silent = true),
            66..68 => self.elect(),
            _ => {}
        }
    }

    fn with_link(&mut self, who: usize, change: impl FnOnce(&mut Link, &mut fastrand::Rng)) {
        if let Some(link) = &mut self.clients[who].link {
            change(link, &mut self.random);
        }
    }

    /// Loses some or all of the bytes in flight and closes the connection.
    fn cut(&mut self, who: usize) {
        let Some(link) = &mut self.clients[who].link else { return };
        for pipe in [&mut link.to_server, &mut link.to_client] {
            let keep = self.random.usize(0..=pipe.0.len());
            pipe.0.truncate(keep);
        }
        link.closed = true;
    }

    /// Elects a new leader after a time that may be longer than a session timeout. It gives every session its full
    /// timeout again.
    fn elect(&mut self) {
        for who in 0..self.clients.len() {
            if let Some(link) = self.clients[who].link.take() {
                self.machine.disconnected(link.id);
                self.clients[who].session.failed(self.now);
            }
        }
        let kept: Vec<_> = self.clients.iter().filter_map(|client| client.session.resume()).collect();
        self.serves_from = self.now + ms(self.random.u64(200..12_000));
        // The machine's clock stands still while there is no leader.
        let begins = Now { monotonic: self.serves_from, wall_ms: 0 };
        for resume in kept {
            if self.machine.sessions().iter().any(|session| session.0 == resume.session) {
                self.machine.restore_session(resume.session, TIMEOUT, resume.password, begins);
            }
        }
    }

    fn heal(&mut self) {
        self.healed = true;
        for client in &mut self.clients {
            if let Some(link) = &mut client.link {
                (link.slow, link.silent, link.pings_only) = (false, false, false);
            }
        }
    }

    fn ask(&mut self, who: usize, request: Request) {
        self.make(who, request, false, None);
        self.settle(who);
    }

    /// Makes requests of one moment that may leave together: creates, each with a list behind it, and deletes. Some fail.
    fn burst(&mut self, who: usize) {
        for _ in 0..self.random.u32(1..6) {
            let parent = match self.random.u32(0..6) {
                0 => "/none".to_owned(),
                _ => format!("/p{}", self.random.usize(0..PATHS)),
            };
            let create = Create::new(format!("{parent}/b-"), "", CreateMode::PersistentSequential);
            let id = self.make(who, Request::Create(create), true, None);
            let list = WatchedPath { path: parent, watch: false };
            self.make(who, Request::GetChildren2(list), true, Some(id));
            if self.random.u32(0..8) == 0 {
                let none = VersionedPath { path: "/none".to_owned(), version: -1 };
                self.make(who, Request::Delete(none), true, None);
            }
        }
        self.settle(who);
    }

    fn make(&mut self, who: usize, request: Request, batched: bool, behind: Option<RequestId>) -> RequestId {
        let client = &mut self.clients[who];
        let id = match batched {
            true => client.session.request_batched(request.clone(), self.now),
            false => client.session.request(request.clone(), self.now),
        };
        let attempt = client.session.transport().filter(|_| client.connected).map(|transport| transport.attempt);
        client.asked.insert(id, PendingRequest { request, at: self.now, attempt, reply: None, batched, behind });
        id
    }

    /// Runs everything that is due until `end`, in the order of time.
    fn advance(&mut self, end: Duration) {
        let mut steps = (self.now, 0);
        loop {
            steps = if steps.0 == self.now { (self.now, steps.1 + 1) } else { (self.now, 0) };
            assert!(steps.1 < 10_000, "seed {}: a deadline that does not pass, at {:?}", self.seed, self.now);
            let mut due = self.now.max(self.serves_from) + TICK;
            for client in &self.clients {
                due = client.session.deadline().map_or(due, |at| due.min(at));
                if let Some(link) = &client.link
                    && !link.silent
                {
                    for at in link.to_server.due().into_iter().chain(link.to_client.due()) {
                        due = due.min(at);
                    }
                }
            }
            if due > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(due);
            self.tick();
            for who in 0..self.clients.len() {
                let now = self.now;
                let client = &mut self.clients[who];
                if client.session.deadline().is_some_and(|at| at <= now) {
                    client.session.timeout(now);
                }
                self.serve(who);
                self.deliver(who);
                self.settle(who);
            }
        }
    }

    /// Checks that a client leaves a server that does not answer a request within a session timeout.
    fn judge_patience(&self) {
        for client in &self.clients {
            let attempt = client.session.transport().map(|transport| transport.attempt);
            for (id, asked) in &client.asked {
                let waits = asked.reply.is_none() && asked.attempt.is_some() && asked.attempt == attempt;
                // A batched one may be made again when the transaction that it was in is answered: behind a read of its parent in
                // another transaction, and then alone.
                let patience = TIMEOUT * if asked.batched { 4 } else { 1 };
                assert!(!waits || self.now < asked.at + patience + TICK, "seed {}: {id:?} waits too long", self.seed);
            }
        }
    }

    fn tick(&mut self) {
        self.judge_patience();
        if self.now < self.serves_from {
            return;
        }
        let before: Vec<i64> = self.machine.sessions().iter().map(|session| session.0).collect();
        let mut effects = Vec::new();
        self.machine.tick(self.at(), &mut effects);
        for session in before {
            if !self.machine.sessions().iter().any(|known| known.0 == session) {
                self.expired.entry(session).or_insert(self.now);
            }
        }
        self.carry_out(effects);
    }

    /// Passes the bytes that have arrived from a client to the server.
    fn serve(&mut self, who: usize) {
        loop {
            let at = self.at();
            let Some(link) = &mut self.clients[who].link else { return };
            if link.silent {
                return;
            }
            let Some(bytes) = link.to_server.take(self.now) else { return };
            link.received.extend_from_slice(&bytes);
            while let Some(link) = &mut self.clients[who].link
                && let Some(payload) = frame::first(&link.received, 1 << 20).unwrap().map(<[u8]>::to_vec)
            {
                _ = link.received.split_to(4 + payload.len());
                let (id, mut effects) = (link.id, Vec::new());
                if !std::mem::replace(&mut link.greeted, true) {
                    let connect = request::decode_connect(&payload).unwrap();
                    let password = [u8::try_from(id.0 % 250).unwrap(); 16];
                    self.machine.connect(id, &connect, password, true, at, &mut effects);
                } else if let Ok(request::Packet::Request { xid, request, .. }) = request::decode(&payload) {
                    if link.pings_only && request != Request::Ping {
                        continue;
                    }
                    self.machine.request(id, xid, request, at, &mut effects);
                }
                self.carry_out(effects);
            }
        }
    }

    /// Sends the server's frames.
    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let mut bytes = BytesMut::new();
            let connection = match effect {
                Effect::Committed(_)
                | Effect::Counted { .. }
                | Effect::QuotaExceeded { .. }
                | Effect::Refused { .. } => continue,
                Effect::Connected { connection, response, has_read_only, .. } => {
                    response::encode_connect(&mut bytes, &response, has_read_only);
                    connection
                }
                Effect::Reply { connection, xid, zxid, result } => {
                    let xid = if xid == PING_XID { PING_XID } else { xid };
                    response::encode(&mut bytes, xid, zxid, &result);
                    connection
                }
                Effect::Event { connection, kind, path, event_zxid, .. } => {
                    response::encode_event(&mut bytes, event_zxid, kind, &path);
                    connection
                }
                Effect::Close { connection, .. } => {
                    if let Some(link) = self.link(connection) {
                        link.closed = true;
                    }
                    continue;
                }
            };
            let (now, mut random) = (self.now, self.random.fork());
            if let Some(link) = self.link(connection).filter(|link| !link.closed) {
                let slow = link.slow;
                link.to_client.send(&bytes, now, &mut random, slow);
            }
        }
    }

    fn link(&mut self, connection: ConnectionId) -> Option<&mut Link> {
        self.clients.iter_mut().filter_map(|client| client.link.as_mut()).find(|link| link.id == connection)
    }

    /// Passes the bytes that have arrived from the server to a client.
    fn deliver(&mut self, who: usize) {
        let now = self.now;
        let client = &mut self.clients[who];
        while let Some(link) = &mut client.link
            && !link.silent
            && let Some(bytes) = link.to_client.take(now)
        {
            client.session.received(&bytes, now);
        }
        if client.link.as_ref().is_some_and(|link| link.closed && link.to_client.0.is_empty() && !link.silent) {
            let link = client.link.take().unwrap();
            self.machine.disconnected(link.id);
            client.session.failed(now);
        }
    }

    /// Opens and drops connections as the client needs, sends its bytes, and takes its events.
    fn settle(&mut self, who: usize) {
        let serves = self.now >= self.serves_from;
        loop {
            let client = &mut self.clients[who];
            let wanted = client.session.transport();
            if client.link.as_ref().map(|link| link.transport) != wanted {
                if let Some(link) = client.link.take() {
                    self.machine.disconnected(link.id);
                }
                let Some(transport) = wanted else { break };
                if !serves {
                    client.session.failed(self.now);
                    continue;
                }
                let id = ConnectionId(self.next_connection);
                self.next_connection += 1;
                client.link = Some(Link {
                    id,
                    transport,
                    to_server: Pipe::default(),
                    to_client: Pipe::default(),
                    received: BytesMut::new(),
                    greeted: false,
                    slow: !self.healed && self.random.u32(0..8) == 0,
                    pings_only: false,
                    silent: !self.healed && self.random.u32(0..12) == 0,
                    closed: false,
                });
                client.session.opened(self.now);
            }
            let client = &mut self.clients[who];
            if let Some(link) = &mut client.link {
                let outgoing = client.session.outgoing().split();
                let slow = link.slow;
                if !link.closed {
                    link.to_server.send(&outgoing, self.now, &mut self.random, slow);
                }
            }
            break;
        }
        while let Some(event) = self.clients[who].session.poll() {
            self.check_event(who, event);
        }
    }

    /// Checks an event of a client.
    fn check_event(&mut self, who: usize, event: SessionEvent) {
        let (seed, now) = (self.seed, self.now);
        let client = &mut self.clients[who];
        match event {
            SessionEvent::Connected { .. } => client.connected = true,
            SessionEvent::Disconnected => client.connected = false,
            SessionEvent::Over(_) => {
                let session = client.session.id();
                assert!(
                    self.expired.contains_key(&session),
                    "seed {seed}: {session:#x} is over, but not by a server, at {now:?}"
                );
                client.over = true;
            }
            SessionEvent::Watch { id, kind, path } => {
                let watch =
                    client.watches.get_mut(&id).unwrap_or_else(|| panic!("seed {seed}: {id:?} fired before its reply"));
                assert_eq!((watch.path.as_str(), kind), (&*path, EventKind::DataChanged), "seed {seed}");
                watch.fired += 1;
                assert_eq!(watch.fired, 1, "seed {seed}: {id:?} fired twice");
            }
            SessionEvent::WatchEnded { id } => panic!("seed {seed}: {id:?} has ended"),
            SessionEvent::Reply { id, zxid, result } => {
                assert!(client.last_zxid <= zxid, "seed {seed}: back from {} to {zxid}", client.last_zxid);
                client.last_zxid = zxid;
                let asked = client.asked.get_mut(&id).unwrap();
                if !asked.batched {
                    assert!(client.last_replied < Some(id), "seed {seed}: {id:?} after {:?}", client.last_replied);
                    client.last_replied = Some(id);
                }
                assert!(asked.reply.is_none(), "seed {seed}: {id:?} was answered twice");
                if let (Request::GetData(WatchedPath { path, .. }), Ok(Response::Data { stat, .. })) =
                    (&asked.request, &result)
                {
                    for (earlier, watch) in
                        client.watches.iter().filter(|(_, watch)| watch.path == *path && watch.fired == 0)
                    {
                        assert_eq!(
                            watch.mzxid, stat.mzxid,
                            "seed {seed}: {id:?} shows a change for which {earlier:?} has not fired"
                        );
                    }
                    client.watches.insert(id, DataWatch { path: path.clone(), mzxid: stat.mzxid, fired: 0 });
                }
                asked.reply = Some(result);
            }
            SessionEvent::Paused => {}
        }
    }

    /// Checks the end: every request has its reply, and every watch whose node has changed has fired.
    fn judge(&self) {
        let seed = self.seed;
        let (mut created, mut unsure) = (0, 0);
        let mut tokens = BTreeSet::new();
        for client in &self.clients {
            for (id, asked) in &client.asked {
                let reply = asked.reply.as_ref().unwrap_or_else(|| panic!("seed {seed}: {id:?} was never answered"));
                if let Request::Create(create) = &asked.request
                    && create.mode.is_sequential()
                {
                    match reply {
                        Ok(Response::Created { path, stat }) => {
                            let node = self.machine.tree().get(path);
                            let node = node.unwrap_or_else(|| panic!("seed {seed}: {path} is not there"));
                            assert_eq!(stat.map(|stat| stat.czxid), Some(node.stat().czxid), "seed {seed}: {path}");
                            let parent = path.rsplit_once('/').unwrap().0.to_owned();
                            assert!(tokens.insert((parent, node.stat().czxid)), "seed {seed}: {path} has a used token");
                            created += 1;
                        }
                        // The parent's own create may have been lost.
                        Err(RequestError::Refused(ErrorCode::NoNode)) if asked.batched => {}
                        Err(RequestError::Refused(error)) => panic!("seed {seed}: {error:?}"),
                        _ => unsure += 1,
                    }
                }
                let create = asked.behind.and_then(|create| client.asked[&create].reply.as_ref());
                if let (Some(Ok(Response::Created { path, .. })), Ok(Response::Children { names, .. })) =
                    (create, reply)
                {
                    let shown = names.iter().any(|name| path.rsplit('/').next() == Some(name));
                    assert!(shown, "seed {seed}: {id:?} does not show {path}, which was made before it");
                }
                assert!(
                    !matches!(reply, Err(RequestError::Refused(error)) if *error != ErrorCode::NoNode),
                    "seed {seed}: {reply:?}"
                );
            }
            if client.over {
                continue;
            }
            assert!(client.connected, "seed {seed}: a healed session is connected");
            for (id, watch) in client.watches.iter().filter(|(_, watch)| watch.fired == 0) {
                let stat = self.machine.tree().get(&watch.path).unwrap().stat();
                assert_eq!(stat.mzxid, watch.mzxid, "seed {seed}: {id:?} at {} has not fired", watch.path);
            }
        }
        let there = self.machine.tree().iter().filter(|(path, _)| path.contains("/n-") || path.contains("/b-")).count();
        assert!((created..=created + unsure).contains(&there), "seed {seed}: {there} of {created} and {unsure}");
    }
}

#[test]
fn every_world_keeps_the_invariants_of_a_session() {
    let (mut over, mut lost, mut fired) = (0, 0, 0);
    let (worlds, least) = if std::env::var_os("LOCKKEEPER_DEEP").is_some() { (300, 300) } else { (60, 60) };
    for seed in 0..worlds {
        let world = World::run(seed);
        for client in &world.clients {
            over += usize::from(client.over);
            let replies = client.asked.values().filter_map(|asked| asked.reply.as_ref());
            lost += replies.filter(|reply| **reply == Err(RequestError::ConnectionLoss)).count();
            fired += client.watches.values().filter(|watch| watch.fired > 0).count();
        }
    }
    // The worlds must not be calm.
    assert!(over > least / 60 && lost > least && fired > 10 * least, "{over} over, {lost} lost, {fired} fired");
}
