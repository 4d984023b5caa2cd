//! Embedded servers: one directory, one server at a time, for one user.
//!
//! The directory contains `data`, the server's store, `socket`, through which its clients connect, and `starting`, a lock
//! for the process that starts the server. The store's lock, not the socket's file, shows whether a server runs.
//!
//! The kernel checks who connects: it lets those in who may enter the directory and write to the socket, and tells the
//! server which user each client is. There is no port that another program could take, and no secret. So the directory
//! must be its owner's alone: see `guarded`.
//!
//! Sessions are on disk and have their full timeout after a restart. So when a server ends while sessions are open, one
//! of its clients starts it again and the sessions continue.

mod guarded;

use std::fs::{DirBuilder, File};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_client::ShortPath;
use lockkeeper_client::wire::refusal;
pub use lockkeeper_server::{Accounts, Config, Limits, Secret, Server, ServerError, Storage, Words};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::acl::LockAcl;
use crate::ensemble::servers::Servers;
use crate::ensemble::zookeeper::{Locate, Located, Locating, ZooKeeper, nodes_of_a_machine};
use crate::ensemble::{Network, NodeKind, Opened};
use crate::error::{EMBEDDED_SERVER, EmbeddedError, SessionError};

/// The directory of the server that all users of a machine share.
pub const MACHINE_DIR: &str = "/var/lib/lockkeeper";

/// The tick of an embedded server. Shorter than ZooKeeper's 2 s, because there is no network in between: sessions
/// expire sooner after a crash.
const TICK: Duration = Duration::from_millis(500);

/// Returns the default settings of servers on one machine: their tick, and session timeouts from 1 s to 1 min. They name
/// no address: a [`ServerDir`] serves its socket.
pub fn server_config() -> Config {
    let mut config = Config::default().with_tick(TICK).with_session_timeouts(TICK * 2..=TICK * 120);
    config.listen = None;
    config
}

/// The pause between looks for a server that is starting or stopping. There is no event to wait for: another process
/// holds the store but does not listen yet.
const STARTING: Duration = Duration::from_millis(10);

/// The directory of an embedded server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerDir {
    dir: PathBuf,
    shared: bool,
}

/// How long a running server may take to answer a question of [`Endpoint::ask`].
const PATIENCE: Duration = Duration::from_secs(5);

/// The socket of a running embedded server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// The path of its socket.
    pub socket: PathBuf,
}

impl Endpoint {
    /// Returns the connect string: `unix:` and the path.
    pub fn connect_string(&self) -> String {
        self.servers().to_string()
    }

    /// Returns the server's process id, or `None` if this process cannot see it, as in a container of its own. It is the
    /// kernel's answer, also while the server hangs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no connection.
    ///
    /// # Errors
    ///
    /// No server listens any more, or this user may not connect.
    pub async fn pid(&self) -> std::io::Result<Option<u32>> {
        let server = self.connect().await?.peer_cred()?;
        Ok(server.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0))
    }

    /// Returns the server's answer to one of the four-letter words, for example `srvr`, which shows its version.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no connection.
    ///
    /// # Errors
    ///
    /// No server listens any more, this user may not connect, or there is no answer within 5 s. `QuotaExceeded` if the server
    /// refuses this user because a limit is reached; the error says which one.
    pub async fn ask(&self, word: &str) -> std::io::Result<String> {
        let answered = timeout(PATIENCE, async {
            let (mut server, mut answer) = (self.connect().await?, Vec::new());
            // A server that refuses this client says why and closes, perhaps before it is asked.
            let asked = server.write_all(word.as_bytes()).await;
            let end = server.read_to_end(&mut answer).await;
            match refusal::decode(&answer) {
                Some(why) => Err(Error::new(ErrorKind::QuotaExceeded, why)),
                None => {
                    asked.and(end)?;
                    String::from_utf8(answer).map_err(Error::other)
                }
            }
        });
        answered.await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }

    async fn connect(&self) -> std::io::Result<UnixStream> {
        UnixStream::connect(ShortPath::new(&self.socket)?.as_path()).await
    }

    fn servers(&self) -> Servers {
        Servers::unix(&self.socket)
    }
}

/// An embedded server hosted by this process. Dropping it stops the server.
#[derive(Debug)]
pub struct RunningServer {
    server: Server,
    endpoint: Endpoint,
    /// The path under which the server knows its socket. It is valid until the server has removed the file.
    _socket: ShortPath,
}

/// Starts the server of a home in another process; resolves when the server can be found.
pub type StartServer = Arc<dyn Fn() -> BoxFuture<'static, Result<(), SessionError>> + Send + Sync>;

/// What a client of a home does if no server runs there.
#[derive(Clone)]
#[non_exhaustive]
pub enum StartMode {
    /// Hosts the server in this process.
    InProcess,
    /// Starts the server in another process. Called by one client of the home at a time.
    Starting(StartServer),
    /// Fails with [`EmbeddedError::NotRunning`].
    Never,
}

impl std::fmt::Debug for StartMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StartMode::InProcess => "InProcess",
            StartMode::Starting(_) => "Starting",
            StartMode::Never => "Never",
        })
    }
}

/// The right to start the server of a home. One process has it at a time; it ends with the process in any case.
#[derive(Debug)]
pub struct StartLock {
    _file: File,
}

impl ServerDir {
    /// Returns the home in this directory, which is created when a server is first hosted there.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        ServerDir { dir: dir.into(), shared: false }
    }

    /// Returns the home of a server that several users of this machine share: those that may enter the directory.
    ///
    /// Only the owner of the directory may write to it; otherwise [`ServerDir::find`] fails. Clients of a shared home use
    /// [`StartMode::Never`]: its owner starts the server, with `lockkeeper serve --machine`.
    pub fn shared(dir: impl Into<PathBuf>) -> Self {
        ServerDir { dir: dir.into(), shared: true }
    }

    /// Returns whether several users share it.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Returns the home of this user's own server, which the command `lockkeeper` uses if no servers are set. It is
    /// the directory in `LOCKKEEPER_STATE_DIR`, or `lockkeeper` in `$XDG_STATE_HOME` or in `~/.local/state`.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::File`] if none of `LOCKKEEPER_STATE_DIR`, `XDG_STATE_HOME` and `HOME` is set.
    pub fn of_this_user() -> Result<Self, EmbeddedError> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let dir = set("LOCKKEEPER_STATE_DIR")
            // The XDG specification says to ignore relative paths.
            .or_else(|| set("XDG_STATE_HOME").filter(|dir| dir.is_absolute()).map(|dir| dir.join("lockkeeper")))
            .or_else(|| set("HOME").map(|home| home.join(".local/state/lockkeeper")));
        let failed = |source| EmbeddedError::file("cannot find", "~/.local/state/lockkeeper", source);
        let dir = dir.ok_or_else(|| failed(std::io::Error::new(ErrorKind::NotFound, "HOME is not set")))?;
        // Clients may run in different directories.
        Ok(ServerDir::new(std::path::absolute(dir).map_err(failed)?))
    }

    /// Returns its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// Returns the socket of the server that runs here, or `None`.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::File`] if the directory cannot be read, or if other users could replace what is in it.
    pub fn find(&self) -> Result<Option<Endpoint>, EmbeddedError> {
        let socket = self.socket();
        match socket.symlink_metadata() {
            Ok(found) if found.file_type().is_socket() => {}
            Ok(_) => return Ok(None),
            // A file in place of the directory is no server either; who starts one gets the error.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(source) => return Err(EmbeddedError::file("cannot read", socket, source)),
        }
        self.check()?;
        let endpoint = Endpoint { socket };
        Ok(self.is_hosted(&endpoint)?.then_some(endpoint))
    }

    /// Refuses the directory if others than its owner could put files there, or another directory in its place.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::File`], which names the directory that others may change.
    pub fn check(&self) -> Result<(), EmbeddedError> {
        guarded::check(&self.dir, self.shared).map_err(|source| EmbeddedError::file("refuse to use", &self.dir, source))
    }

    /// Whether a process holds the store.
    fn is_hosted(&self, endpoint: &Endpoint) -> Result<bool, EmbeddedError> {
        let file = self.dir.join("data").join("lock");
        match File::open(&file) {
            // Shared, and released immediately: several clients may ask at the same time, and a host that starts
            // meanwhile tries again.
            Ok(lock) => Ok(lock.try_lock_shared().is_err()),
            // Somebody may have removed the lock of a running server.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(listens(&endpoint.socket).unwrap_or(false)),
            // Only the owner may open the store.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && self.shared => {
                listens(&endpoint.socket).map_err(|source| EmbeddedError::file("cannot use", &endpoint.socket, source))
            }
            Err(source) => Err(EmbeddedError::file("cannot open", file, source)),
        }
    }

    /// Waits for the right to start the server here. Blocks this thread.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::File`] if the directory cannot be created or written.
    pub fn start_lock(&self) -> Result<StartLock, EmbeddedError> {
        self.make_dir()?;
        let file = self.dir.join("starting");
        let failed = |source| EmbeddedError::file("cannot lock", &file, source);
        let lock = guarded::open(&file).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(StartLock { _file: lock })
    }

    /// Starts the server in this process.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no server.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::Server`] with [`ServerError::InUse`] if this process or another one hosts it already.
    pub async fn host(&self) -> Result<RunningServer, EmbeddedError> {
        self.host_with(server_config(), &[]).await
    }

    /// Starts the server as [`ServerDir::host`] does, with other settings than those of [`server_config`]. The socket and the
    /// store are the home's. In a shared home, the server creates the nodes that all users share: each user may contend for
    /// locks, and only the user who runs the server, and root, may change their access lists. If the settings name an address, the server also listens there, for clients that know no
    /// Unix socket. All users of this machine can use that address.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no server.
    ///
    /// # Errors
    ///
    /// As [`ServerDir::host`].
    pub async fn host_with(
        &self,
        config: Config,
        registers: &[(&str, NodeKind)],
    ) -> Result<RunningServer, EmbeddedError> {
        self.make_dir()?;
        let (data, socket) = (self.dir.join("data"), self.socket());
        guarded::check_owner(&data).map_err(|source| EmbeddedError::file("refuse to use", &data, source))?;
        let short = ShortPath::new(&socket).map_err(|source| EmbeddedError::file("cannot use", &socket, source))?;
        // Those who may enter a shared directory may connect.
        let mode = if self.shared { 0o666 } else { 0o600 };
        let listen = config.listen;
        let mut config = config.with_directory(data).with_socket(short.as_path(), mode);
        config.listen = listen;
        if self.shared {
            config = config.with_shared_nodes(nodes_of_a_machine(registers));
        }
        let server = Server::start(config).await?;
        Ok(RunningServer { server, endpoint: Endpoint { socket }, _socket: short })
    }

    /// Creates the directory, for this user only or for all to enter. An existing one is not changed. Nothing is created in
    /// a place that other users can change.
    fn make_dir(&self) -> Result<(), EmbeddedError> {
        self.check()?;
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, if self.shared { 0o755 } else { 0o700 });
        builder.create(&self.dir).map_err(|source| EmbeddedError::file("cannot make", &self.dir, source))
    }
}

impl RunningServer {
    /// Returns the socket of the server.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns whether clients find it: its socket is in its place. Somebody may have removed the directory.
    pub fn can_be_found(&self) -> bool {
        self.server.has_socket_at(&self.endpoint.socket)
    }

    /// Stops the server and returns when everything is on disk. Sessions survive: a client that still
    /// needs the server starts it again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the server without waiting for its last writes.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::Server`] if the last writes failed.
    pub async fn shutdown(self) -> Result<(), EmbeddedError> {
        Ok(self.server.shutdown().await?)
    }
}

/// How long a server that was found is not looked for again.
const JUST_NOW: Duration = Duration::from_millis(100);

/// A home as one client uses it: finds its server, or starts it.
pub(crate) struct Site {
    home: ServerDir,
    hosting: StartMode,
    /// The server that was found last, and when, for the one who wants it next.
    found: Mutex<Option<(Instant, Endpoint)>>,
    /// The server, if this process hosts it.
    hosted: Mutex<Option<Arc<RunningServer>>>,
}

impl Site {
    /// `found` is the server of the home if the caller has just found it.
    pub(crate) fn new(home: ServerDir, hosting: StartMode, found: Option<Endpoint>) -> Site {
        let found = Mutex::new(found.map(|found| (Instant::now(), found)));
        Site { home, hosting, found, hosted: Mutex::new(None) }
    }

    /// Keeps the server for the one who wants it next.
    fn found(&self, endpoint: Endpoint) {
        *self.found.lock().expect("held for a change only") = Some((Instant::now(), endpoint));
    }

    /// The server that was found just now. It is given out once: if nobody can connect to it, it is looked for again.
    fn take_found(&self) -> Option<Endpoint> {
        let found = self.found.lock().expect("held for a change only").take();
        found.filter(|(at, _)| at.elapsed() < JUST_NOW).map(|(_, endpoint)| endpoint)
    }

    /// The server that this process hosts, while it runs.
    fn hosted(&self) -> Option<Endpoint> {
        let mut hosted = self.hosted.lock().expect("held for a change only");
        if hosted.as_ref().is_some_and(|hosted| hosted.server.stopped().now_or_never().is_some()) {
            *hosted = None;
        }
        hosted.as_ref().map(|hosted| hosted.endpoint.clone())
    }

    /// Finds the server, or starts it if none runs. Dropping the future leaves a server that another process was
    /// starting.
    async fn find_or_start(&self) -> Result<Endpoint, SessionError> {
        loop {
            if let Some(endpoint) = self.hosted() {
                return Ok(endpoint);
            }
            if let Some(endpoint) = self.take_found() {
                return Ok(endpoint);
            }
            if let Some(endpoint) = self.home.find()? {
                return Ok(endpoint);
            }
            if matches!(self.hosting, StartMode::Never) {
                return Err(EmbeddedError::NotRunning { dir: self.home.dir.clone() }.into());
            }
            let home = self.home.clone();
            // On a thread that may block: the lock has no other event.
            let turn = tokio::task::spawn_blocking(move || home.start_lock()).await;
            let _turn = turn.map_err(|error| SessionError::thread(std::io::Error::other(error)))??;
            if let Some(endpoint) = self.home.find()? {
                return Ok(endpoint);
            }
            match &self.hosting {
                StartMode::InProcess => match self.home.host().await {
                    Ok(hosted) => {
                        let endpoint = hosted.endpoint.clone();
                        *self.hosted.lock().expect("held for a change only") = Some(Arc::new(hosted));
                        return Ok(endpoint);
                    }
                    // A server that is ending holds the store slightly longer than it can be found.
                    Err(EmbeddedError::Server(error)) if matches!(*error, ServerError::InUse { .. }) => {}
                    Err(error) => return Err(error.into()),
                },
                StartMode::Starting(start) => start().await?,
                StartMode::Never => {}
            }
            sleep(STARTING).await;
        }
    }
}

impl Locate for Site {
    fn locate(self: Arc<Self>) -> Locating {
        async move {
            let endpoint = self.find_or_start().await?;
            Ok(Located { servers: endpoint.servers() })
        }
        .boxed()
    }
}

/// Opens sessions with the server of a home.
pub(crate) struct Embedded {
    pub(crate) site: Arc<Site>,
    pub(crate) session_timeout: Duration,
    pub(crate) acl: LockAcl,
    pub(crate) tasks: TaskTracker,
}

impl Network for Embedded {
    fn open(&self, patience: Duration) -> BoxFuture<'_, Result<Opened, SessionError>> {
        async move {
            let started = Instant::now();
            let endpoint = timeout(patience, self.site.find_or_start()).await.unwrap_or_else(|_| {
                let servers = self.servers();
                let detail = format!("another process is starting {servers}");
                Err(SessionError::Unreachable { servers, waited: patience, detail })
            })?;
            let servers = endpoint.servers();
            self.site.found(endpoint);
            let network = ZooKeeper {
                servers,
                session_timeout: self.session_timeout,
                reconnect: None,
                credentials: Vec::new(),
                sasl: None,
                acl: self.acl.clone(),
                authenticates: false,
                tasks: self.tasks.clone(),
                locate: Some(self.site.clone()),
                simulated: None,
                has_opened: AtomicBool::default(),
                create_chroot: false,
            };
            let mut opened = network.open(patience.saturating_sub(started.elapsed())).await?;
            // A server that this process hosts outlives its sessions, which close through it.
            opened.anchor = Some(self.site.clone());
            Ok(opened)
        }
        .boxed()
    }

    fn servers(&self) -> String {
        format!("{EMBEDDED_SERVER}{}", self.site.home.dir().display())
    }
}

/// Whether a process listens at this socket. Does not wait for it.
fn listens(socket: &Path) -> std::io::Result<bool> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect};
    let short = ShortPath::new(socket)?;
    #[cfg(target_os = "linux")]
    let client = {
        use rustix::net::{SocketFlags, socket_with};
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?
    };
    #[cfg(not(target_os = "linux"))]
    let client = {
        let client = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&client, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&client, true)?;
        client
    };
    match connect(&client, &SocketAddrUnix::new(short.as_path())?) {
        // Many others are connecting.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(true),
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server holds the store, and its socket is missing for a moment.
    #[test]
    fn a_link_to_another_servers_socket_is_not_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let home = ServerDir::new(dir.path());
        std::fs::create_dir(dir.path().join("data")).unwrap();
        let lock = File::create(dir.path().join("data/lock")).unwrap();
        lock.lock().unwrap();
        let _other = std::os::unix::net::UnixListener::bind(dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", home.socket()).unwrap();
        assert_eq!(home.find().unwrap(), None);
        std::fs::rename(dir.path().join("other"), home.socket()).unwrap();
        assert!(home.find().unwrap().is_some());
    }

    /// Later, another process may host it.
    #[tokio::test]
    async fn a_server_that_was_found_is_not_looked_for_again_once_and_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let found = Endpoint { socket: dir.path().join("socket") };
        let site = Site::new(ServerDir::new(dir.path()), StartMode::Never, Some(found.clone()));
        assert_eq!(site.find_or_start().await.ok(), Some(found.clone()));
        let not_running = |end| matches!(end, Err(SessionError::Embedded(EmbeddedError::NotRunning { .. })));
        assert!(not_running(site.find_or_start().await));
        site.found(found);
        sleep(JUST_NOW).await;
        assert!(not_running(site.find_or_start().await));
    }
}
