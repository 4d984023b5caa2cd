//! The configuration of a server.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lockkeeper_wire::Acl;

use crate::account::Accounts;
use crate::machine::{Limits, Schemes};
use crate::setters::setters;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Where a server keeps its state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Storage {
    /// In memory: requests are answered when they are applied, and a restart begins with an empty tree.
    Memory,
    /// In this directory, which is created if it is missing. Requests are answered when they are on the disk.
    Directory(PathBuf),
}

/// Bytes that a client must present before the server carries out its requests.
///
/// `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The auth scheme under which clients present the secret.
    pub const SCHEME: &'static str = "lockkeeper";

    /// Creates a secret of these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes that a client presents.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The four-letter words that a server answers. The default is `ruok`, `srvr`, `isro`, `envi`, `mntr` and `conf`: the
/// other ones list what clients do, whatever the access lists say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words(Vec<&'static str>);

impl Words {
    pub(crate) const ALL: [&str; 15] = [
        "ruok", "isro", "srvr", "stat", "mntr", "cons", "dirs", "dump", "wchs", "wchc", "wchp", "conf", "envi", "srst",
        "crst",
    ];

    /// Returns all words.
    pub fn all() -> Self {
        Self(Self::ALL.to_vec())
    }

    pub(crate) fn contains(&self, word: &str) -> bool {
        self.0.contains(&word)
    }
}

impl Default for Words {
    fn default() -> Self {
        Self(vec!["ruok", "srvr", "isro", "envi", "mntr", "conf"])
    }
}

impl FromStr for Words {
    type Err = String;

    /// Parses words with commas between them, or `all`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::all());
        }
        let known = |word: &str| {
            let known = Self::ALL.into_iter().find(|known| *known == word);
            known.ok_or_else(|| format!("{word:?} is not a word; write all, or some of: {}", Self::ALL.join(",")))
        };
        text.split(',').map(|word| known(word.trim())).collect::<Result<_, _>>().map(Self)
    }
}

/// A node that the server creates at its start, so that it belongs to the user who runs the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedNode {
    /// Its path. Its parent exists, or comes before it.
    pub path: String,
    /// The data of a new node.
    pub data: Vec<u8>,
    /// Its access list, in which `auth` means the user who runs the server.
    pub acl: Vec<Acl>,
}

/// The configuration of a server; start from [`Config::default`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The address to listen on; port 0 selects a free port. Default `127.0.0.1:0`.
    pub listen: Option<SocketAddr>,
    /// The Unix socket to serve on this machine, with its mode. Default none.
    pub socket: Option<(PathBuf, u32)>,
    /// The nodes that the server creates at its start. One that exists gets its list if others than the user who runs the
    /// server and root may change the list it has. Default none.
    pub shared_nodes: Vec<SharedNode>,
    /// Whether `listen` may be an address that other machines can reach. Default no. Consider TLS before you allow it.
    pub allow_remote: bool,
    /// The TLS certificate and client verification; the port then accepts TLS only. Default plain TCP.
    #[cfg(feature = "tls")]
    pub tls: Option<Tls>,
    /// The address of the operators' HTTP port, under the same rule. Default none.
    pub admin: Option<SocketAddr>,
    /// The names by which operators may address that port. Default none: only an address or `localhost`.
    pub admin_hosts: Vec<String>,
    /// The four-letter words that are answered.
    pub words: Words,
    /// Where the state is kept. Default in memory.
    pub storage: Storage,
    /// The tick: sessions expire at multiples of it. Default 2 s, as ZooKeeper's.
    pub tick: Duration,
    /// The minimum and maximum session timeout. Default 2 to 20 ticks.
    pub session_timeouts: Option<RangeInclusive<Duration>>,
    /// The secret that clients must present first. Default none.
    pub secret: Option<Secret>,
    /// The superuser and the SASL users. Default none.
    pub accounts: Accounts,
    /// The zxid before the first transaction of a new store, if the clock gives no greater one. Default 0. At each start
    /// a store's zxid is at least 65 536 for each second since 2020, so that tokens grow although a store was lost.
    pub first_zxid: i64,
    /// Maximum length of a client's frame in bytes. Default 0xfffff, as ZooKeeper's `jute.maxbuffer`.
    pub max_frame: usize,
    /// Limits on what clients can create.
    pub limits: Limits,
    /// Whether hard limits of quotas are enforced. Default no, as with Apache's server: an exceeded limit is only
    /// logged.
    pub enforce_quotas: bool,
    /// How often containers without children and expired TTL nodes are removed. Default 60 s.
    pub container_check: Duration,
    /// How long a container that never had a child is kept. Default 5 min.
    pub container_unused: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            socket: None,
            shared_nodes: Vec::new(),
            allow_remote: false,
            #[cfg(feature = "tls")]
            tls: None,
            admin: None,
            admin_hosts: Vec::new(),
            words: Words::default(),
            storage: Storage::Memory,
            tick: Duration::from_secs(2),
            session_timeouts: None,
            secret: None,
            accounts: Accounts::default(),
            first_zxid: 0,
            max_frame: 0xf_ffff,
            limits: Limits::default(),
            enforce_quotas: false,
            container_check: Duration::from_secs(60),
            container_unused: Duration::from_secs(300),
        }
    }
}

impl Config {
    setters! {
        /// Sets the address to listen on.
        with_listen(listen: SocketAddr) = Some(listen);
        /// Sets the nodes that the server creates at its start, for the users of its Unix socket.
        with_shared_nodes(shared_nodes: Vec<SharedNode>) = shared_nodes;
        /// Allows or forbids listening on an address that other machines can reach.
        allow_remote(allow_remote: bool) = allow_remote;
        /// Accepts TLS only on the clients' port; the operators' HTTP port is not affected.
        #[cfg(feature = "tls")]
        with_tls(tls: Tls) = Some(tls);
        /// Sets the address of the operators' HTTP port; port 0 selects a free port.
        with_admin(admin: SocketAddr) = Some(admin);
        /// Sets the names by which operators may address that port, besides its address and `localhost`.
        with_admin_hosts(admin_hosts: Vec<String>) = admin_hosts;
        /// Sets the four-letter words that are answered.
        with_words(words: Words) = words;
        /// Sets where the state is kept.
        with_storage(storage: Storage) = storage;
        /// Sets the tick; at least 1 ms, at most a day.
        with_tick(tick: Duration) = tick.max(Duration::from_millis(1));
        /// Sets the minimum and maximum session timeout.
        with_session_timeouts(session_timeouts: RangeInclusive<Duration>) = Some(session_timeouts);
        /// Requires a secret of every client.
        with_secret(secret: Secret) = Some(secret);
        /// Sets the superuser and the SASL users.
        with_accounts(accounts: Accounts) = accounts;
        /// Sets the zxid before the first transaction of a new store; at most half of the largest number.
        with_first_zxid(first_zxid: i64) = first_zxid;
        /// Sets the maximum length of a client's frame in bytes.
        with_max_frame(max_frame: usize) = max_frame;
        /// Sets the limits on what clients can create.
        with_limits(limits: Limits) = limits;
        /// Enforces hard limits of quotas, or only logs them.
        enforce_quotas(enforce_quotas: bool) = enforce_quotas;
        /// Sets how often containers and TTL nodes are checked; at least 1 ms, at most a year.
        with_container_check(container_check: Duration) = container_check.max(Duration::from_millis(1));
        /// Sets how long a container that never had a child is kept; at most a hundred years.
        with_container_unused(container_unused: Duration) = container_unused;
    }

    /// Serves a Unix socket at this path, and no address unless one is set afterwards. A file at the path is replaced
    /// when the store is open.
    ///
    /// The kernel decides by the socket's mode and by the directories above it who may connect, and says which user
    /// does: a connection has the identity `uid:NUMBER`. An access list may use it with the scheme `auth`. No client can
    /// name another user than its own, so an entry `uid:NUMBER` shows who wrote the list.
    #[must_use]
    pub fn with_socket(self, path: impl Into<PathBuf>, mode: u32) -> Self {
        Self { listen: None, socket: Some((path.into(), mode)), ..self }
    }

    /// Keeps the state in a directory.
    #[must_use]
    pub fn with_directory(self, path: impl Into<PathBuf>) -> Self {
        self.with_storage(Storage::Directory(path.into()))
    }

    /// Limits the values, which may also have been set directly, to what no clock and no counter exceeds.
    pub(crate) fn bound(&mut self) {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        self.tick = self.tick.clamp(Duration::from_millis(1), DAY);
        self.container_check = self.container_check.clamp(Duration::from_millis(1), DAY * 365);
        self.container_unused = self.container_unused.min(DAY * 36_500);
        self.first_zxid = self.first_zxid.min(i64::MAX / 2);
    }

    /// Returns the minimum and maximum session timeout. The maximum is at least the minimum.
    pub(crate) fn timeouts(&self) -> RangeInclusive<Duration> {
        let bounds = self.session_timeouts.clone().unwrap_or(self.tick * 2..=self.tick * 20);
        let least = *bounds.start();
        least..=least.max(*bounds.end())
    }

    /// Returns the optional schemes that access lists may use.
    pub(crate) fn schemes(&self) -> Schemes {
        #[cfg(feature = "tls")]
        let x509 = self.tls.as_ref().is_some_and(Tls::asks_for_certificates);
        #[cfg(not(feature = "tls"))]
        let x509 = false;
        Schemes { sasl: self.accounts.has_sasl(), x509 }
    }
}
