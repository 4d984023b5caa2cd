//! The options of `lockkeeper hold`.

use std::ffi::OsString;
use std::time::Duration;

use crate::advice::Suggested;
use crate::args::common::Common;
use crate::args::values::{Completes, duration};
use crate::exit::Failure;
use crate::statuses::{Code, EXIT_STATUS, INTERNAL, REFUSED, Status, Statuses, lines};
use crate::verbs::run::args::{JobSignal, KindArgs, LockArgs, NOT_ACQUIRED, RunArgs};
use crate::verbs::run::lease::LeaseArgs;

/// The row of `hold` and `acquire`.
pub(crate) const UNREACHABLE: Status =
    (Code::Unreachable, "no server was reachable, or none answered by the end of the wait", "");

/// The exit statuses of `lockkeeper hold`.
pub(crate) const STATUSES: &[Status] = &[
    (Code::Done, "released: by the client, or because its input has ended", ""),
    (
        Code::Usage,
        "the command line or a setting is wrong; nothing was done",
        "also if the lock is in use in another way (another kind, another number of permits, another node format), and if the chroot \
         does not exist",
    ),
    UNREACHABLE,
    INTERNAL,
    NOT_ACQUIRED,
    (Code::Lost, "the lock was lost", ""),
    REFUSED,
];

/// Each paragraph is one line, which the parser wraps to the terminal's width. Indented lines fit into 80 columns.
const BEFORE_STATUSES: &str = "\
For programs in any language: a program starts lockkeeper hold as a child, reads one JSON object per line from its standard output, and \
writes one per line to its standard input. The lock is released when the child's input ends, so also when the program is killed. \
docs/hold-protocol.md describes the lines.

Silence past valid_until_ns is a loss: when the clock CLOCK_BOOTTIME has passed the last valid_until_ns that the program has read, \
another contender may hold the lock, whatever the program reads later.

The program learns the token from the event acquired. It may write {\"do\": \"check\"}, {\"do\": \"release\"}, \
{\"do\": \"refuse\", \"why\": \"TEXT\"} after the event asked, and {\"do\": \"make_way\"} after the event wanted.";

const EXAMPLES: &str = "\
Examples:
  lockkeeper hold nightly --wait 30s --json
  lockkeeper hold accounts orders --json
  lockkeeper hold index --background --yield --json";

fn long_help() -> String {
    format!("{BEFORE_STATUSES}\n\n{EXIT_STATUS}\n{}\n\n{EXAMPLES}", lines(STATUSES))
}

/// `lockkeeper hold`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "All options, exit statuses and more examples: lockkeeper hold --help",
    after_long_help = long_help(),
    add = Statuses(STATUSES),
    mut_arg("json", |json| json.help("Has no effect: the lines are JSON anyway")),
    mut_arg("cleanup", |cleanup| cleanup.hide(true)),
    override_usage = "lockkeeper hold <NAME>... [OPTIONS]"
)]
pub(crate) struct HoldArgs {
    /// The lock, or several: all of them or none
    #[arg(value_name = "NAME")]
    #[arg(add = Completes::Locks)]
    pub names: Vec<String>,
    /// The locks.
    #[command(flatten)]
    pub lock: LockArgs,
    /// Say when --foreground and other earlier classes wait, so that the program can make way
    ///
    /// It needs one lock with --background or --class. See --min-hold.
    #[arg(long = "yield")]
    pub yields: bool,
    /// Say so only when the lock has been held for this long [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "yields", hide_short_help = true)]
    pub min_hold: Option<Duration>,
    /// End the process group of this process when the lock can no longer be relied on: SIGTERM, and SIGKILL after the grace period
    ///
    /// In time before the next holder, also if lockkeeper is killed or stopped. If the input ends without a release, the group is
    /// ended too, before the release.
    #[arg(long, value_name = "PID")]
    pub end_with: Option<i32>,
    /// Give that group this long to end [default: a fifth of the session timeout, at most 5s; of a lease, a quarter, at most 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "end_with", hide_short_help = true)]
    pub grace: Option<Duration>,
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

/// Takes the words behind `--` as the names, if there are none before it. With names, they would be a command, and this verb runs none.
pub(crate) fn take_names(verb: &str, names: &mut Vec<String>, behind: &mut Vec<OsString>) -> Result<(), Failure> {
    let behind = std::mem::take(behind);
    if names.is_empty() {
        *names = behind.into_iter().map(|name| name.to_string_lossy().into_owned()).collect();
        return match names.is_empty() {
            true => Err(Failure::new(Code::Usage, "the name of the lock is missing")
                .hint(format!("write lockkeeper {verb} NAME"))),
            false => Ok(()),
        };
    }
    if behind.is_empty() {
        return Ok(());
    }
    let run = Suggested::new(["run"]).with(names.iter()).running(behind);
    Err(Failure::new(Code::Usage, format!("{verb} runs no command")).advise("run it under the lock", run))
}

impl HoldArgs {
    /// Returns the same request as one of `run`, without a command.
    pub(super) fn request(&self) -> RunArgs {
        // Which signal is of no interest: there is no command.
        let yields = self.yields.then_some(JobSignal::Term);
        let HoldArgs { names, lock, min_hold, grace, common, kind, leased, .. } = self.clone();
        RunArgs { yields, min_hold, grace, ..RunArgs::without_command((names, lock), (common, kind, leased)) }
    }
}
