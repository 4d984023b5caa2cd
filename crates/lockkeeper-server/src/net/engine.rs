//! Drives the machine: frames in, effects out, and nothing visible before it is durable.
//!
//! All connections and the engine share one thread, so a request is a function call without a mutex or a queue. The
//! only other thread is the disk's.

mod clock;
mod connection_state;
mod dirty;
#[cfg(feature = "faults")]
pub(crate) mod faults;
pub(crate) mod half_open;
mod login;

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use lockkeeper_wire::{OpCode, PING_XID, Request, jute::Malformed, refusal, request, request::Packet, response};
use tokio::sync::Notify;
use tracing::{debug, warn};

pub(crate) use clock::Clock;
pub(crate) use connection_state::PeerReport;
use connection_state::{ConnectionState, RequestStats};
use dirty::Dirty;
use half_open::{HalfOpen, Places};

use crate::config::Config;
use crate::error::ServerError;
use crate::machine::identity::shown;
use crate::machine::{CloseReason, ConnectionId, Effect, Identity, Limit, Machine, Txn};
use crate::net::exceeded::{Exceeded, share};
use crate::net::outbox::{Buffers, Outbox, WaitingFrames};
use crate::net::peer::{self, Origin, Peer};
use crate::net::quiet::Quiet;
use crate::net::stats::Counters;
use crate::net::transport::WriteHalf;
use crate::store::Batch;

/// An operation that panics when it has changed the tree, for tests.
#[cfg(test)]
pub(crate) const PANICS_IN_TESTS: i32 = 666;

/// How many effects have room in the list that is kept.
const KEPT_EFFECTS: usize = 1_000;

/// The state of a running server.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) machine: Machine,
    pub(crate) clock: Clock,
    pub(crate) counters: Arc<Counters>,
    pub(crate) config: Config,
    /// Where it listens on the network.
    pub(crate) address: Option<SocketAddr>,
    peers: HashMap<ConnectionId, ConnectionState>,
    buffers: Rc<Buffers>,
    /// Open sockets by address or user, including those without a first frame.
    sockets: HashMap<Origin, usize>,
    socket_count: usize,
    half_open: Places,
    quiet: Quiet,
    next_connection: u64,
    effects: Vec<Effect>,
    dirty: Dirty,
    /// Whether there is a disk to wait for.
    persistent: bool,
    /// The last durable transaction. Effects up to here may be sent.
    durable: i64,
    /// Connections with frames that wait for a transaction, in order of transaction.
    waiting: VecDeque<(i64, ConnectionId)>,
    /// Connections with bytes that may be sent.
    sendable: Vec<Rc<Outbox>>,
    /// Wakes the task that sends them.
    pub(crate) send: Rc<Notify>,
    /// Connections whose next turn comes after those of all others, in order.
    late: VecDeque<Rc<Outbox>>,
    /// Connections whose requests wait until the disk takes the next batch, which is full.
    waits_for_disk: Vec<Rc<Outbox>>,
    /// Wakes the task that works in the background.
    pub(crate) background: Rc<Notify>,
    /// Wakes the task that hands batches to the disk.
    pub(crate) flush: Rc<Notify>,
    /// Notified when a batch has become durable.
    pub(crate) settled: Rc<Notify>,
    stopped: bool,
    /// When the last frame came in.
    step_began: Duration,
    #[cfg(feature = "faults")]
    pub(crate) faults: faults::FaultState,
    /// Whether a step is running. If this is set outside a step, the step has panicked halfway.
    stepping: bool,
}

impl Engine {
    pub(crate) fn new(
        machine: Machine,
        clock: Clock,
        config: &Config,
        address: Option<SocketAddr>,
        persistent: bool,
    ) -> Self {
        let engine = Self {
            counters: Arc::default(),
            config: config.clone(),
            address,
            peers: HashMap::new(),
            buffers: Rc::new(Buffers::new(config.limits.answer_bytes, config.max_frame)),
            sockets: HashMap::new(),
            socket_count: 0,
            half_open: Places::default(),
            quiet: Quiet::default(),
            next_connection: 0,
            effects: Vec::new(),
            dirty: Dirty::default(),
            persistent,
            durable: machine.zxid(),
            waiting: VecDeque::new(),
            sendable: Vec::new(),
            send: Rc::default(),
            late: VecDeque::new(),
            waits_for_disk: Vec::new(),
            background: Rc::default(),
            flush: Rc::default(),
            settled: Rc::default(),
            stopped: false,
            step_began: Duration::ZERO,
            #[cfg(feature = "faults")]
            faults: faults::FaultState::default(),
            stepping: false,
            machine,
            clock,
        };
        engine.publish();
        engine
    }

    /// Creates the nodes of the server's user, and takes lists back that others could change.
    pub(crate) fn provide(&mut self) {
        let mut uids = vec![peer::own_uid(), 0];
        uids.dedup();
        let owners: Vec<_> = uids.iter().map(|uid| Identity::new(Identity::UID, uid.to_string())).collect();
        let now = self.clock.now();
        self.stepping = true;
        for node in &self.config.shared_nodes {
            if let Err(error) = self.machine.provide(node, &owners, now, &mut self.effects) {
                warn!(path = node.path, ?error, "a node that all users share cannot be created");
            }
        }
        self.carry_out();
    }

    /// Counts a new socket.
    ///
    /// # Errors
    /// The limit that is reached; then it is not counted.
    pub(crate) fn arrived(&mut self, from: Origin) -> Result<(), Exceeded> {
        let limits = &self.config.limits;
        let here = self.sockets.get(&from).copied().unwrap_or(0);
        if self.socket_count >= limits.connections {
            return Err(Exceeded::connections(limits.connections));
        }
        if here >= limits.connections_per_address {
            return Err(Exceeded::of_address(limits.connections_per_address));
        }
        if let Origin::User(uid) = from
            && here >= share(uid, limits.connections)
        {
            return Err(Exceeded::connections(limits.connections).of_user(uid));
        }
        self.sockets.insert(from, here + 1);
        self.socket_count += 1;
        Ok(())
    }

    /// Counts a closed socket.
    pub(crate) fn left(&mut self, from: Origin) {
        self.socket_count -= 1;
        if let Entry::Occupied(mut here) = self.sockets.entry(from) {
            *here.get_mut() -= 1;
            if *here.get() == 0 {
                here.remove();
            }
        }
    }

    /// Gives a new connection a place among the half-open ones, if it must present a secret. The kernel has already said
    /// who connects to the Unix socket.
    pub(crate) fn begin_half_open(&mut self, peer: Peer) -> Option<Rc<HalfOpen>> {
        (self.needs_secret() && peer.ip().is_some()).then(|| self.half_open.take(peer.origin()))
    }

    /// Takes the place back.
    pub(crate) fn end_half_open(&mut self, place: Option<&Rc<HalfOpen>>) {
        if let Some(place) = place {
            self.half_open.leave(place);
        }
    }

    #[cfg(test)]
    pub(crate) fn half_open(&self) -> usize {
        self.half_open.taken()
    }

    /// Returns whether a connection must still present the secret.
    pub(crate) fn is_half_open(&self, id: ConnectionId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.half_open.is_some())
    }

    /// Asks for a line in the log that a client causes: returns how many were left out before it, or `None` if there were
    /// too many.
    pub(crate) fn line(&mut self) -> Option<u64> {
        self.quiet.line(self.clock.now().monotonic)
    }

    /// Returns the buffers that connections share.
    pub(crate) fn buffers(&self) -> &Rc<Buffers> {
        &self.buffers
    }

    /// Registers a connection, with the identity that its transport has proved and its sending half.
    pub(crate) fn accept(
        &mut self,
        address: Peer,
        identity: Option<Identity>,
        writer: WriteHalf,
        half_open: Option<Rc<HalfOpen>>,
    ) -> (ConnectionId, Rc<Outbox>) {
        self.next_connection += 1;
        let id = ConnectionId(self.next_connection);
        let outbox = Rc::new(Outbox::new(writer, Rc::clone(&self.buffers)));
        if self.stopped {
            outbox.abort();
        }
        let established_ms = self.clock.now().wall_ms;
        if let Some(place) = &half_open {
            place.accepted(&outbox);
        }
        let peer = ConnectionState {
            address,
            identity: identity.map(Box::new),
            outbox: Rc::clone(&outbox),
            greeted: false,
            half_open,
            exchange: None,
            established_ms,
            last: Cell::new(RequestStats::NONE),
        };
        self.peers.insert(id, peer);
        self.publish();
        (id, outbox)
    }

    pub(crate) fn disconnected(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.remove(&id) else { return };
        self.counters.outstanding.fetch_sub(peer.outbox.held(), Relaxed);
        self.end_half_open(peer.half_open.as_ref());
        if self.is_broken() {
            return;
        }
        self.stepping = true;
        self.machine.disconnected(id);
        self.carry_out();
    }

    /// Returns whether a step has panicked halfway. Then nothing more is accepted: the next step would carry out its half too.
    fn is_broken(&mut self) -> bool {
        self.stopped |= self.stepping;
        self.stepping
    }

    /// Handles a frame. After an error the connection must be closed.
    pub(crate) fn frame(&mut self, id: ConnectionId, frame: &[u8]) -> Result<(), Malformed> {
        if self.is_broken() {
            return Ok(());
        }
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| !self.stopped && !peer.outbox.is_closing()) else {
            return Ok(());
        };
        self.counters.packets_received.fetch_add(1, Relaxed);
        self.counters.bytes_received.fetch_add(frame.len() as u64 + 4, Relaxed);
        peer.outbox.received.set(peer.outbox.received.get() + 1);
        let now = self.clock.now();
        self.step_began = now.monotonic;
        if !std::mem::replace(&mut peer.greeted, true) {
            let (address, admitted) = (peer.address, peer.half_open.is_none());
            let request = request::decode_connect(frame)?;
            self.counters.count_request(OpCode::CreateSession.as_i32());
            peer.last.set(RequestStats::NONE.asked(0, OpCode::CreateSession.as_i32()));
            let mut password = [0; 16];
            if request.session == 0 && getrandom::fill(&mut password).is_err() {
                warn!("the system returned no random numbers; the session is refused");
                return Err(Malformed);
            }
            if let Peer::Local { uid, .. } = address
                && request.session == 0
                && let Some(exceeded) = self.too_many_sessions(uid)
            {
                self.refuse(id, address, exceeded);
                return Ok(());
            }
            self.stepping = true;
            self.machine.connect(id, &request, password, admitted, now, &mut self.effects);
            self.introduce(id);
            // A resumed session may have a new timeout, which is no transaction.
            if request.session != 0 && self.persistent && self.machine.session_of(id).is_some() {
                self.dirty.mark_session(request.session);
            }
            self.carry_out();
            return Ok(());
        }
        match request::decode(frame)? {
            Packet::Auth { xid, scheme, auth } => {
                self.counters.count_request(OpCode::Auth.as_i32());
                peer.last.set(peer.last.get().asked(xid, OpCode::Auth.as_i32()));
                self.authenticate(id, xid, &scheme, &auth);
            }
            Packet::Sasl { xid, token } => {
                self.counters.count_request(OpCode::Sasl.as_i32());
                peer.last.set(peer.last.get().asked(xid, OpCode::Sasl.as_i32()));
                self.sasl(id, xid, &token);
            }
            Packet::Request { xid, opcode, request } => {
                self.counters.count_request(opcode);
                peer.last.set(peer.last.get().asked(xid, opcode));
                if peer.half_open.is_some() {
                    self.answer_untrusted(id, xid, &request);
                    return Ok(());
                }
                let xid = if request == Request::Ping { PING_XID } else { xid };
                self.stepping = true;
                #[cfg(test)]
                if opcode == PANICS_IN_TESTS {
                    let half = lockkeeper_wire::Create::new("/half", "", lockkeeper_wire::CreateMode::Persistent);
                    self.machine.request(id, xid, Request::Create(half), now, &mut self.effects);
                    panic!("in the middle of a step");
                }
                self.machine.set_room(self.buffers.room());
                self.machine.request(id, xid, request, now, &mut self.effects);
                self.carry_out();
            }
        }
        Ok(())
    }

    /// Returns the limit that another session of this user of the machine would exceed.
    fn too_many_sessions(&self, uid: u32) -> Option<Exceeded> {
        let (sessions, most) = (self.machine.sessions(), self.config.limits.sessions);
        let all = (sessions.len() >= most).then(|| Exceeded::sessions(most));
        all.or_else(|| (sessions.of_user(uid) >= share(uid, most)).then(|| Exceeded::sessions(most).of_user(uid)))
    }

    /// Tells a client of the Unix socket which limit it exceeds, and closes its connection.
    fn refuse(&mut self, id: ConnectionId, client: Peer, exceeded: Exceeded) {
        if let Some(left_out) = self.line() {
            warn!(%client, left_out, "refusing a session: {exceeded}");
        }
        self.send(id, self.machine.zxid(), |out| refusal::encode(out, &exceeded.to_string()));
        self.close(id);
    }

    /// Adds what the transport has proved of a connection that has a session now.
    fn introduce(&mut self, id: ConnectionId) {
        if self.machine.session_of(id).is_none() {
            return;
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some(address) = peer.address.ip() {
            self.machine.locate(id, address);
        }
        if let Peer::Local { uid, .. } = peer.address {
            self.machine.belongs_to(id, uid);
            if peer::is_trusted(uid) {
                self.machine.let_mend_lists(id);
            }
        }
        if let Some(identity) = peer.identity.take()
            && self.machine.identify(id, *identity).is_err()
        {
            debug!(client = %peer.address, "the subject of the certificate is too long");
        }
    }

    /// Returns the work of the last frame.
    pub(crate) fn take_work(&mut self) -> usize {
        let work = self.machine.take_work();
        self.counters.most_work.fetch_max(work as u64, Relaxed);
        work
    }

    /// Gives a connection its next turn when all others had theirs, and those that already wait.
    pub(crate) fn wait_for_a_late_turn(&mut self, outbox: &Rc<Outbox>) {
        if outbox.wait_for_turn() {
            self.late.push_back(Rc::clone(outbox));
            self.background.notify_one();
        }
    }

    /// Returns whether a request waits, because the next batch is full. The outbox then wakes its task when the disk has taken
    /// that batch.
    pub(crate) fn waits_for_the_disk(&mut self, outbox: &Rc<Outbox>, is_short: bool) -> bool {
        let waits = if is_short { self.dirty.is_overfull() } else { self.dirty.is_full() };
        if waits && outbox.wait_for_disk() {
            self.waits_for_disk.push(Rc::clone(outbox));
        }
        waits
    }

    /// Does what others need not wait for: a late turn, and a slice of what the machine has put off. Returns whether there is
    /// more, for after the next turn of all connections.
    pub(crate) fn work_in_the_background(&mut self) -> bool {
        let late = self.late.pop_front();
        if let Some(outbox) = &late {
            outbox.give_late_turn();
        }
        let mut more = !self.late.is_empty();
        if !self.is_broken() && !self.stopped && !self.dirty.is_full() && self.machine.has_put_off() {
            let now = self.clock.now();
            self.stepping = true;
            self.machine.go_on(now, &mut self.effects);
            self.carry_out();
            more |= self.machine.has_put_off();
        }
        more
    }

    /// Closes the connection that keeps the most bytes of unfinished requests.
    pub(crate) fn close_greediest(&mut self) {
        let greediest = self.peers.values().max_by_key(|peer| peer.outbox.unfinished());
        let Some((address, outbox)) = greediest.map(|peer| (peer.address, Rc::clone(&peer.outbox))) else { return };
        let bytes = outbox.unfinished();
        outbox.abort();
        outbox.keeps_unfinished(0);
        if let Some(left_out) = self.line() {
            warn!(client = %address, bytes, left_out, "unfinished requests take too much memory; closing the longest one");
        }
    }

    fn close(&self, id: ConnectionId) {
        if let Some(peer) = self.peers.get(&id) {
            peer.outbox.close();
        }
    }

    /// Cuts a connection; returns false if there is none.
    #[cfg(feature = "faults")]
    pub(crate) fn cut(&mut self, id: ConnectionId) -> bool {
        self.peers.get(&id).inspect(|peer| peer.outbox.abort()).is_some()
    }

    /// Cuts all connections and returns their number.
    #[cfg(feature = "faults")]
    pub(crate) fn cut_all(&mut self) -> usize {
        self.peers.values().for_each(|peer| peer.outbox.abort());
        self.peers.len()
    }

    /// Holds back the bytes of all connections, or releases them.
    #[cfg(feature = "faults")]
    pub(crate) fn hold_all(&self, held: bool) {
        self.peers.values().for_each(|peer| peer.outbox.hold(held));
    }

    /// Returns whether a connection has sent its connect request.
    #[cfg(feature = "faults")]
    pub(crate) fn has_greeted(&self, id: ConnectionId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.greeted)
    }

    /// Passes the time to the machine, unless requests wait for the disk: then no session expires, because pings may wait too.
    pub(crate) fn tick(&mut self) {
        if !self.is_broken() && !self.stopped && !self.dirty.is_full() {
            let now = self.clock.now();
            self.stepping = true;
            self.machine.tick(now, &mut self.effects);
            self.carry_out();
        }
    }

    /// Ends a session immediately.
    #[cfg(feature = "faults")]
    pub(crate) fn expire(&mut self, session: i64) -> bool {
        if self.is_broken() {
            return false;
        }
        let now = self.clock.now();
        self.stepping = true;
        let existed = self.machine.expire(session, now, &mut self.effects);
        self.carry_out();
        existed
    }

    /// Sets the sequence number of a node's next child.
    #[cfg(feature = "faults")]
    pub(crate) fn set_child_counter(&mut self, parent: &str, next: i32) -> bool {
        if self.is_broken() {
            return false;
        }
        let now = self.clock.now();
        self.stepping = true;
        let existed = self.machine.set_child_counter(parent, next, now, &mut self.effects);
        self.carry_out();
        existed
    }

    fn carry_out(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Committed(txn) => self.committed(&txn),
                Effect::Counted { path } => self.counted(path),
                Effect::Connected { connection, response, has_read_only, zxid } => {
                    self.send(connection, zxid, |out| response::encode_connect(out, &response, has_read_only));
                }
                Effect::Reply { connection, xid, zxid, result } => {
                    self.send(connection, zxid, |out| response::encode(out, xid, zxid, &result));
                }
                Effect::Event { connection, kind, path, event_zxid, zxid } => {
                    self.counters.events_sent.fetch_add(1, Relaxed);
                    self.send(connection, zxid, |out| response::encode_event(out, event_zxid, kind, &path));
                }
                Effect::Refused { connection, limit } => self.log_refusal(connection, limit),
                Effect::QuotaExceeded { path, nodes, bytes } => {
                    if let Some(left_out) = self.line() {
                        warn!(path = shown(&path), nodes, bytes, left_out, "quota exceeded");
                    }
                }
                Effect::Close { connection, reason } => self.close_for(connection, reason),
            }
        }
        effects.shrink_to(KEPT_EFFECTS);
        self.effects = effects;
        self.stepping = false;
        if self.dirty.any() {
            self.flush.notify_one();
        }
        if self.machine.has_put_off() {
            self.background.notify_one();
        }
        self.publish();
    }

    fn log_refusal(&mut self, connection: ConnectionId, limit: Limit) {
        let Some(client) = self.peers.get(&connection).map(|peer| peer.address) else { return };
        if let Some(left_out) = self.line() {
            let limit = limit.explain(&self.config.limits);
            warn!(%client, limit, left_out, "refusing a request");
        }
    }

    fn close_for(&self, connection: ConnectionId, reason: CloseReason) {
        let Some(peer) = self.peers.get(&connection) else { return };
        debug!(client = %peer.address, ?reason, "closing a connection");
        match reason {
            CloseReason::Replaced | CloseReason::TooManyEvents => peer.outbox.abort(),
            _ => peer.outbox.close(),
        }
    }

    fn send(&mut self, id: ConnectionId, zxid: i64, encode: impl FnOnce(&mut bytes::BytesMut)) {
        let Some(peer) = self.peers.get(&id) else { return };
        self.counters.packets_sent.fetch_add(1, Relaxed);
        let since = self.step_began;
        peer.last.set(peer.last.get().with_zxid(zxid));
        let pushed = peer.outbox.push(zxid, self.durable, since, encode);
        self.counters.bytes_sent.fetch_add(pushed.bytes as u64, Relaxed);
        if pushed.waits {
            self.counters.outstanding.fetch_add(1, Relaxed);
            if self.waiting.back() != Some(&(zxid, id)) {
                self.waiting.push_back((zxid, id));
            }
        } else {
            self.counters.count_latency(1, Duration::ZERO, Duration::ZERO, Duration::ZERO);
            peer.last.set(peer.last.get().answered(since, &WaitingFrames::since(since)));
            if peer.outbox.mark_sendable() {
                self.sendable.push(Rc::clone(&peer.outbox));
                self.send.notify_one();
            }
        }
    }

    /// Sends the bytes that need not wait for the disk, as far as the sockets accept them immediately.
    pub(crate) fn send_all(&mut self) {
        for outbox in self.sendable.drain(..) {
            outbox.send_now();
        }
    }

    fn committed(&mut self, txn: &Txn) {
        self.counters.transactions.fetch_add(1, Relaxed);
        if !self.persistent {
            self.durable = txn.zxid;
            return;
        }
        self.dirty.mark(self.machine.tree(), txn.session, &txn.op);
    }

    fn counted(&mut self, stats: Arc<str>) {
        if self.persistent {
            self.dirty.mark_node(stats);
        }
    }

    /// Takes the changes for the disk. `spare` is an old batch whose buffers are used again.
    pub(crate) fn take_batch(&mut self, spare: &mut Batch) -> Option<Batch> {
        // The half-finished step of a panic must not reach the disk.
        let batch = if self.stepping { None } else { self.dirty.take(&self.machine, spare) };
        self.waits_for_disk.drain(..).for_each(|outbox| outbox.disk_is_ready());
        if self.machine.has_put_off() {
            self.background.notify_one();
        }
        batch
    }

    /// Releases everything that waited for transactions up to `zxid`, and sends it as far as the sockets accept it
    /// immediately. A batch answers many connections, and waking a task for each costs more than sending.
    pub(crate) fn durable(&mut self, zxid: i64) {
        self.counters.commits.fetch_add(1, Relaxed);
        self.durable = zxid;
        self.settled.notify_one();
        let now = self.clock.now().monotonic;
        while let Some(&(awaited, id)) = self.waiting.front()
            && awaited <= zxid
        {
            self.waiting.pop_front();
            if let Some(peer) = self.peers.get(&id) {
                let released = peer.outbox.release(zxid);
                peer.last.set(peer.last.get().answered(now, &released));
                let WaitingFrames { frames, first, last, sum } = released;
                if let Ok(count) = u32::try_from(frames)
                    && count > 0
                {
                    self.counters.outstanding.fetch_sub(frames, Relaxed);
                    self.counters.count_latency(frames, now * count - sum, now - last, now - first);
                    peer.outbox.send_now();
                }
            }
        }
    }

    /// Returns whether everything applied is durable.
    pub(crate) fn is_settled(&self) -> bool {
        !self.dirty.any() && (!self.persistent || self.durable == self.machine.zxid())
    }

    /// Accepts nothing more. Queued answers are still sent when they are durable.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        for peer in self.peers.values() {
            peer.outbox.close();
        }
    }

    /// Cuts all connections: the transactions that they wait for will never be durable.
    pub(crate) fn fail(&mut self, error: &ServerError) {
        tracing::error!(%error, hint = error.hint(), "the server stops: it cannot make writes durable");
        self.stopped = true;
        for peer in self.peers.values() {
            peer.outbox.abort();
        }
    }

    /// Returns whether nothing more is accepted.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns whether all connections have ended.
    pub(crate) fn has_no_connections(&self) -> bool {
        self.peers.is_empty()
    }

    /// Returns whether clients must present a secret.
    pub(crate) fn needs_secret(&self) -> bool {
        self.config.secret.is_some()
    }

    /// Returns the connections, oldest first.
    pub(crate) fn peer_ids(&self) -> Vec<ConnectionId> {
        let mut ids: Vec<_> = self.peers.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the state of a connection for operators.
    pub(crate) fn peer(&self, id: ConnectionId) -> Option<PeerReport> {
        let peer = self.peers.get(&id)?;
        Some(PeerReport {
            address: peer.address,
            queued: peer.outbox.held(),
            received: peer.outbox.received.get(),
            sent: peer.outbox.sent.get(),
            established_ms: peer.established_ms,
            last: peer.last.get(),
            session: self
                .machine
                .session_of(id)
                .and_then(|session| Some((session, self.machine.sessions().get(session)?.timeout))),
        })
    }

    /// Resets the counts of each connection.
    pub(crate) fn reset_peers(&self) {
        for peer in self.peers.values() {
            peer.outbox.received.set(0);
            peer.outbox.sent.set(0);
            peer.last.set(RequestStats::NONE);
        }
    }

    fn publish(&self) {
        let set = |gauge: &std::sync::atomic::AtomicU64, value: usize| gauge.store(value as u64, Relaxed);
        set(&self.counters.connections, self.peers.len());
        set(&self.counters.sessions, self.machine.sessions().len());
        set(&self.counters.nodes, self.machine.tree().len());
        set(&self.counters.watches, self.machine.watches().len());
        self.counters.zxid.store(self.machine.zxid(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use lockkeeper_wire::ConnectRequest;
    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;
    use crate::machine::{Tree, tests::config};

    /// Counts the lines of the log.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Relaxed);
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn a_client_that_exceeds_its_quota_again_and_again_fills_no_log() {
        let clock = Clock::start();
        let machine = Machine::new(config(), Tree::new(), 0, clock.now());
        let mut engine = Engine::new(machine, clock, &Config::default(), None, false);
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            for nodes in 0..1_000 {
                engine.effects.push(Effect::QuotaExceeded { path: "/a".into(), nodes, bytes: 0 });
                engine.carry_out();
            }
        });
        let lines = lines.0.load(Relaxed);
        assert!((10..100).contains(&lines), "{lines} lines");
    }

    /// Returns a request as the engine gets it.
    fn frame(encode: impl FnOnce(&mut bytes::BytesMut)) -> Vec<u8> {
        let mut frame = bytes::BytesMut::new();
        encode(&mut frame);
        frame[4..].to_vec()
    }

    /// A panic ends the task of one connection, and the task of another one may run before the server notices.
    #[tokio::test]
    async fn after_a_panic_in_a_step_no_later_step_brings_its_half_to_the_disk() {
        type Step<'a> = &'a dyn Fn(&mut Engine, [ConnectionId; 3]);
        let hello = frame(|out| request::encode_connect(out, &ConnectRequest::default()));
        let sync = frame(|out| request::encode(out, 1, &Request::Sync { path: "/".to_owned() }));
        let later_steps: [Step<'_>; 5] = [
            &|engine, [_, other, _]| engine.frame(other, &sync).unwrap(),
            &|engine, [_, _, new]| engine.frame(new, &hello).unwrap(),
            &|engine, _| engine.tick(),
            &|engine, [unlucky, ..]| engine.disconnected(unlucky),
            &|engine, [_, other, _]| engine.disconnected(other),
        ];
        for (at, later_step) in later_steps.into_iter().enumerate() {
            let clock = Clock::start();
            let machine = Machine::new(config(), Tree::new(), 0, clock.now());
            let mut engine = Engine::new(machine, clock, &Config::default(), None, true);
            let connections = [0; 3].map(|_| {
                let (stream, _) = tokio::net::UnixStream::pair().unwrap();
                let writer = crate::net::transport::local(stream, 0).write;
                engine.accept(Peer::Local { uid: 0, pid: None }, None, writer, None).0
            });
            let [unlucky, other, _] = connections;
            engine.frame(unlucky, &hello).unwrap();
            engine.frame(other, &hello).unwrap();
            let spare = &mut Batch::default();
            engine.take_batch(spare).unwrap();
            let panics = [1_i32.to_be_bytes(), PANICS_IN_TESTS.to_be_bytes()].concat();
            let panicked = catch_unwind(AssertUnwindSafe(|| engine.frame(unlucky, &panics)));
            assert!(panicked.is_err() && engine.machine.tree().get("/half").is_some());
            later_step(&mut engine, connections);
            assert!(engine.take_batch(spare).is_none(), "step {at}");
            assert!(engine.is_stopped(), "step {at}");
        }
    }
}
