//! What people and programs see of the history of locks.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use lockkeeper::admin::{ContenderInfo, Held, LOCKS, Owner, Revoked};
use lockkeeper_history::{Entry, Flapping, HoldEnd, LikelyCause, PastHold, Refusal, RefusalReason};
use lockkeeper_session::text::{excerpt, spell};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::colour::Severity;
use crate::screen::cut;
use crate::text::{counted, plain};
use crate::views::{AskedView, BrokenView};

/// Maximum width of the column with the holders.
const WHO: usize = 26;

/// Maximum width of the column with the locks.
const LOCK: usize = 20;

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    path: String,
    /// When the lock was granted, or the request refused.
    at: SystemTime,
    waited: Option<Duration>,
    held: Option<Held>,
    /// The hold goes on.
    open: bool,
    who: String,
    ended: String,
    colour: Severity,
}

impl Row {
    /// Returns the line about an entry.
    pub(crate) fn of(entry: &Entry) -> Self {
        let path = entry.path().to_owned();
        match entry {
            Entry::Hold(hold) => Row {
                path,
                at: hold.granted,
                waited: hold.waited(),
                held: Some(hold.bounds()),
                open: false,
                who: brief(hold.owner.as_ref(), &hold.described),
                ended: plain(&with_message(ended(hold), hold.message.as_deref())),
                colour: match hold.end {
                    HoldEnd::Lost => Severity::Serious,
                    HoldEnd::Broken | HoldEnd::Unrecorded => Severity::Notice,
                    _ => Severity::None,
                },
            },
            Entry::Refused(refusal) => Row {
                path,
                at: refusal.last,
                waited: Some(refusal.waited),
                held: None,
                open: false,
                who: brief(Some(&refusal.owner), ""),
                ended: plain(&refused(refusal)),
                colour: Severity::Notice,
            },
            Entry::Broken(broken) => Row {
                path,
                at: broken.at,
                waited: None,
                held: None,
                open: false,
                who: brief(broken.owner.as_ref(), &broken.described),
                ended: plain(&format!(
                    "{} by {}{}: {}",
                    if broken.held { "broken" } else { "removed from the queue" },
                    broken.by,
                    broken.proof,
                    broken.reason
                )),
                colour: Severity::Notice,
            },
            Entry::Asked(asked) => Row {
                path,
                at: asked.at,
                waited: None,
                held: None,
                open: false,
                who: brief(asked.owner.as_ref(), &asked.described),
                ended: plain(&was_asked(asked)),
                colour: Severity::None,
            },
            _ => Row {
                path,
                at: entry.at(),
                waited: None,
                held: None,
                open: false,
                who: "?".to_owned(),
                ended: String::new(),
                colour: Severity::None,
            },
        }
    }

    /// Returns the line about a holder of this moment.
    pub(crate) fn held_now(path: &str, holder: &ContenderInfo, now: SystemTime) -> Self {
        let grant = holder.grant();
        let what = match (holder.granted, grant) {
            (Some(_), _) => "(holds now)",
            (None, Some(_)) => "(holds now; granted then or later)",
            // The record of a lease says only when it was written last.
            (None, None) if holder.mode == "lease" => "(holds now; a lease)",
            (None, None) => "(holds now; in the queue since then)",
        };
        Row {
            path: path.to_owned(),
            at: grant.map_or(holder.since, |grant| grant.earliest),
            waited: holder.granted.and_then(|granted| granted.duration_since(holder.since).ok()),
            held: grant.map(|grant| grant.held(now)),
            open: true,
            who: brief(holder.owner.as_ref(), &holder.described),
            ended: plain(&with_message(what.to_owned(), holder.message.as_deref())),
            colour: Severity::None,
        }
    }

    fn cells(&self, with_lock: bool, now: SystemTime) -> Vec<String> {
        let lock = with_lock.then(|| {
            let path = plain(&self.path);
            path.strip_prefix(LOCKS).and_then(|rest| rest.strip_prefix('/')).map_or(path.clone(), str::to_owned)
        });
        let time = |time: Option<Duration>| time.map_or_else(|| "-".to_owned(), short);
        let held = match self.held {
            Some(time) => held(time) + if self.open && time.known().is_some() { "+" } else { "" },
            None if self.open => "?".to_owned(),
            None => "-".to_owned(),
        };
        let cells = lock.into_iter().chain([clock(self.at, now), time(self.waited), held, plain(&self.who)]);
        cells.chain([self.ended.clone()]).collect()
    }
}

/// Returns a table of these lines, the newest first. In `columns`, long names are cut; the last column is wrapped.
pub(crate) fn table(mut rows: Vec<Row>, with_lock: bool, columns: Option<usize>) -> String {
    rows.sort_by_key(|row| (!row.open, Reverse(row.at)));
    let now = SystemTime::now();
    let titles: &[&str] = match with_lock {
        true => &["LOCK", "WHEN", "WAITED", "HELD", "WHO", "ENDED"],
        false => &["WHEN", "WAITED", "HELD", "WHO", "ENDED"],
    };
    let mut lines = vec![titles.iter().map(|title| (*title).to_owned()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| row.cells(with_lock, now)));
    let last = titles.len() - 1;
    if columns.is_some() {
        for line in &mut lines {
            line[last - 1] = cut(&line[last - 1], WHO);
            if with_lock {
                line[0] = cut(&line[0], LOCK);
            }
        }
    }
    let width = |column: usize| lines.iter().map(|line| line[column].width()).max().unwrap_or_default();
    let widths: Vec<_> = (0..last).map(width).collect();
    let mut text = String::new();
    let colours = std::iter::once(Severity::None).chain(rows.iter().map(|row| row.colour));
    for (line, colour) in lines.iter().zip(colours) {
        let mut start = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let fill = " ".repeat(width - cell.width());
            // Numbers are at the right.
            let is_number = (last - 3..last - 1).contains(&column);
            start += &if is_number { format!("{fill}{cell}  ") } else { format!("{cell}{fill}  ") };
        }
        text += &hanging(&start, &line[last], columns, colour);
    }
    text
}

/// Returns the line about one entry, for a listing that grows.
pub(crate) fn line(entry: &Entry, columns: Option<usize>) -> String {
    let row = Row::of(entry);
    let cells = row.cells(false, SystemTime::now());
    let [at, waited, held, who, ended] = &cells[..] else { return String::new() };
    let who = if columns.is_some() { cut(who, WHO) } else { who.clone() };
    hanging(&format!("{at}  {waited:>6}  {held:>6}  {who:<WHO$}  "), ended, columns, row.colour)
}

/// The last column, wrapped below itself.
fn hanging(start: &str, text: &str, columns: Option<usize>, colour: Severity) -> String {
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(start.width()).max(12));
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.width() + 1 + word.width() > room {
            lines.push(std::mem::take(&mut line));
        }
        line = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
    }
    lines.push(line);
    let indent = " ".repeat(start.width());
    let lines = lines.iter().enumerate().map(|(at, line)| {
        let start = if at == 0 { start } else { &indent };
        format!("{start}{}", colour.paint(line)).trim_end().to_owned() + "\n"
    });
    lines.collect()
}

/// `db1 root 5746`
pub(crate) fn brief(owner: Option<&Owner>, described: &str) -> String {
    match owner {
        Some(Owner { user, host, pid, .. }) => format!("{host} {user} {pid}"),
        None => excerpt(described).into_owned(),
    }
}

/// Returns who held a lock.
pub(crate) fn who(hold: &PastHold) -> String {
    brief(hold.owner.as_ref(), &hold.described)
}

fn with_message(mut text: String, message: Option<&str>) -> String {
    if let Some(message) = message {
        _ = write!(text, " ({})", excerpt(message));
    }
    text
}

/// `lost: lockkeeper was paused for too long (6.1 s)`
pub(crate) fn ended(hold: &PastHold) -> String {
    let why = hold.reason.as_deref().map(excerpt);
    let and_why = |what: &str| why.as_deref().map_or_else(|| what.to_owned(), |why| format!("{what} {why}"));
    match hold.end {
        HoldEnd::Released => {
            let status = hold.status.filter(|status| *status != 0);
            let status = status.map_or_else(String::new, |status| format!(", exit status {status}"));
            let why = why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            format!("released{status}{why}")
        }
        HoldEnd::Revoked => and_why("revoked by"),
        HoldEnd::Broken => and_why("broken by"),
        HoldEnd::Lost => match (&why, hold.loss) {
            (Some(why), _) => format!("lost: {why}"),
            (None, Some(loss)) => format!("lost: {loss}"),
            (None, None) => "lost".to_owned(),
        },
        HoldEnd::Unrecorded => "ended without a record: killed, lost, or a client that keeps none".to_owned(),
        _ => "ended".to_owned(),
    }
}

/// `asked to release by root@desk (pid 9): deploying`
pub(crate) fn was_asked(asked: &Revoked) -> String {
    let reason = asked.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", excerpt(reason)));
    format!("asked to release by {}{}{reason}", asked.by, asked.proof)
}

/// `refused 6 x in 19 s: taken by root@db9 (pid 4) (rerun by ann)`
fn refused(refusal: &Refusal) -> String {
    let mut text = "refused".to_owned();
    if refusal.count > 1 {
        let over = refusal.last.duration_since(refusal.first).unwrap_or_default();
        _ = write!(text, " {} x in {}", refusal.count, spell(over));
    }
    _ = write!(text, ": {}", why_refused(refusal));
    with_message(text, refusal.message.as_deref())
}

/// `taken by root@db9 (pid 4), rerun by ann`
pub(crate) fn why_refused(refusal: &Refusal) -> String {
    let mut text = match refusal.reason {
        RefusalReason::Taken => "taken".to_owned(),
        RefusalReason::GaveUp => format!("gave up after {}", spell(refusal.waited)),
        RefusalReason::Mismatch => "in use in another way".to_owned(),
        RefusalReason::Unreachable => "no server answered".to_owned(),
        RefusalReason::Withdrawn => "withdrawn".to_owned(),
        _ => "not granted".to_owned(),
    };
    if let Some(holder) = &refusal.holder {
        _ = write!(
            text,
            "{} {}",
            if refusal.reason == RefusalReason::Taken { " by" } else { ", held by" },
            excerpt(holder)
        );
    }
    if let Some(message) = &refusal.holder_message {
        _ = write!(text, ", {}", excerpt(message));
    }
    text
}

/// Returns what is to be said about a lock that changes hands because its holders lose it.
pub(crate) fn flapping(flapping: &Flapping) -> String {
    let named = |counts: &[(String, usize)]| {
        let shown = counts.iter().take(4).map(|(name, count)| format!("{} {count}", excerpt(name)));
        shown.collect::<Vec<_>>().join(", ")
    };
    let causes = flapping.causes.iter().map(|(cause, count)| format!("{count} {}", cause_text(*cause)));
    let mut text = format!(
        "FLAPPING: {} in the last hour, {} of them lost. {}; median hold {}\nthe losses: {}\n",
        counted(flapping.changes as u64, "hold"),
        flapping.losses,
        named(&flapping.holders),
        short(flapping.median),
        causes.collect::<Vec<_>>().join(", "),
    );
    let likely = match flapping.causes.first().map(|(cause, _)| *cause) {
        Some(LikelyCause::Paused) => {
            "likely: these machines or processes are stopped or starved; a longer --session-timeout hides it"
        }
        Some(LikelyCause::Silent) => {
            "likely: the network, or the servers, are silent for longer than the session timeout"
        }
        Some(LikelyCause::Removed) => "likely: somebody, or a program, breaks the lock again and again",
        _ => return plain_lines(&text),
    };
    _ = writeln!(text, "{likely}");
    plain_lines(&text)
}

fn plain_lines(text: &str) -> String {
    text.lines().map(|line| plain(line) + "\n").collect()
}

const fn cause_text(cause: LikelyCause) -> &'static str {
    match cause {
        LikelyCause::Paused => "paused",
        LikelyCause::Silent => "session silent",
        LikelyCause::Removed => "removed",
        _ => "other",
    }
}

/// A duration for a column: `30ms`, `0.3s`, `7s`, `2m49`, `4h02m`, `6d03h`.
pub(crate) fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if time.as_millis() == 0 => "0s".to_owned(),
        0 if time.as_millis() < 100 => format!("{}ms", time.as_millis()),
        0..10 => {
            let tenths = time.as_millis().div_ceil(100);
            if tenths.is_multiple_of(10) {
                format!("{}s", tenths / 10)
            } else {
                format!("{}.{}s", tenths / 10, tenths % 10)
            }
        }
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// How long a lock is held, for a column: `14s`, or `<15s` if only the longest time is known that is possible.
pub(crate) fn held(held: Held) -> String {
    match held.known() {
        Some(time) => short(time),
        None => {
            let unit = match held.at_most.as_secs() {
                0..10 => Duration::ZERO,
                10..3_600 => Duration::from_secs(1),
                3_600..86_400 => Duration::from_secs(60),
                _ => Duration::from_secs(3_600),
            };
            format!("<{}", short(held.at_most + unit))
        }
    }
}

/// The time of day, with the date if that is not today's.
pub(crate) fn clock(time: SystemTime, now: SystemTime) -> String {
    let zone = TimeZone::system();
    let zoned = |time| Timestamp::try_from(time).map(|time| time.to_zoned(zone.clone()));
    let (Ok(time), Ok(now)) = (zoned(time), zoned(now)) else { return "?".to_owned() };
    let format = match () {
        () if time.date() == now.date() => "%H:%M:%S",
        () if time.year() == now.year() => "%d %b %H:%M:%S",
        () => "%Y-%m-%d %H:%M",
    };
    time.strftime(format).to_string()
}

/// An entry, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub(crate) enum EntryView<'a> {
    Hold(HoldView<'a>),
    Refused(&'a Refusal),
    Broken(Box<BrokenView<'a>>),
    Asked(Box<AskedView<'a>>),
}

/// A hold that is over, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct HoldView<'a> {
    #[serde(flatten)]
    hold: &'a PastHold,
    waited_ms: Option<u128>,
    /// How long it was held, if that is known.
    held_ms: Option<u128>,
    held_at_most_ms: u128,
}

impl<'a> EntryView<'a> {
    /// Returns the view of a hold.
    pub(crate) fn hold(hold: &'a PastHold) -> Self {
        let waited_ms = hold.waited().map(|waited| waited.as_millis());
        let held = hold.bounds();
        let held_ms = held.known().map(|held| held.as_millis());
        EntryView::Hold(HoldView { hold, waited_ms, held_ms, held_at_most_ms: held.at_most.as_millis() })
    }

    /// Returns the view of an entry; `None` for one of a later library.
    pub(crate) fn of(entry: &'a Entry) -> Option<Self> {
        match entry {
            Entry::Hold(hold) => Some(EntryView::hold(hold)),
            Entry::Refused(refusal) => Some(EntryView::Refused(refusal)),
            Entry::Broken(broken) => Some(EntryView::Broken(Box::new(BrokenView::of(broken)))),
            Entry::Asked(asked) => Some(EntryView::Asked(Box::new(AskedView::of(asked)))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_a_column_are_short() {
        let short = |ms| short(Duration::from_millis(ms));
        let all = [0, 30, 300, 1_000, 9_950, 59_000, 169_000, 14_520_000, 529_200_000].map(short);
        assert_eq!(all, ["0s", "30ms", "0.3s", "1s", "10s", "59s", "2m49", "4h02m", "6d03h"]);
    }

    #[test]
    fn the_last_column_is_wrapped_below_itself() {
        assert_eq!(
            hanging("12:00  ", "lost: a b c d e f", Some(20), Severity::None),
            "12:00  lost: a b c d\n       e f\n"
        );
        assert_eq!(hanging("12:00  ", "lost: a b c d e f", None, Severity::None), "12:00  lost: a b c d e f\n");
    }
}
