//! What is known of the slots: the hours of the servers' clock, the lines of the work, and the records.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use lockkeeper_testkit::history::{self, Event, Promises, Violation, What};
use serde_json::Value;

const HOUR_MS: i64 = 3_600_000;

#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The time from start to start, if a slot is not an hour.
    pub(super) every: Option<Duration>,
    /// The hours that the servers' clock showed, each by its begin in milliseconds since 1970.
    pub(super) hours: Vec<i64>,
    /// Every record that was ever read, by its id.
    pub(super) records: BTreeMap<String, Record>,
    /// What the work itself wrote.
    pub(super) work: Vec<Work>,
}

/// A record of the job.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) slot: String,
    pub(super) start_ms: i64,
    pub(super) token: i64,
    pub(super) end: Option<String>,
    pub(super) missed_before: u64,
}

/// A line of the work.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) slot: String,
    pub(super) token: i64,
    /// The host's own clock, in seconds since 1970.
    pub(super) clock: i64,
}

impl Record {
    pub(super) fn read(record: &Value) -> Result<Record> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Ok(Record {
            id: text(&record["id"]).context("a record has an id")?,
            slot: text(&record["slot"]["name"]).context("a record has a slot")?,
            start_ms: record["start_ms"].as_i64().context("a record has a start")?,
            token: text(&record["token"]).and_then(|token| token.parse().ok()).context("a record has a token")?,
            end: text(&record["end"]["kind"]),
            missed_before: record["missed_before"].as_u64().unwrap_or(0),
        })
    }
}

/// Reads the lines of the work.
pub(super) fn work(text: &str) -> Result<Vec<Work>> {
    let lines = text.lines().map(|line| {
        // A slot's name may have a space.
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().with_context(|| format!("line {line:?} of the work has three words"));
        Ok(Work { token: word()?.parse()?, clock: word()?.parse()?, slot: word()?.to_owned() })
    });
    lines.collect()
}

/// The name of the hour that contains this moment.
fn hour(ms: i64) -> String {
    let begin = Timestamp::from_millisecond(ms - ms.rem_euclid(HOUR_MS)).unwrap_or_default();
    begin.strftime("%Y-%m-%dT%H+00:00").to_string()
}

impl Facts {
    /// Returns counts for people.
    pub(super) fn summary(&self) -> String {
        let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
        for record in self.records.values() {
            *ends.entry(record.end.as_deref().unwrap_or("no end")).or_default() += 1;
        }
        let is_off = |work: &&Work| {
            let record = self.records.values().find(|record| record.token == work.token);
            record.is_some_and(|record| record.start_ms.abs_diff(work.clock.saturating_mul(1000)) > 60_000)
        };
        let off = self.work.iter().filter(is_off).count();
        format!(
            "ends {ends:?}; {off} of {} runs by a host whose own clock was off by more than a minute",
            self.work.len()
        )
    }
}

/// Judges the facts as a history.
pub(super) fn judge(facts: &Facts) -> Vec<Violation> {
    let event = |ms: i64, what| {
        let at = Duration::from_millis(ms.unsigned_abs());
        Event { contender: 0, lock: 0, from: at, until: at, what }
    };
    let due = facts.hours.iter().map(|begin| event(*begin, What::Due { slot: hour(*begin) }));
    let claimed = facts.records.values().cloned().map(|record| {
        let Record { slot, start_ms, token, end: ended, missed_before: missed, .. } = record;
        let due = facts.every.is_none().then(|| hour(start_ms));
        event(start_ms, What::Claimed { slot, token, due, ended, missed })
    });
    let worked = facts.work.iter().cloned();
    let worked = worked.map(|Work { slot, token, clock }| event(clock * 1000, What::Worked { slot, token }));
    let events: Vec<Event> = due.chain(claimed).chain(worked).collect();
    let promises = Promises { every: facts.every, ..Promises::default() };
    history::judge(&events, &promises).violations
}
