//! The options of `lockkeeper acquire`.

use std::ffi::OsString;
use std::time::Duration;

use clap::FromArgMatches;

use crate::args::common::Common;
use crate::args::values::{Completes, positive_duration};
use crate::statuses::{Code, INTERNAL, REFUSED, Status, Statuses, help};
use crate::verb::Sets;
use crate::verbs::hold::args::{UNREACHABLE, take_names};
use crate::verbs::run::args::{KindArgs, LockArgs, NOT_ACQUIRED, RunArgs};
use crate::verbs::run::lease::LeaseArgs;

/// The exit statuses of `lockkeeper acquire`.
pub(crate) const STATUSES: &[Status] = &[
    (Code::Done, "acquired; the hold goes on after this command", ""),
    (
        Code::Usage,
        "the command line or a setting is wrong; nothing was done",
        "also if the process of --while has ended, and if the lock is in use in another way",
    ),
    UNREACHABLE,
    INTERNAL,
    NOT_ACQUIRED,
    (Code::Lost, "the lock was lost at once", ""),
    REFUSED,
];

/// What it sets with --shell.
const VARIABLES: &[(&str, &str)] = &[
    ("LOCKKEEPER_HOLD", "the id of the hold, for `release` and `with-hold`"),
    ("LOCKKEEPER_TOKEN", "the fencing token; not with `--permits`, nor of several locks"),
];

/// Each paragraph is one line, which the parser wraps to the terminal's width.
const BEFORE_STATUSES: &str = "\
The lock is held after this command has ended: a keeper process holds it. Between the steps that you take meanwhile only the token \
protects: if the lock is lost, nothing stops a step that runs without lockkeeper with-hold.

The hold ends with lockkeeper release ID, and with what it is bound to: by default the session of this terminal (its shell), or a process \
(--while), or a time (--for). A restart of the machine ends all holds.

It prints the id of the hold and the token, separated by a blank.";

const EXAMPLES: &str = "\
Examples:
  read -r id token <<< \"$(lockkeeper acquire deploy --wait 5m)\"
  eval \"$(lockkeeper acquire deploy --shell)\"
  lockkeeper acquire db --for 8h --message 'migration, ask ann'";

/// `lockkeeper acquire`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "All options, exit statuses and more examples: lockkeeper acquire --help",
    after_long_help = help(STATUSES, BEFORE_STATUSES, EXAMPLES),
    add = Statuses(STATUSES),
    add = Sets(VARIABLES),
    mut_arg("cleanup", |cleanup| cleanup.hide(true)),
    override_usage = "lockkeeper acquire <NAME>... [OPTIONS]"
)]
pub(crate) struct AcquireArgs {
    /// The lock, or several: all of them or none
    #[arg(value_name = "NAME")]
    #[arg(add = Completes::Locks)]
    pub names: Vec<String>,
    /// The locks.
    #[command(flatten)]
    pub lock: LockArgs,
    /// Hold until this process ends [default: until the session of this terminal ends]
    #[arg(long = "while", value_name = "PID", conflicts_with = "time")]
    pub process: Option<i32>,
    /// Hold for this long, also after this terminal is closed
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration, id = "time")]
    pub time: Option<Duration>,
    /// Print commands for a shell's eval, which set LOCKKEEPER_HOLD and LOCKKEEPER_TOKEN
    #[arg(long, conflicts_with = "json")]
    pub shell: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
    /// The kind of lock.
    #[command(flatten)]
    pub kind: KindArgs,
    /// The lease.
    #[command(flatten)]
    pub leased: LeaseArgs,
    /// The names, if they are behind `--`; otherwise a command, which only run takes.
    #[arg(last = true, hide = true)]
    pub command: Vec<OsString>,
}

impl AcquireArgs {
    /// Parses the words after the verb again, in the keeper.
    pub(super) fn parse(words: impl Iterator<Item = OsString>) -> Option<Self> {
        let acquire = <AcquireArgs as clap::Args>::augment_args(clap::Command::new("acquire").no_binary_name(true));
        let mut args = AcquireArgs::from_arg_matches(&acquire.try_get_matches_from(words).ok()?).ok()?;
        take_names("acquire", &mut args.names, &mut args.command).ok()?;
        Some(args)
    }

    /// Returns the same request as one of `run`, without a command.
    pub(super) fn request(&self) -> RunArgs {
        let AcquireArgs { names, lock, common, kind, leased, .. } = self.clone();
        RunArgs::without_command((names, lock), (common, kind, leased))
    }
}
