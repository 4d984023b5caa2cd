//! The settings as values, each with its origin.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lockkeeper::Class;
use lockkeeper::acl::LockAcl;
use lockkeeper_helix::TransferRule;
use lockkeeper_jobs::Rule;

use crate::settings::error::{Fault, Origin};

/// The variable that names the TOML file, as [`Sources::config`](super::Sources::config) does.
pub const CONFIG_VARIABLE: &str = "LOCKKEEPER_CONFIG";

/// The variable that names properties files, separated by `:`, as [`Sources::properties`](super::Sources::properties)
/// does.
pub const PROPERTIES_VARIABLE: &str = "LOCKKEEPER_PROPERTIES";

/// How often background work is retried with Contentserv's defaults: the specification has a key without a number.
pub const RETRIES: u32 = 3;

/// How often a connection is retried if only the pause is set.
pub(super) const CONNECTION_RETRIES: u32 = 5;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// The origin.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// Returns whether it was set, so that it is not the default.
    pub fn is_given(&self) -> bool {
        self.origin != Origin::Default
    }
}

/// All settings, read and checked. Reading them sends nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The connect string of the ensemble; `None` means this machine's embedded server.
    pub servers: Setting<Option<String>>,
    /// The connect string of the ensemble that has Helix's routing data, which says where the realms are.
    pub routing_servers: Setting<Option<String>>,
    /// The session timeout.
    pub session_timeout: Setting<Duration>,
    /// How often a lost or missing connection is retried; `None` means the default of
    /// [`Builder::reconnect`](lockkeeper::Builder::reconnect).
    pub connection_retry: Setting<Option<u32>>,
    /// The pause between these retries.
    pub connection_delay: Setting<Duration>,
    /// The class of requests for which a user waits.
    pub foreground: ClassSettings,
    /// The class of bulk work.
    pub background: ClassSettings,
    /// Whether a missing node of a lock with classes is created as a container, not as a persistent node: see
    /// [`PriorityLock::container`](lockkeeper::PriorityLock::container).
    pub monitor_container: Setting<bool>,
    /// How often background work that was not granted its lock is retried; 0 means never.
    pub retries: Setting<u32>,
    /// The first pause between these retries.
    pub retry_delay: Setting<Duration>,
    /// The place for work that was never granted its lock, as `file:PATH`.
    pub dead_letter: Setting<Option<String>>,
    /// How the Kafka brokers of dead letters are reached.
    pub kafka: KafkaSettings,
    /// What jobs have in common.
    pub jobs: JobSettings,
    /// The TLS files for connections to the servers.
    pub tls: TlsSettings,
    /// The file with the credentials; see [`Builder::auth_file`](lockkeeper::Builder::auth_file).
    pub auth_file: Setting<Option<PathBuf>>,
    /// The access list of new nodes.
    pub acl: Setting<LockAcl>,
    /// The directory of this user's own server, if it is set.
    pub state_dir: Setting<Option<PathBuf>>,
    /// The directory of the server that all users of this machine share; `None` means this user's own server.
    pub machine: Setting<Option<PathBuf>>,
    /// Whether the command `run` records holds and refusals in the history of a lock.
    pub history: Setting<bool>,
    /// Whether probable mistakes are errors: what [`Settings::warnings`] returns otherwise. An unknown key in TOML is always an error.
    pub strict: Setting<bool>,
    /// The realms of the table `[realms]`: which paths belong to which ensemble.
    pub realms: Vec<Setting<RealmSetting>>,
    /// The rules of the tables `[[transfer]]`, by which leased locks are taken without asking, in the order in which
    /// they are tried.
    pub transfers: Vec<Setting<TransferRule>>,
    pub(super) warnings: Vec<Fault>,
}

/// The settings of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassSettings {
    /// The letters of its nodes; the lowest letters are served first.
    pub prefix: Setting<Class>,
    /// How long a request waits; `None` means no limit.
    pub timeout: Setting<Option<Duration>>,
}

/// How the Kafka brokers of dead letters are reached. The settings fit together: a login has a mechanism, a user and a password file,
/// and only TLS has files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KafkaSettings {
    /// Whether there is TLS, and a login.
    pub security_protocol: Setting<KafkaProtocol>,
    /// The trusted certificate authorities, in PEM; `None` means those of this machine.
    pub ca: Setting<Option<PathBuf>>,
    /// The client certificate, in PEM.
    pub cert: Setting<Option<PathBuf>>,
    /// Its key, in PEM.
    pub key: Setting<Option<PathBuf>>,
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub sasl_mechanism: Setting<Option<String>>,
    /// The user of the login.
    pub user: Setting<Option<String>>,
    /// The file with the password.
    pub password_file: Setting<Option<PathBuf>>,
}

/// Kafka's `security.protocol`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KafkaProtocol {
    /// Neither TLS nor a login.
    #[default]
    Plaintext,
    /// TLS.
    Ssl,
    /// A login without TLS.
    SaslPlaintext,
    /// TLS and a login.
    SaslSsl,
}

impl KafkaProtocol {
    /// Returns whether connections are encrypted.
    pub const fn has_tls(self) -> bool {
        matches!(self, KafkaProtocol::Ssl | KafkaProtocol::SaslSsl)
    }

    /// Returns whether there is a login.
    pub const fn has_login(self) -> bool {
        matches!(self, KafkaProtocol::SaslPlaintext | KafkaProtocol::SaslSsl)
    }
}

/// Kafka's names in small letters, such as `sasl_ssl`.
impl fmt::Display for KafkaProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KafkaProtocol::Plaintext => "plaintext",
            KafkaProtocol::Ssl => "ssl",
            KafkaProtocol::SaslPlaintext => "sasl_plaintext",
            KafkaProtocol::SaslSsl => "sasl_ssl",
        })
    }
}

/// The files for TLS, all in PEM. Without certificate authorities, connections are not encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// The trusted certificate authorities.
    pub ca: Setting<Option<PathBuf>>,
    /// The client certificate; only with a key.
    pub cert: Setting<Option<PathBuf>>,
    /// Its key.
    pub key: Setting<Option<PathBuf>>,
}

/// A realm: the paths at and below a prefix belong to this ensemble.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RealmSetting {
    /// The prefix; `/` covers all paths that no other realm covers.
    pub prefix: String,
    /// The connect string.
    pub servers: String,
}

/// The settings of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobSettings {
    /// The time zone of the calendar.
    pub time_zone: Setting<String>,
    /// What follows a run that failed.
    pub on_failure: Setting<Rule>,
    /// What follows a run whose host crashed.
    pub on_crash: Setting<Rule>,
    /// How many missed slots are run.
    pub catch_up: Setting<u32>,
    /// What happens to a job while no server is reachable.
    pub if_unreachable: Setting<IfUnreachable>,
    /// How many bytes of the command's standard error are kept; 0 means none.
    pub keep_output: Setting<usize>,
    /// How many runs are kept.
    pub keep_runs: Setting<u32>,
    /// How long after its last success a job is late; `None` means that its schedule says it.
    pub late: Setting<Option<Duration>>,
}

/// What happens to a job while no server is reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IfUnreachable {
    /// The command does not run.
    #[default]
    Skip,
    /// The command runs without the lock.
    Run,
    /// The job waits for the servers.
    Wait,
}

/// `skip`, `run`, `wait`
impl fmt::Display for IfUnreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IfUnreachable::Skip => "skip",
            IfUnreachable::Run => "run",
            IfUnreachable::Wait => "wait",
        })
    }
}

impl FromStr for IfUnreachable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [IfUnreachable::Skip, IfUnreachable::Run, IfUnreachable::Wait];
        let found = all.into_iter().find(|what| what.to_string() == text);
        found.ok_or_else(|| "write skip, run or wait".to_owned())
    }
}
