//! One server process: started in its own process group, ended by its id, never outliving the process that started it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::distribution::Distribution;
use super::{Error, io_error};

/// How long a server may take to end after SIGTERM before it gets SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// How often something is looked at that cannot be waited for.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// The loopback ports of one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) client: u16,
    pub(super) quorum: u16,
    pub(super) election: u16,
}

impl Ports {
    pub(super) fn free() -> Result<Self, Error> {
        // All three are held until all are chosen, so they differ.
        let sockets = [listen_below_the_ephemeral()?, listen_below_the_ephemeral()?, listen_below_the_ephemeral()?];
        let port =
            |socket: &TcpListener| Ok(socket.local_addr().map_err(io_error("asking", Path::new("a socket")))?.port());
        Ok(Self { client: port(&sockets[0])?, quorum: port(&sockets[1])?, election: port(&sockets[2])? })
    }
}

/// Listens on a free port outside the range from which the kernel serves outgoing connections.
///
/// A server that is killed and started again needs its port back. From inside that range any client may have taken it
/// meanwhile; even the very client that tries to reconnect, which then talks to itself.
fn listen_below_the_ephemeral() -> Result<TcpListener, Error> {
    const FIRST: u16 = 10_240;
    static TURN: AtomicU64 = AtomicU64::new(0);
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768_u16);
    if end > FIRST {
        // Scattered by process and by call, so that test runs side by side seldom try the same.
        for _ in 0..100 {
            let turn = TURN.fetch_add(1, Ordering::Relaxed) + u64::from(std::process::id()) * 0x1_0001;
            let scattered = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            let port = FIRST + (scattered % u64::from(end - FIRST)) as u16;
            if let Ok(socket) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                return Ok(socket);
            }
        }
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io_error("listening on", Path::new("a loopback port")))
}

/// A server's place on disk and, while it runs, its process.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) dir: PathBuf,
    pub(super) ports: Ports,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    java: Child,
    /// Kills the server when its standard input ends, which it does however our process dies.
    watchdog: Child,
}

impl Server {
    pub(super) fn new(dir: PathBuf, ports: Ports) -> Self {
        Self { dir, ports, running: Mutex::new(None) }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.client).into()
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    pub(super) fn log(&self) -> String {
        fs::read(self.log_path()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// Starts the process; does nothing when it runs.
    pub(super) fn start(&self, distribution: &Distribution, java_flags: &[String]) -> Result<(), Error> {
        let mut running = self.running();
        if running.is_some() {
            return Ok(());
        }
        let log_path = self.log_path();
        let log =
            fs::File::options().create(true).append(true).open(&log_path).map_err(io_error("opening", &log_path))?;
        let errors = log.try_clone().map_err(io_error("opening", &log_path))?;
        let mut java = Command::new(&distribution.java);
        java.args(java_flags).arg("-cp").arg(&distribution.classpath);
        java.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(self.dir.join("zoo.cfg"));
        java.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let mut java = java.spawn().map_err(io_error("running", &distribution.java))?;

        let whole = self.dir.parent().unwrap_or(&self.dir);
        let mut watchdog = Command::new("sh");
        watchdog.args(["-c", r#"read -r _; kill -KILL "$1"; sleep 1; rm -rf -- "$2""#, "watchdog"]);
        watchdog.arg(java.id().to_string()).arg(whole);
        watchdog.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        match watchdog.spawn() {
            Ok(watchdog) => *running = Some(Running { java, watchdog }),
            Err(error) => {
                end(&mut java);
                return Err(io_error("running", Path::new("sh"))(error));
            }
        }
        Ok(())
    }

    /// The process id, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.running().as_ref().map(|running| running.java.id())
    }

    /// Whether it was started and has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.running().as_mut().is_some_and(|running| !matches!(running.java.try_wait(), Ok(None)))
    }

    /// SIGSTOP, and waits until every thread has stopped: until then one may still answer. Nothing when none runs.
    pub(super) fn pause(&self) {
        if let Some(running) = self.running().as_mut()
            && let Ok(None) = running.java.try_wait()
        {
            send(&running.java, Signal::STOP);
            // NOWAIT: looked at, not taken. The end of a child, should that come instead, is for `try_wait` to see.
            let either = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(waitid(WaitId::Pid(id(&running.java)), either), Err(Errno::INTR)) {}
        }
    }

    /// SIGCONT. Nothing when none runs.
    pub(super) fn resume(&self) {
        if let Some(running) = self.running().as_mut()
            && let Ok(None) = running.java.try_wait()
        {
            send(&running.java, Signal::CONT);
        }
    }

    /// SIGKILL, and waits for the end.
    pub(super) fn kill(&self) {
        if let Some(mut running) = self.running().take() {
            end(&mut running.java);
            end(&mut running.watchdog);
        }
    }

    /// SIGTERM, after the grace SIGKILL; waits for the end.
    pub(super) fn stop(&self) {
        if let Some(running) = self.running().as_mut()
            && let Ok(None) = running.java.try_wait()
        {
            send(&running.java, Signal::TERM);
            // A stopped process does not hear of anything else.
            send(&running.java, Signal::CONT);
            let deadline = Instant::now() + GRACE;
            while matches!(running.java.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(POLL);
            }
        }
        self.kill();
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends a signal to a child that has not been waited for, so its id is still its own.
pub(super) fn send(child: &Child, signal: Signal) {
    // One that has just ended needs no signal any more.
    let _ = kill_process(id(child), signal);
}

fn id(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("the kernel numbers processes from 1 to 2^22")
}

/// SIGKILL and the wait that leaves no zombie. Both fail only on a child that is gone already.
pub(super) fn end(child: &mut Child) {
    drop(child.kill());
    drop(child.wait());
}
