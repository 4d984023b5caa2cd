//! The client side: a session that reconnects, times out and queues requests as the TCP client's does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper::ensemble::{
    Children, Connection, Done, Ensemble, Fired, Kind, Network, Node, OpError, Opened, Reply, Step, Undone, Watcher,
    Written,
};
use lockkeeper::error::SessionError;
use lockkeeper::{Loss, SessionId};
use lockkeeper_core::Zxid;
use lockkeeper_server::machine::{ConnectionId, Effect};
use lockkeeper_wire::{
    ConnectRequest, Create, CreateMode, ErrorCode, EventKind, OpResult, Request, Response, SetData, SetWatches, Stat,
    VersionedPath, WatchedPath, WriteOp,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::link::{Inlet, link};
use super::server::{ToClient, caught_up, serve};
use super::{Sim, Trouble};

/// Opens sessions with a simulated ensemble.
pub(super) struct SimNetwork {
    pub(super) sim: Sim,
    pub(super) session_timeout: Duration,
}

impl Network for SimNetwork {
    fn open(&self, patience: Duration) -> BoxFuture<'_, Result<Opened, SessionError>> {
        async move {
            let (troubles, trouble) = mpsc::unbounded_channel();
            self.sim.world().clients.push(troubles);
            let (queue, requests) = mpsc::unbounded_channel();
            let (states, connection) = mpsc::unbounded_channel();
            let mut session = Session {
                sim: self.sim.clone(),
                id: 0,
                password: [7; 16],
                timeout: self.session_timeout,
                seen: 0,
                heard: Instant::now(),
                silent_until: Instant::now(),
                trouble,
                requests,
                states,
                watchers: BTreeMap::new(),
            };
            let opened = tokio::time::timeout(patience, session.connect()).await;
            let Ok(Some(link)) = opened else {
                let (servers, detail) = ("the simulation".to_owned(), "no server answers".to_owned());
                return Err(SessionError::Unreachable { servers, waited: patience, detail });
            };
            let (id, timeout) = (SessionId(session.id), session.timeout);
            tokio::spawn(session.live(link));
            Ok(Opened { ensemble: Arc::new(Client { id, queue }), timeout, connection, anchor: None })
        }
        .boxed()
    }
}

/// A request and the sender of its answer.
struct Pending {
    request: Request,
    answer: oneshot::Sender<Result<Answer, OpError>>,
}

/// An answer, with the watch that the request set.
struct Answer {
    response: Response,
    watch: Option<oneshot::Receiver<Fired>>,
}

/// The operations of one session.
struct Client {
    id: SessionId,
    queue: mpsc::UnboundedSender<Pending>,
}

impl Client {
    fn ask<T: 'static>(&self, request: Request, read: impl FnOnce(Answer) -> Option<T> + Send + 'static) -> Reply<T> {
        let queue = self.queue.clone();
        async move {
            let (answer, answered) = oneshot::channel();
            _ = queue.send(Pending { request, answer });
            // Not kept during the wait: the drop of the last handle closes the session.
            drop(queue);
            let answer = answered.await.unwrap_or(Err(OpError::SessionOver))?;
            read(answer).ok_or_else(|| OpError::Refused("an answer of another kind".to_owned()))
        }
        .boxed()
    }
}

impl Ensemble for Client {
    fn session(&self) -> SessionId {
        self.id
    }

    fn create(&self, path: &str, data: Vec<u8>, kind: Kind) -> Reply<(String, Zxid)> {
        self.ask(Request::Create(Create::new(path, data, mode(kind))), |answer| match answer.response {
            Response::Created { path, stat: Some(stat) } => {
                Some((path.rsplit('/').next().unwrap_or_default().to_owned(), Zxid(stat.czxid)))
            }
            _ => None,
        })
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        let delete = VersionedPath { path: path.to_owned(), version: version.unwrap_or(-1) };
        self.ask(Request::Delete(delete), |_| Some(()))
    }

    fn write(&self, path: &str, data: Vec<u8>, version: Option<i32>) -> Reply<Written> {
        let write = SetData { path: path.to_owned(), data: Some(data.into()), version: version.unwrap_or(-1) };
        self.ask(Request::SetData(write), |answer| match answer.response {
            Response::Stat(stat) => Some(written(&stat)),
            _ => None,
        })
    }

    fn transact(&self, steps: Vec<Step>) -> Reply<Vec<Done>, Undone> {
        let asked =
            self.ask(Request::Multi(steps.into_iter().map(write_op).collect()), |answer| match answer.response {
                Response::Multi(results) => Some(results),
                _ => None,
            });
        async move {
            let mut done = Vec::new();
            for (step, result) in asked.await?.into_iter().enumerate() {
                done.push(match result {
                    OpResult::Created { stat, .. } => Done::Created(stat.map(|stat| Zxid(stat.czxid))),
                    OpResult::DataSet(stat) => Done::Written(written(&stat)),
                    OpResult::Deleted => Done::Deleted,
                    OpResult::Failed(error) if error != ErrorCode::RuntimeInconsistency => {
                        return Err(Undone { step: Some(step), fault: fault(error) });
                    }
                    // A check, or a step beside the one that failed.
                    _ => Done::Checked,
                });
            }
            Ok(done)
        }
        .boxed()
    }

    fn list(&self, path: &str) -> Reply<Children> {
        let list = WatchedPath { path: path.to_owned(), watch: false };
        self.ask(Request::GetChildren2(list), |answer| children(&answer.response))
    }

    fn list_and_watch(&self, path: &str) -> Reply<(Vec<String>, Watcher)> {
        let list = WatchedPath { path: path.to_owned(), watch: true };
        self.ask(Request::GetChildren(list), |answer| Some((names(&answer.response)?, watcher(answer.watch?))))
    }

    fn read(&self, path: &str) -> Reply<Node> {
        let read = WatchedPath { path: path.to_owned(), watch: false };
        self.ask(Request::GetData(read), |answer| node(answer.response))
    }

    fn read_and_watch(&self, path: &str) -> Reply<(Node, Watcher)> {
        let read = WatchedPath { path: path.to_owned(), watch: true };
        self.ask(Request::GetData(read), |answer| Some((node(answer.response)?, watcher(answer.watch?))))
    }

    /// Its worlds are never rebuilt, so the ensemble has no epoch.
    fn epoch(&self) -> Reply<(Option<Node>, Watcher)> {
        std::future::ready(Ok((None, std::future::pending().boxed()))).boxed()
    }

    fn set_epoch(&self, _: Vec<u8>, _: Option<i32>) -> Reply<()> {
        std::future::ready(Err(OpError::Unsupported)).boxed()
    }

    fn prove(&self) -> Reply<()> {
        let nobodys = VersionedPath { path: "/lockkeeper-heartbeat".to_owned(), version: i32::MAX };
        let asked = self.ask(Request::Delete(nobodys), |_| Some(()));
        asked.map(|answer| answer.or_else(|fault| if fault == OpError::NoNode { Ok(()) } else { Err(fault) })).boxed()
    }
}

fn mode(kind: Kind) -> CreateMode {
    match kind {
        Kind::EphemeralSequential => CreateMode::EphemeralSequential,
        Kind::Ephemeral => CreateMode::Ephemeral,
        Kind::Container => CreateMode::Container,
        Kind::Persistent => CreateMode::Persistent,
    }
}

fn write_op(step: Step) -> WriteOp {
    match step {
        Step::Check { path, version } => WriteOp::Check(VersionedPath { path, version: version.unwrap_or(-1) }),
        Step::Create { path, data, kind } => WriteOp::Create(Create::new(path, data, mode(kind))),
        Step::Write { path, data, version } => {
            WriteOp::SetData(SetData { path, data: Some(data.into()), version: version.unwrap_or(-1) })
        }
        Step::Delete { path, version } => WriteOp::Delete(VersionedPath { path, version: version.unwrap_or(-1) }),
    }
}

fn fault(error: ErrorCode) -> OpError {
    match error {
        ErrorCode::NoNode => OpError::NoNode,
        ErrorCode::NodeExists => OpError::NodeExists,
        ErrorCode::BadVersion => OpError::BadVersion,
        error => OpError::Refused(format!("{error:?}")),
    }
}

fn names(response: &Response) -> Option<Vec<String>> {
    match response {
        Response::Children { names, .. } => Some(names.iter().map(ToString::to_string).collect()),
        _ => None,
    }
}

fn children(response: &Response) -> Option<Children> {
    match response {
        Response::Children { stat: Some(stat), .. } => {
            Some(Children { names: names(response)?, data_len: usize::try_from(stat.data_length).unwrap_or(0) })
        }
        _ => None,
    }
}

fn written(stat: &Stat) -> Written {
    Written { version: stat.version, mzxid: Zxid(stat.mzxid), mtime_ms: stat.mtime }
}

fn node(response: Response) -> Option<Node> {
    match response {
        Response::Data { data, stat } => Some(Node {
            data: data.map(|data| data.to_vec()).unwrap_or_default(),
            czxid: Zxid(stat.czxid),
            mzxid: Zxid(stat.mzxid),
            ctime_ms: stat.ctime,
            mtime_ms: stat.mtime,
            version: stat.version,
            owner: SessionId(stat.ephemeral_owner),
            children: usize::try_from(stat.num_children).unwrap_or(0),
        }),
        _ => None,
    }
}

fn watcher(fired: oneshot::Receiver<Fired>) -> Watcher {
    fired.map(|fired| fired.unwrap_or(Fired::SessionOver)).boxed()
}

/// A path, and whether its children are watched.
type Watched = (String, bool);

/// The task of a session.
struct Session {
    sim: Sim,
    id: i64,
    password: [u8; 16],
    timeout: Duration,
    /// The newest transaction that an answer showed.
    seen: i64,
    /// The time of the last message from a server.
    heard: Instant,
    /// The end of a silence: no server is reached before it.
    silent_until: Instant,
    trouble: mpsc::UnboundedReceiver<Trouble>,
    requests: mpsc::UnboundedReceiver<Pending>,
    states: mpsc::UnboundedSender<Connection>,
    watchers: BTreeMap<Watched, Vec<oneshot::Sender<Fired>>>,
}

/// A connection from the client's side.
struct ClientLink {
    connection: ConnectionId,
    to_server: Inlet<Request>,
    from_server: mpsc::UnboundedReceiver<ToClient>,
    /// The requests without an answer, the oldest first; `None` if no caller waits for it (pings, `setWatches`).
    waiting: VecDeque<Option<Pending>>,
}

/// How a connection ended.
enum Ended {
    Lost,
    Closed,
}

impl Session {
    async fn live(mut self, mut link: ClientLink) {
        loop {
            match self.serve(&mut link).await {
                Ended::Closed => {
                    _ = self.states.send(Connection::Over(Loss::Closed));
                    return;
                }
                Ended::Lost => {
                    self.drop_link(link);
                    _ = self.states.send(Connection::Lost);
                }
            }
            // As the TCP client: after 7/5 of the timeout without a server, the session is given up.
            let patience = self.heard + self.timeout * 7 / 5;
            match tokio::time::timeout_at(patience, self.connect()).await {
                Ok(Some(fresh)) => {
                    link = fresh;
                    self.rewatch(&mut link);
                    _ = self.states.send(Connection::Back);
                }
                Ok(None) | Err(_) => {
                    self.requests.close();
                    _ = self.states.send(Connection::Over(Loss::SessionExpired));
                    return;
                }
            }
        }
    }

    /// Connects to random servers until one accepts the session. `None`: the session has expired.
    async fn connect(&mut self) -> Option<ClientLink> {
        loop {
            let travel = self.sim.within(&self.sim.settings.network.clone());
            tokio::time::sleep(travel).await;
            if Instant::now() < self.silent_until {
                tokio::time::sleep_until(self.silent_until).await;
            }
            let sim = self.sim.clone();
            let (replies, from_server) = mpsc::unbounded_channel();
            let replica = self.sim.pick(sim.settings.servers);
            let closed_until = sim.world().closed_until(replica);
            if Instant::now() < closed_until {
                // Refused; a client soon tries the next server.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            let attempt = {
                let mut world = sim.world();
                let behind = *world.replicas[replica].applied.borrow() < self.seen;
                let request = ConnectRequest {
                    last_zxid_seen: self.seen,
                    timeout_ms: i32::try_from(self.timeout.as_millis()).unwrap_or(i32::MAX),
                    session: self.id,
                    password: self.password.to_vec(),
                    has_read_only: true,
                };
                if behind {
                    None
                } else {
                    let connection = world.open_connection(replica, replies);
                    let mut effects = Vec::new();
                    world.machine.connect(connection, &request, self.password, sim.now(), &mut effects);
                    sim.commit(&mut world, &effects);
                    effects.into_iter().find_map(|effect| match effect {
                        Effect::Connected { response, zxid, .. } => Some((connection, response, zxid)),
                        _ => None,
                    })
                }
            };
            let Some((connection, response, zxid)) = attempt else {
                continue;
            };
            if response.session == 0 {
                return None;
            }
            // A new session exists on a server once its transaction is applied there; an old one needs no wait.
            let zxid = if self.id == 0 { zxid } else { 0 };
            caught_up(&sim, connection, zxid).await;
            if !sim.world().connections.contains_key(&connection.0) {
                // The server failed, and the session may not exist.
                continue;
            }
            self.id = response.session;
            self.timeout = Duration::from_millis(u64::try_from(response.timeout_ms).unwrap_or(0));
            self.heard = Instant::now();
            let (to_server, requests) = link();
            tokio::spawn(serve(sim, connection, self.id, requests));
            return Some(ClientLink { connection, to_server, from_server, waiting: VecDeque::new() });
        }
    }

    fn rewatch(&mut self, link: &mut ClientLink) {
        self.watchers.retain(|_, waiting| {
            waiting.retain(|waiting| !waiting.is_closed());
            !waiting.is_empty()
        });
        let paths = |children: bool| -> Vec<String> {
            self.watchers.keys().filter(|(_, c)| *c == children).map(|(path, _)| path.clone()).collect()
        };
        let (data, child) = (paths(false), paths(true));
        let wanted = SetWatches { relative_zxid: self.seen, data, child, ..SetWatches::default() };
        self.send(link, Request::SetWatches(wanted), None);
    }

    /// Drops the connection; by chance, requests on their way still take effect.
    fn drop_link(&mut self, link: ClientLink) {
        for pending in link.waiting.into_iter().flatten() {
            _ = pending.answer.send(Err(OpError::ConnectionLoss));
        }
        let mut world = self.sim.world();
        if world.rng.bool() {
            world.connections.remove(&link.connection.0);
            world.machine.disconnected(link.connection);
        }
    }

    async fn serve(&mut self, link: &mut ClientLink) -> Ended {
        let ping_after = self.timeout * 3 / 20;
        let silence = self.timeout * 2 / 5;
        let mut closing = false;
        let mut pinged = Instant::now();
        loop {
            let now = Instant::now();
            tokio::select! {
                biased;
                Some(trouble) = self.trouble.recv() => match trouble {
                    Trouble::Cut => return Ended::Lost,
                    Trouble::Silence(length) => self.silent_until = now + length,
                },
                message = link.from_server.recv(), if now >= self.silent_until => {
                    let travel = self.sim.within(&self.sim.settings.network.clone());
                    // In order: nothing else is received while this message travels.
                    tokio::time::sleep(travel).await;
                    self.heard = Instant::now();
                    match message {
                        None | Some(ToClient::Close) => return Ended::Lost,
                        Some(ToClient::Event { path, kind }) => self.fire(&path, kind),
                        Some(ToClient::Reply { zxid, result }) => {
                            self.seen = self.seen.max(zxid);
                            match link.waiting.pop_front() {
                                Some(Some(pending)) if closing && pending.request == Request::CloseSession => {
                                    return Ended::Closed;
                                }
                                Some(Some(pending)) => self.answer(pending, result),
                                Some(None) | None => {}
                            }
                        }
                    }
                }
                request = self.requests.recv(), if !closing => {
                    let pending = request.unwrap_or_else(|| {
                        closing = true;
                        Pending { request: Request::CloseSession, answer: oneshot::channel().0 }
                    });
                    self.send(link, pending.request.clone(), Some(pending));
                    pinged = now;
                }
                () = tokio::time::sleep_until(pinged + ping_after) => {
                    self.send(link, Request::Ping, None);
                    pinged = now;
                }
                () = tokio::time::sleep_until(self.heard + silence) => return Ended::Lost,
                () = tokio::time::sleep_until(self.silent_until), if now < self.silent_until => {}
            }
        }
    }

    /// Sends a request. During a silence it waits, as TCP would send it again, until the silence ends.
    fn send(&self, link: &mut ClientLink, request: Request, pending: Option<Pending>) {
        let travel = self.sim.within(&self.sim.settings.network.clone());
        let silence = self.silent_until.saturating_duration_since(Instant::now());
        link.to_server.send(request, silence + travel);
        link.waiting.push_back(pending);
    }

    fn answer(&mut self, pending: Pending, result: Result<Response, ErrorCode>) {
        let answer = match result {
            Ok(response) => {
                let watch = watched(&pending.request).map(|watched| {
                    let (fire, fired) = oneshot::channel();
                    self.watchers.entry(watched).or_default().push(fire);
                    fired
                });
                Ok(Answer { response, watch })
            }
            Err(error) => Err(fault(error)),
        };
        _ = pending.answer.send(answer);
    }

    fn fire(&mut self, path: &str, kind: EventKind) {
        let fired = if kind == EventKind::Deleted { Fired::Gone } else { Fired::Changed };
        for children in [false, true] {
            let concerned = kind == EventKind::Deleted || children == (kind == EventKind::ChildrenChanged);
            let waiting = concerned.then(|| self.watchers.remove(&(path.to_owned(), children))).flatten();
            for waiting in waiting.into_iter().flatten() {
                _ = waiting.send(fired);
            }
        }
    }
}

/// Returns the watch that a request sets.
fn watched(request: &Request) -> Option<Watched> {
    match request {
        Request::GetData(WatchedPath { path, watch: true }) => Some((path.clone(), false)),
        Request::GetChildren(WatchedPath { path, watch: true }) => Some((path.clone(), true)),
        _ => None,
    }
}
