//! Waiting in the queue: what is printed, when the wait ends, and that no node is left.

use std::time::{Duration, Instant};

use lockkeeper_testkit::Stalls;
use rustix::process::{Signal, kill_process, test_kill_process};

use crate::harness::{Home, failure, held, names, served, until, watchdogs, without_time};

/// D-01: a job that finds the lock taken prints the holder, waits, and runs after it.
#[test]
fn two_terminals_the_second_waits_and_says_for_whom() {
    let home = Home::new();
    let mut first = home.starts("nightly", &["--message", "nightly index"], "echo up; read end; echo first >> order");
    let mut second = home.spawn("nightly", &[], "echo second >> order");
    let line = second.told();
    let holder = format!("(pid {})", first.pid().as_raw_nonzero());
    assert!(without_time(&line).starts_with("lockkeeper: waiting for /locks/nightly: held by "), "{line}");
    names(&line, &[&holder, " since ", "(nightly index)"]);
    first.finish();
    let (code, rest) = second.end();
    assert!(code == Some(0) && without_time(&rest).starts_with("lockkeeper: acquired /locks/nightly after "), "{rest}");
    assert_eq!(rest.lines().count(), 1, "{rest}");
    assert_eq!(crate::harness::text(&home.file("order")), "first\nsecond\n");
}

/// It would stay as a zombie until the grant.
#[test]
fn a_waiting_run_reaps_its_killed_watchdog_and_its_command_gets_another_one() {
    let (home, mut first) = held("a", &[]);
    let mut second = home.waits("a", &[], "echo up; cat");
    until("it has a watchdog", || !watchdogs(second.pid()).is_empty());
    let watchdog = watchdogs(second.pid())[0];
    kill_process(watchdog, Signal::KILL).unwrap();
    let entry = format!("/proc/{}", watchdog.as_raw_nonzero());
    until("it is reaped", || !std::path::Path::new(&entry).exists());
    assert_eq!(home.count("a"), (1, 1));
    first.finish();
    assert_eq!(second.line(), "up");
    until("the command is guarded", || watchdogs(second.pid()).iter().any(|other| *other != watchdog));
    second.finish();
}

/// The runner of GitHub Actions takes `##[name]` for a command, anywhere in a line of the log.
#[test]
fn a_foreign_message_has_no_command_for_the_runner_of_github() {
    let (home, _first) = held("a", &["--message", "x ##[add-mask]deploy"]);
    for (runner, shown) in [(false, "x ##[add-mask]deploy"), (true, "x ## [add-mask]deploy")] {
        for (args, on_stderr) in [(&["run", "a", "--try", "--", "true"][..], true), (&["show", "a"], false)] {
            let mut command = home.command(args);
            command.env_remove("GITHUB_ACTIONS");
            if runner {
                command.env("GITHUB_ACTIONS", "true");
            }
            let output = command.stdin(std::process::Stdio::null()).output().unwrap();
            let text = String::from_utf8(if on_stderr { output.stderr } else { output.stdout }).unwrap();
            assert!(text.contains(shown), "{args:?}: {text}");
        }
    }
}

#[test]
fn a_conflict_that_is_no_problem_is_silent() {
    let (home, _holder) = held("a", &["--every", "1s"]);
    let start = home.output(&["jobs", "a", "--json"]);
    let start: serde_json::Value = serde_json::from_slice(&start.stdout).unwrap();
    let due = start["jobs"][0]["due_ms"].as_i64().unwrap();
    until("the next run is due", || {
        let now = home.json(&["jobs", "a", "--json"]);
        now["now_ms"].as_i64().unwrap() > due
    });
    for every in [&["--every", "1s"][..], &[]] {
        for (options, code) in
            [(&["--quiet"][..], 75), (&["--conflict-exit-code", "0"], 0), (&["-q", "--wait", "1s"], 75)]
        {
            let tries: &[&str] = if options.contains(&"--wait") { &[] } else { &["--try"] };
            let args = [&["run", "a"], every, tries, options, &["--", "touch", "ran"]].concat();
            let output = home.output(&args);
            assert_eq!(
                (output.status.code(), String::from_utf8_lossy(&output.stderr)),
                (Some(code), "".into()),
                "{args:?}"
            );
        }
    }
    assert_eq!(home.output(&["run", "a", "--every", "1s", "--try", "--", "touch", "ran"]).status.code(), Some(75));
    assert!(!home.file("ran").exists());
}

/// What is left of it when it is spoken of is less.
#[test]
fn a_wait_of_a_millisecond_is_not_said_to_be_zero() {
    let home = Home::new();
    // Starting a server takes longer.
    home.refuses(&["run", "a", "--wait", "1ms", "--", "touch", "ran"], 69, "within 1 ms");
    assert!(!home.file("ran").exists());
}

/// It could not end then, and neither would `run`.
#[test]
fn a_watchdog_that_is_stopped_does_not_outlive_the_command() {
    let (_home, mut holder) = held("a", &[]);
    let watchdogs = watchdogs(holder.pid());
    let [watchdog] = &watchdogs[..] else { panic!("{watchdogs:?}") };
    kill_process(*watchdog, Signal::STOP).unwrap();
    holder.close_stdin();
    names(&holder.ends(0), &["the watchdog of the command (pid ", "was stopped by a signal"]);
    assert!(test_kill_process(*watchdog).is_err(), "its watchdog is left");
}

/// The command need not wait for the start of its watchdog after the grant. A wait that ends without a command leaves no
/// process behind, even where process 1 reaps nothing.
#[test]
fn the_watchdog_of_a_waiter_runs_before_the_grant_and_ends_with_the_wait() {
    let (home, mut holder) = held("a", &[]);
    let mut waiter = home.waits("a", &[], "touch ran");
    let watchdogs = watchdogs(waiter.pid());
    assert_eq!(watchdogs.len(), 1, "{watchdogs:?}");
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.wait().code(), Some(143));
    assert!(test_kill_process(watchdogs[0]).is_err(), "its watchdog is left");
    holder.close_stdin();
    assert!(holder.wait().success() && !home.file("ran").exists());
}

/// The default node format, and that of the documents. Each with a lock of its own.
const FORMATS: [(&str, &[&str]); 2] = [("a", &[]), ("b", &["--format", "numbered"])];

/// N-02, N-18, D-09, D-18: without any cleanup the node is deleted with the session, and no waiter waits longer.
#[test]
fn after_kill_9_of_the_first_the_second_runs_within_the_session_timeout() {
    let home = Home::new();
    for (name, format) in FORMATS {
        let timeout = [format, &["--session-timeout", "2s"]].concat();
        let first = home.starts(name, &timeout, "echo up; exec sleep 1000");
        let mut second = home.waits(name, format, "echo in");
        let killed = Instant::now();
        first.signal(Signal::KILL);
        assert_eq!(second.line(), "in");
        // The timeout and a tick, and a margin for a busy machine.
        assert!(killed.elapsed() < Duration::from_secs(2 + 5), "{format:?}: {:?}", killed.elapsed());
        assert!(second.wait().success());
    }
}

/// D-08: the node of a killed waiter is deleted with its session, and the holder runs on.
#[test]
fn after_kill_9_of_a_waiter_its_place_is_gone_within_the_session_timeout() {
    let home = Home::new();
    for (name, format) in FORMATS {
        let mut holder = home.holds(name, format);
        let waiter = home.waits(name, &[format, &["--session-timeout", "2s"]].concat(), "touch ran");
        waiter.signal(Signal::KILL);
        until("its place is free", || home.count(name) == (1, 0));
        holder.close_stdin();
        assert!(holder.wait().success() && !home.file("ran").exists());
    }
}

#[test]
fn case_47_conflicts_have_their_own_exit_code_which_can_be_chosen() {
    let (home, mut holder) = held("a", &[]);
    let output = home.output(&["run", "a", "--try", "--", "touch", "ran"]);
    assert!(
        String::from_utf8(output.stderr).unwrap().contains("lockkeeper revoke /locks/a --"),
        "the hint names the way out"
    );
    let taken = |args: &[&str]| failure(&home.output(&[&["run", "a"], args, &["--", "touch", "ran"]].concat()));
    let (code, line) = taken(&["--try"]);
    assert_eq!(code, Some(75));
    assert!(line.starts_with("/locks/a is taken: held by ") && line.contains(" since "), "{line}");
    assert_eq!(taken(&["--wait", "0s"]).0, Some(75));
    assert_eq!(taken(&["--try", "--conflict-exit-code", "9"]).0, Some(9));
    assert!(!home.file("ran").exists());
    assert_eq!(home.count("a"), (1, 0));
    holder.finish();
    // A try gets a free lock; so does a command with a wait of zero.
    home.ok(&["run", "a", "--try", "--", "true"]);
    home.ok(&["run", "a", "--wait", "0s", "--", "true"]);
}

#[test]
fn case_09_a_wait_that_is_over_leaves_no_node_and_the_next_proceeds() {
    let (home, mut holder) = held("a", &[]);
    let mut patient = home.waits("a", &[], "echo in");
    let mut hasty = home.spawn("a", &["--wait", "3s"], "touch ran");
    names(&hasty.ends(75), &["lockkeeper: waited "]);
    assert_eq!(home.count("a"), (1, 1));
    holder.close_stdin();
    assert_eq!(patient.line(), "in");
    assert!(patient.wait().success() && holder.wait().success());
    assert!(!home.file("ran").exists());
}

/// The command ends at most a second after its wait, as its documentation promises. A control tells a busy machine apart.
#[test]
fn case_27_the_wait_bounds_a_server_that_swallows_everything() {
    // It accepts connections and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let home = Home::with_servers(&listener.local_addr().unwrap().to_string());
    let wait = Duration::from_secs(1);
    let (stalls, started) = (Stalls::watch(), Instant::now());
    let (code, line) = failure(&home.output(&["run", "a", "--wait", "1s", "--", "true"]));
    let (took, most) = (started.elapsed(), stalls.allow(wait + Duration::from_secs(1)));
    assert_eq!(code, Some(69), "{line}");
    assert!(took >= wait && took < most, "{took:?}, at most {most:?}");
}

/// Not earlier: the server may still start.
#[test]
fn the_wait_is_used_up_while_nothing_listens() {
    // No server of another test gets this port.
    let home = Home::with_servers("127.0.0.1:1");
    let started = Instant::now();
    let (code, line) = failure(&home.output(&["run", "a", "--wait", "3s", "--", "true"]));
    let took = started.elapsed();
    assert_eq!(code, Some(69), "{line}");
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(3 + 5), "{took:?}");
    names(&line, &["within 3 s", "nothing listens there"]);
}

/// The record of the refusal and the end of the session share the second after the wait.
#[test]
fn a_short_wait_ends_within_a_second_when_the_server_falls_silent() {
    let (served, home) = served();
    let mut holder = home.holds("a", &[]);
    let wait = Duration::from_secs(2);
    let (stalls, started) = (Stalls::watch(), Instant::now());
    let mut waiter = home.waits("a", &["--wait", "2s"], "touch ran");
    served.running.signal(Signal::STOP);
    let (code, text) = waiter.end();
    let (took, most) = (started.elapsed(), stalls.allow(wait + Duration::from_millis(1500)));
    served.running.signal(Signal::CONT);
    assert!(matches!(code, Some(75 | 69)), "{code:?} {text}");
    assert!(took >= wait && took < most, "{took:?}, at most {most:?}");
    holder.finish();
}

/// The server confirms nothing, so there is nothing to wait for.
#[test]
fn the_wait_in_the_queue_of_a_hung_server_ends_in_time() {
    let (served, home) = served();
    let mut holder = home.holds("a", &[]);
    let wait = Duration::from_secs(8);
    let started = Instant::now();
    let mut waiter = home.waits("a", &["--wait", "8s"], "touch ran");
    served.running.signal(Signal::STOP);
    let (code, text) = waiter.end();
    let took = started.elapsed();
    served.running.signal(Signal::CONT);
    assert_eq!(code, Some(69), "{text}");
    assert!(text.contains("no server answered within"), "{text}");
    assert!(took >= wait && took < wait + Duration::from_millis(1500), "{took:?}");
    holder.finish();
}

/// The limit includes the end of the session. The servers count a session's time only while they run, and end it at one of their ticks.
#[test]
fn case_46_an_unconfirmed_release_is_bounded_and_reported() {
    let (served, home) = served();
    let mut holder = home.starts("a", &["--session-timeout", "40s"], "echo up; read end; exit 7");
    served.running.signal(Signal::STOP);
    let ended = Instant::now();
    holder.close_stdin();
    let text = holder.ends(7);
    let took = ended.elapsed();
    served.running.signal(Signal::CONT);
    let told = "was not confirmed; it is free when the session ends, about 40 s after a server answers again";
    assert!(text.contains(told), "{text}");
    assert!(took >= Duration::from_secs(5) && took < Duration::from_millis(6500), "{took:?}");
}

#[test]
fn an_uncontended_run_says_nothing() {
    let home = Home::new();
    let output = home.output(&["run", "a", "--", "sleep", "0.5"]);
    assert!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
}

/// "Ahead" counts the contenders in front, holders included, wherever it is printed. A log shows when the queue ahead has halved, and when the
/// lock is acquired.
#[test]
fn ahead_is_counted_the_same_everywhere() {
    let (home, mut holder) = held("a", &[]);
    let mut next = home.waits("a", &[], "true");
    let mut told = home.spawn("a", &["--json"], "true");
    let mut event_of_told = || serde_json::from_str::<serde_json::Value>(&told.told()).unwrap();
    let event = event_of_told();
    assert_eq!((&event["event"], &event["ahead"]), (&"waiting".into(), &2.into()), "{event}");
    assert!(event["message"].as_str().unwrap().ends_with(", 2 ahead"), "{event}");
    let lock = home.show("a");
    let ahead: Vec<_> = lock["waiters"].as_array().unwrap().iter().map(|waiter| &waiter["ahead"]).collect();
    assert_eq!(ahead, [&serde_json::json!(1), &serde_json::json!(2)]);
    assert_eq!((&event["lock"]["waiters"][1]["ahead"], lock["holders"][0].get("ahead")), (&2.into(), None));
    let text = |verb: &str| home.ok(&[verb, "a"]);
    let shown = text("show");
    names(&shown, &["    ahead    1\n", "    ahead    2\n"]);
    let why = text("why");
    names(&why, &["2 waiting; a new contender has 3 ahead", ", 2 ahead\n"]);
    for give_up in [&["--try"][..], &["--wait", "3s"]] {
        let text = home.tells(&[&["run", "a"], give_up, &["--", "true"]].concat(), 75);
        let failure = text.lines().rfind(|line| without_time(line).starts_with("lockkeeper: ")).unwrap();
        assert!(failure.contains(", 3 ahead (on ") && !failure.contains("waiting for"), "{text}");
    }
    next.signal(Signal::TERM);
    next.wait();
    let event = event_of_told();
    assert_eq!((&event["event"], &event["ahead"]), (&"waiting".into(), &1.into()), "{event}");
    holder.finish();
    let event = event_of_told();
    assert_eq!((&event["event"], &event["paths"][0]), (&"acquired".into(), &"/locks/a".into()), "{event}");
    assert!(event["waited_ms"].as_u64().is_some_and(|ms| ms > 0), "{event}");
    told.ends(0);
}
