//! The decision whether a host runs a slot, from the log and the servers' time.

use super::{JobLog, Pause, Rule, RunRecord, RunSlot, Schedule};

/// What a host asks for.
#[derive(Clone, Debug)]
pub struct ClaimTerms<'a> {
    /// When the job is due.
    pub schedule: &'a Schedule,
    /// For a calendar: the slot of [`ClaimTerms::now_ms`], and before it those that are over, the oldest first.
    pub slots: &'a [RunSlot],
    /// When the host asked, in milliseconds since 1970 by the servers' clock.
    pub now_ms: i64,
    /// The latest time that the servers have shown to the host: [`ClaimTerms::now_ms`], or a later one if
    /// [`ClaimTerms::ahead`] names a run. A host may have waited long for the lock, and others ran meanwhile.
    pub latest_ms: i64,
    /// What follows a failure.
    pub on_failure: Rule,
    /// What follows a crash.
    pub on_crash: Rule,
    /// The maximum number of missed slots to run.
    pub catch_up: u32,
}

/// What a host that holds the lock does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotDecision {
    /// It runs this slot.
    Run {
        /// The slot.
        slot: RunSlot,
        /// Which run of the slot this is, from 1.
        attempt: u32,
        /// Whether the slot is over.
        catch_up: bool,
        /// The number of slots since the run before that nobody ran.
        missed_before: u32,
    },
    /// The slot is done.
    Done {
        /// The run of it.
        run: RunRecord,
        /// When the next run is due, if that is known.
        due_ms: Option<i64>,
    },
    /// A later slot ran already, under a clock that was ahead by less than a period. So this one stays missed.
    Passed {
        /// The run of the later slot.
        run: RunRecord,
    },
    /// A run failed or crashed, and a person must decide.
    Kept {
        /// The run.
        run: RunRecord,
    },
    /// The job is paused. Otherwise the host would run a slot, or a person would have to decide.
    Paused {
        /// The slot that the host asked for.
        slot: RunSlot,
        /// The pause.
        pause: Pause,
    },
}

impl ClaimTerms<'_> {
    /// Decides for a host that holds the lock. Every run of the log has ended: [`JobLog::close_crashed`] ends the run of a host
    /// that no longer holds the lock.
    ///
    /// A last run that waits for a person stops the job, whatever slot the host asks for and whenever the run is dated.
    ///
    /// A slot that a person lets run again ([`JobLog::rerun`]) comes first: of a calendar, the newest slot that ran, also if it is
    /// over; otherwise, the slot that the host asks for. That run is one more attempt, and the same rules say what follows its end.
    ///
    /// Any other run that is dated in the future ([`Schedule::is_ahead`]) does not count. Otherwise one run under a clock that
    /// was a year ahead would silence the job for a year.
    ///
    /// While the job is paused, nothing runs. A slot that was left out runs for a host that asks for it after the pause, as long as it is
    /// not over: then it is not caught up.
    pub fn decide(&self, log: &JobLog) -> SlotDecision {
        match (self.decide_unpaused(log), &log.pause) {
            (SlotDecision::Run { .. } | SlotDecision::Kept { .. }, Some(pause))
                if pause.is_in_effect(self.latest_ms) =>
            {
                SlotDecision::Paused { slot: self.asked_for(), pause: pause.clone() }
            }
            (decision, _) => decision,
        }
    }

    /// The slot of [`ClaimTerms::now_ms`].
    fn asked_for(&self) -> RunSlot {
        let named = |name| RunSlot { name, start_ms: self.now_ms, end_ms: None };
        match self.schedule {
            Schedule::Calendar { .. } => self.slots.last().expect("a time has a slot").clone(),
            Schedule::Every { .. } => named(self.schedule.to_string()),
            Schedule::Text { slot } => named(slot.clone()),
        }
    }

    fn decide_unpaused(&self, log: &JobLog) -> SlotDecision {
        if let Some(run) = log.runs.last().filter(|run| self.is_kept(log, run)) {
            return SlotDecision::Kept { run: run.clone() };
        }
        let runs: Vec<_> = log.runs.iter().filter(|run| !self.schedule.is_ahead(run, self.latest_ms)).collect();
        match self.schedule {
            Schedule::Calendar { .. } => self.calendar(log, &runs),
            Schedule::Every { every_ms } => self.every(log, i64::try_from(*every_ms).unwrap_or(i64::MAX), &runs),
            Schedule::Text { slot } => self.text(slot, &runs),
        }
    }

    /// Returns the last run, if it is dated so far in the future that it does not count.
    pub fn ahead<'a>(&self, log: &'a JobLog) -> Option<&'a RunRecord> {
        log.runs.last().filter(|run| self.schedule.is_ahead(run, self.latest_ms))
    }

    fn calendar(&self, log: &JobLog, runs: &[&RunRecord]) -> SlotDecision {
        let current = self.slots.last().expect("a time has a slot");
        let Some(&last) = runs.last() else { return first(current.clone()) };
        let again = self.runs_again(last, runs);
        if log.schedule != *self.schedule {
            // Slots of two schedules cannot be compared by name: one run within the slot is enough.
            return match last.start_ms.unwrap_or(i64::MIN) {
                start if start >= current.start_ms && !again => {
                    SlotDecision::Done { run: last.clone(), due_ms: current.end_ms }
                }
                _ => first(current.clone()),
            };
        }
        // By the days of this host: another one may have another version of the time zone's data, and begin the same day at another time.
        let is_of = |run: &RunRecord, slot: &RunSlot| self.schedule.is_one_slot(&run.slot, slot);
        let own = self.slots.iter().find(|slot| is_of(last, slot));
        let last_start_ms = own.map_or(last.slot.start_ms, |slot| slot.start_ms);
        let back = usize::try_from(self.catch_up).unwrap_or(usize::MAX).saturating_add(1);
        let wanted = &self.slots[self.slots.len().saturating_sub(back)..];
        // A person's decision counts for a slot that is over, too.
        let again_in = if last.is_to_run_again() { self.slots } else { wanted };
        if again && let Some(slot) = again_in.iter().find(|slot| is_of(last, slot)) {
            let (attempt, catch_up) = (last.attempt.saturating_add(1), slot != current);
            return SlotDecision::Run { slot: slot.clone(), attempt, catch_up, missed_before: 0 };
        }
        // A slot may have run early, under a clock that was ahead.
        let is_missing = |slot: &&RunSlot| {
            let never_ran = slot.start_ms > last_start_ms && runs.iter().all(|run| !is_of(run, slot));
            never_ran && (*slot == current || !log.is_left_out(self.schedule, slot))
        };
        if let Some(slot) = wanted.iter().find(is_missing) {
            let between = |other: &&RunSlot| is_missing(other) && other.start_ms < slot.start_ms;
            let missed_before = u32::try_from(self.slots.iter().filter(between).count()).unwrap_or(u32::MAX);
            return SlotDecision::Run { slot: slot.clone(), attempt: 1, catch_up: slot != current, missed_before };
        }
        match runs.iter().rev().find(|run| is_of(run, current)) {
            Some(&run) => SlotDecision::Done { run: run.clone(), due_ms: current.end_ms },
            None => SlotDecision::Passed { run: last.clone() },
        }
    }

    fn every(&self, log: &JobLog, every_ms: i64, runs: &[&RunRecord]) -> SlotDecision {
        let Some(&last) = runs.last() else { return first(self.asked_for()) };
        let due_ms = last.start_ms.unwrap_or(i64::MIN).saturating_add(every_ms);
        if due_ms <= self.now_ms {
            let paused_ms = log.pause.as_ref().map_or(0, |pause| pause.covers_ms(due_ms, self.now_ms));
            let missed = self.now_ms.saturating_sub(due_ms).saturating_sub(paused_ms) / every_ms.max(1);
            let missed_before = u32::try_from(missed).unwrap_or(u32::MAX).min(super::MAX_SLOTS_BACK);
            return SlotDecision::Run { slot: self.asked_for(), attempt: 1, catch_up: false, missed_before };
        }
        match self.runs_again(last, runs) {
            true => again(last),
            false => SlotDecision::Done { run: last.clone(), due_ms: Some(due_ms) },
        }
    }

    fn text(&self, text: &str, runs: &[&RunRecord]) -> SlotDecision {
        match runs.iter().rev().find(|run| run.slot.name == text) {
            None => first(self.asked_for()),
            Some(last) if self.runs_again(last, runs) => again(last),
            Some(&last) => SlotDecision::Done { run: last.clone(), due_ms: None },
        }
    }

    /// Whether a last run waits for a person: it has failed, and the rule of its host or that of this one is to keep it.
    fn is_kept(&self, log: &JobLog, run: &RunRecord) -> bool {
        let Some(end) = run.end.as_ref().filter(|_| run.has_failed() && run.resolved.is_none()) else { return false };
        let rules = if end.kind.is_crash() { [self.on_crash, log.on_crash] } else { [self.on_failure, log.on_failure] };
        rules.contains(&Rule::Keep)
    }

    /// Whether the slot of a run that has ended, its newest one, runs again.
    fn runs_again(&self, run: &RunRecord, runs: &[&RunRecord]) -> bool {
        if let Some(resolved) = &run.resolved {
            return resolved.run_again;
        }
        let Some(end) = run.end.as_ref().filter(|_| run.has_failed()) else { return false };
        match if end.kind.is_crash() { self.on_crash } else { self.on_failure } {
            Rule::Retry { most } => most.is_none_or(|most| self.tries(run, runs) <= most),
            Rule::Next | Rule::Keep => false,
        }
    }

    /// How often the slot of this run was tried, since a person decided that it runs again.
    fn tries(&self, run: &RunRecord, runs: &[&RunRecord]) -> u32 {
        let is_earlier =
            |other: &RunRecord| self.schedule.is_one_slot(&other.slot, &run.slot) && other.attempt < run.attempt;
        let decided = runs.iter().filter(|other| is_earlier(other) && other.is_to_run_again());
        run.attempt.saturating_sub(decided.map(|other| other.attempt).max().unwrap_or(0))
    }
}

/// The next run of the slot of this one.
fn again(run: &RunRecord) -> SlotDecision {
    let attempt = run.attempt.saturating_add(1);
    SlotDecision::Run { slot: run.slot.clone(), attempt, catch_up: false, missed_before: 0 }
}

/// The first run of a slot.
fn first(slot: RunSlot) -> SlotDecision {
    SlotDecision::Run { slot, attempt: 1, catch_up: false, missed_before: 0 }
}
