//! How a server is to run.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::account::Accounts;
use crate::machine::{Limits, Schemes};
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Where a server keeps its state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Storage {
    /// Nowhere: requests are answered when applied, and a restart starts empty.
    Memory,
    /// In this directory, made if missing; requests are answered when they are on the disk.
    Directory(PathBuf),
}

/// Bytes that a client must present before a server does anything for it.
///
/// `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The auth scheme under which clients present the secret.
    pub const SCHEME: &'static str = "lockkeeper";

    /// Takes the bytes as they are.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes, for a client to present.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// How a server is to run; start from [`Config::default`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen; port 0 takes a free one. Default `127.0.0.1:0`.
    pub listen: SocketAddr,
    /// Whether `listen` may be an address that other machines can reach. Default no: think of TLS first.
    pub allow_remote: bool,
    /// What to show clients in TLS; the port then speaks nothing else. Default plain TCP.
    #[cfg(feature = "tls")]
    pub tls: Option<Tls>,
    /// Where to listen for operators' HTTP, under the same rule. Default nowhere.
    pub admin: Option<SocketAddr>,
    /// Where the state is kept. Default in memory.
    pub storage: Storage,
    /// Sessions expire at multiples of this. Default 2 s, ZooKeeper's.
    pub tick: Duration,
    /// Session timeouts are clamped to this. Default 2 to 20 ticks.
    pub session_timeouts: Option<RangeInclusive<Duration>>,
    /// What clients must present first. Default nothing.
    pub secret: Option<Secret>,
    /// Who may use it besides everyone. Default nobody: no superuser, no SASL.
    pub accounts: Accounts,
    /// The number before that of the first transaction of a new store. Default 0.
    pub first_zxid: i64,
    /// The longest frame a client may send, in bytes. Default 0xfffff, ZooKeeper's `jute.maxbuffer`.
    pub max_frame: usize,
    /// How far clients can make it grow.
    pub limits: Limits,
    /// Whether hard limits of quotas are kept. Default no, as with Apache's server: what exceeds them is only logged.
    pub enforce_quotas: bool,
    /// How often childless containers and outlived TTL nodes are removed. Default 60 s.
    pub container_check: Duration,
    /// How long a container that never had a child is kept. Default 5 min.
    pub container_unused: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            allow_remote: false,
            #[cfg(feature = "tls")]
            tls: None,
            admin: None,
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
    /// Sets where to listen.
    #[must_use]
    pub fn with_listen(mut self, listen: SocketAddr) -> Self {
        self.listen = listen;
        self
    }

    /// Allows or forbids listening on an address that other machines can reach.
    #[must_use]
    pub fn allow_remote(mut self, allow: bool) -> Self {
        self.allow_remote = allow;
        self
    }

    /// Speaks TLS, and nothing else, with clients; operators' HTTP stays as it is.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets where to listen for operators' HTTP; port 0 takes a free one.
    #[must_use]
    pub fn with_admin(mut self, listen: SocketAddr) -> Self {
        self.admin = Some(listen);
        self
    }

    /// Sets where the state is kept.
    #[must_use]
    pub fn with_storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// Keeps the state in a directory.
    #[must_use]
    pub fn with_directory(self, path: impl Into<PathBuf>) -> Self {
        self.with_storage(Storage::Directory(path.into()))
    }

    /// Sets the tick; at least 1 ms.
    #[must_use]
    pub fn with_tick(mut self, tick: Duration) -> Self {
        self.tick = tick.max(Duration::from_millis(1));
        self
    }

    /// Sets the bounds of session timeouts.
    #[must_use]
    pub fn with_session_timeouts(mut self, bounds: RangeInclusive<Duration>) -> Self {
        self.session_timeouts = Some(bounds);
        self
    }

    /// Demands a secret of every client.
    #[must_use]
    pub fn with_secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Sets who may use it besides everyone.
    #[must_use]
    pub fn with_accounts(mut self, accounts: Accounts) -> Self {
        self.accounts = accounts;
        self
    }

    /// Sets the number before that of the first transaction of a new store.
    #[must_use]
    pub fn with_first_zxid(mut self, zxid: i64) -> Self {
        self.first_zxid = zxid;
        self
    }

    /// Sets the longest frame a client may send, in bytes.
    #[must_use]
    pub fn with_max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes;
        self
    }

    /// Sets how far clients can make it grow.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Keeps, or only logs, hard limits of quotas.
    #[must_use]
    pub fn enforce_quotas(mut self, enforce: bool) -> Self {
        self.enforce_quotas = enforce;
        self
    }

    /// Sets how often containers and TTL nodes are looked after; at least 1 ms.
    #[must_use]
    pub fn with_container_check(mut self, interval: Duration) -> Self {
        self.container_check = interval.max(Duration::from_millis(1));
        self
    }

    /// Sets how long a container that never had a child is kept.
    #[must_use]
    pub fn with_container_unused(mut self, age: Duration) -> Self {
        self.container_unused = age;
        self
    }

    /// The bounds of session timeouts, with the default worked out and an empty range mended.
    pub(crate) fn timeouts(&self) -> RangeInclusive<Duration> {
        let bounds = self.session_timeouts.clone().unwrap_or(self.tick * 2..=self.tick * 20);
        let least = *bounds.start();
        least..=least.max(*bounds.end())
    }

    /// Of whom access lists may speak.
    pub(crate) fn schemes(&self) -> Schemes {
        #[cfg(feature = "tls")]
        let x509 = self.tls.as_ref().is_some_and(Tls::asks_for_certificates);
        #[cfg(not(feature = "tls"))]
        let x509 = false;
        Schemes { sasl: self.accounts.has_sasl(), x509 }
    }
}
