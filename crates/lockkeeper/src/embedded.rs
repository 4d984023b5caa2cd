//! A home for an embedded server: one directory, one server at a time, for one user.
//!
//! The directory holds `data` (the server's store), `secret` (what a client must present, readable by the owner only) and,
//! while a server runs, `endpoint` (where it listens). Whoever comes first hosts the server in its own process; others on the
//! machine find it there and join. The store's lock decides who hosts, never the endpoint file: that one may be left over.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_server::{Config, Secret, Server, ServerError};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::acl::LockAcl;
use crate::ensemble::{Network, Opened};
use crate::zookeeper::ZooKeeper;

/// The tick of an embedded server. Shorter than ZooKeeper's 2 s, for there is no network between: sessions expire sooner after
/// the crash of their process.
const TICK: Duration = Duration::from_millis(500);

/// The settings that every server of one machine has in common: its tick, and sessions from 1 s to 1 min.
pub fn server_config() -> Config {
    Config::default().with_tick(TICK).with_session_timeouts(TICK * 2..=TICK * 120)
}

/// How long a joiner waits between looks for a server that is just starting or stopping. There is no event to wait for:
/// another process holds the store but has not said yet where it listens.
const STARTING: Duration = Duration::from_millis(10);

/// The directory of an embedded server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    dir: PathBuf,
}

/// Where a running embedded server is found.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its address on this machine.
    pub address: SocketAddr,
    /// Its process.
    pub pid: u32,
    /// What to present to it; not part of the file.
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
    server: Option<Server>,
    endpoint: Endpoint,
    file: PathBuf,
}

impl Home {
    /// The home in this directory, which is made when a server is first hosted there.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Home { dir: dir.into() }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The server that runs here, if one does.
    ///
    /// # Errors
    /// A file that cannot be read, or one that others could have written.
    pub fn find(&self) -> Result<Option<Endpoint>, Error> {
        let file = self.dir.join("endpoint");
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::File { what: "cannot read", file, source }),
        };
        // Half a file, or one of another version: whoever hosts next writes it anew.
        let Ok(mut endpoint) = serde_json::from_slice::<Endpoint>(&text) else {
            return Ok(None);
        };
        if !self.is_hosted()? {
            return Ok(None);
        }
        endpoint.secret = self.secret()?;
        Ok(Some(endpoint))
    }

    /// Whether some process holds the store.
    fn is_hosted(&self) -> Result<bool, Error> {
        let file = self.dir.join("data").join("lock");
        match File::open(&file) {
            // Shared, and let go at once: several may ask at the same time, a host that starts meanwhile tries again.
            Ok(lock) => Ok(lock.try_lock_shared().is_err()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(source) => Err(Error::File { what: "cannot open", file, source }),
        }
    }

    /// Starts the server in this process.
    ///
    /// # Errors
    /// [`Error::Server`] with [`ServerError::InUse`] if another process hosts it already.
    pub async fn host(&self) -> Result<Hosted, Error> {
        self.host_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// The same, listening there instead of on a free port.
    ///
    /// # Errors
    /// As [`Home::host`].
    pub async fn host_at(&self, listen: SocketAddr) -> Result<Hosted, Error> {
        self.make_dir()?;
        let secret = self.secret()?;
        let config = server_config()
            .with_directory(self.dir.join("data"))
            .with_listen(listen)
            .with_secret(Secret::new(secret.as_bytes()));
        let server = Server::start(config).await?;
        let endpoint = Endpoint { address: server.addr(), pid: std::process::id(), secret };
        let file = self.dir.join("endpoint");
        let text = serde_json::to_vec(&endpoint).expect("an address and a number always serialise");
        replace(&file, &text)?;
        Ok(Hosted { server: Some(server), endpoint, file })
    }

    /// Makes the directory, for this user only.
    fn make_dir(&self) -> Result<(), Error> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.dir).map_err(|source| Error::File { what: "cannot make", file: self.dir.clone(), source })
    }

    /// The secret of this home, made on first use.
    fn secret(&self) -> Result<String, Error> {
        let file = self.dir.join("secret");
        let failed = |what| {
            let file = file.clone();
            move |source| Error::File { what, file, source }
        };
        loop {
            match File::open(&file) {
                Ok(mut opened) => {
                    private(&opened).map_err(failed("refuse to use"))?;
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
            // Linked into place whole: of two that make it at the same time, one wins and both read the same.
            // Each with a file of its own, also among the threads of one process.
            static MADE: AtomicU32 = AtomicU32::new(0);
            let fresh = file.with_extension(format!("new-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed)));
            write_private(&fresh, secret.as_bytes()).map_err(failed("cannot write"))?;
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
    /// Where it is found.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("taken by shutdown only, which consumes self")
    }

    /// Stops it; returns when everything is on disk. Sessions survive.
    ///
    /// # Errors
    /// [`Error::Server`] if the last writes failed.
    pub async fn shutdown(mut self) -> Result<(), Error> {
        self.hide();
        match self.server.take() {
            Some(server) => Ok(server.shutdown().await?),
            None => Ok(()),
        }
    }

    /// Lets nobody find it any more. Before the store is let go, so that no successor's file is removed.
    fn hide(&self) {
        if self.server.is_some() {
            _ = std::fs::remove_file(&self.file);
        }
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.hide();
    }
}

/// Opens sessions with the server of a home, hosting it where nobody does.
pub(crate) struct Embedded {
    pub(crate) home: Home,
    pub(crate) session_timeout: Duration,
    /// As [`ZooKeeper`]'s.
    pub(crate) tasks: TaskTracker,
    pub(crate) hosted: Mutex<Option<Arc<Hosted>>>,
}

impl Network for Embedded {
    fn open(&self, patience: Duration) -> BoxFuture<'_, Result<Opened, Error>> {
        async move {
            let started = Instant::now();
            let (endpoint, hosted) = self.join_or_host(patience).await?;
            let network = ZooKeeper {
                servers: endpoint.address.to_string().parse()?,
                session_timeout: self.session_timeout,
                reconnect: None,
                credentials: vec![("lockkeeper".to_owned(), endpoint.secret.into_bytes())],
                acl: LockAcl::Open,
                tasks: self.tasks.clone(),
            };
            let mut opened = network.open(patience.saturating_sub(started.elapsed())).await?;
            // The server outlives the sessions with it: they close through it.
            opened.anchor = hosted.map(|hosted| hosted as _);
            Ok(opened)
        }
        .boxed()
    }
}

impl Embedded {
    async fn join_or_host(&self, patience: Duration) -> Result<(Endpoint, Option<Arc<Hosted>>), Error> {
        if let Some(hosted) = self.hosted.lock().expect("held for a clone only").clone() {
            return Ok((hosted.endpoint().clone(), Some(hosted)));
        }
        let started = Instant::now();
        loop {
            if let Some(endpoint) = self.home.find()? {
                return Ok((endpoint, None));
            }
            match self.home.host().await {
                Ok(hosted) => {
                    let hosted = Arc::new(hosted);
                    *self.hosted.lock().expect("held for a clone only") = Some(hosted.clone());
                    return Ok((hosted.endpoint().clone(), Some(hosted)));
                }
                Err(Error::Server(ServerError::InUse { .. })) if started.elapsed() < patience => {
                    tokio::time::sleep(STARTING).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Writes a file that only this user can read, whole or not at all.
fn replace(file: &Path, text: &[u8]) -> Result<(), Error> {
    let fresh = file.with_extension("new");
    let failed = |source| Error::File { what: "cannot write", file: file.to_owned(), source };
    write_private(&fresh, text).map_err(failed)?;
    std::fs::rename(&fresh, file).map_err(failed)
}

fn write_private(file: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut opened = options.open(file)?;
    opened.write_all(text)?;
    opened.sync_all()
}

/// Refuses a secret that others can read.
#[cfg(unix)]
fn private(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let problem = format!("its mode {:o} lets others read it; run chmod 600 on it, or remove it", mode & 0o777);
    Err(std::io::Error::new(ErrorKind::PermissionDenied, problem))
}

#[cfg(not(unix))]
fn private(_: &File) -> std::io::Result<()> {
    Ok(())
}
