//! The server as its owner uses it: start, query, stop.
//!
//! The server has its own thread with its own runtime. It works in any program, with or without a runtime, and a busy
//! program cannot starve it.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use tokio::net::{TcpListener, UnixListener, UnixSocket};
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::field::display;
use tracing::{debug, info, warn};

use crate::config::{Config, Storage};
use crate::error::ServerError;
use crate::machine::{Machine, MachineConfig, Tree};
use crate::net::command::{Command, Commands};
use crate::net::connection::Socket;
use crate::net::descriptors::{Spare, connections_that_fit};
use crate::net::disk::Disk;
use crate::net::engine::{Clock, Engine};
use crate::net::exceeded::Exceeded;
use crate::net::peer::Peer;
use crate::net::stats::{Counters, Stats};
use crate::net::{admin, connection};
use crate::store::{Batch, DiskStore, Store, StoredState};
use lockkeeper_wire::{Stat, refusal};

/// How long a stopping server waits for its clients to read their last answers.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of clients of the Unix socket that wait until they are accepted.
const BACKLOG: u32 = 1_024;

/// A running server. Dropping it stops it; this waits for the disk, not for clients.
#[derive(Debug)]
pub struct Server {
    address: Option<SocketAddr>,
    /// The path of the Unix socket, and its file there.
    socket: Option<(PathBuf, FileId)>,
    admin: Option<SocketAddr>,
    store_id: i64,
    counters: Arc<Counters>,
    commands: Commands,
    failure: watch::Receiver<Option<Arc<ServerError>>>,
    thread: Option<JoinHandle<()>>,
}

/// One node in the result of [`Server::dump`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpedNode {
    pub path: String,
    pub data: Vec<u8>,
    pub stat: Stat,
}

/// The result of a start; the starting thread waits for it.
struct Started {
    address: Option<SocketAddr>,
    socket: Option<(PathBuf, FileId)>,
    admin: Option<SocketAddr>,
    store_id: i64,
    counters: Arc<Counters>,
}

impl Server {
    /// Starts a server, and returns when it accepts connections.
    ///
    /// Works in any async runtime and does not block it.
    ///
    /// # Errors
    /// Each [`ServerError`] names the address or the directory; [`ServerError::hint`] says what to do.
    pub async fn start(config: Config) -> Result<Self, ServerError> {
        Self::launch(config, None).await
    }

    /// Starts a server for a test: in memory, on a free port of the loopback interface, with a tick of 100 ms. It grants
    /// session timeouts of 200 ms to 2 s: two to twenty ticks.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn ephemeral() -> Result<Self, ServerError> {
        Self::start(Config::default().with_tick(Duration::from_millis(100))).await
    }

    /// Starts with a given store, which must be empty.
    #[cfg(test)]
    pub(crate) async fn start_on(config: Config, store: Box<dyn Store>) -> Result<Self, ServerError> {
        Self::launch(config, Some(store)).await
    }

    async fn launch(mut config: Config, store: Option<Box<dyn Store>>) -> Result<Self, ServerError> {
        config.bound();
        let (commands, inbox) = Commands::channel();
        let (failed, failure) = watch::channel(None);
        let (ready, started) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("lockkeeper-server".to_owned())
            .spawn(move || run(&config, store, inbox, &failed, ready))
            .map_err(|source| ServerError::System { what: "a thread for the server", source })?;
        match started.await.unwrap_or(Err(ServerError::Stopped)) {
            Ok(Started { address, socket, admin, store_id, counters }) => {
                Ok(Self { address, socket, admin, store_id, counters, commands, failure, thread: Some(thread) })
            }
            Err(error) => {
                // The thread is about to end. Joining it frees the directory and the port before the caller tries
                // again.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// Returns the address that it listens on, with the real port.
    ///
    /// # Panics
    /// If it listens on no address, as with [`Config::with_socket`]. [`Server::listens_on`] returns `None` then.
    pub fn addr(&self) -> SocketAddr {
        self.address.expect("this server has a Unix socket only")
    }

    /// Returns the address that it listens on, with the real port, if there is one.
    pub fn listens_on(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the connect string for clients: the address, or `unix:` and the path of the socket.
    pub fn connect_string(&self) -> String {
        match (&self.address, &self.socket) {
            (Some(address), _) => address.to_string(),
            (None, Some((path, _))) => format!("unix:{}", path.display()),
            (None, None) => unreachable!("a server without both does not start"),
        }
    }

    /// Returns whether its socket is at this path. A person may have removed or renamed the directory.
    pub fn has_socket_at(&self, path: &Path) -> bool {
        self.socket.as_ref().is_some_and(|(_, id)| file_id(path).is_ok_and(|found| found == *id))
    }

    /// Returns the address of the operators' HTTP port, if there is one.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Returns the store's random id. Transactions of stores with different ids cannot be compared.
    pub fn store_id(&self) -> i64 {
        self.store_id
    }

    /// Returns the current counts. Everything that was answered is counted.
    pub fn stats(&self) -> Stats {
        self.counters.snapshot()
    }

    /// Returns the ids of the live sessions, in order.
    ///
    /// # Errors
    /// [`ServerError::Stopped`].
    pub async fn sessions(&self) -> Result<Vec<i64>, ServerError> {
        self.commands.run(|engine| engine.machine.sessions().iter().map(|(id, _)| id).collect()).await
    }

    /// Returns all nodes in path order. It copies everything, so it is for tests and diagnosis.
    ///
    /// # Errors
    /// [`ServerError::Stopped`].
    pub async fn dump(&self) -> Result<Vec<DumpedNode>, ServerError> {
        self.commands.run(|engine| dump(engine.machine.tree())).await
    }

    /// Returns the faults on demand, for tests of programs that use this server.
    #[cfg(feature = "faults")]
    pub fn faults(&self) -> crate::net::faults::Faults {
        crate::net::faults::Faults::new(self.commands.clone())
    }

    /// Resolves to the reason when the server has stopped because of an error; never otherwise.
    pub async fn stopped(&self) -> Arc<ServerError> {
        let mut failure = self.failure.clone();
        match failure.wait_for(Option::is_some).await {
            Ok(error) => error.clone().expect("waited for one"),
            // The thread ended without a report: it panicked.
            Err(_) => Arc::new(ServerError::Stopped),
        }
    }

    /// Stops the server. Every answered request is durable, connections are closed, and sessions are kept for the next
    /// start.
    ///
    /// # Errors
    /// [`ServerError::Stopped`] if it had already stopped because of an error; [`Server::stopped`] returns that.
    pub async fn shutdown(mut self) -> Result<(), ServerError> {
        let stopped = self.commands.answered(self.commands.stop()).await;
        self.join();
        stopped
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the server's thread panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.commands.stop());
        self.join();
    }
}

type Failed = watch::Sender<Option<Arc<ServerError>>>;

fn run(
    config: &Config,
    store: Option<Box<dyn Store>>,
    mut commands: mpsc::UnboundedReceiver<Command>,
    failed: &Failed,
    ready: oneshot::Sender<Result<Started, ServerError>>,
) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = match builder.enable_io().enable_time().build_local(LocalOptions::default()) {
        Ok(runtime) => runtime,
        Err(source) => {
            let _ = ready.send(Err(ServerError::System { what: "an event loop", source }));
            return;
        }
    };
    let end = runtime.block_on(async {
        let (parts, started) = match Parts::open(config, store).await {
            Ok(opened) => opened,
            Err(error) => {
                let _ = ready.send(Err(error));
                return Ok(None);
            }
        };
        let abandoned = ready.send(Ok(started)).is_err();
        if abandoned { Ok(None) } else { parts.serve(config, &mut commands).await }
    });
    // Close the sockets and the store before the end is reported, so that the directory and the port are free.
    drop(runtime);
    match end {
        Ok(None) => {}
        Ok(Some(stopped)) => drop(stopped.send(())),
        Err(error) => drop(failed.send_replace(Some(Arc::new(error)))),
    }
}

struct Parts {
    listener: Option<TcpListener>,
    socket: Option<LocalSocket>,
    admin: Option<TcpListener>,
    engine: Rc<RefCell<Engine>>,
    disk: Option<Disk>,
}

impl Parts {
    async fn open(config: &Config, store: Option<Box<dyn Store>>) -> Result<(Self, Started), ServerError> {
        if config.listen.is_none() && config.socket.is_none() {
            return Err(ServerError::Nowhere);
        }
        let mut config = config.clone();
        config.limits.connections = connections_that_fit(config.limits.connections);
        let config = &config;
        let (listener, address) = listen(config, config.listen).await?;
        let (admin, admin_address) = listen(config, config.admin).await?;
        let seed = random()?;
        let clock = Clock::start();
        let wall_ms = clock.now().wall_ms;
        let fresh = || {
            let (tree, sessions) = (Tree::new(), Vec::new());
            let mut state =
                StoredState { tree, sessions, zxid: config.first_zxid, next_session: first_session(), store_id: seed };
            state.raise_zxid(wall_ms);
            state
        };
        let (store, state) = match (&config.storage, store) {
            (_, Some(store)) => (Some(store), fresh()),
            (Storage::Memory, None) => (None, fresh()),
            (Storage::Directory(path), None) => {
                let (mut store, mut state) = DiskStore::open(path, fresh)?;
                if let Some(batch) = state.raise_zxid(wall_ms) {
                    store.commit(&batch)?;
                }
                (Some(Box::new(store) as Box<dyn Store>), state)
            }
        };
        // The store's lock decides who serves. So behind it, a file that a dead server has left can be replaced.
        let socket = config.socket.as_ref().map(|(path, mode)| LocalSocket::bind(path, *mode)).transpose()?;
        let disk = store.map(Disk::start).transpose()?;
        let now = clock.now();
        let machine_config = MachineConfig {
            tick: config.tick,
            session_timeouts: config.timeouts(),
            container_check: config.container_check,
            container_unused: config.container_unused,
            next_session: state.next_session,
            schemes: config.schemes(),
            enforce_quotas: config.enforce_quotas,
            limits: config.limits,
        };
        let store_id = state.store_id;
        let mut machine = Machine::new(machine_config, state.tree, state.zxid, now);
        for (id, timeout, password) in state.sessions {
            machine.restore_session(id, timeout, password, now);
        }
        let path = config.socket.as_ref().map(|(path, _)| display(path.display()));
        info!(
            address = address.map(display),
            socket = path,
            zxid = machine.zxid(),
            nodes = machine.tree().len(),
            sessions = machine.sessions().len(),
            "serving"
        );
        let mut engine = Engine::new(machine, clock, config, address, disk.is_some());
        engine.provide();
        let file = socket.as_ref().map(|LocalSocket { file, .. }| (file.path.clone(), file.id));
        let counters = Arc::clone(&engine.counters);
        let started = Started { address, socket: file, admin: admin_address, store_id, counters };
        Ok((Self { listener, socket, admin, engine: Rc::new(RefCell::new(engine)), disk }, started))
    }

    /// Serves until it is stopped, and returns the sender to report that to, or until it fails.
    async fn serve(
        self,
        config: &Config,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Result<Option<oneshot::Sender<()>>, ServerError> {
        let Self { listener, socket, admin, engine, disk } = self;
        let (local, _file) = socket.map(|LocalSocket { listener, file }| (listener, file)).unzip();
        if let Some(listener) = admin {
            tokio::task::spawn_local(admin::serve(Rc::clone(&engine), listener));
        }
        let mut sending = tokio::task::spawn_local(send(Rc::clone(&engine)));
        let mut working = tokio::task::spawn_local({
            let engine = Rc::clone(&engine);
            let tick_interval = config.tick.min(config.container_check);
            let max_frame = config.max_frame;
            async move {
                let mut connections = JoinSet::new();
                tokio::select! {
                    () = tick(&engine, tick_interval) => {}
                    () = background(&engine) => {}
                    () = accept(&engine, listener, local, max_frame, &mut connections) => {}
                }
            }
        });
        let mut flushing = tokio::task::spawn_local(flush(Rc::clone(&engine), disk));
        let fail = |error: ServerError| {
            engine.borrow_mut().fail(&error);
            Err(error)
        };
        let stopped = tokio::select! {
            stop = run_commands(&engine, commands) => stop,
            result = &mut flushing => return fail(result.unwrap_or(ServerError::Bug)),
            _ = &mut sending => return fail(ServerError::Bug),
            _ = &mut working => return fail(ServerError::Bug),
        };
        engine.borrow_mut().stop();
        tokio::select! {
            () = settled(&engine) => {}
            result = &mut flushing => return fail(result.unwrap_or(ServerError::Bug)),
        }
        // A dropped server does not wait for clients: they may run on the thread that dropped it.
        if stopped.as_ref().is_some_and(|stopped| !stopped.is_closed()) {
            wait_for_clients(&engine).await;
        }
        info!(zxid = engine.borrow().machine.zxid(), "stopped");
        Ok(stopped)
    }
}

/// Waits until everything applied is durable.
async fn settled(engine: &RefCell<Engine>) {
    let changed = Rc::clone(&engine.borrow().settled);
    while !engine.borrow().is_settled() {
        changed.notified().await;
    }
}

/// Waits a short time for clients to read their last answers.
async fn wait_for_clients(engine: &RefCell<Engine>) {
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    while !engine.borrow().has_no_connections() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn listen(
    config: &Config,
    address: Option<SocketAddr>,
) -> Result<(Option<TcpListener>, Option<SocketAddr>), ServerError> {
    let Some(address) = address else { return Ok((None, None)) };
    if !config.allow_remote && !address.ip().is_loopback() {
        return Err(ServerError::NotLoopback { address });
    }
    let listener = TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse { address },
        _ => ServerError::Listen { address, source },
    })?;
    let address = listener.local_addr().map_err(|source| ServerError::Listen { address, source })?;
    Ok((Some(listener), Some(address)))
}

/// The Unix socket of this machine's clients.
struct LocalSocket {
    listener: UnixListener,
    file: SocketFile,
}

/// The file of a socket. Dropping it removes the file, unless another one is in its place: a person may have removed the
/// whole directory, and another server may serve a new one.
struct SocketFile {
    path: PathBuf,
    id: FileId,
}

/// The device and the inode of a file.
type FileId = (u64, u64);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone: its owner may have hidden it before the stop.
        if file_id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Of a link, returns the id of the link itself.
fn file_id(path: &Path) -> io::Result<FileId> {
    path.symlink_metadata().map(|file| (file.dev(), file.ino()))
}

impl LocalSocket {
    /// Listens at this path, and replaces the file that is there. Clients find a socket with the right mode, or none: it
    /// accepts nothing before it has its mode.
    fn bind(path: &Path, mode: u32) -> Result<Self, ServerError> {
        let failed = |cause| ServerError::Socket { path: path.to_owned(), cause };
        let mut fresh = path.to_owned().into_os_string();
        fresh.push(".new");
        let _ = std::fs::remove_file(&fresh);
        let socket = UnixSocket::new_stream().map_err(failed)?;
        socket.bind(&fresh).map_err(failed)?;
        let id = file_id(fresh.as_ref()).map_err(failed)?;
        let fresh = SocketFile { path: fresh.into(), id };
        std::fs::set_permissions(&fresh.path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
        let listener = socket.listen(BACKLOG).map_err(failed)?;
        std::fs::rename(&fresh.path, path).map_err(failed)?;
        Ok(Self { listener, file: SocketFile { path: path.to_owned(), id } })
    }
}

/// Waits for the next connection. Dropping the future loses none.
async fn connection_from(listener: Option<&TcpListener>, local: Option<&UnixListener>) -> io::Result<(Socket, Peer)> {
    let tcp = async {
        match listener {
            Some(listener) => listener.accept().await,
            None => std::future::pending().await,
        }
    };
    let unix = async {
        match local {
            Some(local) => local.accept().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        accepted = tcp => accepted.map(|(stream, address)| (Socket::Tcp(stream), Peer::Net(address))),
        accepted = unix => {
            let (stream, _) = accepted?;
            // An error ends this connection only.
            let client = stream.peer_cred()?;
            let uid = client.uid();
            Ok((Socket::Unix(stream, uid), Peer::Local { uid, pid: client.pid() }))
        }
    }
}

/// Serves all connections; returns only if a connection's task panicked.
async fn accept(
    engine: &Rc<RefCell<Engine>>,
    listener: Option<TcpListener>,
    local: Option<UnixListener>,
    max_frame: usize,
    connections: &mut JoinSet<()>,
) {
    let mut spare = Spare::new();
    loop {
        let accepted = tokio::select! {
            Some(ended) = connections.join_next() => match ended {
                Ok(()) => continue,
                Err(_) => return,
            },
            accepted = connection_from(listener.as_ref(), local.as_ref()) => accepted,
        };
        match accepted {
            Ok((stream, address)) if !engine.borrow().is_stopped() => {
                let mut arrived = engine.borrow_mut().arrived(address.origin());
                if arrived.is_err() {
                    // Connections whose clients have already closed them do not count: their ends are read in this turn.
                    tokio::task::yield_now().await;
                    arrived = engine.borrow_mut().arrived(address.origin());
                }
                if let Err(exceeded) = arrived {
                    let line = engine.borrow_mut().line();
                    if let Some(left_out) = line {
                        warn!(client = %address, left_out, "refusing a connection: {exceeded}");
                    }
                    refuse(&stream, exceeded);
                    continue;
                }
                let engine = Rc::clone(engine);
                connections.spawn_local(async move {
                    connection::serve(Rc::clone(&engine), stream, address, max_frame).await;
                    engine.borrow_mut().left(address.origin());
                });
            }
            Ok(_) => {}
            Err(error) => {
                if let Some(left_out) = engine.borrow_mut().line() {
                    warn!(%error, left_out, "cannot accept a connection");
                }
                spare.failed(&error, connection_from(listener.as_ref(), local.as_ref())).await;
            }
        }
    }
}

/// Tells a client of the Unix socket why its connection is closed. A client of the network knows no such answer.
fn refuse(stream: &Socket, exceeded: Exceeded) {
    if let Socket::Unix(stream, _) = stream {
        let mut text = BytesMut::new();
        refusal::encode(&mut text, &exceeded.to_string());
        // A new socket has room for it. If the client has gone, nobody reads it.
        let _ = stream.try_write(&text);
    }
}

/// Ticks at multiples of the tick, when sessions expire.
async fn tick(engine: &RefCell<Engine>, interval: Duration) {
    let mut skipped = false;
    loop {
        let due = engine.borrow().clock.next_multiple(interval);
        tokio::time::sleep_until(due.into()).await;
        // After a late tick this process did not run for a while. Pings may wait in the sockets: read them first,
        // once.
        #[cfg(feature = "faults")]
        if engine.borrow_mut().faults.skips_tick() {
            continue;
        }
        let late = due.elapsed() > interval;
        skipped = late && !skipped;
        if skipped {
            warn!(late = ?due.elapsed(), "the server did not run for a while; sessions get one more tick");
        } else {
            engine.borrow_mut().tick();
        }
    }
}

/// Does what others need not wait for, one piece after each turn of all ready connections.
async fn background(engine: &RefCell<Engine>) {
    let woken = Rc::clone(&engine.borrow().background);
    loop {
        woken.notified().await;
        loop {
            // What clients have sent meanwhile is looked at first.
            tokio::task::yield_now().await;
            if !engine.borrow_mut().work_in_the_background() {
                break;
            }
        }
    }
}

/// Sends the answers after all ready connections were read, as [`flush`] collects the changes.
///
/// If each answer were sent immediately, its client would wake and send its next request before the next answer is
/// sent. Then both sides wake for every one or two requests, and a wake-up costs as much as a request.
async fn send(engine: Rc<RefCell<Engine>>) {
    let sendable = Rc::clone(&engine.borrow().send);
    loop {
        sendable.notified().await;
        engine.borrow_mut().send_all();
    }
}

/// Passes the changes to the disk, one batch after the other; returns the error when that fails.
async fn flush(engine: Rc<RefCell<Engine>>, disk: Option<Disk>) -> ServerError {
    let Some(mut disk) = disk else { return std::future::pending().await };
    let dirty = Rc::clone(&engine.borrow().flush);
    let mut spare = Batch::default();
    // The last durable transaction that was not announced yet.
    let mut settled = None;
    loop {
        if settled.is_none() {
            // Let all ready connections add to the batch.
            tokio::task::yield_now().await;
        }
        let batch = engine.borrow_mut().take_batch(&mut spare);
        let Some(batch) = batch else {
            match settled.take() {
                Some(zxid) => engine.borrow_mut().durable(zxid),
                None => dirty.notified().await,
            }
            continue;
        };
        let zxid = batch.zxid;
        let commit = async {
            #[cfg(feature = "faults")]
            crate::net::faults::before_commit(&engine).await?;
            disk.commit(batch).await
        };
        // Start the disk first, so that it works while the batch before is answered.
        let answer = async {
            if let Some(zxid) = settled.take() {
                engine.borrow_mut().durable(zxid);
            }
        };
        match tokio::join!(biased; commit, answer).0 {
            Ok(batch) => spare = batch,
            Err(error) => return error,
        }
        settled = Some(zxid);
    }
}

/// Runs the owner's commands until the server is stopped or the owner has been dropped.
async fn run_commands(
    engine: &RefCell<Engine>,
    commands: &mut mpsc::UnboundedReceiver<Command>,
) -> Option<oneshot::Sender<()>> {
    while let Some(command) = commands.recv().await {
        match command {
            Command::Run(function) => function(&mut engine.borrow_mut()),
            Command::Stop(reply) => return Some(reply),
        }
    }
    debug!("the owner has dropped the server");
    None
}

fn dump(tree: &Tree) -> Vec<DumpedNode> {
    tree.iter()
        .map(|(path, node)| DumpedNode {
            path: path.to_string(),
            data: node.data().map(|data| data.to_vec()).unwrap_or_default(),
            stat: node.stat(),
        })
        .collect()
}

fn random() -> Result<i64, ServerError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| ServerError::System { what: "random numbers", source: io::Error::other(error) })?;
    Ok(i64::from_ne_bytes(bytes))
}

/// Milliseconds since 1970 above a counter of 16 bits, below ZooKeeper's byte for the server's number.
///
/// A store continues from its last id, so session ids are unique; a server in memory starts above its predecessor.
fn first_session() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(now.as_millis()).unwrap_or(0);
    (1 << 56) | ((millis << 16) & 0x00ff_ffff_ffff_ffff)
}

#[cfg(test)]
mod tests;
