//! The pause of a job, and the slots that it left out.

use serde::{Deserialize, Serialize};

use super::{JobLog, MAX_RUNS, RunSlot, Schedule};
use lockkeeper::admin::Owner;

/// A pause of a job: meanwhile, no host begins a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pause {
    /// Who paused the job.
    pub by: Owner,
    /// Why. At most 1 KiB.
    pub reason: String,
    /// Since when the job is paused, in milliseconds since 1970 by the servers' clock. A pause that replaces another one before its
    /// end keeps the time of that one.
    pub since_ms: i64,
    /// When the pause ends or has ended, by the servers' clock; `None` until a person ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

impl Pause {
    /// Returns whether the job is paused at `now_ms`, the servers' time.
    pub fn is_in_effect(&self, now_ms: i64) -> bool {
        self.until_ms.is_none_or(|until| now_ms < until)
    }

    /// How much of the time between these two the pause covers, in milliseconds.
    pub(super) fn covers_ms(&self, from_ms: i64, to_ms: i64) -> i64 {
        let until_ms = self.until_ms.unwrap_or(i64::MAX).min(to_ms);
        until_ms.saturating_sub(self.since_ms.max(from_ms)).max(0)
    }
}

/// How many pauses before the last one a job knows: `--catch-up` passes over the slots in them.
const MAX_EARLIER: usize = 32;

/// A slot that a host asked for while the job was paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeftOut {
    /// The slot. Of a job that runs every so often, it begins when the host asked.
    pub slot: RunSlot,
    /// When the first host asked for it, in milliseconds since 1970 by the servers' clock.
    pub at_ms: i64,
    /// Who had paused the job.
    pub by: Owner,
    /// Why.
    pub reason: String,
}

impl JobLog {
    /// Notes a slot that a host asked for at `at_ms` in this pause, and removes the oldest ones above `keep`. Returns whether it was
    /// not noted yet. A job that runs every so often has one such slot in that time.
    pub fn leave_out(&mut self, schedule: &Schedule, slot: &RunSlot, pause: &Pause, at_ms: i64, keep: u32) -> bool {
        let is_it = |other: &LeftOut| match schedule {
            Schedule::Every { every_ms } => slot.start_ms.abs_diff(other.slot.start_ms) < *every_ms,
            _ => schedule.is_one_slot(&other.slot, slot),
        };
        if self.left_out.iter().any(is_it) {
            return false;
        }
        let (by, reason) = (pause.by.clone(), pause.reason.clone());
        self.left_out.push(LeftOut { slot: slot.clone(), at_ms, by, reason });
        let keep = usize::try_from(keep.clamp(1, MAX_RUNS)).unwrap_or(usize::MAX);
        self.left_out.drain(..self.left_out.len().saturating_sub(keep));
        true
    }

    /// Pauses the job at `now_ms`, the servers' time. Replaces an earlier pause. Returns the pause.
    pub fn pause(&mut self, by: Owner, reason: String, now_ms: i64, until_ms: Option<i64>) -> Pause {
        let since_ms = match &self.pause {
            Some(before) if before.is_in_effect(now_ms) => before.since_ms,
            ended => {
                let ended = ended.as_ref().and_then(|pause| Some((pause.since_ms, pause.until_ms?)));
                self.earlier_pauses.extend(ended);
                now_ms
            }
        };
        self.earlier_pauses.drain(..self.earlier_pauses.len().saturating_sub(MAX_EARLIER));
        self.pause.insert(Pause { by, reason, since_ms, until_ms }).clone()
    }

    /// Ends the pause at `now_ms`, the servers' time. Returns it; `None` if the job is not paused.
    pub fn resume(&mut self, now_ms: i64) -> Option<Pause> {
        let pause = self.pause.as_mut().filter(|pause| pause.is_in_effect(now_ms))?;
        pause.until_ms = Some(now_ms);
        Some(pause.clone())
    }

    /// Whether this slot, which is over, was left out: a host asked for it in a pause, or all of it was in one.
    pub(super) fn is_left_out(&self, schedule: &Schedule, slot: &RunSlot) -> bool {
        let last = self.pause.as_ref().map(|pause| (pause.since_ms, pause.until_ms.unwrap_or(i64::MAX)));
        let covers = |(since, until), end_ms| since <= slot.start_ms && end_ms <= until;
        self.left_out.iter().any(|other| schedule.is_one_slot(&other.slot, slot))
            || slot.end_ms.is_some_and(|end_ms| {
                self.earlier_pauses.iter().copied().chain(last).any(|pause| covers(pause, end_ms))
            })
    }
}
