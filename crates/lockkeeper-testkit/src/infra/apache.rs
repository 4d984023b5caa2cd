//! Apache ZooKeeper on demand: real servers on free loopback ports, for one test or for a person.
//!
//! Lockkeeper's guarantees are tested on the server that most users run. So the contract tests start one server, or an
//! ensemble of three whose leader they kill, pause and slow down. Plain `cargo test` starts no server here: this module
//! runs only if the environment asks for such a test.
//!
//! Servers never outlive the process that started them, however it ends, and leave nothing on disk.

mod clock;
mod distribution;
mod host;
mod late;
mod options;
mod sasl;
mod slow;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use clock::WrongClock;
pub use distribution::Distribution;
pub(crate) use distribution::{install_package, runs};
pub use host::Host;
use late::Ways;
pub use options::Options;
pub use slow::SlowFsync;

use crate::infra::process::{self, POLL, Refused, Server, refused, tail};

/// Time limit for servers to serve; measured: 0.3 s for one, 1 s for three on two cores.
const START: Duration = Duration::from_secs(180);

/// Attempts to find free ports when another process takes them first.
const PORT_TRIES: usize = 5;

/// An error of an Apache server. Each message is one line with the remedy, if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No Java was found.
    #[error("no Java runs on this machine (tried {}): install a JRE of version 8 or later, or set JAVA_HOME", .tried.display())]
    NoJava {
        /// The program that was run.
        tried: PathBuf,
    },
    /// No ZooKeeper was found, or none in the given directory.
    #[error("{why}")]
    NoZooKeeper {
        /// What is missing and what to do.
        why: String,
    },
    /// The installation failed.
    #[error("{program} failed ({status}):\n{said}")]
    Install {
        /// The program that was run.
        program: String,
        status: ExitStatus,
        /// The last lines it printed.
        said: String,
    },
    /// A server does not serve.
    #[error("server {server} of {origin} {what}; its log ends:\n{log}")]
    Start {
        /// The index of the server.
        server: usize,
        /// The origin of its jars.
        origin: String,
        /// What happened instead.
        what: String,
        /// The last lines of its log.
        log: String,
    },
    /// No server leads.
    #[error("no server leads after {0:?}")]
    NoLeader(Duration),
    /// No libfaketime was found.
    #[error("no libfaketime on this machine to set a server's clock wrong with: install the package libfaketime")]
    NoFaketime,
    /// No strace was found.
    #[error("no strace on this machine to slow the disk with: install the package strace")]
    NoStrace,
    /// strace could not attach.
    #[error("strace cannot attach to server process {pid}: {said}")]
    Attach {
        /// The process id of the server.
        pid: u32,
        /// The output of strace.
        said: String,
    },
    /// The operating system refused an operation.
    #[error("{doing} {}", .path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or directory of the operation.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl From<Refused> for Error {
    fn from(Refused { doing, path, source }: Refused) -> Self {
        Error::Io { doing, path, source }
    }
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let refused = refused(doing, path);
    move |source| refused(source).into()
}

/// The loopback ports of one server.
#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    quorum: u16,
    election: u16,
}

impl Ports {
    fn free() -> Result<Self, Error> {
        let [client, quorum, election] = process::free_ports()?;
        Ok(Self { client, quorum, election })
    }
}

/// The role that a server reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is the only server.
    Standalone,
    /// It orders the ensemble's writes.
    Leader,
    /// It follows the leader.
    Follower,
    /// Another role, such as observer or read-only.
    Other,
}

/// The configuration for releases that log through Logback, whose default prints everything.
const LOGBACK_XML: &str = r#"<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} [%t] %-5level %logger{1} - %msg%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"#;

/// Running servers, one or an ensemble, numbered from 0. Dropping the value stops them and removes their data.
///
/// Every operation blocks as long as the server takes; an async test that must continue in the meantime calls it on
/// another thread.
#[derive(Debug)]
pub struct Apache {
    // Before the directory: fields are dropped in this order, so the servers end before their data is removed.
    servers: Vec<Server>,
    distribution: Distribution,
    options: Options,
    /// The delayed connections between the servers, if some servers lag.
    ways: Option<Ways>,
    _dir: TempDir,
}

impl Apache {
    /// Starts one server and waits until it serves.
    ///
    /// # Errors
    /// If there is no Java or no ZooKeeper, or the server does not start.
    pub fn single(options: Options) -> Result<Self, Error> {
        Self::start(1, options)
    }

    /// Starts an ensemble of `size` servers and waits until every one leads or follows.
    ///
    /// # Errors
    /// As [`Apache::single`].
    pub fn ensemble(size: usize, options: Options) -> Result<Self, Error> {
        Self::start(size, options)
    }

    fn start(size: usize, options: Options) -> Result<Self, Error> {
        assert!(size > 0, "an ensemble has a server");
        let distribution = match &options.distribution {
            Some(distribution) => distribution.clone(),
            None => Distribution::find()?,
        };
        let mut tries = 1;
        loop {
            match Self::start_once(size, &options, &distribution) {
                Err(Error::Start { log, .. }) if tries < PORT_TRIES && log.contains("BindException") => tries += 1,
                started => return started,
            }
        }
    }

    fn start_once(size: usize, options: &Options, distribution: &Distribution) -> Result<Self, Error> {
        let dir = tempfile::Builder::new()
            .prefix("lockkeeper-zookeeper-")
            .tempdir()
            .map_err(io_error("creating a directory in", &std::env::temp_dir()))?;
        let ports = (0..size).map(|_| Ports::free()).collect::<Result<Vec<_>, _>>()?;
        let mut servers = Vec::new();
        let place = |index| options.place(index);
        let ways = match options.lag.is_zero() {
            true => None,
            false => Some(
                Ways::new(size).map_err(io_error("starting threads for the ways between servers in", dir.path()))?,
            ),
        };
        for (index, own) in ports.iter().enumerate() {
            let home = dir.path().join(index.to_string());
            let data = home.join("data");
            fs::create_dir_all(&data).map_err(io_error("creating", &data))?;
            let mut config = options.zoo_cfg(&home, *own, place(index).ip);
            if let Some(bytes) = options.disk {
                process::mount(&data, bytes)?;
            }
            if size > 1 {
                for (number, Ports { quorum, election, .. }) in (1..).zip(&ports) {
                    let ip = place(number - 1).ip;
                    let quorum = match &ways {
                        Some(ways) if number - 1 != index => ways
                            .open(index, (ip, *quorum).into())
                            .map_err(io_error("listening between servers of", dir.path()))?,
                        _ => *quorum,
                    };
                    config += &format!("server.{number}={ip}:{quorum}:{election}\n");
                }
                write(&data.join("myid"), &(index + 1).to_string())?;
            }
            write(&home.join("zoo.cfg"), &config)?;
            write(&home.join("logback.xml"), LOGBACK_XML)?;
            if !options.sasl.is_empty() {
                write(&home.join(sasl::FILE), &sasl::jaas(&options.sasl))?;
            }
            let server = Server::new(home, own.client).on(place(index).ip);
            servers.push(if options.disk.is_some() { server.mounted("data") } else { server });
        }
        let apache = Self { servers, distribution: distribution.clone(), options: options.clone(), ways, _dir: dir };
        for server in 0..size {
            apache.launch(server)?;
        }
        for server in 0..size {
            apache.wait_serving(server)?;
        }
        if apache.ways.is_some() {
            let leader = apache.leader()?;
            let mut lag = options.lag;
            for follower in (0..size).filter(|server| *server != leader) {
                apache.lag(follower, lag);
                lag /= 2;
            }
        }
        Ok(apache)
    }

    /// Returns the number of servers, running or not.
    #[must_use]
    pub fn size(&self) -> usize {
        self.servers.len()
    }

    /// Returns the address of a server, whether it runs or not.
    #[must_use]
    pub fn addr(&self, server: usize) -> SocketAddr {
        self.servers[server].addr()
    }

    /// Returns the connect string of all servers.
    #[must_use]
    pub fn connect_string(&self) -> String {
        let addrs: Vec<String> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        addrs.join(",")
    }

    /// Returns a server's process id, while it runs.
    #[must_use]
    pub fn pid(&self, server: usize) -> Option<u32> {
        self.servers[server].pid()
    }

    /// Whether a server was started and has ended by itself.
    #[must_use]
    pub fn has_ended(&self, server: usize) -> bool {
        self.servers[server].has_ended()
    }

    /// Returns the directory with a server's data.
    #[must_use]
    pub fn data(&self, server: usize) -> PathBuf {
        self.servers[server].dir.join("data")
    }

    /// Returns the output of a server since its first start.
    #[must_use]
    pub fn log(&self, server: usize) -> String {
        self.servers[server].log()
    }

    /// Returns the ZooKeeper that runs.
    #[must_use]
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Ends a server by SIGKILL and waits for its end. Its data stays.
    pub fn kill(&self, server: usize) {
        self.servers[server].kill();
    }

    /// Ends a server by SIGTERM, and by SIGKILL if it still runs after 5 s. Its data stays.
    pub fn stop(&self, server: usize) {
        self.servers[server].stop();
    }

    /// Starts a server that was killed or stopped, on its old ports and data. It does not wait until the server serves:
    /// a server cannot serve while the others are down.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn launch(&self, index: usize) -> Result<(), Error> {
        let server = &self.servers[index];
        let command = self.distribution.server(&self.options.java_flags(&server.dir), &server.dir);
        let mut command = self.options.place(index).wrap(command);
        if let Some(clock) = &self.options.clock {
            clock.set(&mut command)?;
        }
        Ok(server.start(command)?)
    }

    /// Kills a server if it runs, starts it on its old ports and data, and waits until it serves.
    ///
    /// # Errors
    /// If it does not serve.
    pub fn restart(&self, server: usize) -> Result<(), Error> {
        self.kill(server);
        self.launch(server)?;
        self.wait_serving(server)
    }

    /// Sends SIGSTOP, and waits until it has taken effect: the server's sockets stay open and do not answer.
    pub fn pause(&self, server: usize) {
        self.servers[server].pause();
    }

    /// Sends SIGCONT.
    pub fn resume(&self, server: usize) {
        self.servers[server].resume();
    }

    /// Returns the role that a server reports; `None` while it does not serve.
    #[must_use]
    pub fn mode(&self, server: usize) -> Option<Mode> {
        // Not ruok: a server answers it as soon as the port is open, long before it serves.
        let answer = self.word(server, "srvr").ok()?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "))?;
        Some(match mode.trim() {
            "standalone" => Mode::Standalone,
            "leader" => Mode::Leader,
            "follower" => Mode::Follower,
            _ => Mode::Other,
        })
    }

    /// Waits until a server leads, and returns its index; the only server of a [`single`](Apache::single) counts as
    /// leading.
    ///
    /// # Errors
    /// [`Error::NoLeader`] after three minutes.
    pub fn leader(&self) -> Result<usize, Error> {
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            let leads = |server: &usize| matches!(self.mode(*server), Some(Mode::Leader | Mode::Standalone));
            if let Some(leader) = (0..self.size()).find(leads) {
                return Ok(leader);
            }
            std::thread::sleep(POLL);
        }
        Err(Error::NoLeader(START))
    }

    /// Waits until a server serves, alone or in its ensemble.
    ///
    /// # Errors
    /// [`Error::Start`] with the end of its log, if it ends or needs more than three minutes.
    pub fn wait_serving(&self, server: usize) -> Result<(), Error> {
        let deadline = Instant::now() + START;
        let failed = |what: &str| Error::Start {
            server,
            origin: self.distribution.origin().to_owned(),
            what: what.to_owned(),
            log: tail(&self.log(server), 20),
        };
        loop {
            // Checked first: a process of another program might answer on this port.
            if self.servers[server].has_ended() {
                return Err(failed("ended"));
            }
            if self.mode(server).is_some() {
                return Ok(());
            }
            // A server of an ensemble keeps running without a port that it could not get, but never serves.
            if self.size() > 1 && self.log(server).contains("BindException") {
                return Err(failed("could not listen"));
            }
            if Instant::now() > deadline {
                return Err(failed(&format!("does not serve after {START:?}")));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends a four-letter word to a server, and returns the answer.
    ///
    /// # Errors
    /// If it does not answer within two seconds.
    pub fn word(&self, server: usize, word: &str) -> io::Result<String> {
        four_letter_word(self.addr(server), word)
    }

    /// Returns a server's `mntr` figures by name.
    ///
    /// # Errors
    /// As [`Apache::word`].
    pub fn mntr(&self, server: usize) -> io::Result<BTreeMap<String, String>> {
        let answer = self.word(server, "mntr")?;
        let figures = answer.lines().filter_map(|line| line.split_once('\t'));
        Ok(figures.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Sets the delay with which a server hears its followers or its leader.
    ///
    /// # Panics
    /// If no server was to lag when they were started ([`Options::lag`]).
    pub fn lag(&self, server: usize, lag: Duration) {
        self.ways.as_ref().expect("started with ways between the servers").set(server, lag);
    }

    /// Delays every fsync of the servers that run now by `delay`, until the result is dropped.
    ///
    /// # Errors
    /// [`Error::NoStrace`], or [`Error::Attach`] if tracing is not permitted.
    pub fn slow_fsync(&self, delay: Duration) -> Result<SlowFsync, Error> {
        let pids: Vec<u32> = self.servers.iter().filter_map(Server::pid).collect();
        SlowFsync::new(&pids, delay)
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        // All at once, because each one takes a moment.
        std::thread::scope(|scope| {
            for server in &self.servers {
                scope.spawn(|| server.stop());
            }
        });
    }
}

/// Sends a four-letter word to any ZooKeeper server, and returns its whole answer.
///
/// # Errors
/// If it does not answer within two seconds.
pub fn four_letter_word(server: SocketAddr, word: &str) -> io::Result<String> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(io_error("writing", path))
}
