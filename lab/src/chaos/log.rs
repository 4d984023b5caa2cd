//! The files of a run: a log for each contender, and the resources that all of them write to.
//!
//! No network fault reaches them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_testkit::history::{Event, Outcome, What};
use serde::{Deserialize, Serialize};

use super::LOCKS;
use crate::tools::{lines, now};

/// A line of a contender's log.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line {
    /// It is about to request a lock.
    Asking { lock: u32, from: Duration, limit: Option<Duration> },
    /// Something happened; it ends an open request.
    Event(Event),
    /// The library gave an unexpected result.
    Unexpected(String),
}

pub(super) fn log_of(dir: &Path, contender: u32) -> PathBuf {
    dir.join(format!("contender-{contender}.log"))
}

/// Returns the file that exists when no contender asks for a lock any more.
pub(super) fn over(dir: &Path) -> PathBuf {
    dir.join("over")
}

/// Returns the file with the number that holders of a lock increment, behind its gate.
pub(super) fn resource(dir: &Path, lock: &str) -> PathBuf {
    dir.join(lock.replace('/', "-"))
}

/// Reads the number in a file; 0 if nothing has written to it.
pub(super) fn number(file: &Path) -> u64 {
    std::fs::read_to_string(file).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns how many writes the resources have accepted.
pub(super) fn accepted(dir: &Path) -> u64 {
    LOCKS.iter().map(|lock| number(&resource(dir, lock))).sum()
}

/// Whether a contender's last line says that it holds a lock.
pub(super) fn is_inside(dir: &Path, contender: u32) -> bool {
    let text = std::fs::read_to_string(log_of(dir, contender)).unwrap_or_default();
    let last = text.lines().next_back().and_then(|line| serde_json::from_str(line).ok());
    matches!(last, Some(Line::Event(Event { what: What::Looked { held: true, .. } | What::Wrote { .. }, .. })))
}

/// Adds what the logs of this many contenders say. Requests without an answer are pending.
pub(super) fn read(dir: &Path, contenders: u32, events: &mut Vec<Event>, unexpected: &mut Vec<String>) {
    for contender in 0..contenders {
        let mut asking = None;
        for line in lines::<Line>(&log_of(dir, contender)) {
            match line {
                Line::Asking { lock, from, limit } => asking = Some((lock, from, limit)),
                Line::Event(event) => {
                    asking = asking.filter(|_| !matches!(event.what, What::Asked { .. }));
                    events.push(event);
                }
                Line::Unexpected(what) => unexpected.push(what),
            }
        }
        if let Some((lock, from, limit)) = asking {
            let what = What::Asked { limit, outcome: Outcome::Pending };
            events.push(Event { contender, lock, from, until: now(), what });
        }
    }
}
