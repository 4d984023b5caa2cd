//! The slots of a calendar, and the times of holds, by the servers' clock, which these tests turn: needs libfaketime.

use std::path::PathBuf;

use jiff::Timestamp;
use lockkeeper_testkit::apache::WrongClock;
use serde_json::Value;

use crate::harness::{Home, Running, failure, text, until};

/// A server whose clock can be turned. The hosts have the machine's clock.
pub(crate) struct Clock {
    pub(crate) home: Home,
    pub(crate) address: String,
    /// The servers' clock, for a command that shall have it too.
    pub(crate) wrong: WrongClock,
    file: PathBuf,
    _machine: Home,
    _server: Running,
}

impl Clock {
    pub(crate) fn start(at: &str) -> Clock {
        WrongClock::install().unwrap();
        let machine = Home::new();
        let file = machine.file("clock");
        let mut command = machine.command(&["serve", "--memory", "--listen", "127.0.0.1:0"]);
        let wrong = WrongClock::in_file(&file).unwrap();
        wrong.set(&mut command).unwrap();
        let mut server = Running::start(&mut command);
        let address = server.line();
        let home = Home::with_servers(&address);
        let clock = Clock { home, address, wrong, file, _machine: machine, _server: server };
        // Without a job, `jobs` asks for no time.
        assert!(clock.home.output(&["run", "first", "--slot", "1", "--", "true"]).status.success());
        clock.turn(at);
        clock
    }

    /// Turns the servers' clock, and waits until they show it.
    fn turn(&self, at: &str) {
        let at: Timestamp = at.parse().unwrap();
        WrongClock::turn(&self.file, at.as_second() - Timestamp::now().as_second()).unwrap();
        until("the servers show the time", || {
            let shown = self.home.output(&["jobs", "first", "--json"]);
            let document: Value = serde_json::from_slice(&shown.stdout).unwrap();
            (document["now_ms"].as_i64().unwrap() - at.as_millisecond()).abs() < 60_000
        });
    }

    /// Starts the job as cron does at these times.
    fn run_at(&self, times: &[&str], args: &[&str]) {
        for at in times {
            self.turn(at);
            let words = [&["run"], args, &["--", "sh", "-c", "echo $LOCKKEEPER_SLOT >> ran"]].concat();
            let output = self.home.output(&words);
            assert!(output.status.success(), "{at}: {output:?}");
        }
    }

    fn ran(&self) -> Vec<String> {
        text(&self.home.file("ran")).lines().map(str::to_owned).collect()
    }

    fn runs(&self, name: &str) -> Vec<Value> {
        let output = self.home.output(&["jobs", name, "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        document["jobs"][0]["runs"].as_array().unwrap().clone()
    }
}

const BERLIN: [&str; 2] = ["--time-zone", "Europe/Berlin"];

/// On 29 March 2026 the clocks of Berlin go from 02:00 to 03:00, on 25 October from 03:00 to 02:00: at 01:00 UTC.
#[test]
fn each_hour_of_both_daylight_saving_nights_runs_once() {
    let clock = Clock::start("2026-03-29T00:00:00Z");
    let hourly = [&["hourly", "--once-per", "hour"][..], &BERLIN].concat();
    clock.run_at(&["2026-03-29T00:30:00Z", "2026-03-29T00:50:00Z", "2026-03-29T01:10:00Z"], &hourly);
    assert_eq!(clock.ran(), ["2026-03-29T01+01:00", "2026-03-29T03+02:00"]);
    let autumn = ["2026-10-25T00:30:00Z", "2026-10-25T00:50:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:10:00Z"];
    clock.run_at(&autumn, &hourly);
    assert_eq!(clock.ran()[2..], ["2026-10-25T02+02:00", "2026-10-25T02+01:00", "2026-10-25T03+01:00"]);
}

#[test]
fn each_day_with_a_daylight_saving_night_runs_once() {
    let clock = Clock::start("2026-03-28T12:00:00Z");
    let daily = [&["daily", "--once-per", "day"][..], &BERLIN].concat();
    // The minutes beside midnight in Berlin, and both sides of the change.
    let spring = ["2026-03-28T22:50:00Z", "2026-03-28T23:10:00Z", "2026-03-29T00:50:00Z", "2026-03-29T01:10:00Z"];
    clock.run_at(&spring, &daily);
    clock.run_at(&["2026-03-29T21:50:00Z", "2026-03-29T22:10:00Z"], &daily);
    assert_eq!(clock.ran(), ["2026-03-28", "2026-03-29", "2026-03-30"]);
    let autumn = ["2026-10-24T21:50:00Z", "2026-10-24T22:10:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"];
    clock.run_at(&autumn, &daily);
    clock.run_at(&["2026-10-25T22:50:00Z", "2026-10-25T23:10:00Z"], &daily);
    assert_eq!(clock.ran()[3..], ["2026-10-24", "2026-10-25", "2026-10-26"]);
}

#[test]
fn missed_days_are_caught_up_in_order_across_a_daylight_saving_night() {
    let clock = Clock::start("2026-10-22T10:00:00Z");
    let nightly = [&["nightly", "--once-per", "day", "--catch-up", "3"][..], &BERLIN].concat();
    clock.run_at(&["2026-10-22T10:10:00Z", "2026-10-27T10:00:00Z"], &nightly);
    // Three days are caught up; the oldest one stays missed.
    assert_eq!(clock.ran(), ["2026-10-22", "2026-10-24", "2026-10-25", "2026-10-26", "2026-10-27"]);
    let runs = clock.runs("nightly");
    let caught_up: Vec<_> = runs.iter().map(|run| run["catch_up"] == true).collect();
    assert_eq!(caught_up, [false, true, true, true, false]);
    assert_eq!(runs[1]["missed_before"], 1);
}

/// An older day would run out of order, and hide how the newest one ended.
#[test]
fn only_the_newest_day_that_ran_runs_again() {
    let clock = Clock::start("2026-11-21T10:00:00Z");
    let nightly = ["nightly", "--once-per", "day"];
    clock.run_at(&["2026-11-21T10:10:00Z", "2026-11-22T10:00:00Z"], &nightly);
    let rerun = |day: &str| clock.home.output(&["jobs", "rerun", "nightly", day]);
    let refused = rerun("2026-11-21");
    let (code, line) = failure(&refused);
    assert!(code == Some(1) && line.contains("slot 2026-11-21 is over, and slot 2026-11-22 ran after it"), "{line}");
    let hint = String::from_utf8_lossy(&refused.stderr);
    assert!(hint.contains("see its runs: lockkeeper jobs /locks/nightly --history --config "), "{hint}");
    let marked = rerun("2026-11-22");
    let told = String::from_utf8_lossy(&marked.stderr);
    assert!(marked.status.success() && told.contains(": the next machine that asks runs it again"), "{told}");
    clock.run_at(&["2026-11-23T10:00:00Z", "2026-11-23T10:10:00Z"], &nightly);
    assert_eq!(clock.ran(), ["2026-11-21", "2026-11-22", "2026-11-22", "2026-11-23"]);
}

/// A host that asked before midnight asks for the day before, however late it gets the lock.
#[test]
fn a_slot_that_begins_while_another_one_runs_is_run_by_who_asks_in_it() {
    let clock = Clock::start("2026-11-22T23:58:00Z");
    let home = &clock.home;
    let spawn = |script| home.spawn("nightly", &["--once-per", "day", "--verbose"], script);
    let mut first = spawn("echo $LOCKKEEPER_SLOT; cat");
    assert_eq!(first.line(), "2026-11-22");
    let mut before = spawn("echo $LOCKKEEPER_SLOT");
    until("it waits", || home.count("nightly") == (1, 1));
    clock.turn("2026-11-23T00:02:00Z");
    let mut after = spawn("echo $LOCKKEEPER_SLOT");
    until("it waits", || home.count("nightly") == (1, 2));
    first.close_stdin();
    assert!(first.wait().success());
    let (code, told) = before.end();
    assert!(code == Some(0) && told.contains("slot 2026-11-22: done by "), "{told}");
    assert_eq!(before.line(), "");
    assert_eq!(after.line(), "2026-11-23");
    assert!(after.wait().success());
    let runs = clock.runs("nightly");
    assert_eq!(runs.len(), 2);
    assert!(runs[0]["end_ms"].as_i64() > runs[0]["slot"]["end_ms"].as_i64(), "{runs:?}");
}

/// The day that is left out is over, and that of the end of the pause is not.
#[test]
fn a_day_that_was_left_out_is_not_caught_up_and_the_job_is_late_a_day_after_the_pause() {
    let clock = Clock::start("2026-11-21T10:00:00Z");
    let nightly = ["nightly", "--once-per", "day", "--catch-up", "5"];
    let pause = |until| {
        let output = clock.home.output(&["jobs", "pause", "nightly", "--until", until, "--reason", "x"]);
        assert!(output.status.success(), "{output:?}");
    };
    let check = |late: &[&str]| clock.home.output(&[&["jobs", "nightly", "--check"], late].concat()).status.code();
    clock.run_at(&["2026-11-21T10:10:00Z"], &nightly);
    clock.turn("2026-11-22T02:00:00Z");
    pause("30h");
    clock.run_at(&["2026-11-22T02:13:00Z", "2026-11-23T02:13:00Z", "2026-11-23T08:10:00Z"], &nightly);
    assert_eq!(clock.ran(), ["2026-11-21", "2026-11-23"]);
    let output = clock.home.output(&["jobs", "nightly", "--json"]);
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> =
        seen["jobs"][0]["left_out"].as_array().unwrap().iter().map(|left| &left["slot"]["name"]).collect();
    assert_eq!(names, ["2026-11-22", "2026-11-23"]);
    assert_eq!(clock.runs("nightly")[1]["missed_before"], Value::Null);
    clock.turn("2026-11-24T10:00:00Z");
    pause("9d");
    clock.turn("2026-12-03T10:10:00Z");
    assert_eq!((check(&[]), check(&["--late", "26h"])), (Some(0), Some(0)));
    clock.turn("2026-12-04T12:10:00Z");
    assert_eq!((check(&[]), check(&["--late", "26h"])), (Some(1), Some(1)));
}

/// A run of a year ahead silences nothing: `jobs` calls the job late, and the next machine runs it and says why.
#[test]
fn a_run_under_a_clock_that_was_a_year_ahead_is_reported_and_does_not_count() {
    let clock = Clock::start("2027-11-22T02:00:00Z");
    let nightly = ["nightly", "--once-per", "day"];
    clock.run_at(&["2027-11-22T02:10:00Z"], &nightly);
    clock.turn("2026-11-22T02:00:00Z");
    let checked = clock.home.output(&["jobs", "nightly", "--check"]);
    let told = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(1), "{told}");
    assert!(told.starts_with("nightly: late: slot 2027-11-22 ") && told.contains("dated in the future"), "{told}");
    let metrics = clock.home.output(&["jobs", "nightly", "--prometheus", "-"]);
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    assert!(metrics.contains("lockkeeper_job_late{job=\"/locks/nightly\"} 1\n"), "{metrics}");
    let run = || {
        let output =
            clock.home.output(&[&["run"], &nightly[..], &["--", "sh", "-c", "echo $LOCKKEEPER_SLOT >> ran"]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let told = run();
    assert!(told.contains("the run before, slot 2027-11-22, of ") && told.contains("check the clocks"), "{told}");
    assert_eq!(clock.ran(), ["2027-11-22", "2026-11-22"]);
    assert_eq!(run(), "", "the slot is done");
    assert_eq!(clock.home.output(&["jobs", "nightly", "--check"]).status.code(), Some(0));
}

/// Also without a terminal, because the job misses a run.
#[test]
fn a_machine_that_finds_a_later_slot_done_says_so() {
    let clock = Clock::start("2026-11-24T02:00:00Z");
    let nightly = ["nightly", "--once-per", "day"];
    clock.run_at(&["2026-11-24T02:10:00Z", "2026-11-23T12:00:00Z"], &nightly);
    assert_eq!(clock.ran(), ["2026-11-24"]);
    let output = clock.home.output(&[&["run"], &nightly[..], &["--", "true"]].concat());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.contains("a later slot, 2026-11-24, has run already"), "{told}");
}

/// By the other clock, a hold of a moment would be 5 min old, and after it has been turned, one of the future.
#[test]
fn questions_about_locks_say_by_how_much_this_machines_clock_differs() {
    let servers_show = |seconds| (Timestamp::now() + jiff::SignedDuration::from_secs(seconds)).to_string();
    let clock = Clock::start(&servers_show(-300));
    let told = |verb: &str, name| {
        let output = clock.home.output(&[verb, name]);
        let (text, told) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{told}");
        (text, told)
    };
    let mut first = clock.home.spawn("early", &[], "echo up; cat");
    assert_eq!(first.line(), "up");
    let (text, _) = told("why", "early");
    let ahead = |said: &str| said.matches("lockkeeper: this machine's clock is ").count() == 1;
    assert!(ahead(&told("jobs", "first").1), "its slots are by the servers' clock");
    let job = clock.home.output(&["run", "hourly", "--once-per", "hour", "--", "true"]);
    let said = String::from_utf8(job.stderr).unwrap();
    assert!(said.contains("ahead of the servers', by which the slot is "), "{said}");
    assert!(ahead(&said) && said.contains(" ahead of the servers'; times here are the servers'\n"), "{said}");
    let age = text.lines().next().and_then(|line| line.split(", ").last()).unwrap();
    assert!(age.ends_with("s ago") && !age.contains('m'), "less than a minute by the servers' clock: {text}");
    let (row, said) = told("list", "early");
    assert!(ahead(&said), "{said}");
    let held = row.lines().nth(1).and_then(|row| row.split_whitespace().nth(2)).unwrap();
    assert!(held.ends_with('s'), "less than a minute by the servers' clock: {row}");

    clock.turn(&servers_show(300));
    let mut second = clock.home.spawn("late", &[], "echo up; cat");
    assert_eq!(second.line(), "up");
    let (_, said) = told("why", "late");
    assert!(ahead(&said) && said.contains(" behind the servers'; times here are the servers'\n"), "{said}");
    assert!(ahead(&told("list", "late").1));
    let (_, said) = told("show", "late");
    assert!(ahead(&said) && said.contains("clock is at least "), "{said}");
    for mut holder in [first, second] {
        holder.close_stdin();
        assert!(holder.wait().success());
    }
}
