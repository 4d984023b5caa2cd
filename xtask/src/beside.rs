//! Runs a server of another project for a person, or for one command.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

/// Starts the server and keeps it until Ctrl-C, or until the command has ended, whose exit status is returned. `start`
/// returns the server, its address and the environment of the command.
pub(crate) fn keep<S>(
    command: &[OsString],
    start: impl FnOnce() -> Result<(S, String, Vec<(&'static str, OsString)>)>,
) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("making an event loop")?;
    runtime.block_on(async {
        // Before the server starts, so that a signal always ends the server in order.
        let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
        let (_server, address, environment) = start()?;

        let Some((program, arguments)) = command.split_first() else {
            // The address is data; its reader, perhaps a pipe, needs it before this program ends.
            println!("{address}");
            std::io::stdout().flush().context("printing the address")?;
            eprintln!("Ctrl-C stops it");
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            return Ok(ExitCode::SUCCESS);
        };
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).envs(environment);
        let mut child = command.spawn().with_context(|| format!("running {}", program.display()))?;
        loop {
            tokio::select! {
                status = child.wait() => return Ok(exit_code(status.context("waiting for the command")?)),
                // The terminal sends Ctrl-C to the command as well, and the command decides when to end.
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {
                    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
                    if let Some(pid) = pid {
                        kill_process(pid, Signal::TERM).context("passing SIGTERM on")?;
                    }
                }
            }
        }
    })
}

/// Returns the child's exit status; 128 + n after a signal, as shells report it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
