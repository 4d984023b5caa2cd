//! The record of one run.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::MAX_OUTPUT_BYTES;
use lockkeeper::admin::Owner;

/// The maximum size of a command in a record, in bytes.
const MAX_COMMAND_BYTES: usize = 4096;

/// The maximum size of the reason why a run ended, in bytes.
const MAX_WHY_BYTES: usize = 1024;

/// The mark at the end of a text that was cut.
const CUT: &str = "…";

/// What one run is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunSlot {
    /// Its name: `2026-11-22`, `2026-11-22T02+01:00`, `2026-W47`, `2026-11`, `every 6h`, or the caller's text.
    pub name: String,
    /// When it begins, in milliseconds since 1970 by the servers' clock. For a text: when the first run of it was requested.
    pub start_ms: i64,
    /// When the next one begins, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<i64>,
}

impl RunSlot {
    /// Creates the slot with this name, from `start_ms` to `end_ms`.
    pub fn new(name: impl Into<String>, start_ms: i64, end_ms: Option<i64>) -> Self {
        RunSlot { name: name.into(), start_ms, end_ms }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EndKind {
    /// The work succeeded.
    Succeeded,
    /// The work failed.
    Failed,
    /// The work took longer than it may.
    TimedOut,
    /// A person or a program stopped the work.
    Stopped,
    /// The lock was lost during the work.
    Lost,
    /// The host, its process or its session ended without a record. A later host found this.
    Crashed,
}

impl EndKind {
    /// Whether the rule for crashes applies, instead of that for failures.
    pub const fn is_crash(self) -> bool {
        matches!(self, EndKind::Lost | EndKind::Crashed)
    }
}

impl fmt::Display for EndKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndKind::Succeeded => "succeeded",
            EndKind::Failed => "failed",
            EndKind::TimedOut => "timed out",
            EndKind::Stopped => "stopped",
            EndKind::Lost => "lost the lock",
            EndKind::Crashed => "crashed",
        })
    }
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use = "the end of a run is recorded by `Run::finish`"]
pub struct RunEnd {
    /// How it ended.
    pub kind: EndKind,
    /// The exit status of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// The signal that ended the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it ended, for people. At most 1 KiB.
    #[serde(rename = "why", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The last output. At most 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Whether the output was cut, or removed because the log was too large.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_cut: bool,
}

impl RunEnd {
    /// An end of this kind.
    pub const fn of(kind: EndKind) -> Self {
        RunEnd { kind, status: None, signal: None, reason: None, output: None, output_cut: false }
    }

    /// The work succeeded.
    pub const fn succeeded() -> Self {
        Self::of(EndKind::Succeeded)
    }

    /// The work failed for this reason.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::of(EndKind::Failed).with_reason(reason)
    }

    /// Sets the exit status of the command.
    pub const fn with_status(mut self, status: i32) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets the signal that ended the command.
    pub const fn with_signal(mut self, signal: i32) -> Self {
        self.signal = Some(signal);
        self
    }

    /// Sets why it ended. More than 1 KiB is cut.
    pub fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(marked(reason.into(), MAX_WHY_BYTES));
        self
    }

    /// Sets the last output. Of more than 16 KiB the end is kept, and [`RunEnd::output_cut`] is set.
    pub fn with_output(mut self, output: impl Into<String>) -> Self {
        let output = output.into();
        self.output_cut |= output.len() > MAX_OUTPUT_BYTES;
        self.output =
            Some(output[output.ceil_char_boundary(output.len().saturating_sub(MAX_OUTPUT_BYTES))..].to_owned());
        self
    }
}

/// A person's decision about a run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Resolution {
    /// Whether the slot runs again. Otherwise it counts as done.
    pub run_again: bool,
    /// Who decided.
    pub by: Owner,
    /// When, in milliseconds since 1970 by the servers' clock. Stored by the next write; until then it is the stamp of the write
    /// that recorded the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<i64>,
}

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunRecord {
    /// Its id, a UUID.
    pub id: String,
    /// What it is for.
    pub slot: RunSlot,
    /// Which run of its slot it is, from 1.
    pub attempt: u32,
    /// Whether the slot was over when the run was claimed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub catch_up: bool,
    /// The number of slots since the run before that nobody ran. At most 366.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed_before: u32,
    /// The process that ran it.
    pub by: Owner,
    /// The command or the program's own words for the work. At most 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The fencing token of the hold, as a decimal number.
    pub token: String,
    /// The name of the node of the hold: while it exists, the run goes on.
    pub node: String,
    /// When it was claimed, in milliseconds since 1970 by the servers' clock. Stored by the write after the claim; until
    /// then it is the stamp of the claim's write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<i64>,
    /// When its end was recorded, by the servers' clock. Unknown after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<i64>,
    /// How it ended; `None` while it runs, and after a crash that nobody has found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RunEnd>,
    /// A person's decision about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolution>,
    /// What a later version of Lockkeeper has added. It is kept when the log is written again.
    #[serde(flatten)]
    pub(super) later: Map<String, Value>,
}

impl RunRecord {
    /// Returns how long the run took by the servers' clock; `None` while it runs and after a crash.
    pub fn duration(&self) -> Option<Duration> {
        let ms = self.end_ms?.saturating_sub(self.start_ms?);
        // The clock of a new leader may be behind that of the leader before.
        Some(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
    }

    /// Returns whether it has succeeded.
    pub fn has_succeeded(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.kind == EndKind::Succeeded)
    }

    /// Returns whether it has ended without success.
    pub fn has_failed(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.kind != EndKind::Succeeded)
    }

    /// Returns whether a person decided that its slot runs again.
    pub fn is_to_run_again(&self) -> bool {
        self.resolved.as_ref().is_some_and(|resolved| resolved.run_again)
    }

    /// Returns whether it has ended without success, and a person accepted that.
    pub fn is_accepted(&self) -> bool {
        self.has_failed() && self.resolved.as_ref().is_some_and(|resolved| !resolved.run_again)
    }

    pub(super) fn command_of(command: Option<&str>) -> Option<String> {
        command.map(|command| marked(command.to_owned(), MAX_COMMAND_BYTES))
    }
}

/// Cuts a text to this many bytes, with a mark.
fn marked(text: String, max: usize) -> String {
    if text.len() > max { text[..text.floor_char_boundary(max - CUT.len())].to_owned() + CUT } else { text }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_is_cut_at_a_character_with_a_mark() {
        let end = RunEnd::failed("ä".repeat(2000)).with_output("ö".repeat(20_000) + "x");
        let (reason, output) = (end.reason.expect("set"), end.output.expect("set"));
        assert!(reason.len() <= MAX_WHY_BYTES && reason.ends_with('…'), "{}", reason.len());
        assert!(output.len() <= MAX_OUTPUT_BYTES && output.ends_with("öx") && end.output_cut);
        // As long as possible: a character and the mark take up to five bytes.
        assert!(reason.len() > MAX_WHY_BYTES - 5, "{}", reason.len());
        assert!(!RunEnd::succeeded().with_output("short").output_cut);
    }
}
