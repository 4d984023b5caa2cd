//! What the command line means: flags before environment before defaults.

use std::path::PathBuf;
use std::time::Duration;

use lockkeeper::embedded::Home;
use lockkeeper::{Builder, LockPath, Lockkeeper};

use crate::args::ConnectArgs;
use crate::exit::{Code, Failure};

/// Where names that are no paths are found.
const ROOT: &str = "/locks";

const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Below this, an ordinary hiccup of a machine looks like a crash.
const LEAST_SESSION_TIMEOUT: Duration = Duration::from_millis(500);

/// How long servers are tried.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Whose locks.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Those of an ensemble.
    Ensemble(String),
    /// This user's on this machine.
    Machine(Home),
}

/// Where to connect and how.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Whose locks.
    pub place: Place,
    /// What to ask the server for.
    pub session_timeout: Duration,
}

impl Settings {
    /// Reads what was typed, and the environment for what was not.
    pub(crate) fn read(args: ConnectArgs) -> Result<Self, Failure> {
        let place = match args.servers.or_else(|| variable("LOCKKEEPER_SERVERS")) {
            Some(servers) => Place::Ensemble(servers),
            None => Place::Machine(Home::new(state_dir(args.state_dir)?)),
        };
        let session_timeout = match (args.session_timeout, variable("LOCKKEEPER_SESSION_TIMEOUT")) {
            (Some(timeout), _) => timeout,
            (None, Some(text)) => humantime::parse_duration(&text).map_err(|error| {
                Failure::new(Code::Usage, format!("LOCKKEEPER_SESSION_TIMEOUT is {text:?}: {error}"))
                    .hint("write 500ms, 30s, 5m")
            })?,
            (None, None) => SESSION_TIMEOUT,
        };
        if session_timeout < LEAST_SESSION_TIMEOUT || session_timeout > Duration::from_secs(24 * 3600) {
            let given = humantime::format_duration(session_timeout);
            return Err(Failure::new(Code::Usage, format!("a session timeout of {given} is out of range"))
                .hint("choose one from 500ms to 24h; the server may bound it further"));
        }
        Ok(Settings { place, session_timeout })
    }

    /// Options of a connection.
    pub(crate) fn builder(&self) -> Builder {
        Lockkeeper::builder().session_timeout(self.session_timeout)
    }
}

/// An environment variable that is set to something.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The directory of this user's server.
pub(crate) fn state_dir(flag: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = flag
        .or_else(|| set("LOCKKEEPER_STATE_DIR"))
        // The XDG specification: a relative one is to be ignored.
        .or_else(|| set("XDG_STATE_HOME").filter(|dir| dir.is_absolute()).map(|dir| dir.join("lockkeeper")))
        .or_else(|| set("HOME").map(|home| home.join(".local/state/lockkeeper")))
        .filter(|dir| !dir.as_os_str().is_empty())
        .ok_or_else(|| {
            Failure::new(Code::CannotServe, "there is no place for this user's server: HOME is not set")
                .hint("set LOCKKEEPER_STATE_DIR to a directory, or LOCKKEEPER_SERVERS to your ensemble")
        })?;
    // The server works elsewhere, and two spellings of one directory should be told apart as little as possible.
    std::path::absolute(&dir).map_err(|error| Failure::system("cannot tell the current directory", error))
}

/// The path that a lock's name stands for.
pub(crate) fn lock_path(name: &str) -> Result<LockPath, Failure> {
    let path = match name {
        "" => LockPath::parse("")?,
        path if path.starts_with('/') => LockPath::parse(path)?,
        name => LockPath::parse(&format!("{ROOT}/{name}"))?,
    };
    Ok(path)
}

/// The name of a contender's node, given as that or as its path.
pub(crate) fn node_name<'a>(lock: &str, node: &'a str) -> &'a str {
    node.strip_prefix(lock).and_then(|rest| rest.strip_prefix('/')).unwrap_or(node)
}

/// Where a listing starts, which may be the root of all.
pub(crate) fn list_root(prefix: Option<&str>) -> Result<String, Failure> {
    let path = match prefix {
        None => lock_path(ROOT)?,
        Some("/") => return Ok("/".to_owned()),
        // A slash at the end is how people write a directory.
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
    fn listings_start_at_locks_a_directory_or_the_root() {
        let root = |prefix| list_root(prefix).map_err(|failure| failure.code);
        assert_eq!(root(None), Ok("/locks".to_owned()));
        assert_eq!(root(Some("team/")), Ok("/locks/team".to_owned()));
        assert_eq!(root(Some("/")), Ok("/".to_owned()));
        assert_eq!(root(Some("")), Err(Code::Usage));
    }
}
