//! Settings from files, the environment and a program's own flags, each value with its origin.
//!
//! A service and the command read the same files by the same rules. So the question "which servers does it use, and
//! which file says so?" has one answer. Later layers override earlier ones: defaults, `/etc/lockkeeper/config.toml`,
//! the user's own `$XDG_CONFIG_HOME/lockkeeper/config.toml`, Contentserv's `.properties` files, a named file, the
//! environment (`LOCKKEEPER_*`), flags. A value that cannot be read is an error in every layer, even if a later layer
//! overrides it.
//!
//! There are two sets of defaults. Without a properties file they are Lockkeeper's. There are no servers, which means
//! this machine's embedded server. Sessions are of 30 s, or of 10 s with the embedded server. The requests of a class
//! have no time limit. There are no retries. A program that names a properties file (or calls [`Sources::contentserv`])
//! is a client of that deployment. What the file leaves out then has the default of Contentserv's specification:
//! `localhost:2181`, 5000 ms, 2000 ms for either class.
//!
//! ```
//! use lockkeeper_config::settings::{Key, Sources};
//!
//! # let dir = tempfile::tempdir()?;
//! # let file = dir.path().join("zookeeper.properties");
//! std::fs::write(&file, "# the ensemble\nzookeeper.servers=zk1:2181,zk2:2181\nzookeeper.background.task.timeout=30000\n")?;
//! let settings = Sources::none().properties(&file).read()?;
//! assert_eq!(settings.servers.value.as_deref(), Some("zk1:2181,zk2:2181"));
//! assert_eq!(settings.servers.origin.to_string(), format!("{}:2", file.display()));
//! // The file does not mention the foreground, so the specification's default applies.
//! assert_eq!(settings.foreground.timeout.value, Some(std::time::Duration::from_millis(2000)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod file;
mod java;
mod jobs;
mod kafka;
mod keys;
mod layers;
mod properties;
mod read;
mod setting;
mod tables;
mod types;
mod values;
mod variables;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

use lockkeeper::error::{ConnectError, EmbeddedError, Misuse};
use lockkeeper::{Builder, Error, Lockkeeper};
use lockkeeper_contentserv::{TASK_TIMEOUT, TaskClass, TaskClasses};
use lockkeeper_helix::routing::RoutingData;
pub use lockkeeper_jobs::Rule;
use tracing::warn;

pub use self::jobs::{IfUnreachable, JobSettings, output_size};
pub use self::kafka::{KafkaProtocol, KafkaSettings};
pub use self::keys::{Flag, Key, Row};
use self::layers::{Given, Layers, Unit};
pub use self::setting::{Setting, SettingEntry};
use self::types::CONNECTION_RETRIES;
pub use self::types::{
    CONFIG_VARIABLE, ClassSettings, PROPERTIES_VARIABLE, RETRIES, RealmSetting, Settings, TlsSettings,
};

pub use self::variables::known_variables;
use crate::realms::Realms;
pub use crate::settings::error::{Fault, Origin, SettingsError};

/// The settings of the whole machine.
const MACHINE: &str = "/etc/lockkeeper/config.toml";

/// The remedy if there are only realms.
const TAKE_THE_HANDLE: &str = "take the handle of a path from the Realms of Settings::routing";

/// The sources of settings.
#[derive(Clone, Debug, Default)]
#[must_use = "sources do nothing until they are read"]
pub struct Sources {
    usual: Vec<PathBuf>,
    named: NamedFiles,
    config: Option<PathBuf>,
    properties: Vec<PathBuf>,
    variables: Vec<(String, String)>,
    flags: Vec<Given>,
    contentserv: bool,
}

/// The files that environment variables name.
#[derive(Clone, Debug, Default)]
struct NamedFiles {
    config: Option<PathBuf>,
    properties: Vec<PathBuf>,
}

impl NamedFiles {
    /// Reads the two variables. An empty one counts as not set.
    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let config = variable(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let properties = variable(PROPERTIES_VARIABLE).unwrap_or_default();
        let properties = std::env::split_paths(&properties).filter(|path| !path.as_os_str().is_empty());
        NamedFiles { config, properties: properties.collect() }
    }
}

impl Sources {
    /// Returns sources with the defaults only.
    pub fn none() -> Self {
        Sources::default()
    }

    /// Returns the usual places and this process's environment. Missing files are not an error, except the one named by
    /// `LOCKKEEPER_CONFIG`, which replaces the usual files.
    pub fn usual() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let own = set("XDG_CONFIG_HOME")
            // The XDG specification says to ignore relative paths.
            .filter(|dir| dir.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".config")));
        let usual = [Some(PathBuf::from(MACHINE)), own.map(|dir| dir.join("lockkeeper/config.toml"))];
        // A variable that is not text is not a setting.
        let variables = std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text)));
        Sources {
            usual: usual.into_iter().flatten().collect(),
            named: NamedFiles::of(|name| std::env::var_os(name)),
            variables: variables.map(|(name, text)| (name, text.to_string_lossy().into_owned())).collect(),
            ..Sources::default()
        }
    }

    /// Reads this TOML file, which must exist, instead of the files in the usual places.
    pub fn config(mut self, path: impl Into<PathBuf>) -> Self {
        self.config = Some(path.into());
        self
    }

    /// Reads this properties file, which must exist, after the others and overriding them.
    pub fn properties(mut self, path: impl Into<PathBuf>) -> Self {
        self.properties.push(path.into());
        self
    }

    /// Uses these environment variables instead of the process's own, also for the files that `LOCKKEEPER_CONFIG` and
    /// `LOCKKEEPER_PROPERTIES` name. The usual files are still those of the process's `XDG_CONFIG_HOME` and `HOME`.
    pub fn variables(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.variables = variables.into_iter().collect();
        let text = |name: &str| self.variables.iter().find(|(known, _)| known == name).map(|(_, text)| text.into());
        self.named = NamedFiles::of(text);
        self
    }

    /// Sets a value that overrides all others, as text, with units for times. Error messages call it `flag`.
    pub fn flag(mut self, key: Key, flag: impl Into<String>, text: impl Into<String>) -> Self {
        let (written, text) = (flag.into(), text.into());
        let origin = Origin::Flag(written.clone());
        self.flags.push(Given { key, written, text, unit: Unit::Written, origin });
        self
    }

    /// Uses the defaults of Contentserv's specification, as naming a properties file does.
    pub fn contentserv(mut self) -> Self {
        self.contentserv = true;
        self
    }

    /// Reads and checks all settings. Accesses only files.
    ///
    /// # Errors
    ///
    /// All mistakes together, each with its place, its key and its remedy.
    pub fn read(self) -> Result<Settings, SettingsError> {
        let mut layers = Layers::default();
        let config = self.config.or(self.named.config);
        let properties = [self.named.properties, self.properties].concat();
        match &config {
            Some(_) => {}
            None => self.usual.iter().for_each(|path| file::read(path, true, &mut layers)),
        }
        properties.iter().for_each(|path| properties::read(path, &mut layers));
        if let Some(path) = &config {
            file::read(path, false, &mut layers);
        }
        variables::read(self.variables, &mut layers);
        layers.given.extend(self.flags);
        values::settings(layers, self.contentserv || !properties.is_empty())
    }
}

impl Settings {
    /// Reads the settings of the usual places. See [`Sources::usual`]. The first call of a process logs the probable mistakes as
    /// warnings, as [`Settings::warnings`] returns them.
    ///
    /// # Errors
    ///
    /// As [`Sources::read`].
    pub fn read() -> Result<Settings, SettingsError> {
        static LOGGED: Once = Once::new();
        let settings = Sources::usual().read()?;
        LOGGED
            .call_once(|| settings.warnings.iter().for_each(|mistake| warn!(%mistake, "the settings have a mistake")));
        Ok(settings)
    }

    /// Returns probable mistakes that are not errors: unknown `zookeeper.*` keys in properties files, unknown environment variables that
    /// begin with `LOCKKEEPER_`, and a foreground that is served after the background. In strict mode they are errors. An unknown key
    /// in TOML is always an error.
    pub fn warnings(&self) -> &[Fault] {
        &self.warnings
    }

    /// Returns a [`Builder`] with these settings. With an embedded server, it leaves out the access list, the credentials and TLS: a
    /// file or a variable may set them for programs that use an ensemble.
    pub fn builder(&self) -> Builder {
        let builder = Lockkeeper::builder().session_timeout(self.session_timeout.value).with_settings();
        let TlsSettings { ca, cert, key } = &self.tls;
        let builder = match &ca.value {
            Some(authorities) => builder.tls_files(authorities, cert.value.as_ref().zip(key.value.as_ref())),
            None => builder,
        };
        let builder = builder.acl(self.acl.value.clone());
        let builder = match &self.auth_file.value {
            Some(file) => builder.auth_file(file),
            None => builder,
        };
        match self.reconnect() {
            Some((retries, delay)) => {
                // The pauses, plus the usual time for the tries themselves.
                let patience = delay.saturating_mul(retries).saturating_add(Builder::CONNECT_TIMEOUT);
                builder.reconnect(retries, delay).connect_timeout(patience)
            }
            None => builder,
        }
    }

    /// Returns the home of this machine's server, which is used if no servers are set. It is the home that all users
    /// share, if that is set, or this user's own. A state directory from a variable or a flag takes precedence over a
    /// shared server from a file, and so on.
    ///
    /// # Errors
    ///
    /// As [`ServerDir::of_this_user`](lockkeeper::embedded::ServerDir::of_this_user).
    pub fn home(&self) -> Result<lockkeeper::embedded::ServerDir, EmbeddedError> {
        use lockkeeper::embedded::ServerDir;
        let (machine, state_dir) = (&self.machine, &self.state_dir);
        match (&machine.value, &state_dir.value) {
            (Some(dir), _) if machine.origin.rank() >= state_dir.origin.rank() => Ok(ServerDir::shared(dir)),
            (_, Some(dir)) => Ok(ServerDir::new(dir)),
            _ => ServerDir::of_this_user(),
        }
    }

    /// Returns how often a lost or missing connection is retried and the pause before each retry, if it is set.
    pub fn reconnect(&self) -> Option<(u32, Duration)> {
        let Settings { connection_retry, connection_delay, .. } = self;
        let said = connection_retry.value.or_else(|| connection_delay.is_given().then_some(CONNECTION_RETRIES));
        said.map(|retries| (retries, connection_delay.value))
    }

    /// Returns the servers that have the routing data, if they are used: what names servers for all paths is not stronger.
    pub fn routing_directory(&self) -> Option<&str> {
        let (servers, routing) = (&self.servers, &self.routing_servers);
        let is_used = !servers.is_given() || routing.origin.rank() > servers.origin.rank();
        routing.value.as_deref().filter(|_| is_used)
    }

    /// Takes over what was read from [`Settings::routing_directory`] as the realms. Each has the origin of `routing_servers`.
    pub fn set_realms(&mut self, data: &RoutingData) {
        let origin = &self.routing_servers.origin;
        let realm = |(prefix, servers): (&str, &str)| Setting {
            value: RealmSetting { prefix: prefix.to_owned(), servers: servers.to_owned() },
            origin: origin.clone(),
        };
        self.realms = data.keys().map(realm).collect();
    }

    /// Returns the routing of the realms; `None` if there are no realms or a variable or a flag sets servers, which
    /// overrides them.
    ///
    /// A table sends nothing. Servers with routing data are connected, and followed as [`Realms::follow`] says.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind.
    ///
    /// # Errors
    ///
    /// As [`Lockkeeper::connect`], and the [`RoutingError`](lockkeeper_helix::routing::RoutingError) of [`Realms::follow`]. None for a
    /// table, because it is already checked.
    pub async fn routing(&self) -> Result<Option<Realms>, Error> {
        if let Some(servers) = self.routing_directory() {
            let directory = self.builder().connect(servers).await?;
            return Ok(Some(Realms::follow(self.builder(), &directory).await?));
        }
        if self.realms.is_empty() || self.servers.is_given() {
            return Ok(None);
        }
        let realms = self.realms.iter().map(|realm| (realm.value.prefix.as_str(), realm.value.servers.as_str()));
        Ok(Some(Realms::new(self.builder(), realms)?))
    }

    /// Connects to the configured servers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind.
    ///
    /// # Errors
    ///
    /// As [`Lockkeeper::connect`]; also [`ConnectError::Misuse`] if none are set, because the program must choose the
    /// directory of an embedded server ([`Builder::embedded`]), or a path if there are realms ([`Settings::routing`]).
    pub async fn connect(&self) -> Result<Lockkeeper, ConnectError> {
        let servers = self.servers.value.as_deref().filter(|_| self.routing_directory().is_none());
        let servers = servers.ok_or_else(|| self.no_servers())?;
        self.builder().connect(servers).await
    }

    fn no_servers(&self) -> Misuse {
        if let Some(directory) = &self.routing_servers.value {
            let problem =
                format!("the settings name no servers for all paths, only those of the routing data, {directory}");
            return Misuse::new("servers", problem).remedy(TAKE_THE_HANDLE);
        }
        if self.realms.is_empty() {
            let (key, variable) = (Key::Servers.name(), Key::Servers.variable());
            let remedy = format!("set {key} or {variable}, or use this machine's server with Builder::embedded");
            return Misuse::new("servers", "the settings name no servers").remedy(remedy);
        }
        let realms: Vec<_> = self.realms.iter().map(|realm| realm.value.prefix.as_str()).collect();
        let problem = format!("the settings name no servers for all paths, only for the realms {}", realms.join(", "));
        Misuse::new("servers", problem).remedy(TAKE_THE_HANDLE)
    }

    /// Returns the two classes for [`MonitorLock::classes`](lockkeeper_contentserv::MonitorLock::classes); a class
    /// without a timeout gets the specification's 2000 ms.
    pub fn task_classes(&self) -> TaskClasses {
        let class =
            |class: &ClassSettings| TaskClass::new(class.prefix.value, class.timeout.value.unwrap_or(TASK_TIMEOUT));
        TaskClasses::new(class(&self.foreground), class(&self.background))
    }
}

/// Returns the directory of this user's own server, for [`Lockkeeper::embedded`](lockkeeper::Lockkeeper::embedded) and its
/// variants. The command `lockkeeper` uses the same server when neither servers nor the machine's server are set.
///
/// It is `state_dir` of the [`Settings`], which a settings file or `LOCKKEEPER_STATE_DIR` may set, or
/// [`ServerDir::of_this_user`](lockkeeper::embedded::ServerDir::of_this_user). Other settings are not used: the program chooses servers
/// and session timeouts. The first process hosts the server. The command connects to it, and hosts it when this process
/// ends. Reads files; sends nothing.
///
/// ```no_run
/// # async fn example() -> Result<(), lockkeeper::Error> {
/// let keeper = lockkeeper::Lockkeeper::embedded(lockkeeper_config::settings::own_server_dir()?).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`EmbeddedError::File`] if there is no home directory. [`ConnectError::Misuse`] if the settings have a mistake.
pub fn own_server_dir() -> Result<std::path::PathBuf, ConnectError> {
    let mut settings = Settings::read().map_err(|error| Misuse::new("settings", error.to_string()))?;
    settings.machine.value = None;
    // Clients may run in different directories.
    let failed = |error| EmbeddedError::file("cannot find", "this user's state directory", error);
    Ok(std::path::absolute(settings.home()?.dir()).map_err(failed)?)
}
