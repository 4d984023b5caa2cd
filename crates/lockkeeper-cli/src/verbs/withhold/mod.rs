//! `lockkeeper with-hold`: runs a command under a hold of `lockkeeper acquire`, and ends it with the hold, as `run` ends its command.

use std::ffi::OsString;
use std::time::Duration;

use lockkeeper::guard::HoldState;

use crate::args::common::Common;
use crate::args::values::duration;
use crate::child::{Extras, RunTerms, Supervised};
use crate::exit::{Code, Failure};
use crate::grace::Term;
use crate::held::Held;
use crate::keepers::Keepers;
use crate::output::Printer;
use crate::signals::{ENDING, RUNNING, Signals};
use crate::statuses::{Status, Statuses, help};
use crate::verb::{Context, Sets, Verb};
use crate::verbs::run::args::{OnRevoke, OnSuspect, VARIABLES};

/// The exit statuses of `lockkeeper with-hold`, besides the command's.
pub(crate) const STATUSES: &[Status] = &[
    (Code::NoSuchLock, "no hold of this user has this id", ""),
    (Code::Usage, "the command line or a setting is wrong; nothing was done", ""),
    (Code::Internal, "the operating system or lockkeeper failed", ""),
    (Code::NotAcquired, "the hold waits for its lock", ""),
    (Code::Lost, "the hold was over before the command, or while it ran; it was stopped", ""),
    (Code::NotExecutable, "the command cannot be executed", "no permission, or its interpreter is missing"),
    (Code::NotFound, "the command was not found", ""),
];

/// Each paragraph is one line, which the parser wraps to the terminal's width.
const BEFORE: &str = "\
The command runs in a process group of its own, with the variables of lockkeeper run. When the hold can no longer be relied on, the group \
gets SIGTERM, and SIGKILL after the grace period: in time before the next holder, unless somebody breaks the lock. A release waits for that. The hold goes on when the command has ended.";

const EXAMPLES: &str = "\
Examples:
  lockkeeper with-hold 3f2a9c1b -- make deploy
  lockkeeper with-hold -- make test     # under the hold of LOCKKEEPER_HOLD";

/// `lockkeeper with-hold`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = help(STATUSES, BEFORE, EXAMPLES),
    add = Statuses(STATUSES),
    mut_arg("json", |json| json.help("Print messages as JSON lines on standard error")),
    add = Sets(VARIABLES.split_at(VARIABLES.len() - 1).0),
    override_usage = "lockkeeper with-hold [ID] [OPTIONS] -- <COMMAND>..."
)]
pub(crate) struct WithHoldArgs {
    /// The id that lockkeeper acquire has printed [default: that of LOCKKEEPER_HOLD]
    pub id: Option<String>,
    /// Give the command this long to end when the lock can no longer be relied on; then kill it [default: a fifth of the
    /// session timeout, at most 5s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub grace: Option<Duration>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None::<&'static str>)]
    pub command: Vec<OsString>,
}

impl Verb for WithHoldArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    fn takes_a_while(&self) -> bool {
        true
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        with_hold(self, context.printer).await
    }
}

/// Runs the command under the hold; returns the exit status.
async fn with_hold(args: WithHoldArgs, printer: &Printer) -> Result<u8, Failure> {
    let (id, hold) = Keepers::of(&args.common.connect, printer)?.find(args.id.as_deref()).await?;
    if hold.seen().waits {
        return Err(Failure::new(Code::NotAcquired, format!("the hold {id} waits for its lock"))
            .hint("wait for the end of lockkeeper acquire"));
    }
    if hold.seen().is_ending {
        return Err(Failure::new(Code::Lost, format!("the hold {id} is being released")));
    }
    if let HoldState::Lost(loss) = hold.state() {
        return Err(Failure::new(Code::Lost, format!("the hold {id} is lost: {loss}")));
    }
    let grace = Term::Fixed(hold.seen().session_timeout).grace(args.grace)?;
    let terms = RunTerms {
        grace,
        on_suspect: OnSuspect::Wait,
        on_revoke: OnRevoke::Ignore,
        on_yield: None,
        preemption: None,
        max_run: None,
    };
    let (held, mut signals) = (Held::Kept(&hold), Signals::default());
    signals.add(ENDING)?;
    let command = Supervised::start(&args.command, held, grace, Extras::default())?;
    signals.add(RUNNING)?;
    let ended = command.attend(None, held, &mut signals, terms, *printer).await?;
    match ended.loss.is_some() || ended.stopped {
        true => Ok(printer.ended(STATUSES, Code::Lost)),
        false => Ok(ended.status),
    }
}
