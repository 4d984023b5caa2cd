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
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use tempfile::TempDir;

pub use clock::WrongClock;
pub use distribution::Distribution;
pub(crate) use distribution::{install_package, runs};
pub use host::Host;
use late::Ways;
pub use options::Options;
pub use slow::SlowFsync;

use crate::infra::process::{self, POLL, Server, refused, tail};

/// Time limit for servers to serve; measured: 0.3 s for one, 1 s for three on two cores.
const START: Duration = Duration::from_secs(180);

/// Attempts to find free ports when another process takes them first.
const PORT_TRIES: usize = 5;

/// The loopback ports of one server.
#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    quorum: u16,
    election: u16,
}

impl Ports {
    fn free() -> Result<Self> {
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
    pub fn single(options: Options) -> Result<Self> {
        Self::start(1, options)
    }

    /// Starts an ensemble of `size` servers and waits until every one leads or follows.
    pub fn ensemble(size: usize, options: Options) -> Result<Self> {
        Self::start(size, options)
    }

    fn start(size: usize, options: Options) -> Result<Self> {
        assert!(size > 0, "an ensemble has a server");
        let distribution = match &options.distribution {
            Some(distribution) => distribution.clone(),
            None => Distribution::find()?,
        };
        let mut tries = 1;
        loop {
            match Self::start_once(size, &options, &distribution) {
                Err(error) if tries < PORT_TRIES && error.to_string().contains("BindException") => tries += 1,
                started => return started,
            }
        }
    }

    fn start_once(size: usize, options: &Options, distribution: &Distribution) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("lockkeeper-zookeeper-")
            .tempdir()
            .map_err(refused("creating a directory in", &std::env::temp_dir()))?;
        let ports = (0..size).map(|_| Ports::free()).collect::<Result<Vec<_>>>()?;
        let mut servers = Vec::new();
        let place = |index| options.place(index);
        let ways = match options.lag.is_zero() {
            true => None,
            false => {
                Some(Ways::new(size).map_err(refused("starting threads for the ways between servers in", dir.path()))?)
            }
        };
        for (index, own) in ports.iter().enumerate() {
            let home = dir.path().join(index.to_string());
            let data = home.join("data");
            fs::create_dir_all(&data).map_err(refused("creating", &data))?;
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
                            .map_err(refused("listening between servers of", dir.path()))?,
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
    pub fn launch(&self, index: usize) -> Result<()> {
        let server = &self.servers[index];
        let command = self.distribution.server(&self.options.java_flags(&server.dir), &server.dir);
        let mut command = self.options.place(index).wrap(command);
        if let Some(clock) = &self.options.clock {
            clock.set(&mut command)?;
        }
        server.start(command)
    }

    /// Kills a server if it runs, starts it on its old ports and data, and waits until it serves.
    pub fn restart(&self, server: usize) -> Result<()> {
        self.kill(server);
        self.launch(server)?;
        self.wait_serving(server)
    }

    /// Sends SIGSTOP, and waits until it has taken effect: the server's sockets stay open and do not answer.
    pub fn pause(&self, server: usize) {
        self.servers[server].pause();
    }

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
    pub fn leader(&self) -> Result<usize> {
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            let leads = |server: &usize| matches!(self.mode(*server), Some(Mode::Leader | Mode::Standalone));
            if let Some(leader) = (0..self.size()).find(leads) {
                return Ok(leader);
            }
            std::thread::sleep(POLL);
        }
        bail!("no server leads after {START:?}")
    }

    /// Waits until a server serves, alone or in its ensemble.
    pub fn wait_serving(&self, server: usize) -> Result<()> {
        let deadline = Instant::now() + START;
        let failed = |what: &str| {
            let (origin, log) = (self.distribution.origin(), tail(&self.log(server), 20));
            anyhow!("server {server} of {origin} {what}; its log ends:\n{log}")
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
    pub fn word(&self, server: usize, word: &str) -> io::Result<String> {
        four_letter_word(self.addr(server), word)
    }

    /// Returns a server's `mntr` figures by name.
    pub fn mntr(&self, server: usize) -> io::Result<BTreeMap<String, String>> {
        let answer = self.word(server, "mntr")?;
        let figures = answer.lines().filter_map(|line| line.split_once('\t'));
        Ok(figures.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Sets the delay with which a server hears its followers or its leader.
    pub fn lag(&self, server: usize, lag: Duration) {
        self.ways.as_ref().expect("started with ways between the servers").set(server, lag);
    }

    /// Delays every fsync of the servers that run now by `delay`, until the result is dropped.
    pub fn slow_fsync(&self, delay: Duration) -> Result<SlowFsync> {
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
pub fn four_letter_word(server: SocketAddr, word: &str) -> io::Result<String> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(refused("writing", path))
}
