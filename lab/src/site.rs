//! Where a workload runs: a directory, a server in it, and the faults of that server.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use lockkeeper_testkit::apache::{Apache, Options, WrongClock};
use lockkeeper_testkit::end;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::tools::Tools;

/// Time limit for a server to serve again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit of a probe.
const PROBE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerFault {
    /// Its time, from the beginning.
    pub at: Duration,
    pub what: ServerTrouble,
    /// Which server it is, counted from the leader.
    pub behind: usize,
    /// How long it is away.
    pub down: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerTrouble {
    Kill,
    /// SIGTERM.
    End,
    /// SIGSTOP.
    Stop,
}

/// The server that a workload uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Which {
    /// This user's own server, in a state directory of the run.
    Own,
    /// `lockkeeper serve`.
    Embedded,
    /// One Apache server.
    Apache,
    /// Three Apache servers.
    Ensemble,
}

impl Which {
    pub(crate) const ALL: [Which; 4] = [Which::Own, Which::Embedded, Which::Apache, Which::Ensemble];
}

enum Servers {
    Own,
    Embedded { address: String, child: Mutex<Child> },
    Apache(Arc<Apache>),
}

/// A directory and a server. Everything that was started in it ends with it.
pub(crate) struct Site {
    servers: Servers,
    program: PathBuf,
    /// The clock of `lockkeeper serve`, if it can be turned.
    clock: Option<WrongClock>,
    scratch: TempDir,
}

impl Site {
    pub(crate) fn prepare(which: Which, tools: &Tools) -> Result<Site> {
        Site::start(which, tools, false)
    }

    /// Prepares a site with `lockkeeper serve`, whose clock shows the difference in the file `clock`.
    pub(crate) fn with_clock(tools: &Tools) -> Result<Site> {
        Site::start(Which::Embedded, tools, true)
    }

    fn start(which: Which, tools: &Tools, clock: bool) -> Result<Site> {
        let sound = || anyhow::Ok(Options::default().distribution((tools.servers)()?));
        let scratch = directory().tempdir().context("making a directory")?;
        let clock = clock.then(|| WrongClock::in_file(scratch.path().join("clock"))).transpose()?;
        let mut site = Site { servers: Servers::Own, program: (tools.command)()?, clock, scratch };
        site.servers = match which {
            Which::Own => Servers::Own,
            Which::Embedded => {
                let (child, address) = site.serve("127.0.0.1:0")?;
                Servers::Embedded { address, child: Mutex::new(child) }
            }
            Which::Apache => Servers::Apache(Arc::new(Apache::single(sound()?)?)),
            Which::Ensemble => Servers::Apache(Arc::new(Apache::ensemble(3, sound()?)?)),
        };
        Ok(site)
    }

    /// Returns a site with these servers. Its files are in memory, if possible: their writers need not wait for a disk.
    pub(crate) fn of(apache: Arc<Apache>, tools: &Tools) -> Result<Site> {
        let memory = Path::new("/dev/shm");
        let scratch = if memory.is_dir() { directory().tempdir_in(memory)? } else { directory().tempdir()? };
        Ok(Site { servers: Servers::Apache(apache), program: (tools.command)()?, clock: None, scratch })
    }

    /// Returns the path of a file of the round.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Returns a call of `lockkeeper` that uses the round's server, without the user's own settings.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        self.prepare_environment(&mut command);
        command
    }

    pub(crate) fn prepare_environment(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOCKKEEPER_")) {
            command.env_remove(name);
        }
        command.env("LOCKKEEPER_CONFIG", "/dev/null").env("LOCKKEEPER_STATE_DIR", self.file("state"));
        command
            .env("LOCKKEEPER_IDLE_EXIT", "1h")
            .env("lockkeeper", &self.program)
            .current_dir(self.scratch.path())
            .stdin(Stdio::null());
        match &self.servers {
            Servers::Own => {}
            Servers::Embedded { address, .. } => _ = command.env("LOCKKEEPER_SERVERS", address),
            Servers::Apache(apache) => _ = command.env("LOCKKEEPER_SERVERS", apache.connect_string()),
        }
    }

    fn serve(&self, address: &str) -> Result<(Child, String)> {
        let mut command = self.command();
        command.args(["serve", "--listen", address, "--data"]).arg(self.file("served"));
        if let Some(clock) = &self.clock {
            clock.set(&mut command)?;
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("starting a server")?;
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().context("its output is a pipe")?).read_line(&mut line);
        if read.is_err() || line.is_empty() {
            end(&mut child);
            bail!("a server at {address} did not start");
        }
        Ok((child, line.trim().to_owned()))
    }

    /// Returns the process of this user's own server.
    fn own_server(&self) -> Option<Pid> {
        let pid = socket_peercred(&UnixStream::connect(self.file("state/socket")).ok()?).ok()?.pid;
        self.is_ours(pid).then_some(pid)
    }

    /// Whether a process was started for this round.
    pub(crate) fn is_ours(&self, pid: Pid) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
        let (scratch, text) =
            (self.scratch.path().to_string_lossy(), String::from_utf8_lossy(&environment).into_owned());
        text.contains(scratch.as_ref())
    }

    /// Returns all processes of the round except its servers, each as `pid: command line`.
    pub(crate) fn processes(&self) -> Vec<(Pid, String)> {
        let server = match &self.servers {
            Servers::Own => self.own_server(),
            Servers::Embedded { child, .. } => {
                Some(Pid::from_child(&child.lock().unwrap_or_else(PoisonError::into_inner)))
            }
            Servers::Apache(_) => None,
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let all = all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        let own = all.filter(|pid| Some(*pid) != server && self.is_ours(*pid));
        own.map(|pid| {
            let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
            (pid, String::from_utf8_lossy(&line).replace('\0', " "))
        })
        .collect()
    }

    /// Makes a fault of a server, and returns when all servers serve again.
    pub(crate) fn disturb(&self, fault: &ServerFault) -> Result<()> {
        match &self.servers {
            Servers::Own => {
                let Some(server) = self.own_server() else { return Ok(()) };
                self.signal_and_wait(server, fault);
                // The next command starts it, as any command would.
                let mut next = self.command();
                next.args(["run", "storm-probe", "--", "true"]).stderr(Stdio::null());
                let deadline = Instant::now() + PATIENCE;
                while !next.status()?.success() {
                    if Instant::now() > deadline {
                        bail!("this user's server did not come back");
                    }
                    sleep(Duration::from_millis(100));
                }
            }
            Servers::Embedded { address, child } => {
                let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
                self.signal_and_wait(Pid::from_child(&child), fault);
                if fault.what != ServerTrouble::Stop {
                    child.wait()?;
                    *child = self.serve(address)?.0;
                }
            }
            Servers::Apache(apache) => {
                let leader = apache.leader()?;
                let server = (leader + fault.behind) % apache.size();
                match fault.what {
                    ServerTrouble::Kill => apache.kill(server),
                    ServerTrouble::End => apache.stop(server),
                    ServerTrouble::Stop => apache.pause(server),
                }
                sleep(fault.down);
                apache.resume(server);
                self.recover()?;
            }
        }
        Ok(())
    }

    /// Waits until every one of Apache's servers serves; starts those that have ended.
    pub(crate) fn recover(&self) -> Result<()> {
        let Servers::Apache(apache) = &self.servers else { return Ok(()) };
        for server in 0..apache.size() {
            if apache.has_ended(server) {
                apache.kill(server);
            }
            apache.launch(server)?;
        }
        (0..apache.size()).try_for_each(|server| apache.wait_serving(server))?;
        apache.leader()?;
        Ok(())
    }

    fn signal_and_wait(&self, server: Pid, fault: &ServerFault) {
        let signal = match fault.what {
            ServerTrouble::Kill => Signal::KILL,
            ServerTrouble::End => Signal::TERM,
            ServerTrouble::Stop => Signal::STOP,
        };
        // It fails if the server has just ended.
        _ = kill_process(server, signal);
        sleep(fault.down);
        if fault.what == ServerTrouble::Stop {
            _ = kill_process(server, Signal::CONT);
        }
    }

    /// Returns how long one of Apache's servers, in turn, takes to open a session, without Lockkeeper; `None` if it
    /// does not answer, or is not Apache's.
    pub(crate) fn probe(&self, turn: usize) -> Option<Duration> {
        let Servers::Apache(apache) = &self.servers else { return None };
        let from = Instant::now();
        let mut server = TcpStream::connect_timeout(&apache.addr(turn % apache.size()), PROBE).ok()?;
        server.set_read_timeout(Some(PROBE)).ok()?;
        // Length, then protocol 0, last zxid 0, timeout, session 0, a password of 16 bytes, not read-only.
        let mut request = [0; 49];
        (request[3], request[18], request[31]) = (45, 0x20, 16);
        server.write_all(&request).ok()?;
        server.read_exact(&mut [0; 41]).ok()?;
        let took = from.elapsed();
        // Length, xid 1, closeSession.
        _ = server.write_all(&[[0, 0, 0, 8], [0, 0, 0, 1], (-11_i32).to_be_bytes()].concat());
        Some(took)
    }

    /// Returns the locks with holders or waiters, as in `list --json`.
    pub(crate) fn locks(&self) -> Result<Vec<Value>> {
        let output = self.command().args(["list", "--json"]).output()?;
        if !output.status.success() {
            bail!("list ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        let mut told: Value = serde_json::from_slice(&output.stdout)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        // The record of an expired lease stays until the next request.
        let is_over = |lock: &Value| lock["lease"]["until_ms"].as_u64().is_some_and(|until| until < now);
        let some = |lock: &Value, who: &str| lock[who].as_array().is_some_and(|all| !all.is_empty());
        let used = |lock: &Value| some(lock, "waiters") || some(lock, "holders") && !is_over(lock);
        let locks = told["locks"].take();
        Ok(locks.as_array().into_iter().flatten().filter(|lock| used(lock)).cloned().collect())
    }
}

fn directory() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("lockkeeper-lab-");
    builder
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Servers::Embedded { child, .. } = &self.servers {
            end(&mut child.lock().unwrap_or_else(PoisonError::into_inner));
        }
        for pid in self.processes().into_iter().map(|(pid, _)| pid).chain(self.own_server()) {
            // After a good round, only the server is left.
            _ = kill_process(pid, Signal::KILL);
        }
    }
}
