//! Processes of a profile: this program again, with a task.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use lockkeeper_testkit::end;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

/// What a process can do; `lib.rs` knows how.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Role {
    /// Contends for locks through the library.
    Contend,
    /// Works under a lock of `lockkeeper run`.
    Job,
    /// Holds a lock and prints what it believes.
    Stand,
    /// Reads the clock, and prints the first time after a stop.
    Tick,
}

impl Role {
    /// Returns the words after this program's name that give it a task in this role.
    pub(crate) fn words(self, task: &impl Serialize) -> [String; 3] {
        let role = format!("{self:?}").to_lowercase();
        ["work".to_owned(), role, serde_json::to_string(task).expect("a task is plain data")]
    }

    /// Returns the command that does a task in this role.
    pub(crate) fn command(self, task: &impl Serialize) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(self.words(task));
        Ok(command)
    }

    /// Starts it, and reads what it prints.
    pub(crate) fn start(self, task: &impl Serialize) -> Result<Process> {
        let mut child = self.command(task)?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let (say, said) = mpsc::channel();
        // Ends with the process. A thread, because reading a pipe has no deadline.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        Ok(Process { child, said })
    }
}

/// Time limit for a line of a process.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running process, which prints its results line by line. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    said: mpsc::Receiver<String>,
}

impl Process {
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Returns its next line.
    pub(crate) fn line(&mut self) -> Result<String> {
        self.said.recv_timeout(PATIENCE).with_context(|| format!("process {} said nothing", self.child.id()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
