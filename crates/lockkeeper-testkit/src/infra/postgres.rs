//! A PostgreSQL server for a test: new, on loopback, stopped by its id and removed with its data.
//!
//! It refuses to run as root, so as root it runs as the user `postgres`, which Debian's package creates.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, getuid};

use crate::infra::process::{POLL, Server, free_ports};

/// Time limit for a start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Debian's directory of the server's programs, which are not on the path.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The user who runs it if we are root.
const USER: &str = "postgres";

/// A server that runs until the value is dropped.
#[derive(Debug)]
pub struct Postgres {
    // Before the directory: fields are dropped in this order, so the server ends before its data is removed.
    server: Server,
    _dir: tempfile::TempDir,
}

impl Postgres {
    /// Whether PostgreSQL is installed.
    pub fn is_installed() -> bool {
        programs().is_some()
    }

    /// Creates a database and starts a server on it.
    pub fn start() -> Result<Postgres> {
        let programs = programs().context("no PostgreSQL here: on Debian, apt-get install postgresql")?;
        let dir = tempfile::Builder::new().prefix("lockkeeper-postgres-").tempdir().context("a directory")?;
        let home = dir.path().join("0");
        std::fs::create_dir(&home)?;
        if getuid().is_root() {
            run("handing the directory on", Command::new("chown").args(["--recursive", USER]).arg(dir.path()))?;
        }
        let data = home.join("data");
        // Everyone who reaches this loopback port is trusted for these seconds; the database has nothing but the tests'
        // rows.
        let mut initdb = unprivileged(&programs.join("initdb"));
        initdb.arg("--pgdata").arg(&data).args(["--auth=trust", "--username=postgres", "--no-sync", "--locale=C"]);
        run("initdb", initdb.current_dir(&home))?;
        let [port] = free_ports()?;
        let mut command = unprivileged(&programs.join("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(&home).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        command.current_dir(&home);
        let postgres = Postgres { server: Server::new(home, port), _dir: dir };
        postgres.server.start(command)?;
        postgres.wait(&programs)?;
        Ok(postgres)
    }

    /// `host=127.0.0.1 port=… user=postgres`
    pub fn connect_string(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres", self.server.addr().port())
    }

    /// Waits until it answers.
    fn wait(&self, programs: &Path) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut ready = Command::new(programs.join("pg_isready"));
        ready.args(["--quiet", "--host=127.0.0.1", &format!("--port={}", self.server.addr().port())]);
        while !ready.status().is_ok_and(|status| status.success()) {
            if self.server.has_ended() || Instant::now() > deadline {
                bail!("postgres does not serve: {}", self.server.log());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // PostgreSQL's signal for a stop that does not wait for clients.
        self.server.stop_by(Signal::INT);
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

fn run(what: &'static str, command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().context(what)?;
    if !output.status.success() {
        bail!("{what}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
