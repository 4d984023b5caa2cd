//! Starts another part of this program: the launcher, the watchdog, the server.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Returns this very program, even if its file was replaced after it started, with the argument that selects a part.
pub(crate) fn this_program(word: &str) -> Command {
    let running = Path::new("/proc/self/exe");
    let mut program = match std::env::current_exe() {
        _ if running.exists() => Command::new(running),
        Ok(file) => Command::new(file),
        Err(_) => Command::new("lockkeeper"),
    };
    program.arg0("lockkeeper").arg(word);
    program
}
