//! Jobs that a person pauses.

use serde_json::Value;

use crate::harness::{Home, failure, until, without_scope};

fn stdout(home: &Home, args: &[&str], code: i32) -> String {
    let output = home.output(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(home: &Home, args: &[&str], code: i32) -> String {
    let output = home.output(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    without_scope(&output)
}

fn job(home: &Home, name: &str) -> Value {
    let document: Value = serde_json::from_str(&stdout(home, &["jobs", name, "--json"], 0)).unwrap();
    document["jobs"][0].clone()
}

/// Asks for a slot of the job `a`; returns the exit status and the messages.
fn ask(home: &Home, slot: &str, more: &[&str]) -> (Option<i32>, String) {
    let script = ["--", "sh", "-c", "echo $LOCKKEEPER_SLOT >> ran"];
    let output = home.output(&[&["run", "a", "--slot", slot], more, &script].concat());
    (output.status.code(), without_scope(&output))
}

fn ran(home: &Home) -> String {
    std::fs::read_to_string(home.file("ran")).unwrap_or_default()
}

const REASON: &str = "the database moves";

#[test]
fn a_paused_job_runs_nowhere_and_alarms_nobody() {
    let home = Home::new();
    assert_eq!(home.output(&["run", "a", "--slot", "1", "--", "sh", "-c", "exit 3"]).status.code(), Some(3));
    stdout(&home, &["jobs", "--check"], 2);
    let told = stderr(&home, &["jobs", "pause", "a", "--reason", REASON], 0);
    assert!(told.starts_with("lockkeeper: /locks/a is paused\nlockkeeper: the pause has no end, "), "{told}");
    assert!(told.contains(": lockkeeper jobs resume /locks/a"), "{told}");
    for _ in 0..2 {
        assert_eq!(ask(&home, "2", &[]), (Some(0), String::new()), "it would be mail");
    }
    let (code, told) = ask(&home, "2", &["--verbose"]);
    assert!(code == Some(0) && told.contains("/locks/a, slot 2: left out: paused by "), "{told}");
    assert!(told.contains(", without an end: the database moves"), "{told}");
    assert_eq!(ran(&home), "");
    let seen = job(&home, "a");
    assert_eq!(
        (&seen["paused"], &seen["late"], &seen["pause"]["reason"]),
        (&true.into(), &false.into(), &REASON.into())
    );
    assert_eq!(
        (seen["left_out"].as_array().map(Vec::len), &seen["left_out"][0]["slot"]["name"]),
        (Some(1), &"2".into())
    );
    assert_eq!(seen["left_out"][0]["by"], seen["pause"]["by"]);
    for (args, code, state) in [
        (&["jobs"][..], 0, "\na    failed, paused  1 "),
        (&["jobs", "--check", "--late", "1ms"], 0, "a: failed, paused: slot 1 failed with exit status 3 on "),
        (&["why", "a"], 0, "it is a job, once for 1: failed, paused: slot 1 "),
        (&["doctor"], 1, "a: failed, paused: slot 1 "),
        (&["show", "a"], 0, "\n  paused by "),
    ] {
        let text = stdout(&home, args, code).split_whitespace().collect::<Vec<_>>().join(" ");
        let state = state.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&state) && text.contains(", without an end: the database moves"), "{args:?}: {text}");
    }
    let resume = "lockkeeper jobs resume /locks/a";
    assert!(
        stdout(&home, &["doctor"], 1).contains(resume) && stdout(&home, &["why", "a"], 0).contains("jobs resume a")
    );
    let history = stdout(&home, &["jobs", "a", "--history"], 0);
    let rows: Vec<_> = history.lines().skip(1).map(|row| row.split_whitespace().next().unwrap()).collect();
    assert!(rows == ["1", "2"] && history.contains("  left out: paused by "), "{history}");
    assert!(history.ends_with(": the database moves\n"), "{history}");
    let shown: Value = serde_json::from_str(&stdout(&home, &["show", "a", "--json"], 0)).unwrap();
    assert_eq!(shown["pause"], seen["pause"]);
    let metrics = stdout(&home, &["jobs", "--late", "1ms", "--prometheus", "-"], 0);
    for (name, value) in [("paused", 1), ("failed", 0), ("late", 0)] {
        assert!(metrics.contains(&format!("lockkeeper_job_{name}{{job=\"/locks/a\"}} {value}\n")), "{metrics}");
    }
    // With an end, nobody needs to think of it.
    let told = stderr(&home, &["jobs", "pause", "a", "--until", "3h", "--reason", "another"], 0);
    assert!(told.starts_with("lockkeeper: /locks/a is paused until ") && told.lines().count() == 1, "{told}");
    assert_eq!(job(&home, "a")["pause"]["since_ms"], seen["pause"]["since_ms"]);
    let doctor = stdout(&home, &["doctor"], 0);
    assert!(
        doctor.contains("1 job\n") && doctor.contains("a: failed, paused: ") && doctor.contains(": another"),
        "{doctor}"
    );
    let told = stderr(&home, &["jobs", "resume", "a"], 0);
    assert!(told.contains("/locks/a is not paused any more"), "{told}");
    let (code, line) = failure(&home.output(&["jobs", "resume", "a"]));
    assert!(code == Some(1) && line.starts_with("/locks/a is not paused"), "{line}");
    // The failure waits as before, and so does the slot.
    assert!(stdout(&home, &["jobs", "--check"], 2).starts_with("a: failed: slot 1 "));
    assert_eq!((ask(&home, "2", &[]).0, ask(&home, "3", &[]).0, ran(&home)), (Some(0), Some(0), "2\n3\n".to_owned()));
    stdout(&home, &["jobs", "--check"], 0);
}

#[test]
fn a_pause_ends_by_itself() {
    let home = Home::new();
    assert_eq!(ask(&home, "1", &[]).0, Some(0));
    let paused = stdout(&home, &["jobs", "pause", "a", "--until", "700ms", "--reason", REASON, "--json"], 0);
    let paused: Value = serde_json::from_str(&paused).unwrap();
    assert_eq!((&paused["path"], &paused["pause"]["reason"]), (&"/locks/a".into(), &REASON.into()));
    until("the pause ends", || {
        assert_eq!(ask(&home, "2", &[]).0, Some(0));
        ran(&home) == "1\n2\n"
    });
    let seen = job(&home, "a");
    assert_eq!((&seen["paused"], &seen["state"], &seen["pause"]), (&false.into(), &"ok".into(), &paused["pause"]));
    assert_eq!(failure(&home.output(&["jobs", "resume", "a"])).0, Some(1));
}

/// The next machine that gets the lock would take an end that is not recorded for a crash.
#[test]
fn a_run_that_goes_on_in_a_pause_is_recorded_before_the_next_machine_gets_the_lock() {
    for resumes in [false, true] {
        let home = Home::new();
        let mut first = home.spawn("a", &["--slot", "1", "--on-crash", "retry"], "echo up; cat; echo 1 >> ran");
        assert_eq!(first.line(), "up");
        let mut waiters: Vec<_> = ["1", "2"]
            .map(|slot| home.spawn("a", &["--slot", slot, "--on-crash", "retry"], "echo $LOCKKEEPER_SLOT >> ran"))
            .into();
        until("they wait", || home.count("a") == (1, 2));
        let told = stderr(&home, &["jobs", "pause", "a", "--until", "1h", "--reason", REASON], 0);
        assert!(told.contains("; the run of slot 1 on ") && told.ends_with(" goes on\n"), "{told}");
        assert!(stdout(&home, &["jobs", "--check"], 0).starts_with("a: running, paused: "));
        if resumes {
            stderr(&home, &["jobs", "resume", "a"], 0);
        }
        first.close_stdin();
        assert_eq!(first.end(), (Some(0), String::new()));
        for waiter in &mut waiters {
            assert_eq!(waiter.end(), (Some(0), String::new()));
        }
        let seen = job(&home, "a");
        assert_eq!(
            (&seen["runs"][0]["end"]["kind"], &seen["paused"]),
            (&"succeeded".into(), &(!resumes).into()),
            "{seen}"
        );
        assert_eq!(ran(&home), if resumes { "1\n2\n" } else { "1\n" });
    }
}

#[test]
fn wrong_input_about_a_pause_is_named_with_the_remedy() {
    let home = Home::new();
    assert_eq!(ask(&home, "1", &[]).0, Some(0));
    let long = "x".repeat(1025);
    let cases: [(&[&str], i32, &str, &str); 9] = [
        (&["pause", "a"], 64, "--reason", "--reason <TEXT>"),
        (&["pause", "a", "--reason", " "], 64, "/locks/a needs a reason", ""),
        (&["pause", "a", "--reason", &long], 64, "1025", "1024"),
        (&["pause", "a", "--reason", "x", "--until", "noon"], 64, "\"noon\" is no time", "as 06:00"),
        (&["pause", "a", "--reason", "x", "--until", "0s"], 64, "\"0s\" is not in the future", "as 2h"),
        (
            &["pause", "a", "--reason", "x", "--until", "2001-01-01 06:00"],
            64,
            "\"2001-01-01 06:00\" is in the past",
            "as 2h",
        ),
        (&["pause", "b", "--reason", "x"], 1, "no run of /locks/b as a job is recorded", "lockkeeper jobs expect"),
        (&["resume", "b"], 1, "no run of /locks/b as a job is recorded", "lockkeeper jobs expect"),
        (&["resume", "a"], 1, "/locks/a is not paused", "lockkeeper jobs /locks/a --history"),
    ];
    for (args, code, value, remedy) in cases {
        let text = stderr(&home, &[&["jobs"], args].concat(), code);
        assert!(text.contains(value) && text.contains(remedy), "{args:?}: {text}");
    }
    assert_eq!(job(&home, "a")["pause"], Value::Null);
}
