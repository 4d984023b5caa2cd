//! Where a server runs: on loopback, or in a network namespace.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::Command;

/// Where a server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub ip: Ipv4Addr,
    /// The network namespace that has this address, if it is not this process's own.
    pub namespace: Option<String>,
    /// Variables of its environment.
    pub env: Vec<(String, String)>,
}

impl Host {
    /// Returns loopback, in this process's own namespace.
    pub fn loopback() -> Host {
        Host { ip: Ipv4Addr::LOCALHOST, namespace: None, env: Vec::new() }
    }

    /// Returns a command that runs a program there. Its process is the program's own.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.wrap(Command::new(program))
    }

    pub(super) fn wrap(&self, command: Command) -> Command {
        let mut command = match &self.namespace {
            None => command,
            Some(namespace) => {
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
                ip
            }
        };
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}
