//! Jobs: `run` with a slot, and `jobs`.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use zookeeper_client::{Acl, AuthId, Permission};

use crate::harness::{
    BINARY, Home, Running, Served, failure, held, is_alive, names, refused, served, text, until, without_scope,
};
use crate::plain::Plain;

/// Returns the records of one job.
fn job(home: &Home, name: &str) -> Value {
    let document = home.json(&["jobs", name, "--json"]);
    document["jobs"][0].clone()
}

/// Runs a job to its end; returns its exit status and what it printed on standard error.
fn run(home: &Home, args: &[&str], script: &str) -> (Option<i32>, String) {
    let output = home.output(&[&["run"], args, &["--", "sh", "-c", script]].concat());
    (output.status.code(), without_scope(&output))
}

#[test]
fn of_fifty_processes_one_runs_the_slot_and_the_others_name_it() {
    let home = Home::new();
    let script = "echo $LOCKKEEPER_SLOT >> ran; sleep 0.2";
    let mut all: Vec<_> = (0..50).map(|_| home.spawn("nightly", &["--slot", "4711", "--verbose"], script)).collect();
    let ends: Vec<_> = all.iter_mut().map(Running::end).collect();
    assert_eq!(text(&home.file("ran")), "4711\n");
    let named = ends.iter().filter(|(_, text)| text.contains("/locks/nightly, slot 4711: done by "));
    assert_eq!(named.count(), 49, "{ends:?}");
    assert!(ends.iter().all(|(code, _)| *code == Some(0)), "{ends:?}");
    let job = job(&home, "nightly");
    assert_eq!((job["state"].as_str(), job["runs"].as_array().map(Vec::len)), (Some("ok"), Some(1)));
}

#[test]
fn show_says_when_the_lock_of_a_job_was_last_held_and_by_whom() {
    let home = Home::new();
    assert_eq!(run(&home, &["a", "--slot", "1"], "exit 3").0, Some(3));
    let text = home.ok(&["show", "a"]);
    assert!(text.starts_with("/locks/a\n  free\n  last run failed with exit status 3 on "), "{text}");
    let shown = home.json(&["show", "a", "--json"]);
    assert_eq!(shown["last_run"]["slot"], job(&home, "a")["runs"][0]["slot"], "{shown}");
    assert!(shown["last_run"]["by"]["pid"].is_u64(), "{shown}");
}

#[test]
fn a_person_decides_about_a_run_that_was_kept_which_stops_the_other_slots_too() {
    let home = Home::new();
    let args = |slot| ["a", "--slot", slot, "--on-failure", "keep"];
    assert_eq!(run(&home, &args("1"), "exit 3").0, Some(3));
    for slot in ["1", "2"] {
        let (code, text) = run(&home, &args(slot), "touch ran");
        assert!(code == Some(82) && text.contains("/locks/a, slot 1: failed with exit status 3"), "{text}");
        assert!(text.contains("lockkeeper jobs resolve /locks/a --again"), "{text}");
    }
    assert_eq!((job(&home, "a")["state"].as_str(), home.file("ran").exists()), (Some("kept"), false));
    home.ok(&["jobs", "resolve", "a", "--again"]);
    assert_eq!(run(&home, &args("1"), "exit 4").0, Some(4));
    home.ok(&["jobs", "resolve", "a", "--accept"]);
    assert_eq!(run(&home, &args("2"), "touch ran").0, Some(0));
    assert!(home.file("ran").exists());
    home.failure(&["jobs", "resolve", "a", "--accept"], 1);
    home.ok(&["jobs", "forget", "a"]);
    home.failure(&["jobs", "forget", "a"], 1);
}

/// Monitoring calls for a person. After the decision, nobody is needed.
#[test]
fn a_failure_that_a_person_accepted_is_in_order() {
    let home = Home::new();
    let check = |more: &[&str]| {
        let output = home.output(&[&["jobs", "--check"], more].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    for rule in ["next", "keep"] {
        let args = [rule, "--slot", "1", "--on-failure", rule];
        assert_eq!(run(&home, &args, "exit 3").0, Some(3));
        let (code, said) = check(&[]);
        assert!(code == Some(2) && said.starts_with(&format!("{rule}: ")), "{said}");
        home.ok(&["jobs", "resolve", rule, "--accept"]);
        // The slot counts as done, so its job is not late before its time.
        assert_eq!(check(&["--late", "1h"]), (Some(0), String::new()), "{rule}");
        until("it is late", || check(&["--late", "1ms"]).0 == Some(1));
        names(&home.ok(&["jobs", rule]), &["failed with exit status 3", "; accepted by "]);
    }
    names(&home.ok(&["jobs", "--prometheus", "-"]), &["lockkeeper_job_failed{job=\"/locks/keep\"} 0\n"]);
    // The next failure is another one.
    assert_eq!(run(&home, &["next", "--slot", "2"], "exit 4").0, Some(4));
    assert_eq!(check(&[]).0, Some(2));
    // A decision to run it again is not the end of it.
    home.ok(&["jobs", "resolve", "next", "--again"]);
    assert_eq!(check(&[]).0, Some(2));
}

/// A job is not in order before it succeeds again: a person who is called must see why.
#[test]
fn a_running_job_that_is_not_in_order_names_the_run_before_that_failed() {
    let home = Home::new();
    assert_eq!(run(&home, &["a", "--slot", "1"], "exit 3").0, Some(3));
    let mut running = home.holds("a", &["--slot", "2"]);
    let named = "; the run before, slot 1, failed with exit status 3 on ";
    for (verb, code) in [(&["jobs", "--check"][..], 2), (&["doctor"], 2)] {
        let text = home.says(verb, code);
        assert!(text.contains("a: running: slot 2 "), "{verb:?}: {text}");
        assert!(text.contains(named), "{verb:?}: {text}");
    }
    names(&home.ok(&["jobs"]), &[named.trim_start_matches("; ")]);
    running.finish();
    home.ok(&["jobs", "--check"]);
}

/// Nothing would record the end of the run.
#[test]
fn the_records_of_a_running_job_are_not_deleted() {
    let (home, mut running) = held("a", &["--slot", "1"]);
    let (code, line) = failure(&home.output(&["jobs", "forget", "a"]));
    let pid = format!("(pid {})", running.pid().as_raw_nonzero());
    assert_eq!(code, Some(1), "{line}");
    assert!(line.starts_with("the records of /locks/a stay: slot 1 is running on ") && line.contains(&pid), "{line}");
    running.finish();
    assert_eq!(job(&home, "a")["state"], "ok");
    home.ok(&["jobs", "forget", "a"]);
}

#[test]
fn decisions_about_a_job_are_printed_as_json() {
    let home = Home::new();
    let json = |words: &[&str]| {
        let output = home.output(&[&["jobs"], words, &["--json"]].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    assert_eq!(run(&home, &["a", "--slot", "1"], "exit 3").0, Some(3));
    for (words, run_again) in [(&["resolve", "a", "--accept"], false), (&["rerun", "a", "1"], true)] {
        let decided = json(words);
        let (path, run) = (&decided["path"], &decided["run"]);
        assert_eq!((path, &run["slot"]["name"]), (&"/locks/a".into(), &"1".into()), "{decided}");
        assert_eq!(run["resolved"]["run_again"], run_again, "{decided}");
        assert!(decided["scope"]["kind"].is_string(), "{decided}");
    }
    assert_eq!(json(&["forget", "a"])["path"], "/locks/a");
    let output = home.output(&["jobs", "forget", "a", "--json"]);
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&error["event"], &error["exit_code"]), (&"error".into(), &1.into()));
}

#[test]
fn a_slot_that_succeeded_runs_again_when_a_person_says_so() {
    let home = Home::new();
    let rerun = |words: &[&str]| home.output(&[&["jobs", "rerun", "a"], words].concat());
    let refused = |words: &[&str], why: &str| {
        refused(&rerun(words), 1, why);
    };
    assert_eq!(run(&home, &["b", "--slot", "1"], "true").0, Some(0));
    refused(&[], "no run of /locks/a as a job is recorded");
    assert!(String::from_utf8(rerun(&[]).stderr).unwrap().contains("see which jobs there are: lockkeeper jobs --"));
    assert_eq!(run(&home, &["a", "--slot", "1"], "echo one >> ran").0, Some(0));
    assert_eq!(run(&home, &["a", "--slot", "2"], "echo two >> ran").0, Some(0));
    refused(&["3"], "/locks/a: no run of slot 3 is recorded");
    let marked = rerun(&["1"]);
    assert_eq!(marked.status.code(), Some(0), "{marked:?}");
    assert!(String::from_utf8_lossy(&marked.stderr).contains("/locks/a, slot 1: the next machine that asks for it"));
    refused(&["1"], "slot 1 already waits to run again, as ");
    let told = job(&home, "a");
    let decided = &told["runs"][0]["resolved"];
    assert!(decided["run_again"] == true && decided["at_ms"].is_i64() && decided["by"]["host"].is_string(), "{told}");
    for args in [&["jobs", "a"][..], &["jobs", "a", "--history"]] {
        names(&home.ok(args), &["to run again by "]);
    }
    // Another slot is still done.
    assert_eq!(run(&home, &["a", "--slot", "2"], "echo two >> ran").0, Some(0));
    // While it runs again, it is not marked.
    let mut running = home.starts("a", &["--slot", "1"], "echo again >> ran; echo up; read line");
    refused(&[], "slot 1 is running on ");
    running.close_stdin();
    running.end();
    assert_eq!(run(&home, &["a", "--slot", "1"], "echo one >> ran").0, Some(0));
    assert_eq!(std::fs::read_to_string(home.file("ran")).unwrap(), "one\ntwo\nagain\n");
    let shown = home.ok(&["jobs", "a"]);
    assert!(!shown.contains("to run again"), "{shown}");
    // A failure that a person decides about is told in the same words.
    assert_eq!(run(&home, &["a", "--slot", "4"], "exit 3").0, Some(3));
    let decided = home.output(&["jobs", "resolve", "a", "--again"]);
    assert!(
        String::from_utf8_lossy(&decided.stderr).contains("slot 4: the next machine that asks for it"),
        "{decided:?}"
    );
}

/// A command that cannot be started is a run that failed, and an attempt without the lock is none.
#[test]
fn a_command_that_was_not_found_is_recorded_and_an_attempt_without_the_lock_is_not() {
    let (home, mut holder) = held("taken", &[]);
    let unknown = |args: &[&str]| {
        assert_eq!(run(&home, &[&["taken", "--try"], args].concat(), "true").0, Some(75));
        home.tells(&["jobs", "taken"], 1)
    };
    let none = "no run of /locks/taken as a job is recorded";
    let told = unknown(&["--slot", "1", "--no-history"]);
    assert!(told.contains(&format!("{none} (on ")), "{told}");
    assert!(
        told.contains("  hint: if it should run, say so: lockkeeper jobs expect /locks/taken --once-per day "),
        "{told}"
    );
    let jobs = format!("lockkeeper jobs --config /dev/null --state-dir {}\n", home.state().display());
    assert!(told.ends_with(&format!("  hint: see which jobs there are: {jobs}")), "{told}");
    // A request that is recorded has a page.
    let told = unknown(&[]);
    assert!(told.contains(&format!("{none}: 1 request for its lock was refused (on ")), "{told}");
    assert!(
        told.contains("  hint: see who asked, and why each was refused: lockkeeper history /locks/taken "),
        "{told}"
    );
    holder.finish();
    assert_eq!(home.output(&["run", "a", "--slot", "1", "--", "no-such-program"]).status.code(), Some(127));
    names(&home.ok(&["jobs", "a", "--history"]), &["failed with exit status 127"]);
}

/// The records say nothing of a rule that only the machine that asks has.
#[test]
fn a_run_that_only_this_machine_keeps_is_not_said_to_wait_for_a_person() {
    let home = Home::new();
    assert_eq!(run(&home, &["a", "--slot", "1"], "exit 3").0, Some(3));
    let (code, text) = run(&home, &["a", "--slot", "2", "--on-failure", "keep"], "touch ran");
    assert!(code == Some(82) && text.contains("the rule --on-failure keep of this run lets no slot run"), "{text}");
    assert_eq!(job(&home, "a")["state"], "failed");
    assert_eq!(run(&home, &["a", "--slot", "2"], "touch ran").0, Some(0));
    assert!(home.file("ran").exists());
    // Now the records say it.
    assert_eq!(run(&home, &["b", "--slot", "1", "--on-failure", "keep"], "exit 3").0, Some(3));
    let (code, text) = run(&home, &["b", "--slot", "2", "--on-failure", "keep"], "touch ran");
    assert!(code == Some(82) && text.contains("; the job waits for a person"), "{text}");
}

/// The process is killed while its command runs, so it records nothing.
#[test]
fn the_rule_says_what_follows_a_kill() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    for (rule, code, runs_again, state) in
        [("next", 0, false, "crashed"), ("retry", 0, true, "ok"), ("keep", 82, false, "kept")]
    {
        let args = ["--slot", "1", "--on-crash", rule, "--session-timeout", "2s"];
        let mut killed = home.spawn(rule, &args, "echo $$; exec sleep 1000");
        let command = killed.pid_line();
        killed.kill();
        until("the command has ended", || !is_alive(command));
        if state == "kept" {
            // No machine has recorded the crash yet.
            let table = || home.ok(&["jobs", rule]);
            until("its session has expired", || table().contains("needs a person"));
            assert!(table().contains("no end was recorded"), "{}", table());
        }
        let file = format!("again-{rule}");
        let all = [&[rule], &args[..]].concat();
        let (found, text) = run(&home, &all, &format!("touch {file}"));
        assert_eq!(found, Some(code), "{rule}");
        // Without a line on standard error, cron sends no mail.
        assert!(text.contains(&format!("/locks/{rule}, slot 1: crashed on ")), "{rule}: {text}");
        if code == 0 {
            assert_eq!(run(&home, &all, "true"), (Some(0), String::new()), "{rule}");
        }
        assert_eq!(home.file(&file).exists(), runs_again, "{rule}");
        let job = job(&home, rule);
        assert_eq!(job["state"], state, "{rule}");
        assert_eq!(job["runs"][0]["end"]["kind"], "crashed", "{rule}");
    }
}

#[test]
fn a_waiter_that_is_killed_claims_nothing() {
    let (home, mut first) = held("a", &["--slot", "1"]);
    let mut waiter = home.waits("a", &["--slot", "2", "--session-timeout", "2s"], "touch ran");
    waiter.kill();
    first.finish();
    assert!(!home.file("ran").exists());
    assert_eq!(run(&home, &["a", "--slot", "2"], "touch ran").0, Some(0));
    assert!(home.file("ran").exists());
    assert_eq!(job(&home, "a")["runs"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_try_behind_a_run_ends_well_if_it_is_the_same_slot() {
    let (home, mut first) = held("a", &["--slot", "1"]);
    let (code, text) = run(&home, &["a", "--slot", "1", "--try", "-v"], "touch ran");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("running on "), "{text}");
    let (code, text) = run(&home, &["a", "--slot", "2", "--try"], "touch ran");
    assert_eq!(code, Some(75), "{text}");
    assert!(text.contains("slot 1 is still running on "), "{text}");
    assert_eq!(job(&home, "a")["state"], "running");
    first.finish();
    assert!(!home.file("ran").exists());
}

#[test]
fn the_record_has_the_limit_the_signal_and_the_last_output() {
    let home = Home::new();
    let (code, _) = run(&home, &["long", "--slot", "1", "--max-run", "200ms"], "exec sleep 1000");
    assert_eq!(code, Some(124));
    let end = job(&home, "long")["runs"][0]["end"].clone();
    assert_eq!((&end["kind"], &end["signal"]), (&Value::from("timed_out"), &Value::from(15)));
    let script = "i=0; while [ $i -lt 300 ]; do echo line $i >&2; i=$((i+1)); done; exit 9";
    let (code, told) = run(&home, &["loud", "--slot", "1", "--keep-output", "64"], script);
    assert_eq!((code, told.lines().count()), (Some(9), 300), "the output is passed on");
    let end = job(&home, "loud")["runs"][0]["end"].clone();
    let kept = end["output"].as_str().unwrap();
    assert!(kept.len() == 64 && told.ends_with(kept) && kept.ends_with("line 299\n"), "{kept:?}");
    assert_eq!((&end["kind"], &end["status"]), (&Value::from("failed"), &Value::from(9)));
    names(&home.ok(&["jobs", "loud", "--history"]), &["failed with exit status 9", "\n    line 299\n"]);
    let mut stopped = home.starts("stopped", &["--slot", "1"], "echo up; exec sleep 1000");
    stopped.signal(Signal::TERM);
    assert_eq!(stopped.wait().code(), Some(143));
    assert_eq!(job(&home, "stopped")["runs"][0]["end"]["kind"], "stopped");
}

/// The servers are silent when the command ends, so nothing confirms the end of the run.
#[test]
fn a_success_that_is_not_confirmed_to_be_recorded_is_no_success_of_run() {
    let (served, home) = served();
    let mut run = home.holds("a", &["--slot", "1", "--session-timeout", "60s"]);
    served.running.signal(Signal::STOP);
    run.close_stdin();
    names(&run.ends(76), &["/locks/a, slot 1: ", "the records may show a crash"]);
    served.running.signal(Signal::CONT);
}

#[test]
fn monitoring_sees_what_is_not_in_order() {
    let home = Home::new();
    let check = |late: &str| {
        let output = home.output(&["jobs", "--check", "--late", late]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(run(&home, &["good", "--slot", "1"], "exit 0").0, Some(0));
    assert_eq!(check("1h"), (Some(0), String::new()));
    until("it is late", || check("1ms").0 == Some(1));
    assert!(check("1ms").1.starts_with("good: late: slot 1 done by "));
    assert_eq!(run(&home, &["bad", "--slot", "1"], "exit 3").0, Some(3));
    let (code, said) = check("1h");
    assert!(code == Some(2) && said.starts_with("bad: failed: slot 1 failed with exit status 3 on "), "{said}");
    for (name, code, paths) in [(&[][..], 2, &["/locks/bad"][..]), (&["good"], 0, &[])] {
        let output = home.output(&[&["jobs"], name, &["--check", "--late", "1h", "--json"]].concat());
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let printed: Vec<_> =
            printed["jobs"].as_array().unwrap().iter().map(|job| job["path"].as_str().unwrap()).collect();
        assert_eq!((output.status.code(), &printed[..]), (Some(code), paths));
    }
    // The directory of the exporter belongs to its user, who could have planted a link that leads to a file of root. The process of the
    // shell becomes that of the command.
    let (file, kept) = (home.file("lockkeeper.prom"), home.file("kept"));
    std::fs::write(&kept, "content").unwrap();
    let script = format!("umask 077; ln -s kept .lockkeeper.prom.$$; exec {BINARY} jobs --prometheus lockkeeper.prom");
    let mut shell = Command::new("sh");
    home.prepare(shell.args(["-c", &script]));
    assert!(shell.status().unwrap().success());
    assert_eq!((text(&kept).as_str(), file.is_symlink()), ("content", false));
    let metrics = text(&file);
    for line in ["lockkeeper_job_failed{job=\"/locks/bad\"} 1\n", "lockkeeper_job_failed{job=\"/locks/good\"} 0\n"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert!(metrics.contains("lockkeeper_job_last_exit_status{job=\"/locks/bad\"} 3\n"), "{metrics}");
    // A collector of another user reads it, and no part of it stays behind.
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    let files = std::fs::read_dir(file.parent().unwrap()).unwrap();
    let left = files.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().contains(".prom."));
    assert_eq!(left.count(), 1, "the planted link");
    home.refuses(&["jobs", "--prometheus", "/nonexistent/x.prom"], 70, "/nonexistent/x.prom");
}

/// The list of one job belongs to its owner.
#[test]
fn records_that_may_not_be_read_hide_no_other_job_from_monitoring() {
    let (served, home) = served();
    for name in ["a", "b"] {
        assert_eq!(run(&home, &[name, "--slot", "1"], "exit 0").0, Some(0));
    }
    let plain = Plain::connect(&served.address);
    let nobody = [Acl::new(Permission::ADMIN, AuthId::anyone())];
    plain.runtime.block_on(plain.client.set_acl("/lockkeeper/jobs/locks%2Fa", &nobody, None)).unwrap();
    let shown = |args: &[&str]| {
        let output = home.output(&[&["jobs"], args].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, table) = shown(&[]);
    let lines: Vec<_> = table.lines().collect();
    assert!(
        code == Some(0) && lines[1].starts_with("a    unreadable  ") && lines[2].starts_with("b    ok "),
        "{table}"
    );
    assert!(lines[1].contains("not authorized"), "{table}");
    let (code, said) = shown(&["--check"]);
    assert!(code == Some(2) && said.starts_with("a: unreadable: ") && said.lines().count() == 1, "{said}");
    let (code, metrics) = shown(&["--prometheus", "-"]);
    assert!(code == Some(0) && metrics.contains("lockkeeper_job_failed{job=\"/locks/a\"} 1\n"), "{metrics}");
    assert!(metrics.contains("lockkeeper_job_failed{job=\"/locks/b\"} 0\n"), "{metrics}");
    assert_eq!(shown(&["a"]).0, Some(0));
}

#[test]
fn a_job_without_a_server_is_skipped_or_run_as_asked() {
    let home = Home::with_servers("127.0.0.1:1");
    let base = ["a", "--slot", "1", "--wait", "300ms"];
    let (code, text) = run(&home, &base, "touch ran");
    assert_eq!(code, Some(69), "{text}");
    assert!(!home.file("ran").exists());
    let script = "echo ${LOCKKEEPER_TOKEN-none} > ran; exit 4";
    let (code, text) = run(&home, &[&base[..], &["--if-unreachable", "run"]].concat(), script);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("runs without the lock"), "{text}");
    assert_eq!(crate::harness::text(&home.file("ran")), "none\n");
    let (code, text) = run(&home, &[&base[..], &["--if-unreachable", "wait"]].concat(), "touch ran");
    assert_eq!(code, Some(69), "{text}");
}

#[test]
fn wrong_input_is_named_with_the_remedy() {
    let home = Home::new();
    let cases: [(&[&str], &str, &str); 17] = [
        (&["--slot", "1", "--catch-up", "b"], "'b'", "--catch-up <COUNT>"),
        (&["--once-per", "year"], "'year'", "hour, day, week or month"),
        (&["--once-per", "day", "--time-zone", "Berlin"], "Berlin", "Europe/Berlin"),
        (&["--every", "6"], "'6'", "30s"),
        (&["--every", "0s"], "'0s'", "longer than 0"),
        (&["--every", "500ms"], "500ms", "choose 1s or more"),
        (&["--slot", ""], "\"\"", "1 to 256 bytes"),
        (&["--slot", "1", "--on-failure", "again"], "'again'", "retry:N"),
        (&["--slot", "1", "--catch-up", "367"], "367", "0..=366"),
        (&["--slot", "1", "--keep-output", "17k"], "'17k'", "such as 4k"),
        (&["--slot", "1", "--keep-runs", "1001"], "1001", "1..=1000"),
        (&["--slot", "1", "--every", "1h"], "'--slot <TEXT>'", "--every"),
        (&["--once-per", "day", "--slot", "1"], "'--once-per <PERIOD>'", "--slot"),
        (&["--every", "1h", "--time-zone", "Europe/Berlin"], "--time-zone <ZONE>", "--every"),
        (&["--slot", "1", "--time-zone", "Europe/Berlin"], "--time-zone <ZONE>", "--slot"),
        (&["--slot", "1", "--shared"], "--shared", "--slot"),
        (&["--on-crash", "keep"], "--on-crash needs --once-per PERIOD", "leave --on-crash out"),
    ];
    for (args, value, remedy) in cases {
        let output = home.output(&[&["run", "a"], args, &["--", "touch", "ran"]].concat());
        assert_eq!(failure(&output).0, Some(64), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(value) && text.contains(remedy), "{args:?}: {text}");
    }
    let output = home.output(&["run", "a", "b", "--slot", "1", "--", "touch", "ran"]);
    assert_eq!(failure(&output), (Some(64), "a job has one lock, not 2".to_owned()));
    home.refuses(&["jobs", "--watch"], 64, "terminal");
    assert!(!home.file("ran").exists());
}

#[test]
fn a_crontab_is_printed_with_its_lines_rewritten() {
    let home = Home::new();
    let crontab = "# nightly\nMAILTO=ops\n13 2 * * * /opt/report.sh\n@reboot /opt/start.sh\n";
    std::fs::write(home.file("crontab"), crontab).unwrap();
    let output = home.output(&["jobs", "import", "crontab", "--servers", "zk1:2181"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let expected = format!("13 2 * * * {BINARY} run report --once-per day");
    assert!(
        printed.starts_with("# nightly\nMAILTO=ops\n") && printed.ends_with("\n@reboot /opt/start.sh\n"),
        "{printed}"
    );
    names(&printed, &[&expected, " --servers zk1:2181 ", " -- /opt/report.sh\n"]);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("keep the old line for what each machine must do by itself"), "{notes}");
    assert!(notes.contains("lockkeeper: line 4: @reboot"), "{notes}");
    assert_eq!(text(&home.file("crontab")), crontab);
    home.refuses(&["jobs", "import", "missing"], 64, "cannot read the crontab missing");
    // The rewritten line does what it says.
    let job = format!("* * * * * touch {}\n", home.file("ran").display());
    std::fs::write(home.file("crontab"), job).unwrap();
    let line = home.ok(&["jobs", "import", "crontab"]);
    let command = line.trim_end().strip_prefix("* * * * * ").unwrap().to_owned();
    let mut shell = Command::new("sh");
    home.prepare(shell.args(["-c", &command]));
    assert!(shell.status().unwrap().success(), "{command}");
    assert!(home.file("ran").exists());
    assert_eq!(job_names(&home), ["/locks/touch"]);
}

fn job_names(home: &Home) -> Vec<String> {
    let document = home.json(&["jobs", "--json"]);
    document["jobs"].as_array().unwrap().iter().map(|job| job["path"].as_str().unwrap().to_owned()).collect()
}

/// The server ends when nobody uses it, and keeps the records. Nobody needs to know that to read them.
#[test]
fn the_records_of_jobs_are_shown_when_the_own_server_has_ended() {
    let home = Home::new();
    home.failure(&["jobs"], 69);
    assert_eq!(run(&home, &["nightly", "--once-per", "day"], "true").0, Some(0));
    for args in [&["jobs"][..], &["jobs", "nightly"], &["jobs", "--check"], &["jobs", "forget", "nightly"]] {
        home.ok(&["server", "stop", "--force"]);
        home.ok(args);
        assert!(home.server().is_some());
    }
    let line = home.failure(&["jobs", "nightly"], 1);
    assert!(line.starts_with("no run of /locks/nightly as a job is recorded"), "{line}");
}

/// The journal and the request say who ended the run and why, and so does its record.
#[test]
fn the_record_of_a_revoked_or_broken_run_says_who_ended_it_and_why() {
    let home = Home::new();
    for (verb, kind, told) in [("revoke", "stopped", "asked to release by "), ("break", "lost", "broken by ")] {
        let mut running = home.starts(verb, &["--once-per", "day"], "echo up; exec sleep 1000");
        let yes: &[&str] = if verb == "break" { &["--yes"] } else { &[] };
        home.ok(&[&[verb, verb, "--reason", "deploying"], yes].concat());
        running.end();
        let end = &job(&home, verb)["runs"][0]["end"];
        assert_eq!(end["kind"], kind, "{end}");
        let why = end["why"].as_str().unwrap();
        assert!(why.starts_with(told) && why.ends_with(": deploying"), "{why}");
        let history = home.ok(&["jobs", verb, "--history"]);
        assert!(history.contains(why) && !history.contains("someone else"), "{history}");
    }
}
