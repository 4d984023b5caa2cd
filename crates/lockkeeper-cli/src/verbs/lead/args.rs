//! The options of `lockkeeper lead`.

use std::ffi::OsString;
use std::time::Duration;

use crate::args::common::Common;
use crate::args::values::{Completes, duration};
use crate::statuses::{Code, EXIT_STATUS, INTERNAL, REFUSED, Status, Statuses, lines};
use crate::verb::Sets;
use crate::verbs::run::LeaderCommands;
use crate::verbs::run::args::{NodeFormatArg, OnRevoke, OnSuspect, VARIABLES};

/// The exit statuses of `lockkeeper lead`.
pub(crate) const STATUSES: &[Status] = &[
    (Code::Done, "SIGTERM, SIGINT or SIGQUIT has ended lead, and its command if one ran", ""),
    (
        Code::Usage,
        "the command line or a setting is wrong; nothing was done",
        "also if other candidates use another node format, and if the chroot does not exist",
    ),
    (
        Code::Unreachable,
        "the session expired while waiting",
        "only if `connection.retry` or `connection.delay` is set; otherwise `lead` joins the queue again",
    ),
    INTERNAL,
    (
        Code::NotAcquired,
        "the wait was cancelled",
        "`revoke --node` cancels a wait, and so does deleting the waiting node",
    ),
    (Code::Lost, "the leadership was lost, with --once or after SIGTERM, SIGINT or SIGQUIT", ""),
    REFUSED,
    (Code::NotExecutable, "the command cannot be executed", "no permission, or its interpreter is missing"),
    (Code::NotFound, "the command was not found", ""),
];

/// Each paragraph is one line, which the parser wraps to the terminal's width. Indented lines fit into 80 columns.
const BEFORE_STATUSES: &str = "\
Every machine runs the same command. One of them leads and runs COMMAND; the others stand by. When the leadership is lost, or when \
somebody asks the leader to step down (lockkeeper revoke), COMMAND is stopped, the next machine leads, and this one stands by again. \
When COMMAND ends by itself, lead resigns and ends with its status. On SIGTERM, SIGINT or SIGQUIT, lead passes the signal on, and \
resigns when COMMAND has ended. It ends with 0 if the signal ended COMMAND, otherwise with COMMAND's status.

COMMAND runs as under run: in a process group of its own, with LOCKKEEPER_TOKEN, LOCKKEEPER_PATH and LOCKKEEPER_NODE. It is stopped \
before another machine can lead, unless the node was deleted (lockkeeper break) or lockkeeper was paused: then only the token \
protects. The command of --on-promote runs in the same way, but SIGHUP, SIGUSR1 and SIGUSR2 are not passed on to it. That of \
--on-demote gets no signal, and a loss does not stop it. If the leadership is lost before it starts, it has none of the variables.

As a service of systemd with Type=notify, it is ready when it stands by. Its status is standby or leader, or that no server answers.";

const EXAMPLES: &str = "\
Examples:
  lockkeeper lead scheduler --servers zk1:2181,zk2:2181,zk3:2181 -- ./scheduler
  lockkeeper lead db --on-promote ./take-ip --on-demote ./drop-ip -- ./primary
  lockkeeper lead /election --format leader-latch -- ./beside-java";

fn long_help() -> String {
    let status = "that of the command; 128+n if signal n killed it. Of lockkeeper itself:";
    format!("{BEFORE_STATUSES}\n\n{EXIT_STATUS} {status}\n{}\n\n{EXAMPLES}", lines(STATUSES))
}

/// `lockkeeper lead`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "All options, exit statuses and more examples: lockkeeper lead --help",
    after_long_help = long_help(),
    add = Statuses(STATUSES),
    add = Sets(VARIABLES.split_at(VARIABLES.len() - 1).0),
    mut_arg("json", |json| json.help("Print messages as JSON lines on standard error")),
    override_usage = "lockkeeper lead <NAME> [OPTIONS] -- <COMMAND>..."
)]
pub(crate) struct LeadArgs {
    /// The election: the lock that the leader holds
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// The shell commands around it.
    #[command(flatten)]
    pub around: LeaderCommands,
    /// End after the first leadership, instead of standing by again
    #[arg(long)]
    pub once: bool,
    /// Show this id or reason to everyone who looks at the election
    #[arg(long, short, value_name = "TEXT")]
    pub message: Option<String>,
    /// Show the whole command line to everyone who may read the election, not only the program's name
    #[arg(long, hide_short_help = true)]
    pub publish_command: bool,
    /// Send this signal to the command when a revoke asks the leader to step down: TERM, INT, HUP, USR1, USR2; or ignore
    ///
    /// With ignore, the command gets no signal, and lockkeeper refuses the request.
    #[arg(
        long,
        value_name = "SIGNAL",
        value_enum,
        ignore_case = true,
        default_value = "TERM",
        hide_possible_values = true,
        hide_short_help = true
    )]
    pub on_revoke: OnRevoke,
    /// Give the command this long to end when the leadership can no longer be relied on; then kill it [default: a fifth of the
    /// session timeout, at most 5s]
    ///
    /// At most a fifth of the session timeout.
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub grace: Option<Duration>,
    /// After a loss, let nobody lead for this long
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub lock_delay: Option<Duration>,
    /// When the connection is lost while this machine may still lead: wait for the servers until the grace period begins, or
    /// stop the command immediately
    #[arg(long, value_name = "WHAT", value_enum, default_value = "wait", hide_short_help = true)]
    pub on_suspect: OnSuspect,
    /// Name the nodes as these foreign candidates do, to stand for election with them [default: curator]
    #[arg(long = "format", value_name = "FORMAT", value_enum, hide_short_help = true)]
    pub node_format: Option<NodeFormatArg>,
    /// Say nothing about the wait
    #[arg(long, short, hide_short_help = true)]
    pub quiet: bool,
    /// Do not record the leaderships in the history of the election [env: LOCKKEEPER_HISTORY=false]
    #[arg(long, hide_short_help = true)]
    pub no_history: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None::<&'static str>)]
    pub command: Vec<OsString>,
}
