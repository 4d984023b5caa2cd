//! `lockkeeper list`: the locks that have holders, waiters or nodes without a session.

use std::fmt::Write as _;

use lockkeeper::admin::{LockInfo, Unreadable};
use serde::Serialize;

use crate::args::ask::ListArgs;
use crate::commands::show::inquire;
use crate::exit::Failure;
use crate::output::{self, Printer};
use crate::screen::INDENT;
use crate::servertime::ServerTime;
use crate::settings::{Settings, list_root};
use crate::text::{broken_line, counted, permits, plain, stuck, term, wanted, who};
use crate::views::{BrokenView, LockView};

#[derive(Serialize)]
struct LocksView<'a> {
    locks: Vec<LockView<'a>>,
    unreadable: &'a [Unreadable],
}

/// Lists locks; returns the exit status.
pub(crate) async fn list(args: ListArgs, printer: &Printer) -> Result<u8, Failure> {
    let root = list_root(args.prefix.as_deref())?;
    let settings = Settings::read(args.connect, printer)?.at([root.as_str()])?;
    if args.broken {
        return list_broken(&settings, root, printer).await;
    }
    let at = root.clone();
    let survey = inquire(&settings, async move |admin| admin.survey(&at).await).await?;
    for Unreadable { path, reason, .. } in &survey.unreadable {
        printer.note(&format!("cannot read {path}, so locks there are not listed: {reason}"));
    }
    let locks = survey.locks;
    if printer.is_json() {
        let locks = locks.iter().map(LockView::of).collect();
        output::answer(&settings.place, &LocksView { locks, unreadable: &survey.unreadable })?;
        return Ok(0);
    }
    if locks.is_empty() {
        printer.note(&format!("no lock at or below {root} has a holder or a waiter on {}", settings.place));
        return Ok(0);
    }
    printer.scope(&settings.place);
    ServerTime::of(&locks).note.iter().for_each(|note| printer.note(note));
    output::lines(&locks.iter().map(|lock| line(lock) + "\n").collect::<String>(), INDENT)?;
    Ok(0)
}

#[derive(Serialize)]
struct BrokenListing<'a> {
    broken: Vec<BrokenView<'a>>,
}

/// Lists the contenders that were removed from locks.
async fn list_broken(settings: &Settings, root: String, printer: &Printer) -> Result<u8, Failure> {
    let at = root.clone();
    let broken = inquire(settings, async move |admin| admin.broken(&at).await).await?;
    if printer.is_json() {
        output::answer(&settings.place, &BrokenListing { broken: broken.iter().map(BrokenView::of).collect() })?;
    } else if broken.is_empty() {
        printer.note(&format!("no lock at or below {root} was broken recently on {}", settings.place));
    } else {
        printer.scope(&settings.place);
        output::lines(&broken.iter().map(|broken| broken_line(broken) + "\n").collect::<String>(), INDENT)?;
    }
    Ok(0)
}

/// `/locks/nightly  held by build@ci-7 (pid 4711) since 10:42:03 (nightly index), 3 waiting`
fn line(lock: &LockInfo) -> String {
    let mut line = plain(&lock.path);
    match lock.holders.split_first() {
        Some((first, others)) => {
            _ = write!(line, "  held by {}", who(first));
            if !others.is_empty() {
                _ = write!(line, " and {} more", others.len());
            }
        }
        None => match stuck(lock) {
            Some(stuck) => _ = write!(line, "  {stuck}"),
            None => line.push_str("  free"),
        },
    }
    if let Some(permits) = permits(lock) {
        _ = write!(line, ", {permits}");
    }
    if let Some(lease) = &lock.lease {
        _ = write!(line, ", {}", term(lease));
        if let Some(requestor) = &lease.requestor {
            _ = write!(line, ", {}", wanted(requestor));
        }
    }
    if !lock.waiters.is_empty() {
        _ = write!(line, ", {} waiting", lock.waiters.len());
    }
    if !lock.sessionless.is_empty() {
        _ = write!(line, ", {} without a session", counted(lock.sessionless.len() as u64, "node"));
    }
    line
}
