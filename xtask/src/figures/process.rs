//! Runs this program again, in a process that can be stopped and killed. It prints its results line by line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Time limit for a line of the process.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running process. Dropping it kills it.
pub(super) struct Process {
    child: Child,
    said: mpsc::Receiver<String>,
}

impl Process {
    pub(super) fn start(args: &[&str]) -> Result<Process> {
        let mut child = Command::new(std::env::current_exe()?);
        let mut child = child.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let (say, said) = mpsc::channel();
        // Ends with the process. A thread, because reading a pipe has no deadline.
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        Ok(Process { child, said })
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process has an id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Returns its next line.
    pub(super) fn line(&mut self) -> Result<String> {
        self.said.recv_timeout(PATIENCE).with_context(|| format!("process {} said nothing", self.child.id()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
