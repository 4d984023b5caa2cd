//! A foreign client in a process of its own, which reports its progress in lines.

#![allow(dead_code, reason = "not every test program needs all of it")]

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The longest wait for an event that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A foreign client, in a process of its own.
pub(crate) struct Other {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Other {
    pub(crate) fn start(mut command: Command) -> Other {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Other { input, output: BufReader::new(output).lines(), _child: child }
    }

    pub(crate) fn curator(arguments: &[&str]) -> Other {
        let classpath = std::env::var("LOCKKEEPER_INTEROP_CURATOR").expect("run `cargo xtask interop curator`");
        let mut command = Command::new("java");
        command.args(["-cp", &classpath, "lockkeeper.interop.CuratorClient"]).args(arguments);
        Other::start(command)
    }

    pub(crate) fn kazoo(arguments: &[&str]) -> Other {
        let python = std::env::var("LOCKKEEPER_INTEROP_KAZOO").expect("run `cargo xtask interop kazoo`");
        let mut command = Command::new(python);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/kazoo/contend.py")).args(arguments);
        Other::start(command)
    }

    /// Waits for its next line.
    pub(crate) async fn line(&mut self) -> String {
        let said = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        said.expect("it says nothing").unwrap().expect("it has ended")
    }

    /// Waits for its next line, which must be this one.
    pub(crate) async fn says(&mut self, line: &str) {
        let said = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        let said = said.unwrap_or_else(|_| panic!("never: {line}")).unwrap();
        assert_eq!(said.as_deref(), Some(line));
    }

    /// Gives it a line.
    pub(crate) async fn hears(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
}
