//! The servers, each in a process of its own, those that keep anything on a directory of the same disk.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lockkeeper_server::{Config, Server};
use lockkeeper_testkit::apache::{Apache, Distribution, Options, four_letter_word};
use lockkeeper_testkit::end;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// No server takes longer to start, with whatever it has to read.
const START: Duration = Duration::from_secs(120);

/// A server that can be ended and started again on its data.
pub(crate) enum Side {
    Ours {
        program: PathBuf,
        directory: TempDir,
        running: Option<(Child, SocketAddr)>,
    },
    Apache(Box<Apache>),
    /// What answers without being a server.
    Floor {
        child: Child,
        addr: SocketAddr,
    },
}

impl Side {
    /// Ours on an empty directory, as `program` has it, a build of this bench.
    pub(crate) fn ours(program: PathBuf) -> Result<Self> {
        let mut side = Self::Ours { program, directory: tempfile::tempdir()?, running: None };
        side.start()?;
        Ok(side)
    }

    /// Apache's, as its own scripts would run it, on an empty directory.
    pub(crate) fn apache(version: &str, heap_mib: u32) -> Result<Self> {
        let distribution = Distribution::fetch(version)?.0;
        // As ours: what a fresh installation does, with room for ten thousand sessions.
        let options = Options::default().tick(Duration::from_secs(2)).for_speed(heap_mib).distribution(distribution);
        Ok(Self::Apache(Box::new(Apache::single(options)?)))
    }

    /// The raw floor with so many threads; it is started once.
    pub(crate) fn floor(threads: usize) -> Result<Self> {
        let (child, addr) = spawn(&std::env::current_exe()?, ["--serve-floor".as_ref(), threads.to_string().as_ref()])?;
        Ok(Self::Floor { child, addr })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ours { .. } => "ours",
            Self::Apache(_) => "Apache's",
            Self::Floor { .. } => "the raw floor",
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        match self {
            Self::Ours { running, .. } => running.as_ref().expect("it runs").1,
            Self::Apache(apache) => apache.addr(0),
            Self::Floor { addr, .. } => *addr,
        }
    }

    /// Ends it in order, or by SIGKILL.
    pub(crate) fn end(&mut self, gently: bool) -> Result<()> {
        match self {
            Self::Apache(apache) if gently => apache.stop(0),
            Self::Apache(apache) => apache.kill(0),
            Self::Floor { .. } => anyhow::bail!("the floor is not ended"),
            Self::Ours { running, .. } => {
                let Some((mut child, _)) = running.take() else { return Ok(()) };
                if gently {
                    kill_process(Pid::from_child(&child), Signal::TERM)?;
                    child.wait()?;
                }
                end(&mut child);
            }
        }
        Ok(())
    }

    /// Starts it on what it left, and says how long it took from the start of the process to the first answer.
    pub(crate) fn start(&mut self) -> Result<Duration> {
        let began = Instant::now();
        match self {
            Self::Apache(apache) => apache.launch(0)?,
            Self::Ours { program, directory, running } => {
                *running = Some(spawn(program, ["--serve".as_ref(), directory.path().as_os_str()])?);
            }
            Self::Floor { .. } => anyhow::bail!("the floor is started once"),
        }
        let addr = self.addr();
        while !four_letter_word(addr, "srvr").is_ok_and(|answer| answer.contains("Mode:")) {
            anyhow::ensure!(began.elapsed() < START, "{} does not serve", self.name());
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(began.elapsed())
    }

    /// Removes what ours left; what Apache's left of an empty tree is no more than that.
    pub(crate) fn forget(&self) -> Result<()> {
        if let Self::Ours { directory, .. } = self {
            for entry in std::fs::read_dir(directory.path())? {
                std::fs::remove_file(entry?.path())?;
            }
        }
        Ok(())
    }

    /// The server's process.
    pub(crate) fn pid(&self) -> Result<u32> {
        let pid = match self {
            Self::Ours { running, .. } => running.as_ref().map(|(child, _)| child.id()),
            Self::Apache(apache) => apache.pid(0),
            Self::Floor { child, .. } => Some(child.id()),
        };
        pid.context("it does not run")
    }

    /// Resident memory in MB.
    pub(crate) fn memory_mb(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in /proc")?;
        let kib: f64 = line.trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1_024.0 / 1e6)
    }

    /// Bytes on the disk in MB.
    pub(crate) fn disk_mb(&self) -> Option<f64> {
        let Self::Ours { directory, .. } = self else { return None };
        let files = std::fs::read_dir(directory.path()).ok()?.flatten();
        Some(files.filter_map(|file| file.metadata().ok()).map(|file| file.len() as f64).sum::<f64>() / 1e6)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Of these nobody else takes care.
        if let Self::Ours { running: Some((child, _)), .. } | Self::Floor { child, .. } = self {
            end(child);
        }
    }
}

/// This very program, or an earlier build of it, as a server that says first where it is.
fn spawn(program: &Path, args: [&OsStr; 2]) -> Result<(Child, SocketAddr)> {
    let mut child = Command::new(program).args(args).stdout(Stdio::piped()).spawn().context("starting ours")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
    let addr = line.trim().parse().with_context(|| format!("where ours serves, not {line:?}"))?;
    Ok((child, addr))
}

/// Serves until told to end: the other half of [`spawn`].
pub(crate) fn serve(directory: PathBuf) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut ending = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let server = Server::start(Config::default().with_directory(directory)).await?;
        println!("{}", server.addr());
        tokio::select! {
            why = server.stopped() => Err(why.into()),
            _ = ending.recv() => Ok(server.shutdown().await?),
        }
    })
}
