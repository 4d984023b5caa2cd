//! The servers: copies of the leader's tree that lag, and the connections that they serve.

use lockkeeper_server::machine::{
    ConnectionId, Effect, Identities, Tree, TreeEvent, TxnOp, Watches, answer, watch_left,
};
use lockkeeper_wire::{ErrorCode, EventKind, Request, Response, SetWatches, WatchKind};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::link::Outlet;
use super::{Applied, Feed, Sim, World};

/// A message from a server to a client.
#[derive(Debug)]
pub(super) enum ToClient {
    /// The answer to the oldest request without one.
    Reply { zxid: i64, result: Result<Response, ErrorCode> },
    /// A watch fired.
    Event { path: String, kind: EventKind },
    /// The connection ends.
    Close,
}

/// One server's copy of the state.
pub(super) struct Replica {
    feed: mpsc::UnboundedSender<Feed>,
    last_due: Instant,
    /// Until when it accepts no connection.
    pub(super) down_until: Instant,
    pub(super) tree: Tree,
    pub(super) watches: Watches,
    pub(super) applied: Applied,
}

/// A connection from the server's side.
pub(super) struct Connection {
    pub(super) replica: usize,
    pub(super) replies: mpsc::UnboundedSender<ToClient>,
}

impl Replica {
    pub(super) fn new(feed: mpsc::UnboundedSender<Feed>, origin: Instant) -> Self {
        let (tree, watches) = (Tree::new(), Watches::default());
        Replica { feed, last_due: origin, down_until: origin, tree, watches, applied: watch::channel(0).0 }
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
        let child = wanted.child.iter().map(|path| (path, WatchKind::Child));
        for (path, kind) in data.chain(child) {
            let stat = self.tree.get(path).map(|node| node.stat());
            let event = match (stat, kind) {
                (None, _) => Some(EventKind::Deleted),
                (Some(stat), WatchKind::Data) => (stat.mzxid > wanted.relative_zxid).then_some(EventKind::DataChanged),
                (Some(stat), _) => (stat.pzxid > wanted.relative_zxid).then_some(EventKind::ChildrenChanged),
            };
            match event {
                Some(event) => missed.push((path.clone(), event)),
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
            for connection in replica.watches.fire(&path, kind) {
                if let Some(connection) = world.connections.get(&connection.0) {
                    _ = connection.replies.send(ToClient::Event { path: path.to_string(), kind });
                }
            }
        }
        replica.applied.send_replace(txn.zxid);
        if let TxnOp::CloseSession { .. } = txn.op {
            // Closes the connections of a session that has ended.
            let ended = |connection: &u64| {
                world.machine.session_of(ConnectionId(*connection)).is_none()
                    && world.connections[connection].replica == at
            };
            let gone: Vec<u64> = world.connections.keys().copied().filter(ended).collect();
            for connection in gone {
                if let Some(connection) = world.connections.get(&connection) {
                    _ = connection.replies.send(ToClient::Close);
                }
            }
        }
    }
}

/// Serves one connection: requests in order, each answered before the next one is read.
pub(super) async fn serve(sim: Sim, connection: ConnectionId, session: i64, mut requests: Outlet<Request>) {
    while let Some(request) = requests.recv().await {
        let closes = request == Request::CloseSession;
        let waits = carry_out(&sim, connection, session, request);
        match waits {
            Step::Answered => {}
            Step::Gone => break,
            Step::OnceApplied(zxid, result) => {
                if caught_up(&sim, connection, zxid).await.is_none() {
                    break;
                }
                sim.world().reply(connection, result);
            }
        }
        if closes {
            break;
        }
    }
    sim.world().connections.remove(&connection.0);
}

/// The result of a request.
enum Step {
    /// It was answered.
    Answered,
    /// Its answer is sent when the connection's server has applied this transaction.
    OnceApplied(i64, Result<Response, ErrorCode>),
    /// The connection has no client any more.
    Gone,
}

fn carry_out(sim: &Sim, connection: ConnectionId, session: i64, request: Request) -> Step {
    let mut world = sim.world();
    let Some(at) = world.connections.get(&connection.0).map(|connection| connection.replica) else {
        return Step::Gone;
    };
    world.count(kind_of(&request));
    let mut effects = Vec::new();
    // Every request counts as a heartbeat for the leader; no effect comes back if the session has ended or moved.
    world.machine.request(connection, 0, Request::Ping, sim.now(), &mut effects);
    if effects.is_empty() {
        return Step::Gone;
    }
    if let Request::Sync { .. } = request {
        return Step::OnceApplied(world.last, Ok(Response::Done));
    }
    if let Request::SetWatches(wanted) = &request {
        for (path, kind) in world.replicas[at].set_watches(connection, wanted) {
            _ = world.connections[&connection.0].replies.send(ToClient::Event { path, kind });
        }
        world.reply(connection, Ok(Response::Done));
        return Step::Answered;
    }
    let replica = &mut world.replicas[at];
    if let Some(result) = answer(&replica.tree, session, &Identities::default(), &request) {
        if let Some((path, kind)) = watch_left(&request, &result) {
            replica.watches.add(connection, path, kind);
        }
        // Immediately: an event of the new watch must not overtake the answer.
        world.reply(connection, result);
        return Step::Answered;
    }
    effects.clear();
    world.machine.request(connection, 0, request, sim.now(), &mut effects);
    sim.commit(&mut world, &effects);
    let answered = effects.into_iter().find_map(|effect| match effect {
        Effect::Reply { zxid, result, .. } => Some(Step::OnceApplied(zxid, result)),
        _ => None,
    });
    answered.unwrap_or(Step::Gone)
}

impl World {
    /// Answers the oldest request of a connection that has no answer yet.
    fn reply(&mut self, connection: ConnectionId, result: Result<Response, ErrorCode>) {
        if let Some(known) = self.connections.get(&connection.0) {
            let zxid = *self.replicas[known.replica].applied.borrow();
            _ = known.replies.send(ToClient::Reply { zxid, result });
        }
    }
}

/// Waits until the connection's server has applied `zxid`; `None` if the connection has ended.
pub(super) async fn caught_up(sim: &Sim, connection: ConnectionId, zxid: i64) -> Option<()> {
    let mut applied = {
        let world = sim.world();
        world.replicas[world.connections.get(&connection.0)?.replica].applied.subscribe()
    };
    applied.wait_for(|applied| *applied >= zxid).await.ok().map(drop)
}

fn kind_of(request: &Request) -> &'static str {
    match request {
        Request::Create(_) => "create",
        Request::Delete(_) => "delete",
        Request::GetData(_) => "getData",
        Request::GetChildren(_) | Request::GetChildren2(_) => "getChildren",
        Request::Sync { .. } => "sync",
        Request::Ping => "ping",
        Request::SetWatches(_) => "setWatches",
        Request::CloseSession => "closeSession",
        _ => "other",
    }
}
