//! Every order of the steps of three hosts of one job, with crashes and lost locks between any two steps.
//!
//! The lock is a model: at most one host holds it, and it may lose it at any time without noticing. A claim takes effect only under the
//! lock and on the version that was read. An end takes effect on the version of the claim. Everything else is the code that ships.

#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::collections::{BTreeMap, HashSet};

use lockkeeper::admin::Owner;
use lockkeeper_jobs::records::{
    Begin, ClaimTerms, EndKind, JobLog, NoRerun, Rule, RunEnd, RunSlot, Schedule, Slot, SlotDecision,
};
use proptest::prelude::*;

const HOUR_MS: i64 = 3_600_000;

fn hourly() -> Schedule {
    Schedule::Calendar { per: Slot::Hour, time_zone: "UTC".to_owned() }
}

fn slot(hour: i64) -> RunSlot {
    RunSlot::new(format!("h{hour}"), hour * HOUR_MS, Some((hour + 1) * HOUR_MS))
}

/// The slot of an hour, and the thirty before it.
fn slots(hour: i64) -> Vec<RunSlot> {
    (hour - 30..=hour).map(slot).collect()
}

/// Where a host is. Each step may be the last one before its crash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Host {
    Away,
    /// It wants the slot of this hour, and has the lock if it is the holder.
    Asks(i64),
    /// It has read this version, and decided.
    Read {
        version: usize,
        begin: Option<(String, u32)>,
        hour: i64,
    },
    /// Its claim took effect as this version; the work has not begun.
    Claimed {
        version: usize,
        id: String,
    },
    /// The work has begun.
    Works {
        version: usize,
        id: String,
    },
    Gone,
}

#[derive(Clone, Debug)]
struct World {
    rule: Rule,
    hour: i64,
    holder: Option<usize>,
    hosts: Vec<Host>,
    /// The record: its bytes, and how often it was written.
    data: Vec<u8>,
    version: usize,
    /// How often the work of each slot has begun.
    began: BTreeMap<String, usize>,
    crashes: usize,
    losses: usize,
    /// How often a person pauses or resumes the job yet, by turns.
    changes: usize,
}

impl World {
    fn new(rule: Rule) -> World {
        World {
            rule,
            hour: 20,
            holder: None,
            hosts: vec![Host::Away; 3],
            data: Vec::new(),
            version: 0,
            began: BTreeMap::new(),
            crashes: 2,
            losses: 1,
            changes: 0,
        }
    }

    fn log(&self) -> JobLog {
        let stamp = self.hour * HOUR_MS;
        JobLog::read(&self.data, stamp).unwrap().unwrap_or_else(|| JobLog::new("/a", hourly()))
    }

    fn key(&self) -> String {
        format!(
            "{:?}",
            (&self.hosts, self.hour, self.holder, &self.data, self.version, self.crashes, self.losses, &self.began),
        ) + &self.changes.to_string()
    }

    /// All worlds that one step leads to.
    fn next(&self) -> Vec<World> {
        let mut worlds = Vec::new();
        if self.hour == 20 {
            worlds.push(World { hour: 21, ..self.clone() });
        }
        if self.changes > 0 && !self.data.is_empty() {
            let mut world = World { changes: self.changes - 1, version: self.version + 1, ..self.clone() };
            let (mut log, now_ms) = (self.log(), self.hour * HOUR_MS);
            if log.resume(now_ms).is_none() {
                log.pause(Owner::default(), String::new(), now_ms, None);
            }
            world.data = log.to_bytes();
            worlds.push(world);
        }
        if self.losses > 0 && self.holder.is_some() {
            worlds.push(World { losses: self.losses - 1, holder: None, ..self.clone() });
        }
        for at in 0..self.hosts.len() {
            if self.crashes > 0 && !matches!(self.hosts[at], Host::Gone | Host::Away) {
                let mut world = World { crashes: self.crashes - 1, ..self.clone() };
                world.leave(at);
                worlds.push(world);
            }
            worlds.extend(self.step(at));
        }
        worlds
    }

    fn leave(&mut self, at: usize) {
        self.hosts[at] = Host::Gone;
        self.holder = self.holder.filter(|holder| *holder != at);
    }

    fn step(&self, at: usize) -> Option<World> {
        let mut world = self.clone();
        let holds = self.holder == Some(at);
        world.hosts[at] = match self.hosts[at].clone() {
            Host::Away => Host::Asks(self.hour),
            Host::Asks(_) if self.holder.is_none() => {
                world.holder = Some(at);
                self.hosts[at].clone()
            }
            Host::Asks(hour) if holds => {
                let (mut log, slots) = (self.log(), slots(hour));
                log.close_crashed();
                let schedule = hourly();
                let (now_ms, on_failure, on_crash) = (hour * HOUR_MS, Rule::Next, self.rule);
                let latest_ms = self.hour * HOUR_MS;
                let terms = ClaimTerms {
                    schedule: &schedule,
                    slots: &slots,
                    now_ms,
                    latest_ms,
                    on_failure,
                    on_crash,
                    catch_up: 0,
                };
                let begin = match terms.decide(&log) {
                    SlotDecision::Run { slot, attempt, .. } => Some((slot.name, attempt)),
                    _ => None,
                };
                Host::Read { version: self.version, begin, hour }
            }
            Host::Read { begin: None, .. } => {
                world.leave(at);
                Host::Gone
            }
            Host::Read { version, begin: Some((name, attempt)), hour } => {
                if !holds || version != self.version {
                    // The check of its hold, or of the version, refuses the claim.
                    world.leave(at);
                    Host::Gone
                } else {
                    let (mut log, id) = (self.log(), format!("{at}-{}", self.version));
                    assert!(
                        log.pause.as_ref().is_none_or(|pause| !pause.is_in_effect(self.hour * HOUR_MS)),
                        "{self:?}"
                    );
                    log.close_crashed();
                    assert_eq!(name, slot(hour).name);
                    let begin = Begin {
                        id: id.clone(),
                        slot: slot(hour),
                        attempt,
                        catch_up: false,
                        missed_before: 0,
                        by: Owner::default(),
                        command: None,
                        token: String::new(),
                        node: String::new(),
                    };
                    log.begin(begin, 100);
                    (world.data, world.version) = (log.to_bytes(), self.version + 1);
                    Host::Claimed { version: world.version, id }
                }
            }
            Host::Claimed { version, id } => {
                *world.began.entry(self.log().runs.iter().find(|run| run.id == id)?.slot.name.clone()).or_default() +=
                    1;
                Host::Works { version, id }
            }
            Host::Works { version, id } => {
                let mut log = self.log();
                // The release writes the end into what a person has changed, unless another host has closed the run.
                let is_open = log.finish(&id, RunEnd::succeeded());
                assert!(is_open || version != self.version);
                if is_open {
                    (world.data, world.version) = (log.to_bytes(), self.version + 1);
                }
                world.leave(at);
                Host::Gone
            }
            _ => return None,
        };
        Some(world)
    }
}

/// Walks all worlds, and calls `judge` in each; `is_last` says that nothing more can happen.
fn explore(rule: Rule, judge: impl FnMut(&World, bool)) -> usize {
    explore_from(World::new(rule), judge)
}

fn explore_from(world: World, mut judge: impl FnMut(&World, bool)) -> usize {
    let (mut seen, mut open) = (HashSet::new(), vec![world]);
    while let Some(world) = open.pop() {
        if seen.insert(world.key()) {
            let next = world.next();
            judge(&world, next.is_empty());
            open.extend(next);
        }
    }
    seen.len()
}

#[test]
fn in_every_order_of_steps_a_slot_is_claimed_once_without_retries() {
    let mut crashes = 0;
    let worlds = explore(Rule::Next, |world, _| {
        let mut names: Vec<_> = world.log().runs.iter().map(|run| run.slot.name.clone()).collect();
        assert!(world.began.values().all(|began| *began == 1), "{world:?}");
        crashes += usize::from(
            world.log().runs.iter().any(|run| run.end.as_ref().is_some_and(|end| end.kind == EndKind::Crashed)),
        );
        let claims = names.len();
        names.dedup();
        assert_eq!(names.len(), claims, "{world:?}");
    });
    assert!(worlds > 5_000 && crashes > 0, "{worlds} worlds, {crashes} with crashes");
}

#[test]
fn in_every_order_of_steps_no_slot_runs_again_after_its_success() {
    let mut retried = 0;
    let worlds = explore(Rule::Retry { most: None }, |world, _| {
        let log = world.log();
        for (at, run) in log.runs.iter().enumerate() {
            let again = log.runs[at + 1..].iter().filter(|later| later.slot == run.slot).count();
            assert!(!run.has_succeeded() || again == 0, "{world:?}");
            retried += again;
        }
    });
    assert!(worlds > 5_000 && retried > 0, "{worlds} worlds, {retried} retried");
}

/// Also while a host runs it: the end of that run is recorded, and no host takes it for a crash.
#[test]
fn in_every_order_of_steps_a_pause_lets_no_run_begin_and_costs_no_end() {
    let (mut during_run, mut held_back) = (0, 0);
    let world = World { crashes: 0, losses: 0, changes: 2, ..World::new(Rule::Retry { most: None }) };
    let worlds = explore_from(world, |world, is_last| {
        let log = world.log();
        assert!(world.began.values().all(|began| *began == 1), "{world:?}");
        assert!(log.runs.iter().all(|run| run.end.is_none() || run.has_succeeded()), "{world:?}");
        during_run += usize::from(log.open().is_some() && log.pause.is_some());
        held_back += usize::from(is_last && log.pause.is_some() && log.runs.len() == 1);
    });
    assert!(worlds > 1_000 && during_run > 0 && held_back > 0, "{worlds} worlds, {during_run}, {held_back}");
}

proptest! {
    /// Hosts that ask at any hours, in any order of arrival, with any number of slots to catch up: slots run once, in
    /// order, and what is not run is counted as missed.
    #[test]
    fn slots_run_in_order_and_the_missed_ones_are_counted(
        hours in proptest::collection::vec(11_i64..40, 1..30),
        catch_up in 0_u32..5,
    ) {
        let (mut log, mut latest_ms) = (JobLog::new("/a", hourly()), 0);
        for hour in hours {
            // A host that catches up asks again after each run.
            for claim in 0.. {
                let (slots, schedule) = (slots(hour), hourly());
                let (on_failure, on_crash) = (Rule::Next, Rule::Next);
                let now_ms = hour * HOUR_MS + 1;
                latest_ms = now_ms.max(latest_ms);
                let terms = ClaimTerms { schedule: &schedule, slots: &slots, now_ms, latest_ms, on_failure, on_crash, catch_up };
                let SlotDecision::Run { slot, attempt, catch_up: late, missed_before } = terms.decide(&log) else { break };
                prop_assert!(claim <= catch_up && late == (slot.start_ms < hour * HOUR_MS));
                let id = log.runs.len().to_string();
                let (by, token, node) = (Owner::default(), String::new(), String::new());
                let begin = Begin { id, slot, attempt, catch_up: late, missed_before, by, command: None, token, node };
                log.begin(begin, 1000);
                log.stamp(now_ms);
                let id = log.runs.last().map(|run| run.id.clone()).unwrap_or_default();
                log.finish(&id, RunEnd::succeeded());
                log.stamp(now_ms);
            }
        }
        for pair in log.runs.windows(2) {
            let slots_between = (pair[1].slot.start_ms - pair[0].slot.start_ms) / HOUR_MS - 1;
            prop_assert!(slots_between >= 0);
            prop_assert_eq!(i64::from(pair[1].missed_before), slots_between);
        }
    }

    /// Starts are never closer than the time between them, whatever order of times a new leader's clock shows. Each whole
    /// hour between two of them counts as missed. A start that is dated in the future does not count.
    #[test]
    fn a_job_that_runs_every_hour_starts_an_hour_after_the_last_start(times in proptest::collection::vec(0_i64..40, 1..40)) {
        let schedule = Schedule::Every { every_ms: HOUR_MS as u64 };
        let mut log = JobLog::new("/a", schedule.clone());
        for (at, quarter) in times.into_iter().enumerate() {
            let now_ms = quarter * HOUR_MS / 4;
            let (on_failure, on_crash) = (Rule::Next, Rule::Next);
            let terms = ClaimTerms { schedule: &schedule, slots: &[], now_ms, latest_ms: now_ms, on_failure, on_crash, catch_up: 0 };
            match terms.decide(&log) {
                SlotDecision::Run { slot, attempt, catch_up, missed_before } => {
                    let (id, by, token, node) = (at.to_string(), Owner::default(), String::new(), String::new());
                    let begin = Begin { id: id.clone(), slot, attempt, catch_up, missed_before, by, command: None, token, node };
                    log.begin(begin, 1000);
                    log.stamp(now_ms);
                    log.finish(&id, RunEnd::succeeded());
                    log.stamp(now_ms);
                }
                SlotDecision::Done { run, due_ms } => {
                    prop_assert_eq!(due_ms, run.start_ms.map(|start| start + HOUR_MS));
                    prop_assert!(due_ms.is_some_and(|due| due > now_ms));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        for pair in log.runs.windows(2) {
            let between_ms = pair[1].start_ms.unwrap() - pair[0].start_ms.unwrap();
            if between_ms < -HOUR_MS / 10 {
                continue;
            }
            let hours = between_ms / HOUR_MS;
            prop_assert!(hours >= 1);
            prop_assert_eq!(i64::from(pair[1].missed_before), hours - 1);
        }
    }
}

/// Slots of two schedules cannot be compared. So one run that started within the new slot is the run of it, unless it is to
/// be repeated.
/// Machines with different versions of the time zone data: one begins each day, and names each hour, by an offset of three hours, the
/// other by two.
#[test]
fn a_slot_runs_once_although_the_machines_have_different_time_zone_data() {
    let days = |offset: i64| {
        (-2..=0).map(move |day| {
            let start_ms = (day * 24 - offset) * HOUR_MS;
            RunSlot::new(format!("day {day}"), start_ms, Some(start_ms + 24 * HOUR_MS))
        })
    };
    let hours = |offset: i64| {
        (7..=9).map(move |hour| {
            RunSlot::new(format!("{}+{offset}", hour + offset), hour * HOUR_MS, Some((hour + 1) * HOUR_MS))
        })
    };
    for (per, now_ms) in [(Slot::Day, 12 * HOUR_MS), (Slot::Hour, 9 * HOUR_MS + 1)] {
        let schedule = Schedule::Calendar { per, time_zone: "Asia/Amman".to_owned() };
        let slots = |offset| if per == Slot::Day { days(offset).collect::<Vec<_>>() } else { hours(offset).collect() };
        for (first, second) in [(3, 2), (2, 3)] {
            let decide = |log: &JobLog, offset, on_failure, catch_up| {
                let (slots, on_crash) = (slots(offset), Rule::Next);
                let terms = ClaimTerms {
                    schedule: &schedule,
                    slots: &slots,
                    now_ms,
                    latest_ms: now_ms,
                    on_failure,
                    on_crash,
                    catch_up,
                };
                terms.decide(log)
            };
            let mut log = JobLog::new("/a", schedule.clone());
            let run = |log: &mut JobLog, decision, end: RunEnd| {
                let SlotDecision::Run { slot, attempt, catch_up, missed_before } = decision else {
                    panic!("{decision:?}")
                };
                let (id, by, node) = (log.runs.len().to_string(), Owner::default(), String::new());
                log.begin(
                    Begin {
                        id: id.clone(),
                        slot,
                        attempt,
                        catch_up,
                        missed_before,
                        by,
                        command: None,
                        token: String::new(),
                        node,
                    },
                    100,
                );
                log.stamp(now_ms);
                log.finish(&id, end);
                log.stamp(now_ms);
                attempt
            };
            // It fails on one machine, and has one retry in all.
            let retry = Rule::Retry { most: Some(1) };
            let begun = decide(&log, first, retry, 0);
            assert_eq!(run(&mut log, begun, RunEnd::failed("x")), 1);
            let again = decide(&log, second, retry, 0);
            assert_eq!(run(&mut log, again, RunEnd::failed("x")), 2, "{per} {first}");
            let mut succeeded = log.clone();
            for offset in [first, second] {
                for catch_up in [0, 1] {
                    let done = decide(&log, offset, retry, catch_up);
                    assert!(matches!(done, SlotDecision::Done { .. }), "{per} {first} {offset}: {done:?}");
                }
            }
            let third = decide(&succeeded, second, Rule::Retry { most: Some(2) }, 0);
            assert_eq!(run(&mut succeeded, third, RunEnd::succeeded()), 3);
            assert!(matches!(decide(&succeeded, first, Rule::Retry { most: None }, 1), SlotDecision::Done { .. }));
        }
    }
}

#[test]
fn after_a_change_of_the_schedule_a_run_within_the_slot_counts() {
    let daily = Schedule::Calendar { per: Slot::Day, time_zone: "UTC".to_owned() };
    let today = RunSlot::new("today", 24 * HOUR_MS, Some(48 * HOUR_MS));
    let cases = [
        (24 * HOUR_MS, RunEnd::succeeded(), false),
        (24 * HOUR_MS - 1, RunEnd::succeeded(), true),
        (30 * HOUR_MS, RunEnd::failed("x"), true),
    ];
    for (started_ms, end, runs) in cases {
        let mut log = JobLog::new("/a", hourly());
        let (by, token, node) = (Owner::default(), String::new(), String::new());
        let slot = slot(started_ms / HOUR_MS);
        let id = "1".to_owned();
        log.begin(
            Begin { id, slot, attempt: 1, catch_up: false, missed_before: 0, by, command: None, token, node },
            10,
        );
        log.stamp(started_ms);
        log.finish("1", end);
        log.stamp(started_ms);
        let (on_failure, on_crash) = (Rule::Retry { most: None }, Rule::Next);
        let now_ms = 31 * HOUR_MS;
        let slots = [today.clone()];
        let terms = ClaimTerms {
            schedule: &daily,
            slots: &slots,
            now_ms,
            latest_ms: now_ms,
            on_failure,
            on_crash,
            catch_up: 0,
        };
        match terms.decide(&log) {
            SlotDecision::Run { slot, missed_before: 0, .. } => assert!(runs && slot == today, "{started_ms}"),
            SlotDecision::Done { run, due_ms } => {
                assert!(!runs && run.id == "1" && due_ms == today.end_ms, "{started_ms}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Claims at this time, and runs what is to run.
fn claim(log: &mut JobLog, schedule: &Schedule, now_ms: i64) -> SlotDecision {
    let slots = slots(now_ms.div_euclid(HOUR_MS));
    let (latest_ms, on_failure, on_crash) = (now_ms, Rule::Keep, Rule::Next);
    let decision =
        ClaimTerms { schedule, slots: &slots, now_ms, latest_ms, on_failure, on_crash, catch_up: 0 }.decide(log);
    if let SlotDecision::Run { slot, attempt, catch_up, missed_before } = decision.clone() {
        let (id, by, token, node) = (log.runs.len().to_string(), Owner::default(), String::new(), String::new());
        log.begin(
            Begin { id: id.clone(), slot, attempt, catch_up, missed_before, by, command: None, token, node },
            1000,
        );
        log.stamp(now_ms);
        assert!(log.finish(&id, RunEnd::succeeded()));
        log.stamp(now_ms);
    }
    decision
}

/// The first run was claimed while the leader's clock was ahead. Each slot still runs once, also that of the future.
#[test]
fn one_run_under_a_clock_that_is_a_year_ahead_does_not_silence_the_job() {
    const YEAR_MS: i64 = 365 * 24 * HOUR_MS;
    for schedule in [hourly(), Schedule::Every { every_ms: HOUR_MS as u64 }] {
        let mut log = JobLog::new("/a", schedule.clone());
        claim(&mut log, &schedule, 100 * HOUR_MS + YEAR_MS);
        for hour in 100..104 {
            let decision = claim(&mut log, &schedule, hour * HOUR_MS);
            assert!(matches!(decision, SlotDecision::Run { attempt: 1, missed_before: 0, .. }), "{hour}: {decision:?}");
            let again = claim(&mut log, &schedule, hour * HOUR_MS + HOUR_MS / 2);
            assert!(
                matches!(&again, SlotDecision::Done { run, .. } if run.start_ms == Some(hour * HOUR_MS)),
                "{again:?}"
            );
        }
    }
    let mut log = JobLog::new("/a", hourly());
    for hour in [103, 100, 101, 102] {
        claim(&mut log, &hourly(), hour * HOUR_MS);
    }
    let early = claim(&mut log, &hourly(), 103 * HOUR_MS + 1);
    assert!(matches!(&early, SlotDecision::Done { run, .. } if run.id == "0"), "{early:?}");
}

/// A clock that is ahead by less than a period costs at most the slot of that period.
#[test]
fn a_run_under_a_clock_that_is_a_little_ahead_counts() {
    let mut log = JobLog::new("/a", hourly());
    let starts: Vec<_> = [101, 100, 101, 102].map(|hour| claim(&mut log, &hourly(), hour * HOUR_MS + 7)).into();
    assert!(matches!(starts[1], SlotDecision::Passed { .. }), "{starts:?}");
    assert!(matches!(starts[2], SlotDecision::Done { .. }), "{starts:?}");
    assert!(matches!(starts[3], SlotDecision::Run { .. }), "{starts:?}");
}

/// A start in the future delays the next one, and no other start of the same period makes up for it.
#[test]
fn a_start_that_is_a_tenth_of_its_interval_ahead_delays_the_next_one_and_a_later_one_does_not_count() {
    let every = Schedule::Every { every_ms: HOUR_MS as u64 };
    for (ahead_ms, counts) in [(HOUR_MS / 10, true), (HOUR_MS / 10 + 1, false)] {
        let mut log = JobLog::new("/a", every.clone());
        claim(&mut log, &every, 100 * HOUR_MS + ahead_ms);
        let decision = claim(&mut log, &every, 100 * HOUR_MS);
        assert_eq!(matches!(decision, SlotDecision::Done { .. }), counts, "{ahead_ms}: {decision:?}");
    }
}

/// A run of the future that failed still waits for its person.
#[test]
fn a_run_dated_in_the_future_that_waits_for_a_person_is_kept() {
    let mut log = JobLog::new("/a", hourly());
    claim(&mut log, &hourly(), 1000 * HOUR_MS);
    log.runs[0].end = Some(RunEnd::failed("x"));
    let decision = claim(&mut log, &hourly(), 100 * HOUR_MS);
    assert!(matches!(&decision, SlotDecision::Kept { run } if run.id == "0"), "{decision:?}");
}

/// Whatever slot the next host asks for, and also if its own rule is another one.
#[test]
fn a_kept_run_stops_the_job_until_a_person_decides() {
    let text = |slot: &str| Schedule::Text { slot: slot.to_owned() };
    let every = Schedule::Every { every_ms: HOUR_MS as u64 };
    for (kept, next) in [(hourly(), hourly()), (every.clone(), every), (text("1"), text("2")), (text("1"), hourly())] {
        for (rule, own) in [(Rule::Keep, Rule::Keep), (Rule::Keep, Rule::Next), (Rule::Next, Rule::Keep)] {
            let mut log = JobLog::new("/a", kept.clone());
            claim(&mut log, &kept, 100 * HOUR_MS);
            (log.runs[0].end, log.on_failure) = (Some(RunEnd::failed("x")), rule);
            let decide = |log: &JobLog| {
                let (slots, now_ms, on_crash) = (slots(103), 103 * HOUR_MS, Rule::Next);
                let terms = ClaimTerms {
                    schedule: &next,
                    slots: &slots,
                    now_ms,
                    latest_ms: now_ms,
                    on_failure: own,
                    on_crash,
                    catch_up: 0,
                };
                terms.decide(log)
            };
            let decision = decide(&log);
            assert!(matches!(&decision, SlotDecision::Kept { run } if run.id == "0"), "{next:?}: {decision:?}");
            assert!(log.resolve(false, Owner::default()));
            let decision = decide(&log);
            assert!(matches!(&decision, SlotDecision::Run { attempt: 1, .. }), "{next:?}: {decision:?}");
        }
    }
}

/// Whatever rule a host has.
#[test]
fn a_slot_that_a_person_lets_run_again_runs_once_more_and_the_others_do_not() {
    let text = |slot: &str| Schedule::Text { slot: slot.to_owned() };
    // The rerun is claimed under the second schedule, and the third one shows that all is done.
    for (first, again) in
        [(hourly(), None), (Schedule::Every { every_ms: HOUR_MS as u64 }, None), (text("1"), Some("1"))]
    {
        let mut log = JobLog::new("/a", first.clone());
        claim(&mut log, &first, 100 * HOUR_MS);
        let at_ms = 100 * HOUR_MS + HOUR_MS / 2;
        assert!(matches!(claim(&mut log, &first, at_ms), SlotDecision::Done { .. }), "{first:?}");
        assert!(log.rerun(again, Owner::default()).is_ok());
        let decision = claim(&mut log, &first, at_ms);
        assert!(matches!(decision, SlotDecision::Run { attempt: 2, catch_up: false, .. }), "{first:?}: {decision:?}");
        let decision = claim(&mut log, &first, at_ms);
        assert!(matches!(decision, SlotDecision::Done { .. }), "{first:?}: {decision:?}");
    }
}

/// An older slot would run out of order.
#[test]
fn the_newest_slot_of_a_calendar_runs_again_before_the_slot_of_now() {
    let mut log = JobLog::new("/a", hourly());
    for hour in [100, 101] {
        claim(&mut log, &hourly(), hour * HOUR_MS);
    }
    let [old, name] = [0, 1].map(|at| log.runs[at].slot.name.clone());
    let refused = log.rerun(Some(&old), Owner::default());
    assert_eq!(refused.err(), Some(NoRerun::Over { slot: old, later: name.clone() }));
    assert!(log.rerun(Some(&name), Owner::default()).is_ok());
    let decide = |log: &JobLog| {
        let (slots, schedule, now_ms, on_failure) = (slots(104), hourly(), 104 * HOUR_MS, Rule::Next);
        let (latest_ms, on_crash, catch_up) = (now_ms, Rule::Next, 0);
        ClaimTerms { schedule: &schedule, slots: &slots, now_ms, latest_ms, on_failure, on_crash, catch_up }.decide(log)
    };
    let decision = decide(&log);
    assert!(
        matches!(&decision, SlotDecision::Run { slot, attempt: 2, catch_up: true, missed_before: 0 } if slot.name == name),
        "{decision:?}"
    );
    claim(&mut log, &hourly(), 104 * HOUR_MS);
    assert_eq!(log.runs.last().map(|run| run.slot.name.clone()), Some(name));
    let decision = decide(&log);
    assert!(matches!(&decision, SlotDecision::Run { slot: now, attempt: 1, .. } if *now == slot(104)), "{decision:?}");
}

/// A person's decision gives the slot as many tries as it had in the beginning.
#[test]
fn a_slot_that_runs_again_follows_the_rules_of_any_slot() {
    let mut log = JobLog::new("/a", Schedule::Text { slot: "1".to_owned() });
    let schedule = log.schedule.clone();
    let decide = |log: &JobLog, rule| {
        let (latest_ms, on_failure, on_crash) = (0, rule, rule);
        ClaimTerms { schedule: &schedule, slots: &[], now_ms: 0, latest_ms, on_failure, on_crash, catch_up: 0 }
            .decide(log)
    };
    let fail = |log: &mut JobLog| {
        claim(log, &schedule, 0);
        log.runs.last_mut().expect("a run").end = Some(RunEnd::failed("x"));
    };
    claim(&mut log, &schedule, 0);
    assert!(log.rerun(None, Owner::default()).is_ok());
    fail(&mut log);
    assert!(matches!(decide(&log, Rule::Next), SlotDecision::Done { run, .. } if run.has_failed() && run.attempt == 2));
    assert!(matches!(decide(&log, Rule::Keep), SlotDecision::Kept { .. }));
    let retry = Rule::Retry { most: Some(1) };
    assert!(matches!(decide(&log, retry), SlotDecision::Run { attempt: 3, .. }));
    // Its one retry fails, too.
    let mut third = log.runs[1].clone();
    (third.attempt, third.id) = (3, "third".to_owned());
    log.runs.push(third);
    assert!(matches!(decide(&log, retry), SlotDecision::Done { .. }));
    assert!(log.rerun(None, Owner::default()).is_ok());
    assert!(matches!(decide(&log, Rule::Next), SlotDecision::Run { attempt: 4, .. }));
}
