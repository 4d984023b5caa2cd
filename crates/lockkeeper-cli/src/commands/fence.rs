//! `lockkeeper fence`: changes a file for a job under a lock, unless a newer holder has changed it.
//!
//! It contacts no server: it compares the job's token with the greatest one that the file has seen.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use lockkeeper::FencingToken;
use lockkeeper_fence::{FencedFile, FileError, FilePass};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::args::ask::FenceArgs;
use crate::exit::{Code, Failure};
use crate::launcher::cannot_run;
use crate::settings;

/// The variable in which `run` gives its command the token.
const TOKEN: &str = "LOCKKEEPER_TOKEN";

/// Replaces a file, or runs a command behind its gate; returns the exit status.
pub(crate) fn fence(args: FenceArgs) -> Result<u8, Failure> {
    let token = match args.token {
        Some(token) => token,
        None => own_token()?,
    };
    let pass = FencedFile::new(&args.file).enter(token)?;
    if args.command.is_empty() {
        pass.replace(&mut std::io::stdin().lock())?;
        return Ok(0);
    }
    become_command(&args.command, &pass)
}

fn own_token() -> Result<FencingToken, Failure> {
    let none = || {
        Failure::new(Code::Usage, format!("no token: {TOKEN} is not set"))
            .hint("run this under `lockkeeper run NAME -- …`, or give --token")
    };
    let text = settings::variable(TOKEN).ok_or_else(none)?;
    if text.contains('\n') {
        return Err(Failure::new(Code::Usage, format!("{TOKEN} has the tokens of several locks"))
            .hint("choose the one for this file with --token"));
    }
    text.parse().map_err(|error| Failure::new(Code::Usage, format!("{TOKEN}: {error}")))
}

/// Becomes the command, which inherits the open lock: the gate stays closed to others until the command and all
/// processes that it left running have ended, even if lockkeeper is killed.
fn become_command(command: &[OsString], pass: &FilePass) -> Result<u8, Failure> {
    fcntl_setfd(pass, FdFlags::empty()).map_err(|error| Failure::system("cannot pass the lock on", error))?;
    let (program, words) = command.split_first().expect("looked at before");
    let error = Command::new(program).args(words).exec();
    Err(cannot_run(program, words.is_empty(), &error))
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Refused { .. } => {
                Failure::new(Code::Lost, error.to_string()).hint("a newer holder has the lock; this job must end")
            }
            error => Failure::new(Code::CannotServe, error.to_string()),
        }
    }
}
