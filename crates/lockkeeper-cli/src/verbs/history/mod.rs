//! `lockkeeper history`: the holds of a lock that are over, how each ended, and who was refused.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use lockkeeper::admin::LockInfo;
use lockkeeper::error::AdminError;
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_history::{Entry, Flapping, Habits, History};
use lockkeeper_jobs::known_server_now_ms;
use serde::Serialize;

use crate::advice::Suggested;
use crate::args::common::Common;
use crate::args::values::{Completes, positive_duration};
use crate::colour::Severity;
use crate::exit::{Code, Failure};
use crate::inquiry::{connect_to_ask, inquire_of};
use crate::output::{self, Printer};
use crate::pastview::{self, EntryView, Row};
use crate::realms::ask_each;
use crate::screen::{INDENT, Size, wrapped_for_stdout};
use crate::settings::{Settings, list_root, lock_path};
use crate::statuses::{Status, Statuses, help};
use crate::verb::{Context, Verb};

/// The exit statuses of `lockkeeper history`.
const STATUSES: &[Status] = &[(Code::Done, "printed, even if nothing is recorded", "")];

/// `lockkeeper history`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
The last 16 holds and 8 groups of refusals of a lock are kept, for at most 1024 locks. lockkeeper run records its holds with the \
release, unless --no-history or the setting history switches that off. Programs record theirs only if they ask for it. Foreign \
clients never do: of them the history knows what the next holder saw.", "\
Examples:
  lockkeeper history nightly
  lockkeeper history leader --since 1h
  lockkeeper history --all --since 1d
  lockkeeper history nightly --follow"))]
pub(crate) struct HistoryArgs {
    /// The lock; with --all, where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(required_unless_present = "all")]
    #[arg(add = Completes::Locks)]
    pub name: Option<String>,
    /// Show the history of all locks
    #[arg(long)]
    pub all: bool,
    /// Show only what ended within this time
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub since: Option<Duration>,
    /// Print the oldest first, and go on with each new entry
    #[arg(long, short, conflicts_with = "all")]
    pub follow: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for HistoryArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        history(self, context.printer).await
    }
}

/// As many holds of a lock are kept.
const KEPT: usize = 16;

#[derive(Serialize)]
struct HistoryDocument<'a> {
    /// The lock now; absent for several locks.
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<&'a LockInfo>,
    entries: Vec<EntryView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flapping: Option<Flapping>,
}

/// Shows the history; returns the exit status.
async fn history(args: HistoryArgs, printer: &Printer) -> Result<u8, Failure> {
    match &args.name {
        _ if args.all => of_all(args, printer).await,
        Some(name) if args.follow => follow(lock_path(name)?.to_string(), &args, printer).await,
        Some(name) => of_one(lock_path(name)?.to_string(), &args, printer).await,
        None => Err(Failure::new(Code::Usage, "history needs the NAME of a lock, or --all")),
    }
}

/// What is asked about one lock: its entries, its holders, and the servers' time.
pub(crate) struct Answer {
    pub entries: Vec<Entry>,
    pub lock: Option<LockInfo>,
    pub now: SystemTime,
}

/// Asks about one lock.
///
/// # Errors
/// The server refuses the reads or cannot be reached.
pub(crate) async fn ask(keeper: &Lockkeeper, path: &str) -> Result<Answer, Error> {
    let (history, admin) = (History::new(keeper), keeper.admin());
    let (entries, lock, now) = tokio::join!(history.of(path), admin.show(path), known_server_now_ms(keeper));
    let lock = match lock {
        // The servers delete the node of a lock that nobody uses.
        Err(AdminError::NoSuchLock { .. }) => None,
        lock => Some(lock?),
    };
    let (entries, mut lock) = (entries?, lock);
    lock.iter_mut().for_each(|lock| Habits::of(&entries, None).date(lock));
    Ok(Answer { entries, lock, now: server_time(now.ok().flatten()) })
}

/// The servers' time, or this machine's if they do not say it.
fn server_time(ms: Option<i64>) -> SystemTime {
    let ms = ms.and_then(|ms| u64::try_from(ms).ok());
    ms.map_or_else(SystemTime::now, |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

async fn of_one(path: String, args: &HistoryArgs, printer: &Printer) -> Result<u8, Failure> {
    let settings = Settings::read(args.common.connect.clone(), printer)?.at([path.as_str()]).await?;
    let printer = &printer.at(&settings.place);
    let at = path.clone();
    let answer = inquire_of(&settings, async move |keeper| ask(&keeper, &at).await).await?;
    let Answer { mut entries, lock, now } = answer;
    let flapping = Flapping::of(&entries, now);
    let kept = entries.iter().filter(|entry| entry.hold().is_some()).count();
    let all = entries.len();
    retain_since(&mut entries, args.since, now);
    if printer.is_json() {
        let free = LockInfo::unused(&path);
        let lock = Some(lock.as_ref().unwrap_or(&free));
        let entries = entries.iter().filter_map(EntryView::of).collect();
        output::answer(&settings.place, &HistoryDocument { lock, entries, flapping })?;
        return Ok(0);
    }
    let holders = lock.iter().flat_map(|lock| &lock.holders).map(|holder| Row::held_now(&path, holder, now));
    let rows: Vec<_> = holders.chain(entries.iter().map(Row::of)).collect();
    if rows.is_empty() {
        printer.note(&nothing(&path, args.since, all));
        return Ok(0);
    }
    printer.scope(&settings.place);
    let mut text = pastview::table(rows, false, columns());
    if let Some(flapping) = &flapping {
        text += &wrapped_for_stdout(&Severity::Serious.paint_head(&pastview::flapping(flapping)), INDENT);
    }
    if kept >= KEPT && entries.len() == all {
        text += &wrapped_for_stdout("older holds are not kept\n", INDENT);
    }
    output::styled(&text)?;
    Ok(0)
}

/// Says that there is nothing, and what that means.
fn nothing(path: &str, since: Option<Duration>, all: usize) -> String {
    match since {
        Some(since) if all > 0 => {
            let since = lockkeeper_session::text::spell(since);
            format!("nothing is recorded about {path} within the last {since}; without --since there is more")
        }
        _ => format!(
            "nothing is recorded about {path}: lockkeeper run records its holds and refusals, programs only if they ask for it, and foreign clients never"
        ),
    }
}

async fn of_all(args: HistoryArgs, printer: &Printer) -> Result<u8, Failure> {
    if args.follow {
        return Err(Failure::new(Code::Usage, "--follow follows the history of one lock")
            .hint("name the lock, and leave out --all"));
    }
    let root = list_root(args.name.as_deref())?;
    let parts = Settings::read(args.common.connect, printer)?.parts(&root).await?;
    let answers = ask_each(&parts, printer, async |part| {
        inquire_of(&part.settings, async |keeper| {
            let entries = History::new(&keeper).below(&part.root).await?;
            let now = server_time(known_server_now_ms(&keeper).await.ok().flatten());
            Ok::<_, Error>((entries, now))
        })
        .await
    })
    .await?;
    let source = answers.source();
    let mut entries = Vec::new();
    for (part, (listed, now)) in &answers.from {
        let mut listed: Vec<_> = listed.iter().filter(|entry| part.has(entry.path())).cloned().collect();
        retain_since(&mut listed, args.since, *now);
        entries.extend(listed);
    }
    entries.sort_by_key(Entry::at);
    if printer.is_json() {
        let entries = entries.iter().filter_map(EntryView::of).collect();
        output::answer(&source, &HistoryDocument { lock: None, entries, flapping: None })?;
    } else if entries.is_empty() {
        let within = args
            .since
            .map_or_else(String::new, |since| format!(" within the last {}", lockkeeper_session::text::spell(since)));
        printer.note(&format!("nothing is recorded about locks at and below {root} on {source}{within}"));
    } else {
        printer.scope(&source);
        let rows: Vec<_> = entries.iter().map(Row::of).collect();
        output::styled(&pastview::table(rows, true, columns()))?;
    }
    answers.end(0, printer)
}

fn retain_since(entries: &mut Vec<Entry>, since: Option<Duration>, now: SystemTime) {
    if let Some(from) = since.and_then(|since| now.checked_sub(since)) {
        entries.retain(|entry| entry.at() >= from);
    }
}

/// Returns the columns of standard output, if that is a terminal.
fn columns() -> Option<usize> {
    Size::of(std::io::stdout()).map(|size| size.columns)
}

/// Prints what is recorded, the oldest first, and then each new entry, until a signal ends it.
async fn follow(path: String, args: &HistoryArgs, printer: &Printer) -> Result<u8, Failure> {
    let settings = Settings::read(args.common.connect.clone(), printer)?.at([path.as_str()]).await?;
    let printer = &printer.at(&settings.place);
    let keeper = connect_to_ask(&settings).await?;
    if !printer.is_json() {
        printer.scope(&settings.place);
    }
    let mut follow = History::new(&keeper).follow(&path);
    let mut seen = HashSet::new();
    let mut since = args.since;
    loop {
        let read = follow.next().await;
        let mut entries = read.map_err(|error| {
            Failure::from(Error::from(error))
                .scoped(&settings.place)
                .advise("follow it again", Suggested::new(["history", path.as_str(), "--follow"]))
        })?;
        if let Some(since) = since.take() {
            let now = server_time(known_server_now_ms(&keeper).await.ok().flatten());
            retain_new(&entries, &mut seen);
            retain_since(&mut entries, Some(since), now);
        } else {
            let new = retain_new(&entries, &mut seen);
            entries.retain(|entry| new.contains(&key(entry)));
        }
        for entry in &entries {
            if printer.is_json() {
                EntryView::of(entry).iter().try_for_each(output::document)?;
            } else {
                output::styled(&pastview::line(entry, columns()))?;
            }
        }
        if output::is_reader_gone() {
            return Ok(0);
        }
    }
}

/// What tells an entry from others. That of a refusal changes when it is counted.
fn key(entry: &Entry) -> String {
    match entry {
        Entry::Hold(hold) => format!("h{:?}{:?}{}", hold.token, hold.granted, hold.described),
        Entry::Refused(refusal) => format!("r{:?}{:?}{}", refusal.last, refusal.owner, refusal.count),
        other => format!("b{:?}{}", other.at(), other.path()),
    }
}

/// Notes these entries as seen. Returns those that are new.
fn retain_new(entries: &[Entry], seen: &mut HashSet<String>) -> HashSet<String> {
    let now: HashSet<_> = entries.iter().map(key).collect();
    let new = now.difference(seen).cloned().collect();
    // Entries that are not kept any more never come back.
    *seen = now;
    new
}
