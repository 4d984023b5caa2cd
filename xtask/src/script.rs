//! Chores that are scripts in Python, and others' use of Python.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result};
use clap::Args;

use crate::workspace::root;

/// What a script gets; `--help` too.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Script {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

impl Script {
    /// Runs the script of xtask/scripts with this name and environment.
    pub(crate) fn run(&self, name: &str, environment: &[(&str, PathBuf)]) -> Result<()> {
        let mut command = python(&format!("xtask/scripts/{name}.py"));
        done(command.args(&self.arguments).envs(environment.iter().cloned()).output()).map(drop)
    }
}

/// The exit status of a script that has said why it failed.
#[derive(Debug, thiserror::Error)]
#[error("a script ended with exit status {0}")]
pub(crate) struct Failed(pub(crate) u8);

/// Returns the command for a script of the repository.
pub(crate) fn python(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join(script)).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    command
}

/// Returns what a script has printed, if it was not shown.
pub(crate) fn done(ended: io::Result<Output>) -> Result<String> {
    let Output { status, stdout, .. } = match ended {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("error: no Python 3 on this machine (Debian: apt-get install python3-venv)");
            return Err(Failed(6).into());
        }
        ended => ended.context("starting python3")?,
    };
    match status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&stdout).trim().to_owned()),
        code => Err(Failed(code.and_then(|code| code.try_into().ok()).unwrap_or(1)).into()),
    }
}
