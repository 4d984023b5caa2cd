//! Embedded servers: one directory, one server at a time, for one user.
//!
//! The directory contains `data`, the server's store, and `secret`, which a client must present and only the owner
//! can read. It also contains `starting`, a lock for the process that starts the server, and `endpoint`, the
//! address of the current or last server. The store's lock, not the endpoint file, shows whether a server runs.
//!
//! The address outlives the server. Sessions are on disk and have their full timeout after a restart. So when a server
//! ends while sessions are open, one of its clients starts it again and the sessions continue. The address is the same
//! if it is free.

mod trust;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_server::Secret;
pub use lockkeeper_server::{Config, Server, ServerError};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::acl::LockAcl;
use crate::ensemble::zookeeper::{Locate, Located, Locating, ZooKeeper};
use crate::ensemble::{Network, Opened};
use crate::error::{EmbeddedError, SessionError};

use self::trust::PortListener;

/// The directory of the server that all users of a machine share.
pub const MACHINE_DIR: &str = "/var/lib/lockkeeper";

/// The tick of an embedded server. Shorter than ZooKeeper's 2 s, because there is no network in between: sessions
/// expire sooner after a crash.
const TICK: Duration = Duration::from_millis(500);

/// Returns the default settings of servers on one machine: their tick, and session timeouts from 1 s to 1 min.
pub fn server_config() -> Config {
    Config::default().with_tick(TICK).with_session_timeouts(TICK * 2..=TICK * 120)
}

/// The pause between looks for a server that is starting or stopping. There is no event to wait for: another process
/// holds the store but has not written its address yet.
const STARTING: Duration = Duration::from_millis(10);

/// How long the previous server's address may still be in use by a process that is ending. There is no event to wait
/// for.
const FREED: Duration = Duration::from_millis(200);

/// The directory of an embedded server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    dir: PathBuf,
    shared: bool,
}

/// The address of a running embedded server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its address on this machine.
    pub address: SocketAddr,
    /// Its process id.
    pub pid: u32,
    /// The secret to present to it; not a part of the file.
    #[serde(skip)]
    pub secret: String,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// An embedded server hosted by this process. Dropping it stops the server.
#[derive(Debug)]
pub struct Hosted {
    server: Server,
    endpoint: Endpoint,
    moved_from: Option<SocketAddr>,
}

/// Starts the server of a home in another process; resolves when the server can be found.
pub type Starter = Arc<dyn Fn() -> BoxFuture<'static, Result<(), SessionError>> + Send + Sync>;

/// What a client of a home does if no server runs there.
#[derive(Clone)]
pub enum Hosting {
    /// Hosts the server in this process.
    InProcess,
    /// Starts the server in another process. Called by one client of the home at a time.
    Starting(Starter),
    /// Fails with [`EmbeddedError::NotRunning`].
    Never,
}

impl std::fmt::Debug for Hosting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Hosting::InProcess => "InProcess",
            Hosting::Starting(_) => "Starting",
            Hosting::Never => "Never",
        })
    }
}

/// The right to start the server of a home. One process has it at a time; it ends with the process in any case.
#[derive(Debug)]
pub struct Turn {
    _file: File,
}

impl Home {
    /// Returns the home in this directory, which is created when a server is first hosted there.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Home { dir: dir.into(), shared: false }
    }

    /// Returns the home of a server that several users of this machine share: those that may enter the directory.
    ///
    /// Only the owner of the directory may write to it; otherwise [`Home::find`] fails. Clients of a shared home use
    /// [`Hosting::Never`]: its owner starts the server, with `lockkeeper serve --machine`.
    pub fn shared(dir: impl Into<PathBuf>) -> Self {
        Home { dir: dir.into(), shared: true }
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
        Ok(Home::new(std::path::absolute(dir).map_err(failed)?))
    }

    /// Returns its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the address of the server that runs here, or `None`.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::File`] if a file cannot be read, or if other users could have written it.
    pub fn find(&self) -> Result<Option<Endpoint>, EmbeddedError> {
        let file = self.dir.join("endpoint");
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(EmbeddedError::file("cannot read", file, source)),
        };
        // An incomplete file, or one of another version: the next host writes it again.
        let Ok(mut endpoint) = serde_json::from_slice::<Endpoint>(&text) else {
            return Ok(None);
        };
        if self.shared {
            trust::check_shared(&self.dir).map_err(|source| EmbeddedError::file("refuse to use", &self.dir, source))?;
        }
        if !self.is_hosted()? || !self.is_owners(endpoint.address)? {
            return Ok(None);
        }
        endpoint.secret = self.secret()?;
        Ok(Some(endpoint))
    }

    /// Whether a process holds the store.
    fn is_hosted(&self) -> Result<bool, EmbeddedError> {
        let file = self.dir.join("data").join("lock");
        match File::open(&file) {
            // Shared, and released immediately: several clients may ask at the same time, and a host that starts
            // meanwhile tries again.
            Ok(lock) => Ok(lock.try_lock_shared().is_err()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            // Only the owner may open the store. The process that listens at the address is checked as well.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && self.shared => Ok(true),
            Err(source) => Err(EmbeddedError::file("cannot open", file, source)),
        }
    }

    /// Whether the process that listens at `address` may be this home's server: it belongs to the owner, to this user
    /// or to root. Otherwise another program has taken the address, and must not get the secret.
    fn is_owners(&self, address: SocketAddr) -> Result<bool, EmbeddedError> {
        let owner = match std::fs::metadata(&self.dir) {
            Ok(dir) => std::os::unix::fs::MetadataExt::uid(&dir),
            Err(source) => return Err(EmbeddedError::file("cannot read", &self.dir, source)),
        };
        Ok(match trust::listener(address) {
            PortListener::Of(user) if self.shared => [0, owner].contains(&user),
            PortListener::Of(user) => [0, owner, rustix::process::geteuid().as_raw()].contains(&user),
            PortListener::Nobody => !self.shared,
            PortListener::Unknown => true,
        })
    }

    /// Waits for the right to start the server here. Blocks this thread.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::File`] if the directory cannot be created or written.
    pub fn turn(&self) -> Result<Turn, EmbeddedError> {
        self.make_dir()?;
        let file = self.dir.join("starting");
        let failed = |source| EmbeddedError::file("cannot lock", &file, source);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let lock = options.open(&file).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(Turn { _file: lock })
    }

    /// Starts the server in this process, at the previous server's address, where sessions look for it. If another
    /// program uses that address, the server takes a free one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no server.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::Server`] with [`ServerError::InUse`] if another process hosts it already.
    pub async fn host(&self) -> Result<Hosted, EmbeddedError> {
        self.host_with(server_config()).await
    }

    /// Starts the server as [`Home::host`] does, with other settings than those of [`server_config`]. The address, the
    /// store and the secret are the home's.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no server.
    ///
    /// # Errors
    ///
    /// As [`Home::host`].
    pub async fn host_with(&self, config: Config) -> Result<Hosted, EmbeddedError> {
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let Some(former) = self.former_address() else { return self.host_at(anywhere, config).await };
        let started = Instant::now();
        loop {
            match self.host_at(former, config.clone()).await {
                Err(EmbeddedError::Server(error))
                    if matches!(*error, ServerError::AddressInUse { .. } | ServerError::Listen { .. }) => {}
                other => return other,
            }
            if started.elapsed() >= FREED {
                break;
            }
            sleep(STARTING).await;
        }
        let hosted = Hosted { moved_from: Some(former), ..self.host_at(anywhere, config).await? };
        tracing::warn!(%former, now = %hosted.endpoint.address, "another program listens at the former address");
        Ok(hosted)
    }

    /// Starts the server at this address.
    async fn host_at(&self, listen: SocketAddr, config: Config) -> Result<Hosted, EmbeddedError> {
        self.make_dir()?;
        if self.shared {
            trust::check_shared(&self.dir).map_err(|source| EmbeddedError::file("refuse to use", &self.dir, source))?;
        }
        let secret = self.secret()?;
        let config = config
            .with_directory(self.dir.join("data"))
            .with_listen(listen)
            .with_secret(Secret::new(secret.as_bytes()));
        let server = Server::start(config).await?;
        let endpoint = Endpoint { address: server.addr(), pid: std::process::id(), secret };
        let text = serde_json::to_vec(&endpoint).expect("an address and a number always serialise");
        replace(&self.dir.join("endpoint"), &text, self.file_mode())?;
        Ok(Hosted { server, endpoint, moved_from: None })
    }

    /// The address of the previous server.
    fn former_address(&self) -> Option<SocketAddr> {
        let endpoint: Endpoint = serde_json::from_slice(&std::fs::read(self.dir.join("endpoint")).ok()?).ok()?;
        endpoint.address.ip().is_loopback().then_some(endpoint.address)
    }

    /// The mode of the files: readable by this user, or by all that may enter the directory.
    fn file_mode(&self) -> u32 {
        if self.shared { 0o644 } else { 0o600 }
    }

    /// Creates the directory, for this user only or for all to enter. An existing one is not changed.
    fn make_dir(&self) -> Result<(), EmbeddedError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, if self.shared { 0o755 } else { 0o700 });
        builder.create(&self.dir).map_err(|source| EmbeddedError::file("cannot make", &self.dir, source))
    }

    /// The secret of this home, created on first use.
    fn secret(&self) -> Result<String, EmbeddedError> {
        let file = self.dir.join("secret");
        let failed = |what| {
            let file = file.clone();
            move |source| EmbeddedError::file(what, file, source)
        };
        loop {
            match File::open(&file) {
                Ok(mut opened) => {
                    if !self.shared {
                        private(&opened).map_err(failed("refuse to use"))?;
                    }
                    let mut secret = String::new();
                    opened.read_to_string(&mut secret).map_err(failed("cannot read"))?;
                    return Ok(secret);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => return Err(failed("cannot read")(source)),
            }
            let mut bits = [0; 32];
            getrandom::fill(&mut bits)
                .map_err(|error| failed("no randomness for")(std::io::Error::other(error.to_string())))?;
            let secret: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
            // Linked into place as a whole: if two create it at the same time, one wins and both read the same. Each
            // uses a separate file, even among the threads of one process.
            static MADE: AtomicU32 = AtomicU32::new(0);
            let fresh = file.with_extension(format!("new-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed)));
            write_whole(&fresh, secret.as_bytes(), self.file_mode()).map_err(failed("cannot write"))?;
            let linked = std::fs::hard_link(&fresh, &file);
            _ = std::fs::remove_file(&fresh);
            match linked {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed("cannot write")(error)),
                _ => {}
            }
        }
    }
}

impl Hosted {
    /// Returns the address of the server.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the previous address, if another program has taken it.
    pub fn moved_from(&self) -> Option<SocketAddr> {
        self.moved_from
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Stops the server and returns when everything is on disk. Sessions survive, and so does the address: a client
    /// that still needs the server starts it again there.
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
    home: Home,
    hosting: Hosting,
    /// The server that was found last, and when, for the one who wants it next.
    found: Mutex<Option<(Instant, Endpoint)>>,
    /// The server, if this process hosts it.
    hosted: Mutex<Option<Arc<Hosted>>>,
}

impl Site {
    /// `found` is the server of the home if the caller has just found it.
    pub(crate) fn new(home: Home, hosting: Hosting, found: Option<Endpoint>) -> Site {
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
            if matches!(self.hosting, Hosting::Never) {
                return Err(EmbeddedError::NotRunning { dir: self.home.dir.clone() }.into());
            }
            let home = self.home.clone();
            // On a thread that may block: the lock has no other event.
            let turn = tokio::task::spawn_blocking(move || home.turn()).await;
            let _turn = turn.map_err(|error| SessionError::thread(std::io::Error::other(error)))??;
            if let Some(endpoint) = self.home.find()? {
                return Ok(endpoint);
            }
            match &self.hosting {
                Hosting::InProcess => match self.home.host().await {
                    Ok(hosted) => {
                        let endpoint = hosted.endpoint.clone();
                        *self.hosted.lock().expect("held for a change only") = Some(Arc::new(hosted));
                        return Ok(endpoint);
                    }
                    // A server that is ending holds the store slightly longer than it can be found.
                    Err(EmbeddedError::Server(error)) if matches!(*error, ServerError::InUse { .. }) => {}
                    Err(error) => return Err(error.into()),
                },
                Hosting::Starting(start) => start().await?,
                Hosting::Never => {}
            }
            sleep(STARTING).await;
        }
    }
}

impl Locate for Site {
    fn locate(self: Arc<Self>) -> Locating {
        async move {
            let endpoint = self.find_or_start().await?;
            let credentials = vec![("lockkeeper".to_owned(), endpoint.secret.into_bytes())];
            let servers = endpoint.address.to_string().parse().expect("an address is a connect string");
            Ok(Located { servers, credentials })
        }
        .boxed()
    }
}

/// Opens sessions with the server of a home.
pub(crate) struct Embedded {
    pub(crate) site: Arc<Site>,
    pub(crate) session_timeout: Duration,
    /// As for [`ZooKeeper`].
    pub(crate) tasks: TaskTracker,
}

impl Network for Embedded {
    fn open(&self, patience: Duration) -> BoxFuture<'_, Result<Opened, SessionError>> {
        async move {
            let started = Instant::now();
            let endpoint = timeout(patience, self.site.find_or_start()).await.unwrap_or_else(|_| {
                let dir = self.site.home.dir.display();
                let (servers, detail) = (dir.to_string(), format!("another process is starting the server of {dir}"));
                Err(SessionError::Unreachable { servers, waited: patience, detail })
            })?;
            let servers = endpoint.address.to_string().parse().expect("an address is a connect string");
            self.site.found(endpoint);
            let network = ZooKeeper {
                servers,
                session_timeout: self.session_timeout,
                reconnect: None,
                credentials: Vec::new(),
                sasl: None,
                acl: LockAcl::Open,
                tasks: self.tasks.clone(),
                locate: Some(self.site.clone()),
                simulated: None,
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
        format!("the server of {}", self.site.home.dir().display())
    }
}

/// Writes a file with this mode, completely or not at all.
fn replace(file: &Path, text: &[u8], mode: u32) -> Result<(), EmbeddedError> {
    let fresh = file.with_extension("new");
    let failed = |source| EmbeddedError::file("cannot write", file, source);
    write_whole(&fresh, text, mode).map_err(failed)?;
    std::fs::rename(&fresh, file).map_err(failed)
}

fn write_whole(file: &Path, text: &[u8], mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mut opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    // Set the mode explicitly, because a service's umask may exclude others.
    opened.set_permissions(std::fs::Permissions::from_mode(mode))?;
    opened.write_all(text)?;
    opened.sync_all()
}

/// Refuses a secret that other users can read.
fn private(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let problem = format!("its mode {:o} lets others read it; run chmod 600 on it, or remove it", mode & 0o777);
    Err(std::io::Error::new(ErrorKind::PermissionDenied, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Later, another program may listen at its address, and must not get the secret.
    #[tokio::test]
    async fn a_server_that_was_found_is_not_looked_for_again_once_and_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let found = Endpoint { address: "127.0.0.1:1".parse().unwrap(), pid: 1, secret: String::new() };
        let site = Site::new(Home::new(dir.path()), Hosting::Never, Some(found.clone()));
        assert_eq!(site.find_or_start().await.ok(), Some(found.clone()));
        let not_running = |end| matches!(end, Err(SessionError::Embedded(EmbeddedError::NotRunning { .. })));
        assert!(not_running(site.find_or_start().await));
        site.found(found);
        sleep(JUST_NOW).await;
        assert!(not_running(site.find_or_start().await));
    }
}
