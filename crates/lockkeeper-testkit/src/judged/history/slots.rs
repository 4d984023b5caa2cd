//! What the judge knows of the slots of a job: each one runs exactly once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::judge::{Case, Claim};
use super::{Event, What};

/// A record of a run.
struct Record<'a> {
    start: Duration,
    slot: &'a str,
    token: i64,
}

impl Case<'_> {
    pub(super) fn slots(&mut self, events: &[&Event]) {
        let (mut records, mut due) = (Vec::new(), Vec::new());
        let mut worked: BTreeMap<(&str, i64), usize> = BTreeMap::new();
        for event in events {
            match &event.what {
                What::Due { slot } => due.push(slot.as_str()),
                What::Worked { slot, token } => *worked.entry((slot.as_str(), *token)).or_default() += 1,
                What::Claimed { slot, token, .. } => records.push(Record { start: event.from, slot, token: *token }),
                _ => {}
            }
        }
        let every = self.promises.every;
        let mut once = |detail: String| self.accuse(Claim::Once, detail);
        for slot in due {
            match records.iter().filter(|record| record.slot == slot).count() {
                1 => {}
                0 => once(format!("slot {slot} was not claimed")),
                count => once(format!("slot {slot} was claimed {count} times")),
            }
        }
        for event in events {
            let What::Claimed { slot, token, due, ended, missed } = &event.what else { continue };
            if let Some(due) = due.as_ref().filter(|due| *due != slot) {
                once(format!("slot {slot} was claimed at {due} by the servers' clock"));
            }
            if due.is_some() && *missed > 0 {
                once(format!("slot {slot} says that {missed} were missed before"));
            }
            match ended.as_deref() {
                None => once(format!("the record of slot {slot} has no end")),
                Some("succeeded") if !worked.keys().any(|(_, by)| by == token) => {
                    once(format!("slot {slot} succeeded without work"));
                }
                Some(_) => {}
            }
        }
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for ((slot, token), count) in worked {
            if !records.iter().any(|record| record.token == token && record.slot == slot) {
                once(format!("work of slot {slot} has no record"));
            }
            let name = if every.is_some() { format!("with token {token}") } else { slot.to_owned() };
            *times.entry(name).or_default() += count;
        }
        for (slot, count) in times.into_iter().filter(|(_, count)| *count > 1) {
            self.accuse(Claim::Once, format!("slot {slot} ran {count} times"));
        }
        records.sort_by_key(|record| record.start);
        for pair in records.windows(2) {
            let [before, after] = pair else { continue };
            if before.token >= after.token {
                self.accuse(
                    Claim::Tokens,
                    format!("slot {} has no greater token than slot {}", after.slot, before.slot),
                );
            }
            let apart = after.start - before.start;
            if every.is_some_and(|every| apart < every) {
                let detail = format!("two runs began within {apart:?}, at tokens {} and {}", before.token, after.token);
                self.accuse(Claim::Once, detail);
            }
        }
    }
}
