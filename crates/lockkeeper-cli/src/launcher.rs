//! The step between fork and exec, as a program of its own.
//!
//! A new process must be prepared before the command starts, and a forked child cannot do that without `unsafe`. So
//! this program starts itself as `lockkeeper __exec`, prepares the process, and becomes the command: same process, same
//! group, no trace in `ps`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{Pid, getpid, getppid};

use crate::exit::{Code, Failure};
use crate::program::this_program;
use crate::streams;
use crate::terminal::Terminal;
use crate::text::plain;
use crate::watchdog::{self, Watchdog};

/// The argument that starts this part of the program.
pub(crate) const WORD: &str = "__exec";

/// Returns a process to start. It names its group to the watchdog and then becomes `command`, unless the hold has
/// reached its `end` by [`watchdog::now`].
pub(crate) fn command(command: &[OsString], foreground: bool, end: Duration, watchdog: Option<&Watchdog>) -> Command {
    let mut launcher = this_program(WORD);
    launcher.arg(getpid().as_raw_nonzero().to_string()).arg(if foreground { "fg" } else { "bg" });
    launcher.arg(end.as_nanos().to_string());
    launcher.arg(watchdog.map_or_else(|| "-".to_owned(), |watchdog| watchdog.descriptor().to_string()));
    launcher.args(command);
    // A group of its own: it is signalled as a whole, and the keys that are meant for us do not reach it.
    launcher.process_group(0);
    launcher
}

pub(crate) fn exec(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = words.next().and_then(|word| word.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let foreground = words.next().is_some_and(|word| word == "fg");
    let end = words.next().and_then(|word| word.to_str()?.parse().ok()).map(Duration::from_nanos);
    let watchdog = words.next().and_then(|word| word.to_str()?.parse().ok());
    let Some(program) = words.next() else {
        return ExitCode::from(Code::Internal.status());
    };
    die_with_parent();
    if parent.is_none() || getppid() != parent {
        // Lockkeeper died before the line above took effect. The hold ends soon, and no process waits for this one.
        return ExitCode::from(Code::Internal.status());
    }
    if let Some(descriptor) = watchdog {
        // Here, not in lockkeeper, which may be stopped before it can do so.
        watchdog::introduce(getpid(), descriptor);
    }
    if foreground && let Some(terminal) = Terminal::controlling() {
        // Here, not in the parent, so that the command cannot read before it owns the terminal.
        terminal.give(getpid());
    }
    let words: Vec<_> = words.collect();
    if end.is_none_or(|end| watchdog::now() >= end) {
        // Lockkeeper was stopped after the grant, and reports the loss itself.
        return ExitCode::from(Code::Lost.status());
    }
    let error = Command::new(&program).args(&words).exec();
    let Failure { code, message, hint, .. } = cannot_run(&program, words.is_empty(), &error);
    let hint = hint.map_or_else(String::new, |hint| format!("  hint: {}\n", plain(&hint)));
    // Lockkeeper waits for this process and holds the lock in the meantime.
    streams::STDERR.push(format!("lockkeeper: {}\n{hint}", plain(&message)));
    streams::flush();
    ExitCode::from(code as u8)
}

/// Asks the kernel to kill this process when lockkeeper dies.
///
/// The signal is `SIGKILL`: no process is left that could send it after a milder one, and the next waiter gets the
/// lock.
fn die_with_parent() {
    #[cfg(target_os = "linux")]
    // It cannot fail for a valid signal.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// Returns why a program cannot be run, in a shell's words where it has any. `alone` means that the program has no
/// arguments.
pub(crate) fn cannot_run(program: &OsStr, alone: bool, error: &std::io::Error) -> Failure {
    let name = program.to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => match find(program).map(|file| interpreter(&file)) {
            Some(Some(interpreter)) => {
                let hint = match interpreter.ends_with('\r') {
                    true => "its first line ends in a carriage return: save it with Unix line ends",
                    false => "correct its first line, or install that interpreter",
                };
                let message = format!("{name}: its interpreter {interpreter:?} was not found");
                Failure::new(Code::NotExecutable, message).hint(hint)
            }
            Some(None) => Failure::new(Code::NotExecutable, format!("{name}: the loader that it needs was not found"))
                .hint("it was built for another system"),
            None => {
                let failure = Failure::new(Code::NotFound, format!("{name}: command not found"));
                if alone && name.trim().contains(char::is_whitespace) {
                    let script = crate::advice::quoted(program);
                    return failure
                        .hint(format!("leave out the quotes: -- {name}; or let a shell run it: -- sh -c {script}"));
                }
                failure
            }
        },
        ErrorKind::PermissionDenied => Failure::new(Code::NotExecutable, format!("{name}: permission denied")),
        _ => Failure::new(Code::NotExecutable, format!("{name}: {error}")),
    }
}

/// Returns the file that a program's name means.
fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if program.as_encoded_bytes().contains(&b'/') {
        return path.is_file().then(|| path.to_owned());
    }
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search).map(|dir| dir.join(path)).find(|file| file.is_file())
}

/// Returns the interpreter that the first line of a script names.
fn interpreter(script: &Path) -> Option<String> {
    let mut start = Vec::new();
    // The kernel reads at most 256 bytes of it too.
    File::open(script).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    Some(line.trim_start_matches([' ', '\t']).split([' ', '\t']).next()?.to_owned())
}
