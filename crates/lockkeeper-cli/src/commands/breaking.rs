//! `lockkeeper break`: removes a holder or a waiter by force, after a person's confirmation.
//!
//! It removes exactly the node that the person saw and confirmed, never a later one.

use lockkeeper::admin::{Admin, ContenderInfo, LockInfo};
use lockkeeper::error::{AdminError, Misuse};

use crate::args::ask::BreakArgs;
use crate::commands::show::inquire;
use crate::confirm;
use crate::exit::{Code, Failure};
use crate::output::{self, Printer};
use crate::settings::{Settings, lock_path, node_name};
use crate::text::{plain, who};
use crate::views::BrokenView;

/// Breaks a lock; returns the exit status.
pub(crate) async fn break_lock(args: BreakArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    if args.reason.trim().is_empty() {
        return Err(Misuse::no_reason(&path).into());
    }
    // Checked before any server is contacted.
    confirm::possible("break", args.yes)?;
    let settings = Settings::read(args.connect, printer)?.at([path.as_str()])?;
    let at = path.clone();
    let node = args.node;
    let choosing = async move |admin: Admin| choose(admin.show(&at).await?, node.as_deref());
    let (target, holds) = inquire(&settings, choosing).await?;
    if !args.yes && !agreed(&path, &target, holds) {
        return Err(Failure::new(Code::NoSuchLock, "nothing was broken"));
    }
    let reason = args.reason;
    let broken = inquire(&settings, async move |admin| admin.evict(&path, &target, &reason).await).await?;
    if printer.is_json() {
        output::answer(&settings.place, &BrokenView::of(&broken))?;
    } else {
        let what = if broken.held { "was taken from" } else { "no longer has the waiter" };
        let on = printer.at(&settings.place).on_place();
        printer.note(&format!("{} {what} {}{on}", broken.path, broken.described));
    }
    Ok(0)
}

/// Returns the contender to remove, and whether it holds: the one with this node's name or path, or the only holder.
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
    let mut all = holders.chain(lock.waiters.into_iter().map(|waiter| (waiter, false)));
    all.find(|(contender, _)| contender.node == name)
        .ok_or_else(|| AdminError::NotContending { path: path.clone(), node: name.to_owned() })
}

/// Asks for a confirmation on the terminal.
fn agreed(path: &str, target: &ContenderInfo, holds: bool) -> bool {
    let role = if holds { "is held by" } else { "is waited for by" };
    confirm::agreed(&format!(
        "{} {role} {}\nIt is notified, but what it is doing at this moment is not undone. Break it?",
        plain(path),
        who(target)
    ))
}
