//! Options of a connection, and how a `Lockkeeper` connects.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Owner;
#[cfg(feature = "tls")]
use lockkeeper_session::Tls;
use lockkeeper_session::acl::LockAcl;
use lockkeeper_session::ensemble::{EachServer, Reconnect};
use lockkeeper_session::{Clock, Options, Sessions, TlsFiles};

use crate::error::{ConnectError, Misuse};
use crate::hold::exit;
use crate::hold::on_lost::OnLost;
use crate::identity::{self, this_instance};
use crate::keeper::{Inner, Lockkeeper, PathCheck};
use crate::meters::{self, Group};

/// Options for a [`Lockkeeper`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockkeeper::Lockkeeper;
///
/// # async fn example() -> Result<(), lockkeeper::Error> {
/// let keeper = Lockkeeper::builder()
///     .session_timeout(Duration::from_secs(15))
///     .connect_timeout(Duration::from_secs(3))
///     .program("indexer")
///     .connect("zk1:2181,zk2:2181,zk3:2181")
///     .await?;
/// keeper.check().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "options do nothing until connected"]
pub struct Builder {
    options: Options,
    owner: Owner,
    on_lost: OnLost,
    group: Group,
    path_check: Option<PathCheck>,
}

/// Omits the secrets, which must not appear in a log.
impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut builder = f.debug_struct("Builder");
        builder
            .field("options", &self.options)
            .field("owner", &self.owner)
            .field("on_lost", &self.on_lost)
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            options: Options::default(),
            owner: identity::this_process(),
            on_lost: OnLost::Nothing,
            group: Group::default(),
            path_check: None,
        }
    }
}

impl Builder {
    /// The default session timeout. The server may grant less or more.
    ///
    /// A hold survives at least 0.54 of it without a server: 16 s, which covers an ordinary restart of a single server and
    /// an election (docs/guarantees.md has both measurements).
    pub const SESSION_TIMEOUT: Duration = Options::SESSION_TIMEOUT;

    /// The default session timeout with the embedded server. It restarts within a second, so a shorter timeout detects
    /// crashes sooner.
    #[cfg(feature = "embedded")]
    pub const EMBEDDED_SESSION_TIMEOUT: Duration = Options::EMBEDDED_SESSION_TIMEOUT;

    /// How long servers are tried before [`SessionError::Unreachable`](crate::error::SessionError::Unreachable).
    pub const CONNECT_TIMEOUT: Duration = Options::CONNECT_TIMEOUT;

    /// Sets the session timeout: how long the session lives without a sign of life from this process. The default is 30
    /// s with servers and 10 s with an embedded server.
    ///
    /// After a crash, the lock becomes free about this much later. While no server answers, a hold stays valid for
    /// about half of it; the default outlasts an ordinary restart of a single server. The server clamps the timeout,
    /// usually to between 2 and 20 of its ticks.
    ///
    /// Connecting fails with [`ConnectError::Misuse`] if the timeout is shorter than 1 ms.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.options.session_timeout = Some(timeout);
        self
    }

    /// Sets how long servers are tried before [`SessionError::Unreachable`](crate::error::SessionError::Unreachable).
    /// The default is 10 s.
    ///
    /// The first session fails without that wait if every server shows a mistake about TLS that does not pass by itself in each of
    /// 16 rounds of attempts: a certificate from an unknown authority or for another name, or a port for TLS and no certificate
    /// authority. With [`Builder::reconnect`], only the number of retries counts.
    ///
    /// Connecting fails with [`ConnectError::Misuse`] if the timeout is shorter than 1 ms.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// Sets how often a lost or missing connection is retried, with `delay` before each retry.
    ///
    /// By default, opening a session is retried for the connect timeout. A waiter whose connection is lost keeps waiting until a
    /// server says that its session is over. A call that has no node in the queue yet fails with
    /// [`SessionError::Unreachable`](crate::error::SessionError::Unreachable) after the connect timeout. If this is set, opening
    /// a session tries every server `1 + retries` times, within the connect timeout, and then fails with
    /// [`SessionError::Unreachable`](crate::error::SessionError::Unreachable). A waiter whose connection is lost fails with
    /// [`SessionError::ConnectionLost`](crate::error::SessionError::ConnectionLost) when `retries` tries of all servers have
    /// failed, each after a pause of `delay`. The session itself is retried further, at the same pace. Holds are not affected:
    /// see [`Guard`](crate::Guard).
    pub fn reconnect(mut self, retries: u32, delay: Duration) -> Self {
        self.options.reconnect = Some(Reconnect { retries, delay });
        self
    }

    /// Sets whether a missing chroot of the connect string is created, with its parents, when the first node below it
    /// is created. The default is `false`: connecting fails with
    /// [`SessionError::NoChroot`](crate::error::SessionError::NoChroot).
    pub fn create_chroot(mut self, create: bool) -> Self {
        self.options.create_chroot = create;
        self
    }

    /// Sets the owner that the nodes name. The default is this process.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Sets the program name in the owner that the nodes name. The default is the name of the executable.
    pub fn program(mut self, program: impl Into<String>) -> Self {
        self.owner.program = Some(program.into());
        self
    }

    /// Sets the secret of a server that serves a single user.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.options.add_secret(secret);
        self
    }

    /// Adds a credential for ensembles with access lists: `credential("digest", "user:password")`. Several schemes may
    /// be added. The credential is sent as it is: use TLS on networks that you do not trust.
    pub fn credential(mut self, scheme: impl Into<String>, credential: impl Into<Vec<u8>>) -> Self {
        self.options.credentials.push((scheme.into(), credential.into()));
        self
    }

    /// Proves this user and password by SASL DIGEST-MD5, on every connection. The password is not sent. Servers that do
    /// not know the user end the session with [`SessionError::AuthFailed`](crate::error::SessionError::AuthFailed).
    pub fn sasl(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.options.sasl = Some((user.into(), password.into()));
        self
    }

    /// Adds the credentials of a file, which is read when connecting to an ensemble. Each line is `digest USER:PASSWORD`,
    /// `sasl USER PASSWORD`, or another scheme and its credential; empty lines and lines that begin with `#` are not
    /// used.
    ///
    /// Connecting fails with [`ConnectError::Misuse`] if the file cannot be read, or if a line is none of these. It
    /// also fails if every user of the machine may read the file. Errors name the line, not what is in it.
    pub fn auth_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.auth_file = Some(file.into());
        self
    }

    /// Sets the access list of the locks' nodes that this handle creates. The default is [`LockAcl::Open`].
    ///
    /// With an embedded server, the operating system's user is the credential: nodes with [`LockAcl::Private`] are closed to the other
    /// users of a shared server.
    pub fn acl(mut self, acl: LockAcl) -> Self {
        self.options.acl = acl;
        self
    }

    /// Uses TLS with every server of the connect string. The default is plain TCP.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.options.tls = Some(tls);
        self
    }

    /// Sets what happens when a lock of this handle is lost, besides notifying its guard. The default is nothing.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// Labels the metrics of this handle's locks with `group="…"`. The default is no such label. A request can have
    /// a group of its own: [`Acquire::metrics_group`](crate::Acquire::metrics_group).
    ///
    /// Each group is a series of its own in the exporter. Choose few names that stay, such as `articles`; never the name of a
    /// single article.
    #[cfg(feature = "metrics")]
    pub fn metrics_group(mut self, group: impl Into<String>) -> Self {
        self.group = Group::named(group);
        self
    }

    /// Uses TLS, as `tls` does, with PEM files: the trusted authorities and, where servers ask for one, a certificate
    /// chain with its key. Every connection reads them again, so that renewed files need no restart. Without the feature `tls`, connecting fails with
    /// [`ConnectError::Misuse`].
    pub fn tls_files(
        mut self,
        authorities: impl Into<PathBuf>,
        identity: Option<(impl Into<PathBuf>, impl Into<PathBuf>)>,
    ) -> Self {
        let identity = identity.map(|(certificate, key)| (certificate.into(), key.into()));
        self.options.tls_files = Some(TlsFiles { authorities: authorities.into(), identity });
        self
    }

    /// Says that the options come from settings, which may name an ensemble for other programs. Then a call that connects to an embedded
    /// server leaves out those that only an ensemble uses, and does not refuse them.
    #[cfg(feature = "embedded")]
    pub fn with_settings(mut self) -> Self {
        self.options.has_settings = true;
        self
    }

    /// Refuses to acquire locks at the paths that `check` refuses, such as those of another ensemble. The acquire fails with the error
    /// of the check, and nothing is sent.
    pub fn path_check(mut self, check: impl Fn(&str) -> Result<(), Misuse> + Send + Sync + 'static) -> Self {
        self.path_check = Some(Arc::new(check));
        self
    }

    /// Connects to an ensemble, as [`Lockkeeper::connect`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind.
    ///
    /// # Errors
    ///
    /// As [`Lockkeeper::connect`].
    pub async fn connect(self, servers: &str) -> Result<Lockkeeper, ConnectError> {
        self.unopened(servers)?.opened().await
    }

    /// Connects to an ensemble and blocks this thread until it has, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`Lockkeeper::connect`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn connect_blocking(self, servers: &str) -> Result<Lockkeeper, ConnectError> {
        self.unopened(servers)?.opened_blocking()
    }

    /// Returns a handle for an ensemble at once, as [`Lockkeeper::connect_lazy`] does.
    ///
    /// # Errors
    ///
    /// As [`Lockkeeper::connect_lazy`].
    pub fn connect_lazy(self, servers: &str) -> Result<Lockkeeper, ConnectError> {
        let keeper = self.unopened(servers)?;
        keeper.sessions().wait_for_the_first_session();
        Ok(keeper)
    }

    /// Returns the servers of a connect string, reached as [`Builder::connect`] reaches them, to be asked one by one.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if `connect` would refuse the connect string or the options.
    pub fn each_server(self, servers: &str) -> Result<EachServer, Misuse> {
        EachServer::of(servers, self.options)
    }

    /// Returns a handle for an ensemble, without a session.
    fn unopened(self, servers: &str) -> Result<Lockkeeper, ConnectError> {
        let sessions = Sessions::unopened(servers, self.options.clone())?;
        Ok(self.start(sessions))
    }

    /// Uses the embedded server of a directory, as [`Lockkeeper::embedded`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind.
    ///
    /// # Errors
    ///
    /// As [`Lockkeeper::embedded`].
    #[cfg(feature = "embedded")]
    pub async fn embedded(self, dir: impl Into<std::path::PathBuf>) -> Result<Lockkeeper, ConnectError> {
        self.embedded_with(crate::embedded::ServerDir::new(dir), crate::embedded::StartMode::InProcess).await
    }

    /// Uses the embedded server of a [`ServerDir`](crate::embedded::ServerDir); `hosting` says what to do when no server runs there. It
    /// applies before the first session and each time that the connection is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind.
    ///
    /// # Errors
    ///
    /// As [`Lockkeeper::embedded`], and [`EmbeddedError::NotRunning`](crate::error::EmbeddedError::NotRunning).
    #[cfg(feature = "embedded")]
    pub async fn embedded_with(
        self,
        home: crate::embedded::ServerDir,
        hosting: crate::embedded::StartMode,
    ) -> Result<Lockkeeper, ConnectError> {
        self.embedded_at(home, hosting, None).await
    }

    /// Does what [`Builder::embedded_with`] does, without another look for a server that the caller has just found.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind.
    ///
    /// # Errors
    ///
    /// As [`Builder::embedded_with`].
    #[cfg(feature = "embedded")]
    pub async fn embedded_at(
        self,
        home: crate::embedded::ServerDir,
        hosting: crate::embedded::StartMode,
        found: Option<crate::embedded::Endpoint>,
    ) -> Result<Lockkeeper, ConnectError> {
        self.unopened_at(home, hosting, found)?.opened().await
    }

    /// Uses the embedded server of a directory as [`Builder::embedded`] does, and blocks this thread until it can, for
    /// programs without async.
    ///
    /// # Errors
    ///
    /// As [`Lockkeeper::embedded`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[cfg(feature = "embedded")]
    #[track_caller]
    pub fn embedded_blocking(self, dir: impl Into<std::path::PathBuf>) -> Result<Lockkeeper, ConnectError> {
        self.embedded_with_blocking(crate::embedded::ServerDir::new(dir), crate::embedded::StartMode::InProcess)
    }

    /// Does what [`Builder::embedded_with`] does, and blocks this thread until it is done, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`Builder::embedded_with`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[cfg(feature = "embedded")]
    #[track_caller]
    pub fn embedded_with_blocking(
        self,
        home: crate::embedded::ServerDir,
        hosting: crate::embedded::StartMode,
    ) -> Result<Lockkeeper, ConnectError> {
        self.unopened_at(home, hosting, None)?.opened_blocking()
    }

    /// Returns a handle for an embedded server, without a session.
    #[cfg(feature = "embedded")]
    fn unopened_at(
        self,
        home: crate::embedded::ServerDir,
        hosting: crate::embedded::StartMode,
        found: Option<crate::embedded::Endpoint>,
    ) -> Result<Lockkeeper, ConnectError> {
        let sessions = Sessions::embedded(home, hosting, found, &self.options)?;
        Ok(self.start(sessions))
    }

    /// Uses the caller's connections on the current runtime and its clock, for simulations.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn simulated(self, connect: Arc<dyn lockkeeper_client::Connect>) -> Lockkeeper {
        let sessions = Sessions::simulated(connect, &self.options);
        self.start(sessions)
    }

    fn start(self, sessions: Sessions) -> Lockkeeper {
        let Builder { owner, on_lost, group, path_check, options: _ } = self;
        meters::describe();
        // A simulated client is no process of its own, and sends the same bytes in every process.
        let is_simulated = matches!(sessions.clock(), Clock::Runtime(_));
        let process = if is_simulated { None } else { this_instance() };
        if !is_simulated {
            exit::prepare();
        }
        let inner = Inner { sessions, owner, process, on_lost, group, path_check };
        Lockkeeper { inner: Arc::new(inner) }
    }
}

impl Lockkeeper {
    /// Returns a builder, for options other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects to the servers of a ZooKeeper connect string: `zk1:2181,zk2:2181,zk3:2181/chroot`.
    ///
    /// A missing chroot is an error unless [`Builder::create_chroot`] is set.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind.
    ///
    /// # Errors
    ///
    /// - [`ConnectError::Misuse`] for an invalid connect string, before anything is sent.
    /// - [`SessionError::NoChroot`](crate::error::SessionError::NoChroot) if the chroot does not exist.
    /// - [`SessionError::Unreachable`](crate::error::SessionError::Unreachable) after 10 s, with the result of each
    ///   server.
    /// - [`SessionError::AuthFailed`](crate::error::SessionError::AuthFailed) if the servers reject the credentials.
    pub async fn connect(servers: &str) -> Result<Lockkeeper, ConnectError> {
        Self::builder().connect(servers).await
    }

    /// Returns a handle at once, before any server answers: for services that may start before the ensemble. Sends
    /// nothing.
    ///
    /// The first call that needs the session opens it. Until the first session is open, a call with a deadline waits for
    /// it until that deadline, however long the connect timeout is. A call without a deadline waits for the connect
    /// timeout. Afterwards the handle is as one of [`Lockkeeper::connect`]. [`Lockkeeper::check`] shows whether the
    /// servers answer.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Misuse`] for an argument that cannot be used. Those of [`Lockkeeper::connect`] that need the
    /// servers, such as [`SessionError::Unreachable`](crate::error::SessionError::Unreachable), are errors of the calls.
    pub fn connect_lazy(servers: &str) -> Result<Lockkeeper, ConnectError> {
        Self::builder().connect_lazy(servers)
    }

    /// Uses locks on this machine alone, without a server to install: connects to the embedded server of the directory
    /// `dir`.
    ///
    /// The first process hosts the server. Other processes on the machine that use the same directory connect to it.
    /// When the host ends, cleanly or not, another process that uses the directory hosts the server within a second, at
    /// the same address. Everything acknowledged is on disk, and sessions have their full timeout after a restart, so
    /// holders and waiters continue. This is one machine with one disk, not an ensemble.
    ///
    /// Call [`Lockkeeper::close`] before the process ends. It returns when the server has carried out the last releases. Without it, a
    /// process that exits waits for them no longer than 100 ms, and locks that are not released then stay held until the sessions expire.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::Server`](crate::error::EmbeddedError::Server) and
    /// [`EmbeddedError::File`](crate::error::EmbeddedError::File) if the directory cannot be used. [`ConnectError::Misuse`] if `dir`
    /// is empty, or if the builder has credentials or TLS, which have no effect here.
    #[cfg(feature = "embedded")]
    pub async fn embedded(dir: impl Into<std::path::PathBuf>) -> Result<Lockkeeper, ConnectError> {
        Self::builder().embedded(dir).await
    }

    /// Opens the first session as `opened` does, and blocks this thread until it is open.
    #[track_caller]
    fn opened_blocking(self) -> Result<Lockkeeper, ConnectError> {
        let sessions = self.sessions().clone();
        sessions.block_on(self.opened())
    }

    /// Opens the first session, so that an unreachable ensemble shows immediately.
    async fn opened(self) -> Result<Lockkeeper, ConnectError> {
        self.sessions().open().await?;
        Ok(self)
    }
}
