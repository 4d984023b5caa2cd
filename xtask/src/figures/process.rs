//! This program once more, in a process of its own that can be stopped and killed, and tells what it sees line by line.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Such a process. Dropping it kills it.
pub(super) struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    pub(super) fn start(args: &[&str]) -> Result<Process> {
        let mut child = Command::new(std::env::current_exe()?);
        let mut child = child.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        Ok(Process { child, said })
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process has an id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// What it says next.
    pub(super) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
