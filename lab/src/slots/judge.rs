//! The judge of the slots: it knows the hours of the servers' clock, the lines of the work, and the records.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

const HOUR_MS: i64 = 3_600_000;

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The time from start to start, if a slot is not an hour.
    pub(super) every_ms: Option<i64>,
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
    pub(super) token: u128,
    pub(super) end: Option<String>,
    pub(super) missed_before: u64,
}

/// A line of the work.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) slot: String,
    pub(super) token: u128,
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

/// Returns the broken promises.
pub(super) fn judge(facts: &Facts) -> Vec<String> {
    let mut broken = Vec::new();
    let mut by_slot: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in facts.records.values() {
        by_slot.entry(&record.slot).or_default().push(record);
    }
    let hours: Vec<_> = facts.hours.iter().map(|begin| hour(*begin)).collect();
    for slot in &hours {
        match by_slot.get(slot.as_str()).map_or(0, Vec::len) {
            1 => {}
            0 => broken.push(format!("slot {slot} was not claimed")),
            count => broken.push(format!("slot {slot} was claimed {count} times")),
        }
    }
    let mut in_order: Vec<_> = facts.records.values().collect();
    in_order.sort_by_key(|record| record.start_ms);
    for pair in in_order.windows(2) {
        if pair[0].token >= pair[1].token {
            broken.push(format!("slot {} has no greater token than slot {}", pair[1].slot, pair[0].slot));
        }
        let ms = pair[1].start_ms - pair[0].start_ms;
        if facts.every_ms.is_some_and(|every_ms| ms < every_ms) {
            broken.push(format!("two runs began within {ms} ms, at tokens {} and {}", pair[0].token, pair[1].token));
        }
    }
    for record in in_order {
        let Record { slot, start_ms, missed_before, .. } = record;
        if facts.every_ms.is_none() && hour(*start_ms) != *slot {
            broken.push(format!("slot {slot} was claimed at {} by the servers' clock", hour(*start_ms)));
        }
        if facts.every_ms.is_none() && *missed_before > 0 {
            broken.push(format!("slot {slot} says that {missed_before} were missed before"));
        }
        if record.end.is_none() {
            broken.push(format!("the record of slot {slot} has no end"));
        }
        let done = facts.work.iter().filter(|work| work.token == record.token).count();
        if done == 0 && record.end.as_deref() == Some("succeeded") {
            broken.push(format!("slot {slot} succeeded without work"));
        }
    }
    let mut worked: BTreeMap<String, usize> = BTreeMap::new();
    for Work { slot, token, .. } in &facts.work {
        let name = if facts.every_ms.is_some() { format!("with token {token}") } else { slot.clone() };
        *worked.entry(name).or_default() += 1;
        if !facts.records.values().any(|record| record.token == *token && record.slot == *slot) {
            broken.push(format!("work of slot {slot} has no record"));
        }
    }
    broken.extend(
        worked
            .into_iter()
            .filter(|(_, count)| *count > 1)
            .map(|(slot, count)| format!("slot {slot} ran {count} times")),
    );
    broken
}
