//! `lockkeeper list`: the locks that have holders, waiters or nodes without a session.

use std::fmt::Write as _;

use lockkeeper::admin::{LockInfo, Unreadable};
use serde::Serialize;

use crate::args::ask::ListArgs;
use crate::commands::realms::ask_each;
use crate::commands::show::inquire;
use crate::exit::Failure;
use crate::output::{self, Printer};
use crate::screen::INDENT;
use crate::servertime::ServerTime;
use crate::settings::{Part, Settings, list_root};
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
    let parts = Settings::read(args.connect, printer)?.parts(&root)?;
    if args.broken {
        return list_broken(&parts, &root, printer).await;
    }
    let answers = ask_each(&parts, printer, async |part| {
        inquire(&part.settings, async |admin| admin.survey(&part.root).await).await
    })
    .await?;
    let source = answers.source();
    let (mut locks, mut unreadable, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for (part, survey) in &answers.from {
        let here: Vec<_> = survey.locks.iter().filter(|lock| part.has(&lock.path)).cloned().collect();
        notes.extend(ServerTime::of(&here).note.filter(|note| !notes.contains(note)));
        locks.extend(here);
        unreadable.extend(survey.unreadable.iter().filter(|node| part.has(&node.path)).cloned());
    }
    if parts.len() > 1 {
        locks.sort_by(|one, other| one.path.cmp(&other.path));
    }
    for Unreadable { path, reason, .. } in &unreadable {
        printer.note(&format!("cannot read {path}, so locks there are not listed: {reason}"));
    }
    if printer.is_json() {
        let locks = locks.iter().map(LockView::of).collect();
        output::answer(&source, &LocksView { locks, unreadable: &unreadable })?;
    } else if locks.is_empty() {
        let readable = if unreadable.is_empty() { "" } else { " that this client may read" };
        printer.note(&format!("no lock{readable} at or below {root} has a holder or a waiter on {source}"));
    } else {
        printer.scope(&source);
        notes.iter().for_each(|note| printer.note(note));
        output::lines(&locks.iter().map(|lock| line(lock) + "\n").collect::<String>(), INDENT)?;
    }
    answers.end(0, printer)
}

#[derive(Serialize)]
struct BrokenListing<'a> {
    broken: Vec<BrokenView<'a>>,
}

/// Lists the contenders that were removed from locks.
async fn list_broken(parts: &[Part], root: &str, printer: &Printer) -> Result<u8, Failure> {
    let answers = ask_each(parts, printer, async |part| {
        inquire(&part.settings, async |admin| admin.broken(&part.root).await).await
    })
    .await?;
    let source = answers.source();
    let broken = answers.from.iter().flat_map(|(part, broken)| broken.iter().filter(|broken| part.has(&broken.path)));
    let mut broken: Vec<_> = broken.collect();
    if parts.len() > 1 {
        broken.sort_by_key(|broken| broken.at);
    }
    if printer.is_json() {
        output::answer(&source, &BrokenListing { broken: broken.into_iter().map(BrokenView::of).collect() })?;
    } else if broken.is_empty() {
        printer.note(&format!("no lock at or below {root} was broken recently on {source}"));
    } else {
        printer.scope(&source);
        output::lines(&broken.into_iter().map(|broken| broken_line(broken) + "\n").collect::<String>(), INDENT)?;
    }
    answers.end(0, printer)
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
