//! Slows the disk of running servers, by strace's fault injection; nothing is mounted, patched or restarted.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::distribution::{install_package, runs};
use crate::infra::process::{POLL, end, send};

/// Time limit for strace to attach to all threads of a server.
const ATTACH: Duration = Duration::from_secs(20);

const MISSING: &str = "no strace on this machine to slow the disk with: install the package strace";

/// Delays every fsync and fdatasync of the servers that ran when it was created, until it is dropped.
#[derive(Debug)]
#[must_use = "the disk is fast again as soon as this is dropped"]
pub struct SlowFsync(Vec<Child>);

impl SlowFsync {
    /// Checks that strace exists; as root with apt-get, installs it from Debian.
    pub fn install() -> Result<()> {
        if runs("strace", "-V") || install_package("strace")? { Ok(()) } else { bail!(MISSING) }
    }

    pub(super) fn new(pids: &[u32], delay: Duration) -> Result<Self> {
        let mut slow = Self(Vec::new());
        for pid in pids {
            let mut strace = Command::new("strace");
            strace.args(["-f", "-q", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e"]);
            strace.arg(format!("inject=fsync,fdatasync:delay_enter={}", delay.as_micros()));
            strace.arg("-p").arg(pid.to_string());
            strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
            slow.0.push(strace.spawn().context(MISSING)?);
        }
        let deadline = Instant::now() + ATTACH;
        for (strace, pid) in slow.0.iter_mut().zip(pids) {
            while !traces(strace.id(), *pid) {
                let ended = !matches!(strace.try_wait(), Ok(None));
                if ended || Instant::now() > deadline {
                    end(strace);
                    let mut said = String::new();
                    if let Some(mut errors) = strace.stderr.take() {
                        errors.read_to_string(&mut said)?;
                    }
                    bail!("strace cannot attach to server process {pid}: {}", said.trim());
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(slow)
    }
}

impl Drop for SlowFsync {
    fn drop(&mut self) {
        for strace in &mut self.0 {
            // Only if it has not ended: after it was reaped, another process may have its id.
            if let Ok(None) = strace.try_wait() {
                send(strace, Signal::TERM);
            }
        }
        for strace in &mut self.0 {
            // It detaches from every thread before it ends, so this wait leaves no server stopped.
            drop(strace.wait());
        }
    }
}

/// Whether every thread of a process is traced by `tracer`.
fn traces(tracer: u32, pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let line = format!("TracerPid:\t{tracer}");
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status"));
        // A thread that ended between the two reads has no status and needs no tracer.
        status.map_or(true, |status| status.lines().any(|found| found == line))
    })
}
