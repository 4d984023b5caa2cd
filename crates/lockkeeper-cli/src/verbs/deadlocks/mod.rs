//! `lockkeeper deadlocks`: contenders that wait for each other in a ring, and how to end that.

use std::fmt::Write as _;

use jiff::Timestamp;
use lockkeeper_observe::deadlock::{Certainty, Deadlock, Party, deadlocks as found};
use lockkeeper_session::text::excerpt;
use serde::Serialize;

use crate::advice::{Action, Suggested, can_be_asked};
use crate::args::common::Common;
use crate::args::values::Completes;
use crate::colour::Severity;
use crate::exit::Failure;
use crate::inquiry::inquire;
use crate::output::{self, Printer};
use crate::realms::ask_each;
use crate::screen::{INDENT, wrapped_for_stdout};
use crate::settings::{Settings, list_root};
use crate::statuses::{Code, Status, Statuses, help};
use crate::text::{counted, described, moment, plain};
use crate::verb::{Context, Verb};

/// The exit statuses of `lockkeeper deadlocks`.
const STATUSES: &[Status] = &[
    (Code::Done, "there is no deadlock", ""),
    (Code::NoSuchLock, "there are only likely or possible ones", ""),
    (Code::Declined, "there is a certain one", ""),
    (Code::Unreachable, "no server was reachable", ""),
];

/// `lockkeeper deadlocks`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
A ring is certain if each waiter says that it keeps its holds while it waits: a lockkeeper run in the command of another one, a run of \
several locks, or a program that says so. Without that, a session that holds one lock and waits for another is a likely party, \
because a process may have several threads.", "\
Examples:
  lockkeeper deadlocks
  lockkeeper deadlocks team --json"))]
pub(crate) struct DeadlocksArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for DeadlocksArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        deadlocks(self, context.printer).await
    }
}

/// A deadlock, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct DeadlockView<'a> {
    #[serde(flatten)]
    deadlock: &'a Deadlock,
    since: Option<String>,
    since_ms: Option<i64>,
    /// The node of the contender whose end costs least.
    victim: Option<String>,
}

#[derive(Serialize)]
struct DeadlocksView<'a> {
    deadlocks: Vec<DeadlockView<'a>>,
}

/// Prints the deadlocks; returns the exit status: 0 without one, 2 with a certain one, otherwise 1.
async fn deadlocks(args: DeadlocksArgs, printer: &Printer) -> Result<u8, Failure> {
    let root = list_root(args.prefix.as_deref())?;
    let parts = Settings::read(args.common.connect, printer)?.parts(&root).await?;
    let answers = ask_each(&parts, printer, async |part| {
        inquire(&part.settings, async |admin| found(&admin, &part.root).await).await
    })
    .await?;
    let source = answers.source();
    let all: Vec<_> = answers.from.iter().flat_map(|(_, found)| found).collect();
    let status = match all.iter().map(|deadlock| deadlock.certainty).min() {
        None => 0,
        Some(Certainty::Certain) => Code::Declined.status(),
        Some(_) => Code::NoSuchLock.status(),
    };
    if printer.is_json() {
        let deadlocks = all.iter().map(|deadlock| view(deadlock)).collect();
        output::answer(&source, &DeadlocksView { deadlocks })?;
    } else if all.is_empty() {
        printer.note(&format!("no contenders at or below {root} wait for each other in a ring on {source}"));
    } else {
        printer.scope(&source);
        let text: String = all.iter().enumerate().map(|(at, deadlock)| text(at + 1, deadlock, printer)).collect();
        output::styled(&text)?;
    }
    answers.end(status, printer)
}

fn view(deadlock: &Deadlock) -> DeadlockView<'_> {
    let since = deadlock.since().and_then(|since| Timestamp::try_from(since).ok());
    DeadlockView {
        deadlock,
        since: since.map(|since| since.to_string()),
        since_ms: since.map(Timestamp::as_millisecond),
        victim: deadlock.victim().map(|victim| victim.contender.node_path(&victim.path)),
    }
}

fn text(number: usize, deadlock: &Deadlock, printer: &Printer) -> String {
    let colour = match deadlock.certainty {
        Certainty::Certain => Severity::Serious,
        Certainty::Likely => Severity::Notice,
        Certainty::Possible => Severity::None,
    };
    let mut text = wrapped_for_stdout(&colour.paint_head(&described_ring(number, deadlock)), INDENT + 4);
    text.push_str(&printer.actions(cure(deadlock).as_slice()));
    text
}

/// Returns what ends a ring: what it does, and the command.
pub(crate) fn cure(deadlock: &Deadlock) -> Option<Action> {
    let victim = deadlock.victim()?;
    let node = victim.contender.node_path(&victim.path);
    let options = ["--node", node.as_str(), "--reason", "deadlock"];
    let (what, verb) = match can_be_asked(&victim.contender) {
        true if victim.contender.owner.is_none() => {
            ("ask one of them, a foreign client, which may not listen", "revoke")
        }
        true => ("ask one of them to release its lock", "revoke"),
        false if victim.contender.revocation.is_some() => {
            ("break the lock of one of them, which was asked and has not answered", "break")
        }
        false => ("break the lock of one of them, which understands no request", "break"),
    };
    Some((what, Suggested::new([verb, victim.path.as_str()]).with(options)))
}

/// Returns the lines about a ring: how sure it is, and each of its contenders.
pub(crate) fn described_ring(number: usize, deadlock: &Deadlock) -> String {
    let since = deadlock.since().map_or_else(String::new, |since| format!(" since {}", moment(since)));
    let count = counted(deadlock.ring.len() as u64, "contender");
    let mut text = match deadlock.certainty {
        Certainty::Certain => format!("#{number}  certain: {count} wait for each other in a ring{since}\n"),
        Certainty::Likely => format!(
            "#{number}  likely: {count} wait for each other in a ring{since}, if the sessions in it are processes with one thread\n"
        ),
        Certainty::Possible => format!(
            "#{number}  possible: {count} wait for each other in a ring{since}, if the thread that holds is the one that waits; a session in it has several waits\n"
        ),
    };
    for party in &deadlock.ring {
        text.push_str(&line(party));
    }
    text
}

/// `    build@ci-7 (pid 4711) holds /locks/a since 10:42:03, waits for /locks/b since 10:43:11 (nightly index)`; with the contender that
/// waits if that is another one, as of a run in the command of another one. Its message comes before that of the holder.
fn line(Party { holds, waits, .. }: &Party) -> String {
    let contender = &waits.contender;
    let waiter = described(contender);
    let mut line = match holds {
        Some(hold) => {
            let (holder, since) = (described(&hold.contender), hold.contender.bounds(moment).unwrap_or_default());
            let since = since.replacen(", held since", " since", 1);
            let other = if holder == waiter { String::new() } else { format!(" {waiter}") };
            format!("    {holder} holds {}{since},{other} waits", hold.path)
        }
        None => format!("    {waiter} is ahead in the queue, waits"),
    };
    // Writing to a string never fails.
    _ = write!(line, " for {} since {}", waits.path, moment(contender.since));
    if contender.owner.is_none() {
        _ = write!(line, ", session {}", contender.session);
    }
    // A run in the command of another one seldom has a message of its own.
    let of_hold = holds.as_ref().and_then(|hold| hold.contender.message.as_ref());
    if let Some(message) = contender.message.as_ref().or(of_hold) {
        _ = write!(line, " ({})", excerpt(message));
    }
    plain(&line) + "\n"
}
