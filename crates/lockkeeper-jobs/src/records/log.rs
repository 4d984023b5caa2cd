//! The log of a job's runs, and its bytes in one node.
//!
//! Every change replaces the whole log under compare-and-set. A write does not know its own stamp. So the start of a run and the
//! end of a run are the stamps of the writes that recorded them. A reader takes them from the node, and the next write stores
//! them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use super::{EndKind, LeftOut, MAX_RUNS, Pause, Resolution, Rule, RunEnd, RunRecord, RunSlot, Schedule};
use lockkeeper::admin::Owner;

/// The maximum size of a log, in bytes: a quarter of what a server accepts in one frame by default.
const MAX_BYTES: usize = 256 * 1024;

/// All runs of one job that are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobLog {
    /// The version of this format, now 1.
    lockkeeper: u32,
    /// The path of the job's lock.
    pub path: String,
    /// When the job is due, as its last host stated.
    pub schedule: Schedule,
    /// What follows a failure, as its last host stated.
    pub on_failure: Rule,
    /// What follows a crash, as its last host stated.
    pub on_crash: Rule,
    /// The runs, the oldest first.
    pub runs: Vec<RunRecord>,
    /// The job was expected before any host had claimed a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// The last pause, which may be over ([`Pause::is_in_effect`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// From when to when earlier pauses were in effect, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) earlier_pauses: Vec<(i64, i64)>,
    /// The slots that hosts asked for in a pause, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// What a later version of Lockkeeper has added. It is kept when the log is written again.
    #[serde(flatten)]
    later: Map<String, Value>,
}

/// A job that is expected to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Expected {
    /// Since when, in milliseconds since 1970 by the servers' clock.
    pub since_ms: i64,
    /// When the slot of that time ends, if that is known. A whole slot later without a run, the job is late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<i64>,
}

impl Expected {
    /// Creates it.
    pub const fn new(since_ms: i64, due_ms: Option<i64>) -> Self {
        Expected { since_ms, due_ms }
    }
}

/// Why a log cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LogError {
    /// A later version of Lockkeeper has written it.
    #[error("the records have version {0}, and this version of Lockkeeper reads version 1; install a newer version")]
    Newer(u32),
    /// It is no log.
    #[error("the records are damaged ({0}); delete them to start again")]
    Damaged(String),
    /// A server does not show it to this client.
    #[error("the server does not show the records: {0}")]
    Refused(String),
}

/// Why a slot is not marked to run again. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoRerun {
    /// No run of the slot is in the records.
    #[error("no run of {} is recorded", .slot.as_deref().map_or("it".to_owned(), |slot| format!("slot {slot}")))]
    NeverRan {
        /// The slot; `None` for the newest one.
        slot: Option<String>,
    },
    /// A host runs the job. The slot may be another one.
    #[error("slot {slot} is running on {by}: wait for its end")]
    Running {
        /// The slot.
        slot: String,
        /// Who runs it.
        by: Box<Owner>,
    },
    /// A later slot of the calendar has run. An older one would run out of order, and hide how the later one ended.
    #[error("slot {slot} is over, and slot {later} ran after it")]
    Over {
        /// The slot.
        slot: String,
        /// The later one.
        later: String,
    },
    /// The slot already waits for the next host that asks.
    #[error("slot {slot} already waits to run again, as {by} decided")]
    Waits {
        /// The slot.
        slot: String,
        /// Who decided.
        by: Box<Owner>,
    },
}

/// A run that begins.
#[derive(Clone, Debug)]
pub struct Begin {
    /// Its id, a UUID.
    pub id: String,
    /// What it is for.
    pub slot: RunSlot,
    /// Which run of its slot it is, from 1.
    pub attempt: u32,
    /// Whether the slot is over.
    pub catch_up: bool,
    /// The number of slots that nobody ran.
    pub missed_before: u32,
    /// The process that runs it.
    pub by: Owner,
    /// The command.
    pub command: Option<String>,
    /// The fencing token of the hold.
    pub token: String,
    /// The name of the node of the hold.
    pub node: String,
}

impl JobLog {
    /// The version of the format that this code writes.
    const VERSION: u32 = 1;

    /// Creates a log without runs.
    pub fn new(path: impl Into<String>, schedule: Schedule) -> Self {
        JobLog {
            lockkeeper: Self::VERSION,
            path: path.into(),
            schedule,
            on_failure: Rule::default(),
            on_crash: Rule::default(),
            runs: Vec::new(),
            expected: None,
            pause: None,
            earlier_pauses: Vec::new(),
            left_out: Vec::new(),
            later: Map::new(),
        }
    }

    /// Reads a node's data that was written at `stamp_ms`. A node without data has no log yet.
    ///
    /// # Errors
    ///
    /// The data is no log, or that of a later version.
    pub fn read(data: &[u8], stamp_ms: i64) -> Result<Option<JobLog>, LogError> {
        #[derive(Deserialize)]
        struct Version {
            lockkeeper: u32,
        }
        if data.is_empty() {
            return Ok(None);
        }
        let damaged = |error: serde_json::Error| LogError::Damaged(error.to_string());
        let Version { lockkeeper } = serde_json::from_slice(data).map_err(damaged)?;
        if lockkeeper != Self::VERSION {
            return Err(LogError::Newer(lockkeeper));
        }
        let mut log: JobLog = serde_json::from_slice(data).map_err(damaged)?;
        log.stamp(stamp_ms);
        Ok(Some(log))
    }

    /// Completes the last run with the stamp of the write that recorded its start or its end, and a decision with that of the write
    /// that recorded it.
    pub fn stamp(&mut self, stamp_ms: i64) {
        for resolved in self.runs.iter_mut().filter_map(|run| run.resolved.as_mut()) {
            resolved.at_ms.get_or_insert(stamp_ms);
        }
        let Some(run) = self.runs.last_mut() else { return };
        match &run.end {
            None => _ = run.start_ms.get_or_insert(stamp_ms),
            // Nobody knows when a crash was.
            Some(end) if end.kind != EndKind::Crashed => _ = run.end_ms.get_or_insert(stamp_ms),
            Some(_) => {}
        }
    }

    /// Returns the bytes of the log. If they are too many, the outputs of the oldest runs are removed, then the oldest slots that a
    /// pause left out, and then the oldest runs.
    pub fn to_bytes(&mut self) -> Vec<u8> {
        let bytes = |log: &JobLog| {
            serde_json::to_vec(log).expect("a struct of strings and numbers, with text for keys, always serialises")
        };
        let mut data = bytes(self);
        while data.len() > MAX_BYTES {
            let mut over = data.len() - MAX_BYTES;
            for run in &mut self.runs {
                if let Some(end) = &mut run.end
                    && let Some(output) = end.output.take()
                {
                    end.output_cut = true;
                    over = over.saturating_sub(output.len());
                }
                if over == 0 {
                    break;
                }
            }
            if over > 0 && !self.left_out.is_empty() {
                self.left_out.drain(..self.left_out.len().div_ceil(8));
            } else if over > 0 && self.runs.len() > 1 {
                self.runs.drain(..self.runs.len().div_ceil(8).min(self.runs.len() - 1));
            } else if over > 0 {
                // Only fields of a later version are left, which this version keeps.
                return bytes(self);
            }
            data = bytes(self);
        }
        data
    }

    /// Returns the last run if it has no end.
    pub fn open(&self) -> Option<&RunRecord> {
        self.runs.last().filter(|run| run.end.is_none())
    }

    /// Ends an open run as crashed: its host no longer holds the lock. Returns whether there was one.
    pub fn close_crashed(&mut self) -> bool {
        let Some(run) = self.runs.last_mut().filter(|run| run.end.is_none()) else { return false };
        run.end =
            Some(RunEnd::of(EndKind::Crashed).with_reason("the host no longer holds the lock, and recorded no end"));
        true
    }

    /// Begins a run and removes the oldest runs above `keep`.
    pub fn begin(&mut self, begin: Begin, keep: u32) {
        let Begin { id, slot, attempt, catch_up, missed_before, by, command, token, node } = begin;
        let command = RunRecord::command_of(command.as_deref());
        self.runs.push(RunRecord {
            id,
            slot,
            attempt,
            catch_up,
            missed_before,
            by,
            command,
            token,
            node,
            start_ms: None,
            end_ms: None,
            end: None,
            resolved: None,
            later: Map::new(),
        });
        let keep = usize::try_from(keep.clamp(1, MAX_RUNS)).unwrap_or(usize::MAX);
        self.runs.drain(..self.runs.len().saturating_sub(keep));
    }

    /// Ends the open run of this id. Returns whether there is one.
    pub fn finish(&mut self, id: &str, end: RunEnd) -> bool {
        let Some(run) = self.runs.last_mut().filter(|run| run.end.is_none() && run.id == id) else { return false };
        run.end = Some(end);
        true
    }

    /// Notes a person's decision about the last run. Returns whether it failed or crashed and is not decided yet.
    pub fn resolve(&mut self, run_again: bool, by: Owner) -> bool {
        let waits = |run: &&mut RunRecord| run.has_failed() && run.resolved.is_none();
        let Some(run) = self.runs.last_mut().filter(waits) else { return false };
        run.resolved = Some(Resolution { run_again, by, at_ms: None });
        true
    }

    /// Notes a person's decision that a slot, or that of the last run, runs again, however its newest run has ended. Returns that
    /// run. [`JobLog::close_crashed`] ends the run of a host that no longer holds the lock.
    ///
    /// # Errors
    ///
    /// A host runs the job, the slot never ran, it waits to run again, or a later slot of the calendar has run.
    pub fn rerun(&mut self, slot: Option<&str>, by: Owner) -> Result<RunRecord, NoRerun> {
        if let Some(run) = self.open() {
            return Err(NoRerun::Running { slot: run.slot.name.clone(), by: Box::new(run.by.clone()) });
        }
        if let (Schedule::Calendar { .. }, Some(slot), Some(last)) = (&self.schedule, slot, self.runs.last())
            && last.slot.name != slot
            && self.runs.iter().any(|run| run.slot.name == slot)
        {
            return Err(NoRerun::Over { slot: slot.to_owned(), later: last.slot.name.clone() });
        }
        let is_it = |run: &&mut RunRecord| slot.is_none_or(|slot| run.slot.name == slot);
        let run = self.runs.iter_mut().rev().find(is_it);
        let run = run.ok_or_else(|| NoRerun::NeverRan { slot: slot.map(str::to_owned) })?;
        match &run.resolved {
            Some(resolved) if resolved.run_again => {
                Err(NoRerun::Waits { slot: run.slot.name.clone(), by: Box::new(resolved.by.clone()) })
            }
            _ => {
                run.resolved = Some(Resolution { run_again: true, by, at_ms: None });
                Ok(run.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(id: &str) -> Begin {
        Begin {
            id: id.to_owned(),
            slot: RunSlot { name: id.to_owned(), start_ms: 0, end_ms: None },
            attempt: 1,
            catch_up: false,
            missed_before: 0,
            by: Owner::default(),
            command: None,
            token: "7".to_owned(),
            node: String::new(),
        }
    }

    fn log() -> JobLog {
        JobLog::new("/a", Schedule::Text { slot: "x".to_owned() })
    }

    #[test]
    fn times_are_the_stamps_of_the_writes() {
        let mut log = log();
        log.begin(begin("1"), 10);
        let mut log = JobLog::read(&log.to_bytes(), 100).expect("readable").expect("a log");
        assert_eq!(log.open().and_then(|run| run.start_ms), Some(100));
        assert!(log.finish("1", RunEnd::succeeded()) && !log.finish("1", RunEnd::succeeded()));
        let mut log = JobLog::read(&log.to_bytes(), 160).expect("readable").expect("a log");
        log.begin(begin("2"), 10);
        let log = JobLog::read(&log.to_bytes(), 900).expect("readable").expect("a log");
        assert_eq!(log.runs[0].duration().map(|d| d.as_millis()), Some(60));
        assert_eq!((log.runs[1].start_ms, log.runs[1].duration()), (Some(900), None));
    }

    #[test]
    fn a_run_shorter_than_nothing_by_the_clock_of_another_leader_takes_no_time() {
        let mut log = log();
        log.begin(begin("1"), 10);
        log.stamp(100);
        log.finish("1", RunEnd::succeeded());
        log.stamp(40);
        assert_eq!(log.runs[0].duration(), Some(std::time::Duration::ZERO));
    }

    #[test]
    fn what_a_later_version_adds_survives_a_write() {
        let data = br#"{"lockkeeper":1,"path":"/a","schedule":{"text":{"slot":"x"}},"on_failure":"next","on_crash":{"retry":{}},
            "colour":"red","runs":[{"id":"1","slot":{"name":"x","start_ms":1},"attempt":1,"by":{},"token":"7","node":"n","cpu":3}]}"#;
        let mut log = JobLog::read(data, 5).expect("readable").expect("a log");
        let again = String::from_utf8(log.to_bytes()).expect("text");
        assert!(again.contains(r#""colour":"red""#) && again.contains(r#""cpu":3"#), "{again}");
    }

    #[test]
    fn another_version_and_other_data_are_refused_with_the_remedy() {
        assert_eq!(JobLog::read(b"", 0), Ok(None));
        assert_eq!(JobLog::read(br#"{"lockkeeper":2}"#, 0), Err(LogError::Newer(2)));
        for data in [&b"x"[..], b"{}", br#"{"lockkeeper":1}"#] {
            assert!(JobLog::read(data, 0).expect_err("damaged").to_string().contains("delete them"));
        }
    }

    #[test]
    fn a_log_that_is_too_large_loses_the_oldest_outputs_first() {
        let mut log = log();
        for id in 0..100 {
            log.begin(begin(&id.to_string()), 100);
            log.finish(&id.to_string(), RunEnd::failed("x").with_output("y".repeat(16 * 1024)));
        }
        assert!(log.to_bytes().len() <= MAX_BYTES);
        let cut = |run: &RunRecord| run.end.as_ref().is_some_and(|end| end.output.is_none() && end.output_cut);
        assert!(log.runs.len() == 100 && cut(&log.runs[0]) && !cut(&log.runs[99]));
    }

    #[test]
    fn a_log_keeps_the_last_runs_within_its_size() {
        let mut log = log();
        for id in 0..MAX_RUNS + 50 {
            log.begin(Begin { command: Some("c".repeat(9_000)), ..begin(&id.to_string()) }, MAX_RUNS);
            log.close_crashed();
        }
        assert_eq!(log.runs.len(), 1000);
        assert!(log.to_bytes().len() <= MAX_BYTES);
        assert_eq!(log.runs.last().map(|run| run.id.as_str()), Some("1049"));
    }

    #[test]
    fn a_person_decides_once_about_a_run_that_failed() {
        let mut log = log();
        log.begin(begin("1"), 10);
        assert!(!log.resolve(true, Owner::default()), "it has not ended");
        log.finish("1", RunEnd::failed("x"));
        assert!(log.resolve(true, Owner::default()) && !log.resolve(false, Owner::default()));
        assert_eq!(log.runs[0].resolved.as_ref().map(|resolution| resolution.run_again), Some(true));
        log.begin(begin("2"), 10);
        log.finish("2", RunEnd::succeeded());
        assert!(!log.resolve(true, Owner::default()), "it succeeded");
    }

    #[test]
    fn a_person_lets_any_slot_that_has_ended_run_again_once() {
        let mut log = log();
        let never = |slot: Option<&str>| Err(NoRerun::NeverRan { slot: slot.map(str::to_owned) });
        assert_eq!(log.rerun(None, Owner::default()), never(None));
        log.begin(begin("1"), 10);
        let running = log.rerun(Some("1"), Owner::default()).expect_err("it runs").to_string();
        assert!(running.contains("slot 1 is running on"), "{running}");
        log.finish("1", RunEnd::succeeded());
        log.begin(begin("2"), 10);
        log.close_crashed();
        assert_eq!(log.rerun(Some("3"), Owner::default()), never(Some("3")));
        for (slot, marked) in [(Some("1"), "1"), (None, "2")] {
            assert_eq!(log.rerun(slot, Owner::default()).map(|run| run.slot.name), Ok(marked.to_owned()));
            let twice = log.rerun(slot, Owner::default()).expect_err("it waits");
            assert!(matches!(&twice, NoRerun::Waits { slot, .. } if slot == marked), "{twice}");
        }
        // The stamp of the write that recorded them.
        let mut log = JobLog::read(&log.to_bytes(), 100).expect("readable").expect("a log");
        let log = JobLog::read(&log.to_bytes(), 900).expect("readable").expect("a log");
        let at_ms: Vec<_> =
            log.runs.iter().map(|run| run.resolved.as_ref().and_then(|resolved| resolved.at_ms)).collect();
        assert_eq!(at_ms, [Some(100), Some(100)]);
    }

    /// Nothing else is left to remove.
    #[test]
    fn fields_of_a_later_version_are_kept_beyond_the_size() {
        let data = format!(
            r#"{{"lockkeeper":1,"path":"/a","schedule":{{"text":{{"slot":"x"}}}},"on_failure":"next","on_crash":"next",
            "runs":[{{"id":"1","slot":{{"name":"x","start_ms":1}},"attempt":1,"by":{{}},"token":"7","node":"n","later":"{}"}}]}}"#,
            "y".repeat(MAX_BYTES)
        );
        let mut log = JobLog::read(data.as_bytes(), 5).expect("readable").expect("a log");
        assert!(log.to_bytes().len() > MAX_BYTES && log.runs.len() == 1);
    }

    #[test]
    fn only_slots_that_nobody_ran_are_counted_as_missed() {
        let mut log = log();
        log.begin(begin("1"), 10);
        log.begin(Begin { missed_before: 2, ..begin("2") }, 10);
        let text = String::from_utf8(log.to_bytes()).expect("text");
        assert_eq!(text.matches("missed_before").count(), 1, "{text}");
    }
}
