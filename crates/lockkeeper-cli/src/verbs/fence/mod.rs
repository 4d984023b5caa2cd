//! `lockkeeper fence`: changes a file for a job under a lock, unless a newer holder has changed it.
//!
//! It contacts no server: it compares the job's token with the greatest one that the file has seen.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;
use lockkeeper::FencingToken;
use lockkeeper_fence::{FencedFile, FileError, FilePass, Refused, TokenEpoch};
use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::advice::Suggested;
use crate::args::values::duration;
use crate::confirm;
use crate::exit::{Code, Failure};
use crate::launcher::cannot_run;
use crate::nested;
use crate::output;
use crate::settings;
use crate::statuses::{Status, Statuses, help};
use crate::text::plain;
use crate::verb::{Context, Files, Verb};

/// The exit statuses of `lockkeeper fence`.
const STATUSES: &[Status] = &[
    (Code::Done, "FILE was replaced; with a command, the status is that of the command", ""),
    (Code::NoSuchLock, "of --reset: nothing was changed: the answer to the question was not yes", ""),
    (
        Code::Usage,
        "the command line or the token is wrong; nothing was changed",
        "no token, tokens of several locks, a token more than one epoch above the greatest; or standard input is FILE or closed",
    ),
    (
        Code::Internal,
        "FILE or FILE.fence cannot be used",
        "for example because it is a link, a device or a directory, or FILE is itself the mark of a gate",
    ),
    (Code::NotAcquired, "another process was behind the gate until --wait was over", ""),
    (Code::Lost, "the token is stale; nothing was changed", ""),
];

/// `lockkeeper fence`.
#[derive(Debug, clap::Args)]
#[command(add = Files(&[("FILE.fence", "the greatest token so far; locked while FILE is replaced or the command runs")]))]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
Beside FILE, FILE.fence keeps the greatest token so far. It is locked while FILE is replaced or the command runs. A smaller token is \
refused with exit status 76, and nothing is changed.

Standard input is read to its end: if generating the contents may fail, generate them first. With a command, the gate stays \
closed until the command, and everything that it leaves running, has ended.", "\
Examples:
  lockkeeper run nightly -- sh -c 'report > new && lockkeeper fence all < new'
  lockkeeper run nightly -- lockkeeper fence mirror -- rsync -a src/ /mirror/
  lockkeeper fence report.json --show"))]
pub(crate) struct FenceArgs {
    /// The file, or a name for the resource that the command changes; not a symbolic link
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Use this token; with --reset, lower the greatest one to it [env: LOCKKEEPER_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<FencingToken>,
    /// Wait at most this long for another process behind the gate [default: until it ends]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<std::time::Duration>,
    /// Accept a token of any epoch
    ///
    /// A token of an epoch more than one above the greatest one is refused, because it would close the gate to all others.
    #[arg(long, hide_short_help = true)]
    pub force: bool,
    /// Print the greatest token so far, and the resets with their reasons
    #[arg(long, conflicts_with_all = ["token", "force", "reset", "command"])]
    pub show: bool,
    /// Forget the greatest token, or lower it to --token, for a gate that a wrong token has closed
    ///
    /// LOCKKEEPER_TOKEN does not count. Older holders can pass again. First make sure that none is left.
    #[arg(long, hide_short_help = true, requires = "reason", conflicts_with_all = ["force", "command"])]
    pub reset: bool,
    /// Record this reason for --reset; not empty, at most 1024 bytes
    #[arg(long, short, hide_short_help = true, value_name = "TEXT", requires = "reset")]
    pub reason: Option<String>,
    /// Skip the confirmation of --reset
    #[arg(long, short, hide_short_help = true, requires = "reset")]
    pub yes: bool,
    /// Run this command behind FILE's gate instead of replacing FILE
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Verb for FenceArgs {
    async fn obey(self, _: Context<'_>) -> Result<u8, Failure> {
        fence(self)
    }
}

/// The variable in which `run` gives its command the token.
const TOKEN: &str = "LOCKKEEPER_TOKEN";

/// The longest reason of a reset, in bytes.
const MAX_REASON: usize = 1024;

/// Replaces a file, or runs a command behind its gate; returns the exit status.
fn fence(args: FenceArgs) -> Result<u8, Failure> {
    let mut file = FencedFile::new(&args.file);
    if let Some(limit) = args.wait {
        file = file.max_wait(limit);
    }
    if args.force {
        file = file.any_epoch();
    }
    if args.show {
        return show(&file);
    }
    if args.reset {
        return reset(&file, &args);
    }
    let token = match args.token {
        Some(token) => token,
        None => own_token()?,
    };
    if args.command.is_empty() {
        // Before the token raises the mark.
        file.check_replaceable()?;
        check_input(&args.file)?;
        file.enter(token)?.replace(&mut std::io::stdin().lock())?;
        return Ok(0);
    }
    become_command(&args.command, &file.enter(token)?)
}

/// Refuses standard input that is closed, that is the file, or its mark.
fn check_input(file: &Path) -> Result<(), Failure> {
    let input = fstat(std::io::stdin()).map_err(|error| Failure::system("cannot look at standard input", error))?;
    // Before `main`, Rust opens /dev/null for reading and writing in place of a closed standard input. `</dev/null` only reads.
    let is_null = stat("/dev/null").is_ok_and(|null| null.st_rdev == input.st_rdev);
    if is_null && fcntl_getfl(std::io::stdin()).is_ok_and(|flags| flags.contains(OFlags::RDWR)) {
        let message =
            "standard input is closed, or is /dev/null opened for reading and writing, so there are no new contents";
        return Err(Failure::new(Code::Usage, message).hint(
            "give the new contents on standard input; for an empty file, </dev/null or a pipe without contents",
        ));
    }
    let mut fence = OsString::from(file);
    fence.push(".fence");
    for path in [file, Path::new(&fence)] {
        if stat(path).is_ok_and(|it| (it.st_dev, it.st_ino) == (input.st_dev, input.st_ino)) {
            return Err(Failure::new(Code::Usage, format!("standard input is {} itself", path.display()))
                .hint("write the new contents to another file first, such as FILE.new"));
        }
    }
    Ok(())
}

/// Prints the mark, and the resets.
fn show(file: &FencedFile) -> Result<u8, Failure> {
    let mut text = match file.highest()? {
        Some(token) => format!("token {token} of epoch {}\n", TokenEpoch::of(token)),
        None => "no token\n".to_owned(),
    };
    for reset in file.resets()? {
        text.push_str(&plain(&reset));
        text.push('\n');
    }
    output::data(&text)?;
    Ok(0)
}

fn reset(file: &FencedFile, args: &FenceArgs) -> Result<u8, Failure> {
    let reason = args.reason.as_deref().unwrap_or_default().trim();
    if reason.is_empty() || reason.len() > MAX_REASON {
        return Err(Failure::new(Code::Usage, format!("--reason must have 1 to {MAX_REASON} bytes")));
    }
    if let (Some(token), Ok(Some(highest))) = (args.token, file.highest())
        && token > highest
    {
        let message = format!(
            "token {token} is greater than {highest}, the greatest one so far: it would close the gate further"
        );
        return Err(Failure::new(Code::Usage, message).hint("leave out --token to forget the greatest token"));
    }
    confirm::possible("a reset of the mark", args.yes)?;
    let mark =
        |token: Option<FencingToken>| token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
    let (before, after) = (file.highest().map_or_else(|_| "no valid mark".to_owned(), mark), mark(args.token));
    let name = args.file.display();
    if !args.yes
        && !confirm::agreed(&format!("{name}: {before} becomes {after}, and older holders can pass again. Reset it?"))
    {
        return Ok(Code::NoSuchLock.status());
    }
    let (at, by) = (Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ"), lockkeeper::admin::this_process());
    file.reset(args.token, &format!("reset {at} by {by} from {before} to {after}: {reason}"))?;
    Ok(0)
}

fn own_token() -> Result<FencingToken, Failure> {
    let none = || {
        let failure = Failure::new(Code::Usage, format!("no token: {TOKEN} is not set"));
        failure.hint(match nested::held().is_empty() {
            true => "run this in the command of a `lockkeeper run`, or give --token",
            // Holders at the same time have no order.
            false => {
                "this command holds permits or a shared lock, which have no token: give --token, or hold the lock alone"
            }
        })
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
            FileError::Refused { ref refused, ref path } => {
                let mut hint = "a newer holder has the lock; this job must end".to_owned();
                if let Refused::Stale { highest, .. } = refused
                    && TokenEpoch::above(*highest).is_none()
                {
                    // No server gives out such a token.
                    let reset = Suggested::new([OsString::from("fence"), path.into()]);
                    let failure = Failure::new(Code::Lost, error.to_string())
                        .hint(format!("token {highest} is in the last possible epoch, so it was probably a wrong one"));
                    return failure.advise("forget it", reset.with(["--reset", "--reason", "WHY"]).elsewhere());
                }
                if let Refused::Stale { highest, .. } = refused {
                    hint.push_str(&format!(
                        ". If the servers were rebuilt or restored instead: lockkeeper admin epoch --above {highest}"
                    ));
                }
                Failure::new(Code::Lost, error.to_string()).hint(hint)
            }
            FileError::EpochAhead { .. } => Failure::new(Code::Usage, error.to_string())
                .hint("check the token; if the epoch was raised more than once meanwhile, add --force"),
            FileError::Busy { .. } => Failure::new(Code::NotAcquired, error.to_string()),
            FileError::NoMark { ref path, .. } => {
                let failure = Failure::new(Code::Internal, error.to_string());
                // The mark has the name of the file, and an extension.
                let reset = Suggested::new([OsString::from("fence"), path.with_extension("").into()]);
                failure.advise("make a new mark", reset.with(["--reset", "--reason", "WHY"]).elsewhere())
            }
            error => Failure::new(Code::Internal, error.to_string()),
        }
    }
}
