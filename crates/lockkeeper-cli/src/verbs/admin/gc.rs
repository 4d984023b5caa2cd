//! `lockkeeper admin gc`: lists what is left of locks, and deletes it on request.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use lockkeeper::admin::Admin;
use lockkeeper::error::AdminError;
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_gc::{Cleanup, Leftover, LeftoverKind, Leftovers, cleanups, leftovers, sweep};
use lockkeeper_session::ensemble::above;
use lockkeeper_session::text::spell;
use serde::Serialize;

use crate::advice::Suggested;
use crate::args::common::Common;
use crate::args::values::{Completes, duration};
use crate::exit::{Code, Failure};
use crate::inquiry::inquire_of;
use crate::output::{self, Printer};
use crate::place::Place;
use crate::realms::ask_each;
use crate::registers;
use crate::screen::{INDENT, Size, cut};
use crate::settings::{Part, Settings, list_root};
use crate::statuses::{Status, Statuses, help};
use crate::text::{counted, plain};
use crate::verb::{Context, Verb};
use crate::views::ByView;

/// The exit statuses of `lockkeeper admin gc`.
const STATUSES: &[Status] = &[
    (Code::Done, "listed, or deleted", ""),
    (Code::NoSuchLock, "some nodes changed after they were listed, and stay", ""),
    (Code::Refused, "the server refused", "what was deleted before is recorded"),
];

/// `lockkeeper admin gc`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
Without --empty, --garbage and --tombstones it only lists. Servers do not date the last use of a lock: it is dated by nodes that were \
written later. So a lock may be unused for longer than it is said to be, never for less. Each deletion checks that the node is as it was \
listed, and is recorded.", "\
Examples:
  lockkeeper admin gc
  lockkeeper admin gc team --empty --older-than 7d"))]
pub(crate) struct GcArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// Delete nodes of locks that are empty, and unused for --older-than
    #[arg(long)]
    pub empty: bool,
    /// Treat every node directly below PREFIX as a monitor object, as Contentserv's clients create them; only then may PREFIX be /
    #[arg(long, hide_short_help = true, requires = "prefix", conflicts_with = "log")]
    pub objects: bool,
    /// Delete nodes that are named as contenders and have no session: foreign clients wait behind them
    #[arg(long)]
    pub garbage: bool,
    /// Delete the tombstones of abandoned holds whose lock delay has passed
    #[arg(long)]
    pub tombstones: bool,
    /// Leave empty nodes that were used within this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1d")]
    pub older_than: Duration,
    /// List the recorded deletions of empty nodes and tombstones instead, the oldest first
    #[arg(long, hide_short_help = true, conflicts_with_all = ["empty", "garbage", "tombstones", "older_than"])]
    pub log: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for GcArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        gc(self, context.printer).await
    }
}

/// How many paths of a group are printed.
const SAMPLES: usize = 3;

/// The recorded reason of a deletion of a node without a session.
const REASON: &str = "lockkeeper admin gc --garbage: it has no session";

/// What becomes of a leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Group {
    /// An empty node, unused for long enough.
    Empty,
    /// A node with the name of a contender, without a session.
    Garbage,
    /// A tombstone whose delay has passed.
    Tombstones,
    /// An empty node that was used a short time ago, or at an unknown time.
    Recent,
    /// A tombstone whose delay may not have passed.
    Delaying,
    Note,
}

impl Group {
    /// Returns the group of a leftover, at this time of the servers.
    pub(crate) fn of(leftover: &Leftover, now_ms: i64, older_than: Duration) -> Self {
        match leftover.kind {
            LeftoverKind::Empty if leftover.is_unused(now_ms, older_than) => Group::Empty,
            LeftoverKind::Empty => Group::Recent,
            LeftoverKind::Sessionless => Group::Garbage,
            LeftoverKind::Tombstone { .. } if leftover.is_overdue(now_ms) => Group::Tombstones,
            LeftoverKind::Tombstone { .. } => Group::Delaying,
            _ => Group::Note,
        }
    }

    /// Returns the option that deletes it.
    const fn option(self) -> Option<&'static str> {
        match self {
            Group::Empty => Some("--empty"),
            Group::Garbage => Some("--garbage"),
            Group::Tombstones => Some("--tombstones"),
            Group::Recent | Group::Delaying | Group::Note => None,
        }
    }

    fn is_chosen(self, args: &GcArgs) -> bool {
        match self {
            Group::Empty => args.empty,
            Group::Garbage => args.garbage,
            Group::Tombstones => args.tombstones,
            Group::Recent | Group::Delaying | Group::Note => false,
        }
    }

    /// Says what this many are, and why they stay if no option deletes them.
    fn text(self, count: usize, older_than: Duration) -> String {
        let (many, of) = (count as u64, spell(older_than));
        match self {
            Group::Empty => format!("{}, unused for {of}", counted(many, "empty node")),
            Group::Garbage => format!("{} of a contender, without a session", counted(many, "node")),
            Group::Tombstones => format!("{}, past the lock delay", counted(many, "tombstone")),
            Group::Recent => format!("{}, not known to be unused for {of}", counted(many, "empty node")),
            Group::Delaying => format!("{}, not known to be past the lock delay", counted(many, "tombstone")),
            Group::Note => format!("{} with data of others", counted(many, "node")),
        }
    }
}

/// What was found in a realm, and deleted.
struct Collected {
    found: Leftovers,
    deleted: Vec<String>,
    changed: Vec<String>,
}

/// Lists leftovers, or deletes some; returns the exit status.
async fn gc(args: GcArgs, printer: &Printer) -> Result<u8, Failure> {
    let root = list_root(args.prefix.as_deref())?;
    if root == "/" && !args.objects && !args.log {
        return Err(Failure::new(
            Code::Usage,
            "an empty node outside of a directory of locks may be of another program",
        )
        .hint("name the directory of the locks, or give --objects if every node below / is a monitor object"));
    }
    let parts = Settings::read(args.common.connect.clone(), printer)?.parts(&root).await?;
    if args.log {
        return log(&parts, &root, printer).await;
    }
    let answers = ask_each(&parts, printer, async |part| {
        inquire_of(&part.settings, async |keeper| collect(&keeper, part, &root, &args).await).await
    })
    .await?;
    let source = answers.source();
    let collected: Vec<_> = answers.from.iter().map(|(_, collected)| collected).collect();
    for path in collected.iter().flat_map(|collected| &collected.found.unreadable) {
        printer.note(&format!("cannot read {path}, so what is left there is not listed"));
    }
    let changed: Vec<_> = collected.iter().flat_map(|collected| &collected.changed).collect();
    if printer.is_json() {
        output::answer(&source, &GcView::of(&collected, args.older_than))?;
    } else {
        printer.scope(&source);
        let text = text(&collected, &args, &root, printer);
        if text.is_empty() {
            printer.note(&format!("nothing is left below {root} on {source}"));
        }
        output::data(&text)?;
        for path in &changed {
            printer.note(&format!("{path} stays: it has changed since it was listed"));
        }
    }
    let status = if changed.is_empty() { Code::Done } else { Code::NoSuchLock };
    answers.end(status as u8, printer)
}

/// Returns the servers' time of a server of this machine.
pub(crate) fn time_of(place: &Place) -> Option<i64> {
    matches!(place, Place::Machine(_)).then(|| Timestamp::now().as_millisecond())
}

/// Looks for leftovers in a realm, and deletes the chosen ones.
async fn collect(keeper: &Lockkeeper, part: &Part, root: &str, args: &GcArgs) -> Result<Collected, Error> {
    let mut found = leftovers(keeper, &part.root, &registers::paths(), time_of(&part.settings.place)).await?;
    // The directory of all locks is no monitor object, also when it is empty.
    let locks = list_root(None).unwrap_or_default();
    let is_asked = |path: &str| !args.objects || above(path) == root && path != locks;
    found.nodes.retain(|leftover| part.has(&leftover.path) && is_asked(&leftover.path));
    let group = |leftover: &Leftover| Group::of(leftover, found.now_ms, args.older_than);
    let (mut garbage, mut others) = (Vec::new(), Vec::new());
    for leftover in found.nodes.iter().filter(|leftover| group(leftover).is_chosen(args)) {
        match leftover.kind {
            LeftoverKind::Sessionless => garbage.push(leftover),
            _ => others.push(leftover.clone()),
        }
    }
    let swept = sweep(keeper, &part.root, &others).await?;
    let (mut deleted, mut changed) = (swept.deleted, swept.changed);
    let admin = keeper.admin();
    for leftover in garbage {
        let list = if evict(&admin, leftover).await? { &mut deleted } else { &mut changed };
        list.push(leftover.path.clone());
    }
    Ok(Collected { found, deleted, changed })
}

/// Removes a node without a session from its lock; returns whether it was the one that was found.
async fn evict(admin: &Admin, leftover: &Leftover) -> Result<bool, AdminError> {
    let lock = above(&leftover.path);
    let removed = async {
        let seen = admin.show(lock).await?;
        let is_it = |node: &&lockkeeper::admin::ContenderInfo| {
            node.node_path(lock) == leftover.path && ms(node.since) == leftover.created_ms
        };
        let Some(node) = seen.sessionless.iter().find(is_it) else { return Ok(false) };
        admin.evict(lock, node, REASON).await.map(|_| true)
    };
    match removed.await {
        Err(AdminError::NotContending { .. } | AdminError::NoSuchLock { .. }) => Ok(false),
        removed => removed,
    }
}

fn ms(time: SystemTime) -> i64 {
    Timestamp::try_from(time).map_or(0, Timestamp::as_millisecond)
}

/// A line for each group, with the first paths of it, and the commands that delete them.
fn text(collected: &[&Collected], args: &GcArgs, root: &str, printer: &Printer) -> String {
    let columns = Size::of(std::io::stdout()).map_or(usize::MAX, |size| size.columns);
    let mut groups: BTreeMap<Group, Vec<&str>> = BTreeMap::new();
    for Collected { found, .. } in collected {
        for leftover in &found.nodes {
            groups.entry(Group::of(leftover, found.now_ms, args.older_than)).or_default().push(&leftover.path);
        }
    }
    let (mut text, mut options) = (String::new(), Vec::new());
    for (group, paths) in &groups {
        let fate = match group.option() {
            None => "left alone",
            Some(_) if group.is_chosen(args) => "deleted",
            Some(option) => {
                options.push(option);
                option
            }
        };
        // Writing to a string never fails.
        _ = writeln!(text, "{}", cut(&format!("{fate:<12}  {}", group.text(paths.len(), args.older_than)), columns));
        let more = paths.len().saturating_sub(SAMPLES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let some: Vec<_> = paths.iter().take(SAMPLES).map(|path| plain(path)).collect();
        _ = writeln!(text, "{}", cut(&format!("{:14}{}{more}", "", some.join(", ")), columns));
    }
    if !options.is_empty() && !groups.keys().any(|group| group.is_chosen(args)) {
        let objects = args.objects.then_some("--objects");
        let of = |option| Suggested::new(["admin", "gc", root]).with(objects.into_iter().chain([option]));
        text.push_str("nothing was deleted; to delete, after a look at the paths with --json\n");
        for option in options {
            _ = writeln!(text, "  {}", printer.command(&of(option), std::io::stdout()));
        }
    }
    text
}

/// What `gc` has found and deleted, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct GcView<'a> {
    nodes: Vec<NodeView<'a>>,
    deleted: Vec<&'a str>,
    changed: Vec<&'a str>,
    unreadable: Vec<&'a str>,
}

#[derive(Serialize)]
struct NodeView<'a> {
    group: Group,
    unused_ms: Option<u64>,
    #[serde(flatten)]
    leftover: &'a Leftover,
}

impl<'a> GcView<'a> {
    fn of(collected: &[&'a Collected], older_than: Duration) -> Self {
        let all = |list: fn(&'a Collected) -> &'a Vec<String>| {
            collected.iter().flat_map(|collected| list(collected)).map(String::as_str).collect()
        };
        let nodes = collected.iter().flat_map(|Collected { found, .. }| {
            found.nodes.iter().map(|leftover| NodeView {
                group: Group::of(leftover, found.now_ms, older_than),
                unused_ms: leftover
                    .unused_since_ms
                    .map(|_| u64::try_from(leftover.unused_for(found.now_ms).as_millis()).unwrap_or(u64::MAX)),
                leftover,
            })
        });
        GcView {
            nodes: nodes.collect(),
            deleted: all(|collected| &collected.deleted),
            changed: all(|collected| &collected.changed),
            unreadable: all(|collected| &collected.found.unreadable),
        }
    }
}

/// The recorded deletions, as `--json` shows them. These fields are documented and stay.
#[derive(Serialize)]
struct LogView<'a> {
    cleanups: Vec<CleanupView<'a>>,
}

#[derive(Serialize)]
struct CleanupView<'a> {
    root: &'a str,
    what: &'a str,
    nodes: &'a [String],
    by: ByView<'a>,
    at_ms: i64,
}

/// Lists the recorded deletions.
async fn log(parts: &[Part], root: &str, printer: &Printer) -> Result<u8, Failure> {
    let answers = ask_each(parts, printer, async |part| {
        inquire_of(&part.settings, async |keeper| cleanups(&keeper, &part.root).await).await
    })
    .await?;
    let source = answers.source();
    let mut all: Vec<_> = answers.from.iter().flat_map(|(_, cleanups)| cleanups).collect();
    all.sort_by_key(|cleanup| cleanup.at);
    if printer.is_json() {
        let cleanups = all.into_iter().map(|cleanup| CleanupView {
            root: &cleanup.root,
            what: &cleanup.what,
            nodes: &cleanup.nodes,
            by: ByView::proved(&cleanup.by, cleanup.proof),
            at_ms: ms(cleanup.at),
        });
        output::answer(&source, &LogView { cleanups: cleanups.collect() })?;
    } else if all.is_empty() {
        printer.note(&format!("no deletion at or below {root} is recorded on {source}"));
    } else {
        printer.scope(&source);
        output::lines(&all.into_iter().map(|cleanup| log_line(cleanup) + "\n").collect::<String>(), INDENT)?;
    }
    answers.end(0, printer)
}

/// `2026-11-20 10:42:03  2 tombstones deleted by op@desk (pid 7): /locks/a/…, /locks/b/…`
fn log_line(cleanup: &Cleanup) -> String {
    let at = Timestamp::try_from(cleanup.at).map(|at| at.to_zoned(TimeZone::system()));
    let at = at.map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string());
    let Cleanup { what, nodes, by, proof, .. } = cleanup;
    let what = if what == "empty" { "empty node" } else { what };
    let count = counted(nodes.len() as u64, what);
    plain(&format!("{at}  {count} deleted by {by}{proof}: {}", nodes.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_deadline_of_a_group_is_said_in_words() {
        assert_eq!(Group::Empty.text(1500, HOUR), "1500 empty nodes, unused for 1 h");
        assert_eq!(Group::Note.text(1, HOUR), "1 node with data of others");
        assert_eq!(Group::Tombstones.text(2, HOUR), "2 tombstones, past the lock delay");
        assert!([Group::Recent, Group::Delaying, Group::Note].iter().all(|group| group.option().is_none()));
    }
}
