//! A PostgreSQL server for a test: new, on loopback, stopped by its id and removed with its data.
//!
//! It refuses to run as root, so as root it runs as the user `postgres`, which Debian's package creates.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process};

/// Time limit for a start and for a stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two checks of a state that reports no change.
const POLL: Duration = Duration::from_millis(20);

/// Debian's directory of the server's programs, which are not on the path.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The user who runs it if we are root.
const USER: &str = "postgres";

/// An error of the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No PostgreSQL is installed.
    #[error("no PostgreSQL here: on Debian, apt-get install postgresql")]
    Missing,
    /// One of its programs failed.
    #[error("{what}: {problem}")]
    Failed {
        /// The name of the program or step.
        what: &'static str,
        problem: String,
    },
}

/// A server that runs until the value is dropped.
#[derive(Debug)]
pub struct Postgres {
    server: Child,
    dir: tempfile::TempDir,
    port: u16,
}

impl Postgres {
    /// Creates a database and starts a server on it.
    ///
    /// # Errors
    /// PostgreSQL is not installed, or it does not start.
    pub fn start() -> Result<Postgres, Error> {
        let programs = programs().ok_or(Error::Missing)?;
        let failed = |what| move |error: io::Error| Error::Failed { what, problem: error.to_string() };
        let dir = tempfile::Builder::new().prefix("lockkeeper-postgres-").tempdir().map_err(failed("a directory"))?;
        if getuid().is_root() {
            run("handing the directory on", Command::new("chown").arg(USER).arg(dir.path()))?;
        }
        let data = dir.path().join("data");
        // Everyone who reaches this loopback port is trusted for these seconds; the database has nothing but the tests'
        // rows.
        let mut initdb = unprivileged(&programs.join("initdb"));
        initdb.arg("--pgdata").arg(&data).args(["--auth=trust", "--username=postgres", "--no-sync", "--locale=C"]);
        run("initdb", initdb.current_dir(dir.path()))?;
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).map_err(failed("a port"))?;
        let log = std::fs::File::create(dir.path().join("log")).map_err(failed("its log"))?;
        let mut server = unprivileged(&programs.join("postgres"));
        server.arg("-D").arg(&data).arg("-k").arg(dir.path()).args(["-h", "127.0.0.1", "-p", &port.port().to_string()]);
        server.current_dir(dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let server = server.spawn().map_err(failed("postgres"))?;
        let mut postgres = Postgres { server, dir, port: port.port() };
        postgres.wait(&programs)?;
        Ok(postgres)
    }

    /// `host=127.0.0.1 port=… user=postgres`
    pub fn connect_string(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres", self.port)
    }

    /// Waits until it answers.
    fn wait(&mut self, programs: &Path) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut ready = Command::new(programs.join("pg_isready"));
            ready.args(["--quiet", "--host=127.0.0.1", &format!("--port={}", self.port)]);
            if ready.status().is_ok_and(|status| status.success()) {
                return Ok(());
            }
            let ended = self.server.try_wait().is_ok_and(|status| status.is_some());
            if ended || Instant::now() > deadline {
                let problem = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                return Err(Error::Failed { what: "postgres does not serve", problem });
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some(pid) = i32::try_from(self.server.id()).ok().and_then(Pid::from_raw) else { return };
        // PostgreSQL's signal for a stop that does not wait for clients.
        _ = kill_process(pid, Signal::INT);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.server.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        _ = self.server.kill();
        _ = self.server.wait();
    }
}

/// Returns the directory of the server's programs, of the newest version if there are several.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let debian = versions.filter_map(|version| {
        let number: u32 = version.file_name().to_str()?.parse().ok()?;
        Some((number, version.path().join("bin")))
    });
    let newest = debian.filter(|(_, bin)| bin.join("initdb").exists()).max();
    newest.map(|(_, bin)| bin).or_else(|| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).find(|bin| bin.join("initdb").exists())
    })
}

/// Returns the program without root's rights. It replaces the process that we start, so it has the id that we signal.
fn unprivileged(program: &Path) -> Command {
    if !getuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]).arg(program);
    command
}

fn run(what: &'static str, command: &mut Command) -> Result<(), Error> {
    let failed = |problem| Error::Failed { what, problem };
    let output = command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
}
