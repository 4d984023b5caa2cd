//! The meaning of the command line, together with the environment and the files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::admin::LOCKS;
use lockkeeper::embedded::ServerDir;
use lockkeeper::{Builder, Error, LockPath};
use lockkeeper_config::realms::Realms;
use lockkeeper_config::settings::{Fault, Origin, RealmSetting, Setting, SettingsError, Sources, known_variables};
use lockkeeper_session::ensemble::is_below;

use lockkeeper_helix::routing::{FollowRouting, RoutingData};

use crate::args::connect::{ConnectArgs, SourceArgs};
use crate::exit::{Code, Failure};
use crate::output::Printer;
use crate::place::{Place, realm};
use crate::verbs::run::args::is_option;

/// Time limit for connecting to the servers.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where to connect and how.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The place of the locks.
    pub place: Place,
    /// All settings with their origins.
    pub all: lockkeeper_config::settings::Settings,
    /// Whether a missing chroot is created.
    pub create_chroot: bool,
    /// Prints for the caller what happens to this user's own server.
    pub printer: Printer,
}

impl Settings {
    /// Reads the options, the environment and the files. Prints a warning for each probable mistake.
    pub(crate) fn read(args: ConnectArgs, printer: &Printer) -> Result<Self, Failure> {
        Self::read_for(args, printer, false)
    }

    /// Reads the same for a command that gives the nodes that all users share an access list, also on the server of the machine.
    pub(crate) fn read_with_list(args: ConnectArgs, printer: &Printer) -> Result<Self, Failure> {
        Self::read_for(args, printer, true)
    }

    fn read_for(args: ConnectArgs, printer: &Printer, sets_list: bool) -> Result<Self, Failure> {
        let create_chroot = args.sources.create_chroot;
        let (all, place) = Self::read_all(args, printer)?;
        let place = place?;
        let settings = Settings { place, all, create_chroot, printer: *printer };
        if matches!(settings.place, Place::Machine(_)) && !settings.has_realms() {
            refuse_options_of_ensembles(&settings.all, &settings.place, sets_list)?;
        }
        Ok(settings)
    }

    /// Reads the same for a caller that needs no place: the machine may have no directory for this user's own server.
    pub(crate) fn read_all(
        args: ConnectArgs,
        printer: &Printer,
    ) -> Result<(lockkeeper_config::settings::Settings, Result<Place, Failure>), Failure> {
        let all = layers(args).read()?;
        for warning in all.warnings().iter().filter_map(warning) {
            printer.note(&warning);
        }
        let place = match &all.servers.value {
            Some(servers) => Ok(Place::Ensemble(servers.clone())),
            None => home(&all).map(Place::Machine),
        };
        Ok((all, place))
    }

    /// Whether realms are used: neither servers nor the server of this machine were chosen.
    pub(crate) fn has_realms(&self) -> bool {
        let Self { all, .. } = self;
        let routing = all.routing_directory().is_some();
        match &self.place {
            Place::Machine(home) if home.is_shared() => {
                routing && all.routing_servers.origin.rank() > all.machine.origin.rank()
            }
            _ => routing || (!all.realms.is_empty() && !all.servers.is_given()),
        }
    }

    /// Returns the realms, if they are used. The first call reads the routing data, if the settings name its servers; it then counts as
    /// a table of the settings.
    ///
    /// Dropping the future leaves nothing behind but, for its timeout, a session that has no nodes.
    async fn realms(&mut self) -> Result<Option<Realms>, Failure> {
        if !self.has_realms() {
            return Ok(None);
        }
        if self.all.realms.is_empty() {
            self.all.set_realms(&routing_data(&self.all).await?);
        }
        let realms = self.all.realms.iter().map(|realm| (realm.value.prefix.as_str(), realm.value.servers.as_str()));
        Ok(Some(Realms::new(self.builder(), realms)?))
    }

    /// Chooses the realm of these paths, if there are realms.
    ///
    /// # Errors
    /// No realm contains one of the paths, or they are in several realms. The routing data cannot be read.
    pub(crate) async fn at<'a>(mut self, paths: impl IntoIterator<Item = &'a str>) -> Result<Self, Failure> {
        let Some(realms) = self.realms().await? else { return Ok(self) };
        let mut first: Option<(&str, String)> = None;
        for path in paths {
            let servers = realms.servers(path)?;
            match &first {
                Some((other, place)) if *place != servers => {
                    return Err(Failure::new(Code::Usage, format!("{other} and {path} are in two realms"))
                        .hint("locks that are held together must be on one ensemble"));
                }
                Some(_) => {}
                None => first = Some((path, servers)),
            }
        }
        if let Some((_, servers)) = first {
            self.place = Place::Ensemble(servers);
        }
        Ok(self)
    }

    /// Divides the locks at and below a path into those of each realm. Without realms, there is one part.
    ///
    /// # Errors
    /// No realm contains the path, and none is below it. The routing data cannot be read.
    pub(crate) async fn parts(mut self, root: &str) -> Result<Vec<Part>, Failure> {
        let Some(realms) = self.realms().await? else {
            return Ok(vec![Part { settings: self, root: root.to_owned(), realm: None, others: Vec::new() }]);
        };
        let all: Vec<_> = self.all.realms.iter().map(|realm| &realm.value).collect();
        let around =
            all.iter().filter(|realm| is_at_or_below(root, &realm.prefix)).max_by_key(|realm| realm.prefix.len());
        let below = all.iter().filter(|realm| realm.prefix != root && is_at_or_below(&realm.prefix, root));
        let mut parts: Vec<_> = around.into_iter().chain(below).copied().collect();
        parts.sort_by(|one, other| one.prefix.cmp(&other.prefix));
        if parts.is_empty() {
            // It names the realms.
            realms.servers(root)?;
        }
        let part = |realm: &RealmSetting| {
            let inside =
                |other: &&&RealmSetting| other.prefix != realm.prefix && is_at_or_below(&other.prefix, &realm.prefix);
            Part {
                settings: Settings { place: Place::Ensemble(realm.servers.clone()), ..self.clone() },
                root: if is_at_or_below(root, &realm.prefix) { root } else { &realm.prefix }.to_owned(),
                realm: Some((realm.prefix.clone(), realm.servers.clone())),
                others: all.iter().filter(inside).map(|other| other.prefix.clone()).collect(),
            }
        };
        Ok(parts.into_iter().map(part).collect())
    }

    /// Refuses realms for a command that is about whole servers.
    ///
    /// # Errors
    /// The settings have realms, and no servers were named.
    pub(crate) fn whole_servers(self) -> Result<Self, Failure> {
        if !self.has_realms() {
            return Ok(self);
        }
        let hint = "name the servers of one of them with --servers";
        if let Some(directory) = self.all.routing_directory() {
            let origin = &self.all.routing_servers.origin;
            let message = format!(
                "the settings have the realms of the routing data on {directory} ({origin}), and this command is about whole servers"
            );
            return Err(Failure::new(Code::Usage, message).hint(hint));
        }
        let mut realms: Vec<_> = self.all.realms.iter().map(|realm| &realm.value).collect();
        realms.sort_by(|one, other| one.prefix.cmp(&other.prefix));
        let realms: Vec<_> = realms.iter().map(|RealmSetting { prefix, servers, .. }| realm(prefix, servers)).collect();
        let message = format!(
            "the settings have realms, and this command is about whole servers; the realms are {}",
            realms.join(", ")
        );
        Err(Failure::new(Code::Usage, message).hint(hint))
    }

    /// Returns a builder with the options of a connection.
    pub(crate) fn builder(&self) -> Builder {
        self.all.builder().create_chroot(self.create_chroot)
    }

    /// Returns how long to try to reach the servers.
    pub(crate) fn connect_timeout(&self) -> Duration {
        match self.all.reconnect() {
            Some((retries, delay)) => delay.saturating_mul(retries).saturating_add(CONNECT_TIMEOUT),
            None => CONNECT_TIMEOUT,
        }
    }
}

/// The locks at and below a path that are on one ensemble, or on a server of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub settings: Settings,
    /// Where a listing of these locks starts.
    pub root: String,
    /// The prefix and the servers of their realm, if there are realms.
    pub realm: Option<(String, String)>,
    /// The prefixes below `root` whose locks are in other realms.
    others: Vec<String>,
}

impl Part {
    /// The prefixes below `root` whose locks are in other realms.
    pub(crate) fn others(&self) -> &[String] {
        &self.others
    }

    /// Whether the lock at this path is one of them.
    pub(crate) fn has(&self, path: &str) -> bool {
        !self.others.iter().any(|other| is_at_or_below(path, other))
    }
}

fn is_at_or_below(path: &str, root: &str) -> bool {
    root == "/" || is_below(path, root)
}

/// Reads which realm has which paths from the servers of the routing data. Creates no chroot there.
///
/// # Errors
/// The servers cannot be reached, or have no routing data that can be used.
async fn routing_data(all: &lockkeeper_config::settings::Settings) -> Result<RoutingData, Failure> {
    let servers = all.routing_directory().unwrap_or_default();
    let origin = &all.routing_servers.origin;
    let failed = |failure: Failure| {
        let message = format!("no realm is known: {servers} ({origin}): {failure}");
        let hint = failure
            .hint
            .unwrap_or_else(|| format!("correct {origin}, or name the servers of the locks with --servers"));
        // A missing node is no missing lock.
        let code = if failure.code == Code::NoSuchLock { Code::Mismatch } else { failure.code };
        Failure::new(code, message).hint(hint)
    };
    let directory = all.builder().connect(servers).await.map_err(|error| failed(error.into()))?;
    let read = FollowRouting::new(&directory).next().await;
    directory.close().await;
    read.map_err(|error| {
        let hint = error.hint();
        let failure = Failure::from(Error::from(error));
        failed(Failure { hint: hint.or(failure.hint), ..failure })
    })
}

/// Refuses options that only servers of an ensemble use. A file or a variable may set them for other commands.
///
/// # Errors
/// The first such option.
fn refuse_options_of_ensembles(
    all: &lockkeeper_config::settings::Settings,
    place: &Place,
    sets_list: bool,
) -> Result<(), Failure> {
    let takes_list = sets_list && matches!(place, Place::Machine(home) if home.is_shared());
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let (ca, auth_file) = (&all.tls.ca, &all.auth_file);
    let options = [
        (&ca.origin, path(&ca.value), "needs no TLS"),
        (&auth_file.origin, path(&auth_file.value), "needs no credentials"),
        (&all.acl.origin, Some(all.acl.value.to_string()).filter(|_| !takes_list), "chooses the access lists itself"),
    ];
    for (origin, value, why) in options {
        if let (Origin::Flag(flag), Some(value)) = (origin, value) {
            let message = format!("{flag} {value} is not used with {place}, which {why}");
            return Err(Failure::new(Code::Usage, message).hint("name the servers with --servers, or leave it out"));
        }
    }
    Ok(())
}

/// Returns a mistake in the words of the command: a variable may be named as an option that only the command line has.
fn explained(mistake: &Fault) -> Fault {
    let mut mistake = mistake.clone();
    if let Origin::Variable(name) = &mistake.origin
        && !known_variables().contains(name)
    {
        let option = name.trim_start_matches("LOCKKEEPER_").to_lowercase().replace('_', "-");
        if is_option(&option) {
            mistake.remedy = Some(format!("write --{option} on the command line"));
        }
    }
    mistake
}

/// Returns the text of a warning; `None` for a variable that resembles no other: it belongs to the user's own scripts.
fn warning(mistake: &Fault) -> Option<String> {
    let mistake = explained(mistake);
    let is_foreign = matches!(mistake.origin, Origin::Variable(_)) && mistake.remedy.is_none();
    (!is_foreign).then(|| mistake.to_string())
}

/// Returns the sources of the settings of a command line.
fn layers(args: ConnectArgs) -> Sources {
    let mut sources = Sources::usual();
    for (key, text) in args.typed() {
        sources = sources.flag(key, key.flag().unwrap_or_default(), text.to_string_lossy());
    }
    let SourceArgs { config, properties, .. } = args.sources;
    if let Some(config) = config {
        sources = sources.config(config);
    }
    properties.into_iter().fold(sources, Sources::properties)
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        // One line for any number of faults.
        let faults: Vec<_> = error.faults().iter().map(|fault| explained(fault).to_string()).collect();
        Failure::new(Code::Usage, faults.join(" | "))
    }
}

/// Returns an environment variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Refuses a relative directory of the machine's server that was not typed: each process would have another one, and `true` is a
/// misunderstanding.
fn check_machine(machine: &Setting<Option<PathBuf>>) -> Result<(), Failure> {
    match &machine.value {
        Some(dir) if dir.is_relative() && !matches!(machine.origin, Origin::Flag(_)) => {
            let message =
                format!("{} names a directory, and {} is not an absolute path", machine.origin, dir.display());
            Err(Failure::new(Code::Usage, message)
                .hint(format!("write {}, or leave it unset", lockkeeper::embedded::MACHINE_DIR)))
        }
        _ => Ok(()),
    }
}

/// Refuses a relative directory of this user's server that was not typed: each directory that a command is run in would have other
/// locks.
fn check_absolute(settings: &lockkeeper_config::settings::Settings) -> Result<(), Failure> {
    let relative = match (&settings.state_dir.value, &settings.state_dir.origin) {
        (Some(dir), origin) => (!matches!(origin, Origin::Flag(_))).then(|| (origin.to_string(), dir.clone())),
        (None, _) if settings.machine.value.is_some() => None,
        (None, _) => variable("XDG_STATE_HOME")
            .is_none_or(|dir| Path::new(&dir).is_relative())
            .then(|| Some(("HOME".to_owned(), variable("HOME")?.into())))
            .flatten(),
    };
    match relative.filter(|(_, dir): &(_, PathBuf)| dir.is_relative()) {
        Some((origin, dir)) => {
            let message = format!("{origin} names a directory, and {} is not an absolute path", dir.display());
            Err(Failure::new(Code::Usage, message)
                .hint("write an absolute path: elsewhere, a command would find other locks"))
        }
        None => Ok(()),
    }
}

/// Returns the home of this machine's server.
fn home(settings: &lockkeeper_config::settings::Settings) -> Result<ServerDir, Failure> {
    check_machine(&settings.machine)?;
    check_absolute(settings)?;
    let home = settings.home().map_err(|error| {
        Failure::new(Code::Internal, format!("this user's own server has no directory: {error}"))
            .hint("set LOCKKEEPER_STATE_DIR to a directory, or LOCKKEEPER_SERVERS to your ensemble")
    })?;
    // The server has another working directory. And two spellings of one directory are more often the same as absolute
    // paths.
    let dir = std::path::absolute(home.dir());
    let dir = dir.map_err(|error| Failure::system("cannot read the current directory", error))?;
    Ok(if home.is_shared() { ServerDir::shared(dir) } else { ServerDir::new(dir) })
}

/// Returns the directory of this user's own state.
pub(crate) fn state_dir(settings: &lockkeeper_config::settings::Settings) -> Result<PathBuf, Failure> {
    let mut own = settings.clone();
    own.machine.value = None;
    Ok(home(&own)?.dir().to_owned())
}

/// Returns the path of a lock's name, for reading.
pub(crate) fn lock_path(name: &str) -> Result<LockPath, Failure> {
    let path = match name {
        "" => LockPath::parse_node("")?,
        path if path.starts_with('/') => LockPath::parse_node(path)?,
        name => LockPath::parse_node(&format!("{LOCKS}/{name}"))?,
    };
    Ok(path)
}

/// Returns the path of a lock's name, for locking.
pub(crate) fn path_to_lock(name: &str) -> Result<LockPath, Failure> {
    Ok(LockPath::parse(lock_path(name)?.as_str())?)
}

/// Returns the name of a contender's node, given as its name or its path.
pub(crate) fn node_name<'a>(lock: &str, node: &'a str) -> &'a str {
    match node.strip_prefix(lock) {
        // The lock's own node is the contender of a lease.
        Some("") => "",
        rest => rest.and_then(|rest| rest.strip_prefix('/')).unwrap_or(node),
    }
}

/// Returns the path where a listing starts, which may be the root.
pub(crate) fn list_root(prefix: Option<&str>) -> Result<String, Failure> {
    let path = match prefix {
        None => lock_path(LOCKS)?,
        Some("/") => return Ok("/".to_owned()),
        // People write a directory with a slash at the end.
        Some(prefix) => lock_path(prefix.strip_suffix('/').unwrap_or(prefix))?,
    };
    Ok(path.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_below_locks_and_paths_are_themselves() {
        let path = |name| lock_path(name).map(|path| path.to_string()).map_err(|failure| failure.code);
        assert_eq!(path("nightly"), Ok("/locks/nightly".to_owned()));
        assert_eq!(path("a/b"), Ok("/locks/a/b".to_owned()));
        assert_eq!(path("/app/a"), Ok("/app/a".to_owned()));
        for bad in ["", "/", "a//b", "a/", "//a", "../a", "a\0b", "a\x1b[2J", "/zookeeper/x"] {
            assert_eq!(path(bad), Err(Code::Usage), "{bad:?}");
        }
    }

    #[test]
    fn an_unknown_variable_that_is_named_as_an_option_is_reported_with_the_option() {
        let warned = |name: &str| {
            let sources = Sources::none().variables([(name.to_owned(), "x".to_owned())]);
            sources.read().unwrap().warnings().iter().filter_map(warning).collect::<String>()
        };
        assert!(warned("LOCKKEEPER_WAIT").ends_with("; write --wait on the command line"));
        assert!(warned("LOCKKEEPER_ON_REVOKE").ends_with("; write --on-revoke on the command line"));
        assert!(warned("LOCKKEEPER_TIMEOUT").ends_with("; the nearest one is LOCKKEEPER_SESSION_TIMEOUT"));
        assert_eq!(warned("LOCKKEEPER_DEPLOY_STAGE"), "", "of a script");
    }

    #[test]
    fn listings_start_at_locks_a_directory_or_the_root() {
        let root = |prefix| list_root(prefix).map_err(|failure| failure.code);
        assert_eq!(root(None), Ok("/locks".to_owned()));
        assert_eq!(root(Some("team/")), Ok("/locks/team".to_owned()));
        assert_eq!(root(Some("/")), Ok("/".to_owned()));
        assert_eq!(root(Some("")), Err(Code::Usage));
    }
}
