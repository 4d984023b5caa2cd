//! Starts another part of this program: the launcher, the watchdog, the server.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::exit::Failure;

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

/// Returns the failure to start a part of this program. On a root that lacks what every start needs, the reason names it: the
/// error of the system says only that some file is missing.
pub(crate) fn not_started(what: &str, error: std::io::Error) -> Failure {
    let missing = ["/proc/self/exe", "/dev/null"].into_iter().find(|file| !Path::new(file).exists());
    match missing.filter(|_| cfg!(target_os = "linux")) {
        Some(file) => Failure::system(what, format!("there is no {file}")).hint("mount /proc and /dev on this root"),
        None => Failure::system(what, error),
    }
}
