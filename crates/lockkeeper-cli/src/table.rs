//! The table of `lockkeeper list`: one line for each lock, which fits on a terminal.

use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper::admin::{ContenderInfo, LockInfo};
use lockkeeper_history::Habits;
use lockkeeper_observe::deadlock::Certainty;
#[cfg(feature = "top")]
use lockkeeper_observe::deadlock::Deadlock;
use lockkeeper_observe::table::{LockRow, Recorded, RowState};
use lockkeeper_session::text::excerpt;
use unicode_width::UnicodeWidthStr;

use crate::colour::{Severity, bold};
use crate::pastview::{self, short};
use crate::screen::{Size, cut};
use crate::text::{brief, counted, described, part, permits, plain, revocation, term, wanted};

const HEADS: [&str; 8] = ["LOCK", "HOLDER", "HELD", "USUAL", "WAITING", "OLDEST", "/H", "STATE"];

/// The columns whose values are at their right.
const NUMBERS: std::ops::Range<usize> = 2..7;

/// The widths to which the first two columns are cut, if the line is too long otherwise.
const NARROW: [usize; 2] = [16, 14];

/// The least width of the last column before the first two are cut.
const STATE: usize = 16;

/// What the row of a lock says about its records.
pub(crate) fn recorded(habits: Option<&Habits>) -> Recorded {
    let Some(habits) = habits else { return Recorded::default() };
    let flapping = habits.flapping.as_ref().map(|it| (it.changes, it.losses));
    Recorded { usual: habits.usual(), is_enough: habits.usual_of_enough().is_some(), flapping }
}

/// Adds what is to be said about the locks of these rows, which are on the screen.
#[cfg(feature = "top")]
pub(crate) fn judge(rows: &mut [LockRow<'_>], shown: std::ops::Range<usize>, deadlocks: &[Deadlock]) {
    let end = shown.end.min(rows.len());
    for row in &mut rows[shown.start.min(end)..end] {
        *row = row.clone().judged(deadlocks);
    }
}

/// Returns the table. On a terminal, each line fits into its width, and the state has a colour.
pub(crate) fn table(rows: &[LockRow<'_>], size: Option<Size>) -> String {
    let [head, lines @ ..] = &lines(rows, size.map(|size| size.columns))[..] else { return String::new() };
    let line = |before: &str, state: String| format!("{before}{state}").trim_end().to_owned() + "\n";
    let lines = lines.iter().zip(rows).map(|([before, state], row)| line(before, severity(row).paint(state)));
    line(&head[0], bold(&head[1])) + &lines.collect::<String>()
}

/// Returns the lines of the table, the first one with the heads: each the text before its state, and the state. With a number of columns,
/// each line fits into them.
pub(crate) fn lines(rows: &[LockRow<'_>], columns: Option<usize>) -> Vec<[String; 2]> {
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let heads = HEADS.map(str::to_owned);
    let all = || [&heads].into_iter().chain(&cells);
    let mut widths: [usize; 8] = std::array::from_fn(|column| all().map(|row| row[column].width()).max().unwrap_or(0));
    let before = |widths: &[usize; 8]| widths[..7].iter().map(|width| width + 2).sum::<usize>();
    if let Some(columns) = columns {
        for (column, narrow) in NARROW.into_iter().enumerate().rev() {
            let over = (before(&widths) + STATE.min(widths[7])).saturating_sub(columns);
            widths[column] = widths[column].saturating_sub(over).max(narrow.min(widths[column]));
        }
        // The last column of a terminal stays free: some begin a new line there.
        widths[7] = widths[7].min(columns.saturating_sub(before(&widths) + 1));
    }
    all().map(|cells| line(cells, &widths)).collect()
}

fn line(cells: &[String; 8], widths: &[usize; 8]) -> [String; 2] {
    let mut line = String::new();
    for (column, (cell, width)) in cells.iter().zip(widths).take(7).enumerate() {
        let cell = cut(cell, *width);
        let pad = " ".repeat(width - cell.width());
        // Writing to a string never fails.
        _ = match column {
            column if NUMBERS.contains(&column) => write!(line, "{pad}{cell}  "),
            _ => write!(line, "{cell}{pad}  "),
        };
    }
    [line, cut(&cells[7], widths[7])]
}

fn cells(row: &LockRow<'_>) -> [String; 8] {
    let lock = row.lock;
    let known = |time: Option<Duration>, is_known: bool| match time {
        Some(time) => short(time),
        None if is_known => "-".to_owned(),
        None => "?".to_owned(),
    };
    let waiting = lock.waiters.len();
    [
        plain(lock.path.strip_prefix("/locks/").unwrap_or(&lock.path)),
        holder(lock),
        row.held.map_or_else(|| known(None, lock.holders.is_empty()), pastview::held),
        known(row.usual, false),
        waiting.to_string(),
        known(row.oldest, waiting == 0),
        row.per_hour.map_or_else(|| "?".to_owned(), |rate| format!("{rate:.0}")),
        state(row),
    ]
}

/// `build@ci-7`, `build@ci-7 +2`
fn holder(lock: &LockInfo) -> String {
    let name = |holder: &ContenderInfo| match &holder.owner {
        Some(owner) => plain(&format!("{}@{}", owner.user, owner.host)),
        None => plain(&described(holder)),
    };
    match lock.holders.split_first() {
        Some((first, [])) => name(first),
        Some((first, others)) => format!("{} +{}", name(first), others.len()),
        None => "nobody".to_owned(),
    }
}

/// How serious the state of a lock is.
pub(crate) fn severity(row: &LockRow<'_>) -> Severity {
    match row.states.first() {
        Some(RowState::Deadlock { certainty: Certainty::Certain, .. } | RowState::Blocked | RowState::Gone) => {
            Severity::Serious
        }
        None | Some(RowState::Leased | RowState::Deadlock { certainty: Certainty::Possible, .. }) => Severity::None,
        Some(_) => Severity::Notice,
    }
}

/// What is to be said about a lock, the most serious first, and then the words of its holder.
fn state(row: &LockRow<'_>) -> String {
    let lock = row.lock;
    let mut texts: Vec<_> = row.states.iter().map(|state| told(state, lock)).collect();
    let first = lock.holders.first();
    texts.extend(permits(lock).or_else(|| first.and_then(part)));
    texts.extend(lock.lease.as_ref().and_then(|lease| lease.requestor.as_ref()).map(wanted));
    let message = first.and_then(|holder| holder.message.as_ref());
    texts.extend(message.map(|message| format!("({})", excerpt(message))));
    plain(&texts.join(", "))
}

fn told(state: &RowState, lock: &LockInfo) -> String {
    let request = |refused: bool| {
        let requests = lock.holders.iter().filter_map(|holder| holder.revocation.as_ref());
        let request = requests.into_iter().find(|request| request.refused.is_some() == refused);
        request.map_or_else(String::new, |request| revocation(&brief(request)))
    };
    match state {
        RowState::Deadlock { certainty: Certainty::Certain, number } => format!("deadlock #{number}"),
        RowState::Deadlock { certainty: Certainty::Likely, number } => format!("likely deadlock #{number}"),
        RowState::Deadlock { certainty: Certainty::Possible, number } => format!("possible deadlock #{number}"),
        RowState::Blocked => {
            let node = lock.waiters.first().and_then(|waiter| waiter.blocked_by.as_deref());
            format!("blocked by a node without a session: {}", node.unwrap_or_default())
        }
        RowState::Gone => "its process has ended, its session not yet".to_owned(),
        RowState::Abandoned => "abandoned".to_owned(),
        RowState::Refused => request(true),
        RowState::Asked => request(false),
        RowState::Flapping { changes, losses } => format!("flaps: {losses} of {changes} holds lost"),
        RowState::Long { times } => format!("{times} x usual"),
        RowState::Garbage { nodes } => format!("{} without a session", counted(*nodes as u64, "node")),
        RowState::Leased => lock.lease.as_ref().map_or_else(String::new, term),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_and_keeps_its_numbers() {
        let cells = ["LOCK-OF-A-LONG-NAME", "build@ci-7", "3s", "?", "12", "1m19", "4", "a long text about it"];
        let [before, state] = line(&cells.map(str::to_owned), &[10, 10, 4, 5, 7, 6, 2, 8]);
        assert_eq!((&*before, &*state), ("LOCK-OF-A…  build@ci-7    3s      ?       12    1m19   4  ", "a long…"));
    }
}
