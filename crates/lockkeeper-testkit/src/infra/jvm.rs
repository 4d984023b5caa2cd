//! A server of somebody else's that runs on a JVM and serves on one loopback port: started, awaited, ended by its id.
//!
//! What the locks protect and where their letters go is another maker's, so it is tested on that maker's own program.
//! The jars come from Maven; `cargo xtask` fetches them and says where they are. Nothing here downloads anything.
//! As Apache's servers, none outlives the process that started it, and none leaves anything on disk.

use std::env;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::infra::process::{POLL, Refused, Server, refused};

/// How long a server may take until it serves; measured on two cores: 3 s a broker, 7 s a search engine.
const START: Duration = Duration::from_secs(120);

/// What can go wrong with such a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody has said where its jars are.
    #[error("{variable} does not say where the jars are: run `{chore}`")]
    NoJars {
        /// The variable that would.
        variable: &'static str,
        /// What sets it.
        chore: &'static str,
    },
    /// It does not serve.
    #[error("{name} {what}; its log ends:\n{log}")]
    Start {
        /// Which server.
        name: &'static str,
        /// What it did instead.
        what: String,
        /// The last lines of its log.
        log: String,
    },
    /// The machine refused something.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// The class path in a variable that a chore sets.
pub(crate) fn jars(variable: &'static str, chore: &'static str) -> Result<String, Error> {
    env::var(variable).ok().filter(|jars| !jars.is_empty()).ok_or(Error::NoJars { variable, chore })
}

/// One server with its data.
#[derive(Debug)]
pub(crate) struct Jvm {
    // Before the directory: dropped in this order, so the server is gone when its data goes.
    server: Server,
    name: &'static str,
    _dir: TempDir,
}

impl Jvm {
    /// A place for one, which does not run yet: its files go to [`Jvm::dir`].
    pub(crate) fn new(name: &'static str, prefix: &str, port: u16) -> Result<Self, Error> {
        let temp = tempfile::Builder::new().prefix(prefix).tempdir();
        let dir = temp.map_err(refused("creating a directory in", &env::temp_dir()))?;
        let home = dir.path().join("0");
        fs::create_dir(&home).map_err(refused("creating", &home))?;
        Ok(Jvm { server: Server::new(home, port), name, _dir: dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.server.dir
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// A file of its own.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.dir().join(name);
        fs::write(&path, text).map_err(refused("writing", &path))?;
        Ok(path)
    }

    /// Java with at most so many megabytes of heap and this class path.
    pub(crate) fn java(&self, heap_mb: u32, jars: &str) -> Command {
        let java = env::var_os("JAVA_HOME").map_or_else(|| "java".into(), |home| Path::new(&home).join("bin/java"));
        let mut command = Command::new(java);
        command.arg(format!("-Xmx{heap_mb}m"));
        command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true"]);
        command.arg("-cp").arg(jars).current_dir(self.dir());
        command
    }

    /// Runs it and waits until its port is open: both servers open theirs when all behind it stands.
    pub(crate) fn start(&self, command: Command) -> Result<(), Error> {
        self.server.start(command)?;
        let deadline = Instant::now() + START;
        loop {
            // Asked first: a process of somebody else's might listen on this port.
            if self.server.has_ended() {
                return Err(self.failed("ended"));
            }
            if TcpStream::connect_timeout(&self.addr(), POLL).is_ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self.failed(&format!("does not serve after {START:?}")));
            }
            std::thread::sleep(POLL);
        }
    }

    pub(crate) fn failed(&self, what: &str) -> Error {
        let log = crate::infra::process::tail(&self.server.log(), 20);
        Error::Start { name: self.name, what: what.to_owned(), log }
    }
}
