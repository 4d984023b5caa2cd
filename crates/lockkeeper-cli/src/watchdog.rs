//! A process that ends the command under the lock when lockkeeper itself is killed.
//!
//! After `kill -9` nobody is left to stop the command's group, and the lock goes to the next in line. The kernel's death
//! signal reaches the command itself on Linux, but not what it started: of `sh -c 'rsync …'` it would leave the rsync.
//!
//! So `lockkeeper __watch GROUP` holds the other end of a pipe. A word through it means that all is in order; its end without
//! one, that lockkeeper is gone. It lives in a session of its own, where no signal meant for us reaches it.

use std::ffi::OsString;
use std::io::{PipeWriter, Read, Write};
use std::process::{Child, ExitCode, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::daemon::detach;
use crate::exit::Code;
use crate::launcher::this_program;

/// The word that starts it.
pub(crate) const WORD: &str = "__watch";

/// The end of the pipe that stays here.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pipe: PipeWriter,
    child: Child,
}

impl Watchdog {
    /// Starts watching over a group.
    pub(crate) fn over(group: Pid) -> std::io::Result<Self> {
        let (reader, pipe) = std::io::pipe()?;
        let mut watch = this_program(WORD);
        watch.arg(group.as_raw_nonzero().to_string());
        let child = watch.stdin(reader).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Watchdog { pipe, child })
    }

    /// The command has ended in our presence: what it left running may stay.
    pub(crate) fn dismiss(mut self) -> Dismissed {
        // It fails if somebody killed the watchdog. So be it.
        _ = self.pipe.write_all(b".");
        Dismissed(self.child)
    }
}

/// A watchdog about to end. It is waited for when this is dropped: no zombie stays where nobody adopts them, and the wait does
/// not delay the release.
#[derive(Debug)]
pub(crate) struct Dismissed(Child);

impl Drop for Dismissed {
    fn drop(&mut self) {
        _ = self.0.wait();
    }
}

/// Watches.
pub(crate) fn main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let group = words.next().and_then(|word| word.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let (Some(group), Ok(())) = (group, detach()) else {
        return ExitCode::from(Code::Internal as u8);
    };
    let mut word = [0];
    if matches!(std::io::stdin().read(&mut word), Ok(0) | Err(_)) {
        // `ESRCH`, if all of it is gone.
        _ = kill_process_group(group, Signal::KILL);
    }
    ExitCode::SUCCESS
}
