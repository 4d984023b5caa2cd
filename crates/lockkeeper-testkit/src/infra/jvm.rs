//! A server of another project that runs on a JVM and serves on one loopback port: starts it, waits for it, ends it by
//! its id.
//!
//! Resources that locks protect, and topics for dead letters, belong to other projects. So they are tested with the
//! real programs. The jars come from Maven; `cargo xtask` fetches them and sets their class path. Nothing here
//! downloads anything. Like Apache's servers, no server outlives the process that started it or leaves anything on
//! disk.

use std::env;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::infra::process::{POLL, Refused, Server, refused};

/// Time limit for a server to serve; measured on two cores: 3 s for a broker.
const START: Duration = Duration::from_secs(120);

/// An error of such a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The variable with its jars is not set.
    #[error("{variable} does not say where the jars are: run `{chore}`")]
    NoJars {
        /// The name of the variable.
        variable: &'static str,
        /// The chore that sets it.
        chore: &'static str,
    },
    /// It does not serve.
    #[error("{name} {what}; its log ends:\n{log}")]
    Start {
        /// The name of the server.
        name: &'static str,
        /// What happened instead.
        what: String,
        /// The last lines of its log.
        log: String,
    },
    /// The operating system refused an operation.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Returns the class path in a variable that a chore sets.
pub(crate) fn jars(variable: &'static str, chore: &'static str) -> Result<String, Error> {
    env::var(variable).ok().filter(|jars| !jars.is_empty()).ok_or(Error::NoJars { variable, chore })
}

/// One server with its data.
#[derive(Debug)]
pub(crate) struct Jvm {
    // Before the directory: fields are dropped in this order, so the server ends before its data is removed.
    server: Server,
    name: &'static str,
    _dir: TempDir,
}

impl Jvm {
    /// Prepares a server that does not run yet: its files go to [`Jvm::dir`].
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

    /// Writes a file into its directory.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.dir().join(name);
        fs::write(&path, text).map_err(refused("writing", &path))?;
        Ok(path)
    }

    /// Returns a Java command with at most this many megabytes of heap and this class path.
    pub(crate) fn java(&self, heap_mb: u32, jars: &str) -> Command {
        let java = env::var_os("JAVA_HOME").map_or_else(|| "java".into(), |home| Path::new(&home).join("bin/java"));
        let mut command = Command::new(java);
        command.arg(format!("-Xmx{heap_mb}m"));
        command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true"]);
        command.arg("-cp").arg(jars).current_dir(self.dir());
        command
    }

    /// Runs the command and waits until its port is open: both servers open theirs last.
    pub(crate) fn start(&self, command: Command) -> Result<(), Error> {
        self.server.start(command)?;
        let deadline = Instant::now() + START;
        loop {
            // Checked first: another program might listen on this port.
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
