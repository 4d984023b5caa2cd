//! What hosts do while a job is paused, and after it.

#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use lockkeeper::admin::Owner;
use lockkeeper_jobs::records::{Begin, ClaimTerms, JobLog, Pause, Rule, RunEnd, RunSlot, Schedule, Slot, SlotDecision};

const HOUR_MS: i64 = 3_600_000;

fn hourly() -> Schedule {
    Schedule::Calendar { per: Slot::Hour, time_zone: "UTC".to_owned() }
}

fn every_hour() -> Schedule {
    Schedule::Every { every_ms: HOUR_MS as u64 }
}

fn text(slot: &str) -> Schedule {
    Schedule::Text { slot: slot.to_owned() }
}

fn slot(hour: i64) -> RunSlot {
    RunSlot::new(format!("h{hour}"), hour * HOUR_MS, Some((hour + 1) * HOUR_MS))
}

/// What a host does that asks in the middle of this hour, and gets the lock at `latest_ms`.
fn decide_late(log: &JobLog, schedule: &Schedule, hour: i64, latest_ms: i64, catch_up: u32) -> SlotDecision {
    let slots: Vec<_> = (hour - 30..=hour).map(slot).collect();
    let (now_ms, on_failure, on_crash) = (middle(hour), Rule::Next, Rule::Next);
    ClaimTerms { schedule, slots: &slots, now_ms, latest_ms, on_failure, on_crash, catch_up }.decide(log)
}

fn decide(log: &JobLog, schedule: &Schedule, hour: i64, catch_up: u32) -> SlotDecision {
    decide_late(log, schedule, hour, middle(hour), catch_up)
}

fn middle(hour: i64) -> i64 {
    hour * HOUR_MS + HOUR_MS / 2
}

/// Runs what a host runs that asks in this hour.
fn run(log: &mut JobLog, schedule: &Schedule, hour: i64, end: RunEnd) -> String {
    let decision = decide(log, schedule, hour, 0);
    let SlotDecision::Run { slot, attempt, catch_up, missed_before } = decision else { panic!("{decision:?}") };
    let (id, by, name) = (log.runs.len().to_string(), Owner::default(), slot.name.clone());
    let (token, node) = (String::new(), String::new());
    log.begin(Begin { id: id.clone(), slot, attempt, catch_up, missed_before, by, command: None, token, node }, 100);
    log.stamp(middle(hour));
    assert!(log.finish(&id, end));
    log.stamp(middle(hour));
    name
}

/// A job whose last run was in hour 100, by default with success.
fn ran(schedule: &Schedule) -> JobLog {
    let mut log = JobLog::new("/a", schedule.clone());
    run(&mut log, schedule, 100, RunEnd::succeeded());
    log
}

fn pause(log: &mut JobLog, now_ms: i64, until_ms: Option<i64>) -> Pause {
    log.pause(Owner::default(), "move".to_owned(), now_ms, until_ms)
}

/// Leaves out the slot of a host that asks in this hour; returns whether it was noted.
fn leave_out(log: &mut JobLog, schedule: &Schedule, hour: i64, keep: u32) -> bool {
    let decision = decide(log, schedule, hour, 0);
    let SlotDecision::Paused { slot, pause } = decision else { panic!("{decision:?}") };
    log.leave_out(schedule, &slot, &pause, middle(hour), keep)
}

fn names(log: &JobLog) -> Vec<&str> {
    log.left_out.iter().map(|left| left.slot.name.as_str()).collect()
}

#[test]
fn nothing_runs_from_the_pause_to_its_end_and_the_slot_of_now_is_left_out() {
    for (schedule, asked, name) in
        [(hourly(), hourly(), "h103"), (every_hour(), every_hour(), "every 1h"), (text("1"), text("2"), "2")]
    {
        let mut log = ran(&schedule);
        for until_ms in [None, Some(middle(103) + 1)] {
            let paused = pause(&mut log, middle(101), until_ms);
            // Also the slots to catch up.
            for catch_up in [0, 5] {
                let decision = decide(&log, &asked, 103, catch_up);
                assert!(
                    matches!(&decision, SlotDecision::Paused { slot, pause } if slot.name == name && *pause == paused),
                    "{asked:?}: {decision:?}"
                );
            }
        }
        for until_ms in [middle(103), middle(102)] {
            pause(&mut log, middle(101), Some(until_ms));
            let decision = decide(&log, &asked, 103, 0);
            assert!(matches!(decision, SlotDecision::Run { .. }), "{asked:?}: {decision:?}");
        }
    }
}

/// A host waits for the lock as long as another one runs the job.
#[test]
fn a_host_that_asked_in_a_pause_and_got_the_lock_after_it_runs() {
    let mut log = ran(&hourly());
    pause(&mut log, middle(101), Some(middle(104)));
    let at = |latest_ms| decide_late(&log, &hourly(), 103, latest_ms, 0);
    assert!(matches!(at(middle(104) - 1), SlotDecision::Paused { .. }));
    assert!(matches!(at(middle(104)), SlotDecision::Run { slot: now, .. } if now == slot(103)));
    // One that asked before the pause runs nothing in it.
    let early = decide_late(&log, &hourly(), 101, middle(102), 0);
    assert!(matches!(early, SlotDecision::Paused { slot: now, .. } if now == slot(101)));
}

#[test]
fn a_slot_that_is_done_is_not_left_out_and_a_run_that_was_kept_asks_for_nobody() {
    let mut log = ran(&hourly());
    pause(&mut log, middle(100), None);
    assert!(matches!(decide(&log, &hourly(), 100, 0), SlotDecision::Done { .. }));
    let mut log = JobLog::new("/a", hourly());
    run(&mut log, &hourly(), 100, RunEnd::failed("x"));
    log.on_failure = Rule::Keep;
    assert!(matches!(decide(&log, &hourly(), 101, 0), SlotDecision::Kept { .. }));
    pause(&mut log, middle(100), None);
    assert!(matches!(decide(&log, &hourly(), 101, 0), SlotDecision::Paused { .. }));
    assert!(log.resume(middle(101)).is_some());
    assert!(matches!(decide(&log, &hourly(), 101, 0), SlotDecision::Kept { .. }), "a pause decides nothing");
}

#[test]
fn a_slot_is_noted_once_and_as_many_are_kept_as_runs() {
    for (schedule, all) in [(hourly(), ["h102", "h103", "h104"]), (every_hour(), ["every 1h"; 3])] {
        let mut log = ran(&schedule);
        pause(&mut log, middle(101), None);
        for hour in 102..=104 {
            assert!(leave_out(&mut log, &schedule, hour, 100) && !leave_out(&mut log, &schedule, hour, 100));
        }
        assert_eq!(names(&log), all);
        assert_eq!((log.left_out[0].at_ms, log.left_out[0].reason.as_str()), (middle(102), "move"));
        assert!(leave_out(&mut log, &schedule, 105, 2));
        assert_eq!(log.left_out.iter().map(|left| left.at_ms).collect::<Vec<_>>(), [middle(104), middle(105)]);
    }
}

/// Nobody asks in the pauses, of which the second begins after the end of the first.
#[test]
fn the_slots_of_an_earlier_pause_are_not_caught_up() {
    let mut log = ran(&hourly());
    pause(&mut log, middle(100), Some(middle(103)));
    pause(&mut log, middle(104), Some(middle(107)));
    assert!(matches!(decide(&log, &hourly(), 108, 0), SlotDecision::Run { missed_before: 3, .. }));
    let SlotDecision::Run { slot, catch_up: true, .. } = decide(&log, &hourly(), 108, 20) else { panic!() };
    assert_eq!(slot.name, "h103", "of 101 and 102 all was in the first pause");
    let text = serde_json::to_string(&log).unwrap();
    assert_eq!(serde_json::from_str::<JobLog>(&text).unwrap(), log);
}

/// It was left out on purpose. What was missed before and after the pause was not.
#[test]
fn a_slot_that_was_left_out_is_not_caught_up_and_not_missed() {
    let mut log = ran(&hourly());
    // Hosts ask in hours 102 and 106 only; hours 103 to 105 are in the pause as a whole. Hours 101 and 107 were missed.
    pause(&mut log, middle(102), Some(middle(106) + 1));
    assert!(leave_out(&mut log, &hourly(), 102, 100) && leave_out(&mut log, &hourly(), 106, 100));
    let decision = decide(&log, &hourly(), 108, 0);
    assert!(matches!(&decision, SlotDecision::Run { missed_before: 2, attempt: 1, .. }), "{decision:?}");
    let mut caught_up = Vec::new();
    for catch_up in [20, 7] {
        let SlotDecision::Run { slot, catch_up: true, .. } = decide(&log, &hourly(), 108, catch_up) else { panic!() };
        caught_up.push(slot.name);
        // The oldest one is done.
        let (id, by, token, node) = ("x".to_owned(), Owner::default(), String::new(), String::new());
        let slot = crate::slot(101);
        log.begin(Begin { id, slot, attempt: 1, catch_up: true, missed_before: 0, by, command: None, token, node }, 9);
        log.stamp(middle(108));
        assert!(log.finish("x", RunEnd::succeeded()));
    }
    assert_eq!(caught_up, ["h101", "h107"]);
    // Half of an hour in the pause is no reason to leave it out, if nobody asked for it then.
    let mut log = ran(&hourly());
    pause(&mut log, middle(101), Some(middle(102)));
    let decision = decide(&log, &hourly(), 103, 9);
    assert!(matches!(&decision, SlotDecision::Run { slot, .. } if slot.name == "h101"), "{decision:?}");
}

#[test]
fn a_slot_that_is_not_over_runs_after_the_pause() {
    for (schedule, asked) in [(hourly(), hourly()), (every_hour(), every_hour()), (text("1"), text("2"))] {
        let mut log = ran(&schedule);
        pause(&mut log, middle(101), None);
        assert!(leave_out(&mut log, &asked, 103, 100));
        let name = log.left_out[0].slot.name.clone();
        assert!(log.resume(middle(103)).is_some());
        assert_eq!(run(&mut log, &asked, 103, RunEnd::succeeded()), name);
        assert!(matches!(decide(&log, &asked, 103, 9), SlotDecision::Done { .. }));
    }
}

#[test]
fn the_time_of_a_pause_counts_as_no_missed_start() {
    let mut log = ran(&every_hour());
    // Due in the middle of hour 101: missed then, in 102, and in 106.
    pause(&mut log, middle(103), Some(middle(106)));
    let decision = decide(&log, &every_hour(), 107, 0);
    assert!(matches!(decision, SlotDecision::Run { missed_before: 3, .. }), "{decision:?}");
}

#[test]
fn a_pause_replaces_another_one_and_ends_once() {
    let mut log = ran(&hourly());
    assert_eq!(log.resume(0), None);
    pause(&mut log, 10, Some(20));
    assert_eq!((pause(&mut log, 15, None).since_ms, log.resume(30).and_then(|pause| pause.until_ms)), (10, Some(30)));
    assert_eq!((log.resume(30), pause(&mut log, 40, Some(50)).since_ms), (None, 40));
    assert_eq!(log.resume(50), None, "it ended by itself");
}

#[test]
fn the_records_keep_a_pause_and_give_up_the_oldest_slots_before_any_run() {
    let mut log = ran(&hourly());
    let paused = log.pause(Owner::default(), "x".repeat(1024), 5, None);
    for hour in 102..902 {
        assert!(log.leave_out(&hourly(), &slot(hour), &paused, 5, 1000));
    }
    let read = JobLog::read(&log.to_bytes(), 0).unwrap().unwrap();
    assert!(log.to_bytes().len() <= 256 * 1024 && read.left_out.len() > 100, "{}", read.left_out.len());
    assert_eq!((read.pause, read.runs.len(), names(&log).last().copied()), (Some(paused), 1, Some("h901")));
}
