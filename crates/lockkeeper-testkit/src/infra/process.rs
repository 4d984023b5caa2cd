//! One server process: started in its own process group, ended by its id, never outliving the process that started it.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Time limit for a server to end after SIGTERM before it gets SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// Pause between two checks of a state that reports no change.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// Adds what could not be done with a file or directory.
pub(crate) fn refused(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> anyhow::Error {
    let what = format!("{doing} {}", path.display());
    move |source| anyhow::Error::new(source).context(what)
}

/// Returns the last lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Returns free loopback ports, all different, which the kernel gives to nobody who asks for any port.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // All are held until all are chosen, so they differ.
    let mut sockets = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let socket = listen_below_the_ephemeral()?;
        *port = socket.local_addr().map_err(refused("asking", Path::new("a socket")))?.port();
        sockets.push(socket);
    }
    Ok(ports)
}

/// Listens on a free port outside the range from which the kernel serves outgoing connections.
///
/// A server that is killed and started again needs its port back. A client may have taken a port inside that range in
/// the meantime. It may even be the client that reconnects, which then talks to itself.
fn listen_below_the_ephemeral() -> Result<TcpListener> {
    const FIRST: u16 = 10_240;
    static TURN: AtomicU64 = AtomicU64::new(0);
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768_u16);
    if end > FIRST {
        // Scattered by process and by call, so that concurrent test runs seldom try the same port.
        for _ in 0..100 {
            let turn = TURN.fetch_add(1, Ordering::Relaxed) + u64::from(std::process::id()) * 0x1_0001;
            let scattered = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            let port = FIRST + (scattered % u64::from(end - FIRST)) as u16;
            if let Ok(socket) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                return Ok(socket);
            }
        }
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused("listening on", Path::new("a loopback port")))
}

/// A server's directory and, while it runs, its process.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) dir: PathBuf,
    addr: SocketAddr,
    /// A subdirectory that is a file system of its own.
    mounted: Option<PathBuf>,
    running: Mutex<Option<Running>>,
}

/// Mounts a file system in memory at a directory.
pub(crate) fn mount(dir: &Path, bytes: u64) -> Result<()> {
    let size = format!("size={bytes}");
    let done = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "lockkeeper"]).arg(dir).output();
    let done = done.map_err(refused("running mount for", dir))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    bail!("mounting a file system in memory at {}: {}", dir.display(), said.trim())
}

#[derive(Debug)]
struct Running {
    process: Child,
    /// Kills the server when its standard input ends, which happens however our process dies.
    watchdog: Child,
}

impl Server {
    /// Returns a server with its files in `dir`, a subdirectory of one that the caller removes, which serves on this
    /// port.
    pub(crate) fn new(dir: PathBuf, port: u16) -> Self {
        Self { dir, addr: (Ipv4Addr::LOCALHOST, port).into(), mounted: None, running: Mutex::new(None) }
    }

    /// Returns the server at another address.
    pub(crate) fn on(mut self, ip: Ipv4Addr) -> Self {
        self.addr.set_ip(ip.into());
        self
    }

    /// Returns the server with a file system that is mounted already, and is unmounted with the server.
    pub(crate) fn mounted(mut self, name: &str) -> Self {
        self.mounted = Some(self.dir.join(name));
        self
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    pub(crate) fn log(&self) -> String {
        fs::read(self.log_path()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// Starts the process by this command; does nothing if it runs.
    pub(crate) fn start(&self, mut command: Command) -> Result<()> {
        let mut running = self.running();
        if running.is_some() {
            return Ok(());
        }
        let log_path = self.log_path();
        let log =
            fs::File::options().create(true).append(true).open(&log_path).map_err(refused("opening", &log_path))?;
        let errors = log.try_clone().map_err(refused("opening", &log_path))?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let mut process = command.spawn().map_err(refused("running", Path::new(command.get_program())))?;

        let whole = self.dir.parent().unwrap_or(&self.dir);
        let mut watchdog = Command::new("sh");
        watchdog.args([
            "-c",
            r#"read -r _; kill -KILL "$1"; sleep 1; umount "$3" 2> /dev/null; rm -rf -- "$2""#,
            "watchdog",
        ]);
        watchdog.arg(process.id().to_string()).arg(whole).arg(self.mounted.as_deref().unwrap_or(Path::new("")));
        watchdog.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        match watchdog.spawn() {
            Ok(watchdog) => *running = Some(Running { process, watchdog }),
            Err(error) => {
                end(&mut process);
                return Err(refused("running", Path::new("sh"))(error));
            }
        }
        Ok(())
    }

    /// Returns the process id, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.running().as_ref().map(|running| running.process.id())
    }

    /// Whether it was started and has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.running().as_mut().is_some_and(|running| !matches!(running.process.try_wait(), Ok(None)))
    }

    /// Sends SIGSTOP, and waits until every thread has stopped: until then one may still answer. Does nothing if none
    /// runs.
    pub(crate) fn pause(&self) {
        if let Some(running) = self.running().as_mut()
            && let Ok(None) = running.process.try_wait()
        {
            send(&running.process, Signal::STOP);
            // NOWAIT: if the process ends instead, `try_wait` must still see that.
            let either = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(waitid(WaitId::Pid(id(&running.process)), either), Err(Errno::INTR)) {}
        }
    }

    /// Sends SIGCONT. Does nothing if none runs.
    pub(crate) fn resume(&self) {
        if let Some(running) = self.running().as_mut()
            && let Ok(None) = running.process.try_wait()
        {
            send(&running.process, Signal::CONT);
        }
    }

    /// Sends SIGKILL, and waits for the end.
    pub(crate) fn kill(&self) {
        if let Some(mut running) = self.running().take() {
            end(&mut running.process);
            end(&mut running.watchdog);
        }
    }

    /// Sends SIGTERM, and SIGKILL after the grace period; waits for the end.
    pub(crate) fn stop(&self) {
        self.stop_by(Signal::TERM);
    }

    /// As [`Server::stop`], with another signal first.
    pub(crate) fn stop_by(&self, signal: Signal) {
        if let Some(running) = self.running().as_mut()
            && let Ok(None) = running.process.try_wait()
        {
            send(&running.process, signal);
            // A stopped process handles no other signal.
            send(&running.process, Signal::CONT);
            let deadline = Instant::now() + GRACE;
            while matches!(running.process.try_wait(), Ok(None)) && Instant::now() < deadline {
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
        if let Some(mounted) = &self.mounted {
            // If the directory stays mounted, the removal of its parent fails and reports it.
            drop(Command::new("umount").arg(mounted).output());
        }
    }
}

/// Sends a signal to a child that was not reaped, so its id still belongs to it.
pub(crate) fn send(child: &Child, signal: Signal) {
    // A child that has just ended needs no signal.
    let _ = kill_process(id(child), signal);
}

fn id(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("the kernel numbers processes from 1 to 2^22")
}

/// Sends SIGKILL and reaps the child. Both fail only if it was reaped already.
pub fn end(child: &mut Child) {
    drop(child.kill());
    drop(child.wait());
}
