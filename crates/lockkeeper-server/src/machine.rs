//! The whole server as one deterministic step function.
//!
//! [`Machine`] takes a request and the time, and returns in order, as [`Effect`]s, what to make durable, what to
//! answer, and which watchers to notify. It reads no clock, opens no socket and uses no random numbers. The server
//! drives it over TCP, and the simulator drives the same code through millions of generated histories.
//!
//! Invariants: the effects of one connection have the order of its requests. A watch event comes before any answer
//! that shows the change. Every effect carries the zxid that must be durable first. So a driver that waits for it
//! never reports a change that can still be lost.

pub(crate) mod budget;
pub(crate) mod identity;
pub(crate) mod limits;
pub(crate) mod path;
mod prepare;
mod query;
mod quota;
mod sessions;
pub(crate) mod tree;
pub(crate) mod txn;
mod watches;
mod work;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

pub use self::identity::{AccessList, Identities, Identity, Schemes};
pub use self::limits::Limits;
pub use self::query::{answer, watch_left};
pub use self::sessions::{ConnectionId, Session, Sessions};
pub use self::tree::{Applied, Node, Tree, TreeEvent};
pub use self::txn::{Owner, Txn, TxnOp};
pub use self::watches::Watches;
pub use self::work::{Limit, Work};

use self::identity::{permit, same_bytes};
use self::prepare::Requester;
use crate::config::SharedNode;
use lockkeeper_wire::OpCode;
use lockkeeper_wire::{
    ConnectRequest, ConnectResponse, Create, CreateMode, ErrorCode, EventKind, OpResult, Perms, Request, Response,
    SetWatches, WatchKind, WriteOp,
};

/// The current time, as the driver passes it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// A clock that never goes back, from an arbitrary origin; sessions expire by it.
    pub monotonic: Duration,
    /// Wall-clock milliseconds since 1970: the nodes' `ctime` and `mtime`.
    pub wall_ms: i64,
}

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Sessions expire at multiples of this.
    pub tick: Duration,
    /// The minimum and maximum session timeout.
    pub session_timeouts: RangeInclusive<Duration>,
    /// How often containers without children and expired TTL nodes are removed.
    pub container_check: Duration,
    /// How long a container that never had a child is kept.
    pub container_unused: Duration,
    /// The id of the next session.
    pub next_session: i64,
    /// The optional schemes that access lists may use.
    pub schemes: Schemes,
    /// Whether hard limits of quotas are enforced; soft ones are only logged.
    pub enforce_quotas: bool,
    /// Limits on what clients can create.
    pub limits: Limits,
}

/// A connection with a session.
#[derive(Clone, Debug)]
struct SessionConnection {
    session: i64,
    who: Identities,
}

/// A session that was promised to a connection, and begins when the connection is admitted.
#[derive(Clone, Debug)]
struct PromisedSession {
    id: i64,
    timeout: Duration,
    password: [u8; 16],
}

/// Something that the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make this transaction durable before any later effect becomes visible. It has been applied.
    Committed(Txn),
    /// Make the numbers of a quota durable together with the transaction before, which has changed them.
    Counted {
        /// The stats node of the quota.
        path: Arc<str>,
    },
    /// Answer a connect request. Session 0 means "expired"; a close follows.
    Connected {
        connection: ConnectionId,
        response: ConnectResponse,
        /// Whether the request had the read-only byte; the response then needs one.
        has_read_only: bool,
        /// The transaction that must be durable first.
        zxid: i64,
    },
    Reply {
        connection: ConnectionId,
        xid: i32,
        /// The newest transaction that the answer may show; it must be durable first.
        zxid: i64,
        result: Result<Response, ErrorCode>,
    },
    Event {
        connection: ConnectionId,
        /// The kind of event.
        kind: EventKind,
        path: Arc<str>,
        /// The transaction that made the change, −1 if it was found on reconnecting.
        event_zxid: i64,
        /// The transaction that must be durable first.
        zxid: i64,
    },
    /// Report that a request was refused because of a limit. A client can cause as many of them as it likes.
    Refused { connection: ConnectionId, limit: Limit },
    /// Report that a subtree has more than the soft limit of its quota. A client can cause as many of them as it likes.
    QuotaExceeded {
        /// The root of the subtree.
        path: Arc<str>,
        nodes: i64,
        bytes: i64,
    },
    /// Close a connection after everything before has been sent.
    Close { connection: ConnectionId, reason: CloseReason },
}

/// Why the machine wants a connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client closed its session.
    SessionClosed,
    /// The session expired or was ended by an operator.
    SessionExpired,
    /// The session to resume has expired, or the password is wrong.
    NoSuchSession,
    /// The session was resumed over a newer connection; nothing more may be sent on this one.
    Replaced,
    /// The client has seen a newer state than this server has.
    ClientAhead,
    /// The limit of sessions is reached.
    TooManySessions,
    /// One change has more events than the server sends at once, so nothing more may be sent: the client reconnects and sets its
    /// watches again.
    TooManyEvents,
}

/// When this work is done, the rest of what the server does by itself is put off, so that clients have their turns.
const SLICE: usize = 10_000;
/// How many slices of old watches are removed to make room for those of one request: about as many as a frame has.
const MOST_SLICES: usize = 32;
/// How many events have room in the list that is kept.
const KEPT_EVENTS: usize = 1_000;
/// How many containers and TTL nodes are looked at at once.
const REAPED: usize = 100;

/// The server's state. Only its methods change it.
#[derive(Clone, Debug)]
pub struct Machine {
    config: MachineConfig,
    tree: Tree,
    sessions: Sessions,
    watches: Watches,
    connections: HashMap<ConnectionId, SessionConnection>,
    promised: HashMap<ConnectionId, PromisedSession>,
    /// The cost of all identities.
    identity_bytes: u64,
    /// Maximum bytes of the next answers, if that is less than the limit.
    room: usize,
    /// The work since the driver has taken the number.
    worked: usize,
    zxid: i64,
    next_session: i64,
    next_container_check: Duration,
    /// Sessions that had expired at this moment are still to be ended.
    expiring: Option<Duration>,
    /// Containers and TTL nodes behind this path are still to be looked at.
    reaping: Option<Arc<str>>,
    /// Kept for its capacity.
    events: Vec<TreeEvent>,
}

impl Machine {
    /// Creates a machine without sessions whose last transaction was `zxid`.
    pub fn new(config: MachineConfig, tree: Tree, zxid: i64, now: Now) -> Self {
        Self {
            sessions: Sessions::new(config.tick),
            watches: Watches::default(),
            connections: HashMap::new(),
            promised: HashMap::new(),
            identity_bytes: 0,
            room: usize::MAX,
            worked: 0,
            zxid,
            next_session: config.next_session,
            next_container_check: now.monotonic + config.container_check,
            expiring: None,
            reaping: None,
            events: Vec::new(),
            tree,
            config,
        }
    }

    /// Restores a session after a restart with its full timeout, because its client could not reach the server
    /// meanwhile.
    pub fn restore_session(&mut self, id: i64, timeout: Duration, password: [u8; 16], now: Now) {
        self.sessions.insert(id, timeout, password, now.monotonic);
        self.next_session = self.next_session.max(id + 1);
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Returns the zxid of the last transaction.
    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    /// Returns the id for the next session; ids are unique.
    pub fn next_session(&self) -> i64 {
        self.next_session
    }

    /// Returns the session of a connection.
    pub fn session_of(&self, connection: ConnectionId) -> Option<i64> {
        self.connections.get(&connection).map(|peer| peer.session)
    }

    /// Sets the address of a connection, for access lists that name addresses.
    pub fn locate(&mut self, connection: ConnectionId, address: IpAddr) {
        if let Some(peer) = self.connections.get_mut(&connection) {
            peer.who.address = Some(address);
        }
    }

    /// Says that the client of a connection is a user of this machine, for the limit of his sessions.
    pub fn belongs_to(&mut self, connection: ConnectionId, uid: u32) {
        if let Some(session) = self.session_of(connection) {
            self.sessions.set_user(session, uid);
        }
    }

    /// Lets the client of a connection read and change every access list.
    pub fn let_mend_lists(&mut self, connection: ConnectionId) {
        if let Some(peer) = self.connections.get_mut(&connection) {
            peer.who.mends_lists = true;
        }
    }

    /// Creates a node of the server's user if it is missing. An existing one gets the list if clients that are neither of
    /// `owners` may change its list; the first of `owners` is who `auth` in the list means.
    ///
    /// # Errors
    /// A limit does not allow it, or its parent is missing.
    pub fn provide(
        &mut self,
        node: &SharedNode,
        owners: &[Identity],
        now: Now,
        out: &mut Vec<Effect>,
    ) -> Result<(), ErrorCode> {
        let mut who = Identities::default();
        [Identity::superuser()].iter().chain(owners.first()).for_each(|identity| who.add(identity.clone()));
        let requester = Requester {
            session: 0,
            who: &who,
            schemes: self.config.schemes,
            enforce_quotas: false,
            limits: &self.config.limits,
            others: self.cost() - self.tree.cost(),
            watches: &self.watches,
        };
        let work = &mut Work::default();
        let SharedNode { path, data, acl } = node;
        let op = match self.tree.get(path) {
            None => {
                let create = Create { acl: acl.clone(), ..Create::new(path, data.clone(), CreateMode::Persistent) };
                prepare::single(&self.tree, requester, &WriteOp::Create(create), work)?
            }
            Some(found) if identity::others_administrate(&found.acl, owners) => {
                prepare::set_acl(&self.tree, requester, path, acl, -1, work)?
            }
            Some(_) => return Ok(()),
        };
        self.commit(0, op, now, out);
        Ok(())
    }

    /// Adds an identity that a connection has proved.
    ///
    /// # Errors
    /// `AuthFailed` if the identity is too long, or the connection has too many. It is the only error of an authentication
    /// that all clients know. A client ends its session then, so a spent budget is no reason: see [`budget`].
    pub fn identify(&mut self, connection: ConnectionId, identity: Identity) -> Result<(), ErrorCode> {
        let Some(peer) = self.connections.get_mut(&connection) else { return Ok(()) };
        if peer.who.has(&identity) {
            return Ok(());
        }
        if !peer.who.has_room_for(&identity) {
            return Err(ErrorCode::AuthFailed);
        }
        self.identity_bytes += budget::identity(&identity.scheme, &identity.id);
        peer.who.add(identity);
        Ok(())
    }

    /// Bounds the next answers, because many bytes wait for clients that do not read. The limit of one answer stays.
    pub fn set_room(&mut self, bytes: usize) {
        self.room = bytes;
    }

    /// Returns the work of the requests since the last call; see [`work`].
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.worked)
    }

    /// Returns the bytes that clients make this server keep; see [`budget`].
    pub fn cost(&self) -> u64 {
        let sessions = budget::SESSION * self.sessions.len() as u64;
        self.tree.cost() + self.watches.cost() + self.identity_bytes + sessions
    }

    /// Returns the same, counted again from everything that is kept.
    #[cfg(test)]
    pub(crate) fn recounted(&self) -> u64 {
        let node = |(path, node): (&Arc<str>, &Node)| {
            budget::name(path) + budget::acl(&node.acl) + budget::data(node.data.as_ref())
        };
        let identities: u64 = self.connections.values().map(|peer| peer.who.cost()).sum();
        let sessions = budget::SESSION * self.sessions.iter().count() as u64;
        self.tree.iter().map(node).sum::<u64>() + self.watches.recounted() + identities + sessions
    }

    /// Returns whether watches of these paths may be set again, whatever nodes have spent. A watch that exists already
    /// counts as a new one.
    fn has_room_for_watches<'a>(&self, paths: impl Iterator<Item = &'a str> + Clone) -> bool {
        let Limits { watches, data_bytes, .. } = self.config.limits;
        let cost: u64 = paths.clone().map(budget::watch).sum();
        self.watches.len() + paths.count() <= watches
            && self.watches.cost() + cost <= data_bytes / budget::WATCHES_SHARE
    }

    /// Returns whether a new watch of this path may be added.
    fn has_room_for_watch(&self, path: &str) -> bool {
        let fits = self.cost() + budget::watch(path) <= self.config.limits.data_bytes;
        fits && self.has_room_for_watches(std::iter::once(path))
    }

    /// Returns whether a path may be watched: one that is too long for a new node must have an old one.
    fn is_watchable(&self, path: &str) -> bool {
        prepare::check_path(path, &self.config.limits, &mut Work::default()).is_ok() || self.tree.get(path).is_some()
    }

    /// Returns whether a new watch of this path may be added. Makes room for it, if connections have gone.
    fn may_watch(&mut self, path: &str) -> bool {
        if !self.has_room_for_watch(path) {
            self.watches.forget();
        }
        self.has_room_for_watch(path) && self.is_watchable(path)
    }

    /// Counts the watches that a request sets again; returns whether they may be set. Makes room for them, if connections have
    /// gone: the old watches of the client itself may be among them.
    fn may_set_watches(&mut self, request: &SetWatches, work: &mut Work) -> bool {
        let units: usize = request.paths().map(|path| work::WATCH + work::path(path)).sum();
        if work.take(units).is_none() {
            return false;
        }
        for _ in 0..MOST_SLICES {
            if self.has_room_for_watches(request.paths()) || !self.watches.has_gone() {
                break;
            }
            self.watches.forget();
        }
        self.has_room_for_watches(request.paths()) && request.paths().all(|path| self.is_watchable(path))
    }

    fn has_room_for_a_session(&self) -> bool {
        self.sessions.len() < self.config.limits.sessions
    }

    /// Opens a session or resumes one. `password` is for a new session and must be random.
    ///
    /// A client that is not `admitted` must still present the server's secret. A new session is only promised to it: it
    /// begins when [`Machine::admit`] is called, and until then there is nothing to make durable. An existing one is resumed,
    /// because its password is a proof.
    pub fn connect(
        &mut self,
        connection: ConnectionId,
        request: &ConnectRequest,
        password: [u8; 16],
        admitted: bool,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        if self.refuses(connection, request, out) {
            return;
        }
        let timeout = self.granted(request);
        let accepted = if request.session == 0 {
            let id = self.next_session;
            self.next_session += 1;
            let promised = PromisedSession { id, timeout, password };
            match admitted {
                true => self.begin(connection, promised, now, out),
                false => drop(self.promised.insert(connection, promised)),
            }
            Some((id, password))
        } else {
            self.resume(request, timeout, now, out).inspect(|(id, _)| self.join(connection, *id))
        };
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let granted = |(session, password)| ConnectResponse { timeout_ms, session, password };
        let (response, has_read_only) = (accepted.map_or(ConnectResponse::EXPIRED, granted), request.has_read_only);
        out.push(Effect::Connected { connection, response, has_read_only, zxid: self.zxid });
        if accepted.is_none() {
            out.push(Effect::Close { connection, reason: CloseReason::NoSuchSession });
        }
    }

    /// Begins the session that was promised to a connection, if there is one.
    pub fn admit(&mut self, connection: ConnectionId, now: Now, out: &mut Vec<Effect>) {
        let Some(promised) = self.promised.remove(&connection) else { return };
        if !self.has_room_for_a_session() {
            out.push(Effect::Close { connection, reason: CloseReason::TooManySessions });
            return;
        }
        self.begin(connection, promised, now, out);
    }

    fn begin(&mut self, connection: ConnectionId, promised: PromisedSession, now: Now, out: &mut Vec<Effect>) {
        let PromisedSession { id, timeout, password } = promised;
        self.sessions.insert(id, timeout, password, now.monotonic);
        self.commit(id, TxnOp::CreateSession { timeout, password }, now, out);
        self.join(connection, id);
    }

    /// Refuses a connect request that must not get a session, and returns whether it did.
    fn refuses(&self, connection: ConnectionId, request: &ConnectRequest, out: &mut Vec<Effect>) -> bool {
        let reason = if request.last_zxid_seen > self.zxid {
            CloseReason::ClientAhead
        } else if request.session == 0 && !self.has_room_for_a_session() {
            CloseReason::TooManySessions
        } else {
            return false;
        };
        out.push(Effect::Close { connection, reason });
        true
    }

    fn granted(&self, request: &ConnectRequest) -> Duration {
        let wished = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
        wished.clamp(*self.config.session_timeouts.start(), *self.config.session_timeouts.end())
    }

    /// Gives a session to a connection.
    fn join(&mut self, connection: ConnectionId, session: i64) {
        self.leave(connection);
        self.sessions.set_connection(session, Some(connection));
        self.connections.insert(connection, SessionConnection { session, who: Identities::default() });
    }

    /// Takes the session of a connection away, and returns the session.
    fn leave(&mut self, connection: ConnectionId) -> Option<i64> {
        let SessionConnection { session, who } = self.connections.remove(&connection)?;
        self.identity_bytes -= who.cost();
        Some(session)
    }

    fn resume(
        &mut self,
        request: &ConnectRequest,
        timeout: Duration,
        now: Now,
        out: &mut Vec<Effect>,
    ) -> Option<(i64, [u8; 16])> {
        let session = self.sessions.get(request.session)?;
        let password = session.password;
        if !same_bytes(&password, &request.password) {
            return None;
        }
        if let Some(old) = session.connection {
            // Close the old connection first: a frame of it could still act for the session.
            self.disconnected(old);
            out.push(Effect::Close { connection: old, reason: CloseReason::Replaced });
        }
        self.sessions.set_timeout(request.session, timeout);
        self.sessions.touch(request.session, now.monotonic);
        Some((request.session, password))
    }

    /// Removes a connection; its session lives on until its timeout.
    pub fn disconnected(&mut self, connection: ConnectionId) {
        self.watches.remove_connection(connection);
        self.promised.remove(&connection);
        if let Some(session) = self.leave(connection) {
            self.sessions.set_connection(session, None);
        }
    }

    /// Carries out a request. It is ignored if the connection has no session, because another one has replaced it.
    pub fn request(&mut self, connection: ConnectionId, xid: i32, request: Request, now: Now, out: &mut Vec<Effect>) {
        let (mut work, before) = (Work::default(), out.len());
        self.carry_out(connection, xid, request, now, &mut work, out);
        self.worked += work::REQUEST + work.done();
        if let Some(limit) = work.exceeded() {
            out.insert(before, Effect::Refused { connection, limit });
        }
    }

    fn carry_out(
        &mut self,
        connection: ConnectionId,
        xid: i32,
        request: Request,
        now: Now,
        work: &mut Work,
        out: &mut Vec<Effect>,
    ) {
        let Some(SessionConnection { session, who }) = self.connections.get(&connection) else { return };
        let session = *session;
        self.sessions.touch(session, now.monotonic);
        let longest = self.config.limits.answer_bytes.min(self.room);
        if let Some(mut result) = answer(&self.tree, session, who, &request, longest, work) {
            match watch_left(&request, &result) {
                // Without the watch that it asked for, a client would wait forever.
                Some((path, _)) if !self.may_watch(path) => {
                    result = Err(ErrorCode::QuotaExceeded);
                }
                Some((path, kind)) => self.watches.add(connection, path, kind),
                None => {}
            }
            out.push(Effect::Reply { connection, xid, zxid: self.zxid, result });
            return;
        }
        let closes = request == Request::CloseSession;
        let requester = Requester {
            session,
            who,
            schemes: self.config.schemes,
            enforce_quotas: self.config.enforce_quotas,
            limits: &self.config.limits,
            others: self.cost() - self.tree.cost(),
            watches: &self.watches,
        };
        let result = match request {
            Request::Create(request) => {
                let prepared = prepare::single(&self.tree, requester, &WriteOp::Create(request), work);
                self.write(session, prepared, now, out)
            }
            Request::Delete(request) => {
                let prepared = prepare::single(&self.tree, requester, &WriteOp::Delete(request), work);
                self.write(session, prepared, now, out)
            }
            Request::SetData(request) => {
                let prepared = prepare::single(&self.tree, requester, &WriteOp::SetData(request), work);
                self.write(session, prepared, now, out)
            }
            Request::SetAcl { path, acl, version } => {
                let prepared = prepare::set_acl(&self.tree, requester, &path, &acl, version, work);
                self.write(session, prepared, now, out)
            }
            Request::Multi(ops) => {
                let prepared = prepare::multi(&self.tree, requester, &ops, work);
                self.multi(session, &ops, prepared, now, out)
            }
            Request::AddWatch { path, .. } if !self.may_watch(&path) => Err(ErrorCode::QuotaExceeded),
            Request::AddWatch { path, recursive } => path::validate(&path).map(|()| {
                let kind = if recursive { WatchKind::PersistentRecursive } else { WatchKind::Persistent };
                self.watches.add(connection, &path, kind);
                Response::WatchAdded
            }),
            Request::SetWatches(request) if !self.may_set_watches(&request, work) => Err(ErrorCode::QuotaExceeded),
            Request::SetWatches(request) => {
                self.set_watches(connection, &request, out);
                Ok(Response::Done)
            }
            Request::CheckWatches { path, kind } => found(self.watches.contains(connection, &path, kind)),
            Request::RemoveWatches { path, kind } => found(self.watches.remove(connection, &path, kind)),
            Request::CloseSession => {
                self.end_session(session, now, out);
                Ok(Response::Done)
            }
            Request::Refused { opcode, error } => {
                // As in ZooKeeper, a write gets its zxid before it is checked.
                if error != ErrorCode::Unimplemented && OpCode::from_i32(opcode).is_some_and(OpCode::is_write) {
                    self.commit(session, TxnOp::Failed(error), now, out);
                }
                Err(error)
            }
            // All other requests are reads, which were answered above.
            _ => Err(ErrorCode::Unimplemented),
        };
        out.push(Effect::Reply { connection, xid, zxid: self.zxid, result });
        if closes {
            out.push(Effect::Close { connection, reason: CloseReason::SessionClosed });
        }
    }

    fn write(
        &mut self,
        session: i64,
        prepared: Result<TxnOp, ErrorCode>,
        now: Now,
        out: &mut Vec<Effect>,
    ) -> Result<Response, ErrorCode> {
        match prepared {
            Ok(op) => Ok(match self.commit(session, op, now, out) {
                Applied::Created(path, stat) => Response::Created { path, stat },
                Applied::Stat(stat) => Response::Stat(stat),
                Applied::Done | Applied::Multi(_) => Response::Done,
            }),
            Err(error) => {
                self.commit(session, TxnOp::Failed(error), now, out);
                Err(error)
            }
        }
    }

    fn multi(
        &mut self,
        session: i64,
        ops: &[WriteOp],
        prepared: Result<Vec<TxnOp>, Vec<OpResult>>,
        now: Now,
        out: &mut Vec<Effect>,
    ) -> Result<Response, ErrorCode> {
        let txns = match prepared {
            Ok(txns) => txns,
            Err(results) => {
                self.commit(session, TxnOp::Failed(ErrorCode::RuntimeInconsistency), now, out);
                return Ok(Response::Multi(results));
            }
        };
        let Applied::Multi(applied) = self.commit(session, TxnOp::Multi(txns), now, out) else {
            return Err(ErrorCode::SystemError);
        };
        let results = ops.iter().zip(applied).map(|(op, applied)| match (op, applied) {
            (_, Applied::Created(path, stat)) => OpResult::Created { path, stat },
            (_, Applied::Stat(stat)) => OpResult::DataSet(stat),
            (WriteOp::Check(_), _) => OpResult::Checked,
            _ => OpResult::Deleted,
        });
        Ok(Response::Multi(results.collect()))
    }

    /// Fires the watches whose change was missed and sets the others, by ZooKeeper's rules.
    fn set_watches(&mut self, connection: ConnectionId, request: &SetWatches, out: &mut Vec<Effect>) {
        let seen = request.relative_zxid;
        let data = request.data.iter().map(|path| (path, WatchKind::Data, false));
        let exist = request.exist.iter().map(|path| (path, WatchKind::Data, true));
        let child = request.child.iter().map(|path| (path, WatchKind::Child, false));
        for (path, kind, for_creation) in data.chain(exist).chain(child) {
            let missed = match self.tree.get(path) {
                Some(_) if for_creation => Some(EventKind::Created),
                None if for_creation => None,
                None => Some(EventKind::Deleted),
                Some(node) if kind == WatchKind::Data => (node.mzxid > seen).then_some(EventKind::DataChanged),
                Some(node) => (node.pzxid > seen).then_some(EventKind::ChildrenChanged),
            };
            match missed {
                None => self.watches.add(connection, path, kind),
                Some(kind) => {
                    let path = Arc::from(path.as_str());
                    out.push(Effect::Event { connection, kind, path, event_zxid: -1, zxid: self.zxid });
                }
            }
        }
        // These report no missed change: the client's last known state of all the paths that they cover is unknown.
        for path in &request.persistent {
            self.watches.add(connection, path, WatchKind::Persistent);
        }
        for path in &request.recursive {
            self.watches.add(connection, path, WatchKind::PersistentRecursive);
        }
    }

    /// Ends a session as if it had expired; returns false if there is none.
    ///
    /// The client gets only the close, and none of its watch events. An event about its own node before the close
    /// would look as if another client had deleted that node.
    pub fn expire(&mut self, session: i64, now: Now, out: &mut Vec<Effect>) -> bool {
        let Some(connection) = self.sessions.get(session).map(|session| session.connection) else { return false };
        if let Some(connection) = connection {
            self.watches.remove_connection(connection);
        }
        self.end_session(session, now, out);
        if let Some(connection) = connection {
            out.push(Effect::Close { connection, reason: CloseReason::SessionExpired });
        }
        true
    }

    fn end_session(&mut self, session: i64, now: Now, out: &mut Vec<Effect>) {
        let ephemerals = self.tree.ephemerals(session).cloned().collect();
        self.commit(session, TxnOp::CloseSession { ephemerals }, now, out);
        if let Some(Session { connection: Some(connection), .. }) = self.sessions.remove(session) {
            self.watches.remove_connection(connection);
            self.leave(connection);
        }
    }

    /// Sets the sequence number of a node's next child.
    pub fn set_child_counter(&mut self, parent: &str, next: i32, now: Now, out: &mut Vec<Effect>) -> bool {
        let Some((path, _)) = self.tree.get_with_path(parent) else { return false };
        let op = TxnOp::SetChildCounter { path: Arc::clone(path), creates: next };
        self.commit(0, op, now, out);
        true
    }

    /// Passes the time: ends expired sessions, and removes containers and TTL nodes that are due. If there are many, it
    /// does a slice of that and puts off the rest; see [`Machine::go_on`].
    pub fn tick(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.expiring = Some(now.monotonic);
        if now.monotonic >= self.next_container_check {
            self.next_container_check = now.monotonic + self.config.container_check;
            self.reaping = Some(Arc::from(""));
        }
        self.go_on(now, out);
    }

    /// Returns whether something is put off.
    pub fn has_put_off(&self) -> bool {
        self.expiring.is_some() || self.reaping.is_some() || self.watches.has_gone()
    }

    /// Does a slice of what was put off. A session ends as a whole, with all its nodes, as other clients see it.
    pub fn go_on(&mut self, now: Now, out: &mut Vec<Effect>) {
        let before = self.worked;
        while let Some(until) = self.expiring {
            if self.worked - before >= SLICE {
                return;
            }
            let expired = self.sessions.expired(until).next();
            match expired {
                Some(session) => _ = self.expire(session, now, out),
                None => self.expiring = None,
            }
        }
        let unused_after = i64::try_from(self.config.container_unused.as_millis()).unwrap_or(i64::MAX);
        while let Some(last) = &self.reaping {
            if self.worked - before >= SLICE {
                return;
            }
            let (due, last) = self.tree.reapable(last, REAPED, now.wall_ms, unused_after);
            self.worked += REAPED * work::VISIT;
            for path in due {
                self.commit(0, TxnOp::Delete { path }, now, out);
            }
            self.reaping = last;
        }
        if self.worked == before {
            self.watches.forget();
        }
    }

    fn commit(&mut self, session: i64, op: TxnOp, now: Now, out: &mut Vec<Effect>) -> Applied {
        self.zxid += 1;
        let txn = Txn { zxid: self.zxid, time_ms: now.wall_ms, session, op };
        let mut events = std::mem::take(&mut self.events);
        let applied = self.tree.apply(&txn, &mut events);
        if session == 0 || matches!(txn.op, TxnOp::CloseSession { .. }) {
            // Other requests were counted before.
            self.worked += work::CHANGE * events.len() / 2;
        }
        out.push(Effect::Committed(txn));
        out.extend(self.tree.counted_nodes().map(|path| Effect::Counted { path }));
        let exceeded = self.tree.exceeded_quotas();
        out.extend(exceeded.map(|(path, nodes, bytes)| Effect::QuotaExceeded { path, nodes, bytes }));
        let mut told = 0;
        for TreeEvent { kind, path, acl } in events.drain(..) {
            let concerned = self.watches.fire(&path, kind);
            self.worked += work::events(concerned.len(), &path, acl.len());
            for connection in concerned {
                told += work::events(1, &path, acl.len());
                if told > work::MOST {
                    // Requests were refused before. This is the end of a session, which cannot be.
                    self.watches.remove_connection(connection);
                    out.push(Effect::Close { connection, reason: CloseReason::TooManyEvents });
                    continue;
                }
                let who = self.connections.get(&connection).map(|peer| &peer.who);
                if who.is_none_or(|who| permit(&acl, Perms::READ, who).is_err()) {
                    continue;
                }
                let path = Arc::clone(&path);
                out.push(Effect::Event { connection, kind, path, event_zxid: self.zxid, zxid: self.zxid });
            }
        }
        events.shrink_to(KEPT_EVENTS);
        self.events = events;
        applied
    }
}

fn found(found: bool) -> Result<Response, ErrorCode> {
    if found { Ok(Response::Done) } else { Err(ErrorCode::NoWatcher) }
}

#[cfg(test)]
pub(crate) mod tests;
