//! `history`, and what `run` records for it.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Home, Running, Served, names, until};

/// Returns the entries of the history of a lock, the oldest first.
fn entries(home: &Home, name: &str) -> Vec<Value> {
    let document = home.json(&["history", name, "--json"]);
    document["entries"].as_array().unwrap().clone()
}

/// Returns some fields of each entry.
fn fields(entries: &[Value], fields: [&str; 3]) -> Value {
    entries.iter().map(|entry| json!(fields.map(|field| &entry[field]))).collect()
}

#[test]
fn each_run_is_recorded_with_its_end() {
    let home = Home::new();
    home.ok(&["run", "nightly", "-m", "nightly index", "--", "true"]);
    assert_eq!(home.output(&["run", "nightly", "--", "sh", "-c", "exit 3"]).status.code(), Some(3));
    // A job is in the history of its lock, too.
    home.ok(&["run", "job", "--once-per", "day", "--", "true"]);
    assert_eq!(fields(&entries(&home, "job"), ["entry", "end", "status"]), json!([["hold", "released", 0]]));
    let entries = entries(&home, "nightly");
    assert_eq!(fields(&entries, ["entry", "end", "status"]), json!([["hold", "released", 0], ["hold", "released", 3]]));
    assert_eq!(entries[0]["message"], "nightly index");
    let text = home.ok(&["history", "nightly"]);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("WHEN "), "{text}");
    assert!(
        lines[1].ends_with("  released, exit status 3") && lines[2].ends_with("  released (nightly index)"),
        "{text}"
    );
}

#[test]
fn what_is_switched_off_is_not_recorded() {
    let home = Home::new();
    home.ok(&["run", "a", "--no-history", "--", "true"]);
    let mut by_variable = home.command(&["run", "a", "--", "true"]);
    assert!(by_variable.env("LOCKKEEPER_HISTORY", "false").status().unwrap().success());
    assert_eq!(entries(&home, "a"), [] as [Value; 0]);
    let output = home.output(&["history", "a"]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8(output.stderr).unwrap().contains("nothing is recorded about /locks/a: "));
}

#[test]
fn two_that_race_are_both_recorded_the_later_one_with_its_wait() {
    let home = Home::new();
    let mut first = home.spawn("a", &[], "echo; read line; true");
    first.line();
    let mut second = home.waits("a", &[], "true");
    first.close_stdin();
    assert!(first.wait().success() && second.end().0 == Some(0));
    let entries = entries(&home, "a");
    assert_eq!(entries.len(), 2, "{entries:?}");
    assert!(entries[0]["ended_ms"].as_i64().unwrap() <= entries[1]["granted_ms"].as_i64().unwrap() + 1);
    assert!(entries[1]["waited_ms"].as_i64().unwrap() > 0, "{entries:?}");
}

#[test]
fn a_refused_try_is_counted_and_names_the_holder() {
    let home = Home::new();
    let mut holder = home.spawn("a", &["-m", "manual rerun"], "echo; exec sleep 1000");
    holder.line();
    for _ in 0..3 {
        assert_eq!(home.output(&["run", "a", "--try", "--", "true"]).status.code(), Some(75));
    }
    assert_eq!(home.output(&["run", "a", "--wait", "2s", "--", "true"]).status.code(), Some(75));
    let entries = entries(&home, "a");
    let expected = json!([["refused", "taken", 3], ["refused", "gave_up", 1]]);
    assert_eq!(fields(&entries, ["entry", "reason", "count"]), expected);
    assert_eq!(entries[0]["holder_message"], "manual rerun");
    names(&home.ok(&["history", "a"]), &["(holds now; granted then or later) (manual rerun)", "refused 3 x in "]);
}

/// Last night's question: why did the job not run?
#[test]
fn why_explains_a_moment_that_is_over() {
    let home = Home::new();
    let mut holder = home.spawn("a", &["-m", "manual rerun"], "echo; read line; true");
    holder.line();
    assert_eq!(home.output(&["run", "a", "--try", "--", "true"]).status.code(), Some(75));
    let refused = entries(&home, "a")[0]["last_ms"].as_i64().unwrap();
    let at = jiff::Timestamp::from_millisecond(refused).unwrap().to_string();
    let why = |args: &[&str]| {
        let output = home.output(&[&["why", "a", "--at", at.as_str()], args].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let holds = format!("holder    {}", entries(&home, "a")[0]["holder"].as_str().unwrap());
    let text = why(&[]);
    names(&text, &["NOT RUN: taken by ", ", manual rerun\n"]);
    names(&text, &[&holds, ", and still (manual rerun)\n"]);
    holder.finish();
    let text = why(&[]);
    names(&text, &[&holds, " (manual rerun), released\n"]);
    assert!(text.contains("then      nobody is recorded to have asked again\n"), "{text}");
    let document: Value = serde_json::from_str(&why(&["--json"])).unwrap();
    assert_eq!(document["holders"][0]["message"], "manual rerun");
    assert_eq!(document["around"].as_array().unwrap().len(), 2);
    home.says(&["why", "a", "--at", "soon"], 64);
}

/// The record waits in the state directory.
#[test]
fn a_request_without_a_server_is_recorded_when_one_answers_again() {
    let served = Served::start(&Home::new());
    let home = Home::with_servers(&served.address);
    served.running.signal(Signal::STOP);
    for _ in 0..2 {
        home.says(&["run", "a", "--wait", "200ms", "-m", "nightly index", "--", "true"], 69);
    }
    served.running.signal(Signal::CONT);
    home.ok(&["run", "b", "--", "true"]);
    let entries = entries(&home, "a");
    assert_eq!(fields(&entries, ["entry", "reason", "count"]), json!([["refused", "unreachable", 2]]));
    assert_eq!(entries[0]["message"], "nightly index");
    home.ok(&["run", "b", "--", "true"]);
    assert_eq!(self::entries(&home, "a")[0]["count"], 2, "it is sent once");
}

/// A server that takes requests and answers none: the release waits in it, with the record.
#[test]
fn a_hold_whose_release_no_server_confirmed_is_recorded_with_the_times_of_the_hold() {
    let served = Served::start(&Home::new());
    let home = Home::with_servers(&served.address);
    let mut holder = home.starts("a", &["-m", "nightly index"], "echo up; read line; date +%s%3N");
    // The own node is watched by then, and so the time of the grant is known.
    until("it is watched", || home.show("a")["holders"][0]["since_ms"].as_i64().unwrap() + 1_000 < now_ms());
    served.running.signal(Signal::STOP);
    holder.close_stdin();
    let ended: i64 = holder.line().parse().unwrap();
    let (code, text) = holder.end();
    assert!(text.contains("was not confirmed"), "{code:?} {text}");
    let gave_up = now_ms();
    served.running.signal(Signal::CONT);
    until("it is recorded", || {
        home.ok(&["run", "b", "--", "true"]);
        !entries(&home, "a").is_empty()
    });
    let entries = entries(&home, "a");
    let [hold] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((&hold["end"], &hold["message"]), (&"released".into(), &"nightly index".into()));
    let recorded = hold["ended_ms"].as_i64().unwrap();
    assert!(recorded < gave_up - 4_000 && (recorded - ended).abs() < 2_000, "{ended} {gave_up} {hold}");
    home.ok(&["run", "b", "--", "true"]);
    assert_eq!(self::entries(&home, "a").len(), 1, "it is sent once");
}

#[test]
fn a_hold_that_an_outage_ended_is_recorded_when_a_server_answers_again() {
    let served = Served::start(&Home::new());
    let home = Home::with_servers(&served.address);
    let mut holder = home.starts("a", &["--session-timeout", "4s"], "echo up; exec sleep 1000");
    served.running.signal(Signal::STOP);
    holder.ends(76);
    let lost = now_ms();
    served.running.signal(Signal::CONT);
    // A command sends what is kept for a second at most, and the next one goes on.
    until("it is recorded", || {
        home.ok(&["run", "b", "--", "true"]);
        !entries(&home, "a").is_empty()
    });
    let entries = entries(&home, "a");
    let holds: Vec<_> = entries.iter().filter(|entry| entry["entry"] == "hold").collect();
    let [hold] = &holds[..] else { panic!("{entries:?}") };
    assert!(hold["ended_ms"].as_i64().unwrap() <= lost, "{lost} {hold}");
    assert_eq!(hold["owner"]["pid"], holder.pid().as_raw_nonzero().get());
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Its job knows that it ran, and a request has seen it hold.
#[test]
fn why_names_the_holder_of_a_past_moment_by_the_records_of_its_job_and_by_who_was_refused() {
    let home = Home::new();
    let crash = |name: &str, options: &[&str]| {
        let mut holder = home.spawn(name, &[options, &["--session-timeout", "4s"]].concat(), "echo; exec sleep 1000");
        holder.line();
        let pid = holder.pid().as_raw_nonzero().get();
        assert_eq!(home.output(&["run", name, "--try", "--", "true"]).status.code(), Some(75));
        holder.kill();
        until("its session is over", || home.count(name) == (0, 0));
        let refused = entries(&home, name);
        let refused = refused.iter().find(|entry| entry["entry"] == "refused").unwrap();
        let at = jiff::Timestamp::from_millisecond(refused["last_ms"].as_i64().unwrap()).unwrap().to_string();
        (pid, at)
    };
    let why = |name: &str, at: &str| home.ok(&["why", name, "--at", at]);
    let (pid, at) = crash("job", &["--every", "1s"]);
    let text = why("job", &at);
    let line = |text: &str, start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
    let holder = line(&text, "holder ");
    assert!(holder.contains(&format!("(pid {pid}), slot every 1s: ")), "{text}");
    // The next machine that asks runs the next slot.
    home.ok(&["run", "job", "--every", "1s", "--", "true"]);
    let then = line(&why("job", &at), "then ");
    assert!(then.starts_with("then      held by ") && !then.contains(&format!("(pid {pid})")), "{then}");

    let (pid, at) = crash("plain", &[]);
    let text = why("plain", &at);
    let holder = line(&text, "holder ");
    assert!(holder.contains(&format!("(pid {pid}), as ")) && holder.contains(" saw at "), "{text}");
}

#[test]
fn the_history_of_all_locks_names_each() {
    let home = Home::new();
    for name in ["a", "team/b"] {
        home.ok(&["run", name, "--", "true"]);
    }
    let text = home.ok(&["history", "--all"]);
    assert!(text.starts_with("LOCK ") && text.contains("\nteam/b  ") && text.contains("\na  "), "{text}");
    let text = home.ok(&["history", "--all", "team"]);
    assert!(text.contains("\nteam/b  ") && !text.contains("\na  "), "{text}");
}

#[test]
fn who_follows_a_history_reads_each_new_entry() {
    let home = Home::new();
    home.ok(&["run", "a", "--", "true"]);
    let mut follow = Running::start(home.command(&["history", "a", "--follow"]).stdin(Stdio::null()));
    assert!(follow.line().ends_with("  released"));
    home.ok(&["run", "a", "-m", "the second", "--", "true"]);
    assert!(follow.line().ends_with("  released (the second)"));
    follow.signal(Signal::TERM);
    follow.wait();
}
