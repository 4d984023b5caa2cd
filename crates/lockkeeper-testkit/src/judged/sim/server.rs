//! The servers: copies of the leader's tree that lag, and the connections that they serve.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use lockkeeper_server::machine::{
    ConnectionId, Effect, Identities, Tree, TreeEvent, TxnOp, Watches, Work, answer, watch_left,
};
use lockkeeper_wire::request::{self, Packet};
use lockkeeper_wire::{ErrorCode, EventKind, Request, Response, SetWatches, WatchKind, WriteOp, frame, response};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::link::{Inlet, Outlet};
use super::{Fault, Feed, Sim, World};

/// The zxid of an event for a change that was missed while the client was not connected.
const MISSED: i64 = -1;

/// One server's copy of the state.
pub(super) struct Replica {
    feed: mpsc::UnboundedSender<Feed>,
    last_due: Instant,
    /// Until when it accepts no connection.
    pub(super) down_until: Instant,
    pub(super) tree: Tree,
    pub(super) watches: Watches,
    /// The newest transaction that it has applied.
    applied: i64,
    /// Notified of every change of `applied`; wakes in the order in which tasks wait.
    progress: Arc<Notify>,
}

/// A connection from the server's side.
pub(super) struct Connection {
    pub(super) replica: usize,
    pub(super) host: usize,
    pub(super) to_client: Inlet,
    pub(super) to_server: Inlet,
    /// The session, as long as its end closes the connection; 0 before it is accepted.
    pub(super) session: i64,
    /// The server answers pings and nothing else.
    pub(super) pings_only: bool,
}

impl Replica {
    pub(super) fn new(feed: mpsc::UnboundedSender<Feed>, origin: Instant) -> Self {
        let (tree, watches, progress) = (Tree::new(), Watches::default(), Arc::default());
        Replica { feed, last_due: origin, down_until: origin, tree, watches, applied: 0, progress }
    }

    /// Applies a transaction when it is due, or directly behind the one before it.
    pub(super) fn feed(&mut self, mut feed: Feed) {
        self.last_due = self.last_due.max(feed.due);
        feed.due = self.last_due;
        _ = self.feed.send(feed);
    }

    /// Fires the watches whose change was missed, and keeps the others, as a server does on `setWatches`.
    pub(super) fn set_watches(&mut self, connection: ConnectionId, wanted: &SetWatches) -> Vec<(String, EventKind)> {
        let mut missed = Vec::new();
        let data = wanted.data.iter().map(|path| (path, WatchKind::Data));
        let exist = wanted.exist.iter().map(|path| (path, WatchKind::Any));
        let child = wanted.child.iter().map(|path| (path, WatchKind::Child));
        for (path, kind) in data.chain(exist).chain(child) {
            let stat = self.tree.get(path).map(|node| node.stat());
            let event = match (stat, kind) {
                (Some(_), WatchKind::Any) => Some(EventKind::Created),
                (None, WatchKind::Any) => None,
                (None, _) => Some(EventKind::Deleted),
                (Some(stat), WatchKind::Data) => (stat.mzxid > wanted.relative_zxid).then_some(EventKind::DataChanged),
                (Some(stat), _) => (stat.pzxid > wanted.relative_zxid).then_some(EventKind::ChildrenChanged),
            };
            match event {
                Some(event) => missed.push((path.clone(), event)),
                // A watch for the creation is a data watch.
                None if kind == WatchKind::Any => self.watches.add(connection, path, WatchKind::Data),
                None => self.watches.add(connection, path, kind),
            }
        }
        missed
    }
}

/// Runs a server: applies the committed transactions in order, and notifies its clients.
pub(super) async fn apply(sim: Sim, at: usize, mut txns: mpsc::UnboundedReceiver<Feed>) {
    while let Some(Feed { due, committed_at, leader, txn }) = txns.recv().await {
        tokio::time::sleep_until(due).await;
        let mut world = sim.world();
        let world = &mut *world;
        if world.failures.get(leader).is_some_and(|failed| committed_at > *failed) {
            // It was lost with its leader.
            continue;
        }
        let replica = &mut world.replicas[at];
        let mut events = Vec::new();
        replica.tree.apply(&txn, &mut events);
        for TreeEvent { kind, path, .. } in events {
            for connection in world.replicas[at].watches.fire(&path, kind) {
                world.notify(connection, txn.zxid, kind, &path);
            }
        }
        world.replicas[at].applied = txn.zxid;
        world.replicas[at].progress.notify_waiters();
        if let TxnOp::CloseSession { .. } = txn.op {
            world.hang_up(|connection| connection.replica == at && connection.session == txn.session, World::leave);
        }
    }
}

/// Serves one connection: requests in order. As Apache's `CommitProcessor` does, it answers nothing behind a write that is under
/// way, pings included. Writes are not held back.
pub(super) async fn serve(sim: Sim, connection: ConnectionId, mut from_client: Outlet) {
    _ = answer_all(&sim, connection, &mut from_client).await;
    sim.world().hang_up_one(connection, World::leave);
}

/// Returns when the connection has ended.
async fn answer_all(sim: &Sim, connection: ConnectionId, from_client: &mut Outlet) -> Option<()> {
    let mut received = BytesMut::new();
    let wish = next_frame(&mut received, from_client).await?;
    let session = greet(sim, connection, &wish).await?;
    // The oldest one is a write.
    let mut pending: VecDeque<(i32, Pending)> = VecDeque::new();
    loop {
        let oldest = match pending.front() {
            Some((_, Pending::Write(zxid, _))) => Some(*zxid),
            _ => None,
        };
        let payload = tokio::select! {
            biased;
            applied = async { caught_up(sim, connection, oldest.unwrap_or_default()).await }, if oldest.is_some() => {
                applied?;
                None
            }
            payload = next_frame(&mut received, from_client) => Some(payload?),
        };
        if let Some(payload) = payload {
            let Ok(Packet::Request { xid, request, .. }) = request::decode(&payload) else { return None };
            if sim.world().connections.get(&connection.0)?.pings_only {
                let ping = request == Request::Ping;
                sim.world().counts.add(if ping { Fault::OnlyPing } else { Fault::IgnoredRequest }, 1);
                if !ping {
                    continue;
                }
            }
            if !touch(sim, connection) {
                return None;
            }
            if !pending.is_empty() && !is_write(&request) {
                sim.world().counts.add(Fault::HeldBack, 1);
                pending.push_back((xid, Pending::Request(request)));
                continue;
            }
            match carry_out(sim, connection, session, xid, request) {
                Step::Answered => {}
                Step::Gone => return None,
                Step::OnceApplied(zxid, result) => pending.push_back((xid, Pending::Write(zxid, result))),
            }
            continue;
        }
        // The oldest write is applied, and the requests behind it are answered up to the next write.
        while let Some((xid, next)) = pending.pop_front() {
            match next {
                Pending::Write(zxid, result) if sim.world().has_applied(connection, zxid)? => {
                    sim.world().reply(connection, xid, &result);
                }
                write @ Pending::Write(..) => {
                    pending.push_front((xid, write));
                    break;
                }
                Pending::Request(request) => match carry_out(sim, connection, session, xid, request) {
                    Step::Answered => {}
                    Step::Gone => return None,
                    // A sync: what is behind it waits for it.
                    Step::OnceApplied(zxid, result) => pending.push_front((xid, Pending::Write(zxid, result))),
                },
            }
        }
    }
}

/// A request that has no answer.
enum Pending {
    /// Its answer is sent when the connection's server has applied this transaction.
    Write(i64, Result<Response, ErrorCode>),
    /// It is carried out when those before it are answered.
    Request(Request),
}

/// Whether the leader orders the request and it may pass reads. A `sync` waits with the reads, and so does the close.
fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Create(_) | Request::Delete(_) | Request::SetData(_) | Request::SetAcl { .. } | Request::Multi(_)
    )
}

/// Counts a request as a sign of life of its session when it arrives; `false` if the session has ended or moved.
fn touch(sim: &Sim, connection: ConnectionId) -> bool {
    let mut effects = Vec::new();
    sim.world().machine.request(connection, 0, Request::Ping, sim.now(), &mut effects);
    !effects.is_empty()
}

/// Returns the payload of the next frame; `None` if the connection ends first.
async fn next_frame(received: &mut BytesMut, from_client: &mut Outlet) -> Option<BytesMut> {
    loop {
        if let Some(payload) = frame::first(received, 1 << 20).ok()? {
            let len = payload.len();
            received.advance(4);
            return Some(received.split_to(len));
        }
        received.extend_from_slice(&from_client.recv().await?);
    }
}

/// Answers the connect request. Returns the session; `None` if there is none.
async fn greet(sim: &Sim, connection: ConnectionId, wish: &[u8]) -> Option<i64> {
    let request = request::decode_connect(wish).ok()?;
    let (answer, zxid) = {
        let world = &mut *sim.world();
        let replica = world.connections.get(&connection.0)?.replica;
        if world.replicas[replica].applied < request.last_zxid_seen {
            // The client has seen more than this server has.
            world.counts.add(Fault::StaleServer, 1);
            return None;
        }
        let (mut effects, password) = (Vec::new(), world.rng.u128(..).to_be_bytes());
        world.machine.connect(connection, &request, password, true, sim.now(), &mut effects);
        sim.commit(world, &effects);
        let mut accepted = None;
        for effect in effects {
            match effect {
                Effect::Connected { response, zxid, .. } => accepted = Some((response, zxid)),
                // The session was resumed over this connection.
                Effect::Close { connection: earlier, .. } if earlier != connection => {
                    let half = world.connections.get(&earlier.0).is_some_and(|earlier| earlier.to_server.is_severed());
                    world.counts.add(Fault::HalfOpen, half.into());
                    world.hang_up_one(earlier, World::leave);
                }
                _ => {}
            }
        }
        accepted?
    };
    // A new session exists on a server once its transaction is applied there; an old one needs no wait.
    if request.session == 0 {
        caught_up(sim, connection, zxid).await?;
    }
    let world = &mut *sim.world();
    // `None`: the server failed meanwhile, and the session may not exist.
    let known = world.connections.get_mut(&connection.0)?;
    known.session = answer.session;
    world.counts.add(Fault::RefusedSession, (answer.session == 0).into());
    world.counts.add(Fault::KeptSession, world.outlasted.remove(&answer.session).into());
    let mut bytes = BytesMut::new();
    response::encode_connect(&mut bytes, &answer, request.has_read_only);
    world.send(connection, &bytes);
    (answer.session != 0).then_some(answer.session)
}

/// The result of a request.
enum Step {
    Answered,
    /// Its answer is sent when the connection's server has applied this transaction.
    OnceApplied(i64, Result<Response, ErrorCode>),
    /// The connection has no client any more.
    Gone,
}

fn carry_out(sim: &Sim, connection: ConnectionId, session: i64, xid: i32, request: Request) -> Step {
    let world = &mut *sim.world();
    let Some(at) = world.connections.get(&connection.0).map(|connection| connection.replica) else {
        return Step::Gone;
    };
    world.count(kind_of(&request));
    if let Request::GetChildren(listed) | Request::GetChildren2(listed) = &request
        && let Some(host) = world.connections.get(&connection.0).map(|connection| connection.host)
    {
        world.listings.push((host, sim.elapsed(), listed.path.clone()));
    }
    let mut effects = Vec::new();
    if world.machine.session_of(connection).is_none() {
        return Step::Gone;
    }
    match request {
        Request::Sync { path } => return Step::OnceApplied(world.last, Ok(Response::Path(path))),
        Request::SetWatches(wanted) => {
            for (path, kind) in world.replicas[at].set_watches(connection, &wanted) {
                world.notify(connection, MISSED, kind, &path);
            }
            world.reply(connection, xid, &Ok(Response::Done));
            return Step::Answered;
        }
        Request::RemoveWatches { path, kind } => {
            let removed = world.replicas[at].watches.remove(connection, &path, kind);
            world.reply(connection, xid, &if removed { Ok(Response::Done) } else { Err(ErrorCode::NoWatcher) });
            return Step::Answered;
        }
        Request::CloseSession => {
            // The end of the session must not close the connection ahead of the answer.
            if let Some(known) = world.connections.get_mut(&connection.0) {
                known.session = 0;
            }
        }
        _ => {}
    }
    let replica = &mut world.replicas[at];
    if let Some(result) =
        answer(&replica.tree, session, &Identities::default(), &request, usize::MAX, &mut Work::default())
    {
        if let Some((path, kind)) = watch_left(&request, &result) {
            replica.watches.add(connection, path, kind);
        }
        // Immediately: an event of the new watch must not overtake the answer.
        world.reply(connection, xid, &result);
        return Step::Answered;
    }
    world.machine.request(connection, 0, request, sim.now(), &mut effects);
    sim.commit(world, &effects);
    let answered = effects.into_iter().find_map(|effect| match effect {
        Effect::Reply { zxid, result, .. } => Some(Step::OnceApplied(zxid, result)),
        _ => None,
    });
    answered.unwrap_or(Step::Gone)
}

impl World {
    /// Whether the connection's server has applied the transaction; `None` if the connection has ended.
    fn has_applied(&self, connection: ConnectionId, zxid: i64) -> Option<bool> {
        let known = self.connections.get(&connection.0)?;
        Some(self.replicas[known.replica].applied >= zxid)
    }

    fn reply(&mut self, connection: ConnectionId, xid: i32, result: &Result<Response, ErrorCode>) {
        if let Some(known) = self.connections.get(&connection.0) {
            let zxid = self.replicas[known.replica].applied;
            let mut bytes = BytesMut::new();
            response::encode(&mut bytes, xid, zxid, result);
            self.send(connection, &bytes);
        }
    }

    fn notify(&mut self, connection: ConnectionId, zxid: i64, kind: EventKind, path: &str) {
        self.count("event");
        let mut bytes = BytesMut::new();
        response::encode_event(&mut bytes, zxid, kind, path);
        self.send(connection, &bytes);
    }

    /// Sends bytes to the client, if the connection has not ended.
    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if let Some(known) = self.connections.get(&connection.0) {
            let (host, to_client) = (known.host, known.to_client.clone());
            self.transmit(host, &to_client, bytes);
        }
    }
}

/// Waits until the connection's server has applied `zxid`; `None` if the connection has ended.
pub(super) async fn caught_up(sim: &Sim, connection: ConnectionId, zxid: i64) -> Option<()> {
    let at = sim.world().connections.get(&connection.0)?.replica;
    loop {
        let progress = {
            let world = sim.world();
            let replica = &world.replicas[at];
            if replica.applied >= zxid {
                return Some(());
            }
            // Registered while the world is locked: it misses no change.
            replica.progress.clone().notified_owned()
        };
        progress.await;
    }
}

fn kind_of(request: &Request) -> &'static str {
    match request {
        Request::Create(_) => "create",
        Request::Delete(_) => "delete",
        Request::GetData(_) => "getData",
        Request::SetData(_) => "setData",
        Request::GetChildren(_) | Request::GetChildren2(_) => "getChildren",
        Request::Multi(ops) if matches!(ops[..], [WriteOp::Check(_)]) => "check",
        Request::Multi(_) => "multi",
        Request::MultiRead(_) => "multiRead",
        Request::Sync { .. } => "sync",
        Request::Ping => "ping",
        Request::SetWatches(_) => "setWatches",
        Request::CloseSession => "closeSession",
        _ => "other",
    }
}
