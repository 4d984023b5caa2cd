//! How sessions are opened: options, and the ways to a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::Sessions;
use crate::acl::LockAcl;
use crate::clock::Clock;
use crate::credentials::{self, Credentials};
use crate::ensemble::each::EachServer;
use crate::ensemble::servers::{Servers, parse};
#[cfg(feature = "tls")]
use crate::ensemble::tls::{Tls, secured};
use crate::ensemble::zookeeper::ZooKeeper;
use crate::ensemble::{Network, Reconnect};
use crate::error::{ConnectError, Misuse};
use crate::session::Io;
use crate::text::typed;

/// The scheme of the secret of a server that serves a single user.
const SECRET: &str = "lockkeeper";

/// How sessions are opened. [`Options::default`] has the defaults.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockkeeper_session::{Options, Sessions};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let options = Options { session_timeout: Some(Duration::from_secs(15)), ..Options::default() };
/// let sessions = Sessions::connect("zk1:2181,zk2:2181,zk3:2181", options).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Options {
    /// The session timeout to ask for; the server may grant less or more. `None` means the default of the kind of server:
    /// [`Options::SESSION_TIMEOUT`], or that of embedded servers.
    pub session_timeout: Option<Duration>,
    /// How long servers are tried before [`SessionError::Unreachable`](crate::error::SessionError::Unreachable).
    pub connect_timeout: Duration,
    /// How often a missing connection is retried, and the pause before each retry; `None` means as often as there is time.
    pub reconnect: Option<Reconnect>,
    /// Whether a missing chroot is created. If not, no session is opened without it.
    pub create_chroot: bool,
    /// What is presented to the servers: pairs of a scheme and a credential.
    pub credentials: Vec<(String, Vec<u8>)>,
    /// The user and the password of SASL.
    pub sasl: Option<(String, String)>,
    /// A file of credentials, which only its owner may read.
    pub auth_file: Option<PathBuf>,
    /// The access list of new nodes.
    pub acl: LockAcl,
    /// TLS, with what was read before.
    #[cfg(feature = "tls")]
    pub tls: Option<Tls>,
    /// TLS, with files that every connection reads again.
    pub tls_files: Option<TlsFiles>,
    /// Whether settings say how to connect to an ensemble. They may say it for other programs, so an embedded server leaves out what
    /// only an ensemble uses.
    pub has_settings: bool,
}

/// The PEM files of TLS.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The trusted authorities.
    pub authorities: PathBuf,
    /// A certificate chain and its key, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Omits the secrets, which must not appear in a log.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let schemes: Vec<_> = self.credentials.iter().map(|(scheme, _)| scheme).collect();
        f.debug_struct("Options")
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("reconnect", &self.reconnect)
            .field("credentials", &schemes)
            .field("acl", &self.acl)
            .field("auth_file", &self.auth_file)
            .finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            session_timeout: None,
            connect_timeout: Options::CONNECT_TIMEOUT,
            reconnect: None,
            create_chroot: false,
            credentials: Vec::new(),
            sasl: None,
            auth_file: None,
            acl: LockAcl::Open,
            #[cfg(feature = "tls")]
            tls: None,
            tls_files: None,
            has_settings: false,
        }
    }
}

impl Options {
    /// The default session timeout. The server may grant less or more.
    ///
    /// Trust survives at least 0.54 of it without a server: 16 s, which covers an ordinary restart of a single server and
    /// an election (docs/guarantees.md has both measurements).
    pub const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

    /// The default session timeout with an embedded server. It restarts within a second, so a shorter timeout detects
    /// crashes sooner.
    #[cfg(feature = "embedded")]
    pub const EMBEDDED_SESSION_TIMEOUT: Duration = Duration::from_secs(10);

    /// How long servers are tried.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

    /// Adds the secret of a server that serves a single user.
    pub fn add_secret(&mut self, secret: impl Into<String>) {
        self.credentials.push((SECRET.to_owned(), secret.into().into()));
    }

    fn authenticated(mut self) -> Result<Self, Misuse> {
        if let Some(file) = self.auth_file.take() {
            let Credentials { presented, sasl } = credentials::read(&file)?;
            self.credentials.extend(presented);
            self.sasl = sasl.or(self.sasl);
        }
        Ok(self)
    }

    /// Parses the connect string, and fails if the options do not fit it.
    fn checked(&self, servers: &str) -> Result<Servers, Misuse> {
        self.check_timeout()?;
        if self.acl.names_the_creator() && !self.has_credential() {
            let problem =
                format!("the access list {} needs a credential that all clients of the locks share", self.acl);
            let remedy = "set one with Builder::credential(\"digest\", \"user:password\") or Builder::auth_file";
            return Err(Misuse::new("credential", problem).remedy(remedy));
        }
        let servers = parse(servers)?;
        #[cfg(feature = "tls")]
        let servers = match (&self.tls, &self.tls_files) {
            (Some(tls), _) => secured(servers, tls.clone())?,
            (None, Some(files)) => secured(servers, files.read()?)?,
            (None, None) => servers,
        };
        // Never fall back to plain TCP because of how a program was built.
        #[cfg(not(feature = "tls"))]
        if let Some(TlsFiles { authorities, .. }) = &self.tls_files {
            let problem = format!("{} cannot be used: this program was built without TLS", authorities.display());
            return Err(Misuse::tls(&problem));
        }
        Ok(servers)
    }

    fn check_timeout(&self) -> Result<(), Misuse> {
        for (name, given) in
            [("session timeout", self.session_timeout), ("connect timeout", Some(self.connect_timeout))]
        {
            if let Some(given) = given.filter(|given| given.as_millis() == 0) {
                let given = typed(given);
                let problem = format!("{name} {given} is not supported: must be at least 1ms, or unset");
                return Err(Misuse::new(name, problem));
            }
        }
        Ok(())
    }

    /// Fails if the program has set an option that has no effect with an embedded server.
    #[cfg(feature = "embedded")]
    fn check_embedded(&self) -> Result<(), Misuse> {
        #[cfg(feature = "tls")]
        let tls = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let tls = false;
        let without_network = "which is reached without a network";
        let knows_users = "to which the operating system names its users";
        let options = [
            ("tls", "Builder::tls", tls, without_network),
            ("tls", "Builder::tls_files", self.tls_files.is_some(), without_network),
            ("credential", "Builder::sasl", self.sasl.is_some(), knows_users),
            ("credential", "Builder::credential", !self.credentials.is_empty(), knows_users),
            ("credential", "Builder::auth_file", self.auth_file.is_some(), knows_users),
        ];
        match options.into_iter().find(|(_, _, is_set, _)| *is_set && !self.has_settings) {
            Some((argument, option, _, why)) => {
                let problem = format!("{option} has no effect with an embedded server, {why}");
                Err(Misuse::new(argument, problem).remedy("leave it out, or name servers with Builder::connect"))
            }
            None => Ok(()),
        }
    }

    /// Returns whether servers can authenticate this client.
    fn has_credential(&self) -> bool {
        self.has_certificate() || !self.credentials.is_empty() || self.sasl.is_some()
    }

    /// Returns whether a list can name this client: every credential but the secret of a server is a user's.
    fn has_identity(&self) -> bool {
        let is_user = |(scheme, _): &(String, Vec<u8>)| scheme != SECRET;
        self.has_certificate() || self.credentials.iter().any(is_user) || self.sasl.is_some()
    }

    fn has_certificate(&self) -> bool {
        #[cfg(feature = "tls")]
        let certified = self.tls.as_ref().is_some_and(|tls| tls.0.has_identity());
        #[cfg(not(feature = "tls"))]
        let certified = false;
        certified || self.tls_files.as_ref().is_some_and(|files| files.identity.is_some())
    }

    fn start(&self, network: Box<dyn Network>, io: Arc<Io>, clock: Clock) -> Sessions {
        Sessions::new(network, io, clock, self.connect_timeout, self.reconnect)
    }

    fn network(&self, servers: Servers, io: &Io) -> ZooKeeper {
        let session_timeout = self.session_timeout.unwrap_or(Options::SESSION_TIMEOUT);
        let (credentials, sasl) = (self.credentials.clone(), self.sasl.clone());
        let (reconnect, tasks) = (self.reconnect, io.tasks().clone());
        let (acl, create_chroot) = (self.acl.clone(), self.create_chroot);
        ZooKeeper {
            servers,
            session_timeout,
            reconnect,
            credentials,
            sasl,
            acl,
            authenticates: self.has_identity(),
            create_chroot,
            tasks,
            locate: None,
            simulated: None,
            has_opened: AtomicBool::default(),
        }
    }
}

#[cfg(feature = "tls")]
impl TlsFiles {
    fn read(&self) -> Result<Tls, Misuse> {
        // The error names the file that cannot be used.
        let named = |files: &[&PathBuf], result: Result<Tls, Misuse>| {
            result.map_err(|error| {
                let files = files.iter().map(|file| file.display().to_string());
                let files: Vec<_> = files.filter(|file| !error.problem.contains(file)).collect();
                match files.is_empty() {
                    true => error,
                    false => Misuse { problem: format!("{} ({})", error.problem, files.join(", ")), ..error },
                }
            })
        };
        let tls = named(&[&self.authorities], Tls::trusting_file(&self.authorities))?;
        match &self.identity {
            None => Ok(tls),
            Some((certificate, key)) => named(&[certificate, key], tls.with_identity_files(certificate, key)),
        }
    }
}

impl Sessions {
    /// Connects to the servers of a ZooKeeper connect string, `zk1:2181,zk2:2181,zk3:2181/chroot`, and opens the first session.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind.
    ///
    /// # Errors
    ///
    /// - [`ConnectError::Misuse`] for an invalid connect string or option, before anything is sent.
    /// - [`SessionError::NoChroot`](crate::error::SessionError::NoChroot) if the chroot does not exist, and the options do not say to
    ///   create it.
    /// - [`SessionError::Unreachable`](crate::error::SessionError::Unreachable) after the connect timeout, with the result of each server.
    /// - [`SessionError::AuthFailed`](crate::error::SessionError::AuthFailed) if the servers reject the credentials.
    pub async fn connect(servers: &str, options: Options) -> Result<Sessions, ConnectError> {
        let sessions = Sessions::unopened(servers, options)?;
        sessions.open().await?;
        Ok(sessions)
    }

    /// Returns at once, before any server answers: for services that may start before the ensemble. Sends nothing.
    ///
    /// Until the first session is open, a call with a deadline waits for it until that deadline, however long the connect timeout
    /// is. A call without a deadline waits for the connect timeout.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Misuse`] for an argument that cannot be used.
    pub fn connect_lazy(servers: &str, options: Options) -> Result<Sessions, ConnectError> {
        let sessions = Sessions::unopened(servers, options)?;
        sessions.wait_for_the_first_session();
        Ok(sessions)
    }

    /// As [`Sessions::connect`], without the first session: the first call opens it.
    ///
    /// # Errors
    ///
    /// As [`Sessions::connect_lazy`].
    pub fn unopened(servers: &str, options: Options) -> Result<Sessions, ConnectError> {
        let options = options.authenticated()?;
        let servers = options.checked(servers)?;
        let io = Io::thread()?;
        let network = options.network(servers, &io);
        Ok(options.start(Box::new(network), io, Clock::System))
    }

    /// Returns sessions over the connections of a simulation, on the runtime of the caller. For tests.
    pub fn simulated(connect: Arc<dyn lockkeeper_client::Connect>, options: &Options) -> Sessions {
        let io = Io::here(tokio::runtime::Handle::current());
        // Only for messages.
        let servers = "simulation".parse().expect("this is a host name");
        let network = ZooKeeper { simulated: Some(connect), ..options.network(servers, &io) };
        options.start(Box::new(network), io, Clock::Runtime(tokio::time::Instant::now()))
    }

    /// Uses the embedded server of a directory, without the first session: the first call opens it. `found` is a server that the
    /// caller has just found there.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Misuse`] if the path of the directory is empty, or if the options have credentials or TLS, which have no effect
    /// here.
    #[cfg(feature = "embedded")]
    pub fn embedded(
        home: crate::embedded::ServerDir,
        hosting: crate::embedded::StartMode,
        found: Option<crate::embedded::Endpoint>,
        options: &Options,
    ) -> Result<Sessions, ConnectError> {
        use crate::embedded::{Embedded, Site};
        if home.dir().as_os_str().is_empty() {
            let remedy = "name a directory, such as /var/lib/app/locks";
            return Err(Misuse::new("directory", "the path of the embedded server's directory is empty")
                .remedy(remedy)
                .into());
        }
        options.check_timeout()?;
        options.check_embedded()?;
        let timeout = options.session_timeout.unwrap_or(Options::EMBEDDED_SESSION_TIMEOUT);
        let io = Io::thread()?;
        let acl = match &options.acl {
            // Another user of the machine may contend, and may not shut others out.
            acl if home.is_shared() && (options.has_settings || *acl == LockAcl::Open) => LockAcl::open_to_contend(),
            _ if options.has_settings => LockAcl::Open,
            acl => acl.clone(),
        };
        let site = Arc::new(Site::new(home, hosting, found));
        let network = Embedded { site, session_timeout: timeout, acl, tasks: io.tasks().clone() };
        Ok(options.start(Box::new(network), io, Clock::System))
    }
}

impl EachServer {
    /// Returns the servers of a connect string, reached as [`Sessions::connect`] reaches them, to be asked one by one and without a
    /// session.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if `connect` would refuse the connect string or the options.
    pub fn of(servers: &str, options: Options) -> Result<EachServer, Misuse> {
        Ok(EachServer::new(options.authenticated()?.checked(servers)?))
    }
}
