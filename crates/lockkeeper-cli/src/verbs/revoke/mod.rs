//! `lockkeeper revoke`: asks the holders of a lock to release it, and prints their answers.

use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::admin::{Admin, Asked, ContenderJson, RevokeAnswer};
use lockkeeper::error::AdminError;
use lockkeeper_session::text::{excerpt, spell};
use serde::Serialize;

use crate::advice::Suggested;
use crate::args::common::Common;
use crate::args::values::{Completes, duration};
use crate::exit::{Code, Failure, removing};
use crate::inquiry::inquire;
use crate::output::{self, Printer};
use crate::settings::{Settings, lock_path, node_name};
use crate::statuses::{Status, Statuses, help};
use crate::text::described;
use crate::verb::{Context, Verb};

/// The exit statuses of `lockkeeper revoke`.
const STATUSES: &[Status] = &[
    (Code::Done, "asked; with --wait, all of them have released the lock", ""),
    (Code::NoSuchLock, "there is no contender to ask", ""),
    (Code::Declined, "with --wait: at least one of them refused", ""),
    (Code::NotAcquired, "with --wait: not all of them answered in time", ""),
    (Code::Refused, "the server refused, or a foreign client knows no such request", ""),
];

/// `lockkeeper revoke`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
A revoke takes nothing by force. A command under lockkeeper run gets the signal of its --on-revoke, and the lock is free when it has \
ended. To remove a holder by force: lockkeeper break.", "\
Examples:
  lockkeeper revoke nightly --reason 'the host reboots'
  lockkeeper revoke nightly --wait 30s"))]
pub(crate) struct RevokeArgs {
    /// The lock
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Ask the contender of this node, as show prints it; a waiter withdraws [default: all holders]
    #[arg(long, value_name = "NODE", add = Completes::Nodes)]
    pub node: Option<String>,
    /// Send this reason
    #[arg(long, short, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait for the answers, at most this long [default: does not wait]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<std::time::Duration>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for RevokeArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        revoke(self, context.printer).await
    }
}

#[derive(Serialize)]
struct Report<'a> {
    path: &'a str,
    asked: Vec<AskedView<'a>>,
}

/// A contender that was asked, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct AskedView<'a> {
    #[serde(flatten)]
    contender: ContenderJson<'a>,
    /// `null` if the command did not wait for it.
    answer: Option<&'static str>,
    refusal: Option<&'a str>,
}

/// Asks the holders; returns the exit status.
async fn revoke(args: RevokeArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let printer = &printer.at(&settings.place);
    let node = args.node.as_deref().map(|node| node_name(&path, node));
    let reason = args.reason.as_deref().filter(|reason| !reason.trim().is_empty());
    let asking = inquire(&settings, async |admin| {
        let asked = ask(&admin, &path, node, reason).await?;
        if !printer.is_json() {
            for asked in &asked {
                let contender = asked.contender();
                let why = contender.message.as_deref().map_or_else(String::new, |why| format!(" ({})", excerpt(why)));
                let who = described(contender);
                if let Some(cause) = why_unheard(asked) {
                    let remove = printer.command(&removing(&path, contender), std::io::stderr());
                    printer.note(&format!(
                        "{who}{why} cannot release {path}{}: {cause}; to remove it: {remove}",
                        printer.on_place()
                    ));
                    continue;
                }
                printer.note(&format!("asked {who}{why} to release {path}{}", printer.on_place()));
            }
        }
        if let (false, None, [first, _, ..]) = (printer.is_json(), node, &asked[..]) {
            let node = first.contender().node_path(&path);
            let one = Suggested::new(["revoke", path.as_str(), "--node", node.as_str()]);
            let command = printer.command(&one, std::io::stderr());
            printer.note(&format!("all {} holders were asked; to ask one of them: {command}", asked.len()));
        }
        let answers = match args.wait {
            Some(wait) => Some(hear(&asked, wait, printer).await?),
            None => None,
        };
        Ok((asked, answers))
    });
    let (asked, answers) = asking.await?;
    if printer.is_json() {
        let answers = answers.iter().flatten().map(Some).chain(std::iter::repeat(None));
        let asked = asked.iter().zip(answers).map(|(asked, answer)| view(&path, asked, answer)).collect();
        output::answer(&settings.place, &Report { path: &path, asked })?;
    }
    Ok(status(answers.as_deref().unwrap_or_default()))
}

/// Sends the request to one contender, or to all holders.
async fn ask(admin: &Admin, path: &str, node: Option<&str>, reason: Option<&str>) -> Result<Vec<Asked>, AdminError> {
    let asked = match node {
        Some(node) => vec![admin.revoke_node(path, node, reason).await?],
        None => admin.revoke(path, reason).await?,
    };
    if asked.is_empty() {
        return Err(AdminError::NobodyHolds { path: path.to_owned() });
    }
    Ok(asked)
}

/// Returns why no process can obey a request, if so.
fn why_unheard(asked: &Asked) -> Option<&'static str> {
    match asked.contender().abandoned {
        true => Some("no process holds it, and its lock delay is not over"),
        false => asked.process_had_ended().then_some("its process has ended"),
    }
}

/// Waits for all answers, and prints each one when it comes.
async fn hear(asked: &[Asked], wait: Duration, printer: &Printer) -> Result<Vec<RevokeAnswer>, AdminError> {
    let answers = asked.iter().map(async |asked| {
        let answer = asked.answer(wait).await?;
        if !printer.is_json() {
            let (who, is_abandoned) = (&asked.contender().described, asked.contender().abandoned);
            printer.note(&match &answer {
                RevokeAnswer::Released if is_abandoned => format!("{who}: the hold delays no other one any more"),
                // No process was left to release it.
                RevokeAnswer::Released if asked.process_had_ended() => {
                    format!("the session of {who} has ended, so it no longer holds it or waits for it")
                }
                RevokeAnswer::Released => format!("{who} has released it"),
                RevokeAnswer::Refused(why) => format!("{who} refuses: {why}"),
                _ if why_unheard(asked).is_some() => format!("{who} is still there after {}", spell(wait)),
                _ => format!("no answer within {} from {who}", spell(wait)),
            });
        }
        Ok(answer)
    });
    join_all(answers).await.into_iter().collect()
}

fn view<'a>(path: &str, asked: &'a Asked, answer: Option<&'a RevokeAnswer>) -> AskedView<'a> {
    let (answer, refusal) = match answer {
        None => (None, None),
        Some(RevokeAnswer::Released) => (Some("released"), None),
        Some(RevokeAnswer::Refused(why)) => (Some("refused"), Some(why.as_str())),
        Some(_) => (Some("none"), None),
    };
    let mut contender = asked.contender().json(path);
    contender.process_gone = asked.process_had_ended();
    AskedView { contender, answer, refusal }
}

/// Returns the exit status. A refusal counts more than a missing answer, because waiting does not change it.
fn status(answers: &[RevokeAnswer]) -> u8 {
    if answers.iter().any(|answer| matches!(answer, RevokeAnswer::Refused(_))) {
        Code::Declined.status()
    } else if answers.iter().any(|answer| !matches!(answer, RevokeAnswer::Released)) {
        Code::NotAcquired.status()
    } else {
        0
    }
}
