//! This program, started again in another part: the launcher, the watchdog, the server.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// This very program, also when its file was replaced meanwhile, in the part that `word` starts.
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
