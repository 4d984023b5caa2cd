//! Settings from files, the environment and a program's own flags, each value with the place it comes from.
//!
//! A service and the command read the same files by the same rules, so that "which servers does it use, and who says so?" has
//! one answer. Layers, the later over the earlier: defaults, `/etc/lockkeeper/config.toml`, the user's own
//! `$XDG_CONFIG_HOME/lockkeeper/config.toml`, Contentserv's `.properties` files, a file that was named, the environment
//! (`LOCKKEEPER_*`), flags. A value that cannot be read is refused in every layer, also where a later one overrides it.
//!
//! Two sets of defaults. Without a properties file they are Lockkeeper's: no servers, which means this machine's embedded
//! one; sessions of 30 s, of 10 s with that embedded one; a class waits as long as it takes; nothing is retried. Whoever names a properties file (or calls
//! [`Sources::contentserv`]) is a client of that deployment, and what the file leaves out is as its document has it:
//! `localhost:2181`, 5000 ms, 2000 ms for either class.
//!
//! ```
//! use lockkeeper::settings::{Key, Sources};
//!
//! # let dir = tempfile::tempdir()?;
//! # let file = dir.path().join("zookeeper.properties");
//! std::fs::write(&file, "# the ensemble\nzookeeper.servers=zk1:2181,zk2:2181\nzookeeper.background.task.timeout=30000\n")?;
//! let settings = Sources::none().properties(&file).read()?;
//! assert_eq!(settings.servers.value.as_deref(), Some("zk1:2181,zk2:2181"));
//! assert_eq!(settings.servers.origin.to_string(), format!("{}:2", file.display()));
//! // The file says nothing of the foreground: its document does.
//! assert_eq!(settings.foreground.timeout.value, Some(std::time::Duration::from_millis(2000)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fault;
mod file;
mod java;
mod keys;
mod layers;
mod properties;
mod tables;
mod values;
mod variables;

use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_core::Class;

pub use self::fault::{Fault, Origin, SettingsError};
pub use self::keys::Key;
use self::layers::{Given, Layers, Unit};
pub use self::values::Entry;
pub use self::variables::known_variables;
use crate::keeper::builder::CONNECT_TIMEOUT;
use crate::lease::TransferRule;
use crate::realms::Realms;
use crate::recipes::contentserv::{TASK_TIMEOUT, TaskClass, TaskClasses};
use crate::{Builder, Error, Lockkeeper};

/// The variable that names our file, as [`Sources::config`] does.
pub const CONFIG_VARIABLE: &str = "LOCKKEEPER_CONFIG";

/// The variable that names properties files, with `:` between several, as [`Sources::properties`] does.
pub const PROPERTIES_VARIABLE: &str = "LOCKKEEPER_PROPERTIES";

/// Where a whole machine's settings are.
const MACHINE: &str = "/etc/lockkeeper/config.toml";

/// How often background work is tried again with Contentserv's defaults: its document has a key and no number.
pub const RETRIES: u32 = 3;

/// How often a connection is tried again where only the pause was said.
const CONNECTION_RETRIES: u32 = 5;

/// A value and where it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// What it is.
    pub value: T,
    /// Who says so.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// Whether somebody has given it: whether it is not the default.
    pub fn is_given(&self) -> bool {
        self.origin != Origin::Default
    }
}

/// Every setting, read and checked. Nothing of it has touched the network.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The connect string of the ensemble; `None` means this machine's embedded server.
    pub servers: Setting<Option<String>>,
    /// How long a session lives without a sign of life of its process.
    pub session_timeout: Setting<Duration>,
    /// How often a lost or missing connection is tried again; `None` is as [`Builder::reconnect`] has it unless set.
    pub connection_retry: Setting<Option<u32>>,
    /// The pause between these tries.
    pub connection_delay: Setting<Duration>,
    /// The class of those for whom somebody waits.
    pub foreground: ClassSettings,
    /// The class of bulk work.
    pub background: ClassSettings,
    /// How often background work that was not granted is tried again; 0 where nobody wants that.
    pub retries: Setting<u32>,
    /// The first pause between these tries.
    pub retry_delay: Setting<Duration>,
    /// Where work goes that was never granted, as `file:PATH`.
    pub dead_letter: Setting<Option<String>>,
    /// How to reach the servers by TLS.
    pub tls: TlsSettings,
    /// Where this user's own server keeps its state, if that was said.
    pub state_dir: Setting<Option<PathBuf>>,
    /// The directory of the server that all users of this machine share; `None` means this user's own server.
    pub machine: Setting<Option<PathBuf>>,
    /// Whether unknown keys were to be mistakes.
    pub strict: Setting<bool>,
    /// Which paths are on which ensemble, from the table `[realms]`: none, unless a file has one.
    pub realms: Vec<Setting<RealmSetting>>,
    /// Which leased locks change hands without anybody asked, from the tables `[[transfer]]`, in the order in which they are looked
    /// through.
    pub transfers: Vec<Setting<TransferRule>>,
    warnings: Vec<Fault>,
}

/// The settings of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassSettings {
    /// The letters of its nodes; the lowest letters are served first.
    pub prefix: Setting<Class>,
    /// How long a request waits; `None` is as long as it takes.
    pub timeout: Setting<Option<Duration>>,
}

/// The files of TLS, all in PEM. Without authorities servers are reached in the clear.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// Whom to trust.
    pub ca: Setting<Option<PathBuf>>,
    /// What to show servers that ask; only with a key.
    pub cert: Setting<Option<PathBuf>>,
    /// The key to it.
    pub key: Setting<Option<PathBuf>>,
}

/// A realm: what is at and below a path is on this ensemble.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RealmSetting {
    /// The path; `/` has all that no other realm has.
    pub prefix: String,
    /// The connect string.
    pub servers: String,
}

/// Where to read settings from.
#[derive(Clone, Debug, Default)]
#[must_use = "sources do nothing until they are read"]
pub struct Sources {
    usual: Vec<PathBuf>,
    config: Option<PathBuf>,
    properties: Vec<PathBuf>,
    variables: Vec<(String, String)>,
    flags: Vec<Given>,
    contentserv: bool,
}

impl Sources {
    /// Nothing but the defaults.
    pub fn none() -> Self {
        Sources::default()
    }

    /// The usual places and this process's environment. Files that are not there are no mistake; one that is named by
    /// `LOCKKEEPER_CONFIG` takes the place of the usual ones, and must be there.
    pub fn usual() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let own = set("XDG_CONFIG_HOME")
            // The XDG specification: a relative one is to be ignored.
            .filter(|dir| dir.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".config")));
        let usual = [Some(PathBuf::from(MACHINE)), own.map(|dir| dir.join("lockkeeper/config.toml"))];
        let properties = std::env::var_os(PROPERTIES_VARIABLE).unwrap_or_default();
        let properties = std::env::split_paths(&properties).filter(|path| !path.as_os_str().is_empty());
        // A variable that is not text is none of ours.
        let variables = std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text)));
        Sources {
            usual: usual.into_iter().flatten().collect(),
            config: set(CONFIG_VARIABLE),
            properties: properties.collect(),
            variables: variables.map(|(name, text)| (name, text.to_string_lossy().into_owned())).collect(),
            ..Sources::default()
        }
    }

    /// Reads this file of ours, which must be there, in place of those in the usual places.
    pub fn config(mut self, path: impl Into<PathBuf>) -> Self {
        self.config = Some(path.into());
        self
    }

    /// Reads this properties file, which must be there; after others that were named, and over them.
    pub fn properties(mut self, path: impl Into<PathBuf>) -> Self {
        self.properties.push(path.into());
        self
    }

    /// Takes these environment variables in place of the process's own.
    pub fn variables(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.variables = variables.into_iter().collect();
        self
    }

    /// Gives a value that comes before all others, as text, times with their unit. `flag` is what mistakes call it.
    pub fn flag(mut self, key: Key, flag: impl Into<String>, text: impl Into<String>) -> Self {
        let (written, text) = (flag.into(), text.into());
        let origin = Origin::Flag(written.clone());
        self.flags.push(Given { key, written, text, unit: Unit::Written, origin });
        self
    }

    /// Takes the defaults of Contentserv's document, as naming a properties file does.
    pub fn contentserv(mut self) -> Self {
        self.contentserv = true;
        self
    }

    /// Reads everything. Touches files only.
    ///
    /// # Errors
    /// All mistakes at once, each with its place, its key and its remedy.
    pub fn read(self) -> Result<Settings, SettingsError> {
        let mut layers = Layers::default();
        match &self.config {
            Some(_) => {}
            None => self.usual.iter().for_each(|path| file::read(path, true, &mut layers)),
        }
        self.properties.iter().for_each(|path| properties::read(path, &mut layers));
        if let Some(path) = &self.config {
            file::read(path, false, &mut layers);
        }
        variables::read(self.variables, &mut layers);
        layers.given.extend(self.flags);
        values::settings(layers, self.contentserv || !self.properties.is_empty())
    }
}

impl Settings {
    /// The settings of the usual places. See [`Sources::usual`].
    ///
    /// # Errors
    /// As [`Sources::read`].
    pub fn read() -> Result<Settings, SettingsError> {
        Sources::usual().read()
    }

    /// What was found that is probably a mistake and stops nobody: unknown keys and such. In strict mode they are errors.
    pub fn warnings(&self) -> &[Fault] {
        &self.warnings
    }

    /// Options of a connection.
    pub fn builder(&self) -> Builder {
        let builder = Lockkeeper::builder().session_timeout(self.session_timeout.value);
        let TlsSettings { ca, cert, key } = &self.tls;
        let builder = match &ca.value {
            Some(authorities) => builder.tls_files(authorities, cert.value.as_ref().zip(key.value.as_ref())),
            None => builder,
        };
        match self.reconnect() {
            Some((retries, delay)) => {
                // The pauses, and the usual time for the tries themselves.
                let patience = delay.saturating_mul(retries).saturating_add(CONNECT_TIMEOUT);
                builder.reconnect(retries, delay).connect_timeout(patience)
            }
            None => builder,
        }
    }

    /// The home of the server of this machine that is used where no servers are set: the one that all users share, if it is set,
    /// or this user's own. A state directory that a variable or a flag sets comes before a shared server that a file sets, and so on.
    ///
    /// # Errors
    /// As [`Home::of_this_user`](crate::embedded::Home::of_this_user).
    #[cfg(feature = "embedded")]
    pub fn home(&self) -> Result<crate::embedded::Home, Error> {
        use crate::embedded::Home;
        let (machine, state_dir) = (&self.machine, &self.state_dir);
        let layer = |setting: &Setting<Option<PathBuf>>| match setting.origin {
            Origin::Default | Origin::File { .. } => 0,
            Origin::Variable(_) => 1,
            Origin::Flag(_) => 2,
        };
        match (&machine.value, &state_dir.value) {
            (Some(dir), _) if layer(machine) >= layer(state_dir) => Ok(Home::shared(dir)),
            (_, Some(dir)) => Ok(Home::new(dir)),
            _ => Home::of_this_user(),
        }
    }

    /// How often a lost or missing connection is tried again, and with which pause before each try, if that was said.
    pub fn reconnect(&self) -> Option<(u32, Duration)> {
        let Settings { connection_retry, connection_delay, .. } = self;
        let said = connection_retry.value.or_else(|| connection_delay.is_given().then_some(CONNECTION_RETRIES));
        said.map(|retries| (retries, connection_delay.value))
    }

    /// The routing of the realms, if there are any and no servers were named over them, by a variable or a flag.
    ///
    /// # Errors
    /// None for settings that were read: they are checked.
    pub fn routing(&self) -> Result<Option<Realms>, Error> {
        if self.realms.is_empty() || self.servers.is_given() {
            return Ok(None);
        }
        let realms = self.realms.iter().map(|realm| (realm.value.prefix.as_str(), realm.value.servers.as_str()));
        Realms::new(self.builder(), realms).map(Some)
    }

    /// Connects to the servers that are set. Dropping the future leaves no session behind.
    ///
    /// # Errors
    /// As [`Lockkeeper::connect`]; [`Error::InvalidServers`] also if none are set: which directory an embedded server is to
    /// use is the program's choice ([`Builder::embedded`]).
    pub async fn connect(&self) -> Result<Lockkeeper, Error> {
        let servers = self.servers.value.as_deref().ok_or_else(|| Error::InvalidServers {
            servers: String::new(),
            problem: format!("none are set; set {} or {}", Key::Servers.name(), Key::Servers.variable()),
        })?;
        self.builder().connect(servers).await
    }

    /// The two classes as [`MonitorLock::classes`](crate::recipes::contentserv::MonitorLock::classes) takes them; one that waits as
    /// long as it takes waits for the document's 2000 ms there.
    pub fn task_classes(&self) -> TaskClasses {
        let class = |class: &ClassSettings| TaskClass {
            class: class.prefix.value,
            timeout: class.timeout.value.unwrap_or(TASK_TIMEOUT),
        };
        TaskClasses { foreground: class(&self.foreground), background: class(&self.background) }
    }
}

#[cfg(feature = "embedded")]
impl Lockkeeper {
    /// Uses this user's own server: the locks of the command `lockkeeper` where neither servers nor the machine's server are set.
    ///
    /// Its directory is `state_dir` of the [`Settings`], which a settings file or `LOCKKEEPER_STATE_DIR` may set, or else
    /// [`Home::of_this_user`](crate::embedded::Home::of_this_user). Other settings are not used: those for servers and sessions are the
    /// program's choice.
    ///
    /// The first process hosts the server, as in [`Lockkeeper::embedded`]; the command joins it, and takes it over when this
    /// process ends.
    ///
    /// # Errors
    /// As [`Lockkeeper::embedded`]; [`Error::File`] also if there is no home directory, or if the settings have a mistake.
    pub async fn own_server() -> Result<Lockkeeper, Error> {
        Self::builder().own_server().await
    }
}

#[cfg(feature = "embedded")]
impl Builder {
    /// Uses this user's own server. See [`Lockkeeper::own_server`].
    ///
    /// # Errors
    /// As [`Lockkeeper::own_server`].
    pub async fn own_server(self) -> Result<Lockkeeper, Error> {
        let failed = |source| Error::File { what: "cannot find", file: "this user's state directory".into(), source };
        let mut settings = Settings::read().map_err(|error| failed(std::io::Error::other(error)))?;
        settings.machine.value = None;
        // Clients may work in different directories.
        let dir = std::path::absolute(settings.home()?.dir()).map_err(failed)?;
        self.embedded_with(crate::embedded::Home::new(dir), crate::embedded::Hosting::InProcess).await
    }
}
