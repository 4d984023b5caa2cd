//! The moment between fork and exec, as a program of its own.
//!
//! What has to be done in the new process before the command starts cannot be done in a forked child without `unsafe`. So
//! this program starts itself as `lockkeeper __exec`, does it, and becomes the command: same process, same group, nothing of
//! it left in `ps`.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, getpid, getppid};

use crate::exit::Code;
use crate::output::plain;
use crate::streams;
use crate::terminal::Terminal;
use crate::watchdog::{self, Watchdog};

/// The word that starts it.
pub(crate) const WORD: &str = "__exec";

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

/// A command that becomes `command` in the new process, and tells the watchdog of its group before that.
pub(crate) fn command(command: &[OsString], foreground: bool, watchdog: Option<&Watchdog>) -> Command {
    let mut launcher = this_program(WORD);
    launcher.arg(getpid().as_raw_nonzero().to_string()).arg(if foreground { "fg" } else { "bg" });
    launcher.arg(watchdog.map_or_else(|| "-".to_owned(), |watchdog| watchdog.descriptor().to_string()));
    launcher.args(command);
    // A group of its own: it is signalled as a whole, and not by the keys that are meant for us.
    launcher.process_group(0);
    launcher
}

/// Becomes the command.
pub(crate) fn exec(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = words.next().and_then(|word| word.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let foreground = words.next().is_some_and(|word| word == "fg");
    let watchdog = words.next().and_then(|word| word.to_str()?.parse().ok());
    let Some(program) = words.next() else {
        return ExitCode::from(Code::Internal as u8);
    };
    die_with_parent();
    if parent.is_none() || getppid() != parent {
        // It died before the line above could matter. Whoever waits for us is gone, and the hold soon is.
        return ExitCode::from(Code::Internal as u8);
    }
    if let Some(descriptor) = watchdog {
        // Here, not in lockkeeper, which may be stopped before it comes to it.
        watchdog::introduce(getpid(), descriptor);
    }
    if foreground && let Some(terminal) = Terminal::controlling() {
        // Here, not in the parent, so that the command cannot read before it may.
        terminal.give(getpid());
    }
    let error = Command::new(&program).args(words).exec();
    complain(&program, &error)
}

/// Lets the kernel kill this process when lockkeeper dies.
///
/// `SIGKILL`, for nobody is left to follow up on anything milder, and the lock goes to the next in line.
fn die_with_parent() {
    #[cfg(target_os = "linux")]
    // It cannot fail for a valid signal.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

fn complain(program: &OsStr, error: &std::io::Error) -> ExitCode {
    let code = if error.kind() == ErrorKind::NotFound { Code::NotFound } else { Code::NotExecutable };
    let name = plain(&program.to_string_lossy());
    let reason = match error.kind() {
        ErrorKind::NotFound => "command not found".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    };
    // Lockkeeper waits for this process and holds the lock meanwhile.
    streams::STDERR.push(format!("lockkeeper: {name}: {reason}\n"));
    streams::flush();
    ExitCode::from(code as u8)
}
