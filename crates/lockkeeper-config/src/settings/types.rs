//! The settings as values, each with its origin.

use std::path::PathBuf;
use std::time::Duration;

use lockkeeper::Class;
use lockkeeper::acl::LockAcl;
use lockkeeper_helix::TransferRule;

use super::jobs::JobSettings;
use super::kafka::KafkaSettings;
use super::setting::{Setting, SettingEntry};
use crate::settings::error::Fault;

/// The variable that names the TOML file, as [`Sources::config`](super::Sources::config) does.
pub const CONFIG_VARIABLE: &str = "LOCKKEEPER_CONFIG";

/// The variable that names properties files, separated by `:`, as [`Sources::properties`](super::Sources::properties)
/// does.
pub const PROPERTIES_VARIABLE: &str = "LOCKKEEPER_PROPERTIES";

/// How often background work is retried with Contentserv's defaults: the specification has a key without a number.
pub const RETRIES: u32 = 3;

/// How often a connection is retried if only the pause is set.
pub(super) const CONNECTION_RETRIES: u32 = 5;

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
    pub(super) entries: Vec<SettingEntry>,
    pub(super) warnings: Vec<Fault>,
}

impl Settings {
    /// Returns all settings with their origins, in the order of [`Key::ALL`](super::Key::ALL).
    pub fn entries(&self) -> &[SettingEntry] {
        &self.entries
    }
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
