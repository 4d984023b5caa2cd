//! The server as its owner sees it: start, ask, stop.
//!
//! The server lives on a thread of its own with a runtime of its own, so it works in any program, whatever runtime that has
//! or has not, and a busy program cannot starve it.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::config::{Config, Storage};
use crate::error::ServerError;
use crate::machine::{Machine, MachineConfig, Tree};
use crate::net::command::{Command, Commands};
use crate::net::disk::Disk;
use crate::net::engine::{Clock, Engine};
use crate::net::stats::{Counters, Stats};
use crate::net::{admin, connection};
use crate::store::{Batch, DiskStore, State, Store};
use lockkeeper_wire::Stat;

/// How long a stopping server waits for its clients to take their last answers.
const FAREWELL: Duration = Duration::from_millis(200);

/// A running server. Dropping it stops it, waiting for the disk but not for clients.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    admin: Option<SocketAddr>,
    store_id: i64,
    counters: Arc<Counters>,
    commands: Commands,
    failure: watch::Receiver<Option<Arc<ServerError>>>,
    thread: Option<JoinHandle<()>>,
}

/// One node, as [`Server::dump`] shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpedNode {
    /// Its path.
    pub path: String,
    /// Its data.
    pub data: Vec<u8>,
    /// Its description.
    pub stat: Stat,
}

/// What the starting thread tells its maker.
struct Started {
    address: SocketAddr,
    admin: Option<SocketAddr>,
    store_id: i64,
    counters: Arc<Counters>,
}

impl Server {
    /// Starts a server and returns when it accepts connections.
    ///
    /// Works in any async runtime and blocks none.
    ///
    /// # Errors
    /// Each [`ServerError`] names the address or the directory; [`ServerError::hint`] says what to do.
    pub async fn start(config: Config) -> Result<Self, ServerError> {
        Self::launch(config, None).await
    }

    /// Starts a server for a test: in memory, on a free port of the loopback interface, with a tick of 100 ms.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn ephemeral() -> Result<Self, ServerError> {
        Self::start(Config::default().with_tick(Duration::from_millis(100))).await
    }

    /// Starts on a given store, which is taken to be empty.
    #[cfg(test)]
    pub(crate) async fn start_on(config: Config, store: Box<dyn Store>) -> Result<Self, ServerError> {
        Self::launch(config, Some(store)).await
    }

    async fn launch(config: Config, store: Option<Box<dyn Store>>) -> Result<Self, ServerError> {
        let (commands, inbox) = Commands::channel();
        let (failed, failure) = watch::channel(None);
        let (ready, started) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("lockkeeper-server".to_owned())
            .spawn(move || run(&config, store, inbox, &failed, ready))
            .map_err(|source| ServerError::System { what: "a thread for the server", source })?;
        match started.await.unwrap_or(Err(ServerError::Stopped)) {
            Ok(Started { address, admin, store_id, counters }) => {
                Ok(Self { address, admin, store_id, counters, commands, failure, thread: Some(thread) })
            }
            Err(error) => {
                // It has nothing left to do; joining frees the directory and the port before the caller tries again.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// Where it listens, with the port it was given.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as clients want it.
    pub fn connect_string(&self) -> String {
        self.address.to_string()
    }

    /// Where operators' HTTP is served, if it is.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// A number drawn when the store was made: transactions of stores with different numbers cannot be compared.
    pub fn store_id(&self) -> i64 {
        self.store_id
    }

    /// The counts of this moment. Whatever has been answered has been counted.
    pub fn stats(&self) -> Stats {
        self.counters.snapshot()
    }

    /// Ends a session as if it had expired; false if there is none.
    pub async fn expire_session(&self, session: i64) -> bool {
        self.commands.run(move |engine| engine.expire(session)).await.unwrap_or(false)
    }

    /// Sets the number that the next child of a node gets, so that a test can cross 2^31; false if there is no such node.
    ///
    /// # Errors
    /// [`ServerError::Stopped`].
    pub async fn set_child_counter(&self, parent: &str, next: i32) -> Result<bool, ServerError> {
        let parent = parent.to_owned();
        self.commands.run(move |engine| engine.set_child_counter(&parent, next)).await
    }

    /// Ids of the live sessions, in order.
    ///
    /// # Errors
    /// [`ServerError::Stopped`].
    pub async fn sessions(&self) -> Result<Vec<i64>, ServerError> {
        self.commands.run(|engine| engine.machine.sessions().iter().map(|(id, _)| id).collect()).await
    }

    /// All nodes in path order. For tests and diagnosis: it copies everything.
    ///
    /// # Errors
    /// [`ServerError::Stopped`].
    pub async fn dump(&self) -> Result<Vec<DumpedNode>, ServerError> {
        self.commands.run(|engine| dump(engine.machine.tree())).await
    }

    /// Faults on demand, for tests of what uses this server.
    #[cfg(feature = "faults")]
    pub fn faults(&self) -> crate::net::faults::Faults {
        crate::net::faults::Faults::new(self.commands.clone())
    }

    /// Resolves when the server has stopped by itself, with the reason; never otherwise.
    pub async fn stopped(&self) -> Arc<ServerError> {
        let mut failure = self.failure.clone();
        match failure.wait_for(Option::is_some).await {
            Ok(error) => error.clone().expect("waited for one"),
            // The thread ended without a word: it panicked.
            Err(_) => Arc::new(ServerError::Stopped),
        }
    }

    /// Stops the server: everything answered is durable, connections are closed, sessions are kept for the next start.
    ///
    /// # Errors
    /// [`ServerError::Stopped`] if it had already stopped by itself; [`Server::stopped`] tells why.
    pub async fn shutdown(mut self) -> Result<(), ServerError> {
        let stopped = self.commands.stop().await;
        self.join();
        stopped.map_err(|_| ServerError::Stopped)
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
    commands: mpsc::UnboundedReceiver<Command>,
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
        let unwanted = ready.send(Ok(started)).is_err();
        if unwanted { Ok(None) } else { parts.serve(config, commands).await }
    });
    // Closes the sockets and the store, so that whoever is told of the end may use the directory and the port again.
    drop(runtime);
    match end {
        Ok(None) => {}
        Ok(Some(farewell)) => drop(farewell.send(())),
        Err(error) => drop(failed.send_replace(Some(Arc::new(error)))),
    }
}

struct Parts {
    listener: TcpListener,
    admin: Option<TcpListener>,
    engine: Rc<RefCell<Engine>>,
    disk: Option<Disk>,
}

impl Parts {
    async fn open(config: &Config, store: Option<Box<dyn Store>>) -> Result<(Self, Started), ServerError> {
        let (listener, address) = listen(config, config.listen).await?;
        let (admin, admin_address) = match config.admin {
            None => (None, None),
            Some(wanted) => listen(config, wanted).await.map(|(listener, address)| (Some(listener), Some(address)))?,
        };
        let seed = random()?;
        let fresh = || State {
            tree: Tree::new(),
            sessions: Vec::new(),
            zxid: config.first_zxid,
            next_session: first_session(),
            store_id: seed,
        };
        let (store, state) = match (&config.storage, store) {
            (_, Some(store)) => (Some(store), fresh()),
            (Storage::Memory, None) => (None, fresh()),
            (Storage::Directory(path), None) => {
                let (store, state) = DiskStore::open(path, fresh)?;
                (Some(Box::new(store) as Box<dyn Store>), state)
            }
        };
        let disk = store.map(Disk::start).transpose()?;
        let clock = Clock::start();
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
        info!(%address, zxid = machine.zxid(), nodes = machine.tree().len(), sessions = machine.sessions().len(), "serving");
        let engine = Engine::new(machine, clock, config, address, disk.is_some());
        let started = Started { address, admin: admin_address, store_id, counters: Arc::clone(&engine.counters) };
        Ok((Self { listener, admin, engine: Rc::new(RefCell::new(engine)), disk }, started))
    }

    /// Serves until told to stop, and returns whom to tell, or until it cannot go on.
    async fn serve(
        self,
        config: &Config,
        mut commands: mpsc::UnboundedReceiver<Command>,
    ) -> Result<Option<oneshot::Sender<()>>, ServerError> {
        let Self { listener, admin, engine, disk } = self;
        if let Some(listener) = admin {
            tokio::task::spawn_local(admin::serve(Rc::clone(&engine), listener));
        }
        let mut sending = tokio::task::spawn_local(send(Rc::clone(&engine)));
        let mut working = tokio::task::spawn_local({
            let engine = Rc::clone(&engine);
            // Of at least 1 ms, however the fields were set.
            let tick_interval = config.tick.min(config.container_check).max(Duration::from_millis(1));
            let max_frame = config.max_frame;
            async move {
                let mut connections = JoinSet::new();
                tokio::select! {
                    () = tick(&engine, tick_interval) => {}
                    () = accept(&engine, listener, max_frame, &mut connections) => {}
                }
            }
        });
        let mut flushing = tokio::task::spawn_local(flush(Rc::clone(&engine), disk));
        let fail = |error: ServerError| {
            engine.borrow_mut().fail(&error);
            Err(error)
        };
        let farewell = tokio::select! {
            stop = obey(&engine, &mut commands) => stop,
            result = &mut flushing => return fail(result.unwrap_or(ServerError::Bug)),
            _ = &mut sending => return fail(ServerError::Bug),
            _ = &mut working => return fail(ServerError::Bug),
        };
        engine.borrow_mut().stop();
        tokio::select! {
            () = settled(&engine) => {}
            result = &mut flushing => return fail(result.unwrap_or(ServerError::Bug)),
        }
        // A dropped server waits for nobody: its clients may live on the very thread that dropped it.
        if farewell.as_ref().is_some_and(|farewell| !farewell.is_closed()) {
            deserted(&engine).await;
        }
        info!(zxid = engine.borrow().machine.zxid(), "stopped");
        Ok(farewell)
    }
}

/// Waits until everything applied is durable.
async fn settled(engine: &RefCell<Engine>) {
    let changed = Rc::clone(&engine.borrow().settled);
    while !engine.borrow().is_settled() {
        changed.notified().await;
    }
}

/// Waits a moment for clients to take their last answers.
async fn deserted(engine: &RefCell<Engine>) {
    let deadline = Instant::now() + FAREWELL;
    while !engine.borrow().is_deserted() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn listen(config: &Config, address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServerError> {
    if !config.allow_remote && !address.ip().is_loopback() {
        return Err(ServerError::NotLoopback { address });
    }
    let listener = TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse { address },
        _ => ServerError::Listen { address, source },
    })?;
    let address = listener.local_addr().map_err(|source| ServerError::Listen { address, source })?;
    Ok((listener, address))
}

/// Serves whoever comes; returns only if serving someone panicked.
async fn accept(engine: &Rc<RefCell<Engine>>, listener: TcpListener, max_frame: usize, connections: &mut JoinSet<()>) {
    loop {
        let accepted = tokio::select! {
            Some(ended) = connections.join_next() => match ended {
                Ok(()) => continue,
                Err(_) => return,
            },
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((_, address)) if !engine.borrow_mut().arrived(address.ip()) => {
                warn!(client = %address, "too many connections");
            }
            Ok((stream, address)) if !engine.borrow().is_stopped() => {
                let engine = Rc::clone(engine);
                connections.spawn_local(async move {
                    connection::serve(Rc::clone(&engine), stream, address, max_frame).await;
                    engine.borrow_mut().left(address.ip());
                });
            }
            Ok(_) => {}
            Err(error) => {
                // Out of file descriptors, most likely: others will close theirs.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Ticks at multiples of the tick, where the deadlines are.
async fn tick(engine: &RefCell<Engine>, interval: Duration) {
    let mut distrusted = false;
    loop {
        let due = engine.borrow().clock.next_multiple(interval);
        tokio::time::sleep_until(due.into()).await;
        // A late tick means that this process did not run. Pings may be waiting in the sockets: hear them first, once.
        #[cfg(feature = "faults")]
        if engine.borrow_mut().faults.skips_tick() {
            continue;
        }
        let late = due.elapsed() > interval;
        distrusted = late && !distrusted;
        if distrusted {
            warn!(late = ?due.elapsed(), "the server was stopped or starved; sessions get one more tick");
        } else {
            engine.borrow_mut().tick();
        }
    }
}

/// Sends what has been answered when all who were ready have been heard, as [`flush`] gathers what has changed.
///
/// Sent one by one, each answer would meet a client that waits for it and asks again before the next one goes. Then each side
/// wakes for every request or two, which costs both as much as the request.
async fn send(engine: Rc<RefCell<Engine>>) {
    let noted = Rc::clone(&engine.borrow().send);
    loop {
        noted.notified().await;
        engine.borrow_mut().send_all();
    }
}

/// Hands what changed to the disk, one batch after the other; returns when that fails.
async fn flush(engine: Rc<RefCell<Engine>>, disk: Option<Disk>) -> ServerError {
    let Some(mut disk) = disk else { return std::future::pending().await };
    let dirty = Rc::clone(&engine.borrow().flush);
    let mut spare = Batch::default();
    // What has become durable and was told to nobody yet.
    let mut settled = None;
    loop {
        if settled.is_none() {
            // Let everyone who is ready join the batch.
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
        // The disk first, so that it works while the batch before is answered.
        let tell = async {
            if let Some(zxid) = settled.take() {
                engine.borrow_mut().durable(zxid);
            }
        };
        match tokio::join!(biased; commit, tell).0 {
            Ok(batch) => spare = batch,
            Err(error) => return error,
        }
        settled = Some(zxid);
    }
}

/// Does what the owner asks, until that is to stop or the owner is gone.
async fn obey(
    engine: &RefCell<Engine>,
    commands: &mut mpsc::UnboundedReceiver<Command>,
) -> Option<oneshot::Sender<()>> {
    while let Some(command) = commands.recv().await {
        match command {
            Command::Run(function) => function(&mut engine.borrow_mut()),
            Command::Stop(reply) => return Some(reply),
        }
    }
    debug!("the owner is gone");
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
/// A store keeps counting from there, so no session id is ever used twice; one in memory starts above its predecessor.
fn first_session() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(now.as_millis()).unwrap_or(0);
    (1 << 56) | ((millis << 16) & 0x00ff_ffff_ffff_ffff)
}

#[cfg(test)]
mod tests;
