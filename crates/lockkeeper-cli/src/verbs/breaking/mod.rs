//! `lockkeeper break`: removes a holder or a waiter by force, after a person's confirmation.
//!
//! It removes exactly the node that the person saw and confirmed, never a later one.

use lockkeeper::admin::{Admin, ContenderInfo, LockInfo};
use lockkeeper::error::{AdminError, misuse};

use crate::args::common::Common;
use crate::args::values::Completes;
use crate::confirm;
use crate::exit::{Code, Failure};
use crate::inquiry::inquire;
use crate::output::{self, Printer};
use crate::settings::{Settings, lock_path, node_name};
use crate::statuses::{Status, Statuses, help};
use crate::text::{SESSIONLESS, held_by, plain, who};
use crate::verb::{Context, Verb};
use crate::views::BrokenView;

/// The exit statuses of `lockkeeper break`.
const STATUSES: &[Status] = &[
    (Code::Done, "the contender was removed", ""),
    (
        Code::NoSuchLock,
        "nothing was broken",
        "there is no such lock, it has no holder, the node is not a contender, or the answer to the question was not yes",
    ),
];

/// `lockkeeper break`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
The removed holder is notified, but it may be at work beside the next holder until it has stopped. Only a resource that checks \
LOCKKEEPER_TOKEN is safe then. The break is recorded, with its author and its reason: lockkeeper list --broken.", "\
Examples:
  lockkeeper break nightly --reason 'its host is down'"))]
pub(crate) struct BreakArgs {
    /// The lock
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Record this reason; not empty, at most 1024 bytes
    #[arg(long, short, value_name = "TEXT")]
    pub reason: String,
    /// Remove the contender of this node, as show prints it; it may also be a waiter [default: the only holder]
    #[arg(long, value_name = "NODE", add = Completes::Nodes)]
    pub node: Option<String>,
    /// Skip the confirmation
    #[arg(long, short)]
    pub yes: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for BreakArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        break_lock(self, context.printer).await
    }
}

/// Breaks a lock; returns the exit status.
async fn break_lock(args: BreakArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    if args.reason.trim().is_empty() {
        return Err(misuse::no_reason(&path).into());
    }
    // Checked before any server is contacted.
    confirm::possible("break", args.yes)?;
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let at = path.clone();
    let node = args.node;
    let choosing = async move |admin: Admin| choose(admin.show(&at).await?, node.as_deref());
    let (target, holds) = inquire(&settings, choosing).await?;
    let notice = notified(&target);
    let is_foreign = target.owner.is_none() && !target.session.is_none();
    if !args.yes && !agreed(&path, &target, holds) {
        return Err(Failure::new(Code::NoSuchLock, "nothing was broken"));
    }
    let reason = args.reason;
    let broken = inquire(&settings, async move |admin| admin.evict(&path, &target, &reason).await).await?;
    if printer.is_json() {
        output::answer(&settings.place, &BrokenView::of(&broken))?;
    } else {
        let what = match (broken.held, broken.session.is_none()) {
            (true, _) => "was taken from",
            (false, true) => "no longer has",
            (false, false) => "no longer has the waiter",
        };
        let on = printer.at(&settings.place).on_place();
        printer.note(&format!("{} {what} {}{on}", broken.path, broken.described));
        if is_foreign {
            printer.note(notice);
        }
    }
    Ok(0)
}

/// Returns the contender or the node without a session to remove, and whether it holds: the one with this node's name or
/// path, or the only holder.
fn choose(mut lock: LockInfo, node: Option<&str>) -> Result<(ContenderInfo, bool), AdminError> {
    let path = lock.path;
    let Some(node) = node else {
        return match lock.holders.len() {
            0 => Err(AdminError::NobodyHolds { path }),
            1 => Ok((lock.holders.remove(0), true)),
            _ => Err(AdminError::SeveralHold { path, holders: lock.holders }),
        };
    };
    let name = node_name(&path, node);
    let holders = lock.holders.into_iter().map(|holder| (holder, true));
    let all = holders.chain(lock.waiters.into_iter().map(|waiter| (waiter, false)));
    all.chain(lock.sessionless.into_iter().map(|node| (node, false)))
        .find(|(contender, _)| contender.node == name)
        .ok_or_else(|| AdminError::NotContending { path: path.clone(), node: name.to_owned() })
}

/// Asks for a confirmation on the terminal.
fn agreed(path: &str, target: &ContenderInfo, holds: bool) -> bool {
    let role = if holds { held_by(0) } else { "waited for by" };
    let path = plain(path);
    let shown = match target.session.is_none() && target.mode != "lease" {
        true => format!("{}: {SESSIONLESS}", plain(&target.node_path(&path))),
        false => format!("{path} is {role} {}", who(target)),
    };
    confirm::agreed(&format!("{shown}\n{}. Break it?", notified(target)))
}

/// Returns whether the client of a removed node learns of it.
fn notified(target: &ContenderInfo) -> &'static str {
    if target.mode == "lease" {
        "Its owner learns of it if it watches the lock's node, as Lockkeeper does; what it is doing at this moment is not undone"
    } else if target.session.is_none() {
        "No client has this node"
    } else if target.owner.is_some() {
        "Its client is notified, unless it is stopped, but what it is doing at this moment is not undone"
    } else {
        "Its client is a foreign one, which may not notice: it is not told, its session goes on, and it may work on"
    }
}
