//! The handle that programs hold: it opens sessions, and hands out locks.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{LockPath, Loss, Owner};
use tokio::sync::Mutex as AsyncMutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admin::Admin;
use crate::clock::Clock;
use crate::ensemble::acl::LockAcl;
use crate::ensemble::servers::Servers;
#[cfg(feature = "tls")]
use crate::ensemble::tls::Tls;
use crate::ensemble::zookeeper::ZooKeeper;
use crate::ensemble::{Ensemble, Network};
use crate::hold::{Hold, OnLost};
use crate::queue::driver::passed;
use crate::session::process::Owned;
use crate::session::{Io, Session};
use crate::{Error, identity};

/// How long a session lives without a sign of life of its process. The server may grant less or more.
///
/// A hold goes on without a server for 0.54 of it at least: 16 s, for an ordinary restart of a single server and for an election
/// (docs/guarantees.md has both as measured).
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// The same for the embedded server, which is back within a second: there a crash may be noticed sooner.
pub(crate) const EMBEDDED_SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long before a deadline an attempt to open a session ends, so that its own error is there at the deadline.
const MOMENT: Duration = Duration::from_millis(20);

/// How long servers are tried before "unreachable".
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Locks on one ensemble. Cheap to clone; all clones share one session and one thread for its input and output.
///
/// When its session is lost, the next call opens a new one; guards stay with the session that granted them.
#[derive(Clone)]
pub struct Lockkeeper {
    inner: Arc<Inner>,
}

/// The last hold of each leased lock, by its path and its owner.
type Leases = HashMap<(String, String), Weak<Hold>>;

struct Inner {
    network: Owned<Box<dyn Network>>,
    /// Which servers these are.
    servers: Arc<str>,
    connect_timeout: Duration,
    reconnect: Option<Reconnect>,
    clock: Clock,
    owner: Owner,
    on_lost: OnLost,
    io: Owned<Arc<Io>>,
    /// The last session opened.
    session: Owned<Mutex<Option<Arc<Session>>>>,
    /// Held while one is being opened, so that all who need one wait for the same.
    opening: AsyncMutex<()>,
    leases: Owned<Mutex<Leases>>,
    closed: CancellationToken,
}

/// How often a lost or missing connection is tried again, and the pause before each try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reconnect {
    pub(crate) retries: u32,
    pub(crate) delay: Duration,
}

impl Reconnect {
    /// How long a connection may be lost until these tries are used up. Who tries is the client, in its own rhythm.
    pub(crate) fn patience(self) -> Duration {
        self.delay.saturating_mul(self.retries)
    }
}

/// Options for a [`Lockkeeper`].
#[derive(Clone)]
#[must_use = "options do nothing until connected"]
pub struct Builder {
    session_timeout: Option<Duration>,
    connect_timeout: Duration,
    reconnect: Option<Reconnect>,
    create_chroot: bool,
    owner: Owner,
    credentials: Vec<(String, Vec<u8>)>,
    acl: LockAcl,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    on_lost: OnLost,
    tls_files: Option<TlsFiles>,
}

/// Files to make a [`Tls`] of.
#[derive(Clone)]
struct TlsFiles {
    authorities: PathBuf,
    /// A certificate and its key.
    identity: Option<(PathBuf, PathBuf)>,
}

/// Without what a log must not show.
impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let schemes: Vec<_> = self.credentials.iter().map(|(scheme, _)| scheme).collect();
        let (session_timeout, acl) = (self.session_timeout, self.acl);
        f.debug_struct("Builder")
            .field("session_timeout", &session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("reconnect", &self.reconnect)
            .field("owner", &self.owner)
            .field("credentials", &schemes)
            .field("acl", &acl)
            .field("on_lost", &self.on_lost)
            .finish()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            session_timeout: None,
            connect_timeout: CONNECT_TIMEOUT,
            reconnect: None,
            create_chroot: false,
            owner: identity::this_process(),
            credentials: Vec::new(),
            acl: LockAcl::Open,
            #[cfg(feature = "tls")]
            tls: None,
            on_lost: OnLost::Nothing,
            tls_files: None,
        }
    }
}

impl Builder {
    /// How long the session lives without a sign of life of this process: unless set, 30 s with servers, 10 s with an embedded
    /// server.
    ///
    /// Less than a millisecond is [`Error::InvalidSessionTimeout`] when it connects.
    ///
    /// After a crash the lock is free about this much later. While no server answers, a hold goes on for about half of it: the
    /// default outlasts an ordinary restart of a single server. The server clamps it, usually to 2 to 20 of its ticks.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// How long to try to reach a server before [`Error::Unreachable`]; 10 s unless set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How often a lost or missing connection is tried again before that is an error, with `delay` before each try.
    ///
    /// Unless set, a session is tried to be opened for the connect timeout, and a wait whose connection is lost goes on as
    /// long as its session may live. If set, opening a session asks every server `1 + retries` times and then fails with
    /// [`Error::Unreachable`], within the connect timeout still, and a wait whose connection has been lost for `retries` times
    /// `delay` fails with [`Error::ConnectionLost`]. Holds are not judged by it: see [`Guard`](crate::Guard).
    pub fn reconnect(mut self, retries: u32, delay: Duration) -> Self {
        self.reconnect = Some(Reconnect { retries, delay });
        self
    }

    /// Whether a missing chroot of the connect string is created, with the nodes above it, when the first node below it is;
    /// `false` unless set: then connecting fails with [`Error::NoChroot`].
    pub fn create_chroot(mut self, create: bool) -> Self {
        self.create_chroot = create;
        self
    }

    /// Who the nodes name as their owner; this process unless set.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// What this process is doing, for the owner's record; its program's name unless set.
    pub fn program(mut self, program: impl Into<String>) -> Self {
        self.owner.program = Some(program.into());
        self
    }

    /// The proof that a server which serves one user only asks for.
    pub fn secret(self, secret: impl Into<String>) -> Self {
        self.credential("lockkeeper", secret.into())
    }

    /// What this process proves itself with, for ensembles whose access lists ask: `credential("digest", "user:password")`.
    /// May be given for several schemes. It travels as it is: use TLS where others may listen.
    pub fn credential(mut self, scheme: impl Into<String>, credential: impl Into<Vec<u8>>) -> Self {
        self.credentials.push((scheme.into(), credential.into()));
        self
    }

    /// Who may use the nodes that this handle makes; anyone unless set. An embedded server serves one user anyway.
    pub fn acl(mut self, acl: LockAcl) -> Self {
        self.acl = acl;
        self
    }

    /// Speaks TLS with every server of the connect string; plain TCP unless set. An embedded server needs none.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// What to do when a lock of this handle is lost, beside telling its guard; nothing unless set.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// As `tls` with what is in these files, all PEM: the authorities to trust, and where servers ask for it a certificate with
    /// its chain and the key to it. They are read when connecting; without the feature `tls` that is [`Error::InvalidTls`].
    pub fn tls_files(
        mut self,
        authorities: impl Into<PathBuf>,
        identity: Option<(impl Into<PathBuf>, impl Into<PathBuf>)>,
    ) -> Self {
        let identity = identity.map(|(certificate, key)| (certificate.into(), key.into()));
        self.tls_files = Some(TlsFiles { authorities: authorities.into(), identity });
        self
    }

    /// Connects to an ensemble. See [`Lockkeeper::connect`].
    ///
    /// # Errors
    /// As [`Lockkeeper::connect`].
    pub async fn connect(self, servers: &str) -> Result<Lockkeeper, Error> {
        let servers = self.checked(servers)?;
        let io = Io::thread()?;
        let network = self.network(servers, &io);
        self.start(Box::new(network), io, Clock::System).opened().await
    }

    /// The same on this thread, for programs without async.
    ///
    /// # Errors
    /// As [`Lockkeeper::connect`].
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn connect_blocking(self, servers: &str) -> Result<Lockkeeper, Error> {
        let servers = self.checked(servers)?;
        let io = Io::thread()?;
        let network = self.network(servers, &io);
        let keeper = self.start(Box::new(network), io.clone(), Clock::System);
        io.block_on(keeper.opened())
    }

    /// Uses the embedded server of a directory. See [`Lockkeeper::embedded`].
    ///
    /// # Errors
    /// As [`Lockkeeper::embedded`].
    #[cfg(feature = "embedded")]
    pub async fn embedded(self, dir: impl Into<std::path::PathBuf>) -> Result<Lockkeeper, Error> {
        self.embedded_with(crate::embedded::Home::new(dir), crate::embedded::Hosting::InProcess).await
    }

    /// The same, with a choice of what to do where no server runs: before the first session, and each time when the connection is
    /// lost. Dropping the future leaves no session behind.
    ///
    /// # Errors
    /// As [`Lockkeeper::embedded`], and [`Error::NotRunning`].
    #[cfg(feature = "embedded")]
    pub async fn embedded_with(
        self,
        home: crate::embedded::Home,
        hosting: crate::embedded::Hosting,
    ) -> Result<Lockkeeper, Error> {
        use crate::embedded::{Embedded, Site};
        self.check_timeout()?;
        let (session_timeout, io) = (self.session_timeout.unwrap_or(EMBEDDED_SESSION_TIMEOUT), Io::thread()?);
        let network = Embedded { site: Arc::new(Site::new(home, hosting)), session_timeout, tasks: io.tasks().clone() };
        self.start(Box::new(network), io, Clock::System).opened().await
    }

    /// Uses this user's own server. See [`Lockkeeper::own_server`].
    ///
    /// # Errors
    /// As [`Lockkeeper::own_server`].
    #[cfg(feature = "embedded")]
    pub async fn own_server(self) -> Result<Lockkeeper, Error> {
        let home = crate::embedded::Home::of_this_user()?;
        self.embedded_with(home, crate::embedded::Hosting::InProcess).await
    }

    /// Connects through a network of the caller's own on the current runtime: for simulations.
    #[doc(hidden)]
    pub fn simulated(self, network: Box<dyn Network>) -> Lockkeeper {
        let io = Io::here(tokio::runtime::Handle::current());
        self.start(network, io, Clock::Runtime(tokio::time::Instant::now()))
    }

    /// Everything that can be said to be wrong before anything is sent.
    fn checked(&self, servers: &str) -> Result<Servers, Error> {
        self.check_timeout()?;
        if self.acl != LockAcl::Open && !self.has_credential() {
            return Err(Error::NoCredential { acl: self.acl });
        }
        let servers: Servers = servers.parse()?;
        #[cfg(feature = "tls")]
        let servers = match (&self.tls, &self.tls_files) {
            (Some(tls), _) => servers.secured(tls.clone())?,
            (None, Some(files)) => servers.secured(files.read()?)?,
            (None, None) => servers,
        };
        // Never in the clear because of how a program was built.
        #[cfg(not(feature = "tls"))]
        if let Some(TlsFiles { authorities, .. }) = &self.tls_files {
            let problem = format!("{} is of no use: this program was built without TLS", authorities.display());
            return Err(Error::InvalidTls { problem });
        }
        Ok(servers)
    }

    fn check_timeout(&self) -> Result<(), Error> {
        match self.session_timeout {
            Some(given) if given.as_millis() == 0 => Err(Error::InvalidSessionTimeout { given }),
            _ => Ok(()),
        }
    }

    /// Whether servers can tell this process from everyone.
    fn has_credential(&self) -> bool {
        #[cfg(feature = "tls")]
        let certified = self.tls.as_ref().is_some_and(Tls::has_identity);
        #[cfg(not(feature = "tls"))]
        let certified = false;
        let certified = certified || self.tls_files.as_ref().is_some_and(|files| files.identity.is_some());
        certified || !self.credentials.is_empty()
    }

    fn network(&self, servers: Servers, io: &Io) -> ZooKeeper {
        let session_timeout = self.session_timeout.unwrap_or(SESSION_TIMEOUT);
        let credentials = self.credentials.clone();
        let (reconnect, tasks) = (self.reconnect, io.tasks().clone());
        let (acl, create_chroot) = (self.acl, self.create_chroot);
        ZooKeeper { servers, session_timeout, reconnect, credentials, acl, create_chroot, tasks, locate: None }
    }

    pub(crate) fn start(self, network: Box<dyn Network>, io: Arc<Io>, clock: Clock) -> Lockkeeper {
        let Builder { connect_timeout, reconnect, owner, on_lost, .. } = self;
        let servers = network.servers().into();
        let (network, io, session) = (Owned::new(network), Owned::new(io), Owned::new(Mutex::new(None)));
        let (opening, leases) = (AsyncMutex::new(()), Owned::new(Mutex::default()));
        let closed = CancellationToken::new();
        Lockkeeper {
            inner: Arc::new(Inner {
                network,
                servers,
                connect_timeout,
                reconnect,
                clock,
                owner,
                on_lost,
                io,
                session,
                opening,
                leases,
                closed,
            }),
        }
    }
}

#[cfg(feature = "tls")]
impl TlsFiles {
    fn read(&self) -> Result<Tls, Error> {
        let read = |file: &PathBuf| {
            std::fs::read(file).map_err(|why| Error::InvalidTls { problem: format!("{}: {why}", file.display()) })
        };
        // Whichever of them is of no use, its name belongs to what is said.
        let named = |files: &[&PathBuf], result: Result<Tls, Error>| {
            result.map_err(|error| match error {
                Error::InvalidTls { problem } => {
                    let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
                    Error::InvalidTls { problem: format!("{problem} ({})", files.join(", ")) }
                }
                other => other,
            })
        };
        let tls = named(&[&self.authorities], Tls::trusting(&read(&self.authorities)?))?;
        match &self.identity {
            None => Ok(tls),
            Some((certificate, key)) => named(&[certificate, key], tls.with_identity(&read(certificate)?, &read(key)?)),
        }
    }
}

impl Lockkeeper {
    /// Options, for more than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects to the servers of a ZooKeeper connect string: `zk1:2181,zk2:2181,zk3:2181/chroot`.
    ///
    /// A missing chroot is an error, unless [`Builder::create_chroot`] is set. Dropping the future leaves no session behind.
    ///
    /// # Errors
    /// [`Error::NoChroot`]; [`Error::InvalidServers`] before anything is sent; [`Error::Unreachable`] after 10 s of trying, with what came back
    /// from each server.
    pub async fn connect(servers: &str) -> Result<Lockkeeper, Error> {
        Self::builder().connect(servers).await
    }

    /// Locks on this machine alone, with no server to install: the embedded server of the directory `dir`.
    ///
    /// The first process hosts the server; others on the machine, given the same directory, join it. When the host ends, properly
    /// or not, another process that uses the directory hosts the server within a second, at the same address. Everything
    /// acknowledged is on disk and sessions have their full timeout after a restart: holders and waiters go on. One machine, one
    /// disk: not an ensemble.
    ///
    /// Call [`Lockkeeper::close`] before the process ends. A process that ends without it may end before its sessions are closed;
    /// then its locks stay taken until the sessions expire.
    ///
    /// # Errors
    /// [`Error::Server`] and [`Error::File`] for a directory that cannot be used.
    #[cfg(feature = "embedded")]
    pub async fn embedded(dir: impl Into<std::path::PathBuf>) -> Result<Lockkeeper, Error> {
        Self::builder().embedded(dir).await
    }

    /// The locks of the command `lockkeeper` where no servers are set: those of this user's own server, in the directory of
    /// [`Home::of_this_user`](crate::embedded::Home::of_this_user).
    ///
    /// The first process hosts the server, as [`Lockkeeper::embedded`] tells; the command joins it, and takes it over when this
    /// process ends.
    ///
    /// # Errors
    /// As [`Lockkeeper::embedded`]; [`Error::File`] also where there is no home directory.
    #[cfg(feature = "embedded")]
    pub async fn own_server() -> Result<Lockkeeper, Error> {
        Self::builder().own_server().await
    }

    /// The exclusive lock at `path`, an absolute path like `/locks/nightly`. Costs nothing; a bad path is reported by the
    /// acquire.
    pub fn mutex(&self, path: &str) -> crate::Mutex {
        crate::Mutex::new(self.clone(), LockPath::parse(path))
    }

    /// The exclusive lock at a path where callers may lock nothing, for Lockkeeper's own use: the command's.
    #[doc(hidden)]
    pub fn own_mutex(&self, path: LockPath) -> crate::Mutex {
        crate::Mutex::new(self.clone(), Ok(path))
    }

    /// The shared lock at `path`. Costs nothing; a bad path is reported by the acquire.
    pub fn rwlock(&self, path: &str) -> crate::RwLock {
        crate::RwLock::new(self.clone(), LockPath::parse(path))
    }

    /// The leased lock of a Helix scope, or at a path, to be held for `lease` at most before others may take it. Costs nothing;
    /// a bad path or lease is reported by the acquire.
    pub fn helix_lock(&self, place: impl Into<crate::lease::Place>, lease: Duration) -> crate::lease::HelixLock {
        crate::lease::HelixLock::new(self.clone(), place.into(), lease)
    }

    /// The semaphore at `path`, which has `permits` permits. Costs nothing; a bad path or number is reported by the acquire.
    pub fn semaphore(&self, path: &str, permits: u32) -> crate::Semaphore {
        crate::Semaphore::new(self.clone(), LockPath::parse(path), permits)
    }

    /// The lock with classes at `path`. Costs nothing; a bad path is reported by the acquire.
    pub fn priority_lock(&self, path: &str) -> crate::PriorityLock {
        crate::PriorityLock::new(self.clone(), LockPath::parse(path))
    }

    /// The exclusive lock called `name` under `base`, as an object with `lock` and `unlock`; its path is
    /// [`LockPath::join`] of the two. Costs nothing; a bad base path is reported by the call to lock.
    pub fn distributed_lock(&self, base: &str, name: &str) -> crate::DistributedLock {
        crate::DistributedLock::new(self.clone(), base, name)
    }

    /// Several locks in one call, all of them or none. Requests of several kinds are put together with
    /// [`Acquire::any`](crate::Acquire::any).
    ///
    /// ```no_run
    /// # async fn example(keeper: lockkeeper::Lockkeeper) -> Result<(), Box<dyn std::error::Error>> {
    /// let both = keeper.multi_lock([keeper.mutex("/a").acquire(), keeper.mutex("/b").acquire()]).await?;
    /// both.release().await?;
    /// let mixed = [keeper.rwlock("/a").read().acquire().any(), keeper.semaphore("/s", 3).acquire().any()];
    /// let mixed = keeper.multi_lock(mixed).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn multi_lock<G>(&self, requests: impl IntoIterator<Item = crate::Acquire<G>>) -> crate::MultiAcquire {
        crate::MultiAcquire::new(requests.into_iter().map(crate::Acquire::any).collect())
    }

    /// Questions about locks: who holds, who waits; and the breaking of one that hangs.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// Closes the session: waiting calls end with [`Error::Closed`], guards are lost, their nodes deleted, and the server is
    /// told. Returns when all that is confirmed or the session has ended.
    ///
    /// Dropping the last handle and guard does the same in the background; a process that exits meanwhile frees its locks
    /// only by session expiry. Dropping the future before that leaves the rest of it to the background.
    pub async fn close(&self) {
        let inner = self.inner.clone();
        let closed = self.run(async move {
            inner.closed.cancel();
            let session = inner.session.lock().expect("held for a look only").take();
            if let Some(session) = session {
                session.close().await;
            }
            Ok(())
        });
        // An error here means that the thread is gone, and with it the session.
        _ = closed.await;
    }

    /// [`Lockkeeper::close`] on this thread, for programs without async.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn close_blocking(&self) {
        self.inner.io.block_on(self.close());
    }

    /// The library's thread, for those who wait on their own.
    pub(crate) fn io(&self) -> &Arc<Io> {
        &self.inner.io
    }

    /// Runs a question where the input and output run, and listens for its answer from anywhere. Dropping the future ends
    /// the task too.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        question: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send + 'static {
        let (mut asker, answer) = oneshot::channel();
        let ours = self.check_process();
        if ours.is_ok() {
            self.spawn(async move {
                tokio::select! {
                    biased;
                    () = asker.closed() => {}
                    answered = question => drop(asker.send(answered)),
                }
            });
        }
        async move {
            ours?;
            answer.await.unwrap_or(Err(Error::Closed))
        }
    }

    /// Whether this process made the handle, and is not a forked child of that one.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.inner.io.is_ours() { Ok(()) } else { Err(Error::Forked) }
    }

    /// What to do when a lock is lost.
    pub(crate) fn on_lost(&self) -> &OnLost {
        &self.inner.on_lost
    }

    /// Takes note of a hold of a leased lock. The one that the same owner had before by this handle is superseded.
    pub(crate) fn leased(&self, owner: &str, hold: &Arc<Hold>) {
        let key = (hold.path.clone(), owner.to_owned());
        let mut leases = self.inner.leases.lock().expect("held for a change only");
        leases.retain(|_, hold| hold.strong_count() > 0);
        let before = leases.insert(key, Arc::downgrade(hold)).and_then(|before| before.upgrade());
        drop(leases);
        if let Some(before) = before {
            before.lose(Loss::Superseded);
        }
    }

    /// Runs a task of the library where its input and output run.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.io.spawn(task);
    }

    /// The clock of its sessions.
    pub(crate) fn clock(&self) -> Clock {
        self.inner.clock
    }

    /// Cancelled when the handle is closed.
    pub(crate) fn closed(&self) -> CancellationToken {
        self.inner.closed.clone()
    }

    /// Who the nodes of this handle name as their owner.
    pub fn owner(&self) -> &Owner {
        &self.inner.owner
    }

    /// How long the session of now lives without a sign of life, as agreed with the server, which may have given less or more
    /// than was asked for; `None` while there is no session. No round trip.
    pub fn session_timeout(&self) -> Option<Duration> {
        self.ready_session().map(|(session, _)| session.timeout())
    }

    /// How long a wait bears a lost connection; `None` as long as the session may live.
    pub(crate) fn reconnect_patience(&self) -> Option<Duration> {
        self.inner.reconnect.map(Reconnect::patience)
    }

    /// The session of now with its operations, if there is one that can be used at once.
    ///
    /// Both together: should the session end the next moment, its operations still say how, and no later look is needed.
    pub(crate) fn ready_session(&self) -> Option<(Arc<Session>, Arc<dyn Ensemble>)> {
        let session = self.inner.session.lock().expect("held for a look only").clone()?;
        let ensemble = session.ensemble()?;
        Some((session, ensemble))
    }

    /// The session of now: the last one, or a new one if that is over. Tries until `deadline`, or for the connect timeout where
    /// that is less.
    pub(crate) async fn session(&self, deadline: Option<Instant>) -> Result<(Arc<Session>, Arc<dyn Ensemble>), Error> {
        let (inner, started) = (&self.inner, Instant::now());
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let opening = async {
            let _one_at_a_time = inner.opening.lock().await;
            if let Some(ready) = self.ready_session() {
                return Ok(ready);
            }
            let patience = left().map(|left| left.saturating_sub(MOMENT.min(left / 2)));
            let patience = patience.map_or(inner.connect_timeout, |patience| patience.min(inner.connect_timeout));
            let opened = match inner.network.open(patience).await {
                Err(Error::Unreachable { servers, detail, .. }) if left().is_some_and(|left| left <= MOMENT) => {
                    passed(deadline).await;
                    Err(Error::Unreachable { servers, waited: started.elapsed(), detail })
                }
                opened => opened,
            }?;
            let ensemble = opened.ensemble.clone();
            let session = Session::start(Arc::clone(&inner.io), inner.clock, opened);
            // The one before is over; dropped outside the lock, for its end is not instant.
            let before = inner.session.lock().expect("held for a look only").replace(session.clone());
            drop(before);
            Ok((session, ensemble))
        };
        tokio::select! {
            biased;
            () = inner.closed.cancelled() => Err(Error::Closed),
            opened = opening => opened,
            () = passed(deadline) => {
                let detail = "no session was opened in time".to_owned();
                Err(Error::Unreachable { servers: self.servers().to_string(), waited: started.elapsed(), detail })
            }
        }
    }

    /// Which servers these are, for messages.
    pub(crate) fn servers(&self) -> Arc<str> {
        self.inner.servers.clone()
    }

    /// Opens the first session, so that an unreachable ensemble shows at once.
    async fn opened(self) -> Result<Lockkeeper, Error> {
        let keeper = self.clone();
        self.run(async move { keeper.session(None).await.map(drop) }).await.map(|()| self)
    }
}

impl std::fmt::Debug for Lockkeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lockkeeper").field("owner", &self.inner.owner).finish_non_exhaustive()
    }
}

/// Now, for people: milliseconds since 1970 by this machine's clock.
pub(crate) fn wall_clock_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
