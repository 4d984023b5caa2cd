//! `lockkeeper list`: the locks that have holders, waiters or nodes without a session.

#[cfg(feature = "top")]
use std::io::IsTerminal;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::Lockkeeper;
use lockkeeper::admin::Unreadable;
use lockkeeper_observe::servers::{self, ServerMode, ServerReport};
use lockkeeper_observe::table::LockRow;
use serde::Serialize;

use crate::args::common::Common;
use crate::args::values::{Completes, duration};
use crate::evidence::Look;
use crate::exit::Failure;
use crate::inquiry::{inquire, inquire_of};
use crate::output::{self, Printer};
use crate::place::Place;
use crate::realms::ask_each;
use crate::screen::{INDENT, Size};
use crate::settings::{Part, Settings, list_root};
use crate::table::{recorded, table};
use crate::text::{broken_line, counted, plain};
use crate::verb::{Context, Verb};
use crate::views::BrokenView;
#[cfg(feature = "top")]
use tokio::time::{Instant, MissedTickBehavior};

#[cfg(feature = "top")]
use crate::{
    exit::Code,
    live::{Pace, Snapshot, follow},
    table::judge,
};

/// `lockkeeper list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockkeeper list
  lockkeeper list team --waiting
  lockkeeper list --sort held")]
pub(crate) struct ListArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// List the contenders that break removed instead, the oldest first
    #[arg(long)]
    pub broken: bool,
    /// Sort by this, the most first: the longest wait, the longest hold, contenders per hour; or by name
    #[arg(long, value_name = "BY", value_enum, default_value = "name")]
    pub sort: ListOrder,
    /// Draw the list again after each change, until Ctrl-C
    #[cfg(feature = "top")]
    #[arg(long, conflicts_with_all = ["broken", "json"])]
    pub watch: bool,
    /// List only locks with waiters
    #[arg(long)]
    pub waiting: bool,
    /// List only locks that were held, or waited for, for at least this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub longer: Option<std::time::Duration>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for ListArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        list(self, context.printer).await
    }
}

/// What `lockkeeper list` sorts by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ListOrder {
    /// The names of the locks
    #[default]
    Name,
    /// The longest wait
    Wait,
    /// The longest hold
    Held,
    /// Contenders per hour
    Rate,
}

#[derive(Serialize)]
struct LocksView<'a> {
    locks: &'a [LockRow<'a>],
    unreadable: &'a [Unreadable],
}

/// Lists locks; returns the exit status.
async fn list(args: ListArgs, printer: &Printer) -> Result<u8, Failure> {
    let root = list_root(args.prefix.as_deref())?;
    let (sort, waiting, longer) = (args.sort, args.waiting, args.longer);
    let parts = Settings::read(args.common.connect, printer)?.parts(&root).await?;
    if args.broken {
        return list_broken(&parts, &root, printer).await;
    }
    #[cfg(feature = "top")]
    if args.watch {
        return watch(&parts, |rows| select(rows, sort, waiting, longer)).await;
    }
    let size = Size::of(std::io::stdout()).filter(|_| !printer.is_json());
    let state = async {
        match size {
            Some(_) => servers_line(&parts).await,
            None => None,
        }
    };
    let (answers, state) = tokio::join!(
        ask_each(&parts, printer, async |part| {
            inquire_of(&part.settings, async |keeper: Lockkeeper| Look::at(&keeper, part).await).await
        }),
        state
    );
    let mut answers = answers?;
    let source = answers.source();
    let mut rows = Vec::new();
    let (mut unreadable, mut notes, mut numbered) = (Vec::new(), Vec::new(), 0);
    for (part, found) in &mut answers.from {
        found.locks.retain(|lock| part.has(&lock.path));
        unreadable.extend(found.unreadable.iter().filter(|node| part.has(&node.path)).cloned());
        notes.extend(found.time.note.take().filter(|note| !notes.contains(note)));
    }
    for (_, found) in &answers.from {
        // Each realm has its own deadlocks; a number names one of all.
        rows.extend(found.locks.iter().map(|lock| {
            let recorded = recorded(found.habits.get(&lock.path));
            LockRow::of(lock, found.time.now, recorded, &found.deadlocks).after(numbered)
        }));
        numbered += found.deadlocks.len();
    }
    let total = rows.len();
    select(&mut rows, sort, waiting, longer);
    for Unreadable { path, reason, .. } in &unreadable {
        printer.note(&format!("cannot read {path}, so locks there are not listed: {reason}"));
    }
    if printer.is_json() {
        output::answer(&source, &LocksView { locks: &rows, unreadable: &unreadable })?;
    } else if rows.is_empty() {
        let readable = if unreadable.is_empty() { "" } else { " that this client may read" };
        let none = format!("no lock{readable} at or below {root} has a holder or a waiter on {source}");
        let others = format!("none of the {total} locks in use at or below {root} is one of those on {source}");
        printer.note(if total == 0 { &none } else { &others });
    } else {
        printer.scope(&source);
        notes.iter().for_each(|note| printer.note(note));
        let used = counted(total as u64, "lock");
        let end = state.map_or_else(String::new, |state| format!("{state}, {used} in use\n"));
        output::styled(&(table(&rows, size) + &end))?;
    }
    answers.end(0, printer)
}

/// How long the servers of a line below the table have to answer: the table does not wait for a server that hangs.
const ASKING: Duration = Duration::from_millis(500);

/// `3 of 3 servers, leader zk2:2181 (4 ms)`; `None` for servers of this machine, which a line on standard error names.
async fn servers_line(parts: &[Part]) -> Option<String> {
    let asked = parts.iter().filter_map(|part| match &part.settings.place {
        Place::Ensemble(servers) => Some((part, servers)),
        Place::Machine(_) => None,
    });
    let asked = asked.map(async |(part, servers)| servers::ask(&part.settings.builder(), servers, ASKING).await.ok());
    let reports: Vec<_> = join_all(asked).await.into_iter().flatten().flatten().collect();
    let serves = reports.iter().filter(|report| report.state.may_serve()).count();
    let leads = |report: &&ServerReport| report.state.vitals().is_some_and(|it| it.mode == Some(ServerMode::Leader));
    let leader = reports.iter().find(leads).and_then(|report| Some((&report.name, report.state.vitals()?.round_trip)));
    let leader =
        leader.map_or_else(String::new, |(name, took)| format!(", leader {} ({} ms)", plain(name), took.as_millis()));
    (!reports.is_empty()).then(|| format!("{serves} of {} serve{leader}", counted(reports.len() as u64, "server")))
}

/// Keeps the rows that the options name, in their order.
fn select(rows: &mut Vec<LockRow<'_>>, sort: ListOrder, waiting: bool, longer: Option<Duration>) {
    rows.retain(|row| !waiting || !row.lock.waiters.is_empty());
    rows.retain(|row| {
        longer
            .is_none_or(|longer| row.held.map(|held| held.at_least).max(row.oldest).is_some_and(|time| time >= longer))
    });
    order(rows, sort);
}

/// Draws the table again after each change, and each second because of its times, until a signal ends this process or the pipe is closed.
#[cfg(feature = "top")]
async fn watch(parts: &[Part], select: impl Fn(&mut Vec<LockRow<'_>>)) -> Result<u8, Failure> {
    let (told, mut snapshots) = tokio::sync::watch::channel(None);
    let (_again, woken) = tokio::sync::watch::channel(());
    let (unwatched, mut unwatched_now) = tokio::sync::watch::channel(false);
    let mut following = std::pin::pin!(follow(parts, &told, woken, || _ = unwatched.send_replace(true)));
    let is_terminal = std::io::stdout().is_terminal();
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut latest: Option<std::sync::Arc<Snapshot>> = None;
    let mut pace = Pace::new();
    loop {
        tokio::select! {
            biased;
            () = &mut following => return Ok(0),
            Ok(()) = async { pace.due().await; snapshots.changed().await } => latest = snapshots.borrow_and_update().clone(),
            _ = async { pace.due().await; seconds.tick().await }, if is_terminal => {}
            Ok(()) = unwatched_now.changed() => {
                return Err(Failure::new(Code::Refused, "these servers have no watch of a tree").hint("it needs ZooKeeper 3.6"));
            }
        }
        let Some(snapshot) = &latest else { continue };
        let begun = Instant::now();
        let mut rows = snapshot.rows();
        select(&mut rows);
        let size = Size::of(std::io::stdout());
        // The last row is free, so that nothing scrolls.
        let shown = size.map_or(rows.len(), |size| size.rows.saturating_sub(2));
        judge(&mut rows, 0..shown, &snapshot.deadlocks);
        let mut text = output::shown(&table(&rows, size), &std::io::stdout()).into_owned();
        if let Some(size) = size {
            let kept: String = text.split_inclusive('\n').take(size.rows.saturating_sub(1)).collect();
            let cleared: String = kept.lines().map(|line| format!("{line}\x1b[K\n")).collect();
            text = format!("\x1b[H{cleared}\x1b[J");
        }
        for failure in &snapshot.failures {
            text.push_str(&format!("! {}\n", plain(failure)));
        }
        output::data(&text)?;
        if output::is_reader_gone() {
            return Ok(0);
        }
        pace.done(begun);
    }
}

/// Sorts the rows. What is not known comes last.
pub(crate) fn order(rows: &mut [LockRow<'_>], sort: ListOrder) {
    rows.sort_by(|one, other| one.lock.path.cmp(&other.lock.path));
    match sort {
        ListOrder::Name => {}
        ListOrder::Wait => rows.sort_by_key(|row| std::cmp::Reverse(row.oldest)),
        ListOrder::Held => rows.sort_by_key(|row| std::cmp::Reverse(row.held.map(|held| held.at_most))),
        ListOrder::Rate => {
            let rate = |row: &LockRow<'_>| row.per_hour.unwrap_or(-1.0);
            rows.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
        }
    }
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
